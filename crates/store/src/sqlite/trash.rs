//! Forgetting sessions: first nobody sees them, then their rows go, some at a time.

use crate::{Result, Session};
use ash_model::{SessionNo, Timestamp};
use sqlx::{Row, SqliteConnection, SqlitePool, query};

/// So many rows go at a time: others write meanwhile.
const AT_ONCE: i64 = 5000;

type Db = SqliteConnection;

pub(super) async fn put(db: &mut Db, no: SessionNo, at: Timestamp) -> Result<bool> {
    let done =
        query("UPDATE sessions SET trashed_at = ? WHERE n = ? AND status = 'ended' AND trashed_at IS NULL");
    Ok(done.bind(at.0).bind(no.0).execute(db).await?.rows_affected() > 0)
}

/// Forks read their parent's log, so it stays as long as they do.
pub(super) async fn old(db: &SqlitePool, before: Timestamp) -> Result<Vec<Session>> {
    let rows = query(
        "SELECT * FROM sessions s WHERE trashed_at IS NOT NULL AND trashed_at <= ?
           AND NOT EXISTS (SELECT 1 FROM sessions f WHERE f.base_session = s.n)
         ORDER BY trashed_at",
    );
    rows.bind(before.0).fetch_all(db).await?.iter().map(super::read::session_row).collect()
}

/// False: there is more.
pub(super) async fn bury(db: &mut Db, no: SessionNo) -> Result<bool> {
    for sql in [
        "DELETE FROM deltas WHERE (session, seq, n) IN
             (SELECT session, seq, n FROM deltas WHERE session = ?1 LIMIT ?2)",
        "DELETE FROM events WHERE (session, seq) IN (SELECT session, seq FROM events WHERE session = ?1 LIMIT ?2)",
    ] {
        if query(sql).bind(no.0).bind(AT_ONCE).execute(&mut *db).await?.rows_affected() > 0 {
            return Ok(false);
        }
    }
    let row = query("SELECT workspace FROM sessions WHERE n = ? AND trashed_at IS NOT NULL");
    let Some(row) = row.bind(no.0).fetch_optional(&mut *db).await? else { return Ok(true) };
    let workspace: String = row.try_get(0)?;
    for sql in [
        "DELETE FROM turns WHERE session = ?",
        "DELETE FROM journals WHERE session = ?",
        "DELETE FROM sessions WHERE n = ?",
    ] {
        query(sql).bind(no.0).execute(&mut *db).await?;
    }
    let others = query("SELECT 1 FROM sessions WHERE workspace = ? LIMIT 1").bind(&workspace);
    if others.fetch_optional(&mut *db).await?.is_none() {
        for sql in ["DELETE FROM checkpoints WHERE workspace = ?", "DELETE FROM workspaces WHERE id = ?"] {
            query(sql).bind(&workspace).execute(&mut *db).await?;
        }
    }
    Ok(true)
}
