//! The workspace as an attacker: whoever lives in it swaps files and directories for links that lead outside, without a
//! pause, while everything of ours that touches the tree is at work in it. Nothing outside is read, written or removed.

use crate::support::{Client, Dice, Server, ash};
use ash_snapshot::{ContentId, Entry, Folder, LeafKind, RelPath, Repo};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const SOMEBODY: u32 = 61_003;
const SHORT: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(60);
/// How long it may take until those are fooled who trust paths, and all of ours were at work, on a busy machine.
const LATEST: Duration = Duration::from_secs(120);
/// So often is proof, and takes no time from the others any more.
const ENOUGH: u64 = 20;
/// What a bundle may hold, and some more for its headers.
const LARGEST_BUNDLE: u64 = 130 << 20;
/// The workspace that is deleted, and comes again.
const SLUG: &str = "hostile";
/// What is no link, and not what it seems either.
const OTHERS: [&str; 16] = [
    "hard",
    "up/in/f",
    "down/in/sub/f",
    "up/in/new",
    "pipe/f",
    "pipe/p",
    "socket/f",
    "socket/s",
    "small",
    "node_modules/huge",
    "new%0Aline",
    "whiteout",
    "shut",
    "closed/f",
    "closed/new",
    "long/x",
];

/// What has to have worked at least once while they race.
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
/// The same, of those that are mostly refused: what is unpacked meets a link as often as not.
const TRIED: [&str; 2] = ["upload", "upload of links"];

#[tokio::test]
async fn nothing_outside_is_touched_while_links_are_swapped_in() {
    attack(Server::start().await, SHORT).await;
}

#[tokio::test]
async fn nothing_outside_is_touched_by_the_server_of_a_user() {
    attack(Server::of_user(SOMEBODY, &[]).await, SHORT).await;
}

/// Slow: a race is lost more often the longer it lasts.
#[tokio::test]
async fn slowly_nothing_outside_is_touched_while_links_are_swapped_in() {
    attack(Server::start().await, LONG).await;
}

/// Slow, as above.
#[tokio::test]
async fn slowly_nothing_outside_is_touched_by_the_server_of_a_user() {
    attack(Server::of_user(SOMEBODY, &[]).await, LONG).await;
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

/// What nobody who works in a workspace may ever see or change.
struct Outside {
    dir: PathBuf,
    /// Each is somewhere outside, and must be nowhere else.
    words: Vec<String>,
}

impl Outside {
    /// `seen/open`: everybody may do everything. `seen/closed`: only root may. `decoy`: those who trust paths fall for it.
    fn new() -> Outside {
        let dir = std::env::temp_dir().join(format!("ash-test-{}", uuid::Uuid::new_v4()));
        let words: Vec<String> = (0..4).map(|_| format!("canary-{}", uuid::Uuid::new_v4())).collect();
        for (place, mode) in
            [("", 0o755), ("seen", 0o755), ("seen/open", 0o777), ("seen/closed", 0o700), ("decoy", 0o777)]
        {
            fs::DirBuilder::new().create(dir.join(place)).expect("a directory");
            fs::set_permissions(dir.join(place), fs::Permissions::from_mode(mode)).expect("open to all");
        }
        fs::create_dir(dir.join("seen/open/sub")).expect("a directory");
        let files = [("seen/open", 1), ("seen/open/sub", 1), ("seen/closed", 2), ("decoy", 3)];
        for (place, word) in files {
            let word: &String = &words[word];
            // A listing would show the name, and a reader the content.
            for name in ["f", word] {
                fs::write(dir.join(place).join(name), word).expect("a file");
            }
        }
        fs::set_permissions(dir.join("seen/open/f"), fs::Permissions::from_mode(0o666)).expect("open to all");
        fs::set_permissions(dir.join("seen/closed/f"), fs::Permissions::from_mode(0o600)).expect("closed");
        Outside { dir, words }
    }

    fn repo(&self) -> PathBuf {
        self.dir.join("repo")
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// Everything about a tree but when it was read. The time of the last change tells of whatever is not named here.
type Look = BTreeMap<PathBuf, ([u64; 4], [i64; 4], Vec<u8>)>;

fn look(path: &Path) -> Look {
    let is = path.symlink_metadata().expect("still there");
    let numbers = [is.mode().into(), is.uid().into(), is.gid().into(), is.nlink()];
    let times = [is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec()];
    let content = if is.is_file() { fs::read(path).expect("read") } else { Vec::new() };
    let mut found = Look::from([(path.to_owned(), (numbers, times, content))]);
    if is.is_dir() {
        for entry in fs::read_dir(path).expect("listed") {
            found.extend(look(&entry.expect("an entry").path()));
        }
    }
    found
}

/// Somebody who writes to one of its sessions a moment later gets a new tree, which has nothing of the old one.
fn is_gone(live: &Path) {
    let name = live.file_name().and_then(|name| name.to_str()).expect("an id");
    let left = fs::read_dir(live.parent().expect("live")).expect("listed").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|found| found.contains(name) && found != name), "{left:?}");
    for place in ["tree/workspace/racer", "tree/home/swaps", "tree.old", "tree.gone"] {
        assert!(!live.join(place).exists(), "{place}");
    }
}

struct Stage {
    client: Client,
    outside: Outside,
    /// Where the links lead. Nowhere that matters: the day this test fails, it is root who is fooled.
    targets: Vec<String>,
    /// What no answer, no archive and no checkpoint holds.
    forbidden: Vec<String>,
    /// The program that races, as a bundle.
    racer: String,
    /// A neighbour, who has a secret.
    quiet: String,
    alone: String,
    /// The session in the workspace that is deleted again and again.
    shared: Mutex<String>,
    over: AtomicBool,
    fooled: AtomicBool,
    swaps: AtomicU64,
    done: Mutex<BTreeMap<&'static str, BTreeMap<u16, u64>>>,
    /// What was answered as if it were our own fault.
    faults: Mutex<BTreeSet<String>>,
}

/// However the test ends: whoever works beside it stops, and nobody races any more in what is then removed.
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

/// How often each of those who trust paths was fooled.
#[derive(Debug, Default, Clone, Copy)]
struct Fooled {
    reading: u64,
    writing: u64,
    removing: u64,
}

impl Fooled {
    fn least(self) -> u64 {
        self.reading.min(self.writing).min(self.removing)
    }
}

async fn create(client: &Client, workspace: Option<&str>) -> String {
    let made = client.post("/api/sessions", json!({ "agent": "racer", "workspace": workspace })).await;
    made["session"]["id"].as_str().expect("an id").to_owned()
}

fn racer() -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("racer");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/hostile_workspace/racer.c");
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
        self.shared.lock().expect("nobody panics while holding it").clone()
    }

    /// One request, whatever becomes of it: never a fault of ours, and never something from outside.
    async fn ask(&self, what: &'static str, request: RequestBuilder) -> (u16, Vec<u8>) {
        let answer = request.send().await.expect(what);
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.expect("a body").to_vec();
        if status >= 500 && status != 503 {
            let said = format!("{what}: {status} {}", String::from_utf8_lossy(&bytes));
            self.faults.lock().expect("nobody panics while holding it").insert(said);
        }
        self.is_clean(what, &bytes);
        self.count(what, status);
        (status, bytes)
    }

    fn count(&self, what: &'static str, status: u16) {
        let mut done = self.done.lock().expect("nobody panics while holding it");
        *done.entry(what).or_default().entry(status).or_default() += 1;
    }

    fn never_worked(&self) -> Vec<&'static str> {
        let done = self.done.lock().expect("nobody panics while holding it");
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

    /// Adds what the racer has done before it dies.
    async fn count_swaps(&self, id: &str) {
        let (_, bytes) = self.get("read", &format!("/api/sessions/{id}/files/swaps")).await;
        let swaps: u64 = String::from_utf8_lossy(&bytes).parse().unwrap_or(0);
        self.swaps.fetch_add(swaps, Ordering::Relaxed);
    }

    async fn no_way_is_simply_open(&self) {
        self.bring_racer(&self.alone).await;
        self.bring_racer(&self.shared()).await;
        // /proc/self is its own.
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
            assert!(is_fooled || !late, "nobody is fooled: nothing is raced");
            assert!(idle.is_empty() || !late, "{idle:?} were not at work");
            began.elapsed() < length || !is_fooled || !idle.is_empty()
        };
        let mut seeds = std::iter::from_fn(|| Some(dice.below(u64::MAX)));
        let mut dice = || Dice(seeds.next().expect("endless") | 1);
        let visitors = [dice(), dice(), dice()].map(|dice| self.visit(dice, &goes_on));
        let (alone, shared) = (self.live_alone(server, dice(), &goes_on), self.come_and_go(server, &goes_on));
        tokio::join!(futures::future::join_all(visitors), alone, shared);
    }

    /// Everything one can ask of a session's files.
    async fn visit(&self, mut dice: Dice, goes_on: &dyn Fn() -> bool) {
        while goes_on() {
            let id = if dice.below(2) == 0 { self.alone.clone() } else { self.shared() };
            let session = format!("/api/sessions/{id}");
            let name = self.path(&mut dice);
            let path = format!("{session}/files/{name}");
            match dice.below(14) {
                0 => drop(self.get("list", &format!("{session}/files")).await),
                1 => drop(self.get("list of a workspace", &format!("/api/workspaces/{SLUG}/files")).await),
                2 => drop(self.get("read as JSON", &format!("{path}?format=json")).await),
                3 => {
                    let names = (0..20).map(|_| self.path(&mut dice).replace("%0A", "\n"));
                    let file = |name| json!({ "path": name, "content": STANDARD.encode("written") });
                    let files: Vec<Value> = names.map(file).collect();
                    self.post("write of 20", &format!("{session}/files"), &json!({ "files": files })).await;
                }
                4 => {
                    for _ in 0..5 {
                        let path = format!("{session}/files/{}", self.path(&mut dice));
                        self.ask("delete", self.client.request(Method::DELETE, &path)).await;
                    }
                }
                5 => self.download(&session).await,
                6 => {
                    let name = name.replace("%0A", "\n");
                    let body = json!({ "bundle": bundle(&name, b"unpacked", 0o644) });
                    self.post("upload", &format!("{session}/workspace"), &body).await;
                }
                7 => drop(self.get("diff", &format!("{session}/checkpoints/1/diff?all=true")).await),
                8 => drop(self.get("list of a checkpoint", &format!("{session}/files?checkpoint=1")).await),
                9 => {
                    let name = if dice.below(2) == 0 { "racer" } else { &name };
                    let path = format!("{session}/files/{name}?checkpoint=1");
                    self.get("read of a checkpoint", &path).await;
                }
                10 => drop(self.get("checkpoints", &format!("{session}/checkpoints")).await),
                11 => {
                    let body = json!({ "bundle": self.bundle_of_links(&mut dice) });
                    self.post("upload of links", &format!("{session}/workspace"), &body).await;
                }
                _ => drop(self.get("read", &path).await),
            }
        }
    }

    fn path(&self, dice: &mut Dice) -> String {
        // Most often where the canaries are.
        let most = if dice.below(2) == 0 { 4 } else { self.targets.len() as u64 };
        let number = dice.below(most);
        let pair = ["d", "l"][dice.below(2) as usize];
        let inside = ["f", "f", "f", "sub/f", "w", "new/w", "ash.db", "environ", "secret.txt", "0"];
        match dice.below(8) {
            0 => format!("{pair}{number}"),
            1 => format!("s{number}/{}", ["f", "g"][dice.below(2) as usize]),
            2 => OTHERS[dice.below(OTHERS.len() as u64) as usize].to_owned(),
            3 => format!("deep/{}f", "d/".repeat(dice.below(100) as usize)),
            _ => format!("{pair}{number}/{}", inside[dice.below(inside.len() as u64) as usize]),
        }
    }

    /// An archive that makes its own links, and then goes through them.
    fn bundle_of_links(&self, dice: &mut Dice) -> String {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let target = &self.targets[dice.below(self.targets.len() as u64) as usize];
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o777);
        let kind = if dice.below(2) == 0 { tar::EntryType::Symlink } else { tar::EntryType::Link };
        header.set_entry_type(kind);
        let name = format!("link{}", dice.below(4));
        let led = tar.append_link(&mut header, &name, format!("{target}/f"));
        led.expect("written");
        let mut header = tar::Header::new_gnu();
        header.set_size(8);
        header.set_mode(0o644);
        tar.append_data(&mut header, &name, &b"unpacked"[..]).expect("written");
        STANDARD.encode(tar.into_inner().and_then(GzEncoder::finish).expect("written"))
    }

    async fn download(&self, session: &str) {
        let (status, bytes) = self.get("download", &format!("{session}/workspace")).await;
        if status == 200 {
            let mut tar = Vec::new();
            let unpacked = GzDecoder::new(&bytes[..]).take(LARGEST_BUNDLE + 1).read_to_end(&mut tar);
            assert!(unpacked.expect("gzip") as u64 <= LARGEST_BUNDLE, "more than a bundle may hold");
            self.is_clean("download", &tar);
        }
    }

    /// A session's whole life, again and again, while somebody races in it.
    async fn live_alone(&self, server: &Server, mut dice: Dice, goes_on: &dyn Fn() -> bool) {
        let session = format!("/api/sessions/{}", self.alone);
        self.release_racer(&self.alone).await;
        for step in (0..6).cycle().take_while(|_| goes_on()) {
            self.turn(&self.alone).await;
            match step {
                0 => drop(self.post("checkpoint", &format!("{session}/checkpoints"), &json!({})).await),
                1 => {
                    self.post("pause", &format!("{session}/pause"), &json!({})).await;
                    self.resume(&self.alone).await;
                }
                2 => {
                    self.count_swaps(&self.alone).await;
                    self.post("stop", &format!("{session}/stop"), &json!({})).await;
                    self.resume(&self.alone).await;
                    self.release_racer(&self.alone).await;
                }
                3 => self.start_cold(server).await,
                4 => {
                    self.count_swaps(&self.alone).await;
                    let newest = self.client.session(&self.alone).await["checkpoint"]["local"].as_u64();
                    let to = 1 + dice.below(newest.expect("a checkpoint"));
                    self.post("rewind", &format!("{session}/rewind"), &json!({ "checkpoint": to })).await;
                    self.resume(&self.alone).await;
                    self.release_racer(&self.alone).await;
                }
                _ => {
                    let (status, made) = self.post("fork", &format!("{session}/fork"), &json!({})).await;
                    assert!(status < 400, "{}", String::from_utf8_lossy(&made));
                    let made: Value = serde_json::from_slice(&made).expect("JSON");
                    let fork = made["session"]["id"].as_str().expect("an id").to_owned();
                    self.resume(&fork).await;
                    self.release_racer(&fork).await;
                    self.turn(&fork).await;
                    let end = self.client.request(Method::DELETE, &format!("/api/sessions/{fork}"));
                    self.ask("end", end).await;
                }
            }
        }
        self.count_swaps(&self.alone).await;
    }

    /// Everything of a session that was raced in is gone from here but its checkpoints; what comes back is as harmless.
    async fn start_cold(&self, server: &Server) {
        let id = create(&self.client, None).await;
        let session = format!("/api/sessions/{id}");
        self.bring_racer(&id).await;
        self.release_racer(&id).await;
        self.turn(&id).await;
        self.post("stop", &format!("{session}/stop"), &json!({})).await;
        Folder::erase(&server.live(&id).await.join("tree")).expect("erased");
        let (status, said) = self.post("cold resume", &format!("{session}/resume"), &json!({})).await;
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        assert_eq!((status, &said["resume"]["from"]), (200, &json!("checkpoint")), "{said}");
        self.release_racer(&id).await;
        self.turn(&id).await;
        self.ask("end", self.client.request(Method::DELETE, &session)).await;
    }

    async fn turn(&self, id: &str) {
        let request = self.client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
        let request =
            request.header("accept", "application/json").json(&json!({ "content": "write note: n" }));
        let (status, said) = self.ask("turn", request).await;
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        assert_eq!((status, &said["status"]), (200, &json!("done")), "{said}");
        assert!(said["checkpoint"].is_u64(), "{said}");
    }

    async fn resume(&self, id: &str) {
        let (status, resumed) = self.post("resume", &format!("/api/sessions/{id}/resume"), &json!({})).await;
        assert!(status < 400, "{}", String::from_utf8_lossy(&resumed));
    }

    /// The workspace is deleted while they race in it, and comes again under the same name.
    async fn come_and_go(&self, server: &Server, goes_on: &dyn Fn() -> bool) {
        while goes_on() {
            let id = self.shared();
            self.bring_racer(&id).await;
            self.release_racer(&id).await;
            self.turn(&id).await;
            self.post("checkpoint", &format!("/api/sessions/{id}/checkpoints"), &json!({})).await;
            self.post("stop", &format!("/api/sessions/{id}/stop"), &json!({})).await;
            self.resume(&id).await;
            self.release_racer(&id).await;
            self.count_swaps(&id).await;
            let live = server.live(&id).await;
            let delete = self.client.request(Method::DELETE, &format!("/api/workspaces/{SLUG}"));
            let (status, said) = self.ask("delete a workspace", delete).await;
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&said));
            is_gone(&live);
            let new = create(&self.client, Some(SLUG)).await;
            *self.shared.lock().expect("nobody panics while holding it") = new;
        }
    }

    /// What one writes without handles: look, then do, and others have their turn in between. It must be fooled, or
    /// nothing is raced.
    fn trust_paths(&self, workspace: &Path) -> Fooled {
        let decoy = self.outside.dir.join("decoy");
        let dir = workspace.join("d0");
        let looked = |fine: bool| {
            std::thread::yield_now();
            fine
        };
        let is_inside = || looked(dir.canonicalize().is_ok_and(|found| found.starts_with(workspace)));
        let is_dir = || looked(dir.symlink_metadata().is_ok_and(|is| is.is_dir()));
        let mut fooled = Fooled::default();
        while !self.over.load(Ordering::Relaxed) && fooled.least() < ENOUGH {
            let read = is_inside().then(|| fs::read_to_string(dir.join("f")).ok()).flatten();
            fooled.reading += u64::from(read.as_ref() == Some(&self.outside.words[3]));
            if is_dir() {
                fs::write(dir.join("naive"), "written").ok();
            }
            fooled.writing += u64::from(fs::remove_file(decoy.join("naive")).is_ok());
            fs::write(decoy.join("doomed"), "").expect("a file");
            if is_dir() {
                fs::remove_file(dir.join("doomed")).ok();
            }
            fooled.removing += u64::from(!decoy.join("doomed").exists());
            self.fooled.store(fooled.least() > 0, Ordering::Relaxed);
        }
        fooled
    }

    /// Captures and deletions of a tree in which nobody is held still.
    fn save_and_erase(&self, tree: &Path) {
        while !self.over.load(Ordering::Relaxed) {
            for root in ["workspace", "home"] {
                let mut save = Command::new(ash());
                save.env_clear().env("HOME", &self.outside.dir).args(["snapshot", "save", "--repo"]);
                let saved = save.arg(self.outside.repo()).arg(tree.join(root)).output().expect("ash");
                let said = String::from_utf8_lossy(&saved.stderr);
                self.is_clean("snapshot", &[&saved.stdout[..], said.as_bytes()].concat());
                // A rewind has just taken the tree away.
                assert!(saved.status.success() || said.contains("No such file"), "{said}");
                self.count("snapshot", if saved.status.success() { 200 } else { 400 });
                for _ in 0..10 {
                    // While it is filled again it may not become empty.
                    let erased = Folder::erase(&tree.join(root).join("erased"));
                    self.count("erase", if erased.is_ok() { 200 } else { 400 });
                }
            }
        }
    }

    fn report(&self, fooled: Fooled) {
        println!("{} swaps; {fooled:?}", self.swaps.load(Ordering::Relaxed));
        let done = self.done.lock().expect("nobody panics while holding it");
        for (what, statuses) in done.iter() {
            println!("{what}: {} ({statuses:?})", statuses.values().sum::<u64>());
        }
        let faults = self.faults.lock().expect("nobody panics while holding it");
        assert!(faults.is_empty(), "{faults:#?}");
        for (what, statuses) in done.iter() {
            let works = statuses.keys().any(|status| *status < 300);
            assert!(works || statuses.values().sum::<u64>() < 30, "{what} has never worked: {statuses:?}");
        }
        assert!(self.swaps.load(Ordering::Relaxed) > 1_000, "hardly anything was swapped");
    }

    /// Everything that was ever captured, but the neighbour's own.
    fn search(&self, repo: &Path) {
        let repo = Arc::new(Repo::open(repo).expect("a repository"));
        let (snapshots, damaged) = repo.snapshots().expect("listed");
        assert!(damaged.is_empty(), "{damaged:?}");
        let (mut files, mut seen): (usize, Vec<ContentId>) = (0, Vec::new());
        for snapshot in &snapshots {
            for root in ["workspace", "home", "files"] {
                // Each has some of these.
                let leaves = match repo.leaves(&snapshot.tree, root) {
                    Err(ash_snapshot::Error::NotFound { .. }) => continue,
                    leaves => leaves.expect("listed"),
                };
                if leaves.iter().any(|leaf| leaf.path == b"secret.txt") {
                    break;
                }
                for leaf in leaves {
                    self.is_clean("a name", &leaf.path);
                    let LeafKind::File { size, content: Some(id), .. } = leaf.what else { continue };
                    files += 1;
                    if size > LARGEST_BUNDLE || seen.contains(&id) {
                        continue;
                    }
                    seen.push(id);
                    let path = RelPath::met(&leaf.path).expect("a path");
                    let entry = repo.read(&snapshot.tree, root, &path).expect("read");
                    let Some(Entry::File { mut content, .. }) = entry else { panic!("{path} is a file") };
                    let mut bytes = Vec::new();
                    content.read_to_end(&mut bytes).expect("read");
                    self.is_clean("a checkpoint", &bytes);
                }
            }
        }
        println!("{} snapshots, {files} files, {} contents", snapshots.len(), seen.len());
        assert!(snapshots.len() > 1 && files > 100, "hardly anything was captured");
    }
}
