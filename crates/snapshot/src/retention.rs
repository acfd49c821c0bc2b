//! Which snapshots to keep: the last ones, then one per hour, then one per day. Pure logic without I/O.

use std::collections::HashSet;

const HOUR: i64 = 60 * 60 * 1000;
const DAY: i64 = 24 * HOUR;

/// How many snapshots to keep. Only hours and days that have a snapshot count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotRetention {
    /// Keep this many of the newest snapshots.
    pub last: usize,
    /// Keep the newest snapshot of each of this many hours.
    pub hourly: usize,
    /// Keep the newest snapshot of each of this many days (UTC).
    pub daily: usize,
}

/// What the rules need to know of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionCandidate {
    /// Milliseconds since 1970.
    pub at: i64,
    /// The snapshot must stay, whatever the rules say.
    pub needed: bool,
}

impl SnapshotRetention {
    /// Decides for each snapshot, newest first, whether it stays. The newest one always stays.
    pub fn keep(&self, moments: &[RetentionCandidate]) -> Vec<bool> {
        let (mut hours, mut days) = (HashSet::new(), HashSet::new());
        let newest = |number: usize| number < self.last.max(1);
        let first = |seen: &mut HashSet<i64>, most: usize, length: i64, at: i64| {
            seen.len() < most && seen.insert(at.div_euclid(length))
        };
        let mut keep = Vec::with_capacity(moments.len());
        for (number, moment) in moments.iter().enumerate() {
            // Evaluate both rules, because one snapshot can count for an hour and for a day.
            let hour = first(&mut hours, self.hourly, HOUR, moment.at);
            let day = first(&mut days, self.daily, DAY, moment.at);
            keep.push(moment.needed || newest(number) || hour || day);
        }
        keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(rules: SnapshotRetention, at: &[i64]) -> Vec<i64> {
        let moments: Vec<RetentionCandidate> =
            at.iter().map(|at| RetentionCandidate { at: *at, needed: false }).collect();
        at.iter().zip(rules.keep(&moments)).filter(|(_, kept)| *kept).map(|(at, _)| *at).collect()
    }

    #[test]
    fn the_last_ones_stay_then_one_an_hour_then_one_a_day() {
        let minutes = |minutes: i64| minutes * 60_000 + 10 * DAY;
        let at = [1500, 1499, 1498, 1439, 1438, 1300, 1299, 20].map(minutes);
        let rules = |last, hourly, daily| SnapshotRetention { last, hourly, daily };
        assert_eq!(kept(rules(2, 0, 0), &at), &at[..2]);
        // 1500 begins hour 25; 1499 is the newest of hour 24, 1439 of 23, 1300 of 21.
        assert_eq!(kept(rules(0, 4, 0), &at), [1500, 1499, 1439, 1300].map(minutes));
        assert_eq!(kept(rules(0, 0, 2), &at), [1500, 1439].map(minutes));
        assert_eq!(kept(rules(0, 0, 0), &at), &at[..1], "the newest is never given up");
    }

    proptest! {
        #[test]
        fn needed_snapshots_stay_and_rules_only_add(
            mut at in proptest::collection::vec((0..40 * DAY, any::<bool>()), 1..60),
            (last, hourly, daily) in (0..9usize, 0..9usize, 0..9usize),
        ) {
            at.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            let moments: Vec<RetentionCandidate> =
                at.iter().map(|(at, needed)| RetentionCandidate { at: *at, needed: *needed }).collect();
            let rules = SnapshotRetention { last, hourly, daily };
            let keep = rules.keep(&moments);
            prop_assert!(keep[0]);
            prop_assert!(keep.iter().take(last).all(|kept| *kept));
            prop_assert!(moments.iter().zip(&keep).all(|(moment, kept)| *kept || !moment.needed));
            let free = moments.iter().zip(&keep).filter(|(moment, kept)| **kept && !moment.needed).count();
            prop_assert!(free <= last.max(1) + hourly + daily);
            let more = SnapshotRetention { last: last + 1, hourly: hourly + 1, daily: daily + 1 }.keep(&moments);
            prop_assert!(keep.iter().zip(&more).all(|(kept, more)| *more || !kept));
            // Applying the rules again to the rest removes nothing more.
            let left: Vec<RetentionCandidate> =
                moments.iter().zip(&keep).filter(|(_, kept)| **kept).map(|(moment, _)| *moment).collect();
            prop_assert!(rules.keep(&left).iter().all(|kept| *kept));
        }
    }
}
