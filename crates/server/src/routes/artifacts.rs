//! What a session's agent made beside the project: its plan, and documents for its user.

use super::{
    files::{Format, MOST_JSON, found, rel, shown, sized},
    take::{Asked, ListAsked, Named, Part, blocking, session},
};
use crate::{
    app::App,
    auth::Caller,
    problem::{Answer, Problem},
};
use ash_model::Timestamp;
use ash_session::{FoundFile, Proposed};
use axum::{Json, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Deserialize)]
pub(super) struct When {
    checkpoint: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    plan: Option<String>,
    /// Where the agent sees it, or would.
    path: String,
    updated_at: Option<Timestamp>,
    /// `sandbox` or `snapshot`, as of files; `log`: it was only ever shown to somebody, for leave to carry it out.
    source: &'static str,
}

pub(super) async fn plan(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    Asked(When { checkpoint }): Asked<When>,
) -> Answer<Json<Value>> {
    let session = session(&app, &caller, &id).await?;
    let artifacts = app.sessions.artifacts(&session, checkpoint).await?;
    let (path, source) = (artifacts.plan_path().display().to_string(), artifacts.name());
    let written = blocking(move || written(artifacts.plan()?)).await?;
    let plan = match written {
        Some((text, at)) => Plan { plan: Some(text), path, updated_at: Some(at), source },
        None => match app.sessions.proposed(&session, checkpoint).await? {
            Some(Proposed { text, .. }) if text.len() as u64 > MOST_JSON => {
                let error = format!("The plan is too large ({} bytes, max {MOST_JSON})", text.len());
                return Err(Problem::invalid("file_too_large", error));
            }
            Some(Proposed { text, at }) => {
                Plan { plan: Some(text), path, updated_at: Some(at), source: "log" }
            }
            None => Plan { plan: None, path, updated_at: None, source },
        },
    };
    Ok(Json(json!(plan)))
}

fn written(found: FoundFile) -> Answer<Option<(String, Timestamp)>> {
    let at = match &found {
        FoundFile::Missing => return Ok(None),
        FoundFile::File { mtime_ms, .. } => Timestamp(*mtime_ms),
        FoundFile::NotAFile | FoundFile::Closed => Timestamp(0),
    };
    let text = sized(found, MOST_JSON)?.whole(MOST_JSON)?;
    Ok(Some((String::from_utf8_lossy(&text).into_owned(), at)))
}

pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    ListAsked(When { checkpoint }): ListAsked<When>,
) -> Answer<Json<Value>> {
    let session = session(&app, &caller, &id).await?;
    let artifacts = app.sessions.artifacts(&session, checkpoint).await?;
    let (path, source) = (artifacts.path().display().to_string(), artifacts.name());
    let files = blocking(move || Ok(artifacts.list()?)).await?;
    let files: Vec<Value> = files.iter().map(shown).collect();
    Ok(Json(json!({ "artifacts": files, "path": path, "source": source })))
}

pub(super) async fn read(
    State(app): State<App>,
    caller: Caller,
    Named { id, path }: Named,
    Asked(format): Asked<Format>,
) -> Answer<Response> {
    let session = session(&app, &caller, &id).await?;
    let (most, name) = (format.most()?, rel(&path)?);
    let artifacts = app.sessions.artifacts(&session, format.checkpoint).await?;
    let source = artifacts.name();
    let file = blocking(move || sized(artifacts.open(&name)?, most)).await?;
    found(&format, (&path, source), file).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_sent_as_in_the_first_version() {
        let plan = Plan {
            plan: Some("# Plan".to_owned()),
            path: "/home/agent/.ash/session/00000000-0000-0000-0000-000000000000/plan.md".to_owned(),
            updated_at: Some(Timestamp(0)),
            source: "sandbox",
        };
        let sent = r##"{"path":"/home/agent/.ash/session/00000000-0000-0000-0000-000000000000/plan.md","plan":"# Plan","source":"sandbox","updatedAt":"1970-01-01T00:00:00.000Z"}"##;
        assert_eq!(json!(plan).to_string(), sent);
    }
}
