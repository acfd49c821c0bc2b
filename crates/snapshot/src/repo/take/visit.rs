//! One directory: what is in it now, against what is remembered of it.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::content::NOTHING;
use super::walk::{Found, Name, Walk};
use super::{Capture, Why};
use crate::Error;
use crate::cut::WHOLE;
use crate::folder::{Attributes, Forced, force_directory, names_into, open_beneath, xattrs};
use crate::index::{Directory, Known, KnownEntry, Look, Nature};
use crate::object::Xattrs;
use crate::pack::Blocks;
use crate::repo::read::DEEPEST;

/// Somebody who nests directories with long names makes paths that grow with the square of their number, and we
/// hold each of them several times. A million directories of a project have less.
const LONGEST_PATHS: u64 = 128 << 20;

/// With more directories open than this, those that wait are closed and found again by their path.
const MOST_OPEN: usize = 200;

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A directory that is open, as long as something in it waits.
pub(super) struct Opened(Forced);

impl Opened {
    fn new(dir: Forced) -> Arc<Opened> {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Arc::new(Opened(dir))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.handle.as_fd()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) enum Task {
    Directory {
        root: usize,
        parent: Option<Arc<Opened>>,
        path: Vec<u8>,
        extent: Extent,
        /// Whether the directory above remembers it, and with it its attributes.
        remembered: bool,
    },
    /// A large file: it is worth a thread of its own.
    File { parent: Arc<Opened>, path: Vec<u8>, old: Option<Known>, slot: Arc<OnceLock<Seen>> },
}

/// How much of a directory is visited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Extent {
    /// With everything beneath.
    Whole,
    /// What is in it; directories that are known are visited for themselves, if at all.
    Itself,
    /// These names in it; nothing else was touched.
    Names(BTreeSet<Vec<u8>>),
}

impl Extent {
    pub(super) fn reach(&self) -> Reach {
        match self {
            Extent::Whole => Reach::Whole,
            Extent::Itself => Reach::Itself,
            Extent::Names(_) => Reach::Names,
        }
    }
}

/// Of two visits to one directory the further one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    Names,
    Itself,
    Whole,
}

/// A file that was read, or why not.
pub(super) type Seen = (Look, Known);

impl Task {
    pub(super) fn root(capture: &Capture<'_>, root: usize) -> Task {
        let path = capture.roots[root].name.as_bytes().to_vec();
        Task::Directory { root, parent: None, path, extent: Extent::Whole, remembered: true }
    }
}

/// A directory that differs from what is remembered.
pub(super) struct Visit {
    pub(super) path: Vec<u8>,
    pub(super) look: Look,
    pub(super) xattrs: Xattrs,
    pub(super) entries: Vec<(Vec<u8>, Slot)>,
    /// Not only to be remembered anew: something in it is other than it was.
    pub(super) differs: bool,
    pub(super) reach: Reach,
}

pub(super) enum Slot {
    Ready(Look, Known),
    Later(Arc<OnceLock<Seen>>),
}

impl Slot {
    /// After the walk, when everything has been read.
    pub(super) fn into_seen(self) -> Seen {
        match self {
            Slot::Ready(look, known) => (look, known),
            Slot::Later(slot) => {
                slot.get().cloned().expect("the queue is empty: every file has been visited")
            }
        }
    }
}

/// Why an entry is not taken, or why nothing can be.
pub(super) enum Trouble {
    Skip(Why),
    Fail(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Fail(error)
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Trouble {
        match errno {
            // Ours, not the file's: skipping would empty the snapshot.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                Trouble::Fail(Error::system("read", b"workspace", errno))
            }
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::STALE => {
                Trouble::Skip(Why::Gone)
            }
            Errno::XDEV => Trouble::Skip(Why::Mount),
            other => Trouble::Skip(Why::Unreadable(std::io::Error::from(other).to_string())),
        }
    }
}

/// One thread's part in a capture.
pub(super) struct Worker<'w, 'a> {
    pub(super) walk: &'w Walk<'a>,
    pub(super) blocks: Blocks<'w, 'a>,
    /// Apart from what they list: the next capture reads them all to see what changed, and needs nothing else.
    pub(super) lists: Blocks<'w, 'a>,
    pub(super) found: Found,
    pub(super) buffer: Vec<u8>,
    names: Vec<u8>,
}

/// An entry of the directory that is visited.
enum Item<'i> {
    Same(KnownEntry<'i>),
    New(Vec<u8>, Slot),
}

/// The directory that is visited.
struct Here<'h> {
    root: usize,
    path: &'h [u8],
    dir: Arc<Opened>,
    known: Option<&'h Directory>,
    extent: Extent,
    tasks: Vec<Task>,
    differs: bool,
}

impl Here<'_> {
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [self.path, b"/", name].concat()
    }
}

impl<'w, 'a> Worker<'w, 'a> {
    pub(super) fn new(walk: &'w Walk<'a>) -> Worker<'w, 'a> {
        let (blocks, lists) = (walk.packing.blocks(), walk.packing.blocks());
        Worker { walk, blocks, lists, found: Found::default(), buffer: Vec::new(), names: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Result<Found, Error> {
        self.blocks.flush()?;
        self.lists.flush()?;
        Ok(self.found)
    }

    pub(super) fn work(&mut self, task: Task) -> Result<(), Error> {
        match task {
            Task::Directory { root, parent, path, extent, remembered } => {
                match self.open(root, parent, &path) {
                    Ok(dir) => self.visit(root, &path, dir, (extent, remembered)),
                    Err(Trouble::Fail(error)) => Err(error),
                    // It was touched and is gone: then the directory above was touched, too.
                    Err(Trouble::Skip(Why::Gone)) if extent != Extent::Whole => Ok(()),
                    Err(Trouble::Skip(why)) => {
                        self.found.failed.insert(path, why);
                        Ok(())
                    }
                }
            }
            Task::File { parent, path, old, slot } => {
                let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
                let seen = self.file(parent.fd(), name, &path, old.as_ref())?;
                self.count(&seen.1);
                slot.set(seen).map_err(drop).expect("a file is visited once");
                Ok(())
            }
        }
    }

    fn open(&self, root: usize, parent: Option<Arc<Opened>>, path: &[u8]) -> Result<Arc<Opened>, Trouble> {
        if path.iter().filter(|b| **b == b'/').count() >= DEEPEST {
            let why = "it is deeper than can be restored".to_owned();
            return Err(Trouble::Skip(Why::Unreadable(why)));
        }
        let length = path.len() as u64;
        if self.walk.paths.fetch_add(length, Ordering::Relaxed) + length > LONGEST_PATHS {
            let why = "the paths of all directories together are too long".to_owned();
            return Err(Trouble::Skip(Why::Unreadable(why)));
        }
        let folder = self.walk.capture.roots[root].folder.fd();
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let dir = match parent {
            Some(parent) => force_directory(parent.fd(), name)?,
            None => match path.iter().position(|b| *b == b'/') {
                Some(slash) => Forced::of(open_beneath(folder, &path[slash + 1..])?)?,
                None => Forced::of(open_beneath(folder, b".")?)?,
            },
        };
        Ok(Opened::new(dir))
    }

    fn visit(
        &mut self,
        root: usize,
        path: &[u8],
        dir: Arc<Opened>,
        (extent, remembered): (Extent, bool),
    ) -> Result<(), Error> {
        let index = self.walk.index;
        let look = Look::from(&dir.0.is);
        let known = index.get(path);
        let reach = extent.reach();
        let mut here = Here { root, path, dir, known, extent, tasks: Vec::new(), differs: false };
        // Names come and go only with the directory's own times.
        let same_names =
            known.filter(|known| remembered && known.look == look && !known.is_racy(look.changed));
        let (items, same) = match (same_names, known) {
            (_, Some(known)) if matches!(here.extent, Extent::Names(_)) => {
                self.look_at_names(&mut here, known)
            }
            (Some(known), _) => self.look_again(&mut here, index.entries(known)),
            (None, _) => self.list(&mut here),
        }?;
        if !same || same_names.is_none() {
            let xattrs = xattrs(here.dir.fd());
            let entries = items.into_iter().map(materialised).collect();
            let differs = here.differs;
            self.found.visits.push(Visit { path: path.to_vec(), look, xattrs, entries, differs, reach });
        }
        self.walk.queue.push(here.tasks);
        Ok(())
    }

    /// Looks at what is remembered; true if all of it is as it was.
    fn look_again<'i>(
        &mut self,
        here: &mut Here<'_>,
        entries: impl Iterator<Item = KnownEntry<'i>>,
    ) -> Result<(Vec<Item<'i>>, bool), Error> {
        let mut items = Vec::new();
        let mut same = true;
        for entry in entries {
            // Its name is still there, and it is looked at when it is visited itself.
            if entry.look.nature == Nature::Dir && !entry.is_skipped() {
                self.same(here, &entry);
                items.push(Item::Same(entry));
                continue;
            }
            let item = self.entry(here, entry.name, Some(entry))?;
            same &= matches!(item, Some(Item::Same(_)));
            items.extend(item);
        }
        Ok((items, same))
    }

    /// Looks at the names that were touched; all others are as they were.
    fn look_at_names<'i>(
        &mut self,
        here: &mut Here<'i>,
        known: &'i Directory,
    ) -> Result<(Vec<Item<'i>>, bool), Error>
    where
        'a: 'i,
    {
        let Extent::Names(touched) = std::mem::replace(&mut here.extent, Extent::Itself) else {
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
                items.push(Item::Same(entry));
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

    /// A name that was touched: read whatever it looks like, since a mapping may have been written through.
    fn touched<'i>(&mut self, here: &mut Here<'_>, known: KnownEntry<'i>) -> Result<Option<Item<'i>>, Error> {
        let is = match Attributes::at(here.dir.fd(), known.name) {
            Ok(is) => is,
            Err(Errno::NOENT) => {
                self.vanished(here, &known);
                return Ok(None);
            }
            Err(errno) => return self.unreadable(here, known.name, Trouble::from(errno)),
        };
        let look = Look::from(&is);
        here.differs |= known.look != look;
        if known.look.nature == Nature::Dir && known.look.inode != look.inode {
            self.vanished(here, &known);
        }
        self.new_entry(here, known.name, look, Some(known))
    }

    /// A name that is not remembered; it may have come and gone.
    fn appeared<'i>(&mut self, here: &mut Here<'_>, name: &[u8]) -> Result<Option<Item<'i>>, Error> {
        match Attributes::at(here.dir.fd(), name) {
            Err(Errno::NOENT) => Ok(None),
            Ok(_) | Err(_) => self.entry(here, name, None),
        }
    }

    /// Lists the directory and holds it against what is remembered.
    fn list<'i>(&mut self, here: &mut Here<'i>) -> Result<(Vec<Item<'i>>, bool), Error>
    where
        'a: 'i,
    {
        let listed = names_into(here.dir.fd(), &mut self.names);
        let names = match listed.map_err(Trouble::from) {
            Ok(names) => names,
            Err(Trouble::Fail(error)) => return Err(error),
            Err(Trouble::Skip(why)) => {
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
            same &= matches!(item, Some(Item::Same(_)));
            items.extend(item);
        }
        for before in known {
            self.vanished(here, &before);
            same = false;
        }
        Ok((items, same))
    }

    fn vanished(&mut self, here: &mut Here<'_>, entry: &KnownEntry<'_>) {
        here.differs = true;
        if entry.look.nature == Nature::Dir {
            self.found.gone.push(here.path_of(entry.name));
        }
    }

    /// One entry; `None` if it is gone.
    fn entry<'i>(
        &mut self,
        here: &mut Here<'_>,
        name: &[u8],
        known: Option<KnownEntry<'i>>,
    ) -> Result<Option<Item<'i>>, Error> {
        let is = match Attributes::at(here.dir.fd(), name) {
            Ok(is) => is,
            Err(Errno::NOENT) => {
                known.iter().for_each(|known| self.vanished(here, known));
                self.found.report.skip(here.path_of(name), Why::Gone);
                return Ok(None);
            }
            Err(errno) => return self.unreadable(here, name, Trouble::from(errno)),
        };
        let look = Look::from(&is);
        here.differs |= known.is_none_or(|known| known.look != look);
        match known {
            Some(known) if known.look == look && self.is_certain(here, &known) => {
                self.same(here, &known);
                Ok(Some(Item::Same(known)))
            }
            Some(known) => {
                // Another directory under its name is walked as a whole, and that one is forgotten.
                if known.look.nature == Nature::Dir && known.look.inode != look.inode {
                    self.vanished(here, &known);
                }
                self.new_entry(here, name, look, Some(known))
            }
            None => self.new_entry(here, name, look, None),
        }
    }

    fn unreadable<'i>(
        &mut self,
        here: &Here<'_>,
        name: &[u8],
        trouble: Trouble,
    ) -> Result<Option<Item<'i>>, Error> {
        match trouble {
            Trouble::Fail(error) => Err(error),
            Trouble::Skip(why) => {
                self.found.report.skip(here.path_of(name), why.clone());
                Ok(Some(Item::New(name.to_vec(), Slot::Ready(NOTHING, Known::Skipped(why)))))
            }
        }
    }

    /// A directory's own times are looked at when it is visited itself.
    fn is_certain(&self, here: &Here<'_>, known: &KnownEntry<'_>) -> bool {
        known.look.nature == Nature::Dir
            || here.known.is_some_and(|directory| !directory.is_racy(known.look.changed))
    }

    fn same(&mut self, here: &mut Here<'_>, known: &KnownEntry<'_>) {
        if known.is_skipped() {
            if let Known::Skipped(why) = known.known() {
                self.found.report.skip(here.path_of(known.name), why);
            }
            return;
        }
        match known.look.nature {
            Nature::Dir if here.extent == Extent::Whole => self.later(here, known.name, Extent::Whole, true),
            Nature::Dir => {}
            Nature::File => {
                self.found.report.files += 1;
                self.found.report.bytes = self.found.report.bytes.saturating_add(known.look.size);
                self.walk.capture.progress.iter().for_each(|progress| progress.add(known.look.size));
                self.name_of(here, known.name, &known.look);
            }
            Nature::Link | Nature::Other => {}
        }
    }

    fn name_of(&mut self, here: &Here<'_>, name: &[u8], look: &Look) {
        if look.linked {
            let (folder, name) = (here.path.to_vec(), name.to_vec());
            self.found.names.push(Name { inode: look.inode, folder, name, size: look.size });
        }
    }

    fn later(&self, here: &mut Here<'_>, name: &[u8], extent: Extent, remembered: bool) {
        let crowded = OPEN.load(Ordering::Relaxed) > MOST_OPEN;
        let parent = (!crowded).then(|| here.dir.clone());
        let path = here.path_of(name);
        if !self.walk.is_new(&path, extent.reach()) {
            return;
        }
        here.tasks.push(Task::Directory { root: here.root, parent, path, extent, remembered });
    }

    fn new_entry<'i>(
        &mut self,
        here: &mut Here<'_>,
        name: &[u8],
        look: Look,
        known: Option<KnownEntry<'i>>,
    ) -> Result<Option<Item<'i>>, Error> {
        let full = here.path_of(name);
        let root = self.walk.capture.roots[here.root].name.as_bytes();
        let ready = |known| Ok(Some(Item::New(name.to_vec(), Slot::Ready(look, known))));
        if (self.walk.capture.exclude)(root, &full[root.len() + 1..]) {
            self.found.report.skip(full, Why::Excluded);
            return ready(Known::Skipped(Why::Excluded));
        }
        match look.nature {
            Nature::Dir => {
                let known = known.filter(|known| {
                    known.look.nature == Nature::Dir && known.look.inode == look.inode && !known.is_skipped()
                });
                let itself = known.is_some() && here.extent != Extent::Whole;
                // Its own times or attributes changed; what is in it is told apart.
                let extent = if itself { Extent::Names(BTreeSet::new()) } else { Extent::Whole };
                self.later(here, name, extent, false);
                ready(Known::Dir(Vec::new()))
            }
            Nature::Link => match rustix::fs::readlinkat(here.dir.fd(), name, Vec::new()) {
                Ok(target) => ready(Known::Link(target.into_bytes())),
                Err(errno) => self.unreadable(here, name, Trouble::from(errno)),
            },
            Nature::Other => {
                let why = self.special(here, name);
                self.found.report.skip(full, why.clone());
                ready(Known::Skipped(why))
            }
            Nature::File => {
                let old = known.map(|known| known.known());
                self.name_of(here, name, &look);
                if look.size > WHOLE {
                    let slot = Arc::new(OnceLock::new());
                    let parent = here.dir.clone();
                    here.tasks.push(Task::File { parent, path: full, old, slot: slot.clone() });
                    return Ok(Some(Item::New(name.to_vec(), Slot::Later(slot))));
                }
                let dir = here.dir.clone();
                let (look, known) = self.file(dir.fd(), name, &full, old.as_ref())?;
                self.count(&known);
                Ok(Some(Item::New(name.to_vec(), Slot::Ready(look, known))))
            }
        }
    }

    fn count(&mut self, known: &Known) {
        if let Known::File(content, _) = known {
            self.found.report.files += 1;
            self.found.report.bytes = self.found.report.bytes.saturating_add(content.size);
            self.walk.capture.progress.iter().for_each(|progress| progress.add(content.size));
        }
    }

    fn special(&self, here: &Here<'_>, name: &[u8]) -> Why {
        match Attributes::at(here.dir.fd(), name).map(|is| is.kind) {
            Ok(crate::Kind::Socket) => Why::Socket,
            Ok(crate::Kind::Fifo) => Why::Fifo,
            Ok(_) => Why::Device,
            Err(_) => Why::Gone,
        }
    }
}

/// An entry that is as it was is taken from memory.
fn materialised(item: Item<'_>) -> (Vec<u8>, Slot) {
    match item {
        Item::Same(entry) => (entry.name.to_vec(), Slot::Ready(entry.look, entry.known())),
        Item::New(name, slot) => (name, slot),
    }
}
