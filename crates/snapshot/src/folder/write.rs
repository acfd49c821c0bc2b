//! Writing one file into a folder somebody else may be writing to: beside, then over, never through.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{Attributes, Folder, Kind, Links, Owner, open};
use crate::{Error, RelPath};

const BUFFER: usize = 1 << 20;
const NEW_DIRECTORY: u32 = 0o755;

impl Folder {
    /// Writes a whole file and returns its size. Readers see the old file or the new one. Missing directories
    /// are made; a link in the last place is replaced, one before it is refused. A file that exists keeps its
    /// mode; other names of it (hard links) keep the old content.
    pub fn write_file(
        &self,
        path: &RelPath,
        bytes: &mut dyn Read,
        as_owner: Option<Owner>,
        mode: u32,
    ) -> Result<u64, Error> {
        let (folder, name) = path.split();
        let folder = self.make_folder(folder, as_owner).map_err(|e| match e {
            Errno::NOTDIR => Error::NotAFolder { path: path.to_string() },
            e => Error::system("make the folder of", path.as_bytes(), e),
        })?;
        let mode = match Attributes::at(&folder, name) {
            Ok(is) if is.kind == Kind::Dir => return Err(Error::NotAFile { path: path.to_string() }),
            Ok(is) if is.kind == Kind::File => is.mode(),
            Ok(_) | Err(_) => mode & 0o777,
        };
        let failed = |e: io::Error| Error::system("write", path.as_bytes(), e);
        let beside = Beside::create(folder.as_fd()).map_err(failed)?;
        let size = beside.fill(bytes).map_err(failed)?;
        beside.finish(as_owner, mode).map_err(failed)?;
        beside.rename(name).map_err(failed)?;
        Ok(size)
    }

    fn make_folder(&self, path: &[u8], owner: Option<Owner>) -> rustix::io::Result<OwnedFd> {
        match open::beneath(self.fd(), path, open::DIRECTORY, Links::Refuse) {
            Err(Errno::NOENT) => {}
            done => return done,
        }
        let mut at = open::beneath(self.fd(), b".", open::DIRECTORY, Links::Refuse)?;
        for name in path.split(|&b| b == b'/') {
            let made = match make_directory(at.as_fd(), name, NEW_DIRECTORY) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(e) => return Err(e),
            };
            at = open::beneath(at.as_fd(), name, open::DIRECTORY, Links::Refuse)?;
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

/// A new file and no other: neither an existing one nor through a link.
pub(crate) fn create_file(folder: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

pub(crate) fn give_to(handle: BorrowedFd<'_>, owner: Option<Owner>) -> rustix::io::Result<()> {
    match owner {
        Some(to) => rustix::fs::fchown(handle, Some(Uid::from_raw(to.uid)), Some(Gid::from_raw(to.gid))),
        None => Ok(()),
    }
}

/// The new file under a name of its own; removed again unless it is renamed to its place.
struct Beside<'a> {
    folder: BorrowedFd<'a>,
    name: String,
    file: File,
}

impl<'a> Beside<'a> {
    fn create(folder: BorrowedFd<'a>) -> io::Result<Beside<'a>> {
        let name = format!(".ash-{}.tmp", uuid::Uuid::new_v4().simple());
        let file = create_file(folder, name.as_bytes())?;
        Ok(Beside { folder, name, file })
    }

    fn fill(&self, bytes: &mut dyn Read) -> io::Result<u64> {
        let mut buffer = vec![0; BUFFER];
        let mut size = 0;
        loop {
            match bytes.read(&mut buffer) {
                Ok(0) => return Ok(size),
                Ok(n) => {
                    (&self.file).write_all(&buffer[..n])?;
                    size += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn finish(&self, owner: Option<Owner>, mode: u32) -> io::Result<()> {
        give_to(self.file.as_fd(), owner)?;
        Ok(rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?)
    }

    fn rename(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.folder, self.name.as_str(), self.folder, name)?)
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        // Renamed, there is nothing under this name any more.
        let _ = rustix::fs::unlinkat(self.folder, self.name.as_str(), AtFlags::empty());
    }
}
