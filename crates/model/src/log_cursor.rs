//! A reader's position in a session's log, and its text, which is the id of every SSE frame.
//!
//! `42` is after event 42. `41.7` is after the seventh delta after event 41. One item may take several frames; `42-1` is
//! after the first frame of event 42.

use crate::EventSeq;

/// A position between two frames of a session's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogCursor {
    /// The last event that was sent completely or in part.
    pub seq: EventSeq,
    /// 0: the event itself; n: the n-th delta after it.
    pub delta: u64,
    /// `None`: sent completely; `Some(n)`: only its first n frames were sent.
    pub frames: Option<u32>,
}

impl LogCursor {
    /// Before the first event.
    pub const START: LogCursor = LogCursor { seq: 0, delta: 0, frames: None };

    /// After this event.
    pub fn event(seq: EventSeq) -> LogCursor {
        LogCursor { seq, delta: 0, frames: None }
    }

    /// After this delta, the n-th after event `seq`.
    pub fn delta(seq: EventSeq, delta: u64) -> LogCursor {
        LogCursor { seq, delta, frames: None }
    }

    /// The same position, with only the first frames of its item sent.
    pub fn partly(self, frames: u32) -> LogCursor {
        LogCursor { frames: Some(frames), ..self }
    }

    /// Parses the output of `Display`, which clients send back.
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

/// Digits only (`u64::from_str` also accepts a sign), and within a database's signed integer.
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
    fn other_text_is_refused_as_a_cursor() {
        for text in ["", "x", "-1", "+1", "1.", ".1", "1.2.3", "1-", "1--1", "99999999999999999999", " 1"] {
            assert_eq!(LogCursor::parse(text), None, "{text:?}");
        }
    }
}
