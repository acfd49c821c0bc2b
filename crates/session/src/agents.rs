//! Agents: each deploy creates a version. A session keeps the version that it was created with.

use crate::{
    Audit, AuditSubject, ConfigChange, IdempotencyKeys, IdempotentRequest, KeyedMutex, NewAuditEntry,
    OperatorPolicy, Repositories, Result, Sessions,
};
use ash_model::{AgentName, QuotaKind, Quotas, SandboxRequirements, TenantId};
use ash_snapshot::{CaptureGuard, CaptureRequest, CaptureRoot, Folder};
use ash_store::{
    AgentRow, AuditAction, AuditActor, DeployIdempotencyKey, KeptAgentCounts, NewAgentVersion, SecretEnv,
    Store,
};
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// What deploying an agent needs.
#[derive(Clone)]
pub struct AgentServices {
    pub store: Arc<dyn Store>,
    pub repositories: Arc<Repositories>,
    pub audit: Audit,
    pub idempotency: IdempotencyKeys,
    pub quotas: Quotas,
    pub policy: OperatorPolicy,
    /// Prewarms sandboxes for agents, and knows which runtimes this server has.
    pub sessions: Sessions,
}

/// The agents of all tenants.
#[derive(Clone)]
pub struct Agents {
    services: AgentServices,
    /// Serializes the counting and changing of one tenant's agents.
    changing: Arc<KeyedMutex<TenantId>>,
}

/// The captured files of an agent.
pub struct CapturedAgentFiles {
    pub tree: String,
    /// Protects the tree from garbage collection until its row exists.
    pub under_way: CaptureGuard,
}

/// An agent that is being changed. It holds the tenant's lock, so nothing changes between the read and the write.
pub struct AgentEdit<'a> {
    agents: &'a Agents,
    agent: AgentRow,
    _alone: OwnedMutexGuard<()>,
}

/// The change of an agent's settings. `None`: the setting stays.
pub struct AgentSettingsChange {
    /// The whole configuration, as JSON.
    pub config: Option<String>,
    pub env: Option<SecretEnv>,
    /// The changed fields of the configuration, for the audit.
    pub fields: Vec<String>,
}

impl Agents {
    pub fn new(services: AgentServices) -> Agents {
        Agents { services, changing: Arc::default() }
    }

    pub async fn list(&self, tenant: &TenantId) -> Result<Vec<AgentRow>> {
        Ok(self.services.store.agents(tenant).await?)
    }

    pub async fn find(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<AgentRow>> {
        Ok(self.services.store.agent(tenant, name).await?)
    }

    /// Stores the files of an agent of this tenant. Blocking.
    pub fn capture(&self, tenant: &TenantId, folder: &Folder) -> Result<CapturedAgentFiles> {
        let repo = self.services.repositories.repo(tenant)?;
        let captured = repo.capture(&CaptureRequest::of(&[CaptureRoot { name: "workspace", folder }]))?;
        Ok(CapturedAgentFiles { tree: captured.tree.as_str().to_owned(), under_way: captured.under_way })
    }

    /// Creates a new version. A repeated request gets the version that it created before.
    pub async fn deploy(
        &self,
        new: NewAgentVersion,
        by: &AuditActor,
        request: Option<&IdempotentRequest>,
    ) -> Result<AgentRow> {
        let AgentServices { store, audit, idempotency, policy, sessions, .. } = &self.services;
        policy.permits(&new.needs, None, new.limits)?;
        // A program that is missing may be installed later; a version that is too old would only fail later.
        sessions.check_runtime(new.runtime).await?;
        let _alone = self.changing.lock(new.tenant.clone()).await;
        // If the idempotency key has created a version, return that version.
        let used = idempotency.used(request).await?;
        let is_again = used.is_some_and(|resource| resource.contains('@'));
        if !is_again {
            self.check_quotas(&new.tenant, &new.name, &new.needs).await?;
        }
        // After all checks, so that a refused deploy leaves no idempotency key behind.
        idempotency.claim(request, new.name.to_string()).await?;
        if !is_again {
            let subject = AuditSubject::Agent { tenant: &new.tenant, name: &new.name };
            let action = AuditAction::Deployed;
            audit.record(NewAuditEntry { actor: by.clone(), action, subject, detail: None }).await?;
            let change = ConfigChange { fields: Vec::new(), variables: names_in(new.env.as_ref()) };
            audit.record_config_change(by, subject, change).await?;
        }
        let claim = request.map(|request| DeployIdempotencyKey {
            route: request.route().to_owned(),
            key: request.stored_key().to_owned(),
        });
        let tenant = new.tenant.clone();
        let agent = store.deploy(NewAgentVersion { claim, ..new }).await?;
        sessions.prewarm(&tenant, &agent).await?;
        Ok(agent)
    }

    /// Deploys an agent that comes with the server, when a caller asks for it and no agent has its name.
    pub async fn deploy_built_in(&self, new: NewAgentVersion, by: AuditActor) -> Result<()> {
        let _alone = self.changing.lock(new.tenant.clone()).await;
        // Another request may have deployed an agent of this name meanwhile.
        if self.find(&new.tenant, &new.name).await?.is_some() {
            return Ok(());
        }
        self.check_quotas(&new.tenant, &new.name, &new.needs).await?;
        let subject = AuditSubject::Agent { tenant: &new.tenant, name: &new.name };
        let detail = Some(new.origin.clone());
        let entry = NewAuditEntry { actor: by, action: AuditAction::Deployed, subject, detail };
        self.services.audit.record(entry).await?;
        self.services.store.deploy(new).await?;
        Ok(())
    }

    /// Begins to change an agent. `None`: no agent has this name.
    pub async fn edit(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<AgentEdit<'_>>> {
        let alone = self.changing.lock(tenant.clone()).await;
        let found = self.find(tenant, name).await?;
        Ok(found.map(|agent| AgentEdit { agents: self, agent, _alone: alone }))
    }

    pub async fn delete(&self, agent: &AgentRow, by: AuditActor) -> Result<()> {
        let AgentServices { store, audit, sessions, .. } = &self.services;
        let AgentRow { tenant, name, .. } = agent;
        let subject = AuditSubject::Agent { tenant, name };
        let entry = NewAuditEntry { actor: by, action: AuditAction::AgentDeleted, subject, detail: None };
        audit.record(entry).await?;
        store.delete_agent(tenant, name, sessions.now()).await?;
        sessions.stop_prewarming(tenant, name);
        Ok(())
    }

    /// Checks the quotas for a new agent or a new version. The caller holds the tenant's lock.
    async fn check_quotas(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        needs: &SandboxRequirements,
    ) -> Result<()> {
        let AgentServices { store, quotas, .. } = &self.services;
        let mut others = store.agents(tenant).await?;
        let all = others.len();
        others.retain(|agent| agent.name != *name);
        if others.len() == all {
            quotas.admit(QuotaKind::Agents, all as u64, 1)?;
        }
        // Sessions keep the versions that they were created with, so those versions count, even if the agent was
        // deleted.
        let KeptAgentCounts { names, versions } = store.kept_agents(tenant, name).await?;
        if versions == 0 {
            quotas.admit(QuotaKind::KeptAgents, names, 1)?;
        }
        quotas.admit(QuotaKind::AgentVersions, versions, 1)?;
        let wanted = |needs: &SandboxRequirements| u64::from(needs.prewarm.unwrap_or(0));
        let used = others.iter().map(|agent| wanted(&agent.needs)).sum();
        // An agent that prewarms nothing is never refused for this quota.
        if wanted(needs) > 0 {
            quotas.admit(QuotaKind::Prewarmed, used, wanted(needs))?;
        }
        Ok(())
    }
}

impl AgentEdit<'_> {
    /// The agent before the change.
    pub fn agent(&self) -> &AgentRow {
        &self.agent
    }

    /// Returns the agent after the change. `None`: it was deleted meanwhile.
    pub async fn save(self, change: AgentSettingsChange, by: &AuditActor) -> Result<Option<AgentRow>> {
        let AgentServices { store, audit, .. } = &self.agents.services;
        let AgentRow { tenant, name, .. } = &self.agent;
        let AgentSettingsChange { config, env, fields } = change;
        let changed = ConfigChange { fields, variables: names_in(env.as_ref()) };
        audit.record_config_change(by, AuditSubject::Agent { tenant, name }, changed).await?;
        store.change_agent(tenant, name, config, env).await?;
        self.agents.find(tenant, name).await
    }
}

fn names_in(env: Option<&SecretEnv>) -> Option<Vec<String>> {
    env.map(|env| env.0.keys().cloned().collect())
}
