//! What is to be done now. Nothing but the state is looked at.

use super::{AwakeAgent, NextStep, SessionState, Turn, TurnPhase};
use ash_driver::AgentInput;
use ash_model::{EventSeq, Fact, Incarnation, SessionStatus};

impl SessionState {
    pub fn next_step(&self) -> NextStep {
        if let Some(Turn { id, phase: TurnPhase::Saving { .. }, .. }) = self.turns.front() {
            return NextStep::Save { turn: *id };
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
            return NextStep::Commit { facts };
        }
        match (self.status, &self.awake) {
            (SessionStatus::Paused, _) if self.can_resume_after_budget() => {
                NextStep::Commit { facts: vec![self.resume_fact()] }
            }
            (SessionStatus::Paused, Some(_)) if self.is_paused_for_budget() => NextStep::Sleep,
            (SessionStatus::Stopped | SessionStatus::Ended | SessionStatus::Error, Some(_)) => {
                NextStep::Sleep
            }
            (
                SessionStatus::Stopped | SessionStatus::Ended | SessionStatus::Error | SessionStatus::Paused,
                _,
            ) => NextStep::Wait,
            // It comes back with other options than the agent that is there was started with.
            (SessionStatus::Starting, Some(_)) => NextStep::Sleep,
            (SessionStatus::Starting | SessionStatus::Active, None) => NextStep::Wake,
            (SessionStatus::Active, Some(_)) if self.agent_options_outdated && self.waits_to_begin() => {
                NextStep::Sleep
            }
            (SessionStatus::Active, Some(awake)) => self.next_turn(awake),
        }
    }

    fn waits_to_begin(&self) -> bool {
        self.turns.front().is_some_and(|turn| turn.phase == TurnPhase::Queued)
    }

    fn next_turn(&self, awake: &AwakeAgent) -> NextStep {
        let Some(turn) = self.turns.front() else { return NextStep::Wait };
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
                NextStep::Tell { fact: Fact::Started { turn: turn.id, input }, input, say: say(1) }
            }
            TurnPhase::Cut => {
                let attempt = turn.attempt + 1;
                let discard_after = self.resumed_after.unwrap_or(turn.seq);
                let fact =
                    Fact::Continued { turn: turn.id, attempt, discard_after, input, calls: Vec::new() };
                NextStep::Tell { fact, input, say: say(attempt) }
            }
            TurnPhase::Running { .. } | TurnPhase::Saving { .. } | TurnPhase::Joined { .. } => NextStep::Wait,
        }
    }

    /// What the agent was told in this shim's life beyond what the shim got: to be sent again.
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

    /// An agent answers. Its start knew the options as they were after the change at `knew` (`State::configured` when
    /// the start began): if there was a later one, the agent may have been started without it.
    pub fn awake_fact(&self, incarnation: Incarnation, kept: Option<EventSeq>, knew: EventSeq) -> Fact {
        Fact::Awake { incarnation, resumed_after: kept, outdated: self.last_options_change > knew }
    }

    /// Whether the agent may have a turn of its own now.
    pub fn may_self_start(&self) -> bool {
        self.awake.is_some() && self.status == SessionStatus::Active && self.current().is_none()
    }
}
