//! Writes of clients without a lock. One that was begun before another client took the lock may end when that is over: then
//! the token must not bring the lock back, because its holder does not know what was written.

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

/// Which locks others have written under.
#[derive(Default)]
pub(super) struct Overwritten {
    /// How many locks were taken, of all sessions: mostly none while a write lasts, and then nobody looks any further.
    taken: AtomicU64,
    /// The last lock of each session that this server gave out, until such a write ends under it. A lock of before a restart
    /// is missing: which writes were under way when it was taken, the server does not know any more.
    whole: Mutex<HashMap<SessionRowId, u64>>,
}

impl Overwritten {
    /// `held` is the number that the caller had before: a lock that goes on is as whole as it was.
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

/// Since when a write without a lock is under way: how many locks were taken before it.
#[derive(Debug, Clone, Copy)]
pub struct LocklessWrite(u64);

impl Sessions {
    /// To be asked for before it is looked whether somebody holds the lock.
    pub fn begin_lockless_write(&self) -> LocklessWrite {
        LocklessWrite(self.overwritten.taken.load(Ordering::Relaxed))
    }

    /// Somebody may have taken the lock meanwhile. Who got it after this knows what was written.
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
        match lock.is_held(self.rooms.clock()) {
            true => Ok(()),
            false => self.expire_lock(session, lock.number).await,
        }
    }

    /// Whether another client may have written while this lock was held.
    pub fn is_overwritten(&self, session: SessionRowId, lock: &SessionLock) -> bool {
        self.overwritten.whole().get(&session) != Some(&lock.number)
    }
}
