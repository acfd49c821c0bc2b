//! One turn as its reader sees it: which of the session's facts concern it, and which one is its end.

use ash_model::{Fact, Problem, Seq, TurnId};
use ash_store::{Item, WhatItem};

pub(crate) struct Turn {
    id: TurnId,
    /// What befell the session up to here is history: a reader who comes later waits for the turn's own end.
    since: Seq,
    started: bool,
    rested: bool,
}

/// What an item of the log means for the reader of one turn.
#[derive(Debug, PartialEq)]
pub(crate) enum Meaning {
    Goes,
    /// Not for this reader.
    Elsewhere,
    /// The turn is over.
    Over,
    /// It is not over, but nothing more comes for now.
    Cut(Problem),
}

/// What a reader is told whose turn is not over when the server stops, whatever that does to the session first.
pub(crate) fn stopped() -> Problem {
    let error = "The server was stopped before the turn was over; it goes on, or begins, when the server is started again";
    Problem::new("server_stopped", error)
}

impl Turn {
    pub(crate) fn new(id: TurnId, since: Seq) -> Turn {
        Turn { id, since, started: false, rested: false }
    }

    pub(crate) fn id(&self) -> TurnId {
        self.id
    }

    pub(crate) fn see(&mut self, item: &Item) -> Meaning {
        let WhatItem::Event(fact) = &item.what else { return Meaning::Goes };
        self.started |=
            matches!(fact, Fact::Started { turn, .. } | Fact::Continued { turn, .. } if *turn == self.id);
        self.rested |= matches!(fact, Fact::Rested { turn, .. } if *turn == self.id);
        match fact {
            Fact::Finished { turn, .. } if *turn == self.id => Meaning::Over,
            _ => match self.interruption(fact) {
                Some(_) if item.at.seq <= self.since => Meaning::Elsewhere,
                Some(problem) => Meaning::Cut(problem),
                None => Meaning::Goes,
            },
        }
    }

    fn interruption(&self, fact: &Fact) -> Option<Problem> {
        let waiting = !self.started && !self.rested;
        let later = |code: &str, word: &str| {
            let error = format!(
                "The session was {word} before this message's turn began; it stays queued and runs when the session is resumed"
            );
            Some(Problem::new(code, error))
        };
        match fact {
            Fact::Cut { turn, death } if *turn == self.id => Some(death.problem()),
            // A turn that rested comes to its end whatever happens to the session.
            Fact::Failed { problem } if !self.rested => Some(problem.clone()),
            Fact::Paused if waiting => later("session_paused", "paused"),
            Fact::Stopped if waiting => later("session_stopped", "stopped"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{Cursor, Death, Outcome, Timestamp, Usage};

    fn item(seq: Seq, fact: Fact) -> Item {
        Item { at: Cursor::event(seq), turn: None, time: Timestamp(0), what: WhatItem::Event(fact) }
    }

    fn turn() -> TurnId {
        TurnId(uuid::Uuid::from_u128(1))
    }

    fn over() -> Fact {
        Fact::Finished { turn: turn(), how: Outcome::Done, checkpoint: None, problem: None }
    }

    #[test]
    fn a_late_reader_is_not_stopped_by_a_death_that_was_survived() {
        let mut reader = Turn::new(turn(), 9);
        assert_eq!(
            reader.see(&item(5, Fact::Cut { turn: turn(), death: Death::Machine })),
            Meaning::Elsewhere
        );
        assert_eq!(reader.see(&item(12, over())), Meaning::Over);
    }

    #[test]
    fn a_message_that_waits_is_told_when_the_session_rests() {
        let mut reader = Turn::new(turn(), 1);
        assert!(
            matches!(reader.see(&item(2, Fact::Stopped)), Meaning::Cut(problem) if problem.code == "session_stopped")
        );
        let mut reader = Turn::new(turn(), 1);
        assert_eq!(reader.see(&item(2, Fact::Started { turn: turn(), input: 2 })), Meaning::Goes);
        assert_eq!(reader.see(&item(3, Fact::Paused)), Meaning::Goes);
    }

    #[test]
    fn a_turn_that_rested_comes_to_its_end() {
        let mut reader = Turn::new(turn(), 1);
        let rested = Fact::Rested {
            turn: turn(),
            how: Outcome::Done,
            text: String::new(),
            usage: Usage::default(),
            problem: None,
        };
        assert_eq!(reader.see(&item(2, rested)), Meaning::Goes);
        assert_eq!(reader.see(&item(3, Fact::Failed { problem: Death::Machine.problem() })), Meaning::Goes);
        assert_eq!(reader.see(&item(4, over())), Meaning::Over);
    }
}
