//! Compares a tree with a folder: both have the same order, so one walk through both finds every difference.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::Repo;
use super::read::ObjectReader;
use crate::chunker::is_zero;
use crate::folder::{DirectoryWalker, FileAttributes, FileTime, WalkerEvent, open_to_read, xattrs};
use crate::object::{ContentPiece, StoredContent, TreeEntry, TreeNode, Xattrs};
use crate::{Error, FileKind, Folder, TreeId};

/// A difference between a folder and a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderDifference {
    /// Relative to the root; empty for the root itself.
    pub path: Vec<u8>,
    /// What differs.
    pub what: DifferenceKind,
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Only in the tree; a directory stands for everything in it.
    Missing,
    /// Only in the folder; a directory stands for everything in it.
    Extra,
    /// One is a file, the other a folder or a link.
    Kind,
    /// The permissions differ.
    Mode,
    /// The modification time differs.
    Mtime,
    /// The length differs.
    Size,
    /// The bytes differ.
    Content,
    /// The extended attributes differ.
    Attributes,
    /// The target of a symbolic link differs.
    Target,
    /// The file has other hard links than in the tree.
    HardLink,
    /// The entry cannot be opened or read.
    Unreadable,
}

impl Repo {
    /// The differences in a folder, entry by entry. Sockets, FIFOs and devices are never in a tree and do not count
    /// as extra. Neither does the mode of the root, which is not stored.
    pub fn compare(
        &self,
        tree: &TreeId,
        root: &str,
        folder: &Folder,
    ) -> Result<Vec<FolderDifference>, Error> {
        let reader = self.reader();
        let modified = self.find_root(&reader, tree, root)?.modified;
        let entries = reader.directory(&self.root_at(&reader, tree, root)?)?;
        let is = FileAttributes::of(folder.fd()).map_err(|e| Error::system("read", b".", e))?;
        let mut comparing = FolderComparer {
            reader: &reader,
            levels: vec![entries.into_iter()],
            path: Vec::new(),
            tour: DirectoryWalker::start(folder)?,
            differences: Vec::new(),
            objects: HashMap::new(),
            groups: HashMap::new(),
        };
        if is.modified != modified {
            comparing.differences.push(FolderDifference { path: Vec::new(), what: DifferenceKind::Mtime });
        }
        comparing.run()?;
        Ok(comparing.differences)
    }
}

struct FolderComparer<'a> {
    reader: &'a ObjectReader<'a>,
    levels: Vec<std::vec::IntoIter<TreeEntry>>,
    path: Vec<Vec<u8>>,
    tour: DirectoryWalker,
    differences: Vec<FolderDifference>,
    /// Objects with several hard links in the folder, with the group number that the tree gives them.
    objects: HashMap<(u64, u64), u64>,
    groups: HashMap<u64, (u64, u64)>,
}

impl FolderComparer<'_> {
    /// Both sides are always in the same directory.
    fn run(&mut self) -> Result<(), Error> {
        let (mut expected, mut met) = (self.expected(), self.met()?);
        loop {
            match (expected.take(), met.take()) {
                (None, None) => {
                    self.levels.pop();
                    if self.path.pop().is_none() {
                        return Ok(());
                    }
                    (expected, met) = (self.expected(), self.met()?);
                }
                (Some(entry), None) => {
                    self.differ(&entry.name, DifferenceKind::Missing);
                    expected = self.expected();
                }
                (None, Some(name)) => {
                    self.extra(&name);
                    met = self.met()?;
                }
                (Some(entry), Some(name)) => match entry.name.cmp(&name) {
                    std::cmp::Ordering::Less => {
                        self.differ(&entry.name, DifferenceKind::Missing);
                        (expected, met) = (self.expected(), Some(name));
                    }
                    std::cmp::Ordering::Greater => {
                        self.extra(&name);
                        (expected, met) = (Some(entry), self.met()?);
                    }
                    std::cmp::Ordering::Equal => {
                        self.pair(&entry)?;
                        (expected, met) = (self.expected(), self.met()?);
                    }
                },
            }
        }
    }

    /// The next entry of this directory in the tree; `None` at its end.
    fn expected(&mut self) -> Option<TreeEntry> {
        self.levels.last_mut().and_then(Iterator::next)
    }

    /// The next entry of this directory in the folder.
    fn met(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.tour.next_event()? {
            Some(WalkerEvent::Entry(name)) => Ok(Some(name)),
            Some(WalkerEvent::Left) | None => Ok(None),
        }
    }

    fn extra(&mut self, name: &[u8]) {
        let kind = self.tour.attributes(name).map(|is| is.kind);
        if matches!(kind, Ok(FileKind::File | FileKind::Dir | FileKind::Link)) {
            self.differ(name, DifferenceKind::Extra);
        }
    }

    /// Compares an entry that both sides have; two directories are entered.
    fn pair(&mut self, entry: &TreeEntry) -> Result<(), Error> {
        let Ok(is) = self.tour.attributes(&entry.name) else {
            self.differ(&entry.name, DifferenceKind::Unreadable);
            return Ok(());
        };
        match (&entry.node, is.kind) {
            (TreeNode::Dir(at), FileKind::Dir) => {
                self.metadata(entry, &is);
                if self.tour.enter(&entry.name).is_err() {
                    self.differ(&entry.name, DifferenceKind::Unreadable);
                    return Ok(());
                }
                self.attributes(entry, &xattrs(self.tour.here()));
                self.levels.push(self.reader.directory(at)?.into_iter());
                self.path.push(entry.name.clone());
            }
            (TreeNode::File(content), FileKind::File) => {
                self.metadata(entry, &is);
                self.file(entry, &is, content)?;
            }
            (TreeNode::Link(target), FileKind::Link) => self.link(entry, &is, target),
            (TreeNode::Dir(_) | TreeNode::File(_) | TreeNode::Link(_), _) => {
                self.differ(&entry.name, DifferenceKind::Kind)
            }
        }
        Ok(())
    }

    fn metadata(&mut self, entry: &TreeEntry, is: &FileAttributes) {
        if is.raw_mode != entry.mode {
            self.differ(&entry.name, DifferenceKind::Mode);
        }
        self.time(entry, is.modified);
    }

    fn time(&mut self, entry: &TreeEntry, modified: FileTime) {
        if modified != entry.modified {
            self.differ(&entry.name, DifferenceKind::Mtime);
        }
    }

    fn attributes(&mut self, entry: &TreeEntry, found: &Xattrs) {
        if *found != entry.xattrs {
            self.differ(&entry.name, DifferenceKind::Attributes);
        }
    }

    fn file(&mut self, entry: &TreeEntry, is: &FileAttributes, content: &StoredContent) -> Result<(), Error> {
        if !self.is_linked_alike(is, content.group) {
            self.differ(&entry.name, DifferenceKind::HardLink);
        }
        if is.size != content.size {
            self.differ(&entry.name, DifferenceKind::Size);
            return Ok(());
        }
        let pieces = self.reader.content(content)?;
        let Ok((file, _lent)) = open_to_read(self.tour.here(), &entry.name) else {
            self.differ(&entry.name, DifferenceKind::Unreadable);
            return Ok(());
        };
        self.attributes(entry, &xattrs(std::os::fd::AsFd::as_fd(&file)));
        match holds(self.reader, &file, &pieces) {
            Ok(true) => {}
            Ok(false) => self.differ(&entry.name, DifferenceKind::Content),
            Err(_) => self.differ(&entry.name, DifferenceKind::Unreadable),
        }
        Ok(())
    }

    fn is_linked_alike(&mut self, is: &FileAttributes, group: u64) -> bool {
        let alone = is.names <= 1 || self.objects.insert(is.id, group).is_none_or(|g| g == group && g != 0);
        let together = group == 0 || *self.groups.entry(group).or_insert(is.id) == is.id;
        alone && together
    }

    fn link(&mut self, entry: &TreeEntry, is: &FileAttributes, target: &[u8]) {
        self.time(entry, is.modified);
        match rustix::fs::readlinkat(self.tour.here(), entry.name.as_slice(), Vec::new()) {
            Ok(found) if found.to_bytes() == target => {}
            Ok(_) => self.differ(&entry.name, DifferenceKind::Target),
            Err(_) => self.differ(&entry.name, DifferenceKind::Unreadable),
        }
    }

    fn differ(&mut self, name: &[u8], what: DifferenceKind) {
        let mut path = self.path.join(&b'/');
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        self.differences.push(FolderDifference { path, what });
    }
}

/// Equal bytes have equal ids, so the comparison reads only the bytes of the file.
pub(super) fn holds(
    reader: &ObjectReader<'_>,
    file: &File,
    pieces: &[ContentPiece],
) -> std::io::Result<bool> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    for piece in pieces {
        let mut left = piece.length();
        while left > 0 {
            if let ContentPiece::Zeros { .. } = piece {
                let hole = hole(file, at)?.min(left);
                (at, left) = (at + hole, left - hole);
            }
            let part = &mut buffer[..usize::try_from(left).unwrap_or(usize::MAX).min(1 << 20)];
            file.read_exact_at(part, at)?;
            let same = match piece {
                ContentPiece::Chunk { at, .. } => reader.check(at, part).is_ok(),
                ContentPiece::Zeros { .. } => is_zero(part),
                ContentPiece::List { .. } => false,
            };
            if !same {
                return Ok(false);
            }
            at += part.len() as u64;
            left -= part.len() as u64;
        }
    }
    // The file may have shrunk since its size was compared; everything behind its end would look like a hole.
    Ok(file.metadata()?.len() == at)
}

/// How many bytes from here are in a hole, and therefore zero without reading them.
fn hole(file: &File, at: u64) -> std::io::Result<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(data) => Ok(data.saturating_sub(at)),
        Err(Errno::NXIO) => Ok(u64::MAX),
        // The file system does not report holes.
        Err(Errno::INVAL) => Ok(0),
        Err(e) => Err(e.into()),
    }
}
