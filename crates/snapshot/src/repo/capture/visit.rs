//! Visits one directory: compares its current entries with the index.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::content::NOTHING;
use super::walk::{CaptureWalk, HardLinkName, WalkFindings};
use super::{CaptureRequest, SkipReason};
use crate::Error;
use crate::chunker::MAX_WHOLE_FILE;
use crate::folder::{FileAttributes, ForcedHandle, force_directory, names_into, open_beneath, xattrs};
use crate::index::{IndexEntry, IndexedContent, IndexedDirectory, IndexedFileKind, StatFingerprint};
use crate::object::Xattrs;
use crate::pack::BlockWriter;
use crate::repo::read::MAX_DEPTH;

/// Upper limit for the length of all paths together. Deeply nested directories with long names make paths that grow
/// with the square of their number, and each path is held several times. A million directories of a real project need
/// less.
const MAX_PATH_BYTES: u64 = 128 << 20;

/// With more open directories than this, waiting ones are closed and later reopened by path.
const MAX_OPEN_DIRECTORIES: usize = 200;

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// An open directory; it stays open while tasks in it wait.
pub(super) struct OpenDirectory(ForcedHandle);

impl OpenDirectory {
    fn new(dir: ForcedHandle) -> Arc<OpenDirectory> {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Arc::new(OpenDirectory(dir))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.handle.as_fd()
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) enum VisitTask {
    Directory {
        root: usize,
        parent: Option<Arc<OpenDirectory>>,
        path: Vec<u8>,
        extent: VisitExtent,
        /// Whether the index of the parent has an entry for it, and so its attributes.
        remembered: bool,
    },
    /// A large file, which is worth a thread of its own.
    File {
        parent: Arc<OpenDirectory>,
        path: Vec<u8>,
        old: Option<IndexedContent>,
        slot: Arc<OnceLock<CapturedEntry>>,
    },
}

/// How much of a directory is visited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VisitExtent {
    /// The directory with everything beneath.
    Whole,
    /// The entries of the directory itself. Known subdirectories have visits of their own, if any.
    Itself,
    /// Only these names; nothing else was touched.
    Names(BTreeSet<Vec<u8>>),
}

impl VisitExtent {
    pub(super) fn reach(&self) -> VisitReach {
        match self {
            VisitExtent::Whole => VisitReach::Whole,
            VisitExtent::Itself => VisitReach::Itself,
            VisitExtent::Names(_) => VisitReach::Names,
        }
    }
}

/// If a directory is visited twice, the visit with the greater reach counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VisitReach {
    Names,
    Itself,
    Whole,
}

/// A captured file, or why it was skipped.
pub(super) type CapturedEntry = (StatFingerprint, IndexedContent);

impl VisitTask {
    pub(super) fn root(capture: &CaptureRequest<'_>, root: usize) -> VisitTask {
        let path = capture.roots[root].name.as_bytes().to_vec();
        VisitTask::Directory { root, parent: None, path, extent: VisitExtent::Whole, remembered: true }
    }
}

/// A directory that differs from the index.
pub(super) struct ChangedDirectory {
    pub(super) path: Vec<u8>,
    pub(super) look: StatFingerprint,
    pub(super) xattrs: Xattrs,
    pub(super) entries: Vec<(Vec<u8>, EntrySlot)>,
    /// False if only the index must be updated, because the content is the same.
    pub(super) differs: bool,
    pub(super) reach: VisitReach,
}

pub(super) enum EntrySlot {
    Ready(StatFingerprint, IndexedContent),
    Later(Arc<OnceLock<CapturedEntry>>),
}

impl EntrySlot {
    /// Valid after the walk, when every file has been read.
    pub(super) fn into_seen(self) -> CapturedEntry {
        match self {
            EntrySlot::Ready(look, known) => (look, known),
            EntrySlot::Later(slot) => {
                slot.get().cloned().expect("the queue is empty: every file has been visited")
            }
        }
    }
}

/// Why an entry is skipped, or why the capture fails.
pub(super) enum VisitError {
    Skip(SkipReason),
    Fail(Error),
}

impl From<Error> for VisitError {
    fn from(error: Error) -> VisitError {
        VisitError::Fail(error)
    }
}

impl From<Errno> for VisitError {
    fn from(errno: Errno) -> VisitError {
        match errno {
            // The limit is the server's, not the file's: skipping all such files would empty the snapshot.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                VisitError::Fail(Error::system("read", b"workspace", errno))
            }
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::STALE => {
                VisitError::Skip(SkipReason::Gone)
            }
            Errno::XDEV => VisitError::Skip(SkipReason::Mount),
            other => VisitError::Skip(SkipReason::Unreadable(std::io::Error::from(other).to_string())),
        }
    }
}

/// The state of one thread of a capture.
pub(super) struct CaptureWorker<'w, 'a> {
    pub(super) walk: &'w CaptureWalk<'a>,
    pub(super) blocks: BlockWriter<'w, 'a>,
    /// Lists have blocks of their own: the next capture reads them all to find changes, and needs nothing else.
    pub(super) lists: BlockWriter<'w, 'a>,
    pub(super) found: WalkFindings,
    pub(super) buffer: Vec<u8>,
    names: Vec<u8>,
}

/// An entry of the visited directory.
enum VisitedEntry<'i> {
    Same(IndexEntry<'i>),
    New(Vec<u8>, EntrySlot),
}

/// The directory that is visited.
struct DirectoryVisit<'h> {
    root: usize,
    path: &'h [u8],
    dir: Arc<OpenDirectory>,
    known: Option<&'h IndexedDirectory>,
    extent: VisitExtent,
    tasks: Vec<VisitTask>,
    differs: bool,
}

impl DirectoryVisit<'_> {
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [self.path, b"/", name].concat()
    }
}

impl<'w, 'a> CaptureWorker<'w, 'a> {
    pub(super) fn new(walk: &'w CaptureWalk<'a>) -> CaptureWorker<'w, 'a> {
        let (blocks, lists) = (walk.packing.blocks(), walk.packing.blocks());
        CaptureWorker {
            walk,
            blocks,
            lists,
            found: WalkFindings::default(),
            buffer: Vec::new(),
            names: Vec::new(),
        }
    }

    pub(super) fn finish(mut self) -> Result<WalkFindings, Error> {
        self.blocks.flush()?;
        self.lists.flush()?;
        Ok(self.found)
    }

    pub(super) fn work(&mut self, task: VisitTask) -> Result<(), Error> {
        match task {
            VisitTask::Directory { root, parent, path, extent, remembered } => {
                match self.open(root, parent, &path) {
                    Ok(dir) => self.visit(root, &path, dir, (extent, remembered)),
                    Err(VisitError::Fail(error)) => Err(error),
                    // A touched directory that is gone also touched its parent, whose visit reports it.
                    Err(VisitError::Skip(SkipReason::Gone)) if extent != VisitExtent::Whole => Ok(()),
                    Err(VisitError::Skip(why)) => {
                        self.found.failed.insert(path, why);
                        Ok(())
                    }
                }
            }
            VisitTask::File { parent, path, old, slot } => {
                let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
                let seen = self.file(parent.fd(), name, &path, old.as_ref())?;
                self.count(&seen.1);
                slot.set(seen).map_err(drop).expect("a file is visited once");
                Ok(())
            }
        }
    }

    fn open(
        &self,
        root: usize,
        parent: Option<Arc<OpenDirectory>>,
        path: &[u8],
    ) -> Result<Arc<OpenDirectory>, VisitError> {
        if path.iter().filter(|b| **b == b'/').count() >= MAX_DEPTH {
            let why = "it is deeper than can be restored".to_owned();
            return Err(VisitError::Skip(SkipReason::Unreadable(why)));
        }
        let length = path.len() as u64;
        if self.walk.paths.fetch_add(length, Ordering::Relaxed) + length > MAX_PATH_BYTES {
            let why = "the paths of all directories together are too long".to_owned();
            return Err(VisitError::Skip(SkipReason::Unreadable(why)));
        }
        let folder = self.walk.capture.roots[root].folder.fd();
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let dir = match parent {
            Some(parent) => force_directory(parent.fd(), name)?,
            None => match path.iter().position(|b| *b == b'/') {
                Some(slash) => ForcedHandle::of(open_beneath(folder, &path[slash + 1..])?)?,
                None => ForcedHandle::of(open_beneath(folder, b".")?)?,
            },
        };
        Ok(OpenDirectory::new(dir))
    }

    fn visit(
        &mut self,
        root: usize,
        path: &[u8],
        dir: Arc<OpenDirectory>,
        (extent, remembered): (VisitExtent, bool),
    ) -> Result<(), Error> {
        let index = self.walk.index;
        let look = StatFingerprint::from(&dir.0.is);
        let known = index.get(path);
        let reach = extent.reach();
        let mut here = DirectoryVisit { root, path, dir, known, extent, tasks: Vec::new(), differs: false };
        // Names appear and disappear only with a change of the directory's own times.
        let same_names =
            known.filter(|known| remembered && known.look == look && !known.is_racy(look.changed));
        let (items, same) = match (same_names, known) {
            (_, Some(known)) if matches!(here.extent, VisitExtent::Names(_)) => {
                self.look_at_names(&mut here, known)
            }
            (Some(known), _) => self.look_again(&mut here, index.entries(known)),
            (None, _) => self.list(&mut here),
        }?;
        if !same || same_names.is_none() {
            let xattrs = xattrs(here.dir.fd());
            let entries = items.into_iter().map(materialised).collect();
            let differs = here.differs;
            self.found.visits.push(ChangedDirectory {
                path: path.to_vec(),
                look,
                xattrs,
                entries,
                differs,
                reach,
            });
        }
        self.walk.queue.push(here.tasks);
        Ok(())
    }

    /// Checks the recorded entries without listing the directory. True if all are unchanged.
    fn look_again<'i>(
        &mut self,
        here: &mut DirectoryVisit<'_>,
        entries: impl Iterator<Item = IndexEntry<'i>>,
    ) -> Result<(Vec<VisitedEntry<'i>>, bool), Error> {
        let mut items = Vec::new();
        let mut same = true;
        for entry in entries {
            // The subdirectory still exists, and its own visit checks its content.
            if entry.look.nature == IndexedFileKind::Dir && !entry.is_skipped() {
                self.same(here, &entry);
                items.push(VisitedEntry::Same(entry));
                continue;
            }
            let item = self.entry(here, entry.name, Some(entry))?;
            same &= matches!(item, Some(VisitedEntry::Same(_)));
            items.extend(item);
        }
        Ok((items, same))
    }

    /// Checks the touched names; all others are unchanged.
    fn look_at_names<'i>(
        &mut self,
        here: &mut DirectoryVisit<'i>,
        known: &'i IndexedDirectory,
    ) -> Result<(Vec<VisitedEntry<'i>>, bool), Error>
    where
        'a: 'i,
    {
        let VisitExtent::Names(touched) = std::mem::replace(&mut here.extent, VisitExtent::Itself) else {
            return Ok((Vec::new(), true));
        };
        let mut touched = touched.iter().peekable();
        let mut items = Vec::new();
        let mut same = true;
        for entry in self.walk.index.entries(known) {
            while let Some(name) = touched.next_if(|name| name.as_slice() < entry.name) {
                let item = self.appeared(here, name)?;
                same &= item.is_none();
                items.extend(item);
            }
            if touched.next_if(|name| name.as_slice() == entry.name).is_none() {
                self.same(here, &entry);
                items.push(VisitedEntry::Same(entry));
                continue;
            }
            let item = self.touched(here, entry)?;
            same = false;
            items.extend(item);
        }
        for name in touched {
            let item = self.appeared(here, name)?;
            same &= item.is_none();
            items.extend(item);
        }
        Ok((items, same))
    }

    /// Checks a touched name. Reads the file even if its attributes are equal, because a mapping may have written to
    /// it.
    fn touched<'i>(
        &mut self,
        here: &mut DirectoryVisit<'_>,
        known: IndexEntry<'i>,
    ) -> Result<Option<VisitedEntry<'i>>, Error> {
        let is = match FileAttributes::at(here.dir.fd(), known.name) {
            Ok(is) => is,
            Err(Errno::NOENT) => {
                self.vanished(here, &known);
                return Ok(None);
            }
            Err(errno) => return self.unreadable(here, known.name, VisitError::from(errno)),
        };
        let look = StatFingerprint::from(&is);
        here.differs |= known.look != look;
        if known.look.nature == IndexedFileKind::Dir && known.look.inode != look.inode {
            self.vanished(here, &known);
        }
        self.new_entry(here, known.name, look, Some(known))
    }

    /// Checks a name that is not in the index; it may already be gone again.
    fn appeared<'i>(
        &mut self,
        here: &mut DirectoryVisit<'_>,
        name: &[u8],
    ) -> Result<Option<VisitedEntry<'i>>, Error> {
        match FileAttributes::at(here.dir.fd(), name) {
            Err(Errno::NOENT) => Ok(None),
            Ok(_) | Err(_) => self.entry(here, name, None),
        }
    }

    /// Lists the directory and compares it with the index.
    fn list<'i>(&mut self, here: &mut DirectoryVisit<'i>) -> Result<(Vec<VisitedEntry<'i>>, bool), Error>
    where
        'a: 'i,
    {
        let listed = names_into(here.dir.fd(), &mut self.names);
        let names = match listed.map_err(VisitError::from) {
            Ok(names) => names,
            Err(VisitError::Fail(error)) => return Err(error),
            Err(VisitError::Skip(why)) => {
                self.found.failed.insert(here.path.to_vec(), why);
                return Ok((Vec::new(), true));
            }
        };
        let index = self.walk.index;
        let mut known = here.known.map(|known| index.entries(known)).into_iter().flatten().peekable();
        let mut items = Vec::with_capacity(names.len());
        let mut same = true;
        for name in names {
            while let Some(before) = known.next_if(|entry| entry.name < name.as_slice()) {
                self.vanished(here, &before);
                same = false;
            }
            let entry = known.next_if(|entry| entry.name == name.as_slice());
            let item = self.entry(here, &name, entry)?;
            same &= matches!(item, Some(VisitedEntry::Same(_)));
            items.extend(item);
        }
        for before in known {
            self.vanished(here, &before);
            same = false;
        }
        Ok((items, same))
    }

    fn vanished(&mut self, here: &mut DirectoryVisit<'_>, entry: &IndexEntry<'_>) {
        here.differs = true;
        if entry.look.nature == IndexedFileKind::Dir {
            self.found.gone.push(here.path_of(entry.name));
        }
    }

    /// Checks one entry; `None` if it is gone.
    fn entry<'i>(
        &mut self,
        here: &mut DirectoryVisit<'_>,
        name: &[u8],
        known: Option<IndexEntry<'i>>,
    ) -> Result<Option<VisitedEntry<'i>>, Error> {
        let is = match FileAttributes::at(here.dir.fd(), name) {
            Ok(is) => is,
            Err(Errno::NOENT) => {
                known.iter().for_each(|known| self.vanished(here, known));
                self.found.report.skip(here.path_of(name), SkipReason::Gone);
                return Ok(None);
            }
            Err(errno) => return self.unreadable(here, name, VisitError::from(errno)),
        };
        let look = StatFingerprint::from(&is);
        here.differs |= known.is_none_or(|known| known.look != look);
        match known {
            Some(known) if known.look == look && self.is_certain(here, &known) => {
                self.same(here, &known);
                Ok(Some(VisitedEntry::Same(known)))
            }
            Some(known) => {
                // Another directory has the name now: walk it as a whole, and drop the recorded one.
                if known.look.nature == IndexedFileKind::Dir && known.look.inode != look.inode {
                    self.vanished(here, &known);
                }
                self.new_entry(here, name, look, Some(known))
            }
            None => self.new_entry(here, name, look, None),
        }
    }

    fn unreadable<'i>(
        &mut self,
        here: &DirectoryVisit<'_>,
        name: &[u8],
        trouble: VisitError,
    ) -> Result<Option<VisitedEntry<'i>>, Error> {
        match trouble {
            VisitError::Fail(error) => Err(error),
            VisitError::Skip(why) => {
                self.found.report.skip(here.path_of(name), why.clone());
                Ok(Some(VisitedEntry::New(
                    name.to_vec(),
                    EntrySlot::Ready(NOTHING, IndexedContent::Skipped(why)),
                )))
            }
        }
    }

    /// Whether equal attributes prove that an entry is unchanged. The times of a subdirectory are checked by its own
    /// visit.
    fn is_certain(&self, here: &DirectoryVisit<'_>, known: &IndexEntry<'_>) -> bool {
        known.look.nature == IndexedFileKind::Dir
            || here.known.is_some_and(|directory| !directory.is_racy(known.look.changed))
    }

    fn same(&mut self, here: &mut DirectoryVisit<'_>, known: &IndexEntry<'_>) {
        if known.is_skipped() {
            if let IndexedContent::Skipped(why) = known.known() {
                self.found.report.skip(here.path_of(known.name), why);
            }
            return;
        }
        match known.look.nature {
            IndexedFileKind::Dir if here.extent == VisitExtent::Whole => {
                self.later(here, known.name, VisitExtent::Whole, true)
            }
            IndexedFileKind::Dir => {}
            IndexedFileKind::File => {
                self.found.report.files += 1;
                self.found.report.bytes = self.found.report.bytes.saturating_add(known.look.size);
                self.walk.capture.progress.iter().for_each(|progress| progress.add(known.look.size));
                self.name_of(here, known.name, &known.look);
            }
            IndexedFileKind::Link | IndexedFileKind::Other => {}
        }
    }

    fn name_of(&mut self, here: &DirectoryVisit<'_>, name: &[u8], look: &StatFingerprint) {
        if look.linked {
            let (folder, name) = (here.path.to_vec(), name.to_vec());
            self.found.names.push(HardLinkName { inode: look.inode, folder, name, size: look.size });
        }
    }

    fn later(&self, here: &mut DirectoryVisit<'_>, name: &[u8], extent: VisitExtent, remembered: bool) {
        let crowded = OPEN.load(Ordering::Relaxed) > MAX_OPEN_DIRECTORIES;
        let parent = (!crowded).then(|| here.dir.clone());
        let path = here.path_of(name);
        if !self.walk.is_new(&path, extent.reach()) {
            return;
        }
        here.tasks.push(VisitTask::Directory { root: here.root, parent, path, extent, remembered });
    }

    fn new_entry<'i>(
        &mut self,
        here: &mut DirectoryVisit<'_>,
        name: &[u8],
        look: StatFingerprint,
        known: Option<IndexEntry<'i>>,
    ) -> Result<Option<VisitedEntry<'i>>, Error> {
        let full = here.path_of(name);
        let root = self.walk.capture.roots[here.root].name.as_bytes();
        let ready = |known| Ok(Some(VisitedEntry::New(name.to_vec(), EntrySlot::Ready(look, known))));
        if (self.walk.capture.exclude)(root, &full[root.len() + 1..]) {
            self.found.report.skip(full, SkipReason::Excluded);
            return ready(IndexedContent::Skipped(SkipReason::Excluded));
        }
        match look.nature {
            IndexedFileKind::Dir => {
                let known = known.filter(|known| {
                    known.look.nature == IndexedFileKind::Dir
                        && known.look.inode == look.inode
                        && !known.is_skipped()
                });
                let itself = known.is_some() && here.extent != VisitExtent::Whole;
                // Only the attributes of a known directory changed; other tasks cover its content.
                let extent = if itself { VisitExtent::Names(BTreeSet::new()) } else { VisitExtent::Whole };
                self.later(here, name, extent, false);
                ready(IndexedContent::Dir(Vec::new()))
            }
            IndexedFileKind::Link => match rustix::fs::readlinkat(here.dir.fd(), name, Vec::new()) {
                Ok(target) => ready(IndexedContent::Link(target.into_bytes())),
                Err(errno) => self.unreadable(here, name, VisitError::from(errno)),
            },
            IndexedFileKind::Other => {
                let why = self.special(here, name);
                self.found.report.skip(full, why.clone());
                ready(IndexedContent::Skipped(why))
            }
            IndexedFileKind::File => {
                let old = known.map(|known| known.known());
                self.name_of(here, name, &look);
                if look.size > MAX_WHOLE_FILE {
                    let slot = Arc::new(OnceLock::new());
                    let parent = here.dir.clone();
                    here.tasks.push(VisitTask::File { parent, path: full, old, slot: slot.clone() });
                    return Ok(Some(VisitedEntry::New(name.to_vec(), EntrySlot::Later(slot))));
                }
                let dir = here.dir.clone();
                let (look, known) = self.file(dir.fd(), name, &full, old.as_ref())?;
                self.count(&known);
                Ok(Some(VisitedEntry::New(name.to_vec(), EntrySlot::Ready(look, known))))
            }
        }
    }

    fn count(&mut self, known: &IndexedContent) {
        if let IndexedContent::File(content, _) = known {
            self.found.report.files += 1;
            self.found.report.bytes = self.found.report.bytes.saturating_add(content.size);
            self.walk.capture.progress.iter().for_each(|progress| progress.add(content.size));
        }
    }

    fn special(&self, here: &DirectoryVisit<'_>, name: &[u8]) -> SkipReason {
        match FileAttributes::at(here.dir.fd(), name).map(|is| is.kind) {
            Ok(crate::FileKind::Socket) => SkipReason::Socket,
            Ok(crate::FileKind::Fifo) => SkipReason::Fifo,
            Ok(_) => SkipReason::Device,
            Err(_) => SkipReason::Gone,
        }
    }
}

/// Converts an unchanged entry from the index.
fn materialised(item: VisitedEntry<'_>) -> (Vec<u8>, EntrySlot) {
    match item {
        VisitedEntry::Same(entry) => (entry.name.to_vec(), EntrySlot::Ready(entry.look, entry.known())),
        VisitedEntry::New(name, slot) => (name, slot),
    }
}
