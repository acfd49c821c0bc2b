//! The operator's settings of sessions, and what follows from them alone.

use crate::{ClaudeProgram, Error, Result, machine::SessionProfile, provider_access::ProviderAccess};
use ash_driver::ClaudeVersion;
use ash_model::{
    AgentRuntime, Durability, ModelApiDialect, ModelPrices, ModelProvider, Quotas, ResourceLimits,
    SandboxRequirements, SessionOptions,
};
use ash_sandbox::{EgressPolicy, RequiredWalls};
use ash_store::SessionRow;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

pub struct ServiceSettings {
    /// This node's name. It is stored in the data directory, so it moves with the data.
    pub node: String,
    pub boot: String,
    pub live_dir: PathBuf,
    /// The limits of sandboxes: the defaults for agents and sessions that set none, and the maximum.
    pub limits: ResourceLimits,
    pub max_limits: ResourceLimits,
    /// What one tenant and one session may store on the server.
    pub quotas: Quotas,
    pub max_sandboxes: usize,
    /// With fewer bytes of memory available no new sandbox starts, and idle sandboxes end.
    pub min_memory: u64,
    /// How many sandboxes are kept ready for each agent in use.
    pub prewarm: usize,
    /// How long a request that sets no time waits for a sandbox when all are taken.
    pub queue_timeout: Duration,
    pub orphan_ttl: Duration,
    /// How long an agent may take to stop a turn after an interrupt, before its process is ended.
    pub interrupt_grace: Duration,
    /// How long a tool call waits for permission.
    pub permission_timeout: Duration,
    /// How long background work keeps a turn open after its answer.
    pub max_wait: Duration,
    /// How long a session may be idle before its sandbox is ended. Zero: for ever.
    pub idle_timeout: Duration,
    /// The interval between checkpoints during a turn. Zero: there are none.
    pub checkpoint_every: Duration,
    /// Claude Code's program, if it is configured.
    pub claude: Option<ClaudeProgram>,
    /// With fewer free bytes on the disk no new work begins.
    pub min_free: u64,
    /// When a turn counts as done.
    pub durability: Durability,
    /// How long a turn waits for the object store.
    pub remote_timeout: Duration,
    /// Where model calls go, and the API key that is added to them on the way.
    pub egress: Option<EgressPolicy>,
    /// The model services that clients may name for their own keys and for stored ones.
    pub provider_access: ProviderAccess,
    /// The prices of models.
    pub prices: ModelPrices,
    /// The kinds of isolation without which no sandbox starts.
    pub required: RequiredWalls,
    /// Whether agents may have user namespaces.
    pub user_namespaces: bool,
    /// The longest time for an agent's scripts.
    pub max_setup_time: Duration,
    /// What was found wrong with the database's files, until it is repaired.
    pub database_damage: Option<String>,
}

impl ServiceSettings {
    /// The most that a tenant may ask for: the default limits, unless the operator sets another maximum.
    pub(crate) fn tenant_limits(&self) -> ResourceLimits {
        self.max_limits.with_fallback(self.limits)
    }

    /// The program of a runtime that is not built in. Its directory is visible inside the sandbox.
    pub(crate) fn program(&self, runtime: AgentRuntime, options: &SessionOptions) -> Result<Option<&Path>> {
        check_provider_supported(runtime, options)?;
        match runtime {
            AgentRuntime::Builtin => Ok(None),
            // Without access to a model the program would retry for minutes, and then fail.
            AgentRuntime::Claude if self.egress.is_none() && options.own_provider.is_none() => {
                Err(Error::NoKey)
            }
            AgentRuntime::Claude => {
                self.claude.as_ref().and_then(ClaudeProgram::path).map(Some).ok_or(Error::NoClaude)
            }
        }
    }

    /// The version of a runtime's program, if there is one and it reports its version. An error if it is too old.
    pub(crate) async fn supported(&self, runtime: AgentRuntime) -> Result<Option<ClaudeVersion>> {
        match (runtime, &self.claude) {
            (AgentRuntime::Claude, Some(program)) => program.supported().await,
            (AgentRuntime::Claude, None) | (AgentRuntime::Builtin, _) => Ok(None),
        }
    }

    /// The API dialect of the provider that answers the built-in agent: the requested provider, else the one with a
    /// key, else the offline provider (`None`).
    pub(crate) fn provider(
        &self,
        options: &SessionOptions,
        usual: Option<ModelProvider>,
    ) -> Result<Option<ModelApiDialect>> {
        if let Some(own) = &options.own_provider {
            return Ok(Some(own.r#type));
        }
        match (options.provider.or(usual), &self.egress) {
            (Some(ModelProvider::Anthropic), None) => Err(Error::NoKey),
            (Some(ModelProvider::Anthropic) | None, Some(_)) => Ok(Some(ModelApiDialect::Anthropic)),
            (Some(ModelProvider::Offline), _) | (None, None) => Ok(None),
        }
    }

    /// How many sandboxes of an agent are kept ready.
    pub(crate) fn prewarm(&self, needs: &SandboxRequirements) -> usize {
        needs.prewarm.map_or(self.prewarm, |count| count as usize)
    }

    /// What a session's options and the settings say about its lifecycle.
    pub(crate) fn profile(&self, session: &SessionRow) -> SessionProfile {
        let (options, settings) = (&session.options, self);
        let seconds = |own: Option<u64>, usual: Duration| own.map_or(usual, Duration::from_secs);
        let idle_timeout = seconds(options.idle_timeout, settings.idle_timeout);
        SessionProfile {
            ephemeral: options.ephemeral == Some(true),
            shared: session.slug.is_some(),
            client_key: options.has_client_key(),
            idle_timeout: Some(idle_timeout).filter(|timeout| !timeout.is_zero()),
            max_background_wait: seconds(options.max_wait, settings.max_wait),
            checkpoint_every: Some(settings.checkpoint_every).filter(|every| !every.is_zero()),
            interrupt_grace: settings.interrupt_grace,
            durability: options.durability.unwrap_or(settings.durability),
        }
    }

    /// The access to a model for a sandbox whose agent needs one. A sandbox without this need gets none, because every
    /// process in it could use the access.
    pub(crate) fn default_egress_policy(
        &self,
        runtime: AgentRuntime,
        provider: Option<ModelApiDialect>,
    ) -> Option<EgressPolicy> {
        match (runtime, provider) {
            (AgentRuntime::Builtin, None) => None,
            (AgentRuntime::Builtin, Some(_)) | (AgentRuntime::Claude, _) => self.egress.clone(),
        }
    }
}

/// Whether an agent of this runtime can talk to the provider that its client brings.
pub(crate) fn check_provider_supported(runtime: AgentRuntime, options: &SessionOptions) -> Result<()> {
    match (runtime, options.own_provider.as_ref().map(|own| own.r#type)) {
        (AgentRuntime::Claude, Some(wanted @ (ModelApiDialect::Openai | ModelApiDialect::Azure))) => {
            Err(Error::ProviderUnsupported(wanted))
        }
        (AgentRuntime::Claude, Some(ModelApiDialect::Anthropic) | None) | (AgentRuntime::Builtin, _) => {
            Ok(())
        }
    }
}
