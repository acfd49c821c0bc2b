//! What sandboxes take of the machine.

use super::columns::{parsed, unsigned};
use crate::{AccessScope, IncarnationUsage, Result, SessionResourceUsage, UsageQuery};
use ash_model::{ResourceUsage, SessionId, SessionRowId, WorkspaceId};
use sqlx::{QueryBuilder, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

/// A sandbox can report any number; a sum of them must not overflow.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX).min(1 << 53)
}

pub(super) async fn record(db: &mut SqliteConnection, report: &IncarnationUsage) -> Result<()> {
    let IncarnationUsage { workspace, incarnation, usage, at } = report;
    let ResourceUsage { cpu_ms, peak_memory, disk_bytes, files } = *usage;
    query(
        "INSERT INTO resources (workspace, incarnation, before_ms, cpu_ms, peak_memory, disk_bytes, files, at)
         VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET
             before_ms = CASE WHEN incarnation = ?2 THEN before_ms ELSE before_ms + cpu_ms END,
             cpu_ms = CASE WHEN incarnation = ?2 THEN max(cpu_ms, ?3) ELSE ?3 END,
             incarnation = ?2, peak_memory = max(peak_memory, ?4), disk_bytes = ?5, files = ?6, at = ?7",
    )
    .bind(workspace.to_string())
    .bind(incarnation.to_string())
    .bind(number(cpu_ms))
    .bind(number(peak_memory))
    .bind(number(disk_bytes))
    .bind(number(files))
    .bind(at.0)
    .execute(db)
    .await?;
    Ok(())
}

/// `None`: all workspaces together.
pub(super) async fn of_workspace(db: &SqlitePool, workspace: Option<WorkspaceId>) -> Result<ResourceUsage> {
    let row = query(
        "SELECT coalesce(sum(before_ms + cpu_ms), 0) AS cpu_ms, coalesce(max(peak_memory), 0) AS peak_memory,
             coalesce(sum(disk_bytes), 0) AS disk_bytes, coalesce(sum(files), 0) AS files
         FROM resources WHERE ?1 IS NULL OR workspace = ?1",
    )
    .bind(workspace.map(|workspace| workspace.to_string()))
    .fetch_one(db)
    .await?;
    resources(&row)
}

pub(super) async fn total(db: &SqlitePool, scope: &AccessScope, asked: &UsageQuery) -> Result<ResourceUsage> {
    let mut sql = QueryBuilder::new(
        "SELECT coalesce(sum(before_ms + cpu_ms), 0) AS cpu_ms, coalesce(max(peak_memory), 0) AS peak_memory,
             coalesce(sum(disk_bytes), 0) AS disk_bytes, coalesce(sum(files), 0) AS files
         FROM resources WHERE workspace IN (SELECT workspace FROM sessions WHERE tenant = ",
    );
    sql.push_bind(scope.tenant.as_str());
    for owner in scope.owner.iter().chain(&asked.owner) {
        sql.push(" AND owner = ").push_bind(owner.as_str());
    }
    if let Some(SessionRowId(no)) = asked.session {
        sql.push(" AND n = ").push_bind(no);
    }
    if let Some(agent) = &asked.agent {
        sql.push(" AND agent = ").push_bind(agent.as_str());
    }
    sql.push(")");
    resources(&sql.build().fetch_one(db).await?)
}

pub(super) async fn by_session(
    db: &SqlitePool,
    scope: &AccessScope,
    sessions: &[SessionId],
) -> Result<Vec<SessionResourceUsage>> {
    let mut sql = QueryBuilder::new(
        "SELECT s.id, r.before_ms + r.cpu_ms AS cpu_ms, r.peak_memory, r.disk_bytes, r.files
         FROM sessions s JOIN resources r ON r.workspace = s.workspace WHERE s.tenant = ",
    );
    sql.push_bind(scope.tenant.as_str());
    if let Some(owner) = &scope.owner {
        sql.push(" AND s.owner = ").push_bind(owner.as_str());
    }
    sql.push(" AND s.id IN (");
    let mut ids = sql.separated(", ");
    for id in sessions {
        ids.push_bind(id.as_str());
    }
    sql.push(")");
    let rows = sql.build().fetch_all(db).await?;
    let usage = |row: &SqliteRow| {
        let session = parsed(row, "id", |id| SessionId::parse(id).ok())?;
        Ok(SessionResourceUsage { session, usage: resources(row)? })
    };
    rows.iter().map(usage).collect()
}

fn resources(row: &SqliteRow) -> Result<ResourceUsage> {
    Ok(ResourceUsage {
        cpu_ms: unsigned(row, "cpu_ms")?,
        peak_memory: unsigned(row, "peak_memory")?,
        disk_bytes: unsigned(row, "disk_bytes")?,
        files: unsigned(row, "files")?,
    })
}
