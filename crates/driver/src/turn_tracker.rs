//! The parser state that a driver keeps from one line to the next.

use crate::AgentEvent;
use ash_model::{Problem, TokenUsage, TurnId, TurnOutcome};
use std::collections::BTreeSet;

/// The limit for background tasks at the same time; further ones are ignored.
pub(crate) const MAX_TASKS: usize = 1000;

/// The state follows from the messages of a turn alone, so a server that takes over a running turn rebuilds it by parsing
/// them again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TurnTracker {
    pub(crate) turn: Option<TurnId>,
    pub(crate) answer: Option<TurnAnswer>,
    /// The agent has answered the message.
    pub(crate) completed: bool,
    /// The agent works, and will report when it is idle.
    pub(crate) busy: bool,
    /// The answer to a turn that the agent resumed by itself, before we sent its message.
    pub(crate) resumed: Option<TurnAnswer>,
    /// The agent began work that no message asked for.
    pub(crate) self_start_seen: bool,
    /// The result of such work that came before a turn stood for it.
    pub(crate) self_started_answer: Option<TurnAnswer>,
    /// The agent started the turn itself, so any result is its answer.
    pub(crate) self_started: bool,
    /// Background tasks that belong to the turn.
    pub(crate) tasks: BTreeSet<String>,
    /// Background tasks that no turn waits for any more. While one runs, the agent does not report idle.
    pub(crate) unattended: BTreeSet<String>,
    /// The agent is compacting, and has reported it.
    pub(crate) compacting: bool,
    /// A message that the agent received before its turn and took up by itself, with the answer.
    pub(crate) early_message: Option<(TurnId, Option<TurnAnswer>)>,
    /// The agent has sent a result, and nothing since.
    pub(crate) has_given_result: bool,
    /// Which signals the agent's version sends, from its last `init`.
    pub(crate) announces: TurnEndSignals,
}

/// Which signals a version of an agent sends at the end of a turn. Each turn's `init` is in the log, so a server that
/// takes over a running turn knows it as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TurnEndSignals {
    /// Results name the messages that they answer, and the agent reports idle.
    #[default]
    Everything,
    /// Results name no message; the agent reports idle.
    Idle,
    /// The agent does not report idle: the result is the end of the turn.
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
    /// We have sent a message for this turn, or are about to.
    pub fn expect(&mut self, turn: TurnId) {
        if self.turn != Some(turn) {
            self.turn = Some(turn);
            let early = self.early_message.take_if(|(taken_up, _)| *taken_up == turn);
            self.answer = early.and_then(|(_, answer)| answer).or(self.resumed.take());
            (self.completed, self.self_start_seen, self.self_started, self.has_given_result) =
                (false, false, false, false);
            self.self_started_answer = None;
        }
    }

    /// The agent takes up a message. During a turn the message becomes part of it. If the turn was interrupted, or the
    /// agent was idle before we knew, the message is the next turn.
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

    /// The agent works on its own, or has finished such work, and no turn stands for that yet.
    pub fn has_self_started(&self) -> bool {
        self.turn.is_none() && (self.self_start_seen || self.has_finished_self_started())
    }

    /// Whether self-started work is over before it has a turn. An agent that has given its result and has not reported
    /// idle yet may go on.
    fn has_finished_self_started(&self) -> bool {
        let reports_idle = self.announces != TurnEndSignals::Results && self.unattended.is_empty();
        self.self_started_answer.is_some() && !(self.busy && reports_idle)
    }

    /// The agent's self-started work is this turn. Answers the end of the turn if the work is over already; it must be
    /// recorded together with the beginning, because the lines that say so came before.
    pub fn begin_self_started(&mut self, turn: TurnId) -> Option<AgentEvent> {
        let answer = self.self_started_answer.take_if(|_| !self.self_start_seen);
        self.expect_self_started(turn);
        self.answer = answer;
        self.end_turn_if_idle()
    }

    /// The agent's self-started work is this turn, whose lines follow.
    pub fn expect_self_started(&mut self, turn: TurnId) {
        self.expect(turn);
        self.self_started = true;
    }

    /// The answer is there, but background work keeps the agent from reporting idle.
    pub fn is_waiting_for_background(&self) -> bool {
        self.turn.is_some() && self.has_answered() && self.has_given_result
    }

    /// Ends the turn although background work continues.
    pub fn stop_waiting_for_background(&mut self) -> Option<AgentEvent> {
        self.unattended.append(&mut self.tasks);
        while self.unattended.len() > MAX_TASKS {
            self.unattended.pop_first();
        }
        self.end_turn_if_idle()
    }

    /// Ends the turn if its answer is there and no idle report will come.
    pub(crate) fn end_turn_without_idle(&mut self) -> Option<AgentEvent> {
        let over = self.has_given_result && !self.unattended.is_empty();
        over.then(|| self.end_turn_if_idle()).flatten()
    }

    fn has_answered(&self) -> bool {
        self.completed || self.answer.is_some()
    }

    /// Ends the turn if its answer is there and no background task holds it.
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
