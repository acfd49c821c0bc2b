//! What can go wrong in a store, and what kind of failure that is for a caller.

use ash_model::{AgentName, FailureKind, Slug};

/// The result of every call of a store.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a store did not do what was asked. Nothing was written then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database failed in a way that no other variant describes.
    #[error("{0}")]
    Database(sqlx::Error),
    /// A migration failed, so the database cannot be opened by this version.
    #[error("the database cannot be brought up to date: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// The disk has no space for the write.
    #[error("the disk is full: nothing was written; free some space")]
    Full,
    /// Another server owns the workspace now, or the row changed since it was read. The caller stops writing.
    #[error("this server no longer owns the workspace")]
    Stale,
    /// The named thing exists already.
    #[error("{0} is taken")]
    Taken(String),
    /// Another owner has a workspace of this name. The caller learns nothing else about it.
    #[error("Workspace name \"{0}\" is taken; choose another")]
    SlugTaken(Slug),
    /// The workspace is being deleted and accepts no new session.
    #[error("Workspace \"{0}\" is being deleted; try again when it is gone")]
    Deleting(Slug),
    /// The workspace belongs to a different agent than the one that the caller named.
    #[error("Workspace \"{slug}\" belongs to agent \"{agent}\"; name that one, or another workspace")]
    OtherAgent {
        /// The name of the workspace.
        slug: Slug,
        /// The agent that it belongs to.
        agent: AgentName,
    },
    /// The files of this checkpoint were deleted by a retention rule. No session can be moved to it.
    #[error("Checkpoint {0} was removed by the rules for keeping checkpoints")]
    Removed(u64),
    /// A stored value does not have the form that this version expects.
    #[error("row {what} cannot be read: {why}")]
    Damaged {
        /// The column or the kind of row.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A sealed value cannot be decrypted with this server's key.
    #[error("the secret cannot be unsealed: was it written with another seal.key?")]
    Sealed,
    /// The store was closed while or before the call was made.
    #[error("The server has stopped; send it again when it is back")]
    Closed,
    /// The linked SQLite has a bug that can lose committed data.
    #[error("SQLite {found} is older than {needed}, which fixes a loss of data")]
    TooOld {
        /// The version that is linked.
        found: String,
        /// The first version without the bug.
        needed: &'static str,
    },
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Error {
        match error {
            sqlx::Error::PoolClosed => Error::Closed,
            error => Error::Database(error),
        }
    }
}

impl Error {
    /// The kind of failure, from which the HTTP status and the exit code follow.
    pub fn kind(&self) -> FailureKind {
        match self {
            Error::Full | Error::Closed => FailureKind::Unavailable,
            Error::Stale
            | Error::Taken(_)
            | Error::SlugTaken(_)
            | Error::Deleting(_)
            | Error::OtherAgent { .. } => FailureKind::Conflict,
            Error::Removed(_) => FailureKind::Gone,
            Error::Database(_)
            | Error::Migration(_)
            | Error::Damaged { .. }
            | Error::Sealed
            | Error::TooOld { .. } => FailureKind::Internal,
        }
    }
}
