//! The header Idempotency-Key: a repeated request with the same key has the effect of one.

use crate::{
    auth::Caller,
    problem::{ApiProblem, ApiResult},
};
use ash_session::IdempotentRequest;
use axum::http::HeaderMap;

pub(crate) fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<&str>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len()));
    key.map(Some).ok_or_else(|| {
        ApiProblem::invalid("invalid_idempotency_key", "Idempotency-Key must be 1 to 255 plain characters")
    })
}

/// `None`: the request has no key, so every repetition takes effect.
pub(crate) fn idempotent_request(
    caller: &Caller,
    headers: &HeaderMap,
    (route, body): (&str, &blake3::Hash),
) -> ApiResult<Option<IdempotentRequest>> {
    let key = idempotency_key(headers)?;
    Ok(key.map(|key| IdempotentRequest::new(&caller.0, route, key, body)))
}
