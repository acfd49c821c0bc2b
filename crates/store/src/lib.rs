//! The store: what happened, in a database. Each subject is a trait in a file of its own; `Store` is all of them. `sqlite` is
//! the first backend. `tests/contract` has the tests that every backend must pass, by subject.
//!
//! The traits suit a remote database: no transaction is borrowed or handed out, so what must be atomic is one method that
//! takes the whole batch as a value.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access_scope;
mod agents;
mod audit;
mod checkpoints;
mod credentials;
mod error;
mod idempotency;
mod keys;
mod leases;
mod log;
mod remote_inventory;
mod repair;
mod replication;
mod retention;
mod seal;
mod sessions;
mod sqlite;
mod trash;
mod usage;
mod workspaces;

pub use access_scope::AccessScope;
pub use agents::{
    AgentRow, AgentStore, AgentVersion, DeployIdempotencyKey, KeptAgentCounts, NewAgentVersion,
};
pub use audit::{AuditAction, AuditActor, AuditEntry, AuditQuery, AuditStore};
pub use checkpoints::{Checkpoint, CheckpointStore, TenantCheckpoint, TenantSnapshots, WorkspaceRewindRow};
pub use credentials::{CredentialStore, StoredCredential};
pub use error::{Error, Result};
pub use idempotency::{IdempotencyClaim, IdempotencyRequest, IdempotencyStore};
pub use keys::{ApiKey, KeyStore};
pub use leases::{Lease, LeaseClaim, LeaseHolder, LeaseStore};
pub use log::{
    EventQuery, LogAppend, LogItem, LogItemContent, LogStore, NumberedMessage, SessionJournalPosition,
    TurnRow, TurnState,
};
pub use remote_inventory::{
    RemoteAgent, RemoteCheckpoint, RemoteInventoryStore, RemotePack, RemoteRetraction, RemoteSession,
    RemoteState, RetractedAgent, RetractedLog,
};
pub use repair::{DivergedFork, HistoryAdoption, RebuiltSession, RepairStore, SessionLogEnd};
pub use replication::{PendingUpload, QueuedDelete, ReplicationLag, ReplicationStore};
pub use retention::{EndDisposition, RetentionStore};
pub use seal::{PURGED, SealingKey, SecretEnv};
pub use sessions::{
    ForkBase, MetadataFilter, NewSessionRow, SealedSessionValues, SessionFilter, SessionListCursor,
    SessionPage, SessionRow, SessionStore, SessionSummary, WorkspaceSession,
};
pub use sqlite::SqliteStore;
pub use trash::{TombstoneRow, TrashStore};
pub use usage::{
    IncarnationUsage, SessionResourceUsage, UsageGrouping, UsageQuery, UsageReportRow, UsageStore,
};
pub use workspaces::{NewWorkspaceRow, WorkspaceRow, WorkspaceStore};

/// Everything that the rest of the program asks of a database. A call that returned `Ok` is durable. Callers that use one
/// subject take its trait instead.
pub trait Store:
    AgentStore
    + AuditStore
    + CheckpointStore
    + CredentialStore
    + IdempotencyStore
    + KeyStore
    + LeaseStore
    + LogStore
    + RemoteInventoryStore
    + RepairStore
    + ReplicationStore
    + RetentionStore
    + SessionStore
    + TrashStore
    + UsageStore
    + WorkspaceStore
{
}

impl<T> Store for T where
    T: AgentStore
        + AuditStore
        + CheckpointStore
        + CredentialStore
        + IdempotencyStore
        + KeyStore
        + LeaseStore
        + LogStore
        + RemoteInventoryStore
        + RepairStore
        + ReplicationStore
        + RetentionStore
        + SessionStore
        + TrashStore
        + UsageStore
        + WorkspaceStore
{
}
