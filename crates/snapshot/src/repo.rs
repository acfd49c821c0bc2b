//! The repository: a tenant's snapshots. Each capture adds one pack with new content only; unchanged content stays in
//! earlier packs.

mod active_captures;
mod capture;
mod changes;
mod compare;
mod discarded;
mod entries;
mod fetch;
mod folder_check;
mod gc;
mod import;
mod inventory;
mod notes;
mod read;
mod references;
mod restore;
mod seal;
mod tombstones;
mod verify;

use std::collections::HashMap;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

pub use active_captures::CaptureGuard;
pub use capture::{
    CaptureRequest, CaptureRoot, CapturedSnapshot, ChangeTracking, ExcludeFilter, SkipReason, SkippedEntry,
    SnapshotProgress, SummaryNote, UnchangedPolicy,
};
pub use changes::{PathChange, changes};
pub use compare::{DifferenceKind, FolderDifference};
pub use entries::{ContentId, FileEntry, FileEntryKind};
pub use folder_check::{FolderCheck, FolderCheckMethod, MismatchPolicy};
pub use gc::{GcReport, GcRoots, RepoLock, RepoLockMode};
pub use import::PackImport;
pub use notes::SnapshotInfo;
pub use read::{FileContentReader, SnapshotEntry};
pub use restore::{DonorTree, RestoreReport, RestoreTarget};
pub use verify::{DamagedSnapshot, VerifyDepth, VerifyReport};

use active_captures::ActiveCaptures;
use read::ContentBlocks;

pub(crate) use inventory::PackInventory;

use crate::disk_writer::DiskWriter;
use crate::encryption_key::EncryptionKey;
use crate::index::IndexCache;
use crate::object::ObjectRef;
use crate::object_id::{ObjectNamer, PackId};
use crate::pack::{PackDestination, PackFile, TEMPORARY, UnpackBuffers, damaged, file_name};
use crate::remote::{RemotePackCache, RemotePackSource};
use crate::{Error, TreeId};

/// Running captures are younger than this; an older temporary file belongs to a capture that crashed.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Upper limit for pack files that are kept open.
const MAX_OPEN_PACKS: usize = 64;

/// The cache of remote packs may exceed its limit by this much between two checks.
const SLACK: u64 = 64 << 20;

/// A repository of snapshots: packs in a folder, and an index of them.
#[derive(Debug)]
pub struct Repo {
    dir: PathBuf,
    disk: DiskWriter,
    key: Option<EncryptionKey>,
    naming: ObjectNamer,
    open: Mutex<Vec<Arc<PackFile>>>,
    /// Packs that only the remote store has.
    remote_cache: Option<Arc<RemotePackCache>>,
    /// Snapshots in use: collection leaves them alone.
    pins: Mutex<HashMap<TreeId, usize>>,
    captures: Arc<ActiveCaptures>,
    naming_packs: RwLock<()>,
    /// Serializes writers of tombstones.
    tombstone_lock: Mutex<()>,
    inventory: Arc<PackInventory>,
    /// Serializes changes of the list of discarded snapshots.
    discarded_lock: Mutex<()>,
    indexes: IndexCache,
    content_blocks: Mutex<Weak<ContentBlocks>>,
}

impl Repo {
    /// Opens the repository in a directory of the host, and creates it if it does not exist.
    pub fn open(dir: &Path) -> Result<Repo, Error> {
        Repo::open_with(dir, None, DiskWriter::default())
    }

    /// With a key, the repository seals everything it writes, and can read what was sealed with that key.
    pub fn open_with(dir: &Path, key: Option<EncryptionKey>, disk: DiskWriter) -> Result<Repo, Error> {
        let failed = |e| Error::system("open the repository", dir.as_os_str().as_bytes(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)?;
        remove_stale(dir).map_err(failed)?;
        let naming = ObjectNamer::with(key.as_ref());
        let (open, pins, naming_packs) = (Mutex::default(), Mutex::default(), RwLock::default());
        Ok(Repo {
            dir: dir.to_owned(),
            inventory: Arc::new(PackInventory::new(dir, disk.clone())),
            discarded_lock: Mutex::default(),
            disk,
            key,
            naming,
            open,
            remote_cache: None,
            pins,
            captures: Arc::default(),
            naming_packs,
            tombstone_lock: Mutex::default(),
            indexes: IndexCache::default(),
            content_blocks: Mutex::default(),
        })
    }

    /// Reads packs that are not here from `far`, and caches about `most` bytes of them.
    pub fn with_remote(mut self, remote: Arc<dyn RemotePackSource>, most: u64) -> Result<Repo, Error> {
        let dir = self.dir.join("cache/far");
        self.remote_cache = Some(RemotePackCache::new(dir, remote, self.disk.clone(), most)?);
        Ok(self)
    }

    /// The disk space of cached remote packs.
    pub fn remote_cache_size(&self) -> io::Result<u64> {
        self.remote_cache.as_ref().map_or(Ok(0), |away| away.size())
    }

    /// Whether the repository has this tree. [`Repo::verify`] checks whether it is intact.
    pub fn contains(&self, tree: &TreeId) -> bool {
        self.root(tree).is_ok()
    }

    fn root(&self, tree: &TreeId) -> Result<ObjectRef, Error> {
        let pack = self.pack(tree.pack())?;
        let mut root = pack.table.root.ok_or_else(|| pack.damaged("it holds no snapshot"))?;
        if !tree.is_of(&root.id) {
            return Err(pack.damaged("it holds another snapshot"));
        }
        if root.place.pack == PackId::SELF {
            root.place.pack = pack.id;
        }
        Ok(root)
    }

    fn pack(&self, id: PackId) -> Result<Arc<PackFile>, Error> {
        match (self.open_local(id)?, &self.remote_cache) {
            (Some(pack), _) => Ok(pack),
            (None, Some(away)) => {
                let pack = self.keep_open(away.open(id, self.key.as_ref())?);
                self.make_room(away, SLACK);
                Ok(pack)
            }
            (None, None) => Err(damaged(&id, "its pack is not there")),
        }
    }

    /// A pack that can be opened without the remote store.
    fn open_local(&self, id: PackId) -> Result<Option<Arc<PackFile>>, Error> {
        let mut open = self.open.lock().expect("no code panics while it holds this lock");
        if let Some(at) = open.iter().rposition(|pack| pack.id == id) {
            let pack = open.remove(at);
            open.push(pack.clone());
            return Ok(Some(pack));
        }
        drop(open);
        let key = self.key.as_ref();
        let pack = match (PackFile::open(&self.dir, id, key)?, &self.remote_cache) {
            (Some(pack), _) => Some(pack),
            (None, None) => None,
            (None, Some(away)) => match away.kept(id, key) {
                // No hash covers the footer's flag for sealing, so either error may be damage of the local file.
                Err(Error::Damaged { .. } | Error::Sealed { .. }) => None,
                kept => kept?,
            },
        };
        Ok(pack.map(|pack| self.keep_open(pack)))
    }

    fn keep_open(&self, pack: PackFile) -> Arc<PackFile> {
        let pack = Arc::new(pack);
        let mut open = self.open.lock().expect("no code panics while it holds this lock");
        if open.len() >= MAX_OPEN_PACKS {
            open.remove(0);
        }
        open.push(pack.clone());
        pack
    }

    /// An unpacked block. The caller still has to check its objects against their ids.
    fn block(&self, pack: PackId, number: u32, unpacking: &mut UnpackBuffers) -> Result<Vec<u8>, Error> {
        let (key, from) = (self.key.as_ref(), self.pack(pack)?);
        let block = from.block(number, key, unpacking);
        let Some(away) = self.remote_cache.as_ref().filter(|_| from.is_far()) else { return block };
        self.make_room(away, SLACK);
        match block {
            // The remote pack may have been replaced since its table was read.
            Err(Error::Damaged { .. }) if !away.same(&[from])?.contains(&pack) => {
                self.forget(pack);
                away.let_go(pack)?;
                self.pack(pack)?.block(number, key, unpacking)
            }
            block => block,
        }
    }

    /// Whether a pack is in the repository's own directory.
    fn is_here(&self, pack: PackId) -> bool {
        self.dir.join(file_name(&pack)).exists()
    }

    fn place(&self) -> PackDestination<'_> {
        PackDestination {
            dir: &self.dir,
            disk: &self.disk,
            key: self.key.as_ref(),
            naming: &self.naming_packs,
            inventory: &self.inventory,
        }
    }

    /// Closes the pack's file, because another file has its name now.
    fn forget(&self, id: PackId) {
        self.open.lock().expect("no code panics while it holds this lock").retain(|pack| pack.id != id);
    }

    /// Protects a snapshot from collection while the returned guard lives.
    fn pin(&self, tree: Option<&TreeId>) -> SnapshotPin<'_> {
        if let Some(tree) = tree {
            *self
                .pins
                .lock()
                .expect("no code panics while it holds this lock")
                .entry(tree.clone())
                .or_default() += 1;
        }
        SnapshotPin { repo: self, tree: tree.cloned() }
    }
}

struct SnapshotPin<'r> {
    repo: &'r Repo,
    tree: Option<TreeId>,
}

impl Drop for SnapshotPin<'_> {
    fn drop(&mut self) {
        let Some(tree) = &self.tree else { return };
        let mut pins = self.repo.pins.lock().expect("no code panics while it holds this lock");
        if let Some(count) = pins.get_mut(tree) {
            *count -= 1;
            if *count == 0 {
                pins.remove(tree);
            }
        }
    }
}

fn remove_stale(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let ours = entry.file_name().as_bytes().starts_with(TEMPORARY.as_bytes());
        if ours && age(&entry).is_some_and(|age| age > STALE) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn age(entry: &std::fs::DirEntry) -> Option<Duration> {
    entry.metadata().ok()?.modified().ok()?.elapsed().ok()
}
