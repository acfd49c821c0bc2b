//! The live tree: the directory a sandbox works in, with a stamp outside of it that says whether it can be
//! trusted. A tree that cannot be is kept as a salvage checkpoint and replaced by the newest checkpoint.

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

/// Written beside the tree, never inside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveTreeStamp {
    pub(crate) epoch: Epoch,
    /// After a reboot the page cache is gone, and with it what was not yet written.
    pub(crate) boot: String,
    pub(crate) uid: Option<u32>,
    /// The last rewind that the tree knows of, by its place in the log; of a shared workspace, by the number of its
    /// checkpoint; 0: none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) rewound: EventSeq,
    /// The tree is an older one than it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fallback: Option<CheckpointFallback>,
    /// What was done to the memory of the only agent in it. Nobody writes it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mended: Option<TranscriptRepair>,
    /// What was done to agents' memories in it, by their conversations' own ids, until a receipt has said so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mends: BTreeMap<Uuid, TranscriptRepair>,
    /// What was changed in it from outside and is in a checkpoint by now, until a receipt has said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) outside: Vec<String>,
}

/// How an agent's memory was mended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TranscriptRepair {
    pub(crate) tier: Tier,
    pub(crate) repairs: Vec<String>,
    pub(crate) lost: Vec<String>,
}

impl TranscriptRepair {
    /// One after the other.
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

/// A checkpoint that could not be read, and the one whose files are there instead.
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

/// The tree on disk, when it is the newest there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveTree {
    /// Who owns its files, if that is not the server's user.
    pub(crate) uid: Option<u32>,
}

/// The uids that sandboxes of this node may have, one per workspace.
pub struct UidPool {
    /// `None`: we are an ordinary user, and so is every sandbox.
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

    /// Whether every workspace has one of its own.
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

/// Where one workspace lives on this node.
#[derive(Clone)]
pub(crate) struct LiveDirectory {
    dir: PathBuf,
    /// Who knows what was touched in the tree since it was captured, once it was.
    followed: Arc<Mutex<Option<FollowedChanges>>>,
    /// Whoever changes the stamp holds it: sessions of one workspace come back at the same time.
    stamping: Arc<Mutex<()>>,
}

struct FollowedChanges {
    tracked: TrackedFolder,
    checked: Instant,
}

/// How long what is followed is believed before a capture looks at everything again.
const TRACKING_TRUST_TIME: Duration = Duration::from_secs(10 * 60);

/// What a tree is made from, if the one that is there cannot be used.
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
/// So many notes of changes from outside wait for a receipt.
const MAX_OUTSIDE_NOTES: usize = 10;
/// Beside the tree: one that is being written, and one that is being erased.
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

    /// Files that are on their way into the workspace.
    pub(crate) fn uploads(&self) -> PathBuf {
        self.dir.join("uploads")
    }

    pub(crate) fn stamp(&self) -> Option<LiveTreeStamp> {
        serde_json::from_slice(&fs::read(self.dir.join("stamp")).ok()?).ok()
    }

    /// Whether the tree that is here is the newest there is: nobody else held the workspace since, and the
    /// machine did not go down. One epoch ahead is ours too: the stamp is written before the claim.
    pub(crate) fn is_current(&self, hold: &LeaseHolder, node: &str, boot: &str) -> bool {
        let epochs = [hold.epoch.0, hold.epoch.0 + 1];
        hold.node == node
            && self.shape() == LiveTreeShape::Whole
            && self.stamp().is_some_and(|stamp| stamp.boot == boot && epochs.contains(&stamp.epoch.0))
    }

    /// Nobody has it yet. Whoever finds it so, and in no database, may remove it.
    pub(crate) fn mark_unclaimed(&self) -> Result<()> {
        make_dir(&self.dir)?;
        fs::write(self.dir.join(UNCLAIMED), b"").map_err(Error::io("cannot mark the tree as nobody's"))
    }

    pub(crate) fn is_unclaimed(&self) -> bool {
        self.dir.join(UNCLAIMED).exists()
    }

    /// It is somebody's, whom the database knows.
    pub(crate) fn claim(&self) -> Result<()> {
        remove_if_there(&self.dir.join(UNCLAIMED))
    }

    /// Whether the tree that is here knows of the last rewind: if not, we died between the fact and the files.
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

    /// Gives a tree that has no uid of its own one, with all that is in it. Nothing may run in it. Cut off in the middle
    /// the stamp still says that it has none, and it is done again.
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

    /// How an agent's memory was mended by somebody who died before it was said.
    pub(crate) fn mended(&self, whose: Uuid) -> Option<TranscriptRepair> {
        let mut stamp = self.stamp()?;
        stamp.mends.remove(&whose).or(stamp.mended)
    }

    /// Says beside the tree what is about to be done to an agent's memory in it: whoever dies before the receipt
    /// would find a memory that looks whole.
    pub(crate) fn note_mended(&self, whose: Uuid, mended: Option<TranscriptRepair>) -> Result<()> {
        let _alone = self.stamping();
        let before = self.stamp().ok_or(Error::NoWorkspace)?;
        let mut stamp = LiveTreeStamp { mended: None, ..before.clone() };
        stamp.mends.remove(&whose);
        stamp.mends.extend(mended.map(|mended| (whose, mended)));
        if stamp == before { Ok(()) } else { self.write_stamp(&stamp) }
    }

    /// Says beside the tree what was changed in it from outside, before a checkpoint has it and it looks like the session's
    /// own.
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

    /// A receipt has said what was changed from outside.
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

    /// Makes the tree anew; nothing is visible before it is whole. What was there must have been put aside.
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

    /// Puts a tree that was prepared in the place of the one that is there, if any, which a checkpoint must hold.
    /// Wherever this ends, the tree is either not current or the new one.
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

    /// Whether somebody died while a tree was written, or taken away.
    pub(crate) fn has_unfinished_trees(&self) -> bool {
        UNFINISHED_TREES.iter().any(|scrap| self.dir.join(scrap).exists())
    }

    /// Only while nobody prepares a tree.
    pub(crate) fn erase_unfinished_trees(&self) -> Result<()> {
        UNFINISHED_TREES.iter().try_for_each(|scrap| Ok(Folder::erase(&self.dir.join(scrap))?))
    }

    fn put_in_place(&self, stamp: &LiveTreeStamp) -> Result<()> {
        self.forget_tracking();
        self.unmark_settled()?;
        fs::rename(self.dir.join("tree.new"), self.dir.join("tree"))
            .map_err(Error::io("cannot put the tree in place"))?;
        // Without it, or with that of another tree, the next capture only has more to read.
        fs::rename(self.dir.join("index.new"), self.index()).ok();
        ash_failpoint::reach("live.without_stamp");
        let _alone = self.stamping();
        self.write_stamp(stamp)
    }

    /// Whether something is here that no checkpoint is known to hold, if the tree is not the current one.
    pub(crate) fn has_leftovers(&self, current: bool) -> bool {
        self.holds("tree.old") || (!current && self.holds("tree"))
    }

    /// Puts a tree that cannot be trusted aside and captures it. It is erased only when the capture is recorded.
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
        // Read anew: nobody knows what it was made from.
        take(repo, &old, None, &EmbeddedLog::default(), ChangeTracking::None).map(Some)
    }

    pub(crate) fn forget_old(&self) -> Result<()> {
        Ok(Folder::erase(&self.dir.join("tree.old"))?)
    }

    /// Somebody outside is about to write: whoever finds this after a crash captures the tree.
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

    /// Writes the tree beside its place.
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

    /// The agent's home in a tree that was prepared.
    pub(crate) fn prepared_home(&self) -> PathBuf {
        self.dir.join("tree.new/home")
    }

    /// Captures a tree that was prepared from `base`.
    pub(crate) fn capture_prepared(
        &self,
        repo: &Repo,
        base: &TreeId,
        luggage: &EmbeddedLog,
    ) -> Result<CapturedSnapshot> {
        let index = self.dir.join("index.new");
        take(repo, &self.dir.join("tree.new"), Some((base, &index)), luggage, ChangeTracking::None)
    }

    /// The tree that is here, if nobody is at work in it: its files may become another tree's.
    fn donor(&self) -> Option<Folder> {
        let quiet = ash_sandbox::processes(&self.run()).is_empty();
        quiet.then(|| self.open_tree().ok()).flatten()
    }

    /// Captures the whole tree, reading what is not as it was when it was `base`. Whoever writes to it is held
    /// still, or is nobody.
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
            // From before the first walk on, so that it misses nothing that comes after.
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

    /// Nobody has changed anything since the last capture, as far as that is followed and believed. What comes a moment
    /// later is later.
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

    /// What processes have mapped is written back, so that its times tell of every store. The files, or `None` if
    /// somebody did not let us look.
    fn write_back(&self, tree: &Folder) -> Result<Option<Vec<RelPath>>> {
        let pids = ash_sandbox::processes(&self.run());
        let mappings = ash_snapshot::mapped_writable(pids.into_iter(), tree)?;
        let unreached = ash_snapshot::sync_mapped(tree, &mappings.files)?.len();
        let paths: Option<Vec<RelPath>> = mappings.files.into_iter().map(|file| file.path).collect();
        Ok(paths.filter(|_| unreached == 0 && mappings.unread.is_empty()))
    }

    /// Another tree will be here, of which nothing is known.
    fn forget_tracking(&self) {
        *self.followed.lock().expect("nobody panics while holding it") = None;
    }

    /// What the tree looked like when it was made or last captured.
    fn index(&self) -> PathBuf {
        self.dir.join("index")
    }

    /// Gone for good: for ended sessions, whose last checkpoint holds everything.
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

/// Agents' credentials are the owner's business, not the checkpoint's; shell snapshots are stale by design.
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
