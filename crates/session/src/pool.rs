//! Limits the sandboxes of this server and decides which one is evicted when there are as many as allowed. Warm ones
//! are evicted first, then idle ones: of the tenant that has the most, the least recently used. Sandboxes at work stay.
//! A session that loses its sandbox is captured and paused, and resumes with its next message.

mod claims;
mod memory;
mod warm_pool;

pub(crate) use warm_pool::{LOOK, SandboxBuildSpec, WarmSandbox, WarmSandboxKind, clear_away};

use crate::{
    Error, Result,
    agent_logs::AgentLogBuffer,
    machine::Evictability,
    mailbox::{ActorMessage, CommandReply, EvictionCost, ReplySender},
    slots::{SandboxPermit, SandboxSlots, SlotTicket},
};
use ash_model::{Quotas, SessionRowId, TenantId, WorkspaceId};
use claims::SlotClaims;
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

/// How often the front of the queue checks by itself: freed memory and sessions that become idle send no notification.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long an evicted session may take to let go of its sandbox.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a sandbox must be idle before its tenant loses it to a tenant that has as many slots or more: a
/// conversation is not evicted between two messages.
const MIN_IDLE_BEFORE_EVICTION: Duration = Duration::from_secs(60);
/// The same for a session that would lose what is stored nowhere else: files that are never captured, or a client key.
const MIN_IDLE_BEFORE_LOSS: Duration = Duration::from_secs(600);

/// What a session's sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxPhase {
    Cold,
    Warming,
    Waiting,
    Running,
}

/// The phase of a session's sandbox, for counting sandboxes and for finding one to evict.
#[derive(Default)]
pub(crate) struct SandboxPhaseCell {
    phase: AtomicU8,
    /// Whether the session would give its sandbox up.
    evictability: AtomicU8,
    /// When it was last used.
    used: AtomicU64,
}

/// Instants are stored as numbers relative to this one.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn millis(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*BEGAN).as_millis()).unwrap_or(u64::MAX)
}

impl SandboxPhaseCell {
    pub(crate) fn set(&self, phase: SandboxPhase, evictability: Evictability, used: Instant) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.evictability.store(evictability as u8, Ordering::Relaxed);
        self.used.store(millis(used), Ordering::Relaxed);
    }

    fn evictability(&self) -> Evictability {
        [Evictability::Never, Evictability::Loses, Evictability::Freely]
            [usize::from(self.evictability.load(Ordering::Relaxed)).min(2)]
    }

    pub(crate) fn get(&self) -> SandboxPhase {
        [SandboxPhase::Cold, SandboxPhase::Warming, SandboxPhase::Waiting, SandboxPhase::Running]
            [usize::from(self.phase.load(Ordering::Relaxed)) & 3]
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolCounts {
    pub cold: usize,
    pub warming: usize,
    /// Warm sandboxes that no session uses yet.
    pub warm: usize,
    pub waiting: usize,
    pub running: usize,
}

/// The handle of a session's actor.
#[derive(Clone)]
pub(crate) struct ActorHandle {
    pub(crate) inbox: mpsc::Sender<ActorMessage>,
    pub(crate) logs: Arc<AgentLogBuffer>,
    pub(crate) phase: Arc<SandboxPhaseCell>,
    pub(crate) workspace: WorkspaceId,
    pub(crate) tenant: TenantId,
    /// The actor ended because the disk is full.
    pub(crate) full: Arc<AtomicBool>,
}

pub(crate) type ActorHandles = tokio::sync::Mutex<HashMap<SessionRowId, ActorHandle>>;

pub(crate) struct SandboxPool {
    pub(crate) actors: ActorHandles,
    /// Notified when an actor has ended, so that its session can have another one.
    pub(crate) actor_left: Notify,
    places: Arc<SandboxSlots>,
    pub(crate) warm: WarmPool,
    /// What refused requests have left.
    pub(crate) claims: SlotClaims,
    /// With less available memory than this, no new sandbox starts.
    least_memory: u64,
    /// Permits of sandboxes that outlived the last server, until an actor claims them.
    survivors: Mutex<HashMap<WorkspaceId, SandboxPermit>>,
    /// Workspaces whose sandbox was asked to end and has not answered.
    going: Mutex<HashSet<WorkspaceId>>,
}

/// A sandbox that is asked to end. When the guard is dropped, it can be asked again.
struct EvictionGuard<'p> {
    pool: &'p SandboxPool,
    workspace: WorkspaceId,
}

impl<'p> EvictionGuard<'p> {
    fn new(pool: &'p SandboxPool, workspace: WorkspaceId) -> EvictionGuard<'p> {
        pool.going().insert(workspace);
        // Where one sandbox can be evicted, others may be too.
        pool.places.ring();
        EvictionGuard { pool, workspace }
    }
}

impl Drop for EvictionGuard<'_> {
    fn drop(&mut self) {
        self.pool.going().remove(&self.workspace);
        // Requests that counted on this sandbox check again whether there is a free slot.
        self.pool.places.ring();
    }
}

/// The outcome of an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictionOutcome {
    Evicted,
    /// The session refused. Its sandbox may be gone even so, and its slot free.
    Refused,
    /// There is no sandbox that can be evicted.
    NoCandidate,
}

impl SandboxPool {
    pub(crate) fn new(most: usize, least_memory: u64, quotas: Quotas) -> SandboxPool {
        LazyLock::force(&BEGAN);
        SandboxPool {
            actors: ActorHandles::default(),
            actor_left: Notify::new(),
            places: SandboxSlots::new(most),
            warm: WarmPool::new(quotas),
            claims: SlotClaims::default(),
            least_memory,
            survivors: Mutex::default(),
            going: Mutex::default(),
        }
    }

    fn going(&self) -> MutexGuard<'_, HashSet<WorkspaceId>> {
        self.going.lock().expect("no thread panics while holding it")
    }

    pub(crate) async fn counts(&self) -> PoolCounts {
        let (warm, warming) = self.warm.counts();
        let mut counts = PoolCounts { warm, warming, ..PoolCounts::default() };
        for actor in self.actors.lock().await.values() {
            match actor.phase.get() {
                SandboxPhase::Cold => counts.cold += 1,
                SandboxPhase::Warming => counts.warming += 1,
                SandboxPhase::Waiting => counts.waiting += 1,
                SandboxPhase::Running => counts.running += 1,
            }
        }
        counts
    }

    /// Whether another tenant has more sandboxes than this one.
    pub(crate) fn has_larger_share_than(&self, tenant: &TenantId) -> bool {
        self.places.has_larger_share_than(tenant)
    }

    /// How many requests wait for a slot.
    pub(crate) fn queued(&self) -> usize {
        self.places.queued()
    }

    /// Notified when slots or the queue changed.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.places.changed()
    }

    /// A sandbox that a dead server left gets a slot before any other request.
    pub(crate) fn reserve_for_survivor(&self, workspace: WorkspaceId, tenant: &TenantId) {
        let permit = self.places.acquire_unconditionally(tenant);
        self.survivors.lock().expect("no thread panics while holding it").insert(workspace, permit);
    }

    pub(crate) fn is_reserved_for_survivor(&self, workspace: WorkspaceId) -> bool {
        self.survivors.lock().expect("no thread panics while holding it").contains_key(&workspace)
    }

    /// The permit for a sandbox that survived, or that is found not to have survived.
    pub(crate) fn claim_survivor(&self, workspace: WorkspaceId, tenant: &TenantId) -> SandboxPermit {
        let left = self.survivors.lock().expect("no thread panics while holding it").remove(&workspace);
        left.unwrap_or_else(|| self.places.acquire_unconditionally(tenant))
    }

    /// A permit for a sandbox that a session may want later: nothing is evicted for it.
    pub(crate) fn try_acquire_idle(&self, tenant: &TenantId) -> Option<SandboxPermit> {
        self.places.try_acquire_spare(tenant).filter(|_| self.short_of_memory().is_none())
    }

    /// A permit for one more sandbox. If there is no free slot, an idle sandbox is evicted. If none can be evicted, the
    /// caller waits for `patience`, or without limit. The tenant with the fewest slots is served first, and its
    /// requests in the order of arrival. The caller waits for an eviction under way in any case.
    ///
    /// A new request checks once whether a sandbox can be evicted. After that only the front of the queue does; the
    /// others wait until they are in front.
    pub(crate) async fn acquire(
        &self,
        tenant: &TenantId,
        queue_timeout: Option<Duration>,
    ) -> Result<SandboxPermit> {
        let deadline = queue_timeout.map(|queue_timeout| Instant::now() + queue_timeout);
        let ticket = match deadline {
            Some(_) => self.places.enqueue(tenant)?,
            None => self.places.enqueue_unbounded(tenant),
        };
        let (mut stay, mut came) = (HashSet::new(), true);
        loop {
            let why = match self.take(&ticket) {
                Ok(permit) => return Ok(permit),
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
            // Sandboxes that were at work may be idle by then.
            stay.clear();
            came &= enough;
            // A request that moves up to the front is notified.
            let look = (front || enough).then(|| Instant::now() + QUEUE_POLL_INTERVAL);
            ticket.wait_for_turn(look.into_iter().chain(over).min()).await;
        }
    }

    /// Whether there are enough slots up to this request once all evictions under way are done.
    fn enough_are_going(&self, ticket: &SlotTicket) -> bool {
        // It is unknown how much memory an eviction frees, so one at a time must do.
        self.going().len() >= ticket.lacking().max(1)
    }

    /// Evicts sandboxes until there is enough memory, or none is left that can be evicted. Answers how many were evicted.
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

    /// How many bytes are available, if they are too few.
    fn short_of_memory(&self) -> Option<u64> {
        memory::available().filter(|available| *available < self.least_memory)
    }

    fn take(&self, ticket: &SlotTicket) -> Result<SandboxPermit> {
        let full = Error::Capacity(self.places.most());
        // First, because most requests find no slot and then need not read the available memory.
        if ticket.lacking() > 0 {
            return Err(full);
        }
        match self.short_of_memory() {
            Some(available) => Err(Error::LittleMemory(available >> 20)),
            None => ticket.take().ok_or(full),
        }
    }

    /// Evicts one sandbox, for a tenant's request or for memory, and waits until it is gone. `stay`: those that were
    /// asked before.
    async fn evict_one(
        &self,
        wanted_by: Option<&TenantId>,
        stay: &mut HashSet<WorkspaceId>,
    ) -> EvictionOutcome {
        if let Some(prepared) = self.warm.oldest() {
            let _going = EvictionGuard::new(self, prepared.id);
            // Spawned, so that it finishes even if the caller disconnects.
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

    /// The sandbox to evict, among those whose sessions all can give it up: of the tenant that has the most slots, the
    /// least recently used. And its sessions.
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
        let actors = self.actors.lock().await;
        let mut sandboxes: HashMap<WorkspaceId, EvictionCandidate> = HashMap::new();
        for actor in actors.values() {
            let phase = actor.phase.get();
            if phase == SandboxPhase::Cold {
                continue;
            }
            let tenant = actor.tenant.clone();
            let new =
                || EvictionCandidate { tenant, used: 0, busy: false, loses: false, sessions: Vec::new() };
            let sandbox = sandboxes.entry(actor.workspace).or_insert_with(new);
            sandbox.used = sandbox.used.max(actor.phase.used.load(Ordering::Relaxed));
            let evictability = actor.phase.evictability();
            sandbox.busy |= phase != SandboxPhase::Waiting || evictability == Evictability::Never;
            sandbox.loses |= evictability == Evictability::Loses;
            sandbox.sessions.push(actor.inbox.clone());
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
        // The lock on the actors is still held, so no other request has found the same sandbox.
        let (workspace, sandbox) = least?;
        let cost = if sandbox.loses { EvictionCost::MayLose } else { EvictionCost::Nothing };
        let sessions = sandbox.sessions.into_iter().map(|inbox| (inbox, cost)).collect();
        Some((EvictionGuard::new(self, workspace), sessions))
    }
}

/// How many slots the requesting tenant has, and the tenant whose sandbox could be evicted.
#[derive(Debug, Clone, Copy)]
struct EvictionClaim {
    same_tenant: bool,
    own: usize,
    theirs: usize,
}

/// Whether an idle sandbox is evicted for a request, or for want of memory (`None`). A sandbox with something that is
/// stored nowhere else is evicted only for another tenant with fewer slots, and after a long time without use: otherwise
/// one tenant could hold all slots for ever.
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

/// All sessions of a shared sandbox have to give it up. True: they did.
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
    fn an_eviction_with_loss_needs_a_tenant_with_fewer_slots_and_a_long_idle_time() {
        let claim = |same_tenant, own, theirs| Some(EvictionClaim { same_tenant, own, theirs });
        let long = MIN_IDLE_BEFORE_LOSS + Duration::from_secs(1);
        assert!(may_take(claim(false, 0, 4), long, true), "no tenant holds all slots for ever");
        assert!(!may_take(claim(false, 0, 4), MIN_IDLE_BEFORE_LOSS, true));
        assert!(!may_take(claim(false, 4, 4), long, true), "their share is not larger");
        assert!(!may_take(claim(true, 4, 4), long, true), "a tenant keeps what it has");
        assert!(!may_take(None, long, true), "memory alone is no reason");
        assert!(may_take(claim(false, 0, 4), Duration::ZERO, false));
        assert!(!may_take(claim(false, 4, 4), MIN_IDLE_BEFORE_EVICTION, false));
        assert!(may_take(claim(true, 4, 4), Duration::ZERO, false) && may_take(None, Duration::ZERO, false));
    }
}
