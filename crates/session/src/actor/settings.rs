//! Options that change while the agent runs. What a live agent can go on with it is told, and the change counts
//! when it has said yes; everything else counts at the next start.

use super::{Actor, Reply};
use crate::{
    Error, Result,
    state::{Budget, Next},
};
use ash_model::{Fact, Options, Setting};
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// How long the agent may take to say whether it goes on with a setting.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Change {
    options: Options,
    /// What the agent has not agreed to yet.
    left: VecDeque<Setting>,
    /// The first of them was told under this number.
    told: Option<(u64, Instant)>,
    reply: Reply<()>,
}

impl Actor {
    pub(super) fn change_options(&mut self, options: Options, settings: Vec<Setting>, reply: Reply<()>) {
        let left = match self.driver.takes_settings() {
            true => settings.into_iter().filter(|setting| is_news(&self.session.options, setting)).collect(),
            false => VecDeque::new(),
        };
        self.changes.push_back(Change { options, left, told: None, reply });
    }

    /// One step after the other, until somebody has to be waited for.
    pub(super) async fn drive_changes(&mut self) -> Result<()> {
        while let Some(change) = self.changes.front() {
            let is_live = self.hands.is_some();
            // It is being started with what was there before.
            let starting = !is_live && (self.effect.is_some() || self.state.next() == Next::Wake);
            match (change.told, change.left.front()) {
                (Some(_), _) if !is_live => self.end_change(Err(Error::Gone)),
                (Some((_, until)), _) if until <= Instant::now() => self.end_change(Err(Error::Silent)),
                (Some(_), _) => return Ok(()),
                (None, Some(_)) if starting => return Ok(()),
                (None, Some(setting)) if is_live => self.tell_setting(setting.clone()).await?,
                (None, _) => self.end_change(Ok(())),
            }
        }
        Ok(())
    }

    async fn tell_setting(&mut self, setting: Setting) -> Result<()> {
        let Some(input) = self.state.awake.as_ref().map(|awake| awake.next_input) else { return Ok(()) };
        self.note_and_tell(vec![Fact::Setting { setting, input }]).await?;
        if let Some(change) = self.changes.front_mut() {
            change.told = Some((input, Instant::now() + PATIENCE));
        }
        Ok(())
    }

    /// The agent goes on with what it was told under this number, or does not want to.
    pub(super) fn was_set(&mut self, input: u64, refused: Option<String>) {
        let told = |change: &&mut Change| change.told.is_some_and(|(number, _)| number == input);
        let Some(change) = self.changes.front_mut().filter(told) else { return };
        if let Some(why) = refused {
            return self.end_change(Err(Error::Setting(why)));
        }
        change.told = None;
        match change.left.pop_front() {
            Some(Setting::Model(model)) => self.session.options.model = Some(model),
            Some(Setting::PermissionMode(mode)) => self.session.options.permission_mode = Some(mode),
            None => {}
        }
    }

    fn end_change(&mut self, result: Result<()>) {
        let Some(Change { options, reply, .. }) = self.changes.pop_front() else { return };
        if result.is_ok() {
            self.state.budget = Budget::of(&options);
            self.session.options = options;
        }
        reply.send(result).ok();
    }

    pub(super) fn change_deadline(&self) -> Option<Instant> {
        self.changes.front().and_then(|change| change.told).map(|(_, until)| until)
    }
}

/// Whoever names a model twice gets one note of it in the conversation. A mode is always told: the agent may have
/// left it since, as one leaves a plan that was agreed to.
fn is_news(now: &Options, setting: &Setting) -> bool {
    match setting {
        Setting::Model(model) => now.model.as_ref() != Some(model),
        Setting::PermissionMode(_) => true,
    }
}
