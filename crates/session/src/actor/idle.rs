//! A session that nobody uses lets go of its sandbox: it is captured, released and paused, and comes back with the next
//! message. Of a shared sandbox the last one that leaves ends it.

use super::{CommandReply, ReplySender, SessionActor, closing::SessionClosing};
use crate::{
    Result,
    state::{CommandRefusal, StateCommand},
};
use ash_model::{EventSeq, Fact, SessionStatus};
use std::time::Duration;
use tokio::time::Instant;

/// How long before it happens it is said; halfway, if that is later.
const WARNING: Duration = Duration::from_secs(5 * 60);

/// Since when nobody has used a session.
pub(super) struct IdleState {
    pub(super) since: Instant,
    warned: bool,
}

impl IdleState {
    pub(super) fn new() -> IdleState {
        IdleState { since: Instant::now(), warned: false }
    }
}

impl SessionActor {
    /// How long it may be idle; `None`: for ever.
    fn idle_timeout(&self) -> Option<Duration> {
        let usual = self.services.settings.idle_timeout;
        let own = self.session.options.idle_timeout.map(Duration::from_secs);
        Some(own.unwrap_or(usual)).filter(|timeout| !timeout.is_zero())
    }

    /// Somebody wants something of it, or waits for it.
    fn is_used(&self) -> bool {
        self.is_busy()
            || self.conn.is_none()
            || !matches!(self.state.status, SessionStatus::Active | SessionStatus::Paused)
    }

    fn is_busy(&self) -> bool {
        let waiting = self.pausing.len() + self.resuming.len() + self.forking.len() + self.writing.len();
        let busy = !self.state.turns.is_empty() || self.execs.is_busy() || self.tracker.has_self_started();
        busy || waiting > 0
            || !self.rewinding.is_empty()
            || !self.changes.is_empty()
            || self.closing.is_some()
    }

    /// Whether a rule that has seen the log up to `seen`, and wants it unused for so long, must leave it alone. What is
    /// done in a sandbox without an event counts as well.
    pub(super) fn is_at_work(&self, seen: EventSeq, unused: Duration) -> bool {
        let at_hand = self.conn.is_some() && self.idle.since.elapsed() < unused;
        let locked = self.locked_by_another(None).is_some();
        self.is_busy() || at_hand || locked || self.effect.is_some() || self.state.last_seq != seen
    }

    pub(super) fn note_use(&mut self) {
        if self.is_used() {
            self.idle = IdleState::new();
        }
    }

    /// When something is to be said or done about it.
    pub(super) fn idle_deadline(&self) -> Option<Instant> {
        let timeout = self.idle_timeout().filter(|_| !self.is_used() && self.effect.is_none())?;
        let warns = !self.idle.warned && self.announces_idle_pause();
        let after = if warns { timeout - WARNING.min(timeout / 2) } else { timeout };
        Some(self.idle.since + after)
    }

    /// One that was paused on purpose only keeps a sandbox at hand.
    fn announces_idle_pause(&self) -> bool {
        self.state.status == SessionStatus::Active
    }

    /// What it has would not come back: files that are never captured, or cannot be now, and a key that is kept nowhere.
    fn would_lose_data(&self) -> bool {
        let fleeting = self.is_ephemeral() && !self.is_shared();
        fleeting || self.backoff.is_some() || self.session.options.own_provider.is_some()
    }

    /// Whether it would make way for somebody else.
    pub(super) fn is_evictable(&self) -> bool {
        !self.is_used() && !self.would_lose_data()
    }

    /// Gives up its sandbox for somebody else, unless it is at work.
    pub(super) async fn evict(&mut self, reply: ReplySender<CommandReply>) -> Result<()> {
        if !self.is_evictable() {
            reply.send(Err(CommandRefusal::Busy.into())).ok();
            return Ok(());
        }
        if self.announces_idle_pause() {
            let ms = u64::try_from(self.idle.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.commit_facts(vec![Fact::Idle { ms, left_ms: None, evicted: true }]).await?;
        }
        self.services.watch.evicted();
        self.close(SessionClosing::wish(StateCommand::Release { by_force: false }, reply));
        Ok(())
    }

    pub(super) async fn check_idle(&mut self) -> Result<()> {
        if self.idle_deadline().is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        let Some(timeout) = self.idle_timeout() else { return Ok(()) };
        let idle = self.idle.since.elapsed();
        let over = idle >= timeout;
        if self.announces_idle_pause() {
            let left = timeout.saturating_sub(idle);
            let left_ms = (!over).then(|| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            let ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
            self.commit_facts(vec![Fact::Idle { ms, left_ms, evicted: false }]).await?;
        }
        self.idle.warned = true;
        if over {
            self.close(SessionClosing::idle());
        }
        Ok(())
    }
}
