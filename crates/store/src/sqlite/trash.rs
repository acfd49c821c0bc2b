//! The trash: a purged session is hidden at once, and its rows are deleted some at a time.

use super::{
    SqliteStore,
    audit::{self, SessionDeed},
    columns::{number, parsed, unsigned},
    purge,
    sessions::session_row,
    usage,
};
use crate::{AuditAction, AuditActor, Result, SealingKey, SessionRow, TombstoneRow, TrashStore};
use ash_model::{Epoch, SessionId, SessionRowId, TenantId, Timestamp, remote::SessionTombstone};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

#[async_trait]
impl TrashStore for SqliteStore {
    async fn trash(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<bool> {
        let seal = self.seal.clone();
        self.writer
            .write(move |db| {
                Box::pin(async move { move_to_trash(db, &seal, no, PurgeOrder { at, by: &by }).await })
            })
            .await
    }

    async fn trash_by_tombstone(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<()> {
        let seal = self.seal.clone();
        self.writer
            .write(move |db| {
                Box::pin(async move { trash_by_tombstone(db, &seal, no, PurgeOrder { at, by: &by }).await })
            })
            .await
    }

    async fn trashed_sessions(&self, before: Timestamp) -> Result<Vec<SessionRow>> {
        trashed_sessions(&self.readers, before).await
    }

    async fn trashed_parents(&self, before: Timestamp) -> Result<Vec<SessionRowId>> {
        trashed_parents(&self.readers, before).await
    }

    async fn forget_unshared(&self, no: SessionRowId) -> Result<bool> {
        let done =
            self.writer.write(move |db| Box::pin(async move { forget_unshared(db, no).await })).await?;
        if !done {
            self.writer.truncate_wal().await;
        }
        Ok(done)
    }

    async fn purge(&self, no: SessionRowId, at: Timestamp) -> Result<bool> {
        let seal = self.seal.clone();
        let done = self
            .writer
            .write(move |db| Box::pin(async move { delete_rows(db, &seal, no, at).await }))
            .await?;
        if done {
            self.writer.truncate_wal().await;
        }
        Ok(done)
    }

    async fn tombstones(&self) -> Result<Vec<TombstoneRow>> {
        tombstones(&self.readers, TombstoneSelection::All).await
    }

    async fn tombstone(&self, no: SessionRowId) -> Result<Option<TombstoneRow>> {
        tombstone(&self.readers, no).await
    }

    async fn tombstones_of(&self, tenant: &TenantId, id: &SessionId) -> Result<Vec<SessionTombstone>> {
        tombstones_of(&self.readers, tenant, id).await
    }
}

/// So many rows are deleted in one step, so that other writers do not wait long.
const ROWS_PER_BATCH: i64 = 5000;

/// The name in the audit of the rule that deletes the rows of sessions in the trash.
const TRASH_RULE: &str = "trash";

/// The name in the audit of the rule that purges a session because a witness has its tombstone.
const TOMBSTONE_RULE: &str = "tombstone";

/// By whose order a session is purged, and when.
#[derive(Clone, Copy)]
pub(super) struct PurgeOrder<'a> {
    pub(super) at: Timestamp,
    pub(super) by: &'a AuditActor,
}

pub(super) async fn move_to_trash(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    order: PurgeOrder<'_>,
) -> Result<bool> {
    let there = query("SELECT 1 FROM sessions WHERE n = ? AND status = 'ended' AND trashed_at IS NULL");
    if there.bind(no.0).fetch_optional(&mut *db).await?.is_none() {
        return Ok(false);
    }
    let PurgeOrder { at, by } = order;
    let deed = SessionDeed { action: AuditAction::Purged, at, by, detail: None };
    audit::add_for_session(db, no, deed).await?;
    purge::free_id(db, no, at).await?;
    purge::hide(db, seal, no).await?;
    Ok(true)
}

async fn trash_by_tombstone(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    order: PurgeOrder<'_>,
) -> Result<()> {
    let ended = query("UPDATE sessions SET status = 'ended', open_turns = 0, lock = NULL WHERE n = ?");
    ended.bind(no.0).execute(&mut *db).await?;
    move_to_trash(db, seal, no, order).await.map(drop)
}

/// A purged session that came back only because forks share its log: it goes into the trash at once, under the tombstone
/// that it had.
pub(super) async fn trash_rebuilt(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    tombstone: &SessionTombstone,
    at: Timestamp,
) -> Result<()> {
    query(
        "UPDATE sessions SET status = 'ended', open_turns = 0, lock = NULL, id = '.' || n, purged_id = ?2, purged_epoch = ?3,
             purged_seq = ?4, trashed_at = ?5, tombstone_far_at = ?6 WHERE n = ?1",
    )
    .bind(no.0)
    .bind(tombstone.session.as_str())
    .bind(number(tombstone.epoch.0)?)
    .bind(number(tombstone.seq)?)
    .bind(tombstone.purged_at.0)
    .bind(at.0)
    .execute(&mut *db)
    .await?;
    usage::forget(db, no).await?;
    let by = &AuditActor::of_rule(TOMBSTONE_RULE);
    audit::add_for_purged(db, seal, no, SessionDeed { action: AuditAction::Purged, at, by, detail: None })
        .await
}

/// Forks read their parent's log, so a parent stays as long as its forks.
async fn trashed_sessions(db: &SqlitePool, before: Timestamp) -> Result<Vec<SessionRow>> {
    let rows = query(
        "SELECT * FROM sessions s WHERE trashed_at IS NOT NULL AND trashed_at <= ?
           AND NOT EXISTS (SELECT 1 FROM sessions f WHERE f.base_session = s.n)
         ORDER BY trashed_at",
    );
    rows.bind(before.0).fetch_all(db).await?.iter().map(session_row).collect()
}

async fn trashed_parents(db: &SqlitePool, before: Timestamp) -> Result<Vec<SessionRowId>> {
    let rows = query(
        "SELECT n FROM sessions s WHERE trashed_at IS NOT NULL AND trashed_at <= ?
           AND EXISTS (SELECT 1 FROM sessions f WHERE f.base_session = s.n)",
    );
    let rows = rows.bind(before.0).fetch_all(db).await?;
    rows.iter().map(|row| Ok(SessionRowId(row.try_get("n")?))).collect()
}

/// `false`: something was deleted, and there may be more.
async fn forget_unshared(db: &mut SqliteConnection, no: SessionRowId) -> Result<bool> {
    let shared = "(SELECT coalesce(max(f.base_seq), 0) FROM sessions f WHERE f.base_session = ?1)";
    for table in ["deltas", "events"] {
        let key = if table == "deltas" { "session, seq, n" } else { "session, seq" };
        let sql = format!(
            "DELETE FROM {table} WHERE ({key}) IN
                 (SELECT {key} FROM {table} WHERE session = ?1 AND seq > {shared} LIMIT ?2)"
        );
        let gone = query(sqlx::AssertSqlSafe(sql)).bind(no.0).bind(ROWS_PER_BATCH).execute(&mut *db).await?;
        if gone.rows_affected() > 0 {
            return Ok(false);
        }
    }
    let stripped = query(
        "UPDATE sessions SET title = NULL, last_text = NULL, metadata = NULL, env = NULL, secrets = NULL, options = '{}',
             problem = NULL, pending = NULL, lock = NULL, ordered = NULL
         WHERE n = ? AND trashed_at IS NOT NULL
           AND (options <> '{}' OR coalesce(title, last_text, metadata, env, secrets, problem, pending) IS NOT NULL)",
    );
    Ok(stripped.bind(no.0).execute(db).await?.rows_affected() == 0)
}

/// Deletes a batch of the rows of a session in the trash; at last the session's own row, and with the last session of a
/// workspace the rows of the workspace. `false`: there is more.
async fn delete_rows(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    at: Timestamp,
) -> Result<bool> {
    // A fork may have come back since the session was chosen, and reads its log.
    let shared = query("SELECT 1 FROM sessions WHERE base_session = ? LIMIT 1").bind(no.0);
    if shared.fetch_optional(&mut *db).await?.is_some() {
        return Ok(true);
    }
    for sql in [
        "DELETE FROM deltas WHERE (session, seq, n) IN
             (SELECT session, seq, n FROM deltas WHERE session = ?1 LIMIT ?2)",
        "DELETE FROM events WHERE (session, seq) IN (SELECT session, seq FROM events WHERE session = ?1 LIMIT ?2)",
    ] {
        if query(sql).bind(no.0).bind(ROWS_PER_BATCH).execute(&mut *db).await?.rows_affected() > 0 {
            return Ok(false);
        }
    }
    let row = query("SELECT workspace FROM sessions WHERE n = ? AND trashed_at IS NOT NULL");
    let Some(row) = row.bind(no.0).fetch_optional(&mut *db).await? else { return Ok(true) };
    let workspace: String = row.try_get(0)?;
    let by = &AuditActor::of_rule(TRASH_RULE);
    let deed = SessionDeed { action: AuditAction::Forgotten, at, by, detail: None };
    audit::add_for_purged(db, seal, no, deed).await?;
    usage::forget(db, no).await?;
    for sql in [
        "DELETE FROM turns WHERE session = ?",
        "DELETE FROM journals WHERE session = ?",
        "DELETE FROM sessions WHERE n = ?",
    ] {
        query(sql).bind(no.0).execute(&mut *db).await?;
    }
    let others = query("SELECT 1 FROM sessions WHERE workspace = ? LIMIT 1").bind(&workspace);
    if others.fetch_optional(&mut *db).await?.is_none() {
        for sql in [
            "DELETE FROM checkpoints WHERE workspace = ?",
            "DELETE FROM resources WHERE workspace = ?",
            "DELETE FROM workspaces WHERE id = ?",
        ] {
            query(sql).bind(&workspace).execute(&mut *db).await?;
        }
    }
    Ok(true)
}

/// Which tombstones are read.
pub(super) enum TombstoneSelection {
    All,
    /// Those that the object store does not have.
    Pending {
        limit: u32,
    },
}

pub(super) async fn tombstones(db: &SqlitePool, which: TombstoneSelection) -> Result<Vec<TombstoneRow>> {
    let (is_pending, limit) = match which {
        TombstoneSelection::All => (false, u32::MAX),
        TombstoneSelection::Pending { limit } => (true, limit),
    };
    let rows = query(
        "SELECT n, tenant, purged_id, purged_epoch, purged_seq, trashed_at, tombstone_far_at IS NOT NULL AS sent FROM sessions
         WHERE trashed_at IS NOT NULL AND (tombstone_far_at IS NULL OR NOT ?) ORDER BY trashed_at LIMIT ?",
    );
    let rows = rows.bind(is_pending).bind(limit).fetch_all(db).await?;
    rows.iter().map(tombstone_row).collect()
}

async fn tombstone(db: &SqlitePool, no: SessionRowId) -> Result<Option<TombstoneRow>> {
    let row = query(
        "SELECT n, tenant, purged_id, purged_epoch, purged_seq, trashed_at, tombstone_far_at IS NOT NULL AS sent FROM sessions
         WHERE n = ? AND trashed_at IS NOT NULL",
    );
    row.bind(no.0).fetch_optional(db).await?.as_ref().map(tombstone_row).transpose()
}

fn tombstone_row(row: &SqliteRow) -> Result<TombstoneRow> {
    Ok(TombstoneRow {
        session: SessionRowId(row.try_get("n")?),
        tombstone: purged_session(row)?,
        is_uploaded: row.try_get("sent")?,
    })
}

async fn tombstones_of(db: &SqlitePool, tenant: &TenantId, id: &SessionId) -> Result<Vec<SessionTombstone>> {
    let rows = query(
        "SELECT tenant, purged_id, purged_epoch, purged_seq, trashed_at FROM sessions
         WHERE tenant = ? AND purged_id = ? ORDER BY n",
    );
    let rows = rows.bind(tenant.as_str()).bind(id.as_str()).fetch_all(db).await?;
    rows.iter().map(purged_session).collect()
}

fn purged_session(row: &SqliteRow) -> Result<SessionTombstone> {
    Ok(SessionTombstone {
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        session: parsed(row, "purged_id", |text| SessionId::parse(text).ok())?,
        epoch: Epoch(unsigned(row, "purged_epoch")?),
        seq: unsigned(row, "purged_seq")?,
        purged_at: Timestamp(row.try_get("trashed_at")?),
    })
}
