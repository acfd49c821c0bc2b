//! What an actor knows of its session and the log does not say. It dies with the server; recovery never needs it.

use super::{AgentInputDeadline, CaptureOccasion, CaptureSchedule, SessionClosing, StateCommand};
use ash_model::{Durability, EventSeq, LimitReached, LiveSetting, TurnId};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// A caller who waits for an answer. Who that is, the actor knows.
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
    /// A turn that is saved here and waits until the object store has it too.
    pub remote_wait: Option<RemoteWait>,
    /// What the sandbox said could not be written for want of space; it is tried again at this time.
    pub write_retry: Option<Instant>,
    /// When a caller last asked for something. After a while without one the actor goes.
    pub last_request: Instant,
    /// The actor takes no more requests and goes.
    pub retired: bool,
}

/// What the session's options and the server's settings say about its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionProfile {
    /// Its files are never captured.
    pub ephemeral: bool,
    /// Other sessions may work in its workspace.
    pub shared: bool,
    /// Its client brought the key for the model service, which is kept in memory alone.
    pub client_key: bool,
    /// How long it may be idle before its sandbox goes. None: for ever.
    pub idle_timeout: Option<Duration>,
    /// How long work in the background holds a turn whose answer is there.
    pub max_background_wait: Duration,
    /// How long a turn runs before it is captured on its way. None: it never is.
    pub checkpoint_every: Option<Duration>,
    /// How long an agent may take to give up a turn before its process is ended.
    pub interrupt_grace: Duration,
    /// When a turn is done whose message says nothing else.
    pub durability: Durability,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxConnection {
    Absent,
    Connected,
    /// It is to be ended as soon as nothing else is under way.
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
    /// It is left out if the disk says that nothing was touched since the last one.
    pub may_skip: bool,
}

/// Callers who wait, by what they wait for.
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
    /// Commands that came while the session let go of its sandbox.
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
    /// What the agent has not agreed to yet.
    pub settings: VecDeque<LiveSetting>,
    /// When and under which number the agent was told the first of them.
    pub told: Option<AgentInputDeadline>,
}

/// What is known of the tree on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeView {
    /// The tree is the newest there is.
    pub present: bool,
    /// What a look at the disk has shown since the last step. None: nobody has looked.
    pub seen: Option<TreeInspection>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeInspection {
    /// It was removed or replaced from outside.
    pub broken: bool,
    /// Something is there that no checkpoint holds and that is not the tree in use.
    pub leftovers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentActivity {
    /// The agent began something by itself that has no turn yet.
    pub self_started: bool,
    /// When the last turn of that kind began.
    pub last_self_start: Option<Instant>,
    /// Since when the turn waits for work in the background alone.
    pub background_wait_since: Option<Instant>,
    /// When an agent that was asked to stop its turn is ended instead.
    pub interrupt_deadline: Option<Instant>,
    /// Commands of callers run in the sandbox.
    pub commands_running: bool,
}

/// A turn in one of its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnAttempt {
    pub turn: TurnId,
    pub attempt: u32,
}

/// When limits are looked at that no wall of the sandbox enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitClock {
    /// The turn that runs, and since when.
    pub running: Option<(TurnAttempt, Instant)>,
    pub bounds: TurnTimeLimit,
    pub next_disk_check: Instant,
    /// The files take too much, for which the sandbox is ended.
    pub full: Option<LimitReached>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnTimeLimit {
    /// The limits in force have to be read first.
    Unknown,
    None,
    Seconds(u64),
}

/// Since when nobody has used the session.
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

    /// Something may have changed that no checkpoint holds.
    pub fn touch(&mut self, now: Instant) {
        if !self.profile.ephemeral {
            self.capture.touch(now);
        }
    }

    /// The agent may have written something when it started, which can wait: mostly a turn comes first, which is captured
    /// anyway, and many sessions that were made at once would each pay for a capture of their own.
    pub fn touch_later(&mut self, now: Instant) {
        if !self.profile.ephemeral {
            self.capture.touch_later(now);
        }
    }
}

impl Waiting {
    /// Whether anybody waits for anything that the session has to do first.
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
