//! Code that works on the tree itself: path-based code is fooled; ours is not.

use super::Stage;
use crate::support::ash;
use ash_snapshot::Folder;
use std::{fs, path::Path, process::Command, sync::atomic::Ordering};

/// This often is proof enough, and leaves time for the other operations.
const ENOUGH: u64 = 20;

/// How long the path-based code is slow if no swap happens at this moment.
const LOOKS: u32 = 2000;

/// How often each path-based operation was fooled.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Fooled {
    reading: u64,
    writing: u64,
    removing: u64,
}

impl Fooled {
    pub(super) fn least(self) -> u64 {
        self.reading.min(self.writing).min(self.removing)
    }
}

impl Stage {
    /// Path-based code: it checks, then acts, and lets other threads run in between. It must be fooled, or the test races
    /// nothing.
    pub(super) fn trust_paths(&self, workspace: &Path) -> Fooled {
        let decoy = self.outside.dir.join("decoy");
        let dir = workspace.join("d0");
        // Waits between check and act until the check is outdated.
        let looked = |fine: bool| {
            let is_swapped = || dir.symlink_metadata().is_ok_and(|is| is.is_symlink());
            let mut looks = 0;
            while fine && looks < LOOKS && !is_swapped() {
                std::thread::yield_now();
                looks += 1;
            }
            fine
        };
        let is_inside = || looked(dir.canonicalize().is_ok_and(|found| found.starts_with(workspace)));
        let is_dir = || looked(dir.symlink_metadata().is_ok_and(|is| is.is_dir()));
        let mut fooled = Fooled::default();
        while !self.over.load(Ordering::Relaxed) && fooled.least() < ENOUGH {
            let read = is_inside().then(|| fs::read_to_string(dir.join("f")).ok()).flatten();
            fooled.reading += u64::from(read.as_ref() == Some(&self.outside.words[3]));
            if is_dir() {
                fs::write(dir.join("naive"), "written").ok();
            }
            fooled.writing += u64::from(fs::remove_file(decoy.join("naive")).is_ok());
            fs::write(decoy.join("doomed"), "").expect("a file");
            if is_dir() {
                fs::remove_file(dir.join("doomed")).ok();
            }
            fooled.removing += u64::from(!decoy.join("doomed").exists());
            self.fooled.store(fooled.least() > 0, Ordering::Relaxed);
        }
        fooled
    }

    /// Captures and deletions of a tree whose processes are not frozen.
    pub(super) fn save_and_erase(&self, tree: &Path) {
        // This often is enough here as well, because all other operations need the processors.
        for _ in 0..ENOUGH {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            for root in ["workspace", "home"] {
                let mut save = Command::new(ash());
                save.env_clear().env("HOME", &self.outside.dir).args(["snapshot", "save", "--repo"]);
                let saved = save.arg(self.outside.repo()).arg(tree.join(root)).output().expect("ash");
                let said = String::from_utf8_lossy(&saved.stderr);
                self.is_clean("snapshot", &[&saved.stdout[..], said.as_bytes()].concat());
                // A rewind has just removed the tree.
                assert!(saved.status.success() || said.contains("No such file"), "{said}");
                self.count("snapshot", if saved.status.success() { 200 } else { 400 });
                for _ in 0..10 {
                    // The erase may fail while other code fills the folder again.
                    let erased = Folder::erase(&tree.join(root).join("erased"));
                    self.count("erase", if erased.is_ok() { 200 } else { 400 });
                }
            }
        }
    }
}
