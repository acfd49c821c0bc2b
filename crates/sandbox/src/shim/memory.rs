//! Where no control group counts the memory of a sandbox, we look ourselves, and do as the kernel would: the process that
//! has most is ended. Looked at from time to time, so it holds for what grows, not for what jumps. No rlimit helps there:
//! runtimes reserve many times what they use, and do not start if they may not. What jumps so far that the machine has
//! none left is the first that the kernel ends, see `process::go_first`.

use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Phase, Shim};
use crate::{frame::HostProcess, process};

const CALM: Duration = Duration::from_secs(1);
/// From a quarter of the limit on.
const ALERT: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Watchdog {
    most: u64,
    due: Instant,
    kills: u64,
}

impl Watchdog {
    pub(super) fn new(most: u64, now: Instant) -> Self {
        Self { most, due: now + ALERT, kills: 0 }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn kills(&self) -> u64 {
        self.kills
    }

    fn look(&mut self, init: HostProcess, now: Instant) {
        let family = process::family(init.pid as i32).into_iter().skip(1);
        let known = family.filter_map(|pid| Some((process::own_memory(pid)?, HostProcess::of(pid as u32)?)));
        let sizes: Vec<(u64, HostProcess)> = known.collect();
        let sum: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
        self.due = now + if sum < self.most / 4 { CALM } else { ALERT };
        let largest = sizes.into_iter().max_by_key(|(bytes, _)| *bytes).filter(|_| sum > self.most);
        if let Some((_, who)) = largest
            && end(who)
        {
            self.kills += 1;
        }
    }
}

/// By a handle, looked at again: its number may be another's by now.
fn end(who: HostProcess) -> bool {
    let pid = i32::try_from(who.pid).ok().and_then(Pid::from_raw);
    let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    handle
        .is_some_and(|handle| who.runs() && rustix::process::pidfd_send_signal(&handle, Signal::KILL).is_ok())
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
