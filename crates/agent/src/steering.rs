//! What is said to the agent while a turn runs. It hears it between two rounds; what comes when the turn has nothing more
//! to do is not for it, and is said again as a prompt.

use crate::turn::Prompt;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct Steering(Mutex<Vec<Steer>>);

struct Steer {
    into: String,
    prompt: Prompt,
}

impl Steering {
    pub(crate) fn say(&self, into: String, prompt: Prompt) {
        self.waiting().push(Steer { into, prompt });
    }

    /// What was said to this turn since it last looked. What was for others came too late.
    pub(crate) fn take(&self, turn: &str) -> Vec<Prompt> {
        let all = std::mem::take(&mut *self.waiting());
        all.into_iter().filter(|steer| steer.into == turn).map(|steer| steer.prompt).collect()
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Steer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
