//! Taking over a session: claim it, read its log, find out what is left of its sandbox, and commit what follows from that.

use super::{AgentLink, EffectOutcome, ExecTable, LimitsWatchdog, SessionActor, SessionContext, Waiters};
use crate::{
    Error, Result,
    agent_logs::AgentLogBuffer,
    blocking,
    files::{FileSource, TreeState},
    live_directory::{LiveDirectory, LiveTree, LiveTreeShape},
    machine::{IdleClock, LogState, Machine, NextStep, SandboxLiveness, SessionBudget},
    mailbox::{ActorMessage, FileAccessMode, GuardedFileSource, ReplySender},
    pool::SandboxPhaseCell,
    sandbox_conn::SandboxConn,
    services::Services,
    slots::Admission,
    start, witness,
    workspace::{self, Sandbox, UnclaimedConnection, Workspace},
};
use ash_driver::TurnTracker;
use ash_model::{
    Epoch, Fact, Incarnation, InterruptedTurnPolicy, JournalPosition, LogCursor, ModelApiDialect,
};
use ash_sandbox::EgressPolicy;
use ash_store::{EventQuery, Lease, SessionJournalPosition, SessionRow};
use std::{sync::Arc, time::Instant};
use tokio::sync::mpsc;

/// What an actor shares with its callers.
pub(crate) struct ActorChannels {
    pub(crate) logs: Arc<AgentLogBuffer>,
    pub(crate) phase: Arc<SandboxPhaseCell>,
    pub(crate) inbox: mpsc::Receiver<ActorMessage>,
}

impl SessionActor {
    /// For a session that was just made: no actor had it before. Its workspace may be older, if it has a name.
    pub(crate) async fn for_new_session(
        services: Arc<Services>,
        session: SessionRow,
        state: LogState,
        (channels, admission, epoch): (ActorChannels, Admission, Epoch),
    ) -> Result<SessionActor> {
        let workspace = services.workspace(session.workspace);
        if session.slug.is_none() {
            let lease = workspace.of_new(session.workspace, epoch);
            return Ok(SessionActor {
                admission,
                ..SessionActor::with(services, session, state, (lease, workspace), channels)
            });
        }
        let _exclusive = workspace.exclusive().await;
        let (lease, first) = services.claim(&workspace, session.workspace).await?;
        let mut actor = SessionActor::with(services, session, state, (lease, workspace.clone()), channels);
        actor.admission = admission;
        actor.inspect_sandbox(first).await?;
        Ok(actor)
    }

    /// For a session that had an actor before, which may have died at any line.
    pub(crate) async fn load(
        services: Arc<Services>,
        session: SessionRow,
        channels: ActorChannels,
    ) -> Result<SessionActor> {
        let session = {
            let workspace = services.workspace(session.workspace);
            let _exclusive = workspace.exclusive().await;
            let known = session.last_seq;
            let session = Box::pin(witness::reconcile(&services, session)).await?;
            if session.last_seq != known {
                workspace.forget_lease();
            }
            session
        };
        let workspace = services.workspace(session.workspace);
        let _exclusive = workspace.exclusive().await;
        let (lease, first) = services.claim(&workspace, session.workspace).await?;
        let session = services.store.session(session.no).await?.ok_or(Error::NotFound)?;
        let events = services.store.facts(session.no).await?;
        let base = session.base.map_or(0, |base| base.seq);
        let mut state = LogState::new(base).replay(&events);
        state.adopt(&session.summary);
        let rewound = if session.slug.is_some() { workspace.last_rewind() } else { state.rewound };
        if first || session.slug.is_none() {
            workspace.forget_tree_before(rewound);
        }
        let mut actor = SessionActor::with(services, session, state, (lease, workspace.clone()), channels);
        actor.machine.log.last_seq = actor.ctx.session.last_seq;
        actor.settle_queue();
        actor.link.deltas = actor.count_deltas().await?;
        actor.replay_running_turn().await?;
        actor.take_over(first).await?;
        actor.note_when_begun().await?;
        actor.note_workspace_rewinds().await?;
        Ok(actor)
    }

    fn with(
        services: Arc<Services>,
        session: SessionRow,
        mut state: LogState,
        (lease, workspace): (Lease, Arc<Workspace>),
        channels: ActorChannels,
    ) -> SessionActor {
        state.budget = SessionBudget::of(&session.options);
        let live = workspace.live.clone();
        let driver = Arc::from(ash_driver::driver(session.runtime));
        let ActorChannels { logs, phase, inbox } = channels;
        let profile = services.settings.profile(&session);
        let ctx = SessionContext { services, session, lease, live, workspace, driver, logs, phase };
        SessionActor {
            ctx,
            machine: Machine::new(state, profile, Instant::now()),
            waiters: Waiters::default(),
            link: AgentLink {
                conn: None,
                departing: None,
                tracker: TurnTracker::default(),
                startup_usage: Arc::default(),
                deltas: 0,
                commands: Vec::new(),
                unwritten: None,
                lost_uid: None,
                halt_start: Arc::default(),
            },
            inbox,
            effect: None,
            remote_wait: None,
            prepared_tree: None,
            execs: ExecTable::new(),
            limits: LimitsWatchdog::new(),
            admission: Admission::default(),
        }
    }

    async fn count_deltas(&self) -> Result<u64> {
        let mut after = LogCursor::event(self.machine.log.last_seq);
        loop {
            let items = self.ctx.services.store.read_log(self.ctx.session.no, after, 1000).await?;
            match items.last() {
                Some(last) => after = last.at,
                None => return Ok(after.delta),
            }
        }
    }

    /// Replays the messages of the running turn, for a driver that has to remember them.
    async fn replay_running_turn(&mut self) -> Result<()> {
        let Some(turn) = self.machine.log.current() else { return Ok(()) };
        let mut after = turn.seq;
        match turn.self_started {
            true => self.link.tracker.expect_self_started(turn.id),
            false => self.link.tracker.expect(turn.id),
        }
        loop {
            let query = EventQuery { after, limit: 1000, kinds: vec!["said"] };
            let events = self.ctx.services.store.events(self.ctx.session.no, &query).await?;
            let Some(last) = events.last() else { return Ok(()) };
            after = last.seq;
            for event in &events {
                if let Fact::Said { line } = &event.fact {
                    self.ctx.driver.parse_line(&mut self.link.tracker, line.as_bytes());
                }
            }
        }
    }

    async fn take_over(&mut self, first: bool) -> Result<()> {
        let found = self.inspect_sandbox(first).await?;
        let on_interrupted =
            self.ctx.session.options.on_interrupted.unwrap_or(InterruptedTurnPolicy::Continue);
        let facts = self.machine.log.recover(found, on_interrupted);
        if !facts.is_empty() {
            self.commit_facts(facts).await?;
        }
        self.machine.set_interrupt_deadline(Instant::now());
        Ok(())
    }

    /// Finds out what is left of the sandbox, and reads its last records. `first`: no actor of this server had the
    /// workspace before.
    async fn inspect_sandbox(&mut self, first: bool) -> Result<SandboxLiveness> {
        if first && self.ctx.live.has_unfinished_trees() {
            let live = self.ctx.live.clone();
            blocking(move || live.erase_unfinished_trees()).await?;
        }
        if first {
            let (live, tree) = (self.ctx.live.clone(), self.tree());
            blocking(move || live.settle_uploads(tree)).await?;
        }
        let found = match self.ctx.workspace.sandbox() {
            Some(sandbox) => self.attach_to_sandbox(sandbox).await?,
            None if first => self.find_sandbox().await?,
            None => SandboxLiveness::Dead,
        };
        if !matches!(found, SandboxLiveness::Alive(_))
            && let Some(awake) = self.machine.log.awake.clone()
        {
            self.drain_dead_journal(awake.incarnation).await?;
        }
        if found == SandboxLiveness::Unresponsive {
            let run = self.ctx.live.run();
            blocking(move || Ok(ash_sandbox::reap(&run)?)).await?;
        }
        // Changes made meanwhile are in no checkpoint of this server.
        if first && self.tree().is_some() && !self.is_ephemeral() {
            self.machine.runtime.capture.dirty = Some(Instant::now());
        }
        Ok(found)
    }

    /// A shim that outlived the last server is taken over; any other shim is ended.
    async fn find_sandbox(&mut self) -> Result<SandboxLiveness> {
        let permit =
            self.ctx.services.pool.claim_survivor(self.ctx.session.workspace, &self.ctx.session.tenant);
        let knocked = match ash_sandbox::knock(&self.ctx.live.run(), self.ctx.lease.epoch).await {
            Ok(Some(knocked)) => knocked,
            Ok(None) => return Ok(SandboxLiveness::Dead),
            // It does not answer correctly, so it cannot be used.
            Err(error) => {
                tracing::warn!(session = %self.ctx.session.id, %error, "the server could not take over a sandbox of an earlier server, and ends it");
                return Ok(SandboxLiveness::Unresponsive);
            }
        };
        let incarnation = knocked.hello.incarnation;
        let heard = self.ctx.services.store.journal_positions(incarnation).await?;
        let known = self.is_shared() || heard.iter().any(|heard| heard.session == self.ctx.session.no);
        let strong = self.ctx.services.settings.is_strong(&knocked.hello);
        if !strong {
            tracing::warn!(session = %self.ctx.session.id, "a sandbox of an earlier server has weaker isolation than the settings now require: the server ends it");
        }
        let usable = strong && known && !heard.is_empty() && self.tree().is_some();
        if !usable {
            knocked.end().await.ok();
            return Ok(SandboxLiveness::Dead);
        }
        let from = heard.iter().map(|heard| heard.journal.position).min().unwrap_or(0);
        let numbers =
            |heard: &SessionJournalPosition| workspace::numbers(heard.journal.process, self.ctx.lease.epoch);
        let (hello, remote, records) = knocked.follow_each(from, heard.iter().map(numbers).collect()).await?;
        for process in &hello.running {
            // The connection of the caller that started it was lost with the last server.
            if !heard.iter().any(|heard| heard.journal.process == *process) {
                remote.signal(*process, 9).await.ok();
            }
        }
        // The server's key may have changed. A shim of an older server has no egress, and needs none; a client key is
        // in the shim alone.
        if !self.ctx.session.options.has_client_key() {
            let egress = match self.egress_policy().await {
                // The running agent gets no other way, and the next message is refused.
                Err(Error::CredentialGone | Error::ProviderRefused(_)) => None,
                egress => egress?,
            };
            remote.set_egress(egress).await.ok();
        }
        let sandbox = Sandbox::new(incarnation, remote, permit);
        for (SessionJournalPosition { session: no, journal: heard }, records) in
            heard.into_iter().zip(records)
        {
            sandbox.ack(no, heard.position).await;
            let last_in = match hello.last_ins.is_empty() {
                true => hello.last_in,
                false => hello.last_ins.get(&heard.process).copied().unwrap_or(0),
            };
            let runs = hello.running.contains(&heard.process);
            self.ctx.workspace.park_connection(no, UnclaimedConnection { heard, records, last_in, runs });
        }
        self.ctx.workspace.set_sandbox(Some(sandbox.clone()));
        self.attach_to_sandbox(sandbox).await
    }

    /// Attaches to a sandbox that was taken over, if the session worked in it.
    async fn attach_to_sandbox(&mut self, sandbox: Arc<Sandbox>) -> Result<SandboxLiveness> {
        let no = self.ctx.session.no;
        let Some(UnclaimedConnection { heard, records, last_in, runs }) = self.ctx.workspace.waiting(no)
        else {
            return Ok(SandboxLiveness::Dead);
        };
        let incarnation = sandbox.incarnation;
        // An earlier actor may have received its end and died before it committed that.
        if !runs || self.machine.log.awake.as_ref().is_none_or(|awake| awake.incarnation != incarnation) {
            sandbox.remote.signal(heard.process, 9).await.ok();
            if self.ctx.workspace.leave(no, incarnation) {
                sandbox.remote.end().await.ok();
                self.ctx.workspace.set_sandbox(None);
            }
            return Ok(SandboxLiveness::Dead);
        }
        let (process, position) = (heard.process, heard.position);
        let remote = sandbox.remote.clone();
        let conn = SandboxConn {
            incarnation,
            remote,
            process,
            records,
            position,
            exited: false,
            allowed: None,
            sandbox,
        };
        self.set_conn(conn);
        self.allow(None).await;
        for (input, say) in self.machine.log.undelivered_inputs(last_in) {
            self.tell(input, &say).await;
        }
        Ok(SandboxLiveness::Alive(incarnation))
    }

    pub(super) fn set_conn(&mut self, conn: SandboxConn) {
        self.execs.begin(workspace::first_command(conn.process, self.ctx.lease.epoch));
        self.limits.begin();
        self.machine.runtime.connect(Instant::now());
        self.link.conn = Some(conn);
        // Before any caller is answered: a caller that learns of the session expects it to be counted.
        self.show_phase();
    }

    pub(super) async fn egress_policy(&self) -> Result<Option<EgressPolicy>> {
        let SessionRow { tenant, agent, version, runtime, options, .. } = &self.ctx.session;
        // A turn of an agent that was deleted meanwhile continues as it began.
        let version = self.ctx.services.store.version(tenant, agent, *version).await?;
        let usual = version.and_then(|version| version.provider);
        // Without a key there is no route, whichever provider was chosen.
        let provider =
            self.ctx.services.settings.provider(options, usual).unwrap_or(Some(ModelApiDialect::Anthropic));
        self.ctx.services.egress_policy(&self.ctx.session, *runtime, provider).await
    }

    /// Reads what a dead shim wrote after the last actor stopped listening: a turn may have ended in it.
    async fn drain_dead_journal(&mut self, incarnation: Incarnation) -> Result<()> {
        let heard = self.ctx.services.store.journal_positions(incarnation).await?;
        let own =
            heard.into_iter().find(|heard| heard.session == self.ctx.session.no).map(|heard| heard.journal);
        // A session that was adopted from another witness has its journal position in its log.
        let adopted = self.machine.log.adopted.as_ref().and_then(|adopted| adopted.journal_position);
        let adopted = adopted.filter(|heard| heard.incarnation == incarnation);
        let Some(JournalPosition { process, position, .. }) = own.or(adopted) else {
            tracing::warn!(session = %self.ctx.session.id, "the log has no position in the journal of a dead sandbox: the server does not read the rest of the journal");
            return Ok(());
        };
        let run = self.ctx.live.run();
        let left = blocking(move || Ok(ash_sandbox::drain(&run, incarnation, position)?)).await;
        match left {
            // The death is known; only the records before it count.
            Ok(records) => self.commit_records(incarnation, process, records).await.map(|_| ()),
            Err(error) => {
                tracing::warn!(session = %self.ctx.session.id, %error, "the journal of a dead sandbox could not be read");
                Ok(())
            }
        }
    }

    /// Answers where the files are now. For a writer, a tree is made if there is none.
    pub(super) fn files(&mut self, purpose: FileAccessMode, reply: ReplySender<GuardedFileSource>) {
        match (purpose, self.tree()) {
            (FileAccessMode::Read, Some(LiveTree { uid }))
                if self.ctx.live.shape() == LiveTreeShape::Whole =>
            {
                reply.send(Ok((self.live_source(uid), None))).ok();
            }
            (FileAccessMode::Read, _) => self.answer_reader(reply),
            (FileAccessMode::Write, _) => {
                let waiter = self.waiters.add_files(reply);
                self.machine.runtime.waiting.writing.push(waiter);
            }
        }
    }

    fn live_source(&self, uid: Option<u32>) -> FileSource {
        // A sandbox that every session has left is about to end.
        let state = if self.ctx.workspace.is_inhabited() { TreeState::InSandbox } else { TreeState::Kept };
        FileSource::Live { workspace: self.ctx.live.workspace(), uid, state }
    }

    fn answer_reader(&self, reply: ReplySender<GuardedFileSource>) {
        let (services, session, state, lease) = (
            self.ctx.services.clone(),
            self.ctx.session.clone(),
            self.machine.log.clone(),
            self.ctx.lease.clone(),
        );
        tokio::spawn(async move {
            let version = services.store.version(&session.tenant, &session.agent, session.version).await;
            let found = match version {
                Ok(version) => start::recipe(&services, &session, &state, &lease, version.as_ref()).await,
                Err(error) => Err(error.into()),
            };
            reply.send(found.map(|(recipe, _)| (FileSource::Checkpoint { tree: recipe.tree }, None))).ok();
        });
    }

    /// Lets writers use the tree. If a task is about to replace the tree, they wait for the new one.
    pub(super) fn admit_writers(&mut self) {
        let Some(LiveTree { uid }) = self.tree() else { return };
        while let Some(waiter) = self.machine.runtime.waiting.writing.pop() {
            // The task that replaces the tree holds the workspace, which making a tree waits for.
            let Some(guard) = self.ctx.workspace.try_writer() else {
                self.machine.runtime.waiting.writing.push(waiter);
                let now = Instant::now();
                self.machine.begin(&NextStep::MakeTree, now);
                return self.start_making_tree();
            };
            self.touch();
            self.machine.runtime.idle = IdleClock::starting(Instant::now());
            let marked = self.ctx.live.mark_dirty();
            if let Some(reply) = self.waiters.take_files(waiter) {
                reply.send(marked.map(|()| (self.live_source(uid), Some(guard)))).ok();
            }
        }
    }

    /// Makes a tree without a sandbox.
    pub(super) fn start_making_tree(&mut self) {
        let (services, session, state, lease, live) = (
            self.ctx.services.clone(),
            self.ctx.session.clone(),
            self.machine.log.clone(),
            self.ctx.lease.clone(),
            self.ctx.live.clone(),
        );
        let workspace = self.ctx.workspace.clone();
        self.begin_effect(async move {
            let _exclusive = workspace.exclusive().await;
            match workspace.tree() {
                // Another session was faster.
                Some(LiveTree { uid }) => EffectOutcome::TreeMade(Ok(uid)),
                None => EffectOutcome::TreeMade(furnish(&services, &session, &state, &lease, &live).await),
            }
        });
    }

    pub(super) async fn on_tree_made(&mut self, made: Result<Option<u32>>) -> Result<()> {
        match made {
            Ok(uid) => self.ctx.workspace.set_tree(Some(LiveTree { uid })),
            Err(error) => {
                self.answer_failed_writers(&error);
                self.give_up_rewinding(&error).await?;
            }
        }
        Ok(())
    }

    pub(super) fn answer_failed_writers(&mut self, error: &Error) {
        let waiters = std::mem::take(&mut self.machine.runtime.waiting.writing);
        self.waiters.refuse_all(waiters, error);
    }
}

async fn furnish(
    services: &Arc<Services>,
    session: &SessionRow,
    state: &LogState,
    lease: &Lease,
    live: &LiveDirectory,
) -> Result<Option<u32>> {
    let version = services.store.version(&session.tenant, &session.agent, session.version).await?;
    let (recipe, _) = start::recipe(services, session, state, lease, version.as_ref()).await?;
    start::make_tree(services, session, live, recipe).await
}
