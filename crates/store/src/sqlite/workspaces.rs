//! Named workspaces.

use super::{
    SqliteStore, audit,
    columns::{number, owner, parsed, unsigned},
};
use crate::{AccessScope, AuditActor, Error, NewWorkspaceRow, Result, WorkspaceRow, WorkspaceStore};
use ash_model::{AgentName, Slug, TenantId, Timestamp, WorkspaceId};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

#[async_trait]
impl WorkspaceStore for SqliteStore {
    async fn make_workspace(&self, new: NewWorkspaceRow) -> Result<WorkspaceRow> {
        self.writer.write(move |db| Box::pin(async move { make(db, &new).await })).await
    }

    async fn find_workspace(&self, scope: &AccessScope, slug: &Slug) -> Result<Option<WorkspaceRow>> {
        find(&self.readers, scope, slug).await
    }

    async fn workspaces(&self, scope: &AccessScope) -> Result<Vec<WorkspaceRow>> {
        list(&self.readers, scope).await
    }

    async fn workspaces_being_deleted(&self) -> Result<Vec<WorkspaceRow>> {
        being_deleted(&self.readers).await
    }

    async fn begin_deleting(&self, id: WorkspaceId, at: Timestamp, by: AuditActor) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { begin_deleting(db, id, at, by).await })).await
    }

    async fn finish_deleting(&self, id: WorkspaceId, at: Timestamp) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { finish_deleting(db, id, at).await })).await
    }
}

/// Creates a workspace or finds it. Concurrent callers get the same one, if they name the same agent.
async fn make(db: &mut SqliteConnection, new: &NewWorkspaceRow) -> Result<WorkspaceRow> {
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
        // The owner is checked first: other owners learn only that the name is taken.
        _ if new.owner.is_some() && new.owner != found.owner => Err(Error::SlugTaken(found.slug)),
        true => Err(Error::Deleting(found.slug)),
        false if found.agent != new.agent => Err(Error::OtherAgent { slug: found.slug, agent: found.agent }),
        false => Ok(found),
    }
}

async fn find(db: &SqlitePool, scope: &AccessScope, slug: &Slug) -> Result<Option<WorkspaceRow>> {
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

async fn list(db: &SqlitePool, scope: &AccessScope) -> Result<Vec<WorkspaceRow>> {
    let rows = query(
        "SELECT * FROM named_workspaces WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) ORDER BY slug",
    );
    let rows = rows.bind(scope.tenant.as_str()).bind(scope.owner.as_ref().map(|owner| owner.as_str()));
    rows.fetch_all(db).await?.iter().map(workspace).collect()
}

async fn being_deleted(db: &SqlitePool) -> Result<Vec<WorkspaceRow>> {
    let rows = query("SELECT * FROM named_workspaces WHERE deleting_at IS NOT NULL");
    rows.fetch_all(db).await?.iter().map(workspace).collect()
}

async fn begin_deleting(
    db: &mut SqliteConnection,
    id: WorkspaceId,
    at: Timestamp,
    by: AuditActor,
) -> Result<()> {
    let begun = query("UPDATE workspaces SET deleting_at = ? WHERE id = ? AND deleting_at IS NULL");
    let begun = begun.bind(at.0).bind(id.to_string()).execute(&mut *db).await?;
    // A repeated call only continues the deletion.
    if begun.rows_affected() > 0 {
        audit::add_for_deleted_workspace(db, id, at, by).await?;
    }
    Ok(())
}

/// Frees the name. The row stays for its sessions.
async fn finish_deleting(db: &mut SqliteConnection, id: WorkspaceId, at: Timestamp) -> Result<()> {
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
