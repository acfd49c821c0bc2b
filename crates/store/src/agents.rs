//! Agents and their versions. A deploy adds a version; sessions keep the version that they were created with.

use crate::{Result, SecretEnv};
use ash_model::{
    AgentName, AgentRuntime, Image, ModelProvider, ResourceLimits, SandboxRequirements, TenantId, Timestamp,
};
use async_trait::async_trait;
use uuid::Uuid;

/// How many agents and versions of a tenant are stored, deleted agents included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptAgentCounts {
    /// The tenant's agents.
    pub names: u64,
    /// The versions of the agent that was asked for.
    pub versions: u64,
}

/// A version to deploy.
#[derive(Debug, Clone)]
pub struct NewAgentVersion {
    /// The tenant that deploys it.
    pub tenant: TenantId,
    /// The agent, which the first deploy creates.
    pub name: AgentName,
    /// The snapshot of the agent's folder.
    pub tree: String,
    /// The program that runs the agent.
    pub runtime: AgentRuntime,
    /// The model service. `None`: the server's default.
    pub provider: Option<ModelProvider>,
    /// The container image, for backends that use one.
    pub image: Option<Image>,
    /// The resource limits that the agent sets itself.
    pub limits: Option<ResourceLimits>,
    /// What the agent needs from its sandbox.
    pub needs: SandboxRequirements,
    /// The folder that it was deployed from, or the origin that an upload names.
    pub origin: String,
    /// The environment of the agent. `None` keeps the present one.
    pub env: Option<SecretEnv>,
    /// The idempotency key of the deploy, claimed before. Repeated deploys with it make one version.
    pub claim: Option<DeployIdempotencyKey>,
    /// When it is deployed.
    pub at: Timestamp,
}

/// The idempotency key that a deploy was requested with.
#[derive(Debug, Clone)]
pub struct DeployIdempotencyKey {
    /// The route of the request.
    pub route: String,
    /// The key, as it is stored.
    pub key: String,
}

/// An agent with one of its versions, usually the newest.
#[derive(Debug, Clone)]
pub struct AgentRow {
    /// The agent's identifier, the same for all versions.
    pub id: Uuid,
    /// The tenant that has it.
    pub tenant: TenantId,
    /// Its name, unique in the tenant.
    pub name: AgentName,
    /// The number of the version, from 1.
    pub version: u32,
    /// The program that runs the agent.
    pub runtime: AgentRuntime,
    /// The model service. `None`: the server's default.
    pub provider: Option<ModelProvider>,
    /// The container image, for backends that use one.
    pub image: Option<Image>,
    /// The resource limits that the agent sets itself.
    pub limits: Option<ResourceLimits>,
    /// What the agent needs from its sandbox.
    pub needs: SandboxRequirements,
    /// The snapshot of the version's folder.
    pub tree: String,
    /// Where the version was deployed from.
    pub origin: String,
    /// The agent's settings as JSON, shared by all versions.
    pub config: String,
    /// The agent's environment, shared by all versions.
    pub env: SecretEnv,
    /// When the agent was deployed first.
    pub created_at: Timestamp,
    /// When it was deployed last.
    pub updated_at: Timestamp,
}

/// One version of an agent, as a session needs it to start.
#[derive(Debug, Clone)]
pub struct AgentVersion {
    /// The snapshot of the version's folder.
    pub tree: String,
    /// The program that runs the agent.
    pub runtime: AgentRuntime,
    /// The model service. `None`: the server's default.
    pub provider: Option<ModelProvider>,
    /// The container image, for backends that use one.
    pub image: Option<Image>,
    /// The resource limits that the agent sets itself.
    pub limits: Option<ResourceLimits>,
    /// What the agent needs from its sandbox.
    pub needs: SandboxRequirements,
    /// The agent's present environment.
    pub env: SecretEnv,
}

/// Agents by name, and their versions by number.
#[async_trait]
pub trait AgentStore: Send + Sync {
    /// Adds a version. A deploy with an idempotency key that has made a version before answers that version.
    async fn deploy(&self, agent: NewAgentVersion) -> Result<AgentRow>;
    /// The newest version of an agent. `None`: it does not exist, or was deleted.
    async fn agent(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<AgentRow>>;
    /// The newest versions of all agents of a tenant, by name.
    async fn agents(&self, tenant: &TenantId) -> Result<Vec<AgentRow>>;
    /// One version, also of a deleted agent: its sessions go on.
    async fn version(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentVersion>>;
    /// Changes the settings, the environment, or both; `None` leaves the present value. `false`: there is no such agent.
    async fn change_agent(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        config: Option<String>,
        env: Option<SecretEnv>,
    ) -> Result<bool>;
    /// Counts what is stored, deleted agents included.
    async fn kept_agents(&self, tenant: &TenantId, name: &AgentName) -> Result<KeptAgentCounts>;
    /// Hides an agent; its versions stay for its sessions. `false`: there is no such agent.
    async fn delete_agent(&self, tenant: &TenantId, name: &AgentName, at: Timestamp) -> Result<bool>;
}
