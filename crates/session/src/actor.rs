//! The one who looks after a session: takes wishes, listens to the sandbox, and does what `State::next` says.
//! It may die at any line; the next one reads the log and goes on.

mod background_work;
mod capture;
mod closing;
mod commit;
mod enter;
mod exec;
mod furnish;
mod greeting;
mod idle;
mod limits_watchdog;
mod lock;
mod lost_tree;
mod mailbox;
mod options_change;
mod permission;
mod recall;
mod records;
mod retell;
mod rewind;
mod salvage;
mod setup;
mod start;
mod takeover;
mod transcript;
mod tree;
mod workspace_rewind;

pub use exec::ExecOutput;
pub(crate) use exec::base_env;
pub use lock::LockRequest;
pub(crate) use mailbox::{ActorMessage, CommandReply, FileAccessMode, ForkPoint, ReplySender};
pub use options_change::OptionsChange;
pub(crate) use takeover::ActorChannels;
pub(crate) use workspace_rewind::AgentMemoryTree;

use crate::{
    Error, Result,
    agent_logs::AgentLogBuffer,
    live_directory::LiveDirectory,
    pool::{Admission, SandboxPhase, SandboxPhaseCell},
    services::Services,
    state::{NextStep, RemainingBudget, SessionState, StateCommand},
    workspace::{Sandbox, Workspace},
};
use ash_driver::{AgentDriver, TurnTracker};
use ash_model::{ConcurrentTurn, Incarnation, SessionStatus, TurnId};
use ash_sandbox::{JournalRecord, RecordStream, SandboxHandle};
use ash_snapshot::CapturedSnapshot;
use ash_store::{Lease, SessionRow};
use capture::{CaptureBackoff, CaptureOccasion};
use closing::SessionClosing;
use exec::ExecTable;
use idle::IdleState;
use limits_watchdog::LimitsWatchdog;
use options_change::PendingOptionsChange;
use records::UnwrittenRecords;
use rewind::PendingRewind;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::Instant,
};

/// How long changes between turns wait for more of them. They are promised to be captured within five seconds.
const CHANGE_SETTLE_TIME: Duration = Duration::from_secs(3);
const SETTLE_TIME_AFTER_START: Duration = Duration::from_secs(30);
/// How long to wait before something that could not be written is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// After this long with nothing to do the keeper goes; the session is in the database.
const ACTOR_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same of a session that has ended: hardly anybody asks for it again, and after a burst there are many.
const IDLE_ENDED: Duration = Duration::from_secs(10);
/// How long to wait before a failed capture is tried again.
const CAPTURE_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The sandbox, while there is one.
struct SandboxConn {
    incarnation: Incarnation,
    remote: SandboxHandle,
    /// The agent's number among the sandbox's processes.
    process: u16,
    records: RecordStream,
    position: u64,
    /// The agent has ended.
    exited: bool,
    /// What the shim was told is left of the budgets.
    allowed: Option<RemainingBudget>,
    walls: Arc<Sandbox>,
}

/// Shared with a start, which may fail.
type StartupUsage = Arc<std::sync::Mutex<Vec<ash_sandbox::ModelUsage>>>;

pub(crate) struct SessionActor {
    services: Arc<Services>,
    session: SessionRow,
    state: SessionState,
    lease: Lease,
    live: LiveDirectory,
    /// What it shares with the other sessions of its workspace.
    workspace: Arc<Workspace>,
    driver: Arc<dyn AgentDriver>,
    tracker: TurnTracker,
    conn: Option<SandboxConn>,
    /// What an agent used before it answered its greeting.
    startup_usage: StartupUsage,
    /// For the sandbox that it needs next, from whoever wants it.
    admission: Admission,
    logs: Arc<AgentLogBuffer>,
    phase: Arc<SandboxPhaseCell>,
    inbox: mpsc::Receiver<ActorMessage>,
    /// Deltas since the last event.
    deltas: u64,
    execs: ExecTable,
    /// Commands that run in a sandbox that is being left.
    commands: Vec<u16>,
    /// When something may have changed that no checkpoint holds.
    dirty: Option<Instant>,
    /// When the turn that runs began, or was last captured.
    captured: Instant,
    /// What the log has got since then, which travels with the next checkpoint.
    unpacked_log_bytes: u64,
    /// Somebody waits for a capture that begins after they asked.
    wants_capture: bool,
    /// The last capture failed.
    backoff: Option<CaptureBackoff>,
    effect: Option<EffectTask>,
    /// Of a tree that was lost while a sandbox was at work in it, which still has it.
    lost_uid: Option<u32>,
    /// Tells a start that is under way not to go on.
    halt_start: Arc<Notify>,
    /// A sandbox that is to be ended as soon as nothing else is under way.
    departing_sandbox: Option<SandboxConn>,
    pausing: Vec<ReplySender<CommandReply>>,
    resuming: Vec<ReplySender<CommandReply>>,
    forking: Vec<ReplySender<ForkPoint>>,
    rewinding: VecDeque<PendingRewind>,
    writing: Vec<ReplySender<takeover::GuardedFileSource>>,
    changes: VecDeque<PendingOptionsChange>,
    closing: Option<SessionClosing>,
    /// What was heard and could not be written yet.
    unwritten: Option<UnwrittenRecords>,
    idle_since: Instant,
    idle: IdleState,
    /// What was wanted while the session let go of its sandbox.
    deferred_commands: Vec<(StateCommand, Admission, ReplySender<CommandReply>)>,
    /// When an agent that was asked to stop its turn is ended instead.
    interrupt_deadline: Option<Instant>,
    /// Since when the turn waits for work in the background alone.
    background_wait_since: Option<Instant>,
    /// When the agent last began something by itself.
    last_self_start: Option<Instant>,
    /// The turn is saved here, and waits until the object store has it too.
    remote_wait: Option<RemoteWait>,
    limits: LimitsWatchdog,
}

struct RemoteWait {
    turn: TurnId,
    checkpoint: u64,
    task: JoinHandle<Result<()>>,
}

impl Drop for RemoteWait {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Long work that goes on beside the loop; one at a time.
type EffectTask = JoinHandle<EffectOutcome>;

enum EffectOutcome {
    Started(Box<Result<start::CompletedStart>>),
    Saved {
        occasion: CaptureOccasion,
        result: Result<Option<capture::LockedCapture>>,
        began: Instant,
    },
    /// The sandbox is gone; this is what it still said.
    SandboxEnded {
        incarnation: Incarnation,
        process: u16,
        said: Vec<JournalRecord>,
    },
    /// The uid of a tree that was made without a sandbox.
    TreeMade(Result<Option<u32>>),
    /// The tree of the checkpoint that the session is to go to is written, beside the one it has.
    RewindPrepared(Result<rewind::PreparedTree>),
    /// What was found on disk instead of a tree that can be trusted.
    Salvaged(Result<Option<CapturedSnapshot>>),
    /// The work was cut off: it panicked.
    Panicked,
}

impl SessionActor {
    /// Runs until nobody can send wishes any more, or somebody else owns the session.
    pub(crate) async fn run(mut self) -> Result<()> {
        while !self.is_over() {
            let done = match self.drive().await {
                Ok(()) => self.step().await,
                failed => failed,
            };
            if let Err(error) = done {
                self.handle_error(error).await?;
            }
        }
        Ok(())
    }

    /// What could not be written leaves the state as it was, so it is simply tried again. A lost lease is the end.
    async fn handle_error(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Store(ash_store::Error::Full) => {
                tracing::error!(session = %self.session.id, "the disk is full: the session waits until there is space");
                tokio::time::sleep(RETRY_DELAY).await;
                Ok(())
            }
            other => Err(other),
        }
    }

    fn is_over(&self) -> bool {
        let idle = self.effect.is_none() && self.closing.is_none() && self.departing_sandbox.is_none();
        self.inbox.is_closed() && self.inbox.is_empty() && idle
    }

    /// Waits for whatever happens first.
    async fn step(&mut self) -> Result<()> {
        let deadline = self.deadline();
        // While something heard could not be written, nothing more is listened to: the journal keeps it.
        let records = self.conn.as_mut().filter(|_| self.unwritten.is_none()).map(|hands| &mut hands.records);
        let effect = self.effect.as_mut();
        let far = self.remote_wait.as_mut().map(|waiting| &mut waiting.task);
        tokio::select! {
            request = self.inbox.recv() => match request {
                Some(request) => self.handle(request).await,
                None => self.wait_out().await,
            },
            record = next_record(records) => self.on_record(record).await,
            done = finished(effect) => {
                self.effect = None;
                self.finish_effect(done).await
            }
            sent = arrived(far) => self.on_remote_wait_done(sent).await,
            () = until(deadline) => Ok(()),
        }
    }

    /// Nobody asks any more: only an effect or a closing can still be under way.
    async fn wait_out(&mut self) -> Result<()> {
        if let Some(effect) = self.effect.take() {
            let done = effect.await.map_err(|_| Error::Gone)?;
            return self.finish_effect(done).await;
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let again = self.backoff.map(|backoff| backoff.until);
        let dirty = self.dirty.map(|since| (since + CHANGE_SETTLE_TIME).max(again.unwrap_or(since)));
        let dirty =
            dirty.filter(|_| self.effect.is_none() && self.state.is_at_rest() && self.tree().is_some());
        let closing = self.closing.as_ref().filter(|_| self.effect.is_none()).map(|closing| closing.deadline);
        let current = self.state.current().filter(|_| self.effect.is_none());
        let saving = current.and_then(|turn| self.backoff?.of(turn.id));
        let unwritten = self.unwritten.as_ref().map(|unwritten| unwritten.again);
        let idle = self.is_idle().then_some(self.goes_at());
        let beside = [
            self.execs.deadline(),
            self.midway(),
            self.next_permission_expiry(),
            self.change_deadline(),
            self.idle_deadline(),
            self.limits_deadline(),
        ];
        let stirs = self.self_start_at().filter(|_| self.effect.is_none());
        let all = [
            dirty,
            closing,
            saving,
            unwritten,
            idle,
            self.interrupt_deadline,
            self.background_wait_until(),
            stirs,
        ];
        all.into_iter().chain(beside).flatten().min()
    }

    /// Nothing is under way or outstanding: the log knows everything that this keeper knows.
    fn is_idle(&self) -> bool {
        let waiting = self.pausing.is_empty()
            && self.resuming.is_empty()
            && self.forking.is_empty()
            && self.rewinding.is_empty()
            && self.writing.is_empty()
            && self.changes.is_empty();
        let calm = self.conn.is_none()
            && self.departing_sandbox.is_none()
            && self.effect.is_none()
            && self.closing.is_none();
        calm && waiting && self.dirty.is_none() && self.state.next_step() == NextStep::Wait
    }

    /// When the keeper goes, if it has nothing to do until then.
    fn goes_at(&self) -> Instant {
        let patience =
            if self.state.status == SessionStatus::Ended { IDLE_ENDED } else { ACTOR_IDLE_TIMEOUT };
        self.idle_since + patience
    }

    /// Does what is to be done now, if nothing long is under way.
    async fn drive(&mut self) -> Result<()> {
        self.note_use();
        let driven = self.drive_effects().await;
        self.phase.set(self.current_phase(), self.is_evictable(), self.idle.since);
        if self.state.status != SessionStatus::Starting {
            self.admission = Admission::default();
        }
        if self.is_shared() {
            let turn = self.state.current().map(|turn| turn.id);
            let turn = turn.map(|turn| ConcurrentTurn { session: Some(self.session.id.clone()), turn });
            self.workspace.set_turn(self.session.no, turn);
        }
        driven
    }

    fn current_phase(&self) -> SandboxPhase {
        match (&self.conn, self.state.status, self.state.current()) {
            (None, SessionStatus::Starting, _) => SandboxPhase::Warming,
            (None, _, _) => SandboxPhase::Cold,
            (Some(_), _, Some(_)) => SandboxPhase::Running,
            (Some(_), _, None) => SandboxPhase::Waiting,
        }
    }

    async fn drive_effects(&mut self) -> Result<()> {
        self.execs.expire(self.conn.as_ref().map(|hands| &hands.remote)).await;
        self.end_unresponsive_agent().await;
        self.retry_write().await?;
        self.enforce_limits().await?;
        self.stop_waiting_for_background().await?;
        self.expire_requests().await?;
        self.check_idle().await?;
        self.drive_changes().await?;
        if self.is_idle() && self.goes_at() <= Instant::now() {
            // Whoever asks from here on finds another keeper; what was asked before is still answered.
            self.inbox.close();
        }
        loop {
            if self.effect.is_some() {
                return Ok(());
            }
            if let Some(hands) = self.departing_sandbox.take() {
                self.end_sandbox(hands);
                return Ok(());
            }
            if self.make_way_for_writers().await? {
                continue;
            }
            if self.answer_writers() {
                continue;
            }
            if self.closing.is_some() {
                self.drive_closing().await?;
                if self.departing_sandbox.is_some() || self.closing.is_none() {
                    continue;
                }
                return Ok(());
            }
            if self.handle_deferred().await? {
                continue;
            }
            self.answer_resumers();
            if self.drive_rewinding().await? || self.drive_waiting().await? {
                continue;
            }
            match self.self_start_at() {
                Some(at) if at > Instant::now() => return Ok(()),
                Some(_) => {
                    self.begin_self_started_turn().await?;
                    continue;
                }
                None => {}
            }
            match self.state.next_step() {
                NextStep::Wait => {
                    if let Some(turn) = self.is_midway_due() {
                        self.start_save(CaptureOccasion::Midway(turn));
                    } else if self.is_capture_due() {
                        self.start_save(CaptureOccasion::BetweenTurns);
                    }
                    return Ok(());
                }
                NextStep::Wake | NextStep::Tell { .. } if self.is_tree_broken() => self.lose_tree().await?,
                NextStep::Wake if self.live.has_leftovers(self.tree().is_some()) => self.start_salvage(),
                NextStep::Wake => self.begin_start(),
                NextStep::Save { turn } if self.is_ephemeral() => {
                    let over = self.end_of(CaptureOccasion::TurnEnd(turn), None);
                    self.dirty = None;
                    self.commit_facts(over.into_iter().collect()).await?;
                }
                NextStep::Save { .. } if self.remote_wait.is_some() => return Ok(()),
                NextStep::Save { turn } if self.backs_off(turn) => return Ok(()),
                NextStep::Save { turn } if self.tree().is_some() => {
                    self.start_save(CaptureOccasion::TurnEnd(turn))
                }
                NextStep::Save { turn } => {
                    let gone = Error::Save(
                        "its files are not there any more: the machine went down before they were safe, or something removed them".to_owned(),
                    );
                    self.on_capture_failed(CaptureOccasion::TurnEnd(turn), gone).await?;
                }
                NextStep::Sleep if self.conn.is_none() => self.commit_asleep().await?,
                NextStep::Sleep => self.begin_sandbox_end(),
                NextStep::Commit { facts } => {
                    self.note_and_tell(facts).await?;
                    self.set_interrupt_deadline();
                }
                // It would work where its files are not: another one starts, with those of the last checkpoint.
                NextStep::Tell { .. } if self.has_lost_tree() => self.begin_sandbox_end(),
                NextStep::Tell { fact, input, say } => {
                    let fact = self.with_calls(fact).await?;
                    self.commit_facts(vec![fact]).await?;
                    self.captured = Instant::now();
                    self.tell(input, &say).await;
                }
            }
        }
    }

    async fn finish_effect(&mut self, done: EffectOutcome) -> Result<()> {
        match done {
            EffectOutcome::Started(woken) => self.on_started(*woken).await,
            EffectOutcome::Saved { occasion, result, began } => self.saved(occasion, result, began).await,
            EffectOutcome::SandboxEnded { incarnation, process, said } => {
                self.on_sandbox_ended(incarnation, process, said).await
            }
            EffectOutcome::Salvaged(salvaged) => self.salvaged(salvaged).await,
            EffectOutcome::RewindPrepared(prepared) => self.prepared(prepared).await,
            EffectOutcome::Panicked => Err(Error::Gone),
            EffectOutcome::TreeMade(made) => self.on_tree_made(made).await,
        }
    }

    /// The tree on disk is the newest there is, and this is its uid.
    fn tree(&self) -> Option<Option<u32>> {
        self.workspace.tree()
    }

    /// Its files are never captured.
    fn is_ephemeral(&self) -> bool {
        self.session.options.ephemeral == Some(true)
    }

    /// Others may be at work in its workspace.
    fn is_shared(&self) -> bool {
        self.session.slug.is_some()
    }

    fn touch(&mut self) {
        if self.is_ephemeral() {
            return;
        }
        let now = Instant::now();
        self.dirty = Some(self.dirty.map_or(now, |since| since.min(now)));
    }

    /// What an agent writes by itself when it starts can wait: mostly a turn comes first, which is captured anyway,
    /// and of many sessions made at once each would pay for another one's capture.
    fn touch_later(&mut self) {
        if self.is_ephemeral() {
            return;
        }
        self.dirty.get_or_insert_with(|| Instant::now() + SETTLE_TIME_AFTER_START);
    }
}

async fn next_record(records: Option<&mut RecordStream>) -> Option<ash_sandbox::JournalRecord> {
    match records {
        Some(records) => records.next().await,
        None => std::future::pending().await,
    }
}

async fn finished(effect: Option<&mut JoinHandle<EffectOutcome>>) -> EffectOutcome {
    match effect {
        Some(task) => task.await.unwrap_or(EffectOutcome::Panicked),
        None => std::future::pending().await,
    }
}

async fn arrived(waiting: Option<&mut JoinHandle<Result<()>>>) -> Result<()> {
    match waiting {
        Some(task) => task.await.unwrap_or(Err(Error::Gone)),
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
