//! A session that nobody uses lets go of its sandbox: it is captured, released and paused, and comes back with the next
//! message. Of a shared sandbox the last one that leaves ends it.

use super::{Actor, Answer, Reply, close::Closing};
use crate::{
    Result,
    state::{Refused, Wish},
};
use ash_model::{Fact, Seq, Status};
use std::time::Duration;
use tokio::time::Instant;

/// How long before it happens it is said; halfway, if that is later.
const WARNING: Duration = Duration::from_secs(5 * 60);

/// Since when nobody has used a session.
pub(super) struct Idle {
    pub(super) since: Instant,
    warned: bool,
}

impl Idle {
    pub(super) fn new() -> Idle {
        Idle { since: Instant::now(), warned: false }
    }
}

impl Actor {
    /// How long it may be idle; `None`: for ever.
    fn idle_timeout(&self) -> Option<Duration> {
        let usual = self.rooms.settings.idle_timeout;
        let own = self.session.options.idle_timeout.map(Duration::from_secs);
        Some(own.unwrap_or(usual)).filter(|timeout| !timeout.is_zero())
    }

    /// Somebody wants something of it, or waits for it.
    fn is_used(&self) -> bool {
        self.is_busy()
            || self.hands.is_none()
            || !matches!(self.state.status, Status::Active | Status::Paused)
    }

    fn is_busy(&self) -> bool {
        let waiting = self.pausing.len() + self.resuming.len() + self.forking.len() + self.writing.len();
        let busy = !self.state.turns.is_empty() || self.execs.is_busy() || self.ear.stirs();
        busy || waiting > 0
            || !self.rewinding.is_empty()
            || !self.changes.is_empty()
            || self.closing.is_some()
    }

    /// Whether a rule that has seen the log up to `seen`, and wants it unused for so long, must leave it alone. What is
    /// done in a sandbox without an event counts as well.
    pub(super) fn is_at_work(&self, seen: Seq, unused: Duration) -> bool {
        let at_hand = self.hands.is_some() && self.idle.since.elapsed() < unused;
        let locked = self.locked_by_another(None).is_some();
        self.is_busy() || at_hand || locked || self.effect.is_some() || self.state.last_seq != seen
    }

    pub(super) fn note_use(&mut self) {
        if self.is_used() {
            self.idle = Idle::new();
        }
    }

    /// When something is to be said or done about it.
    pub(super) fn idle_deadline(&self) -> Option<Instant> {
        let timeout = self.idle_timeout().filter(|_| !self.is_used() && self.effect.is_none())?;
        let warns = !self.idle.warned && self.tells_of_idling();
        let after = if warns { timeout - WARNING.min(timeout / 2) } else { timeout };
        Some(self.idle.since + after)
    }

    /// One that was paused on purpose only keeps a sandbox at hand.
    fn tells_of_idling(&self) -> bool {
        self.state.status == Status::Active
    }

    /// What it has would not come back: files that are never captured, or cannot be now, and a key that is kept nowhere.
    fn would_lose(&self) -> bool {
        let fleeting = self.is_ephemeral() && !self.is_shared();
        fleeting || self.backoff.is_some() || self.session.options.own_provider.is_some()
    }

    /// Whether it would make way for somebody else.
    pub(super) fn can_go(&self) -> bool {
        !self.is_used() && !self.would_lose()
    }

    /// Gives up its sandbox for somebody else, unless it is at work.
    pub(super) async fn make_way(&mut self, reply: Reply<Answer>) -> Result<()> {
        if !self.can_go() {
            reply.send(Err(Refused::Busy.into())).ok();
            return Ok(());
        }
        if self.tells_of_idling() {
            let ms = u64::try_from(self.idle.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.note(vec![Fact::Idle { ms, left_ms: None, evicted: true }]).await?;
        }
        self.rooms.watch.evicted();
        self.close(Closing::wish(Wish::Release { by_force: false }, reply));
        Ok(())
    }

    pub(super) async fn look_whether_idle(&mut self) -> Result<()> {
        if self.idle_deadline().is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        let Some(timeout) = self.idle_timeout() else { return Ok(()) };
        let idle = self.idle.since.elapsed();
        let over = idle >= timeout;
        if self.tells_of_idling() {
            let left = timeout.saturating_sub(idle);
            let left_ms = (!over).then(|| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            let ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
            self.note(vec![Fact::Idle { ms, left_ms, evicted: false }]).await?;
        }
        self.idle.warned = true;
        if over {
            self.close(Closing::idle());
        }
        Ok(())
    }
}
