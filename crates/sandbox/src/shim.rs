//! `ash shim`: one small process per sandbox. It starts the walls, holds every pipe, journals what comes out
//! and passes on what goes in, and understands none of it. It outlives the server, so it must need nothing
//! from it; it has one thread and one loop, so that it can neither block nor grow. Only a sandbox that calls a
//! model gets a second thread, which carries those calls and nothing else.

mod client;
mod clients;
mod docker;
mod flow;
mod hold;
mod life;
mod memory;
mod ooms;
mod processes;
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
    flow::Flow,
    memory::Watchdog,
    ooms::Ooms,
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
/// As long as a server waits for us it is not kept longer than that; on our own we see to it that nothing is left.
const LONE_PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AROUND: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(2);
const MOST_PAUSE: Duration = Duration::from_millis(100);
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
    /// The number of the last input of each process.
    last_ins: BTreeMap<u16, u64>,
    hold: Hold,
    ooms: Ooms,
    flow: Flow,
    watchdog: Option<Watchdog>,
    buffer: Vec<u8>,
    batch: Vec<u8>,
}

fn begin() -> io::Result<Shim> {
    // Fails only for a group leader, which a spawned process is not; started by hand it is harmless.
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
        last_ins: BTreeMap::new(),
        hold: Hold::None,
        ooms: Ooms::default(),
        flow: Flow::new(None, now),
        watchdog: None,
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
            sandbox.watched().into_iter().for_each(|fd| want(fd, libc::POLLIN, Source::Init));
            for (process, listener) in sandbox.doors().waiting() {
                want(listener, libc::POLLIN, Source::Door(process));
            }
            want(sandbox.doors().bell(), libc::POLLIN, Source::Usage);
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
        // What nobody hears takes our time all the same.
        let open = self.flow.shut_until().is_none();
        for (n, leftover) in self.leftovers.iter().enumerate().filter(|_| open) {
            want(leftover, libc::POLLIN, Source::Leftover(n));
        }
        (fds, sources)
    }

    /// Back-pressure: what is not read stays in the pipe, and a full pipe stops its writer.
    fn listening(&self) -> bool {
        let cap = self.plan.as_ref().map_or(u64::MAX, |plan| plan.caps.unacked_bytes);
        let keeps_up = |journal: &Journal| !journal.stuck() && journal.unacked() <= cap;
        self.flow.shut_until().is_none() && self.journal.as_ref().is_some_and(keeps_up)
    }

    fn serve(&mut self, source: Source, revents: i16) {
        match source {
            Source::Listener => self.accept(),
            Source::Children => self.reap(),
            Source::Control => self.serve_control(revents),
            Source::Status => self.learn_init(),
            Source::Complaints => self.sandbox.iter_mut().for_each(Sandbox::read_complaints),
            Source::Init => self.init_ended(),
            Source::Door(process) => {
                self.sandbox.iter_mut().for_each(|sandbox| sandbox.doors_mut().open(process));
            }
            Source::Usage => {
                self.sandbox.iter().for_each(|sandbox| sandbox.doors().silence());
                self.commit();
                self.write_client();
            }
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
                // Hundreds may end at the same time: who takes long looks less often.
                let ending = now.saturating_duration_since(self.since);
                by(now + (ending / 16).clamp(2 * SOON, MOST_PAUSE));
            }
            Phase::Up | Phase::Gone | Phase::Ending { .. } => {}
        }
        match self.hold {
            Hold::Freezing { .. } => by(now + SOON),
            Hold::Stopping { deadline } | Hold::Held { until: deadline, .. } => by(deadline),
            Hold::None | Hold::Lapsed => {}
        }
        self.journal.iter().filter_map(Journal::retry_at).for_each(&mut by);
        self.flow.shut_until().into_iter().for_each(&mut by);
        self.watchdog.iter().filter(|_| self.phase == Phase::Up).for_each(|dog| by(dog.due()));
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
        let over = self.client.is_some() || now >= self.since + LONE_PATIENCE;
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.sweep(overdue, overdue && over);
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
