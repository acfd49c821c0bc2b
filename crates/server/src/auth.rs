//! Who is asking. Every route but a few needs a key, and a key belongs to a tenant: this is the one place where
//! a request gets its tenant.

use crate::{app::App, keys, problem::Problem};
use ash_model::{Kind, TenantId};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, header::AUTHORIZATION},
    middleware::Next,
    response::{IntoResponse, Response},
};
use secrecy::ExposeSecret;

/// The tenant of the request; handlers take it as an extension.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) TenantId);

pub(crate) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path == "/health" || path == "/" {
        return next.run(request).await;
    }
    let caller = if path.starts_with("/api/internal/") {
        internal(&app, request.headers())
    } else {
        tenant(&app, request.headers()).await
    };
    match caller {
        Ok(tenant) => {
            request.extensions_mut().insert(Caller(tenant));
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let unauthorized = |error: &str| Problem::new(Kind::Unauthorized, "unauthorized", error);
    let header = headers.get(AUTHORIZATION).ok_or_else(|| unauthorized("Missing Authorization header"))?;
    let parts: Vec<&str> = header.to_str().unwrap_or_default().split(' ').collect();
    match parts.as_slice() {
        ["Bearer", key] => Ok(key),
        _ => Err(unauthorized("Invalid Authorization header format")),
    }
}

async fn tenant(app: &App, headers: &HeaderMap) -> Result<TenantId, Problem> {
    let key = bearer(headers)?;
    if app.api_key.as_ref().is_some_and(|own| keys::same(own.expose_secret(), key)) {
        return Ok(TenantId::main());
    }
    let owner = app.sessions.rooms().store.key_owner(&keys::hash(key)).await?;
    owner.ok_or_else(|| Problem::new(Kind::Unauthorized, "unauthorized", "Invalid API key"))
}

/// Keys are minted here, so it is closed unless somebody opened it.
fn internal(app: &App, headers: &HeaderMap) -> Result<TenantId, Problem> {
    let Some(secret) = &app.internal_secret else {
        let error = "Internal endpoints disabled — ASH_INTERNAL_SECRET is required";
        return Err(Problem::new(Kind::Unavailable, "internal_disabled", error));
    };
    let given = bearer(headers).ok().filter(|given| keys::same(secret.expose_secret(), given));
    given.map(|_| TenantId::main()).ok_or_else(|| {
        Problem::new(Kind::Unauthorized, "unauthorized", "Unauthorized — invalid or missing internal secret")
    })
}
