//! Rows that come back from packs or the object store.

use super::{
    SqliteStore, adoption,
    agents::{image, limits, needs, provider, stored},
    checkpoints::save_checkpoint,
    columns::{encoded, number, parsed, unsigned},
    log::save_turn,
    messages::is_message,
    purge,
    sessions::{encode_metadata, encode_pending, session_at, ttl},
    trash, usage,
};
use crate::{
    Error, ForkBase, HistoryAdoption, RebuiltSession, RepairStore, Result, SealingKey, SessionLogEnd,
};
use ash_model::{
    AgentName, AgentRuntime, Epoch, Image, ModelProvider, SessionId, SessionRowId, TenantId, Timestamp,
    WorkspaceId, embedded_log::EventLine, remote::AgentDefinition,
};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};
use uuid::Uuid;

#[async_trait]
impl RepairStore for SqliteStore {
    async fn check_integrity(&self) -> Result<Option<String>> {
        first_damage(&self.readers).await
    }

    async fn log_positions(&self, tenant: &TenantId) -> Result<Vec<SessionLogEnd>> {
        log_positions(&self.readers, tenant).await
    }

    async fn agent_definition(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentDefinition>> {
        agent_definition(&self.readers, tenant, name, version).await
    }

    async fn add_agents(&self, agents: Vec<AgentDefinition>, at: Timestamp) -> Result<()> {
        self.writer
            .write(move |db| {
                Box::pin(async move {
                    for agent in &agents {
                        add_agent(db, agent, at).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn rebuild(&self, line: Vec<RebuiltSession>) -> Result<bool> {
        let seal = self.seal.clone();
        let write = self.writer.write(move |db| {
            Box::pin(async move {
                let mut is_new = false;
                for rebuilt in &line {
                    is_new = rebuild(db, &seal, rebuilt).await?;
                }
                Ok(is_new)
            })
        });
        write.await
    }

    async fn adopt(&self, adoption: HistoryAdoption) -> Result<()> {
        // The events that are not adopted move to a fork, so the parents of later forks change.
        self.lineages.lock().expect("no thread panics while holding it").clear();
        let adopted =
            self.writer.write(move |db| Box::pin(async move { adoption::adopt(db, &adoption).await })).await;
        self.lineages.lock().expect("no thread panics while holding it").clear();
        adopted
    }
}

async fn first_damage(db: &SqlitePool) -> Result<Option<String>> {
    let found: String = query("PRAGMA quick_check(1)").fetch_one(db).await?.try_get(0)?;
    Ok((found != "ok").then_some(found))
}

/// Sessions in the trash come first, so that of several sessions with one id the present one is the last.
async fn log_positions(db: &SqlitePool, tenant: &TenantId) -> Result<Vec<SessionLogEnd>> {
    let rows = query(
        "SELECT s.n, coalesce(s.purged_id, s.id) AS id, s.workspace, s.last_seq, s.far_seq, w.epoch FROM sessions s
         JOIN workspaces w ON w.id = s.workspace WHERE s.tenant = ? ORDER BY s.trashed_at IS NULL, s.n",
    );
    let rows = rows.bind(tenant.as_str()).fetch_all(db).await?;
    let position = |row: &SqliteRow| {
        Ok(SessionLogEnd {
            no: SessionRowId(row.try_get("n")?),
            session: parsed(row, "id", |text| SessionId::parse(text).ok())?,
            workspace: parsed(row, "workspace", WorkspaceId::parse)?,
            epoch: Epoch(unsigned(row, "epoch")?),
            seq: unsigned(row, "last_seq")?,
            remote_seq: unsigned(row, "far_seq")?,
        })
    };
    rows.iter().map(position).collect()
}

async fn agent_definition(
    db: &SqlitePool,
    tenant: &TenantId,
    name: &AgentName,
    version: u32,
) -> Result<Option<AgentDefinition>> {
    let row = query(
        "SELECT a.*, v.version AS of_version, v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, v.origin FROM agents a
         JOIN agent_versions v ON v.agent = a.n WHERE a.tenant = ? AND a.name = ? AND v.version = ?",
    );
    let row = row.bind(tenant.as_str()).bind(name.as_str()).bind(version).fetch_optional(db).await?;
    row.as_ref().map(agent_definition_row).transpose()
}

pub(super) fn agent_definition_row(row: &SqliteRow) -> Result<AgentDefinition> {
    Ok(AgentDefinition {
        id: parsed(row, "id", |text| Uuid::try_parse(text).ok())?,
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        name: parsed(row, "name", |text| AgentName::parse(text).ok())?,
        version: row.try_get("of_version")?,
        changes: unsigned(row, "changes")?,
        tree: row.try_get("tree")?,
        runtime: parsed(row, "runtime", AgentRuntime::parse)?,
        provider: provider(row)?,
        image: image(row)?,
        limits: limits(row)?,
        needs: needs(row)?,
        origin: row.try_get("origin")?,
        config: row.try_get("config")?,
        env: row.try_get("env")?,
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
        deleted_at: row.try_get::<Option<i64>, _>("deleted_at")?.map(Timestamp),
    })
}

pub(super) async fn add_agent(
    db: &mut SqliteConnection,
    agent: &AgentDefinition,
    at: Timestamp,
) -> Result<()> {
    query(
        "INSERT INTO agents (id, tenant, name, version, config, env, created_at, updated_at, deleted_at, changes,
             far_changes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)
         ON CONFLICT (tenant, name) DO UPDATE SET version = ?4, config = ?5, env = ?6, updated_at = ?8, deleted_at = ?9,
             changes = ?10, far_changes = ?10
         WHERE changes < ?10",
    )
    .bind(agent.id.to_string())
    .bind(agent.tenant.as_str())
    .bind(agent.name.as_str())
    .bind(agent.version)
    .bind(&agent.config)
    .bind(&agent.env)
    .bind(agent.created_at.0)
    .bind(agent.updated_at.0)
    .bind(agent.deleted_at.map(|at| at.0))
    .bind(number(agent.changes)?)
    .execute(&mut *db)
    .await?;
    query(
        "INSERT INTO agent_versions (agent, version, tree, runtime, provider, image, limits, needs, origin, created_at, far_at)
         SELECT n, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 FROM agents WHERE tenant = ?1 AND name = ?2
         ON CONFLICT DO NOTHING",
    )
    .bind(agent.tenant.as_str())
    .bind(agent.name.as_str())
    .bind(agent.version)
    .bind(&agent.tree)
    .bind(agent.runtime.as_str())
    .bind(agent.provider.map(ModelProvider::as_str))
    .bind(agent.image.as_ref().map(Image::as_str))
    .bind(stored(agent.limits)?)
    .bind(stored(Some(agent.needs).filter(|needs| !needs.is_empty()))?)
    .bind(&agent.origin)
    .bind(agent.updated_at.0)
    .bind(at.0)
    .execute(db)
    .await?;
    Ok(())
}

async fn rebuild(db: &mut SqliteConnection, seal: &SealingKey, rebuilt: &RebuiltSession) -> Result<bool> {
    for agent in &rebuilt.agents {
        add_agent(db, agent, rebuilt.at).await?;
    }
    let manifest = &rebuilt.manifest;
    if is_known(db, rebuilt).await? {
        return Ok(false);
    }
    // The next epoch fences off the former holder.
    query(
        "INSERT INTO workspaces (id, tenant, agent, node, epoch, slug, created_at, owner)
         SELECT ?1, ?2, ?3, ?4, ?5, CASE WHEN EXISTS (SELECT 1 FROM workspaces WHERE tenant = ?2 AND slug = ?6)
             THEN NULL ELSE ?6 END, ?7, ?8
         WHERE NOT EXISTS (SELECT 1 FROM workspaces WHERE id = ?1)",
    )
    .bind(manifest.workspace.to_string())
    .bind(manifest.tenant.as_str())
    .bind(manifest.agent.as_str())
    .bind(&rebuilt.node)
    .bind(number(manifest.epoch.0 + 1)?)
    .bind(manifest.slug.as_ref().filter(|_| !manifest.unnamed).map(|slug| slug.as_str()))
    .bind(manifest.created_at.0)
    .bind(manifest.owner.as_ref().map(|owner| owner.as_str()))
    .execute(&mut *db)
    .await?;
    let session = add_session(db, rebuilt).await?;
    add_lines(db, session, &rebuilt.events).await?;
    purge::hide_parent(db, session).await?;
    usage::rebuild(db, session, &rebuilt.events).await?;
    for turn in &rebuilt.turns {
        save_turn(db, session, turn).await?;
    }
    for checkpoint in &rebuilt.checkpoints {
        save_checkpoint(db, session, checkpoint).await?;
    }
    if let Some(purged) = &rebuilt.purged {
        trash::trash_rebuilt(db, seal, session, purged, rebuilt.at).await?;
    }
    Ok(true)
}

/// Whether the database has this session or has purged it. The time of creation tells it from another session with its id.
async fn is_known(db: &mut SqliteConnection, rebuilt: &RebuiltSession) -> Result<bool> {
    let manifest = &rebuilt.manifest;
    let known = match &rebuilt.purged {
        Some(_) => query(
            "SELECT 1 FROM sessions WHERE tenant = ?1 AND (id = ?2 OR purged_id = ?2) AND created_at = ?3",
        ),
        None => query(
            "SELECT 1 FROM sessions WHERE tenant = ?1 AND id = ?2
             UNION ALL SELECT 1 FROM sessions WHERE tenant = ?1 AND purged_id = ?2 AND created_at = ?3 LIMIT 1",
        ),
    };
    let known = known.bind(manifest.tenant.as_str()).bind(manifest.session.as_str());
    Ok(known.bind(manifest.created_at.0).fetch_optional(db).await?.is_some())
}

async fn add_session(db: &mut SqliteConnection, rebuilt: &RebuiltSession) -> Result<SessionRowId> {
    let RebuiltSession { manifest, summary, checkpoints, .. } = rebuilt;
    let base = match (&manifest.parent, manifest.base) {
        (Some(parent), Some(base)) => {
            let row = session_at(&mut *db, &manifest.tenant, parent, manifest.created_at).await?;
            let why =
                || format!("session {} shares the log of {parent}, which is not there", manifest.session);
            let row = row.ok_or_else(|| Error::Damaged { what: "fork", why: why() })?;
            Some(ForkBase { parent: SessionRowId(row.try_get("n")?), seq: base })
        }
        (_, _) => None,
    };
    let uploaded = checkpoints.iter().filter(|one| one.removed_at.is_none() && one.uploaded_at.is_some());
    let far_checkpoint = uploaded.map(|checkpoint| checkpoint.number).max();
    let row = query(
        "INSERT INTO sessions (tenant, id, workspace, agent, version, runtime, status, native_id, options, env, parent,
             last_seq, title, last_text, turns, open_turns, problem, checkpoint, created_at, last_active_at, pending,
             far_seq, far_checkpoint, base_session, base_seq, slug, owner, metadata, ttl, lock, secrets)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?30, ?22,
             ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?31)
         RETURNING n",
    )
    .bind(manifest.tenant.as_str())
    // Another session may have its id by now.
    .bind(if rebuilt.purged.is_some() { ".rebuilt" } else { manifest.session.as_str() })
    .bind(manifest.workspace.to_string())
    .bind(manifest.agent.as_str())
    .bind(manifest.version)
    .bind(manifest.runtime.as_str())
    .bind(summary.status.as_str())
    .bind(manifest.native_id.to_string())
    .bind(serde_json::to_string(&manifest.options).expect("options are plain JSON"))
    .bind(&manifest.env)
    .bind(manifest.parent.as_ref().map(|parent| parent.as_str()))
    .bind(number(rebuilt.last_seq())?)
    .bind(&summary.title)
    .bind(&summary.last_text)
    .bind(number(summary.turns)?)
    .bind(number(summary.open_turns)?)
    .bind(summary.problem.as_ref().map(encoded))
    .bind(summary.checkpoint.map(number).transpose()?)
    .bind(manifest.created_at.0)
    .bind(manifest.last_active_at.0)
    .bind(encode_pending(&summary.pending))
    .bind(far_checkpoint.map(number).transpose()?)
    .bind(base.map(|base| base.parent.0))
    .bind(number(base.map_or(0, |base| base.seq))?)
    .bind(manifest.slug.as_ref().map(|slug| slug.as_str()))
    .bind(manifest.owner.as_ref().map(|owner| owner.as_str()))
    .bind(encode_metadata(&manifest.metadata))
    .bind(ttl(&manifest.options)?)
    .bind(summary.lock.as_ref().map(encoded))
    .bind(number(rebuilt.remote_seq())?)
    .bind(&manifest.secrets)
    .fetch_one(db)
    .await?;
    Ok(SessionRowId(row.try_get(0)?))
}

pub(super) async fn add_lines(
    db: &mut SqliteConnection,
    no: SessionRowId,
    lines: &[EventLine],
) -> Result<()> {
    for line in lines {
        query("INSERT INTO events (session, seq, turn, at, kind, json, is_message) VALUES (?, ?, ?, ?, ?, ?, ?)")
            .bind(no.0)
            .bind(number(line.seq)?)
            .bind(line.turn.map(|turn| turn.to_string()))
            .bind(line.at.0)
            .bind(&line.kind)
            .bind(&line.json)
            .bind(is_message(&line.kind, &line.json))
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}
