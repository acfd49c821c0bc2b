//! Deliberate faults. Each fault of a prompt happens once, so that a retry succeeds.

use crate::api_errors;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultDirective {
    /// Refuse with this status.
    Fail { status: u16, times: u32 },
    /// Wait this many milliseconds before the first byte.
    Stall(u64),
    /// Drop the connection after this many events.
    Cut(usize),
    /// Never answer.
    Hang,
    /// Report this many tokens for the conversation.
    Usage(u64),
    /// Start the answer, then report an overload.
    OverloadedMidstream,
}

/// The faults of one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AttemptFaults {
    pub(crate) stall: u64,
    pub(crate) usage: Option<u64>,
    pub(crate) end: Option<TerminalFault>,
}

/// The fault that ends an attempt without a complete answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminalFault {
    Fail { status: u16, retry_after: u64 },
    Cut(usize),
    Hang,
    OverloadedMidstream,
}

impl FaultDirective {
    pub(crate) fn parse(line: &str) -> Option<FaultDirective> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["fail", status] => FaultDirective::fail(status, "1"),
            ["fail", status, times, "times" | "time"] => FaultDirective::fail(status, times),
            ["stall", ms] => ms.parse().ok().map(FaultDirective::Stall),
            ["cut", events] => events.parse().ok().map(FaultDirective::Cut),
            ["hang"] => Some(FaultDirective::Hang),
            ["usage", tokens] => tokens.parse().ok().map(FaultDirective::Usage),
            ["overloaded-midstream"] => Some(FaultDirective::OverloadedMidstream),
            _ => None,
        }
    }

    fn fail(status: &str, times: &str) -> Option<FaultDirective> {
        let status = status.parse().ok().filter(|status| api_errors::kind(*status).is_some())?;
        Some(FaultDirective::Fail { status, times: times.parse().ok()? })
    }
}

/// The faults of an attempt, counted from 0. Each attempt gets the faults up to the first terminal one; the rest is for
/// later attempts.
pub(crate) fn faults_of_attempt(troubles: &[FaultDirective], attempt: u32) -> AttemptFaults {
    let mut lots = vec![AttemptFaults::default()];
    for trouble in troubles {
        let last = lots.len() - 1;
        let (end, times) = match *trouble {
            FaultDirective::Stall(ms) => {
                lots[last].stall += ms;
                continue;
            }
            FaultDirective::Usage(tokens) => {
                lots[last].usage = Some(tokens);
                continue;
            }
            // One second is the shortest time that the header can express.
            FaultDirective::Fail { status, times } => (TerminalFault::Fail { status, retry_after: 1 }, times),
            FaultDirective::Cut(events) => (TerminalFault::Cut(events), 1),
            FaultDirective::Hang => (TerminalFault::Hang, 1),
            FaultDirective::OverloadedMidstream => (TerminalFault::OverloadedMidstream, 1),
        };
        for _ in 0..times.min(1000) {
            if let Some(open) = lots.last_mut() {
                open.end = Some(end);
            }
            lots.push(AttemptFaults::default());
        }
    }
    lots.get(attempt as usize).copied().unwrap_or_default()
}

/// The description of the faults, for the end of a log line.
impl std::fmt::Display for AttemptFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.stall > 0 {
            write!(f, ", stall {}", self.stall)?;
        }
        if let Some(tokens) = self.usage {
            write!(f, ", usage {tokens}")?;
        }
        self.end.map_or(Ok(()), |end| write!(f, ", {end}"))
    }
}

impl std::fmt::Display for TerminalFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TerminalFault::Fail { status, .. } => write!(f, "fail {status}"),
            TerminalFault::Cut(events) => write!(f, "cut {events}"),
            TerminalFault::Hang => write!(f, "hang"),
            TerminalFault::OverloadedMidstream => write!(f, "overloaded-midstream"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_read_and_other_lines_are_not() {
        let read = |line| FaultDirective::parse(line);
        assert_eq!(read("fail 429"), Some(FaultDirective::Fail { status: 429, times: 1 }));
        assert_eq!(read("fail 500 3 times"), Some(FaultDirective::Fail { status: 500, times: 3 }));
        assert_eq!(read("cut 4"), Some(FaultDirective::Cut(4)));
        assert_eq!(read("usage 990000"), Some(FaultDirective::Usage(990_000)));
        assert_eq!(read("overloaded-midstream"), Some(FaultDirective::OverloadedMidstream));
        for line in ["fail", "fail 418", "fail 529 x times", "stall", "hang on", "cut -1"] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn each_attempt_takes_what_is_left() {
        let troubles = [
            FaultDirective::Stall(5),
            FaultDirective::Fail { status: 529, times: 2 },
            FaultDirective::Cut(3),
            FaultDirective::Usage(9),
        ];
        let fail = Some(TerminalFault::Fail { status: 529, retry_after: 1 });
        let expected = [
            AttemptFaults { stall: 5, usage: None, end: fail },
            AttemptFaults { stall: 0, usage: None, end: fail },
            AttemptFaults { stall: 0, usage: None, end: Some(TerminalFault::Cut(3)) },
            AttemptFaults { stall: 0, usage: Some(9), end: None },
            AttemptFaults::default(),
        ];
        for (attempt, expected) in (0..).zip(expected) {
            assert_eq!(faults_of_attempt(&troubles, attempt), expected, "attempt {attempt}");
        }
    }
}
