//! Agents: each deploy is a version. Sessions go on with the version that they were made of.

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

/// What agents are deployed with.
#[derive(Clone)]
pub struct AgentServices {
    pub store: Arc<dyn Store>,
    pub repositories: Arc<Repositories>,
    pub audit: Audit,
    pub idempotency: IdempotencyKeys,
    pub quotas: Quotas,
    pub policy: OperatorPolicy,
    /// They keep sandboxes ready for agents, and know which runtimes are here.
    pub sessions: Sessions,
}

/// The agents of all tenants.
#[derive(Clone)]
pub struct Agents {
    services: AgentServices,
    /// A tenant's agents are counted and changed one after the other.
    changing: Arc<KeyedMutex<TenantId>>,
}

/// The files of an agent, captured.
pub struct CapturedAgentFiles {
    pub tree: String,
    /// Keeps the tree from collections until its row is there.
    pub under_way: CaptureGuard,
}

/// An agent that is being changed. Nobody else changes it meanwhile: what is changed is what was read.
pub struct AgentEdit<'a> {
    agents: &'a Agents,
    agent: AgentRow,
    _alone: OwnedMutexGuard<()>,
}

/// What becomes of an agent's settings; `None`: it stays.
pub struct AgentChange {
    /// The whole configuration, as JSON.
    pub config: Option<String>,
    pub env: Option<SecretEnv>,
    /// Of the configuration, for the audit.
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

    /// A new version. A repeated request gets the version that it made before.
    pub async fn deploy(
        &self,
        new: NewAgentVersion,
        by: &AuditActor,
        request: Option<&IdempotentRequest>,
    ) -> Result<AgentRow> {
        let AgentServices { store, audit, idempotency, policy, sessions, .. } = &self.services;
        policy.permits(&new.needs, None, new.limits)?;
        // One that is not installed may come later; one that is too old would only fail later.
        sessions.check_runtime(new.runtime).await?;
        let _alone = self.changing.lock(new.tenant.clone()).await;
        // A version that its key has made is answered, and no other one made.
        let used = idempotency.used(request).await?;
        let is_again = used.is_some_and(|resource| resource.contains('@'));
        if !is_again {
            self.check_quotas(&new.tenant, &new.name, &new.needs).await?;
        }
        // After everything that refuses: a deploy that was refused leaves no key behind.
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

    /// An agent that the server brings along, for a caller who asks for it before anything has its name.
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

    /// Begins to change an agent; `None`: there is none of this name.
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

    /// For an agent that is new or gets another version. The caller holds the tenant's lock.
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
        // Sessions go on with the versions that they were made of, so those stay, and so does an agent that was deleted.
        let KeptAgentCounts { names, versions } = store.kept_agents(tenant, name).await?;
        if versions == 0 {
            quotas.admit(QuotaKind::KeptAgents, names, 1)?;
        }
        quotas.admit(QuotaKind::AgentVersions, versions, 1)?;
        let wanted = |needs: &SandboxRequirements| u64::from(needs.prewarm.unwrap_or(0));
        let used = others.iter().map(|agent| wanted(&agent.needs)).sum();
        // What takes nothing is refused nothing.
        if wanted(needs) > 0 {
            quotas.admit(QuotaKind::Prewarmed, used, wanted(needs))?;
        }
        Ok(())
    }
}

impl AgentEdit<'_> {
    /// As it is before the change.
    pub fn agent(&self) -> &AgentRow {
        &self.agent
    }

    /// Answers the agent as it is then; `None`: it was deleted meanwhile.
    pub async fn save(self, change: AgentChange, by: &AuditActor) -> Result<Option<AgentRow>> {
        let AgentServices { store, audit, .. } = &self.agents.services;
        let AgentRow { tenant, name, .. } = &self.agent;
        let AgentChange { config, env, fields } = change;
        let changed = ConfigChange { fields, variables: names_in(env.as_ref()) };
        audit.record_config_change(by, AuditSubject::Agent { tenant, name }, changed).await?;
        store.change_agent(tenant, name, config, env).await?;
        self.agents.find(tenant, name).await
    }
}

fn names_in(env: Option<&SecretEnv>) -> Option<Vec<String>> {
    env.map(|env| env.0.keys().cloned().collect())
}
