//! Opening what we own but may not read. Agents do `chmod 000`; as an ordinary user that shuts us out too.
//! The permission is lent through a handle and given back when the handle is dropped.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use super::{Attributes, Kind, Links, open};

/// Something opened by force, with the mode it had; `None` if no force was needed.
#[derive(Debug)]
pub(crate) struct Forced {
    pub(crate) handle: OwnedFd,
    /// As it was before anything was lent.
    pub(crate) is: Attributes,
    lent: Option<u32>,
}

impl Forced {
    /// Keeps the lent permission: for what is about to be removed.
    pub(super) fn keep(mut self) -> Forced {
        self.lent = None;
        self
    }

    /// Something that opened without force.
    pub(crate) fn of(handle: OwnedFd) -> Result<Forced> {
        Forced::again(handle, None)
    }

    /// A directory reached again, with what is still lent for it.
    pub(super) fn again(handle: OwnedFd, lent: Option<u32>) -> Result<Forced> {
        let is = Attributes::of(&handle)?;
        Ok(Forced { handle, is, lent })
    }

    /// Closes the handle and hands on the duty to give the mode back.
    pub(super) fn close(mut self) -> Option<u32> {
        self.lent.take()
    }
}

impl Drop for Forced {
    fn drop(&mut self) {
        if let Some(mode) = self.lent {
            give_back(self.handle.as_fd(), mode);
        }
    }
}

/// Opens a directory beneath `folder`, lending ourselves the owner's bits in `need`.
pub(super) fn directory(folder: BorrowedFd<'_>, name: &[u8], need: u32) -> Result<Forced> {
    match open::beneath(folder, name, open::DIRECTORY, Links::Refuse) {
        Ok(handle) => {
            let is = Attributes::of(&handle)?;
            let lent = lend(handle.as_fd(), &is, need)?;
            Ok(Forced { handle, is, lent })
        }
        Err(Errno::ACCESS) => {
            let handle = open::beneath(folder, name, OFlags::PATH | OFlags::DIRECTORY, Links::Refuse)?;
            let is = Attributes::of(&handle)?;
            let lent = Some(lend(handle.as_fd(), &is, need)?.ok_or(Errno::ACCESS)?);
            match rustix::fs::openat(&handle, c".", open::DIRECTORY, Mode::empty()) {
                Ok(handle) => Ok(Forced { handle, is, lent }),
                Err(e) => {
                    drop(Forced { handle, is, lent });
                    Err(e)
                }
            }
        }
        Err(e) => Err(e),
    }
}

/// A directory of which everything can be read.
pub(crate) fn force_directory(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Forced> {
    directory(folder, name, 0o500)
}

/// Opens a regular file to read; anything else is refused with EINVAL.
pub(crate) fn open_to_read(folder: BorrowedFd<'_>, name: &[u8]) -> Result<(File, Forced)> {
    let path_only = open::beneath(folder, name, OFlags::PATH | OFlags::NOFOLLOW, Links::Refuse)?;
    let is = Attributes::of(&path_only)?;
    if is.kind != Kind::File {
        return Err(Errno::INVAL);
    }
    match reopen(path_only.as_fd()) {
        Ok(file) => Ok((file, Forced { handle: path_only, is, lent: None })),
        Err(Errno::ACCESS) => {
            let lent = Some(lend(path_only.as_fd(), &is, 0o400)?.ok_or(Errno::ACCESS)?);
            let forced = Forced { handle: path_only, is, lent };
            Ok((reopen(forced.handle.as_fd())?, forced))
        }
        Err(e) => Err(e),
    }
}

/// The root of a folder is ours: what its inhabitant took from us is taken back for good.
pub(super) fn open_root(path: &Path) -> Result<OwnedFd> {
    let flags = open::DIRECTORY | OFlags::NOFOLLOW;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = rustix::fs::open(path, how, Mode::empty())?;
            lend(handle.as_fd(), &Attributes::of(&handle)?, 0o700)?;
            rustix::fs::openat(handle, c".", open::DIRECTORY, Mode::empty())
        }
        done => done,
    }
}

/// The mode to give back, or `None` if nothing was lent. Root needs no permission bits, and what belongs to
/// somebody else is not ours to change.
fn lend(handle: BorrowedFd<'_>, is: &Attributes, need: u32) -> Result<Option<u32>> {
    if is.raw_mode & need == need {
        return Ok(None);
    }
    let we = rustix::process::geteuid();
    if we.is_root() || we.as_raw() != is.uid {
        return Ok(None);
    }
    change_mode(handle, is.raw_mode | need)?;
    Ok(Some(is.raw_mode))
}

fn give_back(handle: BorrowedFd<'_>, mode: u32) {
    if let Err(error) = change_mode(handle, mode) {
        tracing::warn!(%error, mode, "a permission lent for reading could not be given back");
    }
}

/// The magic link in /proc is this very handle, whatever has its name by now; fchmod refuses O_PATH handles.
fn change_mode(handle: BorrowedFd<'_>, mode: u32) -> Result<()> {
    rustix::fs::chmod(in_proc(handle), Mode::from_raw_mode(mode))
}

fn reopen(handle: BorrowedFd<'_>) -> Result<File> {
    rustix::fs::open(in_proc(handle), open::FILE, Mode::empty()).map(File::from)
}

fn in_proc(handle: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}
