//! Permission requests: what an answer means, and what happens when no client answers. A request lives no longer than
//! the sandbox that asked, and a turn's request no longer than the turn.

use super::{CommandRefusal, LogState, TurnPhase};
use ash_driver::AgentInput;
use ash_model::{
    EventSeq, Fact, PermissionId, PermissionRequest, PermissionTimeoutPolicy, PermissionVerdict, Timestamp,
    TurnId, VerdictSource,
};
use std::sync::Arc;

/// Inputs outside turns are remembered for the next actor: those that may still be undelivered, and more.
const MAX_REMEMBERED_INPUTS: usize = 64;
/// The outputs of tools among them.
const MAX_REMEMBERED_BYTES: usize = 4 << 20;
const TOO_LATE: &str = "Nobody answered this request in time, so it was denied. Go on without it if you can.";
const TURN_OVER: &str = "The turn was stopped, so this request was denied. Do not continue it.";

/// An open request of the agent. It may be large, and states are copied often, so it is shared.
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

    /// What follows from the current time, and from turns that are over.
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
                // A client may still answer, or the agent may withdraw the request.
            } else if let (PermissionTimeoutPolicy::Interrupt, Some(turn)) = (asked.on_timeout, running) {
                facts.push(Fact::Interrupting { turn, input });
                (input, stopping) = (input + 1, true);
            } else {
                facts.push(told(asked, policy(asked), VerdictSource::Policy, input));
                input += 1;
            }
        }
        facts.extend(self.overdue_tool_calls(now, input, stopping));
        facts
    }

    /// The turn that the agent works on. After a cut, the agent may resume it before it is told to.
    pub fn under_way(&self) -> Option<TurnId> {
        let turn = self.turns.front()?;
        matches!(turn.phase, TurnPhase::Running { .. } | TurnPhase::Cut).then_some(turn.id)
    }

    /// When to call `overdue` again.
    pub fn next_overdue(&self) -> Option<Timestamp> {
        let stopping = self.was_asked_to_stop();
        let open = self.pending.iter().filter(|pending| !(stopping && pending.asked.turn.is_some()));
        open.map(|pending| pending.asked.expires_at).chain(self.next_overdue_tool_call()).min()
    }

    /// The sandbox is gone, and its open requests with it.
    pub fn sleep_facts(&self) -> Vec<Fact> {
        let asleep = self.awake.as_ref().map(|awake| Fact::Asleep { incarnation: Some(awake.incarnation) });
        self.withdraw_all().chain(asleep).collect()
    }

    pub(super) fn withdraw_all(&self) -> impl Iterator<Item = Fact> {
        let permissions = self.pending.iter().map(|pending| cancelled(&pending.asked));
        permissions.chain(self.withdraw_tool_calls_outside_turns())
    }

    /// What the agent gets when its turn ends while it is cut. An agent that resumed the turn by itself may wait for an
    /// answer already, and would wait for ever.
    pub(super) fn refuse_requests_of_cut_turn(&self, turn: TurnId) -> Vec<Fact> {
        let Some(awake) = &self.awake else { return Vec::new() };
        let open = self.pending.iter().filter(|pending| pending.asked.turn == Some(turn));
        let denied = |(pending, input): (&PendingPermission, u64)| {
            told(&pending.asked, PermissionVerdict::deny(TURN_OVER), VerdictSource::Cancelled, input)
        };
        let denied: Vec<Fact> = open.zip(awake.next_input..).map(denied).collect();
        let failed = self.fail_tool_calls_of_cut_turn(turn, awake.next_input + denied.len() as u64);
        denied.into_iter().chain(failed).collect()
    }

    /// The agent itself withdrew the request.
    pub fn withdrawn(&self, request: &str) -> Option<Fact> {
        let pending = self.pending.iter().find(|pending| pending.asked.request == request);
        let pending = pending.map(|pending| cancelled(&pending.asked));
        pending.or_else(|| self.withdrawn_tool_call(request))
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

    /// Remembers an input that was sent outside a turn.
    pub(super) fn remember_input(&mut self, input: u64, say: AgentInput) {
        if let Some(awake) = &mut self.awake {
            awake.out_of_turn_inputs.push_back((input, Arc::new(say)));
            let remembered = &mut awake.out_of_turn_inputs;
            let size = |say: &AgentInput| match say {
                AgentInput::ToolOutput { output, .. } => output.size(),
                _ => 0,
            };
            while remembered.len() > MAX_REMEMBERED_INPUTS
                || (remembered.len() > 1
                    && remembered.iter().map(|(_, say)| size(say)).sum::<usize>() > MAX_REMEMBERED_BYTES)
            {
                remembered.pop_front();
            }
        }
        self.took_input(input);
    }
}

/// A rule cannot answer a question, so a question is denied.
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

fn cancelled(asked: &PermissionRequest) -> Fact {
    let by = VerdictSource::Cancelled;
    Fact::Answered { id: asked.id, turn: asked.turn, verdict: None, by, input: None }
}
