//! Idempotency keys: the resource is named before it is made, so a retry, even after a crash, finds or makes
//! the same one.

use crate::{
    app::App,
    problem::{Answer, Problem},
};
use ash_model::Kind;
use ash_store::{Claimed, Scope};
use axum::http::HeaderMap;

/// What to make, and whether somebody may have made it already.
pub(crate) struct Once {
    pub(crate) resource: String,
    pub(crate) again: bool,
    /// The key, as it is stored.
    pub(crate) key: Option<String>,
}

pub(crate) fn key(headers: &HeaderMap) -> Answer<Option<&str>> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len()));
    key.map(Some).ok_or_else(|| {
        Problem::invalid("invalid_idempotency_key", "Idempotency-Key must be 1 to 255 plain characters")
    })
}

/// As it is stored: two owners may think of the same key. No header has a line break.
fn stored(scope: &Scope, headers: &HeaderMap) -> Answer<Option<String>> {
    let own = |key: &str| scope.owner.as_ref().map(|owner| format!("{owner}\n{key}"));
    Ok(key(headers)?.map(|key| own(key).unwrap_or_else(|| key.to_owned())))
}

/// What the request's key stands for, if it was used before. Takes nothing: for what may still be refused.
pub(crate) async fn used(
    app: &App,
    scope: &Scope,
    headers: &HeaderMap,
    route: &str,
) -> Answer<Option<String>> {
    match stored(scope, headers)? {
        Some(key) => Ok(app.sessions.rooms().store.claimed(&scope.tenant, route, &key).await?),
        None => Ok(None),
    }
}

pub(crate) async fn once(
    app: &App,
    scope: &Scope,
    headers: &HeaderMap,
    (route, body): (&str, &[u8]),
    proposed: String,
) -> Answer<Once> {
    let Some(key) = stored(scope, headers)? else {
        return Ok(Once { resource: proposed, again: false, key: None });
    };
    let hash = blake3::hash(body).to_hex();
    let store = &app.sessions.rooms().store;
    match store.once(&scope.tenant, route, &key, &hash, &proposed, app.sessions.rooms().clock()).await? {
        Claimed::First(resource) => Ok(Once { resource, again: false, key: Some(key) }),
        Claimed::Again(resource) => Ok(Once { resource, again: true, key: Some(key) }),
        Claimed::Other => Err(Problem::new(
            Kind::Unprocessable,
            "idempotency_key_reused",
            "This Idempotency-Key was used for a different request; use a new one",
        )),
    }
}
