//! Whom the kernel killed for want of memory: it only counts them, and each was one process. In a sandbox with several
//! agents more than one goes before we look.

use std::time::{Duration, Instant};

/// Kills that are nobody's by then were those of children, whose ends we do not hear of.
const A_MOMENT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Ooms {
    counted: u64,
    last: Option<Instant>,
    /// How many of them no process's end was said to be.
    pub(super) unsaid: u64,
}

impl Ooms {
    pub(super) fn count(&mut self, count: u64, now: Instant) {
        if self.last.is_some_and(|last| now > last + A_MOMENT) {
            self.unsaid = 0;
        }
        if count > self.counted {
            self.unsaid += count - self.counted;
            (self.counted, self.last) = (count, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kill_is_one_process_and_those_of_children_are_forgotten() {
        let (mut ooms, now) = (Ooms::default(), Instant::now());
        ooms.count(0, now);
        assert_eq!(ooms.unsaid, 0);
        ooms.count(2, now);
        ooms.unsaid -= 1;
        ooms.count(2, now + A_MOMENT);
        assert_eq!(ooms.unsaid, 1, "the other's end comes a little later");
        ooms.count(2, now + 2 * A_MOMENT);
        assert_eq!(ooms.unsaid, 0);
        ooms.count(3, now + 3 * A_MOMENT);
        assert_eq!(ooms.unsaid, 1);
    }
}
