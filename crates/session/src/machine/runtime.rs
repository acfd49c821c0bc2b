//! What an actor knows of its session beside the log. It is lost when the server dies; recovery never needs it.

use super::{AgentInputDeadline, CaptureOccasion, CaptureSchedule, SessionClosing, StateCommand};
use ash_model::{Durability, EventSeq, LimitReached, LiveSetting, TurnId};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// A caller that waits for an answer. Only the actor knows which caller that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeState {
    pub profile: SessionProfile,
    pub sandbox: SandboxConnection,
    /// Long work beside the actor, one at a time.
    pub effect: Option<Effect>,
    pub closing: Option<SessionClosing>,
    pub waiting: Waiting,
    pub tree: TreeView,
    pub capture: CaptureSchedule,
    pub agent: AgentActivity,
    pub limits: LimitClock,
    pub idle: IdleClock,
    /// A turn that is saved on this machine and waits for the object store.
    pub remote_wait: Option<RemoteWait>,
    /// When records are written again that could not be written for want of space.
    pub write_retry: Option<Instant>,
    /// The time of the last request. After a while without one the actor ends.
    pub last_request: Instant,
    /// The actor takes no more requests and ends.
    pub retired: bool,
}

/// What the session's options and the server's settings say about its lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionProfile {
    /// Its files are never captured.
    pub ephemeral: bool,
    /// Other sessions may work in its workspace.
    pub shared: bool,
    /// The key for the model service is a client key, which is kept in memory alone.
    pub client_key: bool,
    /// How long it may be idle before its sandbox ends. None: no limit.
    pub idle_timeout: Option<Duration>,
    /// How long background work may hold a turn that has its answer.
    pub max_background_wait: Duration,
    /// How long a turn runs before a midway capture. None: there are no midway captures.
    pub checkpoint_every: Option<Duration>,
    /// How long an agent may take to stop a turn before its process is killed.
    pub interrupt_grace: Duration,
    /// The durability of turns whose message sets none.
    pub durability: Durability,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxConnection {
    Absent,
    Connected,
    /// It is ended as soon as nothing else is under way.
    Departing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Start {
        /// The last change of options that the start knows of.
        options_seen: EventSeq,
    },
    Capture(CaptureUnderWay),
    EndSandbox,
    /// A tree without a sandbox.
    MakeTree,
    /// The tree of another checkpoint, beside the one in use.
    PrepareRewind,
    /// A capture of a tree that cannot be trusted.
    Salvage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureUnderWay {
    pub occasion: CaptureOccasion,
    pub began: Instant,
    /// The capture is skipped if the disk shows no change since the last one.
    pub may_skip: bool,
}

/// Waiting callers, by what they wait for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Waiting {
    /// For the files to be safe, then for the pause.
    pub pausing: Vec<WaiterId>,
    /// For the agent to answer.
    pub resuming: Vec<WaiterId>,
    /// For the files to be safe, then for what a fork begins with.
    pub forking: Vec<WaiterId>,
    /// For a tree that they may write to.
    pub writing: Vec<WaiterId>,
    pub rewinding: VecDeque<PendingRewind>,
    pub changes: VecDeque<PendingChange>,
    /// Commands that arrived while the session let go of its sandbox.
    pub deferred: Vec<(WaiterId, StateCommand)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PendingRewind {
    pub waiter: WaiterId,
    pub command: StateCommand,
    /// The tree of the checkpoint is written, and not in place yet.
    pub prepared: bool,
}

/// A change of options. It counts when the live agent has agreed to each setting that it can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingChange {
    pub waiter: WaiterId,
    /// The settings that the agent has not agreed to yet.
    pub settings: VecDeque<LiveSetting>,
    /// When and under which number the agent was told the first of them.
    pub told: Option<AgentInputDeadline>,
}

/// What is known of the tree on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeView {
    /// The tree on disk is the newest one.
    pub present: bool,
    /// What the disk showed since the last step. None: not inspected.
    pub seen: Option<TreeInspection>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeInspection {
    /// It was removed or replaced from outside.
    pub broken: bool,
    /// There are files that no checkpoint holds and that are not the tree in use.
    pub leftovers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentActivity {
    /// The agent started work by itself that has no turn yet.
    pub self_started: bool,
    /// When the last self-started turn began.
    pub last_self_start: Option<Instant>,
    /// Since when the turn waits for background work alone.
    pub background_wait_since: Option<Instant>,
    /// When an agent that was asked to stop its turn is killed instead.
    pub interrupt_deadline: Option<Instant>,
    /// Commands of callers run in the sandbox.
    pub commands_running: bool,
    /// Another tenant has a claim to the sandbox's slot: it is given up before the next turn.
    pub yields: bool,
}

/// A turn in one of its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnAttempt {
    pub turn: TurnId,
    pub attempt: u32,
}

/// When those limits are checked that the sandbox does not enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitClock {
    /// The running turn, and since when it runs.
    pub running: Option<(TurnAttempt, Instant)>,
    pub bounds: TurnTimeLimit,
    pub next_disk_check: Instant,
    /// The files exceed their limit, for which the sandbox is ended.
    pub full: Option<LimitReached>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnTimeLimit {
    /// The limits in force have to be read first.
    Unknown,
    None,
    Seconds(u64),
}

/// Since when the session is unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleClock {
    pub since: Instant,
    pub warned: bool,
}

impl IdleClock {
    pub fn starting(now: Instant) -> IdleClock {
        IdleClock { since: now, warned: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteWait {
    pub turn: TurnId,
    pub checkpoint: u64,
}

impl RuntimeState {
    pub fn new(profile: SessionProfile, now: Instant) -> RuntimeState {
        RuntimeState {
            profile,
            sandbox: SandboxConnection::Absent,
            effect: None,
            closing: None,
            waiting: Waiting::default(),
            tree: TreeView::default(),
            capture: CaptureSchedule::starting(now),
            agent: AgentActivity::default(),
            limits: LimitClock {
                running: None,
                bounds: TurnTimeLimit::Unknown,
                next_disk_check: now,
                full: None,
            },
            idle: IdleClock::starting(now),
            remote_wait: None,
            write_retry: None,
            last_request: now,
            retired: false,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.sandbox == SandboxConnection::Connected
    }

    pub fn is_shutting_down(&self) -> bool {
        self.closing.as_ref().is_some_and(SessionClosing::is_shutdown)
    }

    /// A new sandbox: nothing is known of it.
    pub fn connect(&mut self, next_disk_check: Instant) {
        self.sandbox = SandboxConnection::Connected;
        self.limits.next_disk_check = next_disk_check;
        self.limits.full = None;
    }

    /// There may be changes that no checkpoint holds.
    pub fn touch(&mut self, now: Instant) {
        if !self.profile.ephemeral {
            self.capture.touch(now);
        }
    }

    /// The agent may have written files when it started. Their capture can wait: usually a turn follows, which is
    /// captured anyway, and otherwise many new sessions would each pay for a capture of their own.
    pub fn touch_later(&mut self, now: Instant) {
        if !self.profile.ephemeral {
            self.capture.touch_later(now);
        }
    }
}

impl Waiting {
    /// Whether no caller waits for the session.
    pub fn is_empty(&self) -> bool {
        self.pausing.is_empty()
            && self.resuming.is_empty()
            && self.forking.is_empty()
            && self.writing.is_empty()
            && self.rewinding.is_empty()
            && self.changes.is_empty()
            && self.deferred.is_empty()
    }
}
