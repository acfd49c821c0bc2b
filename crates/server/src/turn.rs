//! One turn for its reader: which facts of the session concern it, and which one ends it.

use ash_model::{EventSeq, Fact, Problem, TurnId};
use ash_store::{LogItem, LogItemContent};

pub(crate) struct TurnWatcher {
    id: TurnId,
    /// Events of the session up to here are history: a reader that comes later waits for the end of the turn itself.
    history_until: EventSeq,
    started: bool,
    answer_complete: bool,
}

/// What an item of the log means for the reader of one turn.
#[derive(Debug, PartialEq)]
pub(crate) enum TurnStreamAction {
    Send,
    /// Not for this reader.
    Skip,
    /// The turn is over.
    TurnEnded,
    /// The turn is not over, but nothing more comes for now.
    Interrupted(Problem),
}

/// The error for a reader whose turn is not over when the server stops, whatever the stop does to the session first.
pub(crate) fn stopped() -> Problem {
    let error = "The server was stopped before the turn was over; it goes on, or begins, when the server is started again";
    Problem::new("server_stopped", error)
}

impl TurnWatcher {
    pub(crate) fn new(id: TurnId, history_until: EventSeq) -> TurnWatcher {
        TurnWatcher { id, history_until, started: false, answer_complete: false }
    }

    pub(crate) fn id(&self) -> TurnId {
        self.id
    }

    pub(crate) fn classify(&mut self, item: &LogItem) -> TurnStreamAction {
        let LogItemContent::Event(fact) = &item.content else { return TurnStreamAction::Send };
        self.started |=
            matches!(fact, Fact::Started { turn, .. } | Fact::Continued { turn, .. } if *turn == self.id);
        self.answer_complete |= matches!(fact, Fact::Rested { turn, .. } if *turn == self.id);
        match fact {
            Fact::Finished { turn, .. } if *turn == self.id => TurnStreamAction::TurnEnded,
            _ => match self.interruption(fact) {
                Some(_) if item.at.seq <= self.history_until => TurnStreamAction::Skip,
                Some(problem) => TurnStreamAction::Interrupted(problem),
                None => TurnStreamAction::Send,
            },
        }
    }

    fn interruption(&self, fact: &Fact) -> Option<Problem> {
        let waiting = !self.started && !self.answer_complete;
        let later = |code: &str, word: &str| {
            let error = format!(
                "The session was {word} before this message's turn began; it stays queued and runs when the session is resumed"
            );
            Some(Problem::new(code, error))
        };
        match fact {
            Fact::Cut { turn, death } if *turn == self.id => Some(death.problem()),
            // A turn with a complete answer ends normally, whatever happens to the session.
            Fact::Failed { problem } if !self.answer_complete => Some(problem.clone()),
            Fact::Paused if waiting => later("session_paused", "paused"),
            Fact::Stopped if waiting => later("session_stopped", "stopped"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{Death, LogCursor, Timestamp, TokenUsage, TurnOutcome};

    fn item(seq: EventSeq, fact: Fact) -> LogItem {
        LogItem {
            at: LogCursor::event(seq),
            turn: None,
            time: Timestamp(0),
            content: LogItemContent::Event(fact),
        }
    }

    fn turn() -> TurnId {
        TurnId(uuid::Uuid::from_u128(1))
    }

    fn over() -> Fact {
        Fact::Finished { turn: turn(), outcome: TurnOutcome::Done, checkpoint: None, problem: None }
    }

    #[test]
    fn a_late_reader_is_not_stopped_by_a_death_that_was_survived() {
        let mut reader = TurnWatcher::new(turn(), 9);
        assert_eq!(
            reader.classify(&item(5, Fact::Cut { turn: turn(), death: Death::Machine })),
            TurnStreamAction::Skip
        );
        assert_eq!(reader.classify(&item(12, over())), TurnStreamAction::TurnEnded);
    }

    #[test]
    fn a_stop_interrupts_a_message_that_waits() {
        let mut reader = TurnWatcher::new(turn(), 1);
        assert!(
            matches!(reader.classify(&item(2, Fact::Stopped)), TurnStreamAction::Interrupted(problem) if problem.code == "session_stopped")
        );
        let mut reader = TurnWatcher::new(turn(), 1);
        assert_eq!(
            reader.classify(&item(2, Fact::Started { turn: turn(), input: 2 })),
            TurnStreamAction::Send
        );
        assert_eq!(reader.classify(&item(3, Fact::Paused)), TurnStreamAction::Send);
    }

    #[test]
    fn a_turn_that_rested_comes_to_its_end() {
        let mut reader = TurnWatcher::new(turn(), 1);
        let rested = Fact::Rested {
            turn: turn(),
            outcome: TurnOutcome::Done,
            text: String::new(),
            usage: TokenUsage::default(),
            problem: None,
        };
        assert_eq!(reader.classify(&item(2, rested)), TurnStreamAction::Send);
        assert_eq!(
            reader.classify(&item(3, Fact::Failed { problem: Death::Machine.problem() })),
            TurnStreamAction::Send
        );
        assert_eq!(reader.classify(&item(4, over())), TurnStreamAction::TurnEnded);
    }
}
