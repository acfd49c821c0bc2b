//! Idempotency keys: the resource is named before it is made, so a retry, even after a crash, finds or makes the same one.

use crate::{Error, Result, services::WallClock};
use ash_model::TenantId;
use ash_store::{AccessScope, IdempotencyClaim, IdempotencyRequest, Store};
use std::sync::Arc;

/// A request that came with an Idempotency-Key.
#[derive(Debug, Clone)]
pub struct IdempotentRequest {
    tenant: TenantId,
    route: String,
    /// As it is stored.
    key: String,
    /// Of the body: the same key with another body is another request.
    hash: String,
}

impl IdempotentRequest {
    pub fn new(scope: &AccessScope, route: &str, key: &str, body: &blake3::Hash) -> IdempotentRequest {
        // Two owners may think of the same key. No header has a line break.
        let key = match &scope.owner {
            Some(owner) => format!("{owner}\n{key}"),
            None => key.to_owned(),
        };
        let hash = body.to_hex().to_string();
        IdempotentRequest { tenant: scope.tenant.clone(), route: route.to_owned(), key, hash }
    }

    pub(crate) fn route(&self) -> &str {
        &self.route
    }

    pub(crate) fn stored_key(&self) -> &str {
        &self.key
    }
}

/// What to make, and whether an earlier request may have made it already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotentResource {
    pub resource: String,
    pub is_replay: bool,
}

#[derive(Clone)]
pub struct IdempotencyKeys {
    store: Arc<dyn Store>,
    clock: WallClock,
}

impl IdempotencyKeys {
    pub fn new(store: Arc<dyn Store>, clock: WallClock) -> IdempotencyKeys {
        IdempotencyKeys { store, clock }
    }

    /// What the request's key stands for, if it was used before. Claims nothing: for requests that may still be refused.
    pub(crate) async fn used(&self, request: Option<&IdempotentRequest>) -> Result<Option<String>> {
        match request {
            Some(IdempotentRequest { tenant, route, key, .. }) => {
                Ok(self.store.idempotency_resource(tenant, route, key).await?)
            }
            None => Ok(None),
        }
    }

    /// The resource to make or to find. Without a key it is always `proposed`.
    pub async fn claim(
        &self,
        request: Option<&IdempotentRequest>,
        proposed: String,
    ) -> Result<IdempotentResource> {
        let Some(IdempotentRequest { tenant, route, key, hash }) = request else {
            return Ok(IdempotentResource { resource: proposed, is_replay: false });
        };
        let request = IdempotencyRequest {
            tenant: tenant.clone(),
            route: route.clone(),
            key: key.clone(),
            hash: hash.clone(),
            resource: proposed,
            at: (self.clock)(),
        };
        match self.store.claim_idempotency_key(request).await? {
            IdempotencyClaim::New(resource) => Ok(IdempotentResource { resource, is_replay: false }),
            IdempotencyClaim::Retry(resource) => Ok(IdempotentResource { resource, is_replay: true }),
            IdempotencyClaim::Conflict => Err(Error::IdempotencyKeyReused),
        }
    }

    /// The request was refused: the next one with its key is the first.
    pub async fn release(&self, request: &IdempotentRequest) -> Result<()> {
        let IdempotentRequest { tenant, route, key, .. } = request;
        Ok(self.store.release_idempotency_key(tenant, route, key).await?)
    }
}
