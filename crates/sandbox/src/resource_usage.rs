//! CPU time and memory that a running sandbox has used, measured from outside.

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
    /// The peak, or the current value where the kernel records no peak.
    pub memory: u64,
}

/// None: no sandbox runs there. Blocks for a moment.
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

/// The number of files in the sandbox's scratch directories. They use kernel memory, whichever group is charged for it.
pub fn scratch_files(run_dir: &Path) -> u64 {
    let Some(init) = reap::running(run_dir) else { return 0 };
    if !is_elsewhere(init.pid) {
        return 0;
    }
    let root = PathBuf::from(format!("/proc/{}/root", init.pid));
    let scratch = ["tmp", "dev/shm"].into_iter().filter_map(|name| rustix::fs::statvfs(root.join(name)).ok());
    scratch.map(|fs| fs.f_files.saturating_sub(fs.f_ffree)).sum()
}

/// Without a mount namespace the sandbox has no scratch directories of its own, and the host's are not its files.
fn is_elsewhere(pid: u32) -> bool {
    let mounts = |who: &str| fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
    mounts(&pid.to_string()).is_some_and(|theirs| mounts("self") != Some(theirs))
}
