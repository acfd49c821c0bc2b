//! What has to be remembered from one line to the next.

use crate::AgentEvent;
use ash_model::{Problem, TokenUsage, TurnId, TurnOutcome};
use std::collections::BTreeSet;

/// Of more work in the background at once we do not know.
pub(crate) const MAX_TASKS: usize = 1000;

/// It follows from the messages of a turn alone: whoever takes over a running turn gets it back by hearing them
/// again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TurnTracker {
    pub(crate) turn: Option<TurnId>,
    pub(crate) answer: Option<TurnAnswer>,
    /// The agent has nothing more to say to the message.
    pub(crate) completed: bool,
    /// The agent works, and will say when it does not any more.
    pub(crate) busy: bool,
    /// What came of a turn that the agent took up again by itself, before we told it which one that is.
    pub(crate) resumed: Option<TurnAnswer>,
    /// The agent began something that nobody asked for.
    pub(crate) self_start_seen: bool,
    /// The turn is its own: whatever it comes to is the answer.
    pub(crate) self_started: bool,
    /// Work in the background that belongs to the turn.
    pub(crate) tasks: BTreeSet<String>,
    /// Work in the background that nobody waits for any more. As long as there is some the agent does not say that it
    /// is idle.
    pub(crate) unattended: BTreeSet<String>,
    /// The agent sums up what was said, and has said so.
    pub(crate) compacting: bool,
    /// A message that the agent had before its turn, and took up by itself, with what came of it.
    pub(crate) early_message: Option<(TurnId, Option<TurnAnswer>)>,
    /// The agent has given a result, and nothing since.
    pub(crate) has_given_result: bool,
    /// What the agent's version says about its turns, as its last `init` shows it.
    pub(crate) announces: TurnEndSignals,
}

/// How much the version of an agent says about the end of a turn. It follows from each turn's `init`, which is in the
/// log, so that a server that takes over a running turn knows it too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TurnEndSignals {
    /// Results name the messages that they answer, and the agent says when it is idle.
    #[default]
    Everything,
    /// Results name no message; the agent says when it is idle.
    Idle,
    /// The agent does not say that it is idle: the result is the end of the turn.
    Results,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TurnAnswer {
    pub(crate) outcome: TurnOutcome,
    pub(crate) text: String,
    pub(crate) usage: TokenUsage,
    pub(crate) problem: Option<Problem>,
}

impl TurnTracker {
    /// A message was told to the agent, or is about to be.
    pub fn expect(&mut self, turn: TurnId) {
        if self.turn != Some(turn) {
            self.turn = Some(turn);
            let early = self.early_message.take_if(|(taken_up, _)| *taken_up == turn);
            self.answer = early.and_then(|(_, answer)| answer).or(self.resumed.take());
            (self.completed, self.self_start_seen, self.self_started, self.has_given_result) =
                (false, false, false, false);
        }
    }

    /// The agent begins with a message. In the middle of a turn it is part of that. What it has after one, which was
    /// interrupted or at rest before we knew, is the next.
    pub(crate) fn take_up(&mut self, message: TurnId) -> Option<AgentEvent> {
        let interrupted =
            self.answer.as_ref().is_some_and(|answer| answer.outcome == TurnOutcome::Interrupted);
        match self.turn {
            Some(turn) if turn == message => None,
            Some(_) if !interrupted => Some(AgentEvent::Steered { turn: message }),
            Some(_) | None => {
                self.early_message = Some((message, None));
                self.end_turn_if_idle()
            }
        }
    }

    /// The agent works by itself, and no turn says so yet.
    pub fn has_self_started(&self) -> bool {
        self.self_start_seen && self.turn.is_none()
    }

    /// What the agent does by itself is this turn.
    pub fn expect_self_started(&mut self, turn: TurnId) {
        self.expect(turn);
        self.self_started = true;
    }

    /// The answer is there, and the agent does not say that it is idle: work in the background holds the turn.
    pub fn is_waiting_for_background(&self) -> bool {
        self.turn.is_some() && self.has_answered() && self.has_given_result
    }

    /// Whatever still works in the background is not waited for any more.
    pub fn stop_waiting_for_background(&mut self) -> Option<AgentEvent> {
        self.unattended.append(&mut self.tasks);
        while self.unattended.len() > MAX_TASKS {
            self.unattended.pop_first();
        }
        self.end_turn_if_idle()
    }

    /// Whether an answer is the end of the turn: nobody will say that the agent is idle.
    pub(crate) fn end_turn_without_idle(&mut self) -> Option<AgentEvent> {
        let over = self.has_given_result && !self.unattended.is_empty();
        over.then(|| self.end_turn_if_idle()).flatten()
    }

    fn has_answered(&self) -> bool {
        self.completed || self.answer.is_some()
    }

    /// The agent is idle: is that the end of the turn?
    pub(crate) fn end_turn_if_idle(&mut self) -> Option<AgentEvent> {
        let turn = self.turn?;
        let interrupted =
            self.answer.as_ref().is_some_and(|answer| answer.outcome == TurnOutcome::Interrupted);
        let held = !self.tasks.is_empty() && !interrupted;
        if held || !self.has_answered() {
            return None;
        }
        self.tasks.clear();
        self.turn = None;
        (self.completed, self.self_started) = (false, false);
        let nothing = TurnAnswer {
            outcome: TurnOutcome::Done,
            text: String::new(),
            usage: TokenUsage::default(),
            problem: None,
        };
        let TurnAnswer { outcome: how, text, usage, problem } = self.answer.take().unwrap_or(nothing);
        Some(AgentEvent::TurnEnded { turn, how, text, usage, problem })
    }
}
