//! Captures of a live tree: what has changed since the last one is read, as far as tracking can be trusted.

use super::{LiveDirectory, open_root};
use crate::Result;
use ash_snapshot::{
    CaptureRequest, CaptureRoot, CapturedSnapshot, ChangeTracking, FilesystemWatch, Folder, RelPath, Repo,
    TouchedPaths, TrackedFolder, TreeId, UnchangedPolicy,
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// What a capture stores beside the files.
#[derive(Debug)]
pub(crate) struct CaptureNotes {
    pub(crate) notes: Vec<(String, Vec<u8>)>,
    pub(crate) unchanged: UnchangedPolicy,
}

impl Default for CaptureNotes {
    fn default() -> CaptureNotes {
        CaptureNotes { notes: Vec::new(), unchanged: UnchangedPolicy::ReuseBase }
    }
}
pub(super) struct FollowedChanges {
    tracked: TrackedFolder,
    checked: Instant,
}

/// How long change tracking is trusted before a capture checks the whole tree again.
const TRACKING_TRUST_TIME: Duration = Duration::from_secs(10 * 60);

impl LiveDirectory {
    /// Captures a prepared tree that was made from `base`.
    pub(crate) fn capture_prepared(
        &self,
        repo: &Repo,
        base: &TreeId,
        capture_notes: &CaptureNotes,
    ) -> Result<CapturedSnapshot> {
        let index = self.dir.join("index.new");
        take(repo, &self.dir.join("tree.new"), Some((base, &index)), capture_notes, ChangeTracking::None)
    }

    /// Captures the whole tree, reading what has changed since `base`. The caller has frozen or ended all processes
    /// that write to it.
    pub(crate) fn capture(
        &self,
        repo: &Repo,
        base: &TreeId,
        capture_notes: &CaptureNotes,
        watch: Option<&FilesystemWatch>,
    ) -> Result<CapturedSnapshot> {
        let tree = self.dir.join("tree");
        let folder = self.open_tree()?;
        let mapped = self.write_back(&folder)?;
        let mut followed = self.followed.lock().expect("no thread panics while holding it");
        let Some(following) = followed.as_mut() else {
            // Tracking starts before the first walk, so that it misses no later change.
            let tracked = watch.and_then(|watch| watch.track(&folder).ok());
            let taken = take(repo, &tree, Some((base, &self.index())), capture_notes, ChangeTracking::None)?;
            *followed = tracked.map(|tracked| FollowedChanges { tracked, checked: Instant::now() });
            return Ok(taken);
        };
        let touched = match mapped {
            Some(mapped) => following.tracked.take_changes().with_files(mapped),
            None => TouchedPaths::Everything,
        };
        let due = following.checked.elapsed() >= TRACKING_TRUST_TIME;
        let tracking = if due { ChangeTracking::Check(&touched) } else { ChangeTracking::Trust(&touched) };
        let taken = take(repo, &tree, Some((base, &self.index())), capture_notes, tracking);
        match &taken {
            Err(_) => following.tracked.return_changes(touched),
            Ok(taken) if due => {
                following.checked = Instant::now();
                if !taken.missed_changes.is_empty() {
                    tracing::error!(tree = %tree.display(), missed = taken.missed_changes.len(), "change tracking missed changes; the next capture reads every file");
                    *followed = None;
                }
            }
            Ok(_) => {}
        }
        taken
    }

    /// Whether nothing has changed since the last capture, as far as tracking is active and trusted. A change directly
    /// after the check is not seen.
    pub(crate) fn is_untouched(&self) -> bool {
        let Ok(folder) = self.open_tree() else { return false };
        let followed = self.followed.lock().expect("no thread panics while holding it");
        let Some(following) = followed.as_ref().filter(|one| one.checked.elapsed() < TRACKING_TRUST_TIME)
        else {
            return false;
        };
        let pids = ash_sandbox::processes(&self.run());
        let mapped = ash_snapshot::mapped_writable(pids.into_iter(), &folder);
        if !mapped.is_ok_and(|mapped| mapped.files.is_empty() && mapped.unread.is_empty()) {
            return false;
        }
        let touched = following.tracked.take_changes();
        let untouched = touched.is_empty();
        if !untouched {
            following.tracked.return_changes(touched);
        }
        untouched
    }

    /// Writes back what processes have mapped, so that the files' times reflect every write. Returns the files, or
    /// `None` if some mappings could not be read.
    fn write_back(&self, tree: &Folder) -> Result<Option<Vec<RelPath>>> {
        let pids = ash_sandbox::processes(&self.run());
        let mappings = ash_snapshot::mapped_writable(pids.into_iter(), tree)?;
        let unreached = ash_snapshot::sync_mapped(tree, &mappings.files)?.len();
        let paths: Option<Vec<RelPath>> = mappings.files.into_iter().map(|file| file.path).collect();
        Ok(paths.filter(|_| unreached == 0 && mappings.unread.is_empty()))
    }

    /// Stops tracking: another tree will be here.
    pub(super) fn forget_tracking(&self) {
        *self.followed.lock().expect("no thread panics while holding it") = None;
    }
}

pub(super) fn take(
    repo: &Repo,
    tree: &Path,
    before: Option<(&TreeId, &Path)>,
    capture_notes: &CaptureNotes,
    tracking: ChangeTracking<'_>,
) -> Result<CapturedSnapshot> {
    let (workspace, home) = (open_root(&tree.join("workspace"))?, open_root(&tree.join("home"))?);
    let roots =
        [CaptureRoot { name: "workspace", folder: &workspace }, CaptureRoot { name: "home", folder: &home }];
    let notes: Vec<(&str, &[u8])> =
        capture_notes.notes.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let (base, index) = before.unzip();
    Ok(repo.capture(&CaptureRequest {
        roots: &roots,
        exclude: &is_excluded,
        base,
        index,
        notes: &notes,
        unchanged: capture_notes.unchanged,
        tracking,
        progress: None,
    })?)
}

/// Whether a file of a root stays out of checkpoints.
pub(super) fn is_excluded(root: &[u8], path: &[u8]) -> bool {
    root == b"home" && ash_driver::is_never_captured(path)
}
