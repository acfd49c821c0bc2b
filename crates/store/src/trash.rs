//! The trash: purged sessions, hidden from all callers until their rows are deleted. A tombstone proves the purge to
//! other witnesses, so that none of them brings the session back.

use crate::{AuditActor, Result, SessionRow};
use ash_model::{SessionId, SessionRowId, TenantId, Timestamp, remote::SessionTombstone};
use async_trait::async_trait;

/// The tombstone of a session in the trash.
#[derive(Debug, Clone, PartialEq)]
pub struct TombstoneRow {
    /// The session.
    pub session: SessionRowId,
    /// What witnesses are told.
    pub tombstone: SessionTombstone,
    /// Whether the object store has it.
    pub is_uploaded: bool,
}

/// Purging sessions, at first out of sight and then row by row. Each step writes its audit entry.
#[async_trait]
pub trait TrashStore: Send + Sync {
    /// Moves an ended session into the trash: its id is free, and only pseudonymous audit entries speak of it. `false`: it
    /// has not ended, or is in the trash already.
    async fn trash(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<bool>;
    /// Moves a session into the trash, ended or not, because a witness has its tombstone.
    async fn trash_by_tombstone(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<()>;
    /// Sessions that have been in the trash since `before`, without those whose log a fork shares.
    async fn trashed_sessions(&self, before: Timestamp) -> Result<Vec<SessionRow>>;
    /// Sessions that have been in the trash since `before` and whose log a fork shares.
    async fn trashed_parents(&self, before: Timestamp) -> Result<Vec<SessionRowId>>;
    /// Deletes some of what no fork shares of such a parent. `true`: nothing was left to delete.
    async fn forget_unshared(&self, no: SessionRowId) -> Result<bool>;
    /// Deletes some rows of a session in the trash. `true`: nothing is left of it.
    async fn purge(&self, no: SessionRowId, at: Timestamp) -> Result<bool>;
    /// The tombstones of all sessions in the trash.
    async fn tombstones(&self) -> Result<Vec<TombstoneRow>>;
    /// The tombstone of one session. `None`: it is not in the trash.
    async fn tombstone(&self, no: SessionRowId) -> Result<Option<TombstoneRow>>;
    /// The tombstones of all sessions in the trash that had this id.
    async fn tombstones_of(&self, tenant: &TenantId, id: &SessionId) -> Result<Vec<SessionTombstone>>;
}
