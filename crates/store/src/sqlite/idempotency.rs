//! Idempotency keys.

use super::SqliteStore;
use crate::{IdempotencyClaim, IdempotencyRequest, IdempotencyStore, Result};
use ash_model::TenantId;
use async_trait::async_trait;
use sqlx::{Row, SqliteConnection, SqlitePool, query};

#[async_trait]
impl IdempotencyStore for SqliteStore {
    async fn claim_idempotency_key(&self, request: IdempotencyRequest) -> Result<IdempotencyClaim> {
        self.writer.write(move |db| Box::pin(async move { claim_key(db, &request).await })).await
    }

    async fn idempotency_resource(
        &self,
        tenant: &TenantId,
        route: &str,
        key: &str,
    ) -> Result<Option<String>> {
        resource(&self.readers, tenant, route, key).await
    }

    async fn release_idempotency_key(&self, tenant: &TenantId, route: &str, key: &str) -> Result<()> {
        let (tenant, route, key) = (tenant.clone(), route.to_owned(), key.to_owned());
        self.writer
            .write(move |db| Box::pin(async move { release_key(db, &tenant, &route, &key).await }))
            .await
    }
}

async fn claim_key(db: &mut SqliteConnection, request: &IdempotencyRequest) -> Result<IdempotencyClaim> {
    let IdempotencyRequest { tenant, route, key, hash, resource, at } = request;
    let inserted = query("INSERT INTO idempotency (tenant, route, key, hash, resource, at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(tenant.as_str())
        .bind(route)
        .bind(key)
        .bind(hash)
        .bind(resource)
        .bind(at.0)
        .execute(&mut *db)
        .await?;
    let row = query("SELECT hash, resource FROM idempotency WHERE tenant = ? AND route = ? AND key = ?")
        .bind(tenant.as_str())
        .bind(route)
        .bind(key)
        .fetch_one(db)
        .await?;
    let (kept, resource): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    Ok(match (inserted.rows_affected() > 0, kept == *hash) {
        (true, _) => IdempotencyClaim::New(resource),
        (false, true) => IdempotencyClaim::Retry(resource),
        (false, false) => IdempotencyClaim::Conflict,
    })
}

async fn resource(db: &SqlitePool, tenant: &TenantId, route: &str, key: &str) -> Result<Option<String>> {
    let row = query("SELECT resource FROM idempotency WHERE tenant = ? AND route = ? AND key = ?")
        .bind(tenant.as_str())
        .bind(route)
        .bind(key)
        .fetch_optional(db)
        .await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}

async fn release_key(db: &mut SqliteConnection, tenant: &TenantId, route: &str, key: &str) -> Result<()> {
    query(
        "DELETE FROM idempotency WHERE tenant = ? AND route = ? AND key = ?
             AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = idempotency.resource)",
    )
    .bind(tenant.as_str())
    .bind(route)
    .bind(key)
    .execute(db)
    .await?;
    Ok(())
}
