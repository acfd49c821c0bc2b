//! Workspaces with a name, which sessions share.

use crate::{Error, Result, Sessions, blocking};
use ash_model::{AgentName, SessionStatus, Slug, WorkspaceId};
use ash_store::{AccessScope, AuditActor, NewWorkspaceRow, WorkspaceRow, WorkspaceSession};

impl Sessions {
    /// It may be there already, but it is one agent's, and one owner's.
    pub async fn make_workspace(
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

    pub async fn workspace(&self, scope: &AccessScope, slug: &Slug) -> Result<WorkspaceRow> {
        let found = self.rooms().store.find_workspace(scope, slug).await?;
        found.ok_or_else(|| Error::NoSuchWorkspace(slug.clone()))
    }

    /// The sandbox first, then the data, then the name: whoever dies on the way goes on with the next start.
    pub async fn delete_workspace(&self, workspace: &WorkspaceRow, by: AuditActor) -> Result<()> {
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
        // Nobody is sent there any more.
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

    /// Deletions that somebody began and did not live to end. One that fails is in nobody's way, and is tried again at
    /// the next start.
    pub(crate) async fn go_on_deleting(&self) -> Result<()> {
        for workspace in self.rooms().store.workspaces_being_deleted().await? {
            // Whose order it is was told when it was begun.
            if let Err(error) = self.delete_workspace(&workspace, AuditActor::default()).await {
                tracing::error!(workspace = %workspace.slug, tenant = %workspace.tenant, %error, "could not be deleted");
            }
        }
        Ok(())
    }
}
