//! Workspaces with a name, which several sessions can share.

use crate::{Error, Result, Sessions};
use ash_model::{AgentName, Slug, Timestamp};
use ash_store::{AccessScope, AuditActor, Checkpoint, SessionRow, Store, WorkspaceRow, WorkspaceSession};
use std::sync::Arc;

/// The named workspaces of all tenants.
#[derive(Clone)]
pub struct Workspaces {
    store: Arc<dyn Store>,
    /// Its sessions leave a workspace before it is deleted.
    sessions: Sessions,
}

impl Workspaces {
    pub fn new(store: Arc<dyn Store>, sessions: Sessions) -> Workspaces {
        Workspaces { store, sessions }
    }

    /// By the wall clock.
    pub fn now(&self) -> Timestamp {
        self.sessions.now()
    }

    /// Creates the workspace, or returns the existing one. It belongs to one agent and one owner.
    pub async fn make(&self, scope: &AccessScope, slug: &Slug, agent: &AgentName) -> Result<WorkspaceRow> {
        self.sessions.make_workspace(scope, slug, agent).await
    }

    pub async fn list(&self, scope: &AccessScope) -> Result<Vec<WorkspaceRow>> {
        Ok(self.store.workspaces(scope).await?)
    }

    pub async fn find(&self, scope: &AccessScope, slug: &Slug) -> Result<WorkspaceRow> {
        let found = self.store.find_workspace(scope, slug).await?;
        found.ok_or_else(|| Error::NoSuchWorkspace(slug.clone()))
    }

    /// The sessions that share it, including ended ones. Purged sessions are named nowhere.
    pub async fn sessions_in(&self, workspace: &WorkspaceRow) -> Result<Vec<SessionRow>> {
        let mut sessions = Vec::new();
        for WorkspaceSession { no, purged, .. } in self.store.workspace_sessions(workspace.id).await? {
            if !purged {
                sessions.push(self.sessions.get(no).await?);
            }
        }
        Ok(sessions)
    }

    /// The newest first.
    pub async fn checkpoints(
        &self,
        workspace: &WorkspaceRow,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Checkpoint>> {
        Ok(self.store.checkpoints(workspace.id, before, limit).await?)
    }

    pub async fn delete(&self, workspace: &WorkspaceRow, by: AuditActor) -> Result<()> {
        self.sessions.delete_workspace(workspace, by).await
    }
}
