//! A message in the middle of a turn. It is sent to the agent during the turn, and waits like any other message until
//! the agent acknowledges it; then it ends with that turn. A message that the agent did not acknowledge before its turn
//! was over runs next, as a turn of its own.

use super::{LogState, Turn, TurnPhase, asked_to_stop};
use ash_driver::AgentInput;
use ash_model::{Fact, TurnId};
use ash_store::TurnState;
use uuid::Uuid;

impl LogState {
    /// The fact that sends the message to the agent, if a running turn can take it.
    pub(super) fn steer(&self, turn: TurnId) -> Option<Fact> {
        let front = self.turns.front()?;
        match (&front.phase, &self.awake) {
            (TurnPhase::Running { inputs }, Some(awake)) if !asked_to_stop(inputs) => {
                Some(Fact::Steering { turn, into: front.id, input: awake.next_input })
            }
            _ => None,
        }
    }

    /// The messages that were sent into the running turn and are not acknowledged yet, in order.
    pub(super) fn undelivered_steering(&self) -> Vec<TurnId> {
        let inputs = match self.turns.front() {
            Some(Turn { phase: TurnPhase::Running { inputs }, .. }) => inputs.as_slice(),
            Some(_) | None => &[],
        };
        let told = inputs.iter().filter_map(|(_, say)| match say {
            AgentInput::Steer { turn, .. } => Some(*turn),
            _ => None,
        });
        told.filter(|turn| self.waiting().any(|waiting| waiting == *turn)).collect()
    }

    /// Whether the agent may act on the message although it still waits: it was delivered, or acknowledged in a turn
    /// that continues.
    pub(super) fn is_known_to_agent(&self, turn: TurnId) -> bool {
        let goes_on = self.under_way().is_some();
        let known = |other: &Turn| other.delivered || (goes_on && other.acknowledged);
        self.turns.iter().any(|other| other.id == turn && known(other))
    }

    /// The agent acknowledges this message in the running turn.
    pub fn steering_acknowledged(&self, turn: TurnId) -> Option<Fact> {
        let into = self.under_way()?;
        self.waiting().any(|waiting| waiting == turn).then_some(Fact::Steered { turn, into })
    }

    /// The agent is back, and has these prompts in its memory. A message that it had acknowledged in the interrupted
    /// turn is among them, or runs as a turn of its own. Other agents acknowledge again themselves.
    pub fn steering_found_in_memory(&self, prompts: &[Uuid]) -> Vec<Fact> {
        let heard = self.turns.iter().filter(|turn| turn.acknowledged && prompts.contains(&turn.id.0));
        heard.filter_map(|turn| self.steering_acknowledged(turn.id)).collect()
    }

    /// The end of a turn is also the end of the messages that joined it.
    #[must_use]
    pub fn with_joined(&self, fact: Fact) -> Vec<Fact> {
        let Fact::Finished { turn, outcome: how, checkpoint, problem } = &fact else { return vec![fact] };
        let joined = self.turns.iter().filter(|other| other.phase == TurnPhase::Joined { into: *turn });
        let ends = joined.map(|other| Fact::Finished {
            turn: other.id,
            outcome: *how,
            checkpoint: *checkpoint,
            problem: problem.clone(),
        });
        ends.collect::<Vec<_>>().into_iter().chain([fact.clone()]).collect()
    }

    pub(super) fn note_steering(&mut self, turn: TurnId, into: TurnId, input: u64) {
        let steering = self.turns.iter_mut().find(|other| other.id == turn);
        let content = steering.map(|turn| {
            turn.delivered = true;
            turn.content.clone()
        });
        if let Some(Turn { phase: TurnPhase::Running { inputs }, .. }) =
            self.turns.front_mut().filter(|front| front.id == into)
            && let Some(content) = content
        {
            inputs.push((input, AgentInput::Steer { turn, into, content }));
        }
        self.took_input(input);
    }

    pub(super) fn join(&mut self, turn: TurnId, into: TurnId) {
        let Some(place) = self.turns.iter().position(|other| other.id == turn) else { return };
        let Some(turn) = self.turns.remove(place) else { return };
        // Behind the turns that joined before it, so that they keep this order if they have to wait again.
        let joined = |other: &Turn| other.id == into || matches!(other.phase, TurnPhase::Joined { .. });
        let after = self.turns.iter().rposition(joined).map_or(0, |place| place + 1);
        let turn = Turn { acknowledged: true, phase: TurnPhase::Joined { into }, ..turn };
        self.changed.push(super::apply::row(&turn, TurnState::Running));
        self.turns.insert(after, turn);
    }

    /// The turn that they joined was cut: they wait until it is known whether the agent remembers them.
    pub(super) fn detach_joined_turns(&mut self) {
        let joined = |turn: &Turn| matches!(turn.phase, TurnPhase::Joined { .. });
        self.change_phase(&TurnPhase::Queued, TurnState::Queued, joined);
    }

    fn change_phase(&mut self, phase: &TurnPhase, state: TurnState, of: impl Fn(&Turn) -> bool) {
        for turn in self.turns.iter_mut().filter(|turn| of(turn)) {
            turn.phase = phase.clone();
            self.changed.push(super::apply::row(turn, state));
        }
    }
}
