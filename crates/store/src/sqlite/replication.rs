//! What an object store does not have yet, and what is to be deleted there.

use super::{
    SqliteStore,
    checkpoints::checkpoint_row,
    columns::{number, parsed, unsigned},
    repair::agent_definition_row,
    trash::{TombstoneSelection, tombstones},
};
use crate::{PendingUpload, QueuedDelete, ReplicationLag, ReplicationStore, Result, TombstoneRow};
use ash_model::{EventSeq, SessionRowId, Timestamp, WorkspaceId};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query};

#[async_trait]
impl ReplicationStore for SqliteStore {
    async fn set_remote(&self, place: &str) -> Result<()> {
        let place = place.to_owned();
        self.writer.write(move |db| Box::pin(async move { set_remote(db, &place).await })).await
    }

    async fn pending_uploads(&self, limit: u32, except: &[SessionRowId]) -> Result<Vec<PendingUpload>> {
        let except: Vec<i64> = except.iter().map(|session| session.0).collect();
        let except = serde_json::to_string(&except).expect("a list of numbers");
        pending_uploads(&self.readers, limit, &except).await
    }

    async fn mark_uploaded(&self, what: &PendingUpload, seq: EventSeq, at: Timestamp) -> Result<()> {
        let what = what.clone();
        self.writer.write(move |db| Box::pin(async move { mark_uploaded(db, &what, seq, at).await })).await
    }

    async fn replication_lag(&self) -> Result<ReplicationLag> {
        replication_lag(&self.readers).await
    }

    async fn enqueue_deletes(&self, keys: &[String], at: Timestamp) -> Result<()> {
        let keys = keys.to_vec();
        self.writer.write(move |db| Box::pin(async move { enqueue_deletes(db, &keys, at).await })).await
    }

    async fn queued_deletes(&self, limit: u32) -> Result<Vec<QueuedDelete>> {
        queued_deletes(&self.readers, limit).await
    }

    async fn cancel_deletes(&self, keys: &[String]) -> Result<()> {
        let keys = serde_json::to_string(keys).expect("a list of strings");
        self.writer.write(move |db| Box::pin(async move { cancel_deletes(db, &keys).await })).await
    }

    async fn dequeue_deletes(&self, numbers: &[i64]) -> Result<()> {
        let numbers = serde_json::to_string(numbers).expect("a list of numbers");
        self.writer.write(move |db| Box::pin(async move { dequeue_deletes(db, &numbers).await })).await
    }
}

async fn set_remote(db: &mut SqliteConnection, place: &str) -> Result<()> {
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

async fn pending_uploads(db: &SqlitePool, limit: u32, except: &str) -> Result<Vec<PendingUpload>> {
    let agents = query(
        "SELECT a.*, v.version AS of_version, v.tree, v.runtime, v.provider, v.image, v.limits, v.needs, v.origin FROM agents a
         JOIN agent_versions v ON v.agent = a.n
         WHERE v.far_at IS NULL OR (v.version = a.version AND a.far_changes < a.changes)
         ORDER BY a.n, v.version LIMIT ?",
    );
    let agents = agents.bind(limit).fetch_all(db).await?;
    let mut all: Vec<PendingUpload> = agents
        .iter()
        .map(|row| agent_definition_row(row).map(PendingUpload::Agent))
        .collect::<Result<_>>()?;
    let checkpoints = query(
        "SELECT * FROM checkpoints WHERE far_at IS NULL AND removed_at IS NULL
           AND session NOT IN (SELECT value FROM json_each(?))
           AND session NOT IN (SELECT n FROM sessions WHERE trashed_at IS NOT NULL)
         ORDER BY at, number LIMIT ?",
    );
    for row in &checkpoints.bind(except).bind(limit).fetch_all(db).await? {
        let workspace = parsed(row, "workspace", WorkspaceId::parse)?;
        let session = SessionRowId(row.try_get("session")?);
        all.push(PendingUpload::Checkpoint { session, checkpoint: checkpoint_row(row, workspace)? });
    }
    // A pending checkpoint uploads the log with it, so the log alone is not uploaded before.
    let logs = query(
        "SELECT n, last_seq FROM sessions s
         WHERE status IN ('paused', 'stopped', 'error', 'ended') AND last_seq > far_seq AND trashed_at IS NULL
           AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.workspace = s.workspace AND c.far_at IS NULL
             AND c.removed_at IS NULL AND c.number > coalesce(s.far_checkpoint, 0))
           AND n NOT IN (SELECT value FROM json_each(?))
         ORDER BY last_active_at LIMIT ?",
    );
    for row in &logs.bind(except).bind(limit).fetch_all(db).await? {
        let (session, seq) = (SessionRowId(row.try_get("n")?), unsigned(row, "last_seq")?);
        all.push(PendingUpload::Log { session, seq });
    }
    let tombstones = tombstones(db, TombstoneSelection::Pending { limit }).await?;
    all.extend(tombstones.into_iter().map(|row| {
        let TombstoneRow { session, tombstone, .. } = row;
        PendingUpload::Tombstone { session, tombstone }
    }));
    Ok(all)
}

async fn mark_uploaded(
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
            // The agent may have changed while it was uploaded: its newer changes are still pending.
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
        PendingUpload::Checkpoint { session, checkpoint } => {
            query("UPDATE checkpoints SET far_at = ? WHERE workspace = ? AND number = ?")
                .bind(at.0)
                .bind(checkpoint.workspace.to_string())
                .bind(number(checkpoint.number)?)
                .execute(&mut *db)
                .await?;
            query(
                // max: an older checkpoint that is uploaded again does not replace a newer one.
                "UPDATE sessions SET far_seq = max(far_seq, ?1), far_checkpoint = max(coalesce(far_checkpoint, 0), ?2)
                 WHERE n = ?3",
            )
                .bind(number(seq)?)
                .bind(number(checkpoint.number)?)
                .bind(session.0)
                .execute(db)
                .await?;
        }
        PendingUpload::Tombstone { session, .. } => {
            let sent = query("UPDATE sessions SET tombstone_far_at = ? WHERE n = ?");
            sent.bind(at.0).bind(session.0).execute(db).await?;
        }
        PendingUpload::Log { session, .. } => {
            query("UPDATE sessions SET far_seq = max(far_seq, ?1) WHERE n = ?2")
                .bind(number(seq)?)
                .bind(session.0)
                .execute(db)
                .await?;
        }
    }
    Ok(())
}

async fn replication_lag(db: &SqlitePool) -> Result<ReplicationLag> {
    let row = query(
        "SELECT count(*) AS count, min(at) AS oldest FROM checkpoints WHERE far_at IS NULL AND removed_at IS NULL",
    );
    let row = row.fetch_one(db).await?;
    let oldest: Option<i64> = row.try_get("oldest")?;
    Ok(ReplicationLag { checkpoints: unsigned(&row, "count")?, oldest: oldest.map(Timestamp) })
}

async fn enqueue_deletes(db: &mut SqliteConnection, keys: &[String], at: Timestamp) -> Result<()> {
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

async fn queued_deletes(db: &SqlitePool, limit: u32) -> Result<Vec<QueuedDelete>> {
    let rows = query("SELECT n, key FROM far_doomed ORDER BY n LIMIT ?").bind(limit).fetch_all(db).await?;
    rows.iter().map(|row| Ok(QueuedDelete { number: row.try_get("n")?, key: row.try_get("key")? })).collect()
}

async fn cancel_deletes(db: &mut SqliteConnection, keys: &str) -> Result<()> {
    let done = query("DELETE FROM far_doomed WHERE key IN (SELECT value FROM json_each(?))");
    done.bind(keys).execute(db).await?;
    Ok(())
}

async fn dequeue_deletes(db: &mut SqliteConnection, numbers: &str) -> Result<()> {
    let done = query("DELETE FROM far_doomed WHERE n IN (SELECT value FROM json_each(?))");
    done.bind(numbers).execute(db).await?;
    Ok(())
}
