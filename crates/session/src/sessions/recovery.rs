//! The start of a server, which is always a recovery: there is no separate path after a clean shutdown.

use super::Sessions;
use crate::{
    Error, Result, blocking,
    live_directory::{LiveDirectory, list_workspaces},
    prewarm,
};
use ash_model::{SessionRowId, SessionStatus};
use ash_snapshot::Folder;
use ash_store::WorkspaceSession;

impl Sessions {
    /// Starts the actor of every session that is not at rest, without waiting for a request.
    pub async fn start(&self) -> Result<usize> {
        self.go_on_deleting().await?;
        let mut restless = self.look_around().await?;
        restless.extend(self.services.store.needs_recovery().await?);
        restless.sort_unstable();
        restless.dedup();
        self.prewarm_all().await?;
        tokio::spawn(prewarm::run(self.services.clone()));
        let count = restless.len();
        for no in restless {
            let sessions = self.clone();
            tokio::spawn(async move {
                if let Err(error) = sessions.actor(no).await {
                    tracing::error!(session = no.0, %error, "a session could not be taken over");
                }
            });
        }
        Ok(count)
    }

    /// Whether the workspace is shared. It stays for later sessions, even if all of its sessions have ended.
    async fn is_shared(&self, sessions: &[WorkspaceSession]) -> Result<bool> {
        match sessions.first() {
            Some(first) => Ok(self.get(first.no).await?.slug.is_some()),
            None => Ok(false),
        }
    }

    /// Checks the live directory: existing trees keep their uids, and those of ended sessions are erased. Returns the
    /// sessions whose sandboxes may still be alive.
    async fn look_around(&self) -> Result<Vec<SessionRowId>> {
        let mut found = Vec::new();
        let root = self.services.settings.live_dir.clone();
        let workspaces = tokio::task::spawn_blocking(move || {
            if let Err(error) = Folder::finish_erasing(&root) {
                tracing::warn!(%error, "files that an earlier server was erasing could not be erased");
            }
            list_workspaces(&root)
        });
        let workspaces = workspaces.await.map_err(|_| Error::Gone)?;
        for workspace in workspaces {
            let live = LiveDirectory::new(&self.services.settings.live_dir, workspace);
            let sessions = self.services.store.workspace_sessions(workspace).await?;
            if live.is_unclaimed() {
                self.clear_unclaimed(&live, sessions.is_empty()).await;
                if sessions.is_empty() {
                    continue;
                }
            }
            // A tree that the database does not know may be the only copy: it stays.
            let over =
                !sessions.is_empty() && sessions.iter().all(|session| session.status == SessionStatus::Ended);
            if over && !self.is_shared(&sessions).await? {
                let services = self.services.clone();
                let erased = tokio::task::spawn_blocking(move || live.erase(&services.uids)).await;
                if let Ok(Err(error)) = erased {
                    tracing::warn!(%workspace, %error, "the tree of an ended session could not be removed");
                }
                continue;
            }
            self.services.uids.mark_used(live.stamp().and_then(|stamp| stamp.uid));
            if live.run().join("sock").exists() || live.is_marked_dirty() || live.uploads().exists() {
                if live.run().join("sock").exists()
                    && let Some(first) = sessions.first()
                    && let Some(session) = self.services.store.session(first.no).await?
                {
                    self.services.pool.reserve_for_survivor(workspace, &session.tenant);
                }
                found.extend(sessions.into_iter().map(|session| session.no));
            }
        }
        Ok(found)
    }

    /// Handles a sandbox that a dead server made in advance. If the database knows its session, it belongs to that
    /// session; otherwise it is removed.
    async fn clear_unclaimed(&self, live: &LiveDirectory, unclaimed: bool) {
        let (live, services) = (live.clone(), self.services.clone());
        let uid = live.stamp().and_then(|stamp| stamp.uid);
        let cleared = blocking(move || match unclaimed {
            true => {
                ash_sandbox::reap(&live.run())?;
                live.erase(&services.uids)
            }
            false => live.claim(),
        });
        if let Err(error) = cleared.await {
            // Processes may still run there under this uid.
            self.services.uids.mark_used(uid);
            tracing::warn!(%error, "a warm sandbox of an earlier server could not be removed");
        }
    }
}
