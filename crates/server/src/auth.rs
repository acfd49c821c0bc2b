//! Authentication. Nearly every route needs a key, which belongs to a tenant or to one owner in it. Only this module
//! decides what a request may access.

use crate::{
    app::AppState,
    edge::{PeerAddresses, ReservedConnection, StreamPermit, TooManyStreams},
    openapi::{DocumentedInput, OperationDraft},
    problem::{ApiProblem, ApiResult},
};
use ash_model::{FailureKind, TenantId};
use ash_session::StreamTokenKey;
use ash_store::{AccessScope, ApiKey, AuditActor};
use axum::{
    extract::{FromRequestParts, Query, Request, State},
    http::{HeaderMap, Method, header::AUTHORIZATION, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use secrecy::ExposeSecret;
use std::{net::IpAddr, time::Instant};

/// Id of the key from the server's environment, as lists of keys show it.
pub(crate) const ENV_KEY_ID: &str = "env";
/// Id of the internal secret.
const INTERNAL_KEY_ID: &str = "internal";

/// What the request may access, and its key; handlers take it as an extension.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) AccessScope, pub(crate) ApiKeyId);

/// Recorded in the audit log.
#[derive(Debug, Clone)]
pub(crate) struct ApiKeyId(String);

/// A caller whose key has no owner. It may change what the whole tenant shares.
pub(crate) struct TenantAdmin(pub(crate) Caller);

/// A caller of tenant `default` whose key has no owner. It operates the server.
pub(crate) struct ServerOperator;

impl Caller {
    pub(crate) fn is_operator(&self) -> bool {
        self.0 == AccessScope::all(&TenantId::main())
    }

    pub(crate) fn tenant(&self) -> &TenantId {
        &self.0.tenant
    }

    /// How the audit log records this caller.
    pub(crate) fn audit_actor(&self) -> AuditActor {
        AuditActor { key: Some(self.1.0.clone()), owner: self.0.owner.clone(), rule: None }
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiProblem> {
        parts
            .extensions
            .get::<Caller>()
            .cloned()
            .ok_or_else(|| ApiProblem::internal("a route without a caller"))
    }
}

impl FromRequestParts<AppState> for TenantAdmin {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match &caller.0.owner {
            None => Ok(TenantAdmin(caller)),
            Some(owner) => {
                let error =
                    format!("This key is owner \"{owner}\"'s; it takes a key without an owner to do this");
                Err(ApiProblem::new(FailureKind::Forbidden, "admin_only", error))
            }
        }
    }
}

impl FromRequestParts<AppState> for ServerOperator {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiProblem> {
        match TenantAdmin::from_request_parts(parts, app).await?.0.is_operator() {
            true => Ok(ServerOperator),
            false => {
                let error =
                    "This is about all tenants: it takes a key of tenant \"default\" without an owner";
                Err(ApiProblem::new(FailureKind::Forbidden, "operator_only", error))
            }
        }
    }
}

const KEY_ERRORS: [&str; 3] = ["unauthorized", "too_many_wrong_keys", "too_many_connections"];

impl DocumentedInput for Caller {
    fn describe(operation: &mut OperationDraft) {
        operation.needs_key = true;
        operation.errors(&KEY_ERRORS);
    }
}

impl DocumentedInput for TenantAdmin {
    fn describe(operation: &mut OperationDraft) {
        Caller::describe(operation);
        operation.errors(&["admin_only"]);
    }
}

impl DocumentedInput for ServerOperator {
    fn describe(operation: &mut OperationDraft) {
        TenantAdmin::describe(operation);
        operation.errors(&["operator_only"]);
    }
}

/// The first page, the state of the server and its documentation. Nothing in them belongs to a tenant.
fn is_public(path: &str) -> bool {
    ["/", "/health", "/openapi.json"].contains(&path) || path.starts_with("/docs")
}

pub(crate) async fn authenticate(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    if is_public(request.uri().path()) {
        return next.run(request).await;
    }
    match authorize(&app, &mut request).await {
        Ok(lease) => run_with_stream_permit(lease, request, next).await,
        Err(problem) => problem.into_response(),
    }
}

async fn authorize(app: &AppState, request: &mut Request) -> ApiResult<Option<StreamPermit>> {
    let path = request.uri().path();
    let streams =
        path.ends_with("/stream") || (path.ends_with("/messages") && request.method() == Method::POST);
    let peer = request.extensions().get::<PeerAddresses>().copied();
    if path.starts_with("/api/internal/") {
        let caller = internal_caller(app, request.headers(), peer).await?;
        check_reserved(request, &caller)?;
        request.extensions_mut().insert(caller);
        return Ok(None);
    }
    let credential = Credential::of(request)?;
    let Some(caller) = credential.find_caller(app).await? else {
        return Err(throttle_failure(app, peer, credential.refusal()).await);
    };
    check_reserved(request, &caller)?;
    let lease = match streams {
        true => Some(lease(app, &caller, &credential).await?),
        false => None,
    };
    request.extensions_mut().insert(caller);
    Ok(lease)
}

/// When all connections are busy, the reserved ones are only for the operator.
fn check_reserved(request: &Request, caller: &Caller) -> ApiResult<()> {
    if request.extensions().get::<ReservedConnection>().is_some() && !caller.is_operator() {
        let error = "The server has as many connections at work as it may have; try again later";
        return Err(ApiProblem::new(FailureKind::Unavailable, "too_many_connections", error));
    }
    Ok(())
}

/// Streams, and messages that wait for an answer, count towards the limit of their key and end when it is revoked.
async fn lease(app: &AppState, caller: &Caller, credential: &Credential<'_>) -> ApiResult<StreamPermit> {
    let lease = app.stream_limiter.open(&caller.1.0).map_err(|TooManyStreams(max)| {
        let error =
            format!("This key has {max} streams open, which is the most (ASH_MAX_STREAMS); close some first");
        ApiProblem::new(FailureKind::TooMany, "too_many_streams", error)
    })?;
    // The key may have been revoked between the lookup and the start of this stream, and a revoke ends only existing
    // streams.
    credential.find_caller(app).await?.ok_or_else(|| credential.refusal())?;
    Ok(lease)
}

/// What a request shows to be let in.
enum Credential<'r> {
    Key(&'r str),
    /// A token in the query of a stream, and the session in the path.
    StreamToken {
        session: &'r str,
        token: String,
    },
}

impl<'r> Credential<'r> {
    /// A header decides alone: it is what a client sends on purpose.
    fn of(request: &'r Request) -> ApiResult<Credential<'r>> {
        if !request.headers().contains_key(AUTHORIZATION)
            && let Some(credential) = stream_token(request)
        {
            return Ok(credential);
        }
        Ok(Credential::Key(bearer(request.headers())?))
    }

    async fn find_caller(&self, app: &AppState) -> ApiResult<Option<Caller>> {
        match self {
            Credential::Key(key) => find_caller(app, key).await,
            Credential::StreamToken { session, token } => caller_of_stream_token(app, session, token).await,
        }
    }

    fn refusal(&self) -> ApiProblem {
        match self {
            Credential::Key(_) => invalid_key(),
            Credential::StreamToken { .. } => {
                let error = "The stream token is wrong, has expired or is for another session, or its key was deleted; \
                             make a new one with POST …/stream-token";
                ApiProblem::new(FailureKind::Unauthorized, "invalid_stream_token", error)
            }
        }
    }
}

/// The token of a request that a token can open: to follow the stream of one session. Ids of sessions have no character that
/// needs an escape, so the path has the id as it is.
fn stream_token(request: &Request) -> Option<Credential<'_>> {
    let session = request.uri().path().strip_prefix("/api/sessions/")?.strip_suffix("/stream")?;
    if request.method() != Method::GET || session.contains('/') {
        return None;
    }
    let Query(parameters) = Query::<Vec<(String, String)>>::try_from_uri(request.uri()).ok()?;
    let mut tokens = parameters.into_iter().filter(|(name, _)| name == "token").map(|(_, token)| token);
    let token = tokens.next()?;
    // The handler refuses a parameter that is there twice, whatever it is.
    Some(Credential::StreamToken { session, token })
}

/// The caller whose key made the token, if the token opens the stream of this session.
async fn caller_of_stream_token(app: &AppState, session: &str, token: &str) -> ApiResult<Option<Caller>> {
    let claims = app.stream_tokens.verify(token).filter(|claims| claims.session.as_str() == session);
    let Some(claims) = claims else { return Ok(None) };
    let caller = match claims.key.as_str() {
        ENV_KEY_ID => app.api_key.as_ref().map(|_| environment_caller()),
        id => app.keys.find_by_id(id).await?.map(caller_of),
    };
    let Some(caller) = caller else { return Ok(None) };
    match app.sessions.find(&caller.0, &claims.session).await {
        Ok(row) => {
            let key = stream_token_key(app, &caller);
            let fits = key.is_some_and(|key| app.stream_tokens.is_for(&claims, &row, key));
            Ok(fits.then_some(caller))
        }
        Err(ash_session::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The caller's key, as a token names it. `None`: the environment has no key any more.
pub(crate) fn stream_token_key<'a>(app: &'a AppState, caller: &'a Caller) -> Option<StreamTokenKey<'a>> {
    match caller.1.0.as_str() {
        ENV_KEY_ID => {
            let text = app.api_key.as_ref()?.expose_secret();
            Some(StreamTokenKey::Environment { id: ENV_KEY_ID, text })
        }
        id => Some(StreamTokenKey::Stored(id)),
    }
}

async fn run_with_stream_permit(lease: Option<StreamPermit>, request: Request, next: Next) -> Response {
    let Some(lease) = lease else { return next.run(request).await };
    let response = tokio::select! {
        response = next.run(request) => response,
        () = lease.revoked() => return invalid_key().into_response(),
    };
    let (head, body) = response.into_parts();
    Response::from_parts(head, lease.end_on_revoke(body))
}

fn invalid_key() -> ApiProblem {
    ApiProblem::new(FailureKind::Unauthorized, "unauthorized", "Invalid API key")
}

fn bearer(headers: &HeaderMap) -> Result<&str, ApiProblem> {
    let unauthorized = |error: &str| ApiProblem::new(FailureKind::Unauthorized, "unauthorized", error);
    let header = headers.get(AUTHORIZATION).ok_or_else(|| unauthorized("Missing Authorization header"))?;
    let parts: Vec<&str> = header.to_str().unwrap_or_default().split(' ').collect();
    match parts.as_slice() {
        ["Bearer", key] => Ok(key),
        _ => Err(unauthorized("Invalid Authorization header format")),
    }
}

/// The caller that a key identifies.
pub(crate) async fn caller_of_key(
    app: &AppState,
    headers: &HeaderMap,
    peer: Option<PeerAddresses>,
) -> ApiResult<Caller> {
    let key = bearer(headers)?;
    match find_caller(app, key).await? {
        Some(caller) => Ok(caller),
        None => Err(throttle_failure(app, peer, invalid_key()).await),
    }
}

async fn find_caller(app: &AppState, key: &str) -> ApiResult<Option<Caller>> {
    if app.api_key.as_ref().is_some_and(|own| ash_session::constant_time_eq(own.expose_secret(), key)) {
        return Ok(Some(environment_caller()));
    }
    Ok(app.keys.find(key).await?.map(caller_of))
}

fn environment_caller() -> Caller {
    Caller(AccessScope::all(&TenantId::main()), ApiKeyId(ENV_KEY_ID.to_owned()))
}

fn caller_of(key: ApiKey) -> Caller {
    Caller(AccessScope { tenant: key.tenant, owner: key.owner }, ApiKeyId(key.id))
}

/// Internal routes create keys, so they are closed unless the operator sets the secret.
async fn internal_caller(
    app: &AppState,
    headers: &HeaderMap,
    peer: Option<PeerAddresses>,
) -> ApiResult<Caller> {
    let Some(secret) = &app.internal_secret else {
        let error = "Internal endpoints disabled — ASH_INTERNAL_SECRET is required";
        return Err(ApiProblem::new(FailureKind::Unavailable, "internal_disabled", error));
    };
    let error = "Unauthorized — invalid or missing internal secret";
    let unauthorized = ApiProblem::new(FailureKind::Unauthorized, "unauthorized", error);
    match bearer(headers) {
        Ok(given) if ash_session::constant_time_eq(secret.expose_secret(), given) => {
            Ok(Caller(AccessScope::all(&TenantId::main()), ApiKeyId(INTERNAL_KEY_ID.to_owned())))
        }
        Ok(_) => Err(throttle_failure(app, peer, unauthorized).await),
        Err(_) => Err(unauthorized),
    }
}

/// Limits the answers to wrong keys from one address.
async fn throttle_failure(app: &AppState, peer: Option<PeerAddresses>, problem: ApiProblem) -> ApiProblem {
    let address = peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.remote.ip());
    let verdict = app.auth_throttle.record_failure(address, Instant::now());
    if let Some(times) = verdict.report {
        tracing::warn!(%address, times, "requests with a wrong key");
        app.audit.record_refused_key(address, times).await;
    }
    if !verdict.is_throttled {
        return problem;
    }
    app.auth_throttle.delay().await;
    let error =
        "Too many wrong keys came from this address. A right key works at once; wait before you try another";
    ApiProblem::new(FailureKind::TooMany, "too_many_wrong_keys", error)
}
