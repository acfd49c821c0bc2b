//! Agents and their versions.

use super::{SqliteStore, columns::parsed};
use crate::{
    AgentRow, AgentStore, AgentVersion, Error, KeptAgentCounts, NewAgentVersion, Result, SealingKey,
    SecretEnv,
};
use ash_model::{
    AgentName, AgentRuntime, Image, ModelProvider, ResourceLimits, SandboxRequirements, TenantId, Timestamp,
};
use async_trait::async_trait;
use serde::Serialize;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};
use uuid::Uuid;

#[async_trait]
impl AgentStore for SqliteStore {
    async fn deploy(&self, agent: NewAgentVersion) -> Result<AgentRow> {
        let (tenant, name) = (agent.tenant.clone(), agent.name.clone());
        let env = SealedEnvChange::of(agent.env.as_ref(), &self.seal);
        let deployed = self.writer.write(move |db| Box::pin(async move { deploy(db, &agent, env).await }));
        let version = deployed.await?;
        agent_at(&self.readers, &self.seal, &tenant, &name, version)
            .await?
            .ok_or(Error::Damaged { what: "agent", why: "just deployed, not there".into() })
    }

    async fn agent(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<AgentRow>> {
        Ok(agents(&self.readers, &self.seal, tenant, Some(name)).await?.pop())
    }

    async fn agents(&self, tenant: &TenantId) -> Result<Vec<AgentRow>> {
        agents(&self.readers, &self.seal, tenant, None).await
    }

    async fn version(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentVersion>> {
        agent_version(&self.readers, &self.seal, tenant, name, version).await
    }

    async fn change_agent(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        config: Option<String>,
        env: Option<SecretEnv>,
    ) -> Result<bool> {
        let (tenant, name) = (tenant.clone(), name.clone());
        let env = SealedEnvChange::of(env.as_ref(), &self.seal);
        self.writer
            .write(move |db| Box::pin(async move { change_agent(db, &tenant, &name, config, env).await }))
            .await
    }

    async fn kept_agents(&self, tenant: &TenantId, name: &AgentName) -> Result<KeptAgentCounts> {
        kept_agents(&self.readers, tenant, name).await
    }

    async fn delete_agent(&self, tenant: &TenantId, name: &AgentName, at: Timestamp) -> Result<bool> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.writer.write(move |db| Box::pin(async move { delete_agent(db, &tenant, &name, at).await })).await
    }
}

async fn agents(
    db: &SqlitePool,
    seal: &SealingKey,
    tenant: &TenantId,
    name: Option<&AgentName>,
) -> Result<Vec<AgentRow>> {
    let rows = query(
        "SELECT a.*, v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, v.origin FROM agents a
         JOIN agent_versions v ON v.agent = a.n AND v.version = a.version
         WHERE a.tenant = ?1 AND a.deleted_at IS NULL AND (?2 IS NULL OR a.name = ?2) ORDER BY a.name",
    )
    .bind(tenant.as_str())
    .bind(name.map(|n| n.as_str()))
    .fetch_all(db)
    .await?;
    rows.iter().map(|row| agent(row, seal)).collect()
}

async fn kept_agents(db: &SqlitePool, tenant: &TenantId, name: &AgentName) -> Result<KeptAgentCounts> {
    let row = query(
        "SELECT (SELECT count(*) FROM agents WHERE tenant = ?1),
                (SELECT count(*) FROM agent_versions v JOIN agents a ON a.n = v.agent WHERE a.tenant = ?1 AND a.name = ?2)",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .fetch_one(db)
    .await?;
    let (names, versions): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(KeptAgentCounts { names: names.unsigned_abs(), versions: versions.unsigned_abs() })
}

/// An agent with one of its versions, whether it was deleted since or not.
async fn agent_at(
    db: &SqlitePool,
    seal: &SealingKey,
    tenant: &TenantId,
    name: &AgentName,
    version: u32,
) -> Result<Option<AgentRow>> {
    let row = query(
        "SELECT a.*, v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, v.origin FROM agents a
         JOIN agent_versions v ON v.agent = a.n WHERE a.tenant = ? AND a.name = ? AND v.version = ?",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .bind(version)
    .fetch_optional(db)
    .await?;
    row.map(|row| Ok(AgentRow { version, ..agent(&row, seal)? })).transpose()
}

/// Also of a deleted agent: its sessions continue with the version that they were created with.
async fn agent_version(
    db: &SqlitePool,
    seal: &SealingKey,
    tenant: &TenantId,
    name: &AgentName,
    version: u32,
) -> Result<Option<AgentVersion>> {
    let row = query(
        "SELECT v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, a.env FROM agents a JOIN agent_versions v ON v.agent = a.n
         WHERE a.tenant = ? AND a.name = ? AND v.version = ?",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .bind(version)
    .fetch_optional(db)
    .await?;
    row.map(|row| {
        let env = seal.unseal(row.try_get("env")?)?;
        let runtime = parsed(&row, "runtime", AgentRuntime::parse)?;
        Ok(AgentVersion {
            tree: row.try_get("tree")?,
            runtime,
            provider: provider(&row)?,
            image: image(&row)?,
            limits: limits(&row)?,
            needs: needs(&row)?,
            env,
        })
    })
    .transpose()
}

fn agent(row: &SqliteRow, seal: &SealingKey) -> Result<AgentRow> {
    Ok(AgentRow {
        id: parsed(row, "id", |text| Uuid::try_parse(text).ok())?,
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        name: parsed(row, "name", |text| AgentName::parse(text).ok())?,
        version: row.try_get("version")?,
        runtime: parsed(row, "runtime", AgentRuntime::parse)?,
        provider: provider(row)?,
        image: image(row)?,
        limits: limits(row)?,
        needs: needs(row)?,
        tree: row.try_get("tree")?,
        origin: row.try_get("origin")?,
        config: row.try_get("config")?,
        env: seal.unseal(row.try_get("env")?)?,
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
    })
}

pub(super) fn provider(row: &SqliteRow) -> Result<Option<ModelProvider>> {
    let named: Option<&str> = row.try_get("provider")?;
    named.map(|_| parsed(row, "provider", ModelProvider::parse)).transpose()
}

pub(super) fn image(row: &SqliteRow) -> Result<Option<Image>> {
    let named: Option<&str> = row.try_get("image")?;
    named.map(|_| parsed(row, "image", |text| Image::parse(text).ok())).transpose()
}

pub(super) fn limits(row: &SqliteRow) -> Result<Option<ResourceLimits>> {
    let stored: Option<&str> = row.try_get("limits")?;
    stored.map(|_| parsed(row, "limits", |text| serde_json::from_str(text).ok())).transpose()
}

pub(super) fn needs(row: &SqliteRow) -> Result<SandboxRequirements> {
    let stored: Option<&str> = row.try_get("needs")?;
    stored.map_or(Ok(SandboxRequirements::default()), |_| {
        parsed(row, "needs", |text| serde_json::from_str(text).ok())
    })
}

/// The stored form of an agent's limits and needs.
pub(super) fn stored(what: Option<impl Serialize>) -> Result<Option<String>> {
    let text = what.map(|what| serde_json::to_string(&what)).transpose();
    text.map_err(|error| Error::Damaged { what: "limits or needs", why: error.to_string() })
}

/// What becomes of an agent's environment. An empty environment is stored as NULL.
enum SealedEnvChange {
    Keep,
    Replace(Option<String>),
}

impl SealedEnvChange {
    fn of(env: Option<&SecretEnv>, seal: &SealingKey) -> SealedEnvChange {
        env.map_or(SealedEnvChange::Keep, |env| SealedEnvChange::Replace(seal.seal(env)))
    }
}

/// Answers the version: a new one, or the one that the same idempotency key made before.
async fn deploy(db: &mut SqliteConnection, agent: &NewAgentVersion, env: SealedEnvChange) -> Result<u32> {
    if let Some(made) = deployed_before(db, agent).await? {
        return Ok(made);
    }
    let row = query(
        "INSERT INTO agents (id, tenant, name, version, created_at, updated_at) VALUES (?1, ?2, ?3, 1, ?4, ?4)
         ON CONFLICT (tenant, name) DO UPDATE SET version = version + 1, updated_at = ?4, changes = changes + 1,
             env = CASE WHEN deleted_at IS NULL THEN env END,
             config = CASE WHEN deleted_at IS NULL THEN config ELSE '{}' END, deleted_at = NULL
         RETURNING n, version",
    )
    .bind(Uuid::new_v4().to_string())
    .bind(agent.tenant.as_str())
    .bind(agent.name.as_str())
    .bind(agent.at.0)
    .fetch_one(&mut *db)
    .await?;
    let (n, version): (i64, u32) = (row.try_get(0)?, row.try_get(1)?);
    if let Some(claim) = &agent.claim {
        query("UPDATE idempotency SET resource = ? WHERE tenant = ? AND route = ? AND key = ?")
            .bind(format!("{}@{version}", agent.name))
            .bind(agent.tenant.as_str())
            .bind(&claim.route)
            .bind(&claim.key)
            .execute(&mut *db)
            .await?;
    }
    if let SealedEnvChange::Replace(env) = env {
        query("UPDATE agents SET env = ? WHERE n = ?").bind(env).bind(n).execute(&mut *db).await?;
    }
    query(
        "INSERT INTO agent_versions (agent, version, tree, runtime, provider, image, limits, needs, origin, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(n)
    .bind(version)
    .bind(&agent.tree)
    .bind(agent.runtime.as_str())
    .bind(agent.provider.map(ModelProvider::as_str))
    .bind(agent.image.as_ref().map(Image::as_str))
    .bind(stored(agent.limits)?)
    .bind(stored(Some(agent.needs).filter(|needs| !needs.is_empty()))?)
    .bind(&agent.origin)
    .bind(agent.at.0)
    .execute(db)
    .await?;
    Ok(version)
}

/// The version that the deploy's idempotency key has made before. The key's row then holds `NAME@VERSION`.
async fn deployed_before(db: &mut SqliteConnection, agent: &NewAgentVersion) -> Result<Option<u32>> {
    let Some(claim) = &agent.claim else { return Ok(None) };
    let row = query("SELECT resource FROM idempotency WHERE tenant = ? AND route = ? AND key = ?")
        .bind(agent.tenant.as_str())
        .bind(&claim.route)
        .bind(&claim.key)
        .fetch_optional(db)
        .await?;
    let resource = row.map(|row| row.try_get::<String, _>(0)).transpose()?;
    Ok(resource.and_then(|resource| resource.rsplit_once('@')?.1.parse().ok()))
}

async fn change_agent(
    db: &mut SqliteConnection,
    tenant: &TenantId,
    name: &AgentName,
    config: Option<String>,
    env: SealedEnvChange,
) -> Result<bool> {
    let (is_replaced, env) = match env {
        SealedEnvChange::Keep => (false, None),
        SealedEnvChange::Replace(env) => (true, env),
    };
    let done = query(
        "UPDATE agents SET config = coalesce(?3, config), env = CASE WHEN ?4 THEN ?5 ELSE env END, changes = changes + 1
         WHERE tenant = ?1 AND name = ?2 AND deleted_at IS NULL",
    )
    .bind(tenant.as_str())
    .bind(name.as_str())
    .bind(config)
    .bind(is_replaced)
    .bind(env)
    .execute(db)
    .await?;
    Ok(done.rows_affected() > 0)
}

async fn delete_agent(
    db: &mut SqliteConnection,
    tenant: &TenantId,
    name: &AgentName,
    at: Timestamp,
) -> Result<bool> {
    let done = query(
        "UPDATE agents SET deleted_at = ?, changes = changes + 1 WHERE tenant = ? AND name = ? AND deleted_at IS NULL",
    )
        .bind(at.0)
        .bind(tenant.as_str())
        .bind(name.as_str())
        .execute(db)
        .await?;
    Ok(done.rows_affected() > 0)
}
