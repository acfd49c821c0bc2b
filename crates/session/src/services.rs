//! What every session works with: the store, the sandboxes, the repositories and the server's settings. One struct, so
//! that actors and requests share them.

use crate::{
    ClaudeProgram, Error, Result, ServerTroubles,
    client_credentials::ClientCredentials,
    clocks::Clocks,
    fold_log::fold_log,
    follower::SessionBells,
    live_directory::{LiveDirectory, UidPool},
    machine::SessionProfile,
    operator_policy::OperatorPolicy,
    pool::SandboxPool,
    queued_messages::QueuedMessageLedger,
    workspace::Workspace,
};
use ash_driver::ClaudeVersion;
use ash_model::{
    AgentRuntime, Durability, ModelApiDialect, ModelPrices, ModelProvider, Quotas, Receipt, ResourceLimits,
    SandboxRequirements, SavedCheckpoint, SessionOptions, TenantId, Timestamp, UsageIncrement, WorkspaceId,
    WorkspaceRewind,
};
use ash_remote::{RemoteServices, ReplicationTarget, Replicator, Repositories, WitnessCache};
use ash_sandbox::{
    EgressPolicy, RequiredWalls, SandboxBackend, SandboxLayout, SandboxLimits, SandboxSpec,
    UserNamespacePolicy,
};
use ash_snapshot::Repo;
use ash_store::{AgentVersion, SessionRow, Store};
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Receives notice of events so that they can be counted. The caller decides the names of the metrics.
pub trait SessionObserver: Send + Sync {
    fn resumed(&self, receipt: &Receipt, took: Duration);
    /// A session took over a sandbox that was made in advance.
    fn claimed(&self);
    /// A session lost its sandbox to another session.
    fn evicted(&self);
    fn saved(&self, saved: &SavedCheckpoint, took: Duration);
    fn save_failed(&self);
    fn turn_over(&self);
    fn used(&self, used: &UsageIncrement);
    fn swept(&self, swept: &crate::SweepReport, took: Duration);
    fn sweep_failed(&self);
}

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

    /// The access to a model for a sandbox whose agent needs one. A sandbox without this need gets none, because every
    /// process in it could use the access.
    fn default_egress_policy(
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

/// What a start needs from outside its session. Checked before anything is queued or built.
pub(crate) struct StartRequirements {
    pub(crate) program: Option<PathBuf>,
    pub(crate) claude: Option<ClaudeVersion>,
    pub(crate) provider: Option<ModelApiDialect>,
}

/// Which of the options that depend on the server a caller changes. The others were accepted before, and must not
/// prevent a change of something else.
#[derive(Debug, Clone, Copy)]
pub struct TouchedOptions {
    /// The provider that answers the agent.
    pub service: bool,
    pub limits: bool,
    /// The model, its provider, or the budget.
    pub dollars: bool,
}

impl TouchedOptions {
    pub(crate) const ALL: TouchedOptions = TouchedOptions { service: true, limits: true, dollars: true };
}

/// The wall clock. Tests may replace it.
pub type WallClock = fn() -> Timestamp;

/// What the services are made of.
pub struct Backends {
    pub store: Arc<dyn Store>,
    pub sandbox: Arc<dyn SandboxBackend>,
    pub observer: Arc<dyn SessionObserver>,
    pub uids: UidPool,
    pub repositories: Arc<Repositories>,
    /// The object store that checkpoints, logs and agents are replicated to, if there is one.
    pub replication: Option<ReplicationTarget>,
    pub clocks: Clocks,
    /// Set when a write of the store, a repository or a session fails because the disk is full.
    pub disk_full: Arc<AtomicBool>,
}

/// What every session works with.
pub struct Services {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backend: Arc<dyn SandboxBackend>,
    pub(crate) uids: UidPool,
    pub(crate) watch: Arc<dyn SessionObserver>,
    pub(crate) settings: ServiceSettings,
    pub(crate) policy: OperatorPolicy,
    /// Reports what sandboxes touched, if the kernel supports it.
    pub(crate) tracker: Option<ash_snapshot::FilesystemWatch>,
    pub(crate) client_credentials: ClientCredentials,
    pub(crate) bells: SessionBells,
    pub(crate) start_permits: Semaphore,
    pub(crate) restore_permits: Semaphore,
    pub(crate) repair_permits: Semaphore,
    pub(crate) disk_usage_permits: Semaphore,
    pub(crate) pool: SandboxPool,
    pub(crate) queued: QueuedMessageLedger,
    /// Workspaces whose sessions have actors.
    commons: Mutex<HashMap<WorkspaceId, Weak<Workspace>>>,
    pub(crate) repositories: Arc<Repositories>,
    pub(crate) witnesses: Arc<WitnessCache>,
    /// What rebuilding a session from packs or from the object store needs.
    pub(crate) remote: RemoteServices,
    pub(crate) replicator: Option<Arc<Replicator>>,
    /// What is wrong with the server as a whole.
    pub(crate) troubles: Arc<ServerTroubles>,
    pub(crate) clocks: Clocks,
    /// The whole database was compared with its witnesses since the server started.
    pub(crate) is_database_compared: AtomicBool,
    /// Set when a write fails because the disk is full.
    pub(crate) full: Arc<AtomicBool>,
}

/// How many sandboxes start at the same time: more would only delay all of them.
const MAX_CONCURRENT_STARTS: usize = 8;
/// How many trees are written at the same time.
const MAX_CONCURRENT_RESTORES: usize = 4;
/// How many agents' memories are repaired at the same time: each may take a few hundred MB.
const MAX_CONCURRENT_REPAIRS: usize = 2;
/// How many trees are measured at the same time. This bounds the load, however many sessions there are.
const MAX_CONCURRENT_DISK_WALKS: usize = 2;

impl Services {
    pub fn new(backends: Backends, settings: ServiceSettings) -> Services {
        let Backends { store, sandbox, observer, uids, repositories, replication, clocks, disk_full } =
            backends;
        let pool = SandboxPool::new(settings.max_sandboxes, settings.min_memory, settings.quotas);
        let tracker = ash_snapshot::FilesystemWatch::start(&settings.live_dir)
            .inspect_err(|why| tracing::debug!(%why, "captures look at every file"))
            .ok();
        let troubles = Arc::new(ServerTroubles::default());
        let remote = RemoteServices {
            store: store.clone(),
            repositories: repositories.clone(),
            witnesses: Arc::new(WitnessCache::new(repositories.clone())),
            troubles: troubles.clone(),
            node: settings.node.clone(),
            now: clocks.now,
            fold_log,
        };
        let replicator = replication.map(|target| Arc::new(Replicator::new(target, remote.clone())));
        Services {
            store,
            backend: sandbox,
            uids,
            watch: observer,
            policy: OperatorPolicy::new(&settings),
            settings,
            tracker,
            client_credentials: ClientCredentials::default(),
            bells: SessionBells::default(),
            start_permits: Semaphore::new(MAX_CONCURRENT_STARTS),
            restore_permits: Semaphore::new(MAX_CONCURRENT_RESTORES),
            repair_permits: Semaphore::new(MAX_CONCURRENT_REPAIRS),
            disk_usage_permits: Semaphore::new(MAX_CONCURRENT_DISK_WALKS),
            pool,
            queued: QueuedMessageLedger::default(),
            commons: Mutex::default(),
            repositories,
            witnesses: remote.witnesses.clone(),
            remote,
            replicator,
            troubles,
            clocks,
            is_database_compared: AtomicBool::new(false),
            full: disk_full,
        }
    }

    /// Remembers that the disk is full, if this error says so.
    pub(crate) fn note_disk_full(&self, error: &Error) {
        if error.is_full() {
            self.full.store(true, Ordering::Relaxed);
        }
    }

    /// The replicator, if there is an object store.
    pub fn replicator(&self) -> Option<Arc<Replicator>> {
        self.replicator.clone()
    }

    /// What is wrong with the server as a whole.
    pub fn troubles(&self) -> Arc<ServerTroubles> {
        self.troubles.clone()
    }

    /// Notifies the replicator that there may be something to send.
    pub(crate) fn notify_replicator(&self) {
        if let Some(replicator) = &self.replicator {
            replicator.notify();
        }
    }

    /// Before the server stops: sends what was saved last, if that works within this time.
    pub async fn drain_replication(&self, longest: Duration) {
        if let Some(replicator) = &self.replicator {
            replicator.drain(longest).await;
        }
    }

    /// Waits until a checkpoint is in the object store.
    pub(crate) async fn wait_until_remote(
        &self,
        workspace: WorkspaceId,
        number: u64,
        longest: Duration,
    ) -> Result<()> {
        let replicator = self.replicator.as_ref().ok_or(Error::NoBucket)?;
        Ok(replicator.wait_until_uploaded(workspace, number, longest).await?)
    }

    pub(crate) fn clock(&self) -> Timestamp {
        self.clocks.now()
    }

    /// The time for rules by age.
    pub(crate) fn retention_clock(&self) -> Timestamp {
        self.clocks.retention_now()
    }

    pub(crate) fn store_trusted_time(&self) {
        self.clocks.store_trusted_time(&self.troubles);
    }

    pub(crate) fn repo(&self, tenant: &TenantId) -> Result<Arc<Repo>> {
        Ok(self.repositories.repo(tenant)?)
    }

    /// What the sessions of a workspace share, as long as one of them has an actor.
    pub(crate) fn workspace(&self, workspace: WorkspaceId) -> Arc<Workspace> {
        let mut commons = self.commons.lock().expect("nobody panics while holding it");
        if let Some(common) = commons.get(&workspace).and_then(Weak::upgrade) {
            return common;
        }
        commons.retain(|_, common| common.strong_count() > 0);
        let common = Arc::new(Workspace::new(LiveDirectory::new(&self.settings.live_dir, workspace)));
        commons.insert(workspace, Arc::downgrade(&common));
        common
    }

    /// How many sandboxes of an agent are kept ready.
    pub(crate) fn prewarm(&self, needs: &SandboxRequirements) -> usize {
        needs.prewarm.map_or(self.settings.prewarm, |count| count as usize)
    }

    /// What a session's options and the settings say about its lifecycle.
    pub(crate) fn profile(&self, session: &SessionRow) -> SessionProfile {
        let (options, settings) = (&session.options, &self.settings);
        let seconds = |own: Option<u64>, usual: Duration| own.map_or(usual, Duration::from_secs);
        let idle_timeout = seconds(options.idle_timeout, settings.idle_timeout);
        SessionProfile {
            ephemeral: options.ephemeral == Some(true),
            shared: session.slug.is_some(),
            client_key: options.own_provider.is_some(),
            idle_timeout: Some(idle_timeout).filter(|timeout| !timeout.is_zero()),
            max_background_wait: seconds(options.max_wait, settings.max_wait),
            checkpoint_every: Some(settings.checkpoint_every).filter(|every| !every.is_zero()),
            interrupt_grace: settings.interrupt_grace,
            durability: options.durability.unwrap_or(settings.durability),
        }
    }

    /// The access to a model: the server's, or the client's own.
    pub(crate) fn egress_policy(
        &self,
        session: &SessionRow,
        runtime: AgentRuntime,
        provider: Option<ModelApiDialect>,
    ) -> Result<Option<EgressPolicy>> {
        match session.options.own_provider {
            Some(_) => self.client_credentials.get(session.no).map(Some).ok_or(Error::ProviderRequired),
            None => Ok(self.settings.default_egress_policy(runtime, provider)),
        }
    }

    /// What a session of this version needs to start, or an error that says what is missing.
    pub(crate) async fn start_needs(
        &self,
        session: &SessionRow,
        version: &AgentVersion,
    ) -> Result<StartRequirements> {
        let options = &session.options;
        self.permits(&version.needs, options.limits, version.limits)?;
        let program = self.settings.program(version.runtime, options)?.map(Path::to_owned);
        let claude = self.settings.supported(version.runtime).await?;
        let provider = self.settings.provider(options, version.provider)?;
        self.repo(&session.tenant)?;
        self.egress_policy(session, version.runtime, provider)?;
        Ok(StartRequirements { program, claude, provider })
    }

    /// The checks that creating a session and changing its options have in common.
    pub(crate) fn accepts(
        &self,
        version: &AgentVersion,
        options: &SessionOptions,
        (shared, touched): (bool, TouchedOptions),
    ) -> Result<()> {
        Error::unless_supported(version.runtime, options)?;
        if touched.limits {
            self.permits(&version.needs, options.limits, version.limits)?;
        }
        if touched.service {
            self.settings.program(version.runtime, options)?;
            self.settings.provider(options, version.provider)?;
        }
        if touched.dollars {
            self.settings.can_count_dollars(version, options)?;
        }
        match shared && options.own_provider.is_some() {
            true => Err(Error::ProviderShared),
            false => Ok(()),
        }
    }

    /// Rewinds of a workspace's files since `known`, except those of the session itself.
    pub(crate) async fn workspace_rewinds_since(
        &self,
        session: &SessionRow,
        known: u64,
    ) -> Result<Vec<WorkspaceRewind>> {
        let all = self.store.workspace_rewinds(session.workspace, known).await?;
        let others = all
            .into_iter()
            .filter(|row| row.rewind.by.as_ref() != Some(&session.id) && row.at >= session.created_at);
        Ok(others.map(|row| row.rewind).collect())
    }

    pub(crate) fn inside(&self, live: &LiveDirectory) -> SandboxLayout {
        self.backend.layout(&SandboxSpec {
            incarnation: ash_model::Incarnation(Uuid::nil()),
            epoch: ash_model::Epoch(0),
            run_dir: live.run(),
            workspace: live.workspace(),
            home: live.home(),
            uid: None,
            limits: SandboxLimits::default(),
            readonly: Vec::new(),
            image: None,
            user_namespaces: UserNamespacePolicy::Refused,
            orphan_ttl: self.settings.orphan_ttl,
        })
    }

    pub(crate) fn base_env(&self, session: &SessionRow, inside: &SandboxLayout) -> BTreeMap<String, String> {
        crate::agent_env::base_env(session, inside)
    }
}
