//! Writes of clients without a lock. Such a write may begin before another client takes the lock, and end when that
//! lock has expired. Then the token must not revive the lock, because its holder does not know what was written.

use super::Sessions;
use crate::Result;
use ash_model::{SessionLock, SessionRowId};
use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Which locks other clients have written under.
#[derive(Default)]
pub(super) struct Overwritten {
    /// How many locks were taken, of all sessions. Mostly none is taken while a write lasts, and then nothing else
    /// needs a check.
    taken: AtomicU64,
    /// The last lock of each session that this server granted, until such a write ends under it. Locks from before a
    /// restart are missing, because the server does not know which writes were in progress when they were taken.
    whole: Mutex<HashMap<SessionRowId, u64>>,
}

impl Overwritten {
    /// `held` is the number that the caller had before: a prolonged lock keeps its state.
    pub(super) fn note_taken(&self, session: SessionRowId, number: u64, held: Option<u64>) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if held != Some(number) {
            self.whole().insert(session, number);
        }
    }

    pub(super) fn note_over(&self, session: SessionRowId, number: u64) {
        let mut whole = self.whole();
        if whole.get(&session) == Some(&number) {
            whole.remove(&session);
        }
    }

    fn whole(&self) -> MutexGuard<'_, HashMap<SessionRowId, u64>> {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The start of a write without a lock, as the number of locks that were taken before it.
#[derive(Debug, Clone, Copy)]
pub struct LocklessWrite(u64);

impl Sessions {
    /// Call this before checking whether another client holds the lock.
    pub fn begin_lockless_write(&self) -> LocklessWrite {
        LocklessWrite(self.overwritten.taken.load(Ordering::Relaxed))
    }

    /// Checks whether another client took the lock during the write. A client that takes it after this call sees what
    /// was written.
    pub async fn end_lockless_write(
        &self,
        session: SessionRowId,
        LocklessWrite(taken): LocklessWrite,
    ) -> Result<()> {
        if self.overwritten.taken.load(Ordering::Relaxed) == taken {
            return Ok(());
        }
        let Some(lock) = self.get(session).await?.summary.lock else { return Ok(()) };
        self.overwritten.note_over(session, lock.number);
        match lock.is_held(self.services.clock()) {
            true => Ok(()),
            false => self.expire_lock(session, lock.number).await,
        }
    }

    /// Whether another client may have written while this lock was held.
    pub fn is_overwritten(&self, session: SessionRowId, lock: &SessionLock) -> bool {
        self.overwritten.whole().get(&session) != Some(&lock.number)
    }
}
