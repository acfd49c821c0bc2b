//! Reads snapshots. Every object is checked against its id before it is used.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use super::Repo;
use crate::object::{self, ContentLayout, ContentPiece, ObjectLocation, ObjectRef, StoredContent, TreeNode};
use crate::object_id::{ObjectKind, PackId};
use crate::pack::{BLOCK, UnpackBuffers};
use crate::{Error, FileInfo, RelPath, TreeId};

/// Upper limit for cached unpacked blocks: walks return to the blocks of directories.
const MAX_CACHED_BYTES: usize = 24 << 20;
/// The same limit for all file contents that are being read from a repository, for any number of clients.
const MOST_CACHED_CONTENT: usize = 8 << 20;

pub(super) type BlockKey = (PackId, u32);

/// Called for every entry of a tree, with its path.
type EntryVisitor<'s> = &'s mut dyn FnMut(&[u8], &object::TreeEntry) -> Result<(), Error>;

type ObjectVisitor<'m> = &'m mut dyn FnMut(ObjectKind, &ObjectLocation) -> bool;

/// A tree deeper than any possible path is damaged or hostile.
pub(crate) const MAX_DEPTH: usize = 10_000;

/// A tree with more entries is counted before it is visited: a few directories that contain each other can claim a
/// huge number of entries.
const MANY: u64 = 1 << 16;
pub(crate) const MAX_ENTRIES: u64 = 1 << 24;

/// One entry of a snapshot.
#[derive(Debug)]
pub enum SnapshotEntry {
    /// A file, with a reader of its content.
    File {
        /// Its length in bytes.
        size: u64,
        /// When it was last written, in milliseconds since 1970.
        mtime_ms: i64,
        /// Reads its content.
        content: FileContentReader,
    },
    /// A symbolic link's target, verbatim.
    Link(Vec<u8>),
    /// A folder.
    Dir,
}

/// Reads objects, and caches unpacked blocks for further objects in them.
pub(crate) struct ObjectReader<'r> {
    repo: &'r Repo,
    cached: Mutex<BlockCache>,
    most: usize,
}

#[derive(Default)]
struct BlockCache {
    blocks: HashMap<(PackId, u32), Arc<Vec<u8>>>,
    /// The oldest first.
    order: VecDeque<(PackId, u32)>,
    size: usize,
    unpacking: UnpackBuffers,
}

/// The cache of unpacked blocks that all readers of file contents share. So a client that stops reading holds no
/// block of its own.
#[derive(Default)]
pub(super) struct ContentBlocks(Mutex<BlockCache>);

impl BlockCache {
    fn block(
        &mut self,
        repo: &Repo,
        (pack, number): (PackId, u32),
        most: usize,
    ) -> Result<Arc<Vec<u8>>, Error> {
        if let Some(block) = self.blocks.get(&(pack, number)) {
            return Ok(block.clone());
        }
        self.make_room(BLOCK, most);
        let block = Arc::new(repo.block(pack, number, &mut self.unpacking)?);
        self.size += block.len();
        self.order.push_back((pack, number));
        self.blocks.insert((pack, number), block.clone());
        Ok(block)
    }

    /// Drops the oldest blocks until `length` bytes fit, and reuses their memory.
    fn make_room(&mut self, length: usize, most: usize) {
        while self.size + length > most
            && let Some(oldest) = self.order.pop_front()
        {
            let Some(block) = self.blocks.remove(&oldest) else { continue };
            self.size -= block.len();
            if let Ok(spare) = Arc::try_unwrap(block) {
                self.unpacking.spare = spare;
            }
        }
    }
}

impl ObjectReader<'_> {
    pub(super) fn pack(&self, id: PackId) -> Result<Arc<crate::pack::PackFile>, Error> {
        self.repo.pack(id)
    }

    pub(crate) fn block(&self, pack: PackId, number: u32) -> Result<Arc<Vec<u8>>, Error> {
        let mut cached = self.cached.lock().expect("no code panics while it holds this lock");
        cached.block(self.repo, (pack, number), self.most)
    }

    /// The bytes of an object, not yet checked.
    fn bytes(&self, place: &ObjectLocation) -> Result<Vec<u8>, Error> {
        let block = self.block(place.pack, place.block)?;
        within(&block, place)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| self.damaged(place, "an object outside of its block"))
    }

    pub(crate) fn damaged(&self, place: &ObjectLocation, what: &str) -> Error {
        Error::Damaged { tree: place.pack.to_string(), what: what.to_owned() }
    }

    pub(crate) fn chunk(&self, at: &ObjectRef) -> Result<Vec<u8>, Error> {
        let bytes = self.bytes(&at.place)?;
        self.check(at, &bytes)?;
        Ok(bytes)
    }

    /// Checks that the bytes of a chunk match its id.
    pub(crate) fn check(&self, at: &ObjectRef, bytes: &[u8]) -> Result<(), Error> {
        if self.repo.naming.name(ObjectKind::Chunk, bytes) == at.id {
            return Ok(());
        }
        Err(self.damaged(&at.place, "a content is not what it was"))
    }

    fn logical(&self, sort: ObjectKind, at: &ObjectRef) -> Result<Vec<u8>, Error> {
        let stored = self.bytes(&at.place)?;
        let named = object::split(&stored).map(|(logical, _)| self.repo.naming.name(sort, logical));
        match named {
            Ok(id) if id == at.id => Ok(stored),
            Ok(_) | Err(_) => Err(self.damaged(&at.place, "an object is not what it was")),
        }
    }

    pub(crate) fn directory(&self, at: &ObjectRef) -> Result<Vec<object::TreeEntry>, Error> {
        let stored = self.logical(ObjectKind::Directory, at)?;
        object::decode_directory(&stored, at.place.pack).map_err(|e| self.damaged(&at.place, e.0))
    }

    fn list(&self, at: &ObjectRef, most: u8) -> Result<Vec<ContentPiece>, Error> {
        let stored = self.logical(ObjectKind::List, at)?;
        object::decode_list(&stored, at.place.pack, most).map_err(|e| self.damaged(&at.place, e.0))
    }

    /// The lists of a file, the upper one first.
    pub(crate) fn lists(&self, at: &ObjectRef) -> Result<Vec<ObjectRef>, Error> {
        let below = self.list(at, 1)?.into_iter().filter_map(|piece| match piece {
            ContentPiece::List { at, .. } => Some(at),
            ContentPiece::Zeros { .. } | ContentPiece::Chunk { .. } => None,
        });
        Ok([*at].into_iter().chain(below).collect())
    }

    /// All pieces of a large file, in order.
    pub(crate) fn pieces(&self, at: &ObjectRef) -> Result<Vec<ContentPiece>, Error> {
        let mut pieces = Vec::new();
        for piece in self.list(at, 1)? {
            match piece {
                ContentPiece::Zeros { .. } | ContentPiece::Chunk { .. } => pieces.push(piece),
                ContentPiece::List { length, at } => {
                    let below = self.list(&at, 0)?;
                    if below.iter().try_fold(0u64, |sum, p| sum.checked_add(p.length())) != Some(length) {
                        return Err(self.damaged(&at.place, "a list of another length than it should have"));
                    }
                    pieces.extend(below);
                }
            }
        }
        Ok(pieces)
    }

    /// The pieces of any content. Their lengths must add up to its size.
    pub(crate) fn content(&self, content: &StoredContent) -> Result<Vec<ContentPiece>, Error> {
        match &content.layout {
            ContentLayout::Empty => Ok(Vec::new()),
            ContentLayout::Whole(at) => {
                Ok(vec![ContentPiece::Chunk { length: content.size, at: *at, pre: 0 }])
            }
            ContentLayout::List(at) => {
                let pieces = self.pieces(at)?;
                let size = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length()));
                if size != Some(content.size) {
                    return Err(self.damaged(&at.place, "a file of another size than its content"));
                }
                Ok(pieces)
            }
        }
    }
}

pub(crate) fn within<'b>(block: &'b [u8], place: &ObjectLocation) -> Option<&'b [u8]> {
    let start = place.start as usize;
    block.get(start..start.checked_add(place.length as usize)?)
}

/// Visits a tree in the order of its paths; a directory comes before its content.
pub(crate) fn visit(reader: &ObjectReader<'_>, root: &ObjectRef, see: EntryVisitor<'_>) -> Result<(), Error> {
    let mut levels = vec![(0, root.id, reader.directory(root)?.into_iter())];
    let mut above = HashSet::from([root.id]);
    let mut path: Vec<u8> = Vec::new();
    let mut seen = 0;
    while let Some((length, id, entries)) = levels.last_mut() {
        path.truncate(*length);
        let Some(entry) = entries.next() else {
            above.remove(id);
            levels.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        seen += 1;
        if seen == MANY && count(reader, root)? > MAX_ENTRIES {
            return Err(reader.damaged(&root.place, "more entries than any tree"));
        }
        see(&path, &entry)?;
        if let TreeNode::Dir(at) = &entry.node {
            if levels.len() >= MAX_DEPTH || !above.insert(at.id) {
                return Err(reader.damaged(&at.place, "a directory within itself"));
            }
            levels.push((path.len(), at.id, reader.directory(at)?.into_iter()));
        }
    }
    Ok(())
}

/// Visits everything that a directory refers to. `meet` receives the place of each object, and returns whether to read it
/// for further references; it returns false for objects it has already met.
pub(super) fn follow(
    reader: &ObjectReader<'_>,
    root: ObjectRef,
    meet: ObjectVisitor<'_>,
) -> Result<(), Error> {
    let mut waiting = vec![root];
    while let Some(at) = waiting.pop() {
        if !meet(ObjectKind::Directory, &at.place) {
            continue;
        }
        for entry in reader.directory(&at)? {
            match entry.node {
                TreeNode::Dir(at) => waiting.push(at),
                TreeNode::File(StoredContent { layout: ContentLayout::List(at), .. }) => {
                    follow_list(reader, &at, 1, meet)?
                }
                TreeNode::File(StoredContent { layout: ContentLayout::Whole(at), .. }) => {
                    meet(ObjectKind::Chunk, &at.place);
                }
                TreeNode::File(StoredContent { layout: ContentLayout::Empty, .. }) | TreeNode::Link(_) => {}
            }
        }
    }
    Ok(())
}

fn follow_list(
    reader: &ObjectReader<'_>,
    at: &ObjectRef,
    most: u8,
    meet: ObjectVisitor<'_>,
) -> Result<(), Error> {
    if !meet(ObjectKind::List, &at.place) {
        return Ok(());
    }
    for piece in reader.list(at, most)? {
        match piece {
            ContentPiece::Zeros { .. } => {}
            ContentPiece::Chunk { at, .. } => {
                meet(ObjectKind::Chunk, &at.place);
            }
            // The list must have the lowest level, which contains no further lists.
            ContentPiece::List { at, .. } => follow_list(reader, &at, 0, meet)?,
        }
    }
    Ok(())
}

/// The number of entries of a tree. A directory that occurs several times is read once.
fn count(reader: &ObjectReader<'_>, root: &ObjectRef) -> Result<u64, Error> {
    let open = |at: ObjectRef| -> Result<(ObjectRef, u64, std::vec::IntoIter<ObjectRef>), Error> {
        let entries = reader.directory(&at)?;
        let below = entries.iter().filter_map(|entry| match entry.node {
            TreeNode::Dir(at) => Some(at),
            TreeNode::File(_) | TreeNode::Link(_) => None,
        });
        Ok((at, entries.len() as u64, below.collect::<Vec<_>>().into_iter()))
    };
    let mut counts: HashMap<ObjectRef, u64> = HashMap::new();
    let mut levels = vec![open(*root)?];
    while let Some((at, sum, below)) = levels.last_mut() {
        let Some(next) = below.next() else {
            counts.insert(*at, *sum);
            let whole = *sum;
            levels.pop();
            if let Some((_, above, _)) = levels.last_mut() {
                *above = above.saturating_add(whole);
            }
            continue;
        };
        match counts.get(&next) {
            Some(known) => *sum = sum.saturating_add(*known),
            None if levels.len() > MAX_DEPTH => return Ok(u64::MAX),
            None => levels.push(open(next)?),
        }
    }
    Ok(counts[root])
}

impl Repo {
    pub(crate) fn reader(&self) -> ObjectReader<'_> {
        self.reader_keeping(MAX_CACHED_BYTES)
    }

    /// A reader with a cache of this many bytes of unpacked blocks.
    pub(crate) fn reader_keeping(&self, most: usize) -> ObjectReader<'_> {
        ObjectReader { repo: self, cached: Mutex::default(), most }
    }

    /// The shared cache; it is dropped with its last reader.
    fn content_blocks(&self) -> Arc<ContentBlocks> {
        let mut shared = self.content_blocks.lock().expect("no code panics while it holds this lock");
        if let Some(blocks) = shared.upgrade() {
            return blocks;
        }
        let blocks = Arc::default();
        *shared = Arc::downgrade(&blocks);
        blocks
    }

    /// One of the roots of a tree.
    pub(super) fn find_root(
        &self,
        reader: &ObjectReader<'_>,
        tree: &TreeId,
        name: &str,
    ) -> Result<object::TreeEntry, Error> {
        let roots = reader.directory(&self.root(tree)?)?;
        let found = roots.into_iter().find(|root| root.name == name.as_bytes());
        found.ok_or_else(|| Error::NotFound { path: format!("{name} in snapshot {tree}") })
    }

    pub(super) fn root_at(
        &self,
        reader: &ObjectReader<'_>,
        tree: &TreeId,
        name: &str,
    ) -> Result<ObjectRef, Error> {
        match self.find_root(reader, tree, name)?.node {
            TreeNode::Dir(at) => Ok(at),
            TreeNode::File(_) | TreeNode::Link(_) => {
                Err(Error::Damaged { tree: tree.to_string(), what: "a root that is no directory".to_owned() })
            }
        }
    }

    /// The regular files of one root, sorted by path.
    pub fn list(&self, tree: &TreeId, root: &str) -> Result<Vec<FileInfo>, Error> {
        let reader = self.reader();
        files_of(&reader, &self.root_at(&reader, tree, root)?)
    }

    /// The regular files in one folder of a root, with paths relative to that folder; empty if the folder does not
    /// exist.
    pub fn list_in(&self, tree: &TreeId, root: &str, folder: &RelPath) -> Result<Vec<FileInfo>, Error> {
        let reader = self.reader();
        match self.entry(&reader, (tree, root), folder)?.map(|entry| entry.node) {
            Some(TreeNode::Dir(at)) => files_of(&reader, &at),
            Some(TreeNode::File(_) | TreeNode::Link(_)) | None => Ok(Vec::new()),
        }
    }

    /// One entry of a root, or `None` if the root has no entry at the path.
    pub fn read(
        self: &Arc<Self>,
        tree: &TreeId,
        root: &str,
        path: &RelPath,
    ) -> Result<Option<SnapshotEntry>, Error> {
        let reader = self.reader();
        let Some(found) = self.entry(&reader, (tree, root), path)? else { return Ok(None) };
        let mtime_ms = found.modified.as_millis();
        match found.node {
            TreeNode::Dir(_) => Ok(Some(SnapshotEntry::Dir)),
            TreeNode::Link(target) => Ok(Some(SnapshotEntry::Link(target))),
            TreeNode::File(content) => {
                self.fetch_content(&content)?;
                let pieces = reader.content(&content)?;
                drop(reader);
                let content = FileContentReader::new(self.clone(), pieces);
                // Damage must fail the request, before the response begins.
                content.check_all()?;
                Ok(Some(SnapshotEntry::File { size: content.size, mtime_ms, content }))
            }
        }
    }

    /// The entry at a path. Symbolic links are not followed.
    fn entry(
        &self,
        reader: &ObjectReader<'_>,
        (tree, root): (&TreeId, &str),
        path: &RelPath,
    ) -> Result<Option<object::TreeEntry>, Error> {
        let mut at = self.root_at(reader, tree, root)?;
        let mut names = path.as_bytes().split(|b| *b == b'/').peekable();
        while let Some(name) = names.next() {
            let mut entries = reader.directory(&at)?;
            let Ok(found) = entries.binary_search_by(|entry| entry.name.as_slice().cmp(name)) else {
                return Ok(None);
            };
            let found = entries.swap_remove(found);
            match (&found.node, names.peek().is_some()) {
                (TreeNode::Dir(below), true) => at = *below,
                (TreeNode::File(_) | TreeNode::Link(_), true) => return Ok(None),
                (TreeNode::Dir(_) | TreeNode::File(_) | TreeNode::Link(_), false) => return Ok(Some(found)),
            }
        }
        Ok(None)
    }
}

fn files_of(reader: &ObjectReader<'_>, root: &ObjectRef) -> Result<Vec<FileInfo>, Error> {
    let mut files = Vec::new();
    visit(reader, root, &mut |path, entry| {
        if let TreeNode::File(content) = &entry.node {
            let (size, mtime_ms) = (content.size, entry.modified.as_millis());
            files.push(FileInfo { path: path.to_vec(), size, mtime_ms });
        }
        Ok(())
    })?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Reads the content of a file in parts. The content was checked as a whole before, and is checked again while it is
/// read.
pub struct FileContentReader {
    repo: Arc<Repo>,
    pieces: std::vec::IntoIter<ContentPiece>,
    size: u64,
    now: CurrentPiece,
    blocks: Arc<ContentBlocks>,
}

enum CurrentPiece {
    Zeros(u64),
    Bytes(Vec<u8>, usize),
}

impl FileContentReader {
    fn new(repo: Arc<Repo>, pieces: Vec<ContentPiece>) -> FileContentReader {
        let size = pieces.iter().map(ContentPiece::length).sum();
        let blocks = repo.content_blocks();
        FileContentReader { repo, pieces: pieces.into_iter(), size, now: CurrentPiece::Zeros(0), blocks }
    }

    fn check_all(&self) -> Result<(), Error> {
        self.pieces.as_slice().iter().try_for_each(|piece| match piece {
            ContentPiece::Chunk { at, .. } => self.chunk(at).map(drop),
            ContentPiece::Zeros { .. } | ContentPiece::List { .. } => Ok(()),
        })
    }

    fn chunk(&self, at: &ObjectRef) -> Result<Vec<u8>, Error> {
        let reader = self.repo.reader();
        let key = (at.place.pack, at.place.block);
        let mut cached = self.blocks.0.lock().expect("no code panics while it holds this lock");
        let block = cached.block(&self.repo, key, MOST_CACHED_CONTENT)?;
        drop(cached);
        let bytes = within(&block, &at.place);
        let bytes =
            bytes.ok_or_else(|| reader.damaged(&at.place, "an object outside of its block"))?.to_vec();
        reader.check(at, &bytes)?;
        Ok(bytes)
    }

    fn refill(&mut self) -> io::Result<bool> {
        let Some(piece) = self.pieces.next() else { return Ok(false) };
        self.now = match piece {
            ContentPiece::Zeros { length } => CurrentPiece::Zeros(length),
            ContentPiece::Chunk { at, .. } => {
                CurrentPiece::Bytes(self.chunk(&at).map_err(io::Error::other)?, 0)
            }
            ContentPiece::List { .. } => return Err(io::Error::other("lists are flat here")),
        };
        Ok(true)
    }
}

impl io::Read for FileContentReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match &mut self.now {
                CurrentPiece::Zeros(left) => {
                    let count = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    buffer[..count].fill(0);
                    *left -= count as u64;
                    count
                }
                CurrentPiece::Bytes(bytes, at) => {
                    let count = buffer.len().min(bytes.len() - *at);
                    buffer[..count].copy_from_slice(&bytes[*at..*at + count]);
                    *at += count;
                    count
                }
            };
            if read > 0 || buffer.is_empty() || !self.refill()? {
                return Ok(read);
            }
        }
    }
}

impl std::fmt::Debug for FileContentReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileContent").field("size", &self.size).finish_non_exhaustive()
    }
}
