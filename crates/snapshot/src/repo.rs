//! The repository: a tenant's snapshots. Each capture adds one pack with what was new; what was not is found in
//! the packs before.

mod arrive;
mod audit;
mod changes;
mod collect;
mod compare;
mod conceal;
mod fetch;
mod forgotten;
mod inventory;
mod leaves;
mod notes;
mod read;
mod references;
mod restore;
mod take;
mod tombstones;
mod under_way;
mod verify;

use std::collections::HashMap;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

pub use arrive::Arriving;
pub use audit::{Audit, Audited, Doubt};
pub use changes::{Change, changes};
pub use collect::{Collected, Lock, Locked, Wanted};
pub use compare::{Difference, What};
pub use leaves::{ContentId, Leaf, LeafKind};
pub use notes::Snapshot;
pub use read::{Entry, FileContent};
pub use restore::{Donor, Restored, Target};
pub use take::{Capture, Exclude, Progress, Root, Skipped, Taken, Tell, Tracking, Unchanged, Why};
pub use under_way::UnderWay;
pub use verify::{Depth, Hurt, Verified};

use read::ContentBlocks;
use under_way::Captures;

pub(crate) use inventory::Inventory;

use crate::disk::Disk;
use crate::far::{Away, Far};
use crate::id::{Naming, PackId};
use crate::index::Shelf;
use crate::key::Key;
use crate::object::Ref;
use crate::pack::{Pack, TEMPORARY, Unpacking, Where, damaged, file_name};
use crate::{Error, TreeId};

/// A capture that still runs is younger than this; what is older was left by one that died.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Open files of packs that are kept at hand.
const MOST_OPEN: usize = 64;

/// So much that is far may be kept beyond the limit, until somebody looks.
const SLACK: u64 = 64 << 20;

#[derive(Debug)]
pub struct Repo {
    dir: PathBuf,
    disk: Disk,
    key: Option<Key>,
    naming: Naming,
    open: Mutex<Vec<Arc<Pack>>>,
    /// Where packs are that are not here.
    away: Option<Arc<Away>>,
    /// Snapshots that somebody is working with: collection leaves them alone.
    pins: Mutex<HashMap<TreeId, usize>>,
    captures: Arc<Captures>,
    naming_packs: RwLock<()>,
    /// Held by whoever adds a tombstone.
    burying: Mutex<()>,
    inventory: Arc<Inventory>,
    /// Held while the list of what is forgotten is changed.
    forgetting: Mutex<()>,
    indexes: Shelf,
    content_blocks: Mutex<Weak<ContentBlocks>>,
}

impl Repo {
    /// Opens the repository in a directory of ours, and makes it if there is none.
    pub fn open(dir: &Path) -> Result<Repo, Error> {
        Repo::open_with(dir, None, Disk::default())
    }

    /// With a key everything written is sealed, and what was sealed with it can be read.
    pub fn open_with(dir: &Path, key: Option<Key>, disk: Disk) -> Result<Repo, Error> {
        let failed = |e| Error::system("open the repository", dir.as_os_str().as_bytes(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)?;
        remove_stale(dir).map_err(failed)?;
        let naming = Naming::with(key.as_ref());
        let (open, pins, naming_packs) = (Mutex::default(), Mutex::default(), RwLock::default());
        Ok(Repo {
            dir: dir.to_owned(),
            inventory: Arc::new(Inventory::new(dir, disk.clone())),
            forgetting: Mutex::default(),
            disk,
            key,
            naming,
            open,
            away: None,
            pins,
            captures: Arc::default(),
            naming_packs,
            burying: Mutex::default(),
            indexes: Shelf::default(),
            content_blocks: Mutex::default(),
        })
    }

    /// Packs that are not here are read from there. Of what was read about so many bytes are kept.
    pub fn with_far(mut self, far: Arc<dyn Far>, most: u64) -> Result<Repo, Error> {
        let dir = self.dir.join("cache/far");
        self.away = Some(Away::new(dir, far, self.disk.clone(), most)?);
        Ok(self)
    }

    /// How many bytes are kept of packs that are far.
    pub fn far_cached(&self) -> io::Result<u64> {
        self.away.as_ref().map_or(Ok(0), |away| away.size())
    }

    /// Whether the repository has this tree. [`Repo::verify`] says whether it is sound.
    pub fn holds(&self, tree: &TreeId) -> bool {
        self.root(tree).is_ok()
    }

    fn root(&self, tree: &TreeId) -> Result<Ref, Error> {
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

    fn pack(&self, id: PackId) -> Result<Arc<Pack>, Error> {
        match (self.near(id)?, &self.away) {
            (Some(pack), _) => Ok(pack),
            (None, Some(away)) => {
                let pack = self.at_hand(away.open(id, self.key.as_ref())?);
                self.make_room(away, SLACK);
                Ok(pack)
            }
            (None, None) => Err(damaged(&id, "its pack is not there")),
        }
    }

    /// A pack that can be opened without asking far.
    fn near(&self, id: PackId) -> Result<Option<Arc<Pack>>, Error> {
        let mut open = self.open.lock().expect("nobody panics while holding it");
        if let Some(at) = open.iter().rposition(|pack| pack.id == id) {
            let pack = open.remove(at);
            open.push(pack.clone());
            return Ok(Some(pack));
        }
        drop(open);
        let key = self.key.as_ref();
        let pack = match (Pack::open(&self.dir, id, key)?, &self.away) {
            (Some(pack), _) => Some(pack),
            (None, None) => None,
            (None, Some(away)) => match away.kept(id, key) {
                // Whether it is sealed is not covered by any hash, either.
                Err(Error::Damaged { .. } | Error::Sealed { .. }) => None,
                kept => kept?,
            },
        };
        Ok(pack.map(|pack| self.at_hand(pack)))
    }

    fn at_hand(&self, pack: Pack) -> Arc<Pack> {
        let pack = Arc::new(pack);
        let mut open = self.open.lock().expect("nobody panics while holding it");
        if open.len() >= MOST_OPEN {
            open.remove(0);
        }
        open.push(pack.clone());
        pack
    }

    /// A block as it was before it was packed. Its objects are still to be checked against their names.
    fn block(&self, pack: PackId, number: u32, unpacking: &mut Unpacking) -> Result<Vec<u8>, Error> {
        let (key, from) = (self.key.as_ref(), self.pack(pack)?);
        let block = from.block(number, key, unpacking);
        let Some(away) = self.away.as_ref().filter(|_| from.is_far()) else { return block };
        self.make_room(away, SLACK);
        match block {
            // What is far may not be what it was when its table was read.
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

    fn place(&self) -> Where<'_> {
        Where {
            dir: &self.dir,
            disk: &self.disk,
            key: self.key.as_ref(),
            naming: &self.naming_packs,
            inventory: &self.inventory,
        }
    }

    /// What is under this name now is another file.
    fn forget(&self, id: PackId) {
        self.open.lock().expect("nobody panics while holding it").retain(|pack| pack.id != id);
    }

    /// Keeps a snapshot from being collected as long as the answer lives.
    fn pin(&self, tree: Option<&TreeId>) -> Pin<'_> {
        if let Some(tree) = tree {
            *self.pins.lock().expect("nobody panics while holding it").entry(tree.clone()).or_default() += 1;
        }
        Pin { repo: self, tree: tree.cloned() }
    }
}

struct Pin<'r> {
    repo: &'r Repo,
    tree: Option<TreeId>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let Some(tree) = &self.tree else { return };
        let mut pins = self.repo.pins.lock().expect("nobody panics while holding it");
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
