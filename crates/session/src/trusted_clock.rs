//! The clock for rules by age. A wall clock that jumps forward (a dead battery, a wrong time server) would make
//! everything old at once, and deletion is final. So these rules use the smaller of the wall clock and the last trusted
//! time plus what a monotonic clock has counted since. A wall clock that keeps running from where it jumped to is
//! trusted after an hour.

use ash_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::{fs, io, io::Write, path::PathBuf, sync::Mutex, time::Duration};

/// A smaller difference from the expected time is no jump, because clocks are corrected a little all the time.
const TOLERANCE_MS: i64 = 60_000;
/// How long a wall clock must run on after a jump before it is trusted.
const PROBATION_MS: i64 = 3_600_000;

/// The readings of a machine's two clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    pub wall: Timestamp,
    /// Milliseconds since the machine started, including time asleep. It cannot be set.
    pub since_boot: i64,
}

impl ClockReading {
    pub fn now() -> ClockReading {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let since_boot = time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000);
        ClockReading { wall: Timestamp::now(), since_boot }
    }
}

/// The last trusted time, and the jump that the wall clock has made since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClockTrust {
    /// The kernel's id of this boot: `sinceBoot` means nothing in another one.
    boot: String,
    trusted: Timestamp,
    since_boot: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jump: Option<ClockJump>,
}

/// A difference between the wall clock and the expected time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClockJump {
    /// How far the wall clock is ahead; behind, if negative.
    by_ms: i64,
    /// When the jump was first seen, in milliseconds since the boot.
    since_boot: i64,
}

impl ClockTrust {
    /// Without an earlier time to compare with, the wall clock is trusted.
    fn begin(boot: &str, now: ClockReading) -> ClockTrust {
        ClockTrust { boot: boot.to_owned(), trusted: now.wall, since_boot: now.since_boot, jump: None }
    }

    /// After a restart of the server or of the machine. It is unknown how long a machine was off, so its clock is then
    /// ahead of the expected time, and is trusted after an hour.
    fn go_on(self, boot: &str) -> ClockTrust {
        if self.boot == boot {
            return self;
        }
        ClockTrust { boot: boot.to_owned(), since_boot: 0, jump: None, ..self }
    }

    fn expected(&self, now: ClockReading) -> Timestamp {
        let elapsed = now.since_boot.saturating_sub(self.since_boot).max(0);
        Timestamp(self.trusted.0.saturating_add(elapsed))
    }

    /// The time for rules by age.
    fn look(&mut self, now: ClockReading) -> Timestamp {
        let expected = self.expected(now);
        let by_ms = now.wall.0.saturating_sub(expected.0);
        if by_ms.abs() <= TOLERANCE_MS {
            (self.trusted, self.since_boot, self.jump) = (now.wall, now.since_boot, None);
            return now.wall;
        }
        let jump = match self.jump {
            // The clock runs on from the same jump.
            Some(jump) if (jump.by_ms - by_ms).abs() <= TOLERANCE_MS => jump,
            Some(_) | None => ClockJump { by_ms, since_boot: now.since_boot },
        };
        if now.since_boot.saturating_sub(jump.since_boot) >= PROBATION_MS {
            (self.trusted, self.since_boot, self.jump) = (now.wall, now.since_boot, None);
            return now.wall;
        }
        self.jump = Some(jump);
        now.wall.min(expected)
    }
}

/// A clock that does not trust every jump. Its trusted time outlives the server in a file of its own.
#[derive(Debug)]
pub struct TrustedClock {
    file: PathBuf,
    read: fn() -> ClockReading,
    trust: Mutex<ClockTrust>,
}

impl TrustedClock {
    pub fn open(file: PathBuf, boot: &str, read: fn() -> ClockReading) -> TrustedClock {
        let stored: Option<ClockTrust> =
            fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let trust = stored.map_or_else(|| ClockTrust::begin(boot, read()), |trust| trust.go_on(boot));
        TrustedClock { file, read, trust: Mutex::new(trust) }
    }

    pub fn now(&self) -> Timestamp {
        self.trust.lock().expect("no thread panics while holding it").look((self.read)())
    }

    /// How far the wall clock is from the expected time, if it is not trusted.
    pub fn jumped(&self) -> Option<Duration> {
        let mut trust = self.trust.lock().expect("no thread panics while holding it");
        trust.look((self.read)());
        trust.jump.map(|jump| Duration::from_millis(jump.by_ms.unsigned_abs()))
    }

    /// Stores the trusted time. If a power loss loses it, an older time is used, and the expected time is then earlier.
    pub fn store(&self) -> io::Result<()> {
        let trust = {
            let mut trust = self.trust.lock().expect("no thread panics while holding it");
            trust.look((self.read)());
            trust.clone()
        };
        let fresh = self.file.with_extension("new");
        let text = serde_json::to_vec(&trust).map_err(io::Error::other)?;
        fs::File::create(&fresh)?.write_all(&text)?;
        fs::rename(&fresh, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const START: i64 = 1_700_000_000_000;

    fn reading(wall: i64, since_boot: i64) -> ClockReading {
        ClockReading { wall: Timestamp(START + wall), since_boot }
    }

    fn begun() -> ClockTrust {
        ClockTrust::begin("boot", reading(0, 0))
    }

    fn looked(trust: &mut ClockTrust, wall: i64, since_boot: i64) -> i64 {
        trust.look(reading(wall, since_boot)).0 - START
    }

    #[test]
    fn a_clock_that_goes_on_is_the_time() {
        let mut trust = begun();
        assert_eq!(looked(&mut trust, HOUR, HOUR), HOUR);
        // A clock that is corrected by seconds a day.
        assert_eq!(looked(&mut trust, DAY + 30_000, DAY), DAY + 30_000);
        assert_eq!(trust.jump, None);
    }

    #[test]
    fn a_jump_forward_makes_nothing_older_for_an_hour() {
        let mut trust = begun();
        assert_eq!(looked(&mut trust, 30 * DAY, MINUTE), MINUTE);
        assert_eq!(looked(&mut trust, 30 * DAY + HOUR - MINUTE, HOUR), HOUR);
        let later = HOUR + MINUTE;
        assert_eq!(looked(&mut trust, 30 * DAY + HOUR, later), 30 * DAY + HOUR, "it stayed there");
        assert_eq!(looked(&mut trust, 31 * DAY, later + DAY - HOUR), 31 * DAY);
    }

    #[test]
    fn a_clock_that_jumps_again_and_again_is_not_trusted() {
        let mut trust = begun();
        for n in 1..10 {
            assert_eq!(looked(&mut trust, n * 30 * DAY, n * 30 * MINUTE), n * 30 * MINUTE);
        }
    }

    #[test]
    fn a_jump_that_is_put_right_is_forgotten() {
        let mut trust = begun();
        looked(&mut trust, 30 * DAY, MINUTE);
        assert_eq!(looked(&mut trust, 2 * MINUTE, 2 * MINUTE), 2 * MINUTE);
        assert_eq!(trust.jump, None);
        assert_eq!(looked(&mut trust, 30 * DAY, HOUR + MINUTE), HOUR + MINUTE, "its hour begins anew");
    }

    #[test]
    fn a_clock_that_was_set_back_is_believed_at_once() {
        let mut trust = begun();
        assert_eq!(looked(&mut trust, -DAY, MINUTE), -DAY);
        assert_eq!(looked(&mut trust, 2 * MINUTE, 2 * MINUTE), 2 * MINUTE, "and so is its return");
        assert_eq!(looked(&mut trust, -DAY, 3 * MINUTE), -DAY);
        looked(&mut trust, -DAY + HOUR, HOUR + 3 * MINUTE);
        assert_eq!(trust.trusted, Timestamp(START - DAY + HOUR), "after an hour that is the time");
    }

    #[test]
    fn the_hour_goes_on_after_a_restart_of_the_server_and_begins_anew_after_one_of_the_machine() {
        let mut trust = begun();
        looked(&mut trust, 30 * DAY, MINUTE);
        let mut same = trust.clone().go_on("boot");
        assert_eq!(looked(&mut same, 30 * DAY + HOUR, HOUR + MINUTE), 30 * DAY + HOUR);
        let mut other = trust.go_on("another boot");
        assert_eq!(looked(&mut other, 30 * DAY + HOUR, MINUTE), MINUTE);
        assert_eq!(looked(&mut other, 30 * DAY + 2 * HOUR, HOUR + MINUTE), 30 * DAY + 2 * HOUR);
    }

    #[test]
    fn the_trust_in_a_clock_is_stored_in_this_form() {
        let mut trust = begun();
        let text = |trust: &ClockTrust| serde_json::to_string(trust).expect("json");
        assert_eq!(text(&trust), r#"{"boot":"boot","trusted":"2023-11-14T22:13:20.000Z","sinceBoot":0}"#);
        looked(&mut trust, DAY + MINUTE, MINUTE);
        let jumped = r#"{"boot":"boot","trusted":"2023-11-14T22:13:20.000Z","sinceBoot":0,"jump":{"byMs":86400000,"sinceBoot":60000}}"#;
        assert_eq!(text(&trust), jumped);
        assert_eq!(serde_json::from_str::<ClockTrust>(jumped).expect("read"), trust);
    }
}
