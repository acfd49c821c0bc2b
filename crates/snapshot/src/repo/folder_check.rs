//! Checks whether folders still match a snapshot of them. If the index of that snapshot is available, the check compares
//! the attributes of each entry and reads only what looks changed; otherwise it reads everything. Times alone are no
//! difference.

use std::os::fd::AsFd;
use std::path::Path;

use super::compare::holds;
use super::read::ObjectReader;
use super::{CaptureRoot, DifferenceKind, ExcludeFilter, FolderDifference, Repo};
use crate::folder::{DirectoryWalker, FileAttributes, WalkerEvent, open_to_read, xattrs};
use crate::index::{
    CaptureIndex, IndexEntries, IndexEntry, IndexedContent, IndexedDirectory, IndexedFileKind,
    StatFingerprint,
};
use crate::object::StoredContent;
use crate::{Error, FileKind, TreeId};

/// What to compare with a snapshot.
#[derive(Clone, Copy)]
pub struct FolderCheck<'a> {
    /// The snapshot to compare with.
    pub tree: &'a TreeId,
    /// The folders that the snapshot was made of.
    pub roots: &'a [CaptureRoot<'a>],
    /// The index of the folders' last capture. Used only if that capture has the same files as `tree`.
    pub index: &'a Path,
    /// The same filter as for the capture.
    pub exclude: ExcludeFilter<'a>,
    /// What to do about entries that look changed.
    pub doubt: MismatchPolicy,
}

/// What to do about an entry whose attributes have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MismatchPolicy {
    /// Read it. It is a difference only if its content differs.
    Read,
    /// Count it as a difference.
    Believe,
}

/// How folders were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderCheckMethod {
    /// By the attributes of each file.
    Metadata,
    /// By reading every byte.
    Content,
}

/// Receives each difference, with the name of its root.
type DifferenceSink<'t> = &'t mut dyn FnMut(&str, &FolderDifference);

impl Repo {
    /// Reports every difference between the folders and the snapshot. Sockets, FIFOs and devices do not count, nor do
    /// entries that the snapshot excluded.
    pub fn check_folders(
        &self,
        audit: &FolderCheck<'_>,
        tell: DifferenceSink<'_>,
    ) -> Result<FolderCheckMethod, Error> {
        let index = self.indexes.take(audit.index);
        let knows = |root: &CaptureRoot<'_>| index.get(root.name.as_bytes()).is_some();
        if !(index.base().is_some_and(|base| base.same_files(audit.tree)) && audit.roots.iter().all(knows)) {
            self.audit_contents(audit, tell)?;
            return Ok(FolderCheckMethod::Content);
        }
        let reader = self.reader();
        let done = audit.roots.iter().try_for_each(|root| {
            let walk =
                FolderCheckWalk { reader: &reader, index: &index, audit, root, path: Vec::new(), tell };
            walk.run()
        });
        self.indexes.put(audit.index, index);
        done.map(|()| FolderCheckMethod::Metadata)
    }

    fn audit_contents(&self, audit: &FolderCheck<'_>, tell: DifferenceSink<'_>) -> Result<(), Error> {
        for CaptureRoot { name, folder } in audit.roots {
            for difference in self.compare(audit.tree, name, folder)? {
                let left_out = (audit.exclude)(name.as_bytes(), &difference.path);
                if difference.what != DifferenceKind::Mtime && !left_out {
                    tell(name, &difference);
                }
            }
        }
        Ok(())
    }
}

/// Walks through one root, side by side with its index.
struct FolderCheckWalk<'a, 't> {
    reader: &'a ObjectReader<'a>,
    index: &'a CaptureIndex,
    audit: &'a FolderCheck<'a>,
    root: &'a CaptureRoot<'a>,
    /// The path of the current directory, beginning with the root's name.
    path: Vec<u8>,
    tell: &'a mut (dyn FnMut(&str, &FolderDifference) + 't),
}

/// A directory in the index, and those of its entries that the walk has not met yet.
struct FolderCheckLevel<'a> {
    directory: &'a IndexedDirectory,
    entries: std::iter::Peekable<IndexEntries<'a>>,
    /// The length of the path one level higher.
    path_before: usize,
}

impl<'a> FolderCheckWalk<'a, '_> {
    fn run(mut self) -> Result<(), Error> {
        let mut tour = DirectoryWalker::start(self.root.folder)?;
        let mut levels: Vec<FolderCheckLevel<'a>> = Vec::new();
        let root = self.root.name.as_bytes();
        self.path = root.to_vec();
        levels.extend(self.level(root.len()));
        while let Some(met) = tour.next_event()? {
            let Some(level) = levels.last_mut() else { return Ok(()) };
            match met {
                WalkerEvent::Left => {
                    level.entries.by_ref().for_each(|entry| self.missing(&entry));
                    self.path.truncate(level.path_before);
                    levels.pop();
                }
                WalkerEvent::Entry(name) => {
                    while let Some(entry) = level.entries.next_if(|entry| entry.name < name.as_slice()) {
                        self.missing(&entry);
                    }
                    let directory = level.directory;
                    let entered = match level.entries.next_if(|entry| entry.name == name.as_slice()) {
                        Some(entry) => self.pair(&mut tour, directory, &entry)?,
                        None => {
                            self.extra(&tour, &name);
                            false
                        }
                    };
                    if entered {
                        let before = self.path.len();
                        self.path.push(b'/');
                        self.path.extend_from_slice(&name);
                        levels.extend(self.level(before));
                    }
                }
            }
        }
        Ok(())
    }

    fn level(&self, path_before: usize) -> Option<FolderCheckLevel<'a>> {
        let directory = self.index.get(&self.path)?;
        Some(FolderCheckLevel { directory, entries: self.index.entries(directory).peekable(), path_before })
    }

    fn missing(&mut self, entry: &IndexEntry<'_>) {
        if !entry.is_skipped() {
            self.differ(entry.name, DifferenceKind::Missing);
        }
    }

    fn extra(&mut self, tour: &DirectoryWalker, name: &[u8]) {
        let kind = tour.attributes(name).map(|is| is.kind);
        if matches!(kind, Ok(FileKind::File | FileKind::Dir | FileKind::Link)) {
            self.differ(name, DifferenceKind::Extra);
        }
    }

    /// Compares an entry that both sides have. Returns true if both are directories; the walk is then in it.
    fn pair(
        &mut self,
        tour: &mut DirectoryWalker,
        above: &IndexedDirectory,
        entry: &IndexEntry<'_>,
    ) -> Result<bool, Error> {
        if entry.is_skipped() {
            return Ok(false);
        }
        let Ok(is) = tour.attributes(entry.name) else {
            self.differ(entry.name, DifferenceKind::Unreadable);
            return Ok(false);
        };
        let look = StatFingerprint::from(&is);
        if look.nature != entry.look.nature {
            self.differ(entry.name, DifferenceKind::Kind);
            return Ok(false);
        }
        if look.mode != entry.look.mode {
            self.differ(entry.name, DifferenceKind::Mode);
        }
        match look.nature {
            IndexedFileKind::Dir => Ok(self.directory(tour, entry, &is)),
            IndexedFileKind::File | IndexedFileKind::Link => {
                let same = look == entry.look;
                match self.audit.doubt {
                    MismatchPolicy::Believe if !same => self.differ(entry.name, DifferenceKind::Content),
                    MismatchPolicy::Read if !same || above.is_racy(look.changed) => {
                        self.read(tour, entry, &is)?
                    }
                    MismatchPolicy::Believe | MismatchPolicy::Read => {}
                }
                Ok(false)
            }
            IndexedFileKind::Other => Ok(false),
        }
    }

    fn directory(&mut self, tour: &mut DirectoryWalker, entry: &IndexEntry<'_>, is: &FileAttributes) -> bool {
        let child = [self.path.as_slice(), b"/", entry.name].concat();
        if self.index.get(&child).is_none() || tour.enter(entry.name).is_err() {
            self.differ(entry.name, DifferenceKind::Unreadable);
            return false;
        }
        if is.changed != entry.look.changed
            && let IndexedContent::Dir(known) = entry.known()
            && known != xattrs(tour.here())
        {
            self.differ(entry.name, DifferenceKind::Attributes);
        }
        true
    }

    /// The attributes have changed, so the content decides.
    fn read(
        &mut self,
        tour: &DirectoryWalker,
        entry: &IndexEntry<'_>,
        is: &FileAttributes,
    ) -> Result<(), Error> {
        match entry.known() {
            IndexedContent::File(content, known) => {
                let Ok((file, _lent)) = open_to_read(tour.here(), entry.name) else {
                    self.differ(entry.name, DifferenceKind::Unreadable);
                    return Ok(());
                };
                if known != xattrs(file.as_fd()) {
                    self.differ(entry.name, DifferenceKind::Attributes);
                }
                self.content(entry.name, is, &content, &file)
            }
            IndexedContent::Link(target) => {
                let found = rustix::fs::readlinkat(tour.here(), entry.name, Vec::new());
                if !found.is_ok_and(|found| found.to_bytes() == target) {
                    self.differ(entry.name, DifferenceKind::Target);
                }
                Ok(())
            }
            IndexedContent::Dir(_) | IndexedContent::Skipped(_) => Ok(()),
        }
    }

    fn content(
        &mut self,
        name: &[u8],
        is: &FileAttributes,
        content: &StoredContent,
        file: &std::fs::File,
    ) -> Result<(), Error> {
        if is.size != content.size {
            self.differ(name, DifferenceKind::Size);
            return Ok(());
        }
        match holds(self.reader, file, &self.reader.content(content)?) {
            Ok(true) => {}
            Ok(false) => self.differ(name, DifferenceKind::Content),
            Err(_) => self.differ(name, DifferenceKind::Unreadable),
        }
        Ok(())
    }

    fn differ(&mut self, name: &[u8], what: DifferenceKind) {
        let root = self.root.name;
        let mut path = self.path.get(root.len() + 1..).unwrap_or_default().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        if !(self.audit.exclude)(root.as_bytes(), &path) {
            (self.tell)(root, &FolderDifference { path, what });
        }
    }
}
