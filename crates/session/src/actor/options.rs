//! Options that change while the agent runs: storing them, and telling the live agent.

use super::SessionActor;
use crate::{
    Error, Result,
    machine::{ChangeFailure, PendingChange, SessionBudget, SettingOutcome},
    mailbox::{OptionsChange, ReplySender},
    resource_limits::of_walls,
};
use ash_driver::{AgentLaunch, ConversationSource, LaunchCommand};
use ash_model::{ByokEndpoint, Fact, LiveSetting, ModelApiDialect, SessionOptions};
use ash_store::SecretEnv;
use std::{collections::VecDeque, time::Instant};

/// What is stored once the agent has agreed.
pub(super) struct RequestedOptions {
    options: SessionOptions,
    env: Option<SecretEnv>,
    secrets: Option<SecretEnv>,
}

impl SessionActor {
    pub(super) fn change_options(&mut self, wanted: OptionsChange, reply: ReplySender<()>) {
        let OptionsChange { options, env, secrets, settings } = wanted;
        if let Err(refused) = Error::unless_supported(self.ctx.session.runtime, &options) {
            reply.send(Err(refused)).ok();
            return;
        }
        let current = &self.ctx.session.options;
        let settings = match self.ctx.driver.takes_settings() {
            true => settings.into_iter().filter(|setting| is_news(current, setting)).collect(),
            false => VecDeque::new(),
        };
        let waiter = self.waiters.add_change(RequestedOptions { options, env, secrets }, reply);
        let change = PendingChange { waiter, settings, told: None };
        self.machine.runtime.waiting.changes.push_back(change);
    }

    pub(super) async fn tell_setting(&mut self, setting: LiveSetting, input: u64) -> Result<()> {
        self.commit_and_tell(vec![Fact::Setting { setting, input }]).await?;
        self.machine.told_setting(input, Instant::now());
        Ok(())
    }

    /// The agent accepts or refuses the setting that it was told under this number.
    pub(super) fn on_setting_answer(&mut self, input: u64, refused: Option<String>) {
        match self.machine.setting_answered(input, refused.is_some()) {
            SettingOutcome::Ignored => {}
            SettingOutcome::Agreed(LiveSetting::Model(model)) => self.ctx.session.options.model = Some(model),
            SettingOutcome::Agreed(LiveSetting::PermissionMode(mode)) => {
                self.ctx.session.options.permission_mode = Some(mode)
            }
            SettingOutcome::Refused(waiter) => {
                if let Some((_, reply)) = self.waiters.take_change(waiter) {
                    reply.send(Err(Error::Setting(refused.unwrap_or_default()))).ok();
                }
            }
        }
    }

    pub(super) fn refuse_change(&mut self, failure: ChangeFailure) {
        let change = self.machine.take_change().and_then(|waiter| self.waiters.take_change(waiter));
        let Some((_, reply)) = change else { return };
        let error = match failure {
            ChangeFailure::Stopped => Error::Stopped,
            ChangeFailure::AgentGone => Error::Gone,
            ChangeFailure::AgentSilent => Error::Silent,
        };
        reply.send(Err(error)).ok();
    }

    /// Puts the options into force, after the agent has agreed to every setting that it can be told. Other changes
    /// restart the agent before its next turn.
    pub(super) async fn make_change(&mut self) -> Result<()> {
        let change = self.machine.take_change().and_then(|waiter| self.waiters.take_change(waiter));
        let Some((RequestedOptions { options, env, secrets }, reply)) = change else { return Ok(()) };
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
            self.machine.log.budget = SessionBudget::of(&options);
            self.ctx.session.options = options;
            self.machine.options_changed(self.ctx.services.settings.profile(&self.ctx.session));
            self.allow(None).await;
            self.ctx.services.notify_replicator();
        }
        let failed = changed.as_ref().err().map(Error::shared);
        reply.send(failed.map_or(Ok(()), Err)).ok();
        self.tolerate(changed)
    }

    /// Runs before the options count: every secret that the old or the new options hold a mask for is stored, whenever
    /// the server dies.
    async fn prepare_change(&self, env: Option<&SecretEnv>, secrets: Option<&SecretEnv>) -> Result<()> {
        if let Some(env) = env {
            self.ctx.services.store.set_env(self.ctx.session.no, env).await?;
        }
        let Some(secrets) = secrets else { return Ok(()) };
        let before = match self.ctx.services.store.secrets(self.ctx.session.no).await {
            Err(ash_store::Error::Sealed) => SecretEnv::default(),
            before => before?,
        };
        self.set_secrets(&before.merged_with(secrets.clone())).await
    }

    async fn set_secrets(&self, secrets: &SecretEnv) -> Result<()> {
        Ok(self.ctx.services.store.set_secrets(self.ctx.session.no, secrets).await?)
    }

    /// Whether these options change how an agent is started.
    fn needs_agent_restart(&self, options: &SessionOptions) -> bool {
        // The agent is not told the address of the provider. A client's key comes with the next message, and a stored one
        // only with a start.
        let provider = |options: &SessionOptions| {
            let untold = |own| match options.has_client_key() {
                true => ByokEndpoint { base_url: String::new(), ..own },
                false => own,
            };
            (options.provider, options.own_provider.clone().map(untold), options.credential_id.clone())
        };
        let told = |options: &SessionOptions| {
            let prompts = (options.system_prompt.clone(), options.append_system_prompt.clone());
            (prompts, options.client_tools.clone())
        };
        let now = &self.ctx.session.options;
        provider(now) != provider(options)
            || told(now) != told(options)
            || now.working_directory != options.working_directory
            || now.mcp_servers != options.mcp_servers
            || of_walls(&now.limits.unwrap_or_default()) != of_walls(&options.limits.unwrap_or_default())
            || self.command(now) != self.command(options)
    }

    /// The part of the command line that options decide.
    fn command(&self, options: &SessionOptions) -> LaunchCommand {
        let inside = self.ctx.services.inside(&self.ctx.live);
        self.ctx.driver.launch(&AgentLaunch {
            workspace: inside.workspace,
            home: inside.home,
            exe: inside.exe.clone(),
            program: inside.exe,
            claude_version: None,
            model_socket: inside.model_socket,
            mcp_config: inside.private,
            provider: Some(ModelApiDialect::Anthropic),
            memory: ConversationSource::Resume { id: self.ctx.session.native_id },
            continues_cut_turn: false,
            options: options.clone(),
        })
    }
}

/// Whether the agent must be told. A repeated model would be noted twice in the conversation. A mode is always told,
/// because the agent may have left it: it leaves plan mode when a plan is accepted.
fn is_news(now: &SessionOptions, setting: &LiveSetting) -> bool {
    match setting {
        LiveSetting::Model(model) => now.model.as_ref() != Some(model),
        LiveSetting::PermissionMode(_) => true,
    }
}
