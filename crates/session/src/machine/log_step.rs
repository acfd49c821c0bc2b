//! The next step that the log alone requires.

use super::{AwakeAgent, LogState, Turn, TurnPhase};
use ash_driver::AgentInput;
use ash_model::{Fact, SessionStatus, TurnId};

/// The next step, as far as the log says.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, looked at and gone")]
pub enum LogStep {
    Wait,
    /// Make a sandbox and start the agent.
    Wake,
    /// Tell the agent: the fact first, then the input.
    Tell {
        fact: Fact,
        input: u64,
        say: AgentInput,
    },
    /// Commit the facts, and send the agent what they contain.
    Commit {
        facts: Vec<Fact>,
    },
    /// Capture the workspace, then end the turn.
    Save {
        turn: TurnId,
    },
    /// End the sandbox.
    Sleep,
}

impl LogState {
    pub fn next_step(&self) -> LogStep {
        if let Some(Turn { id, phase: TurnPhase::Saving { .. }, .. }) = self.turns.front() {
            return LogStep::Save { turn: *id };
        }
        let out_of_budget = match self.status {
            SessionStatus::Active => self.out_of_budget(),
            SessionStatus::Paused => self.stop_running_turn(),
            SessionStatus::Starting
            | SessionStatus::Stopped
            | SessionStatus::Error
            | SessionStatus::Ended => None,
        };
        if let Some(facts) = out_of_budget {
            return LogStep::Commit { facts };
        }
        match (self.status, &self.awake) {
            (SessionStatus::Paused, _) if self.can_resume_after_budget() => {
                LogStep::Commit { facts: vec![self.resume_fact()] }
            }
            // A client paused it while its turn was being stopped: the agent has its time to stop.
            (SessionStatus::Paused, Some(_)) if self.is_paused_for_budget() && self.running().is_none() => {
                LogStep::Sleep
            }
            (SessionStatus::Stopped | SessionStatus::Ended | SessionStatus::Error, Some(_)) => LogStep::Sleep,
            (
                SessionStatus::Stopped | SessionStatus::Ended | SessionStatus::Error | SessionStatus::Paused,
                _,
            ) => LogStep::Wait,
            // The session resumes with options that differ from those of the running agent.
            (SessionStatus::Starting, Some(_)) => LogStep::Sleep,
            (SessionStatus::Starting | SessionStatus::Active, None) => LogStep::Wake,
            (SessionStatus::Active, Some(_)) if self.agent_options_outdated && self.waits_to_begin() => {
                LogStep::Sleep
            }
            (SessionStatus::Active, Some(awake)) => self.next_turn(awake),
        }
    }

    /// Whether the next turn has not begun.
    pub fn waits_to_begin(&self) -> bool {
        self.turns.front().is_some_and(|turn| turn.phase == TurnPhase::Queued)
    }

    fn next_turn(&self, awake: &AwakeAgent) -> LogStep {
        let Some(turn) = self.turns.front() else { return LogStep::Wait };
        let input = awake.next_input;
        let say = |attempt| AgentInput::Prompt {
            turn: turn.id,
            head: self.briefing.clone(),
            content: turn.content.clone(),
            ask: turn.options.clone(),
            attempt,
        };
        match turn.phase {
            TurnPhase::Queued => {
                LogStep::Tell { fact: Fact::Started { turn: turn.id, input }, input, say: say(1) }
            }
            TurnPhase::Cut => {
                let attempt = turn.attempt + 1;
                let discard_after = self.resumed_after.unwrap_or(turn.seq);
                let fact =
                    Fact::Continued { turn: turn.id, attempt, discard_after, input, calls: Vec::new() };
                LogStep::Tell { fact, input, say: say(attempt) }
            }
            TurnPhase::Running { .. } | TurnPhase::Saving { .. } | TurnPhase::Joined { .. } => LogStep::Wait,
        }
    }

    /// Inputs of this sandbox that are in the log but did not reach the shim: they must be sent again.
    pub fn undelivered_inputs(&self, last_input: u64) -> Vec<(u64, AgentInput)> {
        let of_turn = match self.turns.front() {
            Some(Turn { phase: TurnPhase::Running { inputs }, .. }) => inputs.as_slice(),
            Some(_) | None => &[],
        };
        let beside = self
            .awake
            .iter()
            .flat_map(|awake| &awake.out_of_turn_inputs)
            .map(|(number, say)| (number, &**say));
        let told = of_turn.iter().map(|(number, say)| (number, say)).chain(beside);
        let untold = told.filter(|(number, _)| **number > last_input);
        let mut untold: Vec<(u64, AgentInput)> = untold.map(|(number, say)| (*number, say.clone())).collect();
        untold.sort_by_key(|(number, _)| *number);
        untold
    }

    /// Whether the agent may have a self-started turn now.
    pub fn may_self_start(&self) -> bool {
        self.awake.is_some() && self.status == SessionStatus::Active && self.current().is_none()
    }
}
