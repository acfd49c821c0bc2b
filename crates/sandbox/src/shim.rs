//! `ash shim`: one small process per sandbox. It starts the sandbox, holds every pipe, journals all output and passes
//! input on, without parsing either. It outlives the server, so it must not depend on it. It has one thread and one
//! loop, so that it can neither block nor grow. Only a sandbox that calls a model gets a second thread, which carries
//! those calls and nothing else.

mod client;
mod clients;
mod container;
mod freeze;
mod launch;
mod lifecycle;
mod memory_watchdog;
mod oom_kills;
mod output_throttle;
mod processes;
mod sandbox;
mod stdio;

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use ash_model::{CaptureConsistency, Epoch};

use self::{
    client::{ClientDisconnected, ShimClient},
    memory_watchdog::MemoryWatchdog,
    oom_kills::OomKillCounter,
    output_throttle::OutputThrottle,
    sandbox::ShimSandbox,
    stdio::{OutputStream, PipeReadOutcome, ProcessPipes, READ_SIZE},
};
use crate::{
    frame::{ClientFrame, ProcessSpec, ShimFrame, ShimHello, ShimPlan, VERSION},
    init_protocol::{InitCommand, InitReport},
    journal::{self, Journal, ProcessExit},
    process,
};

/// For a server that started the shim and died before it sent a plan.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);
const BUILD_TIMEOUT: Duration = Duration::from_secs(20);
const FREEZE_TIMEOUT: Duration = Duration::from_secs(2);
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// With a server connected, the shim gives up after END_TIMEOUT, so that the server does not wait longer. Without one,
/// it tries for this long to leave nothing behind.
const LONE_END_TIMEOUT: Duration = Duration::from_secs(60);
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(2);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Connections that have not sent a valid first frame.
const MAX_UNIDENTIFIED_CLIENTS: usize = 8;
/// Input that no process reads. A client that sends more is faulty.
const MAX_QUEUED_INPUT_BYTES: usize = 256 << 20;
/// The most that a pipe holds, and so that an exited process can have left.
const MAX_PIPE_BYTES: usize = 1 << 20;

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
enum ShimPhase {
    Unbuilt,
    Building,
    Up,
    /// Nothing runs any more; the shim still serves the journal.
    Gone,
    /// The sandbox is ending: the shim exits as soon as nothing runs.
    Ending {
        refused: bool,
    },
}

/// How the sandbox is held frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FreezeState {
    None,
    Freezing {
        deadline: Instant,
    },
    /// Init got the command to stop everything.
    Stopping {
        deadline: Instant,
    },
    Held {
        consistency: CaptureConsistency,
        until: Instant,
    },
    /// Thawed before the client asked for it.
    Lapsed,
}

#[derive(Debug, Clone, Copy)]
enum PollSource {
    Listener,
    Children,
    Control,
    Status,
    Complaints,
    Init,
    Door(u16),
    Usage,
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
    phase: ShimPhase,
    since: Instant,
    plan: Option<ShimPlan>,
    sandbox: Option<ShimSandbox>,
    journal: Option<Journal>,
    processes: BTreeMap<u16, ProcessPipes>,
    /// Pipes that exited processes left to their children. The shim reads and discards their output, or the children
    /// would block.
    leftovers: Vec<OwnedFd>,
    unidentified: Vec<ShimClient>,
    client: Option<ShimClient>,
    /// When the last client disconnected, or the shim started.
    client_lost_at: Instant,
    looked: Instant,
    epoch: Epoch,
    /// The number of the last input of each process.
    last_ins: BTreeMap<u16, u64>,
    hold: FreezeState,
    ooms: OomKillCounter,
    flow: OutputThrottle,
    watchdog: Option<MemoryWatchdog>,
    buffer: Vec<u8>,
    batch: Vec<u8>,
}

fn begin() -> io::Result<Shim> {
    // Fails only for a group leader. A spawned process is none, and for a shim started by hand the failure is harmless.
    let _ = rustix::process::setsid();
    process::ignore(libc::SIGHUP);
    process::ignore(libc::SIGPIPE);
    process::keep_memory_private()?;
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
        phase: ShimPhase::Unbuilt,
        since: now,
        plan: None,
        sandbox: None,
        journal: None,
        processes: BTreeMap::new(),
        leftovers: Vec::new(),
        unidentified: Vec::new(),
        client: None,
        client_lost_at: now,
        looked: now,
        epoch: Epoch(0),
        last_ins: BTreeMap::new(),
        hold: FreezeState::None,
        ooms: OomKillCounter::default(),
        flow: OutputThrottle::new(None, now),
        watchdog: None,
        buffer: vec![0; READ_SIZE],
        batch: Vec::new(),
    })
}

// The poll loop.
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
            if let Some(code) = self.exit_code() {
                return Ok(code);
            }
        }
    }

    fn interests(&self) -> (Vec<libc::pollfd>, Vec<PollSource>) {
        let (mut fds, mut sources) = (Vec::new(), Vec::new());
        let mut want = |fd: &dyn AsRawFd, events: i16, source: PollSource| {
            fds.push(process::wants(&fd.as_raw_fd(), events));
            sources.push(source);
        };
        want(&self.listener, libc::POLLIN, PollSource::Listener);
        want(&self.children, libc::POLLIN, PollSource::Children);
        if let Some(sandbox) = &self.sandbox {
            let events = libc::POLLIN | if sandbox.has_orders() { libc::POLLOUT } else { 0 };
            sandbox.control().into_iter().for_each(|fd| want(fd, events, PollSource::Control));
            sandbox.status().into_iter().for_each(|fd| want(fd, libc::POLLIN, PollSource::Status));
            sandbox.complaints().into_iter().for_each(|fd| want(fd, libc::POLLIN, PollSource::Complaints));
            sandbox.watched().into_iter().for_each(|fd| want(fd, libc::POLLIN, PollSource::Init));
            for (process, listener) in sandbox.doors().waiting() {
                want(listener, libc::POLLIN, PollSource::Door(process));
            }
            want(sandbox.doors().bell(), libc::POLLIN, PollSource::Usage);
        }
        for (n, stranger) in self.unidentified.iter().enumerate() {
            want(&stranger.socket, libc::POLLIN, PollSource::Stranger(n));
        }
        if let Some(client) = &self.client {
            let end = self.journal.as_ref().map_or(0, Journal::end);
            let events = libc::POLLIN | if client.wants_to_write(end) { libc::POLLOUT } else { 0 };
            want(&client.socket, events, PollSource::Client);
        }
        let listening = self.listening();
        for (number, process) in &self.processes {
            for (stream, source) in
                [(&process.out, PollSource::Out(*number)), (&process.err, PollSource::Err(*number))]
            {
                // Left out of the set instead of polled for no events: poll always reports a hang-up.
                stream
                    .iter()
                    .filter(|_| listening && process.started)
                    .for_each(|s| want(&s.fd, libc::POLLIN, source));
            }
            let input = process.input.iter().filter(|input| input.waiting() > 0);
            input.for_each(|input| want(&input.fd, libc::POLLOUT, PollSource::In(*number)));
        }
        // The shim discards this output, but reading it still takes time, so the throttle applies to it too.
        let open = self.flow.throttled_until().is_none();
        for (n, leftover) in self.leftovers.iter().enumerate().filter(|_| open) {
            want(leftover, libc::POLLIN, PollSource::Leftover(n));
        }
        (fds, sources)
    }

    /// Back-pressure: output that is not read stays in the pipe, and a full pipe stops its writer.
    fn listening(&self) -> bool {
        let cap = self.plan.as_ref().map_or(u64::MAX, |plan| plan.caps.unacked_bytes);
        let keeps_up = |journal: &Journal| !journal.stuck() && journal.unacked() <= cap;
        self.flow.throttled_until().is_none() && self.journal.as_ref().is_some_and(keeps_up)
    }

    fn serve(&mut self, source: PollSource, revents: i16) {
        match source {
            PollSource::Listener => self.accept(),
            PollSource::Children => self.reap(),
            PollSource::Control => self.serve_control(revents),
            PollSource::Status => self.learn_init(),
            PollSource::Complaints => self.sandbox.iter_mut().for_each(ShimSandbox::read_complaints),
            PollSource::Init => self.init_ended(),
            PollSource::Door(process) => {
                self.sandbox.iter_mut().for_each(|sandbox| sandbox.doors_mut().start_proxy(process));
            }
            PollSource::Usage => {
                self.sandbox.iter().for_each(|sandbox| sandbox.doors().drain_bell());
                self.commit();
                self.write_client();
            }
            PollSource::Stranger(n) => self.hear_stranger(n),
            PollSource::Client => self.serve_client(revents),
            PollSource::Out(number) => self.read_stream(number, |process| &mut process.out),
            PollSource::Err(number) => self.read_stream(number, |process| &mut process.err),
            PollSource::In(number) => self.write_input(number),
            PollSource::Leftover(n) => self.discard(n),
        }
    }

    fn exit_code(&self) -> Option<i32> {
        let empty = self.sandbox.as_ref().is_none_or(ShimSandbox::is_empty);
        match self.phase {
            ShimPhase::Unbuilt | ShimPhase::Building | ShimPhase::Up => None,
            ShimPhase::Gone => (empty && self.journal.as_ref().is_none_or(Journal::settled)).then_some(0),
            ShimPhase::Ending { refused } => empty.then_some(i32::from(refused)),
        }
    }
}

// Timers.
impl Shim {
    fn until_next_timer(&self) -> Option<Duration> {
        let mut next = self.client.is_none().then(|| self.looked + ORPHAN_CHECK_INTERVAL);
        let mut by = |time: Instant| next = Some(next.map_or(time, |earlier| earlier.min(time)));
        let now = Instant::now();
        match self.phase {
            ShimPhase::Unbuilt => by(self.since + PLAN_TIMEOUT),
            ShimPhase::Building => by(self.since + BUILD_TIMEOUT),
            ShimPhase::Gone | ShimPhase::Ending { .. }
                if self.sandbox.as_ref().is_some_and(|s| !s.is_empty()) =>
            {
                // Hundreds of sandboxes may end at the same time, so a shim whose sandbox ends slowly checks less
                // often.
                let ending = now.saturating_duration_since(self.since);
                by(now + (ending / 16).clamp(2 * MIN_POLL_INTERVAL, MAX_POLL_INTERVAL));
            }
            ShimPhase::Up | ShimPhase::Gone | ShimPhase::Ending { .. } => {}
        }
        match self.hold {
            FreezeState::Freezing { .. } => by(now + MIN_POLL_INTERVAL),
            FreezeState::Stopping { deadline } | FreezeState::Held { until: deadline, .. } => by(deadline),
            FreezeState::None | FreezeState::Lapsed => {}
        }
        self.journal.iter().filter_map(Journal::retry_at).for_each(&mut by);
        self.flow.throttled_until().into_iter().for_each(&mut by);
        self.watchdog.iter().filter(|_| self.phase == ShimPhase::Up).for_each(|dog| by(dog.due()));
        next.map(|time| time.saturating_duration_since(now))
    }

    fn timers(&mut self) {
        let now = Instant::now();
        if let Some(journal) = &mut self.journal
            && journal.retry_at().is_some_and(|at| now >= at)
        {
            journal.retry(now);
        }
        self.flow.refill(now);
        self.watch_memory(now);
        match self.phase {
            ShimPhase::Unbuilt if now >= self.since + PLAN_TIMEOUT => self.end(true),
            ShimPhase::Building if now >= self.since + BUILD_TIMEOUT => {
                self.refuse_build("the sandbox did not answer within 20 s");
            }
            ShimPhase::Gone | ShimPhase::Ending { .. } => self.sweep(now),
            ShimPhase::Unbuilt | ShimPhase::Building | ShimPhase::Up => {}
        }
        self.hold_timers(now);
        if self.client.is_none() && now >= self.looked + ORPHAN_CHECK_INTERVAL {
            self.looked = now;
            self.check_orphaned(now);
        }
    }

    /// Without a server: ends the sandbox if none has come for too long, or if the run directory is gone.
    fn check_orphaned(&mut self, now: Instant) {
        let Some(plan) = &self.plan else { return };
        let forgotten = now >= self.client_lost_at + Duration::from_millis(plan.orphan_ttl_ms);
        let homeless =
            self.sandbox.as_ref().is_some_and(|sandbox| sandbox.is_run_dir_replaced(&plan.run_dir));
        if forgotten || homeless {
            self.end(false);
        }
    }

    fn sweep(&mut self, now: Instant) {
        let overdue = now >= self.since + END_TIMEOUT;
        let over = self.client.is_some() || now >= self.since + LONE_END_TIMEOUT;
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.sweep(overdue, overdue && over);
        }
    }

    fn hold_timers(&mut self, now: Instant) {
        match self.hold {
            FreezeState::Freezing { deadline } => {
                if self.sandbox.as_ref().is_some_and(ShimSandbox::is_frozen) {
                    self.set_held(CaptureConsistency::Frozen);
                } else if now >= deadline {
                    self.set_held(CaptureConsistency::Live);
                }
            }
            FreezeState::Stopping { deadline } if now >= deadline => self.set_held(CaptureConsistency::Live),
            FreezeState::Held { until, .. } if now >= until => self.release_hold(FreezeState::Lapsed),
            FreezeState::None
            | FreezeState::Stopping { .. }
            | FreezeState::Held { .. }
            | FreezeState::Lapsed => {}
        }
    }
}
