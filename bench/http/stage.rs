//! A directory for one run that every uid can reach. Dropping it removes everything in it.

use anyhow::{Context, Result};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A shim notices within seconds that its directory is gone.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) struct Stage {
    pub(crate) dir: PathBuf,
    /// A copy of the binary: sandboxes of other uids must reach it too.
    pub(crate) ash: PathBuf,
}

impl Stage {
    pub(crate) fn make(beneath: &Path, ash: &Path) -> Result<Stage> {
        let dir = beneath.join(format!("ash-bench-{}", uuid::Uuid::new_v4()));
        fs::DirBuilder::new().mode(0o755).create(&dir).with_context(|| format!("cannot make {dir:?}"))?;
        let stage = Stage { ash: dir.join("ash"), dir };
        fs::set_permissions(&stage.dir, fs::Permissions::from_mode(0o755))?;
        fs::copy(ash, &stage.ash).with_context(|| {
            format!("cannot copy {ash:?}: build it with `cargo build --release -p ash-cli`")
        })?;
        fs::set_permissions(&stage.ash, fs::Permissions::from_mode(0o755))?;
        Ok(stage)
    }

    /// Processes that run this run's copy of the binary.
    fn processes(&self) -> Vec<i32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ours =
            |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.starts_with(&self.dir));
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(ours).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        loop {
            fs::remove_dir_all(&self.dir).ok();
            let left = self.processes();
            if left.is_empty() && !self.dir.exists() {
                return;
            }
            if Instant::now() >= until {
                for pid in left {
                    // SAFETY: kill has no memory effects; these run a program that only this run has.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
                fs::remove_dir_all(&self.dir).ok();
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
