//! Creates a session: in a sandbox of its own, in that of its workspace, or in one that was made in advance.

use super::Sessions;
use crate::{
    Error, Result, TouchedOptions,
    actor::SessionActor,
    machine::{LogState, StateCommand},
    pool::{Admission, SandboxPermit, WarmSandbox, WarmSandboxKind},
    witness::{self, IdFrom},
};
use ash_model::{
    AgentName, Fact, NewEvent, OwnerId, SessionId, SessionMetadata, SessionOptions, Slug, TenantId,
    WorkspaceId,
};
use ash_sandbox::EgressPolicy;
use ash_store::{AccessScope, AgentRow, AgentVersion, SecretEnv, SessionRow};
use std::time::Duration;
use uuid::Uuid;

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
                let known = self.rooms.store.find_workspace(&scope, slug).await?;
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
        let rooms = &self.rooms;
        let agent = rooms.store.agent(&new.tenant, &new.agent).await?;
        let agent = agent.ok_or_else(|| Error::NoAgent(new.agent.to_string()))?;
        let version = rooms.store.version(&new.tenant, &agent.name, agent.version).await?;
        let version = version.ok_or_else(|| Error::NoAgent(new.agent.to_string()))?;
        rooms.accepts(&version, &new.options, (new.workspace.is_some(), TouchedOptions::ALL))?;
        rooms.settings.supported(agent.runtime).await?;
        Ok(agent)
    }

    async fn create_whole(
        &self,
        new: NewSession,
        agent: AgentRow,
        place: SessionPlacement,
    ) -> Result<SessionRow> {
        ash_failpoint::reach_async("create.placed").await;
        let rooms = &self.rooms;
        let workspace = match &new.workspace {
            Some(slug) => {
                let scope = AccessScope { tenant: new.tenant.clone(), owner: new.owner.clone() };
                Some(self.make_workspace(&scope, slug, &agent.name).await?)
            }
            None => None,
        };
        let known = workspace.as_ref().map(|workspace| workspace.id);
        let (prepared, room) = match place {
            SessionPlacement::Prepared(prepared) => (Some(*prepared), None),
            SessionPlacement::Room(room) => (None, room),
        };
        let created =
            Fact::Created { agent: agent.name.clone(), version: agent.version, options: new.options.clone() };
        let beginning = witness::beginning(rooms, &new.tenant, (&new.id, new.id_from)).await?;
        if let Some(shared) = &workspace {
            beginning.in_shared(rooms, &new.id, (shared.id, &shared.slug)).await?;
        }
        let (epoch, at) = (beginning.epoch, beginning.at);
        let session = rooms
            .store
            .create_session(ash_store::NewSessionRow {
                tenant: new.tenant.clone(),
                owner: workspace.as_ref().map_or(new.owner, |workspace| workspace.owner.clone()),
                metadata: new.metadata,
                id: new.id.clone(),
                workspace: known
                    .or(prepared.as_ref().map(|one| one.workspace))
                    .unwrap_or_else(WorkspaceId::fresh),
                slug: workspace.as_ref().map(|workspace| workspace.slug.clone()),
                node: rooms.settings.node.clone(),
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
                epoch,
                at,
            })
            .await?;
        rooms.witnesses.mark_compared(session.no);
        ash_failpoint::reach_async("create.recorded").await;
        if let Some(way) = new.egress {
            rooms.client_credentials.set(session.no, way);
        }
        let mut state = LogState::new(0);
        state.apply(1, &created);
        // While this is held, the new session finds the workspace that was prepared for it.
        let _common = prepared.map(WarmSandbox::hand_over).transpose()?;
        let (no, of) = (session.no, (session.workspace, session.tenant.clone()));
        let passage = Admission { permit: room, queue_timeout: Some(self.patience(new.queue_timeout)) };
        self.spawn(no, of, |rooms, seat| {
            SessionActor::for_new_session(rooms, session, state, (seat, passage, epoch))
        })
        .await?;
        ash_failpoint::reach_async("create.seated").await;
        let woken = self.command(no, StateCommand::Resume).await;
        // Only after the session has started: the next sandbox can wait, this session cannot.
        if rooms.prewarm(&agent.needs) > 0
            && let Err(error) = self.prewarm(&new.tenant, &agent).await
        {
            tracing::warn!(%error, "nothing is made in advance");
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
        let rooms = &self.rooms;
        if rooms.prewarm(&agent.needs) == 0 {
            return Ok(None);
        }
        let which = (tenant, &agent.name, agent.version);
        let version = rooms.store.version(tenant, &agent.name, agent.version).await?;
        let Some(version) = version else { return Ok(None) };
        let claimed = rooms.pool.warm.claim(&WarmSandboxKind::of(rooms, which, &version, options)?);
        if claimed.is_some() {
            rooms.watch.claimed();
        }
        Ok(claimed)
    }

    /// Prepares sandboxes for the next sessions of an agent that was deployed or used. They have the options that most
    /// sessions use.
    pub async fn prewarm(&self, tenant: &TenantId, agent: &AgentRow) -> Result<()> {
        let version = self.rooms.store.version(tenant, &agent.name, agent.version).await?;
        let which = (tenant, &agent.name, agent.version);
        // A session could not take over a sandbox that the operator does not permit any more.
        let permits =
            |version: &AgentVersion| self.rooms.permits(&version.needs, None, version.limits).is_ok();
        let usual = version.filter(permits).and_then(|version| {
            WarmSandboxKind::of(&self.rooms, which, &version, &SessionOptions::default()).ok()
        });
        match usual.filter(|_| self.rooms.prewarm(&agent.needs) > 0) {
            Some(usual) => self.rooms.pool.warm.request(usual),
            // Sandboxes may have been prepared for an older version.
            None => self.stop_prewarming(tenant, &agent.name),
        }
        Ok(())
    }

    /// Prepares sandboxes at the start for agents that ask for it in their configuration.
    pub(super) async fn prewarm_all(&self) -> Result<()> {
        for tenant in self.rooms.store.tenants().await? {
            for agent in self.rooms.store.agents(&tenant).await? {
                if agent.needs.prewarm.is_some_and(|count| count > 0) {
                    self.prewarm(&tenant, &agent).await?;
                }
            }
        }
        Ok(())
    }

    /// Called when an agent was deleted.
    pub fn stop_prewarming(&self, tenant: &TenantId, agent: &AgentName) {
        self.rooms.pool.warm.forget(tenant, agent);
    }
}

/// The agent's own id for the conversation: the session's id if it is a UUID, else derived from it, so that it never
/// changes.
pub(crate) fn native_id(tenant: &TenantId, id: &SessionId) -> Uuid {
    let ours = Uuid::try_parse(id.as_str()).ok().filter(|uuid| uuid.to_string() == id.as_str());
    ours.unwrap_or_else(|| Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{tenant}/{id}").as_bytes()))
}
