//! Garbage collection removes what no retained snapshot needs. It first marks everything that is live, object by object.
//! A pack without live objects is removed. A pack with few live objects is rewritten without the rest, under its own name
//! and with every object in its place.
//!
//! Captures and restores may run at the same time. They need only snapshots that are retained or pinned, and packs that
//! are younger than the grace period; collection touches neither.
//!
//! Collection usually does not read packs that are only remote. Everything that they refer to is remote too, so no object
//! that is only local can be missed. But then it is unknown which packs that are both local and remote they refer to.
//! Those may leave this machine, and never count as garbage. An occasional deep collection (`all_remote`) reads
//! everything, and so finds garbage among the remote packs too.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Repo;
use super::inventory::PackLocation;
use super::read::{ObjectReader, follow};
use crate::object::ObjectLocation;
use crate::object_id::{ObjectKind, PackId};
use crate::pack::{self, BlockEncoding, EXTENSION, LiveRanges, PackBlock, PackFile};
use crate::{Error, TreeId};

/// How many packs one request to the remote store asks about.
const AT_ONCE: usize = 32;
/// Shrinking a smaller remote pack is not worth the transfer.
const WORTH: u64 = 256 << 10;

/// What collection must keep.
#[derive(Debug, Clone, Default)]
pub struct GcRoots {
    /// Snapshots with all their files.
    pub trees: Vec<TreeId>,
    /// Snapshots of which only the notes are needed: the history that others build on.
    pub notes: Vec<TreeId>,
    /// Snapshots with all their files, which need not stay on this machine if they are remote.
    pub remote_suffices: Vec<TreeId>,
    /// Packs that the remote store has in the same form as this machine, with everything that they refer to. Before a
    /// local copy is removed, collection checks again that the remote copy is identical.
    pub remote: HashSet<String>,
    /// Packs that the remote store has in another form than this machine. Collection leaves them alone until both are
    /// equal.
    pub remote_differs: HashSet<String>,
    /// Packs of which it is unknown whether they are needed: none of them is removed.
    pub undecided: HashSet<String>,
    /// Set for a deep collection: all remote packs with their sizes. Collection then also reads the directories of
    /// snapshots that are only remote, to find unneeded remote packs. A remote pack that shrinks is local afterwards.
    pub all_remote: Option<HashMap<String, u64>>,
}

/// The result of a collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GcReport {
    /// Local packs that were removed because no snapshot needs them, here or remotely.
    pub removed: Vec<String>,
    /// Packs that are only remote and that no snapshot needs, if it was a deep collection.
    pub unneeded: Vec<String>,
    /// Packs that lost some of their blocks.
    pub rewritten: Vec<String>,
    /// The number of packs that are now only remote.
    pub evicted: u64,
    /// The number of packs that stay.
    pub kept: u64,
    /// Bytes freed in the repository.
    pub freed: u64,
}

type LivePackRanges = HashMap<PackId, LiveRanges>;

impl Repo {
    /// Collects garbage. Packs younger than `grace` stay, because their snapshots may not be recorded yet.
    pub fn collect_garbage(&self, wanted: &GcRoots, grace: Duration) -> Result<GcReport, Error> {
        let before = SystemTime::now().checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
        self.collect_garbage_before(wanted, before)
    }

    /// Like [`Repo::collect_garbage`], but packs written since `before` stay. A snapshot that is pinned during the
    /// call needs no extra protection, because its capture or restore began with something that `wanted` contains.
    pub fn collect_garbage_before(&self, wanted: &GcRoots, before: SystemTime) -> Result<GcReport, Error> {
        let mut trees: HashSet<TreeId> = wanted.trees.iter().cloned().collect();
        trees.extend(self.pins.lock().expect("no code panics while it holds this lock").keys().cloned());
        let marks = self.mark(&trees, wanted)?;
        let mut collected = GcReport::default();
        let mut leaving = Vec::new();
        let here = self.pack_files()?;
        trees.extend(wanted.remote_suffices.iter().cloned());
        let older: Vec<(PackId, SystemTime)> = here.iter().filter(|(_, at)| *at < before).copied().collect();
        self.discard_all_but(&trees, &older)?;
        self.announce_removals(&marks, wanted, &older)?;
        for (pack, size) in wanted.all_remote.iter().flatten() {
            let id =
                PackId::parse(pack).filter(|id| here.binary_search_by_key(id, |(here, _)| *here).is_err());
            match id.map(|id| (id, marks.live.get(&id))) {
                Some((_, None)) if wanted.undecided.contains(pack) => {}
                Some((_, None)) => collected.unneeded.push(pack.clone()),
                Some((id, Some(live))) if *size >= WORTH => self.shrink(id, None, live, &mut collected)?,
                Some((_, Some(_))) | None => {}
            }
        }
        for (id, modified) in here {
            let far = wanted.remote.contains(&id.to_string());
            match marks.fate(id, far) {
                _ if modified >= before => collected.kept += 1,
                // After a rewrite nothing would show which of the two copies has which blocks.
                PackFate::Shrink(_) if wanted.remote_differs.contains(&id.to_string()) => collected.kept += 1,
                PackFate::Stay => collected.kept += 1,
                PackFate::Go if wanted.undecided.contains(&id.to_string()) => collected.kept += 1,
                PackFate::Leave => leaving.push((id, modified)),
                PackFate::Shrink(live) => self.shrink(id, Some(modified), live, &mut collected)?,
                PackFate::Go => {
                    if self.remove(id, modified, &mut collected)? {
                        self.remote_cache.as_ref().map_or(Ok(()), |away| away.let_go(id))?;
                        collected.removed.push(id.to_string());
                    }
                }
            }
        }
        self.evict(leaving, &mut collected)?;
        let unneeded: Vec<PackId> =
            collected.unneeded.iter().filter_map(|pack| PackId::parse(pack)).collect();
        let listed = self.inventory.leaving(&unneeded, PackLocation::Gone);
        listed.and_then(|()| self.inventory.tidy()).map_err(|e| self.no_inventory(e))?;
        if !collected.removed.is_empty() || collected.evicted > 0 {
            let synced = self.disk.sync_dir(&self.dir);
            synced.map_err(|e| Error::system("sync", self.dir.as_os_str().as_bytes(), e))?;
        }
        Ok(collected)
    }

    /// Records which packs will be removed, before any of them is.
    fn announce_removals(
        &self,
        marks: &GcMarks,
        wanted: &GcRoots,
        older: &[(PackId, SystemTime)],
    ) -> Result<(), Error> {
        let goes =
            |id: &PackId| matches!(marks.fate(*id, wanted.remote.contains(&id.to_string())), PackFate::Go);
        let going: Vec<PackId> = older.iter().map(|(id, _)| *id).filter(goes).collect();
        self.inventory.leaving(&going, PackLocation::Gone).map_err(|e| self.no_inventory(e))
    }

    pub(super) fn pack_files(&self) -> Result<Vec<(PackId, SystemTime)>, Error> {
        let failed = |e| Error::system("list", self.dir.as_os_str().as_bytes(), e);
        let mut packs = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let ours = path.extension().is_some_and(|extension| extension == EXTENSION);
            let Some(id) = stem.filter(|_| ours).and_then(PackId::parse) else { continue };
            packs.push((id, entry.metadata().and_then(|is| is.modified()).map_err(failed)?));
        }
        packs.sort();
        Ok(packs)
    }

    fn mark(&self, trees: &HashSet<TreeId>, wanted: &GcRoots) -> Result<GcMarks, Error> {
        let reader = self.reader();
        let (marks, only_far, seen) = (GcMarks::default(), HashMap::new(), HashSet::new());
        let far = &wanted.remote;
        let deep = wanted.all_remote.is_some();
        let mut marking = GcMarker { repo: self, reader: &reader, far, deep, marks, only_far, seen };
        for tree in trees {
            marking.tree(tree)?;
        }
        for tree in &wanted.notes {
            marking.notes(tree)?;
        }
        marking.marks.needed_here = marking.marks.live.keys().copied().collect();
        for tree in &wanted.remote_suffices {
            marking.tree(tree)?;
        }
        Ok(marking.marks)
    }

    fn shrink(
        &self,
        id: PackId,
        modified: Option<SystemTime>,
        live: &LiveRanges,
        collected: &mut GcReport,
    ) -> Result<(), Error> {
        let pack = self.pack(id)?;
        // A pack that stays keeps its notes, because other snapshots may build on that history.
        let mut marked = live.clone();
        for ObjectLocation { block, start, length, .. } in pack.table.notes.iter().map(|note| note.at.place) {
            marked.entry(block).or_default().insert((start, length));
        }
        let blocks = pack.table.blocks.iter().zip(0..);
        let garbage: u64 = blocks.map(|(block, number)| garbage(block, marked.get(&number))).sum();
        if garbage * 2 < pack.size {
            collected.kept += 1;
            return Ok(());
        }
        let Some(size) = pack::without(self.place(), &pack, &marked, modified)? else {
            collected.kept += 1;
            return Ok(());
        };
        self.forget(id);
        collected.rewritten.push(id.to_string());
        collected.freed += pack.size.saturating_sub(size);
        Ok(())
    }

    /// Removes a pack from this machine; returns whether it was removed.
    fn remove(&self, id: PackId, modified: SystemTime, collected: &mut GcReport) -> Result<bool, Error> {
        let path = self.dir.join(pack::file_name(&id));
        let failed = |e| Error::system("remove", path.as_os_str().as_bytes(), e);
        let _alone = self.naming_packs.write().expect("no code panics while it holds this lock");
        // A capture wrote the pack again since it was listed, so it may be needed by now.
        if !self.place().is_as_it_was(&id, Some(modified)).map_err(failed)? {
            self.inventory.added(id).map_err(failed)?;
            collected.kept += 1;
            return Ok(false);
        }
        let size = std::fs::metadata(&path).map_err(failed)?.len();
        self.disk.remove(&path).map_err(failed)?;
        self.forget(id);
        collected.freed += size;
        Ok(true)
    }

    /// Removes packs from this machine if the remote store has identical copies.
    fn evict(&self, leaving: Vec<(PackId, SystemTime)>, collected: &mut GcReport) -> Result<(), Error> {
        for some in leaving.chunks(AT_ONCE) {
            // Opens the packs again, because cached handles may show an older form. A pack that cannot be opened
            // stays.
            let open =
                |id: &PackId| PackFile::open(&self.dir, *id, self.key.as_ref()).ok().flatten().map(Arc::new);
            let packs: Vec<Arc<PackFile>> = some.iter().filter_map(|(id, _)| open(id)).collect();
            let same = self.remote_cache.as_ref().map_or(Ok(HashSet::new()), |away| away.same(&packs));
            let same = same.unwrap_or_else(|error| {
                tracing::warn!(%error, "the packs in the object store could not be compared, so no local pack is evicted");
                HashSet::new()
            });
            let announced: Vec<PackId> =
                some.iter().map(|(id, _)| *id).filter(|id| same.contains(id)).collect();
            self.inventory.leaving(&announced, PackLocation::Remote).map_err(|e| self.no_inventory(e))?;
            for (id, modified) in some {
                if !same.contains(id) {
                    collected.kept += 1;
                } else if self.remove(*id, *modified, collected)? {
                    // The cache may hold parts of another form of the pack.
                    self.remote_cache.as_ref().map_or(Ok(()), |away| away.let_go(*id))?;
                    collected.evicted += 1;
                }
            }
        }
        Ok(())
    }

    /// Locks the repository against other processes while the returned lock lives. Fails if another process holds a
    /// conflicting lock.
    pub fn lock(dir: &Path, how: RepoLockMode) -> Result<RepoLock, Error> {
        let path = dir.join("lock");
        let failed = |e: std::io::Error| Error::system("lock", path.as_os_str().as_bytes(), e);
        let file =
            std::fs::File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        let operation = match how {
            RepoLockMode::Shared => rustix::fs::FlockOperation::NonBlockingLockShared,
            RepoLockMode::Alone => rustix::fs::FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&file, operation) {
            Ok(()) => Ok(RepoLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { path: dir.display().to_string() }),
            Err(e) => Err(failed(e.into())),
        }
    }
}

/// How many stored bytes of a block a rewrite would free; 0 if the block is not worth rewriting.
fn garbage(block: &PackBlock, live: Option<&HashSet<(u32, u32)>>) -> u64 {
    let stored = u64::from(block.stored);
    match live {
        _ if block.how == BlockEncoding::Dropped => 0,
        None => stored,
        Some(live) if pack::is_worth_trimming(block, live) => {
            let wanted: u64 = live.iter().map(|(_, length)| u64::from(*length)).sum();
            stored - stored * wanted / u64::from(block.raw).max(1)
        }
        Some(_) => 0,
    }
}

/// How a process locks a repository. Collection by one process must not meet captures by another, because they do not
/// know each other's pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepoLockMode {
    /// Other processes may read and capture at the same time.
    Shared,
    /// No other process may use the repository.
    Alone,
}

/// A lock on a repository; dropping it releases the lock.
#[derive(Debug)]
pub struct RepoLock {
    _file: std::fs::File,
}

/// What is live.
#[derive(Default)]
struct GcMarks {
    live: LivePackRanges,
    /// Packs that retained snapshots need on this machine; `remote_suffices` does not count.
    needed_here: HashSet<PackId>,
    /// Whether a retained snapshot refers to packs that are only remote, and were therefore not read.
    hidden: bool,
}

/// What happens to a pack.
enum PackFate<'m> {
    Stay,
    /// Remove the dead parts, if they are large.
    Shrink(&'m LiveRanges),
    /// Remove the local copy; the remote one suffices.
    Leave,
    Go,
}

impl GcMarks {
    fn fate(&self, pack: PackId, far: bool) -> PackFate<'_> {
        // Unread remote packs may refer to any object in it.
        let unclear = far && self.hidden;
        match self.live.get(&pack) {
            Some(_) if far && !self.needed_here.contains(&pack) => PackFate::Leave,
            Some(_) if unclear => PackFate::Stay,
            Some(live) => PackFate::Shrink(live),
            None if unclear => PackFate::Leave,
            None => PackFate::Go,
        }
    }
}

struct GcMarker<'m> {
    repo: &'m Repo,
    reader: &'m ObjectReader<'m>,
    far: &'m HashSet<String>,
    deep: bool,
    marks: GcMarks,
    only_far: HashMap<PackId, bool>,
    /// By place, not by id: the same directory may be stored twice, and both copies are needed.
    seen: HashSet<ObjectLocation>,
}

impl GcMarker<'_> {
    fn mark(&mut self, place: &ObjectLocation) {
        let live = self.marks.live.entry(place.pack).or_default();
        live.entry(place.block).or_default().insert((place.start, place.length));
    }

    fn tree(&mut self, tree: &TreeId) -> Result<(), Error> {
        if self.is_only_far(tree.pack()) {
            self.marks.hidden = true;
            return Ok(());
        }
        if self.deep {
            self.repo.fetch_directories(tree)?;
        }
        let (reader, root) = (self.reader, self.repo.root(tree)?);
        follow(reader, root, &mut |sort, place| self.meet(sort, place))?;
        self.notes(tree)
    }

    fn notes(&mut self, tree: &TreeId) -> Result<(), Error> {
        if self.is_only_far(tree.pack()) {
            return Ok(());
        }
        let pack = self.repo.pack(tree.pack())?;
        // The pack stays even without notes, because the snapshot begins in it.
        self.marks.live.entry(pack.id).or_default();
        for note in &pack.table.notes {
            self.mark(&ObjectLocation { pack: pack.id, ..note.at.place });
        }
        Ok(())
    }

    /// Marks an object; returns whether to read it for further references.
    fn meet(&mut self, sort: ObjectKind, place: &ObjectLocation) -> bool {
        self.mark(place);
        let leads_on = match sort {
            ObjectKind::Directory | ObjectKind::List => self.seen.insert(*place),
            ObjectKind::Chunk => false,
        };
        let hidden = leads_on && self.is_only_far(place.pack);
        self.marks.hidden |= hidden;
        leads_on && !hidden
    }

    /// Whether a pack is only remote and must not be read in this collection.
    fn is_only_far(&mut self, pack: PackId) -> bool {
        let (repo, far) = (self.repo, self.far);
        if self.deep {
            return false;
        }
        let look = || far.contains(&pack.to_string()) && !repo.is_here(pack);
        *self.only_far.entry(pack).or_insert_with(look)
    }
}
