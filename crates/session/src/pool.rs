//! The sandboxes of this server: how many there may be, and who makes room when there are as many. Those that were made in
//! advance go first, then those that wait for a message: of the tenant that has the most, the one that nobody used for longest;
//! whoever is at work stays. A session whose sandbox goes is captured and paused, and comes back with its next message.

mod memory;
mod place;
mod warm;

pub(crate) use place::{Passage, Room};
pub(crate) use warm::{Inbuilt, Kind, Prepared, keep as keep_warm};

use crate::{
    Error, Result,
    actor::{Answer, Reply, Request},
    logs::Logs,
};
use ash_model::{Quotas, SessionNo, TenantId, WorkspaceId};
use place::{Places, Ticket};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{futures::Notified, mpsc, oneshot},
    time::Instant,
};
use warm::Shelf;

/// How often those in front of the line look again by themselves: memory comes back without a word, and whoever was at work
/// does not say that it rests.
const LOOK: Duration = Duration::from_millis(100);
/// How long a session may take to let go of its sandbox, for whoever waits for its place.
const MAKING_WAY: Duration = Duration::from_secs(60);

/// A tenant loses an idle sandbox to one that has as many places or more only when nobody used it for so long: a conversation is
/// not put to rest between two messages.
const RESTED: Duration = Duration::from_secs(60);

/// What a session's sandbox is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Cold,
    Warming,
    Waiting,
    Running,
}

/// For whoever counts sandboxes, or looks for one that can go.
#[derive(Default)]
pub(crate) struct MoodCell {
    mood: AtomicU8,
    /// It would make way if it was asked.
    can_go: AtomicBool,
    /// When somebody last used it.
    used: AtomicU64,
}

/// Instants are kept as numbers, which count from here.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn millis(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*BEGAN).as_millis()).unwrap_or(u64::MAX)
}

impl MoodCell {
    pub(crate) fn set(&self, mood: Mood, can_go: bool, used: Instant) {
        self.mood.store(mood as u8, Ordering::Relaxed);
        self.can_go.store(can_go, Ordering::Relaxed);
        self.used.store(millis(used), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Mood {
        [Mood::Cold, Mood::Warming, Mood::Waiting, Mood::Running]
            [usize::from(self.mood.load(Ordering::Relaxed)) & 3]
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub cold: usize,
    pub warming: usize,
    /// Made in advance, for nobody yet.
    pub warm: usize,
    pub waiting: usize,
    pub running: usize,
}

/// Who looks after a session.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) inbox: mpsc::Sender<Request>,
    pub(crate) logs: Arc<Logs>,
    pub(crate) mood: Arc<MoodCell>,
    pub(crate) workspace: WorkspaceId,
    pub(crate) tenant: TenantId,
    /// It gave up because the disk is full.
    pub(crate) full: Arc<AtomicBool>,
}

pub(crate) type Keepers = tokio::sync::Mutex<HashMap<SessionNo, Keeper>>;

pub(crate) struct Pool {
    pub(crate) keepers: Keepers,
    places: Arc<Places>,
    pub(crate) shelf: Shelf,
    /// With less memory than this nobody new comes in.
    least_memory: u64,
    /// Of sandboxes that outlived the last server, until somebody has looked after them.
    left: Mutex<HashMap<WorkspaceId, Room>>,
    /// Those that were asked to go and have not answered.
    going: Mutex<HashSet<WorkspaceId>>,
}

/// A sandbox that is asked to go. Forgotten, it can be asked again.
struct Going<'p> {
    pool: &'p Pool,
    workspace: WorkspaceId,
}

impl<'p> Going<'p> {
    fn new(pool: &'p Pool, workspace: WorkspaceId) -> Going<'p> {
        pool.going().insert(workspace);
        // Where one can go others may be able to as well.
        pool.places.ring();
        Going { pool, workspace }
    }
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        self.pool.going().remove(&self.workspace);
        // Whoever counted on it looks whether there is room now.
        self.pool.places.ring();
    }
}

/// What became of the wish that somebody makes way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Made,
    /// It was asked, and said that it did not go. Its sandbox may be gone all the same: there may be room.
    Refused,
    /// Nobody can go.
    None,
}

impl Pool {
    pub(crate) fn new(most: usize, least_memory: u64, quotas: Quotas) -> Pool {
        LazyLock::force(&BEGAN);
        Pool {
            keepers: Keepers::default(),
            places: Places::new(most),
            shelf: Shelf::new(quotas),
            least_memory,
            left: Mutex::default(),
            going: Mutex::default(),
        }
    }

    fn going(&self) -> MutexGuard<'_, HashSet<WorkspaceId>> {
        self.going.lock().expect("nobody panics while holding it")
    }

    pub(crate) async fn counts(&self) -> Counts {
        let (warm, warming) = self.shelf.counts();
        let mut counts = Counts { warm, warming, ..Counts::default() };
        for keeper in self.keepers.lock().await.values() {
            match keeper.mood.get() {
                Mood::Cold => counts.cold += 1,
                Mood::Warming => counts.warming += 1,
                Mood::Waiting => counts.waiting += 1,
                Mood::Running => counts.running += 1,
            }
        }
        counts
    }

    /// How many wait for a place.
    pub(crate) fn queued(&self) -> usize {
        self.places.queued()
    }

    /// Somebody came or went.
    fn changed(&self) -> Notified<'_> {
        self.places.changed()
    }

    /// A sandbox that a dead server left: it has a place before anybody else is given one.
    pub(crate) fn expect(&self, workspace: WorkspaceId, tenant: &TenantId) {
        let room = self.places.count_in(tenant);
        self.left.lock().expect("nobody panics while holding it").insert(workspace, room);
    }

    pub(crate) fn is_expected(&self, workspace: WorkspaceId) -> bool {
        self.left.lock().expect("nobody panics while holding it").contains_key(&workspace)
    }

    /// Of a sandbox that is there, or is found not to be.
    pub(crate) fn found(&self, workspace: WorkspaceId, tenant: &TenantId) -> Room {
        let left = self.left.lock().expect("nobody panics while holding it").remove(&workspace);
        left.unwrap_or_else(|| self.places.count_in(tenant))
    }

    /// Room for a sandbox that somebody may want later: nobody makes way for it.
    pub(crate) fn spare(&self, tenant: &TenantId) -> Option<Room> {
        self.places.spare(tenant).filter(|_| self.short_of_memory().is_none())
    }

    /// Room for one more sandbox. If there is none somebody makes way; if nobody can, it is waited for that long, or without
    /// end: the tenant with the fewest places is served first, and its requests in the order in which they came. Whoever makes way is waited for in any case.
    ///
    /// Whoever comes looks once whether somebody can go. After that only the front of the line does; the others wait until
    /// they are there.
    pub(crate) async fn room(&self, tenant: &TenantId, patience: Option<Duration>) -> Result<Room> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let ticket = match deadline {
            Some(_) => self.places.line_up(tenant)?,
            None => self.places.line_up_anyway(tenant),
        };
        let (mut stay, mut came) = (HashSet::new(), true);
        loop {
            let why = match self.take(&ticket) {
                Ok(room) => return Ok(room),
                Err(why) => why,
            };
            let enough = self.enough_are_going(&ticket);
            let front = ticket.is_in_front();
            if (came || front) && !enough && self.make_way(Some(tenant), &mut stay).await != Way::None {
                continue;
            }
            let over = deadline.filter(|_| !enough);
            if over.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(why);
            }
            // Whoever was at work may be at rest by then.
            stay.clear();
            came &= enough;
            // Whoever moves up to the front hears of it.
            let look = (front || enough).then(|| Instant::now() + LOOK);
            ticket.rung_before(look.into_iter().chain(over).min()).await;
        }
    }

    /// Whether there will be room for everybody up to this one, if all go that were asked to.
    fn enough_are_going(&self, ticket: &Ticket) -> bool {
        // Of memory nobody knows how much each of them gives back: one after the other.
        self.going().len() >= ticket.lacking().max(1)
    }

    /// Lets go of sandboxes until there is enough memory, or nobody is left who can go. Answers how many went.
    pub(crate) async fn ease(&self) -> usize {
        let (mut stay, mut gone) = (HashSet::new(), 0);
        while self.short_of_memory().is_some() {
            match self.make_way(None, &mut stay).await {
                Way::Made => gone += 1,
                Way::Refused => {}
                Way::None => break,
            }
        }
        gone
    }

    /// How many bytes are left, if those are too few.
    fn short_of_memory(&self) -> Option<u64> {
        memory::available().filter(|available| *available < self.least_memory)
    }

    fn take(&self, ticket: &Ticket) -> Result<Room> {
        let full = Error::Capacity(self.places.most());
        // First: most who look find no place, and memory is not asked for in vain.
        if ticket.lacking() > 0 {
            return Err(full);
        }
        match self.short_of_memory() {
            Some(available) => Err(Error::LittleMemory(available >> 20)),
            None => ticket.take().ok_or(full),
        }
    }

    /// Asks one sandbox to go, for a tenant's request or for memory, and waits until it has. `stay` are those who were asked before.
    async fn make_way(&self, wanted_by: Option<&TenantId>, stay: &mut HashSet<WorkspaceId>) -> Way {
        if let Some(prepared) = self.shelf.oldest() {
            let _going = Going::new(self, prepared.workspace);
            // To its end, whoever hangs up meanwhile.
            tokio::spawn(prepared.discard()).await.ok();
            return Way::Made;
        }
        let Some((going, sessions)) = self.least_used(wanted_by, stay).await else { return Way::None };
        stay.insert(going.workspace);
        match ask_to_go(sessions).await {
            true => Way::Made,
            false => Way::Refused,
        }
    }

    /// Of the sandboxes whose sessions all can go, one of the tenant that has the most places: the one that nobody used for
    /// longest. And the sessions of it.
    async fn least_used(
        &self,
        wanted_by: Option<&TenantId>,
        stay: &HashSet<WorkspaceId>,
    ) -> Option<(Going<'_>, Vec<mpsc::Sender<Request>>)> {
        struct Sandbox {
            tenant: TenantId,
            used: u64,
            busy: bool,
            sessions: Vec<mpsc::Sender<Request>>,
        }
        let keepers = self.keepers.lock().await;
        let mut sandboxes: HashMap<WorkspaceId, Sandbox> = HashMap::new();
        for keeper in keepers.values() {
            let mood = keeper.mood.get();
            if mood == Mood::Cold {
                continue;
            }
            let tenant = keeper.tenant.clone();
            let new = || Sandbox { tenant, used: 0, busy: false, sessions: Vec::new() };
            let sandbox = sandboxes.entry(keeper.workspace).or_insert_with(new);
            sandbox.used = sandbox.used.max(keeper.mood.used.load(Ordering::Relaxed));
            sandbox.busy |= mood != Mood::Waiting || !keeper.mood.can_go.load(Ordering::Relaxed);
            sandbox.sessions.push(keeper.inbox.clone());
        }
        let least = {
            let going = self.going();
            let rested =
                millis(Instant::now()).saturating_sub(u64::try_from(RESTED.as_millis()).unwrap_or(u64::MAX));
            let is_fair = |sandbox: &Sandbox| {
                wanted_by.is_none_or(|by| {
                    let (own, theirs) = (self.places.held(by), self.places.held(&sandbox.tenant));
                    *by == sandbox.tenant || own < theirs || sandbox.used < rested
                })
            };
            let can_go = |(workspace, sandbox): &(WorkspaceId, Sandbox)| {
                !sandbox.busy && is_fair(sandbox) && !stay.contains(workspace) && !going.contains(workspace)
            };
            let order = |(_, sandbox): &(WorkspaceId, Sandbox)| {
                (Reverse(self.places.held(&sandbox.tenant)), sandbox.used)
            };
            sandboxes.into_iter().filter(can_go).min_by_key(order)
        };
        // The keepers are still ours, so nobody else has found the same one.
        let (workspace, sandbox) = least?;
        Some((Going::new(self, workspace), sandbox.sessions))
    }
}

/// Of a shared sandbox all have to go. True: they did.
async fn ask_to_go(sessions: Vec<mpsc::Sender<Request>>) -> bool {
    let asked = sessions.into_iter().map(|inbox| async move {
        let (reply, answer): (Reply<Answer>, _) = oneshot::channel();
        inbox.send(Request::Evict { reply }).await.is_ok() && matches!(answer.await, Ok(Ok(_)))
    });
    let all = futures::future::join_all(asked);
    tokio::time::timeout(MAKING_WAY, all).await.is_ok_and(|gone| gone.into_iter().all(|gone| gone))
}
