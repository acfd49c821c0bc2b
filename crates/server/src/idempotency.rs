//! Idempotency keys: the resource is named before it is made, so a retry, even after a crash, finds or makes
//! the same one.

use crate::{
    app::AppState,
    problem::{ApiProblem, ApiResult},
};
use ash_model::FailureKind;
use ash_store::{AccessScope, IdempotencyClaim, IdempotencyRequest};
use axum::http::HeaderMap;

/// What to make, and whether somebody may have made it already.
pub(crate) struct IdempotentResource {
    pub(crate) resource: String,
    pub(crate) is_replay: bool,
    /// The key, as it is stored.
    pub(crate) key: Option<String>,
}

pub(crate) fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<&str>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len()));
    key.map(Some).ok_or_else(|| {
        ApiProblem::invalid("invalid_idempotency_key", "Idempotency-Key must be 1 to 255 plain characters")
    })
}

/// As it is stored: two owners may think of the same key. No header has a line break.
fn stored_key(scope: &AccessScope, headers: &HeaderMap) -> ApiResult<Option<String>> {
    let own = |key: &str| scope.owner.as_ref().map(|owner| format!("{owner}\n{key}"));
    Ok(idempotency_key(headers)?.map(|key| own(key).unwrap_or_else(|| key.to_owned())))
}

/// What the request's key stands for, if it was used before. Takes nothing: for what may still be refused.
pub(crate) async fn used_idempotency_key(
    app: &AppState,
    scope: &AccessScope,
    headers: &HeaderMap,
    route: &str,
) -> ApiResult<Option<String>> {
    match stored_key(scope, headers)? {
        Some(key) => Ok(app.sessions.rooms().store.idempotency_resource(&scope.tenant, route, &key).await?),
        None => Ok(None),
    }
}

pub(crate) async fn claim_idempotency_key(
    app: &AppState,
    scope: &AccessScope,
    headers: &HeaderMap,
    (route, body): (&str, &blake3::Hash),
    proposed: String,
) -> ApiResult<IdempotentResource> {
    let Some(key) = stored_key(scope, headers)? else {
        return Ok(IdempotentResource { resource: proposed, is_replay: false, key: None });
    };
    let hash = body.to_hex();
    let rooms = app.sessions.rooms();
    let request = IdempotencyRequest {
        tenant: scope.tenant.clone(),
        route: route.to_owned(),
        key: key.clone(),
        hash: hash.to_string(),
        resource: proposed,
        at: rooms.clock(),
    };
    match rooms.store.claim_idempotency_key(request).await? {
        IdempotencyClaim::New(resource) => {
            Ok(IdempotentResource { resource, is_replay: false, key: Some(key) })
        }
        IdempotencyClaim::Retry(resource) => {
            Ok(IdempotentResource { resource, is_replay: true, key: Some(key) })
        }
        IdempotencyClaim::Conflict => Err(ApiProblem::new(
            FailureKind::Unprocessable,
            "idempotency_key_reused",
            "This Idempotency-Key was used for a different request; use a new one",
        )),
    }
}
