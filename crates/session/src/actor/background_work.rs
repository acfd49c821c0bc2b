//! Background work: a turn that has its answer while helpers of the agent still work, a turn that continues after a
//! cut, and turns that the agent begins by itself.

use super::{SessionActor, records::counted};
use crate::{Result, tool_calls::ToolCallLedger};
use ash_driver::AgentEvent;
use ash_model::{Fact, TurnId};
use ash_store::EventQuery;
use std::time::Instant;

impl SessionActor {
    /// Checks whether the turn waits for nothing but background work.
    pub(super) fn note_background_work(&mut self) {
        if self.link.tracker.has_self_started() {
            // The self-started work may be over before it gets a turn.
            self.touch();
        }
        let waits = self.link.tracker.is_waiting_for_background();
        self.machine.note_background_wait(waits, Instant::now());
    }

    /// Ends the wait. Results that the work produces later become a turn of their own.
    pub(super) async fn stop_waiting_for_background(&mut self) -> Result<()> {
        let mut tracker = self.link.tracker.clone();
        if let Some(AgentEvent::TurnEnded { turn, how, text, usage, problem }) =
            tracker.stop_waiting_for_background()
            && self.machine.log.is_running(turn)
        {
            let usage = counted(&self.machine.log.meter, usage);
            self.commit_facts(vec![Fact::Rested { turn, outcome: how, text, usage, problem }]).await?;
        }
        self.link.tracker = tracker;
        self.machine.background_wait_ended();
        Ok(())
    }

    /// A turn that continues after a cut lists the tool calls it had made, and their outcomes.
    pub(super) async fn with_calls(&self, mut fact: Fact) -> Result<Fact> {
        let Fact::Continued { turn, calls, .. } = &mut fact else { return Ok(fact) };
        let Some(begun) = self.machine.log.turns.front().filter(|front| front.id == *turn) else {
            return Ok(fact);
        };
        let (mut ledger, mut after) = (ToolCallLedger::default(), begun.seq);
        loop {
            let kinds = vec!["said", "asked", "answered"];
            let query = EventQuery { after, limit: 1000, kinds };
            let events = self.ctx.services.store.events(self.ctx.session.no, &query).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            let own = events.iter().filter(|event| event.turn == Some(*turn));
            own.for_each(|event| ledger.note(self.ctx.driver.as_ref(), event));
        }
        *calls = ledger.calls();
        Ok(fact)
    }

    pub(super) async fn begin_self_started_turn(&mut self) -> Result<()> {
        let (turn, mut tracker) = (TurnId::fresh(), self.link.tracker.clone());
        let mut facts = vec![Fact::SelfStarted { turn }];
        if let Some(AgentEvent::TurnEnded { turn, how, text, usage, problem }) =
            tracker.begin_self_started(turn)
        {
            let usage = counted(&self.machine.log.meter, usage);
            facts.push(Fact::Rested { turn, outcome: how, text, usage, problem });
        }
        self.commit_facts(facts).await?;
        self.link.tracker = tracker;
        Ok(())
    }
}
