//! Follows a session's log. Readers read the store, and a bell only tells them when to read again, so a client never
//! sees what is not stored. Only the progress of a restore is sent without being stored.

use crate::Result;
use ash_model::{LogCursor, SessionRowId, TurnId};
use ash_snapshot::SnapshotProgress;
use ash_store::{LogItem, LogStore, TurnState};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// The number of items that are read at once. It bounds what one slow reader holds in memory.
const PAGE: u32 = 256;
/// A restore that takes longer than this is reported, and from then on at the interval below.
const FIRST_PROGRESS_AFTER: Duration = Duration::from_secs(1);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(300);

/// The progress of restoring a session's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreProgress {
    /// Bytes that were fetched from the object store.
    pub fetched: u64,
    /// The total number of bytes to fetch, as far as it is known yet.
    pub to_fetch: u64,
    pub files: u64,
    pub bytes: u64,
}

/// What a follower gets next.
#[derive(Debug)]
pub enum StreamItem {
    /// Never empty.
    Items(Vec<LogItem>),
    Restoring(RestoreProgress),
}

#[derive(Default)]
struct BellState {
    rings: u64,
    restoring: Option<RestoreProgress>,
}

/// One bell for each session that has followers.
#[derive(Default)]
pub(crate) struct SessionBells(Mutex<HashMap<SessionRowId, watch::Sender<BellState>>>);

impl SessionBells {
    pub(crate) fn ring(&self, no: SessionRowId) {
        self.change(no, |rung| rung.rings += 1);
    }

    /// Reports the progress of `restoring` to the session's followers, if it takes long.
    pub(crate) async fn with_progress<T>(
        &self,
        no: SessionRowId,
        progress: &SnapshotProgress,
        restoring: impl Future<Output = T>,
    ) -> T {
        let mut restoring = std::pin::pin!(restoring);
        let mut often = tokio::time::interval_at(Instant::now() + FIRST_PROGRESS_AFTER, PROGRESS_INTERVAL);
        let done = loop {
            tokio::select! {
                done = &mut restoring => break done,
                _ = often.tick() => {}
            }
            let read = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
            let now = RestoreProgress {
                fetched: read(&progress.fetched),
                to_fetch: read(&progress.to_fetch),
                files: read(&progress.files),
                bytes: read(&progress.bytes),
            };
            self.change(no, |rung| rung.restoring = Some(now));
        };
        self.change(no, |rung| rung.restoring = None);
        done
    }

    fn change(&self, no: SessionRowId, change: impl FnOnce(&mut BellState)) {
        let mut bells = self.0.lock().expect("no thread panics while holding it");
        if let Some(bell) = bells.get(&no) {
            if bell.receiver_count() == 0 {
                bells.remove(&no);
            } else {
                bell.send_modify(change);
            }
        }
    }

    fn listen(&self, no: SessionRowId) -> watch::Receiver<BellState> {
        let mut bells = self.0.lock().expect("no thread panics while holding it");
        bells.entry(no).or_insert_with(|| watch::channel(BellState::default()).0).subscribe()
    }
}

pub struct LogFollower {
    store: Arc<dyn LogStore>,
    bell: watch::Receiver<BellState>,
    told: Option<RestoreProgress>,
    no: SessionRowId,
    after: LogCursor,
}

impl LogFollower {
    pub(crate) fn new(
        store: Arc<dyn LogStore>,
        bells: &SessionBells,
        no: SessionRowId,
        after: LogCursor,
    ) -> LogFollower {
        LogFollower { store, bell: bells.listen(no), told: None, no, after }
    }

    /// Whether a turn is open: it runs, or will run without being sent again.
    pub async fn is_open(&self, turn: TurnId) -> Result<bool> {
        let row = self.store.turn(self.no, turn).await?;
        Ok(row.is_some_and(|row| match row.state {
            TurnState::Queued | TurnState::Running | TurnState::Saving | TurnState::Cut => true,
            TurnState::Done | TurnState::Failed | TurnState::Interrupted | TurnState::Cancelled => false,
        }))
    }

    /// Returns the next items at once if they are stored, else waits for them. Cancel-safe.
    pub async fn next(&mut self) -> Result<StreamItem> {
        loop {
            // Marked as seen before the read, so that items stored after the read ring the bell again.
            let restoring = self.bell.borrow_and_update().restoring;
            let items = self.store.read_log(self.no, self.after, PAGE).await?;
            if let Some(last) = items.last() {
                self.after = last.at;
                return Ok(StreamItem::Items(items));
            }
            if restoring != self.told {
                self.told = restoring;
                if let Some(restoring) = restoring {
                    return Ok(StreamItem::Restoring(restoring));
                }
            }
            // The bell exists as long as it has followers, so it cannot be closed here.
            self.bell.changed().await.ok();
        }
    }
}
