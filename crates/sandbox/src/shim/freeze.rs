//! Stops every process in the sandbox while its files are read.

use super::{
    CaptureConsistency, Duration, FREEZE_TIMEOUT, FreezeState, InitCommand, Instant, MIN_POLL_INTERVAL, Shim,
    ShimFrame, ShimPhase,
};

impl Shim {
    pub(super) fn freeze(&mut self) {
        self.answer_hold();
        self.release_hold(FreezeState::None);
        let deadline = Instant::now() + FREEZE_TIMEOUT;
        let Some(sandbox) = self.sandbox.as_mut().filter(|_| self.phase == ShimPhase::Up) else {
            // Nothing runs, so nothing can write.
            return self.set_held(CaptureConsistency::Frozen);
        };
        if sandbox.freeze() {
            self.hold = FreezeState::Freezing { deadline };
            self.hold_timers(Instant::now());
        } else if sandbox.has_own_pids() {
            sandbox.order(InitCommand::StopAll, Vec::new());
            self.hold = FreezeState::Stopping { deadline: deadline + MIN_POLL_INTERVAL };
        } else {
            self.set_held(CaptureConsistency::Live);
        }
    }

    pub(super) fn set_held(&mut self, consistency: CaptureConsistency) {
        let longest =
            self.plan.as_ref().map_or(Duration::ZERO, |plan| Duration::from_millis(plan.caps.hold_ms));
        self.hold = FreezeState::Held { consistency, until: Instant::now() + longest };
        self.say(&ShimFrame::Frozen(consistency));
    }

    /// Each request gets its answer before the next one's: the client matches them by their order.
    pub(super) fn answer_hold(&mut self) {
        if matches!(self.hold, FreezeState::Freezing { .. } | FreezeState::Stopping { .. }) {
            self.set_held(CaptureConsistency::Live);
        }
    }

    pub(super) fn thaw(&mut self) {
        self.answer_hold();
        let held = matches!(self.hold, FreezeState::Held { .. });
        self.release_hold(FreezeState::None);
        self.say(&ShimFrame::Thawed { held });
    }

    pub(super) fn release_hold(&mut self, then: FreezeState) {
        let moving = matches!(self.hold, FreezeState::None | FreezeState::Lapsed);
        if let Some(sandbox) = &mut self.sandbox
            && !moving
        {
            sandbox.thaw();
            if sandbox.has_own_pids() && !sandbox.can_freeze() {
                sandbox.order(InitCommand::ContinueAll, Vec::new());
            }
        }
        self.hold = then;
    }
}
