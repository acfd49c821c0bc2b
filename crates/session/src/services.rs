//! What every session works with: the store, the walls, the repositories, and how the server is set.

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

/// Told what happened, so that it can be counted. The numbers' names are not our business.
pub trait SessionObserver: Send + Sync {
    fn resumed(&self, receipt: &Receipt, took: Duration);
    /// A session took over a sandbox that was made in advance.
    fn claimed(&self);
    /// A session gave up its sandbox for somebody else's.
    fn evicted(&self);
    fn saved(&self, saved: &SavedCheckpoint, took: Duration);
    fn save_failed(&self);
    fn turn_over(&self);
    fn used(&self, used: &UsageIncrement);
    fn swept(&self, swept: &crate::SweepReport, took: Duration);
    fn sweep_failed(&self);
}

pub struct ServiceSettings {
    /// This node's name: the data directory's own, so it moves with it.
    pub node: String,
    pub boot: String,
    pub live_dir: PathBuf,
    /// What sandboxes may take of the machine, unless their agents or sessions say otherwise, and at most.
    pub limits: ResourceLimits,
    pub max_limits: ResourceLimits,
    /// What one tenant and one session may make the server keep.
    pub quotas: Quotas,
    pub max_sandboxes: usize,
    /// With fewer bytes of memory available nobody new comes in, and who waits makes way.
    pub min_memory: u64,
    /// How many sandboxes are kept ready for each agent in use.
    pub prewarm: usize,
    /// How long whoever does not say waits for a place when all are taken.
    pub queue_timeout: Duration,
    pub orphan_ttl: Duration,
    /// How long an agent may take to give up a turn before it is ended.
    pub interrupt_grace: Duration,
    /// How long a call waits for leave.
    pub permission_timeout: Duration,
    /// How long work in the background holds a turn whose answer is there.
    pub max_wait: Duration,
    /// How long a session may be idle before its sandbox is let go of; zero: for ever.
    pub idle_timeout: Duration,
    /// How long a turn runs before it is captured on its way; zero: it never is.
    pub checkpoint_every: Duration,
    /// Where Claude Code's program is, if it is here.
    pub claude: Option<ClaudeProgram>,
    /// With fewer bytes on the disk nothing new is begun.
    pub min_free: u64,
    /// When a turn is done.
    pub durability: Durability,
    /// How long a turn waits for the object store.
    pub remote_timeout: Duration,
    /// Where model calls go, and the key they get on the way.
    pub egress: Option<EgressPolicy>,
    /// What models cost.
    pub prices: ModelPrices,
    /// Walls without which there is no sandbox.
    pub required: RequiredWalls,
    /// Whether agents may have user namespaces.
    pub user_namespaces: bool,
    /// How long an agent's scripts may take at most.
    pub max_setup_time: Duration,
    /// What was found wrong with the database's files, until it is repaired.
    pub database_damage: Option<String>,
}

impl ServiceSettings {
    /// The most that anybody but the operator may ask for: the defaults, where the operator sets no other.
    pub(crate) fn tenant_limits(&self) -> ResourceLimits {
        self.max_limits.with_fallback(self.limits)
    }

    /// The program of a runtime that is not part of ours. Its directory is visible inside.
    pub(crate) fn program(&self, runtime: AgentRuntime, options: &SessionOptions) -> Result<Option<&Path>> {
        check_provider_supported(runtime, options)?;
        match runtime {
            AgentRuntime::Builtin => Ok(None),
            // Without a way out it would try again for minutes, and then fail.
            AgentRuntime::Claude if self.egress.is_none() && options.own_provider.is_none() => {
                Err(Error::NoKey)
            }
            AgentRuntime::Claude => {
                self.claude.as_ref().and_then(ClaudeProgram::path).map(Some).ok_or(Error::NoClaude)
            }
        }
    }

    /// The version of a runtime's program, if there is one and it tells; an error if it is too old.
    pub(crate) async fn supported(&self, runtime: AgentRuntime) -> Result<Option<ClaudeVersion>> {
        match (runtime, &self.claude) {
            (AgentRuntime::Claude, Some(program)) => program.supported().await,
            (AgentRuntime::Claude, None) | (AgentRuntime::Builtin, _) => Ok(None),
        }
    }

    /// What whoever answers the built-in agent speaks: who was asked for, else whoever there is a key for, else nobody.
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

    /// The way to a model, for a sandbox whose agent needs one. Whatever else runs there could use it too.
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

/// Whether an agent of this runtime can talk to the service that its client brings.
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

/// What a start needs that its session cannot bring about: found before anything is queued or built.
pub(crate) struct StartRequirements {
    pub(crate) program: Option<PathBuf>,
    pub(crate) claude: Option<ClaudeVersion>,
    pub(crate) provider: Option<ModelApiDialect>,
}

/// What a caller sets of that which the server may lack by now: the rest was accepted before, and is no reason to refuse a
/// change of something else.
#[derive(Debug, Clone, Copy)]
pub struct TouchedOptions {
    /// Who answers the agent.
    pub service: bool,
    pub limits: bool,
    /// The model, who is paid for it, or how many dollars.
    pub dollars: bool,
}

impl TouchedOptions {
    pub(crate) const ALL: TouchedOptions = TouchedOptions { service: true, limits: true, dollars: true };
}

/// The wall clock. Tests may have another one.
pub type WallClock = fn() -> Timestamp;

/// What the services are made of.
pub struct Backends {
    pub store: Arc<dyn Store>,
    pub sandbox: Arc<dyn SandboxBackend>,
    pub observer: Arc<dyn SessionObserver>,
    pub uids: UidPool,
    pub repositories: Arc<Repositories>,
    /// Where checkpoints, logs and agents are replicated to, if anywhere.
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
    /// Tells what sandboxes touched, where the kernel lets us know.
    pub(crate) tracker: Option<ash_snapshot::FilesystemWatch>,
    pub(crate) client_credentials: ClientCredentials,
    pub(crate) bells: SessionBells,
    pub(crate) start_permits: Semaphore,
    pub(crate) restore_permits: Semaphore,
    pub(crate) repair_permits: Semaphore,
    pub(crate) disk_usage_permits: Semaphore,
    pub(crate) pool: SandboxPool,
    pub(crate) queued: QueuedMessageLedger,
    /// Workspaces whose sessions somebody looks after.
    commons: Mutex<HashMap<WorkspaceId, Weak<Workspace>>>,
    pub(crate) repositories: Arc<Repositories>,
    pub(crate) witnesses: Arc<WitnessCache>,
    /// What it takes to rebuild a session from packs or from the object store.
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

/// How many sandboxes are made at the same time: more only makes all of them late.
const MAX_CONCURRENT_STARTS: usize = 8;
/// How many trees are written at the same time.
const MAX_CONCURRENT_RESTORES: usize = 4;
/// How many agents' memories are mended at the same time: each may take a few hundred MB.
const MAX_CONCURRENT_REPAIRS: usize = 2;
/// How many trees are weighed at the same time: however many sessions there are, it takes no more of the machine.
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

    /// Remembers that the disk is full, if that is what went wrong.
    pub(crate) fn note_disk_full(&self, error: &Error) {
        if error.is_full() {
            self.full.store(true, Ordering::Relaxed);
        }
    }

    /// Where everything is sent, if anywhere.
    pub fn replicator(&self) -> Option<Arc<Replicator>> {
        self.replicator.clone()
    }

    /// What is wrong with the server as a whole.
    pub fn troubles(&self) -> Arc<ServerTroubles> {
        self.troubles.clone()
    }

    /// There may be something to send to the object store.
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

    /// The time by which things are old enough to be removed.
    pub(crate) fn retention_clock(&self) -> Timestamp {
        self.clocks.retention_now()
    }

    pub(crate) fn store_trusted_time(&self) {
        self.clocks.store_trusted_time(&self.troubles);
    }

    pub(crate) fn repo(&self, tenant: &TenantId) -> Result<Arc<Repo>> {
        Ok(self.repositories.repo(tenant)?)
    }

    /// What the sessions of a workspace share, as long as one of them is looked after.
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

    /// How many sandboxes are made of an agent before they are wanted.
    pub(crate) fn prewarm(&self, needs: &SandboxRequirements) -> usize {
        needs.prewarm.map_or(self.settings.prewarm, |count| count as usize)
    }

    /// What a session's options and the settings say about its life.
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

    /// The way to a model: the server's, or the one that the client brought.
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

    /// What a session of this version is started with, or what is missing for it.
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

    /// What making a session and changing its options refuse alike.
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

    /// Who took the files of a session's workspace back since then, but for itself.
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
