//! Resource limits of a sandbox. Control groups limit the whole sandbox and distinguish an out-of-memory kill from
//! other deaths, but need root. Rlimits always work, per process, and are the second line.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ash_model::Incarnation;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::process;

const MIB: u64 = 1 << 20;

/// What one sandbox may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// All processes together. Needs control groups, and so root; not enforced without them.
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    /// Per process; capped to the hard limit of the machine.
    pub open_files: u64,
    pub tmp_bytes: u64,
    /// Thousandths of a processor, for all processes together. Needs control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// No file may grow beyond this. The server watches the total size of all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// Output that is faster in the long run is read later, so the process that prints it waits. Nothing is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_per_second: Option<u64>,
}

impl Default for SandboxLimits {
    fn default() -> Self {
        Self {
            memory_bytes: Some(2048 * MIB),
            processes: Some(512),
            open_files: 8192,
            tmp_bytes: 1024 * MIB,
            cpu_millis: None,
            file_bytes: None,
            output_per_second: None,
        }
    }
}

/// Sets the rlimits of the calling process and of all processes that it will start.
pub(crate) fn restrict(rlimits: &Rlimits) -> io::Result<()> {
    // A core dump would put a copy of the agent's memory, with its keys, into the workspace.
    disable_core_dumps()?;
    lower(Resource::Nofile, rlimits.open_files)?;
    let others = [(Resource::Nproc, rlimits.processes), (Resource::Fsize, rlimits.file_bytes)];
    others.into_iter().try_for_each(|(which, most)| most.map_or(Ok(()), |most| lower(which, most)))
}

/// Limits that the kernel enforces per process, on every backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rlimits {
    pub(crate) open_files: u64,
    pub(crate) processes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_bytes: Option<u64>,
}

impl Rlimits {
    pub(crate) fn of(limits: &SandboxLimits) -> Self {
        let SandboxLimits { open_files, processes, file_bytes, .. } = *limits;
        Self { open_files, processes, file_bytes }
    }
}

/// The memory of the calling process and of those that it starts contains keys, so the kernel must never write it to a
/// file.
pub(crate) fn disable_core_dumps() -> io::Result<()> {
    lower(Resource::Core, 0)
}

fn lower(resource: Resource, wanted: u64) -> io::Result<()> {
    let hard = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let value = Some(wanted.min(hard));
    Ok(setrlimit(resource, Rlimit { current: value, maximum: value })?)
}

/// The directories of a control group. v1 has a hierarchy per controller, v2 one for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroup {
    pub(crate) memory: Option<PathBuf>,
    pub(crate) pids: Option<PathBuf>,
    pub(crate) freezer: Option<PathBuf>,
    pub(crate) unified: Option<PathBuf>,
    /// Present even where CPU time is not limited: it also carries the common weight of all sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<PathBuf>,
}

/// The server's own position in one hierarchy: the mount point, and the group that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupHierarchy {
    mount: PathBuf,
    own: PathBuf,
}

impl CgroupHierarchy {
    /// Beneath our own group if possible, so that limits on the server include the sandbox; otherwise at the root.
    fn make(&self, name: &str, ready: impl Fn(&Path) -> io::Result<()>) -> Option<PathBuf> {
        let mine = self.mount.join(self.own.strip_prefix("/").unwrap_or(&self.own));
        [mine, self.mount.clone()].iter().find_map(|base| make_in(base, name, &ready).ok())
    }
}

fn make_in(base: &Path, name: &str, ready: impl Fn(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let dir = base.join("ash").join(name);
    // Another sandbox that ends removes an empty `ash`, possibly between the two steps, so this tries again.
    let mut result = fs::create_dir_all(&dir);
    for _again in 0..3 {
        if result.is_ok() {
            break;
        }
        result = fs::create_dir_all(&dir);
    }
    result?;
    ready(&dir).inspect_err(|_| remove_dir(&dir)).map(|()| dir)
}

fn remove_dir(dir: &Path) {
    if fs::remove_dir(dir).is_ok()
        && let Some(parent) = dir.parent()
    {
        // Succeeds only for the last sandbox.
        let _ = fs::remove_dir(parent);
    }
}

/// What this process sees of control groups. The kernel takes long to print it, so it is read once.
struct CgroupMounts {
    mounts: String,
    groups: String,
}

impl CgroupMounts {
    fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self { mounts: read("/proc/self/mounts"), groups: read("/proc/self/cgroup") }
    }

    fn hierarchy(&self, controller: &str) -> Option<CgroupHierarchy> {
        find(controller, &self.mounts, &self.groups)
    }
}

/// `controller` is empty for v2.
fn find(controller: &str, mounts: &str, groups: &str) -> Option<CgroupHierarchy> {
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
        let matches = if controller.is_empty() {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|option| option == controller)
        };
        matches.then(|| PathBuf::from(at))
    })?;
    let own = groups.lines().find_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        let (controllers, path) = (words.next()?, words.next()?);
        controllers.split(',').any(|name| name == controller).then(|| PathBuf::from(path))
    })?;
    Some(CgroupHierarchy { mount, own })
}

/// Hybrid machines mount v2 beside v1, with no controllers in it.
fn has_memory(unified: &CgroupHierarchy) -> bool {
    fs::read_to_string(unified.mount.join("cgroup.controllers"))
        .is_ok_and(|names| names.split_whitespace().any(|name| name == "memory"))
}

fn put(dir: &Path, file: &str, value: impl ToString) -> io::Result<()> {
    fs::write(dir.join(file), value.to_string())
}

fn number_in(dir: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()
}

fn number_after(dir: &Path, file: &str, word: &str) -> Option<u64> {
    let text = fs::read_to_string(dir.join(file)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}

impl Cgroup {
    /// None: the server is not root, or no hierarchy here is usable. The sandbox then runs without control groups.
    pub(crate) fn create(incarnation: Incarnation, limits: &SandboxLimits) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let (name, seen) = (incarnation.to_string(), CgroupMounts::now());
        let unified = seen.hierarchy("").filter(has_memory);
        let unified = unified.and_then(|h| h.make(&name, |dir| unified_limits(dir, limits)));
        if unified.is_some() {
            return Some(Self { memory: None, pids: None, freezer: None, unified, cpu: None });
        }
        let group = Self {
            memory: seen.hierarchy("memory").and_then(|h| h.make(&name, |dir| memory_limits(dir, limits))),
            pids: seen
                .hierarchy("pids")
                .and_then(|h| h.make(&name, |dir| limit(dir, "pids.max", limits.processes))),
            freezer: seen.hierarchy("freezer").and_then(|h| h.make(&name, |_| Ok(()))),
            unified: None,
            cpu: seen.hierarchy("cpu").and_then(|h| h.make(&name, |dir| cpu_limits(dir, limits.cpu_millis))),
        };
        (!group.dirs().is_empty()).then_some(group)
    }

    /// The groups under an incarnation's name, for a sandbox of which nothing else is known.
    pub(crate) fn for_incarnation(incarnation: &str) -> Self {
        let seen = CgroupMounts::now();
        let at = |controller: &str| {
            let CgroupHierarchy { mount, own } = seen.hierarchy(controller)?;
            let mine = mount.join(own.strip_prefix("/").unwrap_or(&own));
            [mine, mount].into_iter().map(|base| base.join("ash").join(incarnation)).find(|dir| dir.is_dir())
        };
        Self {
            memory: at("memory"),
            pids: at("pids"),
            freezer: at("freezer"),
            unified: at(""),
            cpu: at("cpu"),
        }
    }

    /// The groups that a process is in, whatever program created them.
    pub(crate) fn of(pid: u32) -> Self {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let seen = CgroupMounts { groups, ..CgroupMounts::now() };
        let at = |controller: &str| {
            let CgroupHierarchy { mount, own } = seen.hierarchy(controller)?;
            Some(mount.join(own.strip_prefix("/").unwrap_or(&own))).filter(|dir| dir.is_dir())
        };
        match seen.hierarchy("").filter(has_memory) {
            Some(_) => Self { memory: None, pids: None, freezer: None, unified: at(""), cpu: None },
            None => Self {
                memory: at("memory"),
                pids: at("pids"),
                freezer: at("freezer"),
                unified: None,
                cpu: at("cpu"),
            },
        }
    }

    pub(crate) fn kill(&self) {
        for dir in self.dirs() {
            let pids = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            pids.lines()
                .filter_map(|pid| pid.parse().ok())
                .for_each(|pid: i32| process::kill(pid, libc::SIGKILL));
        }
    }

    fn dirs(&self) -> Vec<&PathBuf> {
        [&self.memory, &self.pids, &self.freezer, &self.cpu, &self.unified].into_iter().flatten().collect()
    }

    /// The process moves itself into the groups before exec. On v1 a single thread that moves itself is the only case
    /// in which the kernel takes no machine-wide lock, and so neither waits for all cores nor stops their forks.
    pub(crate) fn join(&self) -> io::Result<()> {
        let v1 = [&self.memory, &self.pids, &self.freezer, &self.cpu].into_iter().flatten();
        v1.map(|dir| (dir, "tasks"))
            .chain(self.unified.iter().map(|dir| (dir, "cgroup.procs")))
            .try_for_each(|(dir, file)| put(dir, file, 0))
    }

    /// How many processes of this sandbox the kernel has killed for lack of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let v1 = self.memory.as_deref().and_then(|dir| number_after(dir, "memory.oom_control", "oom_kill "));
        let v2 = self.unified.as_deref().and_then(|dir| number_after(dir, "memory.events", "oom_kill "));
        v1.or(v2).unwrap_or(0)
    }

    /// Whether the kernel limits the memory of all processes together.
    pub(crate) fn counts_memory(&self) -> bool {
        self.memory.is_some() || self.unified.is_some()
    }

    pub(crate) fn counts_processes(&self) -> bool {
        self.pids.is_some() || self.unified.is_some()
    }

    /// CPU time of all processes that ever ran in the group.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        let v1 =
            self.cpu.as_deref().and_then(|dir| number_in(dir, "cpuacct.usage")).map(Duration::from_nanos);
        let v2 = || number_after(self.unified.as_deref()?, "cpu.stat", "usage_usec ");
        v1.or_else(|| v2().map(Duration::from_micros))
    }

    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let v1 = self.memory.as_deref().and_then(|dir| number_in(dir, "memory.max_usage_in_bytes"));
        v1.or_else(|| number_in(self.unified.as_deref()?, "memory.peak"))
    }

    pub(crate) fn can_freeze(&self) -> bool {
        let v1 = self.freezer.as_ref().map(|dir| dir.join("freezer.state"));
        let v2 = self.unified.as_ref().map(|dir| dir.join("cgroup.freeze"));
        // Groups that an engine made may be readable only.
        v1.or(v2).is_some_and(|file| rustix::fs::access(&file, rustix::fs::Access::WRITE_OK).is_ok())
    }

    pub(crate) fn freeze(&self) -> io::Result<()> {
        self.set_frozen("FROZEN", "1")
    }

    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.set_frozen("THAWED", "0")
    }

    fn set_frozen(&self, v1: &str, v2: &str) -> io::Result<()> {
        match (&self.freezer, &self.unified) {
            (Some(dir), _) => put(dir, "freezer.state", v1),
            (None, Some(dir)) => put(dir, "cgroup.freeze", v2),
            (None, None) => Ok(()),
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        let v1 =
            |dir: &PathBuf| fs::read_to_string(dir.join("freezer.state")).is_ok_and(|s| s.trim() == "FROZEN");
        let v2 = |dir: &PathBuf| number_after(dir, "cgroup.events", "frozen ") == Some(1);
        self.freezer.as_ref().is_some_and(v1) || self.unified.as_ref().is_some_and(v2)
    }

    /// Kills the remaining processes and removes the directories. False: a directory is still in use.
    pub(crate) fn try_remove(&self) -> bool {
        for dir in self.dirs() {
            for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                if let Ok(pid) = pid.parse::<i32>()
                    && pid > 0
                {
                    process::kill(pid, libc::SIGKILL);
                }
            }
        }
        // v1 does not act on SIGKILL until the thaw.
        let _ = self.thaw();
        self.dirs().into_iter().for_each(|dir| remove_dir(dir));
        self.dirs().into_iter().all(|dir| !dir.exists())
    }

    /// Whether a group existed and was removed. A group in use cannot be removed.
    pub(crate) fn remove_empty(&self) -> bool {
        let there: Vec<&PathBuf> = self.dirs().into_iter().filter(|dir| dir.exists()).collect();
        there.iter().for_each(|dir| remove_dir(dir));
        there.iter().any(|dir| !dir.exists())
    }

    pub(crate) fn remove(&self, deadline: Instant) -> bool {
        while !self.try_remove() {
            if Instant::now() >= deadline {
                return false;
            }
            let _ = process::poll(&mut [], Some(Duration::from_millis(5)));
        }
        true
    }
}

fn limit(dir: &Path, file: &str, value: Option<u64>) -> io::Result<()> {
    value.map_or(Ok(()), |value| put(dir, file, value))
}

fn memory_limits(dir: &Path, limits: &SandboxLimits) -> io::Result<()> {
    limit(dir, "memory.limit_in_bytes", limits.memory_bytes)?;
    // Kernels without swap accounting lack this file; then only memory is limited.
    let _ = limit(dir, "memory.memsw.limit_in_bytes", limits.memory_bytes);
    Ok(())
}

/// The period of CPU quotas, in microseconds.
const PERIOD: u64 = 100_000;

/// All sandboxes together weigh as much as one other thread per processor, however many there are: the server comes
/// first. Nice values alone do not achieve this, since kernels put each terminal session, and so each agent, into a
/// scheduling group of its own.
fn set_shared_cpu_weight(dir: &Path) {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    // Best effort: on failure the group keeps the weight of a single thread.
    let _ = dir.parent().map(|ash| put(ash, "cpu.shares", (1024 * processors).min(1 << 18)));
}

fn cpu_limits(dir: &Path, millis: Option<u64>) -> io::Result<()> {
    set_shared_cpu_weight(dir);
    let Some(millis) = millis else { return Ok(()) };
    put(dir, "cpu.cfs_period_us", PERIOD)?;
    put(dir, "cpu.cfs_quota_us", millis * PERIOD / 1000)
}

fn unified_limits(dir: &Path, limits: &SandboxLimits) -> io::Result<()> {
    // From the top down: a group has a controller only if its parent enables it.
    let ash = dir.parent().ok_or(io::ErrorKind::NotFound)?;
    for group in [ash.parent().ok_or(io::ErrorKind::NotFound)?, ash] {
        put(group, "cgroup.subtree_control", "+memory +pids")?;
        // A failure here matters only if CPU time is limited: otherwise the sandboxes only lack their CPU weight.
        let cpu = put(group, "cgroup.subtree_control", "+cpu");
        limits.cpu_millis.map_or(Ok(()), |_| cpu)?;
    }
    // Half of the weight that sibling groups have.
    let _ = put(ash, "cpu.weight", 50);
    limits
        .cpu_millis
        .map_or(Ok(()), |millis| put(dir, "cpu.max", format!("{} {PERIOD}", millis * PERIOD / 1000)))?;
    limit(dir, "memory.max", limits.memory_bytes)?;
    let _ = put(dir, "memory.swap.max", 0);
    limit(dir, "pids.max", limits.processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
        cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
    const GROUPS: &str = "4:memory:/box/1\n3:cpu,cpuacct:/\n0::/unit\n";

    #[test]
    fn our_own_group_is_found_in_both_versions() {
        let at = |mount: &str, own: &str| Some(CgroupHierarchy { mount: mount.into(), own: own.into() });
        assert_eq!(find("memory", MOUNTS, GROUPS), at("/sys/fs/cgroup/memory", "/box/1"));
        assert_eq!(find("cpuacct", MOUNTS, GROUPS), at("/sys/fs/cgroup/cpu,cpuacct", "/"));
        assert_eq!(find("", MOUNTS, GROUPS), at("/sys/fs/cgroup/unified", "/unit"));
        assert_eq!(find("freezer", MOUNTS, GROUPS), None);
    }
}
