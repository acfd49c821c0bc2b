//! So many sandboxes and no more, first come, first served.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::{Notify, futures::Notified};

pub(crate) struct Places {
    most: usize,
    line: Mutex<Line>,
    changed: Notify,
}

#[derive(Default)]
struct Line {
    taken: usize,
    next: u64,
    waiting: VecDeque<u64>,
}

/// One of the sandboxes that this server may have; given back when it is dropped.
pub(crate) struct Room {
    places: Arc<Places>,
}

/// A place in the line; left when it is dropped.
pub(super) struct Ticket {
    places: Arc<Places>,
    number: u64,
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

    /// Whatever else: it is there.
    pub(super) fn count_in(self: &Arc<Self>) -> Room {
        self.line().taken += 1;
        Room { places: self.clone() }
    }

    pub(super) fn line_up(self: &Arc<Self>) -> Ticket {
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        line.waiting.push_back(number);
        Ticket { places: self.clone(), number }
    }
}

impl Ticket {
    /// If there is room for everybody before it, too.
    pub(super) fn take(&self) -> Option<Room> {
        let mut line = self.places.line();
        let before = line.waiting.iter().take_while(|number| **number != self.number).count();
        if line.taken + before >= self.places.most {
            return None;
        }
        line.taken += 1;
        line.waiting.retain(|number| *number != self.number);
        Some(Room { places: self.places.clone() })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.places.line().waiting.retain(|number| *number != self.number);
        self.places.changed.notify_waiters();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.places.line().taken -= 1;
        self.places.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_came_first_gets_the_place() {
        let places = Places::new(1);
        let only = places.line_up().take().expect("there is one");
        let (first, second) = (places.line_up(), places.line_up());
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
        let (first, second) = (places.line_up(), places.line_up());
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
        assert!(places.line_up().take().is_none());
        drop(other);
        assert!(places.line_up().take().is_some());
    }
}
