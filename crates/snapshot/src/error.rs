//! What can go wrong with files. The variant holds the cause; [`SnapshotErrorKind`] says what a caller can do about it.

use std::io;

use rustix::io::Errno;

use crate::BadPath;

/// Why an operation on folders, snapshots or packs failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing exists at the path.
    #[error("there is no {path:?}")]
    NotFound {
        /// The path, beneath its folder.
        path: String,
    },
    /// The path leads to something other than a file.
    #[error("{path:?} is not a regular file")]
    NotAFile {
        /// The path, beneath its folder.
        path: String,
    },
    /// A component of the path is not a folder.
    #[error("{path:?} goes through something that is not a folder")]
    NotAFolder {
        /// The path, beneath its folder.
        path: String,
    },
    /// A link or a mount leads out of the folder.
    #[error("{path:?} leads through a link or outside its folder")]
    Outside {
        /// The path, beneath its folder.
        path: String,
    },
    /// The folder to restore into is not empty.
    #[error("the folder for {path:?} is not empty")]
    NotEmpty {
        /// The path of that folder.
        path: String,
    },
    /// The text is not a valid path beneath a folder.
    #[error(transparent)]
    BadPath(#[from] BadPath),
    /// The disk, or a quota on it, is full.
    #[error("no space left to {what} {path:?}")]
    Full {
        /// The operation that failed.
        what: &'static str,
        /// Where it failed.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A snapshot cannot be read back as it was written.
    #[error("snapshot {tree} is damaged: {what}")]
    Damaged {
        /// The id of the snapshot, or of the pack.
        tree: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file cannot be read, so no snapshot can hold it.
    #[error("{path:?} cannot be read: {why}")]
    Unreadable {
        /// The path, beneath its folder.
        path: String,
        /// The reason.
        why: String,
    },
    /// The object store cannot be reached. No data is damaged, and a retry may succeed.
    #[error("pack {pack} is far away and cannot be reached")]
    Far {
        /// The pack's name.
        pack: String,
        /// The error of the operating system or of the object store.
        source: io::Error,
    },
    /// The pack is sealed with a key that this repository does not have.
    #[error("pack {pack} is sealed with a key we do not have")]
    Sealed {
        /// The pack's name.
        pack: String,
    },
    /// Another process uses the repository.
    #[error("another process is at work in {path:?}; wait until it is done")]
    InUse {
        /// The path of the repository.
        path: String,
    },
    /// The file system failed.
    #[error("could not {what} {path:?}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Where it failed.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The kinds of [`Error`]. A caller needs only one table from kinds to status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotErrorKind {
    /// It does not exist.
    NotFound,
    /// It exists, but is not what the caller asked for.
    NotAFile,
    /// The request is wrong: the path is invalid or leads outside the folder.
    Invalid,
    /// The disk or the quota is full; a retry may succeed later.
    Full,
    /// What was written cannot be read back.
    Damaged,
    /// Any other error of the operating system.
    Io,
}

impl Error {
    /// What the failure means for the caller.
    pub fn kind(&self) -> SnapshotErrorKind {
        match self {
            Error::NotFound { .. } => SnapshotErrorKind::NotFound,
            Error::NotAFile { .. } => SnapshotErrorKind::NotAFile,
            Error::NotAFolder { .. } | Error::Outside { .. } | Error::NotEmpty { .. } | Error::BadPath(_) => {
                SnapshotErrorKind::Invalid
            }
            Error::Full { .. } => SnapshotErrorKind::Full,
            Error::Damaged { .. } | Error::Sealed { .. } => SnapshotErrorKind::Damaged,
            Error::Io { .. } | Error::Far { .. } | Error::InUse { .. } | Error::Unreadable { .. } => {
                SnapshotErrorKind::Io
            }
        }
    }

    /// An error of the operating system while doing `what` to `path`.
    pub(crate) fn system(what: &'static str, path: &[u8], cause: impl Into<io::Error>) -> Error {
        let source = cause.into();
        let path = shown(path);
        match errno(&source) {
            Some(Errno::NOENT | Errno::NOTDIR) => Error::NotFound { path },
            Some(Errno::LOOP | Errno::XDEV) => Error::Outside { path },
            // Opening a socket fails with NXIO.
            Some(Errno::ISDIR | Errno::NXIO) => Error::NotAFile { path },
            Some(Errno::NOSPC | Errno::DQUOT) => Error::Full { what, path, source },
            Some(_) | None => Error::Io { what, path, source },
        }
    }
}

pub(crate) fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

/// File names are bytes; messages for people are text.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
