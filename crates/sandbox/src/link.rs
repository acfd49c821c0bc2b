//! The server's end of a shim: spawn it or knock at one that outlived us, then records come and orders go.

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

use ash_model::{Consistency, Epoch};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

use crate::{
    Allowance, Egress, Error, Record, What, egress,
    frame::{Frames, FromClient, FromShim, Hello, LONGEST, Malformed, Plan, Start, VERSION},
    journal::Reader,
};

/// Longer than the shim itself waits for its walls, so that its explanation arrives.
const BUILD_PATIENCE: Duration = Duration::from_secs(30);
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
const ORDERS: usize = 64;
/// Bounded, so that a slow store slows the agent down and not the machine.
const RECORDS: usize = 256;
const SOCKET: &str = "sock";

/// A socket's path may be longer than the 108 bytes an address holds; through its directory it never is.
fn through(dir: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(SOCKET)
}

fn open_dir(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::File { what: "open", path: path.to_owned(), source })
}

pub(crate) async fn launch(plan: Plan) -> Result<Link, Error> {
    let run_dir = plan.run_dir.clone();
    let incarnation = plan.incarnation;
    let result = tokio::time::timeout(BUILD_PATIENCE, build(plan)).await;
    let result = result.unwrap_or(Err(Error::Late { what: "start" }));
    if result.is_err() {
        // Only our own traces: the caller may not have read an older journal yet.
        for name in [SOCKET.to_owned(), crate::journal::name(incarnation)] {
            let _ = fs::remove_file(run_dir.join(name));
        }
        let _ = fs::remove_dir_all(run_dir.join(egress::DIR));
    }
    result
}

async fn build(plan: Plan) -> Result<Link, Error> {
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
    // The listener exists already, so this cannot come too early: the backlog waits for the shim.
    let stream = connect(&path).map_err(failed("connect"))?;
    let mut wire = Wire { stream, frames: Frames::default() };
    wire.say(&FromClient::Build(Box::new(plan))).await?;
    let hello = match wire.hear().await? {
        Some(FromShim::Hello(hello)) => hello,
        Some(FromShim::Refused { why }) => return Err(Error::Walls { why }),
        Some(_) => return Err(Error::Gone),
        None => return Err(Error::Walls { why: ended(shim).await }),
    };
    wire.follow(hello, 0, Routes::default()).await
}

async fn ended(mut shim: tokio::process::Child) -> String {
    match shim.wait().await {
        Ok(status) => format!("the shim ended ({status})"),
        Err(e) => format!("the shim ended ({e})"),
    }
}

/// No pre_exec and no uid here: with either, std forks instead of spawning, and the fork of a large server
/// costs 60 ms. The shim arranges itself. Dropped, the child is still reaped by tokio.
fn spawn(plan: &Plan, listener: OwnedFd) -> Result<tokio::process::Child, Error> {
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

/// Connects to a shim that may have outlived us. `Ok(None)`: nobody is there.
pub async fn knock(run_dir: &Path, epoch: Epoch) -> Result<Option<Knocked>, Error> {
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
    let mut wire = Wire { stream, frames: Frames::default() };
    let answer = async {
        wire.say(&FromClient::Attach { version: VERSION, epoch }).await?;
        wire.hear().await
    };
    match tokio::time::timeout(ANSWER_PATIENCE, answer).await {
        Ok(Ok(Some(FromShim::Hello(hello)))) => Ok(Some(Knocked { hello, wire })),
        Ok(Ok(Some(FromShim::Refused { why }))) => Err(Error::Refused { why }),
        // It was about to end, and has.
        Ok(Ok(Some(_) | None) | Err(Error::Gone)) => Ok(None),
        Ok(Err(e)) => Err(e),
        Err(_) => Err(Error::Late { what: "answer" }),
    }
}

/// A shim that answered, before anything is asked of it.
#[derive(Debug)]
pub struct Knocked {
    pub hello: Hello,
    wire: Wire,
}

impl Knocked {
    /// Records come from `offset` on, which is one that a record of this incarnation ended at, or 0.
    pub async fn follow(self, offset: u64) -> Result<Link, Error> {
        if offset > self.hello.end {
            let why = format!("offset {offset} is past the journal's end at {}", self.hello.end);
            return Err(Error::Refused { why });
        }
        self.wire.follow(self.hello, offset, Routes::default()).await
    }

    /// The same for several who share it: each hears its own processes, and nobody the others.
    pub async fn follow_each(
        self,
        offset: u64,
        processes: Vec<Vec<RangeInclusive<u16>>>,
    ) -> Result<(Hello, Remote, Vec<Records>), Error> {
        let routes = Routes::default();
        let records = processes.into_iter().map(|some| routes.add(some)).collect();
        let Link { hello, remote, .. } = self.wire.follow(self.hello, offset, routes).await?;
        Ok((hello, remote, records))
    }

    /// Ends the sandbox and returns when its shim is gone.
    pub async fn end(mut self) -> Result<(), Error> {
        let ended = async {
            self.wire.say(&FromClient::End).await?;
            while self.wire.hear().await?.is_some() {}
            Ok(())
        };
        match tokio::time::timeout(ANSWER_PATIENCE, ended).await {
            Ok(Ok(()) | Err(Error::Gone)) => Ok(()),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(Error::Late { what: "end" }),
        }
    }
}

/// A connection on which one side speaks at a time.
#[derive(Debug)]
struct Wire {
    stream: UnixStream,
    frames: Frames,
}

impl Wire {
    async fn say(&mut self, frame: &FromClient) -> Result<(), Error> {
        self.stream.write_all(&frame.encode()).await.map_err(|_| Error::Gone)
    }

    async fn hear(&mut self) -> Result<Option<FromShim>, Error> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            if let Some((kind, payload)) = self.frames.next()? {
                return Ok(Some(FromShim::decode(kind, payload)?));
            }
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(n) => self.frames.push(&buffer[..n]),
            }
        }
    }

    async fn follow(mut self, hello: Hello, offset: u64, routes: Routes) -> Result<Link, Error> {
        self.say(&FromClient::Follow { offset }).await?;
        let (reading, writing) = self.stream.into_split();
        let (orders, to_write) = mpsc::channel(ORDERS);
        let (to_reader, records) = mpsc::channel(RECORDS);
        let waiting = Waiting::default();
        let writer = tokio::spawn(write(writing, to_write, waiting.clone()));
        let reader = Listener {
            reading,
            frames: self.frames,
            journal: Reader::at(offset),
            records: to_reader,
            routes: routes.clone(),
            waiting: waiting.clone(),
        };
        let ways = routes.clone();
        tokio::spawn(async move {
            reader.run().await;
            ways.close();
            // Nobody hears answers any more, so nothing may be asked: later sends fail with `Gone`.
            writer.abort();
            waiting.close();
        });
        let remote = Remote { orders, has_egress: hello.egress, has_usage: hello.usage, routes };
        Ok(Link { hello, remote, records: Records::All(records) })
    }
}

/// A connection to a running sandbox.
#[derive(Debug)]
pub struct Link {
    hello: Hello,
    remote: Remote,
    records: Records,
}

impl Link {
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    pub fn split(self) -> (Remote, Records) {
        (self.remote, self.records)
    }
}

/// What the sandbox says. Keep reading while orders are given: answers come behind the records.
#[derive(Debug)]
pub enum Records {
    /// Of everybody who is not listened to by somebody else.
    All(mpsc::Receiver<Record>),
    /// Of some processes. Not bounded here: who does not read holds nobody else up, and the shim stops listening when
    /// too much is not acknowledged.
    Some(mpsc::UnboundedReceiver<Record>),
}

impl Records {
    /// None: the connection is closed. Safe to cancel.
    pub async fn next(&mut self) -> Option<Record> {
        match self {
            Records::All(records) => records.recv().await,
            Records::Some(records) => records.recv().await,
        }
    }

    /// What is there already, without waiting: for taking many at once.
    pub fn ready(&mut self) -> Option<Record> {
        match self {
            Records::All(records) => records.try_recv().ok(),
            Records::Some(records) => records.try_recv().ok(),
        }
    }
}

/// Which processes, and who listens to them.
type Route = (Vec<RangeInclusive<u16>>, mpsc::UnboundedSender<Record>);

/// Several who share a sandbox. None: it is closed.
#[derive(Debug, Clone)]
struct Routes(Arc<Mutex<Option<Vec<Route>>>>);

impl Default for Routes {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }
}

impl Routes {
    fn with<T>(&self, change: impl FnOnce(&mut Option<Vec<Route>>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, processes: Vec<RangeInclusive<u16>>) -> Records {
        let (sender, records) = mpsc::unbounded_channel();
        // If it is closed already, so is what is answered.
        self.with(|routes| {
            routes.iter_mut().for_each(|routes| routes.push((processes.clone(), sender.clone())))
        });
        Records::Some(records)
    }

    /// Hands the record over, unless it is for the one who hears everything else. That the sandbox is gone concerns all.
    fn pass(&self, record: Record) -> Option<Record> {
        self.with(|routes| {
            let Some(routes) = routes else { return Some(record) };
            routes.retain(|(_, sender)| !sender.is_closed());
            if matches!(record.what, What::Gone { .. }) {
                routes.iter().for_each(|(_, sender)| drop(sender.send(record.clone())));
                return Some(record);
            }
            let meant = |(processes, _): &&Route| processes.iter().any(|some| some.contains(&record.process));
            match routes.iter().find(meant) {
                Some((_, sender)) => drop(sender.send(record)),
                None => return Some(record),
            }
            None
        })
    }

    /// Whether nobody listens to processes of their own.
    fn are_none(&self) -> bool {
        self.with(|routes| routes.as_ref().is_none_or(Vec::is_empty))
    }

    fn close(&self) {
        self.with(|routes| *routes = None);
    }
}

#[derive(Debug)]
enum Answer {
    Frozen(Consistency),
    Thawed { held: bool },
}

/// Who waits for an answer, in the order of asking. None: nobody will answer any more.
#[derive(Debug, Clone)]
struct Waiting(Arc<Mutex<Option<VecDeque<oneshot::Sender<Answer>>>>>);

impl Default for Waiting {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(VecDeque::new()))))
    }
}

impl Waiting {
    fn with<T>(&self, change: impl FnOnce(&mut Option<VecDeque<oneshot::Sender<Answer>>>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, who: oneshot::Sender<Answer>) {
        self.with(|waiting| waiting.as_mut().map(|queue| queue.push_back(who)));
    }

    fn answer(&self, answer: Answer) {
        if let Some(who) = self.with(|waiting| waiting.as_mut().and_then(VecDeque::pop_front)) {
            let _ = who.send(answer);
        }
    }

    fn close(&self) {
        self.with(|waiting| *waiting = None);
    }
}

#[derive(Debug)]
struct Sending {
    frame: Vec<u8>,
    answer: Option<oneshot::Sender<Answer>>,
}

async fn write(mut socket: OwnedWriteHalf, mut orders: mpsc::Receiver<Sending>, waiting: Waiting) {
    while let Some(Sending { frame, answer }) = orders.recv().await {
        // Before the frame goes out, or the answer could be there first.
        answer.into_iter().for_each(|who| waiting.add(who));
        if socket.write_all(&frame).await.is_err() {
            return;
        }
    }
}

struct Listener {
    reading: OwnedReadHalf,
    frames: Frames,
    journal: Reader,
    records: mpsc::Sender<Record>,
    routes: Routes,
    waiting: Waiting,
}

impl Listener {
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
                    // Somebody listens since then.
                    false => continue,
                },
            };
            match read {
                Ok(0) | Err(_) => return,
                Ok(n) => self.frames.push(&buffer[..n]),
            }
        }
    }

    async fn pass_frames(&mut self) -> Result<bool, Malformed> {
        while let Some((kind, payload)) = self.frames.next()? {
            if !self.hear(FromShim::decode(kind, payload)?).await {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// False: the connection is over.
    async fn hear(&mut self, frame: FromShim) -> bool {
        match frame {
            FromShim::Data(bytes) => return self.pass_on(&bytes).await,
            FromShim::Frozen(consistency) => self.waiting.answer(Answer::Frozen(consistency)),
            FromShim::Thawed { held } => self.waiting.answer(Answer::Thawed { held }),
            FromShim::Refused { why } => {
                tracing::warn!(why, "a shim closed the connection");
                return false;
            }
            FromShim::Hello(_) | FromShim::Pong => {}
        }
        true
    }

    async fn pass_on(&mut self, bytes: &[u8]) -> bool {
        self.journal.push(bytes);
        loop {
            match self.journal.next() {
                Ok(Some(record)) => {
                    let Some(record) = self.routes.pass(record) else { continue };
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

/// Gives orders to a sandbox, in order. When its shim is gone every call answers [`Error::Gone`].
#[derive(Debug, Clone)]
pub struct Remote {
    orders: mpsc::Sender<Sending>,
    has_egress: bool,
    has_usage: bool,
    routes: Routes,
}

impl Remote {
    async fn send(&self, frame: FromClient, answer: Option<oneshot::Sender<Answer>>) -> Result<(), Error> {
        self.orders.send(Sending { frame: frame.encode(), answer }).await.map_err(|_| Error::Gone)
    }

    async fn ask(&self, frame: FromClient, what: &'static str) -> Result<Answer, Error> {
        let (who, answer) = oneshot::channel();
        self.send(frame, Some(who)).await?;
        match tokio::time::timeout(ANSWER_PATIENCE, answer).await {
            Ok(answer) => answer.map_err(|_| Error::Gone),
            Err(_) => Err(Error::Late { what }),
        }
    }

    /// Whether nothing can be asked of it any more.
    pub fn is_closed(&self) -> bool {
        self.orders.is_closed()
    }

    /// From now on what these processes say goes to whoever has this, until it is dropped.
    pub fn listen(&self, processes: Vec<RangeInclusive<u16>>) -> Records {
        self.routes.add(processes)
    }

    /// Answered by a record, `Started` or `StartFailed`. A number in use is ignored.
    pub async fn start(&self, start: Start) -> Result<(), Error> {
        self.send(FromClient::Start(start), None).await
    }

    /// `number` counts from 1 over the process's whole life; one that was taken already is ignored, so that after a
    /// crash it is safe to send again.
    pub async fn input(&self, process: u16, number: u64, bytes: Vec<u8>) -> Result<(), Error> {
        if bytes.len() > LONGEST - 16 {
            return Err(Error::TooLarge { bytes: bytes.len() });
        }
        self.send(FromClient::In { process, number, bytes }, None).await
    }

    pub async fn close_input(&self, process: u16) -> Result<(), Error> {
        self.send(FromClient::CloseIn { process }, None).await
    }

    /// Everything up to `offset` is stored and may be forgotten.
    pub async fn ack(&self, offset: u64) -> Result<(), Error> {
        self.send(FromClient::Ack { offset }, None).await
    }

    /// To the process and all of its group.
    pub async fn signal(&self, process: u16, signal: i32) -> Result<(), Error> {
        self.send(FromClient::Signal { process, signal }, None).await
    }

    pub async fn freeze(&self) -> Result<Consistency, Error> {
        match self.ask(FromClient::Freeze, "freeze").await? {
            Answer::Frozen(consistency) => Ok(consistency),
            Answer::Thawed { .. } => Err(Error::Gone),
        }
    }

    /// False: it had been thawed before, so what was read meanwhile is `live`.
    pub async fn thaw(&self) -> Result<bool, Error> {
        match self.ask(FromClient::Thaw, "thaw").await? {
            Answer::Thawed { held } => Ok(held),
            Answer::Frozen(_) => Err(Error::Gone),
        }
    }

    /// Where model calls from inside go from now on. None: nowhere, and those under way are cut. The shim
    /// keeps it in memory only, but longer than this connection: it is for the sandbox, not for the server.
    pub async fn egress(&self, policy: Option<Egress>) -> Result<(), Error> {
        policy.as_ref().map_or(Ok(()), Egress::check)?;
        match (self.has_egress, &policy) {
            (true, _) => self.send(FromClient::Egress(policy), None).await,
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

    /// What the session whose agent is this process may still use; with the first its socket opens. None: it has left. A
    /// shim of an older version is not told, and counts nothing.
    pub async fn allow(&self, process: u16, allowance: Option<Allowance>) -> Result<(), Error> {
        match self.has_usage {
            true => self.send(FromClient::Allow { process, allowance }, None).await,
            false => Ok(()),
        }
    }

    /// Asks the shim to end the sandbox and itself; when it has, [`Records::next`] is None.
    pub async fn end(&self) -> Result<(), Error> {
        self.send(FromClient::End, None).await
    }
}
