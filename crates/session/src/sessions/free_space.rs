//! Disk and memory that are left, and what is let go of when that is little.

use super::{Sessions, recovery::list_names};
use crate::{Error, Result, RetentionPolicy, mailbox::ActorMessage};
use ash_model::{SessionStatus, Timestamp, WorkspaceId};
use ash_store::{SessionRow, WorkspaceSession};
use std::{sync::atomic::Ordering, time::Duration};

impl Sessions {
    /// As before, for what needs space.
    pub(crate) fn check_room_for_work(&self) -> Result<()> {
        self.open_for_work()?;
        match self.little_space() {
            Some(free) => Err(Error::LittleSpace(free >> 20)),
            None => Ok(()),
        }
    }

    /// Where memory is short, sandboxes that nobody is at work in go, before somebody asks for one.
    pub async fn free_memory(&self) {
        let gone = self.rooms.pool.free_memory().await;
        if gone > 0 {
            tracing::warn!(
                sandboxes = gone,
                "little memory was left: sandboxes that nobody used were let go of"
            );
        }
    }

    /// How much is left, if that is too little to begin anything.
    pub fn little_space(&self) -> Option<u64> {
        let free = self.free.load(Ordering::Relaxed);
        match self.is_full() {
            // Whatever the file system says: there may be a quota, or no room for another file.
            true => Some(0),
            false => (free < self.rooms.settings.min_free).then_some(free),
        }
    }

    /// What would be left of `free` bytes after `wanted` more, if that is too little to begin anything.
    pub fn little_space_after(&self, free: u64, wanted: u64) -> Option<u64> {
        let left = free.saturating_sub(wanted);
        (free < wanted || left < self.rooms.settings.min_free).then_some(left)
    }

    /// Whether a write has failed for want of space, and none has been seen to work since.
    pub fn is_full(&self) -> bool {
        self.rooms.full.load(Ordering::Relaxed)
    }

    /// Something of the size that the server writes could be written.
    pub fn has_space_again(&self) {
        if self.rooms.full.swap(false, Ordering::Relaxed) {
            tracing::info!("the disk takes writes again");
        }
    }

    /// So much is left on the disk. If that is little, what is safe in the object store goes from here before its time.
    /// What is only here never does.
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
        // Again and again: some have to look first whether all of theirs is safe.
        if free < least
            && let Err(error) =
                Box::pin(self.sweep(&RetentionPolicy { local_ttl: Duration::ZERO, ..*keep })).await
        {
            tracing::warn!(%error, "nothing was collected");
        }
    }

    /// Lets go of the live trees of sessions that nobody has used since, as far as the object store has what they hold.
    pub(crate) async fn evict_local_trees(&self, before: Timestamp) -> Result<u64> {
        let root = self.rooms.settings.live_dir.clone();
        let names = tokio::task::spawn_blocking(move || list_names(&root)).await.map_err(|_| Error::Gone)?;
        let mut gone = 0;
        for workspace in names.iter().filter_map(|name| WorkspaceId::parse(name)) {
            let mut sessions = Vec::new();
            for WorkspaceSession { no, .. } in self.rooms.store.workspace_sessions(workspace).await? {
                sessions.extend(self.rooms.store.session(no).await?);
            }
            // Of a shared one nobody may have used any.
            let cold = sessions.iter().all(|session| is_cold(session, before));
            // One that has ended is only asked if there is no other.
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

/// Whether nobody has used a session since, and the object store has what it stands on.
pub(crate) fn is_cold(session: &SessionRow, before: Timestamp) -> bool {
    let rests = matches!(
        session.summary.status,
        SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Ended
    );
    // A session of a shared workspace may have made none.
    let made = session.summary.checkpoint.is_some() || session.slug.is_some();
    let far = made && session.remote_checkpoint >= session.summary.checkpoint;
    rests && far && session.summary.open_turns == 0 && session.last_active_at < before
}
