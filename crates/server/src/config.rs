//! Every setting of the server, as a flag and as an environment variable.

mod check;

pub(crate) use check::HostResources;

use crate::field_coercion::{self, FieldError};
use ash_sandbox::EgressPolicy;
use ash_session::ProviderAccess;
use clap::{
    Args, ValueEnum,
    builder::{OsStringValueParser, TypedValueParser},
};
use secrecy::{ExposeSecret, SecretString};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

const ANTHROPIC: &str = "https://api.anthropic.com";
/// A shorter key can be guessed.
const MIN_KEY: usize = 16;

/// Secret settings, which are only variables: every user of the machine can read a command line.
pub const SECRETS: [(&str, &str); 4] = [
    (
        "ASH_API_KEY",
        "API key of tenant `default`, at least 16 characters; without it the server creates a key and writes it to DATA_DIR/initial-api-key",
    ),
    (
        "ASH_INTERNAL_SECRET",
        "Secret for /api/internal, at least 16 characters; without it those routes are closed",
    ),
    (
        "ANTHROPIC_API_KEY",
        "Key for model calls, also of the built-in agent; it is added outside of the sandbox and never enters one",
    ),
    (
        "CLAUDE_CODE_OAUTH_TOKEN",
        "Subscription token, as `claude setup-token` prints it, instead of ANTHROPIC_API_KEY",
    ),
];

fn secret_from_env(name: &str) -> Option<SecretString> {
    std::env::var(name).ok().map(SecretString::from)
}

fn reject_key_flag(_: &str) -> Result<Infallible, String> {
    let names: Vec<&str> = SECRETS.iter().map(|(name, _)| *name).collect();
    Err(format!(
        "keys are not taken as flags, which every user of this machine can read: set the environment variable ({})",
        names.join(", ")
    ))
}

#[derive(Debug, Clone, Args)]
pub struct ServerConfig {
    /// Port to listen on (0: any free one)
    #[arg(long, env = "ASH_PORT", default_value_t = 4100)]
    pub port: u16,
    /// Address to listen on
    #[arg(long, env = "ASH_HOST", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Directory for all data of the server [default: ~/.ash]
    #[arg(long, env = "ASH_DATA_DIR", value_parser = path())]
    pub data_dir: Option<PathBuf>,
    /// Hidden: refuses keys as flags and names the variables
    #[arg(
        long = "api-key",
        aliases = ["internal-secret", "anthropic-api-key", "claude-oauth-token"],
        hide = true,
        value_parser = reject_key_flag
    )]
    pub refused_key: Option<Infallible>,
    #[arg(skip = secret_from_env("ASH_API_KEY"))]
    pub api_key: Option<SecretString>,
    #[arg(skip = secret_from_env("ASH_INTERNAL_SECRET"))]
    pub internal_secret: Option<SecretString>,
    /// Isolation of every agent
    #[arg(long, env = "ASH_SANDBOX", value_enum, default_value_t = SandboxSetting::Bubblewrap)]
    pub sandbox: SandboxSetting,
    /// Docker engine for ASH_SANDBOX=docker: unix:///PATH of its socket [default: unix:///var/run/docker.sock]
    #[arg(long, env = "DOCKER_HOST", value_name = "URL")]
    pub docker_host: Option<String>,
    /// Image for agents whose ash.toml names none, with ASH_SANDBOX=docker
    #[arg(long, env = "ASH_DOCKER_IMAGE", value_name = "IMAGE", default_value = "ash-agent", value_parser = image)]
    pub docker_image: ash_model::Image,
    /// Uids for sandboxes if the server runs as root, as FIRST-LAST
    #[arg(long, env = "ASH_SANDBOX_UIDS", default_value = "200000-265535", value_parser = uids)]
    pub sandbox_uids: SandboxUidRange,
    /// Default memory limit of a sandbox in MiB
    #[arg(long, env = "ASH_SANDBOX_MEMORY_MB", default_value_t = 2048)]
    pub sandbox_memory_mb: u64,
    /// Processors per sandbox, for example 2 or 0.5 (as root, or with docker) [default: all]
    #[arg(long, env = "ASH_SANDBOX_CPUS", value_name = "NUMBER", value_parser = cpu_millis)]
    pub sandbox_cpus: Option<u64>,
    /// Default limits of a sandbox, which its agent or session may override, as NAME=NUMBER,…: memoryMb, cpuPercent,
    /// maxProcesses (512), maxOpenFiles (8192), diskMb (10240), maxFiles (1000000), turnSeconds (0), outputKbPerSecond
    /// (16384); 0: no limit
    #[arg(long, env = "ASH_LIMITS", value_name = "LIMITS", default_value = "", hide_default_value = true, value_parser = bounds)]
    pub limits: ash_model::ResourceLimits,
    /// Maximum of the limits that agents and sessions may set, with the same names [default: ASH_LIMITS; no maximum for
    /// the operator]
    #[arg(long, env = "ASH_LIMITS_MAX", value_name = "LIMITS", default_value = "", hide_default_value = true, value_parser = bounds)]
    pub limits_max: ash_model::ResourceLimits,
    /// Quotas of one tenant, as NAME=NUMBER,…: sessionMessages (1000) and sessionQueuedKb (65536), queued in one
    /// session; tenantMessages (20000) and tenantQueuedKb (524288), queued in all of its sessions; keys (1000); agents
    /// (1000); keptAgents (10000), with deleted ones; agentVersions (10000) of one agent; prewarmed (16) sandboxes;
    /// prewarmedTotal (64), of all tenants; labelBytes (1024), configKb (4096) and metadataKb (64), the size of each;
    /// credentials (1000), stored keys for models; 0: no limit
    #[arg(long, env = "ASH_QUOTAS", value_name = "QUOTAS", default_value = "", hide_default_value = true, value_parser = quotas)]
    pub quotas: ash_model::Quotas,
    /// Directories from which agents may be deployed by `path`, comma-separated [default: any, but only for local
    /// connections of the server's own user, without a proxy]
    #[arg(long, env = "ASH_AGENT_DIRS", value_name = "DIRS", value_delimiter = ',', value_parser = path())]
    pub agent_dirs: Vec<PathBuf>,
    /// Required isolation, comma-separated: sandbox, seccomp, landlock, scopes, limits, uid, no-userns; or all. Without
    /// it the server does not start and makes no sandbox
    #[arg(long, env = "ASH_WALLS_REQUIRED", value_name = "WALLS", default_value = "", hide_default_value = true, value_parser = walls)]
    pub walls_required: ash_sandbox::RequiredWalls,
    /// Allow user namespaces for agents whose ash.toml requests them (1 or 0); weakens isolation, see docs/security.md
    #[arg(long, env = "ASH_ALLOW_USERNS", value_parser = parse_bool)]
    pub allow_userns: bool,
    /// Maximum run time of an agent's install.sh or startup.sh in seconds, whatever its ash.toml says
    #[arg(long, env = "ASH_SETUP_MAX_SECONDS", default_value = "3600", value_parser = seconds)]
    pub setup_max_seconds: Duration,
    /// Maximum number of sandboxes at once
    #[arg(long, env = "ASH_MAX_SANDBOXES", default_value_t = 1000)]
    pub max_sandboxes: usize,
    /// Free memory in MB below which the server evicts idle sandboxes and starts no new one
    #[arg(long, env = "ASH_MIN_MEMORY_MB", default_value_t = 128)]
    pub min_memory_mb: u64,
    /// Number of prewarmed sandboxes for each agent in use, so that its next sessions start faster
    #[arg(long, env = "ASH_PREWARM", default_value_t = 0)]
    pub prewarm: usize,
    /// Seconds that a request waits for a sandbox when all are at work; the header `Prefer: wait=` overrides it
    #[arg(long, env = "ASH_QUEUE_WAIT", default_value = "0", value_parser = seconds)]
    pub queue_wait: Duration,
    /// Seconds that a sandbox lives on without a server
    #[arg(long, env = "ASH_ORPHAN_TTL", default_value = "3600", value_parser = seconds)]
    pub orphan_ttl: Duration,
    /// Seconds that running turns get to finish when the server stops
    #[arg(long, env = "ASH_STOP_GRACE", default_value = "10", value_parser = seconds)]
    pub stop_grace: Duration,
    /// Seconds that an agent gets to end an interrupted turn before its process is killed
    #[arg(long, env = "ASH_INTERRUPT_GRACE", default_value = "10", value_parser = seconds)]
    pub interrupt_grace: Duration,
    /// Seconds that a call waits for permission before it is denied; a session may override it
    #[arg(long, env = "ASH_PERMISSION_TIMEOUT", default_value = "600", value_parser = seconds)]
    pub permission_timeout: Duration,
    /// Seconds that background work of an agent keeps a turn open after its answer; a session may override it
    #[arg(long, env = "ASH_MAX_WAIT", default_value = "600", value_parser = seconds)]
    pub max_wait: Duration,
    /// Seconds without use after which a session is captured and its sandbox released (0: never); a session may
    /// override it
    #[arg(long, env = "ASH_IDLE_TIMEOUT", default_value = "1800", value_parser = seconds)]
    pub idle_timeout: Duration,
    /// Model services that clients may use with keys of their own: `off` (none), `list` (those of ASH_PROVIDER_URLS), or
    /// `public` (these and every public host)
    #[arg(long, env = "ASH_OWN_PROVIDERS", value_enum, default_value_t = ByokPolicy::Public)]
    pub own_providers: ByokPolicy,
    /// Base URLs that clients may use with keys of their own although they are not on the Internet, and everything
    /// beneath their paths, comma-separated
    #[arg(long, env = "ASH_PROVIDER_URLS", value_delimiter = ',')]
    pub provider_urls: Vec<String>,
    /// Seconds between two captures of a running turn (0: only when it is over)
    #[arg(long, env = "ASH_CHECKPOINT_EVERY", default_value = "300", value_parser = seconds)]
    pub checkpoint_every: Duration,
    /// Checkpoints to keep for every workspace: the newest N
    #[arg(long, env = "ASH_KEEP_LAST", default_value_t = 50)]
    pub keep_last: usize,
    /// Checkpoints to keep: the newest of each of the last N hours that have one
    #[arg(long, env = "ASH_KEEP_HOURLY", default_value_t = 48)]
    pub keep_hourly: usize,
    /// Checkpoints to keep: the newest of each of the last N days that have one
    #[arg(long, env = "ASH_KEEP_DAILY", default_value_t = 30)]
    pub keep_daily: usize,
    /// Seconds between two garbage collections (0: never)
    #[arg(long, env = "ASH_GC_EVERY", default_value = "3600", value_parser = seconds)]
    pub gc_every: Duration,
    /// Seconds for which garbage collection spares data that was just written or removed
    #[arg(long, env = "ASH_GC_GRACE", default_value = "86400", value_parser = seconds)]
    pub gc_grace: Duration,
    /// Directory with a key for each tenant; snapshots of new tenants are sealed with it
    #[arg(long, env = "ASH_SNAPSHOT_KEYS", value_name = "DIR", value_parser = path())]
    pub snapshot_keys: Option<PathBuf>,
    /// Object store to which all saved data is replicated: s3://bucket/prefix, gs://…, az://container/…,
    /// file:///directory
    #[arg(long, env = "ASH_SNAPSHOT_URL", value_name = "URL")]
    pub snapshot_url: Option<String>,
    /// Size of the local cache of the object store in MB, for each tenant
    #[arg(long, env = "ASH_SNAPSHOT_CACHE_MB", default_value_t = 10_240)]
    pub snapshot_cache_mb: u64,
    /// When a turn is done: when it is saved on this machine (local), or also in the object store (remote); a session
    /// or message may override it
    #[arg(long, env = "ASH_DURABILITY", default_value = "local", value_parser = durability)]
    pub durability: ash_model::Durability,
    /// Seconds that a turn with durability remote waits for the object store
    #[arg(long, env = "ASH_REMOTE_TIMEOUT", default_value = "60", value_parser = seconds)]
    pub remote_timeout: Duration,
    /// Seconds without use after which a session's files are kept only in the object store, if it has them
    #[arg(long, env = "ASH_COLD_TTL", default_value = "7200", value_parser = seconds)]
    pub cold_ttl: Duration,
    /// Free disk space in MiB below which the server starts nothing new, and removes local copies of data that the
    /// object store has
    #[arg(long, env = "ASH_MIN_FREE_MB", default_value_t = 256)]
    pub min_free_mb: u64,
    /// Seconds that a purged session stays in the trash before it is deleted for good
    #[arg(long, env = "ASH_TRASH_TTL", default_value = "604800", value_parser = seconds)]
    pub trash_ttl: Duration,
    /// Rules that end or purge sessions at rest, as STATUS:AGE=FATE, comma-separated: ended:7d=purge,paused:90d=end
    /// [default: none]
    #[arg(long, env = "ASH_RETENTION", value_name = "RULES", default_value = "", hide_default_value = true, value_parser = ash_session::SessionTtlRules::parse)]
    pub retention: ash_session::SessionTtlRules,
    /// Seconds between two garbage collections of the object store (0: with every local collection)
    #[arg(long, env = "ASH_REMOTE_GC_EVERY", default_value = "86400", value_parser = seconds)]
    pub remote_gc_every: Duration,
    /// Seconds between two checks that the object store still has what was sent; missing objects are sent again (0:
    /// never)
    #[arg(long, env = "ASH_REMOTE_CHECK_EVERY", default_value = "900", value_parser = seconds)]
    pub remote_check_every: Duration,
    /// Seconds between two claims on the object store, which detect a second server on the same prefix [default: 2 for
    /// file://, else 15]
    #[arg(long, env = "ASH_REMOTE_CLAIM_EVERY", value_name = "SECONDS", value_parser = claim_interval)]
    pub remote_claim_every: Option<Duration>,
    /// Take over the object store at once from another server that has claimed it
    #[arg(long)]
    pub take_over: bool,
    /// Maximum upload rate to the object store in megabits per second (0: unlimited)
    #[arg(long, env = "ASH_REMOTE_MBIT", default_value_t = 0)]
    pub remote_mbit: u64,
    #[arg(skip = secret_from_env("ANTHROPIC_API_KEY"))]
    pub anthropic_api_key: Option<SecretString>,
    #[arg(skip = secret_from_env("CLAUDE_CODE_OAUTH_TOKEN"))]
    pub claude_oauth_token: Option<SecretString>,
    /// URL of the model service
    #[arg(long, env = "ANTHROPIC_BASE_URL", default_value = ANTHROPIC)]
    pub anthropic_base_url: String,
    /// Prices of models beyond the built-in list, in dollars for a million tokens: {"MODEL": {"input": 3, "output": 15,
    /// "cacheWrite": 3.75, "cacheRead": 0.3, "cacheWrite1h": 6}}, or a file with that
    #[arg(long, env = "ASH_PRICES", value_name = "JSON|FILE", default_value = "", hide_default_value = true, value_parser = prices)]
    pub prices: ash_model::ModelPrices,
    /// Claude Code's program [default: `claude` on the PATH]
    #[arg(long, env = "ASH_CLAUDE_BIN", value_name = "FILE", value_parser = path())]
    pub claude_bin: Option<PathBuf>,
    /// Runtime of agents whose ash.toml names none: builtin or claude
    #[arg(long, env = "ASH_DEFAULT_RUNTIME", default_value = "builtin", value_parser = runtime)]
    pub default_runtime: ash_model::AgentRuntime,
    /// Web origins that may call the API, comma-separated; * for all [default: none]
    #[arg(long, env = "ALLOWED_ORIGINS", value_delimiter = ',')]
    pub allowed_origins: Vec<String>,
    /// Host names that the server answers to, comma-separated, as a reverse proxy sends them in `Host`; addresses and
    /// localhost always work [default: none on loopback, else all]
    #[arg(long, env = "ASH_ALLOWED_HOSTS", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,
    /// Maximum number of open connections, at most half of the files that the server may open; new connections replace
    /// idle ones
    #[arg(long, env = "ASH_MAX_CONNECTIONS", default_value_t = 4096)]
    pub max_connections: usize,
    /// Maximum number of streams and waiting messages of one key at once
    #[arg(long, env = "ASH_MAX_STREAMS", default_value_t = 1000)]
    pub max_streams: usize,
    /// Seconds after which the server drops a client that stops in the middle of a request or an answer
    #[arg(long, env = "ASH_CLIENT_TIMEOUT", default_value = "60", value_parser = seconds)]
    pub client_timeout: Duration,
    /// Every setting of this server, by flag. `ash doctor` reads it in `server.json`. It has no keys.
    #[arg(skip)]
    pub settings_by_flag: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SandboxSetting {
    Bubblewrap,
    /// A container for each sandbox, made by a Docker engine on this machine
    Docker,
    /// No isolation: the agent is an ordinary process of the server's user
    None,
}

/// Which model services clients may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ByokPolicy {
    Off,
    List,
    Public,
}

#[derive(Debug, Clone)]
pub struct SandboxUidRange(pub std::ops::Range<u32>);

fn uids(text: &str) -> Result<SandboxUidRange, String> {
    let (first, last) = text.split_once('-').ok_or("write it as FIRST-LAST, for example 200000-265535")?;
    let number = |text: &str| text.trim().parse::<u32>().map_err(|error| format!("{text:?}: {error}"));
    let (first, last) = (number(first)?, number(last)?);
    // The uid of a user or service must never own an agent's files.
    if first < 10_000 || last < first || last == u32::MAX {
        return Err("FIRST must be at least 10000 and not above LAST".to_owned());
    }
    Ok(SandboxUidRange(first..last + 1))
}

/// In thousandths.
fn cpu_millis(text: &str) -> Result<u64, String> {
    let number: f64 = text.parse().map_err(|_| "must be a number, as 2 or 0.5".to_owned())?;
    // The kernel does not count in smaller parts.
    if (0.01..=1024.0).contains(&number) {
        Ok((number * 1000.0).round() as u64)
    } else {
        Err("must be at least 0.01 and at most 1024".to_owned())
    }
}

fn bounds(text: &str) -> Result<ash_model::ResourceLimits, String> {
    ash_model::ResourceLimits::parse(text).map_err(|error| error.to_string())
}

fn quotas(text: &str) -> Result<ash_model::Quotas, String> {
    ash_model::Quotas::parse(text).map_err(|error| error.to_string())
}

fn walls(text: &str) -> Result<ash_sandbox::RequiredWalls, String> {
    ash_sandbox::RequiredWalls::parse(text).map_err(|error| error.to_string())
}

/// Also an empty path, which counts as unset: compose files leave variables empty.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn is_named(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

/// An unknown word is an error, so that a typo cannot weaken isolation.
fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "" | "0" | "false" => Ok(false),
        _ => Err("must be 1 or 0".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).map_err(|_| "must be a whole number of seconds".to_owned())
}

/// Also a fraction of a second.
fn claim_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number of seconds, as 15 or 0.5".to_owned())?;
    if (0.05..=600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be at least 0.05 and at most 600".to_owned())
    }
}

fn runtime(text: &str) -> Result<ash_model::AgentRuntime, String> {
    ash_model::AgentRuntime::parse(text).ok_or_else(|| "must be builtin or claude".to_owned())
}

/// Prices by prefix of the model name, inline or in a file.
fn prices(text: &str) -> Result<ash_model::ModelPrices, String> {
    let json = match text.trim_start() {
        "" => return Ok(ash_model::ModelPrices::default()),
        json if json.starts_with('{') => json.to_owned(),
        file => std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?,
    };
    given_prices(&json).and_then(ash_model::ModelPrices::with_overrides).map_err(|wrong| {
        format!("write it as {{\"MODEL\": {{\"input\": 3, \"output\": 15}}}}, in dollars for a million tokens: {wrong}")
    })
}

fn given_prices(json: &str) -> Result<BTreeMap<String, ash_model::OperatorPrice>, String> {
    let object =
        field_coercion::parse_unique_object(json.as_bytes()).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => "it must be an object that names each model once".to_owned(),
            _ => format!("it is no JSON from line {}, column {} on", error.line(), error.column()),
        })?;
    let models: BTreeMap<String, serde_json::Value> =
        field_coercion::as_written(object).map_err(|error| error.to_string())?;
    let price = |(model, given): (String, serde_json::Value)| match field_coercion::as_written(given) {
        Ok(price) => Ok((model, price)),
        Err(FieldError::Unknown(words)) => Err(format!("{model}.{words}")),
        Err(error) => Err(error.within(&model).to_string()),
    };
    models.into_iter().map(price).collect()
}

fn image(text: &str) -> Result<ash_model::Image, String> {
    ash_model::Image::parse(text).map_err(|error| error.to_string())
}

fn durability(text: &str) -> Result<ash_model::Durability, String> {
    ash_model::Durability::parse(text).ok_or_else(|| "must be local or remote".to_owned())
}

fn is_set(secret: &SecretString) -> bool {
    !secret.expose_secret().is_empty()
}

impl ServerConfig {
    /// Default resource limits of a sandbox.
    pub fn limits(&self) -> ash_model::ResourceLimits {
        self.limits.with_fallback(ash_model::ResourceLimits {
            memory_mb: Some(self.sandbox_memory_mb),
            cpu_percent: self.sandbox_cpus.map(|millis| millis.div_ceil(10)),
            max_processes: Some(512),
            max_open_files: Some(8192),
            disk_mb: Some(10_240),
            max_files: Some(1_000_000),
            turn_seconds: None,
            output_kb_per_second: Some(16_384),
        })
    }

    /// The operator's key. An empty variable, as compose files leave it, counts as unset.
    pub fn api_key(&self) -> Option<SecretString> {
        self.api_key.clone().filter(is_set)
    }

    pub fn internal_secret(&self) -> Option<SecretString> {
        self.internal_secret.clone().filter(is_set)
    }

    /// A short key is accepted, with a warning, if only this machine can reach the server.
    pub(crate) fn check_key_length(&self) -> Result<(), String> {
        let is_short = |key: &Option<SecretString>| {
            key.as_ref().is_some_and(|key| key.expose_secret().chars().count() < MIN_KEY)
        };
        let own = [("ASH_API_KEY", self.api_key()), ("ASH_INTERNAL_SECRET", self.internal_secret())];
        let short: Vec<&str> = own.iter().filter(|(_, key)| is_short(key)).map(|(name, _)| *name).collect();
        let short = short.join(" and ");
        match () {
            () if short.is_empty() => {}
            () if self.host.is_loopback() => tracing::warn!(
                "{short} is shorter than {MIN_KEY} characters: accepted only because the server is bound to loopback"
            ),
            () => {
                return Err(format!(
                    "{short} is shorter than {MIN_KEY} characters, and the server is not bound to loopback: choose a longer one, as `openssl rand -hex 24` makes it"
                ));
            }
        }
        Ok(())
    }

    pub fn retention_policy(&self) -> ash_session::RetentionPolicy {
        let rules = ash_snapshot::SnapshotRetention {
            last: self.keep_last,
            hourly: self.keep_hourly,
            daily: self.keep_daily,
        };
        let far_every = self.remote_gc_every;
        let (grace, cold, trash) = (self.gc_grace, self.cold_ttl, self.trash_ttl);
        ash_session::RetentionPolicy {
            rules,
            grace,
            local_ttl: cold,
            trash_ttl: trash,
            remote_gc_interval: far_every,
        }
    }

    /// The object store, if one is configured. Only this function reads its credentials from the environment.
    pub fn bucket(&self) -> Result<Option<ash_cloud::Bucket>, ash_cloud::BucketError> {
        let url = self.snapshot_url.as_deref().filter(|url| !url.is_empty());
        url.map(|url| ash_cloud::Bucket::open(url, &std::env::vars().collect())).transpose()
    }

    /// Only a service of the operator's own may need no key.
    pub(crate) fn provider_access(&self) -> ProviderAccess {
        let urls = self.provider_urls.clone();
        match self.own_providers {
            ByokPolicy::Off => ProviderAccess::Off,
            ByokPolicy::List => ProviderAccess::Listed(urls),
            ByokPolicy::Public => ProviderAccess::Public(urls),
        }
    }

    pub fn egress(&self) -> Option<EgressPolicy> {
        let key = self.anthropic_api_key.clone().filter(is_set).map(|key| ("x-api-key".to_owned(), key));
        let token = self.claude_oauth_token.as_ref().filter(|token| is_set(token)).map(|token| {
            ("authorization".to_owned(), SecretString::from(format!("Bearer {}", token.expose_secret())))
        });
        let headers: BTreeMap<_, _> = key.or(token).into_iter().collect();
        let upstream = match self.anthropic_base_url.as_str() {
            "" => ANTHROPIC.to_owned(),
            named => named.to_owned(),
        };
        let dialect = Some(ash_model::ModelApiDialect::Anthropic);
        let way = EgressPolicy { upstream, headers, public: false, dialect };
        (!way.headers.is_empty() || way.upstream != ANTHROPIC).then_some(way)
    }

    /// The backend for sandboxes in Docker containers.
    pub fn docker(&self, exe: PathBuf) -> Result<ash_sandbox::DockerBackend, ash_sandbox::Error> {
        let docker =
            ash_sandbox::DockerBackend::new(exe, self.docker_host.as_deref(), self.docker_image.clone())?;
        Ok(docker.requiring(self.walls_required.clone()))
    }

    /// The canonical path: a link may point to a path that the sandbox cannot see.
    pub fn claude_program(&self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path =
            || std::env::split_paths(&path).map(|dir| dir.join("claude")).find(|file| file.is_file());
        let named = self.claude_bin.clone().filter(|file| is_named(file));
        named.or_else(on_path)?.canonicalize().ok()
    }

    pub(crate) fn snapshot_keys(&self) -> Option<PathBuf> {
        self.snapshot_keys.clone().filter(|dir| is_named(dir))
    }

    /// Directories from which agents may be deployed by path.
    pub(crate) fn agent_dirs(&self) -> Vec<PathBuf> {
        let is_listed = |dir: &&PathBuf| is_named(dir) || self.agent_dirs.len() > 1;
        self.agent_dirs.iter().filter(is_listed).cloned().collect()
    }

    pub fn data_dir(&self) -> Result<PathBuf, String> {
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".ash"));
        let dir = self.data_dir.clone().filter(|dir| is_named(dir)).or_else(home).ok_or_else(|| {
            "HOME is not set: say where to keep data with --data-dir or ASH_DATA_DIR".to_owned()
        })?;
        // Sandboxes mount its folders by absolute path.
        std::path::absolute(&dir).map_err(|error| format!("cannot find {}: {error}", dir.display()))
    }
}

/// For tests: independent of the environment of the process.
#[cfg(test)]
impl ServerConfig {
    pub(crate) fn of_flags(flags: &[&str]) -> ServerConfig {
        use clap::{Command, FromArgMatches as _, builder::Resettable};
        let command = ServerConfig::augment_args(Command::new("serve").no_binary_name(true));
        let command = command.mut_args(|arg| arg.env(Resettable::Reset));
        let matches =
            command.try_get_matches_from(flags).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        let config = ServerConfig::from_arg_matches(&matches).expect("settings");
        ServerConfig {
            api_key: None,
            internal_secret: None,
            anthropic_api_key: None,
            claude_oauth_token: None,
            ..config
        }
    }
}
