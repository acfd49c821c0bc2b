//! What every session works with: the store, the sandboxes, the repositories and the server's settings. One struct, so
//! that actors and requests share them.

use crate::{
    Error, Result, ServerTroubles, blocking,
    client_credentials::ClientCredentials,
    clocks::Clocks,
    fold_log::fold_log,
    follower::SessionBells,
    live_directory::{LiveDirectory, LiveTree},
    observer::SessionObserver,
    operator_policy::OperatorPolicy,
    pool::SandboxPool,
    provider_access::egress_with_key,
    queued_messages::QueuedMessageLedger,
    resource_limits,
    settings::ServiceSettings,
    uid_pool::UidPool,
    workspace::{ClaimedWorkspace, Workspace},
};
use ash_driver::ClaudeVersion;
use ash_model::{
    AgentRuntime, ByokEndpoint, CredentialId, ModelApiDialect, ResourceLimits, SessionOptions, TenantId,
    Timestamp, WorkspaceId, WorkspaceRewind,
};
use ash_remote::{RemoteServices, ReplicationTarget, Replicator, Repositories, WitnessCache};
use ash_sandbox::{
    EgressPolicy, SandboxBackend, SandboxLayout, SandboxLimits, SandboxSpec, UserNamespacePolicy,
};
use ash_snapshot::{DiskUsage, Repo};
use ash_store::{AccessScope, AgentVersion, Lease, LeaseClaim, SessionRow, Store};
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use uuid::Uuid;

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
    pub(crate) uids: Arc<UidPool>,
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
    workspaces: Mutex<HashMap<WorkspaceId, Weak<Workspace>>>,
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
            .inspect_err(
                |why| tracing::debug!(%why, "change tracking is not available: captures read every file"),
            )
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
            uids: Arc::new(uids),
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
            workspaces: Mutex::default(),
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
    pub(crate) fn workspace(&self, id: WorkspaceId) -> Arc<Workspace> {
        let mut workspaces = self.workspaces.lock().expect("no thread panics while holding it");
        if let Some(workspace) = workspaces.get(&id).and_then(Weak::upgrade) {
            return workspace;
        }
        workspaces.retain(|_, workspace| workspace.strong_count() > 0);
        let workspace = Arc::new(Workspace::new(LiveDirectory::new(&self.settings.live_dir, id)));
        workspaces.insert(id, Arc::downgrade(&workspace));
        workspace
    }

    /// Claims a workspace, if this server has not claimed it yet. Answers whether it did. Requires the exclusive guard.
    pub(crate) async fn claim(&self, shared: &Workspace, workspace: WorkspaceId) -> Result<(Lease, bool)> {
        if let Some(lease) = shared.lease() {
            return Ok((lease, false));
        }
        let ServiceSettings { node, boot, .. } = &self.settings;
        let holder = self.store.lease_holder(workspace).await?.ok_or(Error::NotFound)?;
        shared.live.remove_replacement()?;
        let is_current = shared.live.is_current(&holder, node, boot);
        let claim = LeaseClaim { workspace, node: node.clone(), from: holder };
        // The stamp first: if the server dies before the claim, a stamp that is one epoch ahead still counts as its own.
        let tree = match is_current {
            true => Some(LiveTree { uid: shared.live.adopt(claim.epoch(), &self.uids)? }),
            false => None,
        };
        let lease = self.store.claim(claim).await?;
        let newest = self.store.checkpoints(workspace, None, 1).await?;
        let rewinds = self.store.workspace_rewinds(workspace, 0).await?;
        shared.set_claimed(ClaimedWorkspace {
            lease: lease.clone(),
            tree,
            newest: newest.first().map(|checkpoint| checkpoint.number),
            last_rewind: rewinds.last().map_or(0, |last| last.rewind.checkpoint),
        });
        Ok((lease, true))
    }

    /// The access to a model: the server's, a stored credential's, or the client's own.
    pub(crate) async fn egress_policy(
        &self,
        session: &SessionRow,
        runtime: AgentRuntime,
        provider: Option<ModelApiDialect>,
    ) -> Result<Option<EgressPolicy>> {
        let SessionOptions { own_provider, credential_id, .. } = &session.options;
        match (own_provider, credential_id) {
            (Some(own), Some(id)) => self.stored_egress(&session.tenant, (own, id)).await.map(Some),
            (Some(_), None) => {
                self.client_credentials.get(session.no).map(Some).ok_or(Error::ProviderRequired)
            }
            (None, _) => Ok(self.settings.default_egress_policy(runtime, provider)),
        }
    }

    /// The access to a model with a stored credential, as it and the operator's settings are now.
    pub(crate) async fn stored_egress(
        &self,
        tenant: &TenantId,
        (own, id): (&ByokEndpoint, &CredentialId),
    ) -> Result<EgressPolicy> {
        let found = self.store.credential(&AccessScope::all(tenant), id).await?;
        let (_, key) = found.ok_or(Error::CredentialGone)?;
        let public = self.settings.provider_access.check(&own.base_url)?;
        Ok(egress_with_key(own, &key, public))
    }

    /// Remembers that an agent of the session starts with its credential, if it has one.
    pub(crate) async fn note_credential_used(&self, session: &SessionRow) -> Result<()> {
        match &session.options.credential_id {
            Some(id) => Ok(self.store.set_credential_used(&session.tenant, id, self.clock()).await?),
            None => Ok(()),
        }
    }

    /// What a session of this version needs to start, or an error that says what is missing.
    pub(crate) async fn start_needs(
        &self,
        session: &SessionRow,
        version: &AgentVersion,
    ) -> Result<StartRequirements> {
        let options = &session.options;
        self.policy.permits(&version.needs, options.limits, version.limits)?;
        let program = self.settings.program(version.runtime, options)?.map(Path::to_owned);
        let claude = self.settings.supported(version.runtime).await?;
        let provider = self.settings.provider(options, version.provider)?;
        self.repo(&session.tenant)?;
        self.egress_policy(session, version.runtime, provider).await?;
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
            self.policy.permits(&version.needs, options.limits, version.limits)?;
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

    /// The limits in force for a session.
    pub(crate) async fn bounds(&self, session: &SessionRow) -> Result<ResourceLimits> {
        let version = self.store.version(&session.tenant, &session.agent, session.version).await?;
        Ok(self.policy.limits_in_force(session.options.limits, version.and_then(|version| version.limits)))
    }

    /// Measures the files of a workspace, and how long that took without waiting for a permit.
    pub(crate) async fn weigh(&self, live: &LiveDirectory, most: DiskUsage) -> Result<(DiskUsage, Duration)> {
        let _turn = self.disk_usage_permits.acquire().await.map_err(|_| Error::Stopping)?;
        let (live, began) = (live.clone(), Instant::now());
        let weight = blocking(move || resource_limits::weigh(&live, most)).await?;
        Ok((weight, began.elapsed()))
    }
}
