//! Where no control group counts the memory of a sandbox, we look ourselves, and do as the kernel would: the process that
//! has most is ended. What several share is there once, and to know that takes time: it is found out only if it would be
//! too much otherwise. Looked at from time to time, so it holds for what grows, not for what jumps. No rlimit helps there:
//! runtimes reserve many times what they use, and do not start if they may not. What jumps so far that the machine has
//! none left is the first that the kernel ends, see `process::go_first`.

use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Phase, Shim};
use crate::{frame::HostProcess, memory, process};

const CALM: Duration = Duration::from_secs(1);
/// From a quarter of the limit on.
const ALERT: Duration = Duration::from_millis(200);
/// Looking closely for nothing takes at most one part of so many of the time.
const SHARE: u32 = 10;

#[derive(Debug)]
pub(super) struct Watchdog {
    most: u64,
    due: Instant,
    /// Not looked at closely again before.
    closely: Instant,
    kills: u64,
}

impl Watchdog {
    pub(super) fn new(most: u64, now: Instant) -> Self {
        Self { most, due: now + ALERT, closely: now, kills: 0 }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn kills(&self) -> u64 {
        self.kills
    }

    fn look(&mut self, init: HostProcess, now: Instant) {
        let family: Vec<i32> = process::family(init.pid as i32).into_iter().skip(1).collect();
        let sum: u64 = family.iter().filter_map(|pid| memory::roughly(*pid)).sum();
        self.due = now + if sum < self.most / 4 { CALM } else { ALERT };
        if sum > self.most && now >= self.closely {
            self.look_closely(&family, now);
        }
    }

    fn look_closely(&mut self, family: &[i32], now: Instant) {
        let known = memory::exactly(family).into_iter();
        let known =
            known.filter_map(|(pid, bytes)| Some((bytes, HostProcess::of(u32::try_from(pid).ok()?)?)));
        let sizes: Vec<(u64, HostProcess)> = known.collect();
        let sum: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
        if sum <= self.most {
            self.closely = now + now.elapsed() * SHARE;
        } else if sizes.into_iter().max_by_key(|(bytes, _)| *bytes).is_some_and(|(_, who)| end(who)) {
            self.kills += 1;
        }
    }
}

/// By a handle, looked at again: its number may be another's by now. Whether its first thread has ended says nothing.
fn end(who: HostProcess) -> bool {
    let pid = i32::try_from(who.pid).ok().and_then(Pid::from_raw);
    let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    handle.is_some_and(|handle| {
        who.is_there() && rustix::process::pidfd_send_signal(&handle, Signal::KILL).is_ok()
    })
}

impl Shim {
    pub(super) fn watch_memory(&mut self, now: Instant) {
        let init = self.sandbox.as_ref().and_then(|sandbox| sandbox.init());
        let Some((dog, init)) = self.watchdog.as_mut().zip(init) else { return };
        if self.phase == Phase::Up && now >= dog.due {
            let before = dog.kills;
            dog.look(init, now);
            if dog.kills > before {
                self.count_ooms();
            }
        }
    }
}
