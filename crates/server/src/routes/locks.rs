//! Locks: a client can reserve a session, and no other client can write to it until the lock ends. `guard` runs before
//! every route, so that a new route cannot omit the check.

use super::extract::{JsonBody, PathParam, find_open_session, find_session};
use crate::{
    auth::Caller,
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::session::{AcquiredLock, AcquiredLockAnswer, LockAnswer, LockView},
};
use ash_model::{SessionId, SessionLock, SessionRowId, SessionStatus};
use ash_session::{LockRequest, LocklessWrite, Sessions, Workspaces, constant_time_eq, hash_key};
use ash_store::{SessionRow, SessionSummary, WorkspaceRow};
use axum::{
    extract::{MatchedPath, Path, Request, State},
    http::{HeaderMap, Method},
    middleware::Next,
    response::{IntoResponse, Response},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{collections::HashMap, time::Duration};
use utoipa::ToSchema;

const HEADER: &str = "x-ash-lock";
const DEFAULT_TTL_SECONDS: u64 = 60;
/// A day: a forgotten lock must not block other clients for ever.
const MAX_TTL_SECONDS: u64 = 86_400;
const MAX_HOLDER_CHARS: usize = 100;
/// Routes that a lock does not block: the lock itself; a fork and a token for the stream, which only read; and answers to
/// permission requests and calls of client tools, which every client may give.
const LOCK_EXEMPT_ROUTES: [&str; 5] = [
    "/api/sessions/{id}/lock",
    "/api/sessions/{id}/fork",
    "/api/sessions/{id}/stream-token",
    "/api/sessions/{id}/permissions/{permission}",
    "/api/sessions/{id}/tools/{call}",
];

/// The number of the lock with which a request came.
#[derive(Clone, Copy)]
pub(super) struct HeldLockNumber(pub(super) Option<u64>);

/// `NUMBER.SECRET`. The number identifies the lock, and the secret proves who holds it.
struct LockToken {
    number: u64,
    secret: SecretString,
}

impl LockToken {
    fn of(headers: &HeaderMap) -> ApiResult<Option<LockToken>> {
        let Some(given) = headers.get(HEADER) else { return Ok(None) };
        let parts = given.to_str().ok().and_then(|text| text.trim().split_once('.'));
        let token = parts.and_then(|(number, secret)| {
            Some(LockToken { number: number.parse().ok()?, secret: secret.to_owned().into() })
        });
        let error = "X-Ash-Lock must be a token as POST …/lock answers it";
        token.map(Some).ok_or_else(|| ApiProblem::invalid("invalid_lock", error))
    }

    fn opens(&self, lock: &SessionLock) -> bool {
        self.number == lock.number && constant_time_eq(&hash_key(self.secret.expose_secret()), &lock.hash)
    }
}

pub(crate) async fn require_session_lock(
    State(sessions): State<Sessions>,
    mut request: Request,
    next: Next,
) -> Response {
    match lock_number_of_request(&sessions, &mut request).await {
        Ok((held, write)) => {
            request.extensions_mut().insert(HeldLockNumber(held));
            let answer = next.run(request).await;
            if let Some((no, write)) = write
                // The write has happened and cannot be undone, so the answer must not report a failure.
                && let Err(error) = sessions.end_lockless_write(no, write).await
            {
                tracing::warn!(%error, "the write of another client could not be recorded: an expired lock may become valid again");
            }
            answer
        }
        Err(problem) => problem.into_response(),
    }
}

type Lockless = (SessionRowId, LocklessWrite);

/// The lock that the request holds; otherwise a record of its write, because another client may lock the session
/// meanwhile.
async fn lock_number_of_request(
    sessions: &Sessions,
    request: &mut Request,
) -> ApiResult<(Option<u64>, Option<Lockless>)> {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let guarded = path
        .is_some_and(|path| path.starts_with("/api/sessions/{id}") && !LOCK_EXEMPT_ROUTES.contains(&&*path));
    let caller = request.extensions().get::<Caller>().cloned();
    let (Some(caller), true, false) = (caller, guarded, reads) else { return Ok((None, None)) };
    let named = axum::RequestExt::extract_parts::<Path<HashMap<String, String>>>(request).await;
    let id = named.ok().and_then(|Path(mut parts)| SessionId::parse(&parts.remove("id")?).ok());
    let token = LockToken::of(request.headers())?;
    // The route itself answers for a session that does not exist or belongs to another owner.
    let Some(id) = id else { return Ok((None, None)) };
    let write = sessions.begin_lockless_write();
    let Ok(session) = sessions.find(&caller.0, &id).await else { return Ok((None, None)) };
    let held = admit(sessions, &session, token).await?;
    Ok((held, held.is_none().then_some((session.no, write))))
}

async fn admit(
    sessions: &Sessions,
    session: &SessionRow,
    token: Option<LockToken>,
) -> ApiResult<Option<u64>> {
    let now = sessions.now();
    match (&session.summary.lock, token) {
        (Some(lock), Some(token)) if token.opens(lock) => {
            if !lock.is_held(now) && sessions.is_overwritten(session.no, lock) {
                sessions.expire_lock(session.no, lock.number).await?;
                return Err(ash_session::Error::LockLost.into());
            }
            // Not for every one of many requests, because each renewal is an event.
            let left = (lock.until.0 - now.0).max(0) as u64;
            if left < lock.ttl_ms - lock.ttl_ms / 10 {
                sessions.renew_lock(session.no, lock.number).await?;
            }
            Ok(Some(lock.number))
        }
        (Some(lock), _) if lock.is_held(now) => Err(ash_session::Error::locked(lock).into()),
        (Some(_) | None, Some(_)) => Err(ash_session::Error::LockLost.into()),
        // The lock has expired. Its holder does not know what this caller writes, so the old token must not become
        // valid again.
        (Some(lock), None) => {
            sessions.expire_lock(session.no, lock.number).await?;
            Ok(None)
        }
        (None, None) => Ok(None),
    }
}

/// Deleting a workspace ends all of its sessions, so it needs the locks of all.
pub(super) async fn check_workspace_locks(
    workspaces: &Workspaces,
    workspace: &WorkspaceRow,
    headers: &HeaderMap,
) -> ApiResult<()> {
    let (token, now) = (LockToken::of(headers)?, workspaces.now());
    for session in workspaces.sessions_in(workspace).await? {
        let SessionSummary { status, lock, .. } = session.summary;
        let held = lock.filter(|lock| status != SessionStatus::Ended && lock.is_held(now));
        if let Some(lock) = held.filter(|lock| !token.as_ref().is_some_and(|token| token.opens(lock))) {
            return Err(ash_session::Error::locked(&lock).into());
        }
    }
    Ok(())
}

#[derive(Deserialize, ToSchema)]
pub(super) struct AcquireLockRequest {
    /// Seconds after its last use; 60 without one.
    #[schema(minimum = 1, maximum = 86_400)]
    ttl: Option<u64>,
    /// The name of the holder that other clients see.
    #[schema(max_length = 100)]
    holder: Option<String>,
    /// Whether to take the lock from another holder.
    #[serde(default)]
    takeover: bool,
}

pub(super) async fn acquire(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    headers: HeaderMap,
    body: JsonBody<AcquireLockRequest>,
) -> ApiResult<Answer<AcquiredLockAnswer>> {
    let AcquireLockRequest { ttl, holder, takeover } = body.value;
    let ttl = ttl.unwrap_or(DEFAULT_TTL_SECONDS);
    if !(1..=MAX_TTL_SECONDS).contains(&ttl) {
        return Err(ApiProblem::invalid(
            "invalid_body",
            format!("ttl must be 1 to {MAX_TTL_SECONDS} seconds"),
        ));
    }
    super::extract::check_max_chars("holder", holder.as_deref(), MAX_HOLDER_CHARS)?;
    let token = LockToken::of(&headers)?;
    let found = find_open_session(&sessions, &caller, &id).await?;
    let now = sessions.now();
    let goes_on = |lock: &SessionLock| lock.is_held(now) || !sessions.is_overwritten(found.no, lock);
    let own = token
        .filter(|token| found.summary.lock.as_ref().is_some_and(|lock| token.opens(lock) && goes_on(lock)));
    let secret = SecretString::from(uuid::Uuid::new_v4().simple().to_string());
    let wanted = LockRequest {
        ttl: Duration::from_secs(ttl),
        holder,
        hash: hash_key(secret.expose_secret()),
        held: own.as_ref().map(|own| own.number),
        takeover,
    };
    let lock = sessions.lock(found.no, wanted).await?;
    let own = own.filter(|own| own.number == lock.number);
    let secret = own.map_or(secret, |own| own.secret);
    let token = format!("{}.{}", lock.number, secret.expose_secret());
    let lock = AcquiredLock { lock: LockView::of(&lock), token, ttl: lock.ttl_ms / 1000 };
    Ok(Answer(AcquiredLockAnswer { lock }))
}

pub(super) async fn show(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Answer<LockAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    Ok(Answer(LockAnswer { lock: of(&sessions, &found) }))
}

pub(super) async fn release(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    headers: HeaderMap,
) -> ApiResult<Answer<LockAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    let token = LockToken::of(&headers)?.ok_or_else(|| {
        ApiProblem::invalid("invalid_lock", "Send the token of the lock that is to be given up as X-Ash-Lock")
    })?;
    let lock = found.summary.lock.as_ref().filter(|lock| token.opens(lock));
    let lock = lock.ok_or(ash_session::Error::LockLost)?;
    sessions.unlock(found.no, lock.number).await?;
    Ok(Answer(LockAnswer { lock: None }))
}

/// The lock that a client holds on the session.
pub(super) fn of(sessions: &Sessions, session: &SessionRow) -> Option<LockView> {
    let now = sessions.now();
    session.summary.lock.as_ref().filter(|lock| lock.is_held(now)).map(LockView::of)
}
