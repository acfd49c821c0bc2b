//! Following a session's log. Readers read the store; a bell only tells them when to look again, so that a
//! client can never see what is not stored. Only how far a restore has come is told without being stored.

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

/// How much is read at once: bounds what one slow reader holds in memory.
const PAGE: u32 = 256;
/// A restore that takes longer than this is told of, and from then on this often.
const FIRST_PROGRESS_AFTER: Duration = Duration::from_secs(1);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(300);

/// How far it has come to bring a session's files back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreProgress {
    /// Bytes that came from the object store.
    pub fetched: u64,
    /// How many that will be, as far as it is known yet.
    pub to_fetch: u64,
    pub files: u64,
    pub bytes: u64,
}

/// What a follower hears next.
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

/// One bell per session that somebody listens to.
#[derive(Default)]
pub(crate) struct SessionBells(Mutex<HashMap<SessionRowId, watch::Sender<BellState>>>);

impl SessionBells {
    pub(crate) fn ring(&self, no: SessionRowId) {
        self.change(no, |rung| rung.rings += 1);
    }

    /// Tells whoever follows the session how far `restoring` has come, if it takes long.
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
        let mut bells = self.0.lock().expect("nobody panics while holding it");
        if let Some(bell) = bells.get(&no) {
            if bell.receiver_count() == 0 {
                bells.remove(&no);
            } else {
                bell.send_modify(change);
            }
        }
    }

    fn listen(&self, no: SessionRowId) -> watch::Receiver<BellState> {
        let mut bells = self.0.lock().expect("nobody panics while holding it");
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

    /// Whether a turn is not over: it runs, or will run without being sent again.
    pub async fn is_open(&self, turn: TurnId) -> Result<bool> {
        let row = self.store.turn(self.no, turn).await?;
        Ok(row.is_some_and(|row| match row.state {
            TurnState::Queued | TurnState::Running | TurnState::Saving | TurnState::Cut => true,
            TurnState::Done | TurnState::Failed | TurnState::Interrupted | TurnState::Cancelled => false,
        }))
    }

    /// What comes next: at once if it is there, else when it happens. Cancel-safe.
    pub async fn next(&mut self) -> Result<StreamItem> {
        loop {
            // Marked before the read: what is stored after it rings again.
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
            // The bell outlives its listeners, so it cannot be closed under us.
            self.bell.changed().await.ok();
        }
    }
}
