//! Putting the server together: the one place that picks backends. Recovery is the normal way to start.

use crate::{
    config::{Config, Machine, Sandbox},
    data_dir, database,
    disk::Disk,
    edge::{self, AllowedHosts, Edge, FailedKeys, KeyStreams, LargeBodies},
    enforced::Enforced,
    engine, keys,
    metrics::Metrics,
    routes, walls,
};
use ash_model::{SessionNo, TenantId, Timestamp};
use ash_sandbox::{Backend, Bare, Bubblewrap, Docker};
use ash_session::{
    ClaimConflict, Claimant, ClaudeProgram, Far, FarSession, KeyedMutex, Reading, Repair, Returned, Rooms,
    Sessions, Settings, TrustedClock, Uids,
};
use ash_store::{Seal, Sqlite, Store};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
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

/// What every handler has at hand.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) sessions: Sessions,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) internal_secret: Option<SecretString>,
    pub(crate) default_runtime: ash_model::Runtime,
    pub(crate) scratch: PathBuf,
    /// Where agents may be deployed from by path; empty: anywhere, but only by the server's own user.
    pub(crate) agent_dirs: Vec<PathBuf>,
    pub(crate) origins: Vec<String>,
    pub(crate) hosts: AllowedHosts,
    pub(crate) failed_keys: Arc<FailedKeys>,
    pub(crate) streams: KeyStreams,
    pub(crate) large_bodies: LargeBodies,
    /// How long a client may stop in the middle of something.
    pub(crate) client_timeout: Duration,
    /// Which clients may bring keys for although they are not on the Internet.
    pub(crate) provider_urls: Vec<String>,
    pub(crate) own_providers: crate::config::OwnProviders,
    /// Held by whoever changes a session's options: they are read, changed and written as one.
    pub(crate) changing_options: Arc<KeyedMutex<SessionNo>>,
    /// Held by each message with an Idempotency-Key until it is accepted or refused: who sends the same key meanwhile finds
    /// out what became of the first.
    pub(crate) accepting: Arc<KeyedMutex<(SessionNo, String)>>,
    /// A tenant's keys and agents are counted, made and changed one after the other.
    pub(crate) growing: Arc<KeyedMutex<TenantId>>,
    pub(crate) minting: keys::Secret,
    pub(crate) retention: ash_session::Retention,
    pub(crate) enforced: Enforced,
    /// Who makes containers, if anybody does.
    pub(crate) engine: Option<Docker>,
}

/// A reason not to start, or not to go on; the words are for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl From<ash_session::Error> for Failure {
    fn from(error: ash_session::Error) -> Failure {
        Failure(error.to_string())
    }
}

/// So often it is looked how much space and memory is left.
const LOOK_AT_MACHINE: Duration = Duration::from_secs(5);
/// At least so often it is looked which sessions are to go by themselves.
const CLEAN: Duration = Duration::from_secs(60);
/// How long a server that stops goes on sending to the object store.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How much a disk must take that was full before it is believed again.
const PROBE: usize = 1 << 20;
/// How long deltas and idempotency keys are kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

pub async fn serve(config: Config) -> Result<(), Failure> {
    let data = config.data_dir().map_err(Failure)?;
    config.check_keys().map_err(Failure)?;
    edge::return_large_blocks();
    let open_files = edge::raise_open_files();
    data_dir::own(&data).map_err(Failure)?;
    config.check(&Machine::with(&data)).map_err(Failure)?;
    check_disk(&data)?;
    let _lock = lock(&data)?;
    let full = Arc::default();
    let store = open_store(&data, &full).await?;
    let (app, address) = build(&config, &data, (store.clone(), full)).await?;
    let listener = TcpListener::bind((config.host, config.port))
        .await
        .map_err(|error| Failure(format!("cannot listen on {address}: {error}. Is another server running there? Choose another port with --port")))?;
    let address = listener.local_addr().unwrap_or(address);
    clear_groups(&data.join("live")).await;
    let woken = app.sessions.start().await?;
    announce(&data, address, &config, woken)?;
    tokio::spawn(compare_witnesses(app.sessions.clone()));
    tokio::spawn(prune_forever(app.sessions.clone(), store.clone()));
    if let Some(far) = app.sessions.rooms().far.clone() {
        let rooms = app.sessions.rooms().clone();
        let (checking, checked) = (far.clone(), rooms.clone());
        tokio::spawn(async move { far.send_for_ever(&rooms).await });
        if let Some(every) = Some(config.remote_check_every).filter(|every| !every.is_zero()) {
            tokio::spawn(async move { checking.check_for_ever(&checked, every).await });
        }
    }
    let conflict = claim_bucket(&app, &config, address);
    if !config.gc_every.is_zero() {
        tokio::spawn(sweep_forever(app.sessions.clone(), config.gc_every, config.keep()));
    }
    tokio::spawn(clean_forever(app.sessions.clone(), config.retention.clone(), config.gc_every));
    tokio::spawn(watch_memory(app.sessions.clone()));
    if let Some(docker) = app.engine.clone() {
        tokio::spawn(engine::watch(app.sessions.clone(), docker));
    }
    tokio::spawn(watch_disk(app.sessions.clone(), data.clone(), config.keep()));
    tokio::spawn(edge::give_back_memory());
    let edge = Edge::new(config.max_connections, config.client_timeout, open_files);
    let ended = run((listener, edge), &app, config.stop_grace, conflict).await;
    close(&store, &data).await;
    fs::remove_file(data.join("server.json")).ok();
    ended
}

/// In the background: the port is open meanwhile. The answer comes if another server has the bucket and is alive.
fn claim_bucket(app: &App, config: &Config, address: SocketAddr) -> oneshot::Receiver<ClaimConflict> {
    let (lost, conflict) = oneshot::channel();
    let rooms = app.sessions.rooms().clone();
    let claimant = Claimant {
        holder: rooms.settings.node.clone(),
        host: hostname(),
        url: format!("http://{address}"),
        every: config.remote_claim_every,
        take_over: config.take_over,
    };
    tokio::spawn(async move {
        match rooms.far.clone() {
            Some(far) => lost.send(far.keep_claim(&rooms, claimant).await).is_ok(),
            None => std::future::pending().await,
        }
    });
    conflict
}

/// Brings back everything that the object store has and this data directory has not. No server may run here.
/// `lazily`: files stay there until somebody resumes.
pub async fn restore(
    config: &Config,
    lazily: bool,
    tell: &mut (dyn FnMut(&Returned) + Send),
) -> Result<Returned, Failure> {
    let data = config.data_dir().map_err(Failure)?;
    data_dir::own(&data).map_err(Failure)?;
    check_disk(&data)?;
    let _lock = lock(&data)?;
    let full = Arc::default();
    let store = open_store(&data, &full).await?;
    // Nothing runs meanwhile.
    let (sandbox, walls_required) = (Sandbox::None, ash_sandbox::Required::default());
    let config = Config { sandbox, walls_required, ..config.clone() };
    let (app, _) = build(&config, &data, (store.clone(), full)).await?;
    let rooms = app.sessions.rooms();
    let far = rooms.far.clone().ok_or_else(|| Failure("say where from: --from URL".to_owned()))?;
    rooms.store.set_far(&far.bucket.to_string()).await.map_err(ash_session::Error::from)?;
    let returned = far.bring_back_all(rooms, lazily, tell).await?;
    close(&store, &data).await;
    Ok(returned)
}

/// Brings back what packs and the object store know better than the database. No server may run here.
pub async fn repair(config: &Config, how: Repair) -> Result<Repaired, Failure> {
    let data = config.data_dir().map_err(Failure)?;
    data_dir::own(&data).map_err(Failure)?;
    check_disk(&data)?;
    let _lock = lock(&data)?;
    let full = Arc::new(AtomicBool::new(false));
    let damaged = match open_store(&data, &full).await {
        Err(failure) => Some(failure.0),
        Ok(store) => {
            let damage = store.damage().await.unwrap_or_else(|error| Some(error.to_string()));
            close(&store, &data).await;
            damage
        }
    };
    let aside = match (&damaged, how) {
        (Some(_), Repair::Apply) => Some(database::put_aside(&data).map_err(Failure)?),
        // What is in there cannot be compared: all that witnesses know would come back.
        (Some(_), Repair::DryRun) | (None, _) => None,
    };
    if let (Some(damaged), None) = (&damaged, &aside) {
        return Ok(Repaired { damaged: Some(damaged.clone()), ..Repaired::default() });
    }
    let store = open_store(&data, &full).await?;
    // Nothing runs meanwhile.
    let (sandbox, walls_required) = (Sandbox::None, ash_sandbox::Required::default());
    let config = Config { sandbox, walls_required, ..config.clone() };
    let (app, _) = build(&config, &data, (store.clone(), full)).await?;
    let rooms = app.sessions.rooms();
    if let Some(far) = &rooms.far {
        rooms.store.set_far(&far.bucket.to_string()).await.map_err(ash_session::Error::from)?;
    }
    let (sessions, orphans) = app.sessions.repair(how).await?;
    let kept = match how {
        Repair::DryRun => Vec::new(),
        Repair::Apply => {
            database::forget_damage(&data).map_err(Failure)?;
            database::keep_trees(&data, &orphans).map_err(Failure)?
        }
    };
    close(&store, &data).await;
    Ok(Repaired { damaged, aside, sessions, orphans, kept })
}

/// What `ash repair` did, or would do.
#[derive(Debug, Default)]
pub struct Repaired {
    /// Why the database cannot be read.
    pub damaged: Option<String>,
    /// Where the damaged database is now.
    pub aside: Option<PathBuf>,
    pub sessions: Vec<ash_session::RepairedSession>,
    /// Live trees of workspaces that no witness knows, and where they are now.
    pub orphans: Vec<ash_model::WorkspaceId>,
    pub kept: Vec<PathBuf>,
}

/// What an object store has, without restoring anything.
pub async fn far_sessions(config: &Config) -> Result<Vec<FarSession>, Failure> {
    let bucket = config.bucket().map_err(|error| Failure(error.to_string()))?;
    let bucket = bucket.ok_or_else(|| Failure("say where from: --from URL".to_owned()))?;
    Ok(Far::new(bucket, None).sessions().await?)
}

/// `full`: what the store sets when its disk is.
async fn build(
    config: &Config,
    data: &Path,
    (store, full): (Arc<Sqlite>, Arc<AtomicBool>),
) -> Result<(App, SocketAddr), Failure> {
    let groups = tokio::task::spawn_blocking(ash_sandbox::groups).await.unwrap_or(ash_sandbox::Groups::None);
    walls::check(config, groups).map_err(Failure)?;
    let (backend, engine) = backend(config, data).await?;
    let enforced = Enforced::of(config.sandbox, groups);
    let metrics = Metrics::new(format!("{}-{}", hostname(), std::process::id()));
    let settings = Settings {
        node: node_id(data)?,
        boot: boot_id(),
        live_dir: data.join("live"),
        repo_dir: data.join("repo"),
        limits: config.limits(),
        most: config.limits_max,
        quotas: config.quotas,
        max_sandboxes: config.max_sandboxes,
        min_memory: config.min_memory_mb.saturating_mul(1 << 20),
        prewarm: config.prewarm,
        queue_patience: config.queue_wait,
        orphan_ttl: config.orphan_ttl,
        interrupt_grace: config.interrupt_grace,
        permission_timeout: config.permission_timeout,
        max_wait: config.max_wait,
        idle_timeout: config.idle_timeout,
        checkpoint_every: config.checkpoint_every,
        keys: config.snapshot_keys(),
        claude: config.claude().map(ClaudeProgram::new),
        egress: config.egress(),
        far_cache: config.snapshot_cache_mb.saturating_mul(1 << 20),
        min_free: config.min_free_mb.saturating_mul(1 << 20),
        durability: config.durability,
        remote_timeout: config.remote_timeout,
        prices: config.prices.clone(),
        required: config.walls_required.clone(),
        user_namespaces: config.allow_userns,
        setup_most: config.setup_max_seconds,
        database_damage: database::damage(data).map(|damage| damage.error),
    };
    for dir in [&settings.live_dir, &settings.repo_dir, &data.join("scratch")] {
        data_dir::make(dir).map_err(Failure)?;
    }
    clear(&data.join("scratch"));
    spread(&settings.live_dir);
    // As root, every workspace gets a uid of its own; anybody else has only their own.
    let is_root = rustix::process::geteuid().is_root() && config.sandbox != Sandbox::None;
    let uids = Uids::new(is_root.then(|| config.sandbox_uids.0.clone()));
    if config.api_key().is_none() {
        keys::bootstrap(store.as_ref(), &data.join("initial-api-key")).await?;
    }
    let bucket = config.bucket().map_err(|error| Failure(error.to_string()))?;
    if bucket.is_none() && config.durability == ash_model::Durability::Remote {
        return Err(Failure("ASH_DURABILITY=remote needs an object store: set ASH_SNAPSHOT_URL".to_owned()));
    }
    let bytes_per_second =
        (config.remote_mbit > 0).then_some(config.remote_mbit.saturating_mul(1_000_000) / 8);
    let far = bucket.map(|bucket| Arc::new(Far::new(bucket, bytes_per_second)));
    let clock = TrustedClock::open(data.join("clock.json"), &settings.boot, Reading::now);
    let rooms = Rooms::new(store, backend, metrics.clone(), (uids, settings, Timestamp::now))
        .with_far(far)
        .noticing_full(full)
        .with_trusted_clock(Arc::new(clock));
    let app = App {
        sessions: Sessions::new(rooms),
        metrics,
        api_key: config.api_key(),
        internal_secret: config.internal_secret(),
        default_runtime: config.default_runtime,
        scratch: data.join("scratch"),
        origins: config.allowed_origins.clone(),
        hosts: AllowedHosts::new(config.host, &config.allowed_hosts),
        failed_keys: Arc::default(),
        streams: KeyStreams::new(config.max_streams),
        large_bodies: LargeBodies::new(data.join("scratch")),
        client_timeout: config.client_timeout,
        provider_urls: config.provider_urls.clone(),
        own_providers: config.own_providers,
        changing_options: Arc::default(),
        accepting: Arc::default(),
        growing: Arc::default(),
        agent_dirs: config.agent_dirs(),
        minting: keys::Secret::of(&data.join("seal.key"))?,
        retention: config.retention.clone(),
        enforced,
        engine,
    };
    Ok((app, SocketAddr::new(config.host, config.port)))
}

/// What a server that was killed left of uploads. Nobody else is here: the data directory is locked.
fn clear(scratch: &Path) {
    for entry in fs::read_dir(scratch).into_iter().flatten().flatten() {
        if let Err(error) = ash_snapshot::Folder::erase(&entry.path()) {
            tracing::warn!(%error, "what an earlier server left could not be removed");
        }
    }
}

async fn open_store(data: &Path, full: &Arc<AtomicBool>) -> Result<Arc<Sqlite>, Failure> {
    let seal = Seal::open(&data.join("seal.key"))
        .map_err(|error| Failure(format!("cannot read the seal key: {error}")))?;
    let path = data.join("ash.db");
    let boot = boot_id();
    database::look_at(data, &boot).map_err(Failure)?;
    let store = Sqlite::open_reporting(&path, seal, full.clone()).await;
    let store = store.map(Arc::new).map_err(|error| {
        Failure(format!(
            "cannot open {}: {error}. If it is damaged, `ash repair` says what can be brought back from packs and the object store",
            path.display()
        ))
    })?;
    database::mark_open(data, &boot).map_err(Failure)?;
    Ok(store)
}

/// Everything that was committed is in the database's one file after this.
async fn close(store: &Sqlite, data: &Path) {
    store.close().await;
    database::mark_closed(data);
}

type Backends = (Arc<dyn Backend>, Option<Docker>);

async fn backend(config: &Config, data: &Path) -> Result<Backends, Failure> {
    let exe =
        std::env::current_exe().map_err(|error| Failure(format!("cannot find my own program: {error}")))?;
    match config.sandbox {
        Sandbox::Bubblewrap => {
            let walls = Bubblewrap::probe_with(exe, config.walls_required.clone())
                .await
                .and_then(|walls| walls.sharing_etc(data.join("etc")));
            Ok((Arc::new(walls.map_err(|error| Failure(error.to_string()))?), None))
        }
        Sandbox::Docker => {
            let docker = engine::open(config, exe).await.map_err(|error| Failure(error.to_string()))?;
            Ok((Arc::new(docker.clone()), Some(docker)))
        }
        Sandbox::None => {
            tracing::warn!(
                "ASH_SANDBOX=none: agents run WITHOUT WALLS, with all your rights. Use it only where you would run the agent by hand"
            );
            Ok((Arc::new(Bare::new(exe).requiring(config.walls_required.clone())), None))
        }
    }
}

async fn run(
    (listener, edge): (TcpListener, Edge),
    app: &App,
    grace: Duration,
    conflict: oneshot::Receiver<ClaimConflict>,
) -> Result<(), Failure> {
    let router = routes::router(app.clone());
    let serving = tokio::spawn(edge.serve(listener, router));
    let stop = tokio::select! {
        stop = wait_for_signal() => stop?,
        Ok(conflict) = conflict => {
            tracing::error!("leaving: sandboxes and their turns go on for ASH_ORPHAN_TTL seconds, the next server takes them over");
            serving.abort();
            return Err(Failure(conflict.to_string()));
        }
    };
    if stop == Stop::Leaving {
        tracing::info!("leaving: sandboxes and their turns go on, the next server takes them over");
        serving.abort();
        return Ok(());
    }
    tracing::info!(
        "stopping: running turns get {} s, then every sandbox is captured and ended",
        grace.as_secs()
    );
    let stopping = async {
        app.sessions.shut_down(grace).await;
        app.sessions.rooms().drain_far(LAST_WORDS).await;
        if let Some(far) = &app.sessions.rooms().far {
            far.release_claim().await;
        }
    };
    tokio::select! {
        () = stopping => tracing::info!("stopped"),
        _ = wait_for_signal() => tracing::warn!("stopped at once; sandboxes live on and are taken over at the next start"),
    }
    serving.abort();
    Ok(())
}

/// SIGHUP leaves the sandboxes to the next server; SIGTERM and Ctrl-C end them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Gracefully,
    Leaving,
}

async fn wait_for_signal() -> Result<Stop, Failure> {
    let failed = |error: std::io::Error| Failure(format!("cannot listen for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    Ok(tokio::select! {
        _ = terminate.recv() => Stop::Gracefully,
        _ = interrupt.recv() => Stop::Gracefully,
        _ = hangup.recv() => Stop::Leaving,
    })
}

/// Beside all else: until it is done nothing is collected, but everybody is served.
async fn compare_witnesses(sessions: Sessions) {
    if let Err(error) = sessions.compare_witnesses().await {
        tracing::error!(%error, "the database could not be compared with its witnesses: nothing is deleted until it was");
    }
    sessions.check_database().await;
}

async fn prune_forever(sessions: Sessions, store: Arc<Sqlite>) {
    let mut hours = tokio::time::interval(Duration::from_secs(3600));
    loop {
        hours.tick().await;
        let before = ash_session::before(sessions.rooms().rules_clock(), KEPT);
        if let Err(error) = store.prune(before).await {
            tracing::warn!(%error, "old deltas could not be forgotten");
        }
    }
}

async fn watch_memory(sessions: Sessions) {
    let mut rounds = tokio::time::interval(LOOK_AT_MACHINE);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        sessions.ease_memory().await;
    }
}

async fn watch_disk(sessions: Sessions, data: PathBuf, keep: ash_session::Keep) {
    let mut rounds = tokio::time::interval(LOOK_AT_MACHINE);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if sessions.is_full() && probe(&data).is_ok() {
            sessions.has_space_again();
        }
        match Disk::of(&data) {
            Ok(disk) => sessions.set_free(disk.free_bytes, &keep).await,
            Err(error) => tracing::warn!(%error, "nobody knows how much space is left"),
        }
    }
}

/// Whether the disk takes a file, and as much as a turn that changed little writes.
fn probe(data: &Path) -> std::io::Result<()> {
    let path = data.join("probe.new");
    let written = fs::File::create(&path).and_then(|mut file| {
        file.write_all(&vec![0; PROBE])?;
        file.sync_all()
    });
    fs::remove_file(&path).ok();
    written
}

/// What sandboxes left whose shims were killed, and whose sessions nobody may ever resume.
async fn clear_groups(live: &Path) {
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

async fn sweep_forever(sessions: Sessions, every: Duration, keep: ash_session::Keep) {
    // After the start come those who wait for their sessions.
    let mut rounds = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        if let Err(error) = sessions.sweep(&keep).await {
            tracing::warn!(%error, "nothing was collected");
        }
    }
}

/// Oftener than packs are collected: a time to live is meant in minutes, and it costs little to look.
async fn clean_forever(sessions: Sessions, retention: ash_session::Retention, sweeps: Duration) {
    let every = if sweeps.is_zero() { CLEAN } else { sweeps.min(CLEAN) };
    let mut rounds = tokio::time::interval(every);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        sessions.rooms().keep_time();
        if let Err(error) = sessions.clean(&retention).await {
            tracing::warn!(%error, "what is to go by itself was not looked for");
        }
    }
}

fn announce(data: &Path, address: SocketAddr, config: &Config, woken: usize) -> Result<(), Failure> {
    let url = format!("http://{address}");
    let info = serde_json::json!({
        "pid": std::process::id(), "url": url, "version": crate::VERSION, "settings": config.given,
        "models": config.egress().map(|egress| egress.upstream), "claude": config.claude(),
    });
    let fresh = data.join("server.json.new");
    fs::write(&fresh, info.to_string())
        .and_then(|()| fs::rename(&fresh, data.join("server.json")))
        .map_err(|error| Failure(format!("cannot write to {}: {error}", data.display())))?;
    tracing::info!(%url, data = %data.display(), taken_over = woken, "ash {} is ready", crate::VERSION);
    if config.api_key().is_none() {
        tracing::info!("the API key is in {}", data.join("initial-api-key").display());
    }
    std::io::stderr().flush().ok();
    Ok(())
}

/// SQLite relies on locks that network file systems only pretend to have.
fn check_disk(data: &Path) -> Result<(), Failure> {
    let disk =
        Disk::of(data).map_err(|error| Failure(format!("cannot look at {}: {error}", data.display())))?;
    match disk.remote {
        None => Ok(()),
        Some(kind) => Err(Failure(format!(
            "{} is on a network file system ({kind}), where SQLite loses data. Choose a local directory with --data-dir or ASH_DATA_DIR",
            data.display()
        ))),
    }
}

/// One server per data directory: a second one would be a second owner.
fn lock(data: &Path) -> Result<fs::File, Failure> {
    let path = data.join("ash.lock");
    let file = fs::File::create(&path)
        .map_err(|error| Failure(format!("cannot open {}: {error}", path.display())))?;
    for _ in 0..20 {
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        // One that was just killed, or somebody who only looks whether it is held.
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Failure(format!(
        "another ash server uses {}. Stop it, or choose another directory with --data-dir",
        data.display()
    )))
}

/// Tells ext4 that the trees beneath have nothing to do with each other, so that each gets a part of the disk of its
/// own. In one part all of them look for free inodes among those of trees that were just erased, which without a
/// journal takes most of the time of a new session. Other file systems know no such hint, and need none.
fn spread(dir: &Path) {
    if let Ok(dir) = fs::File::open(dir)
        && let Ok(flags) = ioctl_getflags(&dir)
    {
        ioctl_setflags(&dir, flags | IFlags::TOPDIR).ok();
    }
}

fn node_id(data: &Path) -> Result<String, Failure> {
    let path = data.join("node-id");
    if let Ok(text) = fs::read_to_string(&path)
        && !text.trim().is_empty()
    {
        return Ok(text.trim().to_owned());
    }
    let id = uuid::Uuid::new_v4().to_string();
    let fresh = data.join("node-id.new");
    fs::write(&fresh, &id)
        .and_then(|()| fs::rename(&fresh, &path))
        .map_err(|error| Failure(format!("cannot write {}: {error}", path.display())))?;
    Ok(id)
}

/// Changes with every boot: what was not synced before it is gone.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl App {
    /// Where a person on this machine finds the key, without saying where exactly to anybody else.
    pub(crate) fn key_hint(&self) -> &'static str {
        match self.api_key {
            Some(_) => "the value of ASH_API_KEY that the server was started with",
            None => {
                "in the file initial-api-key of the server's data directory (by default ~/.ash/initial-api-key)"
            }
        }
    }

    /// Those of the operator's tenant.
    pub(crate) fn is_operator(&self, tenant: &TenantId) -> bool {
        *tenant == TenantId::main()
    }
}
