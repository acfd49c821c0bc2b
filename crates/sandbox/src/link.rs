//! The server's end of a shim: starts a shim or connects to one that outlived the server, then receives records and
//! sends commands.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    ops::RangeInclusive,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
        unix::net::{UnixListener, UnixStream as StdStream},
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ash_model::{CaptureConsistency, Epoch};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

use crate::{
    EgressPolicy, Error, JournalPayload, JournalRecord, UsageAllowance, egress,
    frame::{
        ClientFrame, FrameDecoder, MAX_FRAME_BYTES, MalformedFrame, ProcessSpec, ShimFrame, ShimHello,
        ShimPlan, VERSION,
    },
    journal::JournalReader,
};

/// Longer than the shim's own build timeout, so that its explanation arrives.
const BUILD_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const FRAME_QUEUE_LENGTH: usize = 64;
/// Bounded, so that a slow store slows down the agent instead of filling memory.
const RECORD_QUEUE_LENGTH: usize = 256;
const SOCKET: &str = "sock";

/// A socket's path may be longer than the 108 bytes that an address holds. The path through the directory's descriptor
/// is always short enough.
fn through(dir: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(SOCKET)
}

fn open_dir(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::File { what: "open", path: path.to_owned(), source })
}

pub(crate) async fn launch(plan: ShimPlan) -> Result<SandboxLink, Error> {
    let run_dir = plan.run_dir.clone();
    let incarnation = plan.incarnation;
    let result = tokio::time::timeout(BUILD_TIMEOUT, build(plan)).await;
    let result = result.unwrap_or(Err(Error::Timeout { what: "start" }));
    if result.is_err() {
        // Only the files of this launch: the caller may not have read an older journal yet.
        for name in [SOCKET.to_owned(), crate::journal::name(incarnation)] {
            let _ = fs::remove_file(run_dir.join(name));
        }
        let _ = fs::remove_dir_all(run_dir.join(egress::DIR));
    }
    result
}

async fn build(plan: ShimPlan) -> Result<SandboxLink, Error> {
    let dir = open_dir(&plan.run_dir)?;
    let failed = |what| {
        let path = plan.run_dir.join(SOCKET);
        move |source| Error::File { what, path, source }
    };
    let path = through(&dir);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("remove")(e)),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&path).map_err(failed("bind"))?;
    let shim = spawn(&plan, listener.into())?;
    // The listener exists already, so the connection waits in its backlog until the shim accepts it.
    let stream = connect(&path).map_err(failed("connect"))?;
    let mut wire = FrameConnection { stream, frames: FrameDecoder::default() };
    wire.send(&ClientFrame::Build(Box::new(plan))).await?;
    let hello = match wire.receive().await? {
        Some(ShimFrame::Hello(hello)) => hello,
        Some(ShimFrame::Refused { why }) => return Err(Error::StartFailed { why }),
        Some(_) => return Err(Error::Gone),
        None => return Err(Error::StartFailed { why: ended(shim).await }),
    };
    wire.follow(hello, 0, RecordRoutes::default()).await
}

async fn ended(mut shim: tokio::process::Child) -> String {
    match shim.wait().await {
        Ok(status) => format!("the shim ended ({status})"),
        Err(e) => format!("the shim ended ({e})"),
    }
}

/// No pre_exec and no uid here: with either, std forks instead of spawning, and the fork of a large server costs 60 ms.
/// The shim sets itself up. tokio reaps the child even if it is dropped.
fn spawn(plan: &ShimPlan, listener: OwnedFd) -> Result<tokio::process::Child, Error> {
    let path = plan.run_dir.join("shim.log");
    let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let log = log.map_err(|source| Error::File { what: "open", path, source })?;
    tokio::process::Command::new(&plan.exe)
        .arg("shim")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(listener))
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .spawn()
        .map_err(|source| Error::File { what: "run", path: plan.exe.clone(), source })
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = StdStream::connect(path)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Connects to a shim that may have outlived the server. `Ok(None)`: there is no shim.
pub async fn knock(run_dir: &Path, epoch: Epoch) -> Result<Option<ShimHandshake>, Error> {
    let dir = match File::open(run_dir) {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::File { what: "open", path: run_dir.to_owned(), source }),
    };
    let stream = match connect(&through(&dir)) {
        Ok(stream) => stream,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(source) => return Err(Error::File { what: "connect", path: run_dir.join(SOCKET), source }),
    };
    let mut wire = FrameConnection { stream, frames: FrameDecoder::default() };
    let answer = async {
        wire.send(&ClientFrame::Attach { version: VERSION, epoch }).await?;
        wire.receive().await
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(Some(ShimFrame::Hello(hello)))) => Ok(Some(ShimHandshake { hello, wire })),
        Ok(Ok(Some(ShimFrame::Refused { why }))) => Err(Error::Refused { why }),
        // The shim was ending and has ended.
        Ok(Ok(Some(_) | None) | Err(Error::Gone)) => Ok(None),
        Ok(Err(e)) => Err(e),
        Err(_) => Err(Error::Timeout { what: "answer" }),
    }
}

/// A shim that answered and has got no command yet.
#[derive(Debug)]
pub struct ShimHandshake {
    pub hello: ShimHello,
    wire: FrameConnection,
}

impl ShimHandshake {
    /// Records come from `offset` on. It must be 0 or the end of a record of this incarnation.
    pub async fn follow(self, offset: u64) -> Result<SandboxLink, Error> {
        if offset > self.hello.end {
            let why = format!("offset {offset} is past the journal's end at {}", self.hello.end);
            return Err(Error::Refused { why });
        }
        self.wire.follow(self.hello, offset, RecordRoutes::default()).await
    }

    /// The same for several sessions that share the sandbox: each receives only the records of its own processes.
    pub async fn follow_each(
        self,
        offset: u64,
        processes: Vec<Vec<RangeInclusive<u16>>>,
    ) -> Result<(ShimHello, SandboxHandle, Vec<RecordStream>), Error> {
        let routes = RecordRoutes::default();
        let records = processes.into_iter().map(|some| routes.add(some)).collect();
        let SandboxLink { hello, remote, .. } = self.wire.follow(self.hello, offset, routes).await?;
        Ok((hello, remote, records))
    }

    /// Ends the sandbox and returns when its shim is gone.
    pub async fn end(mut self) -> Result<(), Error> {
        let ended = async {
            self.wire.send(&ClientFrame::End).await?;
            while self.wire.receive().await?.is_some() {}
            Ok(())
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, ended).await {
            Ok(Ok(()) | Err(Error::Gone)) => Ok(()),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Error::Timeout { what: "end" }),
        }
    }
}

/// A connection on which one side sends at a time.
#[derive(Debug)]
struct FrameConnection {
    stream: UnixStream,
    frames: FrameDecoder,
}

impl FrameConnection {
    async fn send(&mut self, frame: &ClientFrame) -> Result<(), Error> {
        self.stream.write_all(&frame.encode()).await.map_err(|_| Error::Gone)
    }

    async fn receive(&mut self) -> Result<Option<ShimFrame>, Error> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            if let Some((kind, payload)) = self.frames.next()? {
                return Ok(Some(ShimFrame::decode(kind, payload)?));
            }
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(n) => self.frames.push(&buffer[..n]),
            }
        }
    }

    async fn follow(
        mut self,
        hello: ShimHello,
        offset: u64,
        routes: RecordRoutes,
    ) -> Result<SandboxLink, Error> {
        self.send(&ClientFrame::Follow { offset }).await?;
        let (reading, writing) = self.stream.into_split();
        let (orders, to_write) = mpsc::channel(FRAME_QUEUE_LENGTH);
        let (to_reader, records) = mpsc::channel(RECORD_QUEUE_LENGTH);
        let waiting = PendingShimAnswers::default();
        let writer = tokio::spawn(write(writing, to_write, waiting.clone()));
        let reader = ShimFrameReader {
            reading,
            frames: self.frames,
            journal: JournalReader::at(offset),
            records: to_reader,
            routes: routes.clone(),
            waiting: waiting.clone(),
        };
        let ways = routes.clone();
        tokio::spawn(async move {
            reader.run().await;
            ways.close();
            // The reader has ended, so no command could get an answer: later sends fail with `Gone`.
            writer.abort();
            waiting.close();
        });
        let remote = SandboxHandle { orders, has_egress: hello.egress, has_usage: hello.usage, routes };
        Ok(SandboxLink { hello, remote, records: RecordStream::All(records) })
    }
}

/// A connection to a running sandbox.
#[derive(Debug)]
pub struct SandboxLink {
    hello: ShimHello,
    remote: SandboxHandle,
    records: RecordStream,
}

impl SandboxLink {
    pub fn hello(&self) -> &ShimHello {
        &self.hello
    }

    pub fn split(self) -> (SandboxHandle, RecordStream) {
        (self.remote, self.records)
    }
}

/// The records of a sandbox. The caller must keep reading while it sends commands: answers come behind the records.
#[derive(Debug)]
pub enum RecordStream {
    /// Records of all processes without a listener of their own.
    All(mpsc::Receiver<JournalRecord>),
    /// Records of some processes. The queue is unbounded, so that a listener that does not read delays no other. The
    /// shim stops reading output when too much of it is not acknowledged.
    Selected(mpsc::UnboundedReceiver<JournalRecord>),
}

impl RecordStream {
    /// None: the connection is closed. Safe to cancel.
    pub async fn next(&mut self) -> Option<JournalRecord> {
        match self {
            RecordStream::All(records) => records.recv().await,
            RecordStream::Selected(records) => records.recv().await,
        }
    }

    /// The next record that is already there, without waiting: for reading many at once.
    pub fn ready(&mut self) -> Option<JournalRecord> {
        match self {
            RecordStream::All(records) => records.try_recv().ok(),
            RecordStream::Selected(records) => records.try_recv().ok(),
        }
    }
}

/// A set of processes, and the listener that gets their records.
type RecordRoute = (Vec<RangeInclusive<u16>>, mpsc::UnboundedSender<JournalRecord>);

/// The listeners of sessions that share a sandbox. None: the connection is closed.
#[derive(Debug, Clone)]
struct RecordRoutes(Arc<Mutex<Option<Vec<RecordRoute>>>>);

impl Default for RecordRoutes {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }
}

impl RecordRoutes {
    fn with<T>(&self, change: impl FnOnce(&mut Option<Vec<RecordRoute>>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, processes: Vec<RangeInclusive<u16>>) -> RecordStream {
        let (sender, records) = mpsc::unbounded_channel();
        // After a close this adds nothing, so the returned stream is closed too.
        self.with(|routes| {
            routes.iter_mut().for_each(|routes| routes.push((processes.clone(), sender.clone())))
        });
        RecordStream::Selected(records)
    }

    /// Sends the record to its listener, or returns it if it belongs to the main stream. The end of the sandbox goes to
    /// all.
    fn route(&self, record: JournalRecord) -> Option<JournalRecord> {
        self.with(|routes| {
            let Some(routes) = routes else { return Some(record) };
            routes.retain(|(_, sender)| !sender.is_closed());
            if matches!(record.payload, JournalPayload::SandboxGone { .. }) {
                routes.iter().for_each(|(_, sender)| drop(sender.send(record.clone())));
                return Some(record);
            }
            let meant =
                |(processes, _): &&RecordRoute| processes.iter().any(|some| some.contains(&record.process));
            match routes.iter().find(meant) {
                Some((_, sender)) => drop(sender.send(record)),
                None => return Some(record),
            }
            None
        })
    }

    /// Whether no listener has processes of its own.
    fn are_none(&self) -> bool {
        self.with(|routes| routes.as_ref().is_none_or(Vec::is_empty))
    }

    fn close(&self) {
        self.with(|routes| *routes = None);
    }
}

#[derive(Debug)]
enum ShimAnswer {
    Frozen(CaptureConsistency),
    Thawed { held: bool },
}

/// The callers that wait for an answer, in the order of their requests. None: no more answers will come.
#[derive(Debug, Clone)]
struct PendingShimAnswers(Arc<Mutex<Option<VecDeque<oneshot::Sender<ShimAnswer>>>>>);

impl Default for PendingShimAnswers {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(VecDeque::new()))))
    }
}

impl PendingShimAnswers {
    fn with<T>(&self, change: impl FnOnce(&mut Option<VecDeque<oneshot::Sender<ShimAnswer>>>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, who: oneshot::Sender<ShimAnswer>) {
        self.with(|waiting| waiting.as_mut().map(|queue| queue.push_back(who)));
    }

    fn answer(&self, answer: ShimAnswer) {
        if let Some(who) = self.with(|waiting| waiting.as_mut().and_then(VecDeque::pop_front)) {
            let _ = who.send(answer);
        }
    }

    fn close(&self) {
        self.with(|waiting| *waiting = None);
    }
}

#[derive(Debug)]
struct OutgoingFrame {
    frame: Vec<u8>,
    answer: Option<oneshot::Sender<ShimAnswer>>,
}

async fn write(
    mut socket: OwnedWriteHalf,
    mut orders: mpsc::Receiver<OutgoingFrame>,
    waiting: PendingShimAnswers,
) {
    while let Some(OutgoingFrame { frame, answer }) = orders.recv().await {
        // Before the frame is sent, or the answer could arrive first.
        answer.into_iter().for_each(|who| waiting.add(who));
        if socket.write_all(&frame).await.is_err() {
            return;
        }
    }
}

struct ShimFrameReader {
    reading: OwnedReadHalf,
    frames: FrameDecoder,
    journal: JournalReader,
    records: mpsc::Sender<JournalRecord>,
    routes: RecordRoutes,
    waiting: PendingShimAnswers,
}

impl ShimFrameReader {
    async fn run(mut self) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.pass_frames().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) => return tracing::warn!(error = %e, "a shim broke the protocol"),
            }
            let read = tokio::select! {
                read = self.reading.read(&mut buffer) => read,
                () = self.records.closed(), if self.routes.are_none() => match self.routes.are_none() {
                    true => return,
                    // A listener was added in the meantime.
                    false => continue,
                },
            };
            match read {
                Ok(0) | Err(_) => return,
                Ok(n) => self.frames.push(&buffer[..n]),
            }
        }
    }

    async fn pass_frames(&mut self) -> Result<bool, MalformedFrame> {
        while let Some((kind, payload)) = self.frames.next()? {
            if !self.handle_frame(ShimFrame::decode(kind, payload)?).await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// False: the connection is over.
    async fn handle_frame(&mut self, frame: ShimFrame) -> bool {
        match frame {
            ShimFrame::Data(bytes) => return self.pass_on(&bytes).await,
            ShimFrame::Frozen(consistency) => self.waiting.answer(ShimAnswer::Frozen(consistency)),
            ShimFrame::Thawed { held } => self.waiting.answer(ShimAnswer::Thawed { held }),
            ShimFrame::Refused { why } => {
                tracing::warn!(why, "a shim closed the connection");
                return false;
            }
            ShimFrame::Hello(_) | ShimFrame::Pong => {}
        }
        true
    }

    async fn pass_on(&mut self, bytes: &[u8]) -> bool {
        self.journal.push(bytes);
        loop {
            match self.journal.next() {
                Ok(Some(record)) => {
                    let Some(record) = self.routes.route(record) else { continue };
                    if self.records.send(record).await.is_err() && self.routes.are_none() {
                        return false;
                    }
                }
                Ok(None) => return true,
                Err(_torn) => {
                    tracing::warn!("a shim sent a record whose checksum is wrong");
                    return false;
                }
            }
        }
    }
}

/// Sends commands to a sandbox, in order. When its shim is gone every call returns [`Error::Gone`].
#[derive(Debug, Clone)]
pub struct SandboxHandle {
    orders: mpsc::Sender<OutgoingFrame>,
    has_egress: bool,
    has_usage: bool,
    routes: RecordRoutes,
}

impl SandboxHandle {
    async fn send(
        &self,
        frame: ClientFrame,
        answer: Option<oneshot::Sender<ShimAnswer>>,
    ) -> Result<(), Error> {
        self.orders.send(OutgoingFrame { frame: frame.encode(), answer }).await.map_err(|_| Error::Gone)
    }

    async fn ask(&self, frame: ClientFrame, what: &'static str) -> Result<ShimAnswer, Error> {
        let (who, answer) = oneshot::channel();
        self.send(frame, Some(who)).await?;
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(answer) => answer.map_err(|_| Error::Gone),
            Err(_) => Err(Error::Timeout { what }),
        }
    }

    /// Whether the connection is closed, so that every command would fail.
    pub fn is_closed(&self) -> bool {
        self.orders.is_closed()
    }

    /// From now on the records of these processes go to the returned stream, until it is dropped.
    pub fn listen(&self, processes: Vec<RangeInclusive<u16>>) -> RecordStream {
        self.routes.add(processes)
    }

    /// The answer is a record, `Started` or `StartFailed`. A number in use is ignored.
    pub async fn start(&self, start: ProcessSpec) -> Result<(), Error> {
        self.send(ClientFrame::Start(start), None).await
    }

    /// `number` counts from 1 over the process's whole life. The shim ignores a number that it has accepted already, so
    /// a caller may safely send again after a crash.
    pub async fn input(&self, process: u16, number: u64, bytes: Vec<u8>) -> Result<(), Error> {
        if bytes.len() > MAX_FRAME_BYTES - 16 {
            return Err(Error::TooLarge { bytes: bytes.len() });
        }
        self.send(ClientFrame::In { process, number, bytes }, None).await
    }

    pub async fn close_input(&self, process: u16) -> Result<(), Error> {
        self.send(ClientFrame::CloseIn { process }, None).await
    }

    /// Everything up to `offset` is stored, so the shim may free it.
    pub async fn ack(&self, offset: u64) -> Result<(), Error> {
        self.send(ClientFrame::Ack { offset }, None).await
    }

    /// To the process and its whole group.
    pub async fn signal(&self, process: u16, signal: i32) -> Result<(), Error> {
        self.send(ClientFrame::Signal { process, signal }, None).await
    }

    pub async fn freeze(&self) -> Result<CaptureConsistency, Error> {
        match self.ask(ClientFrame::Freeze, "freeze").await? {
            ShimAnswer::Frozen(consistency) => Ok(consistency),
            ShimAnswer::Thawed { .. } => Err(Error::Gone),
        }
    }

    /// False: the sandbox had been thawed before, so the files read in the meantime are only `live`.
    pub async fn thaw(&self) -> Result<bool, Error> {
        match self.ask(ClientFrame::Thaw, "thaw").await? {
            ShimAnswer::Thawed { held } => Ok(held),
            ShimAnswer::Frozen(_) => Err(Error::Gone),
        }
    }

    /// Where model calls from inside go from now on. None: nowhere, and those in progress are cut. The shim keeps the
    /// policy in memory only, but beyond this connection, because it belongs to the sandbox, not to the server.
    pub async fn set_egress(&self, policy: Option<EgressPolicy>) -> Result<(), Error> {
        policy.as_ref().map_or(Ok(()), EgressPolicy::check)?;
        match (self.has_egress, &policy) {
            (true, _) => self.send(ClientFrame::Egress(policy), None).await,
            (false, None) => Ok(()),
            (false, Some(_)) => {
                let why = "it was started by an older version, which has no way out; resume the session";
                Err(Error::Refused { why: why.to_owned() })
            }
        }
    }

    /// Whether the shim records what answers of models used, and has a socket for each session.
    pub fn has_usage(&self) -> bool {
        self.has_usage
    }

    /// What the session whose agent is this process may still use. The first allowance opens its socket. None: the
    /// session has left. A shim of an older version does not count, so it gets no such frame.
    pub async fn set_allowance(&self, process: u16, allowance: Option<UsageAllowance>) -> Result<(), Error> {
        match self.has_usage {
            true => self.send(ClientFrame::Allow { process, allowance }, None).await,
            false => Ok(()),
        }
    }

    /// Asks the shim to end the sandbox and itself. When it has, [`RecordStream::next`] is None.
    pub async fn end(&self) -> Result<(), Error> {
        self.send(ClientFrame::End, None).await
    }
}
