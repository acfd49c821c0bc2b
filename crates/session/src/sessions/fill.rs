//! Many sessions without sandboxes, made through the store: for benchmarks and tests of lists.

use super::{Sessions, beginning};
use crate::{Error, IdFrom, Result, machine::LogState};
use ash_model::{
    AgentName, Fact, NewEvent, SessionId, SessionMetadata, SessionOptions, TenantId, WorkspaceId,
};
use ash_store::{NewSessionRow, SecretEnv};
use futures::{StreamExt, TryStreamExt, stream};

/// How many are written at once: one commit holds those that come together.
const WRITTEN_AT_ONCE: usize = 256;

impl Sessions {
    /// Makes this many stopped sessions of the agent, each with a log of two events.
    pub async fn fill(&self, tenant: &TenantId, agent: &AgentName, count: usize) -> Result<()> {
        let all = stream::iter((0..count).map(|_| self.make_stopped(tenant, agent)));
        all.buffer_unordered(WRITTEN_AT_ONCE).try_collect::<()>().await
    }

    async fn make_stopped(&self, tenant: &TenantId, agent: &AgentName) -> Result<()> {
        let services = self.services();
        let found = services.store.agent(tenant, agent).await?;
        let found = found.ok_or_else(|| Error::NoAgent(agent.to_string()))?;
        let id = SessionId::fresh();
        let beginning = beginning::beginning(services, tenant, (&id, IdFrom::Server)).await?;
        let created = Fact::Created {
            agent: found.name.clone(),
            version: found.version,
            options: SessionOptions::default(),
        };
        let facts = [created, Fact::Stopped];
        let at = beginning.at;
        services
            .store
            .create_session(NewSessionRow {
                tenant: tenant.clone(),
                owner: None,
                metadata: SessionMetadata::default(),
                native_id: beginning.native_id(tenant, &id),
                id,
                workspace: WorkspaceId::fresh(),
                slug: None,
                node: services.settings.node.clone(),
                agent: found.name,
                version: found.version,
                runtime: found.runtime,
                options: SessionOptions::default(),
                env: SecretEnv::default(),
                secrets: SecretEnv::default(),
                parent: None,
                base: None,
                first_checkpoints: Vec::new(),
                summary: LogState::new(0).after(&facts).summary(),
                events: facts.map(|fact| NewEvent { turn: None, at, fact }).into(),
                audit: None,
                epoch: beginning.epoch,
                at,
            })
            .await?;
        Ok(())
    }
}
