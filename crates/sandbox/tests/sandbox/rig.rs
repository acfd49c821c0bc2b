//! A sandbox under test, with real processes. Its data and program lie in a directory closed to other users, as on an
//! operator's machine.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    os::unix::{
        fs::{PermissionsExt, chown},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ash_model::{Epoch, Image, Incarnation};
use ash_sandbox::{
    BubblewrapBackend, DockerBackend, JournalPayload, JournalRecord, ProcessExit, ProcessSpec, RecordStream,
    SandboxBackend, SandboxHandle, SandboxLimits, SandboxLink, SandboxSpec, ShimHello, ShimLimits,
    UnconfinedBackend, UserNamespacePolicy, reap,
};

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
pub(crate) const USER: u32 = 61_000;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The same tests run on both backends; the environment selects one.
pub(crate) fn in_docker() -> bool {
    std::env::var_os("ASH_TEST_WALLS").is_some_and(|walls| walls == "docker")
}

/// The socket of the engine that ./test has started. Without it these tests fail, because a skipped test proves
/// nothing.
pub(crate) fn engine() -> String {
    std::env::var("ASH_TEST_DOCKER").expect("ASH_TEST_DOCKER names no engine's socket: run ./test")
}

/// Sends a request to the engine, and returns the status and the body.
pub(crate) fn ask(method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(engine()).expect("an engine");
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status"), body.to_owned())
}

pub(crate) fn host_program() -> PathBuf {
    if let Some(path) = std::env::var_os("ASH_TEST_HOST") {
        return path.into();
    }
    let test = std::env::current_exe().expect("we run");
    let target = test.parent().and_then(Path::parent).expect("target/debug/deps");
    target.join("examples/host")
}

pub(crate) struct Rig {
    pub(crate) base: tempfile::TempDir,
    pub(crate) exe: PathBuf,
    pub(crate) spec: SandboxSpec,
    pub(crate) backend: Box<dyn SandboxBackend>,
}

fn prepare(below: &str) -> (tempfile::TempDir, PathBuf, SandboxSpec) {
    let base = tempfile::tempdir().expect("a directory");
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o700)).expect("0700");
    let root = base.path().join(below);
    let exe = root.join("ash");
    let uid = is_root().then(|| 60_000 + std::process::id() % 1000);
    let [run_dir, workspace, home] = ["run", "workspace", "home"].map(|name| root.join(name));
    for dir in [&run_dir, &workspace, &home] {
        fs::create_dir_all(dir).expect("created");
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("0700");
    }
    for dir in [&workspace, &home] {
        if let Some(uid) = uid {
            chown(dir, Some(uid), Some(uid)).expect("chown");
        }
    }
    if fs::hard_link(host_program(), &exe).is_err() {
        fs::copy(host_program(), &exe).expect("copied");
    }
    let spec = SandboxSpec {
        incarnation: Incarnation::fresh(),
        epoch: Epoch(1),
        run_dir,
        workspace,
        home,
        uid,
        limits: SandboxLimits::default(),
        readonly: Vec::new(),
        image: None,
        user_namespaces: UserNamespacePolicy::Refused,
        orphan_ttl: Duration::from_secs(600),
    };
    (base, exe, spec)
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with(ShimLimits::default(), "data").await
    }

    pub(crate) async fn with(caps: ShimLimits, below: &str) -> Self {
        if in_docker() {
            return Self::docker(caps, below, "ash-test");
        }
        let (base, exe, spec) = prepare(below);
        let backend = BubblewrapBackend::probe(exe.clone()).await.expect("walls").with_caps(caps);
        Self { base, exe, spec, backend: Box::new(backend) }
    }

    /// With this machine's programs mounted over those of the image, so that the tests use the same tools.
    pub(crate) fn docker(caps: ShimLimits, below: &str, image: &str) -> Self {
        let (base, exe, mut spec) = prepare(below);
        if image == "ash-test" {
            spec.readonly = ["/usr", "/etc/alternatives"].map(PathBuf::from).to_vec();
        }
        let host = format!("unix://{}", engine());
        let image = Image::parse(image).expect("a name");
        let backend = DockerBackend::new(exe.clone(), Some(&host), image).expect("a socket").with_caps(caps);
        Self { base, exe, spec, backend: Box::new(backend) }
    }

    pub(crate) fn bare() -> Self {
        let (base, exe, mut spec) = prepare("data");
        spec.uid = None;
        Self { base, backend: Box::new(UnconfinedBackend::new(exe.clone())), exe, spec }
    }

    pub(crate) async fn launch(&self) -> Live {
        Live::of(self.backend.launch(&self.spec).await.expect("launched"))
    }

    pub(crate) async fn knock(&self, epoch: u64) -> ash_sandbox::ShimHandshake {
        ash_sandbox::knock(&self.spec.run_dir, Epoch(epoch))
            .await
            .expect("answered")
            .expect("a shim is there")
    }

    pub(crate) async fn reattach(&self, epoch: u64, offset: u64) -> Live {
        Live::of(self.knock(epoch).await.follow(offset).await.expect("followed"))
    }

    /// The notes of the shim about itself.
    pub(crate) fn notes(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.spec.run_dir.join("init")).expect("notes")).expect("json")
    }

    pub(crate) fn shim_pid(&self) -> i32 {
        self.notes()["shim"]["pid"].as_i64().expect("a number") as i32
    }

    /// The agent's uid inside. A container cannot map uids.
    pub(crate) fn uid_inside(&self) -> u32 {
        if in_docker() { self.owner() } else { 1000 }
    }

    pub(crate) fn owner(&self) -> u32 {
        self.spec.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw())
    }

    /// Whether the engine has no container of this sandbox.
    pub(crate) fn has_no_container(&self) -> bool {
        !in_docker() || ask("GET", &format!("/containers/ash-{}/json", self.spec.incarnation), "").0 == 404
    }

    pub(crate) fn cgroup_dirs(&self) -> Vec<PathBuf> {
        let notes = self.notes();
        let groups = if in_docker() { &notes["container"]["groups"] } else { &notes["cgroup"] };
        let groups = groups.as_object().into_iter().flat_map(|groups| groups.values());
        groups.filter_map(|dir| dir.as_str()).map(PathBuf::from).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = reap(&self.spec.run_dir);
    }
}

pub(crate) struct Live {
    pub(crate) hello: ShimHello,
    pub(crate) remote: SandboxHandle,
    pub(crate) records: RecordStream,
}

pub(crate) fn script(process: u16, text: &str) -> ProcessSpec {
    command(process, &["/bin/bash", "-c", text])
}

pub(crate) fn command(process: u16, argv: &[&str]) -> ProcessSpec {
    ProcessSpec {
        process,
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::from([
            ("HOME".to_owned(), "/home/agent".to_owned()),
            ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ]),
        cwd: "/workspace".into(),
        raw: false,
        stdin: true,
    }
}

impl Live {
    pub(crate) fn of(link: SandboxLink) -> Self {
        let hello = link.hello().clone();
        let (remote, records) = link.split();
        Self { hello, remote, records }
    }

    pub(crate) async fn next(&mut self) -> JournalRecord {
        let next = tokio::time::timeout(DEADLINE, self.records.next()).await.expect("a record in time");
        next.expect("the connection is open")
    }

    pub(crate) async fn start(&mut self, start: ProcessSpec) {
        let process = start.process;
        self.remote.start(start).await.expect("sent");
        let record = self.next().await;
        assert!(
            matches!(record.payload, JournalPayload::Started { .. }) && record.process == process,
            "{record:?}"
        );
    }

    pub(crate) async fn line(&mut self) -> String {
        loop {
            match self.next().await.payload {
                JournalPayload::StdoutLine(line) => return String::from_utf8(line).expect("text"),
                JournalPayload::StderrLine(line) => eprintln!("stderr: {}", String::from_utf8_lossy(&line)),
                JournalPayload::Usage(_) => {}
                other => panic!("no line but {other:?}"),
            }
        }
    }

    /// All lines of both outputs until the process exits, in order.
    pub(crate) async fn finish(&mut self) -> (Vec<String>, ProcessExit) {
        let mut lines = Vec::new();
        loop {
            match self.next().await.payload {
                JournalPayload::StdoutLine(line)
                | JournalPayload::StdoutTail(line)
                | JournalPayload::StderrLine(line) => {
                    lines.push(String::from_utf8_lossy(&line).into_owned());
                }
                JournalPayload::Exit(exit) => return (lines, exit),
                JournalPayload::Usage(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    pub(crate) async fn run(&mut self, text: &str) -> (Vec<String>, ProcessExit) {
        self.start(script(7, text)).await;
        self.finish().await
    }

    /// Waits until the shim has closed the connection.
    pub(crate) async fn closed(&mut self) {
        let rest = async { while self.records.next().await.is_some() {} };
        tokio::time::timeout(DEADLINE, rest).await.expect("closed in time");
    }
}

pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Processes of the host whose command line contains the marker; zombies have none.
pub(crate) fn running(marker: &str) -> usize {
    let entries = fs::read_dir("/proc").expect("proc");
    let lines = entries.flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(marker)).count()
}

/// A number of seconds to sleep that no other test uses, so that the process can be found.
pub(crate) fn marker() -> String {
    format!("1000.{}", uuid::Uuid::new_v4().as_u128() % 1_000_000_000_000)
}
