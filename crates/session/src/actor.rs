//! The actor of a session: it receives messages, listens to the sandbox and carries out the steps that the machine
//! plans. It decides nothing. It may die at any line; the next actor reads the log and goes on.

mod background_work;
mod capturing;
mod client_tool;
mod closing;
mod commands;
mod commit;
mod exec;
mod limits_watchdog;
mod lock;
mod lost_tree;
mod options;
mod permission;
mod records;
mod rewinding;
mod salvage;
mod starting;
mod takeover;
mod waiters;

pub(crate) use takeover::ActorChannels;

use crate::{
    Error, Result,
    agent_logs::AgentLogBuffer,
    capture,
    live_directory::{LiveDirectory, LiveTree},
    machine::{Effect, Machine, NextStep, Now, TreeInspection},
    mailbox::ActorMessage,
    pool::{SandboxPhase, SandboxPhaseCell},
    rewind,
    sandbox_conn::{SandboxConn, StartupUsage},
    services::Services,
    slots::Admission,
    start,
    workspace::Workspace,
};
use ash_driver::{AgentDriver, TurnTracker};
use ash_model::{ConcurrentTurn, Incarnation, SessionStatus};
use ash_sandbox::{JournalRecord, RecordStream};
use ash_snapshot::CapturedSnapshot;
use ash_store::{Lease, SessionRow};
use exec::ExecTable;
use limits_watchdog::LimitsWatchdog;
use records::UnwrittenRecords;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
};
use waiters::Waiters;

/// How long to wait before a failed write is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct SessionActor {
    ctx: SessionContext,
    machine: Machine,
    waiters: Waiters,
    link: AgentLink,
    inbox: mpsc::Receiver<ActorMessage>,
    /// Long work that runs beside the loop; one at a time.
    effect: Option<EffectTask>,
    /// Waits until the object store has the checkpoint of a turn.
    remote_wait: Option<RemoteWaitTask>,
    /// The tree for the first rewind: written, but not in place yet.
    prepared_tree: Option<rewind::PreparedTree>,
    execs: ExecTable,
    limits: LimitsWatchdog,
    /// For the sandbox that the session needs next; it comes from the caller that needs it.
    admission: Admission,
}

/// What a session works with as long as it has this actor.
struct SessionContext {
    services: Arc<Services>,
    session: SessionRow,
    lease: Lease,
    live: LiveDirectory,
    /// What the session shares with the other sessions of its workspace.
    workspace: Arc<Workspace>,
    driver: Arc<dyn AgentDriver>,
    logs: Arc<AgentLogBuffer>,
    phase: Arc<SandboxPhaseCell>,
}

/// The connection to the agent.
struct AgentLink {
    conn: Option<SandboxConn>,
    /// A sandbox that the actor ends as soon as nothing else is under way.
    departing: Option<SandboxConn>,
    tracker: TurnTracker,
    /// What an agent used before it answered its greeting.
    startup_usage: StartupUsage,
    /// The number of deltas since the last event.
    deltas: u64,
    /// Commands that run in a sandbox that the session is leaving.
    commands: Vec<u16>,
    /// Records that were received and could not be written yet.
    unwritten: Option<UnwrittenRecords>,
    /// The uid of a tree that was lost while a sandbox worked in it; that sandbox still has the uid.
    lost_uid: Option<u32>,
    /// Stops a start that is under way.
    halt_start: Arc<Notify>,
}

type EffectTask = JoinHandle<EffectOutcome>;

struct RemoteWaitTask(JoinHandle<Result<()>>);

impl Drop for RemoteWaitTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum EffectOutcome {
    Started(Box<Result<start::CompletedStart>>),
    Captured(Result<Option<capture::LockedCapture>>),
    /// The sandbox is gone; these are its last records.
    SandboxEnded {
        incarnation: Incarnation,
        process: u16,
        said: Vec<JournalRecord>,
    },
    /// The uid of a tree that was made without a sandbox.
    TreeMade(Result<Option<u32>>),
    /// The tree of the rewind's checkpoint is written, beside the current tree.
    RewindPrepared(Result<rewind::PreparedTree>),
    /// What was found on disk instead of a tree that can be trusted.
    Salvaged(Result<Option<CapturedSnapshot>>),
    /// The work panicked.
    Panicked,
}

impl SessionActor {
    /// Runs until no caller can send messages any more, or another server owns the session.
    pub(crate) async fn run(mut self) -> Result<()> {
        while !self.is_over() {
            let done = match self.drive().await {
                Ok(()) => self.wait().await,
                failed => failed,
            };
            if let Err(error) = done {
                self.handle_error(error).await?;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.inbox.is_closed() && self.inbox.is_empty() && self.machine.is_over()
    }

    /// A failed write leaves the state unchanged, so the actor just tries again. A lost lease ends the actor.
    async fn handle_error(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Store(ash_store::Error::Full) => {
                tracing::error!(session = %self.ctx.session.id, "the disk is full: the session waits until there is space");
                tokio::time::sleep(RETRY_DELAY).await;
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Waits for the first event of any kind.
    async fn wait(&mut self) -> Result<()> {
        let deadline = self.deadline();
        // While received records cannot be written, the actor reads no more of them: the journal keeps them.
        let heard = self.link.unwritten.is_none();
        let records = self.link.conn.as_mut().filter(|_| heard).map(|conn| &mut conn.records);
        let effect = self.effect.as_mut();
        let remote = self.remote_wait.as_mut().map(|waiting| &mut waiting.0);
        tokio::select! {
            message = self.inbox.recv() => match message {
                Some(message) => self.handle(message).await,
                None => self.wait_out().await,
            },
            record = next_record(records) => self.on_record(record).await,
            outcome = finished(effect) => self.finish_effect(outcome).await,
            sent = replicated(remote) => self.on_remote_wait_done(sent).await,
            () = until(deadline) => Ok(()),
        }
    }

    /// All senders are gone: only an effect or a closing can still be under way.
    async fn wait_out(&mut self) -> Result<()> {
        match self.effect.as_mut() {
            Some(task) => {
                let outcome = task.await.map_err(|_| Error::Gone)?;
                self.finish_effect(outcome).await
            }
            None => Ok(()),
        }
    }

    fn now(&self) -> Now {
        Now { instant: Instant::now(), wall: self.ctx.services.clock() }
    }

    fn deadline(&mut self) -> Option<Instant> {
        let now = self.now();
        let planned = self.machine.next_deadline(now);
        [planned, self.execs.deadline()].into_iter().flatten().min()
    }

    /// Carries out planned steps until the actor has to wait.
    async fn drive(&mut self) -> Result<()> {
        self.execs.expire(self.link.conn.as_ref().map(|conn| &conn.remote)).await;
        self.observe();
        let driven = self.carry_out_steps().await;
        self.start_waiting_execs().await;
        self.show_phase();
        if self.machine.log.status != SessionStatus::Starting {
            self.admission = Admission::default();
        }
        if self.is_shared() {
            let turn = self.machine.log.current().map(|turn| turn.id);
            let turn = turn.map(|turn| ConcurrentTurn { session: Some(self.ctx.session.id.clone()), turn });
            self.ctx.workspace.set_turn(self.ctx.session.no, turn);
        }
        driven
    }

    async fn carry_out_steps(&mut self) -> Result<()> {
        loop {
            let now = self.now();
            let step = self.machine.plan(now);
            if step == NextStep::Wait {
                return Ok(());
            }
            if self.machine.is_rewinding() && step.is_part_of_rewind() {
                ash_failpoint::reach_async("rewind.step").await;
            }
            self.machine.begin(&step, now.instant);
            let done = self.carry_out(step).await;
            if self.effect.is_none() && self.machine.runtime.effect.is_some() {
                // The effect has not begun, because something that it needs was missing.
                self.machine.finish_effect();
            }
            done?;
            self.observe();
        }
    }

    /// Gives the machine the facts that it cannot see itself.
    fn observe(&mut self) {
        let run = &mut self.machine.runtime;
        run.tree.present = self.ctx.workspace.tree().is_some();
        run.agent.self_started = self.link.tracker.has_self_started();
        run.agent.commands_running = self.execs.is_busy();
        // In a shared workspace the others' turns would go on in the sandbox, and its slot would not become free.
        let conn =
            self.link.conn.as_ref().filter(|_| self.machine.log.waits_to_begin() && !run.profile.shared);
        run.agent.yields = conn.is_some_and(|conn| conn.sandbox.is_asked_to_yield());
        self.limits.note_work(&self.machine);
        self.machine.observe(Instant::now());
        let turns_over = self.limits.note_turns(&self.machine);
        if turns_over {
            // A capture of the files has just measured their size.
            self.record_resource_usage();
        }
    }

    async fn carry_out(&mut self, step: NextStep) -> Result<()> {
        match step {
            NextStep::Wait => Ok(()),
            NextStep::InspectTree => {
                self.inspect_tree();
                Ok(())
            }
            NextStep::Commit { facts } => self.commit_facts(facts).await,
            NextStep::CommitAndTell { facts } => {
                self.commit_and_tell(facts).await?;
                self.machine.set_interrupt_deadline(Instant::now());
                Ok(())
            }
            NextStep::InterruptForClosing { facts } => self.commit_and_tell(facts).await,
            NextStep::Tell { fact, input, say } => {
                let fact = self.with_calls(fact).await?;
                self.commit_facts(vec![fact]).await?;
                self.tell(input, &say).await;
                Ok(())
            }
            NextStep::BeginSelfStartedTurn => self.begin_self_started_turn().await,
            NextStep::StopWaitingForBackground => self.stop_waiting_for_background().await,
            NextStep::KillAgent => {
                self.kill_agent().await;
                Ok(())
            }
            NextStep::RetryWrite => self.retry_write().await,
            NextStep::SayFull { facts } => {
                if !facts.is_empty() {
                    self.commit_facts(facts).await?;
                }
                self.machine.said_full();
                Ok(())
            }
            NextStep::ReadLimits => self.read_limits().await,
            NextStep::CheckDisk => self.check_disk_usage().await,
            NextStep::NoteIdle { fact, over } => self.note_idle(fact, over).await,
            NextStep::Retire => {
                // Later callers get another actor; this one still answers earlier requests.
                self.inbox.close();
                Ok(())
            }
            NextStep::Start => {
                self.begin_start();
                Ok(())
            }
            NextStep::LeaveSandbox => {
                self.leave_sandbox();
                Ok(())
            }
            NextStep::EndSandbox => {
                self.end_sandbox();
                Ok(())
            }
            NextStep::LoseTree => self.lose_tree().await,
            NextStep::Salvage => {
                self.start_salvage();
                Ok(())
            }
            NextStep::MakeTree => {
                self.start_making_tree();
                Ok(())
            }
            NextStep::AdmitWriters => {
                self.admit_writers();
                Ok(())
            }
            NextStep::Capture(occasion) => {
                self.start_capture(occasion);
                Ok(())
            }
            NextStep::CaptureImpossible(turn) => self.capture_impossible(turn).await,
            NextStep::EndUncaptured { facts } => self.commit_facts(facts).await,
            NextStep::AbandonRemoteWait => {
                // The files are saved on this machine and replicated later: the next actor ends the turn.
                self.remote_wait = None;
                Ok(())
            }
            NextStep::HandleDeferred => self.handle_deferred().await,
            NextStep::AnswerResumers => {
                self.answer_resumers();
                Ok(())
            }
            NextStep::AnswerForkers => self.answer_forkers().await,
            NextStep::Pause => self.pause().await,
            NextStep::ConcludeClosing => self.conclude_closing().await,
            NextStep::TellSetting { setting, input } => self.tell_setting(setting, input).await,
            NextStep::ChangeOptions => self.make_change().await,
            NextStep::RefuseChange(failure) => {
                self.refuse_change(failure);
                Ok(())
            }
            NextStep::RefuseRewind(refusal) => self.refuse_rewind(refusal.into()).await,
            NextStep::DiscardPreparedTree => {
                self.discard_prepared_tree();
                Ok(())
            }
            NextStep::PrepareRewind => self.start_prepare().await,
            NextStep::PrepareWorkspaceRewind => self.start_compose().await,
            NextStep::PrepareMemoryRewind => self.start_memory_rewind().await,
            NextStep::Rewind { facts } => self.rewind(facts).await,
        }
    }

    async fn finish_effect(&mut self, outcome: EffectOutcome) -> Result<()> {
        self.effect = None;
        let effect = self.machine.finish_effect();
        match (outcome, effect) {
            (EffectOutcome::Started(started), Some(Effect::Start { options_seen })) => {
                self.on_started(*started, options_seen).await
            }
            (EffectOutcome::Captured(captured), Some(Effect::Capture(capture))) => {
                self.on_captured(capture, captured).await
            }
            (EffectOutcome::SandboxEnded { incarnation, process, said }, _) => {
                self.on_sandbox_ended(incarnation, process, said).await
            }
            (EffectOutcome::Salvaged(salvaged), _) => self.on_salvaged(salvaged).await,
            (EffectOutcome::RewindPrepared(prepared), _) => self.on_rewind_prepared(prepared).await,
            (EffectOutcome::TreeMade(made), _) => self.on_tree_made(made).await,
            (EffectOutcome::Started(_) | EffectOutcome::Captured(_) | EffectOutcome::Panicked, _) => {
                Err(Error::Gone)
            }
        }
    }

    /// Starts work beside the loop. The machine has already recorded it.
    fn begin_effect(&mut self, work: impl Future<Output = EffectOutcome> + Send + 'static) {
        self.effect = Some(tokio::spawn(work));
    }

    fn show_phase(&self) {
        let current = match (&self.link.conn, self.machine.log.status, self.machine.log.current()) {
            (None, SessionStatus::Starting, _) => SandboxPhase::Warming,
            (None, _, _) => SandboxPhase::Cold,
            (Some(_), _, Some(_)) => SandboxPhase::Running,
            (Some(_), _, None) => SandboxPhase::Waiting,
        };
        let idle_since = tokio::time::Instant::from_std(self.machine.runtime.idle.since);
        self.ctx.phase.set(current, self.machine.evictability(), idle_since);
    }

    /// Inspects the disk for a step that depends on it.
    fn inspect_tree(&mut self) {
        let leftovers = self.ctx.live.has_leftovers(self.tree().is_some());
        self.machine.runtime.tree.seen = Some(TreeInspection { broken: self.is_tree_broken(), leftovers });
    }

    /// The newest tree and its uid, if that tree is on disk.
    fn tree(&self) -> Option<LiveTree> {
        self.ctx.workspace.tree()
    }

    /// Whether the files are never captured.
    fn is_ephemeral(&self) -> bool {
        self.machine.runtime.profile.ephemeral
    }

    /// Whether other sessions may work in its workspace.
    fn is_shared(&self) -> bool {
        self.machine.runtime.profile.shared
    }

    fn touch(&mut self) {
        self.machine.runtime.touch(Instant::now());
    }
}

async fn next_record(records: Option<&mut RecordStream>) -> Option<JournalRecord> {
    match records {
        Some(records) => records.next().await,
        None => std::future::pending().await,
    }
}

async fn finished(effect: Option<&mut EffectTask>) -> EffectOutcome {
    match effect {
        Some(task) => task.await.unwrap_or(EffectOutcome::Panicked),
        None => std::future::pending().await,
    }
}

async fn replicated(waiting: Option<&mut JoinHandle<Result<()>>>) -> Result<()> {
    match waiting {
        Some(task) => task.await.unwrap_or(Err(Error::Gone)),
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
