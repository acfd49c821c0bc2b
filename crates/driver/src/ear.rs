//! What has to be remembered from one line to the next.

use crate::Heard;
use ash_model::{Outcome, Problem, TurnId, Usage};
use std::collections::BTreeSet;

/// Of more work in the background at once we do not know.
pub(crate) const MOST_TASKS: usize = 1000;

/// It follows from the messages of a turn alone: whoever takes over a running turn gets it back by hearing them
/// again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ear {
    pub(crate) turn: Option<TurnId>,
    pub(crate) answer: Option<Answer>,
    /// The agent has nothing more to say to the message.
    pub(crate) completed: bool,
    /// The agent works, and will say when it does not any more.
    pub(crate) busy: bool,
    /// What came of a turn that the agent took up again by itself, before we told it which one that is.
    pub(crate) resumed: Option<Answer>,
    /// The agent began something that nobody asked for.
    pub(crate) stirred: bool,
    /// The turn is its own: whatever it comes to is the answer.
    pub(crate) own: bool,
    /// Work in the background that belongs to the turn.
    pub(crate) tasks: BTreeSet<String>,
    /// Work in the background that nobody waits for any more. As long as there is some the agent does not say that it
    /// is idle.
    pub(crate) unattended: BTreeSet<String>,
    /// The agent sums up what was said, and has said so.
    pub(crate) compacting: bool,
    /// A message that the agent had before its turn, and took up by itself, with what came of it.
    pub(crate) taken_up: Option<(TurnId, Option<Answer>)>,
    /// The agent has given a result, and nothing since.
    pub(crate) paused: bool,
    /// What the agent's version says about its turns, as its last `init` shows it.
    pub(crate) announces: Announces,
}

/// How much the version of an agent says about the end of a turn. It follows from each turn's `init`, which is in the
/// log, so that a server that takes over a running turn knows it too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Announces {
    /// Results name the messages that they answer, and the agent says when it is idle.
    #[default]
    Everything,
    /// Results name no message; the agent says when it is idle.
    Idle,
    /// The agent does not say that it is idle: the result is the end of the turn.
    Results,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) how: Outcome,
    pub(crate) text: String,
    pub(crate) usage: Usage,
    pub(crate) problem: Option<Problem>,
}

impl Ear {
    /// A message was told to the agent, or is about to be.
    pub fn expect(&mut self, turn: TurnId) {
        if self.turn != Some(turn) {
            self.turn = Some(turn);
            let early = self.taken_up.take_if(|(taken_up, _)| *taken_up == turn);
            self.answer = early.and_then(|(_, answer)| answer).or(self.resumed.take());
            (self.completed, self.stirred, self.own, self.paused) = (false, false, false, false);
        }
    }

    /// The agent begins with a message. In the middle of a turn it is part of that. What it has after one, which was
    /// interrupted or at rest before we knew, is the next.
    pub(crate) fn take_up(&mut self, message: TurnId) -> Option<Heard> {
        let interrupted = self.answer.as_ref().is_some_and(|answer| answer.how == Outcome::Interrupted);
        match self.turn {
            Some(turn) if turn == message => None,
            Some(_) if !interrupted => Some(Heard::Steered { turn: message }),
            Some(_) | None => {
                self.taken_up = Some((message, None));
                self.rest()
            }
        }
    }

    /// The agent works by itself, and no turn says so yet.
    pub fn stirs(&self) -> bool {
        self.stirred && self.turn.is_none()
    }

    /// What the agent does by itself is this turn.
    pub fn expect_own(&mut self, turn: TurnId) {
        self.expect(turn);
        self.own = true;
    }

    /// The answer is there, and the agent does not say that it is idle: work in the background holds the turn.
    pub fn is_held(&self) -> bool {
        self.turn.is_some() && self.has_answered() && self.paused
    }

    /// Whatever still works in the background is not waited for any more.
    pub fn let_go(&mut self) -> Option<Heard> {
        self.unattended.append(&mut self.tasks);
        while self.unattended.len() > MOST_TASKS {
            self.unattended.pop_first();
        }
        self.rest()
    }

    /// Whether an answer is the end of the turn: nobody will say that the agent is idle.
    pub(crate) fn rest_unattended(&mut self) -> Option<Heard> {
        let over = self.paused && !self.unattended.is_empty();
        over.then(|| self.rest()).flatten()
    }

    fn has_answered(&self) -> bool {
        self.completed || self.answer.is_some()
    }

    /// The agent is idle: is that the end of the turn?
    pub(crate) fn rest(&mut self) -> Option<Heard> {
        let turn = self.turn?;
        let interrupted = self.answer.as_ref().is_some_and(|answer| answer.how == Outcome::Interrupted);
        let held = !self.tasks.is_empty() && !interrupted;
        if held || !self.has_answered() {
            return None;
        }
        self.tasks.clear();
        self.turn = None;
        (self.completed, self.own) = (false, false);
        let nothing =
            Answer { how: Outcome::Done, text: String::new(), usage: Usage::default(), problem: None };
        let Answer { how, text, usage, problem } = self.answer.take().unwrap_or(nothing);
        Some(Heard::Rested { turn, how, text, usage, problem })
    }
}
