//! The live tree: the directory a sandbox works in, with a stamp beside it that says whether it can be trusted. A tree
//! that cannot be trusted is kept as a salvage checkpoint and replaced by the newest checkpoint.

mod outside_changes;
mod tree_shape;

pub(crate) use outside_changes::{AgentMemoryPaths, LiveTreeComparison};
pub(crate) use tree_shape::{LiveTreeShape, open_root};

use crate::{Error, Result, embedded_log::EmbeddedLog};
use ash_model::{Epoch, EventSeq, Tier, WorkspaceId};
use ash_snapshot::{
    CaptureRequest, CaptureRoot, CapturedSnapshot, ChangeTracking, DonorTree, FileOwner, FilesystemWatch,
    Folder, RelPath, Repo, RestoreTarget, SnapshotProgress, TouchedPaths, TrackedFolder, TreeId,
};
use ash_store::LeaseHolder;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};
use uuid::Uuid;

/// Written beside the tree, never inside it, where the agent could change it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveTreeStamp {
    pub(crate) epoch: Epoch,
    /// Identifies the boot: a reboot loses the page cache, and with it writes that were not on the disk yet.
    pub(crate) boot: String,
    pub(crate) uid: Option<u32>,
    /// The last rewind that the tree reflects: its place in the log, or, in a shared workspace, the number of its
    /// checkpoint. 0: none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) rewound: EventSeq,
    /// The tree is of an older checkpoint than the newest one, which could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fallback: Option<CheckpointFallback>,
    /// The repair of the memory of the only agent in the tree. Read from old stamps, never written any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mended: Option<TranscriptRepair>,
    /// Repairs of agents' memories in the tree, by the ids of their conversations, until a receipt reports them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mends: BTreeMap<Uuid, TranscriptRepair>,
    /// Changes from outside that a checkpoint holds by now, until a receipt reports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) outside: Vec<String>,
}

/// How an agent's memory was repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TranscriptRepair {
    pub(crate) tier: Tier,
    pub(crate) repairs: Vec<String>,
    pub(crate) lost: Vec<String>,
}

impl TranscriptRepair {
    /// Combines two repairs in order.
    pub(crate) fn after(mut self, before: Option<&TranscriptRepair>) -> TranscriptRepair {
        let Some(before) = before else { return self };
        let add = |to: &mut Vec<String>, from: &[String]| {
            let new: Vec<String> = from.iter().filter(|text| !to.contains(text)).cloned().collect();
            to.splice(0..0, new);
        };
        add(&mut self.repairs, &before.repairs);
        add(&mut self.lost, &before.lost);
        if before.tier == Tier::Rebuilt {
            self.tier = Tier::Rebuilt;
        }
        self
    }
}

/// A checkpoint that could not be read, and the checkpoint whose files are used instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckpointFallback {
    pub(crate) instead_of: u64,
    pub(crate) used: u64,
    pub(crate) why: String,
}

fn is_none(rewound: &EventSeq) -> bool {
    *rewound == 0
}

/// The tree on disk, if it is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveTree {
    /// The owner of its files, if that is not the server's user.
    pub(crate) uid: Option<u32>,
}

/// The uids that sandboxes of this node may have, one for each workspace.
pub struct UidPool {
    /// `None`: the server runs as an ordinary user, and so does every sandbox.
    range: Option<std::ops::Range<u32>>,
    used: Mutex<HashSet<u32>>,
}

impl UidPool {
    pub fn new(range: Option<std::ops::Range<u32>>) -> UidPool {
        UidPool { range, used: Mutex::default() }
    }

    pub(crate) fn allocate(&self) -> Result<Option<u32>> {
        let Some(range) = self.range.clone() else { return Ok(None) };
        let mut used = self.used.lock().expect("nobody panics while holding it");
        let free = range.clone().find(|uid| !used.contains(uid)).ok_or(Error::Capacity(range.len()))?;
        used.insert(free);
        Ok(Some(free))
    }

    /// Whether every workspace has a uid of its own.
    pub(crate) fn are_given(&self) -> bool {
        self.range.is_some()
    }

    pub(crate) fn mark_used(&self, uid: Option<u32>) {
        self.used.lock().expect("nobody panics while holding it").extend(uid);
    }

    pub(crate) fn release(&self, uid: Option<u32>) {
        if let Some(uid) = uid {
            self.used.lock().expect("nobody panics while holding it").remove(&uid);
        }
    }
}

/// The directory of one workspace on this node.
#[derive(Clone)]
pub(crate) struct LiveDirectory {
    dir: PathBuf,
    /// Tracks what was touched in the tree since the last capture. Starts with the first capture.
    followed: Arc<Mutex<Option<FollowedChanges>>>,
    /// Held while the stamp is changed, because sessions of one workspace may come back at the same time.
    stamping: Arc<Mutex<()>>,
}

struct FollowedChanges {
    tracked: TrackedFolder,
    checked: Instant,
}

/// How long change tracking is trusted before a capture checks the whole tree again.
const TRACKING_TRUST_TIME: Duration = Duration::from_secs(10 * 60);

/// What a tree is made from if the existing one cannot be used.
#[derive(Debug, Clone)]
pub(crate) struct TreeRecipe {
    pub(crate) epoch: Epoch,
    pub(crate) boot: String,
    /// The newest checkpoint, or the agent's own files.
    pub(crate) tree: TreeId,
    pub(crate) fresh: bool,
    /// The last rewind in the log.
    pub(crate) rewound: EventSeq,
    pub(crate) fallback: Option<CheckpointFallback>,
}

const UNCLAIMED: &str = "unclaimed";
/// How many notes of changes from outside are kept until a receipt reports them.
const MAX_OUTSIDE_NOTES: usize = 10;
/// Beside the tree: a tree that is being written, and one that is being erased.
const UNFINISHED_TREES: [&str; 2] = ["tree.new", "tree.gone"];

impl TreeRecipe {
    fn stamp(&self, uid: Option<u32>) -> LiveTreeStamp {
        let (epoch, boot, rewound) = (self.epoch, self.boot.clone(), self.rewound);
        LiveTreeStamp {
            epoch,
            boot,
            uid,
            rewound,
            fallback: self.fallback.clone(),
            mended: None,
            mends: BTreeMap::new(),
            outside: Vec::new(),
        }
    }
}

impl LiveDirectory {
    pub(crate) fn new(root: &Path, workspace: WorkspaceId) -> LiveDirectory {
        LiveDirectory {
            dir: root.join(workspace.to_string()),
            followed: Arc::default(),
            stamping: Arc::default(),
        }
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.join("tree/workspace")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.join("tree/home")
    }

    /// Files that are being uploaded into the workspace.
    pub(crate) fn uploads(&self) -> PathBuf {
        self.dir.join("uploads")
    }

    pub(crate) fn stamp(&self) -> Option<LiveTreeStamp> {
        serde_json::from_slice(&fs::read(self.dir.join("stamp")).ok()?).ok()
    }

    /// Whether the tree on this node is the newest: no other server held the workspace since, and the machine did not
    /// reboot. One epoch ahead is valid too, because the stamp is written before the claim.
    pub(crate) fn is_current(&self, hold: &LeaseHolder, node: &str, boot: &str) -> bool {
        let epochs = [hold.epoch.0, hold.epoch.0 + 1];
        hold.node == node
            && self.shape() == LiveTreeShape::Whole
            && self.stamp().is_some_and(|stamp| stamp.boot == boot && epochs.contains(&stamp.epoch.0))
    }

    /// Marks the tree as unclaimed. A server that finds it so, and in no database, may remove it.
    pub(crate) fn mark_unclaimed(&self) -> Result<()> {
        make_dir(&self.dir)?;
        fs::write(self.dir.join(UNCLAIMED), b"").map_err(Error::io("cannot mark the tree as nobody's"))
    }

    pub(crate) fn is_unclaimed(&self) -> bool {
        self.dir.join(UNCLAIMED).exists()
    }

    /// Removes the mark: the database knows the owner.
    pub(crate) fn claim(&self) -> Result<()> {
        remove_if_there(&self.dir.join(UNCLAIMED))
    }

    /// Whether the tree reflects the last rewind. If not, the server died after it recorded the rewind and before it
    /// replaced the files.
    pub(crate) fn knows_of(&self, rewound: EventSeq) -> bool {
        self.stamp().is_some_and(|stamp| stamp.rewound == rewound)
    }

    pub(crate) fn adopt(&self, epoch: Epoch, uids: &UidPool) -> Result<Option<u32>> {
        let _alone = self.stamping();
        let stamp = self.stamp().ok_or(Error::NoWorkspace)?;
        uids.mark_used(stamp.uid);
        let uid = stamp.uid;
        self.write_stamp(&LiveTreeStamp { epoch, ..stamp })?;
        Ok(uid)
    }

    /// Gives a tree without a uid of its own, and everything in it, a uid. Nothing may run in it. If this is
    /// interrupted, the stamp still says that the tree has no uid, and it is repeated.
    pub(crate) fn hand_over(&self, uids: &UidPool) -> Result<Option<u32>> {
        let uid = uids.allocate()?;
        let Some(owner) = uid.map(|uid| FileOwner { uid, gid: uid }) else { return Ok(None) };
        let given = (|| {
            self.forget_tracking();
            for root in [self.workspace(), self.home()] {
                Folder::open(&root)?.change_owner(owner)?;
            }
            Repo::refresh_index(&self.index(), &Folder::open(&self.dir.join("tree"))?);
            let _alone = self.stamping();
            let stamp = self.stamp().ok_or(Error::NoWorkspace)?;
            self.write_stamp(&LiveTreeStamp { uid, ..stamp })
        })();
        if given.is_err() {
            uids.release(uid);
        }
        given.map(|()| uid)
    }

    /// The repair of an agent's memory by a server that died before a receipt reported the repair.
    pub(crate) fn mended(&self, whose: Uuid) -> Option<TranscriptRepair> {
        let mut stamp = self.stamp()?;
        stamp.mends.remove(&whose).or(stamp.mended)
    }

    /// Notes a repair of an agent's memory beside the tree before it is carried out. Without the note, a crash before
    /// the receipt would leave a memory that looks whole.
    pub(crate) fn note_mended(&self, whose: Uuid, mended: Option<TranscriptRepair>) -> Result<()> {
        let _alone = self.stamping();
        let before = self.stamp().ok_or(Error::NoWorkspace)?;
        let mut stamp = LiveTreeStamp { mended: None, ..before.clone() };
        stamp.mends.remove(&whose);
        stamp.mends.extend(mended.map(|mended| (whose, mended)));
        if stamp == before { Ok(()) } else { self.write_stamp(&stamp) }
    }

    /// Notes changes from outside beside the tree, before a checkpoint holds them and they look like the session's own.
    pub(crate) fn note_changes(&self, repo: &Repo, before: &TreeId, now: &TreeId) -> Result<()> {
        let changed = outside_changes::changed(repo, before, now)?;
        if changed.is_empty() {
            return Ok(());
        }
        let _alone = self.stamping();
        let mut stamp = self.stamp().ok_or(Error::NoWorkspace)?;
        let told = changed.to_string();
        if !stamp.outside.contains(&told) {
            stamp.outside.truncate(MAX_OUTSIDE_NOTES - 1);
            stamp.outside.push(told);
        }
        self.write_stamp(&stamp)
    }

    /// Removes the notes: a receipt has reported the changes.
    pub(crate) fn forget_changes(&self) -> Result<()> {
        let _alone = self.stamping();
        match self.stamp() {
            Some(stamp) if !stamp.outside.is_empty() => {
                self.write_stamp(&LiveTreeStamp { outside: Vec::new(), ..stamp })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn stamping(&self) -> MutexGuard<'_, ()> {
        self.stamping.lock().expect("nobody panics while holding it")
    }

    fn write_stamp(&self, stamp: &LiveTreeStamp) -> Result<()> {
        let fresh = self.dir.join("stamp.new");
        let text = serde_json::to_vec(stamp).expect("plain words and numbers");
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&fresh)?;
            file.write_all(&text)?;
            fs::rename(&fresh, self.dir.join("stamp"))
        };
        write().map_err(Error::io("cannot stamp the live tree"))
    }

    /// Makes the tree anew. Nothing is visible before it is whole. The caller has put the old tree aside.
    pub(crate) fn make(
        &self,
        recipe: &TreeRecipe,
        (repo, progress): (&Repo, &SnapshotProgress),
        uids: &UidPool,
    ) -> Result<Option<u32>> {
        let uid = uids.allocate()?;
        let made =
            self.prepare(recipe, (repo, progress), uid).and_then(|()| self.put_in_place(&recipe.stamp(uid)));
        if made.is_err() {
            uids.release(uid);
        }
        made.map(|()| uid)
    }

    /// Puts a prepared tree in the place of the existing one, which a checkpoint must hold. After a crash at any point,
    /// the tree is either not current or the new one.
    pub(crate) fn replace(&self, stamp: &LiveTreeStamp) -> Result<()> {
        let (tree, gone) = (self.dir.join("tree"), self.dir.join("tree.gone"));
        Folder::erase(&gone)?;
        remove_if_there(&self.dir.join("stamp"))?;
        if self.holds("tree") {
            fs::rename(&tree, &gone).map_err(Error::io("cannot put the old tree aside"))?;
        }
        ash_failpoint::reach("live.without_tree");
        self.put_in_place(stamp)?;
        self.unmark_dirty();
        Folder::erase(&gone)?;
        Repo::refresh_index(&self.index(), &self.open_tree()?);
        Ok(())
    }

    /// Whether a server died while it wrote or erased a tree.
    pub(crate) fn has_unfinished_trees(&self) -> bool {
        UNFINISHED_TREES.iter().any(|scrap| self.dir.join(scrap).exists())
    }

    /// The caller makes sure that no tree is being prepared.
    pub(crate) fn erase_unfinished_trees(&self) -> Result<()> {
        UNFINISHED_TREES.iter().try_for_each(|scrap| Ok(Folder::erase(&self.dir.join(scrap))?))
    }

    fn put_in_place(&self, stamp: &LiveTreeStamp) -> Result<()> {
        self.forget_tracking();
        self.unmark_settled()?;
        fs::rename(self.dir.join("tree.new"), self.dir.join("tree"))
            .map_err(Error::io("cannot put the tree in place"))?;
        // Without the index, or with that of another tree, the next capture only reads more.
        fs::rename(self.dir.join("index.new"), self.index()).ok();
        ash_failpoint::reach("live.without_stamp");
        let _alone = self.stamping();
        self.write_stamp(stamp)
    }

    /// Whether there is a tree, other than the current one, that may be in no checkpoint.
    pub(crate) fn has_leftovers(&self, current: bool) -> bool {
        self.holds("tree.old") || (!current && self.holds("tree"))
    }

    /// Puts an untrusted tree aside and captures it. It is erased only when the capture is recorded.
    pub(crate) fn salvage(&self, repo: &Repo, uids: &UidPool) -> Result<Option<CapturedSnapshot>> {
        let old = self.dir.join("tree.old");
        if !self.holds("tree.old") {
            let uid = self.stamp().and_then(|stamp| stamp.uid);
            self.distrust()?;
            uids.release(uid);
            if !self.holds("tree") {
                return Ok(None);
            }
            fs::rename(self.dir.join("tree"), &old).map_err(Error::io("cannot put the old tree aside"))?;
        }
        if !tree_shape::complete(&old)? {
            return Ok(None);
        }
        // Reads every file: it is unknown what the tree was made from.
        take(repo, &old, None, &EmbeddedLog::default(), ChangeTracking::None).map(Some)
    }

    pub(crate) fn forget_old(&self) -> Result<()> {
        Ok(Folder::erase(&self.dir.join("tree.old"))?)
    }

    /// Called before a client writes: after a crash in between, the next start captures the tree.
    pub(crate) fn mark_dirty(&self) -> Result<()> {
        self.unmark_settled()?;
        fs::write(self.dir.join("dirty"), b"").map_err(Error::io("cannot mark the tree as changed"))
    }

    pub(crate) fn is_marked_dirty(&self) -> bool {
        self.dir.join("dirty").exists()
    }

    pub(crate) fn unmark_dirty(&self) {
        fs::remove_file(self.dir.join("dirty")).ok();
    }

    /// Writes a tree beside its final place.
    pub(crate) fn prepare(
        &self,
        recipe: &TreeRecipe,
        (repo, progress): (&Repo, &SnapshotProgress),
        uid: Option<u32>,
    ) -> Result<()> {
        let fresh = self.dir.join("tree.new");
        Folder::erase(&fresh)?;
        make_dir(&fresh)?;
        let owner = uid.map(|uid| FileOwner { uid, gid: uid });
        for root in ["workspace", "home"] {
            make_dir(&fresh.join(root))?;
        }
        let (workspace, home) = (Folder::open(&fresh.join("workspace"))?, Folder::open(&fresh.join("home"))?);
        let targets = [
            RestoreTarget { root: "workspace", folder: &workspace, owner },
            RestoreTarget { root: "home", folder: &home, owner },
        ];
        let index = self.dir.join("index.new");
        match self.donor() {
            Some(old) => {
                let donor = DonorTree { folder: &old, index: &self.index() };
                repo.restore_with_donor(&recipe.tree, &targets, Some(&index), (progress, donor))?
            }
            None => repo.restore_with_progress(&recipe.tree, &targets, Some(&index), progress)?,
        };
        if recipe.fresh {
            furnish(&home, owner)?;
        }
        for root in ["workspace", "home"] {
            give(&fresh.join(root), owner)?;
        }
        Ok(())
    }

    /// The agent's home in a prepared tree.
    pub(crate) fn prepared_home(&self) -> PathBuf {
        self.dir.join("tree.new/home")
    }

    /// Captures a prepared tree that was made from `base`.
    pub(crate) fn capture_prepared(
        &self,
        repo: &Repo,
        base: &TreeId,
        luggage: &EmbeddedLog,
    ) -> Result<CapturedSnapshot> {
        let index = self.dir.join("index.new");
        take(repo, &self.dir.join("tree.new"), Some((base, &index)), luggage, ChangeTracking::None)
    }

    /// The existing tree, if no process works in it: another tree may take over its files.
    fn donor(&self) -> Option<Folder> {
        let quiet = ash_sandbox::processes(&self.run()).is_empty();
        quiet.then(|| self.open_tree().ok()).flatten()
    }

    /// Captures the whole tree, reading what has changed since `base`. The caller has frozen or ended all processes
    /// that write to it.
    pub(crate) fn capture(
        &self,
        repo: &Repo,
        base: &TreeId,
        luggage: &EmbeddedLog,
        watch: Option<&FilesystemWatch>,
    ) -> Result<CapturedSnapshot> {
        let tree = self.dir.join("tree");
        let folder = self.open_tree()?;
        let mapped = self.write_back(&folder)?;
        let mut followed = self.followed.lock().expect("nobody panics while holding it");
        let Some(following) = followed.as_mut() else {
            // Tracking starts before the first walk, so that it misses no later change.
            let tracked = watch.and_then(|watch| watch.track(&folder).ok());
            let taken = take(repo, &tree, Some((base, &self.index())), luggage, ChangeTracking::None)?;
            *followed = tracked.map(|tracked| FollowedChanges { tracked, checked: Instant::now() });
            return Ok(taken);
        };
        let touched = match mapped {
            Some(mapped) => following.tracked.take_changes().with_files(mapped),
            None => TouchedPaths::Everything,
        };
        let due = following.checked.elapsed() >= TRACKING_TRUST_TIME;
        let tracking = if due { ChangeTracking::Check(&touched) } else { ChangeTracking::Trust(&touched) };
        let taken = take(repo, &tree, Some((base, &self.index())), luggage, tracking);
        match &taken {
            Err(_) => following.tracked.return_changes(touched),
            Ok(taken) if due => {
                following.checked = Instant::now();
                if !taken.missed_changes.is_empty() {
                    tracing::error!(tree = %tree.display(), missed = taken.missed_changes.len(), "changes were not followed; captures look at everything again");
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
        let followed = self.followed.lock().expect("nobody panics while holding it");
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
    fn forget_tracking(&self) {
        *self.followed.lock().expect("nobody panics while holding it") = None;
    }

    /// The state of the tree's files when it was made or last captured.
    fn index(&self) -> PathBuf {
        self.dir.join("index")
    }

    /// Erases everything, for ended sessions, whose last checkpoint holds all files.
    pub(crate) fn erase(&self, uids: &UidPool) -> Result<()> {
        self.forget_tracking();
        let uid = self.stamp().and_then(|stamp| stamp.uid);
        remove_if_there(&self.dir.join("stamp"))?;
        ash_failpoint::reach("live.erasing");
        Folder::erase(&self.dir)?;
        uids.release(uid);
        Ok(())
    }
}

fn take(
    repo: &Repo,
    tree: &Path,
    before: Option<(&TreeId, &Path)>,
    luggage: &EmbeddedLog,
    tracking: ChangeTracking<'_>,
) -> Result<CapturedSnapshot> {
    let (workspace, home) = (open_root(&tree.join("workspace"))?, open_root(&tree.join("home"))?);
    let roots =
        [CaptureRoot { name: "workspace", folder: &workspace }, CaptureRoot { name: "home", folder: &home }];
    let notes: Vec<(&str, &[u8])> =
        luggage.notes.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let (base, index) = before.unzip();
    Ok(repo.capture(&CaptureRequest {
        roots: &roots,
        exclude: &is_excluded,
        base,
        index,
        notes: &notes,
        unchanged: luggage.unchanged,
        tracking,
        progress: None,
    })?)
}

/// An agent's credentials belong to its owner and not into a checkpoint; shell snapshots are stale by design.
fn is_excluded(root: &[u8], path: &[u8]) -> bool {
    root == b"home"
        && (path == b".claude/.credentials.json"
            || path.starts_with(b".claude/shell-snapshots/")
            || (path.starts_with(b".claude/sessions/") && path.ends_with(b".key")))
}

/// Without an identity the agent's first `git commit` fails.
fn furnish(home: &Folder, owner: Option<FileOwner>) -> Result<()> {
    let path = ash_snapshot::RelPath::parse(".gitconfig").expect("a plain name");
    let text = "[user]\n\tname = agent\n\temail = agent@localhost\n";
    home.write_file(&path, &mut text.as_bytes(), owner, 0o644)?;
    Ok(())
}

fn give(path: &Path, owner: Option<FileOwner>) -> Result<()> {
    if let Some(owner) = owner {
        std::os::unix::fs::lchown(path, Some(owner.uid), Some(owner.gid))
            .map_err(Error::io("cannot hand over the tree"))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(Error::io("cannot close the tree"))
}

pub(crate) fn make_dir(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::io(format!("cannot make {}", path.display())))
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_written_and_read_as_in_the_first_version() {
        let plain = LiveTreeStamp {
            epoch: Epoch(7),
            boot: "b0".to_owned(),
            uid: None,
            rewound: 0,
            fallback: None,
            mended: None,
            mends: BTreeMap::new(),
            outside: Vec::new(),
        };
        let fallback = Some(CheckpointFallback { instead_of: 5, used: 3, why: "w".to_owned() });
        let mended =
            TranscriptRepair { tier: Tier::Repaired, repairs: vec!["r".to_owned()], lost: Vec::new() };
        let mends = BTreeMap::from([(Uuid::nil(), mended.clone())]);
        let stamps = [
            (LiveTreeStamp { uid: Some(60001), ..plain.clone() }, r#"{"epoch":7,"boot":"b0","uid":60001}"#),
            (plain.clone(), r#"{"epoch":7,"boot":"b0","uid":null}"#),
            (
                LiveTreeStamp { rewound: 42, ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"rewound":42}"#,
            ),
            (
                LiveTreeStamp { fallback, ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"fallback":{"insteadOf":5,"used":3,"why":"w"}}"#,
            ),
            (
                LiveTreeStamp { mended: Some(mended), ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"mended":{"tier":"repaired","repairs":["r"],"lost":[]}}"#,
            ),
            (
                LiveTreeStamp { outside: vec!["a".to_owned()], ..plain.clone() },
                r#"{"epoch":7,"boot":"b0","uid":null,"outside":["a"]}"#,
            ),
            (
                LiveTreeStamp { mends, ..plain },
                r#"{"epoch":7,"boot":"b0","uid":null,"mends":{"00000000-0000-0000-0000-000000000000":{"tier":"repaired","repairs":["r"],"lost":[]}}}"#,
            ),
        ];
        for (stamp, text) in stamps {
            assert_eq!(serde_json::to_string(&stamp).expect("plain"), text);
            assert_eq!(serde_json::from_str::<LiveTreeStamp>(text).expect("read"), stamp);
        }
    }

    #[test]
    fn what_was_mended_twice_is_said_once_and_from_the_worse_tier() {
        let mending = |tier, repairs: &[&str], lost: &[&str]| TranscriptRepair {
            tier,
            repairs: repairs.iter().map(ToString::to_string).collect(),
            lost: lost.iter().map(ToString::to_string).collect(),
        };
        let before = mending(Tier::Rebuilt, &["a", "b"], &["x"]);
        let after = mending(Tier::Repaired, &["b", "c"], &["x", "y"]).after(Some(&before));
        assert_eq!(after, mending(Tier::Rebuilt, &["a", "b", "c"], &["x", "y"]));
    }
}
