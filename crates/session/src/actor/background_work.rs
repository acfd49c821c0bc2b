//! A turn whose answer is there although helpers of the agent still work, one that goes on after it was cut off, and what
//! an agent begins by itself.

use super::{SessionActor, records::counted};
use crate::{Result, tool_calls::ToolCallLedger};
use ash_driver::AgentEvent;
use ash_model::{Fact, TurnId};
use ash_store::EventQuery;
use std::time::Duration;
use tokio::time::Instant;

/// An agent's own turns begin at most so often: each is captured, and nobody asked for it.
const MIN_SELF_START_INTERVAL: Duration = Duration::from_secs(1);

impl SessionActor {
    /// Looks whether the turn waits for nothing but work in the background.
    pub(super) fn note_held(&mut self) {
        if self.tracker.has_self_started() {
            // It may be over before it gets a turn.
            self.touch();
        }
        self.background_wait_since = self
            .tracker
            .is_waiting_for_background()
            .then(|| self.background_wait_since.unwrap_or_else(Instant::now));
    }

    pub(super) fn background_wait_until(&self) -> Option<Instant> {
        let usual = self.services.settings.max_wait;
        let wait = self.session.options.max_wait.map_or(usual, Duration::from_secs);
        self.background_wait_since.map(|since| since + wait)
    }

    /// The turn has waited long enough. What comes of the work later is a turn of its own.
    pub(super) async fn stop_waiting_for_background(&mut self) -> Result<()> {
        if self.unwritten.is_some() || self.background_wait_until().is_none_or(|until| until > Instant::now())
        {
            return Ok(());
        }
        let mut ear = self.tracker.clone();
        if let Some(AgentEvent::TurnEnded { turn, how, text, usage, problem }) =
            ear.stop_waiting_for_background()
            && self.state.is_running(turn)
        {
            let usage = counted(&self.state.meter, usage);
            self.commit_facts(vec![Fact::Rested { turn, outcome: how, text, usage, problem }]).await?;
        }
        (self.tracker, self.background_wait_since, self.interrupt_deadline) = (ear, None, None);
        Ok(())
    }

    /// A turn that goes on says which calls it had made, and what became of them.
    pub(super) async fn with_calls(&self, mut fact: Fact) -> Result<Fact> {
        let Fact::Continued { turn, calls, .. } = &mut fact else { return Ok(fact) };
        let Some(begun) = self.state.turns.front().filter(|front| front.id == *turn) else { return Ok(fact) };
        let (mut ledger, mut after) = (ToolCallLedger::default(), begun.seq);
        loop {
            let kinds = vec!["said", "asked", "answered"];
            let query = EventQuery { after, limit: 1000, kinds };
            let events = self.services.store.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            let own = events.iter().filter(|event| event.turn == Some(*turn));
            own.for_each(|event| ledger.note(self.driver.as_ref(), event));
        }
        *calls = ledger.calls();
        Ok(fact)
    }

    /// When what the agent began by itself gets its turn.
    pub(super) fn self_start_at(&self) -> Option<Instant> {
        let stirs = self.tracker.has_self_started() && self.conn.is_some() && self.state.may_self_start();
        stirs.then(|| self.last_self_start.map_or_else(Instant::now, |last| last + MIN_SELF_START_INTERVAL))
    }

    pub(super) async fn begin_self_started_turn(&mut self) -> Result<()> {
        let turn = TurnId::fresh();
        self.commit_facts(vec![Fact::SelfStarted { turn }]).await?;
        self.tracker.expect_self_started(turn);
        self.last_self_start = Some(Instant::now());
        Ok(())
    }
}
