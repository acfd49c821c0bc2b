//! What is to be done now. Nothing but the state is looked at.

use super::{Awake, Next, Phase, State, Turn};
use ash_driver::Say;
use ash_model::{Fact, Incarnation, Seq, Status};

impl State {
    pub fn next(&self) -> Next {
        if let Some(Turn { id, phase: Phase::Saving { .. }, .. }) = self.turns.front() {
            return Next::Save { turn: *id };
        }
        let out_of_budget = match self.status {
            Status::Active => self.out_of_budget(),
            Status::Paused => self.stop_running_turn(),
            Status::Starting | Status::Stopped | Status::Error | Status::Ended => None,
        };
        if let Some(facts) = out_of_budget {
            return Next::Note { facts };
        }
        match (self.status, &self.awake) {
            (Status::Paused, _) if self.may_go_on() => Next::Note { facts: vec![self.back()] },
            (Status::Paused, Some(_)) if self.is_broke() => Next::Sleep,
            (Status::Stopped | Status::Ended | Status::Error, Some(_)) => Next::Sleep,
            (Status::Stopped | Status::Ended | Status::Error | Status::Paused, _) => Next::Wait,
            // It comes back with other options than the agent that is there was started with.
            (Status::Starting, Some(_)) => Next::Sleep,
            (Status::Starting | Status::Active, None) => Next::Wake,
            (Status::Active, Some(_)) if self.outdated && self.waits_to_begin() => Next::Sleep,
            (Status::Active, Some(awake)) => self.next_turn(awake),
        }
    }

    fn waits_to_begin(&self) -> bool {
        self.turns.front().is_some_and(|turn| turn.phase == Phase::Queued)
    }

    fn next_turn(&self, awake: &Awake) -> Next {
        let Some(turn) = self.turns.front() else { return Next::Wait };
        let input = awake.next_input;
        let say = |attempt| Say::Prompt {
            turn: turn.id,
            head: self.head.clone(),
            content: turn.content.clone(),
            ask: turn.ask.clone(),
            attempt,
        };
        match turn.phase {
            Phase::Queued => Next::Tell { fact: Fact::Started { turn: turn.id, input }, input, say: say(1) },
            Phase::Cut => {
                let attempt = turn.attempt + 1;
                let discard_after = self.kept.unwrap_or(turn.seq);
                let fact =
                    Fact::Continued { turn: turn.id, attempt, discard_after, input, calls: Vec::new() };
                Next::Tell { fact, input, say: say(attempt) }
            }
            Phase::Running { .. } | Phase::Saving { .. } | Phase::Joined { .. } => Next::Wait,
        }
    }

    /// What the agent was told in this shim's life beyond what the shim got: to be sent again.
    pub fn untold(&self, last_input: u64) -> Vec<(u64, Say)> {
        let of_turn = match self.turns.front() {
            Some(Turn { phase: Phase::Running { inputs }, .. }) => inputs.as_slice(),
            Some(_) | None => &[],
        };
        let beside = self.awake.iter().flat_map(|awake| &awake.beside).map(|(number, say)| (number, &**say));
        let told = of_turn.iter().map(|(number, say)| (number, say)).chain(beside);
        let untold = told.filter(|(number, _)| **number > last_input);
        let mut untold: Vec<(u64, Say)> = untold.map(|(number, say)| (*number, say.clone())).collect();
        untold.sort_by_key(|(number, _)| *number);
        untold
    }

    /// An agent answers. Its start knew the options as they were after the change at `knew` (`State::configured` when
    /// the start began): if there was a later one, the agent may have been started without it.
    pub fn woken(&self, incarnation: Incarnation, kept: Option<Seq>, knew: Seq) -> Fact {
        Fact::Awake { incarnation, kept, outdated: self.configured > knew }
    }

    /// Whether the agent may have a turn of its own now.
    pub fn may_stir(&self) -> bool {
        self.awake.is_some() && self.status == Status::Active && self.current().is_none()
    }
}
