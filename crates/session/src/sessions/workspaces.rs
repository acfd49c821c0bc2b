//! Makes and deletes named workspaces: their sessions leave them first, and a crash in between is continued.

use super::Sessions;
use crate::{Error, Result, blocking};
use ash_model::{AgentName, SessionStatus, Slug, WorkspaceId};
use ash_store::{AccessScope, AuditActor, NewWorkspaceRow, WorkspaceRow, WorkspaceSession};

impl Sessions {
    /// Creates the workspace, or returns the existing one. It belongs to one agent and one owner.
    pub(crate) async fn make_workspace(
        &self,
        AccessScope { tenant, owner }: &AccessScope,
        slug: &Slug,
        agent: &AgentName,
    ) -> Result<WorkspaceRow> {
        let services = self.services();
        services.store.agent(tenant, agent).await?.ok_or_else(|| Error::NoAgent(agent.to_string()))?;
        let new = NewWorkspaceRow {
            id: WorkspaceId::fresh(),
            tenant: tenant.clone(),
            owner: owner.clone(),
            slug: slug.clone(),
            agent: agent.clone(),
            node: services.settings.node.clone(),
            at: services.clock(),
        };
        Ok(services.store.make_workspace(new).await?)
    }

    /// Deletes the sandbox first, then the data, then the name: after a crash the next start continues.
    pub(crate) async fn delete_workspace(&self, workspace: &WorkspaceRow, by: AuditActor) -> Result<()> {
        let services = self.services();
        ash_failpoint::reach_async("delete.asked").await;
        services.store.begin_deleting(workspace.id, services.clock(), by).await?;
        ash_failpoint::reach_async("delete.begun").await;
        for WorkspaceSession { no, status, .. } in services.store.workspace_sessions(workspace.id).await? {
            if status != SessionStatus::Ended {
                self.release(no, true).await?;
            }
        }
        ash_failpoint::reach_async("delete.released").await;
        let shared = services.workspace(workspace.id);
        let _exclusive = shared.exclusive().await;
        // Clients get no path to the tree any more.
        shared.set_tree(None);
        let (live, here) = (shared.live.clone(), services.clone());
        blocking(move || {
            ash_sandbox::reap(&live.run())?;
            live.erase(&here.uids)
        })
        .await?;
        ash_failpoint::reach_async("delete.erased").await;
        services.store.finish_deleting(workspace.id, services.clock()).await?;
        ash_failpoint::reach_async("delete.recorded").await;
        tracing::info!(workspace = %workspace.slug, tenant = %workspace.tenant, "the workspace was deleted");
        Ok(())
    }

    /// Continues deletions that a crash interrupted. A failed deletion delays nothing else; the next start repeats it.
    pub(crate) async fn go_on_deleting(&self) -> Result<()> {
        for workspace in self.services().store.workspaces_being_deleted().await? {
            // The audit names the caller since the deletion began.
            if let Err(error) = self.delete_workspace(&workspace, AuditActor::default()).await {
                tracing::error!(workspace = %workspace.slug, tenant = %workspace.tenant, %error, "the workspace could not be deleted");
            }
        }
        Ok(())
    }
}
