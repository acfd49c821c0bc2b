//! So many sandboxes and no more, first come, first served.

use crate::{Error, Result};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

/// So many requests wait at once; whoever comes then is told at once.
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
    next: u64,
    /// By number, so the first comes first; each with a bell of its own.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// One of the sandboxes that this server may have; given back when it is dropped.
pub(crate) struct Room {
    places: Arc<Places>,
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
        self.line().waiting.values().take(FRONT).for_each(|bell| bell.notify_one());
        self.changed.notify_waiters();
    }

    /// Whatever else: it is there.
    pub(super) fn count_in(self: &Arc<Self>) -> Room {
        self.line().taken += 1;
        Room { places: self.clone() }
    }

    /// If there is room for everybody who waits, too.
    pub(super) fn spare(self: &Arc<Self>) -> Option<Room> {
        let mut line = self.line();
        let free = line.taken + line.waiting.len() < self.most;
        free.then(|| {
            line.taken += 1;
            Room { places: self.clone() }
        })
    }

    /// For whoever wants one for a request.
    pub(super) fn line_up(self: &Arc<Self>) -> Result<Ticket> {
        let mut line = self.line();
        match line.waiting.len() < LONGEST_LINE {
            true => Ok(self.ticket(&mut line)),
            false => Err(Error::LongLine(LONGEST_LINE)),
        }
    }

    /// For a session that comes back by itself: it cannot try again later, so it waits however long the line is.
    pub(super) fn line_up_anyway(self: &Arc<Self>) -> Ticket {
        self.ticket(&mut self.line())
    }

    fn ticket(self: &Arc<Self>, line: &mut Line) -> Ticket {
        let (number, bell) = (line.next, Arc::new(Notify::new()));
        line.next += 1;
        line.waiting.insert(number, bell.clone());
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
        line.taken += 1;
        line.waiting.remove(&self.number);
        Some(Room { places: self.places.clone() })
    }

    /// How many have to go before there is room for it, and for everybody before it.
    pub(super) fn lacking(&self) -> usize {
        self.places.line().lacking(self.number, self.places.most)
    }

    pub(super) fn is_in_front(&self) -> bool {
        self.places.line().waiting.keys().take(FRONT).any(|number| *number == self.number)
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
        let before = self.waiting.range(..number).count();
        (self.taken + before + 1).saturating_sub(most)
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
        self.places.line().taken -= 1;
        self.places.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn whoever_came_first_gets_the_place() {
        let places = Places::new(1);
        let only = places.line_up().expect("a short line").take().expect("there is one");
        let (first, second) =
            (places.line_up().expect("a short line"), places.line_up().expect("a short line"));
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
            (places.line_up().expect("a short line"), places.line_up().expect("a short line"));
        drop(first);
        assert!(second.take().is_some());
        drop(second);
        assert_eq!(places.queued(), 0);
    }

    #[test]
    fn what_is_there_counts_even_beyond_the_most() {
        let places = Places::new(1);
        let (one, other) = (places.count_in(), places.count_in());
        drop(one);
        assert!(places.line_up().expect("a short line").take().is_none());
        drop(other);
        assert!(places.line_up().expect("a short line").take().is_some());
    }

    #[test]
    fn whoever_finds_a_long_line_is_told_and_who_comes_back_by_himself_waits() {
        let places = Places::new(1);
        let _room = places.count_in();
        let mut line: Vec<_> = (0..LONGEST_LINE).map(|_| places.line_up().expect("not long yet")).collect();
        assert!(matches!(places.line_up(), Err(Error::LongLine(LONGEST_LINE))));
        let _by_himself = places.line_up_anyway();
        line.pop();
        line.pop();
        assert!(places.line_up().is_ok());
    }

    #[test]
    fn a_spare_place_is_one_that_nobody_waits_for() {
        let places = Places::new(2);
        let one = places.line_up().expect("a short line");
        let spare = places.spare().expect("two places, and one who waits");
        assert!(places.spare().is_none());
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
        let room = places.count_in();
        let mut line: Vec<_> = (0..FRONT + 2).map(|_| places.line_up().expect("a short line")).collect();
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
