//! A bad connection to the object store: whatever fails and whenever the server dies, everything arrives in the end,
//! nothing counts as remote too early, and troubles are reported. The seed is printed; ASH_SEED sets it.

mod arrived;
mod story;

use crate::{
    proxy::{Line, Proxy, Refusal},
    servers,
    support::{
        Client, Server, eventually,
        remote::{files, messages, until_remote},
    },
};
use ash_model::remote::SessionManifest;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use story::Story;

/// A server that replicates to an S3 server through a proxy that we control.
struct Stage {
    server: Server,
    proxy: Proxy,
    s3: servers::Server,
}

impl Stage {
    async fn set(seed: u64, env: &[(&str, &str)]) -> Stage {
        let stage = Stage::without_bucket(seed, env).await;
        stage.s3.make_s3_bucket("shelf");
        stage
    }

    async fn without_bucket(seed: u64, env: &[(&str, &str)]) -> Stage {
        let (s3, keys) = servers::Server::moto();
        let proxy = Proxy::start(&s3.url(), "/shelf/some/where", seed).await;
        let mut server = Server::prepare(&[("ASH_SNAPSHOT_URL", "s3://shelf/some/where")]);
        keys.iter().for_each(|(name, value)| server.set(name, value));
        env.iter().for_each(|(name, value)| server.set(name, value));
        server.set("AWS_ENDPOINT_URL", &proxy.url);
        server.launch().await;
        Stage { server, proxy, s3 }
    }

    fn repo(&self) -> PathBuf {
        self.server.data.join("repo/default")
    }
}

async fn object_store(client: &Client) -> Value {
    client.get("/health").await["objectStore"].clone()
}

async fn sessions(client: &Client) -> Vec<Value> {
    let listed = client.get("/api/sessions?limit=1000").await;
    listed["sessions"].as_array().expect("sessions").clone()
}

async fn fork(client: &Client, parent: &str) -> String {
    let forked = client.post(&format!("/api/sessions/{parent}/fork"), json!({})).await;
    forked["session"]["id"].as_str().expect("an id").to_owned()
}

/// No turn runs, and no upload waits.
async fn until_all_is_remote(client: &Client) {
    eventually("the object store has everything", async || {
        let rests = |session: &Value| {
            session["openTurns"] == 0 && session["checkpoint"]["local"] == session["checkpoint"]["remote"]
        };
        let rest = sessions(client).await.iter().all(rests);
        (rest && object_store(client).await["waitingCheckpoints"] == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_arrives_whatever_fails() {
    let slow = std::env::var("ASH_SLOW").is_ok_and(|slow| slow == "1");
    let runs = if slow { 100 } else { 20 };
    let seed = std::env::var("ASH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0002);
    println!("seed {seed}, {runs} runs");
    let mut story = Story::begin(seed).await;
    for run in 0..runs {
        story.run(run).await;
        if run == 0 {
            story.die_while_sending().await;
        }
        if run % 5 == 4 {
            story.stage.proxy.set(Line::Good);
            until_all_is_remote(&story.stage.server.client()).await;
            story.check_announced().await;
        }
    }
    let (sessions, looked_at, cut_off) = (story.ids.len(), story.checked.len(), story.cut_off);
    println!(
        "{sessions} sessions, {looked_at} checkpoints looked at, {cut_off} kills while something was sent"
    );
    story.end().await;
}

/// Work continues during an outage, the server reports it, and the uploads catch up afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_reported_and_ends_without_help() {
    let stage = Stage::set(1, &[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: before").await;
    until_remote(&client, &id).await;
    assert_eq!(object_store(&client).await["status"], "ok");
    stage.proxy.set(Line::Cut);
    for number in 0..3 {
        let done = client.say(&id, &format!("write a.txt: {number}")).await;
        assert!(done["error"].is_null() && done["checkpoint"].is_u64(), "{done}");
    }
    let told = until_trouble(&client, "unreachable").await;
    assert!(told["error"].as_str().is_some_and(|error| error.contains("s3://shelf/some/where")), "{told}");
    assert!(told["since"].is_string() && told["waitingCheckpoints"].as_u64() > Some(0), "{told}");
    let health = client.get("/health").await;
    let trouble = json!([{
        "code": "object_store_unreachable", "error": health["objectStore"]["error"], "since": told["since"],
    }]);
    assert_eq!((&health["degraded"], &health["trouble"]), (&json!(true), &trouble), "{health}");
    let stranger = client.http.get(format!("{}/health", client.url)).send().await.expect("an answer");
    let stranger: Value = stranger.json().await.expect("JSON");
    assert_eq!((&stranger["degraded"], &stranger["trouble"]), (&json!(true), &Value::Null), "{stranger}");
    let checkpoint = client.session(&id).await["checkpoint"].clone();
    assert_ne!(checkpoint["local"], checkpoint["remote"]);
    heal(&stage, &client, &id).await;
    let health = client.get("/health").await;
    assert_eq!((&health["degraded"], &health["trouble"]), (&Value::Null, &Value::Null), "{health}");
}

/// Each problem that needs an operator has its own code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problems_of_the_object_store_are_distinguished() {
    let stage = Stage::without_bucket(1, &[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: before").await;
    until_trouble(&client, "bucket_missing").await;
    stage.s3.make_s3_bucket("shelf");
    heal(&stage, &client, &id).await;
    for (status, code, expected) in [
        (403, "InvalidAccessKeyId", "wrong_key"),
        (403, "SignatureDoesNotMatch", "wrong_key"),
        (400, "ExpiredToken", "expired"),
        (403, "RequestTimeTooSkewed", "clock_skew"),
        (301, "PermanentRedirect", "wrong_region"),
        (403, "AccessDenied", "access_denied"),
        (507, "InsufficientStorage", "no_space"),
        (503, "SlowDown", "throttled"),
        (500, "InternalError", "other"),
    ] {
        stage.proxy.set(Line::Says(Refusal { status, code }));
        let done = client.say(&id, &format!("write a.txt: {code}")).await;
        assert!(done["error"].is_null() && done["checkpoint"].is_u64(), "{done}");
        let told = until_trouble(&client, expected).await;
        // The server does not follow a redirect.
        let (word, number) = (code, format!("HTTP {status}"));
        let names = |error: &str| error.contains(word) || (status == 301 && error.contains(&number));
        assert!(told["error"].as_str().is_some_and(names), "{told}");
        heal(&stage, &client, &id).await;
    }
}

async fn until_trouble(client: &Client, code: &str) -> Value {
    let mut last = Value::Null;
    let told = eventually(code, async || {
        last = object_store(client).await;
        (last["status"] == "trouble").then(|| last.clone())
    });
    let told = told.await;
    assert_eq!(told["code"], code, "{told}");
    told
}

/// Only repairs the connection.
async fn heal(stage: &Stage, client: &Client, id: &str) {
    stage.proxy.set(Line::Good);
    until_remote(client, id).await;
    let well = eventually("it says that it is well", async || {
        let told = object_store(client).await;
        (told["status"] == "ok").then_some(told)
    });
    let well = well.await;
    assert_eq!((&well["waitingCheckpoints"], &well["code"]), (&json!(0), &Value::Null), "{well}");
}

/// A turn needs a minimum of requests, and uploads little more than its new data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_costs_three_requests_at_most_and_a_tenth_more_than_its_pack() {
    let stage = Stage::set(1, &[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    for _ in 0..3 {
        client.say(&id, "run: head -c 20000 /dev/urandom > noise").await;
    }
    until_all_is_remote(&client).await;
    let (before, _) = (packs(&stage), stage.proxy.take_traffic());
    client.say(&id, "run: head -c 20000 /dev/urandom > noise").await;
    until_all_is_remote(&client).await;
    let (after, traffic) = (packs(&stage), stage.proxy.take_traffic());
    let new: u64 = after.iter().filter(|(name, _)| !before.contains_key(*name)).map(|(_, size)| size).sum();
    println!("{} requests, {} bytes for {new} in packs", traffic.requests.len(), traffic.bytes);
    assert!(new > 0 && traffic.requests.len() <= 3, "{:?}", traffic.requests);
    assert!(traffic.bytes * 10 <= new * 11, "{} bytes for {new} in packs", traffic.bytes);
}

/// New data is uploaded once, and a machine that has the rest downloads it once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_changed_file_is_one_pack_sent_and_one_read() {
    let mut stage = Stage::set(1, &[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    client
        .say(&id, "run: head -c 9000000 /dev/urandom > large; for i in $(seq 300); do echo $i > $i; done")
        .await;
    until_all_is_remote(&client).await;
    let (older, before) = (stage.server.dir.join("older"), packs(&stage));
    copy_packs(&stage.repo(), &older);
    stage.proxy.take_traffic();
    client.say(&id, "write 7: changed").await;
    until_all_is_remote(&client).await;
    let after = packs(&stage);
    let new: Vec<_> = after.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
    let [(name, size)] = new[..] else { panic!("one pack: {new:?}") };
    let name = name.trim_end_matches(".pack");
    assert_eq!(of_packs(&stage), [format!("PUT packs/{name}")]);
    let (files_before, said) = (files(&client, &id).await, messages(&client, &id).await);

    stage.server.kill9();
    std::fs::remove_dir_all(&stage.server.data).expect("deleted");
    copy_packs(&older, &stage.repo());
    stage.server.take_over().await;
    stage.proxy.take_traffic();
    let client = stage.server.client();
    let receipt = client.action(&id, "resume").await["resume"].clone();
    let read = of_packs(&stage);
    assert_eq!((&receipt["verified"], &receipt["lost"]), (&json!(true), &json!([])), "{receipt}");
    assert_eq!(read, [format!("GET packs/{name} bytes=0-1048575")]);
    assert!(*size < 1 << 20, "all of it");
    assert!(files(&client, &id).await == files_before, "files are not what they were");
    assert_eq!(messages(&client, &id).await, said);
}

/// The requests for packs.
fn of_packs(stage: &Stage) -> Vec<String> {
    let requests = stage.proxy.take_traffic().requests;
    let of_packs = requests.iter().filter(|request| request.contains("/packs/"));
    of_packs.map(|request| request.replace("/shelf/some/where/tenants/default/", "")).collect()
}

fn copy_packs(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("listed").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "pack") {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    }
}

/// The local packs, and their sizes.
fn packs(stage: &Stage) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(stage.repo()).expect("a repository").flatten();
    let entries = entries.map(|entry| (entry.file_name().into_string().expect("a name"), entry));
    let packs = entries.filter(|(name, _)| name.ends_with(".pack"));
    packs.map(|(name, entry)| (name, entry.metadata().expect("a size").len())).collect()
}

/// A fork needs the log of its parent, and the record that it is a fork.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_that_is_reported_remote_comes_back() {
    let mut stage = Stage::set(1, &[]).await;
    let client = stage.server.client();
    let parent = client.create().await;
    client.say(&parent, "write a.txt: 0").await;
    until_remote(&client, &parent).await;
    // The parent has much more to upload than the fork, which would otherwise arrive first.
    stage.proxy.set(Line::Cut);
    for number in 1..6 {
        client.say(&parent, &format!("write a.txt: {number}")).await;
    }
    let fork = fork(&client, &parent).await;
    let (before, said) = (files(&client, &fork).await, messages(&client, &fork).await);
    stage.proxy.set(Line::CutAfter(format!("tenants/default/sessions/{fork}")));
    until_remote(&client, &fork).await;
    stage.server.lose_the_machine().await;
    stage.proxy.set(Line::Good);
    let client = stage.server.client();
    let receipt = client.action(&fork, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
    assert_eq!(files(&client, &fork).await, before);
    assert_eq!(messages(&client, &fork).await, said);
}

/// A session is useless without its agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_not_reported_remote_before_its_agent_is() {
    let stage = Stage::set(1, &[]).await;
    let client = stage.server.client();
    let other = client.create().await;
    client.say(&other, "write a.txt: before").await;
    until_remote(&client, &other).await;
    stage.proxy.set(Line::Holds("tenants/default/agents/late".to_owned()));
    client.deploy("late").await;
    let made = client.post("/api/sessions", json!({ "agent": "late" })).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    client.say(&id, "write a.txt: late").await;
    eventually("its agent waits", async || stage.proxy.is_silent().then_some(())).await;
    // Sessions that came later have arrived by now.
    client.say(&other, "write a.txt: after").await;
    until_remote(&client, &other).await;
    assert_eq!(client.session(&id).await["checkpoint"]["remote"], Value::Null);
    let told = stage.proxy.stored().iter().any(|stored| stored.key.contains(&id));
    assert!(!told, "the object store does not have it");
    heal(&stage, &client, &id).await;
}

/// A session with a large or failing upload does not delay other sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_takes_long_to_send_holds_up_no_other() {
    let stage = Stage::set(1, &[]).await;
    let client = stage.server.client();
    let (slow, other) = (client.create().await, client.create().await);
    for id in [&slow, &other] {
        client.say(id, "write a.txt: before").await;
        until_remote(&client, id).await;
    }
    stage.proxy.set(Line::Holds(format!("tenants/default/sessions/{slow}")));
    client.say(&slow, "write a.txt: slow").await;
    eventually("it waits", async || stage.proxy.is_silent().then_some(())).await;
    for number in 0..3 {
        client.say(&other, &format!("write a.txt: {number}")).await;
        until_remote(&client, &other).await;
    }
    let checkpoint = client.session(&slow).await["checkpoint"].clone();
    assert_ne!(checkpoint["local"], checkpoint["remote"], "it was held all the while");
    heal(&stage, &client, &slow).await;
}

/// A checkpoint that retention removes before its upload still has its part of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_whole_even_if_retention_drops_checkpoints_before_their_upload() {
    let rules = [("ASH_KEEP_LAST", "1"), ("ASH_KEEP_HOURLY", "0"), ("ASH_KEEP_DAILY", "0")];
    let often = [("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0")];
    let mut stage = Stage::set(1, &[&rules[..], &often[..]].concat()).await;
    let client = stage.server.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: 0").await;
    until_remote(&client, &id).await;
    stage.proxy.set(Line::Cut);
    for number in 1..6 {
        client.say(&id, &format!("run: echo {number} > a.txt; head -c 100000 /dev/urandom > noise")).await;
    }
    let path = format!("/api/sessions/{id}/checkpoints");
    eventually("all but the last are given up", async || {
        let listed = client.get(&path).await["checkpoints"].as_array().expect("a list").clone();
        let left = listed.iter().filter(|checkpoint| checkpoint["removed"] != true).count();
        (left == 1 && packs(&stage).values().sum::<u64>() < 200_000).then_some(())
    })
    .await;
    stage.proxy.set(Line::Good);
    until_all_is_remote(&client).await;
    let (before, said) = (files(&client, &id).await, messages(&client, &id).await);
    stage.server.lose_the_machine().await;
    let client = stage.server.client();
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
    assert_eq!(messages(&client, &id).await, said);
    assert!(files(&client, &id).await == before, "files");
}

/// A turn that waits for the object store ends after its checkpoint, and the checkpoint is found all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_waits_for_the_object_store_comes_back_with_all_its_checkpoints() {
    let mut stage = Stage::set(1, &[("ASH_DURABILITY", "remote")]).await;
    let client = stage.server.client();
    let (stopped, cut) = (client.create().await, client.create().await);
    for number in 0..3 {
        for id in [&stopped, &cut] {
            client.say(id, &format!("write a.txt: {number}")).await;
        }
    }
    client.action(&stopped, "stop").await;
    let manifest = format!("tenants/default/sessions/{stopped}/");
    eventually("its end is there", async || {
        let stored = stage.proxy.stored();
        let newest = stored.iter().rfind(|stored| stored.key.starts_with(&manifest))?;
        let newest: SessionManifest = serde_json::from_slice(&newest.body).expect("a manifest");
        newest.checkpoint.is_none().then_some(())
    })
    .await;
    let mut before = BTreeMap::new();
    for id in [&stopped, &cut] {
        before.insert(id, (messages(&client, id).await, numbers(&client, id).await));
    }
    stage.server.lose_the_machine().await;
    let client = stage.server.client();
    for id in [&stopped, &cut] {
        let receipt = client.action(id, "resume").await["resume"].clone();
        assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
        assert_eq!(client.exec(id, "cat a.txt").await["stdout"], "2");
        assert_eq!((messages(&client, id).await, numbers(&client, id).await), before[id]);
    }
}

async fn numbers(client: &Client, id: &str) -> Vec<Value> {
    let listed = client.get(&format!("/api/sessions/{id}/checkpoints")).await;
    listed["checkpoints"].as_array().expect("a list").iter().map(|one| one["number"].clone()).collect()
}

/// A client that follows a session sees the progress of a restore, and continues at the same position of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_restore_reports_its_progress() {
    let often = [("ASH_COLD_TTL", "0"), ("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0")];
    let stage = Stage::set(1, &often).await;
    let client = stage.server.client();
    let id = client.create().await;
    client.say(&id, "run: head -c 300000 /dev/urandom > noise; sha256sum noise > sum").await;
    client.action(&id, "stop").await;
    until_remote(&client, &id).await;
    let (live, packs) = (stage.server.live(&id).await, stage.repo());
    eventually("everything is let go of", async || {
        let left = std::fs::read_dir(&packs).expect("packs").flatten();
        let left = left.filter(|entry| entry.path().extension().is_some_and(|name| name == "pack")).count();
        (!live.join("tree").exists() && left <= 1).then_some(())
    })
    .await;

    let mut follower = client.follow(&id, &client.session_seq(&id).await).await;
    stage.proxy.set(Line::Holds("tenants/default/packs".to_owned()));
    let resuming = tokio::spawn({
        let (client, id) = (stage.server.client(), id.clone());
        async move { client.action(&id, "resume").await }
    });
    let seen = follower.until("restore_progress").await;
    let told = seen.last().expect("a frame");
    assert_eq!(told.id, "", "it is nothing to go on after");
    assert_eq!((&told.data["files"], told.data["fetchedBytes"].is_u64()), (&json!(0), true), "{told:?}");
    assert!(!resuming.is_finished());
    stage.proxy.set(Line::Good);
    let receipt = resuming.await.expect("an answer")["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
    assert_eq!(client.exec(&id, "sha256sum -c sum").await["exitCode"], 0);
}
