//! Proving that snapshots are whole: that everything they need is there, and, if asked, that every byte is what
//! it was.

use std::collections::{BTreeMap, HashSet};

use super::Repo;
use super::read::Reader;
use crate::id::{Id, PackId};
use crate::object::{Content, Layout, Node, Piece, Ref};
use crate::pack::How;
use crate::{Error, TreeId};

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Directories and lists are read; of contents, that they are there.
    Structure,
    /// Every byte.
    Data,
}

/// What is wrong with one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hurt {
    pub tree: TreeId,
    /// The first things found; one damaged block may hurt many files.
    pub what: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    pub trees: u64,
    pub objects: u64,
    pub hurt: Vec<Hurt>,
}

/// Of one snapshot so many faults are told.
const MOST_TOLD: usize = 20;

impl Repo {
    /// Reads everything of one snapshot and checks every hash.
    pub fn verify(&self, tree: &TreeId) -> Result<(), Error> {
        let reader = self.reader();
        let mut verifying = Verifying::new(&reader, Depth::Data);
        verifying.tree(self, tree)?;
        match verifying.faults.pop() {
            Some((_, what)) => Err(Error::Damaged { tree: tree.to_string(), what }),
            None => Ok(()),
        }
    }

    /// Looks at all these snapshots; what they share is looked at once.
    pub fn verify_all(
        &self,
        trees: &[TreeId],
        depth: Depth,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Verified, Error> {
        let reader = self.reader();
        let mut verifying = Verifying::new(&reader, depth);
        let mut verified = Verified::default();
        for (number, tree) in trees.iter().enumerate() {
            progress(number);
            verified.trees += 1;
            let what = match verifying.tree(self, tree) {
                Ok(()) => verifying.faults.drain(..).map(|(path, what)| told(&path, &what)).collect(),
                Err(error @ Error::Damaged { .. }) => vec![error.to_string()],
                Err(error) => return Err(error),
            };
            verifying.faults.clear();
            if !Vec::is_empty(&what) {
                verified.hurt.push(Hurt { tree: tree.clone(), what });
            }
        }
        verified.objects = verifying.sound.len() as u64;
        Ok(verified)
    }
}

fn told(path: &[u8], what: &str) -> String {
    format!("{}: {what}", String::from_utf8_lossy(path))
}

struct Verifying<'v> {
    reader: &'v Reader<'v>,
    depth: Depth,
    /// Objects that were found whole, with all beneath them.
    sound: HashSet<Id>,
    faults: Vec<(Vec<u8>, String)>,
    /// Chunks that are still to be read, by where they lie: a block is unpacked once.
    waiting: BTreeMap<(PackId, u32), Vec<(Ref, Vec<u8>)>>,
}

impl<'v> Verifying<'v> {
    fn new(reader: &'v Reader<'v>, depth: Depth) -> Verifying<'v> {
        let (sound, faults, waiting) = (HashSet::new(), Vec::new(), BTreeMap::new());
        Verifying { reader, depth, sound, faults, waiting }
    }

    fn tree(&mut self, repo: &Repo, tree: &TreeId) -> Result<(), Error> {
        let pack = repo.pack(tree.pack())?;
        let root = repo.root(tree)?;
        for note in &pack.table.notes {
            let mut at = note.at;
            at.place.pack = pack.id;
            self.waiting.entry((pack.id, at.place.block)).or_default().push((at, note.name.clone()));
        }
        self.directories(&root)?;
        self.chunks()
    }

    /// Not by recursion: a tree may be deep.
    fn directories(&mut self, root: &Ref) -> Result<(), Error> {
        let mut levels = vec![(*root, Vec::new(), false)];
        let mut above: HashSet<Id> = HashSet::new();
        while let Some((at, path, entered)) = levels.pop() {
            if entered {
                above.remove(&at.id);
                // With faults in it, it is looked at again for the next snapshot that has it.
                if self.faults.is_empty() {
                    self.sound.insert(at.id);
                }
                continue;
            }
            if self.sound.contains(&at.id) {
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
            levels.push((at, path.clone(), true));
            for entry in entries {
                let path = [&path, &b"/"[..], &entry.name].concat();
                match entry.node {
                    Node::Dir(at) => levels.push((at, path, false)),
                    Node::File(content) => self.file(&path, &content)?,
                    Node::Link(_) => {}
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], content: &Content) -> Result<(), Error> {
        let Some(at) = content.layout.object().filter(|at| !self.sound.contains(&at.id)) else {
            return Ok(());
        };
        if let Layout::Whole(_) = content.layout {
            return self.chunk(path, at);
        }
        let faults = self.faults.len();
        let Some(pieces) = self.found(path, self.reader.content(content))? else { return Ok(()) };
        for piece in &pieces {
            if let Piece::Chunk { at, .. } = piece {
                self.chunk(path, at)?;
            }
        }
        if self.faults.len() == faults && self.depth == Depth::Structure {
            self.sound.insert(at.id);
        }
        Ok(())
    }

    fn chunk(&mut self, path: &[u8], at: &Ref) -> Result<(), Error> {
        if self.sound.contains(&at.id) {
            return Ok(());
        }
        match self.depth {
            Depth::Data => {
                let key = (at.place.pack, at.place.block);
                self.waiting.entry(key).or_default().push((*at, path.to_vec()));
            }
            Depth::Structure => {
                let there = self.reader.is_there(&at.place);
                if self.found(path, there)?.is_some() {
                    self.sound.insert(at.id);
                }
            }
        }
        Ok(())
    }

    fn chunks(&mut self) -> Result<(), Error> {
        for (_, chunks) in std::mem::take(&mut self.waiting) {
            for (at, path) in chunks {
                if !self.sound.contains(&at.id) && self.found(&path, self.reader.chunk(&at))?.is_some() {
                    self.sound.insert(at.id);
                }
            }
        }
        Ok(())
    }

    /// What is damaged is noted; what cannot be read for other reasons stops us.
    fn found<T>(&mut self, path: &[u8], found: Result<T, Error>) -> Result<Option<T>, Error> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Error::Damaged { tree, what }) => {
                self.fault(path, format!("pack {tree}: {what}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn fault(&mut self, path: &[u8], what: String) {
        if self.faults.len() < MOST_TOLD {
            self.faults.push((path.to_vec(), what));
        }
    }
}

impl Reader<'_> {
    fn is_there(&self, place: &crate::object::Place) -> Result<(), Error> {
        let pack = self.pack(place.pack)?;
        let block = pack.table.blocks.get(place.block as usize);
        let end = u64::from(place.start) + u64::from(place.length);
        match block {
            Some(block) if block.how != How::Dropped && end <= u64::from(block.raw) => Ok(()),
            Some(_) | None => Err(pack.damaged("a block is not there")),
        }
    }
}
