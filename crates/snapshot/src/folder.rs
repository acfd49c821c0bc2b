//! The only module through which the host touches anything that a sandbox can write.
//!
//! The code in the sandbox is hostile and runs at the same time: it swaps files for links, directories for other
//! directories, regular files for FIFOs. So nothing here checks a path and then uses it. Every function opens beneath
//! a handle in one step, and then checks what it opened.

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

/// Whether a lookup follows symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkPolicy {
    /// A link is an error.
    Refuse,
    /// Follows relative links that stay inside the folder. Where the kernel lacks openat2, these are refused too.
    Inside,
}

/// The owner of written files. The numbers are local to this machine and never part of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOwner {
    /// The number of the user.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
}

/// The type of an entry in a folder.
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

/// A name in a directory. The kind is from the time of the listing and may be outdated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// The name in the folder, as bytes.
    pub name: Vec<u8>,
    /// The type of the entry.
    pub kind: FileKind,
}

/// A regular file, by its path relative to the folder or root that was searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// The path beneath the folder, as bytes.
    pub path: Vec<u8>,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written, in milliseconds since 1970.
    pub mtime_ms: i64,
}

/// The attributes of an opened file.
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
    /// Opens a directory that belongs to the host. The path is trusted; its last component must not be a link.
    pub fn open(path: &Path) -> Result<Folder, Error> {
        // A trailing slash would make the kernel follow a link in spite of O_NOFOLLOW.
        let plain: PathBuf = path.components().collect();
        let handle = forced_open::open_root(&plain)
            .map_err(|e| Error::system("open the folder", path.as_os_str().as_bytes(), e))?;
        Ok(Folder { handle })
    }

    /// The current path of the folder, which may differ from the path it was opened by.
    pub fn real_path(&self) -> std::io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", self.fd().as_raw_fd()))
    }

    /// Opens a directory of the host whose path is trusted only up to `above`. `names` lead on from there, and a link in
    /// place of any of them is not followed.
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

    /// Opens a folder beneath this one without following links.
    pub fn open_subfolder(&self, path: &RelPath) -> Result<Folder, Error> {
        let handle = open::beneath(self.fd(), path.as_bytes(), open::DIRECTORY, LinkPolicy::Refuse)
            .map_err(|e| Error::system("open the folder", path.as_bytes(), e))?;
        Ok(Folder { handle })
    }

    /// The entries of this directory, not of its subfolders, sorted by bytes.
    pub fn list(&self) -> Result<Vec<FolderEntry>, Error> {
        walker::list(self.fd()).map_err(|e| Error::system("list", b".", e))
    }

    /// The regular files beneath, sorted by path. `skip(name, is_dir)` leaves out a file or a whole directory; the
    /// walk stops after `limit` files. Entries that cannot be read are left out.
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
                // The entry may have been removed or replaced since the listing; then there is nothing to list
                // beneath it.
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

    /// Renames whatever is at a path, within its folder. Returns false if nothing is there.
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

    /// Gives the file at a path a second name in the same folder, so that it survives a replacement of the first
    /// name. Returns false if nothing is there.
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

    /// Removes the folders above a path as long as they are empty, from the innermost outwards.
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

    /// Opens a file even if its owner has no permission to read it or its folder. Missing permissions are lent while
    /// the file is being opened and read.
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
