//! A turn whose answer is there although helpers of the agent still work, one that goes on after it was cut off, and what
//! an agent begins by itself.

use super::{Actor, hear::counted};
use crate::{Result, calls::Ledger};
use ash_driver::Heard;
use ash_model::{Fact, TurnId};
use ash_store::EventQuery;
use std::time::Duration;
use tokio::time::Instant;

/// An agent's own turns begin at most so often: each is captured, and nobody asked for it.
const BETWEEN_OWN: Duration = Duration::from_secs(1);

impl Actor {
    /// Looks whether the turn waits for nothing but work in the background.
    pub(super) fn note_held(&mut self) {
        if self.ear.stirs() {
            // It may be over before it gets a turn.
            self.touch();
        }
        self.held_since = self.ear.is_held().then(|| self.held_since.unwrap_or_else(Instant::now));
    }

    pub(super) fn held_until(&self) -> Option<Instant> {
        let usual = self.rooms.settings.max_wait;
        let wait = self.session.options.max_wait.map_or(usual, Duration::from_secs);
        self.held_since.map(|since| since + wait)
    }

    /// The turn has waited long enough. What comes of the work later is a turn of its own.
    pub(super) async fn let_go(&mut self) -> Result<()> {
        if self.unwritten.is_some() || self.held_until().is_none_or(|until| until > Instant::now()) {
            return Ok(());
        }
        let mut ear = self.ear.clone();
        if let Some(Heard::Rested { turn, how, text, usage, problem }) = ear.let_go()
            && self.state.is_running(turn)
        {
            let usage = counted(&self.state.meter, usage);
            self.note(vec![Fact::Rested { turn, how, text, usage, problem }]).await?;
        }
        (self.ear, self.held_since, self.patience) = (ear, None, None);
        Ok(())
    }

    /// A turn that goes on says which calls it had made, and what became of them.
    pub(super) async fn with_calls(&self, mut fact: Fact) -> Result<Fact> {
        let Fact::Continued { turn, calls, .. } = &mut fact else { return Ok(fact) };
        let Some(begun) = self.state.turns.front().filter(|front| front.id == *turn) else { return Ok(fact) };
        let (mut ledger, mut after) = (Ledger::default(), begun.seq);
        loop {
            let kinds = vec!["said", "asked", "answered"];
            let query = EventQuery { after, limit: 1000, kinds };
            let events = self.rooms.store.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            let own = events.iter().filter(|event| event.turn == Some(*turn));
            own.for_each(|event| ledger.note(self.driver.as_ref(), event));
        }
        *calls = ledger.calls();
        Ok(fact)
    }

    /// When what the agent began by itself gets its turn.
    pub(super) fn stirs_at(&self) -> Option<Instant> {
        let stirs = self.ear.stirs() && self.hands.is_some() && self.state.may_stir();
        stirs.then(|| self.last_own.map_or_else(Instant::now, |last| last + BETWEEN_OWN))
    }

    pub(super) async fn stir(&mut self) -> Result<()> {
        let turn = TurnId::fresh();
        self.note(vec![Fact::Stirred { turn }]).await?;
        self.ear.expect_own(turn);
        self.last_own = Some(Instant::now());
        Ok(())
    }
}
