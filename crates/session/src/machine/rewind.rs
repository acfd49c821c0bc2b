//! Going back to a checkpoint, one step at a time: end the sandbox, capture the current files, write the other tree
//! beside them, commit the fact. A crash leaves the session either as it was or rewound: the fact decides.

use super::{
    CaptureOccasion, Machine, NextStep, PendingRewind, StateCommand, WaiterId,
    plan::{Due, View},
};
use ash_model::SessionStatus;

/// The next step of the first rewind that a caller waits for.
pub(super) fn due(view: &View<'_>) -> Due {
    let View { log, run, .. } = *view;
    let Some(PendingRewind { command, prepared, .. }) = run.waiting.rewinding.front() else {
        return Due::Pass;
    };
    // Decided again before every step, because a message may have arrived since.
    let facts = match log.decide(command) {
        Ok(facts) => facts,
        Err(refusal) => return Due::Now(NextStep::RefuseRewind(refusal)),
    };
    // A start that a caller waits for comes first, and may make a tree of its own.
    if log.status == SessionStatus::Starting {
        return if *prepared { Due::Now(NextStep::DiscardPreparedTree) } else { Due::Pass };
    }
    if run.is_connected() {
        return Due::Now(NextStep::LeaveSandbox);
    }
    if log.awake.is_some() {
        return Due::Now(NextStep::Commit { facts: log.sleep_facts() });
    }
    let everybody = run.profile.shared && matches!(command, StateCommand::Rewind { files: true, .. });
    Due::Now(match run.tree.seen {
        None => NextStep::InspectTree,
        Some(seen) if seen.leftovers => NextStep::Salvage,
        Some(_) if everybody && *prepared => NextStep::Rewind { facts },
        Some(_) if everybody && run.tree.present => NextStep::PrepareWorkspaceRewind,
        Some(_) if everybody => NextStep::MakeTree,
        Some(_) if run.tree.present && run.capture.dirty.is_some() => {
            NextStep::Capture(CaptureOccasion::BetweenTurns)
        }
        Some(_) if *prepared => NextStep::Rewind { facts },
        Some(_) if run.profile.shared => NextStep::PrepareMemoryRewind,
        Some(_) => NextStep::PrepareRewind,
    })
}

impl Machine {
    /// The checkpoint that the first rewind goes to.
    pub fn rewind_target(&self) -> Option<u64> {
        match self.runtime.waiting.rewinding.front()?.command {
            StateCommand::Rewind { to, .. } => Some(to),
            StateCommand::Prompt { .. }
            | StateCommand::Withdraw { .. }
            | StateCommand::Reorder { .. }
            | StateCommand::Interrupt
            | StateCommand::Answer { .. }
            | StateCommand::AnswerTool { .. }
            | StateCommand::Pause
            | StateCommand::Stop
            | StateCommand::Release { .. }
            | StateCommand::Resume
            | StateCommand::End => None,
        }
    }

    /// Whether a rewind is under way. A start that comes before it is not part of it.
    pub fn is_rewinding(&self) -> bool {
        !self.runtime.waiting.rewinding.is_empty() && self.log.status != SessionStatus::Starting
    }

    /// The other tree is written. False: no caller waits for it any more.
    pub fn rewind_prepared(&mut self) -> bool {
        match self.runtime.waiting.rewinding.front_mut() {
            Some(rewinding) => {
                rewinding.prepared = true;
                true
            }
            None => false,
        }
    }

    pub(super) fn discard_prepared(&mut self) {
        if let Some(rewinding) = self.runtime.waiting.rewinding.front_mut() {
            rewinding.prepared = false;
        }
    }

    /// Removes the first rewind: it is done, or refused.
    pub fn take_rewind(&mut self) -> Option<WaiterId> {
        self.runtime.waiting.rewinding.pop_front().map(|rewinding| rewinding.waiter)
    }
}
