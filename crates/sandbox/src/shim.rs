//! `ash shim`: one small process per sandbox. It starts the walls, holds every pipe, journals what comes out
//! and passes on what goes in, and understands none of it. It outlives the server, so it must need nothing
//! from it; it has one thread and one loop, so that it can neither block nor grow. Only a sandbox that calls a
//! model gets a second thread, which carries those calls and nothing else.

mod client;
mod sandbox;
mod stdio;
mod walls;

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use ash_model::{Consistency, Epoch};

use self::{
    client::{Client, Lost},
    sandbox::Sandbox,
    stdio::{Process, READ_SIZE, Read, Stream},
};
use crate::{
    control::{Order, Report},
    frame::{FromClient, FromShim, Hello, Plan, Start, VERSION},
    journal::{self, Exit, Journal},
    process,
};

/// A server that spawned us and died before it said what to build.
const UNBUILT_PATIENCE: Duration = Duration::from_secs(10);
const BUILD_PATIENCE: Duration = Duration::from_secs(20);
const FREEZE_PATIENCE: Duration = Duration::from_secs(2);
const END_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AROUND: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(2);
/// Connections that have not said who they are.
const MOST_STRANGERS: usize = 8;
/// Input that no process reads; past this the client is wrong about what it talks to.
const MOST_INPUT: usize = 256 << 20;
/// A pipe holds at most this; an exited process can have left no more behind.
const PIPE_MOST: usize = 1 << 20;

pub(crate) fn main() -> i32 {
    match begin().and_then(|mut shim| shim.run()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("ash shim: {e}");
            1
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Unbuilt,
    Building,
    Up,
    /// Nothing runs any more; the journal is still served.
    Gone,
    /// Asked to end: as soon as nothing runs, so do we.
    Ending {
        refused: bool,
    },
}

/// How the sandbox is held still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    None,
    Freezing {
        deadline: Instant,
    },
    /// Init was asked to stop everything.
    Stopping {
        deadline: Instant,
    },
    Held {
        consistency: Consistency,
        until: Instant,
    },
    /// Let go before it was asked for.
    Lapsed,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Listener,
    Children,
    Control,
    Status,
    Complaints,
    Door,
    Stranger(usize),
    Client,
    Out(u16),
    Err(u16),
    In(u16),
    Leftover(usize),
}

struct Shim {
    listener: OwnedFd,
    children: OwnedFd,
    phase: Phase,
    since: Instant,
    plan: Option<Plan>,
    sandbox: Option<Sandbox>,
    journal: Option<Journal>,
    processes: BTreeMap<u16, Process>,
    /// Pipes that exited processes left to their children: read and thrown away, or those would block.
    leftovers: Vec<OwnedFd>,
    strangers: Vec<Client>,
    client: Option<Client>,
    /// When the last client went, or we began.
    alone: Instant,
    looked: Instant,
    epoch: Epoch,
    last_in: u64,
    hold: Hold,
    oom_seen: u64,
    buffer: Vec<u8>,
    batch: Vec<u8>,
}

fn begin() -> io::Result<Shim> {
    // Fails only for a group leader, which a spawned process is not; started by hand it is harmless.
    let _ = rustix::process::setsid();
    process::ignore(libc::SIGHUP);
    process::ignore(libc::SIGPIPE);
    process::set_undumpable()?;
    process::set_subreaper()?;
    process::close_from(3)?;
    let listener = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    stdio::nonblocking(&listener)?;
    let now = Instant::now();
    Ok(Shim {
        listener,
        children: process::watch_children()?,
        phase: Phase::Unbuilt,
        since: now,
        plan: None,
        sandbox: None,
        journal: None,
        processes: BTreeMap::new(),
        leftovers: Vec::new(),
        strangers: Vec::new(),
        client: None,
        alone: now,
        looked: now,
        epoch: Epoch(0),
        last_in: 0,
        hold: Hold::None,
        oom_seen: 0,
        buffer: vec![0; READ_SIZE],
        batch: Vec::new(),
    })
}

// The loop.
impl Shim {
    fn run(&mut self) -> io::Result<i32> {
        loop {
            let (mut fds, sources) = self.interests();
            process::poll(&mut fds, self.until_next_timer())?;
            let ready = fds.iter().zip(sources).filter(|(fd, _)| fd.revents != 0);
            for (revents, source) in ready.map(|(fd, source)| (fd.revents, source)).collect::<Vec<_>>() {
                self.serve(source, revents);
            }
            self.timers();
            if let Some(code) = self.over() {
                return Ok(code);
            }
        }
    }

    fn interests(&self) -> (Vec<libc::pollfd>, Vec<Source>) {
        let (mut fds, mut sources) = (Vec::new(), Vec::new());
        let mut want = |fd: &dyn AsRawFd, events: i16, source: Source| {
            fds.push(process::wants(&fd.as_raw_fd(), events));
            sources.push(source);
        };
        want(&self.listener, libc::POLLIN, Source::Listener);
        want(&self.children, libc::POLLIN, Source::Children);
        if let Some(sandbox) = &self.sandbox {
            let events = libc::POLLIN | if sandbox.has_orders() { libc::POLLOUT } else { 0 };
            sandbox.control().into_iter().for_each(|fd| want(fd, events, Source::Control));
            sandbox.status().into_iter().for_each(|fd| want(fd, libc::POLLIN, Source::Status));
            sandbox.complaints().into_iter().for_each(|fd| want(fd, libc::POLLIN, Source::Complaints));
            sandbox.door().waiting().into_iter().for_each(|fd| want(fd, libc::POLLIN, Source::Door));
        }
        for (n, stranger) in self.strangers.iter().enumerate() {
            want(&stranger.socket, libc::POLLIN, Source::Stranger(n));
        }
        if let Some(client) = &self.client {
            let end = self.journal.as_ref().map_or(0, Journal::end);
            let events = libc::POLLIN | if client.wants_to_write(end) { libc::POLLOUT } else { 0 };
            want(&client.socket, events, Source::Client);
        }
        let listening = self.listening();
        for (number, process) in &self.processes {
            for (stream, source) in
                [(&process.out, Source::Out(*number)), (&process.err, Source::Err(*number))]
            {
                // Left out altogether, not polled for nothing: a hang-up is reported whatever one asks for.
                stream
                    .iter()
                    .filter(|_| listening && process.started)
                    .for_each(|s| want(&s.fd, libc::POLLIN, source));
            }
            let input = process.input.iter().filter(|input| input.waiting() > 0);
            input.for_each(|input| want(&input.fd, libc::POLLOUT, Source::In(*number)));
        }
        for (n, leftover) in self.leftovers.iter().enumerate() {
            want(leftover, libc::POLLIN, Source::Leftover(n));
        }
        (fds, sources)
    }

    /// Back-pressure: what is not read stays in the pipe, and a full pipe stops its writer.
    fn listening(&self) -> bool {
        let cap = self.plan.as_ref().map_or(u64::MAX, |plan| plan.caps.unacked_bytes);
        self.journal.as_ref().is_some_and(|journal| !journal.stuck() && journal.unacked() <= cap)
    }

    fn serve(&mut self, source: Source, revents: i16) {
        match source {
            Source::Listener => self.accept(),
            Source::Children => self.reap(),
            Source::Control => self.serve_control(revents),
            Source::Status => self.learn_init(),
            Source::Complaints => self.sandbox.iter_mut().for_each(Sandbox::read_complaints),
            Source::Door => self.sandbox.iter_mut().for_each(Sandbox::open_door),
            Source::Stranger(n) => self.hear_stranger(n),
            Source::Client => self.serve_client(revents),
            Source::Out(number) => self.read_stream(number, |process| &mut process.out),
            Source::Err(number) => self.read_stream(number, |process| &mut process.err),
            Source::In(number) => self.write_input(number),
            Source::Leftover(n) => self.discard(n),
        }
    }

    fn over(&self) -> Option<i32> {
        let empty = self.sandbox.as_ref().is_none_or(Sandbox::is_empty);
        match self.phase {
            Phase::Unbuilt | Phase::Building | Phase::Up => None,
            Phase::Gone => (empty && self.journal.as_ref().is_none_or(Journal::settled)).then_some(0),
            Phase::Ending { refused } => empty.then_some(i32::from(refused)),
        }
    }
}

// Time.
impl Shim {
    fn until_next_timer(&self) -> Option<Duration> {
        let mut next = self.client.is_none().then(|| self.looked + LOOK_AROUND);
        let mut by = |time: Instant| next = Some(next.map_or(time, |earlier| earlier.min(time)));
        let now = Instant::now();
        match self.phase {
            Phase::Unbuilt => by(self.since + UNBUILT_PATIENCE),
            Phase::Building => by(self.since + BUILD_PATIENCE),
            Phase::Gone | Phase::Ending { .. } if self.sandbox.as_ref().is_some_and(|s| !s.is_empty()) => {
                by(now + 2 * SOON);
            }
            Phase::Up | Phase::Gone | Phase::Ending { .. } => {}
        }
        match self.hold {
            Hold::Freezing { .. } => by(now + SOON),
            Hold::Stopping { deadline } | Hold::Held { until: deadline, .. } => by(deadline),
            Hold::None | Hold::Lapsed => {}
        }
        self.journal.iter().filter_map(Journal::retry_at).for_each(&mut by);
        next.map(|time| time.saturating_duration_since(now))
    }

    fn timers(&mut self) {
        let now = Instant::now();
        if let Some(journal) = &mut self.journal
            && journal.retry_at().is_some_and(|at| now >= at)
        {
            journal.retry(now);
        }
        match self.phase {
            Phase::Unbuilt if now >= self.since + UNBUILT_PATIENCE => self.end(true),
            Phase::Building if now >= self.since + BUILD_PATIENCE => {
                self.refuse_build("the sandbox did not answer within 20 s");
            }
            Phase::Gone | Phase::Ending { .. } => self.sweep(now),
            Phase::Unbuilt | Phase::Building | Phase::Up => {}
        }
        self.hold_timers(now);
        if self.client.is_none() && now >= self.looked + LOOK_AROUND {
            self.looked = now;
            self.look_around(now);
        }
    }

    /// Without a server: is anybody still going to come for us?
    fn look_around(&mut self, now: Instant) {
        let Some(plan) = &self.plan else { return };
        let forgotten = now >= self.alone + Duration::from_millis(plan.orphan_ttl_ms);
        let homeless = self.sandbox.as_ref().is_some_and(|sandbox| sandbox.is_homeless(&plan.run_dir));
        if forgotten || homeless {
            self.end(false);
        }
    }

    fn sweep(&mut self, now: Instant) {
        let overdue = now >= self.since + END_PATIENCE;
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.sweep(overdue);
        }
    }

    fn hold_timers(&mut self, now: Instant) {
        match self.hold {
            Hold::Freezing { deadline } => {
                if self.sandbox.as_ref().is_some_and(Sandbox::is_frozen) {
                    self.held(Consistency::Frozen);
                } else if now >= deadline {
                    self.held(Consistency::Live);
                }
            }
            Hold::Stopping { deadline } if now >= deadline => self.held(Consistency::Live),
            Hold::Held { until, .. } if now >= until => self.let_go(Hold::Lapsed),
            Hold::None | Hold::Stopping { .. } | Hold::Held { .. } | Hold::Lapsed => {}
        }
    }
}

// Clients.
impl Shim {
    fn accept(&mut self) {
        if let Some(stranger) = Client::accept(&self.listener)
            && self.strangers.len() < MOST_STRANGERS
        {
            self.strangers.push(stranger);
        }
    }

    fn hear_stranger(&mut self, n: usize) {
        // A removal earlier in this turn moved the others up: then this reads nothing, which does no harm.
        let Some(stranger) = self.strangers.get_mut(n) else { return };
        let heard = stranger.read(&mut self.buffer).and_then(|()| stranger.next());
        match heard {
            Ok(None) => {}
            Ok(Some(first)) => {
                let stranger = self.strangers.remove(n);
                self.introduce(stranger, first);
            }
            Err(Lost) => drop(self.strangers.remove(n)),
        }
    }

    fn introduce(&mut self, mut stranger: Client, first: FromClient) {
        let refused = match first {
            FromClient::Build(plan) => match self.may_build(&plan) {
                Ok(()) => return self.build(stranger, *plan),
                Err(why) => why,
            },
            FromClient::Attach { version, epoch } => match self.may_attach(version, epoch) {
                Ok(()) => return self.attach(stranger, epoch),
                Err(why) => why,
            },
            FromClient::Follow { .. }
            | FromClient::Start(_)
            | FromClient::In { .. }
            | FromClient::CloseIn { .. }
            | FromClient::Ack { .. }
            | FromClient::Freeze
            | FromClient::Thaw
            | FromClient::Signal { .. }
            | FromClient::End
            | FromClient::Ping
            | FromClient::Egress(_) => "say build or attach first".to_owned(),
        };
        stranger.say(&FromShim::Refused { why: refused });
        // Best effort, then the connection closes: its socket is empty, so a short answer fits.
        let _ = stranger.write(None, &mut []);
    }

    fn may_build(&self, plan: &Plan) -> Result<(), String> {
        match self.phase {
            Phase::Unbuilt if plan.version == VERSION => Ok(()),
            Phase::Unbuilt => Err(format!("this shim speaks version {VERSION}")),
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } => {
                Err("already built".to_owned())
            }
        }
    }

    fn may_attach(&self, version: u32, epoch: Epoch) -> Result<(), String> {
        match self.phase {
            Phase::Unbuilt => Err("nothing is built yet".to_owned()),
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } if version != VERSION => {
                Err(format!("this shim speaks version {VERSION}"))
            }
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } if epoch < self.epoch => {
                Err(format!("epoch {} is over, epoch {} holds this sandbox", epoch.0, self.epoch.0))
            }
            Phase::Building | Phase::Up | Phase::Gone | Phase::Ending { .. } => Ok(()),
        }
    }

    fn attach(&mut self, client: Client, epoch: Epoch) {
        if let Phase::Ending { .. } = self.phase {
            // Closed without a word, as it will be in a moment for everybody.
            return;
        }
        self.lose_client();
        self.epoch = epoch;
        self.client = Some(client);
        if self.phase != Phase::Building {
            self.say_hello();
        }
        // Frames may have come together with the first one.
        self.obey_client();
    }

    fn say(&mut self, frame: &FromShim) {
        if let Some(client) = &mut self.client {
            client.say(frame);
        }
        self.write_client();
    }

    fn say_hello(&mut self) {
        let (Some(plan), Some(journal)) = (&self.plan, &self.journal) else { return };
        let hello = Hello {
            version: VERSION,
            incarnation: plan.incarnation,
            last_in: self.last_in,
            end: journal.end(),
            acked: journal.acked(),
            running: self.processes.keys().copied().collect(),
            init: self.sandbox.as_ref().filter(|_| self.phase == Phase::Up).and_then(Sandbox::init),
            egress: true,
        };
        self.say(&FromShim::Hello(hello));
    }

    fn serve_client(&mut self, revents: i16) {
        if revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0 {
            let Some(client) = &mut self.client else { return };
            if client.read(&mut self.buffer).is_err() {
                return self.lose_client();
            }
            self.obey_client();
        }
        if revents & libc::POLLOUT != 0 {
            self.write_client();
        }
    }

    fn write_client(&mut self) {
        let Some(client) = &mut self.client else { return };
        if client.write(self.journal.as_ref(), &mut self.buffer).is_err() {
            self.lose_client();
        }
    }

    fn obey_client(&mut self) {
        while let Some(client) = &mut self.client {
            match client.next() {
                Ok(Some(frame)) => self.obey(frame),
                Ok(None) => return,
                Err(Lost) => return self.lose_client(),
            }
        }
    }

    fn lose_client(&mut self) {
        if self.client.take().is_some() {
            self.alone = Instant::now();
            self.looked = self.alone;
            // Nobody is left who would thaw it.
            self.let_go(Hold::None);
        }
    }

    fn obey(&mut self, frame: FromClient) {
        match frame {
            FromClient::Build(_) | FromClient::Attach { .. } => self.lose_client(),
            FromClient::Follow { offset } => self.follow(offset),
            FromClient::Start(start) => self.start(&start),
            FromClient::In { process, number, bytes } => self.take_input(process, number, &bytes),
            FromClient::CloseIn { process } => self.close_input(process),
            FromClient::Ack { offset } => self.journal.iter_mut().for_each(|journal| journal.ack(offset)),
            FromClient::Freeze => self.freeze(),
            FromClient::Thaw => self.thaw(),
            FromClient::Signal { process, signal } => self.signal(process, signal),
            FromClient::End => self.end(false),
            FromClient::Ping => self.say(&FromShim::Pong),
            FromClient::Egress(policy) => {
                self.sandbox.iter().for_each(|sandbox| sandbox.door().set(policy.as_ref()));
            }
        }
    }

    fn follow(&mut self, offset: u64) {
        let held = self.journal.as_ref().is_some_and(|journal| journal.holds(offset));
        if held {
            self.client.iter_mut().for_each(|client| client.follow(offset));
            self.write_client();
        } else {
            self.say(&FromShim::Refused { why: format!("the journal does not hold offset {offset}") });
            self.lose_client();
        }
    }
}

// The life of the sandbox.
impl Shim {
    fn build(&mut self, client: Client, plan: Plan) {
        self.epoch = plan.epoch;
        self.client = Some(client);
        self.phase = Phase::Building;
        self.since = Instant::now();
        match Sandbox::build(&plan) {
            Ok((sandbox, journal)) => {
                self.sandbox = Some(sandbox);
                self.journal = Some(journal);
            }
            Err(e) => self.refuse_build(&e.to_string()),
        }
        self.plan = Some(plan);
    }

    fn refuse_build(&mut self, why: &str) {
        let words = self.sandbox.as_mut().map(Sandbox::last_words).unwrap_or_default();
        let why = if words.is_empty() { why.to_owned() } else { format!("{why}: {words}") };
        self.say(&FromShim::Refused { why });
        self.end(true);
    }

    fn learn_init(&mut self) {
        let learnt = self.sandbox.as_mut().map_or(Ok(()), Sandbox::read_status);
        if let Err(e) = learnt {
            self.refuse_build(&e.to_string());
        }
    }

    fn serve_control(&mut self, revents: i16) {
        if revents & libc::POLLOUT != 0 {
            self.sandbox.iter_mut().for_each(Sandbox::send_orders);
        }
        // Bounded: an init that talks without end must not keep the loop.
        for _ in 0..64 {
            match self.sandbox.as_mut().and_then(Sandbox::hear) {
                Some(report) => self.hear(report),
                None => return,
            }
        }
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Ready => self.ready(),
            Report::Started { process, pid } => self.started(process, pid),
            Report::StartFailed { process, why } => self.start_failed(process, &why),
            Report::Exited { process, code, signal } => self.exited(process, code, signal),
            Report::Stopped { all } => {
                if let Hold::Stopping { .. } = self.hold {
                    self.held(if all { Consistency::Stopped } else { Consistency::Live });
                }
            }
        }
    }

    fn ready(&mut self) {
        if self.phase != Phase::Building {
            return;
        }
        // Bubblewrap has told the number before it let init run, but on another pipe.
        self.learn_init();
        if self.sandbox.as_ref().is_some_and(|sandbox| sandbox.init().is_some()) {
            self.phase = Phase::Up;
            self.say_hello();
        } else {
            self.refuse_build("bubblewrap did not tell the number of the init process");
        }
    }

    fn reap(&mut self) {
        process::forget_signals(&self.children);
        while let Some((pid, status)) = process::reap_one() {
            if self.sandbox.as_mut().is_some_and(|sandbox| sandbox.child_ended(pid)) {
                self.fallen(status);
            }
        }
    }

    /// The walls came down, by themselves or because we asked.
    fn fallen(&mut self, status: i32) {
        let how = self.sandbox.as_mut().map(|sandbox| sandbox.how(status)).unwrap_or_default();
        match self.phase {
            Phase::Building => self.refuse_build(&how),
            Phase::Up => self.gone(&how),
            Phase::Unbuilt | Phase::Gone | Phase::Ending { .. } => {}
        }
    }

    fn gone(&mut self, how: &str) {
        // Reports that init sent before it died are still in the socket.
        self.serve_control(libc::POLLIN);
        for number in self.processes.keys().copied().collect::<Vec<_>>() {
            self.finish_streams(number);
        }
        self.processes.clear();
        self.leftovers.clear();
        let oom = self.oom_grew();
        journal::gone(&mut self.batch, how, oom);
        self.commit();
        self.phase = Phase::Gone;
        self.since = Instant::now();
        self.answer_hold();
        self.let_go(Hold::Lapsed);
        self.sandbox.iter_mut().for_each(Sandbox::kill);
        self.write_client();
    }

    fn end(&mut self, refused: bool) {
        if !matches!(self.phase, Phase::Ending { .. }) {
            self.phase = Phase::Ending { refused };
            self.since = Instant::now();
            self.sandbox.iter_mut().for_each(Sandbox::kill);
        }
    }

    fn commit(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.append(&self.batch, Instant::now());
        }
        self.batch.clear();
        self.batch.shrink_to(1 << 20);
    }

    fn oom_grew(&mut self) -> bool {
        let count = self.sandbox.as_ref().map_or(0, Sandbox::oom_kills);
        std::mem::replace(&mut self.oom_seen, count) < count
    }
}

// Processes.
impl Shim {
    fn start(&mut self, start: &Start) {
        let started = if self.phase != Phase::Up {
            Err(io::Error::other("the sandbox is gone"))
        } else if self.processes.contains_key(&start.process) {
            // Answering would look like the failure of the one that runs.
            return;
        } else {
            self.try_start(start)
        };
        if let Err(e) = started {
            journal::start_failed(&mut self.batch, start.process, &e.to_string());
            self.commit();
        }
    }

    fn try_start(&mut self, start: &Start) -> io::Result<()> {
        let (process, theirs) = stdio::pipes(start.raw, start.stdin)?;
        let what = crate::control::seal(start)?;
        let sandbox = self.sandbox.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let [stdin, stdout, stderr] = theirs;
        sandbox.order(Order::Start, vec![what, stdin, stdout, stderr]);
        self.processes.insert(start.process, process);
        Ok(())
    }

    // Init is not believed: a number we did not give out, or that has been answered, is ignored.
    fn started(&mut self, number: u16, pid: u32) {
        if let Some(process) = self.processes.get_mut(&number).filter(|process| !process.started) {
            process.started = true;
            journal::started(&mut self.batch, number, pid);
            self.commit();
        }
    }

    fn start_failed(&mut self, number: u16, why: &str) {
        if self.processes.get(&number).is_some_and(|process| !process.started) {
            self.processes.remove(&number);
            journal::start_failed(&mut self.batch, number, why);
            self.commit();
        }
    }

    fn signal(&mut self, number: u16, signal: i32) {
        if let (Some(process), Some(sandbox)) = (self.processes.get_mut(&number), &mut self.sandbox) {
            process.killed |= signal == libc::SIGKILL;
            sandbox.order(Order::Signal { process: number, signal }, Vec::new());
        }
    }

    fn take_input(&mut self, process: u16, number: u64, bytes: &[u8]) {
        if number <= self.last_in {
            return;
        }
        self.last_in = number;
        // A process that is gone reads nothing; the number still counts as taken.
        let Some(input) = self.processes.get_mut(&process).and_then(|p| p.input.as_mut()) else { return };
        if input.waiting() + bytes.len() > MOST_INPUT {
            self.say(&FromShim::Refused { why: format!("process {process} does not read its input") });
            return self.lose_client();
        }
        input.push(bytes);
        self.write_input(process);
    }

    fn close_input(&mut self, process: u16) {
        if let Some(input) = self.processes.get_mut(&process).and_then(|p| p.input.as_mut()) {
            input.close();
            self.write_input(process);
        }
    }

    fn write_input(&mut self, process: u16) {
        let Some(process) = self.processes.get_mut(&process) else { return };
        if process.input.as_mut().is_some_and(|input| !input.write()) {
            process.input = None;
        }
    }

    fn read_stream(&mut self, number: u16, which: fn(&mut Process) -> &mut Option<Stream>) {
        let longest = self.plan.as_ref().map_or(usize::MAX, |plan| plan.caps.line_bytes);
        let Some(process) = self.processes.get_mut(&number) else { return };
        let Some(stream) = which(process).as_mut() else { return };
        match stream.read(number, &mut self.buffer, &mut self.batch, longest) {
            Read::Some | Read::Nothing => {}
            Read::End => {
                stream.finish(number, &mut self.batch);
                *which(process) = None;
            }
            Read::TooLong => self.signal(number, libc::SIGKILL),
        }
        self.commit();
        self.write_client();
    }

    fn exited(&mut self, number: u16, code: Option<i32>, signal: Option<i32>) {
        if !self.processes.contains_key(&number) {
            return;
        }
        self.finish_streams(number);
        let grew = self.oom_grew();
        let killed = self.processes.remove(&number).is_some_and(|process| process.killed);
        let oom = grew && signal == Some(libc::SIGKILL) && !killed;
        journal::exit(&mut self.batch, number, Exit { code, signal, oom });
        self.commit();
        self.write_client();
    }

    /// Reads what an ended process left in its pipes. Whoever still holds their other end is not it.
    fn finish_streams(&mut self, number: u16) {
        let longest = self.plan.as_ref().map_or(usize::MAX, |plan| plan.caps.line_bytes);
        let Some(process) = self.processes.get_mut(&number) else { return };
        for mut stream in [process.out.take(), process.err.take()].into_iter().flatten() {
            let mut read = Read::Some;
            // Not held back by the cap: a pipe is small, and the exit must come after its output.
            for _ in 0..PIPE_MOST / READ_SIZE {
                read = stream.read(number, &mut self.buffer, &mut self.batch, longest);
                if read != Read::Some {
                    break;
                }
            }
            stream.finish(number, &mut self.batch);
            if read != Read::End {
                self.leftovers.push(stream.fd);
            }
        }
        self.commit();
    }

    fn discard(&mut self, n: usize) {
        let Some(leftover) = self.leftovers.get(n) else { return };
        match rustix::io::read(leftover, &mut self.buffer[..]) {
            Ok(0) => drop(self.leftovers.remove(n)),
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => drop(self.leftovers.remove(n)),
        }
    }
}

// Holding still.
impl Shim {
    fn freeze(&mut self) {
        self.answer_hold();
        self.let_go(Hold::None);
        let deadline = Instant::now() + FREEZE_PATIENCE;
        let Some(sandbox) = self.sandbox.as_mut().filter(|_| self.phase == Phase::Up) else {
            // Nothing runs, so nothing can write.
            return self.held(Consistency::Frozen);
        };
        if sandbox.freeze() {
            self.hold = Hold::Freezing { deadline };
            self.hold_timers(Instant::now());
        } else if sandbox.has_own_pids() {
            sandbox.order(Order::StopAll, Vec::new());
            self.hold = Hold::Stopping { deadline: deadline + SOON };
        } else {
            self.held(Consistency::Live);
        }
    }

    fn held(&mut self, consistency: Consistency) {
        let longest =
            self.plan.as_ref().map_or(Duration::ZERO, |plan| Duration::from_millis(plan.caps.hold_ms));
        self.hold = Hold::Held { consistency, until: Instant::now() + longest };
        self.say(&FromShim::Frozen(consistency));
    }

    /// Every question gets its answer before the next one's: the client matches them by their order.
    fn answer_hold(&mut self) {
        if matches!(self.hold, Hold::Freezing { .. } | Hold::Stopping { .. }) {
            self.held(Consistency::Live);
        }
    }

    fn thaw(&mut self) {
        self.answer_hold();
        let held = matches!(self.hold, Hold::Held { .. });
        self.let_go(Hold::None);
        self.say(&FromShim::Thawed { held });
    }

    fn let_go(&mut self, then: Hold) {
        let moving = matches!(self.hold, Hold::None | Hold::Lapsed);
        if let Some(sandbox) = &mut self.sandbox
            && !moving
        {
            sandbox.thaw();
            if sandbox.has_own_pids() && !sandbox.can_freeze() {
                sandbox.order(Order::ContinueAll, Vec::new());
            }
        }
        self.hold = then;
    }
}
