//! Idempotency keys: the resource gets its name before it is created, so a retry, even after a crash, finds or creates
//! the same one.

use crate::{Error, Result, services::WallClock};
use ash_model::TenantId;
use ash_store::{AccessScope, IdempotencyClaim, IdempotencyRequest, Store};
use std::sync::Arc;

/// A request with an Idempotency-Key header.
#[derive(Debug, Clone)]
pub struct IdempotentRequest {
    tenant: TenantId,
    route: String,
    /// The key as it is stored.
    key: String,
    /// The hash of the body: the same key with another body is another request.
    hash: String,
}

impl IdempotentRequest {
    pub fn new(scope: &AccessScope, route: &str, key: &str, body: &blake3::Hash) -> IdempotentRequest {
        // Two owners may use the same key. The line break separates the two parts, because no header contains one.
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

/// What to create, and whether an earlier request may have created it already.
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

    /// The resource of the request's key, if the key was used before. Claims nothing, so a caller can still refuse the
    /// request.
    pub(crate) async fn used(&self, request: Option<&IdempotentRequest>) -> Result<Option<String>> {
        match request {
            Some(IdempotentRequest { tenant, route, key, .. }) => {
                Ok(self.store.idempotency_resource(tenant, route, key).await?)
            }
            None => Ok(None),
        }
    }

    /// The name of the resource to create or to find. Without a key it is always `proposed`.
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

    /// Releases the key of a refused request, so that the next request with this key counts as the first.
    pub async fn release(&self, request: &IdempotentRequest) -> Result<()> {
        let IdempotentRequest { tenant, route, key, .. } = request;
        Ok(self.store.release_idempotency_key(tenant, route, key).await?)
    }
}
