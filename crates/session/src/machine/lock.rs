//! A lock gives one client exclusive use of a session. It is in the log, so it outlives the server; only the newest
//! token is valid.

use super::{CommandRefusal, LogState, StateCommand};
use ash_model::{Fact, LockAcquisition, SessionLock, SessionStatus, Timestamp};
use std::time::Duration;

/// A client's request for the lock.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// How long the lock lasts without being used.
    pub ttl: Duration,
    /// The name of the holder, for other clients.
    pub holder: Option<String>,
    /// The hash of the token that the client would get.
    pub hash: String,
    /// The number of the lock that the client holds and wants to renew.
    pub held: Option<u64>,
    /// Take the lock from its current holder.
    pub takeover: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum LockRefusal {
    /// Another client holds the lock.
    Held(SessionLock),
    /// The token is not valid any more.
    Lost,
    Command(CommandRefusal),
}

impl LogState {
    /// The current lock, if it is not the lock number `held`.
    pub fn locked_by_another(&self, held: Option<u64>, now: Timestamp) -> Option<SessionLock> {
        let lock = self.lock().filter(|lock| lock.is_held(now))?;
        (held != Some(lock.number)).then_some(lock)
    }

    /// The reason to refuse a message because of a lock. The route's guard has checked before, but the lock may have
    /// changed hands since.
    pub fn locked_out(&self, command: &StateCommand, now: Timestamp) -> Option<LockRefusal> {
        let StateCommand::Prompt { lock: held, .. } = command else { return None };
        match (self.locked_by_another(*held, now), held) {
            (Some(lock), _) => Some(LockRefusal::Held(lock)),
            (None, Some(number)) if self.lock().is_none_or(|lock| lock.number != *number) => {
                Some(LockRefusal::Lost)
            }
            (None, Some(_) | None) => None,
        }
    }

    pub fn take_lock(
        &self,
        request: LockRequest,
        now: Timestamp,
    ) -> Result<(SessionLock, Fact), LockRefusal> {
        if self.status == SessionStatus::Ended {
            return Err(LockRefusal::Command(CommandRefusal::WrongStatus(SessionStatus::Ended)));
        }
        let another = self.locked_by_another(request.held, now);
        if let Some(lock) = another.as_ref().filter(|_| !request.takeover) {
            return Err(LockRefusal::Held(lock.clone()));
        }
        let (until, ttl_ms) = (later(now, request.ttl), milliseconds(request.ttl));
        let own = self.lock().filter(|lock| request.held == Some(lock.number));
        let (acquisition, lock) = match own {
            Some(own) => {
                let holder = request.holder.or(own.holder);
                (LockAcquisition::Renewed, SessionLock { ttl_ms, until, holder, in_use: false, ..own })
            }
            None => {
                let acquisition =
                    if another.is_some() { LockAcquisition::Over } else { LockAcquisition::Free };
                let LockRequest { holder, hash, .. } = request;
                let number = self.locks + 1;
                (acquisition, SessionLock { number, hash, ttl_ms, until, holder, in_use: false })
            }
        };
        Ok((lock.clone(), Fact::Locked { acquisition, lock }))
    }

    /// The holder of lock `number` used it.
    pub fn renew_lock(&self, number: u64, now: Timestamp) -> Result<Fact, LockRefusal> {
        let lock = self.lock().filter(|lock| lock.number == number).ok_or(LockRefusal::Lost)?;
        Ok(renewed(lock, now))
    }

    pub fn release_lock(&self, number: u64) -> Result<Fact, LockRefusal> {
        let lock = self.lock().filter(|lock| lock.number == number).ok_or(LockRefusal::Lost)?;
        Ok(Fact::Unlocked { number: lock.number })
    }

    /// Another client writes after lock `number` ran out. From then on its token is invalid, because its holder does
    /// not know what the other client writes.
    pub fn expire_lock(&self, number: u64, now: Timestamp) -> Result<Option<Fact>, LockRefusal> {
        match self.lock().filter(|lock| lock.number == number) {
            Some(lock) if lock.is_held(now) => Err(LockRefusal::Held(lock)),
            Some(_) => Ok(Some(Fact::Unlocked { number })),
            None => match self.locked_by_another(None, now) {
                Some(lock) => Err(LockRefusal::Held(lock)),
                None => Ok(None),
            },
        }
    }
}

/// The lock lasts its whole TTL again. Frequent renewals are not all recorded.
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
