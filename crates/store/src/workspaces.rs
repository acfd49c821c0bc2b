//! Named workspaces, which several sessions share.

use crate::{AccessScope, AuditActor, Result};
use ash_model::{AgentName, OwnerId, Slug, TenantId, Timestamp, WorkspaceId};
use async_trait::async_trait;

/// A named workspace as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceRow {
    /// The workspace.
    pub id: WorkspaceId,
    /// The tenant that has it.
    pub tenant: TenantId,
    /// The owner in the tenant.
    pub owner: Option<OwnerId>,
    /// Its name, unique in the tenant.
    pub slug: Slug,
    /// The agent that its sessions run.
    pub agent: AgentName,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its deletion has begun; its files may be gone already.
    pub deleting: bool,
    /// How many sessions it has.
    pub sessions: u64,
    /// Its newest checkpoint.
    pub checkpoint: Option<u64>,
}

/// A named workspace to create, or to find if it exists.
#[derive(Debug, Clone)]
pub struct NewWorkspaceRow {
    /// The id for a new one.
    pub id: WorkspaceId,
    /// The tenant.
    pub tenant: TenantId,
    /// The owner. An existing workspace must be this owner's; `None` accepts every owner's.
    pub owner: Option<OwnerId>,
    /// The name.
    pub slug: Slug,
    /// The agent. An existing workspace must be of the same one.
    pub agent: AgentName,
    /// The server that holds a new one.
    pub node: String,
    /// When it is created.
    pub at: Timestamp,
}

/// Named workspaces: creating, finding and deleting them.
#[async_trait]
pub trait WorkspaceStore: Send + Sync {
    /// Creates a workspace, or answers the existing one of this name. Fails if that is another owner's or agent's, or is
    /// being deleted.
    async fn make_workspace(&self, new: NewWorkspaceRow) -> Result<WorkspaceRow>;
    /// The workspace of this name in the scope.
    async fn find_workspace(&self, scope: &AccessScope, slug: &Slug) -> Result<Option<WorkspaceRow>>;
    /// All workspaces in the scope, by name.
    async fn workspaces(&self, scope: &AccessScope) -> Result<Vec<WorkspaceRow>>;
    /// The workspaces of all tenants whose deletion has begun and not finished.
    async fn workspaces_being_deleted(&self) -> Result<Vec<WorkspaceRow>>;
    /// Refuses new sessions in it from now on, and writes the audit entry. A second call changes nothing.
    async fn begin_deleting(&self, id: WorkspaceId, at: Timestamp, by: AuditActor) -> Result<()>;
    /// Its files are gone: frees its name, and marks its checkpoints as removed.
    async fn finish_deleting(&self, id: WorkspaceId, at: Timestamp) -> Result<()>;
}
