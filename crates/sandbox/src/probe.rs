//! Checks at the server's start whether sandboxes can be built here, so that a problem shows as a sentence with a
//! remedy and not as the failure of the first session.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use ash_model::{Epoch, Incarnation};

use crate::{
    BubblewrapBackend, Error, SandboxBackend, SandboxLimits, SandboxSpec, UserNamespacePolicy,
    limits::Cgroup, reap,
};

const PLACES: [&str; 4] =
    ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap"];
const NOBODY: u32 = 65534;

const INSTALL: &str = "Install it with `apt-get install bubblewrap` (or your system's package manager), \
    or set ASH_SANDBOX=none to run agents without backend";
const ALLOW: &str = "If the kernel forbids user namespaces, allow them: on Ubuntu with the AppArmor profile \
    for /usr/bin/bwrap or `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, elsewhere with \
    `sysctl -w kernel.unprivileged_userns_clone=1` and user.max_user_namespaces above 0; \
    or set ASH_SANDBOX=none to run agents without backend";

/// Only in the directories of the system's programs: PATH may name a directory that other users write to.
pub fn find_bubblewrap() -> Result<PathBuf, Error> {
    let found = PLACES.iter().map(PathBuf::from).find(|path| path.is_file());
    found.ok_or_else(not_installed)
}

pub(crate) fn not_installed() -> Error {
    Error::Unavailable { why: "bubblewrap is not installed".to_owned(), remedy: INSTALL }
}

/// With this flag the call only returns a version number.
const VERSION_ONLY: u32 = 1;

/// The Landlock version of this kernel; `None`: it has none.
pub fn landlock_abi() -> Option<u32> {
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag no memory is read.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, VERSION_ONLY) };
    u32::try_from(abi).ok().filter(|abi| *abi > 0)
}

/// The control groups that a sandbox gets on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupSupport {
    Unified,
    /// v1, a hierarchy per controller. Some controllers may be missing.
    Separate {
        memory: bool,
        processes: bool,
        cpu: bool,
    },
    /// The server is not root, or no hierarchy is writable.
    None,
}

/// Creates groups as for a sandbox, and removes them.
pub fn groups() -> CgroupSupport {
    let Some(group) = Cgroup::create(Incarnation::fresh(), &SandboxLimits::default()) else {
        return CgroupSupport::None;
    };
    group.try_remove();
    match &group.unified {
        Some(_) => CgroupSupport::Unified,
        None => CgroupSupport::Separate {
            memory: group.memory.is_some(),
            processes: group.pids.is_some(),
            cpu: group.cpu.is_some(),
        },
    }
}

pub(crate) async fn test_bubblewrap(walls: &BubblewrapBackend) -> Result<(), Error> {
    launch_and_end(walls).await.map_err(|e| match e {
        Error::StartFailed { why } => {
            Error::Unavailable { why: format!("bubblewrap cannot build backend here: {why}"), remedy: ALLOW }
        }
        other => other,
    })
}

/// Starts and ends one sandbox, built as for a session.
pub(crate) async fn launch_and_end(walls: &dyn SandboxBackend) -> Result<(), Error> {
    let base = std::env::temp_dir().join(format!("ash-probe-{}", uuid::Uuid::new_v4()));
    let result = build_and_end(walls, &base).await;
    let _ = fs::remove_dir_all(&base);
    result
}

async fn build_and_end(walls: &dyn SandboxBackend, base: &Path) -> Result<(), Error> {
    let spec = spec(base)?;
    let (remote, mut records) = walls.launch(&spec).await?.split();
    remote.end().await?;
    let ended = async { while records.next().await.is_some() {} };
    let in_time = tokio::time::timeout(Duration::from_secs(10), ended).await;
    in_time.map_err(|_| Error::Timeout { what: "end" })?;
    let run_dir = spec.run_dir;
    tokio::task::spawn_blocking(move || reap(&run_dir)).await.unwrap_or(Err(Error::Gone))
}

fn spec(base: &Path) -> Result<SandboxSpec, Error> {
    let uid = rustix::process::geteuid().is_root().then_some(NOBODY);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { what: "prepare", path, source }
    };
    // 0700, like a data directory: the probe must meet the same obstacles as sessions.
    fs::DirBuilder::new().mode(0o700).create(base).map_err(failed(base))?;
    let [run_dir, workspace, home] = ["run", "workspace", "home"].map(|name| base.join(name));
    for dir in [&run_dir, &workspace, &home] {
        fs::create_dir(dir).map_err(failed(dir))?;
    }
    for dir in [&workspace, &home] {
        uid.map_or(Ok(()), |uid| chown(dir, Some(uid), Some(uid))).map_err(failed(dir))?;
    }
    Ok(SandboxSpec {
        incarnation: Incarnation::fresh(),
        epoch: Epoch(0),
        run_dir,
        workspace,
        home,
        uid,
        limits: SandboxLimits::default(),
        readonly: Vec::new(),
        image: None,
        user_namespaces: UserNamespacePolicy::Refused,
        orphan_ttl: Duration::from_secs(10),
    })
}
