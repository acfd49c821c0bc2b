//! The two times of a server: the wall clock for what is recorded, and a clock that ignores jumps for rules by age.

use crate::{ServerTroubles, TrustedClock};
use ash_model::Timestamp;
use std::sync::Arc;

/// The code of the trouble that the wall clock is not trusted.
const CLOCK_JUMPED: &str = "clock_jumped";

#[derive(Clone)]
pub struct Clocks {
    pub now: fn() -> Timestamp,
    pub trusted: Arc<TrustedClock>,
}

impl Clocks {
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// The time for rules by age. It is never recorded.
    pub fn retention_now(&self) -> Timestamp {
        self.trusted.now()
    }

    /// Stores the trusted time for the next start of the server, and reports a jump to the operator.
    pub(crate) fn store_trusted_time(&self, troubles: &ServerTroubles) {
        match self.trusted.jumped() {
            Some(by) => {
                let hours = by.as_secs() / 3600;
                let error = format!(
                    "The machine's clock jumped by about {hours} hours. What goes by its age stays until the clock has gone on \
                     from there for an hour; set it right, or wait"
                );
                troubles.set(CLOCK_JUMPED, error, self.now());
            }
            None => troubles.clear(CLOCK_JUMPED),
        }
        if let Err(error) = self.trusted.store() {
            tracing::warn!(%error, "the trusted time could not be stored");
        }
    }
}
