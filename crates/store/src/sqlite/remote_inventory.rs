//! What the database believes an object store to have.

use super::{
    SqliteStore,
    columns::{number, parsed, unsigned},
    sessions::fork_base,
};
use crate::{
    RemoteAgent, RemoteCheckpoint, RemoteInventoryStore, RemotePack, RemoteRetraction, RemoteSession,
    RemoteState, Result, RetractedAgent,
};
use ash_model::{AgentName, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};
use std::collections::{BTreeSet, HashMap, HashSet};

#[async_trait]
impl RemoteInventoryStore for SqliteStore {
    async fn remote_packs(&self, tenant: &TenantId) -> Result<HashMap<String, u64>> {
        remote_packs(&self.readers, tenant).await
    }

    async fn add_remote_packs(&self, tenant: &TenantId, packs: &[RemotePack]) -> Result<()> {
        let (tenant, packs) = (tenant.clone(), packs.to_vec());
        self.writer.write(move |db| Box::pin(async move { add_packs(db, &tenant, &packs).await })).await
    }

    async fn forget_remote_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<()> {
        let (tenant, packs) = (tenant.clone(), serde_json::to_string(packs).expect("a list of strings"));
        self.writer.write(move |db| Box::pin(async move { forget_packs(db, &tenant, &packs).await })).await
    }

    async fn missing_packs(&self, tenant: &TenantId) -> Result<HashSet<String>> {
        missing_packs(&self.readers, tenant).await
    }

    async fn add_remote_object(&self, key: &str, size: u64) -> Result<()> {
        let key = key.to_owned();
        self.writer.write(move |db| Box::pin(async move { add_object(db, &key, size).await })).await
    }

    async fn forget_remote_objects(&self, keys: &[String]) -> Result<()> {
        let keys = serde_json::to_string(keys).expect("a list of strings");
        self.writer.write(move |db| Box::pin(async move { forget_objects(db, &keys).await })).await
    }

    async fn remote_state(&self, tenant: &TenantId) -> Result<RemoteState> {
        state(&self.readers, tenant).await
    }

    async fn retract(&self, tenant: &TenantId, what: RemoteRetraction) -> Result<()> {
        let tenant = tenant.clone();
        self.writer.write(move |db| Box::pin(async move { retract(db, &tenant, &what).await })).await
    }
}

async fn remote_packs(db: &SqlitePool, tenant: &TenantId) -> Result<HashMap<String, u64>> {
    let rows = query("SELECT pack, size FROM far_packs WHERE tenant = ?").bind(tenant.as_str());
    let rows = rows.fetch_all(db).await?;
    rows.iter().map(|row| Ok((row.try_get("pack")?, unsigned(row, "size")?))).collect()
}

async fn add_packs(db: &mut SqliteConnection, tenant: &TenantId, packs: &[RemotePack]) -> Result<()> {
    for RemotePack { pack, size } in packs {
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

async fn forget_packs(db: &mut SqliteConnection, tenant: &TenantId, packs: &str) -> Result<()> {
    for sql in [
        "DELETE FROM far_packs WHERE tenant = ? AND pack IN (SELECT value FROM json_each(?))",
        "DELETE FROM far_missing WHERE tenant = ? AND pack IN (SELECT value FROM json_each(?))",
    ] {
        query(sql).bind(tenant.as_str()).bind(packs).execute(&mut *db).await?;
    }
    Ok(())
}

async fn missing_packs(db: &SqlitePool, tenant: &TenantId) -> Result<HashSet<String>> {
    let rows = query("SELECT pack FROM far_missing WHERE tenant = ?").bind(tenant.as_str());
    rows.fetch_all(db).await?.iter().map(|row| Ok(row.try_get("pack")?)).collect()
}

async fn add_object(db: &mut SqliteConnection, key: &str, size: u64) -> Result<()> {
    query("INSERT INTO far_objects (key, size) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET size = ?2")
        .bind(key)
        .bind(number(size)?)
        .execute(db)
        .await?;
    Ok(())
}

async fn forget_objects(db: &mut SqliteConnection, keys: &str) -> Result<()> {
    let done = query("DELETE FROM far_objects WHERE key IN (SELECT value FROM json_each(?))");
    done.bind(keys).execute(db).await?;
    Ok(())
}

async fn state(db: &SqlitePool, tenant: &TenantId) -> Result<RemoteState> {
    // Packs are read first: they are recorded before the checkpoints that need them.
    let packs = remote_packs(db, tenant).await?;
    let missing = missing_packs(db, tenant).await?;
    let agents = agents(db, tenant).await?;
    let sessions = sessions(db, tenant).await?;
    // All keys under the prefix: a zero is the next character after a slash.
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
        Ok(RemoteSession {
            no: SessionRowId(row.try_get("n")?),
            id: parsed(row, "id", |text| SessionId::parse(text).ok())?,
            agent: parsed(row, "agent", |text| AgentName::parse(text).ok())?,
            version: row.try_get("version")?,
            base: fork_base(row)?,
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

async fn retract(db: &mut SqliteConnection, tenant: &TenantId, what: &RemoteRetraction) -> Result<()> {
    for pack in &what.packs {
        change(db, "DELETE FROM far_packs WHERE tenant = ? AND pack = ?", tenant, pack).await?;
    }
    for pack in &what.missing {
        change(db, "INSERT OR IGNORE INTO far_missing (tenant, pack) VALUES (?, ?)", tenant, pack).await?;
    }
    for pack in &what.not_missing {
        change(db, "DELETE FROM far_missing WHERE tenant = ? AND pack = ?", tenant, pack).await?;
    }
    for RetractedAgent { name, version } in &what.agents {
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

/// A checkpoint that was uploaded again meanwhile stays: its upload time has changed.
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
