//! Agents.

use crate::shapes;
use ash_model::{
    AgentName, AgentRuntime, Image, ModelProvider, ResourceLimits, SandboxRequirements, TenantId, Timestamp,
};
use ash_store::AgentRow;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use uuid::Uuid;

/// What a session runs. Each deploy makes a version.
#[derive(Serialize, ToSchema)]
#[schema(as = Agent)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentView {
    id: Uuid,
    tenant_id: TenantId,
    name: AgentName,
    /// Counts its deploys.
    version: u32,
    /// Where it was deployed from.
    path: String,
    runtime: AgentRuntime,
    /// The settings that `PATCH …/config` merges.
    #[schema(value_type = BTreeMap<String, Value>)]
    config: Value,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// The model service; without one, the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    provider: Option<ModelProvider>,
    /// The container image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    image: Option<Image>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limits: Option<ResourceLimits>,
    /// What it needs from its sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    needs: Option<SandboxRequirements>,
    /// The names of its variables, each with the value `***`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    env: Option<BTreeMap<String, &'static str>>,
}

/// What is shown instead of the value of a variable.
pub(crate) const HIDDEN_VALUE: &str = "***";

impl AgentView {
    pub(crate) fn of(agent: &AgentRow) -> AgentView {
        let env = agent.env.0.keys().map(|name| (name.clone(), HIDDEN_VALUE)).collect();
        AgentView {
            id: agent.id,
            tenant_id: agent.tenant.clone(),
            name: agent.name.clone(),
            version: agent.version,
            path: agent.origin.clone(),
            runtime: agent.runtime,
            config: shapes::config(agent),
            created_at: agent.created_at,
            updated_at: agent.updated_at,
            provider: agent.provider,
            image: agent.image.clone(),
            limits: agent.limits,
            needs: (!agent.needs.is_empty()).then_some(agent.needs),
            env: Some(env).filter(|env: &BTreeMap<_, _>| !env.is_empty()),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AgentAnswer {
    pub(crate) agent: AgentView,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AgentListAnswer {
    pub(crate) agents: Vec<AgentView>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AgentConfigAnswer {
    #[schema(value_type = BTreeMap<String, Value>)]
    pub(crate) config: Value,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct DeletedAgentAnswer {
    /// Always true.
    pub(crate) ok: bool,
}
