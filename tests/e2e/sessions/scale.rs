//! Many sandboxes at once, and many in sequence: ended ones leave nothing behind.

use crate::support::{Client, Server, as_root, available_mb, eventually, parent, pids};
use futures::{StreamExt as _, stream};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// All are alive, each answers, and each has its own data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sandboxes_are_alive_at_once() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let before = available_mb();
    let ids: Vec<String> = stream::iter(0..200)
        .map(|n| {
            let client = client.clone();
            async move {
                let id = client.create().await;
                client.say(&id, &format!("run: echo {n} > mine")).await;
                id
            }
        })
        .buffered(16)
        .collect()
        .await;
    let after = available_mb();
    let health = client.get("/health").await;
    assert_eq!(health["activeSandboxes"], 200, "{health}");
    let alive = descendants(server.pid()).len();
    assert!(alive >= 400, "an init and an agent each: {alive}");
    println!(
        "200 sandboxes: MemAvailable {before} MB before, {after} MB after, {} MB each; {alive} processes",
        (before.saturating_sub(after)) as f64 / 200.0
    );
    let right = stream::iter(ids.iter().enumerate())
        .map(|(n, id)| {
            let client = client.clone();
            async move { client.exec(id, "cat mine").await["stdout"] == format!("{n}\n") }
        })
        .buffered(16)
        .filter(|right| futures::future::ready(*right))
        .count()
        .await;
    assert_eq!(right, 200);
    assert_eq!(client.get("/health").await["activeSandboxes"], 200, "no session was evicted");
}

/// The server's descendants: its shims and their sandboxes.
fn descendants(of: u32) -> Vec<u32> {
    let parents: BTreeMap<u32, u32> =
        pids().into_iter().filter_map(|pid| parent(pid).map(|parent| (pid, parent))).collect();
    let is_beneath = |pid: &&u32| {
        std::iter::successors(Some(**pid), |pid| parents.get(pid).copied()).take(64).any(|up| up == of)
    };
    parents.keys().filter(is_beneath).copied().filter(|pid| *pid != of).collect()
}

/// The server's resources by kind, including everything that may leak. Counts only the control groups of its own
/// sandboxes.
fn held(server: &Server, incarnations: &BTreeSet<OsString>) -> BTreeMap<&'static str, usize> {
    let pid = server.pid();
    let count = |path: String| fs::read_dir(path).map_or(0, |entries| entries.flatten().count());
    let own = server.dir.display().to_string();
    let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
    let live: Vec<_> = fs::read_dir(server.data.join("live")).expect("a folder").flatten().collect();
    let uids: BTreeSet<String> = live
        .iter()
        .filter_map(|dir| fs::read_to_string(dir.path().join("stamp")).ok())
        .filter_map(|stamp| Some(serde_json::from_str::<Value>(&stamp).ok()?["uid"].to_string()))
        .collect();
    BTreeMap::from([
        ("processes", descendants(pid).len()),
        ("threads beyond 40", count(format!("/proc/{pid}/task")).saturating_sub(40)),
        ("descriptors", descriptors(pid)),
        ("mounts", mounts.lines().filter(|line| line.contains(&own)).count()),
        ("groups", groups(Path::new("/sys/fs/cgroup"), 4, incarnations)),
        ("uids", uids.len()),
        ("live trees", live.len()),
        ("files beside the repository", files(&server.data)),
    ])
}

/// Without packs, of which the server keeps up to 64 open on purpose.
fn descriptors(pid: u32) -> usize {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten();
    let is_pack = |target: &Path| target.extension().is_some_and(|end| end == "pack");
    all.filter(|entry| !fs::read_link(entry.path()).is_ok_and(|target| is_pack(&target))).count()
}

/// Directories named `ash` have one group for each sandbox.
fn groups(dir: &Path, depth: usize, incarnations: &BTreeSet<OsString>) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let is_ash = dir.file_name().is_some_and(|name| name == "ash");
    let count = |entry: fs::DirEntry| {
        let own = usize::from(is_ash && incarnations.contains(&entry.file_name()));
        own + if depth > 0 { groups(&entry.path(), depth - 1, incarnations) } else { 0 }
    };
    dirs.map(count).sum()
}

/// The incarnations of the current sandboxes, after which their groups are named.
fn incarnations(server: &Server) -> Vec<OsString> {
    let live = fs::read_dir(server.data.join("live")).expect("a folder").flatten();
    let runs = live.filter_map(|dir| fs::read_dir(dir.path().join("run")).ok()).flatten().flatten();
    runs.filter_map(|file| Some(file.file_name().to_str()?.strip_prefix("journal.")?.into())).collect()
}

/// Without checkpoints and the log, which the server keeps on purpose.
fn files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() && entry.file_name() == "repo" => 0,
        Ok(kind) if kind.is_dir() => files(&entry.path()),
        Ok(_) | Err(_) => 1,
    };
    entries.map(count).sum()
}

struct Stage {
    server: Server,
    client: Client,
    /// The sessions, oldest first, and the content of a file of each.
    before: Vec<(String, String)>,
    /// The incarnations of all sandboxes so far.
    incarnations: BTreeSet<OsString>,
}

/// Nothing is under way, and each of the four places is in use. If a prewarmed sandbox took a place and another sandbox
/// then ended, one place is free: a new session then replaces the oldest one, which has no sandbox.
async fn at_rest(stage: &mut Stage) {
    let Stage { client, before, .. } = stage;
    loop {
        let waiting = eventually("nothing is under way", async || {
            let pool = client.get("/health").await["pool"].clone();
            let rests = pool["running"] == 0 && pool["warming"] == 0 && pool["warm"] == 1;
            if rests { pool["waiting"].as_u64() } else { None }
        })
        .await;
        if waiting == 3 {
            return;
        }
        let id = client.create().await;
        client.say(&id, "run: echo rest > mine").await;
        before.push((id, "rest".to_owned()));
        let (oldest, _) = before.remove(0);
        client.delete(&format!("/api/sessions/{oldest}?purge=true")).await;
    }
}

/// A new session takes the place of another one; that one comes back unchanged, and ends.
async fn cycle(stage: &mut Stage, number: usize) {
    let Stage { server, client, before, incarnations: seen } = stage;
    let id = client.create().await;
    seen.extend(incarnations(server));
    client.say(&id, &format!("run: echo {number} > mine")).await;
    before.push((id, number.to_string()));
    if before.len() > 5 {
        let (old, own) = before.remove(0);
        assert_eq!(client.status(&old).await, "paused", "it was evicted");
        let back = client.action(&old, "resume").await;
        assert_eq!(back["resume"]["path"], "cold", "{back}");
        seen.extend(incarnations(server));
        let mine = client.exec(&old, "cat mine").await;
        assert_eq!(mine["stdout"], format!("{own}\n"), "{mine}");
        let (status, body) =
            client.ask(Method::DELETE, &format!("/api/sessions/{old}?purge=true"), None).await;
        assert!(status.is_success(), "{body}");
    }
}

async fn cycles_leak_nothing(uid: Option<u32>, count: usize) {
    let env = [("ASH_MAX_SANDBOXES", "4"), ("ASH_PREWARM", "1"), ("ASH_IDLE_TIMEOUT", "0")];
    let server = match uid {
        Some(uid) => Server::of_user(uid, &env).await,
        None => Server::with(&env).await,
    };
    let client = server.client();
    client.deploy("tester").await;
    let mut stage = Stage { server, client, before: Vec::new(), incarnations: BTreeSet::new() };
    for number in 0..20 {
        cycle(&mut stage, number).await;
    }
    at_rest(&mut stage).await;
    let before = held(&stage.server, &stage.incarnations);
    assert!(before["groups"] > 0 || stage.server.uid() != 0, "a group of each sandbox: {before:?}");
    for number in 20..20 + count {
        cycle(&mut stage, number).await;
    }
    at_rest(&mut stage).await;
    // Threads and connections end a moment later, actors of sessions within a minute, which is longer than the usual
    // deadline.
    let mut after = held(&stage.server, &stage.incarnations);
    let until = Instant::now() + Duration::from_secs(70);
    while before.iter().any(|(kind, was)| after[kind] > was + 2) {
        assert!(Instant::now() < until, "something leaks\n  before {before:?}\n  after  {after:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        after = held(&stage.server, &stage.incarnations);
    }
    let metrics = stage.client.request(Method::GET, "/metrics").send().await.expect("metrics").text().await;
    let metrics = metrics.expect("text");
    let number =
        |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let evicted = number("ash_pool_evictions_total ").expect("a number");
    assert!(evicted >= count as u64, "{evicted}");
    println!("{count} cycles, {evicted} evictions\n  before {before:?}\n  after  {after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_of_create_evict_and_resume_leak_nothing() {
    cycles_leak_nothing(None, 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_cycles_of_an_ordinary_users_server_leak_nothing() {
    assert!(as_root());
    cycles_leak_nothing(Some(61_004), 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slowly_a_thousand_cycles_leak_nothing() {
    cycles_leak_nothing(None, 1000).await;
}

/// A create that finds a prewarmed sandbox builds none: its shim existed before. `bench/http` measures the time that this
/// saves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prewarmed_sandboxes_are_used_instead_of_new_ones() {
    let server = Server::with(&[("ASH_PREWARM", "1")]).await;
    let client = server.client();
    client.deploy("tester").await;
    // A sandbox with other limits than the prewarmed ones, and one with the same.
    let other = json!({ "agent": "tester", "limits": { "maxOpenFiles": 4000 } });
    for (body, stood) in [(other, false), (json!({ "agent": "tester" }), true)].iter().cycle().take(10) {
        eventually("one is ready", async || (client.get("/health").await["pool"]["warm"] == 1).then_some(()))
            .await;
        let before = descendants(server.pid());
        let session = client.post("/api/sessions", body.clone()).await;
        let id = session["session"]["id"].as_str().expect("an id").to_owned();
        let shim = server.note(&id).await["shim"]["pid"].as_u64().expect("a pid") as u32;
        assert_eq!(before.contains(&shim), *stood, "{session}");
        client.delete(&format!("/api/sessions/{id}")).await;
    }
    assert_eq!(client.get("/health").await["pool"]["preWarmHits"], 5);
}
