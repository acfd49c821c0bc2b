//! Misbehaviour on purpose. Each trouble that a prompt asks for comes once, so that whoever tries again gets through.

use crate::problem;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Refuse with this status.
    Fail { status: u16, times: u32 },
    /// Wait so many milliseconds before the first byte.
    Stall(u64),
    /// Drop the connection after so many events.
    Cut(usize),
    /// Never answer.
    Hang,
    /// Say that the conversation has so many tokens.
    Usage(u64),
    /// Begin to answer, then say that there is no capacity.
    OverloadedMidstream,
}

/// What one attempt gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lot {
    pub(crate) stall: u64,
    pub(crate) usage: Option<u64>,
    pub(crate) end: Option<End>,
}

/// What keeps an attempt from a whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Fail { status: u16, retry_after: u64 },
    Cut(usize),
    Hang,
    OverloadedMidstream,
}

impl Trouble {
    pub(crate) fn parse(line: &str) -> Option<Trouble> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["fail", status] => Trouble::fail(status, "1"),
            ["fail", status, times, "times" | "time"] => Trouble::fail(status, times),
            ["stall", ms] => ms.parse().ok().map(Trouble::Stall),
            ["cut", events] => events.parse().ok().map(Trouble::Cut),
            ["hang"] => Some(Trouble::Hang),
            ["usage", tokens] => tokens.parse().ok().map(Trouble::Usage),
            ["overloaded-midstream"] => Some(Trouble::OverloadedMidstream),
            _ => None,
        }
    }

    fn fail(status: &str, times: &str) -> Option<Trouble> {
        let status = status.parse().ok().filter(|status| problem::kind(*status).is_some())?;
        Some(Trouble::Fail { status, times: times.parse().ok()? })
    }
}

/// The lot of an attempt, counted from 0. Each attempt takes troubles up to the first that ends it; those that are
/// left are for the next.
pub(crate) fn lot(troubles: &[Trouble], attempt: u32) -> Lot {
    let mut lots = vec![Lot::default()];
    for trouble in troubles {
        let last = lots.len() - 1;
        let (end, times) = match *trouble {
            Trouble::Stall(ms) => {
                lots[last].stall += ms;
                continue;
            }
            Trouble::Usage(tokens) => {
                lots[last].usage = Some(tokens);
                continue;
            }
            // A second is the shortest that the header can say.
            Trouble::Fail { status, times } => (End::Fail { status, retry_after: 1 }, times),
            Trouble::Cut(events) => (End::Cut(events), 1),
            Trouble::Hang => (End::Hang, 1),
            Trouble::OverloadedMidstream => (End::OverloadedMidstream, 1),
        };
        for _ in 0..times.min(1000) {
            if let Some(open) = lots.last_mut() {
                open.end = Some(end);
            }
            lots.push(Lot::default());
        }
    }
    lots.get(attempt as usize).copied().unwrap_or_default()
}

/// What is wrong, to be put behind what would have been right.
impl std::fmt::Display for Lot {
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

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Fail { status, .. } => write!(f, "fail {status}"),
            End::Cut(events) => write!(f, "cut {events}"),
            End::Hang => write!(f, "hang"),
            End::OverloadedMidstream => write!(f, "overloaded-midstream"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_read_and_other_lines_are_not() {
        let read = |line| Trouble::parse(line);
        assert_eq!(read("fail 429"), Some(Trouble::Fail { status: 429, times: 1 }));
        assert_eq!(read("fail 500 3 times"), Some(Trouble::Fail { status: 500, times: 3 }));
        assert_eq!(read("cut 4"), Some(Trouble::Cut(4)));
        assert_eq!(read("usage 990000"), Some(Trouble::Usage(990_000)));
        assert_eq!(read("overloaded-midstream"), Some(Trouble::OverloadedMidstream));
        for line in ["fail", "fail 418", "fail 529 x times", "stall", "hang on", "cut -1"] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn each_attempt_takes_what_is_left() {
        let troubles =
            [Trouble::Stall(5), Trouble::Fail { status: 529, times: 2 }, Trouble::Cut(3), Trouble::Usage(9)];
        let fail = Some(End::Fail { status: 529, retry_after: 1 });
        let expected = [
            Lot { stall: 5, usage: None, end: fail },
            Lot { stall: 0, usage: None, end: fail },
            Lot { stall: 0, usage: None, end: Some(End::Cut(3)) },
            Lot { stall: 0, usage: Some(9), end: None },
            Lot::default(),
        ];
        for (attempt, expected) in (0..).zip(expected) {
            assert_eq!(lot(&troubles, attempt), expected, "attempt {attempt}");
        }
    }
}
