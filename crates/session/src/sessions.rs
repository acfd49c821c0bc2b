//! All sessions of this server: finds or starts the actor of each session, and holds what they share.

mod create;
mod free_space;
mod read;
mod recovery;
mod registry;
mod writes;

use crate::{
    Error, LogFollower, LogLine, Result, files,
    keyed_mutex::KeyedMutex,
    machine::{LockRequest, StateCommand, Turn, WakePolicy},
    mailbox::{ActorMessage, CommandReply, ExecOutput, FileAccessMode, ReplySender},
    pool::{Admission, PoolCounts, SandboxPermit, SandboxPhase},
    services::Services,
};
use ash_model::{
    BusyPolicy, LogCursor, MessageOptions, Receipt, SessionId, SessionLock, SessionMetadata, SessionRowId,
    SessionStatus, TenantId, Timestamp, TurnId, WorkspaceId,
};
use ash_store::{AccessScope, AuditActor, EndDisposition, SessionRow};
use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::watch;

pub use create::NewSession;
pub use writes::LocklessWrite;
pub(crate) use {create::native_id, free_space::is_cold, recovery::list_names};

/// How long captures may take after the grace period of a shutdown. The next start takes over what is not done by then.
const CAPTURES: Duration = Duration::from_secs(60);
#[derive(Clone)]
pub struct Sessions {
    rooms: Arc<Services>,
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
    pub fn new(rooms: Arc<Services>) -> Sessions {
        Sessions {
            rooms,
            respawning: Arc::default(),
            stopping: Arc::default(),
            free: Arc::new(AtomicU64::new(u64::MAX)),
            bringing_back: Arc::default(),
            overwritten: Arc::default(),
        }
    }

    pub(crate) fn rooms(&self) -> &Arc<Services> {
        &self.rooms
    }

    /// By the wall clock.
    pub fn now(&self) -> Timestamp {
        self.rooms.clock()
    }

    /// Acquires a permit for a sandbox, unless the workspace has one.
    async fn acquire_permit(
        &self,
        tenant: &TenantId,
        known: Option<WorkspaceId>,
        patience: Option<Duration>,
    ) -> Result<Option<SandboxPermit>> {
        if known.is_some_and(|workspace| self.rooms.workspace(workspace).is_inhabited()) {
            return Ok(None);
        }
        self.place_in_line(tenant, self.patience(patience)).await.map(Some)
    }

    /// Acquires a permit for a sandbox. A caller that is still waiting when the server stops gets an error.
    async fn place_in_line(&self, tenant: &TenantId, patience: Duration) -> Result<SandboxPermit> {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            room = self.rooms.pool.acquire(tenant, Some(patience)) => room,
            _ = stopping.wait_for(|stopping| *stopping) => Err(Error::Stopped),
        }
    }

    /// The wait limit of a request: its own, else the default.
    fn patience(&self, own: Option<Duration>) -> Duration {
        own.unwrap_or(self.rooms.settings.queue_timeout)
    }

    /// Acquires a permit for the sandbox of a session that is to be resumed, if it needs one. If there is no capacity,
    /// the caller gets an error now instead of a start that fails later.
    async fn acquire_permit_to_wake(
        &self,
        session: &SessionRow,
        patience: Option<Duration>,
    ) -> Result<Option<SandboxPermit>> {
        if session.summary.status == SessionStatus::Ended
            || self.rooms.pool.is_reserved_for_survivor(session.workspace)
        {
            return Ok(None);
        }
        let mood = self.rooms.pool.keepers.lock().await.get(&session.no).map(|keeper| keeper.mood.get());
        match mood {
            Some(SandboxPhase::Warming | SandboxPhase::Waiting | SandboxPhase::Running) => Ok(None),
            Some(SandboxPhase::Cold) | None => {
                self.acquire_permit(&session.tenant, Some(session.workspace), patience).await
            }
        }
    }

    /// Sends a message that may need a sandbox. A session that had one may have lost it meanwhile; its actor then
    /// refuses before anything is written, and the message is sent again with a permit.
    async fn ask_with_permit(
        &self,
        no: SessionRowId,
        (room, patience): (Option<SandboxPermit>, Duration),
        request: impl Fn(Option<SandboxPermit>, ReplySender<CommandReply>) -> ActorMessage,
    ) -> Result<CommandReply> {
        match self.ask(no, |reply| request(room, reply)).await {
            Err(Error::Placeless) => {
                let tenant = self.get(no).await?.tenant;
                let room = self.place_in_line(&tenant, patience).await?;
                self.ask(no, |reply| request(Some(room), reply)).await
            }
            answered => answered,
        }
    }

    pub async fn find(&self, scope: &AccessScope, id: &SessionId) -> Result<SessionRow> {
        self.rooms.store.find_session(scope, id).await?.ok_or(Error::NotFound)
    }

    /// Like `find`, but also finds sessions that only the object store has.
    pub async fn find_anywhere(&self, scope: &AccessScope, id: &SessionId) -> Result<SessionRow> {
        match (self.find(scope, id).await, &self.rooms.replicator) {
            (Err(Error::NotFound), Some(far)) => {
                let _alone = self.bringing_back.lock(scope.tenant.clone()).await;
                Box::pin(far.bring_back(scope, id)).await?;
                self.find(scope, id).await
            }
            (found, _) => found,
        }
    }

    pub async fn get(&self, no: SessionRowId) -> Result<SessionRow> {
        self.rooms.store.session(no).await?.ok_or(Error::NotFound)
    }

    pub async fn prompt(&self, no: SessionRowId, prompt: PromptSpec) -> Result<TurnId> {
        self.check_room_for_work()?;
        ash_failpoint::reach_async("prompt.asked").await;
        let PromptSpec { turn, content, options: ask, wake, on_busy, lock, queue_timeout: patience } = prompt;
        let wish = StateCommand::Prompt { turn, content, ask, wake, on_busy, lock };
        let room = match wake {
            WakePolicy::Allowed => self.acquire_permit_to_wake(&self.get(no).await?, patience).await?,
            WakePolicy::Forbidden => None,
        };
        let request = |room, reply| {
            // An accepted message waits for a sandbox without a limit.
            let passage = Admission { permit: room, queue_timeout: None };
            ActorMessage::Command { wish: wish.clone(), passage, reply }
        };
        self.ask_with_permit(no, (room, self.patience(patience)), request).await?;
        Ok(turn)
    }

    /// The open turns, in the order in which they run.
    pub async fn queue(&self, no: SessionRowId) -> Result<Vec<Turn>> {
        self.ask(no, |reply| ActorMessage::Queue { reply }).await
    }

    /// Takes a queued message back.
    pub async fn withdraw(&self, no: SessionRowId, turn: TurnId) -> Result<()> {
        self.rooms.store.turn(no, turn).await?.ok_or(Error::NoTurn)?;
        self.command(no, StateCommand::Withdraw { turn }).await.map(drop)
    }

    /// Moves these queued turns before the others.
    pub async fn reorder(&self, no: SessionRowId, first: Vec<TurnId>) -> Result<()> {
        for turn in &first {
            self.rooms.store.turn(no, *turn).await?.ok_or(Error::NoTurn)?;
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
        self.rooms.store.request_end(no, by.clone(), fate).await?;
        ash_failpoint::reach_async("purge.ordered").await;
        self.command(no, StateCommand::End).await?;
        if fate == EndDisposition::Purge {
            // Needed for a session that had ended before.
            self.rooms.store.trash(no, self.rooms.clock(), by).await?;
            ash_failpoint::reach_async("purge.recorded").await;
            self.write_tombstone(no).await?;
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
        patience: Option<Duration>,
    ) -> Result<SandboxReservation> {
        self.check_room_for_work()?;
        let room = self.acquire_permit_to_wake(session, patience).await?;
        Ok(SandboxReservation(Admission { permit: room, queue_timeout: Some(self.patience(patience)) }))
    }

    /// The receipt is missing if the session was active already.
    pub async fn resume(
        &self,
        session: &SessionRow,
        place: SandboxReservation,
    ) -> Result<(SessionRow, Option<Receipt>)> {
        self.check_room_for_work()?;
        let SandboxReservation(Admission { permit: room, queue_timeout: patience }) = place;
        let request = |room, reply| ActorMessage::Command {
            wish: StateCommand::Resume,
            passage: Admission { permit: room, queue_timeout: patience },
            reply,
        };
        let answer = self.ask_with_permit(session.no, (room, self.patience(patience)), request).await?;
        Ok((self.get(session.no).await?, answer.receipt))
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
        let (source, pen) = self.ask(session.no, |reply| ActorMessage::Files { purpose, reply }).await?;
        Ok(files::WorkspaceFiles { source, repo: self.rooms.repo(&session.tenant)?, _pen: pen })
    }

    pub async fn touched(&self, no: SessionRowId) -> Result<()> {
        let keeper = self.actor(no).await?;
        keeper.inbox.send(ActorMessage::FilesChanged).await.map_err(|_| Error::Gone)
    }

    pub async fn logs(&self, no: SessionRowId, after: i64) -> Vec<LogLine> {
        let keepers = self.rooms.pool.keepers.lock().await;
        keepers.get(&no).map(|keeper| keeper.logs.after(after)).unwrap_or_default()
    }

    pub fn follow(&self, no: SessionRowId, after: LogCursor) -> LogFollower {
        LogFollower::new(self.rooms.store.clone(), &self.rooms.bells, no, after)
    }

    pub async fn counts(&self) -> PoolCounts {
        self.rooms.pool.counts().await
    }

    /// How many sandboxes may be alive.
    pub fn max_sandboxes(&self) -> usize {
        self.rooms.settings.max_sandboxes
    }

    /// How many requests wait for a sandbox.
    pub fn queued(&self) -> usize {
        self.rooms.pool.queued()
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Accepts no new work from here on. Running turns get `grace`; then every sandbox is captured and ended.
    pub async fn shut_down(&self, grace: Duration) {
        self.stopping.send_replace(true);
        self.rooms.pool.warm.close().await;
        let numbers: Vec<SessionRowId> = self.rooms.pool.keepers.lock().await.keys().copied().collect();
        let goodbyes =
            numbers.into_iter().map(|no| self.ask(no, move |reply| ActorMessage::Shutdown { grace, reply }));
        let all = futures::future::join_all(goodbyes);
        let Ok(goodbyes) = tokio::time::timeout(grace + CAPTURES, all).await else {
            tracing::error!(
                "not every session could be closed in time; the rest is taken over at the next start"
            );
            return;
        };
        for error in goodbyes.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a session could not be closed; it is taken over at the next start");
        }
    }

    pub(crate) fn open_for_work(&self) -> Result<()> {
        if self.is_stopping() { Err(Error::Stopping) } else { Ok(()) }
    }

    pub(crate) async fn command(&self, no: SessionRowId, wish: StateCommand) -> Result<CommandReply> {
        self.ask(no, |reply| ActorMessage::Command { wish, passage: Admission::default(), reply }).await
    }
}
