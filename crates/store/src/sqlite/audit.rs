//! The audit. A line is written inside the transaction of what it tells of: neither is there without the other.

use super::{
    read::{optional, owner, parsed},
    trash,
};
use crate::{AuditAction, AuditActor, AuditEntry, AuditQuery, EndDisposition, Error, Result, SealingKey};
use ash_model::{OwnerId, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId};
use serde::{Deserialize, Serialize};
use sqlx::{QueryBuilder, Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

/// What the column `ordered` holds.
#[derive(Serialize, Deserialize)]
struct EndRequest {
    #[serde(flatten)]
    by: AuditActor,
    #[serde(rename = "fate")]
    disposition: EndDisposition,
}

/// Somebody wants it to end. The order counts when it does, and the last one if there are several.
pub(super) async fn order(
    db: &mut SqliteConnection,
    no: SessionRowId,
    by: AuditActor,
    fate: EndDisposition,
) -> Result<()> {
    let ordered = serde_json::to_string(&EndRequest { by, disposition: fate }).expect("plain JSON");
    query("UPDATE sessions SET ordered = ? WHERE n = ?").bind(ordered).bind(no.0).execute(db).await?;
    Ok(())
}

/// A step that ends a session, before it is taken: what was ordered is done with it, and told.
pub(super) async fn begin_end(
    db: &mut SqliteConnection,
    no: SessionRowId,
    at: Timestamp,
) -> Result<Option<(AuditActor, EndDisposition)>> {
    let row = query("SELECT ordered FROM sessions WHERE n = ? AND status <> 'ended'").bind(no.0);
    let Some(row) = row.fetch_optional(&mut *db).await? else { return Ok(None) };
    let ordered = optional(&row, "ordered", |text| serde_json::from_str::<EndRequest>(text).ok())?;
    let (by, fate) = ordered
        .map_or((AuditActor::default(), EndDisposition::End), |ordered| (ordered.by, ordered.disposition));
    add_for_session(db, no, (AuditAction::Ended, at), &by).await?;
    Ok(Some((by, fate)))
}

pub(super) async fn finish_end(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    at: Timestamp,
    (by, fate): (AuditActor, EndDisposition),
) -> Result<()> {
    match fate {
        EndDisposition::End => Ok(()),
        EndDisposition::Purge => trash::put(db, seal, no, (at, &by)).await.map(drop),
    }
}

pub(super) async fn add_for_session(
    db: &mut SqliteConnection,
    no: SessionRowId,
    what: (AuditAction, Timestamp),
    by: &AuditActor,
) -> Result<()> {
    add_for_session_with_detail(db, no, what, (by, None)).await
}

pub(super) async fn add_for_session_with_detail(
    db: &mut SqliteConnection,
    no: SessionRowId,
    (deed, at): (AuditAction, Timestamp),
    (by, detail): (&AuditActor, Option<String>),
) -> Result<()> {
    let row =
        query("SELECT tenant, id, owner FROM sessions WHERE n = ?").bind(no.0).fetch_one(&mut *db).await?;
    let tenant = parsed(&row, "tenant", |text| TenantId::parse(text).ok())?;
    let (subject, of): (String, Option<OwnerId>) = (row.try_get("id")?, owner(&row)?);
    add(
        db,
        AuditEntry { no: 0, at, tenant, action: deed, subject, owner: of, actor: by.clone(), detail },
        Some(no),
    )
    .await
}

/// Of a session in the trash, which is not named any more.
pub(super) async fn of_purged(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    no: SessionRowId,
    (deed, at, rule): (AuditAction, Timestamp, &str),
) -> Result<()> {
    let row = query("SELECT tenant, coalesce(purged_id, id) AS id, owner FROM sessions WHERE n = ?");
    let row = row.bind(no.0).fetch_one(&mut *db).await?;
    let tenant = parsed(&row, "tenant", |text| TenantId::parse(text).ok())?;
    let subject = seal.pseudonym(&tenant, &parsed(&row, "id", |text| SessionId::parse(text).ok())?);
    let (by, of) = (AuditActor::of_rule(rule), owner(&row)?);
    add(
        db,
        AuditEntry { no: 0, at, tenant, action: deed, subject, owner: of, actor: by, detail: None },
        Some(no),
    )
    .await
}

/// A line that is written before its deed. A session may have been purged since it was looked at.
pub(super) async fn record(
    db: &mut SqliteConnection,
    seal: &SealingKey,
    mut line: AuditEntry,
    of: Option<SessionRowId>,
) -> Result<()> {
    if let Some(SessionRowId(no)) = of {
        let there = query("SELECT 1 FROM sessions WHERE n = ? AND trashed_at IS NULL").bind(no);
        if there.fetch_optional(&mut *db).await?.is_none() {
            let id = SessionId::parse(&line.subject);
            let id = id.map_err(|error| Error::Damaged { what: "audit", why: error.to_string() })?;
            line.subject = seal.pseudonym(&line.tenant, &id);
        }
    }
    add(db, line, of).await
}

pub(super) async fn of_workspace(
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
    let (deed, detail) = (AuditAction::WorkspaceDeleted, None);
    add(db, AuditEntry { no: 0, at, tenant, action: deed, subject, owner: of, actor: by, detail }, None).await
}

/// Its number is given here. `of`: the session that its subject names, if that was made.
pub(super) async fn add(db: &mut SqliteConnection, line: AuditEntry, of: Option<SessionRowId>) -> Result<()> {
    query(
        "INSERT INTO audit (at, tenant, deed, subject, owner, by_key, by_owner, rule, detail, session, id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, (SELECT coalesce(max(id), 0) + 1 FROM audit WHERE tenant = ?2))",
    )
    .bind(line.at.0)
    .bind(line.tenant.as_str())
    .bind(line.action.as_str())
    .bind(line.subject)
    .bind(line.owner.as_ref().map(OwnerId::as_str))
    .bind(line.actor.key)
    .bind(line.actor.owner.as_ref().map(OwnerId::as_str))
    .bind(line.actor.rule)
    .bind(line.detail)
    .bind(of.map(|SessionRowId(no)| no))
    .execute(db)
    .await?;
    Ok(())
}

/// Newest first. A session that was purged is found by its id as long as no other has it.
pub(super) async fn list(
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
    sql.build().fetch_all(db).await?.iter().map(|row| line(row, tenant)).collect()
}

fn line(row: &SqliteRow, tenant: &TenantId) -> Result<AuditEntry> {
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
