//! Options that change while the agent runs. A live agent is told the settings that it can change, and they count when
//! it has agreed; everything else counts at the next start.

use super::{
    LogStep, Machine, NextStep, PendingChange, SessionProfile, TurnTimeLimit, WaiterId,
    plan::{Due, View},
};
use ash_model::LiveSetting;
use std::time::{Duration, Instant};

/// How long the agent may take to accept or refuse a setting.
const SETTING_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The input with the setting, and until when the agent has to answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentInputDeadline {
    pub input: u64,
    pub until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeFailure {
    /// The server stops.
    Stopped,
    /// The agent that was told is gone.
    AgentGone,
    /// The agent does not answer.
    AgentSilent,
}

/// What the agent's answer to a setting means.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingOutcome {
    /// No caller waits for this answer any more.
    Ignored,
    Agreed(LiveSetting),
    Refused(WaiterId),
}

/// One step after the other, until the agent has to answer.
pub(super) fn due(view: &View<'_>) -> Due {
    let View { log, run, .. } = *view;
    let Some(PendingChange { settings, told, .. }) = run.waiting.changes.front() else { return Due::Pass };
    let live = run.is_connected();
    match (told, settings.front()) {
        (Some(_), _) if !live && run.is_shutting_down() => {
            Due::Now(NextStep::RefuseChange(ChangeFailure::Stopped))
        }
        (Some(_), _) if !live => Due::Now(NextStep::RefuseChange(ChangeFailure::AgentGone)),
        (Some(told), _) => Due::At(told.until, NextStep::RefuseChange(ChangeFailure::AgentSilent)),
        (None, Some(setting)) if live => match &log.awake {
            Some(awake) => {
                Due::Now(NextStep::TellSetting { setting: setting.clone(), input: awake.next_input })
            }
            None => Due::Pass,
        },
        // The agent is being started with the previous options: it is told when it runs.
        (None, Some(_)) if run.effect.is_some() || log.next_step() == LogStep::Wake => Due::Pass,
        (None, _) => Due::Now(NextStep::ChangeOptions),
    }
}

impl Machine {
    /// The agent was told the first setting under this number.
    pub fn told_setting(&mut self, input: u64, now: Instant) {
        if let Some(change) = self.runtime.waiting.changes.front_mut() {
            change.told = Some(AgentInputDeadline { input, until: now + SETTING_ANSWER_TIMEOUT });
        }
    }

    /// The agent accepts or refuses the setting that it was told under this number.
    pub fn setting_answered(&mut self, input: u64, refused: bool) -> SettingOutcome {
        let changes = &mut self.runtime.waiting.changes;
        let told = |change: &&mut PendingChange| change.told.is_some_and(|told| told.input == input);
        let Some(change) = changes.front_mut().filter(told) else { return SettingOutcome::Ignored };
        if refused {
            let waiter = change.waiter;
            changes.pop_front();
            return SettingOutcome::Refused(waiter);
        }
        change.told = None;
        match change.settings.pop_front() {
            Some(setting) => SettingOutcome::Agreed(setting),
            None => SettingOutcome::Ignored,
        }
    }

    /// Other options are in force.
    pub fn options_changed(&mut self, profile: SessionProfile) {
        self.runtime.profile = profile;
        self.runtime.limits.bounds = TurnTimeLimit::Unknown;
    }

    /// Removes the first change: it is made, or refused.
    pub fn take_change(&mut self) -> Option<WaiterId> {
        self.runtime.waiting.changes.pop_front().map(|change| change.waiter)
    }
}
