//! Assembles the server: the one place that picks backends. Every start runs recovery.

use crate::{
    config::{HostResources, SandboxSetting, ServerConfig},
    data_dir, database, docker_engine,
    edge::{self, AllowedHosts, BodySpooler, FailedAuthThrottle, HttpServer, KeyStreamLimiter},
    filesystem::FilesystemInfo,
    limit_enforcement::LimitEnforcement,
    metrics::ServerMetrics,
    required_walls, routes,
};
use ash_model::{Quotas, SessionRowId, TenantId, Timestamp};
use ash_sandbox::{BubblewrapBackend, DockerBackend, SandboxBackend, UnconfinedBackend};
use ash_session::{
    AgentServices, Agents, ApiKeyDerivationKey, ApiKeyServices, Audit, Backends, ClaimConflict, Claimant,
    ClaudeProgram, ClockReading, Clocks, Credentials, IdempotencyKeys, KeyedMutex, Keys, OperatorPolicy,
    ProviderAccess, RemoteRestoreReport, RepairMode, ReplicatedSession, ReplicationTarget, Replicator,
    Repositories, RepositorySettings, ServerStatus, ServiceSettings, Services, Sessions, StreamTokens,
    TrustedClock, UidPool, Usage, WallClock, Workspaces,
};
use ash_store::{RepairStore, ReplicationStore, SealingKey, SqliteStore, Store};
use axum::{Router, extract::FromRef};
use secrecy::SecretString;
use std::{
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// State that every handler can use.
#[derive(Clone)]
pub(crate) struct AppState {
    pub(crate) sessions: Sessions,
    pub(crate) agents: Agents,
    pub(crate) workspaces: Workspaces,
    pub(crate) usage: Usage,
    pub(crate) keys: Keys,
    pub(crate) credentials: Credentials,
    pub(crate) stream_tokens: StreamTokens,
    pub(crate) audit: Audit,
    pub(crate) idempotency: IdempotencyKeys,
    pub(crate) status: ServerStatus,
    pub(crate) policy: OperatorPolicy,
    pub(crate) quotas: Quotas,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) internal_secret: Option<SecretString>,
    pub(crate) default_runtime: ash_model::AgentRuntime,
    pub(crate) scratch: PathBuf,
    /// Directories from which agents may be deployed by path. Empty: any directory, but only for the server's own user.
    pub(crate) agent_dirs: Vec<PathBuf>,
    pub(crate) origins: Vec<String>,
    pub(crate) hosts: AllowedHosts,
    pub(crate) auth_throttle: Arc<FailedAuthThrottle>,
    pub(crate) stream_limiter: KeyStreamLimiter,
    pub(crate) body_spooler: BodySpooler,
    /// How long a client may stop in the middle of a request or an answer.
    pub(crate) client_timeout: Duration,
    pub(crate) provider_access: ProviderAccess,
    /// Held while a request changes a session's options, because it reads, changes and writes them as one.
    pub(crate) options_locks: Arc<KeyedMutex<SessionRowId>>,
    /// Held by each message with an Idempotency-Key until it is accepted or refused. A second message with the same key
    /// then sees the result of the first.
    pub(crate) idempotency_locks: Arc<KeyedMutex<(SessionRowId, String)>>,
    pub(crate) retention: ash_session::SessionTtlRules,
    pub(crate) limit_enforcement: LimitEnforcement,
}

/// The assembled server: the state of the handlers, and the background services.
struct BuiltServer {
    app: AppState,
    services: Arc<Services>,
    replicator: Option<Arc<Replicator>>,
    /// The Docker engine that makes containers, if the server uses one.
    engine: Option<DockerBackend>,
    /// This server's name, which moves with the data directory.
    node: String,
    address: SocketAddr,
}

/// Lets a handler extract a single facade.
macro_rules! facades {
    ($($field:ident: $facade:ty),*) => {
        $(impl FromRef<AppState> for $facade {
            fn from_ref(app: &AppState) -> $facade {
                app.$field.clone()
            }
        })*
    };
}

facades! { sessions: Sessions, agents: Agents, workspaces: Workspaces }

/// Why the server cannot start or continue. The message is for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ServerError(String);

impl From<ash_session::Error> for ServerError {
    fn from(error: ash_session::Error) -> ServerError {
        ServerError(error.to_string())
    }
}

/// Interval between checks of free disk space and memory.
const MACHINE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum interval between two evaluations of the retention rules.
const MAX_RETENTION_INTERVAL: Duration = Duration::from_secs(60);
/// How long a stopping server continues to upload to the object store.
const SHUTDOWN_UPLOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long deltas and idempotency keys are kept.
const DELTA_RETENTION: Duration = Duration::from_secs(24 * 3600);

pub async fn serve(config: ServerConfig) -> Result<(), ServerError> {
    let data = config.data_dir().map_err(ServerError)?;
    config.check_key_length().map_err(ServerError)?;
    edge::set_mmap_threshold();
    let open_files = edge::raise_open_files();
    data_dir::create_private(&data).map_err(ServerError)?;
    config.check(&HostResources::detect(&data)).map_err(ServerError)?;
    data_dir::check_disk(&data).map_err(ServerError)?;
    let _lock = data_dir::lock(&data).map_err(ServerError)?;
    let full = Arc::default();
    let store = open_store(&data, &full).await?;
    let BuiltServer { app, services, replicator, engine, node, address } =
        build_server(&config, &data, (store.clone(), full)).await?;
    let listener = TcpListener::bind((config.host, config.port))
        .await
        .map_err(|error| ServerError(format!("cannot listen on {address}: {error}. Is another server running there? Choose another port with --port")))?;
    let address = listener.local_addr().unwrap_or(address);
    remove_dead_cgroups(&data.join("live")).await;
    let woken = app.sessions.start().await?;
    write_server_info(&data, address, &config, woken)?;
    tokio::spawn(compare_witnesses(app.sessions.clone()));
    tokio::spawn(prune_deltas_forever(app.sessions.clone()));
    if let Some(replicator) = replicator.clone() {
        let checking = replicator.clone();
        tokio::spawn(async move { replicator.send_for_ever().await });
        if let Some(every) = Some(config.remote_check_every).filter(|every| !every.is_zero()) {
            tokio::spawn(async move { checking.check_for_ever(every).await });
        }
    }
    let claimant = Claimant {
        holder: node,
        host: hostname(),
        url: format!("http://{address}"),
        every: config.remote_claim_every,
        take_over: config.take_over,
    };
    let conflict = claim_bucket(replicator.clone(), claimant);
    if !config.gc_every.is_zero() {
        tokio::spawn(run_gc_forever(app.sessions.clone(), config.gc_every, config.retention_policy()));
    }
    tokio::spawn(apply_retention_forever(app.sessions.clone(), config.retention.clone(), config.gc_every));
    tokio::spawn(watch_memory(app.sessions.clone()));
    if let Some(docker) = engine {
        tokio::spawn(docker_engine::watch_engine(app.status.clone(), docker));
    }
    tokio::spawn(watch_disk(app.sessions.clone(), data.clone(), config.retention_policy()));
    tokio::spawn(edge::trim_memory_forever());
    let edge = HttpServer::new(config.max_connections, config.client_timeout, open_files);
    let leaving = LeavingServer { sessions: app.sessions.clone(), services, replicator };
    let router = routes::router(app);
    let ended = serve_until_signal((listener, edge), router, (leaving, config.stop_grace), conflict).await;
    close(&store, &data).await;
    fs::remove_file(data.join("server.json")).ok();
    ended
}

/// Claims the bucket in the background, so that the port opens at once. The receiver gets a value if a live server
/// holds the bucket.
fn claim_bucket(replicator: Option<Arc<Replicator>>, claimant: Claimant) -> oneshot::Receiver<ClaimConflict> {
    let (lost, conflict) = oneshot::channel();
    tokio::spawn(async move {
        match replicator {
            Some(replicator) => lost.send(replicator.keep_claim(claimant).await).is_ok(),
            None => std::future::pending().await,
        }
    });
    conflict
}

/// Restores everything that the object store has and this data directory does not. No server may run on this data
/// directory. `lazily`: files stay in the object store until a session is resumed.
pub async fn restore(
    config: &ServerConfig,
    lazily: bool,
    tell: &mut (dyn FnMut(&RemoteRestoreReport) + Send),
) -> Result<RemoteRestoreReport, ServerError> {
    let data = config.data_dir().map_err(ServerError)?;
    data_dir::create_private(&data).map_err(ServerError)?;
    data_dir::check_disk(&data).map_err(ServerError)?;
    let _lock = data_dir::lock(&data).map_err(ServerError)?;
    let full = Arc::default();
    let store = open_store(&data, &full).await?;
    // A restore starts no sandbox.
    let (sandbox, walls_required) = (SandboxSetting::None, ash_sandbox::RequiredWalls::default());
    let config = ServerConfig { sandbox, walls_required, ..config.clone() };
    let built = build_server(&config, &data, (store.clone(), full)).await?;
    let replicator = built.replicator.ok_or_else(|| ServerError("say where from: --from URL".to_owned()))?;
    store.set_remote(&replicator.bucket.to_string()).await.map_err(ash_session::Error::from)?;
    let returned = replicator.bring_back_all(lazily, tell).await.map_err(ash_session::Error::from)?;
    close(&store, &data).await;
    Ok(returned)
}

/// Restores what the packs and the object store know and the database does not. No server may run on this data
/// directory.
pub async fn repair(config: &ServerConfig, how: RepairMode) -> Result<RepairReport, ServerError> {
    let data = config.data_dir().map_err(ServerError)?;
    data_dir::create_private(&data).map_err(ServerError)?;
    data_dir::check_disk(&data).map_err(ServerError)?;
    let _lock = data_dir::lock(&data).map_err(ServerError)?;
    let full = Arc::new(AtomicBool::new(false));
    let damaged = match open_store(&data, &full).await {
        Err(failure) => Some(failure.0),
        Ok(store) => {
            let damage = store.check_integrity().await.unwrap_or_else(|error| Some(error.to_string()));
            close(&store, &data).await;
            damage
        }
    };
    let aside = match (&damaged, how) {
        (Some(_), RepairMode::Apply) => Some(database::move_damaged_aside(&data).map_err(ServerError)?),
        // A dry run cannot compare a damaged database: it would list everything that the witnesses know.
        (Some(_), RepairMode::DryRun) | (None, _) => None,
    };
    if let (Some(damaged), None) = (&damaged, &aside) {
        return Ok(RepairReport { database_error: Some(damaged.clone()), ..RepairReport::default() });
    }
    let store = open_store(&data, &full).await?;
    // A repair starts no sandbox.
    let (sandbox, walls_required) = (SandboxSetting::None, ash_sandbox::RequiredWalls::default());
    let config = ServerConfig { sandbox, walls_required, ..config.clone() };
    let BuiltServer { app, replicator, .. } = build_server(&config, &data, (store.clone(), full)).await?;
    if let Some(replicator) = &replicator {
        store.set_remote(&replicator.bucket.to_string()).await.map_err(ash_session::Error::from)?;
    }
    let (sessions, orphans) = app.sessions.repair(how).await?;
    let kept = match how {
        RepairMode::DryRun => Vec::new(),
        RepairMode::Apply => {
            database::clear_damage(&data).map_err(ServerError)?;
            database::move_orphan_trees(&data, &orphans).map_err(ServerError)?
        }
    };
    close(&store, &data).await;
    Ok(RepairReport {
        database_error: damaged,
        damaged_database_copy: aside,
        sessions,
        orphan_workspaces: orphans,
        preserved_trees: kept,
    })
}

/// Makes this many stopped sessions of the agent `default`. No server may run on this data directory.
pub async fn fill(config: &ServerConfig, sessions: usize) -> Result<(), ServerError> {
    let data = config.data_dir().map_err(ServerError)?;
    data_dir::create_private(&data).map_err(ServerError)?;
    data_dir::check_disk(&data).map_err(ServerError)?;
    let _lock = data_dir::lock(&data).map_err(ServerError)?;
    let full = Arc::default();
    let store = open_store(&data, &full).await?;
    // No sandbox is started.
    let (sandbox, walls_required) = (SandboxSetting::None, ash_sandbox::RequiredWalls::default());
    let config = ServerConfig { sandbox, walls_required, ..config.clone() };
    let BuiltServer { app, .. } = build_server(&config, &data, (store.clone(), full)).await?;
    let agent = routes::default_agent(&app).await.map_err(|problem| ServerError(problem.error))?;
    app.sessions.fill(&TenantId::main(), &agent, sessions).await?;
    close(&store, &data).await;
    Ok(())
}

/// What `ash repair` did, or would do.
#[derive(Debug, Default)]
pub struct RepairReport {
    /// Why the database cannot be read.
    pub database_error: Option<String>,
    /// New path of the damaged database.
    pub damaged_database_copy: Option<PathBuf>,
    pub sessions: Vec<ash_session::RepairedSession>,
    /// Live trees of workspaces that no witness knows, and their new paths.
    pub orphan_workspaces: Vec<ash_model::WorkspaceId>,
    pub preserved_trees: Vec<PathBuf>,
}

/// Lists the sessions in an object store, without restoring them.
pub async fn list_remote_sessions(config: &ServerConfig) -> Result<Vec<ReplicatedSession>, ServerError> {
    let bucket = config.bucket().map_err(|error| ServerError(error.to_string()))?;
    let bucket = bucket.ok_or_else(|| ServerError("say where from: --from URL".to_owned()))?;
    Ok(ash_session::list_remote_sessions(&bucket).await.map_err(ash_session::Error::from)?)
}

/// `full`: the flag that the store sets when the disk is full.
async fn build_server(
    config: &ServerConfig,
    data: &Path,
    (store, full): (Arc<SqliteStore>, Arc<AtomicBool>),
) -> Result<BuiltServer, ServerError> {
    let groups =
        tokio::task::spawn_blocking(ash_sandbox::groups).await.unwrap_or(ash_sandbox::CgroupSupport::None);
    required_walls::check(config, groups).map_err(ServerError)?;
    let (backend, engine) = select_backend(config, data).await?;
    let enforced = LimitEnforcement::of(config.sandbox, groups);
    let metrics = ServerMetrics::new(format!("{}-{}", hostname(), std::process::id()));
    let settings = ServiceSettings {
        node: data_dir::node_id(data).map_err(ServerError)?,
        boot: data_dir::boot_id(),
        live_dir: data.join("live"),
        limits: config.limits(),
        max_limits: config.limits_max,
        quotas: config.quotas,
        max_sandboxes: config.max_sandboxes,
        min_memory: config.min_memory_mb.saturating_mul(1 << 20),
        prewarm: config.prewarm,
        queue_timeout: config.queue_wait,
        orphan_ttl: config.orphan_ttl,
        interrupt_grace: config.interrupt_grace,
        permission_timeout: config.permission_timeout,
        max_wait: config.max_wait,
        idle_timeout: config.idle_timeout,
        checkpoint_every: config.checkpoint_every,
        claude: config.claude_program().map(ClaudeProgram::new),
        egress: config.egress(),
        provider_access: config.provider_access(),
        min_free: config.min_free_mb.saturating_mul(1 << 20),
        durability: config.durability,
        remote_timeout: config.remote_timeout,
        prices: config.prices.clone(),
        required: config.walls_required.clone(),
        user_namespaces: config.allow_userns,
        max_setup_time: config.setup_max_seconds,
        database_damage: database::recorded_damage(data).map(|damage| damage.error),
    };
    for dir in [&settings.live_dir, &data.join("repo"), &data.join("scratch")] {
        data_dir::create_private_dir(dir).map_err(ServerError)?;
    }
    clear_scratch(&data.join("scratch"));
    data_dir::hint_top_level_dirs(&settings.live_dir);
    // As root, every workspace gets its own uid. Another user can use only its own uid.
    let is_root = rustix::process::geteuid().is_root() && config.sandbox != SandboxSetting::None;
    let uids = UidPool::new(is_root.then(|| config.sandbox_uids.0.clone()));
    let (store, clock): (Arc<dyn Store>, WallClock) = (store, Timestamp::now);
    let idempotency = IdempotencyKeys::new(store.clone(), clock);
    let derivation = ApiKeyDerivationKey::of(&data.join("seal.key"))?;
    let keys = Keys::new(ApiKeyServices {
        store: store.clone(),
        clock,
        idempotency: idempotency.clone(),
        quotas: config.quotas,
        derivation,
    });
    let credentials = Credentials::new(store.clone(), clock, config.quotas);
    if config.api_key().is_none() {
        keys.bootstrap(&data.join("initial-api-key")).await?;
    }
    let bucket = config.bucket().map_err(|error| ServerError(error.to_string()))?;
    if bucket.is_none() && config.durability == ash_model::Durability::Remote {
        return Err(ServerError(
            "ASH_DURABILITY=remote needs an object store: set ASH_SNAPSHOT_URL".to_owned(),
        ));
    }
    let bytes_per_second =
        (config.remote_mbit > 0).then_some(config.remote_mbit.saturating_mul(1_000_000) / 8);
    let repositories = Arc::new(Repositories::new(RepositorySettings {
        dir: data.join("repo"),
        keys: config.snapshot_keys(),
        bucket: bucket.clone(),
        remote_cache_bytes: config.snapshot_cache_mb.saturating_mul(1 << 20),
        disk_full: full.clone(),
    }));
    let trusted = TrustedClock::open(data.join("clock.json"), &settings.boot, ClockReading::now);
    let policy = OperatorPolicy::new(&settings);
    let node = settings.node.clone();
    let backends = Backends {
        store: store.clone(),
        sandbox: backend,
        observer: metrics.clone(),
        uids,
        repositories: repositories.clone(),
        replication: bucket.map(|bucket| ReplicationTarget { bucket, bytes_per_second }),
        clocks: Clocks { now: clock, trusted: Arc::new(trusted) },
        disk_full: full.clone(),
    };
    let services = Arc::new(Services::new(backends, settings));
    let (replicator, troubles) = (services.replicator(), services.troubles());
    let sessions = Sessions::new(services.clone());
    let audit = Audit::new(store.clone(), clock);
    let agents = Agents::new(AgentServices {
        store: store.clone(),
        repositories,
        audit: audit.clone(),
        idempotency: idempotency.clone(),
        quotas: config.quotas,
        policy: policy.clone(),
        sessions: sessions.clone(),
    });
    let app = AppState {
        agents,
        workspaces: Workspaces::new(store.clone(), sessions.clone()),
        usage: Usage::new(store.clone()),
        keys,
        credentials,
        stream_tokens: StreamTokens::of(&data.join("seal.key"), clock)?,
        audit,
        idempotency,
        status: ServerStatus::new(store, clock, troubles, replicator.clone()),
        sessions,
        policy,
        quotas: config.quotas,
        metrics,
        api_key: config.api_key(),
        internal_secret: config.internal_secret(),
        default_runtime: config.default_runtime,
        scratch: data.join("scratch"),
        origins: config.allowed_origins.clone(),
        hosts: AllowedHosts::new(config.host, &config.allowed_hosts),
        auth_throttle: Arc::default(),
        stream_limiter: KeyStreamLimiter::new(config.max_streams),
        body_spooler: BodySpooler::new(data.join("scratch"), full),
        client_timeout: config.client_timeout,
        provider_access: config.provider_access(),
        options_locks: Arc::default(),
        idempotency_locks: Arc::default(),
        agent_dirs: config.agent_dirs(),
        retention: config.retention.clone(),
        limit_enforcement: enforced,
    };
    let address = SocketAddr::new(config.host, config.port);
    Ok(BuiltServer { app, services, replicator, engine, node, address })
}

/// Removes uploads that a killed server left. The data directory is locked, so no other server uses them.
fn clear_scratch(scratch: &Path) {
    for entry in fs::read_dir(scratch).into_iter().flatten().flatten() {
        if let Err(error) = ash_snapshot::Folder::erase(&entry.path()) {
            tracing::warn!(%error, "files of an earlier server could not be removed");
        }
    }
}

async fn open_store(data: &Path, full: &Arc<AtomicBool>) -> Result<Arc<SqliteStore>, ServerError> {
    let seal = SealingKey::open(&data.join("seal.key"))
        .map_err(|error| ServerError(format!("cannot read the seal key: {error}")))?;
    let path = data.join("ash.db");
    let boot = data_dir::boot_id();
    database::check_wal(data, &boot).map_err(ServerError)?;
    let store = SqliteStore::open_reporting(&path, seal, full.clone()).await;
    let store = store.map(Arc::new).map_err(|error| {
        ServerError(format!(
            "cannot open {}: {error}. If it is damaged, `ash repair` says what can be brought back from packs and the object store",
            path.display()
        ))
    })?;
    database::mark_open(data, &boot).map_err(ServerError)?;
    Ok(store)
}

/// After this, the one database file holds everything that was committed.
async fn close(store: &SqliteStore, data: &Path) {
    store.close().await;
    database::mark_closed(data);
}

type SelectedBackend = (Arc<dyn SandboxBackend>, Option<DockerBackend>);

async fn select_backend(config: &ServerConfig, data: &Path) -> Result<SelectedBackend, ServerError> {
    let exe = std::env::current_exe()
        .map_err(|error| ServerError(format!("cannot find my own program: {error}")))?;
    match config.sandbox {
        SandboxSetting::Bubblewrap => {
            let walls = BubblewrapBackend::probe_with(exe, config.walls_required.clone())
                .await
                .and_then(|walls| walls.sharing_etc(data.join("etc")));
            Ok((Arc::new(walls.map_err(|error| ServerError(error.to_string()))?), None))
        }
        SandboxSetting::Docker => {
            let docker = docker_engine::connect_engine(config, exe)
                .await
                .map_err(|error| ServerError(error.to_string()))?;
            Ok((Arc::new(docker.clone()), Some(docker)))
        }
        SandboxSetting::None => {
            tracing::warn!(
                "ASH_SANDBOX=none: agents run WITHOUT WALLS, with all rights of your user. Use it only where you would run the agent by hand"
            );
            Ok((Arc::new(UnconfinedBackend::new(exe).requiring(config.walls_required.clone())), None))
        }
    }
}

/// The steps of a server before it exits.
struct LeavingServer {
    sessions: Sessions,
    services: Arc<Services>,
    replicator: Option<Arc<Replicator>>,
}

impl LeavingServer {
    async fn stop(&self, grace: Duration) {
        self.sessions.shut_down(grace).await;
        self.services.drain_replication(SHUTDOWN_UPLOAD_TIMEOUT).await;
        if let Some(replicator) = &self.replicator {
            replicator.release_claim().await;
        }
    }
}

async fn serve_until_signal(
    (listener, edge): (TcpListener, HttpServer),
    router: Router,
    (leaving, grace): (LeavingServer, Duration),
    conflict: oneshot::Receiver<ClaimConflict>,
) -> Result<(), ServerError> {
    let serving = tokio::spawn(edge.serve(listener, router));
    let stop = tokio::select! {
        stop = wait_for_signal() => stop?,
        Ok(conflict) = conflict => {
            tracing::error!("exiting: sandboxes and their turns continue for ASH_ORPHAN_TTL seconds, and the next server takes them over");
            serving.abort();
            return Err(ServerError(conflict.to_string()));
        }
    };
    if stop == ShutdownMode::LeaveSandboxes {
        tracing::info!("exiting: sandboxes and their turns continue, and the next server takes them over");
        serving.abort();
        return Ok(());
    }
    tracing::info!(
        "stopping: running turns get {} s, then every sandbox is captured and ended",
        grace.as_secs()
    );
    tokio::select! {
        () = leaving.stop(grace) => tracing::info!("stopped"),
        _ = wait_for_signal() => tracing::warn!("stopped at once; sandboxes keep running, and the next server takes them over"),
    }
    serving.abort();
    Ok(())
}

/// SIGHUP leaves the sandboxes to the next server; SIGTERM and Ctrl-C end them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownMode {
    EndSandboxes,
    LeaveSandboxes,
}

async fn wait_for_signal() -> Result<ShutdownMode, ServerError> {
    let failed = |error: std::io::Error| ServerError(format!("cannot listen for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    Ok(tokio::select! {
        _ = terminate.recv() => ShutdownMode::EndSandboxes,
        _ = interrupt.recv() => ShutdownMode::EndSandboxes,
        _ = hangup.recv() => ShutdownMode::LeaveSandboxes,
    })
}

/// Runs beside the server. Requests are served meanwhile, but garbage collection waits for it.
async fn compare_witnesses(sessions: Sessions) {
    if let Err(error) = sessions.compare_witnesses().await {
        tracing::error!(%error, "the database could not be compared with packs and the object store: nothing is deleted until then");
    }
    sessions.check_database().await;
}

async fn prune_deltas_forever(sessions: Sessions) {
    let mut hours = tokio::time::interval(Duration::from_secs(3600));
    loop {
        hours.tick().await;
        if let Err(error) = sessions.prune_deltas(DELTA_RETENTION).await {
            tracing::warn!(%error, "old deltas could not be deleted");
        }
    }
}

async fn watch_memory(sessions: Sessions) {
    let mut rounds = tokio::time::interval(MACHINE_CHECK_INTERVAL);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        sessions.free_memory().await;
    }
}

async fn watch_disk(sessions: Sessions, data: PathBuf, keep: ash_session::RetentionPolicy) {
    let mut rounds = tokio::time::interval(MACHINE_CHECK_INTERVAL);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if sessions.is_full() && data_dir::probe_disk_space(&data).is_ok() {
            sessions.has_space_again();
        }
        match FilesystemInfo::of(&data) {
            Ok(disk) => sessions.set_free(disk.free_bytes, &keep).await,
            Err(error) => tracing::warn!(%error, "the free disk space could not be measured"),
        }
    }
}

/// Removes cgroups of sandboxes whose shims were killed and whose sessions may never be resumed.
async fn remove_dead_cgroups(live: &Path) {
    let live = live.to_owned();
    let cleared = tokio::task::spawn_blocking(move || {
        let workspaces = fs::read_dir(live).into_iter().flatten().flatten();
        workspaces.filter(|dir| ash_sandbox::remove_empty_groups(&dir.path().join("run"))).count()
    });
    let cleared = cleared.await.unwrap_or(0);
    if cleared > 0 {
        tracing::info!(cleared, "empty control groups of dead sandboxes were removed");
    }
}

async fn run_gc_forever(sessions: Sessions, every: Duration, keep: ash_session::RetentionPolicy) {
    // The first run waits for one interval: after the start, clients wait for their sessions.
    let mut rounds = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if let Err(error) = sessions.sweep(&keep).await {
            tracing::warn!(%error, "the garbage collection failed");
        }
    }
}

/// Runs more often than garbage collection: a time to live may be a few minutes, and the check is cheap.
async fn apply_retention_forever(
    sessions: Sessions,
    retention: ash_session::SessionTtlRules,
    sweeps: Duration,
) {
    let every = if sweeps.is_zero() { MAX_RETENTION_INTERVAL } else { sweeps.min(MAX_RETENTION_INTERVAL) };
    let mut rounds = tokio::time::interval(every);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        sessions.store_trusted_time();
        if let Err(error) = sessions.apply_session_ttl(&retention).await {
            tracing::warn!(%error, "retention rules could not be evaluated");
        }
    }
}

fn write_server_info(
    data: &Path,
    address: SocketAddr,
    config: &ServerConfig,
    woken: usize,
) -> Result<(), ServerError> {
    let url = format!("http://{address}");
    let info = serde_json::json!({
        "pid": std::process::id(), "url": url, "version": crate::VERSION, "settings": config.settings_by_flag,
        "models": config.egress().map(|egress| egress.upstream), "claude": config.claude_program(),
    });
    let fresh = data.join("server.json.new");
    fs::write(&fresh, info.to_string())
        .and_then(|()| fs::rename(&fresh, data.join("server.json")))
        .map_err(|error| ServerError(format!("cannot write to {}: {error}", data.display())))?;
    tracing::info!(%url, data = %data.display(), taken_over = woken, "ash {} is ready", crate::VERSION);
    if config.api_key().is_none() {
        tracing::info!("the API key is in {}", data.join("initial-api-key").display());
    }
    std::io::stderr().flush().ok();
    Ok(())
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl AppState {
    /// Wall-clock time.
    pub(crate) fn now(&self) -> Timestamp {
        self.sessions.now()
    }

    /// Where a local user finds the key, without showing the exact path to other clients.
    pub(crate) fn key_hint(&self) -> &'static str {
        match self.api_key {
            Some(_) => "the value of ASH_API_KEY that the server was started with",
            None => {
                "in the file initial-api-key of the server's data directory (by default ~/.ash/initial-api-key)"
            }
        }
    }

    /// Whether this is the operator's tenant.
    pub(crate) fn is_operator(&self, tenant: &TenantId) -> bool {
        *tenant == TenantId::main()
    }
}

/// The router of a server that never listens, and its store.
#[cfg(test)]
pub(crate) async fn router_for_tests(
    config: &ServerConfig,
    data: &Path,
) -> Result<(Router, Arc<SqliteStore>), ServerError> {
    let full = Arc::default();
    let store = open_store(data, &full).await?;
    let BuiltServer { app, .. } = build_server(config, data, (store.clone(), full)).await?;
    Ok((routes::router(app), store))
}
