//! Visits every entry of a tree in a fixed order. The caller decides which directories to enter.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::Dir;
use rustix::io::Errno;

use super::{DescentPurpose, FileAttributes, FileKind, Folder, FolderEntry, TreeDescent};
use crate::Error;

const LISTING: usize = 32 << 10;

pub(crate) struct DirectoryWalker {
    descent: TreeDescent,
    levels: Vec<WalkerLevel>,
    /// The path of the current directory, with a slash at its end; empty in the root.
    path: Vec<u8>,
}

struct WalkerLevel {
    names: std::vec::IntoIter<Vec<u8>>,
    /// The length of the path one level higher.
    path_before: usize,
}

pub(crate) enum WalkerEvent {
    Entry(Vec<u8>),
    /// The directory entered last is finished; the root comes last of all.
    Left,
}

impl DirectoryWalker {
    pub(crate) fn start(folder: &Folder) -> Result<DirectoryWalker, Error> {
        let failed = |e| Error::system("list", b".", e);
        let descent = TreeDescent::from(folder, DescentPurpose::Read).map_err(failed)?;
        let names = names(descent.here()).map_err(failed)?;
        Ok(DirectoryWalker { descent, levels: vec![WalkerLevel { names, path_before: 0 }], path: Vec::new() })
    }

    pub(crate) fn next_event(&mut self) -> Result<Option<WalkerEvent>, Error> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        if let Some(name) = level.names.next() {
            return Ok(Some(WalkerEvent::Entry(name)));
        }
        self.leave()?;
        Ok(Some(WalkerEvent::Left))
    }

    fn leave(&mut self) -> Result<(), Error> {
        let is_deep = self.descent.depth() > 0;
        self.forget_level();
        match if is_deep { self.descent.up() } else { Ok(()) } {
            Err(Errno::STALE) => {}
            done => return done.map_err(|e| Error::system("return to", &self.path, e)),
        }
        // The directory was moved while the walk was deeper. The walk continues with what is in its place now.
        while !self
            .descent
            .return_to(self.path.strip_suffix(b"/").unwrap_or(&self.path))
            .map_err(|e| Error::system("return to", &self.path, e))?
        {
            self.forget_level();
        }
        Ok(())
    }

    fn forget_level(&mut self) {
        if let Some(level) = self.levels.pop() {
            self.path.truncate(level.path_before);
        }
    }

    /// Enters a directory that the walk just met; the next events are inside it.
    pub(crate) fn enter(&mut self, name: &[u8]) -> rustix::io::Result<FileAttributes> {
        let is = self.descent.down(name)?;
        match names(self.descent.here()) {
            Ok(names) => {
                self.levels.push(WalkerLevel { names, path_before: self.path.len() });
                self.path.extend_from_slice(name);
                self.path.push(b'/');
                Ok(is)
            }
            Err(e) => {
                self.descent.up()?;
                Err(e)
            }
        }
    }

    pub(crate) fn here(&self) -> BorrowedFd<'_> {
        self.descent.here()
    }

    pub(crate) fn attributes(&self, name: &[u8]) -> rustix::io::Result<FileAttributes> {
        FileAttributes::at(self.here(), name)
    }

    pub(crate) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [&self.path, name].concat()
    }
}

pub(super) fn names(folder: BorrowedFd<'_>) -> rustix::io::Result<std::vec::IntoIter<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    // A directory that changes while it is read may show a name twice.
    names.dedup();
    Ok(names.into_iter())
}

/// The sorted names of a directory; `buffer` is reused between calls.
pub(crate) fn names_into(folder: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> rustix::io::Result<Vec<Vec<u8>>> {
    buffer.clear();
    buffer.reserve(LISTING);
    let mut names = Vec::new();
    let mut raw = rustix::fs::RawDir::new(folder, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    // A directory that changes while it is read may show a name twice.
    names.dedup();
    Ok(names)
}

pub(super) fn list(folder: impl AsFd) -> rustix::io::Result<Vec<FolderEntry>> {
    let found = names(folder.as_fd())?.filter_map(|name| {
        let kind: FileKind = FileAttributes::at(folder.as_fd(), &name).ok()?.kind;
        Some(FolderEntry { name, kind })
    });
    Ok(found.collect())
}
