//! Following a session's log. Readers read the store; a bell only tells them when to look again, so that a
//! client can never see what is not stored.

use crate::Result;
use ash_model::{Cursor, SessionNo};
use ash_store::{Item, Store};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tokio::sync::watch;

/// How much is read at once: bounds what one slow reader holds in memory.
const PAGE: u32 = 256;

/// One bell per session that somebody listens to.
#[derive(Default)]
pub(crate) struct Bells(Mutex<HashMap<SessionNo, watch::Sender<u64>>>);

impl Bells {
    pub(crate) fn ring(&self, no: SessionNo) {
        let mut bells = self.0.lock().expect("nobody panics while holding it");
        if let Some(bell) = bells.get(&no) {
            if bell.receiver_count() == 0 {
                bells.remove(&no);
            } else {
                bell.send_modify(|rings| *rings += 1);
            }
        }
    }

    fn listen(&self, no: SessionNo) -> watch::Receiver<u64> {
        let mut bells = self.0.lock().expect("nobody panics while holding it");
        bells.entry(no).or_insert_with(|| watch::channel(0).0).subscribe()
    }
}

pub struct Follower {
    store: Arc<dyn Store>,
    bell: watch::Receiver<u64>,
    no: SessionNo,
    after: Cursor,
}

impl Follower {
    pub(crate) fn new(store: Arc<dyn Store>, bells: &Bells, no: SessionNo, after: Cursor) -> Follower {
        Follower { store, bell: bells.listen(no), no, after }
    }

    /// What comes next: at once if it is there, else when it happens. Never empty. Cancel-safe.
    pub async fn next(&mut self) -> Result<Vec<Item>> {
        loop {
            // Marked before the read: what is stored after it rings again.
            self.bell.mark_unchanged();
            let items = self.store.read(self.no, self.after, PAGE).await?;
            if let Some(last) = items.last() {
                self.after = last.at;
                return Ok(items);
            }
            // The bell outlives its listeners, so it cannot be closed under us.
            self.bell.changed().await.ok();
        }
    }
}
