//! The only connection out of a sandbox: a socket for model calls, and a proxy in the shim that adds the key to them.
//! The key arrives in a frame and exists only in the memory of server and shim.

mod answer_usage;
mod endpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod header_filter;
mod json_scanner;
mod proxy;
mod rate_limit;
mod refusal;
mod route;
mod usage_account;
mod utf8;

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{PermissionsExt, chown},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ash_model::ModelApiDialect;
use rustix::fs::Mode;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::{Semaphore, watch};

pub use self::usage_account::UsageAllowance;
use self::{
    answer_usage::UsageRecorder, rate_limit::RequestRateLimiter, route::EgressRoute,
    usage_account::UsageAccount,
};
use crate::{
    Error,
    journal::{self, Journal},
};

/// Subdirectory of the run directory. The sandbox sees the directory, not the single socket: a socket that is created
/// again would never appear inside.
pub(crate) const DIR: &str = "egress";
const SOCKET: &str = "model.sock";
/// The process whose socket exists from the start.
const FIRST_PROCESS: u16 = 1;
/// How long the end of a sandbox waits for the usage of its last calls.
const LAST_USAGE_TIMEOUT: Duration = Duration::from_millis(200);
/// Where the directory appears inside a sandbox.
pub(crate) const INSIDE: &str = "/run/ash";

pub(crate) fn socket_in(dir: &Path) -> PathBuf {
    dir.join(SOCKET)
}

pub(crate) fn socket_name(process: u16) -> String {
    match process {
        FIRST_PROCESS => SOCKET.to_owned(),
        other => format!("model.{other}.sock"),
    }
}

/// Where a sandbox's model calls go, and which headers the proxy adds.
#[derive(Clone, Serialize, Deserialize)]
pub struct EgressPolicy {
    /// `https://host/path`, `http://…` on this machine only, or `unix:/path`.
    pub upstream: String,
    /// They replace headers of the same name that come from inside.
    #[serde(serialize_with = "serialize_headers", deserialize_with = "deserialize_headers")]
    pub headers: BTreeMap<String, SecretString>,
    /// The upstream must resolve to a public address, whatever its name says: a client chose it, not the operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
    /// The dialect whose endpoints an agent may call. An older server names none: then the endpoints of every dialect
    /// are open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<ModelApiDialect>,
}

impl EgressPolicy {
    /// Whether a shim would accept this policy.
    pub fn check(&self) -> Result<(), Error> {
        EgressRoute::new(self).map(drop).map_err(|why| Error::InvalidEgress { why })
    }
}

/// The server that a URL names, and whether that is a host name to be reached by https.
pub fn origin_of(url: &str) -> Option<(String, bool)> {
    let url = reqwest::Url::parse(url).ok().filter(|url| url.origin().is_tuple())?;
    let is_name = url.domain().is_some_and(|host| host.contains('.'));
    Some((url.origin().ascii_serialization(), url.scheme() == "https" && is_name))
}

/// Whether a URL equals one that an operator names, or lies beneath it: on the same server, compared by whole path
/// segments. A gateway may serve other tenants beneath its other paths.
pub fn is_beneath(url: &str, allowed: &str) -> bool {
    let parsed = |text| reqwest::Url::parse(text).ok().filter(|url| url.origin().is_tuple());
    let (Some(url), Some(allowed)) = (parsed(url), parsed(allowed)) else { return false };
    let rest = url.path().strip_prefix(allowed.path().trim_end_matches('/'));
    url.origin() == allowed.origin() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Debug for EgressPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names only: the values are keys.
        let names: Vec<_> = self.headers.keys().collect();
        f.debug_struct("Egress").field("upstream", &self.upstream).field("headers", &names).finish()
    }
}

impl PartialEq for EgressPolicy {
    fn eq(&self, other: &Self) -> bool {
        let plain = |headers: &BTreeMap<String, SecretString>| {
            headers.iter().map(|(n, v)| (n.clone(), v.expose_secret().to_owned())).collect::<Vec<_>>()
        };
        self.upstream == other.upstream
            && self.public == other.public
            && self.dialect == other.dialect
            && plain(&self.headers) == plain(&other.headers)
    }
}

impl Eq for EgressPolicy {}

fn serialize_headers<S: Serializer>(
    headers: &BTreeMap<String, SecretString>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(headers.iter().map(|(name, value)| (name, value.expose_secret())))
}

fn deserialize_headers<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, SecretString>, D::Error> {
    let plain = BTreeMap::<String, String>::deserialize(from)?;
    Ok(plain.into_iter().map(|(name, value)| (name, value.into())).collect())
}

/// The shim's side: one socket for each session that runs in the sandbox.
#[derive(Debug)]
pub(crate) struct EgressSockets {
    dir: PathBuf,
    uid: Option<u32>,
    route: watch::Sender<Option<Arc<EgressRoute>>>,
    rate: Arc<Mutex<RequestRateLimiter>>,
    places: Arc<Semaphore>,
    doors: BTreeMap<u16, EgressSocket>,
    /// Rings when there are usage records for the journal.
    bell: UnixStream,
    ring: Arc<UnixStream>,
}

/// Before the first connection a socket costs the shim one more descriptor to poll. Then the proxy's own thread takes
/// over, and the shim's loop receives only usage records.
#[derive(Debug)]
struct EgressSocket {
    waiting: Option<UnixListener>,
    account: Arc<Mutex<UsageAccount>>,
}

impl EgressSockets {
    /// `uid` is the sandbox's, if it is not ours.
    pub(crate) fn make(run_dir: &File, uid: Option<u32>) -> io::Result<Self> {
        match rustix::fs::mkdirat(run_dir, DIR, Mode::from_raw_mode(0o755)) {
            Err(rustix::io::Errno::EXIST) | Ok(()) => {}
            Err(e) => return Err(e.into()),
        }
        // Through its descriptor: a socket address holds 108 bytes, and a data directory may have a longer path.
        let dir = PathBuf::from(format!("/proc/self/fd/{}", run_dir.as_raw_fd())).join(DIR);
        // Set explicitly: the server's umask would otherwise change the mode.
        fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        let (bell, ring) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        let (route, rate) = (watch::Sender::new(None), Arc::default());
        let places = Arc::new(Semaphore::new(proxy::MAX_AT_ONCE));
        let (doors, ring) = (BTreeMap::new(), Arc::new(ring));
        let mut doors = Self { dir, uid, route, rate, places, doors, bell, ring };
        // Older servers know only this socket.
        doors.add(FIRST_PROCESS)?;
        Ok(doors)
    }

    fn add(&mut self, process: u16) -> io::Result<()> {
        let socket = self.dir.join(socket_name(process));
        match fs::remove_file(&socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        // A client needs write permission to connect, so only the sandbox's user can.
        fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        self.uid.map_or(Ok(()), |uid| chown(&socket, Some(uid), Some(uid)))?;
        self.doors.insert(process, EgressSocket { waiting: Some(listener), account: Arc::default() });
        Ok(())
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u16, &UnixListener)> {
        self.doors.iter().filter_map(|(process, door)| Some((*process, door.waiting.as_ref()?)))
    }

    /// Starts the proxy at the first connection.
    pub(crate) fn start_proxy(&mut self, process: u16) {
        let Some(door) = self.doors.get_mut(&process) else { return };
        let Some(listener) = door.waiting.take() else { return };
        let till = UsageRecorder::new(door.account.clone(), self.ring.clone());
        let (routes, places) = (self.route.subscribe(), self.places.clone());
        let way = proxy::ProxyContext { routes, rate: self.rate.clone(), places, till };
        let begun = listener.try_clone().and_then(|theirs| proxy::begin(theirs, way));
        if begun.is_err() {
            // No thread could be started: drop this connection and keep the socket, since a later one may succeed.
            let _ = listener.accept();
            door.waiting = Some(listener);
        }
    }

    /// Applies to the next request. None also cuts the calls in progress.
    pub(crate) fn set_policy(&self, policy: Option<&EgressPolicy>) {
        // The server checks a policy before it sends it. A newer server may send one that this shim cannot parse; then
        // there is no route.
        let route = policy.and_then(|policy| EgressRoute::new(policy).ok());
        self.route.send_replace(route.map(Arc::new));
    }

    /// What the session of this process may still use. The first allowance creates its socket.
    pub(crate) fn allow(&mut self, process: u16, allowance: Option<UsageAllowance>) -> io::Result<()> {
        if !self.doors.contains_key(&process) && allowance.is_some() {
            self.add(process)?;
        }
        if let Some(door) = self.doors.get(&process) {
            door.account().set(allowance);
        }
        Ok(())
    }

    /// Readable when there are records to flush.
    pub(crate) fn bell(&self) -> &UnixStream {
        &self.bell
    }

    pub(crate) fn drain_bell(&self) {
        let mut buffer = [0; 256];
        while io::Read::read(&mut &self.bell, &mut buffer).is_ok_and(|read| read > 0) {}
    }

    pub(crate) fn flush(&self, journal: &mut Journal) {
        for (process, door) in &self.doors {
            door.account().flush(|queue| {
                let mut batch = Vec::new();
                queue.iter().for_each(|usage| journal::usage(&mut batch, *process, usage));
                journal.append(&batch, Instant::now());
                journal.tail()
            });
        }
    }

    /// Every process inside is dead. The usage of their calls is known in a moment, and its records belong before the
    /// sandbox's end.
    pub(crate) fn wait_for_last_usage(&self) {
        // The sandbox's end cuts these calls, not their caller, so they count only what came.
        self.doors.values().for_each(|door| door.account().end());
        self.route.send_replace(None);
        let deadline = Instant::now() + LAST_USAGE_TIMEOUT;
        let busy = || self.doors.values().any(|door| door.account().has_readings());
        while busy() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl EgressSocket {
    fn account(&self) -> MutexGuard<'_, UsageAccount> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_names_is_compared_by_server_and_whole_segments_of_its_path() {
        for (allowed, url, fine) in [
            ("https://gate.example", "https://gate.example/any/where", true),
            ("https://gate.example/", "https://gate.example", true),
            ("https://gate.example/team", "https://gate.example/team", true),
            ("https://gate.example/team/", "https://gate.example/team", true),
            ("https://gate.example/team", "https://gate.example/team/v1", true),
            ("https://gate.example/team", "https://gate.example/team-b/v1", false),
            ("https://gate.example/team", "https://gate.example/team/../other", false),
            ("https://gate.example/team", "https://gate.example/team/%2e%2e/other", false),
            ("https://gate.example/team", "https://gate.example/", false),
            ("https://gate.example/team", "https://gate.example:444/team", false),
            ("https://gate.example/team", "http://gate.example/team", false),
            ("https://gate.example/team", "https://gate.example.evil/team", false),
            ("no url", "no url", false),
        ] {
            assert_eq!(is_beneath(url, allowed), fine, "{url} {allowed}");
        }
    }
}
