//! After a shim's death: making sure that nothing of its sandbox still runs before another one is started.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use ash_model::Incarnation;
use serde::{Deserialize, Serialize};

use crate::{Error, container::DockerContainer, egress, frame::HostProcess, limits::Cgroup, process};

const REAP_TIMEOUT: Duration = Duration::from_secs(5);
const FILES: [&str; 4] = ["sock", "init", "init.tmp", "shim.log"];

/// What `run_dir/init` says a shim will leave if it dies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimRemains {
    pub(crate) incarnation: Incarnation,
    /// Numbers and start times of another boot may be anybody's now.
    pub(crate) boot: String,
    pub(crate) shim: Option<HostProcess>,
    pub(crate) init: Option<HostProcess>,
    pub(crate) cgroup: Option<Cgroup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<DockerContainer>,
}

impl ShimRemains {
    /// Whether the shim is gone, and what it started with it, or soon.
    pub(crate) fn is_dead(&self) -> bool {
        self.boot != process::boot_id() || !self.shim.is_some_and(HostProcess::runs)
    }

    /// What the sandbox can be held still by, and counted in.
    pub(crate) fn groups(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref().or_else(|| self.container.as_ref()?.groups.as_ref())
    }
}

/// Makes sure that nothing of a dead shim's sandbox still runs: kills by number and start time, waits at most
/// 5 s, and removes its control groups and its files. Blocking; a shim that still lives is killed too.
pub fn reap(run_dir: &Path) -> Result<(), Error> {
    if let Some(left) = read(run_dir)? {
        if left.boot == process::boot_id() {
            clear(&left)?;
        }
        // Unlike processes it outlives a boot.
        left.container.iter().for_each(remove_container);
    }
    for entry in list(run_dir)? {
        let name = entry.to_string_lossy();
        let journal = name.strip_prefix("journal.");
        // Nothing to find unless the note of what was made is torn or was never written.
        if let Some(incarnation) = journal {
            clear_groups(&Cgroup::for_incarnation(incarnation))?;
        }
        if journal.is_some() || FILES.iter().any(|name| entry == *name) {
            remove(&run_dir.join(&entry), |path| fs::remove_file(path))?;
        }
    }
    ["etc", egress::DIR]
        .iter()
        .try_for_each(|dir| remove(&run_dir.join(dir), |path| fs::remove_dir_all(path)))
}

/// Removes the empty control groups that a dead sandbox left, and says whether there were any. For a server that starts:
/// a session that nobody resumes would keep them for ever. Nothing is killed, and what is in use stays.
pub fn remove_empty_groups(run_dir: &Path) -> bool {
    let left = read(run_dir).ok().flatten();
    if left.as_ref().is_some_and(|left| !left.is_dead()) {
        return false;
    }
    let noted = left.and_then(|left| left.cgroup).map(|groups| groups.remove_empty());
    let names = list(run_dir).unwrap_or_default();
    let journals = names.iter().filter_map(|name| name.to_str()?.strip_prefix("journal."));
    let found = journals.filter(|incarnation| Cgroup::for_incarnation(incarnation).remove_empty()).count();
    noted == Some(true) || found > 0
}

/// The processes of a sandbox that runs, by their numbers on this machine. Empty if there is none.
pub fn processes(run_dir: &Path) -> Vec<i32> {
    running(run_dir).map(|init| process::with_descendants(init.pid as i32)).unwrap_or_default()
}

/// The first process of a sandbox that runs.
pub(crate) fn running(run_dir: &Path) -> Option<HostProcess> {
    let left = read(run_dir).ok()??;
    left.init.filter(|init| left.boot == process::boot_id() && init.runs())
}

fn clear_groups(groups: &Cgroup) -> Result<(), Error> {
    groups.kill();
    // What v1 holds frozen does not die.
    let _ = groups.thaw();
    if groups.remove(Instant::now() + REAP_TIMEOUT) { Ok(()) } else { Err(Error::StillRuns) }
}

fn remove_container(container: &DockerContainer) {
    if let Err(error) = container.engine.remove(&container.name) {
        // Nothing runs in it any more, so it is in nobody's way; the next server that starts finds it.
        tracing::warn!(%error, container = container.name, "a container could not be removed");
    }
}

fn clear(left: &ShimRemains) -> Result<(), Error> {
    let deadline = Instant::now() + REAP_TIMEOUT;
    // The shim first: it is what could start more.
    for who in [left.shim, left.init].into_iter().flatten() {
        if who.runs() {
            process::kill(who.pid as i32, libc::SIGKILL);
        }
    }
    if let Some(groups) = left.groups() {
        // Before waiting: what v1 holds frozen does not die.
        let _ = groups.thaw();
    }
    while [left.shim, left.init].into_iter().flatten().any(HostProcess::runs) {
        if Instant::now() >= deadline {
            return Err(Error::StillRuns);
        }
        let _ = process::poll(&mut [], Some(Duration::from_millis(2)));
    }
    match &left.cgroup {
        Some(cgroup) if !cgroup.remove(deadline) => Err(Error::StillRuns),
        Some(_) | None => Ok(()),
    }
}

pub(crate) fn read(run_dir: &Path) -> Result<Option<ShimRemains>, Error> {
    let path = run_dir.join("init");
    match fs::read(&path) {
        // Torn by a power loss: what ran then runs no more, so there is nothing to know.
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { what: "read", path, source }),
    }
}

fn list(run_dir: &Path) -> Result<Vec<std::ffi::OsString>, Error> {
    match fs::read_dir(run_dir) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.file_name()).collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Error::File { what: "list", path: run_dir.to_owned(), source }),
    }
}

fn remove(path: &Path, how: impl Fn(&Path) -> io::Result<()>) -> Result<(), Error> {
    match how(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::File { what: "remove", path: path.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
