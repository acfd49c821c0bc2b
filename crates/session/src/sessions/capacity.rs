//! Permits for sandboxes: what a request that needs one waits for, and what a refused request leaves behind.

use super::Sessions;
use crate::{
    Error, Result,
    mailbox::{ActorMessage, CommandReply, ReplySender},
    pool::SandboxPhase,
    slots::SandboxPermit,
};
use ash_model::{SessionRowId, SessionStatus, TenantId, WorkspaceId};
use ash_store::SessionRow;
use std::time::Duration;

/// How long a refused request stays queued, and how long its slot is then kept. A refused client is told to try again
/// after a second.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);

impl Sessions {
    /// Acquires a permit for a sandbox, unless the workspace has one.
    pub(super) async fn acquire_permit(
        &self,
        tenant: &TenantId,
        known: Option<WorkspaceId>,
        queue_timeout: Option<Duration>,
    ) -> Result<Option<SandboxPermit>> {
        if known.is_some_and(|workspace| self.services.workspace(workspace).is_inhabited()) {
            return Ok(None);
        }
        self.place_in_line(tenant, self.queue_timeout(queue_timeout)).await.map(Some)
    }

    /// Acquires a permit for a sandbox. A refused request leaves a claim for the next one of its tenant.
    async fn place_in_line(&self, tenant: &TenantId, queue_timeout: Duration) -> Result<SandboxPermit> {
        if let Some(permit) = self.services.pool.claims.take(tenant) {
            return Ok(permit);
        }
        let permit = self.wait_in_line(tenant, queue_timeout).await;
        match &permit {
            Ok(_) => self.services.pool.claims.cancel(tenant),
            Err(Error::Capacity(_)) => self.claim_slot(tenant),
            Err(_) => {}
        }
        permit
    }

    /// A caller that is still waiting when the server stops gets an error.
    async fn wait_in_line(&self, tenant: &TenantId, queue_timeout: Duration) -> Result<SandboxPermit> {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            permit = self.services.pool.acquire(tenant, Some(queue_timeout)) => permit,
            _ = stopping.wait_for(|stopping| *stopping) => Err(Error::Stopped),
        }
    }

    /// Waits in the queue for a tenant whose request was refused, and keeps the slot for a moment until the client
    /// tries again. Otherwise only clients that wait would ever get a share of slots that another tenant always uses.
    fn claim_slot(&self, tenant: &TenantId) {
        let pool = &self.services.pool;
        if !pool.has_larger_share_than(tenant) {
            return;
        }
        let Some(number) = pool.claims.begin(tenant) else { return };
        let (sessions, tenant) = (self.clone(), tenant.clone());
        tokio::spawn(async move {
            let claims = &sessions.services.pool.claims;
            if let Ok(permit) = sessions.wait_in_line(&tenant, CLAIM_TIMEOUT).await {
                claims.hold(&tenant, number, permit);
                tokio::time::sleep(CLAIM_TIMEOUT).await;
            }
            claims.end(&tenant, number);
        });
    }

    /// The wait limit of a request: its own, else the default.
    pub(super) fn queue_timeout(&self, own: Option<Duration>) -> Duration {
        own.unwrap_or(self.services.settings.queue_timeout)
    }

    /// Acquires a permit for the sandbox of a session that is to be resumed, if it needs one. If there is no capacity,
    /// the caller gets an error now instead of a start that fails later.
    pub(super) async fn acquire_permit_to_wake(
        &self,
        session: &SessionRow,
        queue_timeout: Option<Duration>,
    ) -> Result<Option<SandboxPermit>> {
        if session.summary.status == SessionStatus::Ended
            || self.services.pool.is_reserved_for_survivor(session.workspace)
        {
            return Ok(None);
        }
        let phase = self.services.pool.actors.lock().await.get(&session.no).map(|actor| actor.phase.get());
        match phase {
            Some(SandboxPhase::Warming | SandboxPhase::Waiting | SandboxPhase::Running) => Ok(None),
            Some(SandboxPhase::Cold) | None => {
                self.acquire_permit(&session.tenant, Some(session.workspace), queue_timeout).await
            }
        }
    }

    /// Sends a message that may need a sandbox. A session that had one may have lost it meanwhile; its actor then
    /// refuses before anything is written, and the message is sent again with a permit.
    pub(super) async fn ask_with_permit(
        &self,
        no: SessionRowId,
        (permit, queue_timeout): (Option<SandboxPermit>, Duration),
        request: impl Fn(Option<SandboxPermit>, ReplySender<CommandReply>) -> ActorMessage,
    ) -> Result<CommandReply> {
        match self.ask(no, |reply| request(permit, reply)).await {
            Err(Error::Placeless) => {
                let tenant = self.get(no).await?.tenant;
                let permit = self.place_in_line(&tenant, queue_timeout).await?;
                self.ask(no, |reply| request(Some(permit), reply)).await
            }
            answered => answered,
        }
    }
}
