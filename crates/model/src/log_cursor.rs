//! A reader's place in a session's log, and the text of it that is every SSE frame's id.
//!
//! `42` is event 42, seen whole. `41.7` is the seventh delta after event 41. One item may be shown as several
//! frames; `42-1` says that the first frame of event 42 was seen and the rest was not.

use crate::EventSeq;

/// A place between two frames of a session's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogCursor {
    /// The last event that was seen, or began to be.
    pub seq: EventSeq,
    /// 0: the event itself; n: the n-th delta after it.
    pub delta: u64,
    /// `None`: seen whole; `Some(n)`: only its first n frames were seen.
    pub frames: Option<u32>,
}

impl LogCursor {
    /// Before the first event.
    pub const START: LogCursor = LogCursor { seq: 0, delta: 0, frames: None };

    /// After this event.
    pub fn event(seq: EventSeq) -> LogCursor {
        LogCursor { seq, delta: 0, frames: None }
    }

    /// After this delta, the n-th behind event `seq`.
    pub fn delta(seq: EventSeq, delta: u64) -> LogCursor {
        LogCursor { seq, delta, frames: None }
    }

    /// The same place, with only the first frames of its item seen.
    pub fn partly(self, frames: u32) -> LogCursor {
        LogCursor { frames: Some(frames), ..self }
    }

    /// Reads what `Display` writes. Clients send it back.
    pub fn parse(text: &str) -> Option<LogCursor> {
        let (place, frames) = match text.split_once('-') {
            Some((place, frames)) => (place, Some(number(frames)?.try_into().ok()?)),
            None => (text, None),
        };
        let (seq, delta) = match place.split_once('.') {
            Some((seq, delta)) => (number(seq)?, number(delta)?),
            None => (number(place)?, 0),
        };
        Some(LogCursor { seq, delta, frames })
    }
}

/// Digits only (`u64::from_str` also takes a sign), and small enough for a database's signed integer.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl std::fmt::Display for LogCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.seq)?;
        if self.delta > 0 {
            write!(f, ".{}", self.delta)?;
        }
        if let Some(frames) = self.frames {
            write!(f, "-{frames}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::LogCursor;

    #[test]
    fn a_cursor_survives_its_text() {
        for text in ["0", "42", "41.7", "42-1", "41.7-2"] {
            assert_eq!(LogCursor::parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in ["", "x", "-1", "+1", "1.", ".1", "1.2.3", "1-", "1--1", "99999999999999999999", " 1"] {
            assert_eq!(LogCursor::parse(text), None, "{text:?}");
        }
    }
}
