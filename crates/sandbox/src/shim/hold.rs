//! Holding everything still while files are read.

use super::{Consistency, Duration, FREEZE_PATIENCE, FromShim, Hold, Instant, Order, Phase, SOON, Shim};

impl Shim {
    pub(super) fn freeze(&mut self) {
        self.answer_hold();
        self.let_go(Hold::None);
        let deadline = Instant::now() + FREEZE_PATIENCE;
        let Some(sandbox) = self.sandbox.as_mut().filter(|_| self.phase == Phase::Up) else {
            // Nothing runs, so nothing can write.
            return self.held(Consistency::Frozen);
        };
        if sandbox.freeze() {
            self.hold = Hold::Freezing { deadline };
            self.hold_timers(Instant::now());
        } else if sandbox.has_own_pids() {
            sandbox.order(Order::StopAll, Vec::new());
            self.hold = Hold::Stopping { deadline: deadline + SOON };
        } else {
            self.held(Consistency::Live);
        }
    }

    pub(super) fn held(&mut self, consistency: Consistency) {
        let longest =
            self.plan.as_ref().map_or(Duration::ZERO, |plan| Duration::from_millis(plan.caps.hold_ms));
        self.hold = Hold::Held { consistency, until: Instant::now() + longest };
        self.say(&FromShim::Frozen(consistency));
    }

    /// Every question gets its answer before the next one's: the client matches them by their order.
    pub(super) fn answer_hold(&mut self) {
        if matches!(self.hold, Hold::Freezing { .. } | Hold::Stopping { .. }) {
            self.held(Consistency::Live);
        }
    }

    pub(super) fn thaw(&mut self) {
        self.answer_hold();
        let held = matches!(self.hold, Hold::Held { .. });
        self.let_go(Hold::None);
        self.say(&FromShim::Thawed { held });
    }

    pub(super) fn let_go(&mut self, then: Hold) {
        let moving = matches!(self.hold, Hold::None | Hold::Lapsed);
        if let Some(sandbox) = &mut self.sandbox
            && !moving
        {
            sandbox.thaw();
            if sandbox.has_own_pids() && !sandbox.can_freeze() {
                sandbox.order(Order::ContinueAll, Vec::new());
            }
        }
        self.hold = then;
    }
}
