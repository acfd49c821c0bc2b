//! A fixed number of sandbox slots. A free slot goes to the waiting tenant that has the fewest; among requests of one
//! tenant, and between tenants that have as many, to the oldest request.

use crate::{Error, Result};
use ash_model::TenantId;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
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
        self.line.lock().expect("nobody panics while holding it")
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
        self.room(&mut self.line(), tenant)
    }

    fn room(self: &Arc<Self>, line: &mut SlotQueue, tenant: &TenantId) -> SandboxPermit {
        line.taken += 1;
        *line.held.entry(tenant.clone()).or_default() += 1;
        SandboxPermit { places: self.clone(), tenant: tenant.clone() }
    }

    /// How many slots a tenant has.
    pub(super) fn held(&self, tenant: &TenantId) -> usize {
        self.line().held.get(tenant).copied().unwrap_or(0)
    }

    /// A permit, if there are enough free slots for all waiting requests as well.
    pub(super) fn try_acquire_spare(self: &Arc<Self>, tenant: &TenantId) -> Option<SandboxPermit> {
        let mut line = self.line();
        let free = line.taken + line.waiting.len() < self.most;
        free.then(|| self.room(&mut line, tenant))
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
        Some(self.places.room(&mut line, &waiter.tenant))
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
    fn a_tenant_that_has_all_places_and_waits_for_more_is_behind_others() {
        let places = SandboxSlots::new(3);
        let (greedy, modest) = (main(), TenantId::parse("modest").expect("a name"));
        let mut rooms: Vec<SandboxPermit> = (0..3).map(|_| places.acquire_unconditionally(&greedy)).collect();
        let more: Vec<SlotTicket> = (0..3).map(|_| places.enqueue(&greedy).expect("a short line")).collect();
        let one = places.enqueue(&modest).expect("a short line");
        let two = places.enqueue(&modest).expect("a short line");
        assert_eq!((one.lacking(), two.lacking(), more[0].lacking()), (1, 2, 3));
        rooms.pop();
        assert!(more[0].take().is_none(), "it is another tenant's turn");
        let first = one.take().expect("its share");
        rooms.pop();
        // Both tenants have one slot, and both want a second: the older request gets it.
        assert!(two.take().is_none(), "both have one now, and the other one was first");
        assert!(more[0].take().is_some());
        drop(first);
    }

    #[test]
    fn a_full_line_of_one_tenant_is_no_other_tenants() {
        let places = SandboxSlots::new(1);
        let _room = places.acquire_unconditionally(&main());
        let _line: Vec<_> =
            (0..MAX_QUEUE_LENGTH).map(|_| places.enqueue(&main()).expect("not long yet")).collect();
        assert!(places.enqueue(&main()).is_err());
        let other = places.enqueue(&TenantId::parse("other").expect("a name")).expect("its own line");
        assert!(other.is_in_front() && other.lacking() == 1);
    }

    #[test]
    fn whoever_came_first_gets_the_place() {
        let places = SandboxSlots::new(1);
        let only = places.enqueue(&main()).expect("a short line").take().expect("there is one");
        let (first, second) =
            (places.enqueue(&main()).expect("a short line"), places.enqueue(&main()).expect("a short line"));
        assert!(first.take().is_none());
        drop(only);
        assert!(second.take().is_none(), "it is the first one's");
        let room = first.take().expect("his turn");
        assert!(second.take().is_none());
        drop((first, room));
        assert!(second.take().is_some());
    }

    #[test]
    fn whoever_gives_up_is_in_nobodys_way() {
        let places = SandboxSlots::new(1);
        let (first, second) =
            (places.enqueue(&main()).expect("a short line"), places.enqueue(&main()).expect("a short line"));
        drop(first);
        assert!(second.take().is_some());
        drop(second);
        assert_eq!(places.queued(), 0);
    }

    #[test]
    fn what_is_there_counts_even_beyond_the_most() {
        let places = SandboxSlots::new(1);
        let (one, other) = (places.acquire_unconditionally(&main()), places.acquire_unconditionally(&main()));
        drop(one);
        assert!(places.enqueue(&main()).expect("a short line").take().is_none());
        drop(other);
        assert!(places.enqueue(&main()).expect("a short line").take().is_some());
    }

    #[test]
    fn whoever_finds_a_long_line_is_told_and_who_comes_back_by_himself_waits() {
        let places = SandboxSlots::new(1);
        let _room = places.acquire_unconditionally(&main());
        let mut line: Vec<_> =
            (0..MAX_QUEUE_LENGTH).map(|_| places.enqueue(&main()).expect("not long yet")).collect();
        assert!(matches!(places.enqueue(&main()), Err(Error::LongLine(MAX_QUEUE_LENGTH))));
        let _by_himself = places.enqueue_unbounded(&main());
        line.pop();
        line.pop();
        assert!(places.enqueue(&main()).is_ok());
    }

    #[test]
    fn a_spare_place_is_one_that_nobody_waits_for() {
        let places = SandboxSlots::new(2);
        let one = places.enqueue(&main()).expect("a short line");
        let spare = places.try_acquire_spare(&main()).expect("two places, and one who waits");
        assert!(places.try_acquire_spare(&main()).is_none());
        assert!(one.take().is_some());
        drop(spare);
    }

    /// Whether its bell has rung since the last call.
    fn rang(ticket: &SlotTicket) -> bool {
        ticket.wait_for_turn(None).now_or_never().is_some()
    }

    #[test]
    fn only_the_front_is_told_and_whoever_moves_up_is_told_too() {
        let places = SandboxSlots::new(1);
        let room = places.acquire_unconditionally(&main());
        let mut line: Vec<_> =
            (0..QUEUE_FRONT_SIZE + 2).map(|_| places.enqueue(&main()).expect("a short line")).collect();
        assert_eq!((line[0].lacking(), line[QUEUE_FRONT_SIZE].lacking()), (1, QUEUE_FRONT_SIZE + 1));
        drop(room);
        let told: Vec<bool> = line.iter().map(rang).collect();
        assert_eq!(told, [vec![true; QUEUE_FRONT_SIZE], vec![false; 2]].concat());
        assert!(line[QUEUE_FRONT_SIZE - 1].is_in_front() && !line[QUEUE_FRONT_SIZE].is_in_front());
        drop(line.remove(0));
        let told: Vec<bool> = line.iter().map(rang).collect();
        assert_eq!(told, [vec![true; QUEUE_FRONT_SIZE], vec![false]].concat());
    }
}
