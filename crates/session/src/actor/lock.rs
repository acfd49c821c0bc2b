//! One client may have a session to itself. The lock is in the log, so it outlives the server; every token but the
//! newest is worth nothing.

use super::{ReplySender, SessionActor};
use crate::{
    Error, Result,
    state::{CommandRefusal, StateCommand},
};
use ash_model::{Fact, LockAcquisition, SessionLock, SessionStatus, Timestamp};
use std::time::Duration;

/// What somebody wants who asks for the lock.
#[derive(Debug, Clone)]
pub struct LockRequest {
    pub ttl: Duration,
    pub holder: Option<String>,
    /// Of the token that it would get.
    pub hash: String,
    /// The number of the lock that they hold, to go on with it.
    pub held: Option<u64>,
    /// Whoever has it.
    pub takeover: bool,
}

impl SessionActor {
    /// The lock, if one is held that is not this one.
    pub(super) fn locked_by_another(&self, held: Option<u64>) -> Option<SessionLock> {
        let lock = self.state.lock().filter(|lock| lock.is_held(self.services.clock()))?;
        (held != Some(lock.number)).then_some(lock)
    }

    /// Why the sender of a message is kept out, if a lock does that. The guard of the routes has asked before, but the lock
    /// may have changed hands since.
    pub(super) fn locked_out(&self, wish: &StateCommand) -> Option<Error> {
        let StateCommand::Prompt { lock: held, .. } = wish else { return None };
        match (self.locked_by_another(*held), held) {
            (Some(lock), _) => Some(Error::locked(&lock)),
            (None, Some(number)) if self.state.lock().is_none_or(|lock| lock.number != *number) => {
                Some(Error::LockLost)
            }
            (None, Some(_) | None) => None,
        }
    }

    /// From here on the token is worth nothing: whoever had it does not know what this other client writes now.
    pub(super) async fn expire_lock(&mut self, number: u64, reply: ReplySender<()>) -> Result<()> {
        match self.state.lock().filter(|lock| lock.number == number) {
            Some(lock) if lock.is_held(self.services.clock()) => {
                reply.send(Err(Error::locked(&lock))).ok();
                Ok(())
            }
            Some(_) => self.note_lock(Fact::Unlocked { number }, reply).await,
            None => {
                let held = self.locked_by_another(None);
                reply.send(held.map_or(Ok(()), |lock| Err(Error::locked(&lock)))).ok();
                Ok(())
            }
        }
    }

    pub(super) async fn lock(&mut self, wanted: LockRequest, reply: ReplySender<SessionLock>) -> Result<()> {
        if self.state.status == SessionStatus::Ended {
            reply.send(Err(CommandRefusal::WrongStatus(SessionStatus::Ended).into())).ok();
            return Ok(());
        }
        let another = self.locked_by_another(wanted.held);
        if let Some(lock) = another.as_ref().filter(|_| !wanted.takeover) {
            reply.send(Err(Error::locked(lock))).ok();
            return Ok(());
        }
        let until = later(self.services.clock(), wanted.ttl);
        let ttl_ms = milliseconds(wanted.ttl);
        let own = self.state.lock().filter(|lock| wanted.held == Some(lock.number));
        let (how, lock) = match own {
            Some(own) => {
                let holder = wanted.holder.or(own.holder);
                (LockAcquisition::Renewed, SessionLock { ttl_ms, until, holder, in_use: false, ..own })
            }
            None => {
                let how = if another.is_some() { LockAcquisition::Over } else { LockAcquisition::Free };
                let number = self.state.locks + 1;
                (
                    how,
                    SessionLock {
                        number,
                        hash: wanted.hash,
                        ttl_ms,
                        until,
                        holder: wanted.holder,
                        in_use: false,
                    },
                )
            }
        };
        let noted = self.commit_facts(vec![Fact::Locked { acquisition: how, lock: lock.clone() }]).await;
        let answer = noted.as_ref().map(|()| lock).map_err(Error::shared);
        reply.send(answer).ok();
        self.tolerate(noted)
    }

    pub(super) async fn renew_lock(&mut self, number: u64, reply: ReplySender<()>) -> Result<()> {
        let Some(lock) = self.state.lock().filter(|lock| lock.number == number) else {
            reply.send(Err(Error::LockLost)).ok();
            return Ok(());
        };
        self.note_lock(renewed(lock, self.services.clock()), reply).await
    }

    pub(super) async fn unlock(&mut self, number: u64, reply: ReplySender<()>) -> Result<()> {
        match self.state.lock() {
            Some(lock) if lock.number == number => self.note_lock(Fact::Unlocked { number }, reply).await,
            Some(_) | None => {
                reply.send(Err(Error::LockLost)).ok();
                Ok(())
            }
        }
    }

    async fn note_lock(&mut self, fact: Fact, reply: ReplySender<()>) -> Result<()> {
        let noted = self.commit_facts(vec![fact]).await;
        let failed = noted.as_ref().err().map(Error::shared);
        reply.send(failed.map_or(Ok(()), Err)).ok();
        self.tolerate(noted)
    }
}

/// The lock lasts its whole time again. Not said at every step of many.
pub(super) fn renewal(lock: SessionLock, now: Timestamp) -> Option<Fact> {
    let left = u64::try_from(lock.until.0 - now.0).unwrap_or(0);
    (left < lock.ttl_ms - lock.ttl_ms / 10).then(|| renewed(lock, now))
}

fn renewed(lock: SessionLock, now: Timestamp) -> Fact {
    let until = later(now, Duration::from_millis(lock.ttl_ms));
    Fact::Locked { acquisition: LockAcquisition::Renewed, lock: SessionLock { until, in_use: false, ..lock } }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn later(now: Timestamp, by: Duration) -> Timestamp {
    Timestamp(now.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
}
