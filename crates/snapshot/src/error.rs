//! What can go wrong with files. The variant holds the cause; [`Trouble`] says what a caller can do about it.

use std::io;

use rustix::io::Errno;

use crate::BadPath;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no {path:?}")]
    NotFound { path: String },
    #[error("{path:?} is not a regular file")]
    NotAFile { path: String },
    #[error("{path:?} goes through something that is not a folder")]
    NotAFolder { path: String },
    #[error("{path:?} leads through a link or outside its folder")]
    Outside { path: String },
    #[error("the folder for {path:?} is not empty")]
    NotEmpty { path: String },
    #[error(transparent)]
    BadPath(#[from] BadPath),
    #[error("no space left to {what} {path:?}")]
    Full { what: &'static str, path: String, source: io::Error },
    #[error("snapshot {tree} is damaged: {what}")]
    Damaged { tree: String, what: String },
    #[error("{path:?} cannot be read: {why}")]
    Unreadable { path: String, why: String },
    /// Nothing is damaged: it may work again later.
    #[error("pack {pack} is far away and cannot be reached")]
    Far { pack: String, source: io::Error },
    #[error("pack {pack} is sealed with a key we do not have")]
    Sealed { pack: String },
    #[error("another process is at work in {path:?}; wait until it is done")]
    InUse { path: String },
    #[error("could not {what} {path:?}")]
    Io { what: &'static str, path: String, source: io::Error },
}

/// The kinds of [`Error`]: one table from these to a status code is all a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotErrorKind {
    NotFound,
    NotAFile,
    /// The request is wrong: a bad path, or one that leads outside.
    Invalid,
    /// The disk or the quota is full; it may work again later.
    Full,
    Damaged,
    Io,
}

impl Error {
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
