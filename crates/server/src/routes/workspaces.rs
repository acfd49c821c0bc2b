//! Named workspaces, which several sessions can share.

use super::extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams};
use super::files::FileListQuery;
use super::{locks, session_metadata};
use crate::auth::Caller;
use crate::{
    app::AppState,
    problem::{ApiProblem, ApiResult},
    shapes,
};
use ash_model::{AgentName, OwnerId, Slug};
use ash_session::Workspaces;
use ash_store::WorkspaceRow;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};

const PAGE: u32 = 100;
const MAX_CHECKPOINTS_LISTED: u32 = 1000;

pub(super) fn slug(text: &str) -> ApiResult<Slug> {
    Slug::parse(text).map_err(|error| ApiProblem::invalid("invalid_workspace", error.to_string()))
}

async fn find(workspaces: &Workspaces, caller: &Caller, text: &str) -> ApiResult<WorkspaceRow> {
    Ok(workspaces.find(&caller.0, &slug(text)?).await?)
}

pub(super) async fn list(
    State(workspaces): State<Workspaces>,
    caller: Caller,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Json<Value>> {
    let all = workspaces.list(&caller.0).await?;
    Ok(Json(json!({ "workspaces": all.iter().map(shown).collect::<Vec<_>>() })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateWorkspaceRequest {
    #[serde(alias = "name", alias = "workspaceId")]
    slug: String,
    #[serde(default = "usual")]
    agent: String,
    /// Only a caller whose key has no owner may set the owner.
    owner: Option<OwnerId>,
}

fn usual() -> String {
    "default".to_owned()
}

pub(super) async fn create(
    State(app): State<AppState>,
    caller: Caller,
    JsonBody { value: new, .. }: JsonBody<CreateWorkspaceRequest>,
) -> ApiResult<(StatusCode, Json<Value>)> {
    let slug = slug(&new.slug)?;
    let agent = AgentName::parse(&new.agent)
        .map_err(|error| ApiProblem::invalid("invalid_agent_name", error.to_string()))?;
    super::agents::make_default(&app, &caller, &agent).await?;
    let scope = session_metadata::resolve_owner(&caller, new.owner)?;
    let made = app.workspaces.make(&scope, &slug, &agent).await?;
    Ok((StatusCode::CREATED, Json(json!({ "workspace": shown(&made) }))))
}

pub(super) async fn get(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(text): PathParam,
) -> ApiResult<Json<Value>> {
    let workspace = find(&app.workspaces, &caller, &text).await?;
    let mut sessions = Vec::new();
    for session in app.workspaces.sessions_in(&workspace).await? {
        // A purged session belongs to no owner any more.
        if app.sessions.find(&caller.0, &session.id).await.is_ok() {
            sessions.push(
                json!({ "id": session.id, "status": session.summary.status, "title": session.summary.title }),
            );
        }
    }
    Ok(Json(json!({ "workspace": shown(&workspace), "sessions": sessions })))
}

pub(super) async fn delete(
    State(workspaces): State<Workspaces>,
    caller: Caller,
    PathParam(text): PathParam,
    headers: HeaderMap,
) -> ApiResult<Json<Value>> {
    let workspace = find(&workspaces, &caller, &text).await?;
    locks::check_workspace_locks(&workspaces, &workspace, &headers).await?;
    workspaces.delete(&workspace, caller.audit_actor()).await?;
    Ok(Json(json!({ "deleted": workspace.slug })))
}

/// The files as the sessions of the workspace see them.
pub(super) async fn files(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(text): PathParam,
    StrictQueryParams(asked): StrictQueryParams<FileListQuery>,
) -> ApiResult<Json<Value>> {
    let workspace = find(&app.workspaces, &caller, &text).await?;
    let sessions = app.workspaces.sessions_in(&workspace).await?;
    match sessions.first() {
        Some(session) => super::files::listed(&app.sessions, session, asked).await,
        None => Ok(Json(json!({ "files": [] }))),
    }
}

#[derive(Deserialize)]
pub(super) struct WorkspaceCheckpointsQuery {
    before: Option<u64>,
    limit: Option<u32>,
}

pub(super) async fn checkpoints(
    State(workspaces): State<Workspaces>,
    caller: Caller,
    PathParam(text): PathParam,
    StrictQueryParams(range): StrictQueryParams<WorkspaceCheckpointsQuery>,
) -> ApiResult<Json<Value>> {
    let workspace = find(&workspaces, &caller, &text).await?;
    let limit = range.limit.unwrap_or(PAGE).min(MAX_CHECKPOINTS_LISTED);
    let found = workspaces.checkpoints(&workspace, range.before, limit).await?;
    let shown: Vec<Value> = found.iter().map(|row| shapes::checkpoint(workspace.checkpoint, row)).collect();
    Ok(Json(json!({ "checkpoints": shown })))
}

fn shown(workspace: &WorkspaceRow) -> Value {
    json!({
        "id": workspace.id, "slug": workspace.slug, "owner": workspace.owner, "agentName": workspace.agent, "sessions": workspace.sessions,
        "checkpoint": workspace.checkpoint, "status": if workspace.deleting { "deleting" } else { "ready" },
        "createdAt": workspace.created_at,
    })
}
