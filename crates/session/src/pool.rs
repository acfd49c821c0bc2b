//! The sandboxes of this server: how many there may be, and who makes room when there are as many. Those that were made in
//! advance go first, then those that wait for a message: of the tenant that has the most, the one that nobody used for longest;
//! whoever is at work stays. A session whose sandbox goes is captured and paused, and comes back with its next message.

mod memory;
mod slots;
mod warm_pool;

pub(crate) use slots::{Admission, SandboxPermit};
pub(crate) use warm_pool::{SandboxBuildSpec, WarmSandbox, WarmSandboxKind, run as keep_warm};

use crate::{
    Error, Result,
    agent_logs::AgentLogBuffer,
    machine::Evictability,
    mailbox::{ActorMessage, CommandReply, EvictionCost, ReplySender},
};
use ash_model::{Quotas, SessionRowId, TenantId, WorkspaceId};
use slots::{SandboxSlots, SlotTicket};
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
    sync::{Notify, futures::Notified, mpsc, oneshot},
    time::Instant,
};
use warm_pool::WarmPool;

/// How often those in front of the line look again by themselves: memory comes back without a word, and whoever was at work
/// does not say that it rests.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a session may take to let go of its sandbox, for whoever waits for its place.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(60);

/// A tenant loses an idle sandbox to one that has as many places or more only when nobody used it for so long: a conversation is
/// not put to rest between two messages.
const MIN_IDLE_BEFORE_EVICTION: Duration = Duration::from_secs(60);
/// The same of a sandbox whose session would lose what nobody keeps: files that are never captured, or its client's key.
const MIN_IDLE_BEFORE_LOSS: Duration = Duration::from_secs(600);

/// What a session's sandbox is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxPhase {
    Cold,
    Warming,
    Waiting,
    Running,
}

/// For whoever counts sandboxes, or looks for one that can go.
#[derive(Default)]
pub(crate) struct SandboxPhaseCell {
    mood: AtomicU8,
    /// Whether it would make way if it was asked.
    evictability: AtomicU8,
    /// When somebody last used it.
    used: AtomicU64,
}

/// Instants are kept as numbers, which count from here.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn millis(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*BEGAN).as_millis()).unwrap_or(u64::MAX)
}

impl SandboxPhaseCell {
    pub(crate) fn set(&self, mood: SandboxPhase, evictability: Evictability, used: Instant) {
        self.mood.store(mood as u8, Ordering::Relaxed);
        self.evictability.store(evictability as u8, Ordering::Relaxed);
        self.used.store(millis(used), Ordering::Relaxed);
    }

    fn evictability(&self) -> Evictability {
        [Evictability::Never, Evictability::Loses, Evictability::Freely]
            [usize::from(self.evictability.load(Ordering::Relaxed)).min(2)]
    }

    pub(crate) fn get(&self) -> SandboxPhase {
        [SandboxPhase::Cold, SandboxPhase::Warming, SandboxPhase::Waiting, SandboxPhase::Running]
            [usize::from(self.mood.load(Ordering::Relaxed)) & 3]
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolCounts {
    pub cold: usize,
    pub warming: usize,
    /// Made in advance, for nobody yet.
    pub warm: usize,
    pub waiting: usize,
    pub running: usize,
}

/// Who looks after a session.
#[derive(Clone)]
pub(crate) struct ActorHandle {
    pub(crate) inbox: mpsc::Sender<ActorMessage>,
    pub(crate) logs: Arc<AgentLogBuffer>,
    pub(crate) mood: Arc<SandboxPhaseCell>,
    pub(crate) workspace: WorkspaceId,
    pub(crate) tenant: TenantId,
    /// It gave up because the disk is full.
    pub(crate) full: Arc<AtomicBool>,
}

pub(crate) type ActorHandles = tokio::sync::Mutex<HashMap<SessionRowId, ActorHandle>>;

pub(crate) struct SandboxPool {
    pub(crate) keepers: ActorHandles,
    /// Rings when an actor has gone, and its session can have another one.
    pub(crate) actor_left: Notify,
    places: Arc<SandboxSlots>,
    pub(crate) warm: WarmPool,
    /// With less memory than this nobody new comes in.
    least_memory: u64,
    /// Of sandboxes that outlived the last server, until somebody has looked after them.
    survivors: Mutex<HashMap<WorkspaceId, SandboxPermit>>,
    /// Those that were asked to go and have not answered.
    going: Mutex<HashSet<WorkspaceId>>,
}

/// A sandbox that is asked to go. Forgotten, it can be asked again.
struct EvictionGuard<'p> {
    pool: &'p SandboxPool,
    workspace: WorkspaceId,
}

impl<'p> EvictionGuard<'p> {
    fn new(pool: &'p SandboxPool, workspace: WorkspaceId) -> EvictionGuard<'p> {
        pool.going().insert(workspace);
        // Where one can go others may be able to as well.
        pool.places.ring();
        EvictionGuard { pool, workspace }
    }
}

impl Drop for EvictionGuard<'_> {
    fn drop(&mut self) {
        self.pool.going().remove(&self.workspace);
        // Whoever counted on it looks whether there is room now.
        self.pool.places.ring();
    }
}

/// What became of the wish that somebody makes way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictionOutcome {
    Evicted,
    /// It was asked, and said that it did not go. Its sandbox may be gone all the same: there may be room.
    Refused,
    /// Nobody can go.
    NoCandidate,
}

impl SandboxPool {
    pub(crate) fn new(most: usize, least_memory: u64, quotas: Quotas) -> SandboxPool {
        LazyLock::force(&BEGAN);
        SandboxPool {
            keepers: ActorHandles::default(),
            actor_left: Notify::new(),
            places: SandboxSlots::new(most),
            warm: WarmPool::new(quotas),
            least_memory,
            survivors: Mutex::default(),
            going: Mutex::default(),
        }
    }

    fn going(&self) -> MutexGuard<'_, HashSet<WorkspaceId>> {
        self.going.lock().expect("nobody panics while holding it")
    }

    pub(crate) async fn counts(&self) -> PoolCounts {
        let (warm, warming) = self.warm.counts();
        let mut counts = PoolCounts { warm, warming, ..PoolCounts::default() };
        for keeper in self.keepers.lock().await.values() {
            match keeper.mood.get() {
                SandboxPhase::Cold => counts.cold += 1,
                SandboxPhase::Warming => counts.warming += 1,
                SandboxPhase::Waiting => counts.waiting += 1,
                SandboxPhase::Running => counts.running += 1,
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
    pub(crate) fn reserve_for_survivor(&self, workspace: WorkspaceId, tenant: &TenantId) {
        let room = self.places.acquire_unconditionally(tenant);
        self.survivors.lock().expect("nobody panics while holding it").insert(workspace, room);
    }

    pub(crate) fn is_reserved_for_survivor(&self, workspace: WorkspaceId) -> bool {
        self.survivors.lock().expect("nobody panics while holding it").contains_key(&workspace)
    }

    /// Of a sandbox that is there, or is found not to be.
    pub(crate) fn claim_survivor(&self, workspace: WorkspaceId, tenant: &TenantId) -> SandboxPermit {
        let left = self.survivors.lock().expect("nobody panics while holding it").remove(&workspace);
        left.unwrap_or_else(|| self.places.acquire_unconditionally(tenant))
    }

    /// Room for a sandbox that somebody may want later: nobody makes way for it.
    pub(crate) fn try_acquire_idle(&self, tenant: &TenantId) -> Option<SandboxPermit> {
        self.places.try_acquire_spare(tenant).filter(|_| self.short_of_memory().is_none())
    }

    /// Room for one more sandbox. If there is none somebody makes way; if nobody can, it is waited for that long, or without
    /// end: the tenant with the fewest places is served first, and its requests in the order in which they came. Whoever makes way is waited for in any case.
    ///
    /// Whoever comes looks once whether somebody can go. After that only the front of the line does; the others wait until
    /// they are there.
    pub(crate) async fn acquire(
        &self,
        tenant: &TenantId,
        patience: Option<Duration>,
    ) -> Result<SandboxPermit> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let ticket = match deadline {
            Some(_) => self.places.enqueue(tenant)?,
            None => self.places.enqueue_unbounded(tenant),
        };
        let (mut stay, mut came) = (HashSet::new(), true);
        loop {
            let why = match self.take(&ticket) {
                Ok(room) => return Ok(room),
                Err(why) => why,
            };
            let enough = self.enough_are_going(&ticket);
            let front = ticket.is_in_front();
            if (came || front)
                && !enough
                && self.evict_one(Some(tenant), &mut stay).await != EvictionOutcome::NoCandidate
            {
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
            let look = (front || enough).then(|| Instant::now() + QUEUE_POLL_INTERVAL);
            ticket.wait_for_turn(look.into_iter().chain(over).min()).await;
        }
    }

    /// Whether there will be room for everybody up to this one, if all go that were asked to.
    fn enough_are_going(&self, ticket: &SlotTicket) -> bool {
        // Of memory nobody knows how much each of them gives back: one after the other.
        self.going().len() >= ticket.lacking().max(1)
    }

    /// Lets go of sandboxes until there is enough memory, or nobody is left who can go. Answers how many went.
    pub(crate) async fn free_memory(&self) -> usize {
        let (mut stay, mut gone) = (HashSet::new(), 0);
        while self.short_of_memory().is_some() {
            match self.evict_one(None, &mut stay).await {
                EvictionOutcome::Evicted => gone += 1,
                EvictionOutcome::Refused => {}
                EvictionOutcome::NoCandidate => break,
            }
        }
        gone
    }

    /// How many bytes are left, if those are too few.
    fn short_of_memory(&self) -> Option<u64> {
        memory::available().filter(|available| *available < self.least_memory)
    }

    fn take(&self, ticket: &SlotTicket) -> Result<SandboxPermit> {
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
    async fn evict_one(
        &self,
        wanted_by: Option<&TenantId>,
        stay: &mut HashSet<WorkspaceId>,
    ) -> EvictionOutcome {
        if let Some(prepared) = self.warm.oldest() {
            let _going = EvictionGuard::new(self, prepared.workspace);
            // To its end, whoever hangs up meanwhile.
            tokio::spawn(prepared.discard()).await.ok();
            return EvictionOutcome::Evicted;
        }
        let Some((going, sessions)) = self.eviction_candidate(wanted_by, stay).await else {
            return EvictionOutcome::NoCandidate;
        };
        stay.insert(going.workspace);
        match request_eviction(sessions).await {
            true => EvictionOutcome::Evicted,
            false => EvictionOutcome::Refused,
        }
    }

    /// Of the sandboxes whose sessions all can go, one of the tenant that has the most places: the one that nobody used for
    /// longest. And the sessions of it.
    async fn eviction_candidate(
        &self,
        wanted_by: Option<&TenantId>,
        stay: &HashSet<WorkspaceId>,
    ) -> Option<(EvictionGuard<'_>, Vec<(mpsc::Sender<ActorMessage>, EvictionCost)>)> {
        struct EvictionCandidate {
            tenant: TenantId,
            used: u64,
            busy: bool,
            loses: bool,
            sessions: Vec<mpsc::Sender<ActorMessage>>,
        }
        let keepers = self.keepers.lock().await;
        let mut sandboxes: HashMap<WorkspaceId, EvictionCandidate> = HashMap::new();
        for keeper in keepers.values() {
            let mood = keeper.mood.get();
            if mood == SandboxPhase::Cold {
                continue;
            }
            let tenant = keeper.tenant.clone();
            let new =
                || EvictionCandidate { tenant, used: 0, busy: false, loses: false, sessions: Vec::new() };
            let sandbox = sandboxes.entry(keeper.workspace).or_insert_with(new);
            sandbox.used = sandbox.used.max(keeper.mood.used.load(Ordering::Relaxed));
            let evictability = keeper.mood.evictability();
            sandbox.busy |= mood != SandboxPhase::Waiting || evictability == Evictability::Never;
            sandbox.loses |= evictability == Evictability::Loses;
            sandbox.sessions.push(keeper.inbox.clone());
        }
        let least = {
            let going = self.going();
            let now = millis(Instant::now());
            let is_fair = |sandbox: &EvictionCandidate| {
                let claim = wanted_by.map(|by| EvictionClaim {
                    same_tenant: *by == sandbox.tenant,
                    own: self.places.held(by),
                    theirs: self.places.held(&sandbox.tenant),
                });
                let idle = Duration::from_millis(now.saturating_sub(sandbox.used));
                may_take(claim, idle, sandbox.loses)
            };
            let can_go = |(workspace, sandbox): &(WorkspaceId, EvictionCandidate)| {
                !sandbox.busy && is_fair(sandbox) && !stay.contains(workspace) && !going.contains(workspace)
            };
            let order = |(_, sandbox): &(WorkspaceId, EvictionCandidate)| {
                (sandbox.loses, Reverse(self.places.held(&sandbox.tenant)), sandbox.used)
            };
            sandboxes.into_iter().filter(can_go).min_by_key(order)
        };
        // The keepers are still ours, so nobody else has found the same one.
        let (workspace, sandbox) = least?;
        let cost = if sandbox.loses { EvictionCost::MayLose } else { EvictionCost::Nothing };
        let sessions = sandbox.sessions.into_iter().map(|inbox| (inbox, cost)).collect();
        Some((EvictionGuard::new(self, workspace), sessions))
    }
}

/// How many places the tenant of a request has, and the tenant of the sandbox that could go.
#[derive(Debug, Clone, Copy)]
struct EvictionClaim {
    same_tenant: bool,
    own: usize,
    theirs: usize,
}

/// Whether an idle sandbox makes way for a request, or for want of memory (`None`). What would be lost with it goes only to
/// another tenant with fewer places, and after a long time without use: otherwise one tenant could hold all places for ever.
fn may_take(claim: Option<EvictionClaim>, idle: Duration, loses: bool) -> bool {
    match claim {
        None => !loses,
        Some(EvictionClaim { same_tenant, own, theirs }) if loses => {
            !same_tenant && own < theirs && idle > MIN_IDLE_BEFORE_LOSS
        }
        Some(EvictionClaim { same_tenant, own, theirs }) => {
            same_tenant || own < theirs || idle > MIN_IDLE_BEFORE_EVICTION
        }
    }
}

/// Of a shared sandbox all have to go. True: they did.
async fn request_eviction(sessions: Vec<(mpsc::Sender<ActorMessage>, EvictionCost)>) -> bool {
    let asked = sessions.into_iter().map(|(inbox, cost)| async move {
        let (reply, answer): (ReplySender<CommandReply>, _) = oneshot::channel();
        inbox.send(ActorMessage::Evict { cost, reply }).await.is_ok() && matches!(answer.await, Ok(Ok(_)))
    });
    let all = futures::future::join_all(asked);
    tokio::time::timeout(EVICTION_TIMEOUT, all).await.is_ok_and(|gone| gone.into_iter().all(|gone| gone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_lost_goes_only_to_a_tenant_with_fewer_places_and_after_a_long_time() {
        let claim = |same_tenant, own, theirs| Some(EvictionClaim { same_tenant, own, theirs });
        let long = MIN_IDLE_BEFORE_LOSS + Duration::from_secs(1);
        assert!(may_take(claim(false, 0, 4), long, true), "nobody holds all places for ever");
        assert!(!may_take(claim(false, 0, 4), MIN_IDLE_BEFORE_LOSS, true));
        assert!(!may_take(claim(false, 4, 4), long, true), "their share is not larger");
        assert!(!may_take(claim(true, 4, 4), long, true), "a tenant keeps what it has");
        assert!(!may_take(None, long, true), "memory alone is no reason");
        assert!(may_take(claim(false, 0, 4), Duration::ZERO, false));
        assert!(!may_take(claim(false, 4, 4), MIN_IDLE_BEFORE_EVICTION, false));
        assert!(may_take(claim(true, 4, 4), Duration::ZERO, false) && may_take(None, Duration::ZERO, false));
    }
}
