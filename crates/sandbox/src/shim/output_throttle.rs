//! Limits the output rate of a sandbox in the long run. The shim stops reading output that is too fast for a while: the
//! pipe fills, and the writer waits. Nothing is lost, and no other sandbox waits.

use std::time::{Duration, Instant};

/// The seconds' worth of output that may come at once.
const BURST: u64 = 4;

#[derive(Debug)]
pub(super) struct OutputThrottle {
    /// None: no limit.
    per_second: Option<u64>,
    /// Bytes that may still come now. Negative after a read of more bytes, because a read counts as a whole.
    left: i64,
    at: Instant,
}

impl OutputThrottle {
    pub(super) fn new(per_second: Option<u64>, now: Instant) -> Self {
        let left = number(per_second.unwrap_or(0).saturating_mul(BURST));
        Self { per_second, left, at: now }
    }

    pub(super) fn passed(&mut self, bytes: usize) {
        if self.per_second.is_some() {
            self.left = self.left.saturating_sub(number(bytes as u64));
        }
    }

    pub(super) fn refill(&mut self, now: Instant) {
        let Some(per_second) = self.per_second else { return };
        let millis = u64::try_from(now.saturating_duration_since(self.at).as_millis()).unwrap_or(u64::MAX);
        let more = per_second.saturating_mul(millis) / 1000;
        if more > 0 {
            self.at = now;
            self.left = self.left.saturating_add(number(more)).min(number(per_second.saturating_mul(BURST)));
        }
    }

    /// When the shim reads output again; None: it reads now.
    pub(super) fn throttled_until(&self) -> Option<Instant> {
        let per_second = self.per_second.filter(|_| self.left <= 0)?;
        let owed = self.left.unsigned_abs() + 1;
        // A minimum delay: otherwise the loop would run for every single byte.
        let wait = owed.saturating_mul(1000).div_ceil(per_second.max(1)).max(20);
        Some(self.at + Duration::from_millis(wait.min(3_600_000)))
    }
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_output_is_delayed_and_a_burst_is_not() {
        let now = Instant::now();
        let mut flow = OutputThrottle::new(Some(1000), now);
        flow.passed(3999);
        assert_eq!(flow.throttled_until(), None);
        flow.passed(2001);
        assert_eq!(flow.throttled_until(), Some(now + Duration::from_millis(2001)));
        flow.refill(now + Duration::from_millis(2001));
        assert_eq!(flow.throttled_until(), None);
        flow.refill(now + Duration::from_secs(3600));
        flow.passed(4000);
        assert!(flow.throttled_until().is_some(), "silence is saved up for four seconds at most");
    }

    #[test]
    fn without_a_limit_everything_passes() {
        let mut flow = OutputThrottle::new(None, Instant::now());
        flow.passed(usize::MAX);
        assert_eq!(flow.throttled_until(), None);
    }
}
