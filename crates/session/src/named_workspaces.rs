//! Workspaces with a name, which several sessions can share.

use crate::{Error, Result, Sessions, blocking};
use ash_model::{AgentName, SessionStatus, Slug, Timestamp, WorkspaceId};
use ash_store::{
    AccessScope, AuditActor, Checkpoint, NewWorkspaceRow, SessionRow, Store, WorkspaceRow, WorkspaceSession,
};
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

    /// The sessions that share it, including ended ones.
    pub async fn sessions_in(&self, workspace: &WorkspaceRow) -> Result<Vec<SessionRow>> {
        let mut sessions = Vec::new();
        for WorkspaceSession { no, .. } in self.store.workspace_sessions(workspace.id).await? {
            sessions.push(self.sessions.get(no).await?);
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

impl Sessions {
    /// Creates the workspace, or returns the existing one. It belongs to one agent and one owner.
    pub(crate) async fn make_workspace(
        &self,
        AccessScope { tenant, owner }: &AccessScope,
        slug: &Slug,
        agent: &AgentName,
    ) -> Result<WorkspaceRow> {
        let rooms = self.rooms();
        rooms.store.agent(tenant, agent).await?.ok_or_else(|| Error::NoAgent(agent.to_string()))?;
        let new = NewWorkspaceRow {
            id: WorkspaceId::fresh(),
            tenant: tenant.clone(),
            owner: owner.clone(),
            slug: slug.clone(),
            agent: agent.clone(),
            node: rooms.settings.node.clone(),
            at: rooms.clock(),
        };
        Ok(rooms.store.make_workspace(new).await?)
    }

    /// Deletes the sandbox first, then the data, then the name: after a crash the next start continues.
    pub(crate) async fn delete_workspace(&self, workspace: &WorkspaceRow, by: AuditActor) -> Result<()> {
        let rooms = self.rooms();
        ash_failpoint::reach_async("delete.asked").await;
        rooms.store.begin_deleting(workspace.id, rooms.clock(), by).await?;
        ash_failpoint::reach_async("delete.begun").await;
        for WorkspaceSession { no, status } in rooms.store.workspace_sessions(workspace.id).await? {
            if status != SessionStatus::Ended {
                self.release(no, true).await?;
            }
        }
        ash_failpoint::reach_async("delete.released").await;
        let common = rooms.workspace(workspace.id);
        let _floor = common.exclusive().await;
        // Clients get no path to the tree any more.
        common.set_tree(None);
        let (live, here) = (common.live.clone(), rooms.clone());
        blocking(move || {
            ash_sandbox::reap(&live.run())?;
            live.erase(&here.uids)
        })
        .await?;
        ash_failpoint::reach_async("delete.erased").await;
        rooms.store.finish_deleting(workspace.id, rooms.clock()).await?;
        ash_failpoint::reach_async("delete.recorded").await;
        tracing::info!(workspace = %workspace.slug, tenant = %workspace.tenant, "deleted");
        Ok(())
    }

    /// Continues deletions that a crash interrupted. One that fails delays nothing else, and is repeated at the next
    /// start.
    pub(crate) async fn go_on_deleting(&self) -> Result<()> {
        for workspace in self.rooms().store.workspaces_being_deleted().await? {
            // The audit names the caller since the deletion began.
            if let Err(error) = self.delete_workspace(&workspace, AuditActor::default()).await {
                tracing::error!(workspace = %workspace.slug, tenant = %workspace.tenant, %error, "could not be deleted");
            }
        }
        Ok(())
    }
}
