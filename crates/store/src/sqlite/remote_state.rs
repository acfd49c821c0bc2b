//! Comparing with the object store: what is said to be there, and what of it is taken back.

use super::{
    read::{parsed, unsigned},
    write::number,
};
use crate::{RemoteAgent, RemoteCheckpoint, RemoteRetraction, RemoteSession, RemoteState, Result};
use ash_model::{AgentName, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId};
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};
use std::collections::{BTreeSet, HashMap, HashSet};

pub(super) async fn state(db: &SqlitePool, tenant: &TenantId) -> Result<RemoteState> {
    // Packs first: a checkpoint is said to be there after its packs are.
    let packs = super::replication::packs(db, tenant).await?;
    let missing = missing(db, tenant).await?;
    let agents = agents(db, tenant).await?;
    let sessions = sessions(db, tenant).await?;
    // A zero comes right after a slash.
    let objects = query("SELECT key, size FROM far_objects WHERE key >= ? AND key < ?");
    let objects = objects.bind(format!("tenants/{tenant}/")).bind(format!("tenants/{tenant}0"));
    let objects = objects.fetch_all(db).await?;
    let objects = objects.iter().map(|row| Ok((row.try_get("key")?, unsigned(row, "size")?)));
    let objects = objects.collect::<Result<_>>()?;
    let waiting = query(
        "SELECT c.tree FROM checkpoints c JOIN sessions s ON s.n = c.session
         WHERE s.tenant = ?1 AND c.far_at IS NULL AND c.removed_at IS NULL
         UNION SELECT v.tree FROM agent_versions v JOIN agents a ON a.n = v.agent WHERE a.tenant = ?1 AND v.far_at IS NULL",
    );
    let waiting = waiting.bind(tenant.as_str()).fetch_all(db).await?;
    let waiting = waiting.iter().map(|row| Ok(row.try_get("tree")?)).collect::<Result<_>>()?;
    Ok(RemoteState { packs, missing, objects, agents, sessions, waiting })
}

pub(super) async fn missing(db: &SqlitePool, tenant: &TenantId) -> Result<HashSet<String>> {
    let rows = query("SELECT pack FROM far_missing WHERE tenant = ?").bind(tenant.as_str());
    rows.fetch_all(db).await?.iter().map(|row| Ok(row.try_get("pack")?)).collect()
}

async fn agents(db: &SqlitePool, tenant: &TenantId) -> Result<Vec<RemoteAgent>> {
    let rows = query(
        "SELECT a.name, v.version, v.tree, CASE WHEN v.version = a.version THEN a.far_changes END AS changes
         FROM agents a JOIN agent_versions v ON v.agent = a.n WHERE a.tenant = ? AND v.far_at IS NOT NULL",
    );
    let agent = |row: &SqliteRow| -> Result<RemoteAgent> {
        let changes: Option<i64> = row.try_get("changes")?;
        Ok(RemoteAgent {
            name: parsed(row, "name", |text| AgentName::parse(text).ok())?,
            version: row.try_get("version")?,
            tree: row.try_get("tree")?,
            changes: changes.filter(|changes| *changes > 0).map(|changes| changes as u64),
        })
    };
    rows.bind(tenant.as_str()).fetch_all(db).await?.iter().map(agent).collect()
}

async fn sessions(db: &SqlitePool, tenant: &TenantId) -> Result<Vec<RemoteSession>> {
    let rows = query(
        "SELECT n, id, agent, version, base_session, base_seq, far_seq FROM sessions
         WHERE tenant = ? AND trashed_at IS NULL AND (far_seq > 0 OR far_checkpoint IS NOT NULL) ORDER BY n",
    );
    let session = |row: &SqliteRow| -> Result<RemoteSession> {
        let base: Option<i64> = row.try_get("base_session")?;
        let base_seq = unsigned(row, "base_seq")?;
        Ok(RemoteSession {
            no: SessionRowId(row.try_get("n")?),
            id: parsed(row, "id", |text| SessionId::parse(text).ok())?,
            agent: parsed(row, "agent", |text| AgentName::parse(text).ok())?,
            version: row.try_get("version")?,
            base: base.map(|parent| (SessionRowId(parent), base_seq)),
            seq: unsigned(row, "far_seq")?,
            checkpoints: Vec::new(),
        })
    };
    let rows = rows.bind(tenant.as_str()).fetch_all(db).await?;
    let mut sessions: Vec<RemoteSession> = rows.iter().map(session).collect::<Result<_>>()?;
    let at: HashMap<SessionRowId, usize> = sessions.iter().zip(0..).map(|(one, at)| (one.no, at)).collect();
    let rows = query(
        "SELECT c.session, c.workspace, c.number, c.seq, c.tree, c.far_at FROM checkpoints c JOIN sessions s ON s.n = c.session
         WHERE s.tenant = ? AND c.far_at IS NOT NULL AND c.removed_at IS NULL ORDER BY c.number",
    );
    for row in &rows.bind(tenant.as_str()).fetch_all(db).await? {
        let checkpoint = RemoteCheckpoint {
            workspace: parsed(row, "workspace", WorkspaceId::parse)?,
            number: unsigned(row, "number")?,
            seq: unsigned(row, "seq")?,
            tree: row.try_get("tree")?,
            sent_at: Timestamp(row.try_get("far_at")?),
        };
        if let Some(at) = at.get(&SessionRowId(row.try_get("session")?)) {
            sessions[*at].checkpoints.push(checkpoint);
        }
    }
    Ok(sessions)
}

pub(super) async fn add_object(db: &mut SqliteConnection, key: &str, size: u64) -> Result<()> {
    query("INSERT INTO far_objects (key, size) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET size = ?2")
        .bind(key)
        .bind(number(size)?)
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn forget_objects(db: &mut SqliteConnection, keys: &str) -> Result<()> {
    let done = query("DELETE FROM far_objects WHERE key IN (SELECT value FROM json_each(?))");
    done.bind(keys).execute(db).await?;
    Ok(())
}

pub(super) async fn retract(
    db: &mut SqliteConnection,
    tenant: &TenantId,
    what: &RemoteRetraction,
) -> Result<()> {
    for pack in &what.packs {
        change(db, "DELETE FROM far_packs WHERE tenant = ? AND pack = ?", tenant, pack).await?;
    }
    for pack in &what.missing {
        change(db, "INSERT OR IGNORE INTO far_missing (tenant, pack) VALUES (?, ?)", tenant, pack).await?;
    }
    for pack in &what.not_missing {
        change(db, "DELETE FROM far_missing WHERE tenant = ? AND pack = ?", tenant, pack).await?;
    }
    for (name, version) in &what.agents {
        query(
            "UPDATE agent_versions SET far_at = NULL
             WHERE version = ?1 AND agent = (SELECT n FROM agents WHERE tenant = ?2 AND name = ?3)",
        )
        .bind(version)
        .bind(tenant.as_str())
        .bind(name.as_str())
        .execute(&mut *db)
        .await?;
        query("UPDATE agents SET far_changes = 0 WHERE tenant = ?1 AND name = ?2 AND version = ?3")
            .bind(tenant.as_str())
            .bind(name.as_str())
            .bind(version)
            .execute(&mut *db)
            .await?;
    }
    retract_checkpoints(db, &what.checkpoints).await?;
    for log in &what.logs {
        query("UPDATE sessions SET far_seq = ?1 WHERE n = ?2 AND far_seq = ?3")
            .bind(number(log.actual_seq)?)
            .bind(log.session.0)
            .bind(number(log.claimed_seq)?)
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}

async fn change(db: &mut SqliteConnection, sql: &'static str, tenant: &TenantId, pack: &str) -> Result<()> {
    query(sql).bind(tenant.as_str()).bind(pack).execute(db).await?;
    Ok(())
}

/// Unless they were sent again since.
async fn retract_checkpoints(db: &mut SqliteConnection, checkpoints: &[RemoteCheckpoint]) -> Result<()> {
    let mut workspaces = BTreeSet::new();
    for checkpoint in checkpoints {
        let workspace = checkpoint.workspace.to_string();
        query(
            "UPDATE checkpoints SET far_at = NULL
             WHERE workspace = ?1 AND number = ?2 AND far_at = ?3 AND removed_at IS NULL",
        )
        .bind(&workspace)
        .bind(number(checkpoint.number)?)
        .bind(checkpoint.sent_at.0)
        .execute(&mut *db)
        .await?;
        workspaces.insert(workspace);
    }
    for workspace in workspaces {
        query(
            "UPDATE sessions SET far_checkpoint = (SELECT max(c.number) FROM checkpoints c
               WHERE c.session = sessions.n AND c.far_at IS NOT NULL AND c.removed_at IS NULL)
             WHERE workspace = ?",
        )
        .bind(workspace)
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}
