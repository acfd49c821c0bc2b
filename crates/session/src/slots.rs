//! A fixed number of sandbox slots. A free slot goes to the waiting tenant that has the fewest; among requests of one
//! tenant, and between tenants that have as many, to the oldest request.

use crate::{Error, Result};
use ash_model::TenantId;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

/// How many requests of one tenant may wait; further ones are refused at once.
pub(super) const MAX_QUEUE_LENGTH: usize = 512;
/// How many waiting requests look for a sandbox to evict. About as many sandboxes start concurrently, so a larger front
/// would serve no request earlier, and a long queue would keep the server busy.
const QUEUE_FRONT_SIZE: usize = 8;

pub(crate) struct SandboxSlots {
    most: usize,
    line: Mutex<SlotQueue>,
    changed: Notify,
}

#[derive(Default)]
struct SlotQueue {
    taken: usize,
    /// How many slots each tenant has, if any.
    held: HashMap<TenantId, usize>,
    /// How many of the taken slots are given up soon.
    yielding: usize,
    next: u64,
    /// By number, so the oldest comes first.
    waiting: BTreeMap<u64, SlotWaiter>,
}

struct SlotWaiter {
    tenant: TenantId,
    bell: Arc<Notify>,
}

/// One of the sandboxes that this server may have; returned on drop.
pub(crate) struct SandboxPermit {
    places: Arc<SandboxSlots>,
    tenant: TenantId,
    /// Its session was asked to give the slot up before its next turn.
    yields: AtomicBool,
}

impl SandboxPermit {
    /// Whether the session should give up its sandbox before its next turn: a tenant with fewer slots waits for one.
    /// Without this a tenant whose sessions always have messages waiting would keep its slots for ever.
    pub(crate) fn is_asked_to_yield(&self) -> bool {
        let mut line = self.places.line();
        if self.yields.load(Ordering::Relaxed) {
            return true;
        }
        let expected = self.places.most.saturating_sub(line.taken) + line.yielding;
        let tenant = line.order().nth(expected).map(|number| &line.waiting[&number].tenant);
        let held = |tenant: &TenantId| line.held.get(tenant).copied().unwrap_or(0);
        if tenant.is_none_or(|tenant| held(tenant) >= held(&self.tenant)) {
            return false;
        }
        line.yielding += 1;
        self.yields.store(true, Ordering::Relaxed);
        true
    }
}

/// What a caller that resumes a session passes along.
#[derive(Default)]
pub(crate) struct Admission {
    /// For the sandbox that the session takes.
    pub(crate) permit: Option<SandboxPermit>,
    /// How long to wait for a permit if one is needed after all; `None`: without limit.
    pub(crate) queue_timeout: Option<Duration>,
}

impl Admission {
    /// Merges two admissions; the values of `other` take precedence.
    pub(crate) fn add(&mut self, other: Admission) {
        self.permit = other.permit.or(self.permit.take());
        self.queue_timeout = other.queue_timeout.or(self.queue_timeout);
    }
}

/// A position in the queue; given up on drop.
pub(super) struct SlotTicket {
    places: Arc<SandboxSlots>,
    number: u64,
    bell: Arc<Notify>,
}

impl SandboxSlots {
    pub(super) fn new(most: usize) -> Arc<SandboxSlots> {
        Arc::new(SandboxSlots { most, line: Mutex::default(), changed: Notify::new() })
    }

    fn line(&self) -> MutexGuard<'_, SlotQueue> {
        self.line.lock().expect("no thread panics while holding it")
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn queued(&self) -> usize {
        self.line().waiting.len()
    }

    /// Notified when slots or the queue changed. Call it before reading the state, so that no change is missed.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// There may be a free slot or a sandbox to evict: wakes the front of the queue. A bell that rings while its
    /// request is checking stays rung, so no change is missed.
    pub(super) fn ring(&self) {
        let line = self.line();
        line.order().take(QUEUE_FRONT_SIZE).for_each(|number| line.waiting[&number].bell.notify_one());
        drop(line);
        self.changed.notify_waiters();
    }

    /// For a sandbox that exists already, even above the limit.
    pub(super) fn acquire_unconditionally(self: &Arc<Self>, tenant: &TenantId) -> SandboxPermit {
        self.permit(&mut self.line(), tenant)
    }

    fn permit(self: &Arc<Self>, line: &mut SlotQueue, tenant: &TenantId) -> SandboxPermit {
        line.taken += 1;
        *line.held.entry(tenant.clone()).or_default() += 1;
        SandboxPermit { places: self.clone(), tenant: tenant.clone(), yields: AtomicBool::new(false) }
    }

    /// How many slots a tenant has.
    pub(super) fn held(&self, tenant: &TenantId) -> usize {
        self.line().held.get(tenant).copied().unwrap_or(0)
    }

    /// Whether any tenant has more slots than this one.
    pub(super) fn has_larger_share_than(&self, tenant: &TenantId) -> bool {
        let line = self.line();
        let own = line.held.get(tenant).copied().unwrap_or(0);
        line.held.values().any(|held| *held > own)
    }

    /// A permit, if there are enough free slots for all waiting requests as well.
    pub(super) fn try_acquire_spare(self: &Arc<Self>, tenant: &TenantId) -> Option<SandboxPermit> {
        let mut line = self.line();
        let free = line.taken + line.waiting.len() < self.most;
        free.then(|| self.permit(&mut line, tenant))
    }

    /// Queues a caller's request.
    pub(super) fn enqueue(self: &Arc<Self>, tenant: &TenantId) -> Result<SlotTicket> {
        let mut line = self.line();
        let own = line.waiting.values().filter(|waiter| waiter.tenant == *tenant).count();
        match own < MAX_QUEUE_LENGTH {
            true => Ok(self.ticket(&mut line, tenant)),
            false => Err(Error::LongLine(MAX_QUEUE_LENGTH)),
        }
    }

    /// Queues a session that resumes by itself: it cannot try again later, so it waits however long the queue is.
    pub(super) fn enqueue_unbounded(self: &Arc<Self>, tenant: &TenantId) -> SlotTicket {
        self.ticket(&mut self.line(), tenant)
    }

    fn ticket(self: &Arc<Self>, line: &mut SlotQueue, tenant: &TenantId) -> SlotTicket {
        let (number, bell) = (line.next, Arc::new(Notify::new()));
        line.next += 1;
        line.waiting.insert(number, SlotWaiter { tenant: tenant.clone(), bell: bell.clone() });
        SlotTicket { places: self.clone(), number, bell }
    }
}

impl SlotTicket {
    /// A permit, if there are enough free slots for all requests before it as well.
    pub(super) fn take(&self) -> Option<SandboxPermit> {
        let mut line = self.places.line();
        if line.lacking(self.number, self.places.most) > 0 {
            return None;
        }
        let waiter = line.waiting.remove(&self.number)?;
        Some(self.places.permit(&mut line, &waiter.tenant))
    }

    /// How many slots have to become free before this request gets one.
    pub(super) fn lacking(&self) -> usize {
        self.places.line().lacking(self.number, self.places.most)
    }

    pub(super) fn is_in_front(&self) -> bool {
        self.places.line().order().take(QUEUE_FRONT_SIZE).any(|number| number == self.number)
    }

    /// Waits until something changed and the request is in front, or until `late`.
    pub(super) async fn wait_for_turn(&self, late: Option<Instant>) {
        match late {
            Some(late) => drop(tokio::time::timeout_at(late, self.bell.notified()).await),
            None => self.bell.notified().await,
        }
    }
}

impl SlotQueue {
    fn lacking(&self, number: u64, most: usize) -> usize {
        let before = self.order().take_while(|next| *next != number).count();
        (self.taken + before + 1).saturating_sub(most)
    }

    /// The order in which requests get slots if nothing else changes: each slot goes to the tenant that has the fewest
    /// by then. So the first request of a tenant that has `n` slots counts as slot `n + 1`, its next one as `n + 2`.
    fn order(&self) -> impl Iterator<Item = u64> {
        let mut next = self.held.clone();
        let mut order: Vec<(usize, u64)> = self
            .waiting
            .iter()
            .map(|(number, waiter)| {
                let places = next.entry(waiter.tenant.clone()).or_default();
                *places += 1;
                (*places, *number)
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, number)| number)
    }
}

impl Drop for SlotTicket {
    fn drop(&mut self) {
        self.places.line().waiting.remove(&self.number);
        self.places.ring();
    }
}

impl Drop for SandboxPermit {
    fn drop(&mut self) {
        {
            let mut line = self.places.line();
            line.taken -= 1;
            line.yielding -= usize::from(self.yields.load(Ordering::Relaxed));
            if let Some(held) = line.held.get_mut(&self.tenant) {
                *held -= 1;
            }
            line.held.retain(|_, held| *held > 0);
        }
        self.places.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn main() -> TenantId {
        TenantId::main()
    }

    #[test]
    fn a_tenant_with_all_slots_waits_behind_others() {
        let slots = SandboxSlots::new(3);
        let (greedy, modest) = (main(), TenantId::parse("modest").expect("a name"));
        let mut permits: Vec<SandboxPermit> =
            (0..3).map(|_| slots.acquire_unconditionally(&greedy)).collect();
        let more: Vec<SlotTicket> = (0..3).map(|_| slots.enqueue(&greedy).expect("a short queue")).collect();
        let one = slots.enqueue(&modest).expect("a short queue");
        let two = slots.enqueue(&modest).expect("a short queue");
        assert_eq!((one.lacking(), two.lacking(), more[0].lacking()), (1, 2, 3));
        permits.pop();
        assert!(more[0].take().is_none(), "it is another tenant's turn");
        let first = one.take().expect("its share");
        permits.pop();
        // Both tenants have one slot, and both want a second: the older request gets it.
        assert!(two.take().is_none(), "both have one now, and the other one was first");
        assert!(more[0].take().is_some());
        drop(first);
    }

    #[test]
    fn as_many_slots_are_yielded_as_tenants_with_fewer_wait_for() {
        let slots = SandboxSlots::new(3);
        let (greedy, modest) = (main(), TenantId::parse("modest").expect("a name"));
        let mut permits: Vec<SandboxPermit> =
            (0..3).map(|_| slots.acquire_unconditionally(&greedy)).collect();
        let _own = slots.enqueue(&greedy).expect("a short queue");
        assert!(!permits[0].is_asked_to_yield(), "its own tenant waits, which gains nothing");
        let waiting = slots.enqueue(&modest).expect("a short queue");
        assert!(permits[1].is_asked_to_yield() && permits[1].is_asked_to_yield());
        assert!(!permits[0].is_asked_to_yield() && !permits[2].is_asked_to_yield(), "one is enough");
        drop(permits.remove(1));
        let got = waiting.take().expect("the slot that was given up");
        let _more = slots.enqueue(&modest).expect("a short queue");
        assert!(permits[0].is_asked_to_yield(), "1 of 3 is not a share of a half");
        assert!(!got.is_asked_to_yield());
        drop(permits.remove(0));
        assert!(!permits[0].is_asked_to_yield(), "1 of 3 beside 1 of 3");
    }

    #[test]
    fn a_full_queue_of_one_tenant_does_not_block_another() {
        let slots = SandboxSlots::new(1);
        let _permit = slots.acquire_unconditionally(&main());
        let _queue: Vec<_> =
            (0..MAX_QUEUE_LENGTH).map(|_| slots.enqueue(&main()).expect("not long yet")).collect();
        assert!(slots.enqueue(&main()).is_err());
        let other = slots.enqueue(&TenantId::parse("other").expect("a name")).expect("its own queue");
        assert!(other.is_in_front() && other.lacking() == 1);
    }

    #[test]
    fn the_first_request_gets_the_slot() {
        let slots = SandboxSlots::new(1);
        let only = slots.enqueue(&main()).expect("a short queue").take().expect("there is one");
        let (first, second) =
            (slots.enqueue(&main()).expect("a short queue"), slots.enqueue(&main()).expect("a short queue"));
        assert!(first.take().is_none());
        drop(only);
        assert!(second.take().is_none(), "it is the first one's");
        let permit = first.take().expect("its turn");
        assert!(second.take().is_none());
        drop((first, permit));
        assert!(second.take().is_some());
    }

    #[test]
    fn a_dropped_ticket_blocks_no_other() {
        let slots = SandboxSlots::new(1);
        let (first, second) =
            (slots.enqueue(&main()).expect("a short queue"), slots.enqueue(&main()).expect("a short queue"));
        drop(first);
        assert!(second.take().is_some());
        drop(second);
        assert_eq!(slots.queued(), 0);
    }

    #[test]
    fn permits_beyond_the_limit_count() {
        let slots = SandboxSlots::new(1);
        let (one, other) = (slots.acquire_unconditionally(&main()), slots.acquire_unconditionally(&main()));
        drop(one);
        assert!(slots.enqueue(&main()).expect("a short queue").take().is_none());
        drop(other);
        assert!(slots.enqueue(&main()).expect("a short queue").take().is_some());
    }

    #[test]
    fn a_long_queue_refuses_requests_but_no_session_that_resumes_by_itself() {
        let slots = SandboxSlots::new(1);
        let _permit = slots.acquire_unconditionally(&main());
        let mut queue: Vec<_> =
            (0..MAX_QUEUE_LENGTH).map(|_| slots.enqueue(&main()).expect("not long yet")).collect();
        assert!(matches!(slots.enqueue(&main()), Err(Error::LongLine(MAX_QUEUE_LENGTH))));
        let _resumed = slots.enqueue_unbounded(&main());
        queue.pop();
        queue.pop();
        assert!(slots.enqueue(&main()).is_ok());
    }

    #[test]
    fn a_spare_slot_is_one_that_no_request_waits_for() {
        let slots = SandboxSlots::new(2);
        let one = slots.enqueue(&main()).expect("a short queue");
        let spare = slots.try_acquire_spare(&main()).expect("two slots, and one request that waits");
        assert!(slots.try_acquire_spare(&main()).is_none());
        assert!(one.take().is_some());
        drop(spare);
    }

    /// Whether its bell has rung since the last call.
    fn rang(ticket: &SlotTicket) -> bool {
        ticket.wait_for_turn(None).now_or_never().is_some()
    }

    #[test]
    fn only_the_front_of_the_queue_and_requests_that_join_it_are_notified() {
        let slots = SandboxSlots::new(1);
        let permit = slots.acquire_unconditionally(&main());
        let mut queue: Vec<_> =
            (0..QUEUE_FRONT_SIZE + 2).map(|_| slots.enqueue(&main()).expect("a short queue")).collect();
        assert_eq!((queue[0].lacking(), queue[QUEUE_FRONT_SIZE].lacking()), (1, QUEUE_FRONT_SIZE + 1));
        drop(permit);
        let notified: Vec<bool> = queue.iter().map(rang).collect();
        assert_eq!(notified, [vec![true; QUEUE_FRONT_SIZE], vec![false; 2]].concat());
        assert!(queue[QUEUE_FRONT_SIZE - 1].is_in_front() && !queue[QUEUE_FRONT_SIZE].is_in_front());
        drop(queue.remove(0));
        let notified: Vec<bool> = queue.iter().map(rang).collect();
        assert_eq!(notified, [vec![true; QUEUE_FRONT_SIZE], vec![false]].concat());
    }
}
