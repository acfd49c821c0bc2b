//! What can go wrong with replication and restore. Clients of the API see these sentences and codes.

use ash_cloud::{BucketError, BucketErrorCode};
use ash_model::FailureKind;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] ash_store::Error),
    #[error(transparent)]
    Snapshot(#[from] ash_snapshot::Error),
    #[error("The object store: {0}")]
    Bucket(BucketError),
    /// An object or a pack differs from what was written.
    #[error("{0}")]
    Damaged(String),
    /// A tenant's repository is sealed, and its key is missing or unreadable.
    #[error("{0}")]
    EncryptionKey(String),
    #[error("Session not found")]
    NoSession,
    #[error(
        "The turn is over and saved here, but was not in the object store within {seconds} s; it will be sent as soon as that works. {why}"
    )]
    NotUploaded { seconds: u64, why: String },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    /// The server stopped, and with it the thread that did the work.
    #[error("the work was stopped before it was done; ask again")]
    Interrupted,
}

impl Error {
    pub fn kind(&self) -> FailureKind {
        match self {
            Error::Store(error) => error.kind(),
            Error::Bucket(_)
            | Error::NotUploaded { .. }
            | Error::Interrupted
            | Error::Snapshot(ash_snapshot::Error::Far { .. } | ash_snapshot::Error::Full { .. }) => {
                FailureKind::Unavailable
            }
            Error::EncryptionKey(_) => FailureKind::Unprocessable,
            Error::NoSession => FailureKind::NotFound,
            Error::Snapshot(_) | Error::Damaged(_) | Error::Io { .. } => FailureKind::Internal,
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            Error::Bucket(_) | Error::Snapshot(ash_snapshot::Error::Far { .. }) => "object_store_failed",
            Error::Damaged(_) => "object_store_damaged",
            Error::EncryptionKey(_) => "snapshot_key_missing",
            Error::NotUploaded { .. } => "not_remote",
            Error::NoSession => "session_not_found",
            Error::Interrupted => "try_again",
            Error::Store(_) => "store_failed",
            Error::Snapshot(_) => "snapshot_failed",
            Error::Io { .. } => "io_failed",
        }
    }

    /// The object store did not answer in time.
    pub fn no_answer(within: Duration) -> Error {
        let sentence = format!("it did not answer within {} s", within.as_secs());
        Error::Bucket(BucketError::new(BucketErrorCode::Unreachable, sentence))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
