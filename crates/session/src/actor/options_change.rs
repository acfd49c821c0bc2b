//! Options that change while the agent runs. What a live agent can go on with it is told, and the change counts
//! when it has said yes; everything else counts at the next start.

use super::{ReplySender, SessionActor};
use crate::{
    Error, Result,
    resource_limits::of_walls,
    state::{NextStep, SessionBudget},
};
use ash_driver::{AgentLaunch, ConversationSource, LaunchCommand};
use ash_model::{ByokEndpoint, Fact, LiveSetting, ModelApiDialect, SessionOptions};
use ash_store::SecretEnv;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// How long the agent may take to say whether it goes on with a setting.
const SETTING_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What somebody wants of a session from now on.
pub struct OptionsChange {
    pub options: SessionOptions,
    /// None: as it is.
    pub env: Option<SecretEnv>,
    /// What the options hold masks for, by JSON pointer. None: as they are.
    pub secrets: Option<SecretEnv>,
    /// What a live agent can be told.
    pub settings: Vec<LiveSetting>,
}

pub(super) struct PendingOptionsChange {
    options: SessionOptions,
    env: Option<SecretEnv>,
    secrets: Option<SecretEnv>,
    /// What the agent has not agreed to yet.
    left: VecDeque<LiveSetting>,
    /// The first of them was told under this number.
    told: Option<(u64, Instant)>,
    reply: ReplySender<()>,
}

impl SessionActor {
    pub(super) fn change_options(&mut self, wanted: OptionsChange, reply: ReplySender<()>) {
        let OptionsChange { options, env, secrets, settings } = wanted;
        if let Err(refused) = Error::unless_supported(self.session.runtime, &options) {
            reply.send(Err(refused)).ok();
            return;
        }
        let left = match self.driver.takes_settings() {
            true => settings.into_iter().filter(|setting| is_news(&self.session.options, setting)).collect(),
            false => VecDeque::new(),
        };
        self.changes.push_back(PendingOptionsChange { options, env, secrets, left, told: None, reply });
    }

    /// One step after the other, until somebody has to be waited for.
    pub(super) async fn drive_changes(&mut self) -> Result<()> {
        while let Some(change) = self.changes.front() {
            let is_live = self.conn.is_some();
            // It is being started with what was there before.
            let starting = !is_live && (self.effect.is_some() || self.state.next_step() == NextStep::Wake);
            match (change.told, change.left.front()) {
                (Some(_), _) if !is_live && self.is_shutting_down() => self.give_up_change(Error::Stopped),
                (Some(_), _) if !is_live => self.give_up_change(Error::Gone),
                (Some((_, until)), _) if until <= Instant::now() => self.give_up_change(Error::Silent),
                (Some(_), _) => return Ok(()),
                (None, Some(_)) if starting => return Ok(()),
                (None, Some(setting)) if is_live => self.tell_setting(setting.clone()).await?,
                (None, _) => self.make_change().await?,
            }
        }
        Ok(())
    }

    async fn tell_setting(&mut self, setting: LiveSetting) -> Result<()> {
        let Some(input) = self.state.awake.as_ref().map(|awake| awake.next_input) else { return Ok(()) };
        self.note_and_tell(vec![Fact::Setting { setting, input }]).await?;
        if let Some(change) = self.changes.front_mut() {
            change.told = Some((input, Instant::now() + SETTING_ANSWER_TIMEOUT));
        }
        Ok(())
    }

    /// The agent goes on with what it was told under this number, or does not want to.
    pub(super) fn on_setting_answer(&mut self, input: u64, refused: Option<String>) {
        let told =
            |change: &&mut PendingOptionsChange| change.told.is_some_and(|(number, _)| number == input);
        let Some(change) = self.changes.front_mut().filter(told) else { return };
        if let Some(why) = refused {
            return self.give_up_change(Error::Setting(why));
        }
        change.told = None;
        match change.left.pop_front() {
            Some(LiveSetting::Model(model)) => self.session.options.model = Some(model),
            Some(LiveSetting::PermissionMode(mode)) => self.session.options.permission_mode = Some(mode),
            None => {}
        }
    }

    fn give_up_change(&mut self, error: Error) {
        if let Some(PendingOptionsChange { reply, .. }) = self.changes.pop_front() {
            reply.send(Err(error)).ok();
        }
    }

    /// The agent has agreed to what it can be told: now it is so. What it is told only when it starts makes it start
    /// again before its next turn.
    async fn make_change(&mut self) -> Result<()> {
        let Some(PendingOptionsChange { options, env, secrets, reply, .. }) = self.changes.pop_front() else {
            return Ok(());
        };
        let restart = env.is_some() || secrets.is_some() || self.needs_agent_restart(&options);
        let changed = self.prepare_change(env.as_ref(), secrets.as_ref()).await;
        let changed = match changed {
            Ok(()) => self.commit_facts(vec![Fact::Configured { options: options.clone(), restart }]).await,
            failed => failed,
        };
        let changed = match (changed, &secrets) {
            (Ok(()), Some(secrets)) => self.set_secrets(secrets).await,
            (changed, _) => changed,
        };
        if changed.is_ok() {
            self.state.budget = SessionBudget::of(&options);
            self.session.options = options;
            self.allow(None).await;
            self.limits.forget_bounds();
            self.services.notify_replicator();
        }
        let failed = changed.as_ref().err().map(Error::shared);
        reply.send(failed.map_or(Ok(()), Err)).ok();
        self.tolerate(changed)
    }

    /// Before the options count: every secret that the old or the new ones hold a mask for is there, whenever we die.
    async fn prepare_change(&self, env: Option<&SecretEnv>, secrets: Option<&SecretEnv>) -> Result<()> {
        if let Some(env) = env {
            self.services.store.set_env(self.session.no, env).await?;
        }
        let Some(secrets) = secrets else { return Ok(()) };
        let before = match self.services.store.secrets(self.session.no).await {
            Err(ash_store::Error::Sealed) => SecretEnv::default(),
            before => before?,
        };
        self.set_secrets(&before.merged_with(secrets.clone())).await
    }

    async fn set_secrets(&self, secrets: &SecretEnv) -> Result<()> {
        Ok(self.services.store.set_secrets(self.session.no, secrets).await?)
    }

    /// Whether an agent would be started in another way with these.
    fn needs_agent_restart(&self, options: &SessionOptions) -> bool {
        // Where they are is nothing that the agent is told.
        let provider = |options: &SessionOptions| {
            let own = options.own_provider.clone().map(|own| ByokEndpoint { base_url: String::new(), ..own });
            (options.provider, own)
        };
        let told =
            |options: &SessionOptions| (options.system_prompt.clone(), options.append_system_prompt.clone());
        let now = &self.session.options;
        provider(now) != provider(options)
            || told(now) != told(options)
            || now.working_directory != options.working_directory
            || now.mcp_servers != options.mcp_servers
            || of_walls(&now.limits.unwrap_or_default()) != of_walls(&options.limits.unwrap_or_default())
            || self.command(now) != self.command(options)
    }

    /// As far as options decide it.
    fn command(&self, options: &SessionOptions) -> LaunchCommand {
        let inside = self.services.inside(&self.live);
        self.driver.launch(&AgentLaunch {
            workspace: inside.workspace,
            home: inside.home,
            exe: inside.exe.clone(),
            program: inside.exe,
            claude_version: None,
            model_socket: inside.model_socket,
            mcp_config: inside.private,
            provider: Some(ModelApiDialect::Anthropic),
            memory: ConversationSource::Resume { id: self.session.native_id },
            continues_cut_turn: false,
            options: options.clone(),
        })
    }

    pub(super) fn change_deadline(&self) -> Option<Instant> {
        self.changes.front().and_then(|change| change.told).map(|(_, until)| until)
    }
}

/// Whoever names a model twice gets one note of it in the conversation. A mode is always told: the agent may have
/// left it since, as one leaves a plan that was agreed to.
fn is_news(now: &SessionOptions, setting: &LiveSetting) -> bool {
    match setting {
        LiveSetting::Model(model) => now.model.as_ref() != Some(model),
        LiveSetting::PermissionMode(_) => true,
    }
}
