//! What can go wrong with files. The variant holds the cause; [`Trouble`] says what a caller can do about it.

use std::io;

use rustix::io::Errno;

use crate::BadPath;

/// Why something with folders, snapshots or packs did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is there.
    #[error("there is no {path:?}")]
    NotFound {
        /// The path, beneath its folder.
        path: String,
    },
    /// It is something else than a file.
    #[error("{path:?} is not a regular file")]
    NotAFile {
        /// The path, beneath its folder.
        path: String,
    },
    /// The path goes through something that is no folder.
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
    /// The text is no path beneath a folder.
    #[error(transparent)]
    BadPath(#[from] BadPath),
    /// The disk, or a quota on it, has no room.
    #[error("no space left to {what} {path:?}")]
    Full {
        /// What was being done.
        what: &'static str,
        /// Where.
        path: String,
        /// What the system says.
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
    /// A file cannot be read, so that no snapshot can hold it.
    #[error("{path:?} cannot be read: {why}")]
    Unreadable {
        /// The path, beneath its folder.
        path: String,
        /// Why not.
        why: String,
    },
    /// Nothing is damaged: it may work again later.
    #[error("pack {pack} is far away and cannot be reached")]
    Far {
        /// The pack's name.
        pack: String,
        /// What the system or the object store says.
        source: io::Error,
    },
    /// The pack is sealed with a key that is not at hand.
    #[error("pack {pack} is sealed with a key we do not have")]
    Sealed {
        /// The pack's name.
        pack: String,
    },
    /// Another process works with it.
    #[error("another process is at work in {path:?}; wait until it is done")]
    InUse {
        /// The path of the repository.
        path: String,
    },
    /// The file system failed.
    #[error("could not {what} {path:?}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Where.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

/// The kinds of [`Error`]: one table from these to a status code is all a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotErrorKind {
    /// It is not there.
    NotFound,
    /// It is something else than was asked for.
    NotAFile,
    /// The request is wrong: a bad path, or one that leads outside.
    Invalid,
    /// The disk or the quota is full; it may work again later.
    Full,
    /// What was written cannot be read back.
    Damaged,
    /// Anything else that the system says.
    Io,
}

impl Error {
    /// What the failure asks of the caller.
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

    /// An error of the system while doing `what` to `path`.
    pub(crate) fn system(what: &'static str, path: &[u8], cause: impl Into<io::Error>) -> Error {
        let source = cause.into();
        let path = shown(path);
        match errno(&source) {
            Some(Errno::NOENT | Errno::NOTDIR) => Error::NotFound { path },
            Some(Errno::LOOP | Errno::XDEV) => Error::Outside { path },
            // NXIO: what opening a socket gives.
            Some(Errno::ISDIR | Errno::NXIO) => Error::NotAFile { path },
            Some(Errno::NOSPC | Errno::DQUOT) => Error::Full { what, path, source },
            Some(_) | None => Error::Io { what, path, source },
        }
    }
}

pub(crate) fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

/// Names are bytes; a message to a person is text.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
