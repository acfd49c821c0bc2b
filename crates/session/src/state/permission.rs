//! Leave that the agent waits for: what an answer means, and what becomes of it when nobody gives one. A request
//! lives no longer than the sandbox that asked, and a turn's no longer than the turn.

use super::{Phase, Refused, State};
use ash_driver::Say;
use ash_model::{
    AnsweredBy, Asked, Fact, OnPermissionTimeout, PermissionId, Seq, Timestamp, TurnId, Verdict,
};
use std::sync::Arc;

/// What is told beside turns is remembered for whoever takes over: those that may still be on their way, and more.
const REMEMBERED: usize = 64;
const TOO_LATE: &str = "Nobody answered this request in time, so it was denied. Go on without it if you can.";

/// Something that the agent waits for. It may be large, and states are copied often.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    pub seq: Seq,
    pub asked: Arc<Asked>,
}

impl State {
    pub(super) fn answer(&self, id: PermissionId, verdict: &Verdict) -> Result<Vec<Fact>, Refused> {
        let pending = self.pending.iter().find(|pending| pending.asked.id == id);
        let (pending, awake) = pending.zip(self.awake.as_ref()).ok_or(Refused::Unasked)?;
        if let Verdict::Allow { updated_input, answers, .. } = verdict {
            let given = !answers.is_empty()
                || updated_input.as_ref().is_some_and(|input| input.get("answers").is_some());
            match (pending.asked.question, given) {
                (true, false) => return Err(Refused::NoAnswers),
                (false, _) if !answers.is_empty() => return Err(Refused::NoQuestion),
                (true, true) | (false, _) => {}
            }
        }
        Ok(vec![told(&pending.asked, verdict.clone(), AnsweredBy::Client, awake.next_input)])
    }

    /// What follows from the time it is, and from turns that are over.
    pub fn overdue(&self, now: Timestamp) -> Vec<Fact> {
        let mut facts = Vec::new();
        let Some(awake) = &self.awake else { return facts };
        let (mut input, mut stopping) = (awake.next_input, self.was_asked_to_stop());
        for Pending { asked, .. } in &self.pending {
            let over = asked.turn.is_some_and(|turn| self.under_way() != Some(turn));
            let running = asked.turn.filter(|turn| self.is_running(*turn));
            if over {
                facts.push(cancelled(asked));
            } else if asked.expires_at > now || (running.is_some() && stopping) {
                // Somebody may still answer, or the agent withdraws it.
            } else if let (OnPermissionTimeout::Interrupt, Some(turn)) = (asked.on_timeout, running) {
                facts.push(Fact::Interrupting { turn, input });
                (input, stopping) = (input + 1, true);
            } else {
                facts.push(told(asked, policy(asked), AnsweredBy::Policy, input));
                input += 1;
            }
        }
        facts
    }

    /// The turn that the agent works on. After a cut it may have taken it up before we tell it to.
    pub fn under_way(&self) -> Option<TurnId> {
        let turn = self.turns.front()?;
        matches!(turn.phase, Phase::Running { .. } | Phase::Cut).then_some(turn.id)
    }

    /// When to look at `overdue` again.
    pub fn next_overdue(&self) -> Option<Timestamp> {
        let stopping = self.was_asked_to_stop();
        let open = self.pending.iter().filter(|pending| !(stopping && pending.asked.turn.is_some()));
        open.map(|pending| pending.asked.expires_at).min()
    }

    /// The sandbox is gone, and with it whoever waited for an answer.
    pub fn falls_asleep(&self) -> Vec<Fact> {
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

    pub(super) fn note_asked(&mut self, seq: Seq, asked: &Asked) {
        self.pending.push(Pending { seq, asked: Arc::new(asked.clone()) });
    }

    pub(super) fn note_answered(&mut self, id: PermissionId, verdict: Option<&Verdict>, input: Option<u64>) {
        let Some(place) = self.pending.iter().position(|pending| pending.asked.id == id) else { return };
        let asked = self.pending.remove(place).asked;
        if let (Some(verdict), Some(number)) = (verdict, input) {
            let (request, input) = (asked.request.clone(), asked.input.clone());
            self.remember(number, Say::Answer { request, input, verdict: verdict.clone() });
        }
    }

    /// Something was told beside the turn.
    pub(super) fn remember(&mut self, input: u64, say: Say) {
        if let Some(awake) = &mut self.awake {
            awake.beside.push_back((input, Arc::new(say)));
            if awake.beside.len() > REMEMBERED {
                awake.beside.pop_front();
            }
        }
        self.took_input(input);
    }
}

/// A question cannot be answered by a rule.
fn policy(asked: &Asked) -> Verdict {
    match asked.on_timeout {
        OnPermissionTimeout::Allow if !asked.question => Verdict::allow(),
        OnPermissionTimeout::Allow | OnPermissionTimeout::Deny | OnPermissionTimeout::Interrupt => {
            Verdict::deny(TOO_LATE)
        }
    }
}

fn told(asked: &Asked, verdict: Verdict, by: AnsweredBy, input: u64) -> Fact {
    Fact::Answered { id: asked.id, turn: asked.turn, verdict: Some(verdict), by, input: Some(input) }
}

/// Also for requests that are not in the state yet.
pub(crate) fn cancelled(asked: &Asked) -> Fact {
    let by = AnsweredBy::Cancelled;
    Fact::Answered { id: asked.id, turn: asked.turn, verdict: None, by, input: None }
}
