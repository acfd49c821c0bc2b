//! What a tenant may make the server keep: refused with 429 where it counts things, with 413 where it measures one.

use crate::{
    app::AppState,
    problem::{ApiProblem, ApiResult},
};
use ash_model::{AgentName, FailureKind, QuotaKind, Quotas, SandboxRequirements, TenantId};
use ash_store::KeptAgentCounts;

fn of(app: &AppState) -> &Quotas {
    &app.sessions.rooms().settings.quotas
}

/// Whether something that a caller sends is small enough. `quota` counts bytes, or KiB.
fn fits(app: &AppState, quota: QuotaKind, (what, bytes): (&str, usize)) -> ApiResult<()> {
    let (quotas, bytes) = (of(app), bytes as u64);
    let admitted = match quota {
        QuotaKind::LabelBytes => quotas.admit(quota, 0, bytes),
        _ => quotas.admit_bytes(quota, 0, bytes),
    };
    let Err(reached) = admitted else { return Ok(()) };
    let (name, limit, unit) =
        (quota.as_str(), reached.limit, if quota == QuotaKind::LabelBytes { "bytes" } else { "KiB" });
    let error = format!(
        "{what} takes {} {unit}, and may take {limit}: send less, or have the operator raise {name} in ASH_QUOTAS",
        reached.wanted
    );
    let problem = ApiProblem::new(FailureKind::TooLarge, "payload_too_large", error);
    Err(problem.with("quota", name).with("limit", limit).with("used", reached.wanted))
}

pub(super) fn label(app: &AppState, label: &str) -> ApiResult<()> {
    fits(app, QuotaKind::LabelBytes, ("label", label.len()))
}

pub(super) fn config(app: &AppState, json: &str) -> ApiResult<()> {
    config_of(app, json.len())
}

pub(super) fn config_of(app: &AppState, bytes: usize) -> ApiResult<()> {
    fits(app, QuotaKind::ConfigKb, ("The configuration", bytes))
}

pub(super) fn metadata<'a>(
    app: &AppState,
    texts: impl Iterator<Item = (&'a String, &'a String)>,
) -> ApiResult<()> {
    fits(app, QuotaKind::MetadataKb, ("metadata", texts.map(|(name, value)| name.len() + value.len()).sum()))
}

/// One more key. The caller holds `App::growing` of the tenant.
pub(super) async fn one_more_key(app: &AppState, tenant: &TenantId) -> ApiResult<()> {
    let there = app.sessions.rooms().store.keys(tenant).await?.len();
    Ok(of(app).admit(QuotaKind::Keys, there as u64, 1)?)
}

/// An agent that is new or gets another version. The caller holds `App::growing` of the tenant.
pub(super) async fn agent(
    app: &AppState,
    tenant: &TenantId,
    name: &AgentName,
    needs: &SandboxRequirements,
) -> ApiResult<()> {
    let mut others = app.sessions.rooms().store.agents(tenant).await?;
    let all = others.len();
    others.retain(|agent| agent.name != *name);
    if others.len() == all {
        of(app).admit(QuotaKind::Agents, all as u64, 1)?;
    }
    // Sessions go on with the versions that they were made of, so those stay, and so does an agent that was deleted.
    let KeptAgentCounts { names, versions } = app.sessions.rooms().store.kept_agents(tenant, name).await?;
    if versions == 0 {
        of(app).admit(QuotaKind::KeptAgents, names, 1)?;
    }
    of(app).admit(QuotaKind::AgentVersions, versions, 1)?;
    let wanted = |needs: &SandboxRequirements| u64::from(needs.prewarm.unwrap_or(0));
    let used = others.iter().map(|agent| wanted(&agent.needs)).sum();
    // What takes nothing is refused nothing.
    if wanted(needs) > 0 {
        of(app).admit(QuotaKind::Prewarmed, used, wanted(needs))?;
    }
    Ok(())
}
