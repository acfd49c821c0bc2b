//! All sessions of this server: who looks after which, and what they share.

mod create;
mod keeper;
mod space;
mod start;
mod writes;

use crate::{
    Error, Follower, LogLine, Result,
    actor::{Answer, Purpose, Reply, Request, WantedLock},
    files,
    keyed_mutex::KeyedMutex,
    pool::{Counts, Mood, Passage, Room},
    rooms::Rooms,
    state::{Turn, Wake, Wish},
};
use ash_model::{
    Ask, Cursor, Lock, Metadata, OnBusy, Receipt, SessionId, SessionNo, Status, TenantId, TurnId, WorkspaceId,
};
use ash_store::{Fate, Order, Scope, Session};
use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::watch;

pub use crate::actor::Executed;
pub use create::NewSession;
pub use writes::LocklessWrite;
pub(crate) use {create::native_id, space::is_cold, start::list_names};

/// How long captures may take after the grace of a shutdown; what is not done by then is taken over at the next start.
const CAPTURES: Duration = Duration::from_secs(60);
#[derive(Clone)]
pub struct Sessions {
    rooms: Arc<Rooms>,
    /// Those who get another keeper in a moment. One of us sees to it, however many visit meanwhile.
    recalled: Arc<std::sync::Mutex<HashSet<SessionNo>>>,
    stopping: Arc<watch::Sender<bool>>,
    /// Bytes that are left on the disk.
    free: Arc<AtomicU64>,
    /// Held while a session of a tenant is brought back from the object store: two would do it twice. No other tenant waits.
    pub(crate) returning: Arc<KeyedMutex<TenantId>>,
    overwritten: Arc<writes::Overwritten>,
}

/// A place for a sandbox, if one is needed.
pub struct Reserved(Passage);

#[derive(Debug, Clone)]
pub struct Prompt {
    pub turn: TurnId,
    pub content: serde_json::Value,
    pub ask: Ask,
    pub wake: Wake,
    pub on_busy: OnBusy,
    /// The number of the lock that its sender holds.
    pub lock: Option<u64>,
    /// As for a new session.
    pub patience: Option<Duration>,
}

impl Sessions {
    pub fn new(rooms: Rooms) -> Sessions {
        Sessions {
            rooms: Arc::new(rooms),
            recalled: Arc::default(),
            stopping: Arc::default(),
            free: Arc::new(AtomicU64::new(u64::MAX)),
            returning: Arc::default(),
            overwritten: Arc::default(),
        }
    }

    pub fn rooms(&self) -> &Arc<Rooms> {
        &self.rooms
    }

    /// Room for a sandbox, unless the workspace has one.
    async fn room(
        &self,
        tenant: &TenantId,
        known: Option<WorkspaceId>,
        patience: Option<Duration>,
    ) -> Result<Option<Room>> {
        if known.is_some_and(|workspace| self.rooms.common(workspace).is_inhabited()) {
            return Ok(None);
        }
        self.place_in_line(tenant, self.patience(patience)).await.map(Some)
    }

    /// A place for a sandbox. A caller that waits in line for one when the server stops gets none.
    async fn place_in_line(&self, tenant: &TenantId, patience: Duration) -> Result<Room> {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            room = self.rooms.pool.room(tenant, Some(patience)) => room,
            _ = stopping.wait_for(|stopping| *stopping) => Err(Error::Stopped),
        }
    }

    /// Of whoever does not say, the usual one.
    fn patience(&self, own: Option<Duration>) -> Duration {
        own.unwrap_or(self.rooms.settings.queue_patience)
    }

    /// Room for the sandbox of a session that is to come back, if it needs one: better to say now that there is none than
    /// to let it fail.
    async fn room_to_wake(&self, session: &Session, patience: Option<Duration>) -> Result<Option<Room>> {
        if session.card.status == Status::Ended || self.rooms.pool.is_expected(session.workspace) {
            return Ok(None);
        }
        let mood = self.rooms.pool.keepers.lock().await.get(&session.no).map(|keeper| keeper.mood.get());
        match mood {
            Some(Mood::Warming | Mood::Waiting | Mood::Running) => Ok(None),
            Some(Mood::Cold) | None => self.room(&session.tenant, Some(session.workspace), patience).await,
        }
    }

    /// Asks for what may take a sandbox. A session that had one when it was looked at may have none when it is asked; it says
    /// so before anything is written, and is asked again with a place.
    async fn ask_with_place(
        &self,
        no: SessionNo,
        (room, patience): (Option<Room>, Duration),
        request: impl Fn(Option<Room>, Reply<Answer>) -> Request,
    ) -> Result<Answer> {
        match self.ask(no, |reply| request(room, reply)).await {
            Err(Error::Placeless) => {
                let tenant = self.get(no).await?.tenant;
                let room = self.place_in_line(&tenant, patience).await?;
                self.ask(no, |reply| request(Some(room), reply)).await
            }
            answered => answered,
        }
    }

    pub async fn find(&self, scope: &Scope, id: &SessionId) -> Result<Session> {
        self.rooms.store.find(scope, id).await?.ok_or(Error::NotFound)
    }

    /// The same; a session that the database does not know may be in the object store.
    pub async fn find_anywhere(&self, scope: &Scope, id: &SessionId) -> Result<Session> {
        match (self.find(scope, id).await, &self.rooms.far) {
            (Err(Error::NotFound), Some(far)) => {
                let _alone = self.returning.lock(scope.tenant.clone()).await;
                Box::pin(far.bring_back(&self.rooms, scope, id)).await?;
                self.find(scope, id).await
            }
            (found, _) => found,
        }
    }

    pub async fn get(&self, no: SessionNo) -> Result<Session> {
        self.rooms.store.session(no).await?.ok_or(Error::NotFound)
    }

    pub async fn prompt(&self, no: SessionNo, prompt: Prompt) -> Result<TurnId> {
        self.open_for_more()?;
        ash_failpoint::reach_async("prompt.asked").await;
        let Prompt { turn, content, ask, wake, on_busy, lock, patience } = prompt;
        let wish = Wish::Prompt { turn, content, ask, wake, on_busy, lock };
        let room = match wake {
            Wake::Yes => self.room_to_wake(&self.get(no).await?, patience).await?,
            Wake::No => None,
        };
        let request = |room, reply| {
            // Once it is accepted it is waited for however long it takes.
            let passage = Passage { room, patience: None };
            Request::Wish { wish: wish.clone(), passage, reply }
        };
        self.ask_with_place(no, (room, self.patience(patience)), request).await?;
        Ok(turn)
    }

    /// The turns that are not over, in the order that they run in.
    pub async fn queue(&self, no: SessionNo) -> Result<Vec<Turn>> {
        self.ask(no, |reply| Request::Queue { reply }).await
    }

    /// Takes a message back that waits.
    pub async fn withdraw(&self, no: SessionNo, turn: TurnId) -> Result<()> {
        self.rooms.store.turn(no, turn).await?.ok_or(Error::NoTurn)?;
        self.wish(no, Wish::Withdraw { turn }).await.map(drop)
    }

    /// Lets these go before the others that wait.
    pub async fn reorder(&self, no: SessionNo, first: Vec<TurnId>) -> Result<()> {
        for turn in &first {
            self.rooms.store.turn(no, *turn).await?.ok_or(Error::NoTurn)?;
        }
        self.wish(no, Wish::Reorder { first }).await.map(drop)
    }

    pub async fn lock(&self, no: SessionNo, wanted: WantedLock) -> Result<Lock> {
        let held = wanted.held;
        let lock = self.ask(no, |reply| Request::Lock { wanted, reply }).await?;
        self.overwritten.note_taken(no, lock.number, held);
        Ok(lock)
    }

    /// Its holder used it, so it lasts.
    pub async fn renew_lock(&self, no: SessionNo, number: u64) -> Result<()> {
        self.ask(no, |reply| Request::Renew { number, reply }).await
    }

    /// Another client writes, since lock `number` is over. Refused if it holds again.
    pub async fn outlive_lock(&self, no: SessionNo, number: u64) -> Result<()> {
        self.ask(no, |reply| Request::Outlive { number, reply }).await
    }

    pub async fn unlock(&self, no: SessionNo, number: u64) -> Result<()> {
        self.ask(no, |reply| Request::Unlock { number, reply }).await?;
        self.overwritten.note_over(no, number);
        Ok(())
    }

    /// The turn that was asked to stop, if one ran.
    pub async fn interrupt(&self, no: SessionNo) -> Result<Option<TurnId>> {
        Ok(self.wish(no, Wish::Interrupt).await?.turn)
    }

    pub async fn pause(&self, no: SessionNo) -> Result<Session> {
        self.wish(no, Wish::Pause).await?;
        self.get(no).await
    }

    pub async fn stop(&self, no: SessionNo) -> Result<Session> {
        self.wish(no, Wish::Stop).await?;
        self.get(no).await
    }

    /// Its sandbox goes, as soon as what it did is safe.
    pub(crate) async fn release(&self, no: SessionNo, by_force: bool) -> Result<()> {
        self.wish(no, Wish::Release { by_force }).await.map(drop)
    }

    /// Ends it, and puts it into the trash if that is to become of it. Answers how it was at last.
    pub async fn end(&self, no: SessionNo, by: Order, fate: Fate) -> Result<Session> {
        self.rooms.store.order_end(no, by.clone(), fate).await?;
        ash_failpoint::reach_async("purge.ordered").await;
        self.wish(no, Wish::End).await?;
        if fate == Fate::Purge {
            // One that had ended before.
            self.rooms.store.trash(no, self.rooms.clock(), by).await?;
            ash_failpoint::reach_async("purge.recorded").await;
            self.bury(no).await?;
            ash_failpoint::reach_async("purge.buried").await;
        }
        self.get(no).await
    }

    /// Notes something on it, instead of what was noted before.
    pub async fn label(&self, no: SessionNo, metadata: Metadata) -> Result<Session> {
        self.ask(no, |reply| Request::Label { metadata, reply }).await?;
        self.get(no).await
    }

    /// A place for a session that is to come back: before anything about it is changed.
    pub async fn reserve(&self, session: &Session, patience: Option<Duration>) -> Result<Reserved> {
        self.open_for_more()?;
        let room = self.room_to_wake(session, patience).await?;
        Ok(Reserved(Passage { room, patience: Some(self.patience(patience)) }))
    }

    /// The receipt is missing if the session was active all along.
    pub async fn resume(&self, session: &Session, place: Reserved) -> Result<(Session, Option<Receipt>)> {
        self.open_for_more()?;
        let Reserved(Passage { room, patience }) = place;
        let request =
            |room, reply| Request::Wish { wish: Wish::Resume, passage: Passage { room, patience }, reply };
        let answer = self.ask_with_place(session.no, (room, self.patience(patience)), request).await?;
        Ok((self.get(session.no).await?, answer.receipt))
    }

    pub async fn exec(&self, no: SessionNo, command: String, timeout: Duration) -> Result<Executed> {
        self.open_for_work()?;
        self.ask(no, |reply| Request::Exec { command, timeout, reply }).await
    }

    pub async fn files(&self, session: &Session) -> Result<files::Place> {
        self.place(session, Purpose::Read).await
    }

    /// For writing. Call `touched` afterwards.
    pub async fn files_to_write(&self, session: &Session) -> Result<files::Place> {
        self.place(session, Purpose::Write).await
    }

    async fn place(&self, session: &Session, purpose: Purpose) -> Result<files::Place> {
        if purpose == Purpose::Write {
            self.open_for_work()?;
        }
        let (source, pen) = self.ask(session.no, |reply| Request::Files { purpose, reply }).await?;
        Ok(files::Place { source, repo: self.rooms.repo(&session.tenant)?, _pen: pen })
    }

    pub async fn touched(&self, no: SessionNo) -> Result<()> {
        let keeper = self.keeper(no).await?;
        keeper.inbox.send(Request::Touched).await.map_err(|_| Error::Gone)
    }

    pub async fn logs(&self, no: SessionNo, after: i64) -> Vec<LogLine> {
        let keepers = self.rooms.pool.keepers.lock().await;
        keepers.get(&no).map(|keeper| keeper.logs.after(after)).unwrap_or_default()
    }

    pub fn follow(&self, no: SessionNo, after: Cursor) -> Follower {
        Follower::new(self.rooms.store.clone(), &self.rooms.bells, no, after)
    }

    pub async fn counts(&self) -> Counts {
        self.rooms.pool.counts().await
    }

    /// How many wait for a place.
    pub fn queued(&self) -> usize {
        self.rooms.pool.queued()
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// No new work from here on. Running turns get `grace`; then every sandbox is captured and ended.
    pub async fn shut_down(&self, grace: Duration) {
        self.stopping.send_replace(true);
        self.rooms.pool.shelf.close().await;
        let numbers: Vec<SessionNo> = self.rooms.pool.keepers.lock().await.keys().copied().collect();
        let goodbyes =
            numbers.into_iter().map(|no| self.ask(no, move |reply| Request::Shutdown { grace, reply }));
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

    pub(crate) async fn wish(&self, no: SessionNo, wish: Wish) -> Result<Answer> {
        self.ask(no, |reply| Request::Wish { wish, passage: Passage::default(), reply }).await
    }
}
