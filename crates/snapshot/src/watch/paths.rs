//! Resolves handles to paths when a capture needs them. Code in the sandbox may rename at the same time, so a path
//! counts only if it leads, from the root and through no link, to the same directory.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

use super::handle::{self, HandleMount};
use super::seen_changes::{SeenChanges, SeenDirectory};
use super::{TouchedNames, TouchedPaths};
use crate::folder::FileAttributes;

/// Limits the retries, so that a process that renames continuously cannot block us for ever.
const PATIENCE: usize = 8;
const DELETED: &[u8] = b" (deleted)";

/// The current place of a directory.
enum HandlePath {
    At(Vec<u8>, OwnedFd),
    /// Deleted, or moved out of the root.
    NotHere,
}

pub(super) fn settle(seen: SeenChanges, root: BorrowedFd<'_>, mount: &HandleMount) -> TouchedPaths {
    if seen.everything {
        return TouchedPaths::Everything;
    }
    let settled = HandlePathResolver { root, mount, folders: BTreeMap::new(), linked: seen.inodes };
    settled.all(seen.dirs.iter()).unwrap_or_else(|error| {
        tracing::debug!(%error, "a touched folder has no certain path: the next capture walks the root");
        TouchedPaths::Everything
    })
}

struct HandlePathResolver<'a> {
    root: BorrowedFd<'a>,
    mount: &'a HandleMount,
    folders: BTreeMap<Vec<u8>, TouchedNames>,
    linked: BTreeSet<u64>,
}

impl HandlePathResolver<'_> {
    fn all<'d>(
        mut self,
        dirs: impl Iterator<Item = (&'d Box<[u8]>, &'d SeenDirectory)>,
    ) -> Result<TouchedPaths> {
        for (handle, dir) in dirs {
            match self.find(handle)? {
                HandlePath::At(path, opened) => {
                    self.look_for_links(dir, Some(opened.as_fd()))?;
                    let names = if dir.whole {
                        TouchedNames::All
                    } else {
                        TouchedNames::These(dir.names.keys().map(|name| name.to_vec()).collect())
                    };
                    self.folders.insert(path, names);
                }
                HandlePath::NotHere => self.look_for_links(dir, None)?,
            }
        }
        let mut touched = TouchedPaths::Folders { folders: self.folders, linked: self.linked };
        touched.drop_what_is_beneath_whole_ones();
        Ok(touched)
    }

    fn find(&self, handle: &[u8]) -> Result<HandlePath> {
        let opened = match self.mount.open(handle) {
            Err(Errno::STALE) => return Ok(HandlePath::NotHere),
            opened => opened?,
        };
        let id = FileAttributes::of(&opened)?.id;
        if id == FileAttributes::of(self.root)?.id {
            return Ok(HandlePath::At(Vec::new(), opened));
        }
        for _ in 0..PATIENCE {
            let base = shown_path(self.root)?;
            let shown = shown_path(opened.as_fd())?;
            let Some(path) = beneath(&base, &shown) else {
                // Unless the root itself was moved between the two lookups.
                if shown_path(self.root)? == base {
                    return Ok(HandlePath::NotHere);
                }
                continue;
            };
            match open_beneath(self.root, path, OFlags::PATH | OFlags::DIRECTORY) {
                Ok(found) if FileAttributes::of(&found)?.id == id => {
                    return Ok(HandlePath::At(path.to_vec(), found));
                }
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                    // A real name may also end like this, but then it would have been found above.
                    if shown.ends_with(DELETED) {
                        return Ok(HandlePath::NotHere);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::AGAIN)
    }

    /// A change through one name touches a file under all its names, even when the name through which it was opened
    /// no longer exists.
    fn look_for_links(&mut self, dir: &SeenDirectory, opened: Option<BorrowedFd<'_>>) -> Result<()> {
        for (name, files) in &dir.names {
            for file in files {
                if opened.is_some_and(|dir| is_only_name_of(dir, name, file)) {
                    continue;
                }
                self.linked.extend(self.mount.inode_of_living(file)?);
            }
        }
        Ok(())
    }
}

fn is_only_name_of(dir: BorrowedFd<'_>, name: &[u8], file: &[u8]) -> bool {
    FileAttributes::at(dir, name).is_ok_and(|is| is.names == 1)
        && handle::named(dir, name).is_ok_and(|now| *now == *file)
}

/// The path as the kernel sees it at this instant. A path that is too long for the kernel is an error, and causes a
/// walk.
fn shown_path(dir: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    Ok(rustix::fs::readlink(link, Vec::new())?.into_bytes())
}

fn beneath<'a>(base: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let base = base.strip_suffix(b"/").unwrap_or(base);
    path.strip_prefix(base)?.strip_prefix(b"/")
}

pub(super) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let stay = ResolveFlags::BENEATH
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), stay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_beneath_the_root_have_a_relative_path() {
        let cases = [
            ("/a/b", "/a/b/c/d", Some("c/d")),
            ("/", "/c", Some("c")),
            ("/a/b", "/a/bc", None),
            ("/a/b", "/a", None),
            ("/a/b", "/a/b", None),
            ("/a/b", "/x/a/b/c", None),
        ];
        for (base, path, relative) in cases {
            assert_eq!(beneath(base.as_bytes(), path.as_bytes()), relative.map(str::as_bytes));
        }
    }
}
