//! The one time type: milliseconds since 1970, shown as ISO 8601 in UTC.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::time::Duration;

/// Milliseconds since 1970, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Reads the clock. Only for the edge of the program; all other code gets the time as an argument.
    pub fn now() -> Self {
        Self(jiff::Timestamp::now().as_millisecond())
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        write!(f, "{time:.3}")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let time: jiff::Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Self(time.as_millisecond()))
    }
}

/// Parses a number with a unit. The unit is required, because 7 days and 7 seconds would look alike without it.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    let digits = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    let seconds =
        digits.and_then(|digits| digits.parse().ok()).and_then(|number: u64| number.checked_mul(unit));
    seconds.filter(|_| unit > 0).map(Duration::from_secs).ok_or("write it as 90s, 30m, 24h or 7d")
}

#[cfg(test)]
mod tests {
    use super::{Timestamp, parse_duration};

    #[test]
    fn durations_are_a_number_and_a_unit() {
        let seconds = |text| parse_duration(text).ok().map(|duration| duration.as_secs());
        let said = ["90s", "30m", "24h", "7d", "5", "0", "h", "1w", "-1s", "+1s", ""].map(seconds);
        let expected =
            [Some(90), Some(1800), Some(86_400), Some(604_800), None, None, None, None, None, None, None];
        assert_eq!(said, expected);
    }

    #[test]
    fn times_look_like_javascripts() {
        assert_eq!(Timestamp(1_763_244_000_007).to_string(), "2025-11-15T22:00:00.007Z");
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        let back: Timestamp = serde_json::from_str("\"2025-11-15T22:00:00.007Z\"").expect("a time");
        assert_eq!(back, Timestamp(1_763_244_000_007));
    }
}
