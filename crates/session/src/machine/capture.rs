//! When the workspace is captured, what a recorded capture means, and what follows when a capture fails.

use super::{CaptureUnderWay, Effect, LogState, Machine, RemoteWait, RuntimeState, TurnPhase, WaiterId};
use ash_model::{Durability, Fact, Problem, SavedCheckpoint, TurnId};
use std::time::{Duration, Instant};

/// How long changes between turns wait for further changes. The documented promise is a capture within five seconds.
pub const CHANGE_SETTLE_TIME: Duration = Duration::from_secs(3);
const SETTLE_TIME_AFTER_START: Duration = Duration::from_secs(30);
/// How long to wait before a failed capture is tried again; doubled after each failure.
const CAPTURE_RETRY_DELAY: Duration = Duration::from_secs(10);
/// A disk that stays full for hours must not be tried every ten seconds.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// Log bytes since the last capture travel with the next capture, and are held in memory for it. A turn that logs more
/// than this is captured while it runs.
const MAX_UNPACKED_LOG_BYTES: u64 = 32 << 20;
/// The size of an event without its text.
const EVENT_OVERHEAD_BYTES: u64 = 256;

/// Why a capture is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureOccasion {
    /// The turn is over when the capture is recorded.
    TurnEnd(TurnId),
    /// The turn takes long: if its sandbox dies, only a part of its work is lost.
    Midway(TurnId),
    /// Files were changed from outside, or a caller wants them safe.
    BetweenTurns,
}

impl CaptureOccasion {
    pub fn turn(self) -> Option<TurnId> {
        match self {
            CaptureOccasion::TurnEnd(turn) | CaptureOccasion::Midway(turn) => Some(turn),
            CaptureOccasion::BetweenTurns => None,
        }
    }
}

/// When a failed capture is tried again. A capture for another turn does not wait for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureBackoff {
    pub until: Instant,
    turn: Option<TurnId>,
    /// Consecutive failures.
    failures: u32,
}

impl CaptureBackoff {
    fn after(occasion: CaptureOccasion, before: Option<CaptureBackoff>, now: Instant) -> CaptureBackoff {
        let failures = before.map_or(1, |before| before.failures.saturating_add(1));
        let backoff = CaptureBackoff { until: now, turn: occasion.turn(), failures };
        CaptureBackoff { until: now + backoff.delay(), ..backoff }
    }

    /// Doubled with every failure, up to a maximum.
    pub fn delay(self) -> Duration {
        MAX_RETRY_DELAY.min(CAPTURE_RETRY_DELAY.saturating_mul(1 << (self.failures - 1).min(16)))
    }

    /// Until when the files of this turn are not captured.
    fn of(self, turn: TurnId) -> Option<Instant> {
        (self.turn == Some(turn)).then_some(self.until)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureSchedule {
    /// Since when there may be changes that no checkpoint holds.
    pub dirty: Option<Instant>,
    /// When the running turn began, or was last captured.
    pub last: Instant,
    /// Log bytes since the last capture; they travel with the next checkpoint.
    pub unpacked_log_bytes: u64,
    /// A caller waits for a capture that begins after its call.
    pub wanted: bool,
    /// Set if the last capture failed.
    pub backoff: Option<CaptureBackoff>,
}

impl CaptureSchedule {
    pub fn starting(now: Instant) -> CaptureSchedule {
        CaptureSchedule { dirty: None, last: now, unpacked_log_bytes: 0, wanted: false, backoff: None }
    }

    pub(super) fn touch(&mut self, now: Instant) {
        self.dirty = Some(self.dirty.map_or(now, |since| since.min(now)));
    }

    pub(super) fn touch_later(&mut self, now: Instant) {
        self.dirty.get_or_insert(now + SETTLE_TIME_AFTER_START);
    }

    /// Adds bytes of `events` new events in the log.
    pub fn add_log_bytes(&mut self, bytes: u64, events: usize) {
        self.unpacked_log_bytes = self
            .unpacked_log_bytes
            .saturating_add(bytes)
            .saturating_add(EVENT_OVERHEAD_BYTES * events as u64);
    }
}

/// When changes between turns are captured, if nothing prevents it.
pub(super) fn between_turns_at(log: &LogState, run: &RuntimeState) -> Option<Instant> {
    let since = run.capture.dirty.filter(|_| log.is_at_rest() && run.tree.present)?;
    let again = run.capture.backoff.map_or(since, |backoff| backoff.until);
    Some((since + CHANGE_SETTLE_TIME).max(again))
}

/// When the running turn is captured next.
pub(super) fn midway_at(log: &LogState, run: &RuntimeState) -> Option<(TurnId, Instant)> {
    let turn = log.running()?;
    let can = !run.profile.ephemeral && run.is_connected() && run.tree.present && run.closing.is_none();
    let at = match run.capture.unpacked_log_bytes > MAX_UNPACKED_LOG_BYTES {
        true => Some(run.capture.last),
        false => run.profile.checkpoint_every.and_then(|every| run.capture.last.checked_add(every)),
    };
    at.filter(|_| can).map(|at| (turn, at))
}

/// Until when the end of this turn is not saved, because a save failed recently.
pub(super) fn turn_end_at(run: &RuntimeState, turn: TurnId) -> Option<Instant> {
    run.capture.backoff.and_then(|backoff| backoff.of(turn))
}

/// The facts of a recorded capture.
#[derive(Debug, Clone, PartialEq)]
pub struct CaptureRecord {
    pub saved: SavedCheckpoint,
    pub facts: Vec<Fact>,
    /// The turn ends only when the object store has the checkpoint.
    pub waits_for_remote: Option<TurnId>,
}

impl Machine {
    /// A capture begins. It may or may not contain changes that are made from here on.
    pub(super) fn begin_capture(&mut self, occasion: CaptureOccasion, now: Instant) {
        let may_skip = self.may_skip_capture(occasion);
        let run = &mut self.runtime;
        (run.capture.last, run.capture.unpacked_log_bytes) = (now, 0);
        match occasion {
            CaptureOccasion::TurnEnd(_) | CaptureOccasion::BetweenTurns => {
                run.capture.dirty = run.agent.commands_running.then_some(now);
                run.capture.wanted = false;
            }
            CaptureOccasion::Midway(_) => run.touch(now),
        }
        run.effect = Some(Effect::Capture(CaptureUnderWay { occasion, began: now, may_skip }));
    }

    fn may_skip_capture(&self, occasion: CaptureOccasion) -> bool {
        let newest = self.log.checkpoint;
        let newest_is_settled = newest.is_some() && self.log.last_full_checkpoint == newest;
        occasion == CaptureOccasion::BetweenTurns && newest_is_settled && self.runtime.capture.dirty.is_none()
    }

    /// What is written into the log when the files of this capture are safe.
    pub fn capture_record(&self, occasion: CaptureOccasion, saved: SavedCheckpoint) -> CaptureRecord {
        let midway = self.midway_turn(occasion);
        let saved = SavedCheckpoint { turn: midway.or(occasion.turn()), mid_turn: midway.is_some(), ..saved };
        let waits_for_remote = self.waits_for_remote(occasion);
        let end = self.turn_end(occasion, Some(saved.number)).filter(|_| waits_for_remote.is_none());
        let mut facts = vec![Fact::Saved(saved.clone())];
        // Includes the ends of the messages that joined the turn: the checkpoint covers them all.
        facts.extend(end.into_iter().flat_map(|end| self.log.with_joined(end)));
        CaptureRecord { saved, facts, waits_for_remote }
    }

    /// The capture is in the log.
    pub fn capture_recorded(&mut self, record: &CaptureRecord) {
        self.runtime.capture.backoff = None;
        if let Some(turn) = record.waits_for_remote {
            self.runtime.remote_wait = Some(RemoteWait { turn, checkpoint: record.saved.number });
        }
    }

    /// The pack exists, but its row could not be written: the capture is repeated when there is space again.
    pub fn capture_unrecorded(&mut self, occasion: CaptureOccasion, now: Instant) {
        if !matches!(occasion, CaptureOccasion::Midway(_)) {
            let backoff = CaptureBackoff::after(occasion, self.runtime.capture.backoff, now);
            self.runtime.capture.backoff = Some(backoff);
        }
        self.runtime.touch(now);
    }

    /// The answer of the turn stands; the log says that its files are not safe, and the capture is tried again. A
    /// failed midway capture breaks no promise: the end of the turn says whether its files are safe.
    pub fn capture_failed(&mut self, occasion: CaptureOccasion, error: &str, now: Instant) -> Vec<Fact> {
        if matches!(occasion, CaptureOccasion::Midway(_)) {
            return Vec::new();
        }
        let run = &mut self.runtime;
        // Without a tree there is nothing to capture.
        if run.tree.present {
            run.capture.backoff = Some(CaptureBackoff::after(occasion, run.capture.backoff, now));
            run.touch(now);
        }
        let again = run.capture.backoff;
        let again = again.map(|backoff| format!("; the next try is in {} s", backoff.delay().as_secs()));
        let error = format!("{error}{}", again.unwrap_or_default());
        let failed = Fact::SaveFailed { turn: occasion.turn(), error };
        [failed].into_iter().chain(self.turn_end(occasion, None)).collect()
    }

    /// Returns the callers that wait for files which cannot be made safe now.
    pub fn stop_waiting_for_files(&mut self) -> Vec<WaiterId> {
        let waiting = &mut self.runtime.waiting;
        waiting.pausing.drain(..).chain(waiting.forking.drain(..)).collect()
    }

    /// The object store has the checkpoint, or the wait was given up: the turn is over either way.
    pub fn remote_wait_ended(&self, wait: RemoteWait, trouble: Option<Problem>) -> Option<Fact> {
        let end = self.turn_end(CaptureOccasion::TurnEnd(wait.turn), Some(wait.checkpoint))?;
        Some(match (end, trouble) {
            (Fact::Finished { turn, outcome, checkpoint, problem: None }, trouble @ Some(_)) => {
                Fact::Finished { turn, outcome, checkpoint, problem: trouble }
            }
            (end, _) => end,
        })
    }

    /// The end of the turn that this capture was made for.
    pub fn turn_end(&self, occasion: CaptureOccasion, checkpoint: Option<u64>) -> Option<Fact> {
        match occasion {
            CaptureOccasion::TurnEnd(turn) => self.log.turn_end(turn, checkpoint),
            CaptureOccasion::Midway(_) | CaptureOccasion::BetweenTurns => None,
        }
    }

    /// The turn that was under way, including one that is about to be cut because the session closes.
    fn midway_turn(&self, occasion: CaptureOccasion) -> Option<TurnId> {
        match occasion {
            CaptureOccasion::TurnEnd(_) => None,
            CaptureOccasion::Midway(turn) => Some(turn),
            CaptureOccasion::BetweenTurns => self.log.current().and_then(|turn| match turn.phase {
                TurnPhase::Running { .. } | TurnPhase::Cut => Some(turn.id),
                TurnPhase::Queued | TurnPhase::Saving { .. } | TurnPhase::Joined { .. } => None,
            }),
        }
    }

    /// The turn, if it ends only when the object store has the checkpoint.
    fn waits_for_remote(&self, occasion: CaptureOccasion) -> Option<TurnId> {
        let CaptureOccasion::TurnEnd(turn) = occasion else { return None };
        let current = self.log.current().filter(|current| current.id == turn)?;
        let wanted = current.options.durability.unwrap_or(self.runtime.profile.durability);
        (wanted == Durability::Remote).then_some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_holds_up_its_own_turn_and_no_other() {
        let (failed, next, now) = (TurnId::fresh(), TurnId::fresh(), Instant::now());
        let backoff = CaptureBackoff::after(CaptureOccasion::TurnEnd(failed), None, now);
        assert_eq!(backoff.of(failed), Some(now + CAPTURE_RETRY_DELAY));
        assert_eq!(backoff.of(next), None);
        assert_eq!(CaptureBackoff::after(CaptureOccasion::BetweenTurns, None, now).of(next), None);
    }

    #[test]
    fn a_capture_that_keeps_failing_is_tried_ever_more_seldom_up_to_a_bound() {
        let mut backoff = None;
        let delays: Vec<u64> = (0..40)
            .map(|_| {
                let next = CaptureBackoff::after(CaptureOccasion::BetweenTurns, backoff, Instant::now());
                backoff = Some(next);
                next.delay().as_secs()
            })
            .collect();
        assert_eq!(delays[..7], [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delays[39], 300);
    }
}
