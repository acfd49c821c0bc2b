//! Verifies that snapshots are complete: that everything they need exists, and optionally that every byte is as it
//! was written.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::Repo;
use super::read::{MAX_DEPTH, MAX_ENTRIES, ObjectReader};
use crate::object::{ContentLayout, ContentPiece, ObjectRef, StoredContent, TreeNode};
use crate::object_id::{ObjectId, PackId};
use crate::pack::BlockEncoding;
use crate::{Error, SnapshotErrorKind, TreeId};

/// How much to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyDepth {
    /// Read directories and lists; check only that contents exist.
    Structure,
    /// Read every byte.
    Data,
}

/// The damage of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedSnapshot {
    /// The id of the snapshot.
    pub tree: TreeId,
    /// The first faults found; one damaged block may affect many files.
    pub what: Vec<String>,
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Snapshots that were verified.
    pub trees: u64,
    /// Objects that were verified.
    pub objects: u64,
    /// Snapshots that cannot be restored, and why.
    pub damaged: Vec<DamagedSnapshot>,
    /// Blocks with at least one bit that is not as it was written. Their objects may be intact, because not every bit
    /// of a zstd frame matters. But the disk is then no longer reliable.
    pub altered_blocks: Vec<String>,
    /// Snapshots with parts that are only in the remote store, where they were not verified.
    pub remote: u64,
}

/// Upper limit for reported faults per snapshot.
const MAX_FAULTS_TOLD: usize = 20;

impl Repo {
    /// Reads everything of one snapshot and checks every hash.
    pub fn verify(&self, tree: &TreeId) -> Result<(), Error> {
        let reader = self.reader();
        let mut verifying = SnapshotVerifier::new(&reader, VerifyDepth::Data);
        verifying.tree(self, tree)?;
        match verifying.faults.pop() {
            Some((_, what)) => Err(Error::Damaged { tree: tree.to_string(), what }),
            None => Ok(()),
        }
    }

    /// Verifies all these snapshots; shared objects are verified once.
    pub fn verify_all(
        &self,
        trees: &[TreeId],
        depth: VerifyDepth,
        progress: &mut dyn FnMut(usize),
    ) -> Result<VerifyReport, Error> {
        let reader = self.reader();
        let mut verifying = SnapshotVerifier::new(&reader, depth);
        if self.remote_cache.is_none() {
            verifying.remote = self.remote_packs()?;
        }
        let mut verified = VerifyReport::default();
        for (number, tree) in trees.iter().enumerate() {
            progress(number);
            verified.trees += 1;
            verifying.met_remote = false;
            let done = verifying.tree(self, tree);
            let what = match done {
                Err(Error::Damaged { tree: pack, .. }) if verifying.is_remote(&pack) => Vec::new(),
                Ok(()) => verifying.faults.drain(..).map(|(path, what)| told(&path, &what)).collect(),
                Err(error) if error.kind() == SnapshotErrorKind::Damaged => vec![error.to_string()],
                Err(error) => return Err(error),
            };
            verifying.faults.clear();
            verified.remote += u64::from(verifying.met_remote);
            if !Vec::is_empty(&what) {
                verified.damaged.push(DamagedSnapshot { tree: tree.clone(), what });
            }
        }
        verified.objects = verifying.sound.len() as u64;
        if depth == VerifyDepth::Data {
            verified.altered_blocks = verifying.marred()?;
        }
        Ok(verified)
    }
}

fn told(path: &[u8], what: &str) -> String {
    format!("{}: {what}", String::from_utf8_lossy(path))
}

/// A chunk to verify, and the path that needs it.
type PendingChunk = (ObjectRef, Vec<u8>);

struct SnapshotVerifier<'v> {
    reader: &'v ObjectReader<'v>,
    depth: VerifyDepth,
    /// Objects that are intact, with everything beneath them. The key includes the place, because only one of two
    /// copies may be damaged.
    sound: HashSet<ObjectRef>,
    /// Directories of the current snapshot. They are intact if the snapshot has no faults.
    entered: HashSet<ObjectRef>,
    /// The number of entries beneath each directory.
    counts: HashMap<ObjectRef, u64>,
    faults: Vec<(Vec<u8>, String)>,
    /// Chunks still to be read, by block, so that each block is unpacked once.
    waiting: BTreeMap<(PackId, u32), Vec<PendingChunk>>,
    /// Blocks that were read.
    blocks: HashSet<(PackId, u32)>,
    /// Packs that only the remote store has.
    remote: BTreeSet<String>,
    /// Whether the current snapshot needs one of these.
    met_remote: bool,
}

impl<'v> SnapshotVerifier<'v> {
    fn new(reader: &'v ObjectReader<'v>, depth: VerifyDepth) -> SnapshotVerifier<'v> {
        let (sound, entered, counts) = (HashSet::new(), HashSet::new(), HashMap::new());
        SnapshotVerifier {
            reader,
            depth,
            sound,
            entered,
            counts,
            faults: Vec::new(),
            waiting: BTreeMap::new(),
            blocks: HashSet::new(),
            remote: BTreeSet::new(),
            met_remote: false,
        }
    }

    fn tree(&mut self, repo: &Repo, tree: &TreeId) -> Result<(), Error> {
        self.entered.clear();
        self.waiting.clear();
        let pack = repo.pack(tree.pack())?;
        let root = repo.root(tree)?;
        for note in &pack.table.notes {
            let mut at = note.at;
            at.place.pack = pack.id;
            self.waiting.entry((pack.id, at.place.block)).or_default().push((at, note.name.clone()));
        }
        self.directories(&root)?;
        self.chunks()?;
        // Directories of a faulty snapshot are verified again for each further snapshot that contains them.
        if self.faults.is_empty() && !self.met_remote {
            self.sound.extend(self.entered.drain());
        }
        Ok(())
    }

    /// Iterative instead of recursive, because a tree may be deep.
    fn directories(&mut self, root: &ObjectRef) -> Result<(), Error> {
        // Once a directory was entered: the number of its entries, and its subdirectories.
        type Entered = Option<(u64, Vec<ObjectRef>)>;
        let mut levels: Vec<(ObjectRef, Vec<u8>, Entered)> = vec![(*root, Vec::new(), None)];
        let mut above: HashSet<ObjectId> = HashSet::new();
        while let Some((at, path, entered)) = levels.pop() {
            if let Some((own, below)) = entered {
                above.remove(&at.id);
                self.entered.insert(at);
                self.count(at, own, &below);
                continue;
            }
            if self.sound.contains(&at) || self.entered.contains(&at) {
                continue;
            }
            if above.len() > MAX_DEPTH {
                self.fault(&path, "it is deeper than any path".to_owned());
                continue;
            }
            if !above.insert(at.id) {
                self.fault(&path, "a directory within itself".to_owned());
                continue;
            }
            let Some(entries) = self.found(&path, self.reader.directory(&at))? else {
                above.remove(&at.id);
                continue;
            };
            self.blocks.insert((at.place.pack, at.place.block));
            let below = entries.iter().filter_map(|entry| match entry.node {
                TreeNode::Dir(at) => Some(at),
                TreeNode::File(_) | TreeNode::Link(_) => None,
            });
            levels.push((at, path.clone(), Some((entries.len() as u64, below.collect()))));
            for entry in entries {
                let path = [&path, &b"/"[..], &entry.name].concat();
                match entry.node {
                    TreeNode::Dir(at) => levels.push((at, path, None)),
                    TreeNode::File(_) | TreeNode::Link(_) if above.len() == 1 => {
                        self.fault(&path, "a root that is no directory".to_owned());
                    }
                    TreeNode::File(content) => self.file(&path, &content)?,
                    TreeNode::Link(_) => {}
                }
            }
        }
        if self.counts.get(root).is_some_and(|count| *count > MAX_ENTRIES) {
            self.fault(b"", "it has more entries than any tree".to_owned());
        }
        Ok(())
    }

    fn count(&mut self, at: ObjectRef, own: u64, below: &[ObjectRef]) {
        let counts = below.iter().map(|at| self.counts.get(at).copied().unwrap_or(0));
        let count = counts.fold(own, u64::saturating_add);
        self.counts.insert(at, count);
    }

    fn file(&mut self, path: &[u8], content: &StoredContent) -> Result<(), Error> {
        let Some(at) = content.layout.object().filter(|at| !self.sound.contains(at)) else {
            return Ok(());
        };
        if let ContentLayout::Whole(_) = content.layout {
            return self.chunk(path, at);
        }
        let faults = self.faults.len();
        let Some(pieces) = self.found(path, self.reader.content(content))? else { return Ok(()) };
        for list in self.reader.lists(at)? {
            self.blocks.insert((list.place.pack, list.place.block));
        }
        for piece in &pieces {
            if let ContentPiece::Chunk { at, .. } = piece {
                self.chunk(path, at)?;
            }
        }
        if self.faults.len() == faults && self.depth == VerifyDepth::Structure {
            self.sound.insert(*at);
        }
        Ok(())
    }

    fn chunk(&mut self, path: &[u8], at: &ObjectRef) -> Result<(), Error> {
        if self.sound.contains(at) {
            return Ok(());
        }
        match self.depth {
            VerifyDepth::Data => {
                let key = (at.place.pack, at.place.block);
                self.waiting.entry(key).or_default().push((*at, path.to_vec()));
            }
            VerifyDepth::Structure => {
                let there = self.reader.is_there(&at.place);
                if self.found(path, there)?.is_some() {
                    self.sound.insert(*at);
                }
            }
        }
        Ok(())
    }

    fn chunks(&mut self) -> Result<(), Error> {
        for (block, chunks) in std::mem::take(&mut self.waiting) {
            self.blocks.insert(block);
            for (at, path) in chunks {
                if !self.sound.contains(&at) && self.found(&path, self.reader.chunk(&at))?.is_some() {
                    self.sound.insert(at);
                }
            }
        }
        Ok(())
    }

    /// Blocks with a changed bit, whether or not that bit affects an object.
    fn marred(&self) -> Result<Vec<String>, Error> {
        let mut marred = Vec::new();
        let blocks: BTreeSet<(PackId, u32)> = self.blocks.iter().copied().collect();
        for (pack, block) in blocks {
            match self.reader.pack(pack).and_then(|pack| pack.is_as_written(block)) {
                Ok(()) => {}
                Err(error) if error.kind() == SnapshotErrorKind::Damaged => {
                    marred.push(format!("pack {pack}: block {block} is not as it was written"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(marred)
    }

    /// Records damage as a fault; any other error ends the verification.
    fn found<T>(&mut self, path: &[u8], found: Result<T, Error>) -> Result<Option<T>, Error> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Error::Damaged { tree, .. }) if self.is_remote(&tree) => Ok(None),
            Err(Error::Damaged { tree, what }) => {
                self.fault(path, format!("pack {tree}: {what}"));
                Ok(None)
            }
            Err(error) if error.kind() == SnapshotErrorKind::Damaged => {
                self.fault(path, error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_remote(&mut self, pack: &str) -> bool {
        let is = self.remote.contains(pack);
        self.met_remote |= is;
        is
    }

    fn fault(&mut self, path: &[u8], what: String) {
        if self.faults.len() < MAX_FAULTS_TOLD {
            self.faults.push((path.to_vec(), what));
        }
    }
}

impl ObjectReader<'_> {
    fn is_there(&self, place: &crate::object::ObjectLocation) -> Result<(), Error> {
        let pack = self.pack(place.pack)?;
        let block = pack.table.blocks.get(place.block as usize);
        let end = u64::from(place.start) + u64::from(place.length);
        match block {
            Some(block) if block.how != BlockEncoding::Dropped && end <= u64::from(block.raw) => Ok(()),
            Some(_) | None => Err(pack.damaged("a block is not there")),
        }
    }
}
