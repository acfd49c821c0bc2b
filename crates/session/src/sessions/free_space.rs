//! Free disk space and memory, and what is removed when they run low.

use super::{Sessions, recovery::list_names};
use crate::{Error, Result, RetentionPolicy, mailbox::ActorMessage};
use ash_model::{SessionStatus, Timestamp, WorkspaceId};
use ash_store::{SessionRow, WorkspaceSession};
use std::{sync::atomic::Ordering, time::Duration};

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
        let gone = self.rooms.pool.free_memory().await;
        if gone > 0 {
            tracing::warn!(
                sandboxes = gone,
                "little memory was left: sandboxes that nobody used were let go of"
            );
        }
    }

    /// The free bytes, if they are too few to begin anything.
    pub fn little_space(&self) -> Option<u64> {
        let free = self.free.load(Ordering::Relaxed);
        match self.is_full() {
            // Whatever the file system reports: a quota may apply, or there may be no free inode.
            true => Some(0),
            false => (free < self.rooms.settings.min_free).then_some(free),
        }
    }

    /// What would be left of `free` bytes after `wanted` more, if that is too little to begin anything.
    pub fn little_space_after(&self, free: u64, wanted: u64) -> Option<u64> {
        let left = free.saturating_sub(wanted);
        (free < wanted || left < self.rooms.settings.min_free).then_some(left)
    }

    /// Whether a write has failed because the disk is full, and none has succeeded since.
    pub fn is_full(&self) -> bool {
        self.rooms.full.load(Ordering::Relaxed)
    }

    /// Called when a test write of a typical size has succeeded.
    pub fn has_space_again(&self) {
        if self.rooms.full.swap(false, Ordering::Relaxed) {
            tracing::info!("the disk takes writes again");
        }
    }

    /// Sets the free bytes on the disk. If they are few, files that are safe in the object store are removed from this
    /// machine before their time. Files that are only here are never removed.
    pub async fn set_free(&self, free: u64, keep: &RetentionPolicy) {
        let before = self.free.swap(free, Ordering::Relaxed);
        let least = self.rooms.settings.min_free;
        match (before < least, free < least) {
            (false, true) => {
                tracing::error!(free, "little space is left: nothing new is begun until there is more");
            }
            (true, false) => tracing::info!(free, "there is space again"),
            (_, _) => {}
        }
        // Each time, because some sessions must first check whether all of their files are safe.
        if free < least
            && let Err(error) =
                Box::pin(self.sweep(&RetentionPolicy { local_ttl: Duration::ZERO, ..*keep })).await
        {
            tracing::warn!(%error, "nothing was collected");
        }
    }

    /// Removes the live trees of sessions that were not used since `before`, if the object store has what they hold.
    pub(crate) async fn evict_local_trees(&self, before: Timestamp) -> Result<u64> {
        let root = self.rooms.settings.live_dir.clone();
        let names = tokio::task::spawn_blocking(move || list_names(&root)).await.map_err(|_| Error::Gone)?;
        let mut gone = 0;
        for workspace in names.iter().filter_map(|name| WorkspaceId::parse(name)) {
            let mut sessions = Vec::new();
            for WorkspaceSession { no, .. } in self.rooms.store.workspace_sessions(workspace).await? {
                sessions.extend(self.rooms.store.session(no).await?);
            }
            // All sessions of a shared workspace must be unused.
            let cold = sessions.iter().all(|session| is_cold(session, before));
            // An ended session is asked only if there is no other.
            sessions.sort_by_key(|session| session.summary.status == SessionStatus::Ended);
            if let Some(session) = sessions.first().filter(|_| cold)
                && self.ask(session.no, |reply| ActorMessage::DropLocalFiles { reply }).await?
            {
                gone += 1;
            }
        }
        Ok(gone)
    }
}

/// Whether a session was not used since `before`, and the object store has what it needs.
pub(crate) fn is_cold(session: &SessionRow, before: Timestamp) -> bool {
    let rests = matches!(
        session.summary.status,
        SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Ended
    );
    // A session of a shared workspace may have made no checkpoint.
    let made = session.summary.checkpoint.is_some() || session.slug.is_some();
    let far = made && session.remote_checkpoint >= session.summary.checkpoint;
    rests && far && session.summary.open_turns == 0 && session.last_active_at < before
}
