//! Documents that a session's agent wrote outside the project: its plan, and artifacts for its user.

use super::{
    extract::{FilePathParams, PathParam, QueryParams, StrictQueryParams, blocking, find_session},
    files::{FileAnswer, FileReadQuery, MAX_JSON_BYTES, file_response, rel, sized},
};
use crate::{
    auth::Caller,
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::files::{ArtifactListAnswer, FileView, PlanResponse},
};
use ash_model::Timestamp;
use ash_session::{FoundFile, ProposedPlan, Sessions};
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
pub(super) struct CheckpointQuery {
    /// As of this checkpoint; without one, now.
    checkpoint: Option<u64>,
}

pub(super) async fn plan(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    QueryParams(CheckpointQuery { checkpoint }): QueryParams<CheckpointQuery>,
) -> ApiResult<Answer<PlanResponse>> {
    let session = find_session(&sessions, &caller, &id).await?;
    let artifacts = sessions.artifacts(&session, checkpoint).await?;
    let (path, source) = (artifacts.plan_path().display().to_string(), artifacts.name());
    let written = blocking(move || written(artifacts.plan()?)).await?;
    let plan = match written {
        Some((text, at)) => PlanResponse { plan: Some(text), path, updated_at: Some(at), source },
        None => match sessions.proposed(&session, checkpoint).await? {
            Some(ProposedPlan { text, .. }) if text.len() as u64 > MAX_JSON_BYTES => {
                let error = format!("The plan is too large ({} bytes, max {MAX_JSON_BYTES})", text.len());
                return Err(ApiProblem::invalid("file_too_large", error));
            }
            Some(ProposedPlan { text, at }) => {
                PlanResponse { plan: Some(text), path, updated_at: Some(at), source: "log" }
            }
            None => PlanResponse { plan: None, path, updated_at: None, source },
        },
    };
    Ok(Answer(plan))
}

fn written(found: FoundFile) -> ApiResult<Option<(String, Timestamp)>> {
    let at = match &found {
        FoundFile::NotFound => return Ok(None),
        FoundFile::File { mtime_ms, .. } => Timestamp(*mtime_ms),
        FoundFile::NotAFile | FoundFile::PermissionDenied => Timestamp(0),
    };
    let text = sized(found, MAX_JSON_BYTES)?.whole(MAX_JSON_BYTES)?;
    Ok(Some((String::from_utf8_lossy(&text).into_owned(), at)))
}

pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(CheckpointQuery { checkpoint }): StrictQueryParams<CheckpointQuery>,
) -> ApiResult<Answer<ArtifactListAnswer>> {
    let session = find_session(&sessions, &caller, &id).await?;
    let artifacts = sessions.artifacts(&session, checkpoint).await?;
    let (path, source) = (artifacts.path().display().to_string(), artifacts.name());
    let files = blocking(move || Ok(artifacts.list()?)).await?;
    Ok(Answer(ArtifactListAnswer { artifacts: files.iter().map(FileView::of).collect(), path, source }))
}

pub(super) async fn read(
    State(sessions): State<Sessions>,
    caller: Caller,
    FilePathParams { id, path }: FilePathParams,
    QueryParams(format): QueryParams<FileReadQuery>,
) -> ApiResult<FileAnswer> {
    let session = find_session(&sessions, &caller, &id).await?;
    let (most, name) = (format.max_bytes()?, rel(&path)?);
    let artifacts = sessions.artifacts(&session, format.checkpoint).await?;
    let source = artifacts.name();
    let file = blocking(move || sized(artifacts.open(&name)?, most)).await?;
    file_response(&format, (&path, source), file).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_is_sent_as_in_the_first_version() {
        let plan = PlanResponse {
            plan: Some("# Plan".to_owned()),
            path: "/home/agent/.ash/session/00000000-0000-0000-0000-000000000000/plan.md".to_owned(),
            updated_at: Some(Timestamp(0)),
            source: "sandbox",
        };
        let sent = r##"{"path":"/home/agent/.ash/session/00000000-0000-0000-0000-000000000000/plan.md","plan":"# Plan","source":"sandbox","updatedAt":"1970-01-01T00:00:00.000Z"}"##;
        assert_eq!(json!(plan).to_string(), sent);
    }
}
