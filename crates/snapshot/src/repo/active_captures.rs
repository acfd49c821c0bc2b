//! Protects packs that no database row mentions yet: between the writing of a pack and the record of its snapshot, a
//! collection would take it for garbage. So collection keeps every pack that was written since the oldest running capture
//! began.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::SystemTime,
};

use super::Repo;

#[derive(Debug, Default)]
pub(super) struct ActiveCaptures(Mutex<CaptureStartTimes>);

#[derive(Debug, Default)]
struct CaptureStartTimes {
    next: u64,
    at: BTreeMap<u64, SystemTime>,
}

impl ActiveCaptures {
    fn began(&self) -> MutexGuard<'_, CaptureStartTimes> {
        self.0.lock().expect("no holder panics")
    }
}

/// While it or a copy lives, collection keeps the packs of a capture. Keep it until the snapshot is recorded.
#[derive(Clone)]
pub struct CaptureGuard(#[expect(dead_code, reason = "its end is what counts")] Arc<ActiveCapture>);

struct ActiveCapture {
    captures: Arc<ActiveCaptures>,
    number: u64,
}

impl Repo {
    pub(super) fn begin_capture(&self) -> CaptureGuard {
        let mut began = self.captures.began();
        let number = began.next;
        began.next += 1;
        began.at.insert(number, SystemTime::now());
        CaptureGuard(Arc::new(ActiveCapture { captures: self.captures.clone(), number }))
    }

    /// When the oldest capture began whose snapshot is not recorded yet. Call this before you read the recorded
    /// snapshots: a snapshot that is recorded after that read was still running here.
    pub fn oldest_capture(&self) -> Option<SystemTime> {
        self.captures.began().at.values().min().copied()
    }
}

impl Drop for ActiveCapture {
    fn drop(&mut self) {
        self.captures.began().at.remove(&self.number);
    }
}

impl fmt::Debug for CaptureGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnderWay")
    }
}

/// All guards are equal, because a guard says nothing about what was captured.
impl PartialEq for CaptureGuard {
    fn eq(&self, _: &CaptureGuard) -> bool {
        true
    }
}

impl Eq for CaptureGuard {}
