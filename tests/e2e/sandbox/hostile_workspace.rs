//! A hostile workspace: a process in it swaps files and directories for links to the outside, all the time, while every
//! server operation on the tree runs. Nothing outside is read, written or removed.

mod beside;
mod outside;
mod search;
mod visitors;

use crate::support::{Client, Dice, Server};
use base64::{Engine, engine::general_purpose::STANDARD};
use beside::Fooled;
use flate2::{Compression, write::GzEncoder};
use outside::{Outside, is_gone, look};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The maximum size of a bundle, plus its headers.
const LARGEST_BUNDLE: u64 = 130 << 20;
const ORDINARY_USER: u32 = 61_003;
const SHORT: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(60);
/// How long it may take on a busy machine until the path-based code has been fooled and all our operations have run.
const LATEST: Duration = Duration::from_secs(400);
/// The workspace that is deleted and created again.
const SLUG: &str = "hostile";
/// Operations that must have succeeded at least once during the race.
const WORKS: [&str; 22] = [
    "checkpoint",
    "cold resume",
    "delete",
    "delete a workspace",
    "diff",
    "download",
    "end",
    "erase",
    "fork",
    "list",
    "list of a checkpoint",
    "list of a workspace",
    "pause",
    "read",
    "read as JSON",
    "read of a checkpoint",
    "resume",
    "rewind",
    "snapshot",
    "stop",
    "turn",
    "write of 20",
];
/// The same for operations that are mostly refused: an upload meets a link about half of the time.
const TRIED: [&str; 2] = ["upload", REFUSED];
/// An upload whose links all lead outside.
const REFUSED: &str = "upload of links";

#[tokio::test]
async fn nothing_outside_is_touched_while_links_are_swapped_in() {
    attack(Server::start().await, SHORT).await;
}

#[tokio::test]
async fn nothing_outside_is_touched_by_the_server_of_a_user() {
    attack(Server::of_user(ORDINARY_USER, &[]).await, SHORT).await;
}

/// Slow: a longer race has more chances to fail.
#[tokio::test]
async fn slowly_nothing_outside_is_touched_while_links_are_swapped_in() {
    attack(Server::start().await, LONG).await;
}

/// Slow for the same reason.
#[tokio::test]
async fn slowly_nothing_outside_is_touched_by_the_server_of_a_user() {
    attack(Server::of_user(ORDINARY_USER, &[]).await, LONG).await;
}

async fn attack(mut server: Server, length: Duration) {
    let seed = std::env::var("ASH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0017);
    println!("seed {seed}");
    let stage = Arc::new(Stage::set(&server).await);
    stage.no_way_is_simply_open().await;
    let quiet = server.live(&stage.quiet).await.join("tree");
    let before = (look(&stage.outside.dir.join("seen")), look(&quiet));

    let _curtain = Curtain { stage: stage.clone(), live: server.data.join("live") };
    let alone = server.live(&stage.alone).await.join("tree");
    let naive = tokio::task::spawn_blocking({
        let (stage, workspace) = (stage.clone(), alone.join("workspace"));
        move || stage.trust_paths(&workspace)
    });
    let beside = tokio::task::spawn_blocking({
        let stage = stage.clone();
        move || stage.save_and_erase(&alone)
    });
    stage.work(&server, Dice(seed), length).await;
    stage.over.store(true, Ordering::Relaxed);
    let (fooled, ()) = (naive.await.expect("no panic"), beside.await.expect("no panic"));
    stage.report(fooled);

    let client = server.client();
    assert!(before == (look(&stage.outside.dir.join("seen")), look(&quiet)), "something outside was changed");
    assert!(client.text(&stage.quiet, "read secret.txt").await.contains(&stage.outside.words[0]));
    assert_eq!(client.get("/health").await["status"], "ok");
    let gone = server.live(&stage.shared()).await;
    client.delete(&format!("/api/workspaces/{SLUG}")).await;
    is_gone(&gone);
    server.stop().await;
    assert!(!server.log().contains("panicked"), "{}", server.log());
    stage.search(&server.data.join("repo/default"));
    stage.search(&stage.outside.repo());
}

struct Stage {
    client: Client,
    outside: Outside,
    /// The targets of the links. Nothing important: if this test fails, root followed them.
    targets: Vec<String>,
    /// Texts that no response, no archive and no checkpoint may contain.
    forbidden: Vec<String>,
    /// The racing program, as a bundle.
    racer: String,
    /// Another session, with a secret.
    quiet: String,
    alone: String,
    /// The session in the workspace that is deleted again and again.
    shared: Mutex<String>,
    over: AtomicBool,
    fooled: AtomicBool,
    swaps: AtomicU64,
    done: Mutex<BTreeMap<&'static str, BTreeMap<u16, u64>>>,
    /// Internal errors in responses.
    faults: Mutex<BTreeSet<String>>,
}

/// On any end of the test: stops the helpers, and stops the race before its folder is removed.
struct Curtain {
    stage: Arc<Stage>,
    live: PathBuf,
}

impl Drop for Curtain {
    fn drop(&mut self) {
        self.stage.over.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            for entry in fs::read_dir(&self.live).into_iter().flatten().flatten() {
                ash_sandbox::reap(&entry.path().join("run")).ok();
            }
        }
    }
}

async fn create(client: &Client, workspace: Option<&str>) -> String {
    let made = client.post("/api/sessions", json!({ "agent": "racer", "workspace": workspace })).await;
    made["session"]["id"].as_str().expect("an id").to_owned()
}

fn racer() -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("racer");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/sandbox/hostile_workspace/racer.c");
    let built =
        Command::new("cc").args(["-O1", "-Wall", "-Wextra", "-static", source, "-o"]).arg(&program).output();
    let built = built.expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    bundle("racer", &fs::read(&program).expect("a program"), 0o755)
}

fn bundle(name: &str, content: &[u8], mode: u32) -> String {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, name, content).expect("written");
    STANDARD.encode(tar.into_inner().and_then(GzEncoder::finish).expect("written"))
}

impl Stage {
    async fn set(server: &Server) -> Stage {
        let client = server.client();
        client.deploy("racer").await;
        let outside = Outside::new();
        let quiet = create(&client, Some("quiet")).await;
        client.say(&quiet, &format!("write secret.txt: {}", outside.words[0])).await;
        let alone = create(&client, None).await;
        let shared = Mutex::new(create(&client, Some(SLUG)).await);
        let neighbour = server.live(&quiet).await.join("tree");
        let up = "../".repeat(20);
        let at = |name: &str| outside.dir.join(name).display().to_string();
        let targets = vec![
            at("decoy"),
            at("seen/open"),
            at("seen/closed"),
            format!("{up}{}", &at("seen/open")[1..]),
            neighbour.join("workspace").display().to_string(),
            server.data.display().to_string(),
            server.data.join("repo/default").display().to_string(),
            format!("/proc/1/root{}", at("seen/open")),
            format!("/proc/self/root{}", at("seen/open")),
            "/proc/self/fd".to_owned(),
            "/proc/self".to_owned(),
        ];
        let forbidden = outside.words.iter().map(String::as_str).chain(["SQLite format 3", "ASH_API_KEY="]);
        let forbidden = forbidden.map(str::to_owned).collect();
        let (over, fooled) = (AtomicBool::new(false), AtomicBool::new(false));
        let (swaps, done, faults) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        let racer = racer();
        Stage {
            client,
            outside,
            targets,
            forbidden,
            racer,
            quiet,
            alone,
            shared,
            over,
            fooled,
            swaps,
            done,
            faults,
        }
    }

    fn shared(&self) -> String {
        self.shared.lock().expect("no code panics while it holds this lock").clone()
    }

    /// One request with any outcome except an internal error or content from outside.
    async fn ask(&self, what: &'static str, request: RequestBuilder) -> (u16, Vec<u8>) {
        let answer = request.send().await.expect(what);
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.expect("a body").to_vec();
        if status >= 500 && status != 503 {
            let said = format!("{what}: {status} {}", String::from_utf8_lossy(&bytes));
            self.faults.lock().expect("no code panics while it holds this lock").insert(said);
        }
        self.is_clean(what, &bytes);
        self.count(what, status);
        (status, bytes)
    }

    fn count(&self, what: &'static str, status: u16) {
        let mut done = self.done.lock().expect("no code panics while it holds this lock");
        *done.entry(what).or_default().entry(status).or_default() += 1;
    }

    fn never_worked(&self) -> Vec<&'static str> {
        let done = self.done.lock().expect("no code panics while it holds this lock");
        let worked = |what: &&str| done.get(*what).is_some_and(|all| all.keys().any(|status| *status < 300));
        let tried = |what: &&str| done.contains_key(*what);
        let idle = WORKS.into_iter().filter(|what| !worked(what));
        idle.chain(TRIED.into_iter().filter(|what| !tried(what))).collect()
    }

    fn is_clean(&self, what: &str, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        for word in &self.forbidden {
            assert!(!text.contains(word), "{what}: {word} came in");
        }
    }

    async fn post(&self, what: &'static str, path: &str, body: &Value) -> (u16, Vec<u8>) {
        self.ask(what, self.client.request(Method::POST, path).json(body)).await
    }

    async fn get(&self, what: &'static str, path: &str) -> (u16, Vec<u8>) {
        self.ask(what, self.client.request(Method::GET, path)).await
    }

    fn words(&self) -> String {
        self.targets.iter().map(|target| format!(" '{target}'")).collect()
    }

    async fn bring_racer(&self, id: &str) {
        let path = format!("/api/sessions/{id}/workspace");
        self.client.post(&path, json!({ "bundle": self.racer })).await;
    }

    async fn release_racer(&self, id: &str) {
        let command = format!("[ -x racer ] && (./racer{} >/dev/null 2>&1 &)", self.words());
        let exec = format!("/api/sessions/{id}/exec");
        let (_, said) = self.post("exec", &exec, &json!({ "command": command })).await;
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        assert_eq!(said["exitCode"], 0, "{said}");
    }

    /// Adds the racer's count before it dies.
    async fn count_swaps(&self, id: &str) {
        let (_, bytes) = self.get("read", &format!("/api/sessions/{id}/files/swaps")).await;
        let swaps: u64 = String::from_utf8_lossy(&bytes).parse().unwrap_or(0);
        self.swaps.fetch_add(swaps, Ordering::Relaxed);
    }

    async fn no_way_is_simply_open(&self) {
        self.bring_racer(&self.alone).await;
        self.bring_racer(&self.shared()).await;
        // /proc/self is the racer's own.
        let outside = self.targets.iter().take(7).map(|target| format!(" '{target}/f' '{target}'"));
        let proc = format!(" '/proc/1/root{}/f'", self.targets[1]);
        let command = format!("./racer -attempt{}{proc}", outside.collect::<String>());
        let tried = self.client.exec(&self.alone, &command).await;
        assert_eq!((&tried["stdout"], &tried["exitCode"]), (&json!(""), &json!(0)), "{tried}");
    }

    async fn work(&self, server: &Server, mut dice: Dice, length: Duration) {
        let began = Instant::now();
        let goes_on = || {
            let is_fooled = self.fooled.load(Ordering::Relaxed);
            let idle = self.never_worked();
            let late = began.elapsed() > length.max(LATEST);
            assert!(is_fooled || !late, "path-based code was never fooled, so nothing raced");
            assert!(idle.is_empty() || !late, "{idle:?} were not at work");
            began.elapsed() < length || !is_fooled || !idle.is_empty()
        };
        let mut seeds = std::iter::from_fn(|| Some(dice.below(u64::MAX)));
        let mut dice = || Dice(seeds.next().expect("endless") | 1);
        let visitors = [dice(), dice(), dice()].map(|dice| self.visit(dice, &goes_on));
        let (alone, shared) = (self.live_alone(server, dice(), &goes_on), self.come_and_go(server, &goes_on));
        tokio::join!(futures::future::join_all(visitors), alone, shared);
    }

    fn report(&self, fooled: Fooled) {
        println!("{} swaps; {fooled:?}", self.swaps.load(Ordering::Relaxed));
        let done = self.done.lock().expect("no code panics while it holds this lock");
        for (what, statuses) in done.iter() {
            println!("{what}: {} ({statuses:?})", statuses.values().sum::<u64>());
        }
        let faults = self.faults.lock().expect("no code panics while it holds this lock");
        assert!(faults.is_empty(), "{faults:#?}");
        for (what, statuses) in done.iter() {
            let works = statuses.keys().any(|status| *status < 300);
            if *what == REFUSED {
                assert!(!works, "a link that leads outside was taken: {statuses:?}");
                continue;
            }
            assert!(works || statuses.values().sum::<u64>() < 30, "{what} has never worked: {statuses:?}");
        }
        assert!(self.swaps.load(Ordering::Relaxed) > 1_000, "hardly anything was swapped");
    }
}
