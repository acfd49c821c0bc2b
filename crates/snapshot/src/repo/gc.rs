//! Collection: what no wanted snapshot needs goes away. What is wanted is marked first, piece by piece; a pack
//! of which nothing is wanted is removed, one of which little is wanted is written again without the rest, under
//! its own name and with everything in its place.
//!
//! Captures and restores may run beside it. They find what they need in a snapshot that is wanted or pinned, or
//! in packs that are younger than the grace; neither is touched.
//!
//! What lies in a pack that is only far is mostly not gone through. Everything that it leads to is far, too, so nothing
//! is missed that is only here. But then nobody knows which of the packs that are both here and far it leads to: those
//! may go from here, and are never called garbage. Now and then all of it is read, and what nobody needs of all that is
//! far is known.

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

/// So many packs are asked for at once.
const AT_ONCE: usize = 32;
/// A smaller one that is far is not worth being made smaller.
const WORTH: u64 = 256 << 10;

/// What must stay.
#[derive(Debug, Clone, Default)]
pub struct GcRoots {
    /// Snapshots with all their files.
    pub trees: Vec<TreeId>,
    /// Snapshots of which only what travels with them is wanted: the history that others build on.
    pub notes: Vec<TreeId>,
    /// Snapshots with all their files, which need not be here if they are far.
    pub remote_suffices: Vec<TreeId>,
    /// Packs that are safely far as they are here, with everything that they lead to. Nothing leaves before far has
    /// shown that it has the same.
    pub remote: HashSet<String>,
    /// Packs that are far, too, but not as they are here. They are left alone until they are the same again.
    pub remote_differs: HashSet<String>,
    /// Packs of which nobody can say whether they are wanted: none of them goes.
    pub undecided: HashSet<String>,
    /// All packs that are far and how long they are, if it is to be found what nobody needs of them: then the
    /// directories of snapshots that are only far are read. One of which little is needed is here afterwards, smaller.
    pub all_remote: Option<HashMap<String, u64>>,
}

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GcReport {
    /// Packs that were here and that nobody needs, here or elsewhere.
    pub removed: Vec<String>,
    /// Packs that are only far and that nobody needs, if it was looked for them.
    pub unneeded: Vec<String>,
    /// Packs that have fewer blocks now.
    pub rewritten: Vec<String>,
    /// Packs that are only far now.
    pub evicted: u64,
    /// Packs that stay.
    pub kept: u64,
    /// Bytes that the repository takes less.
    pub freed: u64,
}

type LivePackRanges = HashMap<PackId, LiveRanges>;

impl Repo {
    /// Packs younger than `grace` stay whatever is in them: who made them may not have said so yet.
    pub fn collect_garbage(&self, wanted: &GcRoots, grace: Duration) -> Result<GcReport, Error> {
        let before = SystemTime::now().checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
        self.collect_garbage_before(wanted, before)
    }

    /// As [`Repo::collect`]: packs that were written since `before` stay. What is pinned later than this is called began
    /// with something that is wanted now.
    pub fn collect_garbage_before(&self, wanted: &GcRoots, before: SystemTime) -> Result<GcReport, Error> {
        let mut trees: HashSet<TreeId> = wanted.trees.iter().cloned().collect();
        trees.extend(self.pins.lock().expect("nobody panics while holding it").keys().cloned());
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
                // Nobody could tell any more which of the two has what.
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

    /// Says which packs go, before any of them does.
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
        // A pack that stays can still say what it was: others may build on that.
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

    /// Whether it is gone from here.
    fn remove(&self, id: PackId, modified: SystemTime, collected: &mut GcReport) -> Result<bool, Error> {
        let path = self.dir.join(pack::file_name(&id));
        let failed = |e| Error::system("remove", path.as_os_str().as_bytes(), e);
        let _alone = self.naming_packs.write().expect("nobody panics while holding it");
        // Captured anew since it was listed, it may be wanted by now.
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

    /// Removes packs from here of which far says that it has the same.
    fn evict(&self, leaving: Vec<(PackId, SystemTime)>, collected: &mut GcReport) -> Result<(), Error> {
        for some in leaving.chunks(AT_ONCE) {
            // As they are now, not as they were when somebody opened them; one that cannot be opened stays.
            let open =
                |id: &PackId| PackFile::open(&self.dir, *id, self.key.as_ref()).ok().flatten().map(Arc::new);
            let packs: Vec<Arc<PackFile>> = some.iter().filter_map(|(id, _)| open(id)).collect();
            let same = self.remote_cache.as_ref().map_or(Ok(HashSet::new()), |away| away.same(&packs));
            let same = same.unwrap_or_else(|error| {
                tracing::warn!(%error, "packs stay here that could be far");
                HashSet::new()
            });
            let announced: Vec<PackId> =
                some.iter().map(|(id, _)| *id).filter(|id| same.contains(id)).collect();
            self.inventory.leaving(&announced, PackLocation::Remote).map_err(|e| self.no_inventory(e))?;
            for (id, modified) in some {
                if !same.contains(id) {
                    collected.kept += 1;
                } else if self.remove(*id, *modified, collected)? {
                    // What was kept of it may be from when it was another.
                    self.remote_cache.as_ref().map_or(Ok(()), |away| away.let_go(*id))?;
                    collected.evicted += 1;
                }
            }
        }
        Ok(())
    }

    /// Whether another process may be at work here; as long as the answer lives, none may begin.
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

/// How many of a block's bytes nobody wants, as far as they are worth writing it again.
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

/// Collection by one process must not meet captures by another: they do not know each other's pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepoLockMode {
    /// Others may read and capture meanwhile.
    Shared,
    /// Nobody else works with the repository.
    Alone,
}

/// A hold on a repository; dropped, it is given back.
#[derive(Debug)]
pub struct RepoLock {
    _file: std::fs::File,
}

/// What is wanted.
#[derive(Default)]
struct GcMarks {
    live: LivePackRanges,
    /// The packs of what is not cold.
    needed_here: HashSet<PackId>,
    /// Whether something wanted leads behind packs that are only far.
    hidden: bool,
}

/// What becomes of a pack.
enum PackFate<'m> {
    Stay,
    /// Without what nobody wants, if that is much.
    Shrink(&'m LiveRanges),
    /// It is enough that it is far.
    Leave,
    Go,
}

impl GcMarks {
    fn fate(&self, pack: PackId, far: bool) -> PackFate<'_> {
        // Whatever is hidden may need any of it.
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
    /// By place, not by name: the same directory may be stored twice, and both are needed.
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
        // With or without notes it stays: it is the place where the snapshot begins.
        self.marks.live.entry(pack.id).or_default();
        for note in &pack.table.notes {
            self.mark(&ObjectLocation { pack: pack.id, ..note.at.place });
        }
        Ok(())
    }

    /// Whether to look into it.
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

    /// And is not looked into.
    fn is_only_far(&mut self, pack: PackId) -> bool {
        let (repo, far) = (self.repo, self.far);
        if self.deep {
            return false;
        }
        let look = || far.contains(&pack.to_string()) && !repo.is_here(pack);
        *self.only_far.entry(pack).or_insert_with(look)
    }
}
