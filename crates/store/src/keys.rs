//! API keys. Only their hashes are stored.

use crate::{AuditActor, Result};
use ash_model::{OwnerId, TenantId, Timestamp};
use async_trait::async_trait;

/// An API key as it is listed: everything but the secret.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    /// The public identifier, by which the key is listed and removed.
    pub id: String,
    /// The tenant that the key opens.
    pub tenant: TenantId,
    /// The owner whose sessions the key opens. `None`: all of the tenant's.
    pub owner: Option<OwnerId>,
    /// A free text that says what the key is for.
    pub label: String,
    /// When the key was created.
    pub created_at: Timestamp,
}

/// API keys, found by the hash of their secret. Adding and removing one writes its audit entry in the same step.
#[async_trait]
pub trait KeyStore: Send + Sync {
    /// The key whose secret has this hash.
    async fn key(&self, hash: &str) -> Result<Option<ApiKey>>;
    /// The key with this id, which no other key ever had.
    async fn key_by_id(&self, id: &str) -> Result<Option<ApiKey>>;
    /// All keys of a tenant, the oldest first.
    async fn keys(&self, tenant: &TenantId) -> Result<Vec<ApiKey>>;
    /// Adds a key. Fails if a key with this id or hash exists.
    async fn add_key(&self, key: ApiKey, hash: String, by: AuditActor) -> Result<()>;
    /// Removes a key. `false`: the tenant has no key with this id.
    async fn remove_key(&self, tenant: &TenantId, id: &str, at: Timestamp, by: AuditActor) -> Result<bool>;
}
