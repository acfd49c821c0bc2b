//! Opens files that we own but may not read. An agent may run `chmod 000`, and without root that locks the server out
//! too. The missing permission is lent through a handle, and given back when the handle is dropped.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use super::mode_loans::{ModeLoanGuard, give_back, in_proc, lend};
use super::{FileAttributes, FileKind, LinkPolicy, open};

/// An opened file or directory, with the permission that was lent for it.
#[derive(Debug)]
pub(crate) struct ForcedHandle {
    pub(crate) handle: OwnedFd,
    /// Its attributes as the owner left them.
    pub(crate) is: FileAttributes,
    lent: Option<ModeLoanGuard>,
}

impl ForcedHandle {
    /// Keeps the lent permission, for an entry that is about to be removed.
    pub(super) fn keep(mut self) -> ForcedHandle {
        self.lent = None;
        self
    }

    /// Wraps a handle that opened without a loan.
    pub(crate) fn of(handle: OwnedFd) -> Result<ForcedHandle> {
        ForcedHandle::again(handle, None)
    }

    /// Wraps a directory that was reopened, with the permission that is still lent for it.
    pub(super) fn again(handle: OwnedFd, lent: Option<ModeLoanGuard>) -> Result<ForcedHandle> {
        let is = FileAttributes::of(&handle)?;
        Ok(ForcedHandle { handle, is, lent })
    }

    /// Closes the handle and passes on the duty to restore the mode.
    pub(super) fn close(mut self) -> Option<ModeLoanGuard> {
        self.lent.take()
    }
}

impl Drop for ForcedHandle {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take() {
            give_back(self.handle.as_fd(), lent);
        }
    }
}

/// Opens a directory beneath `folder`, lending ourselves the owner's bits in `need`.
pub(super) fn directory(folder: BorrowedFd<'_>, name: &[u8], need: u32) -> Result<ForcedHandle> {
    match open::beneath(folder, name, open::DIRECTORY, LinkPolicy::Refuse) {
        Ok(handle) => {
            let is = FileAttributes::of(&handle)?;
            let lent = lend(handle.as_fd(), &is, need)?;
            Ok(ForcedHandle { handle, is, lent })
        }
        Err(Errno::ACCESS) => {
            let handle = open::beneath(folder, name, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse)?;
            let is = FileAttributes::of(&handle)?;
            let lent = Some(lend(handle.as_fd(), &is, need)?.ok_or(Errno::ACCESS)?);
            match rustix::fs::openat(&handle, c".", open::DIRECTORY, Mode::empty()) {
                Ok(handle) => Ok(ForcedHandle { handle, is, lent }),
                Err(e) => {
                    drop(ForcedHandle { handle, is, lent });
                    Err(e)
                }
            }
        }
        Err(e) => Err(e),
    }
}

/// Opens a directory with permission to list and enter it.
pub(crate) fn force_directory(folder: BorrowedFd<'_>, name: &[u8]) -> Result<ForcedHandle> {
    directory(folder, name, 0o500)
}

/// Opens a regular file to read; anything else is refused with EINVAL.
pub(crate) fn open_to_read(folder: BorrowedFd<'_>, name: &[u8]) -> Result<(File, ForcedHandle)> {
    let path_only = open::beneath(folder, name, OFlags::PATH | OFlags::NOFOLLOW, LinkPolicy::Refuse)?;
    let is = FileAttributes::of(&path_only)?;
    if is.kind != FileKind::File {
        return Err(Errno::INVAL);
    }
    match reopen(path_only.as_fd()) {
        Ok(file) => Ok((file, ForcedHandle { handle: path_only, is, lent: None })),
        Err(Errno::ACCESS) => {
            let lent = Some(lend(path_only.as_fd(), &is, 0o400)?.ok_or(Errno::ACCESS)?);
            let forced = ForcedHandle { handle: path_only, is, lent };
            Ok((reopen(forced.handle.as_fd())?, forced))
        }
        Err(e) => Err(e),
    }
}

/// Opens the root of a folder. The root belongs to the host, so permissions that the sandbox removed are restored
/// permanently.
pub(super) fn open_root(path: &Path) -> Result<OwnedFd> {
    let flags = open::DIRECTORY | OFlags::NOFOLLOW;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = rustix::fs::open(path, how, Mode::empty())?;
            lend(handle.as_fd(), &FileAttributes::of(&handle)?, 0o700)?;
            rustix::fs::openat(handle, c".", open::DIRECTORY, Mode::empty())
        }
        done => done,
    }
}

/// Does the same for a directory of the host beneath another one; a link in its place is not followed.
pub(super) fn open_child(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    match open::beneath(folder, name, open::DIRECTORY, LinkPolicy::Refuse) {
        Err(Errno::ACCESS) => {
            let handle = open::beneath(folder, name, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse)?;
            lend(handle.as_fd(), &FileAttributes::of(&handle)?, 0o700)?;
            rustix::fs::openat(handle, c".", open::DIRECTORY, Mode::empty())
        }
        done => done,
    }
}

fn reopen(handle: BorrowedFd<'_>) -> Result<File> {
    rustix::fs::open(in_proc(handle), open::FILE, Mode::empty()).map(File::from)
}
