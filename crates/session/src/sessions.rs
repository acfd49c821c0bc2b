//! All sessions of this server: finds or starts the actor of each session, and holds what they share.

mod artifacts;
mod beginning;
mod capacity;
mod create;
mod fill;
mod free_space;
mod history;
mod options;
mod read;
mod recovery;
mod registry;
mod upload;
mod witnesses;
mod workspaces;
mod writes;

use crate::{
    Error, LogFollower, LogLine, Result, files,
    keyed_mutex::KeyedMutex,
    machine::{CommandRefusal, LockRequest, StateCommand, Turn, WakePolicy},
    mailbox::{ActorMessage, CommandReply, ExecOutput, FileAccessMode},
    pool::PoolCounts,
    services::Services,
    slots::Admission,
    witness::write_tombstone,
};
use ash_model::{
    BusyPolicy, LogCursor, MessageOptions, Receipt, SessionId, SessionLock, SessionMetadata, SessionRowId,
    SessionStatus, TenantId, Timestamp, TurnId,
};
use ash_store::{AccessScope, AuditActor, EndDisposition, SessionRow};
use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::watch;

pub(crate) use beginning::{beginning, native_id};
pub use {artifacts::ProposedPlan, beginning::IdFrom, create::NewSession, writes::LocklessWrite};

/// How long captures may take after the grace period of a shutdown. The next start takes over what is not done by then.
const CAPTURES: Duration = Duration::from_secs(60);
#[derive(Clone)]
pub struct Sessions {
    services: Arc<Services>,
    /// Sessions whose actor is about to be restarted. One task does it, however many requests come meanwhile.
    respawning: Arc<std::sync::Mutex<HashSet<SessionRowId>>>,
    stopping: Arc<watch::Sender<bool>>,
    /// Free bytes on the disk.
    free: Arc<AtomicU64>,
    /// Held while a session of the tenant is brought back from the object store, so that two requests do not do it
    /// twice. Other tenants do not wait.
    pub(crate) bringing_back: Arc<KeyedMutex<TenantId>>,
    overwritten: Arc<writes::Overwritten>,
}

/// A permit for a sandbox, if one is needed.
pub struct SandboxReservation(Admission);

#[derive(Debug, Clone)]
pub struct PromptSpec {
    pub turn: TurnId,
    pub content: serde_json::Value,
    pub options: MessageOptions,
    pub wake: WakePolicy,
    pub on_busy: BusyPolicy,
    /// The number of the lock that its sender holds.
    pub lock: Option<u64>,
    /// See the field of the same name of a new session.
    pub queue_timeout: Option<Duration>,
}

impl Sessions {
    pub fn new(services: Arc<Services>) -> Sessions {
        Sessions {
            services,
            respawning: Arc::default(),
            stopping: Arc::default(),
            free: Arc::new(AtomicU64::new(u64::MAX)),
            bringing_back: Arc::default(),
            overwritten: Arc::default(),
        }
    }

    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// By the wall clock.
    pub fn now(&self) -> Timestamp {
        self.services.clock()
    }

    pub async fn find(&self, scope: &AccessScope, id: &SessionId) -> Result<SessionRow> {
        self.services.store.find_session(scope, id).await?.ok_or(Error::NotFound)
    }

    /// Like `find`, but also finds sessions that only the object store has.
    pub async fn find_anywhere(&self, scope: &AccessScope, id: &SessionId) -> Result<SessionRow> {
        match (self.find(scope, id).await, &self.services.replicator) {
            (Err(Error::NotFound), Some(replicator)) => {
                let _alone = self.bringing_back.lock(scope.tenant.clone()).await;
                Box::pin(replicator.bring_back(scope, id)).await?;
                self.find(scope, id).await
            }
            (found, _) => found,
        }
    }

    pub async fn get(&self, no: SessionRowId) -> Result<SessionRow> {
        self.services.store.session(no).await?.ok_or(Error::NotFound)
    }

    pub async fn prompt(&self, no: SessionRowId, prompt: PromptSpec) -> Result<TurnId> {
        self.check_room_for_work()?;
        ash_failpoint::reach_async("prompt.asked").await;
        let PromptSpec { turn, content, options: ask, wake, on_busy, lock, queue_timeout } = prompt;
        let command = StateCommand::Prompt { turn, content, ask, wake, on_busy, lock };
        let permit = match wake {
            WakePolicy::Allowed => self.acquire_permit_to_wake(&self.get(no).await?, queue_timeout).await?,
            WakePolicy::Forbidden => None,
        };
        let request = |permit, reply| {
            // An accepted message waits for a sandbox without a limit.
            let admission = Admission { permit, queue_timeout: None };
            ActorMessage::Command { command: command.clone(), admission, reply }
        };
        self.ask_with_permit(no, (permit, self.queue_timeout(queue_timeout)), request).await?;
        Ok(turn)
    }

    /// The open turns, in the order in which they run.
    pub async fn queue(&self, no: SessionRowId) -> Result<Vec<Turn>> {
        self.ask(no, |reply| ActorMessage::Queue { reply }).await
    }

    /// Takes a queued message back.
    pub async fn withdraw(&self, no: SessionRowId, turn: TurnId) -> Result<()> {
        self.services.store.turn(no, turn).await?.ok_or(Error::NoTurn)?;
        self.command(no, StateCommand::Withdraw { turn }).await.map(drop)
    }

    /// Moves these queued turns before the others.
    pub async fn reorder(&self, no: SessionRowId, first: Vec<TurnId>) -> Result<()> {
        for turn in &first {
            self.services.store.turn(no, *turn).await?.ok_or(Error::NoTurn)?;
        }
        self.command(no, StateCommand::Reorder { first }).await.map(drop)
    }

    pub async fn lock(&self, no: SessionRowId, wanted: LockRequest) -> Result<SessionLock> {
        let held = wanted.held;
        let lock = self.ask(no, |reply| ActorMessage::Lock { wanted, reply }).await?;
        self.overwritten.note_taken(no, lock.number, held);
        Ok(lock)
    }

    /// Prolongs the lock, because its holder used it.
    pub async fn renew_lock(&self, no: SessionRowId, number: u64) -> Result<()> {
        self.ask(no, |reply| ActorMessage::Renew { number, reply }).await
    }

    /// Ends lock `number`, because another client writes after it has run out. Refused if the lock is held again.
    pub async fn expire_lock(&self, no: SessionRowId, number: u64) -> Result<()> {
        self.ask(no, |reply| ActorMessage::ExpireLock { number, reply }).await
    }

    pub async fn unlock(&self, no: SessionRowId, number: u64) -> Result<()> {
        self.ask(no, |reply| ActorMessage::Unlock { number, reply }).await?;
        self.overwritten.note_over(no, number);
        Ok(())
    }

    /// The turn that was asked to stop, if one ran.
    pub async fn interrupt(&self, no: SessionRowId) -> Result<Option<TurnId>> {
        Ok(self.command(no, StateCommand::Interrupt).await?.turn)
    }

    pub async fn pause(&self, no: SessionRowId) -> Result<SessionRow> {
        self.command(no, StateCommand::Pause).await?;
        self.get(no).await
    }

    pub async fn stop(&self, no: SessionRowId) -> Result<SessionRow> {
        self.command(no, StateCommand::Stop).await?;
        self.get(no).await
    }

    /// Ends its sandbox as soon as its work is saved.
    pub(crate) async fn release(&self, no: SessionRowId, by_force: bool) -> Result<()> {
        self.command(no, StateCommand::Release { by_force }).await.map(drop)
    }

    /// Ends the session, and puts it into the trash if `fate` says so. Returns its last state.
    pub async fn end(&self, no: SessionRowId, by: AuditActor, fate: EndDisposition) -> Result<SessionRow> {
        self.services.store.request_end(no, by.clone(), fate).await?;
        ash_failpoint::reach_async("purge.ordered").await;
        self.command(no, StateCommand::End).await?;
        if fate == EndDisposition::Purge {
            // Needed for a session that had ended before.
            self.services.store.trash(no, self.services.clock(), by).await?;
            ash_failpoint::reach_async("purge.recorded").await;
            write_tombstone(&self.services, no).await?;
            ash_failpoint::reach_async("purge.buried").await;
        }
        self.get(no).await
    }

    /// Replaces the session's metadata.
    pub async fn set_metadata(&self, no: SessionRowId, metadata: SessionMetadata) -> Result<SessionRow> {
        self.ask(no, |reply| ActorMessage::SetMetadata { metadata, reply }).await?;
        self.get(no).await
    }

    /// Acquires a permit for a session that is to be resumed, before anything about it is changed.
    pub async fn reserve(
        &self,
        session: &SessionRow,
        queue_timeout: Option<Duration>,
    ) -> Result<SandboxReservation> {
        self.check_room_for_work()?;
        let permit = self.acquire_permit_to_wake(session, queue_timeout).await?;
        Ok(SandboxReservation(Admission { permit, queue_timeout: Some(self.queue_timeout(queue_timeout)) }))
    }

    /// The receipt is missing if the session was active already.
    pub async fn resume(
        &self,
        session: &SessionRow,
        place: SandboxReservation,
    ) -> Result<(SessionRow, Option<Receipt>)> {
        self.check_room_for_work()?;
        let SandboxReservation(Admission { permit, queue_timeout }) = place;
        let request = |permit, reply| ActorMessage::Command {
            command: StateCommand::Resume,
            admission: Admission { permit, queue_timeout },
            reply,
        };
        let answer =
            self.ask_with_permit(session.no, (permit, self.queue_timeout(queue_timeout)), request).await?;
        Ok((self.get(session.no).await?, answer.receipt))
    }

    /// Refuses what no command could run in, as far as the session's row says.
    pub fn check_takes_commands(&self, session: &SessionRow) -> Result<()> {
        self.open_for_work()?;
        match session.summary.status {
            SessionStatus::Active => Ok(()),
            status @ (SessionStatus::Starting
            | SessionStatus::Paused
            | SessionStatus::Stopped
            | SessionStatus::Error
            | SessionStatus::Ended) => Err(CommandRefusal::WrongStatus(status).into()),
        }
    }

    pub async fn exec(&self, no: SessionRowId, command: String, timeout: Duration) -> Result<ExecOutput> {
        self.open_for_work()?;
        self.ask(no, |reply| ActorMessage::Exec { command, timeout, reply }).await
    }

    pub async fn files(&self, session: &SessionRow) -> Result<files::WorkspaceFiles> {
        self.place(session, FileAccessMode::Read).await
    }

    /// For writing. The caller calls `touched` afterwards.
    pub async fn files_to_write(&self, session: &SessionRow) -> Result<files::WorkspaceFiles> {
        self.place(session, FileAccessMode::Write).await
    }

    async fn place(&self, session: &SessionRow, purpose: FileAccessMode) -> Result<files::WorkspaceFiles> {
        if purpose == FileAccessMode::Write {
            self.open_for_work()?;
        }
        let (source, writers) = self.ask(session.no, |reply| ActorMessage::Files { purpose, reply }).await?;
        Ok(files::WorkspaceFiles { source, repo: self.services.repo(&session.tenant)?, _pen: writers })
    }

    pub async fn touched(&self, no: SessionRowId) -> Result<()> {
        let actor = self.actor(no).await?;
        actor.inbox.send(ActorMessage::FilesChanged).await.map_err(|_| Error::Gone)
    }

    pub async fn logs(&self, no: SessionRowId, after: i64) -> Vec<LogLine> {
        let actors = self.services.pool.actors.lock().await;
        actors.get(&no).map(|actor| actor.logs.after(after)).unwrap_or_default()
    }

    pub fn follow(&self, no: SessionRowId, after: LogCursor) -> LogFollower {
        LogFollower::new(self.services.store.clone(), &self.services.bells, no, after)
    }

    pub async fn counts(&self) -> PoolCounts {
        self.services.pool.counts().await
    }

    /// How many sandboxes may be alive.
    pub fn max_sandboxes(&self) -> usize {
        self.services.settings.max_sandboxes
    }

    /// How many requests wait for a sandbox.
    pub fn queued(&self) -> usize {
        self.services.pool.queued()
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Accepts no new work from here on. Running turns get `grace`; then every sandbox is captured and ended.
    pub async fn shut_down(&self, grace: Duration) {
        self.stopping.send_replace(true);
        self.services.pool.warm.close().await;
        let numbers: Vec<SessionRowId> = self.services.pool.actors.lock().await.keys().copied().collect();
        let goodbyes =
            numbers.into_iter().map(|no| self.ask(no, move |reply| ActorMessage::Shutdown { grace, reply }));
        let all = futures::future::join_all(goodbyes);
        let Ok(goodbyes) = tokio::time::timeout(grace + CAPTURES, all).await else {
            tracing::error!("some sessions could not be closed in time; the next start takes them over");
            return;
        };
        for error in goodbyes.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a session could not be closed; the next start takes it over");
        }
    }

    pub(crate) fn open_for_work(&self) -> Result<()> {
        if self.is_stopping() { Err(Error::Stopping) } else { Ok(()) }
    }

    pub(crate) async fn command(&self, no: SessionRowId, command: StateCommand) -> Result<CommandReply> {
        self.ask(no, |reply| ActorMessage::Command { command, admission: Admission::default(), reply }).await
    }
}
