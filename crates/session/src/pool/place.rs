//! So many sandboxes and no more. A place that frees goes to the tenant that waits and has the fewest; among requests of one
//! tenant, and between tenants that have as many, to the first that came.

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

/// So many requests of one tenant wait at once; whoever comes then is told at once.
pub(super) const LONGEST_LINE: usize = 512;
/// So many of those who wait look for somebody who makes way. As many sandboxes are made at the same time, so more of them
/// would get nobody in earlier, and a long line would keep the server busy with itself.
const FRONT: usize = 8;

pub(crate) struct Places {
    most: usize,
    line: Mutex<Line>,
    changed: Notify,
}

#[derive(Default)]
struct Line {
    taken: usize,
    /// How many of those each tenant has, if any.
    held: HashMap<TenantId, usize>,
    next: u64,
    /// By number, so the first comes first.
    waiting: BTreeMap<u64, Waiter>,
}

struct Waiter {
    tenant: TenantId,
    bell: Arc<Notify>,
}

/// One of the sandboxes that this server may have; given back when it is dropped.
pub(crate) struct Room {
    places: Arc<Places>,
    tenant: TenantId,
}

/// What whoever wants a session back brings along.
#[derive(Default)]
pub(crate) struct Passage {
    /// For the sandbox that it takes.
    pub(crate) room: Option<Room>,
    /// How long it is waited for one if it needs one after all; `None`: as long as it takes.
    pub(crate) patience: Option<Duration>,
}

impl Passage {
    /// What the last one brings counts first.
    pub(crate) fn add(&mut self, other: Passage) {
        self.room = other.room.or(self.room.take());
        self.patience = other.patience.or(self.patience);
    }
}

/// A place in the line; left when it is dropped.
pub(super) struct Ticket {
    places: Arc<Places>,
    number: u64,
    bell: Arc<Notify>,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, line: Mutex::default(), changed: Notify::new() })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().expect("nobody panics while holding it")
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn queued(&self) -> usize {
        self.line().waiting.len()
    }

    /// Somebody came, went or gave up. To be asked for before one looks, so that nothing is missed.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// There may be room, or somebody who makes way: those whose turn it is look. A bell that rang while its owner
    /// looked is heard afterwards, so nothing is missed.
    pub(super) fn ring(&self) {
        let line = self.line();
        line.order().take(FRONT).for_each(|number| line.waiting[&number].bell.notify_one());
        drop(line);
        self.changed.notify_waiters();
    }

    /// Whatever else: it is there.
    pub(super) fn count_in(self: &Arc<Self>, tenant: &TenantId) -> Room {
        self.room(&mut self.line(), tenant)
    }

    fn room(self: &Arc<Self>, line: &mut Line, tenant: &TenantId) -> Room {
        line.taken += 1;
        *line.held.entry(tenant.clone()).or_default() += 1;
        Room { places: self.clone(), tenant: tenant.clone() }
    }

    /// How many a tenant has.
    pub(super) fn held(&self, tenant: &TenantId) -> usize {
        self.line().held.get(tenant).copied().unwrap_or(0)
    }

    /// If there is room for everybody who waits, too.
    pub(super) fn spare(self: &Arc<Self>, tenant: &TenantId) -> Option<Room> {
        let mut line = self.line();
        let free = line.taken + line.waiting.len() < self.most;
        free.then(|| self.room(&mut line, tenant))
    }

    /// For whoever wants one for a request.
    pub(super) fn line_up(self: &Arc<Self>, tenant: &TenantId) -> Result<Ticket> {
        let mut line = self.line();
        let own = line.waiting.values().filter(|waiter| waiter.tenant == *tenant).count();
        match own < LONGEST_LINE {
            true => Ok(self.ticket(&mut line, tenant)),
            false => Err(Error::LongLine(LONGEST_LINE)),
        }
    }

    /// For a session that comes back by itself: it cannot try again later, so it waits however long the line is.
    pub(super) fn line_up_anyway(self: &Arc<Self>, tenant: &TenantId) -> Ticket {
        self.ticket(&mut self.line(), tenant)
    }

    fn ticket(self: &Arc<Self>, line: &mut Line, tenant: &TenantId) -> Ticket {
        let (number, bell) = (line.next, Arc::new(Notify::new()));
        line.next += 1;
        line.waiting.insert(number, Waiter { tenant: tenant.clone(), bell: bell.clone() });
        Ticket { places: self.clone(), number, bell }
    }
}

impl Ticket {
    /// If there is room for everybody before it, too.
    pub(super) fn take(&self) -> Option<Room> {
        let mut line = self.places.line();
        if line.lacking(self.number, self.places.most) > 0 {
            return None;
        }
        let waiter = line.waiting.remove(&self.number)?;
        Some(self.places.room(&mut line, &waiter.tenant))
    }

    /// How many have to go before there is room for it, and for everybody before it.
    pub(super) fn lacking(&self) -> usize {
        self.places.line().lacking(self.number, self.places.most)
    }

    pub(super) fn is_in_front(&self) -> bool {
        self.places.line().order().take(FRONT).any(|number| number == self.number)
    }

    /// Something changed, and it is in front; or it is so late.
    pub(super) async fn rung_before(&self, late: Option<Instant>) {
        match late {
            Some(late) => drop(tokio::time::timeout_at(late, self.bell.notified()).await),
            None => self.bell.notified().await,
        }
    }
}

impl Line {
    fn lacking(&self, number: u64, most: usize) -> usize {
        let before = self.order().take_while(|next| *next != number).count();
        (self.taken + before + 1).saturating_sub(most)
    }

    /// Who gets the next place, and the next, if nobody comes or goes: each goes to the tenant that has the fewest by then. So
    /// a request of a tenant that has `n` counts as its place number `n + 1`, the next one as `n + 2`.
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

impl Drop for Ticket {
    fn drop(&mut self) {
        self.places.line().waiting.remove(&self.number);
        self.places.ring();
    }
}

impl Drop for Room {
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
        let places = Places::new(3);
        let (greedy, modest) = (main(), TenantId::parse("modest").expect("a name"));
        let mut rooms: Vec<Room> = (0..3).map(|_| places.count_in(&greedy)).collect();
        let more: Vec<Ticket> = (0..3).map(|_| places.line_up(&greedy).expect("a short line")).collect();
        let one = places.line_up(&modest).expect("a short line");
        let two = places.line_up(&modest).expect("a short line");
        assert_eq!((one.lacking(), two.lacking(), more[0].lacking()), (1, 2, 3));
        rooms.pop();
        assert!(more[0].take().is_none(), "it is another tenant's turn");
        let first = one.take().expect("its share");
        rooms.pop();
        // One each, and both want a second: the first that came.
        assert!(two.take().is_none(), "both have one now, and the other one was first");
        assert!(more[0].take().is_some());
        drop(first);
    }

    #[test]
    fn a_full_line_of_one_tenant_is_no_other_tenants() {
        let places = Places::new(1);
        let _room = places.count_in(&main());
        let _line: Vec<_> =
            (0..LONGEST_LINE).map(|_| places.line_up(&main()).expect("not long yet")).collect();
        assert!(places.line_up(&main()).is_err());
        let other = places.line_up(&TenantId::parse("other").expect("a name")).expect("its own line");
        assert!(other.is_in_front() && other.lacking() == 1);
    }

    #[test]
    fn whoever_came_first_gets_the_place() {
        let places = Places::new(1);
        let only = places.line_up(&main()).expect("a short line").take().expect("there is one");
        let (first, second) =
            (places.line_up(&main()).expect("a short line"), places.line_up(&main()).expect("a short line"));
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
        let places = Places::new(1);
        let (first, second) =
            (places.line_up(&main()).expect("a short line"), places.line_up(&main()).expect("a short line"));
        drop(first);
        assert!(second.take().is_some());
        drop(second);
        assert_eq!(places.queued(), 0);
    }

    #[test]
    fn what_is_there_counts_even_beyond_the_most() {
        let places = Places::new(1);
        let (one, other) = (places.count_in(&main()), places.count_in(&main()));
        drop(one);
        assert!(places.line_up(&main()).expect("a short line").take().is_none());
        drop(other);
        assert!(places.line_up(&main()).expect("a short line").take().is_some());
    }

    #[test]
    fn whoever_finds_a_long_line_is_told_and_who_comes_back_by_himself_waits() {
        let places = Places::new(1);
        let _room = places.count_in(&main());
        let mut line: Vec<_> =
            (0..LONGEST_LINE).map(|_| places.line_up(&main()).expect("not long yet")).collect();
        assert!(matches!(places.line_up(&main()), Err(Error::LongLine(LONGEST_LINE))));
        let _by_himself = places.line_up_anyway(&main());
        line.pop();
        line.pop();
        assert!(places.line_up(&main()).is_ok());
    }

    #[test]
    fn a_spare_place_is_one_that_nobody_waits_for() {
        let places = Places::new(2);
        let one = places.line_up(&main()).expect("a short line");
        let spare = places.spare(&main()).expect("two places, and one who waits");
        assert!(places.spare(&main()).is_none());
        assert!(one.take().is_some());
        drop(spare);
    }

    /// Whether its bell has rung since it was last asked.
    fn rang(ticket: &Ticket) -> bool {
        ticket.rung_before(None).now_or_never().is_some()
    }

    #[test]
    fn only_the_front_is_told_and_whoever_moves_up_is_told_too() {
        let places = Places::new(1);
        let room = places.count_in(&main());
        let mut line: Vec<_> =
            (0..FRONT + 2).map(|_| places.line_up(&main()).expect("a short line")).collect();
        assert_eq!((line[0].lacking(), line[FRONT].lacking()), (1, FRONT + 1));
        drop(room);
        let told: Vec<bool> = line.iter().map(rang).collect();
        assert_eq!(told, [vec![true; FRONT], vec![false; 2]].concat());
        assert!(line[FRONT - 1].is_in_front() && !line[FRONT].is_in_front());
        drop(line.remove(0));
        let told: Vec<bool> = line.iter().map(rang).collect();
        assert_eq!(told, [vec![true; FRONT], vec![false]].concat());
    }
}
