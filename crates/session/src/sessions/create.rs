//! Creates a session: in a sandbox of its own, in that of its workspace, or in one that was made in advance.

use super::{
    Sessions,
    beginning::{self, IdFrom},
};
use crate::{
    Error, Result, TouchedOptions,
    actor::SessionActor,
    machine::{LogState, StateCommand},
    pool::{WarmSandbox, WarmSandboxKind},
    slots::{Admission, SandboxPermit},
};
use ash_model::{
    AgentName, Fact, NewEvent, OwnerId, SessionId, SessionMetadata, SessionOptions, Slug, TenantId,
    WorkspaceId,
};
use ash_sandbox::EgressPolicy;
use ash_store::{AccessScope, AgentRow, AgentVersion, AuditEntry, SecretEnv, SessionRow};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct NewSession {
    pub tenant: TenantId,
    /// The owner. In a named workspace the session gets the workspace's owner instead.
    pub owner: Option<OwnerId>,
    pub metadata: SessionMetadata,
    pub id: SessionId,
    pub id_from: IdFrom,
    pub agent: AgentName,
    /// The name of a workspace that it shares. `None`: it gets a workspace of its own.
    pub workspace: Option<Slug>,
    pub options: SessionOptions,
    pub env: SecretEnv,
    /// The values that the options contain masks for, by JSON pointer.
    pub secrets: SecretEnv,
    /// The client's own access to a model.
    pub egress: Option<EgressPolicy>,
    /// How long the request waits for a sandbox if all are taken. `None`: the default.
    pub queue_timeout: Option<Duration>,
    /// Who creates it.
    pub audit: AuditEntry,
}

/// The sandbox of a new session.
enum SessionPlacement {
    Prepared(Box<WarmSandbox>),
    Room(Option<SandboxPermit>),
}

impl Sessions {
    /// Once the request has a permit it runs to its end even if the caller disconnects, because half a session would
    /// have no owner.
    pub async fn create(&self, new: NewSession) -> Result<SessionRow> {
        self.check_room_for_work()?;
        ash_failpoint::reach_async("create.asked").await;
        let agent = self.agent_of(&new).await?;
        let place = match new.workspace {
            Some(ref slug) => {
                let scope = AccessScope { tenant: new.tenant.clone(), owner: new.owner.clone() };
                let known = self.services.store.find_workspace(&scope, slug).await?;
                SessionPlacement::Room(
                    self.acquire_permit(&new.tenant, known.map(|workspace| workspace.id), new.queue_timeout)
                        .await?,
                )
            }
            None => match self.claim(&new.tenant, &agent, &new.options).await? {
                Some(prepared) => SessionPlacement::Prepared(Box::new(prepared)),
                None => {
                    SessionPlacement::Room(self.acquire_permit(&new.tenant, None, new.queue_timeout).await?)
                }
            },
        };
        let sessions = self.clone();
        tokio::spawn(async move { sessions.create_whole(new, agent, place).await })
            .await
            .map_err(|_| Error::Gone)?
    }

    /// The agent, if a session of it can be created with these options.
    async fn agent_of(&self, new: &NewSession) -> Result<AgentRow> {
        let services = &self.services;
        let agent = services.store.agent(&new.tenant, &new.agent).await?;
        let agent = agent.ok_or_else(|| Error::NoAgent(new.agent.to_string()))?;
        let version = services.store.version(&new.tenant, &agent.name, agent.version).await?;
        let version = version.ok_or_else(|| Error::NoAgent(new.agent.to_string()))?;
        services.accepts(&version, &new.options, (new.workspace.is_some(), TouchedOptions::ALL))?;
        services.settings.supported(agent.runtime).await?;
        Ok(agent)
    }

    async fn create_whole(
        &self,
        new: NewSession,
        agent: AgentRow,
        place: SessionPlacement,
    ) -> Result<SessionRow> {
        ash_failpoint::reach_async("create.placed").await;
        let services = &self.services;
        let workspace = match &new.workspace {
            Some(slug) => {
                let scope = AccessScope { tenant: new.tenant.clone(), owner: new.owner.clone() };
                Some(self.make_workspace(&scope, slug, &agent.name).await?)
            }
            None => None,
        };
        let known = workspace.as_ref().map(|workspace| workspace.id);
        let (prepared, permit) = match place {
            SessionPlacement::Prepared(prepared) => (Some(*prepared), None),
            SessionPlacement::Room(permit) => (None, permit),
        };
        let created =
            Fact::Created { agent: agent.name.clone(), version: agent.version, options: new.options.clone() };
        let beginning = beginning::beginning(services, &new.tenant, (&new.id, new.id_from)).await?;
        if let Some(shared) = &workspace {
            beginning.in_shared(services, &new.id, (shared.id, &shared.slug)).await?;
        }
        let (epoch, at) = (beginning.epoch, beginning.at);
        let session = services
            .store
            .create_session(ash_store::NewSessionRow {
                tenant: new.tenant.clone(),
                owner: workspace.as_ref().map_or(new.owner, |workspace| workspace.owner.clone()),
                metadata: new.metadata,
                id: new.id.clone(),
                workspace: known.or(prepared.as_ref().map(|one| one.id)).unwrap_or_else(WorkspaceId::fresh),
                slug: workspace.as_ref().map(|workspace| workspace.slug.clone()),
                node: services.settings.node.clone(),
                agent: agent.name.clone(),
                version: agent.version,
                runtime: agent.runtime,
                native_id: beginning.native_id(&new.tenant, &new.id),
                options: new.options.clone(),
                env: new.env.clone(),
                secrets: new.secrets.clone(),
                parent: None,
                base: None,
                first_checkpoints: Vec::new(),
                summary: LogState::new(0).summary(),
                events: vec![NewEvent { turn: None, at, fact: created.clone() }],
                audit: Some(new.audit),
                epoch,
                at,
            })
            .await?;
        services.witnesses.mark_compared(session.no);
        ash_failpoint::reach_async("create.recorded").await;
        if let Some(way) = new.egress {
            services.client_credentials.set(session.no, way);
        }
        let mut state = LogState::new(0);
        state.apply(1, &created);
        // While this is held, the new session finds the workspace that was prepared for it.
        let _common = prepared.map(WarmSandbox::hand_over).transpose()?;
        let (no, of) = (session.no, (session.workspace, session.tenant.clone()));
        let admission = Admission { permit, queue_timeout: Some(self.queue_timeout(new.queue_timeout)) };
        self.spawn(no, of, |services, channels| {
            SessionActor::for_new_session(services, session, state, (channels, admission, epoch))
        })
        .await?;
        ash_failpoint::reach_async("create.seated").await;
        let woken = self.command(no, StateCommand::Resume).await;
        // Only after the session has started: the next sandbox can wait, this session cannot.
        if services.settings.prewarm(&agent.needs) > 0
            && let Err(error) = self.prewarm(&new.tenant, &agent).await
        {
            tracing::warn!(%error, "warm sandboxes could not be requested");
        }
        woken?;
        self.get(no).await
    }

    /// Claims a sandbox that was made in advance, if one fits.
    async fn claim(
        &self,
        tenant: &TenantId,
        agent: &AgentRow,
        options: &SessionOptions,
    ) -> Result<Option<WarmSandbox>> {
        let services = &self.services;
        if services.settings.prewarm(&agent.needs) == 0 {
            return Ok(None);
        }
        let which = (tenant, &agent.name, agent.version);
        let version = services.store.version(tenant, &agent.name, agent.version).await?;
        let Some(version) = version else { return Ok(None) };
        let claimed = services.pool.warm.claim(&WarmSandboxKind::of(services, which, &version, options)?);
        if claimed.is_some() {
            services.watch.claimed();
        }
        Ok(claimed)
    }

    /// Prepares sandboxes for the next sessions of an agent that was deployed or used. They have the options that most
    /// sessions use.
    pub async fn prewarm(&self, tenant: &TenantId, agent: &AgentRow) -> Result<()> {
        let version = self.services.store.version(tenant, &agent.name, agent.version).await?;
        let which = (tenant, &agent.name, agent.version);
        // A session could not take over a sandbox that the operator does not permit any more.
        let permits = |version: &AgentVersion| {
            self.services.policy.permits(&version.needs, None, version.limits).is_ok()
        };
        let usual = version.filter(permits).and_then(|version| {
            WarmSandboxKind::of(&self.services, which, &version, &SessionOptions::default()).ok()
        });
        match usual.filter(|_| self.services.settings.prewarm(&agent.needs) > 0) {
            Some(usual) => self.services.pool.warm.request(usual),
            // Sandboxes may have been prepared for an older version.
            None => self.stop_prewarming(tenant, &agent.name),
        }
        Ok(())
    }

    /// Prepares sandboxes at the start for agents that ask for it in their configuration.
    pub(super) async fn prewarm_all(&self) -> Result<()> {
        for tenant in self.services.store.tenants().await? {
            for agent in self.services.store.agents(&tenant).await? {
                if agent.needs.prewarm.is_some_and(|count| count > 0) {
                    self.prewarm(&tenant, &agent).await?;
                }
            }
        }
        Ok(())
    }

    /// Called when an agent was deleted.
    pub fn stop_prewarming(&self, tenant: &TenantId, agent: &AgentName) {
        self.services.pool.warm.forget(tenant, agent);
    }
}
