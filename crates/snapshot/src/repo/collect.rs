//! Collection: what no wanted snapshot needs goes away. What is wanted is marked first, piece by piece; a pack
//! of which nothing is wanted is removed, one of which little is wanted is written again without the rest, under
//! its own name and with everything in its place.
//!
//! Captures and restores may run beside it. They find what they need in a snapshot that is wanted or pinned, or
//! in packs that are younger than the grace; neither is touched.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::Repo;
use super::read::Reader;
use crate::id::PackId;
use crate::object::{Layout, Node, Piece, Place, Ref};
use crate::pack::{self, Block, EXTENSION, How, Live};
use crate::{Error, TreeId};

/// What must stay.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Snapshots with all their files.
    pub trees: Vec<TreeId>,
    /// Snapshots of which only what travels with them is wanted: the history that others build on.
    pub notes: Vec<TreeId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    pub removed: u64,
    pub rewritten: u64,
    pub kept: u64,
    /// Bytes that the repository takes less.
    pub freed: u64,
}

type Marked = HashMap<PackId, Live>;

impl Repo {
    /// Packs younger than `grace` stay whatever is in them: who made them may not have said so yet.
    pub fn collect(&self, wanted: &Wanted, grace: Duration) -> Result<Collected, Error> {
        // Before anything is looked at: what is pinned later began with something that is wanted now.
        let before = SystemTime::now().checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut trees: HashSet<TreeId> = wanted.trees.iter().cloned().collect();
        trees.extend(self.pins.lock().expect("nobody panics while holding it").keys().cloned());
        let marked = self.mark(&trees, &wanted.notes)?;
        let mut collected = Collected::default();
        for (id, modified) in self.pack_files()? {
            if modified >= before {
                collected.kept += 1;
                continue;
            }
            self.sweep(id, modified, marked.get(&id), &mut collected)?;
        }
        if collected.removed > 0 {
            let synced = self.disk.sync_dir(&self.dir);
            synced.map_err(|e| Error::system("sync", self.dir.as_os_str().as_bytes(), e))?;
        }
        Ok(collected)
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

    fn mark(&self, trees: &HashSet<TreeId>, notes: &[TreeId]) -> Result<Marked, Error> {
        let reader = self.reader();
        let mut marking = Marking { reader: &reader, marked: Marked::new(), seen: HashSet::new() };
        for tree in trees {
            marking.directories(self.root(tree)?)?;
        }
        for tree in trees.iter().chain(notes) {
            let pack = self.pack(tree.pack())?;
            // With or without notes it stays: it is the place where the snapshot begins.
            marking.marked.entry(pack.id).or_default();
            for note in &pack.table.notes {
                marking.mark(&Place { pack: pack.id, ..note.at.place });
            }
        }
        Ok(marking.marked)
    }

    fn sweep(
        &self,
        id: PackId,
        modified: SystemTime,
        marked: Option<&Live>,
        collected: &mut Collected,
    ) -> Result<(), Error> {
        let Some(marked) = marked else {
            return self.remove(id, modified, collected);
        };
        let pack = self.pack(id)?;
        // A pack that stays can still say what it was: others may build on that.
        let mut marked = marked.clone();
        for Place { block, start, length, .. } in pack.table.notes.iter().map(|note| note.at.place) {
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
        collected.rewritten += 1;
        collected.freed += pack.size.saturating_sub(size);
        Ok(())
    }

    fn remove(&self, id: PackId, modified: SystemTime, collected: &mut Collected) -> Result<(), Error> {
        let path = self.dir.join(pack::file_name(&id));
        let failed = |e| Error::system("remove", path.as_os_str().as_bytes(), e);
        let _alone = self.naming_packs.write().expect("nobody panics while holding it");
        // Captured anew since it was listed, it may be wanted by now.
        if !self.place().is_as_it_was(&id, modified).map_err(failed)? {
            collected.kept += 1;
            return Ok(());
        }
        collected.freed += std::fs::metadata(&path).map_err(failed)?.len();
        self.disk.remove(&path).map_err(failed)?;
        self.forget(id);
        collected.removed += 1;
        Ok(())
    }

    /// Whether another process may be at work here; as long as the answer lives, none may begin.
    pub fn lock(dir: &Path, how: Lock) -> Result<Locked, Error> {
        let path = dir.join("lock");
        let failed = |e: std::io::Error| Error::system("lock", path.as_os_str().as_bytes(), e);
        let file =
            std::fs::File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        let operation = match how {
            Lock::Shared => rustix::fs::FlockOperation::NonBlockingLockShared,
            Lock::Alone => rustix::fs::FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&file, operation) {
            Ok(()) => Ok(Locked { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { path: dir.display().to_string() }),
            Err(e) => Err(failed(e.into())),
        }
    }
}

/// How many of a block's bytes nobody wants, as far as they are worth writing it again.
fn garbage(block: &Block, live: Option<&HashSet<(u32, u32)>>) -> u64 {
    let stored = u64::from(block.stored);
    match live {
        _ if block.how == How::Dropped => 0,
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
pub enum Lock {
    Shared,
    Alone,
}

#[derive(Debug)]
pub struct Locked {
    _file: std::fs::File,
}

struct Marking<'m> {
    reader: &'m Reader<'m>,
    marked: Marked,
    /// By place, not by name: the same directory may be stored twice, and both are needed.
    seen: HashSet<Place>,
}

impl Marking<'_> {
    fn mark(&mut self, place: &Place) {
        let live = self.marked.entry(place.pack).or_default();
        live.entry(place.block).or_default().insert((place.start, place.length));
    }

    fn directories(&mut self, root: Ref) -> Result<(), Error> {
        let mut waiting = vec![root];
        while let Some(at) = waiting.pop() {
            if !self.seen.insert(at.place) {
                continue;
            }
            self.mark(&at.place);
            for entry in self.reader.directory(&at)? {
                match entry.node {
                    Node::Dir(at) => waiting.push(at),
                    Node::File(content) => self.file(&content.layout)?,
                    Node::Link(_) => {}
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, layout: &Layout) -> Result<(), Error> {
        match layout {
            Layout::Empty => {}
            Layout::Whole(at) => self.mark(&at.place),
            Layout::List(at) => {
                if !self.seen.insert(at.place) {
                    return Ok(());
                }
                for list in self.reader.lists(at)? {
                    self.mark(&list.place);
                }
                for piece in self.reader.pieces(at)? {
                    if let Piece::Chunk { at, .. } = piece {
                        self.mark(&at.place);
                    }
                }
            }
        }
        Ok(())
    }
}
