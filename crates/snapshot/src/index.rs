//! What a folder looked like at its last capture: enough to find unchanged files without reading them.
//!
//! The index is a cache. It lies beside the tree, is never synced and may be deleted; unreadable parts are ignored.
//! On disk it is a log of directories, so that a capture appends only the directories that changed:
//!
//! ```text
//! index  = "ASHINDEX" 1 { record }
//! record = length:u32 xxh3:u64 payload
//! payload= 1 DIR path head entries | 5 EDIT path head edits | 2 GONE path (and everything beneath)
//!        | 3 PACK id:16 | 4 BASE tree
//! ```
//! Records count up to the last BASE: it names the snapshot that holds everything that the records before it describe.

mod cache;
mod edit;
mod entries;
mod log;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

pub(crate) use cache::IndexCache;
pub(crate) use entries::{IndexEntries, IndexEntry, IndexedContent, IndexedFileKind, StatFingerprint};
pub(crate) use log::base_of;

use crate::folder::FileTime;
use crate::object::{ObjectLocation, ObjectRef, StoredContent};
use crate::object_id::{ObjectId, PackId};
use crate::{SkipReason, TreeId};

/// Clocks tick at least every 10 ms. A file that changed less than two ticks before it was read may change again
/// without different times.
const TICK_NANOS: i128 = 20_000_000;
/// Some file systems store whole seconds, and some only even ones.
const SLOW_TICK_NANOS: i128 = 2_000_000_000;

/// A directory as the capture saw it.
#[derive(Debug, Clone)]
pub(crate) struct IndexedDirectory {
    pub(crate) look: StatFingerprint,
    /// When the directory was read. An entry whose times are not clearly older may have changed again, and is read
    /// again.
    pub(crate) seen: FileTime,
    pub(crate) at: ObjectRef,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Whether a file in it has several hard links.
    pub(crate) linked: bool,
    /// Whether the capture skipped an entry in it.
    pub(crate) skips: bool,
    entries: IndexedBytes,
}

#[derive(Debug, Clone)]
enum IndexedBytes {
    /// A range of the loaded log.
    Loaded(std::ops::Range<usize>),
    Own(Arc<[u8]>),
}

#[derive(Debug, Default)]
pub(crate) struct CaptureIndex {
    base: Option<TreeId>,
    directories: HashMap<Vec<u8>, IndexedDirectory, foldhash::fast::RandomState>,
    packs: Vec<PackId>,
    loaded: Vec<u8>,
    /// Obsolete bytes in the log; `length` is all of them.
    garbage: u64,
    length: u64,
    by_inode: OnceLock<HashMap<u64, StoredContent>>,
    by_content: OnceLock<HashMap<ObjectId, ObjectLocation>>,
}

impl CaptureIndex {
    pub(crate) fn base(&self) -> Option<&TreeId> {
        self.base.as_ref()
    }

    pub(crate) fn get(&self, path: &[u8]) -> Option<&IndexedDirectory> {
        self.directories.get(path)
    }

    pub(crate) fn entries<'a>(&'a self, directory: &'a IndexedDirectory) -> IndexEntries<'a> {
        IndexEntries::new(self.bytes_of(directory), &self.packs)
    }

    fn bytes_of<'a>(&'a self, directory: &'a IndexedDirectory) -> &'a [u8] {
        match &directory.entries {
            IndexedBytes::Loaded(range) => &self.loaded[range.clone()],
            IndexedBytes::Own(bytes) => bytes,
        }
    }

    /// All directories that hold a file with several hard links.
    pub(crate) fn linked(&self) -> impl Iterator<Item = (&Vec<u8>, &IndexedDirectory)> {
        self.directories.iter().filter(|(_, directory)| directory.linked)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.directories.keys()
    }

    /// The names (folder and name) of these inodes.
    pub(crate) fn names_of(&self, inodes: &BTreeSet<u64>) -> Vec<(&[u8], &[u8])> {
        if inodes.is_empty() {
            return Vec::new();
        }
        let all = self
            .directories
            .iter()
            .flat_map(|(path, directory)| self.entries(directory).map(move |entry| (path.as_slice(), entry)));
        all.filter(|(_, entry)| inodes.contains(&entry.look.inode)).map(|(path, e)| (path, e.name)).collect()
    }

    /// All skipped entries.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = (Vec<u8>, SkipReason)> {
        let with = self.directories.iter().filter(|(_, directory)| directory.skips);
        with.flat_map(|(path, directory)| {
            self.entries(directory).filter_map(move |entry| match entry.known() {
                IndexedContent::Skipped(why) => Some(([path, &b"/"[..], entry.name].concat(), why)),
                IndexedContent::Dir(_) | IndexedContent::File(..) | IndexedContent::Link(_) => None,
            })
        })
    }

    pub(crate) fn totals(&self) -> (u64, u64) {
        self.directories
            .values()
            .fold((0, 0), |(files, bytes), d| (files + d.files, u64::saturating_add(bytes, d.bytes)))
    }

    /// The content of the file that had this inode, under any path.
    pub(crate) fn by_inode(&self, inode: u64) -> Option<StoredContent> {
        let map = self
            .by_inode
            .get_or_init(|| self.contents().map(|(look, content)| (look.inode, content)).collect());
        map.get(&inode).copied()
    }

    /// Where the content of a whole file with this id is stored.
    pub(crate) fn by_content(&self, id: &ObjectId) -> Option<ObjectLocation> {
        let map = self.by_content.get_or_init(|| {
            let whole = |(_, content): (StatFingerprint, StoredContent)| match content.layout {
                crate::object::ContentLayout::Whole(at) => Some((at.id, at.place)),
                crate::object::ContentLayout::Empty | crate::object::ContentLayout::List(_) => None,
            };
            self.contents().filter_map(whole).collect()
        });
        map.get(id).copied()
    }

    fn contents(&self) -> impl Iterator<Item = (StatFingerprint, StoredContent)> {
        self.directories.values().flat_map(|directory| self.entries(directory)).filter_map(
            |entry| match entry.known() {
                IndexedContent::File(content, _) => Some((entry.look, content)),
                IndexedContent::Dir(_) | IndexedContent::Link(_) | IndexedContent::Skipped(_) => None,
            },
        )
    }

    fn pack_number(&mut self, pack: PackId) -> u64 {
        self.known_pack(pack).unwrap_or_else(|| {
            self.packs.push(pack);
            self.packs.len() as u64 - 1
        })
    }

    fn known_pack(&self, pack: PackId) -> Option<u64> {
        self.packs.iter().rposition(|known| *known == pack).map(|number| number as u64)
    }
}

impl IndexedDirectory {
    /// Whether a time is so close to the time of reading that equal times do not prove equal content.
    pub(crate) fn is_racy(&self, changed: FileTime) -> bool {
        let tick = if changed.nanos == 0 { SLOW_TICK_NANOS } else { TICK_NANOS };
        nanos(changed) + tick >= nanos(self.seen)
    }
}

fn nanos(time: FileTime) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

/// A directory to record, with its entries sorted by name.
pub(crate) struct DirectoryUpdate<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) look: StatFingerprint,
    pub(crate) seen: FileTime,
    pub(crate) at: ObjectRef,
    pub(crate) entries: &'a [(Vec<u8>, StatFingerprint, IndexedContent)],
}
