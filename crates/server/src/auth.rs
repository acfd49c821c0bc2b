//! Who is asking. Every route but a few needs a key, and a key belongs to a tenant, or to one owner there: this is the one
//! place where a request gets what it may see.

use crate::{
    app::App,
    audit,
    edge::{Peer, Reserved, StreamLease, TooManyStreams},
    keys,
    problem::{Answer, Problem},
};
use ash_model::{Kind, TenantId};
use ash_store::{Order, Scope};
use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, Method, header::AUTHORIZATION, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use secrecy::ExposeSecret;
use std::{net::IpAddr, time::Instant};

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

/// Who runs the server: a caller of tenant `default` whose key has no owner.
pub(crate) struct Operator;

impl Caller {
    pub(crate) fn is_operator(&self) -> bool {
        self.0 == Scope::all(&TenantId::main())
    }

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

impl FromRequestParts<App> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        match Admin::from_request_parts(parts, app).await?.0.is_operator() {
            true => Ok(Operator),
            false => {
                let error =
                    "This is about all tenants: it takes a key of tenant \"default\" without an owner";
                Err(Problem::new(Kind::Forbidden, "operator_only", error))
            }
        }
    }
}

pub(crate) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path == "/health" || path == "/" {
        return next.run(request).await;
    }
    match admit(&app, &mut request).await {
        Ok(lease) => answer(lease, request, next).await,
        Err(problem) => problem.into_response(),
    }
}

async fn admit(app: &App, request: &mut Request) -> Answer<Option<StreamLease>> {
    let path = request.uri().path();
    let streams =
        path.ends_with("/stream") || (path.ends_with("/messages") && request.method() == Method::POST);
    let peer = request.extensions().get::<Peer>().copied();
    let caller = match path.starts_with("/api/internal/") {
        true => internal(app, request.headers(), peer).await?,
        false => known(app, request.headers(), peer).await?,
    };
    // When all connections are at work, the few beyond them are the operator's.
    if request.extensions().get::<Reserved>().is_some() && !caller.is_operator() {
        let error = "The server has as many connections at work as it may have; try again later";
        return Err(Problem::new(Kind::Unavailable, "too_many_connections", error));
    }
    let lease = match streams {
        true => Some(lease(app, &caller, request.headers()).await?),
        false => None,
    };
    request.extensions_mut().insert(caller);
    Ok(lease)
}

/// Streams, and messages whose answer is waited for, count for their key and end with it.
async fn lease(app: &App, caller: &Caller, headers: &HeaderMap) -> Answer<StreamLease> {
    let lease = app.streams.open(&caller.1.0).map_err(|TooManyStreams(max)| {
        let error =
            format!("This key has {max} streams open, which is the most (ASH_MAX_STREAMS); close some first");
        Problem::new(Kind::TooMany, "too_many_streams", error)
    })?;
    // The key may have been revoked since it was looked up, when this stream was not there to be ended.
    find(app, bearer(headers)?).await?.ok_or_else(invalid_key)?;
    Ok(lease)
}

async fn answer(lease: Option<StreamLease>, request: Request, next: Next) -> Response {
    let Some(lease) = lease else { return next.run(request).await };
    let response = tokio::select! {
        response = next.run(request) => response,
        () = lease.revoked() => return invalid_key().into_response(),
    };
    let (head, body) = response.into_parts();
    Response::from_parts(head, lease.bound(body))
}

fn invalid_key() -> Problem {
    Problem::new(Kind::Unauthorized, "unauthorized", "Invalid API key")
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
pub(crate) async fn known(app: &App, headers: &HeaderMap, peer: Option<Peer>) -> Answer<Caller> {
    let key = bearer(headers)?;
    match find(app, key).await? {
        Some(caller) => Ok(caller),
        None => Err(failed(app, peer, invalid_key()).await),
    }
}

async fn find(app: &App, key: &str) -> Answer<Option<Caller>> {
    if app.api_key.as_ref().is_some_and(|own| keys::same(own.expose_secret(), key)) {
        return Ok(Some(Caller(Scope::all(&TenantId::main()), KeyId(OWN.to_owned()))));
    }
    let key = app.sessions.rooms().store.key(&keys::hash(key)).await?;
    Ok(key.map(|key| Caller(Scope { tenant: key.tenant, owner: key.owner }, KeyId(key.id))))
}

/// Keys are minted here, so it is closed unless somebody opened it.
async fn internal(app: &App, headers: &HeaderMap, peer: Option<Peer>) -> Answer<Caller> {
    let Some(secret) = &app.internal_secret else {
        let error = "Internal endpoints disabled — ASH_INTERNAL_SECRET is required";
        return Err(Problem::new(Kind::Unavailable, "internal_disabled", error));
    };
    let error = "Unauthorized — invalid or missing internal secret";
    let unauthorized = Problem::new(Kind::Unauthorized, "unauthorized", error);
    match bearer(headers) {
        Ok(given) if keys::same(secret.expose_secret(), given) => {
            Ok(Caller(Scope::all(&TenantId::main()), KeyId(INTERNAL.to_owned())))
        }
        Ok(_) => Err(failed(app, peer, unauthorized).await),
        Err(_) => Err(unauthorized),
    }
}

/// A key that is wrong: from one address only so many are answered at once.
async fn failed(app: &App, peer: Option<Peer>, problem: Problem) -> Problem {
    let address = peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.remote.ip());
    let verdict = app.failed_keys.note(address, Instant::now());
    if let Some(times) = verdict.report {
        tracing::warn!(%address, times, "a wrong key was given");
        audit::refused_key(app, address, times).await;
    }
    if !verdict.is_throttled {
        return problem;
    }
    app.failed_keys.delay().await;
    let error =
        "Too many wrong keys came from this address. A right key works at once; wait before you try another";
    Problem::new(Kind::TooMany, "too_many_wrong_keys", error)
}
