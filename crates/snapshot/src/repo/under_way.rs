//! Packs of which no row tells yet: between the writing of a pack and the record of its snapshot a collection would
//! take it for garbage. It leaves alone whatever was written since the oldest capture under way began.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::SystemTime,
};

use super::Repo;

#[derive(Debug, Default)]
pub(super) struct Captures(Mutex<Began>);

#[derive(Debug, Default)]
struct Began {
    next: u64,
    at: BTreeMap<u64, SystemTime>,
}

impl Captures {
    fn began(&self) -> MutexGuard<'_, Began> {
        self.0.lock().expect("no holder panics")
    }
}

/// As long as it or a copy lives, the packs of a capture are not collected. Keep it until the snapshot is recorded.
#[derive(Clone)]
pub struct UnderWay(#[expect(dead_code, reason = "its end is what counts")] Arc<Capturing>);

struct Capturing {
    captures: Arc<Captures>,
    number: u64,
}

impl Repo {
    pub(super) fn begin_capture(&self) -> UnderWay {
        let mut began = self.captures.began();
        let number = began.next;
        began.next += 1;
        began.at.insert(number, SystemTime::now());
        UnderWay(Arc::new(Capturing { captures: self.captures.clone(), number }))
    }

    /// When the oldest capture began whose snapshot is not recorded. Ask before you read what is recorded: what is
    /// recorded later was under way.
    pub fn oldest_capture(&self) -> Option<SystemTime> {
        self.captures.began().at.values().min().copied()
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        self.captures.began().at.remove(&self.number);
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnderWay")
    }
}

/// It says nothing of what was captured.
impl PartialEq for UnderWay {
    fn eq(&self, _: &UnderWay) -> bool {
        true
    }
}

impl Eq for UnderWay {}
