//! Cancels one turn. The token is a file descriptor, so a thread that polls pipes or sockets can poll it as well.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A cancelled token stays cancelled: nothing reads the eventfd, so it stays readable.
#[derive(Clone)]
pub(crate) struct CancelToken(Arc<OwnedFd>);

impl CancelToken {
    pub(crate) fn new() -> io::Result<CancelToken> {
        Ok(CancelToken(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(crate) fn cancel(&self) {
        // Fails only when the counter is full, which means that the token is already cancelled.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.within(Duration::ZERO)
    }

    /// Waits for at most `time`; returns true as soon as the turn is cancelled.
    pub(crate) fn within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = timespec(until.saturating_duration_since(Instant::now()));
            match poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], Some(&left)) {
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                // Cannot happen with a descriptor that we own. If it does, stopping is safer than never stopping.
                Err(_) => return true,
            }
        }
    }
}

impl CancelToken {
    /// Waits until one of the two tokens is cancelled; true if it is this one.
    pub(crate) fn or(&self, other: &CancelToken) -> bool {
        loop {
            let mut both = [PollFd::new(&*self.0, PollFlags::IN), PollFd::new(&*other.0, PollFlags::IN)];
            match poll(&mut both, None) {
                Ok(_) => return !both[0].revents().is_empty(),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }
}

impl AsFd for CancelToken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() }
}
