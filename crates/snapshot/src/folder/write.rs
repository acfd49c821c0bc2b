//! Writes single files into a folder that other processes may write to: under a temporary name, then renamed into
//! place; never through an existing file or link.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{FileAttributes, FileKind, FileOwner, Folder, LinkPolicy, open};
use crate::{Error, RelPath};

const BUFFER: usize = 1 << 20;
pub(super) const NEW_DIRECTORY: u32 = 0o755;

impl Folder {
    /// Writes a whole file and returns its size. Readers see the old file or the new one. Missing directories are
    /// created. A link in the last component is replaced; a link before it is refused. An existing file keeps its
    /// mode, and its other names (hard links) keep the old content.
    pub fn write_file(
        &self,
        path: &RelPath,
        bytes: &mut dyn Read,
        as_owner: Option<FileOwner>,
        mode: u32,
    ) -> Result<u64, Error> {
        self.put(path, bytes, as_owner, |found| found.unwrap_or(mode & 0o777))
    }

    /// Like [`Folder::write_file`], but always sets exactly this mode.
    pub fn replace_file(
        &self,
        path: &RelPath,
        bytes: &mut dyn Read,
        as_owner: Option<FileOwner>,
        mode: u32,
    ) -> Result<u64, Error> {
        self.put(path, bytes, as_owner, |_| mode & 0o777)
    }

    /// Creates a symbolic link, and replaces anything there except a directory. The target is stored as given,
    /// without a check: each later lookup decides whether it may follow the link.
    pub fn symlink(&self, path: &RelPath, target: &[u8], as_owner: Option<FileOwner>) -> Result<(), Error> {
        let (folder, name) = self.place_of(path, as_owner)?;
        let failed = |e: io::Error| Error::system("link", path.as_bytes(), e);
        let beside = StagedEntry::link(folder.as_fd(), target, as_owner).map_err(failed)?;
        beside.rename(name).map_err(failed)
    }

    /// Creates a directory and its parents where they do not exist.
    pub fn make_dir(&self, path: &RelPath, as_owner: Option<FileOwner>) -> Result<(), Error> {
        self.make_folder(path.as_bytes(), as_owner).map(drop).map_err(|e| match e {
            Errno::NOTDIR | Errno::LOOP => Error::NotAFolder { path: path.to_string() },
            e => Error::system("make the folder", path.as_bytes(), e),
        })
    }

    fn put(
        &self,
        path: &RelPath,
        bytes: &mut dyn Read,
        as_owner: Option<FileOwner>,
        mode: impl FnOnce(Option<u32>) -> u32,
    ) -> Result<u64, Error> {
        let (folder, name) = self.place_of(path, as_owner)?;
        let mode = match FileAttributes::at(&folder, name) {
            Ok(is) if is.kind == FileKind::Dir => return Err(Error::NotAFile { path: path.to_string() }),
            Ok(is) if is.kind == FileKind::File => mode(Some(is.mode())),
            Ok(_) | Err(_) => mode(None),
        };
        let failed = |e: io::Error| Error::system("write", path.as_bytes(), e);
        let (beside, file) = StagedEntry::file(folder.as_fd()).map_err(failed)?;
        let size = fill(&file, bytes).map_err(failed)?;
        finish(&file, as_owner, mode).map_err(failed)?;
        beside.rename(name).map_err(failed)?;
        Ok(size)
    }

    /// The parent folder of a path, created if it does not exist, and the last name.
    fn place_of<'a>(
        &self,
        path: &'a RelPath,
        as_owner: Option<FileOwner>,
    ) -> Result<(OwnedFd, &'a [u8]), Error> {
        let (folder, name) = path.split();
        let folder = self.make_folder(folder, as_owner).map_err(|e| match e {
            Errno::NOTDIR => Error::NotAFolder { path: path.to_string() },
            e => Error::system("make the folder of", path.as_bytes(), e),
        })?;
        Ok((folder, name))
    }

    /// Creates a folder and its parents where they do not exist yet.
    pub fn make_subfolder(&self, path: &RelPath, as_owner: Option<FileOwner>) -> Result<(), Error> {
        match self.make_folder(path.as_bytes(), as_owner) {
            Ok(_) => Ok(()),
            Err(Errno::NOTDIR) => Err(Error::NotAFolder { path: path.to_string() }),
            Err(e) => Err(Error::system("make the folder", path.as_bytes(), e)),
        }
    }

    fn make_folder(&self, path: &[u8], owner: Option<FileOwner>) -> rustix::io::Result<OwnedFd> {
        match open::beneath(self.fd(), path, open::DIRECTORY, LinkPolicy::Refuse) {
            Err(Errno::NOENT) => {}
            done => return done,
        }
        let mut at = open::beneath(self.fd(), b".", open::DIRECTORY, LinkPolicy::Refuse)?;
        for name in path.split(|&b| b == b'/') {
            let made = match make_directory(at.as_fd(), name, NEW_DIRECTORY) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(e) => return Err(e),
            };
            at = open::beneath(at.as_fd(), name, open::DIRECTORY, LinkPolicy::Refuse)?;
            if made {
                give_to(at.as_fd(), owner)?;
            }
        }
        Ok(at)
    }
}

pub(crate) fn make_directory(folder: BorrowedFd<'_>, name: &[u8], mode: u32) -> rustix::io::Result<()> {
    rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(mode))
}

/// Creates a new file; fails if the name exists, even as a link.
fn create_file(folder: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

pub(crate) fn give_to(handle: BorrowedFd<'_>, owner: Option<FileOwner>) -> rustix::io::Result<()> {
    match owner {
        Some(to) => rustix::fs::fchown(handle, Some(Uid::from_raw(to.uid)), Some(Gid::from_raw(to.gid))),
        None => Ok(()),
    }
}

fn fill(mut file: &File, bytes: &mut dyn Read) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut size = 0;
    loop {
        match bytes.read(&mut buffer) {
            Ok(0) => return Ok(size),
            Ok(n) => {
                size += n as u64;
                if buffer[..n].iter().all(|b| *b == 0) {
                    // Holes stay holes: a file that takes no space at its source must not fill the disk here.
                    file.set_len(size)?;
                    file.seek(SeekFrom::End(0))?;
                } else {
                    file.write_all(&buffer[..n])?;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn finish(file: &File, owner: Option<FileOwner>, mode: u32) -> io::Result<()> {
    give_to(file.as_fd(), owner)?;
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
}

/// A new entry under a temporary name; removed on drop unless it was renamed into place.
struct StagedEntry<'a> {
    folder: BorrowedFd<'a>,
    name: String,
}

impl<'a> StagedEntry<'a> {
    fn file(folder: BorrowedFd<'a>) -> io::Result<(StagedEntry<'a>, File)> {
        let name = fresh_name();
        let file = create_file(folder, name.as_bytes())?;
        Ok((StagedEntry { folder, name }, file))
    }

    fn link(folder: BorrowedFd<'a>, target: &[u8], owner: Option<FileOwner>) -> io::Result<StagedEntry<'a>> {
        let name = fresh_name();
        rustix::fs::symlinkat(target, folder, name.as_str())?;
        let beside = StagedEntry { folder, name };
        if let Some(FileOwner { uid, gid }) = owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            let itself = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(folder, beside.name.as_str(), Some(uid), Some(gid), itself)?;
        }
        Ok(beside)
    }

    fn rename(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.folder, self.name.as_str(), self.folder, name)?)
    }
}

impl Drop for StagedEntry<'_> {
    fn drop(&mut self) {
        // After the rename nothing has this name any more.
        let _ = rustix::fs::unlinkat(self.folder, self.name.as_str(), AtFlags::empty());
    }
}

fn fresh_name() -> String {
    format!(".ash-{}.tmp", uuid::Uuid::new_v4().simple())
}
