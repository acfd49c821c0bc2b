//! Builds the tree from what the walk found: changed directories become new objects, from the leaves up; all others
//! are reused.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::visit::ChangedDirectory;
use super::walk::{HardLinkName, WalkFindings};
use super::{CaptureReport, CaptureRequest, SkipReason};
use crate::folder::FileTime;
use crate::index::{CaptureIndex, DirectoryUpdate, IndexedContent, StatFingerprint};
use crate::object::{ObjectLocation, ObjectRef, TreeEntry, TreeNode, Xattrs, encode_directory};
use crate::object_id::{ObjectKind, PackId};
use crate::pack::{BlockWriter, LARGEST_BLOCK, PackWriter};
use crate::repo::Repo;
use crate::{Error, TreeId};

pub(super) struct BuiltTree {
    pub(super) root: ObjectRef,
    pub(super) report: CaptureReport,
    directories: Vec<BuiltDirectory>,
    gone: Vec<Vec<u8>>,
}

struct BuiltDirectory {
    path: Vec<u8>,
    look: StatFingerprint,
    seen: FileTime,
    at: ObjectRef,
    entries: Vec<(Vec<u8>, StatFingerprint, IndexedContent)>,
}

impl BuiltTree {
    /// Replaces references to the unnamed pack with its name, so that they are valid outside the pack.
    pub(super) fn lies_in(&mut self, pack: PackId) {
        let settle = |place: &mut ObjectLocation| {
            if place.pack == PackId::SELF {
                place.pack = pack;
            }
        };
        for directory in &mut self.directories {
            settle(&mut directory.at.place);
            for (_, _, known) in &mut directory.entries {
                if let IndexedContent::File(content, _) = known
                    && let crate::object::ContentLayout::Whole(at) | crate::object::ContentLayout::List(at) =
                        &mut content.layout
                {
                    settle(&mut at.place);
                }
            }
        }
    }

    pub(super) fn remember(&self, index: &mut CaptureIndex, path: &Path, tree: &TreeId) {
        let changed: Vec<DirectoryUpdate<'_>> = self
            .directories
            .iter()
            .map(|BuiltDirectory { path, look, seen, at, entries }| DirectoryUpdate {
                path,
                look: *look,
                seen: *seen,
                at: *at,
                entries,
            })
            .collect();
        index.update(path, &self.gone, &changed, tree);
    }
}

struct TreeBuilder<'b> {
    repo: &'b Repo,
    index: &'b CaptureIndex,
    seen: FileTime,
    failed: HashMap<Vec<u8>, SkipReason>,
    /// Directories that are too large to be stored.
    too_large: Vec<(Vec<u8>, SkipReason)>,
    /// Group numbers of hard-linked files, by directory and name.
    groups: HashMap<Vec<u8>, HashMap<Vec<u8>, u64>>,
    built: HashMap<Vec<u8>, (ObjectRef, StatFingerprint, Xattrs)>,
    done: Vec<BuiltDirectory>,
}

/// The attributes of a directory that was rebuilt.
type RebuiltAttributes<'n> = Option<(&'n StatFingerprint, &'n Xattrs)>;

/// Ordered by depth, then by path: in reverse, children come before their parents.
type BuildQueue = BTreeMap<(usize, Vec<u8>), Option<ChangedDirectory>>;

pub(super) fn build(
    repo: &Repo,
    capture: &CaptureRequest<'_>,
    index: &CaptureIndex,
    packing: &PackWriter<'_>,
    found: WalkFindings,
    seen: FileTime,
) -> Result<BuiltTree, Error> {
    let WalkFindings { visits, failed, gone, names, mut report } = found;
    for (path, why) in &failed {
        report.skip(path.clone(), why.clone());
    }
    let groups = groups(names, &mut report);
    if let Some(touched) = capture.tracking.checked().filter(|_| index.base().is_some()) {
        let unknown = visits.iter().filter(|visit| visit.differs && !is_covered(&visit.path, touched));
        report.missed = unknown.map(|visit| visit.path.clone()).collect();
    }
    let mut work = BuildQueue::new();
    for visit in visits {
        let place = work.entry(key(&visit.path)).or_insert(None);
        if place.as_ref().is_none_or(|other| other.reach < visit.reach) {
            *place = Some(visit);
        }
    }
    let touched: Vec<Vec<u8>> = failed.keys().filter_map(|path| parent(path)).collect();
    let regrouped = groups.keys().filter(|path| is_regrouped(index, path, &groups[*path])).cloned();
    for path in touched.into_iter().chain(regrouped) {
        work.entry(key(&path)).or_insert(None);
    }
    add_parents(&mut work);
    let mut building = TreeBuilder {
        repo,
        index,
        seen,
        failed,
        too_large: Vec::new(),
        groups,
        built: HashMap::new(),
        done: Vec::new(),
    };
    let mut blocks = packing.blocks();
    while let Some(((_, path), visit)) = work.pop_last() {
        building.directory(&mut blocks, path, visit)?;
    }
    let root = building.top(&mut blocks, capture)?;
    blocks.flush()?;
    building.too_large.into_iter().for_each(|(path, why)| report.skip(path, why));
    Ok(BuiltTree { root, report, directories: building.done, gone })
}

fn key(path: &[u8]) -> (usize, Vec<u8>) {
    (path.iter().filter(|b| **b == b'/').count(), path.to_vec())
}

fn parent(path: &[u8]) -> Option<Vec<u8>> {
    path.iter().rposition(|b| *b == b'/').map(|slash| path[..slash].to_vec())
}

/// Whether the tracking reported a change in this directory.
fn is_covered(path: &[u8], touched: &super::TouchedFolders) -> bool {
    let whole = |path: &[u8]| touched.get(path) == Some(&crate::TouchedNames::All);
    let mut above = Some(path.to_vec());
    while let Some(path) = above {
        if whole(&path) {
            return true;
        }
        above = parent(&path);
    }
    touched.contains_key(path)
}

/// Adds all parents of changed directories, because their entries change too.
fn add_parents(work: &mut BuildQueue) {
    let paths: Vec<Vec<u8>> = work.keys().map(|(_, path)| path.clone()).collect();
    for path in paths {
        let mut above = parent(&path);
        while let Some(path) = above {
            above = parent(&path);
            let std::collections::btree_map::Entry::Vacant(place) = work.entry(key(&path)) else { break };
            place.insert(None);
        }
    }
}

/// Group numbers for files with several hard links in the tree. A number is derived from the first path, so that it
/// does not depend on where the tree is. A file whose other links are outside the tree has none.
fn groups(names: Vec<HardLinkName>, report: &mut CaptureReport) -> HashMap<Vec<u8>, HashMap<Vec<u8>, u64>> {
    let mut files: HashMap<(Vec<u8>, u64), Vec<HardLinkName>> = HashMap::new();
    for name in names {
        let root = name.folder.split(|b| *b == b'/').next().unwrap_or_default().to_vec();
        files.entry((root, name.inode)).or_default().push(name);
    }
    let mut groups: HashMap<Vec<u8>, HashMap<Vec<u8>, u64>> = HashMap::new();
    for mut names in files.into_values() {
        names.sort_by(|a, b| (&a.folder, &a.name).cmp(&(&b.folder, &b.name)));
        names.dedup_by(|a, b| (&a.folder, &a.name) == (&b.folder, &b.name));
        let number = if names.len() == 1 { 0 } else { number(&names[0]) };
        for (n, name) in names.into_iter().enumerate() {
            if n > 0 {
                report.twice = (report.twice.0 + 1, report.twice.1 + name.size);
            }
            groups.entry(name.folder).or_default().insert(name.name, number);
        }
    }
    groups
}

fn number(first: &HardLinkName) -> u64 {
    let path = [&first.folder, &b"/"[..], &first.name].concat();
    let hash = blake3::hash(&path);
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(bytes).max(1)
}

/// Whether an otherwise unchanged file gained or lost a hard link.
fn is_regrouped(index: &CaptureIndex, path: &[u8], groups: &HashMap<Vec<u8>, u64>) -> bool {
    let Some(directory) = index.get(path) else { return false };
    index.entries(directory).any(|entry| match (groups.get(entry.name), entry.look.linked) {
        (Some(number), true) => {
            matches!(entry.known(), IndexedContent::File(content, _) if content.group != *number)
        }
        (Some(_), false) | (None, _) => false,
    })
}

impl TreeBuilder<'_> {
    fn directory(
        &mut self,
        blocks: &mut BlockWriter<'_, '_>,
        path: Vec<u8>,
        visit: Option<ChangedDirectory>,
    ) -> Result<(), Error> {
        if self.failed.contains_key(&path) {
            return Ok(());
        }
        let known = self.index.get(&path);
        let (look, xattrs, mut entries, seen) = match (visit, known) {
            (Some(visit), _) => {
                let entries = visit.entries.into_iter().map(|(name, slot)| {
                    let (look, known) = slot.into_seen();
                    (name, look, known)
                });
                (visit.look, Some(visit.xattrs), entries.collect::<Vec<_>>(), self.seen)
            }
            (None, Some(known)) => {
                let entries = self.index.entries(known).map(|e| (e.name.to_vec(), e.look, e.known()));
                (known.look, None, entries.collect(), known.seen)
            }
            // A root has no parent in the tree.
            (None, None) => return Ok(()),
        };
        let objects = self.objects(&path, &mut entries);
        let encoded = encode_directory(&objects);
        if encoded.stored.len() > LARGEST_BLOCK as usize {
            let why = SkipReason::Unreadable("it has more names than can be restored".to_owned());
            self.too_large.push((path.clone(), why.clone()));
            self.failed.insert(path, why);
            return Ok(());
        }
        let id = self.repo.naming.name(ObjectKind::Directory, encoded.logical());
        let at = match known {
            Some(known) if known.at.id == id => known.at,
            Some(_) | None => ObjectRef { id, place: blocks.add(&encoded.stored)? },
        };
        let xattrs = xattrs.unwrap_or_else(|| self.known_xattrs(&path));
        self.built.insert(path.clone(), (at, look, xattrs));
        self.done.push(BuiltDirectory { path, look, seen, at, entries });
        Ok(())
    }

    /// The index keeps a directory's extended attributes with its entry in the parent directory.
    fn known_xattrs(&self, path: &[u8]) -> Xattrs {
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let above = parent(path).and_then(|above| self.index.get(&above));
        let entry = above.and_then(|above| self.index.entries(above).find(|entry| entry.name == name));
        match entry.map(|entry| entry.known()) {
            Some(IndexedContent::Dir(xattrs)) => xattrs,
            Some(IndexedContent::File(..) | IndexedContent::Link(_) | IndexedContent::Skipped(_)) | None => {
                Vec::new()
            }
        }
    }

    /// The entries in stored form. Also adds to `entries` what the walk found out about subdirectories after it had
    /// listed them.
    fn objects(
        &self,
        path: &[u8],
        entries: &mut [(Vec<u8>, StatFingerprint, IndexedContent)],
    ) -> Vec<TreeEntry> {
        let groups = self.groups.get(path);
        let mut objects = Vec::with_capacity(entries.len());
        for (name, look, known) in entries {
            if let IndexedContent::File(content, _) = known {
                content.group = groups.and_then(|groups| groups.get(name.as_slice())).copied().unwrap_or(0);
            }
            let node = match &*known {
                IndexedContent::File(content, _) => TreeNode::File(*content),
                IndexedContent::Link(target) => TreeNode::Link(target.clone()),
                IndexedContent::Skipped(_) => continue,
                IndexedContent::Dir(_) => match self.below(path, name) {
                    Ok((at, news)) => {
                        if let Some((now, xattrs)) = news {
                            *look = *now;
                            *known = IndexedContent::Dir(xattrs.clone());
                        }
                        TreeNode::Dir(at)
                    }
                    Err(why) => {
                        *known = IndexedContent::Skipped(why);
                        continue;
                    }
                },
            };
            objects.push(object(name, look, known, node));
        }
        objects
    }

    /// A subdirectory: its place, and its attributes if it was rebuilt.
    fn below(&self, path: &[u8], name: &[u8]) -> Result<(ObjectRef, RebuiltAttributes<'_>), SkipReason> {
        let path = [path, b"/", name].concat();
        if let Some((at, look, xattrs)) = self.built.get(&path) {
            return Ok((*at, Some((look, xattrs))));
        }
        match (self.failed.get(&path), self.index.get(&path)) {
            (Some(why), _) => Err(why.clone()),
            (None, Some(known)) => Ok((known.at, None)),
            (None, None) => Err(SkipReason::Gone),
        }
    }

    fn top(
        &self,
        blocks: &mut BlockWriter<'_, '_>,
        capture: &CaptureRequest<'_>,
    ) -> Result<ObjectRef, Error> {
        let mut roots = Vec::new();
        for root in capture.roots {
            let name = root.name.as_bytes();
            // A subdirectory that could not be read must not be reused from the index.
            if let Some(why) = self.failed.get(name) {
                let (path, why) = (root.name.to_owned(), why.to_string());
                return Err(Error::Unreadable { path, why });
            }
            let (at, modified) = match (self.built.get(name), self.index.get(name)) {
                (Some((at, look, _)), _) => (*at, look.modified),
                (None, Some(known)) => (known.at, known.look.modified),
                (None, None) => {
                    let (path, why) = (root.name.to_owned(), SkipReason::Gone.to_string());
                    return Err(Error::Unreadable { path, why });
                }
            };
            let (name, node) = (name.to_vec(), TreeNode::Dir(at));
            // The owner of a root decides its mode.
            roots.push(TreeEntry { name, mode: 0, modified, node, xattrs: Vec::new() });
        }
        roots.sort_by(|a, b| a.name.cmp(&b.name));
        let encoded = encode_directory(&roots);
        let id = self.repo.naming.name(ObjectKind::Directory, encoded.logical());
        if let Some(base) = self.index.base().filter(|base| base.is_of(&id)) {
            return self.repo.root(base);
        }
        Ok(ObjectRef { id, place: blocks.add(&encoded.stored)? })
    }
}

fn object(name: &[u8], look: &StatFingerprint, known: &IndexedContent, node: TreeNode) -> TreeEntry {
    let (mode, xattrs) = match known {
        IndexedContent::Dir(xattrs) => (look.mode & 0o1777, xattrs.clone()),
        IndexedContent::File(_, xattrs) => (look.mode & 0o777, xattrs.clone()),
        IndexedContent::Link(_) | IndexedContent::Skipped(_) => (0, Vec::new()),
    };
    TreeEntry { name: name.to_vec(), mode, modified: look.modified, node, xattrs }
}
