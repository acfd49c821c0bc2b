//! Ending sessions by order or by age, and deleting what is only kept for a while.

use super::{
    SqliteStore,
    audit::{self, SessionDeed},
    columns::optional,
    sessions::session_row,
    trash::{self, PurgeOrder},
};
use crate::{AuditAction, AuditActor, EndDisposition, Result, RetentionStore, SealingKey, SessionRow};
use ash_model::{SessionRowId, SessionStatus, Timestamp};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sqlx::{SqliteConnection, SqlitePool, query};

#[async_trait]
impl RetentionStore for SqliteStore {
    async fn request_end(&self, no: SessionRowId, by: AuditActor, disposition: EndDisposition) -> Result<()> {
        let request = EndRequest { by, disposition };
        self.writer.write(move |db| Box::pin(async move { request_end(db, no, &request).await })).await
    }

    async fn expired_sessions(&self, now: Timestamp) -> Result<Vec<SessionRow>> {
        expired_sessions(&self.readers, now).await
    }

    async fn resting_sessions(&self, status: SessionStatus, before: Timestamp) -> Result<Vec<SessionRow>> {
        resting_sessions(&self.readers, status, before).await
    }

    async fn prune(&self, before: Timestamp) -> Result<u64> {
        self.writer.write(move |db| Box::pin(async move { prune(db, before).await })).await
    }
}

/// Who wants a session to end, and what becomes of it then: the column `ordered`.
#[derive(Serialize, Deserialize)]
pub(super) struct EndRequest {
    #[serde(flatten)]
    by: AuditActor,
    #[serde(rename = "fate")]
    disposition: EndDisposition,
}

async fn request_end(db: &mut SqliteConnection, no: SessionRowId, request: &EndRequest) -> Result<()> {
    let ordered = serde_json::to_string(request).expect("plain JSON");
    query("UPDATE sessions SET ordered = ? WHERE n = ?").bind(ordered).bind(no.0).execute(db).await?;
    Ok(())
}

/// Before the step that ends a session: writes the audit entry, and answers what was requested. `None`: it has ended before.
pub(super) async fn begin_end(
    db: &mut SqliteConnection,
    no: SessionRowId,
    at: Timestamp,
) -> Result<Option<EndRequest>> {
    let row = query("SELECT ordered FROM sessions WHERE n = ? AND status <> 'ended'").bind(no.0);
    let Some(row) = row.fetch_optional(&mut *db).await? else { return Ok(None) };
    let request = optional(&row, "ordered", |text| serde_json::from_str::<EndRequest>(text).ok())?;
    let request =
        request.unwrap_or(EndRequest { by: AuditActor::default(), disposition: EndDisposition::End });
    let deed = SessionDeed { action: AuditAction::Ended, at, by: &request.by, detail: None };
    audit::add_for_session(db, no, deed).await?;
    Ok(Some(request))
}

/// After the step that ends a session: purges it if that was requested.
pub(super) async fn finish_end(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    at: Timestamp,
    request: &EndRequest,
) -> Result<()> {
    match request.disposition {
        EndDisposition::End => Ok(()),
        EndDisposition::Purge => {
            let order = PurgeOrder { at, by: &request.by };
            trash::move_to_trash(db, seal, no, order).await.map(drop)
        }
    }
}

/// A session with an unfinished turn is at work and does not expire.
async fn expired_sessions(db: &SqlitePool, now: Timestamp) -> Result<Vec<SessionRow>> {
    let rows = query(
        "SELECT * FROM sessions WHERE ttl IS NOT NULL AND trashed_at IS NULL
           AND (open_turns = 0 OR status = 'ended') AND last_active_at + 1000 * ttl <= ? ORDER BY n",
    );
    rows.bind(now.0).fetch_all(db).await?.iter().map(session_row).collect()
}

async fn resting_sessions(
    db: &SqlitePool,
    status: SessionStatus,
    before: Timestamp,
) -> Result<Vec<SessionRow>> {
    // The list of statuses is the condition of the partial index, which is used only if the query repeats it.
    let rows = query(
        "SELECT * FROM sessions WHERE trashed_at IS NULL AND status IN ('paused', 'stopped', 'error', 'ended')
           AND status = ? AND last_active_at <= ? AND (open_turns = 0 OR status = 'ended') ORDER BY n",
    );
    let rows = rows.bind(status.as_str()).bind(before.0).fetch_all(db).await?;
    rows.iter().map(session_row).collect()
}

async fn prune(db: &mut SqliteConnection, before: Timestamp) -> Result<u64> {
    // Clients still read the deltas of a turn that is running.
    let deltas = query(
        "DELETE FROM deltas WHERE at < ? AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = deltas.turn
             AND t.state IN ('queued', 'running', 'saving', 'cut'))",
    )
    .bind(before.0)
    .execute(&mut *db)
    .await?;
    let keys = query("DELETE FROM idempotency WHERE at < ?").bind(before.0).execute(db).await?;
    Ok(deltas.rows_affected() + keys.rows_affected())
}
