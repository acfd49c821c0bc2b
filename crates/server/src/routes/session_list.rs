//! Lists of sessions: filters and pages.

use super::{extract::unknown_parameter, sessions::shown, workspaces};
use crate::{
    app::AppState,
    auth::Caller,
    field_coercion::{FieldError, deserialize_parameter, unknown_field_message},
    openapi::{Answer, DocumentedInput, OperationDraft},
    problem::{ApiProblem, ApiResult},
    wire::session::SessionListAnswer,
};
use ash_model::{AgentName, OwnerId, SessionRowId, SessionStatus, Slug, Timestamp};
use ash_session::Sessions;
use ash_store::{MetadataFilter, SessionFilter, SessionListCursor};
use axum::{
    extract::{FromRequestParts, Query, State},
    http::{Uri, request::Parts},
};
use serde_json::json;
use std::convert::Infallible;

const MAX_SESSIONS_LISTED: u32 = 1000;
/// Prefix of filters by metadata.
const METADATA: &str = "metadata.";
const PARAMETERS: [&str; 12] = [
    "agent",
    "status",
    "workspace",
    "idPrefix",
    "owner",
    "olderThan",
    "newerThan",
    "limit",
    "offset",
    "cursor",
    "includeTotal",
    "metadata.NAME",
];

pub(super) async fn sessions(
    State(sessions): State<Sessions>,
    caller: Caller,
    SessionListQuery(uri): SessionListQuery,
) -> ApiResult<Answer<SessionListAnswer>> {
    let filter = filter(&uri, sessions.now())?;
    let page = sessions.list(&caller.0, &filter).await?;
    let full = filter.limit.is_some_and(|limit| page.sessions.len() == limit as usize);
    let next = page.sessions.last().filter(|_| full).map(|s| format!("{}-{}", s.created_at.0, s.no.0));
    let listed = page.sessions.iter().map(|session| shown(&sessions, session)).collect();
    Ok(Answer(SessionListAnswer { sessions: listed, total: page.total, next_cursor: next }))
}

/// The query of the list, which is parsed by hand.
pub(super) struct SessionListQuery(Uri);

impl FromRequestParts<AppState> for SessionListQuery {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, Infallible> {
        Ok(SessionListQuery(parts.uri.clone()))
    }
}

impl DocumentedInput for SessionListQuery {
    fn describe(operation: &mut OperationDraft) {
        operation.errors(&["invalid_query", "unknown_parameter"]);
        let [agent, status, workspace, owner] = [
            operation.schema_of::<AgentName>(),
            operation.schema_of::<SessionStatus>(),
            operation.schema_of::<Slug>(),
            operation.schema_of::<OwnerId>(),
        ];
        let age = json!({ "type": "string", "example": "7d" });
        let number = |least: u32, most: u32| json!({ "type": "integer", "minimum": least, "maximum": most });
        let described = |name: &str| match name {
            "agent" => (agent.clone(), "Only sessions of this agent"),
            "status" => (status.clone(), "Only sessions with this status"),
            "workspace" => (workspace.clone(), "Only sessions of this workspace"),
            "idPrefix" => (json!({ "type": "string" }), "Only sessions whose id begins so"),
            "owner" => (owner.clone(), "Only sessions of this owner"),
            "olderThan" => {
                (age.clone(), "Only sessions whose last activity is longer ago: `90s`, `30m`, `24h` or `7d`")
            }
            "newerThan" => {
                (age.clone(), "Only sessions with activity since then: `90s`, `30m`, `24h` or `7d`")
            }
            "limit" => (number(1, MAX_SESSIONS_LISTED), "How many; without one, all"),
            "offset" => (number(0, u32::MAX), "How many to leave out at the beginning"),
            "cursor" => (json!({ "type": "string" }), "The `nextCursor` of the page before"),
            "includeTotal" => (json!({ "type": "boolean" }), "Accepted; the answer always has the total"),
            _ => (json!({ "type": "string" }), "Only sessions whose metadata has this text under NAME"),
        };
        operation.parameters.extend(PARAMETERS.iter().map(|name| {
            let (schema, description) = described(name);
            json!({ "name": name, "in": "query", "required": false, "description": description, "schema": schema })
        }));
    }
}

/// Metadata names are arbitrary, so the query is parsed by hand.
fn filter(uri: &Uri, now: Timestamp) -> ApiResult<SessionFilter> {
    let Query(asked) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| ApiProblem::invalid("invalid_query", error.body_text()))?;
    let mut filter = SessionFilter::default();
    for (place, (name, value)) in asked.iter().enumerate() {
        let bad = |why: &str| ApiProblem::invalid("invalid_query", format!("{name} {why}"));
        if asked[..place].iter().any(|(before, _)| before == name) {
            return Err(bad("is there twice"));
        }
        let number = || deserialize_parameter::<u32>(value);
        match name.as_str() {
            // Forms send empty fields.
            "status" | "agent" | "includeTotal" if value.is_empty() => {}
            "status" => filter.status = Some(SessionStatus::parse(value).ok_or_else(|| bad(&statuses()))?),
            "agent" => filter.agent = Some(AgentName::parse(value).map_err(|error| bad(error.rule))?),
            "workspace" => filter.workspace = Some(workspaces::slug(value)?),
            "idPrefix" => filter.id_prefix = Some(id_prefix(value)?),
            "owner" => filter.owner = Some(OwnerId::parse(value).map_err(|error| bad(error.rule))?),
            "olderThan" => filter.older = Some(ago(now, name, value)?),
            "newerThan" => filter.newer = Some(ago(now, name, value)?),
            "limit" => {
                let limit = number().filter(|limit| (1..=MAX_SESSIONS_LISTED).contains(limit));
                let must = || bad(&format!("must be a whole number, 1 to {MAX_SESSIONS_LISTED}"));
                filter.limit = Some(limit.ok_or_else(must)?);
            }
            "offset" => {
                let must = || bad(&format!("must be a whole number, 0 to {}", u32::MAX));
                filter.offset = number().ok_or_else(must)?;
            }
            // The answer always has the total.
            "includeTotal" => {
                let flag =
                    deserialize_parameter::<bool>(value).or(number().filter(|n| *n < 2).map(|n| n == 1));
                flag.ok_or_else(|| bad("must be true or false"))?;
            }
            "cursor" => {
                let must = || bad("must be the nextCursor of a page before");
                filter.before = Some(parse_cursor(value).ok_or_else(must)?);
            }
            _ => match name.strip_prefix(METADATA) {
                Some(name) => {
                    filter.metadata.push(MetadataFilter { name: name.to_owned(), value: value.clone() });
                }
                None => {
                    return Err(unknown_parameter(&FieldError::Unknown(unknown_field_message(
                        name,
                        &PARAMETERS,
                    ))));
                }
            },
        }
    }
    Ok(filter)
}

fn statuses() -> String {
    format!("must be one of {}", SessionStatus::ALL.map(SessionStatus::as_str).join(", "))
}

/// Ids have only plain characters, so no id begins with others.
fn id_prefix(text: &str) -> ApiResult<String> {
    let plain = text.len() <= 128 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let error = "idPrefix must be the beginning of a session id: letters, digits, '-', '_' or '.'";
    if plain { Ok(text.to_owned()) } else { Err(ApiProblem::invalid("invalid_query", error)) }
}

/// The time that long ago.
pub(super) fn ago(now: Timestamp, name: &str, text: &str) -> ApiResult<Timestamp> {
    let long = ash_model::parse_duration(text)
        .map_err(|error| ApiProblem::invalid("invalid_query", format!("{name} is not valid: {error}")))?;
    Ok(ash_session::earlier_by(now, long))
}

fn parse_cursor(text: &str) -> Option<SessionListCursor> {
    let (at, no) = text.split_once('-')?;
    let (created_at, no) = (Timestamp(at.parse().ok()?), SessionRowId(no.parse().ok()?));
    Some(SessionListCursor { created_at, no })
}
