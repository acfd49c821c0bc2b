//! Idempotency keys: a retried request finds what the first one made.

use crate::Result;
use ash_model::{TenantId, Timestamp};
use async_trait::async_trait;

/// A request with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRequest {
    /// The tenant of the caller.
    pub tenant: TenantId,
    /// The route. The same key on another route is another key.
    pub route: String,
    /// The key.
    pub key: String,
    /// The hash of the body, which tells a retry from another request.
    pub hash: String,
    /// The resource that this request makes if it is the first.
    pub resource: String,
    /// When the request came.
    pub at: Timestamp,
}

/// What a request with an idempotency key must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdempotencyClaim {
    /// It is the first: make this resource.
    New(String),
    /// It is a retry: find this resource, or make it if a crash came between.
    Retry(String),
    /// The key was used for a request with another body.
    Conflict,
}

/// Idempotency keys of requests, until they are pruned by age.
#[async_trait]
pub trait IdempotencyStore: Send + Sync {
    /// Claims a key for a request. Of concurrent requests exactly one is the first.
    async fn claim_idempotency_key(&self, request: IdempotencyRequest) -> Result<IdempotencyClaim>;
    /// The resource that a key was claimed for.
    async fn idempotency_resource(&self, tenant: &TenantId, route: &str, key: &str)
    -> Result<Option<String>>;
    /// Frees the key of a refused request. A key whose turn was accepted after all stays.
    async fn release_idempotency_key(&self, tenant: &TenantId, route: &str, key: &str) -> Result<()>;
}
