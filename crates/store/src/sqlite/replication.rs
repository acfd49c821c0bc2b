//! What an object store has of all this, what is still to be sent, and rows that come back from there.

use super::{
    adoption::{self, add_lines, tombstones},
    purge,
    read::{checkpoint_row, image, limits, needs, parsed, provider, unsigned},
    usage,
    write::{encode_metadata, encode_pending, encoded, number, save_checkpoint, save_turn, ttl},
};
use crate::{Error, PendingUpload, RebuiltSession, ReplicationLag, Result, SealingKey};
use ash_model::{
    AgentName, AgentRuntime, EventSeq, Image, ModelProvider, SessionRowId, TenantId, Timestamp, WorkspaceId,
    remote::AgentDefinition,
};
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};
use std::collections::HashMap;
use uuid::Uuid;

pub(super) async fn set_place(db: &mut SqliteConnection, place: &str) -> Result<()> {
    let known = query("SELECT 1 FROM far WHERE place = ?").bind(place).fetch_optional(&mut *db).await?;
    if known.is_some() {
        return Ok(());
    }
    for sql in [
        "DELETE FROM far",
        "DELETE FROM far_packs",
        "DELETE FROM far_doomed",
        "DELETE FROM far_missing",
        "DELETE FROM far_objects",
        "UPDATE checkpoints SET far_at = NULL WHERE far_at IS NOT NULL",
        "UPDATE agent_versions SET far_at = NULL WHERE far_at IS NOT NULL",
        "UPDATE agents SET far_changes = 0",
        "UPDATE sessions SET far_seq = 0, far_checkpoint = NULL, tombstone_far_at = NULL",
    ] {
        query(sql).execute(&mut *db).await?;
    }
    query("INSERT INTO far (place) VALUES (?)").bind(place).execute(db).await?;
    Ok(())
}

pub(super) async fn outgoing(db: &SqlitePool, limit: u32, except: &str) -> Result<Vec<PendingUpload>> {
    let agents = query(
        "SELECT a.*, v.version AS of_version, v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, v.origin FROM agents a
         JOIN agent_versions v ON v.agent = a.n
         WHERE v.far_at IS NULL OR (v.version = a.version AND a.far_changes < a.changes)
         ORDER BY a.n, v.version LIMIT ?",
    );
    let agents = agents.bind(limit).fetch_all(db).await?;
    let mut all: Vec<PendingUpload> =
        agents.iter().map(|row| agent(row).map(PendingUpload::Agent)).collect::<Result<_>>()?;
    let checkpoints = query(
        "SELECT * FROM checkpoints WHERE far_at IS NULL AND removed_at IS NULL
           AND session NOT IN (SELECT value FROM json_each(?))
           AND session NOT IN (SELECT n FROM sessions WHERE trashed_at IS NOT NULL)
         ORDER BY at, number LIMIT ?",
    );
    for row in &checkpoints.bind(except).bind(limit).fetch_all(db).await? {
        let workspace = parsed(row, "workspace", WorkspaceId::parse)?;
        let session = SessionRowId(row.try_get("session")?);
        all.push(PendingUpload::Checkpoint(session, checkpoint_row(row, workspace)?));
    }
    // What a checkpoint will bring along is not sent before it.
    let logs = query(
        "SELECT n, last_seq FROM sessions s
         WHERE status IN ('paused', 'stopped', 'error', 'ended') AND last_seq > far_seq AND trashed_at IS NULL
           AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.workspace = s.workspace AND c.far_at IS NULL
             AND c.removed_at IS NULL AND c.number > coalesce(s.far_checkpoint, 0))
           AND n NOT IN (SELECT value FROM json_each(?))
         ORDER BY last_active_at LIMIT ?",
    );
    for row in &logs.bind(except).bind(limit).fetch_all(db).await? {
        all.push(PendingUpload::Log(SessionRowId(row.try_get("n")?), unsigned(row, "last_seq")?));
    }
    let tombstones = tombstones(db, true, limit).await?;
    all.extend(tombstones.into_iter().map(|(no, tombstone)| PendingUpload::Tombstone(no, tombstone)));
    Ok(all)
}

fn agent(row: &SqliteRow) -> Result<AgentDefinition> {
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

pub(super) async fn definition(
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
    row.as_ref().map(agent).transpose()
}

pub(super) async fn sent(
    db: &mut SqliteConnection,
    what: &PendingUpload,
    seq: EventSeq,
    at: Timestamp,
) -> Result<()> {
    match what {
        PendingUpload::Agent(agent) => {
            query(
                "UPDATE agent_versions SET far_at = ?1
                 WHERE version = ?2 AND agent = (SELECT n FROM agents WHERE tenant = ?3 AND name = ?4)",
            )
            .bind(at.0)
            .bind(agent.version)
            .bind(agent.tenant.as_str())
            .bind(agent.name.as_str())
            .execute(&mut *db)
            .await?;
            // It may have changed since.
            query(
                "UPDATE agents SET far_changes = max(far_changes, ?1)
                 WHERE tenant = ?2 AND name = ?3 AND version = ?4",
            )
            .bind(number(agent.changes)?)
            .bind(agent.tenant.as_str())
            .bind(agent.name.as_str())
            .bind(agent.version)
            .execute(db)
            .await?;
        }
        PendingUpload::Checkpoint(session, checkpoint) => {
            query("UPDATE checkpoints SET far_at = ? WHERE workspace = ? AND number = ?")
                .bind(at.0)
                .bind(checkpoint.workspace.to_string())
                .bind(number(checkpoint.number)?)
                .execute(&mut *db)
                .await?;
            query(
                // An older one that is sent again does not hide a newer one that is there.
                "UPDATE sessions SET far_seq = max(far_seq, ?1), far_checkpoint = max(coalesce(far_checkpoint, 0), ?2)
                 WHERE n = ?3",
            )
                .bind(number(seq)?)
                .bind(number(checkpoint.number)?)
                .bind(session.0)
                .execute(db)
                .await?;
        }
        PendingUpload::Tombstone(session, _) => {
            let sent = query("UPDATE sessions SET tombstone_far_at = ? WHERE n = ?");
            sent.bind(at.0).bind(session.0).execute(db).await?;
        }
        PendingUpload::Log(session, _) => {
            query("UPDATE sessions SET far_seq = max(far_seq, ?1) WHERE n = ?2")
                .bind(number(seq)?)
                .bind(session.0)
                .execute(db)
                .await?;
        }
    }
    Ok(())
}

pub(super) async fn lag(db: &SqlitePool) -> Result<ReplicationLag> {
    let row = query(
        "SELECT count(*) AS count, min(at) AS oldest FROM checkpoints WHERE far_at IS NULL AND removed_at IS NULL",
    );
    let row = row.fetch_one(db).await?;
    let oldest: Option<i64> = row.try_get("oldest")?;
    Ok(ReplicationLag { checkpoints: unsigned(&row, "count")?, oldest: oldest.map(Timestamp) })
}

pub(super) async fn packs(db: &SqlitePool, tenant: &TenantId) -> Result<HashMap<String, u64>> {
    let rows = query("SELECT pack, size FROM far_packs WHERE tenant = ?").bind(tenant.as_str());
    let rows = rows.fetch_all(db).await?;
    rows.iter().map(|row| Ok((row.try_get("pack")?, unsigned(row, "size")?))).collect()
}

pub(super) async fn add_packs(
    db: &mut SqliteConnection,
    tenant: &TenantId,
    packs: &[(String, u64)],
) -> Result<()> {
    for (pack, size) in packs {
        query(
            "INSERT INTO far_packs (tenant, pack, size) VALUES (?1, ?2, ?3)
             ON CONFLICT (tenant, pack) DO UPDATE SET size = ?3",
        )
        .bind(tenant.as_str())
        .bind(pack)
        .bind(number(*size)?)
        .execute(&mut *db)
        .await?;
        query("DELETE FROM far_missing WHERE tenant = ? AND pack = ?")
            .bind(tenant.as_str())
            .bind(pack)
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}

pub(super) async fn rebuild(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    rebuilt: &RebuiltSession,
) -> Result<bool> {
    for agent in &rebuilt.agents {
        add_agent(db, agent, rebuilt.at).await?;
    }
    let manifest = &rebuilt.manifest;
    if is_known(db, rebuilt).await? {
        return Ok(false);
    }
    // Whoever held it writes with a lower epoch, if he still writes at all.
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
        adoption::bury_rebuilt(db, seal, session, (rebuilt.at, purged)).await?;
    }
    Ok(true)
}

/// Whether this very session is there, or was purged since: another one that has its id by now is not it.
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
    .bind(super::write::stored(agent.limits)?)
    .bind(super::write::stored(Some(agent.needs).filter(|needs| !needs.is_empty()))?)
    .bind(&agent.origin)
    .bind(agent.updated_at.0)
    .bind(at.0)
    .execute(db)
    .await?;
    Ok(())
}

async fn add_session(db: &mut SqliteConnection, rebuilt: &RebuiltSession) -> Result<SessionRowId> {
    let RebuiltSession { manifest, summary: card, checkpoints, .. } = rebuilt;
    let base = match (&manifest.parent, manifest.base) {
        (Some(parent), Some(base)) => {
            let row = purge::had_id(&mut *db, (&manifest.tenant, parent), manifest.created_at).await?;
            let why =
                || format!("session {} shares the log of {parent}, which is not there", manifest.session);
            let row = row.ok_or_else(|| Error::Damaged { what: "fork", why: why() })?;
            Some((row.try_get::<i64, _>("n")?, number(base)?))
        }
        (_, _) => None,
    };
    let there = checkpoints.iter().filter(|one| one.removed_at.is_none() && one.uploaded_at.is_some());
    let far_checkpoint = there.map(|checkpoint| checkpoint.number).max();
    let row = query(
        "INSERT INTO sessions (tenant, id, workspace, agent, version, runtime, status, native_id, options, env, parent,
             last_seq, title, last_text, turns, open_turns, problem, checkpoint, created_at, last_active_at, pending,
             far_seq, far_checkpoint, base_session, base_seq, slug, owner, metadata, ttl, lock, secrets)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?30, ?22,
             ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?31)
         RETURNING n",
    )
    .bind(manifest.tenant.as_str())
    // Another one may have its id by now.
    .bind(if rebuilt.purged.is_some() { ".rebuilt" } else { manifest.session.as_str() })
    .bind(manifest.workspace.to_string())
    .bind(manifest.agent.as_str())
    .bind(manifest.version)
    .bind(manifest.runtime.as_str())
    .bind(card.status.as_str())
    .bind(manifest.native_id.to_string())
    .bind(serde_json::to_string(&manifest.options).expect("options are plain JSON"))
    .bind(&manifest.env)
    .bind(manifest.parent.as_ref().map(|parent| parent.as_str()))
    .bind(number(rebuilt.last_seq())?)
    .bind(&card.title)
    .bind(&card.last_text)
    .bind(number(card.turns)?)
    .bind(number(card.open_turns)?)
    .bind(card.problem.as_ref().map(encoded))
    .bind(card.checkpoint.map(number).transpose()?)
    .bind(manifest.created_at.0)
    .bind(manifest.last_active_at.0)
    .bind(encode_pending(&card.pending))
    .bind(far_checkpoint.map(number).transpose()?)
    .bind(base.map(|(parent, _)| parent))
    .bind(base.map_or(0, |(_, seq)| seq))
    .bind(manifest.slug.as_ref().map(|slug| slug.as_str()))
    .bind(manifest.owner.as_ref().map(|owner| owner.as_str()))
    .bind(encode_metadata(&manifest.metadata))
    .bind(ttl(&manifest.options)?)
    .bind(card.lock.as_ref().map(encoded))
    .bind(number(rebuilt.remote_seq())?)
    .bind(&manifest.secrets)
    .fetch_one(db)
    .await?;
    Ok(SessionRowId(row.try_get(0)?))
}

pub(super) async fn doom(db: &mut SqliteConnection, keys: &[String], at: Timestamp) -> Result<()> {
    for key in keys {
        query("INSERT INTO far_doomed (key, at) VALUES (?, ?)")
            .bind(key)
            .bind(at.0)
            .execute(&mut *db)
            .await?;
        query("DELETE FROM far_objects WHERE key = ?").bind(key).execute(&mut *db).await?;
    }
    Ok(())
}

pub(super) async fn doomed(db: &SqlitePool, limit: u32) -> Result<Vec<(i64, String)>> {
    let rows = query("SELECT n, key FROM far_doomed ORDER BY n LIMIT ?").bind(limit).fetch_all(db).await?;
    rows.iter().map(|row| Ok((row.try_get("n")?, row.try_get("key")?))).collect()
}

pub(super) async fn undoom(db: &mut SqliteConnection, numbers: &str) -> Result<()> {
    let done = query("DELETE FROM far_doomed WHERE n IN (SELECT value FROM json_each(?))");
    done.bind(numbers).execute(db).await?;
    Ok(())
}

pub(super) async fn spare(db: &mut SqliteConnection, keys: &str) -> Result<()> {
    let done = query("DELETE FROM far_doomed WHERE key IN (SELECT value FROM json_each(?))");
    done.bind(keys).execute(db).await?;
    Ok(())
}

pub(super) async fn forget_packs(db: &mut SqliteConnection, tenant: &TenantId, packs: &str) -> Result<()> {
    for sql in [
        "DELETE FROM far_packs WHERE tenant = ? AND pack IN (SELECT value FROM json_each(?))",
        "DELETE FROM far_missing WHERE tenant = ? AND pack IN (SELECT value FROM json_each(?))",
    ] {
        query(sql).bind(tenant.as_str()).bind(packs).execute(&mut *db).await?;
    }
    Ok(())
}
