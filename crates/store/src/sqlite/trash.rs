//! Forgetting sessions: first nobody sees them, then their rows go, some at a time.

use super::{audit, purge, usage};
use crate::{AuditAction, AuditActor, Result, SealingKey, SessionRow};
use ash_model::{SessionRowId, SessionStatus, Timestamp};
use sqlx::{Row, SqliteConnection, SqlitePool, query};

/// So many rows go at a time: others write meanwhile.
const ROWS_PER_BATCH: i64 = 5000;
/// The rule by which what is in the trash goes for good.
const TRASH: &str = "trash";

pub(super) async fn put(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    (at, by): (Timestamp, &AuditActor),
) -> Result<bool> {
    let there = query("SELECT 1 FROM sessions WHERE n = ? AND status = 'ended' AND trashed_at IS NULL");
    if there.bind(no.0).fetch_optional(&mut *db).await?.is_none() {
        return Ok(false);
    }
    audit::add_for_session(db, no, (AuditAction::Purged, at), by).await?;
    purge::free_id(db, no, at).await?;
    purge::hide(db, seal, no).await?;
    Ok(true)
}

/// Forks read their parent's log, so it stays as long as they do.
pub(super) async fn old(db: &SqlitePool, before: Timestamp) -> Result<Vec<SessionRow>> {
    let rows = query(
        "SELECT * FROM sessions s WHERE trashed_at IS NOT NULL AND trashed_at <= ?
           AND NOT EXISTS (SELECT 1 FROM sessions f WHERE f.base_session = s.n)
         ORDER BY trashed_at",
    );
    rows.bind(before.0).fetch_all(db).await?.iter().map(super::read::session_row).collect()
}

/// Those whose log forks read, and what they do not share of it can go.
pub(super) async fn old_parents(db: &SqlitePool, before: Timestamp) -> Result<Vec<SessionRowId>> {
    let rows = query(
        "SELECT n FROM sessions s WHERE trashed_at IS NOT NULL AND trashed_at <= ?
           AND EXISTS (SELECT 1 FROM sessions f WHERE f.base_session = s.n)",
    );
    let rows = rows.bind(before.0).fetch_all(db).await?;
    rows.iter().map(|row| Ok(SessionRowId(row.try_get("n")?))).collect()
}

/// Of one of those. False: there may be more.
pub(super) async fn thin_out(db: &mut SqliteConnection, no: SessionRowId) -> Result<bool> {
    purge::forget_unshared(db, no, ROWS_PER_BATCH).await
}

/// False: there is more.
pub(super) async fn bury(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    at: Timestamp,
) -> Result<bool> {
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
    audit::of_purged(db, seal, no, (AuditAction::Forgotten, at, TRASH)).await?;
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

/// Sessions whose time to live was over then. Those with a turn that is not over are at work.
pub(super) async fn overdue(db: &SqlitePool, now: Timestamp) -> Result<Vec<SessionRow>> {
    let rows = query(
        "SELECT * FROM sessions WHERE ttl IS NOT NULL AND trashed_at IS NULL
           AND (open_turns = 0 OR status = 'ended') AND last_active_at + 1000 * ttl <= ? ORDER BY n",
    );
    rows.bind(now.0).fetch_all(db).await?.iter().map(super::read::session_row).collect()
}

/// Sessions of all tenants that have rested like this since then.
pub(super) async fn rested(
    db: &SqlitePool,
    status: SessionStatus,
    before: Timestamp,
) -> Result<Vec<SessionRow>> {
    // The list of statuses is the index's own.
    let rows = query(
        "SELECT * FROM sessions WHERE trashed_at IS NULL AND status IN ('paused', 'stopped', 'error', 'ended')
           AND status = ? AND last_active_at <= ? AND (open_turns = 0 OR status = 'ended') ORDER BY n",
    );
    let rows = rows.bind(status.as_str()).bind(before.0).fetch_all(db).await?;
    rows.iter().map(super::read::session_row).collect()
}
