//! File handles: how the kernel identifies an object, independent of its names and moves.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::folder::FileAttributes;

/// The kernel's `struct file_handle`, byte for byte. The code compares and hashes it, and never decodes it.
pub(super) type FileHandle = Box<[u8]>;

const HEAD: usize = 8;
const WORDS: usize = (HEAD + libc::MAX_HANDLE_SZ as usize) / 4;

/// The mount through which handles are opened.
pub(super) struct HandleMount {
    at: OwnedFd,
    id: i32,
}

/// An object on this mount, or on another one.
pub(super) enum HandleLookup {
    Here(FileHandle),
    ElseWhere,
}

impl HandleMount {
    /// The mount that a directory is on.
    pub(super) fn of(at: OwnedFd) -> Result<HandleMount> {
        let (handle, id) = handle_at(at.as_fd(), b"")?;
        let mount = HandleMount { at, id };
        // Fail now if handles cannot be opened here, because then no event can be resolved.
        mount.open(&handle)?;
        Ok(mount)
    }

    pub(super) fn handle_of(&self, thing: BorrowedFd<'_>) -> Result<HandleLookup> {
        let (handle, id) = handle_at(thing, b"")?;
        Ok(if id == self.id { HandleLookup::Here(handle) } else { HandleLookup::ElseWhere })
    }

    /// Opens an object as a path only, without access to its content. STALE: the object no longer exists.
    pub(super) fn open(&self, handle: &[u8]) -> Result<OwnedFd> {
        let mut aligned = [0u32; WORDS];
        for (word, bytes) in aligned.iter_mut().zip(handle.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_ne_bytes(four);
        }
        let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: the buffer is aligned, holds the largest handle there is, and outlives the call; a returned
        // descriptor is new.
        unsafe {
            match libc::open_by_handle_at(self.at.as_raw_fd(), aligned.as_mut_ptr().cast(), flags) {
                fd if fd < 0 => Err(last_error()),
                fd => Ok(OwnedFd::from_raw_fd(fd)),
            }
        }
    }

    /// The inode number of an object that still has a name somewhere.
    pub(super) fn inode_of_living(&self, handle: &[u8]) -> Result<Option<u64>> {
        match self.open(handle).and_then(FileAttributes::of) {
            Ok(is) if is.names > 0 => Ok(Some(is.id.1)),
            Ok(_) | Err(Errno::STALE | Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.at.as_fd()
    }
}

/// The handle of the object that has this name now; links are not followed.
pub(super) fn named(dir: BorrowedFd<'_>, name: &[u8]) -> Result<FileHandle> {
    handle_at(dir, name).map(|(handle, _)| handle)
}

/// The parent directory.
pub(super) fn above(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::fs::openat(dir, c"..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn handle_at(at: BorrowedFd<'_>, name: &[u8]) -> Result<(FileHandle, i32)> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut aligned = [0u32; WORDS];
    aligned[0] = libc::MAX_HANDLE_SZ as u32;
    let mut mount = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: the name ends with NUL; the buffer is aligned and as large as its first word says.
    let done = unsafe {
        let buffer = aligned.as_mut_ptr().cast();
        libc::name_to_handle_at(at.as_raw_fd(), name.as_ptr(), buffer, &mut mount, flags)
    };
    if done != 0 {
        return Err(last_error());
    }
    let length = HEAD + aligned[0] as usize;
    let bytes = aligned.iter().flat_map(|word| word.to_ne_bytes()).take(length);
    Ok((bytes.collect(), mount))
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
