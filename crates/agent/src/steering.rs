//! Steering: messages to the agent while a turn runs. The agent reads them between two model calls. A message that
//! arrives after the last call is not delivered, and the host sends it again as a prompt.

use crate::turn::PendingPrompt;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct SteeringQueue(Mutex<Vec<SteeringMessage>>);

struct SteeringMessage {
    into: String,
    prompt: PendingPrompt,
}

impl SteeringQueue {
    pub(crate) fn push(&self, into: String, prompt: PendingPrompt) {
        self.waiting().push(SteeringMessage { into, prompt });
    }

    /// The messages to this turn since the last call. Messages to other turns arrived too late and are dropped.
    pub(crate) fn take(&self, turn: &str) -> Vec<PendingPrompt> {
        let all = std::mem::take(&mut *self.waiting());
        all.into_iter().filter(|steer| steer.into == turn).map(|steer| steer.prompt).collect()
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<SteeringMessage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
