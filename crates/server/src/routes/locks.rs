//! A client may have a session to itself: as long as its lock lasts, nobody else writes to it. `guard` stands before
//! every route, so that a new one cannot forget to ask.

use super::take::{Body, Part, open_session, session};
use crate::{
    app::App,
    auth::Caller,
    keys,
    problem::{Answer, Problem},
};
use ash_model::{Lock, SessionId, SessionNo, Status};
use ash_session::{LocklessWrite, WantedLock};
use ash_store::{Session, Workspace};
use axum::{
    Json,
    extract::{MatchedPath, Path, Request, State},
    http::{HeaderMap, Method},
    middleware::Next,
    response::{IntoResponse, Response},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};

const HEADER: &str = "x-ash-lock";
const USUAL: u64 = 60;
/// A day: whoever forgets it must not be in everybody's way for ever.
const LONGEST: u64 = 86_400;
const MOST_HOLDER: usize = 100;
/// What a lock is not in the way of: itself; a fork, which only reads; and leave that an agent waits for, which whoever
/// is present may give.
const OPEN: [&str; 3] =
    ["/api/sessions/{id}/lock", "/api/sessions/{id}/fork", "/api/sessions/{id}/permissions/{permission}"];

/// The number of the lock that a request came with.
#[derive(Clone, Copy)]
pub(super) struct Held(pub(super) Option<u64>);

/// `NUMBER.SECRET`. The number says which lock it is, the secret whose.
struct Token {
    number: u64,
    secret: SecretString,
}

impl Token {
    fn of(headers: &HeaderMap) -> Answer<Option<Token>> {
        let Some(given) = headers.get(HEADER) else { return Ok(None) };
        let parts = given.to_str().ok().and_then(|text| text.trim().split_once('.'));
        let token = parts.and_then(|(number, secret)| {
            Some(Token { number: number.parse().ok()?, secret: secret.to_owned().into() })
        });
        let error = "X-Ash-Lock must be a token as POST …/lock answers it";
        token.map(Some).ok_or_else(|| Problem::invalid("invalid_lock", error))
    }

    fn opens(&self, lock: &Lock) -> bool {
        self.number == lock.number && keys::same(&keys::hash(self.secret.expose_secret()), &lock.hash)
    }
}

pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match held(&app, &mut request).await {
        Ok((held, write)) => {
            request.extensions_mut().insert(Held(held));
            let answer = next.run(request).await;
            if let Some((no, write)) = write
                // What was written cannot be taken back, so it is no reason to say that it failed.
                && let Err(error) = app.sessions.end_lockless_write(no, write).await
            {
                tracing::warn!(%error, "a lock that is over may come back although another client wrote");
            }
            answer
        }
        Err(problem) => problem.into_response(),
    }
}

type Lockless = (SessionNo, LocklessWrite);

/// The lock that the request may write with, if it holds one; otherwise the write, which another client's lock may overtake.
async fn held(app: &App, request: &mut Request) -> Answer<(Option<u64>, Option<Lockless>)> {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let guarded = path.is_some_and(|path| path.starts_with("/api/sessions/{id}") && !OPEN.contains(&&*path));
    let caller = request.extensions().get::<Caller>().cloned();
    let (Some(caller), true, false) = (caller, guarded, reads) else { return Ok((None, None)) };
    let named = axum::RequestExt::extract_parts::<Path<HashMap<String, String>>>(request).await;
    let id = named.ok().and_then(|Path(mut parts)| SessionId::parse(&parts.remove("id")?).ok());
    let token = Token::of(request.headers())?;
    // Who asks for what is not there, or not theirs, is told so by the route.
    let Some(id) = id else { return Ok((None, None)) };
    let write = app.sessions.begin_lockless_write();
    let Ok(session) = app.sessions.find(&caller.0, &id).await else { return Ok((None, None)) };
    let held = admit(app, &session, token).await?;
    Ok((held, held.is_none().then_some((session.no, write))))
}

async fn admit(app: &App, session: &Session, token: Option<Token>) -> Answer<Option<u64>> {
    let now = app.sessions.rooms().clock();
    match (&session.card.lock, token) {
        (Some(lock), Some(token)) if token.opens(lock) => {
            if !lock.is_held(now) && app.sessions.is_overwritten(session.no, lock) {
                app.sessions.outlive_lock(session.no, lock.number).await?;
                return Err(ash_session::Error::LockLost.into());
            }
            // Not at every step of many: a renewal is an event.
            let left = (lock.until.0 - now.0).max(0) as u64;
            if left < lock.ttl_ms - lock.ttl_ms / 10 {
                app.sessions.renew_lock(session.no, lock.number).await?;
            }
            Ok(Some(lock.number))
        }
        (Some(lock), _) if lock.is_held(now) => Err(ash_session::Error::locked(lock).into()),
        (Some(_) | None, Some(_)) => Err(ash_session::Error::LockLost.into()),
        // It is over. What this caller writes, its holder does not know: the token must not bring it back.
        (Some(lock), None) => {
            app.sessions.outlive_lock(session.no, lock.number).await?;
            Ok(None)
        }
        (None, None) => Ok(None),
    }
}

/// Whoever is rid of a workspace stops everybody in it.
pub(super) async fn none_of_others(app: &App, workspace: &Workspace, headers: &HeaderMap) -> Answer<()> {
    let (token, now) = (Token::of(headers)?, app.sessions.rooms().clock());
    for (no, status) in app.sessions.rooms().store.sessions_of(workspace.id).await? {
        let lock = app.sessions.get(no).await?.card.lock;
        let held = lock.filter(|lock| status != Status::Ended && lock.is_held(now));
        if let Some(lock) = held.filter(|lock| !token.as_ref().is_some_and(|token| token.opens(lock))) {
            return Err(ash_session::Error::locked(&lock).into());
        }
    }
    Ok(())
}

#[derive(Deserialize)]
pub(super) struct Wanted {
    /// Seconds.
    ttl: Option<u64>,
    /// How others are told who has it.
    holder: Option<String>,
    #[serde(default)]
    takeover: bool,
}

pub(super) async fn take(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    headers: HeaderMap,
    body: Body<Wanted>,
) -> Answer<Json<Value>> {
    let Wanted { ttl, holder, takeover } = body.value;
    let ttl = ttl.unwrap_or(USUAL);
    if !(1..=LONGEST).contains(&ttl) {
        return Err(Problem::invalid("invalid_body", format!("ttl must be 1 to {LONGEST} seconds")));
    }
    super::take::fits("holder", holder.as_deref(), MOST_HOLDER)?;
    let token = Token::of(&headers)?;
    let found = open_session(&app, &caller, &id).await?;
    let now = app.sessions.rooms().clock();
    let goes_on = |lock: &Lock| lock.is_held(now) || !app.sessions.is_overwritten(found.no, lock);
    let own =
        token.filter(|token| found.card.lock.as_ref().is_some_and(|lock| token.opens(lock) && goes_on(lock)));
    let secret = SecretString::from(uuid::Uuid::new_v4().simple().to_string());
    let wanted = WantedLock {
        ttl: Duration::from_secs(ttl),
        holder,
        hash: keys::hash(secret.expose_secret()),
        held: own.as_ref().map(|own| own.number),
        takeover,
    };
    let lock = app.sessions.lock(found.no, wanted).await?;
    let own = own.filter(|own| own.number == lock.number);
    let secret = own.map_or(secret, |own| own.secret);
    let mut answer = shown(&lock);
    answer["token"] = json!(format!("{}.{}", lock.number, secret.expose_secret()));
    answer["ttl"] = json!(lock.ttl_ms / 1000);
    Ok(Json(json!({ "lock": answer })))
}

pub(super) async fn look(State(app): State<App>, caller: Caller, Part(id): Part) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    Ok(Json(json!({ "lock": of(&app, &found) })))
}

pub(super) async fn give_up(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    headers: HeaderMap,
) -> Answer<Json<Value>> {
    let found = session(&app, &caller, &id).await?;
    let token = Token::of(&headers)?.ok_or_else(|| {
        Problem::invalid("invalid_lock", "Send the token of the lock that is to be given up as X-Ash-Lock")
    })?;
    let lock = found.card.lock.as_ref().filter(|lock| token.opens(lock));
    let lock = lock.ok_or(ash_session::Error::LockLost)?;
    app.sessions.unlock(found.no, lock.number).await?;
    Ok(Json(json!({ "lock": null })))
}

/// The lock that is held.
pub(super) fn of(app: &App, session: &Session) -> Option<Value> {
    let now = app.sessions.rooms().clock();
    session.card.lock.as_ref().filter(|lock| lock.is_held(now)).map(shown)
}

fn shown(lock: &Lock) -> Value {
    json!({ "number": lock.number, "holder": lock.holder, "expiresAt": lock.until, "inUse": lock.in_use })
}
