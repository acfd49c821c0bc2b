//! Leave that the agent waits for: what an answer means, and what becomes of it when nobody gives one. A request
//! lives no longer than the sandbox that asked, and a turn's no longer than the turn.

use super::{CommandRefusal, LogState, TurnPhase};
use ash_driver::AgentInput;
use ash_model::{
    EventSeq, Fact, PermissionId, PermissionRequest, PermissionTimeoutPolicy, PermissionVerdict, Timestamp,
    TurnId, VerdictSource,
};
use std::sync::Arc;

/// What is told beside turns is remembered for whoever takes over: those that may still be on their way, and more.
const MAX_REMEMBERED_INPUTS: usize = 64;
const TOO_LATE: &str = "Nobody answered this request in time, so it was denied. Go on without it if you can.";

/// Something that the agent waits for. It may be large, and states are copied often.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingPermission {
    pub seq: EventSeq,
    pub asked: Arc<PermissionRequest>,
}

impl LogState {
    pub(super) fn answer(
        &self,
        id: PermissionId,
        verdict: &PermissionVerdict,
    ) -> Result<Vec<Fact>, CommandRefusal> {
        let pending = self.pending.iter().find(|pending| pending.asked.id == id);
        let (pending, awake) = pending.zip(self.awake.as_ref()).ok_or(CommandRefusal::NoSuchPermission)?;
        if let PermissionVerdict::Allow { updated_input, answers, .. } = verdict {
            let given = !answers.is_empty()
                || updated_input.as_ref().is_some_and(|input| input.get("answers").is_some());
            match (pending.asked.question, given) {
                (true, false) => return Err(CommandRefusal::AnswersMissing),
                (false, _) if !answers.is_empty() => return Err(CommandRefusal::NotAQuestion),
                (true, true) | (false, _) => {}
            }
        }
        Ok(vec![told(&pending.asked, verdict.clone(), VerdictSource::Client, awake.next_input)])
    }

    /// What follows from the time it is, and from turns that are over.
    pub fn overdue(&self, now: Timestamp) -> Vec<Fact> {
        let mut facts = Vec::new();
        let Some(awake) = &self.awake else { return facts };
        let (mut input, mut stopping) = (awake.next_input, self.was_asked_to_stop());
        for PendingPermission { asked, .. } in &self.pending {
            let over = asked.turn.is_some_and(|turn| self.under_way() != Some(turn));
            let running = asked.turn.filter(|turn| self.is_running(*turn));
            if over {
                facts.push(cancelled(asked));
            } else if asked.expires_at > now || (running.is_some() && stopping) {
                // Somebody may still answer, or the agent withdraws it.
            } else if let (PermissionTimeoutPolicy::Interrupt, Some(turn)) = (asked.on_timeout, running) {
                facts.push(Fact::Interrupting { turn, input });
                (input, stopping) = (input + 1, true);
            } else {
                facts.push(told(asked, policy(asked), VerdictSource::Policy, input));
                input += 1;
            }
        }
        facts
    }

    /// The turn that the agent works on. After a cut it may have taken it up before we tell it to.
    pub fn under_way(&self) -> Option<TurnId> {
        let turn = self.turns.front()?;
        matches!(turn.phase, TurnPhase::Running { .. } | TurnPhase::Cut).then_some(turn.id)
    }

    /// When to look at `overdue` again.
    pub fn next_overdue(&self) -> Option<Timestamp> {
        let stopping = self.was_asked_to_stop();
        let open = self.pending.iter().filter(|pending| !(stopping && pending.asked.turn.is_some()));
        open.map(|pending| pending.asked.expires_at).min()
    }

    /// The sandbox is gone, and with it whoever waited for an answer.
    pub fn sleep_facts(&self) -> Vec<Fact> {
        let asleep = self.awake.as_ref().map(|awake| Fact::Asleep { incarnation: Some(awake.incarnation) });
        self.withdraw_all().chain(asleep).collect()
    }

    pub(super) fn withdraw_all(&self) -> impl Iterator<Item = Fact> {
        self.pending.iter().map(|pending| cancelled(&pending.asked))
    }

    /// The agent itself does not wait any more.
    pub fn withdrawn(&self, request: &str) -> Option<Fact> {
        let pending = self.pending.iter().find(|pending| pending.asked.request == request);
        pending.map(|pending| cancelled(&pending.asked))
    }

    pub(super) fn note_asked(&mut self, seq: EventSeq, asked: &PermissionRequest) {
        self.pending.push(PendingPermission { seq, asked: Arc::new(asked.clone()) });
    }

    pub(super) fn note_answered(
        &mut self,
        id: PermissionId,
        verdict: Option<&PermissionVerdict>,
        input: Option<u64>,
    ) {
        let Some(place) = self.pending.iter().position(|pending| pending.asked.id == id) else { return };
        let asked = self.pending.remove(place).asked;
        if let (Some(verdict), Some(number)) = (verdict, input) {
            let (request, input) = (asked.request.clone(), asked.input.clone());
            self.remember_input(number, AgentInput::Answer { request, input, verdict: verdict.clone() });
        }
    }

    /// Something was told beside the turn.
    pub(super) fn remember_input(&mut self, input: u64, say: AgentInput) {
        if let Some(awake) = &mut self.awake {
            awake.out_of_turn_inputs.push_back((input, Arc::new(say)));
            if awake.out_of_turn_inputs.len() > MAX_REMEMBERED_INPUTS {
                awake.out_of_turn_inputs.pop_front();
            }
        }
        self.took_input(input);
    }
}

/// A question cannot be answered by a rule.
fn policy(asked: &PermissionRequest) -> PermissionVerdict {
    match asked.on_timeout {
        PermissionTimeoutPolicy::Allow if !asked.question => PermissionVerdict::allow(),
        PermissionTimeoutPolicy::Allow
        | PermissionTimeoutPolicy::Deny
        | PermissionTimeoutPolicy::Interrupt => PermissionVerdict::deny(TOO_LATE),
    }
}

fn told(asked: &PermissionRequest, verdict: PermissionVerdict, by: VerdictSource, input: u64) -> Fact {
    Fact::Answered { id: asked.id, turn: asked.turn, verdict: Some(verdict), by, input: Some(input) }
}

/// Also for requests that are not in the state yet.
pub(crate) fn cancelled(asked: &PermissionRequest) -> Fact {
    let by = VerdictSource::Cancelled;
    Fact::Answered { id: asked.id, turn: asked.turn, verdict: None, by, input: None }
}
