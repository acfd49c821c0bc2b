//! Attributes out-of-memory kills to processes. The kernel only counts kills, and each ended one process. In a sandbox
//! with several agents more than one may die between two checks.

use std::time::{Duration, Instant};

/// Kills not attributed by then hit child processes, whose ends the shim does not see.
const ATTRIBUTION_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct OomKillCounter {
    counted: u64,
    last: Option<Instant>,
    /// Kills that are not attributed to a process's end yet.
    pub(super) unattributed: u64,
}

impl OomKillCounter {
    pub(super) fn count(&mut self, count: u64, now: Instant) {
        if self.last.is_some_and(|last| now > last + ATTRIBUTION_TIMEOUT) {
            self.unattributed = 0;
        }
        if count > self.counted {
            self.unattributed += count - self.counted;
            (self.counted, self.last) = (count, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kill_is_one_process_and_those_of_children_are_forgotten() {
        let (mut ooms, now) = (OomKillCounter::default(), Instant::now());
        ooms.count(0, now);
        assert_eq!(ooms.unattributed, 0);
        ooms.count(2, now);
        ooms.unattributed -= 1;
        ooms.count(2, now + ATTRIBUTION_TIMEOUT);
        assert_eq!(ooms.unattributed, 1, "the other's end comes a little later");
        ooms.count(2, now + 2 * ATTRIBUTION_TIMEOUT);
        assert_eq!(ooms.unattributed, 0);
        ooms.count(3, now + 3 * ATTRIBUTION_TIMEOUT);
        assert_eq!(ooms.unattributed, 1);
    }
}
