//! A server under test, and a client for it. Every server has its own data directory below a directory with mode 0700;
//! dropping it removes everything.

#![allow(dead_code, unused_imports, reason = "each test module uses its own part")]

#[path = "support/claude.rs"]
pub mod claude;
#[path = "support/docker.rs"]
pub mod docker;
#[path = "support/model.rs"]
pub mod model;
#[path = "support/permissions.rs"]
pub mod permissions;
#[path = "support/points.rs"]
mod points;
#[path = "support/remote.rs"]
pub mod remote;
#[path = "support/runtime.rs"]
pub mod runtime;

pub use points::{Point, let_go};

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

pub const KEY: &str = "test-key";
/// Long enough for a busy machine: only a failing test takes this long.
pub const DEADLINE: Duration = Duration::from_secs(90);

pub fn own_uid() -> u32 {
    // SAFETY: reads a number of this process, and cannot fail.
    unsafe { libc::geteuid() }
}

/// False, with a message, for tests that need root.
pub fn as_root() -> bool {
    if own_uid() != 0 {
        eprintln!("skipped: this test needs root");
    }
    own_uid() == 0
}

/// Containers must pass the same tests; `./test` selects them for a run.
pub fn in_docker() -> bool {
    std::env::var_os("ASH_TEST_WALLS").is_some_and(|walls| walls == "docker")
}

/// The binary under test.
pub fn ash() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_ash"))
}

pub struct Server {
    child: Option<Child>,
    pub url: String,
    pub dir: PathBuf,
    pub data: PathBuf,
    env: BTreeMap<String, String>,
    exe: PathBuf,
    uid: Option<u32>,
    /// The group that may use an engine's socket, if it is not the user's own.
    gid: Option<u32>,
}

impl Server {
    pub async fn start() -> Server {
        Server::with(&[]).await
    }

    pub async fn with(env: &[(&str, &str)]) -> Server {
        let mut server = Server::prepare(env);
        server.launch().await;
        server
    }

    /// A server run by an ordinary user, with the binary and the data below a directory with mode 0700 of that user. Only
    /// root can change the user: otherwise it is the current one.
    pub async fn of_user(uid: u32, env: &[(&str, &str)]) -> Server {
        let mut server = Server::prepared_for(uid, env);
        server.launch().await;
        server
    }

    /// As above, but not started yet. For root it is an ordinary server.
    pub fn prepared_for(uid: u32, env: &[(&str, &str)]) -> Server {
        let mut server = Server::prepare(env);
        if uid == 0 {
            return server;
        }
        server.exe = server.dir.join("ash");
        std::fs::copy(ash(), &server.exe).expect("a copy of the binary");
        if own_uid() == 0 {
            for path in [&server.dir, &server.exe, &server.points()] {
                std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("chown");
            }
            server.uid = Some(uid);
            server.gid = in_docker().then(docker::group);
        }
        server
    }

    pub fn prepare(env: &[(&str, &str)]) -> Server {
        let dir = std::env::temp_dir().join(format!("ash-test-{}", uuid::Uuid::new_v4()));
        std::fs::DirBuilder::new().mode(0o700).create(&dir).expect("a directory");
        let mut env: BTreeMap<_, _> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        if in_docker() {
            env.extend(docker::env());
        }
        let points = dir.join("points");
        std::fs::create_dir(&points).expect("a directory for fail points");
        env.insert("ASH_FAIL_POINTS".to_owned(), points.to_str().expect("UTF-8").to_owned());
        let data = dir.join("data");
        Server { child: None, url: String::new(), data, dir, env, exe: ash(), uid: None, gid: None }
    }

    pub fn command(&self) -> Command {
        self.command_of(&["serve"])
    }

    /// Another command of the same user on the same machine.
    pub fn command_of(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command
            .env_clear()
            .env("PATH", std::env::var("PATH").expect("PATH"))
            .env("HOME", &self.dir)
            .env("ASH_DATA_DIR", &self.data)
            .env("ASH_PORT", "0")
            .env("ASH_API_KEY", KEY)
            .envs(&self.env)
            .stdin(Stdio::null())
            .current_dir("/");
        if let Some(uid) = self.uid {
            command.uid(uid).gid(self.gid.unwrap_or(uid));
        }
        command.args(args);
        command
    }

    pub async fn launch(&mut self) {
        self.launch_with(&["serve"]).await;
    }

    /// A server on another machine, which does not wait for the bucket's dead claim holder.
    pub async fn take_over(&mut self) {
        self.launch_with(&["serve", "--take-over"]).await;
    }

    async fn launch_with(&mut self, args: &[&str]) {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log")).expect("a log");
        // The copied binary is busy for a moment if another thread forked during the copy.
        let child = eventually("the binary can be run", async || {
            let (out, err) = (log.try_clone().expect("a handle"), log.try_clone().expect("a handle"));
            match self.command_of(args).stderr(err).stdout(out).spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
                spawned => Some(spawned.expect("ash serve")),
            }
        })
        .await;
        let pid = child.id();
        self.child = Some(child);
        let info = self.data.join("server.json");
        let url = eventually("the server is up", async || {
            assert!(self.is_running(), "the server did not start:\n{}", self.log());
            let info: Value = serde_json::from_slice(&std::fs::read(&info).ok()?).ok()?;
            (info["pid"] == pid).then(|| info["url"].as_str().map(str::to_owned))?
        })
        .await;
        self.url = url;
    }

    fn is_running(&self) -> bool {
        self.child.as_ref().is_some_and(|child| Path::new(&format!("/proc/{}", child.id())).exists())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The uid that the server runs as.
    pub fn uid(&self) -> u32 {
        self.uid.unwrap_or_else(own_uid)
    }

    /// From the next start the server runs as root, but its existing files keep their owner.
    pub fn becomes_root(&mut self) {
        (self.uid, self.gid) = (None, None);
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }

    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill");
            child.wait().expect("wait");
        }
    }

    /// Waits until it exits by itself. Returns whether it reports success.
    pub async fn ended(&mut self) -> bool {
        let mut child = self.child.take().expect("a running server");
        eventually("the server ends", async || child.try_wait().expect("wait")).await.success()
    }

    /// SIGTERM, and a wait for a clean exit.
    pub async fn stop(&mut self) {
        let mut child = self.child.take().expect("a running server");
        signal(child.id(), libc::SIGTERM);
        let status = eventually("the server stops", async || child.try_wait().expect("wait")).await;
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// SIGHUP: the next server adopts the running sandboxes.
    pub async fn leave(&mut self) {
        let mut child = self.child.take().expect("a running server");
        signal(child.id(), libc::SIGHUP);
        let status = eventually("the server leaves", async || child.try_wait().expect("wait")).await;
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// Claude Code's program was removed after the start.
    pub async fn without_claude(env: &[(&str, &str)]) -> Server {
        let mut server = Server::prepare(env);
        let program = server.dir.join("claude");
        std::fs::copy("/bin/true", &program).expect("a program");
        server.set("ASH_CLAUDE_BIN", program.to_str().expect("UTF-8"));
        server.launch().await;
        std::fs::remove_file(&program).expect("removed");
        server
    }

    /// Applies from the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    pub async fn crash_and_start(&mut self) {
        self.kill9();
        self.launch().await;
    }

    /// All files of the machine are lost, and another machine starts.
    pub async fn lose_the_machine(&mut self) {
        self.kill9();
        // Old sandboxes may write until their directory is gone.
        let gone = async || std::fs::remove_dir_all(&self.data).is_ok().then_some(());
        eventually("the machine is gone", gone).await;
        self.take_over().await;
    }

    pub fn client(&self) -> Client {
        self.client_with(KEY)
    }

    pub fn client_with(&self, key: &str) -> Client {
        // Servers under test use plain HTTP, and loading the machine's certificates for each client would be slow.
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).pool_max_idle_per_host(0);
        let http = http.build().expect("a client");
        Client { http, url: self.url.clone(), key: key.to_owned() }
    }

    /// The session's directory on disk.
    pub async fn live(&self, id: &str) -> PathBuf {
        let session = self.client().session(id).await;
        self.data.join("live").join(session["workspaceId"].as_str().expect("a workspace"))
    }

    /// Checks that neither the agent's view of its sandbox nor any stored file contains the secret.
    pub fn keeps_outside(&self, secret: &str, shown: &str) {
        assert!(shown.contains("model.sock"), "or nothing was looked at: {shown}");
        assert!(!shown.contains(secret), "{shown}");
        for place in ["live", "repo", "ash.db", "ash.db-wal"] {
            let place = self.data.join(place);
            let found = Command::new("grep").arg("-rlaF").arg(secret).arg(place).output().expect("grep");
            assert_eq!(String::from_utf8_lossy(&found.stdout), "");
        }
    }

    /// The note of a session's shim, which recovery reads.
    pub async fn note(&self, id: &str) -> Value {
        let note = std::fs::read(self.live(id).await.join("run/init")).expect("a note");
        serde_json::from_slice(&note).expect("json")
    }

    /// The processes of a session's sandbox, by host pid.
    pub async fn processes(&self, id: &str) -> Processes {
        let note = self.note(id).await;
        let pid = |who: &str| note[who]["pid"].as_u64().expect("a pid") as u32;
        let (shim, init) = (pid("shim"), pid("init"));
        let bwrap = parent(init).expect("bwrap");
        let agent = children(init)
            .into_iter()
            .find(|pid| cmdline(*pid).contains("builtin-agent"))
            .expect("the agent");
        Processes { shim, bwrap, init, agent }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Processes {
    pub shim: u32,
    /// Or the engine's process that supervises a container.
    pub bwrap: u32,
    pub init: u32,
    pub agent: u32,
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- server log ---\n{}", self.log());
        }
        self.kill9();
        remove_cgroups(&self.data.join("live"));
        // Shims exit by themselves when their directory is gone.
        for _ in 0..50 {
            if std::fs::remove_dir_all(&self.dir).is_ok() {
                return;
            }
        }
    }
}

/// A shim that a test killed cannot remove its control group, and neither can the dead server.
fn remove_cgroups(live: &Path) {
    let runs = std::fs::read_dir(live)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|dir| std::fs::read_dir(dir.path().join("run")).ok());
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().filter_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        Some(format!("{}{}", words.next()?, words.next()?))
    });
    let roots: Vec<String> = own.chain(["memory", "pids", "freezer", "cpu"].map(str::to_owned)).collect();
    for name in runs.flatten().flatten().map(|entry| entry.file_name()) {
        let Some(incarnation) = name.to_str().and_then(|name| name.strip_prefix("journal.")) else {
            continue;
        };
        for root in &roots {
            // Fails while the shim lives, which then removes it itself.
            std::fs::remove_dir(format!("/sys/fs/cgroup/{root}/ash/{incarnation}")).ok();
        }
    }
}

pub fn signal(pid: u32, signal: i32) {
    assert!(pid > 1, "no process of ours");
    // SAFETY: kill has no memory effects; the pid is of a process that this test started.
    unsafe { libc::kill(pid as i32, signal) };
}

pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next())
        .is_some_and(|state| state != "Z" && state != "X")
}

pub fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

pub fn pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

pub fn children(of: u32) -> Vec<u32> {
    pids().into_iter().filter(|pid| parent(*pid) == Some(of)).collect()
}

pub fn cmdline(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The machine's available memory.
pub fn available_mb() -> u64 {
    memory_mb("MemAvailable:")
}

/// The machine's total memory, an upper bound of what is available.
pub fn total_memory_mb() -> u64 {
    memory_mb("MemTotal:")
}

fn memory_mb(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("the kernel says it");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") / 1024
}

/// The size of the disk with the servers' data, an upper bound of what is free.
pub fn disk_mb() -> u64 {
    let said = Command::new("stat").args(["-f", "-c", "%b %S"]).arg(std::env::temp_dir()).output();
    let said = String::from_utf8(said.expect("stat").stdout).expect("text");
    said.split_whitespace().map(|number| number.parse::<u64>().expect("a number")).product::<u64>() >> 20
}

/// `./test` installs the PyPI client here. The test fails without it, because a skipped test proves nothing.
pub fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    assert!(python.exists(), "{} is missing: run ./test, which installs it", python.display());
    python
}

/// Runs the command to its end: the exit code and its output for the operator.
pub async fn run_to_end(command: Command) -> (Option<i32>, String) {
    // A command that is accepted by mistake would run for ever.
    let mut command = tokio::process::Command::from(command);
    let done = tokio::time::timeout(DEADLINE, command.kill_on_drop(true).output()).await;
    let done = done.expect("it ends").expect("ash");
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Words that parsers use for invalid input.
const OF_PARSERS: [&str; 11] = [
    "missing field",
    "unknown field",
    "unknown variant",
    "invalid type",
    "invalid value: ",
    "expected",
    "at line",
    "untagged",
    "did not match",
    "TOML parse",
    "serde",
];
/// Terms that only the API uses.
const OF_THE_API: [&str; 8] =
    ["X-Ash", "Prefer", "Authorization", "Idempotency", "header", "POST ", "PATCH ", "…/"];

/// Checks that the message for these arguments uses the words of a shell.
pub fn is_for_people(words: &[&str], said: &str) {
    let found = OF_PARSERS.iter().chain(&OF_THE_API).find(|word| said.contains(**word));
    assert!(found.is_none(), "{words:?} names {found:?}: {said}");
}

/// Waits for a condition instead of sleeping.
pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    // Often at first, then less often, so that the checks themselves do not slow it down.
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(Instant::now() < until, "waited in vain: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(Duration::from_millis(50));
    }
}

pub struct Dice(pub u64);

impl Dice {
    /// xorshift: the same seed gives the same run.
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[derive(Clone)]
pub struct Client {
    pub http: reqwest::Client,
    pub url: String,
    pub key: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub id: String,
    pub event: String,
    pub data: Value,
}

impl Client {
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.key)
    }

    pub async fn get(&self, path: &str) -> Value {
        ok(self.request(Method::GET, path).send().await.expect(path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Value {
        ok(self.request(Method::POST, path).json(&body).send().await.expect(path)).await
    }

    pub async fn delete(&self, path: &str) -> Value {
        ok(self.request(Method::DELETE, path).send().await.expect(path)).await
    }

    /// Status and body of any response.
    pub async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let request = self.request(method, path);
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let response = request.send().await.expect(path);
        let status = response.status();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    pub async fn deploy(&self, name: &str) -> Value {
        self.post("/api/agents", json!({ "name": name, "systemPrompt": "You are a test." })).await
    }

    /// A new session, with an agent deployed for it.
    pub async fn create(&self) -> String {
        let agents = self.get("/api/agents").await;
        if !agents["agents"]
            .as_array()
            .is_some_and(|agents| agents.iter().any(|agent| agent["name"] == "tester"))
        {
            self.deploy("tester").await;
        }
        let made = self.post("/api/sessions", json!({ "agent": "tester" })).await;
        made["session"]["id"].as_str().expect("an id").to_owned()
    }

    pub async fn session(&self, id: &str) -> Value {
        self.get(&format!("/api/sessions/{id}")).await["session"].clone()
    }

    /// The id of the last event, to follow from.
    pub async fn session_seq(&self, id: &str) -> String {
        let events = self.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
        let last = events["events"].as_array().and_then(|events| events.last()).expect("an event");
        last["sequence"].to_string()
    }

    pub async fn status(&self, id: &str) -> String {
        self.session(id).await["status"].as_str().expect("a status").to_owned()
    }

    pub async fn until_status(&self, id: &str, status: &str) {
        eventually(&format!("session is {status}"), async || (self.status(id).await == status).then_some(()))
            .await;
    }

    /// Sends a message and waits for the complete answer.
    pub async fn say(&self, id: &str, text: &str) -> Value {
        let request = self.request(Method::POST, &format!("/api/sessions/{id}/messages"));
        ok(request
            .header("accept", "application/json")
            .json(&json!({ "content": text }))
            .send()
            .await
            .expect("say"))
        .await
    }

    pub async fn text(&self, id: &str, text: &str) -> String {
        self.say(id, text).await["text"].as_str().expect("a text").to_owned()
    }

    /// Sends a message and returns its stream.
    pub async fn send(&self, id: &str, text: &str) -> Sse {
        let body = json!({ "content": text, "includePartialMessages": true });
        let request = self.request(Method::POST, &format!("/api/sessions/{id}/messages")).json(&body);
        Sse::of(request.send().await.expect("send"))
    }

    pub async fn follow(&self, id: &str, after: &str) -> Sse {
        let request =
            self.request(Method::GET, &format!("/api/sessions/{id}/stream")).header("last-event-id", after);
        Sse::of(request.send().await.expect("follow"))
    }

    pub async fn action(&self, id: &str, action: &str) -> Value {
        self.post(&format!("/api/sessions/{id}/{action}"), json!({})).await
    }

    pub async fn exec(&self, id: &str, command: &str) -> Value {
        self.post(&format!("/api/sessions/{id}/exec"), json!({ "command": command })).await
    }
}

pub async fn ok(response: Response) -> Value {
    let status = response.status();
    let text = response.text().await.expect("a body");
    assert!(status.is_success(), "{status}: {text}");
    serde_json::from_str(&text).expect("a JSON body")
}

/// An event stream, read frame by frame.
pub struct Sse {
    response: Response,
    buffer: Vec<u8>,
}

impl Sse {
    pub fn of(response: Response) -> Sse {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Sse { response, buffer: Vec::new() }
    }

    /// The next frame; `None` at the end of the stream, or if it broke.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let text = String::from_utf8(self.buffer.drain(..end + 2).collect()).expect("UTF-8");
                if let Some(frame) = parse(&text) {
                    return Some(frame);
                }
                continue;
            }
            let chunk =
                tokio::time::timeout(DEADLINE, self.response.chunk()).await.expect("a stream that goes on");
            self.buffer.extend(chunk.ok().flatten()?);
        }
    }

    pub async fn until(&mut self, event: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            let found = frame.event == event;
            frames.push(frame);
            if found {
                return frames;
            }
        }
        panic!("the stream ended without {event}: {frames:#?}");
    }

    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}

fn parse(text: &str) -> Option<Frame> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let event = field("event: ")?;
    // A client cannot continue after frames that are not in the log.
    let is_logged = event != "restore_progress" && event != "error";
    let id = field("id: ").or_else(|| (!is_logged).then(String::new)).expect("an id");
    let data = serde_json::from_str(&field("data: ").expect("data")).expect("one line of JSON");
    Some(Frame { id, event, data })
}

pub fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}
