//! Capturing: a tree that may be changing under us, into a pack with what is new in it. One bad file never
//! costs the others; what could not be taken is said.

mod build;
mod content;
mod queue;
mod visit;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::folder::Time;
use crate::index::Index;
use crate::object::Ref;
use crate::pack::{Noted, Packing};
use crate::path::is_name;
use crate::{BadPath, Error, Fetched, Folder, Names, Touched, TreeId};

use super::{Repo, UnderWay};

/// Somebody can make a million sockets; a report names this many and counts the rest.
const LONGEST_LIST: usize = 10_000;

/// A folder and the name it has in the tree.
#[derive(Debug, Clone, Copy)]
pub struct Root<'a> {
    pub name: &'static str,
    pub folder: &'a Folder,
}

/// `exclude(root, path)` leaves an entry out, with everything beneath it.
pub type Exclude<'a> = &'a (dyn Fn(&[u8], &[u8]) -> bool + Sync);

/// The name of what travels with a snapshot, and what it says about so many files and bytes.
pub type Tell<'a> = (&'a str, &'a dyn Fn(u64, u64) -> Vec<u8>);

/// What is to be captured, and what is known already.
#[derive(Clone, Copy)]
pub struct Capture<'a> {
    pub roots: &'a [Root<'a>],
    /// The same for every capture with the same index.
    pub exclude: Exclude<'a>,
    /// The snapshot that these folders were restored from or captured as before. It must not be collected
    /// meanwhile, so it is one that somebody still wants.
    pub base: Option<&'a TreeId>,
    /// Where is kept what the folders looked like then. Used only if it speaks of `base`.
    pub index: Option<&'a Path>,
    /// What travels with the snapshot, by name.
    pub notes: &'a [(&'a str, &'a [u8])],
    pub unchanged: Unchanged,
    pub tracking: Tracking<'a>,
    /// Counts while it goes on.
    pub progress: Option<&'a Progress>,
}

/// How far a capture or a restore has come, for those who watch.
#[derive(Debug, Default)]
pub struct Progress {
    pub files: AtomicU64,
    pub bytes: AtomicU64,
    /// What was read from far, before the first file is written.
    pub fetched: AtomicU64,
    /// How much that will be, as far as it is known yet.
    pub to_fetch: AtomicU64,
}

impl Progress {
    pub(crate) fn fetched(&self, fetched: Fetched) {
        self.fetched.store(fetched.bytes, Ordering::Relaxed);
        self.to_fetch.store(fetched.of, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What is known about where changes can be. A `Touched` speaks of the folder that all roots are in, since the
/// capture that `index` is of.
#[derive(Debug, Clone, Copy)]
pub enum Tracking<'a> {
    /// Everything is looked at.
    None,
    /// Only what was touched is looked at.
    Trust(&'a Touched),
    /// Everything is looked at, and what changed without having been touched is told.
    Check(&'a Touched),
}

type Folders = BTreeMap<Vec<u8>, Names>;

impl<'a> Tracking<'a> {
    fn touched(&self) -> Option<(&'a Folders, &'a BTreeSet<u64>)> {
        match self {
            Tracking::Trust(Touched::Folders { folders, linked }) => Some((folders, linked)),
            Tracking::Trust(Touched::Everything) | Tracking::None | Tracking::Check(_) => None,
        }
    }

    fn checked(&self) -> Option<&'a Folders> {
        match self {
            Tracking::Check(Touched::Folders { folders, .. }) => Some(folders),
            Tracking::Check(Touched::Everything) | Tracking::None | Tracking::Trust(_) => None,
        }
    }
}

/// What becomes of a capture that finds everything as it was in its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unchanged {
    /// The base stands for it, and the notes are not kept.
    IsTheBase,
    /// A pack for the notes alone.
    KeepsItsNotes,
}

impl<'a> Capture<'a> {
    pub fn of(roots: &'a [Root<'a>]) -> Capture<'a> {
        Capture {
            roots,
            exclude: &|_, _| false,
            base: None,
            index: None,
            notes: &[],
            unchanged: Unchanged::IsTheBase,
            tracking: Tracking::None,
            progress: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub tree: TreeId,
    /// Regular files, hard links counted once.
    pub files: u64,
    /// Their sizes.
    pub bytes: u64,
    /// What was added to the repository.
    pub written: u64,
    pub skipped: Vec<Skipped>,
    /// Files that changed each time they were read, as `root/path`: taken, but perhaps not as they ever were.
    pub unsettled: Vec<Vec<u8>>,
    /// How many more there are than the two lists name.
    pub unlisted: u64,
    /// Directories in which something changed that should have been known to be touched, and was not.
    pub missed: Vec<Vec<u8>>,
    /// Until this is dropped no collection takes the snapshot for garbage.
    pub under_way: UnderWay,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// `root/path`.
    pub path: Vec<u8>,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Excluded,
    Socket,
    Fifo,
    Device,
    /// Another file system is mounted there.
    Mount,
    /// It was removed, or replaced by something else, between two looks.
    Gone,
    Unreadable(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Excluded => f.write_str("excluded"),
            Why::Socket => f.write_str("a socket"),
            Why::Fifo => f.write_str("a FIFO"),
            Why::Device => f.write_str("a device"),
            Why::Mount => f.write_str("another file system"),
            Why::Gone => f.write_str("gone while it was read"),
            Why::Unreadable(cause) => write!(f, "unreadable: {cause}"),
        }
    }
}

/// What is told about a capture besides its tree.
#[derive(Debug, Default)]
struct Report {
    files: u64,
    bytes: u64,
    skipped: Vec<Skipped>,
    unsettled: Vec<Vec<u8>>,
    unlisted: u64,
    missed: Vec<Vec<u8>>,
    /// What further names of files make look like more.
    twice: (u64, u64),
}

impl Report {
    fn skip(&mut self, path: Vec<u8>, why: Why) {
        if self.skipped.len() < LONGEST_LIST {
            self.skipped.push(Skipped { path, why });
        } else {
            self.unlisted += 1;
        }
    }

    /// What was found anew is in the list already.
    fn skip_again(&mut self, path: Vec<u8>, why: Why) {
        if !self.skipped.iter().any(|skipped| skipped.path == path) {
            self.skip(path, why);
        }
    }

    fn unsettle(&mut self, path: Vec<u8>) {
        if self.unsettled.len() < LONGEST_LIST {
            self.unsettled.push(path);
        } else {
            self.unlisted += 1;
        }
    }

    fn add(&mut self, other: Report) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.unlisted += other.unlisted;
        other.skipped.into_iter().for_each(|skipped| self.skip(skipped.path, skipped.why));
        other.unsettled.into_iter().for_each(|path| self.unsettle(path));
    }

    fn counts(&self) -> (u64, u64) {
        (self.files.saturating_sub(self.twice.0), self.bytes.saturating_sub(self.twice.1))
    }

    fn of(mut self, tree: TreeId, written: u64, under_way: UnderWay) -> Taken {
        // Several threads found them.
        self.skipped.sort_by(|a, b| a.path.cmp(&b.path));
        self.unsettled.sort();
        let (files, bytes) = self.counts();
        let Report { skipped, unsettled, unlisted, missed, .. } = self;
        Taken { tree, files, bytes, written, skipped, unsettled, unlisted, missed, under_way }
    }
}

impl Repo {
    /// Captures the roots as one tree; it is on disk when this returns. What is equal to the base becomes no
    /// new file.
    pub fn take(&self, capture: &Capture<'_>) -> Result<Taken, Error> {
        self.take_telling(capture, None)
    }

    /// As [`Repo::take`], with one more thing that travels with the snapshot and tells what is in it.
    pub fn take_telling(&self, capture: &Capture<'_>, tell: Option<Tell<'_>>) -> Result<Taken, Error> {
        if let Some(bad) = bad_root(capture.roots) {
            return Err(Error::BadPath(BadPath::Component(bad.to_owned())));
        }
        let _pinned = self.pin(capture.base);
        let under_way = self.begin_capture();
        let mut index = self.index_for(capture);
        let seen = now();
        let packing = Packing::new(self.place());
        let found = walk::walk(self, capture, &index, &packing)?;
        let mut built = build::build(self, capture, &index, &packing, found, seen)?;
        let unchanged = index.base().filter(|base| packing.is_empty() && base.is_of(&built.root.id));
        let unchanged =
            unchanged.filter(|_| capture.unchanged == Unchanged::IsTheBase || capture.notes.is_empty());
        let (tree, written) = match unchanged {
            Some(base) => (base.clone(), 0),
            None => {
                let (files, bytes) = built.report.counts();
                let told = tell.map(|(name, tell)| (name, tell(files, bytes)));
                let told = told.iter().map(|(name, told)| (*name, told.as_slice()));
                let notes: Vec<(&str, &[u8])> = capture.notes.iter().copied().chain(told).collect();
                let notes = self.put_notes(&packing, &notes)?;
                let (pack, written) = packing.finish(Some(built.root), notes)?;
                // Some of it may have been collected before, and now it is whole again.
                self.forget(pack);
                built.lies_in(pack);
                let tree = TreeId::new(&built.root.id, &pack);
                self.remember(&tree)?;
                (tree, written)
            }
        };
        let partial = capture.tracking.touched().is_some() && index.base().is_some();
        if let Some(path) = capture.index {
            built.remember(&mut index, path, &tree);
        }
        if partial {
            (built.report.files, built.report.bytes) = index.totals();
            index.skipped().for_each(|(path, why)| built.report.skip_again(path, why));
        }
        if let Some(path) = capture.index {
            self.indexes.put(path, index);
        }
        Ok(built.report.of(tree, written, under_way))
    }

    fn index_for(&self, capture: &Capture<'_>) -> Index {
        let index = capture.index.map(|path| self.indexes.take(path)).unwrap_or_default();
        match (index.base(), capture.base) {
            // What cannot be opened is not built upon: then everything is stored again.
            (Some(told), Some(base)) if told == base && self.holds(base) => index,
            // It speaks of a snapshot that may be collected by now.
            (Some(_) | None, _) => Index::default(),
        }
    }

    fn put_notes(&self, packing: &Packing<'_>, notes: &[(&str, &[u8])]) -> Result<Vec<Noted>, Error> {
        let mut blocks = packing.blocks();
        let mut noted = Vec::new();
        for (name, bytes) in notes {
            let id = self.naming.name(crate::id::Sort::Chunk, bytes);
            let at = Ref { id, place: blocks.add(bytes)? };
            noted.push(Noted { name: name.as_bytes().to_vec(), at });
        }
        blocks.flush()?;
        Ok(noted)
    }
}

/// A root's name is a name like others, and is there once.
fn bad_root(roots: &[Root<'_>]) -> Option<&'static str> {
    let mut names: Vec<&'static str> = roots.iter().map(|root| root.name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    twice.or_else(|| names.into_iter().find(|name| !is_name(name.as_bytes())))
}

/// By the clock that file systems use.
pub(super) fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Time { seconds: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
}
