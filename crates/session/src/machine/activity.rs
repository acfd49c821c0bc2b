//! Decides in one place whether a session is busy, idle or evictable, and whether it needs its actor.

use super::{
    Effect, LogState, LogStep, Machine, NextStep, Now, RuntimeState, SandboxConnection,
    plan::{Due, View},
    runtime::IdleClock,
};
use ash_model::{EventSeq, Fact, SessionStatus};
use std::time::{Duration, Instant};

/// How long before the end of its sandbox an idle session announces it; halfway through the idle timeout, if that is later.
const IDLE_WARNING: Duration = Duration::from_secs(5 * 60);
/// An actor with nothing to do ends after this time; the session stays in the database.
const ACTOR_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for a session that has ended: it is rarely requested again, and a burst leaves many of them.
const ENDED_ACTOR_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a request is open or work is under way.
pub(super) fn is_busy(log: &LogState, run: &RuntimeState) -> bool {
    !log.turns.is_empty()
        || run.agent.commands_running
        || run.agent.self_started
        || !run.waiting.is_empty()
        || run.closing.is_some()
}

/// Whether the sandbox is in use, or there is none.
fn is_used(log: &LogState, run: &RuntimeState) -> bool {
    is_busy(log, run)
        || !run.is_connected()
        || !matches!(log.status, SessionStatus::Active | SessionStatus::Paused)
}

/// Whether the log holds everything that the actor knows, so that another actor could take over at any time.
fn needs_no_actor(log: &LogState, run: &RuntimeState) -> bool {
    run.sandbox == SandboxConnection::Absent
        && run.effect.is_none()
        && run.closing.is_none()
        && run.waiting.is_empty()
        && run.capture.dirty.is_none()
        && log.next_step() == LogStep::Wait
}

/// A session that was paused on purpose keeps its sandbox only as a cache, so the end of that sandbox is not announced.
fn announces_idle(log: &LogState) -> bool {
    log.status == SessionStatus::Active
}

/// Whether a session would give up its sandbox for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evictability {
    /// It is at work, or its files cannot be captured now.
    Never,
    /// It is idle, and would lose something: files that are never captured, or a client key that is stored nowhere.
    Loses,
    /// It is idle, and resumes without loss.
    Freely,
}

impl Machine {
    /// Whether a caller's command may run in the sandbox.
    pub fn takes_commands(&self) -> bool {
        self.log.status == SessionStatus::Active && self.runtime.closing.is_none()
    }

    /// Whether the session would give up its sandbox for another session.
    pub fn evictability(&self) -> Evictability {
        let run = &self.runtime;
        let fleeting = run.profile.ephemeral && !run.profile.shared;
        match is_used(&self.log, run) || run.capture.backoff.is_some() {
            true => Evictability::Never,
            false if fleeting || run.profile.client_key => Evictability::Loses,
            false => Evictability::Freely,
        }
    }

    /// Whether an expiry rule must spare the session. The rule has read the log up to `seen`, and requires that the
    /// session is unused for `unused`. Activity in a sandbox that writes no event counts as well.
    pub fn is_at_work(&self, seen: EventSeq, unused: Duration, now: Now) -> bool {
        let run = &self.runtime;
        let at_hand = run.is_connected() && now.instant.saturating_duration_since(run.idle.since) < unused;
        let locked = self.log.locked_by_another(None, now.wall).is_some();
        is_busy(&self.log, run) || at_hand || locked || run.effect.is_some() || self.log.last_seq != seen
    }

    /// Whether the actor may end: nothing is under way, and no request can arrive any more.
    pub fn is_over(&self) -> bool {
        let run = &self.runtime;
        run.effect.is_none() && run.closing.is_none() && run.sandbox != SandboxConnection::Departing
    }

    /// Whether the files could leave this machine if the object store has them: they are not in use, and no caller
    /// waits for them.
    pub fn needs_no_local_files(&self) -> bool {
        let (log, run) = (&self.log, &self.runtime);
        let rests = match log.status {
            SessionStatus::Paused | SessionStatus::Stopped => true,
            SessionStatus::Ended => run.profile.shared,
            SessionStatus::Starting | SessionStatus::Active | SessionStatus::Error => false,
        };
        rests
            && log.awake.is_none()
            && log.is_at_rest()
            && !run.is_connected()
            && run.effect.is_none()
            && run.closing.is_none()
            && run.capture.dirty.is_none()
            && run.waiting.rewinding.is_empty()
            && run.waiting.writing.is_empty()
    }

    /// The fact that announces an eviction, if the session announces it.
    pub fn eviction_fact(&self, now: Instant) -> Option<Fact> {
        let ms = milliseconds(now.saturating_duration_since(self.runtime.idle.since));
        announces_idle(&self.log).then_some(Fact::Idle { ms, left_ms: None, evicted: true })
    }

    pub(super) fn note_use(&mut self, now: Instant) {
        if is_used(&self.log, &self.runtime) {
            self.runtime.idle = IdleClock::starting(now);
        }
    }
}

/// An idle session announces the end of its sandbox, and lets go of it later.
pub(super) fn idle_due(view: &View<'_>) -> Due {
    let View { log, run, now } = *view;
    let timeout = run.profile.idle_timeout.filter(|_| !is_used(log, run) && run.effect.is_none());
    let Some(timeout) = timeout else { return Due::Pass };
    let warns = !run.idle.warned && announces_idle(log);
    let after = if warns { timeout - IDLE_WARNING.min(timeout / 2) } else { timeout };
    let idle = now.instant.saturating_duration_since(run.idle.since);
    let over = idle >= timeout;
    let left_ms = (!over).then(|| milliseconds(timeout.saturating_sub(idle)));
    let fact = Fact::Idle { ms: milliseconds(idle), left_ms, evicted: false };
    let step = NextStep::NoteIdle { fact: announces_idle(log).then_some(fact), over };
    Due::At(run.idle.since + after, step)
}

/// An actor with nothing to do ends. Later callers get another actor.
pub(super) fn retire_due(view: &View<'_>) -> Due {
    let View { log, run, .. } = *view;
    if run.retired || !needs_no_actor(log, run) {
        return Due::Pass;
    }
    let timeout = match log.status {
        SessionStatus::Ended => ENDED_ACTOR_IDLE_TIMEOUT,
        SessionStatus::Starting
        | SessionStatus::Active
        | SessionStatus::Paused
        | SessionStatus::Stopped
        | SessionStatus::Error => ACTOR_IDLE_TIMEOUT,
    };
    Due::At(run.last_request + timeout, NextStep::Retire)
}

/// Nothing else begins while long work is under way.
pub(super) fn effect_due(view: &View<'_>) -> Due {
    match view.run.effect {
        Some(
            Effect::Start { .. }
            | Effect::Capture(_)
            | Effect::EndSandbox
            | Effect::MakeTree
            | Effect::PrepareRewind
            | Effect::Salvage,
        ) => Due::Block(None),
        None => Due::Pass,
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
