//! Credentials. Every query names the tenant, and the owner of a caller that has one.

use super::{
    SqliteStore, audit,
    columns::{owner, parsed},
};
use crate::{
    AccessScope, AuditAction, AuditActor, AuditEntry, CredentialStore, Error, Result, SecretEnv,
    StoredCredential,
};
use ash_model::{CredentialId, CredentialKind, OwnerId, TenantId, Timestamp};
use async_trait::async_trait;
use secrecy::SecretString;
use sqlx::{Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

/// The name under which the key is sealed.
const KEY: &str = "key";

#[async_trait]
impl CredentialStore for SqliteStore {
    async fn add_credential(&self, new: StoredCredential, key: SecretString, by: AuditActor) -> Result<()> {
        let sealed = self.seal.seal(&SecretEnv([(KEY.to_owned(), key)].into())).ok_or(Error::Sealed)?;
        self.writer.write(move |db| Box::pin(async move { add(db, &new, &sealed, by).await })).await
    }

    async fn credentials(&self, scope: &AccessScope) -> Result<Vec<StoredCredential>> {
        credentials(&self.readers, scope).await
    }

    async fn credential(
        &self,
        scope: &AccessScope,
        id: &CredentialId,
    ) -> Result<Option<(StoredCredential, SecretString)>> {
        let Some((found, sealed)) = credential(&self.readers, scope, id).await? else { return Ok(None) };
        let key = self.seal.unseal(Some(&sealed))?.0.remove(KEY).ok_or(Error::Sealed)?;
        Ok(Some((found, key)))
    }

    async fn set_credential_used(&self, tenant: &TenantId, id: &CredentialId, at: Timestamp) -> Result<()> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.writer.write(move |db| Box::pin(async move { set_used(db, &tenant, &id, at).await })).await
    }

    async fn remove_credential(
        &self,
        scope: &AccessScope,
        id: &CredentialId,
        at: Timestamp,
        by: AuditActor,
    ) -> Result<bool> {
        let (scope, id) = (scope.clone(), id.clone());
        self.writer.write(move |db| Box::pin(async move { remove(db, &scope, &id, at, by).await })).await
    }
}

async fn credentials(db: &SqlitePool, scope: &AccessScope) -> Result<Vec<StoredCredential>> {
    let rows =
        query("SELECT * FROM credentials WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) ORDER BY n DESC");
    let rows = rows.bind(scope.tenant.as_str()).bind(scope.owner.as_ref().map(OwnerId::as_str));
    rows.fetch_all(db).await?.iter().map(credential_row).collect()
}

/// With the sealed key.
async fn credential(
    db: &SqlitePool,
    scope: &AccessScope,
    id: &CredentialId,
) -> Result<Option<(StoredCredential, String)>> {
    let row = query("SELECT * FROM credentials WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) AND id = ?3")
        .bind(scope.tenant.as_str())
        .bind(scope.owner.as_ref().map(OwnerId::as_str))
        .bind(id.as_str())
        .fetch_optional(db)
        .await?;
    row.map(|row| Ok((credential_row(&row)?, row.try_get("key")?))).transpose()
}

fn credential_row(row: &SqliteRow) -> Result<StoredCredential> {
    Ok(StoredCredential {
        id: parsed(row, "id", |text| CredentialId::parse(text).ok())?,
        tenant: parsed(row, "tenant", |text| TenantId::parse(text).ok())?,
        owner: owner(row)?,
        kind: parsed(row, "kind", CredentialKind::parse)?,
        label: row.try_get("label")?,
        created_at: Timestamp(row.try_get("created_at")?),
        last_used_at: row.try_get::<Option<i64>, _>("last_used_at")?.map(Timestamp),
    })
}

async fn add(db: &mut SqliteConnection, new: &StoredCredential, sealed: &str, by: AuditActor) -> Result<()> {
    query(
        "INSERT INTO credentials (id, tenant, owner, kind, label, key, created_at, last_used_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(new.id.as_str())
    .bind(new.tenant.as_str())
    .bind(new.owner.as_ref().map(OwnerId::as_str))
    .bind(new.kind.as_str())
    .bind(&new.label)
    .bind(sealed)
    .bind(new.created_at.0)
    .bind(new.last_used_at.map(|Timestamp(at)| at))
    .execute(&mut *db)
    .await?;
    audit::add(db, audit_entry(new, AuditAction::CredentialCreated, new.created_at, by), None).await
}

async fn set_used(
    db: &mut SqliteConnection,
    tenant: &TenantId,
    id: &CredentialId,
    Timestamp(at): Timestamp,
) -> Result<()> {
    let row = query("UPDATE credentials SET last_used_at = ? WHERE tenant = ? AND id = ?");
    row.bind(at).bind(tenant.as_str()).bind(id.as_str()).execute(db).await?;
    Ok(())
}

async fn remove(
    db: &mut SqliteConnection,
    scope: &AccessScope,
    id: &CredentialId,
    at: Timestamp,
    by: AuditActor,
) -> Result<bool> {
    let row = query(
        "DELETE FROM credentials WHERE tenant = ?1 AND (?2 IS NULL OR owner = ?2) AND id = ?3 RETURNING *",
    )
    .bind(scope.tenant.as_str())
    .bind(scope.owner.as_ref().map(OwnerId::as_str))
    .bind(id.as_str())
    .fetch_optional(&mut *db)
    .await?;
    let Some(removed) = row.as_ref().map(credential_row).transpose()? else { return Ok(false) };
    audit::add(db, audit_entry(&removed, AuditAction::CredentialRemoved, at, by), None).await?;
    Ok(true)
}

fn audit_entry(
    credential: &StoredCredential,
    action: AuditAction,
    at: Timestamp,
    by: AuditActor,
) -> AuditEntry {
    AuditEntry {
        no: 0,
        at,
        tenant: credential.tenant.clone(),
        action,
        subject: credential.id.to_string(),
        owner: credential.owner.clone(),
        actor: by,
        detail: Some(credential.kind.as_str().to_owned()),
    }
}
