//! Free disk space and memory.

use super::Sessions;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

impl Sessions {
    /// Like `open_for_work`, for requests that need disk space.
    pub(crate) fn check_room_for_work(&self) -> Result<()> {
        self.open_for_work()?;
        match self.little_space() {
            Some(free) => Err(Error::LittleSpace(free >> 20)),
            None => Ok(()),
        }
    }

    /// If memory is short, ends idle sandboxes before a request needs the memory.
    pub async fn free_memory(&self) {
        let gone = self.services.pool.free_memory().await;
        if gone > 0 {
            tracing::warn!(sandboxes = gone, "little memory was left: the server ended idle sandboxes");
        }
    }

    /// The free bytes, if they are too few to begin anything.
    pub fn little_space(&self) -> Option<u64> {
        let free = self.free.load(Ordering::Relaxed);
        match self.is_full() {
            // Whatever the file system reports: a quota may apply, or there may be no free inode.
            true => Some(0),
            false => (free < self.services.settings.min_free).then_some(free),
        }
    }

    /// What would be left of `free` bytes after `wanted` more, if that is too little to begin anything.
    pub fn little_space_after(&self, free: u64, wanted: u64) -> Option<u64> {
        let left = free.saturating_sub(wanted);
        (free < wanted || left < self.services.settings.min_free).then_some(left)
    }

    /// Whether a write has failed because the disk is full, and none has succeeded since.
    pub fn is_full(&self) -> bool {
        self.services.full.load(Ordering::Relaxed)
    }

    /// Called when a test write of a typical size has succeeded.
    pub fn has_space_again(&self) {
        if self.services.full.swap(false, Ordering::Relaxed) {
            tracing::info!("the disk accepts writes again");
        }
    }

    /// Sets the free bytes on the disk. Answers what they were.
    pub(crate) fn replace_free(&self, free: u64) -> u64 {
        self.free.swap(free, Ordering::Relaxed)
    }
}
