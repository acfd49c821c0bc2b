//! Cleans up after a shim's death: nothing of its sandbox may still run before another one starts.

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

/// The content of `run_dir/init`: what a shim leaves if it dies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShimRemains {
    pub(crate) incarnation: Incarnation,
    /// After a reboot the numbers and start times may belong to other processes.
    pub(crate) boot: String,
    pub(crate) shim: Option<HostProcess>,
    pub(crate) init: Option<HostProcess>,
    pub(crate) cgroup: Option<Cgroup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<DockerContainer>,
}

impl ShimRemains {
    /// Whether the shim is gone. What it started is gone too, or ends soon.
    pub(crate) fn is_dead(&self) -> bool {
        self.boot != process::boot_id() || !self.shim.is_some_and(HostProcess::runs)
    }

    /// The control groups that can freeze the sandbox and count what it uses.
    pub(crate) fn groups(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref().or_else(|| self.container.as_ref()?.groups.as_ref())
    }
}

/// Makes sure that nothing of a dead shim's sandbox still runs: kills by number and start time, waits at most 5 s, and
/// removes its control groups and its files. Blocking. Kills a living shim too.
pub fn reap(run_dir: &Path) -> Result<(), Error> {
    if let Some(left) = read(run_dir)? {
        if left.boot == process::boot_id() {
            clear(&left)?;
        }
        // Unlike processes, a container outlives a reboot.
        left.container.iter().for_each(remove_container);
    }
    for entry in list(run_dir)? {
        let name = entry.to_string_lossy();
        let journal = name.strip_prefix("journal.");
        // Finds groups only if the shim's notes are torn or were never written.
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

/// Removes the empty control groups that a dead sandbox left, and returns whether there were any. A server calls it at
/// its start, because a session that is never resumed would keep them for ever. It kills nothing and leaves groups in
/// use alone.
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

/// The processes of a running sandbox, by their numbers on this machine. Empty if there is none.
pub fn processes(run_dir: &Path) -> Vec<i32> {
    running(run_dir).map(|init| process::with_descendants(init.pid as i32)).unwrap_or_default()
}

/// The first process of a running sandbox.
pub(crate) fn running(run_dir: &Path) -> Option<HostProcess> {
    let left = read(run_dir).ok()??;
    left.init.filter(|init| left.boot == process::boot_id() && init.runs())
}

fn clear_groups(groups: &Cgroup) -> Result<(), Error> {
    groups.kill();
    // A process that v1 holds frozen does not die.
    let _ = groups.thaw();
    if groups.remove(Instant::now() + REAP_TIMEOUT) { Ok(()) } else { Err(Error::StillRuns) }
}

fn remove_container(container: &DockerContainer) {
    if let Err(error) = container.engine.remove(&container.name) {
        // The container runs nothing, so the next sandbox can start. The next server that starts removes it.
        tracing::warn!(%error, container = container.name, "a container could not be removed");
    }
}

fn clear(left: &ShimRemains) -> Result<(), Error> {
    let deadline = Instant::now() + REAP_TIMEOUT;
    // The shim first, because it could start more processes.
    for who in [left.shim, left.init].into_iter().flatten() {
        if who.runs() {
            process::kill(who.pid as i32, libc::SIGKILL);
        }
    }
    if let Some(groups) = left.groups() {
        // Before waiting: a process that v1 holds frozen does not die.
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
        // Unreadable after a power loss: no process survives that, so there is nothing to kill.
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
