//! All sessions of this server: who looks after which, and what they share.

use crate::{
    Error, Follower, Keep, LogLine, Result,
    actor::{Actor, Answer, Purpose, Reply, Request, Seat, WantedLock, blocking},
    files,
    live::Live,
    pool::{Counts, Keeper, Kind, Mood, Prepared, Room, keep_warm},
    rooms::Rooms,
    state::{State, Turn, Wake, Wish},
};
use ash_model::{
    AgentName, Ask, Cursor, Fact, Lock, Metadata, Note, OnBusy, Options, OwnerId, Receipt, SessionId,
    SessionNo, Slug, Status, TenantId, Timestamp, TurnId, WorkspaceId,
};
use ash_sandbox::Egress;
use ash_snapshot::Folder;
use ash_store::{Agent, Env, Fate, Order, Scope, Session};
use futures::future::BoxFuture;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

pub use crate::actor::Executed;

/// How long captures may take after the grace of a shutdown; what is not done by then is taken over at the next start.
const CAPTURES: Duration = Duration::from_secs(60);
/// The longest wait before a session whose keeper gave up gets another.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Sessions {
    rooms: Arc<Rooms>,
    /// Those who get another keeper in a moment. One of us sees to it, however many visit meanwhile.
    recalled: Arc<std::sync::Mutex<HashSet<SessionNo>>>,
    stopping: Arc<AtomicBool>,
    /// Bytes that are left on the disk.
    free: Arc<AtomicU64>,
    /// Held while a session is brought back from the object store: two would do it twice.
    pub(crate) returning: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Clone)]
pub struct NewSession {
    pub tenant: TenantId,
    /// In a workspace with a name: whose that is.
    pub owner: Option<OwnerId>,
    pub metadata: Metadata,
    pub id: SessionId,
    pub agent: AgentName,
    /// The name of a workspace that it shares; otherwise it gets one of its own.
    pub workspace: Option<Slug>,
    pub options: Options,
    pub env: Env,
    /// The client's own way to a model.
    pub way: Option<Egress>,
    /// How long it waits for a place, if all are taken; `None`: as usual.
    pub patience: Option<Duration>,
}

/// A place for a sandbox, if one is needed.
pub struct Reserved(Option<Room>);

/// Where a new session is to live.
enum Place {
    Prepared(Box<Prepared>),
    Room(Option<Room>),
}

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
        }
    }

    pub fn rooms(&self) -> &Arc<Rooms> {
        &self.rooms
    }

    /// Recovery is the normal way to start: every session not at rest is woken now, not when somebody visits.
    pub async fn start(&self) -> Result<usize> {
        self.go_on_deleting().await?;
        let mut restless = self.look_around().await?;
        restless.extend(self.rooms.store.restless().await?);
        restless.sort_unstable();
        restless.dedup();
        self.expect_all().await?;
        tokio::spawn(keep_warm(self.rooms.clone()));
        let count = restless.len();
        for no in restless {
            let sessions = self.clone();
            tokio::spawn(async move {
                if let Err(error) = sessions.keeper(no).await {
                    tracing::error!(session = no.0, %error, "a session could not be taken over");
                }
            });
        }
        Ok(count)
    }

    /// A shared one is there for those who come.
    async fn is_shared(&self, sessions: &[(SessionNo, Status)]) -> Result<bool> {
        match sessions.first() {
            Some((no, _)) => Ok(self.get(*no).await?.slug.is_some()),
            None => Ok(false),
        }
    }

    /// Trees on disk keep their uids; those of ended sessions go. Answers whose sandboxes may still be alive.
    async fn look_around(&self) -> Result<Vec<SessionNo>> {
        let mut found = Vec::new();
        let root = self.rooms.settings.live_dir.clone();
        let names = tokio::task::spawn_blocking(move || {
            if let Err(error) = Folder::finish_erasing(&root) {
                tracing::warn!(%error, "what a dead server was erasing could not be erased");
            }
            list_names(&root)
        });
        let names = names.await.map_err(|_| Error::Gone)?;
        for workspace in names.iter().filter_map(|name| WorkspaceId::parse(name)) {
            let live = Live::new(&self.rooms.settings.live_dir, workspace);
            let sessions = self.rooms.store.sessions_of(workspace).await?;
            if live.is_unclaimed() {
                self.clear_unclaimed(&live, sessions.is_empty()).await;
                if sessions.is_empty() {
                    continue;
                }
            }
            // A tree that the database does not know may be somebody's only copy: it stays.
            let over = !sessions.is_empty() && sessions.iter().all(|(_, status)| *status == Status::Ended);
            if over && !self.is_shared(&sessions).await? {
                let rooms = self.rooms.clone();
                let erased = tokio::task::spawn_blocking(move || live.erase(&rooms.uids)).await;
                if let Ok(Err(error)) = erased {
                    tracing::warn!(%workspace, %error, "the tree of an ended session could not be removed");
                }
                continue;
            }
            self.rooms.uids.keep(live.stamp().and_then(|stamp| stamp.uid));
            if live.run().join("sock").exists() || live.is_marked_dirty() || live.uploads().exists() {
                if live.run().join("sock").exists() && !sessions.is_empty() {
                    self.rooms.pool.expect(workspace);
                }
                found.extend(sessions.into_iter().map(|(no, _)| no));
            }
        }
        Ok(found)
    }

    /// A sandbox that was made in advance by somebody who died. One whose session is known is that session's.
    async fn clear_unclaimed(&self, live: &Live, nobodys: bool) {
        let (live, rooms) = (live.clone(), self.rooms.clone());
        let uid = live.stamp().and_then(|stamp| stamp.uid);
        let cleared = blocking(move || match nobodys {
            true => {
                ash_sandbox::reap(&live.run())?;
                live.erase(&rooms.uids)
            }
            false => live.claim(),
        });
        if let Err(error) = cleared.await {
            // Somebody may still run there.
            self.rooms.uids.keep(uid);
            tracing::warn!(%error, "a sandbox that was made in advance could not be removed");
        }
    }

    /// Once it has a place it goes on to its end even if the caller hangs up: half a session is nobody's.
    pub async fn create(&self, new: NewSession) -> Result<Session> {
        self.open_for_more()?;
        let agent = self.agent_of(&new).await?;
        let place = match new.workspace {
            Some(ref slug) => {
                let scope = Scope { tenant: new.tenant.clone(), owner: new.owner.clone() };
                let known = self.rooms.store.find_workspace(&scope, slug).await?;
                Place::Room(self.room(known.map(|workspace| workspace.id), new.patience).await?)
            }
            None => match self.claim(&new.tenant, &agent, &new.options).await? {
                Some(prepared) => Place::Prepared(Box::new(prepared)),
                None => Place::Room(self.room(None, new.patience).await?),
            },
        };
        let sessions = self.clone();
        tokio::spawn(async move { sessions.create_whole(new, agent, place).await })
            .await
            .map_err(|_| Error::Gone)?
    }

    /// The agent of a session that can be made.
    async fn agent_of(&self, new: &NewSession) -> Result<Agent> {
        let rooms = &self.rooms;
        let agent = rooms.store.agent(&new.tenant, &new.agent).await?;
        let agent = agent.ok_or_else(|| Error::NoAgent(new.agent.to_string()))?;
        Error::unless_supported(agent.runtime, &new.options)?;
        rooms.permits(&agent.needs, new.options.limits, agent.limits)?;
        rooms.settings.program(agent.runtime, &new.options)?;
        rooms.settings.provider(&new.options, agent.provider)?;
        match new.workspace.is_some() && new.way.is_some() {
            true => Err(Error::ProviderShared),
            false => Ok(agent),
        }
    }

    async fn create_whole(&self, new: NewSession, agent: Agent, place: Place) -> Result<Session> {
        let rooms = &self.rooms;
        let workspace = match &new.workspace {
            Some(slug) => {
                let scope = Scope { tenant: new.tenant.clone(), owner: new.owner.clone() };
                Some(self.make_workspace(&scope, slug, &agent.name).await?)
            }
            None => None,
        };
        let known = workspace.as_ref().map(|workspace| workspace.id);
        let (prepared, room) = match place {
            Place::Prepared(prepared) => (Some(*prepared), None),
            Place::Room(room) => (None, room),
        };
        let created =
            Fact::Created { agent: agent.name.clone(), version: agent.version, options: new.options.clone() };
        let session = rooms
            .store
            .create(ash_store::NewSession {
                tenant: new.tenant.clone(),
                owner: workspace.as_ref().map_or(new.owner, |workspace| workspace.owner.clone()),
                metadata: new.metadata,
                id: new.id.clone(),
                workspace: known
                    .or(prepared.as_ref().map(|one| one.workspace))
                    .unwrap_or_else(WorkspaceId::fresh),
                slug: workspace.as_ref().map(|workspace| workspace.slug.clone()),
                node: rooms.settings.node.clone(),
                agent: agent.name.clone(),
                version: agent.version,
                runtime: agent.runtime,
                native_id: native_id(&new.tenant, &new.id),
                options: new.options.clone(),
                env: new.env.clone(),
                parent: None,
                base: None,
                first_checkpoints: Vec::new(),
                card: State::new(0).card(),
                notes: vec![Note { turn: None, at: rooms.clock(), fact: created.clone() }],
                at: rooms.clock(),
            })
            .await?;
        if let Some(way) = new.way {
            rooms.brought.bring(session.no, way);
        }
        let mut state = State::new(0);
        state.apply(1, &created);
        // As long as this is held the newborn finds what was prepared for it.
        let _common = prepared.map(Prepared::hand_over).transpose()?;
        let (no, workspace) = (session.no, session.workspace);
        self.seat(no, workspace, |rooms, seat| Actor::newborn(rooms, session, state, (seat, room))).await?;
        let woken = self.wish(no, Wish::Resume).await;
        // Not before: the next one can wait, this one does.
        if rooms.prewarm(&agent.needs) > 0
            && let Err(error) = self.expect(&new.tenant, &agent).await
        {
            tracing::warn!(%error, "nothing is made in advance");
        }
        woken?;
        self.get(no).await
    }

    /// A sandbox that was made in advance, if there is one that fits.
    async fn claim(&self, tenant: &TenantId, agent: &Agent, options: &Options) -> Result<Option<Prepared>> {
        let rooms = &self.rooms;
        if rooms.prewarm(&agent.needs) == 0 {
            return Ok(None);
        }
        let which = (tenant, &agent.name, agent.version);
        let version = rooms.store.version(tenant, &agent.name, agent.version).await?;
        let Some(version) = version else { return Ok(None) };
        let claimed = rooms.pool.shelf.claim(&Kind::of(rooms, which, &version, options)?);
        if claimed.is_some() {
            rooms.watch.claimed();
        }
        Ok(claimed)
    }

    /// An agent was deployed or used, and somebody will use it. What most sessions of it want is made.
    pub async fn expect(&self, tenant: &TenantId, agent: &Agent) -> Result<()> {
        let version = self.rooms.store.version(tenant, &agent.name, agent.version).await?;
        let which = (tenant, &agent.name, agent.version);
        let usual =
            version.and_then(|version| Kind::of(&self.rooms, which, &version, &Options::default()).ok());
        match usual.filter(|_| self.rooms.prewarm(&agent.needs) > 0) {
            Some(usual) => self.rooms.pool.shelf.want(usual),
            // An older version may have wanted some.
            None => self.expect_no_more(tenant, &agent.name),
        }
        Ok(())
    }

    /// Agents that want sandboxes before they are used have them from the start on.
    async fn expect_all(&self) -> Result<()> {
        for tenant in self.rooms.store.tenants().await? {
            for agent in self.rooms.store.agents(&tenant).await? {
                if agent.needs.prewarm.is_some_and(|count| count > 0) {
                    self.expect(&tenant, &agent).await?;
                }
            }
        }
        Ok(())
    }

    /// An agent was deleted.
    pub fn expect_no_more(&self, tenant: &TenantId, agent: &AgentName) {
        self.rooms.pool.shelf.forget(tenant, agent);
    }

    /// Room for a sandbox, unless the workspace has one.
    async fn room(&self, known: Option<WorkspaceId>, patience: Option<Duration>) -> Result<Option<Room>> {
        if known.is_some_and(|workspace| self.rooms.common(workspace).walls().is_some()) {
            return Ok(None);
        }
        let patience = patience.unwrap_or(self.rooms.settings.queue_patience);
        self.rooms.pool.room(Some(patience)).await.map(Some)
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
            Some(Mood::Cold) | None => self.room(Some(session.workspace), patience).await,
        }
    }

    pub async fn find(&self, scope: &Scope, id: &SessionId) -> Result<Session> {
        self.rooms.store.find(scope, id).await?.ok_or(Error::NotFound)
    }

    /// The same; a session that the database does not know may be in the object store.
    pub async fn find_anywhere(&self, scope: &Scope, id: &SessionId) -> Result<Session> {
        match (self.find(scope, id).await, &self.rooms.far) {
            (Err(Error::NotFound), Some(far)) => {
                let _alone = self.returning.lock().await;
                far.bring_back(&self.rooms, scope, id).await?;
                self.find(scope, id).await
            }
            (found, _) => found,
        }
    }

    /// Lets go of the live trees of sessions that nobody has used since, as far as the object store has what they hold.
    pub(crate) async fn let_go_of_trees(&self, before: Timestamp) -> Result<u64> {
        let root = self.rooms.settings.live_dir.clone();
        let names = tokio::task::spawn_blocking(move || list_names(&root)).await.map_err(|_| Error::Gone)?;
        let mut gone = 0;
        for workspace in names.iter().filter_map(|name| WorkspaceId::parse(name)) {
            let mut sessions = Vec::new();
            for (no, _) in self.rooms.store.sessions_of(workspace).await? {
                sessions.extend(self.rooms.store.session(no).await?);
            }
            // Of a shared one nobody may have used any.
            let cold = sessions.iter().all(|session| is_cold(session, before));
            // One that has ended is only asked if there is no other.
            sessions.sort_by_key(|session| session.card.status == Status::Ended);
            if let Some(session) = sessions.first().filter(|_| cold)
                && self.ask(session.no, |reply| Request::GoCold { reply }).await?
            {
                gone += 1;
            }
        }
        Ok(gone)
    }

    pub async fn get(&self, no: SessionNo) -> Result<Session> {
        self.rooms.store.session(no).await?.ok_or(Error::NotFound)
    }

    pub async fn prompt(&self, no: SessionNo, prompt: Prompt) -> Result<TurnId> {
        self.open_for_more()?;
        let Prompt { turn, content, ask, wake, on_busy, lock, patience } = prompt;
        let wish = Wish::Prompt { turn, content, ask, wake, on_busy };
        let room = match wake {
            Wake::Yes => self.room_to_wake(&self.get(no).await?, patience).await?,
            Wake::No => None,
        };
        self.ask(no, |reply| Request::Prompt { wish, lock, room, reply }).await?;
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
        self.ask(no, |reply| Request::Lock { wanted, reply }).await
    }

    /// Its holder used it, so it lasts.
    pub async fn renew_lock(&self, no: SessionNo, number: u64) -> Result<()> {
        self.ask(no, |reply| Request::Renew { number, reply }).await
    }

    pub async fn unlock(&self, no: SessionNo, number: u64) -> Result<()> {
        self.ask(no, |reply| Request::Unlock { number, reply }).await
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
        self.wish(no, Wish::End).await?;
        if fate == Fate::Purge {
            // One that had ended before.
            self.rooms.store.trash(no, self.rooms.clock(), by).await?;
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
        self.room_to_wake(session, patience).await.map(Reserved)
    }

    /// The receipt is missing if the session was active all along.
    pub async fn resume(&self, session: &Session, place: Reserved) -> Result<(Session, Option<Receipt>)> {
        self.open_for_more()?;
        let known = self.rooms.store.agent(&session.tenant, &session.agent).await?.is_some();
        if !known && session.card.status != Status::Ended {
            return Err(Error::NoAgent(session.agent.to_string()));
        }
        let Reserved(room) = place;
        let answer = self.ask(session.no, |reply| Request::Wish { wish: Wish::Resume, room, reply }).await?;
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
        self.stopping.load(Ordering::Relaxed)
    }

    /// No new work from here on. Running turns get `grace`; then every sandbox is captured and ended.
    pub async fn shut_down(&self, grace: Duration) {
        self.stopping.store(true, Ordering::Relaxed);
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

    /// As before, for what needs space.
    pub(crate) fn open_for_more(&self) -> Result<()> {
        self.open_for_work()?;
        match self.little_space() {
            Some(free) => Err(Error::LittleSpace(free >> 20)),
            None => Ok(()),
        }
    }

    /// Where memory is short, sandboxes that nobody is at work in go, before somebody asks for one.
    pub async fn ease_memory(&self) {
        let gone = self.rooms.pool.ease().await;
        if gone > 0 {
            tracing::warn!(
                sandboxes = gone,
                "little memory was left: sandboxes that nobody used were let go of"
            );
        }
    }

    /// How much is left, if that is too little to begin anything.
    pub fn little_space(&self) -> Option<u64> {
        let free = self.free.load(Ordering::Relaxed);
        (free < self.rooms.settings.min_free).then_some(free)
    }

    /// So much is left on the disk. If that is little, what is safe in the object store goes from here before its time.
    /// What is only here never does.
    pub async fn set_free(&self, free: u64, keep: &Keep) {
        let before = self.free.swap(free, Ordering::Relaxed);
        let least = self.rooms.settings.min_free;
        match (before < least, free < least) {
            (false, true) => {
                tracing::error!(free, "little space is left: nothing new is begun until there is more");
            }
            (true, false) => tracing::info!(free, "there is space again"),
            (_, _) => {}
        }
        // Again and again: some have to look first whether all of theirs is safe.
        if free < least
            && let Err(error) = self.sweep(&Keep { cold: Duration::ZERO, ..*keep }).await
        {
            tracing::warn!(%error, "nothing was collected");
        }
    }

    pub(crate) async fn wish(&self, no: SessionNo, wish: Wish) -> Result<Answer> {
        self.ask(no, |reply| Request::Wish { wish, room: None, reply }).await
    }

    pub(crate) async fn ask<T>(&self, no: SessionNo, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let mut request = request(reply);
        let keeper = loop {
            let keeper = self.keeper(no).await?;
            match keeper.inbox.send(request).await {
                Ok(()) => break keeper,
                // It went while we were on our way; the next one gets it.
                Err(mpsc::error::SendError(back)) => request = back,
            }
        };
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.why_gone(no, &keeper).await),
        }
    }

    /// Of a keeper that answers nothing any more.
    async fn why_gone(&self, no: SessionNo, keeper: &Keeper) -> Error {
        // Why is noted before its place is free.
        while keeper.inbox.is_closed()
            && let Some(there) = self.rooms.pool.keepers.lock().await.get(&no)
            && there.inbox.same_channel(&keeper.inbox)
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        match keeper.full.load(Ordering::Relaxed) {
            true => Error::Store(ash_store::Error::Full),
            false => Error::Gone,
        }
    }

    /// Whoever looks after the session, called in if nobody does.
    async fn keeper(&self, no: SessionNo) -> Result<Keeper> {
        loop {
            match self.rooms.pool.keepers.lock().await.get(&no) {
                Some(keeper) if !keeper.inbox.is_closed() => return Ok(keeper.clone()),
                // It is on its way out, and two must never look after one session.
                Some(_) => {}
                None => break,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let session = self.get(no).await?;
        let workspace = session.workspace;
        self.seat(no, workspace, |rooms, seat| Actor::load(rooms, session, seat)).await
    }

    /// A session that is not at rest gets another keeper when its own gave up, not when somebody visits.
    fn recall(self, no: SessionNo) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut wait = Duration::from_secs(1);
            while !self.is_stopping() && self.recalling().insert(no) {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST);
                // Before the next one is called, which may give up at once.
                self.recalling().remove(&no);
                match self.rooms.store.restless().await {
                    Ok(restless) if !restless.contains(&no) => return,
                    Ok(_) if self.keeper(no).await.is_ok() => return,
                    Ok(_) | Err(_) => {}
                }
            }
        })
    }

    fn recalling(&self) -> std::sync::MutexGuard<'_, HashSet<SessionNo>> {
        self.recalled.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The lock is held only to put the keeper in place; loading happens behind its inbox, so that one slow
    /// session delays nobody else, and two callers never load the same one twice.
    async fn seat<F, L>(&self, no: SessionNo, workspace: WorkspaceId, load: F) -> Result<Keeper>
    where
        F: FnOnce(Arc<Rooms>, Seat) -> L,
        L: Future<Output = Result<Actor>> + Send + 'static,
    {
        let mut keepers = self.rooms.pool.keepers.lock().await;
        if let Some(keeper) = keepers.get(&no) {
            return Ok(keeper.clone());
        }
        self.open_for_work()?;
        let (sender, inbox) = mpsc::channel(64);
        let keeper = Keeper {
            inbox: sender,
            logs: Arc::default(),
            mood: Arc::default(),
            workspace,
            full: Arc::default(),
        };
        let seat = Seat { logs: keeper.logs.clone(), mood: keeper.mood.clone(), inbox };
        let loading = load(self.rooms.clone(), seat);
        // A task of its own: if it panics, the rest of us goes on.
        let keeping = tokio::spawn(async move { Box::pin(loading.await?.run()).await });
        let (sessions, full) = (self.clone(), keeper.full.clone());
        tokio::spawn(async move {
            let kept = keeping.await.unwrap_or(Err(Error::Gone));
            full.store(kept.as_ref().err().is_some_and(Error::is_full), Ordering::Relaxed);
            sessions.rooms.pool.keepers.lock().await.remove(&no);
            if let Err(error) = kept {
                tracing::error!(session = no.0, %error, "a session's keeper gave up; another one is called");
                sessions.recall(no).await;
            }
        });
        keepers.insert(no, keeper.clone());
        Ok(keeper)
    }
}

/// Whether nobody has used a session since, and the object store has what it stands on.
pub(crate) fn is_cold(session: &Session, before: Timestamp) -> bool {
    let rests = matches!(session.card.status, Status::Paused | Status::Stopped | Status::Ended);
    // A session of a shared workspace may have made none.
    let made = session.card.checkpoint.is_some() || session.slug.is_some();
    let far = made && session.far_checkpoint >= session.card.checkpoint;
    rests && far && session.card.open_turns == 0 && session.last_active_at < before
}

/// The agent's own id for the conversation: ours if it is a UUID, else derived from it, so that it never changes.
pub(crate) fn native_id(tenant: &TenantId, id: &SessionId) -> Uuid {
    let ours = Uuid::try_parse(id.as_str()).ok().filter(|uuid| uuid.to_string() == id.as_str());
    ours.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{tenant}/{id}").as_bytes()))
}

fn list_names(dir: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
