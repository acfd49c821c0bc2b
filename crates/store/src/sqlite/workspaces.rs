//! Workspaces with a name.

use super::{
    read::{owner, parsed, unsigned},
    write::number,
};
use crate::{AccessScope, AuditActor, Error, NewWorkspaceRow, Result, WorkspaceRow};
use ash_model::{AgentName, Slug, TenantId, Timestamp, WorkspaceId};
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

/// Of two who make the same one, both have it; but it is one agent's.
pub(super) async fn make(db: &mut SqliteConnection, new: &NewWorkspaceRow) -> Result<WorkspaceRow> {
    query(
        "INSERT INTO workspaces (id, tenant, owner, slug, agent, node, epoch, created_at) VALUES (?, ?, ?, ?, ?, ?, 1, ?)
         ON CONFLICT (tenant, slug) DO NOTHING",
    )
    .bind(new.id.to_string())
    .bind(new.tenant.as_str())
    .bind(new.owner.as_ref().map(|owner| owner.as_str()))
    .bind(new.slug.as_str())
    .bind(new.agent.as_str())
    .bind(&new.node)
    .bind(number(new.at.0.unsigned_abs())?)
    .execute(&mut *db)
    .await?;
    let found = query("SELECT * FROM named_workspaces WHERE tenant = ? AND slug = ?")
        .bind(new.tenant.as_str())
        .bind(new.slug.as_str())
        .fetch_one(db)
        .await?;
    let found = workspace(&found)?;
    match found.deleting {
        // First of all: whose it is not must not learn anything else of it.
        _ if new.owner.is_some() && new.owner != found.owner => Err(Error::SlugTaken(found.slug)),
        true => Err(Error::Deleting(found.slug)),
        false if found.agent != new.agent => Err(Error::OtherAgent { slug: found.slug, agent: found.agent }),
        false => Ok(found),
    }
}

pub(super) async fn find(db: &SqlitePool, scope: &AccessScope, slug: &Slug) -> Result<Option<WorkspaceRow>> {
    let row = query(
        "SELECT * FROM named_workspaces WHERE tenant = ?1 AND slug = ?2 AND (?3 IS NULL OR owner = ?3)",
    )
    .bind(scope.tenant.as_str())
    .bind(slug.as_str())
    .bind(scope.owner.as_ref().map(|owner| owner.as_str()))
    .fetch_optional(db)
    .await?;
    row.as_ref().map(workspace).transpose()
}

pub(super) async fn list(db: &SqlitePool, scope: &AccessScope) -> Result<Vec<WorkspaceRow>> {
    let rows = query(
        "SELECT * FROM named_workspaces WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) ORDER BY slug",
    );
    let rows = rows.bind(scope.tenant.as_str()).bind(scope.owner.as_ref().map(|owner| owner.as_str()));
    rows.fetch_all(db).await?.iter().map(workspace).collect()
}

pub(super) async fn half_deleted(db: &SqlitePool) -> Result<Vec<WorkspaceRow>> {
    let rows = query("SELECT * FROM named_workspaces WHERE deleting_at IS NOT NULL");
    rows.fetch_all(db).await?.iter().map(workspace).collect()
}

pub(super) async fn begin_deleting(
    db: &mut SqliteConnection,
    id: WorkspaceId,
    at: Timestamp,
    by: AuditActor,
) -> Result<()> {
    let begun = query("UPDATE workspaces SET deleting_at = ? WHERE id = ? AND deleting_at IS NULL");
    let begun = begun.bind(at.0).bind(id.to_string()).execute(&mut *db).await?;
    // Whoever comes later only goes on with it.
    if begun.rows_affected() > 0 {
        super::audit::of_workspace(db, id, at, by).await?;
    }
    Ok(())
}

/// Its name is free again. The row stays for its sessions.
pub(super) async fn deleted(db: &mut SqliteConnection, id: WorkspaceId, at: Timestamp) -> Result<()> {
    query("UPDATE checkpoints SET removed_at = coalesce(removed_at, ?) WHERE workspace = ?")
        .bind(at.0)
        .bind(id.to_string())
        .execute(&mut *db)
        .await?;
    query("UPDATE sessions SET checkpoint = NULL WHERE workspace = ?")
        .bind(id.to_string())
        .execute(&mut *db)
        .await?;
    query("UPDATE workspaces SET slug = NULL WHERE id = ?").bind(id.to_string()).execute(db).await?;
    Ok(())
}

fn workspace(row: &SqliteRow) -> Result<WorkspaceRow> {
    let checkpoint: Option<i64> = row.try_get("checkpoint")?;
    Ok(WorkspaceRow {
        id: parsed(row, "id", WorkspaceId::parse)?,
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        owner: owner(row)?,
        slug: parsed(row, "slug", |text| Slug::parse(text).ok())?,
        agent: parsed(row, "agent", |text| AgentName::parse(text).ok())?,
        created_at: Timestamp(row.try_get("created_at")?),
        deleting: row.try_get::<Option<i64>, _>("deleting_at")?.is_some(),
        sessions: unsigned(row, "sessions")?,
        checkpoint: checkpoint.map(|n| n as u64),
    })
}
