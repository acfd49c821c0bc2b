//! What a sandbox took of the machine so far, as whoever knows where it runs can see from outside.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use ash_model::Incarnation;

use crate::{process, process_memory, reap};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxResourceUsage {
    pub incarnation: Incarnation,
    /// Of all processes, also of those that have ended.
    pub cpu: Duration,
    /// The most memory it had, or what it has now where nobody remembers the most.
    pub memory: u64,
}

/// None: no sandbox runs there. Blocking, for a moment.
pub fn resource_usage(run_dir: &Path) -> Option<SandboxResourceUsage> {
    let left = reap::read(run_dir).ok()??;
    let all = reap::processes(run_dir);
    if all.is_empty() {
        return None;
    }
    let groups = left.groups();
    let cpu = groups.and_then(|groups| groups.cpu_time());
    let memory = groups.and_then(|groups| groups.peak_memory());
    Some(SandboxResourceUsage {
        incarnation: left.incarnation,
        cpu: cpu.unwrap_or_else(|| all.iter().filter_map(|pid| process::cpu_time(*pid)).sum()),
        memory: memory
            .unwrap_or_else(|| process_memory::proportional_bytes(&all).iter().map(|(_, bytes)| bytes).sum()),
    })
}

/// How many files there are in its scratch places, which are memory of the kernel, whoever they are counted to.
pub fn scratch_files(run_dir: &Path) -> u64 {
    let Some(init) = reap::running(run_dir) else { return 0 };
    if !is_elsewhere(init.pid) {
        return 0;
    }
    let root = PathBuf::from(format!("/proc/{}/root", init.pid));
    let scratch = ["tmp", "dev/shm"].into_iter().filter_map(|name| rustix::fs::statvfs(root.join(name)).ok());
    scratch.map(|fs| fs.f_files.saturating_sub(fs.f_ffree)).sum()
}

/// Without walls it has no scratch places of its own, and what is in ours is not its.
fn is_elsewhere(pid: u32) -> bool {
    let mounts = |who: &str| fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
    mounts(&pid.to_string()).is_some_and(|theirs| mounts("self") != Some(theirs))
}
