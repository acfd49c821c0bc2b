//! API keys.

use super::{
    SqliteStore, audit,
    columns::{owner, parsed},
};
use crate::{ApiKey, AuditAction, AuditActor, AuditEntry, KeyStore, Result};
use ash_model::{TenantId, Timestamp};
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

#[async_trait]
impl KeyStore for SqliteStore {
    async fn key(&self, hash: &str) -> Result<Option<ApiKey>> {
        key(&self.readers, hash).await
    }

    async fn key_by_id(&self, id: &str) -> Result<Option<ApiKey>> {
        key_by_id(&self.readers, id).await
    }

    async fn keys(&self, tenant: &TenantId) -> Result<Vec<ApiKey>> {
        keys(&self.readers, tenant).await
    }

    async fn add_key(&self, key: ApiKey, hash: String, by: AuditActor) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { add_key(db, &key, &hash, by).await })).await
    }

    async fn remove_key(&self, tenant: &TenantId, id: &str, at: Timestamp, by: AuditActor) -> Result<bool> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.writer.write(move |db| Box::pin(async move { remove_key(db, &tenant, &id, at, by).await })).await
    }
}

async fn key(db: &SqlitePool, hash: &str) -> Result<Option<ApiKey>> {
    let row = query("SELECT * FROM api_keys WHERE hash = ?").bind(hash).fetch_optional(db).await?;
    row.as_ref().map(key_row).transpose()
}

async fn key_by_id(db: &SqlitePool, id: &str) -> Result<Option<ApiKey>> {
    let row = query("SELECT * FROM api_keys WHERE id = ?").bind(id).fetch_optional(db).await?;
    row.as_ref().map(key_row).transpose()
}

async fn keys(db: &SqlitePool, tenant: &TenantId) -> Result<Vec<ApiKey>> {
    let rows = query("SELECT * FROM api_keys WHERE tenant = ? ORDER BY created_at, id")
        .bind(tenant.as_str())
        .fetch_all(db)
        .await?;
    rows.iter().map(key_row).collect()
}

fn key_row(row: &SqliteRow) -> Result<ApiKey> {
    Ok(ApiKey {
        id: row.try_get("id")?,
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        owner: owner(row)?,
        label: row.try_get("label")?,
        created_at: Timestamp(row.try_get("created_at")?),
    })
}

async fn add_key(db: &mut SqliteConnection, key: &ApiKey, hash: &str, by: AuditActor) -> Result<()> {
    query("INSERT INTO api_keys (id, tenant, owner, label, hash, created_at) VALUES (?, ?, ?, ?, ?, ?)")
        .bind(&key.id)
        .bind(key.tenant.as_str())
        .bind(key.owner.as_ref().map(|owner| owner.as_str()))
        .bind(&key.label)
        .bind(hash)
        .bind(key.created_at.0)
        .execute(&mut *db)
        .await?;
    audit::add(db, key_audit_entry(key, AuditAction::KeyCreated, key.created_at, by), None).await
}

async fn remove_key(
    db: &mut SqliteConnection,
    tenant: &TenantId,
    id: &str,
    at: Timestamp,
    by: AuditActor,
) -> Result<bool> {
    let row = query("DELETE FROM api_keys WHERE tenant = ? AND id = ? RETURNING *");
    let row = row.bind(tenant.as_str()).bind(id).fetch_optional(&mut *db).await?;
    let Some(key) = row.as_ref().map(key_row).transpose()? else { return Ok(false) };
    audit::add(db, key_audit_entry(&key, AuditAction::KeyRemoved, at, by), None).await?;
    Ok(true)
}

fn key_audit_entry(key: &ApiKey, action: AuditAction, at: Timestamp, by: AuditActor) -> AuditEntry {
    let (tenant, owner) = (key.tenant.clone(), key.owner.clone());
    AuditEntry { no: 0, at, tenant, action, subject: key.id.clone(), owner, actor: by, detail: None }
}
