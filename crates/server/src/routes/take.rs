//! Taking requests apart: bodies, queries and ids, each refused with words that say what is wrong.

use crate::{
    app::App,
    auth::Caller,
    edge::WholeBody,
    fields::{self, FieldError, UnknownFields},
    problem::{Answer, Problem},
};
use ash_model::{Durability, Kind, Oversize, PermissionId, SessionId, Status, TurnId};
use ash_session::Refused;
use ash_store::{Env, Session};
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, request::Parts},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::OwnedSemaphorePermit;

const MOST_ENV: usize = 256;
const MOST_VARIABLE: usize = 100_000;
/// An agent's and a session's together, with the command line, are at most what the kernel lets a process begin with.
const MOST_ENV_BYTES: usize = 512 << 10;

/// A JSON body with its bytes, which idempotency keys are bound to. No body at all counts as `{}`: the Python
/// client says it sends JSON even when it sends nothing. Fields that are not known are passed over.
pub(crate) struct Body<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
    /// Its part of the memory for large bodies, for as long as it is worked on.
    _memory: Option<OwnedSemaphorePermit>,
}

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (value, whole) = object(request, app).await?;
        let value = fields::one(value, UnknownFields::Ignore).map_err(bad_body)?;
        Ok(Body { value, bytes: whole.bytes, _memory: whole.memory })
    }
}

/// What is made of a body whose misspelt fields are refused.
pub(crate) trait FromFields: Sized {
    fn from_fields(object: Value) -> Result<Self, FieldError>;
}

/// The same as [`Body`], with all of its fields known.
pub(crate) struct StrictBody<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
    /// As in [`Body`].
    _memory: Option<OwnedSemaphorePermit>,
}

impl<T: FromFields> FromRequest<App> for StrictBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (value, whole) = object(request, app).await?;
        let value = T::from_fields(value).map_err(bad_body)?;
        Ok(StrictBody { value, bytes: whole.bytes, _memory: whole.memory })
    }
}

async fn object(request: Request, app: &App) -> Answer<(Value, WholeBody)> {
    let has_space = || match app.sessions.little_space() {
        Some(free) => Err(ash_session::Error::LittleSpace(free >> 20).into()),
        None => Ok(()),
    };
    let whole = app.large_bodies.read(request, has_space).await?;
    let text: &[u8] = if whole.bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &whole.bytes };
    let value = fields::object(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data if text.trim_ascii_start().starts_with(b"{") => {
            let error = error.to_string();
            let words = error.split(" at line ").next().unwrap_or_default();
            Problem::invalid("invalid_body", format!("The body is not as expected: {words}"))
        }
        // Fields are named: a list would be taken for them in their order.
        serde_json::error::Category::Data => Problem::invalid("invalid_body", "The body must be an object"),
        _ => {
            let place = format!("line {}, column {}", error.line(), error.column());
            Problem::invalid(
                "invalid_json",
                format!("The body is not valid JSON: it cannot be read from {place} on"),
            )
        }
    })?;
    Ok((value, whole))
}

pub(crate) fn bad_body(error: FieldError) -> Problem {
    let code = match error {
        FieldError::Unknown(_) => "unknown_field",
        FieldError::Invalid { .. } => "invalid_body",
    };
    Problem::invalid(code, error.to_string())
}

/// The parameters of a query. Those that are not known are passed over.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        parameters(parts, UnknownFields::Ignore).map(Asked)
    }
}

/// The parameters of a list, all of which are known: a filter that is misspelt would show everything.
pub(crate) struct ListAsked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for ListAsked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        parameters(parts, UnknownFields::Refuse).map(ListAsked)
    }
}

/// Of a list that takes none.
#[derive(Deserialize)]
pub(crate) struct NoParameters {}

fn parameters<T: DeserializeOwned>(parts: &Parts, unknown: UnknownFields) -> Answer<T> {
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
        .map_err(|error| Problem::invalid("invalid_query", error.body_text()))?;
    let mut object = Map::new();
    for (name, value) in given {
        let shown: String = name.chars().take(60).collect();
        if object.insert(name, Value::String(value)).is_some() {
            return Err(Problem::invalid(
                "invalid_query",
                format!("{shown} is not valid: it is there twice"),
            ));
        }
    }
    fields::one(Value::Object(object), unknown).map_err(|error| unknown_parameter(&error))
}

pub(crate) fn unknown_parameter(error: &FieldError) -> Problem {
    let code = match error {
        FieldError::Unknown(_) => "unknown_parameter",
        FieldError::Invalid { .. } => "invalid_query",
    };
    Problem::invalid(code, error.to_string())
}

/// A part of the path. What is not UTF-8 is nobody's.
pub(crate) struct Part(pub(crate) String);

impl FromRequestParts<App> for Part {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = Path::<String>::from_request_parts(parts, app).await;
        found.map(|Path(text)| Part(text)).map_err(|_| unreadable_path())
    }
}

/// One file of one session, as a path names it.
pub(crate) struct Named {
    pub(crate) id: String,
    pub(crate) path: String,
}

impl FromRequestParts<App> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, path))| Named { id, path }).map_err(|_| unreadable_path())
    }
}

/// One checkpoint of one session, as a path names it.
pub(crate) struct Numbered {
    pub(crate) id: String,
    number: String,
}

impl Numbered {
    /// What is no number is no checkpoint's.
    pub(crate) fn number(&self) -> Answer<u64> {
        self.number.parse().map_err(|_| ash_session::Error::NoCheckpoint.into())
    }
}

impl FromRequestParts<App> for Numbered {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, number))| Numbered { id, number }).map_err(|_| unreadable_path())
    }
}

/// One thing that a session's agent waits for, as a path names it.
pub(crate) struct Requested {
    pub(crate) id: String,
    permission: String,
}

impl Requested {
    /// What is no id is nobody's.
    pub(crate) fn permission(&self) -> Answer<PermissionId> {
        let found = PermissionId::parse(&self.permission);
        found.ok_or_else(|| ash_session::Error::from(Refused::Unasked).into())
    }
}

impl FromRequestParts<App> for Requested {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, permission))| Requested { id, permission }).map_err(|_| unreadable_path())
    }
}

/// One turn of one session, as a path names it.
pub(crate) struct Waiting {
    pub(crate) id: String,
    turn: String,
}

impl Waiting {
    pub(crate) fn turn(&self) -> Answer<TurnId> {
        TurnId::parse(&self.turn).ok_or_else(|| ash_session::Error::NoTurn.into())
    }
}

impl FromRequestParts<App> for Waiting {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        found.map(|Path((id, turn))| Waiting { id, turn }).map_err(|_| unreadable_path())
    }
}

fn unreadable_path() -> Problem {
    Problem::invalid("invalid_path", "The path is not valid")
}

/// The session a path names, if it is the caller's.
pub(crate) async fn session(app: &App, caller: &Caller, id: &str) -> Answer<Session> {
    let id =
        SessionId::parse(id).map_err(|error| Problem::invalid("invalid_session_id", error.to_string()))?;
    Ok(app.sessions.find(&caller.0, &id).await?)
}

/// The same, even if only the object store knows it.
pub(crate) async fn session_anywhere(app: &App, caller: &Caller, id: &str) -> Answer<Session> {
    let id =
        SessionId::parse(id).map_err(|error| Problem::invalid("invalid_session_id", error.to_string()))?;
    Ok(app.sessions.find_anywhere(&caller.0, &id).await?)
}

/// Only where there is an object store something can be in it.
pub(crate) fn can_wait(app: &App, durability: Option<Durability>) -> Answer<()> {
    match (durability, &app.sessions.rooms().far) {
        (Some(Durability::Remote), None) => Err(ash_session::Error::NoBucket.into()),
        (_, _) => Ok(()),
    }
}

/// The same, if it can still be changed: what has ended stays as it is.
pub(crate) async fn open_session(app: &App, caller: &Caller, id: &str) -> Answer<Session> {
    let found = session(app, caller, id).await?;
    match found.card.status {
        Status::Ended => Err(ash_session::Error::from(Refused::Not(Status::Ended)).into()),
        Status::Starting | Status::Active | Status::Paused | Status::Stopped | Status::Error => Ok(found),
    }
}

/// Environment variables as a process can take them.
pub(crate) fn environment(vars: BTreeMap<String, String>) -> Answer<Env> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let bytes = vars.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
    let longest = vars.values().map(String::len).max().unwrap_or_default();
    fits_in("env", (vars.len(), "variables"), MOST_ENV)?;
    fits_in("env", (bytes, "bytes"), MOST_ENV_BYTES)?;
    fits_in("A variable in env", (longest, "bytes"), MOST_VARIABLE)?;
    match vars.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
        Some((name, _)) => {
            Err(Problem::invalid("invalid_env", format!("{name:?} is not a valid environment variable")))
        }
        None => Ok(Env::from_plain(vars)),
    }
}

/// A size that is the same for all operators. The answer is that of a quota, without its name.
pub(crate) fn too_large(error: String, Oversize { limit, used }: Oversize) -> Problem {
    let problem = Problem::new(Kind::TooLarge, "payload_too_large", error);
    problem.with("limit", limit).with("used", used)
}

/// The longest that a request waits in line.
const MOST_PATIENCE: u64 = 600;

/// How long the caller waits for a sandbox when all are at work, as RFC 7240 lets him say; `None`: he does not.
pub(crate) fn patience(headers: &HeaderMap) -> Answer<Option<Duration>> {
    let given = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let wait = given.flat_map(|value| value.split(',')).find_map(|one| {
        let (name, value) = one.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then_some(value.trim().trim_matches('"'))
    });
    let Some(wait) = wait else { return Ok(None) };
    match wait.parse::<u64>() {
        Ok(seconds) if seconds <= MOST_PATIENCE => Ok(Some(Duration::from_secs(seconds))),
        Ok(_) | Err(_) => {
            let error = format!("Prefer: wait= takes seconds, at most {MOST_PATIENCE}");
            Err(Problem::invalid("invalid_header", error))
        }
    }
}

/// A text of ours that may be left out, but not be longer than this many characters.
pub(crate) fn fits(what: &str, text: Option<&str>, limit: usize) -> Answer<()> {
    fits_in(what, (text.map_or(0, |text| text.chars().count()), "characters"), limit)
}

/// The same of anything that has a size, which is counted in `unit`.
pub(crate) fn fits_in(what: &str, (used, unit): (usize, &str), limit: usize) -> Answer<()> {
    match used > limit {
        true => {
            let error = format!("{what} has {used} {unit}, and may have {limit}: send less");
            Err(too_large(error, Oversize { limit, used }))
        }
        false => Ok(()),
    }
}

/// The same of a text whose length the reference's schema bounds: it answers 400 as for everything else in a schema.
pub(crate) fn at_most(what: &str, text: Option<&str>, most: usize) -> Answer<()> {
    match text {
        Some(text) if text.chars().count() > most => {
            let error = format!("{what} must not be longer than {most} characters");
            Err(Problem::invalid("invalid_body", error))
        }
        Some(_) | None => Ok(()),
    }
}

/// Work that may block runs where it delays nobody.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Problem::internal("the work was cut off"))?
}
