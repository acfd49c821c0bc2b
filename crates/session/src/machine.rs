//! A session as a pure machine. Start reading here.
//!
//! `LogState` is a fold over the event log: `decide` answers a command with facts or a refusal, `apply` folds a fact
//! in, and `recover` says what follows from the death of the session's last actor. `RuntimeState` is what an actor
//! knows beside the log; it is lost when the server dies. `plan` reads both and the time, and says what to do now. It
//! is level-triggered: after a crash there is no list of effects, only a state.
//!
//! Nothing here waits, reads or writes. The actor executes the steps; the tests in `tests/machine` do the same without
//! a sandbox, a disk or a clock.

mod activity;
mod apply;
mod budget;
mod capture;
mod client_tool;
mod closing;
mod command;
mod commit;
mod death;
mod decide;
mod lock;
mod log_state;
mod log_step;
mod options_change;
mod permission;
mod plan;
mod reception;
mod rewind;
mod runtime;
mod steering;
mod usage_meter;

pub use activity::Evictability;
pub use budget::{RemainingBudget, SessionBudget};
pub use capture::{CHANGE_SETTLE_TIME, CaptureBackoff, CaptureOccasion, CaptureRecord, CaptureSchedule};
pub use client_tool::ClientToolCall;
pub use closing::{
    Admittance, ClosingConclusion, ClosingOutcome, ClosingReason, ClosingRefusal, OvertakenClosing,
    SessionClosing,
};
pub use command::{CommandRefusal, StateCommand, WakePolicy};
pub use commit::PreparedCommit;
pub use death::SandboxLiveness;
pub use lock::{LockRefusal, LockRequest};
pub use log_state::{AwakeAgent, LogState, Turn, TurnPhase, plain_text};
pub use log_step::LogStep;
pub use options_change::{AgentInputDeadline, ChangeFailure, SettingOutcome};
pub use permission::PendingPermission;
pub use plan::{NextStep, next_deadline, plan};
pub use reception::{Reception, ResumerAnswer};
pub use runtime::{
    AgentActivity, CaptureUnderWay, Effect, IdleClock, LimitClock, PendingChange, PendingRewind, RemoteWait,
    RuntimeState, SandboxConnection, SessionProfile, TreeInspection, TreeView, TurnAttempt, TurnTimeLimit,
    WaiterId, Waiting,
};
pub use usage_meter::{UsageContext, UsageMeter};

use ash_model::{EventSeq, Fact, Incarnation, LimitReached, Timestamp};
use log_state::asked_to_stop;
use std::time::{Duration, Instant};

/// How often the disk is checked while a turn or a command runs.
const DISK_CHECK_INTERVAL_BUSY: Duration = Duration::from_secs(1);

/// The time by the monotonic clock and by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub instant: Instant,
    pub wall: Timestamp,
}

/// The whole known state of a session, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub log: LogState,
    pub runtime: RuntimeState,
}

impl Machine {
    pub fn new(log: LogState, profile: SessionProfile, now: Instant) -> Machine {
        Machine { log, runtime: RuntimeState::new(profile, now) }
    }

    pub fn plan(&self, now: Now) -> NextStep {
        plan(&self.log, &self.runtime, now)
    }

    pub fn next_deadline(&self, now: Now) -> Option<Instant> {
        next_deadline(&self.log, &self.runtime, now)
    }

    /// Notes the time and whether the session is in use. Called before every plan.
    pub fn observe(&mut self, now: Instant) {
        self.note_use(now);
        let attempt = self.running_attempt();
        let busy = self.is_watched_at_work();
        let limits = &mut self.runtime.limits;
        if limits.running.map(|(known, _)| known) != attempt {
            limits.running = attempt.map(|attempt| (attempt, now));
        }
        if busy {
            limits.next_disk_check = limits.next_disk_check.min(now + DISK_CHECK_INTERVAL_BUSY);
        }
    }

    /// The running turn and its attempt.
    pub fn running_attempt(&self) -> Option<TurnAttempt> {
        let current = self.log.current().filter(|turn| matches!(turn.phase, TurnPhase::Running { .. }))?;
        Some(TurnAttempt { turn: current.id, attempt: current.attempt })
    }

    /// Whether a turn or a command works in the sandbox; its limits are then checked more often.
    pub fn is_watched_at_work(&self) -> bool {
        let works = !self.log.is_at_rest() || self.runtime.agent.commands_running;
        works && self.runtime.is_connected() && self.runtime.closing.is_none()
    }

    /// The files exceed their limit: the sandbox ends, and the session gives the reason when its turn is over.
    pub fn ended_for_limit(&mut self, reached: LimitReached) {
        self.runtime.agent.interrupt_deadline = None;
        self.runtime.limits.full = Some(reached);
    }

    /// Notes that a step begins. The caller carries it out.
    pub fn begin(&mut self, step: &NextStep, now: Instant) {
        if !matches!(step, NextStep::InspectTree | NextStep::Wait) {
            self.runtime.tree.seen = None;
        }
        match step {
            NextStep::KillAgent => self.runtime.agent.interrupt_deadline = None,
            NextStep::RetryWrite => self.runtime.write_retry = None,
            NextStep::BeginSelfStartedTurn => self.runtime.agent.last_self_start = Some(now),
            NextStep::Retire => self.runtime.retired = true,
            NextStep::Start => {
                let options_seen = self.log.last_options_change;
                self.runtime.effect = Some(Effect::Start { options_seen });
            }
            NextStep::LeaveSandbox => self.leave_sandbox(now),
            NextStep::EndSandbox => {
                self.runtime.sandbox = SandboxConnection::Absent;
                self.runtime.effect = Some(Effect::EndSandbox);
            }
            NextStep::LoseTree => self.tree_lost(),
            NextStep::Salvage => self.runtime.effect = Some(Effect::Salvage),
            NextStep::MakeTree => self.runtime.effect = Some(Effect::MakeTree),
            NextStep::Capture(occasion) => {
                if *occasion == CaptureOccasion::BetweenTurns {
                    self.begin_closing_capture();
                }
                self.begin_capture(*occasion, now);
            }
            NextStep::EndUncaptured { .. } => self.runtime.capture.dirty = None,
            NextStep::AbandonRemoteWait => self.runtime.remote_wait = None,
            NextStep::Tell { .. } => self.runtime.capture.last = now,
            NextStep::DiscardPreparedTree => self.discard_prepared(),
            NextStep::PrepareRewind | NextStep::PrepareWorkspaceRewind | NextStep::PrepareMemoryRewind => {
                self.runtime.effect = Some(Effect::PrepareRewind);
            }
            NextStep::Wait
            | NextStep::InspectTree
            | NextStep::Commit { .. }
            | NextStep::CommitAndTell { .. }
            | NextStep::InterruptForClosing { .. }
            | NextStep::StopWaitingForBackground
            | NextStep::SayFull { .. }
            | NextStep::NoteIdle { .. }
            | NextStep::TellSetting { .. }
            | NextStep::ReadLimits
            | NextStep::CheckDisk
            | NextStep::AdmitWriters
            | NextStep::CaptureImpossible(_)
            | NextStep::HandleDeferred
            | NextStep::AnswerResumers
            | NextStep::AnswerForkers
            | NextStep::Pause
            | NextStep::ConcludeClosing
            | NextStep::ChangeOptions
            | NextStep::RefuseChange(_)
            | NextStep::RefuseRewind(_)
            | NextStep::Rewind { .. } => {}
        }
    }

    /// From now on nothing that the agent or a command does counts.
    pub fn leave_sandbox(&mut self, now: Instant) {
        if self.runtime.is_connected() {
            self.runtime.sandbox = SandboxConnection::Departing;
            self.runtime.agent.commands_running = false;
            self.runtime.agent.yields = false;
            self.runtime.touch(now);
        }
    }

    /// Starts the time that the agent has to stop its turn.
    pub fn set_interrupt_deadline(&mut self, now: Instant) {
        let agent = &mut self.runtime.agent;
        if agent.interrupt_deadline.is_none() && self.log.was_asked_to_stop() {
            agent.interrupt_deadline = Some(now + self.runtime.profile.interrupt_grace);
        }
    }

    /// The long work that was under way is over.
    pub fn finish_effect(&mut self) -> Option<Effect> {
        self.runtime.tree.seen = None;
        self.runtime.effect.take()
    }

    /// The fact that an agent answers in a new sandbox. `resumed_after`: the agent's memory holds its interrupted turn
    /// up to here. `more_inputs`: how many inputs it got after its greeting.
    pub fn awake_fact(
        &self,
        incarnation: Incarnation,
        resumed_after: Option<EventSeq>,
        options_seen: EventSeq,
        more_inputs: u64,
    ) -> Fact {
        // Options changed after the start began, so the agent may have been started without them.
        let outdated = self.log.last_options_change > options_seen;
        Fact::Awake { incarnation, resumed_after, outdated, more_inputs }
    }

    /// Notes whether the turn waits for nothing but background work.
    pub fn note_background_wait(&mut self, waits: bool, now: Instant) {
        let since = &mut self.runtime.agent.background_wait_since;
        *since = waits.then(|| since.unwrap_or(now));
    }

    /// The turn does not wait for background work any more.
    pub fn background_wait_ended(&mut self) {
        self.runtime.agent.background_wait_since = None;
        self.runtime.agent.interrupt_deadline = None;
    }

    /// The tree does not count any more, and is not captured.
    pub fn tree_lost(&mut self) {
        self.runtime.tree = TreeView::default();
        (self.runtime.capture.dirty, self.runtime.capture.backoff) = (None, None);
    }

    /// The log says that the files exceed their limit.
    pub fn said_full(&mut self) {
        self.runtime.limits.full = None;
    }
}
