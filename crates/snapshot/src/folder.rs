//! The one module through which the host touches anything a sandbox can write.
//!
//! Whoever lives in the sandbox is hostile and works while we work: it swaps files for links, directories for
//! other directories, regular files for FIFOs. So nothing here checks a path and then uses it. Everything is
//! opened beneath a handle in one step, and what was opened is then asked what it is.

mod attributes;
mod change_owner;
mod descent;
mod disk_usage;
mod erase;
mod forced_open;
mod merge;
mod mode_loans;
mod open;
mod walker;
mod write;
mod xattrs;

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

pub(crate) use attributes::{FileAttributes, FileTime};
pub(crate) use descent::{DescentPurpose, TreeDescent};
pub use disk_usage::DiskUsage;
pub(crate) use forced_open::{ForcedHandle, force_directory, open_to_read};
pub(crate) use open::{open_beneath, pass_beneath};
pub(crate) use walker::{DirectoryWalker, WalkerEvent, names_into};
pub(crate) use write::{give_to, make_directory};
pub(crate) use xattrs::{set_xattrs, xattrs};

use crate::{Error, RelPath};

/// A directory, held by handle: it stays the same directory whatever is renamed.
#[derive(Debug)]
pub struct Folder {
    handle: OwnedFd,
}

/// Whether a symbolic link on the way is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkPolicy {
    /// A link is an error.
    Refuse,
    /// Relative links that stay inside the folder. Where the kernel lacks openat2 they are refused too.
    Inside,
}

/// Who shall own what is written. Numbers of this machine; they are never part of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOwner {
    /// The number of the user.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
}

/// What a name in a folder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// An ordinary file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Link,
    /// A Unix socket.
    Socket,
    /// A named pipe.
    Fifo,
    /// A character or block device.
    Device,
}

/// One name in a directory. The kind is what it was when it was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// The name in the folder, as bytes.
    pub name: Vec<u8>,
    /// What it stands for.
    pub kind: FileKind,
}

/// A regular file, by its path relative to the folder or root it was found in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// The path beneath the folder, as bytes.
    pub path: Vec<u8>,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written, in milliseconds since 1970.
    pub mtime_ms: i64,
}

/// What an opened file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written, in milliseconds since 1970.
    pub mtime_ms: i64,
    /// Permission bits only.
    pub mode: u32,
}

impl Folder {
    /// Opens a directory of ours. The path is trusted; its last component must not be a link.
    pub fn open(path: &Path) -> Result<Folder, Error> {
        // A trailing slash would make the kernel follow a link in spite of O_NOFOLLOW.
        let plain: PathBuf = path.components().collect();
        let handle = forced_open::open_root(&plain)
            .map_err(|e| Error::system("open the folder", path.as_os_str().as_bytes(), e))?;
        Ok(Folder { handle })
    }

    /// Where it is now, whatever the path was that it was opened by.
    pub fn real_path(&self) -> std::io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", self.fd().as_raw_fd()))
    }

    /// Opens a directory of ours of which only the path up to `above` is trusted: nothing in the place of one of `names`,
    /// which lead from there, is followed.
    pub fn open_inside(above: &Path, names: &[&OsStr]) -> Result<Folder, Error> {
        let mut folder = Folder::open(above)?;
        for name in names {
            let name = name.as_bytes();
            let handle = forced_open::open_child(folder.fd(), name)
                .map_err(|e| Error::system("open the folder", name, e))?;
            folder = Folder { handle };
        }
        Ok(folder)
    }

    /// Opens a folder beneath this one, without following a link on the way.
    pub fn open_subfolder(&self, path: &RelPath) -> Result<Folder, Error> {
        let handle = open::beneath(self.fd(), path.as_bytes(), open::DIRECTORY, LinkPolicy::Refuse)
            .map_err(|e| Error::system("open the folder", path.as_bytes(), e))?;
        Ok(Folder { handle })
    }

    /// The names in this directory itself, sorted by bytes.
    pub fn list(&self) -> Result<Vec<FolderEntry>, Error> {
        walker::list(self.fd()).map_err(|e| Error::system("list", b".", e))
    }

    /// The regular files beneath, sorted by path. `skip(name, is_dir)` leaves a file or a whole directory out;
    /// the walk stops after `limit` files. What cannot be read is left out.
    pub fn walk(&self, skip: &dyn Fn(&[u8], bool) -> bool, limit: usize) -> Result<Vec<FileInfo>, Error> {
        let mut tour = DirectoryWalker::start(self)?;
        let mut files = Vec::new();
        while files.len() < limit
            && let Some(met) = tour.next_event()?
        {
            let WalkerEvent::Entry(name) = met else { continue };
            let Ok(is) = tour.attributes(&name) else { continue };
            if skip(&name, is.kind == FileKind::Dir) {
                continue;
            }
            match is.kind {
                // It may be gone or be something else by now: then there is nothing to list beneath it.
                FileKind::Dir => drop(tour.enter(&name)),
                FileKind::File => files.push(is.as_file(tour.path_of(&name))),
                FileKind::Link | FileKind::Socket | FileKind::Fifo | FileKind::Device => {}
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// Opens a regular file for reading; anything else is `NotAFile`.
    pub fn open_file(&self, path: &RelPath, links: LinkPolicy) -> Result<(File, FileStat), Error> {
        let failed = |e| Error::system("open", path.as_bytes(), e);
        let handle = match open::beneath(self.fd(), path.as_bytes(), open::FILE, links) {
            Err(Errno::ACCESS) => match self.read_by_force(path) {
                Err(Errno::INVAL) => return Err(Error::NotAFile { path: path.to_string() }),
                opened => opened.map_err(failed)?.0.into(),
            },
            opened => opened.map_err(failed)?,
        };
        let is = FileAttributes::of(&handle).map_err(failed)?;
        if is.kind != FileKind::File {
            return Err(Error::NotAFile { path: path.to_string() });
        }
        Ok((File::from(handle), is.as_stat()))
    }

    /// Removes a file, a link or a special file; a directory is `NotAFile`.
    pub fn remove_file(&self, path: &RelPath) -> Result<(), Error> {
        let (folder, name) = path.split();
        let failed = |e| Error::system("remove", path.as_bytes(), e);
        let folder = open::beneath(self.fd(), folder, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse);
        rustix::fs::unlinkat(folder.map_err(failed)?, name, AtFlags::empty()).map_err(failed)
    }

    /// Gives what is at a path, whatever it is, another name in the same folder. False: nothing was there.
    pub fn rename_aside(&self, path: &RelPath, to: &str) -> Result<bool, Error> {
        let (folder, name) = path.split();
        let failed = |e| Error::system("put aside", path.as_bytes(), e);
        let folder = open::beneath(self.fd(), folder, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse);
        let moved = folder.and_then(|folder| rustix::fs::renameat(&folder, name, &folder, to));
        match moved {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(failed(e)),
        }
    }

    /// Gives the file at a path a second name in the same folder: what takes its place then leaves it whole. False:
    /// nothing was there.
    pub fn link_aside(&self, path: &RelPath, to: &str) -> Result<bool, Error> {
        let (folder, name) = path.split();
        let failed = |e| Error::system("link", path.as_bytes(), e);
        let folder = open::beneath(self.fd(), folder, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse);
        let linked =
            folder.and_then(|folder| rustix::fs::linkat(&folder, name, &folder, to, AtFlags::empty()));
        match linked {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(failed(e)),
        }
    }

    /// A symbolic link's target, verbatim; anything else is `NotAFile`.
    pub fn read_link(&self, path: &RelPath) -> Result<Vec<u8>, Error> {
        let (folder, name) = path.split();
        let failed = |e| Error::system("read", path.as_bytes(), e);
        let folder = open::beneath(self.fd(), folder, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse);
        match rustix::fs::readlinkat(folder.map_err(failed)?, name, Vec::new()) {
            Err(Errno::INVAL) => Err(Error::NotAFile { path: path.to_string() }),
            target => target.map(CString::into_bytes).map_err(failed),
        }
    }

    /// Removes the folders above a path from the innermost on, as long as they are empty.
    pub fn remove_empty_folders(&self, path: &RelPath) -> Result<(), Error> {
        let (mut folder, _) = path.split();
        while let Ok(at) = RelPath::from_bytes(folder) {
            let (above, name) = at.split();
            let opened =
                open::beneath(self.fd(), above, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse);
            let removed = opened.and_then(|above| rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR));
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(()),
                Err(e) => return Err(Error::system("remove", at.as_bytes(), e)),
            }
            folder = &folder[..folder.len().saturating_sub(name.len() + 1)];
        }
        Ok(())
    }

    /// Opens a file that is closed to its owner too, or in a folder that is: what it takes is lent for as long.
    pub(crate) fn read_by_force(&self, path: &RelPath) -> rustix::io::Result<(File, FileAttributes)> {
        let mut descent = TreeDescent::from(self, DescentPurpose::Read)?;
        let (folder, name) = path.split();
        for step in folder.split(|&b| b == b'/').filter(|step| step != b".") {
            descent.down(step)?;
        }
        let (file, lent) = open_to_read(descent.here(), name)?;
        Ok((file, lent.is))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}
