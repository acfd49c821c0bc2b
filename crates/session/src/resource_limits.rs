//! How much of the machine a session may use: which limits apply, what its sandbox enforces, and how much its files
//! take.

use crate::{
    Error, Result,
    live_directory::{LiveDirectory, open_root},
};
use ash_model::{BudgetScope, LimitKind, LimitReached, ResourceLimits, TurnId};
use ash_sandbox::SandboxLimits;
use ash_snapshot::DiskUsage;
use std::os::unix::fs::MetadataExt;

const MIB: u64 = 1 << 20;

/// The limits that the sandbox enforces.
pub(crate) fn of_walls(bounds: &ResourceLimits) -> SandboxLimits {
    let usual = SandboxLimits::default();
    SandboxLimits {
        memory_bytes: bounds.memory_mb.map(|number| number.saturating_mul(MIB)),
        processes: bounds.max_processes,
        open_files: bounds.max_open_files.unwrap_or(u64::MAX),
        tmp_bytes: usual.tmp_bytes,
        cpu_millis: bounds.cpu_percent.map(|percent| percent.saturating_mul(10)),
        file_bytes: bounds.disk_mb.map(|number| number.saturating_mul(MIB)),
        output_per_second: bounds.output_kb_per_second.map(|number| number.saturating_mul(1024)),
    }
}

/// The limits of its files. `None`: unlimited.
pub(crate) fn of_disk(bounds: &ResourceLimits) -> Option<DiskUsage> {
    let bytes = bounds.disk_mb.map_or(u64::MAX, |number| number.saturating_mul(MIB));
    let most = DiskUsage { bytes, files: bounds.max_files.unwrap_or(u64::MAX) };
    (most != DiskUsage::UNLIMITED).then_some(most)
}

/// Measures the files of a workspace, including deleted files that its sandbox still holds open and files in its
/// scratch directories. Blocking.
pub(crate) fn weigh(live: &LiveDirectory, most: DiskUsage) -> Result<DiskUsage> {
    let workspace = live.workspace();
    let dev = std::fs::metadata(&workspace).map_err(Error::io("look at the workspace"))?.dev();
    let run = live.run();
    let (bytes, files) = (ash_sandbox::unlinked_bytes(&run, dev), ash_sandbox::scratch_files(&run));
    let mut weight = DiskUsage { bytes, files };
    for folder in [workspace, live.home()] {
        if !weight.exceeds(most) {
            weight = weight.plus(open_root(&folder)?.measure(most)?);
        }
    }
    Ok(weight)
}

/// Which limit is exceeded.
pub(crate) fn reached(turn: Option<TurnId>, weight: DiskUsage, most: DiskUsage) -> Option<LimitReached> {
    let (which, limit, used) = if weight.bytes > most.bytes {
        (LimitKind::DiskMb, most.bytes / MIB, weight.bytes.div_ceil(MIB))
    } else if weight.files > most.files {
        (LimitKind::MaxFiles, most.files, weight.files)
    } else {
        return None;
    };
    Some(LimitReached { turn, scope: BudgetScope::Turn, kind: which, limit, used })
}
