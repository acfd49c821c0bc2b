//! The audit. An entry is written in the transaction of what it describes: neither exists without the other.

use super::{
    SqliteStore,
    columns::{owner, parsed},
};
use crate::{AuditAction, AuditActor, AuditEntry, AuditQuery, AuditStore, Error, Result, SealingKey};
use ash_model::{OwnerId, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId};
use async_trait::async_trait;
use sqlx::{QueryBuilder, Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

#[async_trait]
impl AuditStore for SqliteStore {
    async fn add_audit_entry(&self, entry: AuditEntry, session: Option<SessionRowId>) -> Result<()> {
        let seal = self.seal.clone();
        self.writer
            .write(move |db| Box::pin(async move { add_for_caller(db, &seal, entry, session).await }))
            .await
    }

    async fn audit_entries(&self, tenant: &TenantId, query: &AuditQuery) -> Result<Vec<AuditEntry>> {
        entries(&self.readers, &self.seal, tenant, query).await
    }
}

/// What was done to a session.
pub(super) struct SessionDeed<'a> {
    pub(super) action: AuditAction,
    pub(super) at: Timestamp,
    pub(super) by: &'a AuditActor,
    pub(super) detail: Option<String>,
}

pub(super) async fn add_for_session(
    db: &mut SqliteConnection,
    no: SessionRowId,
    deed: SessionDeed<'_>,
) -> Result<()> {
    let row =
        query("SELECT tenant, id, owner FROM sessions WHERE n = ?").bind(no.0).fetch_one(&mut *db).await?;
    let tenant = parsed(&row, "tenant", |text| TenantId::parse(text).ok())?;
    add(db, session_entry(tenant, row.try_get("id")?, owner(&row)?, deed), Some(no)).await
}

/// For a session in the trash: the entry has its pseudonym instead of its id.
pub(super) async fn add_for_purged(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    deed: SessionDeed<'_>,
) -> Result<()> {
    let row = query("SELECT tenant, coalesce(purged_id, id) AS id, owner FROM sessions WHERE n = ?");
    let row = row.bind(no.0).fetch_one(&mut *db).await?;
    let tenant = parsed(&row, "tenant", |text| TenantId::parse(text).ok())?;
    let subject = seal.pseudonym(&tenant, &parsed(&row, "id", |text| SessionId::parse(text).ok())?);
    add(db, session_entry(tenant, subject, owner(&row)?, deed), Some(no)).await
}

fn session_entry(
    tenant: TenantId,
    subject: String,
    owner: Option<OwnerId>,
    deed: SessionDeed<'_>,
) -> AuditEntry {
    let SessionDeed { action, at, by, detail } = deed;
    AuditEntry { no: 0, at, tenant, action, subject, owner, actor: by.clone(), detail }
}

/// An entry for something that the store does not do itself. If the session was purged since the caller found it, the entry
/// gets its pseudonym.
async fn add_for_caller(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    mut entry: AuditEntry,
    session: Option<SessionRowId>,
) -> Result<()> {
    if let Some(SessionRowId(no)) = session {
        let there = query("SELECT 1 FROM sessions WHERE n = ? AND trashed_at IS NULL").bind(no);
        if there.fetch_optional(&mut *db).await?.is_none() {
            let id = SessionId::parse(&entry.subject);
            let id = id.map_err(|error| Error::Damaged { what: "audit", why: error.to_string() })?;
            entry.subject = seal.pseudonym(&entry.tenant, &id);
        }
    }
    add(db, entry, session).await
}

pub(super) async fn add_for_deleted_workspace(
    db: &mut SqliteConnection,
    id: WorkspaceId,
    at: Timestamp,
    by: AuditActor,
) -> Result<()> {
    let row = query("SELECT tenant, slug, owner FROM workspaces WHERE id = ?").bind(id.to_string());
    let row = row.fetch_one(&mut *db).await?;
    let tenant = parsed(&row, "tenant", |text| TenantId::parse(text).ok())?;
    let (subject, of): (Option<String>, Option<OwnerId>) = (row.try_get("slug")?, owner(&row)?);
    let subject = subject.unwrap_or_else(|| id.to_string());
    let (action, detail) = (AuditAction::WorkspaceDeleted, None);
    add(db, AuditEntry { no: 0, at, tenant, action, subject, owner: of, actor: by, detail }, None).await
}

/// Adds an entry and numbers it. `session`: the session that its subject names, if it exists.
pub(super) async fn add(
    db: &mut SqliteConnection,
    entry: AuditEntry,
    session: Option<SessionRowId>,
) -> Result<()> {
    query(
        "INSERT INTO audit (at, tenant, deed, subject, owner, by_key, by_owner, rule, detail, session, id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, (SELECT coalesce(max(id), 0) + 1 FROM audit WHERE tenant = ?2))",
    )
    .bind(entry.at.0)
    .bind(entry.tenant.as_str())
    .bind(entry.action.as_str())
    .bind(entry.subject)
    .bind(entry.owner.as_ref().map(OwnerId::as_str))
    .bind(entry.actor.key)
    .bind(entry.actor.owner.as_ref().map(OwnerId::as_str))
    .bind(entry.actor.rule)
    .bind(entry.detail)
    .bind(session.map(|SessionRowId(no)| no))
    .execute(db)
    .await?;
    Ok(())
}

/// The newest first. A purged session is found by its id as long as no other session has it.
async fn entries(
    db: &SqlitePool,
    seal: &SealingKey,
    tenant: &TenantId,
    asked: &AuditQuery,
) -> Result<Vec<AuditEntry>> {
    let mut sql = QueryBuilder::new("SELECT * FROM audit WHERE tenant = ");
    sql.push_bind(tenant.as_str());
    if let Some(subject) = &asked.subject {
        sql.push(" AND (subject = ").push_bind(subject);
        if let Ok(id) = SessionId::parse(subject) {
            sql.push(" OR (subject = ").push_bind(seal.pseudonym(tenant, &id));
            sql.push(" AND NOT EXISTS (SELECT 1 FROM sessions WHERE tenant = ").push_bind(tenant.as_str());
            sql.push(" AND id = ").push_bind(subject).push("))");
        }
        sql.push(")");
    }
    if let Some(since) = asked.since {
        sql.push(" AND at >= ").push_bind(since.0);
    }
    if let Some(before) = asked.before {
        sql.push(" AND id < ").push_bind(before);
    }
    sql.push(" ORDER BY id DESC LIMIT ").push_bind(asked.limit);
    sql.build().fetch_all(db).await?.iter().map(|row| entry(row, tenant)).collect()
}

fn entry(row: &SqliteRow, tenant: &TenantId) -> Result<AuditEntry> {
    let by_owner: Option<String> = row.try_get("by_owner")?;
    let by_owner = by_owner.map(|text| OwnerId::parse(&text)).transpose();
    let by_owner = by_owner.map_err(|error| Error::Damaged { what: "audit", why: error.to_string() })?;
    Ok(AuditEntry {
        no: row.try_get("id")?,
        at: Timestamp(row.try_get("at")?),
        tenant: tenant.clone(),
        action: parsed(row, "deed", AuditAction::parse)?,
        subject: row.try_get("subject")?,
        owner: owner(row)?,
        actor: AuditActor { key: row.try_get("by_key")?, owner: by_owner, rule: row.try_get("rule")? },
        detail: row.try_get("detail")?,
    })
}
