//! What is said to the agent while a turn runs. It hears it between two rounds; what comes when the turn has nothing more
//! to do is not for it, and is said again as a prompt.

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

    /// What was said to this turn since it last looked. What was for others came too late.
    pub(crate) fn take(&self, turn: &str) -> Vec<PendingPrompt> {
        let all = std::mem::take(&mut *self.waiting());
        all.into_iter().filter(|steer| steer.into == turn).map(|steer| steer.prompt).collect()
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<SteeringMessage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
