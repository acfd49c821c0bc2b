//! The live tree: the directory a sandbox works in, with a stamp beside it that says whether it can be trusted. A tree
//! that cannot be trusted is kept as a salvage checkpoint and replaced by the newest checkpoint.

mod capture;
mod outside_changes;
mod stamp;
mod tree_shape;

pub(crate) use capture::CaptureNotes;
pub(crate) use outside_changes::{AgentMemoryPaths, LiveTreeComparison};
pub(crate) use stamp::{CheckpointFallback, LiveTreeStamp, TranscriptRepair};
pub(crate) use tree_shape::{LiveTreeShape, open_root};

use crate::{Error, Result, uid_pool::UidPool};
use ash_model::{Epoch, EventSeq, WorkspaceId};
use ash_snapshot::{
    CapturedSnapshot, ChangeTracking, DonorTree, FileOwner, Folder, Repo, RestoreTarget, SnapshotProgress,
    TreeId,
};
use ash_store::LeaseHolder;
use capture::{FollowedChanges, take};
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};
use uuid::Uuid;

/// The tree on disk, if it is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveTree {
    /// The owner of its files, if that is not the server's user.
    pub(crate) uid: Option<u32>,
}

/// The workspaces that have a directory on this node.
pub(crate) fn list_workspaces(live_dir: &Path) -> Vec<WorkspaceId> {
    let Ok(entries) = fs::read_dir(live_dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| WorkspaceId::parse(entry.file_name().to_str()?)).collect()
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
        self.stamping.lock().expect("no thread panics while holding it")
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
        take(repo, &old, None, &CaptureNotes::default(), ChangeTracking::None).map(Some)
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

    /// The existing tree, if no process works in it: another tree may take over its files.
    fn donor(&self) -> Option<Folder> {
        let quiet = ash_sandbox::processes(&self.run()).is_empty();
        quiet.then(|| self.open_tree().ok()).flatten()
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
