//! Captures a tree that may change at the same time into a pack with the new content. One unreadable file never costs
//! the others; the report lists everything that was skipped.

mod build;
mod content;
mod queue;
mod visit;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::folder::FileTime;
use crate::index::CaptureIndex;
use crate::object::ObjectRef;
use crate::pack::{PackNote, PackWriter};
use crate::path::is_name;
use crate::{BadPath, Error, FetchProgress, Folder, TouchedNames, TouchedPaths, TreeId};

use super::{CaptureGuard, Repo};

/// Upper limit for listed paths: a sandbox can create a million sockets. The report counts the rest.
const MAX_LISTED: usize = 10_000;

/// A folder and its name in the snapshot.
#[derive(Debug, Clone, Copy)]
pub struct CaptureRoot<'a> {
    /// The name under which snapshots keep the folder.
    pub name: &'static str,
    /// The folder itself.
    pub folder: &'a Folder,
}

/// Excludes an entry and everything beneath it if `exclude(root, path)` is true.
pub type ExcludeFilter<'a> = &'a (dyn Fn(&[u8], &[u8]) -> bool + Sync);

/// The name of a note, and a function that writes it from the number of files and bytes.
pub type SummaryNote<'a> = (&'a str, &'a dyn Fn(u64, u64) -> Vec<u8>);

/// What to capture, and what is already known.
#[derive(Clone, Copy)]
pub struct CaptureRequest<'a> {
    /// The folders that make up the snapshot.
    pub roots: &'a [CaptureRoot<'a>],
    /// The filter must be the same for every capture with the same index.
    pub exclude: ExcludeFilter<'a>,
    /// The snapshot that these folders were restored from, or their last capture. Collection must not remove it
    /// meanwhile, so it must be one that the caller still keeps.
    pub base: Option<&'a TreeId>,
    /// The file with the index of the folders. Used only if it describes `base`.
    pub index: Option<&'a Path>,
    /// Notes that travel with the snapshot, by name.
    pub notes: &'a [(&'a str, &'a [u8])],
    /// What to do if nothing changed.
    pub unchanged: UnchangedPolicy,
    /// What is known about changes since the last capture.
    pub tracking: ChangeTracking<'a>,
    /// Counts files and bytes during the capture.
    pub progress: Option<&'a SnapshotProgress>,
}

/// The progress of a capture or a restore.
#[derive(Debug, Default)]
pub struct SnapshotProgress {
    /// Files, folders and links so far.
    pub files: AtomicU64,
    /// Bytes so far.
    pub bytes: AtomicU64,
    /// Bytes read from the remote store, before the first file is written.
    pub fetched: AtomicU64,
    /// Expected bytes from the remote store, as far as known.
    pub to_fetch: AtomicU64,
}

impl SnapshotProgress {
    pub(crate) fn fetched(&self, fetched: FetchProgress) {
        self.fetched.store(fetched.bytes, Ordering::Relaxed);
        self.to_fetch.store(fetched.of, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What is known about the places of changes. The `TouchedPaths` are relative to the folder that contains all roots, and
/// cover the time since the capture that `index` describes.
#[derive(Debug, Clone, Copy)]
pub enum ChangeTracking<'a> {
    /// Nothing: visit everything.
    None,
    /// Visit only touched paths.
    Trust(&'a TouchedPaths),
    /// Visit everything, and report changes outside the touched paths.
    Check(&'a TouchedPaths),
}

type TouchedFolders = BTreeMap<Vec<u8>, TouchedNames>;

impl<'a> ChangeTracking<'a> {
    fn touched(&self) -> Option<(&'a TouchedFolders, &'a BTreeSet<u64>)> {
        match self {
            ChangeTracking::Trust(TouchedPaths::Folders { folders, linked }) => Some((folders, linked)),
            ChangeTracking::Trust(TouchedPaths::Everything)
            | ChangeTracking::None
            | ChangeTracking::Check(_) => None,
        }
    }

    fn checked(&self) -> Option<&'a TouchedFolders> {
        match self {
            ChangeTracking::Check(TouchedPaths::Folders { folders, .. }) => Some(folders),
            ChangeTracking::Check(TouchedPaths::Everything)
            | ChangeTracking::None
            | ChangeTracking::Trust(_) => None,
        }
    }
}

/// What happens when a capture finds everything as in its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnchangedPolicy {
    /// Return the base, and drop the notes.
    ReuseBase,
    /// Write a pack for the notes alone.
    WriteNotes,
}

impl<'a> CaptureRequest<'a> {
    /// A capture of these folders with default options.
    pub fn of(roots: &'a [CaptureRoot<'a>]) -> CaptureRequest<'a> {
        CaptureRequest {
            roots,
            exclude: &|_, _| false,
            base: None,
            index: None,
            notes: &[],
            unchanged: UnchangedPolicy::ReuseBase,
            tracking: ChangeTracking::None,
            progress: None,
        }
    }
}

/// The result of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedSnapshot {
    /// The id of the snapshot.
    pub tree: TreeId,
    /// Regular files, hard links counted once.
    pub files: u64,
    /// Their sizes.
    pub bytes: u64,
    /// Bytes added to the repository.
    pub written: u64,
    /// What is in the folders but not in the snapshot.
    pub skipped: Vec<SkippedEntry>,
    /// Files that changed during each attempt to read them, as `root/path`. The snapshot has them, but perhaps in a
    /// state that never existed.
    pub unsettled: Vec<Vec<u8>>,
    /// How many more entries there are than the two lists name.
    pub unlisted: u64,
    /// Directories with changes that the tracking should have reported, and did not.
    pub missed_changes: Vec<Vec<u8>>,
    /// Until this is dropped, collection keeps the snapshot.
    pub under_way: CaptureGuard,
}

/// An entry that a snapshot does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    /// `root/path`.
    pub path: Vec<u8>,
    /// The reason.
    pub why: SkipReason,
}

/// Why an entry is in no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// The caller excluded it.
    Excluded,
    /// It is a socket, which means nothing without its process.
    Socket,
    /// It is a named pipe.
    Fifo,
    /// It is a device.
    Device,
    /// Another file system is mounted there.
    Mount,
    /// It was removed or replaced during the capture.
    Gone,
    /// It could not be read; the text says why.
    Unreadable(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SkipReason::Excluded => f.write_str("excluded"),
            SkipReason::Socket => f.write_str("a socket"),
            SkipReason::Fifo => f.write_str("a FIFO"),
            SkipReason::Device => f.write_str("a device"),
            SkipReason::Mount => f.write_str("another file system"),
            SkipReason::Gone => f.write_str("gone while it was read"),
            SkipReason::Unreadable(cause) => write!(f, "unreadable: {cause}"),
        }
    }
}

/// The results of a capture besides its tree.
#[derive(Debug, Default)]
struct CaptureReport {
    files: u64,
    bytes: u64,
    skipped: Vec<SkippedEntry>,
    unsettled: Vec<Vec<u8>>,
    unlisted: u64,
    missed: Vec<Vec<u8>>,
    /// The files and bytes that further hard links would count twice.
    twice: (u64, u64),
}

impl CaptureReport {
    fn skip(&mut self, path: Vec<u8>, why: SkipReason) {
        if self.skipped.len() < MAX_LISTED {
            self.skipped.push(SkippedEntry { path, why });
        } else {
            self.unlisted += 1;
        }
    }

    /// Takes over an entry that was skipped before, unless this capture has already listed it.
    fn skip_again(&mut self, path: Vec<u8>, why: SkipReason) {
        if !self.skipped.iter().any(|skipped| skipped.path == path) {
            self.skip(path, why);
        }
    }

    fn unsettle(&mut self, path: Vec<u8>) {
        if self.unsettled.len() < MAX_LISTED {
            self.unsettled.push(path);
        } else {
            self.unlisted += 1;
        }
    }

    fn add(&mut self, other: CaptureReport) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.unlisted += other.unlisted;
        other.skipped.into_iter().for_each(|skipped| self.skip(skipped.path, skipped.why));
        other.unsettled.into_iter().for_each(|path| self.unsettle(path));
    }

    fn counts(&self) -> (u64, u64) {
        (self.files.saturating_sub(self.twice.0), self.bytes.saturating_sub(self.twice.1))
    }

    fn of(mut self, tree: TreeId, written: u64, under_way: CaptureGuard) -> CapturedSnapshot {
        // Several threads added entries in arbitrary order.
        self.skipped.sort_by(|a, b| a.path.cmp(&b.path));
        self.unsettled.sort();
        let (files, bytes) = self.counts();
        let CaptureReport { skipped, unsettled, unlisted, missed, .. } = self;
        CapturedSnapshot {
            tree,
            files,
            bytes,
            written,
            skipped,
            unsettled,
            unlisted,
            missed_changes: missed,
            under_way,
        }
    }
}

impl Repo {
    /// Captures the roots as one tree, which is on disk when this returns. Content that equals the base is not stored
    /// again.
    pub fn capture(&self, capture: &CaptureRequest<'_>) -> Result<CapturedSnapshot, Error> {
        self.capture_with_summary(capture, None)
    }

    /// Like [`Repo::capture`], with one more note, written from the number of files and bytes in the snapshot.
    pub fn capture_with_summary(
        &self,
        capture: &CaptureRequest<'_>,
        tell: Option<SummaryNote<'_>>,
    ) -> Result<CapturedSnapshot, Error> {
        if let Some(bad) = bad_root(capture.roots) {
            return Err(Error::BadPath(BadPath::Component(bad.to_owned())));
        }
        let _pinned = self.pin(capture.base);
        let under_way = self.begin_capture();
        let mut index = self.index_for(capture);
        let seen = now();
        let packing = PackWriter::new(self.place());
        let found = walk::walk(self, capture, &index, &packing)?;
        let mut built = build::build(self, capture, &index, &packing, found, seen)?;
        let unchanged = index.base().filter(|base| packing.is_empty() && base.is_of(&built.root.id));
        let unchanged =
            unchanged.filter(|_| capture.unchanged == UnchangedPolicy::ReuseBase || capture.notes.is_empty());
        let (tree, written) = match unchanged {
            Some(base) => (base.clone(), 0),
            None => {
                let (files, bytes) = built.report.counts();
                let told = tell.map(|(name, tell)| (name, tell(files, bytes)));
                let told = told.iter().map(|(name, told)| (*name, told.as_slice()));
                let notes: Vec<(&str, &[u8])> = capture.notes.iter().copied().chain(told).collect();
                let notes = self.put_notes(&packing, &notes)?;
                let (pack, written) = packing.finish(Some(built.root), notes)?;
                // Collection may have removed parts of an earlier pack of this name; the new file is complete.
                self.forget(pack);
                built.lies_in(pack);
                let tree = TreeId::new(&built.root.id, &pack);
                self.undo_discard(&tree)?;
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

    fn index_for(&self, capture: &CaptureRequest<'_>) -> CaptureIndex {
        let index = capture.index.map(|path| self.indexes.take(path)).unwrap_or_default();
        match (index.base(), capture.base) {
            // If the base cannot be opened, the capture ignores the index and stores everything again.
            (Some(told), Some(base)) if told == base && self.contains(base) => index,
            // The index describes another snapshot, which collection may have removed.
            (Some(_) | None, _) => CaptureIndex::default(),
        }
    }

    fn put_notes(&self, packing: &PackWriter<'_>, notes: &[(&str, &[u8])]) -> Result<Vec<PackNote>, Error> {
        let mut blocks = packing.blocks();
        let mut noted = Vec::new();
        for (name, bytes) in notes {
            let id = self.naming.name(crate::object_id::ObjectKind::Chunk, bytes);
            let at = ObjectRef { id, place: blocks.add(bytes)? };
            noted.push(PackNote { name: name.as_bytes().to_vec(), at });
        }
        blocks.flush()?;
        Ok(noted)
    }
}

/// Checks that a root's name is valid and unique.
fn bad_root(roots: &[CaptureRoot<'_>]) -> Option<&'static str> {
    let mut names: Vec<&'static str> = roots.iter().map(|root| root.name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    twice.or_else(|| names.into_iter().find(|name| !is_name(name.as_bytes())))
}

/// The time of the clock that file systems use.
pub(super) fn now() -> FileTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    FileTime { seconds: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
}
