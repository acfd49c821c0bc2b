//! Writes of clients without a lock. One that was begun before another client took the lock may end when that is over: then
//! the token must not bring the lock back, because its holder does not know what was written.

use super::Sessions;
use crate::Result;
use ash_model::{Lock, SessionNo};
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
    /// The number of the lock that was held when such a write ended.
    locks: Mutex<HashMap<SessionNo, u64>>,
}

impl Overwritten {
    pub(super) fn note_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<SessionNo, u64>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
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
        session: SessionNo,
        LocklessWrite(taken): LocklessWrite,
    ) -> Result<()> {
        if self.overwritten.taken.load(Ordering::Relaxed) == taken {
            return Ok(());
        }
        let Some(lock) = self.get(session).await?.card.lock else { return Ok(()) };
        match lock.is_held(self.rooms.clock()) {
            // It is known as long as the server lives, which is longer than most locks.
            true => drop(self.overwritten.locks().insert(session, lock.number)),
            false => self.outlive_lock(session, lock.number).await?,
        }
        Ok(())
    }

    /// Whether another client wrote while this lock was held.
    pub fn is_overwritten(&self, session: SessionNo, lock: &Lock) -> bool {
        self.overwritten.locks().get(&session) == Some(&lock.number)
    }
}
