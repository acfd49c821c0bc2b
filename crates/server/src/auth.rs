//! Who is asking. Every route but a few needs a key, and a key belongs to a tenant, or to one owner there: this is the one
//! place where a request gets what it may see.

use crate::{app::App, keys, problem::Problem};
use ash_model::{Kind, TenantId};
use ash_store::{Order, Scope};
use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, header::AUTHORIZATION, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use secrecy::ExposeSecret;

/// The key from the server's own environment, as lists of keys call it.
pub(crate) const OWN: &str = "env";
/// The secret for what is internal.
const INTERNAL: &str = "internal";

/// What the request may see, and by which key; handlers take it as an extension.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Scope, pub(crate) KeyId);

/// For the audit.
#[derive(Debug, Clone)]
pub(crate) struct KeyId(String);

/// Who may do what concerns everybody of the tenant: a caller whose key has no owner.
pub(crate) struct Admin(pub(crate) Caller);

impl Caller {
    pub(crate) fn tenant(&self) -> &TenantId {
        &self.0.tenant
    }

    /// As whose order the audit knows it.
    pub(crate) fn order(&self) -> Order {
        Order { key: Some(self.1.0.clone()), owner: self.0.owner.clone(), rule: None }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| Problem::internal("a route without a caller"))
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match &caller.0.owner {
            None => Ok(Admin(caller)),
            Some(owner) => {
                let error =
                    format!("This key is owner \"{owner}\"'s; it takes a key without an owner to do this");
                Err(Problem::new(Kind::Forbidden, "admin_only", error))
            }
        }
    }
}

pub(crate) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path == "/health" || path == "/" {
        return next.run(request).await;
    }
    let caller = if path.starts_with("/api/internal/") {
        internal(&app, request.headers())
    } else {
        known(&app, request.headers()).await
    };
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
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

/// The caller that a key names.
pub(crate) async fn known(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    let key = bearer(headers)?;
    if app.api_key.as_ref().is_some_and(|own| keys::same(own.expose_secret(), key)) {
        return Ok(Caller(Scope::all(&TenantId::main()), KeyId(OWN.to_owned())));
    }
    let key = app.sessions.rooms().store.key(&keys::hash(key)).await?;
    let key = key.ok_or_else(|| Problem::new(Kind::Unauthorized, "unauthorized", "Invalid API key"))?;
    Ok(Caller(Scope { tenant: key.tenant, owner: key.owner }, KeyId(key.id)))
}

/// Keys are minted here, so it is closed unless somebody opened it.
fn internal(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    let Some(secret) = &app.internal_secret else {
        let error = "Internal endpoints disabled — ASH_INTERNAL_SECRET is required";
        return Err(Problem::new(Kind::Unavailable, "internal_disabled", error));
    };
    let given = bearer(headers).ok().filter(|given| keys::same(secret.expose_secret(), given));
    let caller = || Caller(Scope::all(&TenantId::main()), KeyId(INTERNAL.to_owned()));
    given.map(|_| caller()).ok_or_else(|| {
        Problem::new(Kind::Unauthorized, "unauthorized", "Unauthorized — invalid or missing internal secret")
    })
}
