//! Limits the memory of a sandbox where no control group counts it. The shim measures it regularly and acts as the
//! kernel would: it kills the largest process. Shared memory must count once, and measuring that takes time, so it
//! happens only if the rough sum is over the limit. The checks catch memory that grows, not a sudden jump. Rlimits do
//! not help: runtimes reserve many times what they use, and do not start under such a limit. After a jump that uses up
//! the machine's memory, the kernel kills the sandbox first, see `process::prefer_for_oom_kill`.

use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Shim, ShimPhase};
use crate::{frame::HostProcess, process, process_memory};

const CALM_INTERVAL: Duration = Duration::from_secs(1);
/// From a quarter of the limit on.
const ALERT_INTERVAL: Duration = Duration::from_millis(200);
/// An exact measurement that finds no excess delays the next one by this many times its own duration.
const EXACT_LOOK_TIME_DIVISOR: u32 = 10;

#[derive(Debug)]
pub(super) struct MemoryWatchdog {
    limit_bytes: u64,
    due: Instant,
    /// No exact measurement before this time.
    next_exact_look: Instant,
    kills: u64,
}

impl MemoryWatchdog {
    pub(super) fn new(limit_bytes: u64, now: Instant) -> Self {
        Self { limit_bytes, due: now + ALERT_INTERVAL, next_exact_look: now, kills: 0 }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn kills(&self) -> u64 {
        self.kills
    }

    fn look(&mut self, init: HostProcess, now: Instant) {
        let family: Vec<i32> = process::with_descendants(init.pid as i32).into_iter().skip(1).collect();
        let sum: u64 = family.iter().filter_map(|pid| process_memory::resident_bytes(*pid)).sum();
        self.due = now + if sum < self.limit_bytes / 4 { CALM_INTERVAL } else { ALERT_INTERVAL };
        if sum > self.limit_bytes && now >= self.next_exact_look {
            self.look_closely(&family, now);
        }
    }

    fn look_closely(&mut self, family: &[i32], now: Instant) {
        let known = process_memory::proportional_bytes(family).into_iter();
        let known =
            known.filter_map(|(pid, bytes)| Some((bytes, HostProcess::of(u32::try_from(pid).ok()?)?)));
        let sizes: Vec<(u64, HostProcess)> = known.collect();
        let sum: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
        if sum <= self.limit_bytes {
            self.next_exact_look = now + now.elapsed() * EXACT_LOOK_TIME_DIVISOR;
        } else if sizes.into_iter().max_by_key(|(bytes, _)| *bytes).is_some_and(|(_, who)| end(who)) {
            self.kills += 1;
        }
    }
}

/// Kills through a handle, and only if the number still belongs to the process after the handle is open. The process
/// counts even if its first thread has ended.
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
        if self.phase == ShimPhase::Up && now >= dog.due {
            let before = dog.kills;
            dog.look(init, now);
            if dog.kills > before {
                self.count_ooms();
            }
        }
    }
}
