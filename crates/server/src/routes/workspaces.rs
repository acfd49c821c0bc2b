//! Named workspaces, which several sessions can share.

use super::extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams};
use super::files::FileListQuery;
use super::{locks, session_metadata};
use crate::auth::Caller;
use crate::{
    app::AppState,
    openapi::{Answer, Created},
    problem::{ApiProblem, ApiResult},
    wire::files::{
        CheckpointListAnswer, CheckpointView, DeletedWorkspaceAnswer, FileListAnswer, WorkspaceAnswer,
        WorkspaceDetailAnswer, WorkspaceListAnswer, WorkspaceMember, WorkspaceView,
    },
};
use ash_model::{AgentName, OwnerId, Slug};
use ash_session::Workspaces;
use ash_store::WorkspaceRow;
use axum::{extract::State, http::HeaderMap};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

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
) -> ApiResult<Answer<WorkspaceListAnswer>> {
    let all = workspaces.list(&caller.0).await?;
    Ok(Answer(WorkspaceListAnswer { workspaces: all.iter().map(WorkspaceView::of).collect() }))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateWorkspaceRequest {
    /// Its name; also accepted as `name` or `workspaceId`.
    #[serde(alias = "name", alias = "workspaceId")]
    slug: String,
    /// The agent that its sessions run; `default` without one.
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
) -> ApiResult<Created<WorkspaceAnswer>> {
    let slug = slug(&new.slug)?;
    let agent = AgentName::parse(&new.agent)
        .map_err(|error| ApiProblem::invalid("invalid_agent_name", error.to_string()))?;
    super::agents::make_default(&app, &caller, &agent).await?;
    let scope = session_metadata::resolve_owner(&caller, new.owner)?;
    let made = app.workspaces.make(&scope, &slug, &agent).await?;
    Ok(Created(WorkspaceAnswer { workspace: WorkspaceView::of(&made) }))
}

pub(super) async fn get(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(text): PathParam,
) -> ApiResult<Answer<WorkspaceDetailAnswer>> {
    let workspace = find(&app.workspaces, &caller, &text).await?;
    let mut sessions = Vec::new();
    for session in app.workspaces.sessions_in(&workspace).await? {
        // A purged session belongs to no owner any more.
        if app.sessions.find(&caller.0, &session.id).await.is_ok() {
            let (status, title) = (session.summary.status, session.summary.title);
            sessions.push(WorkspaceMember { id: session.id, status, title });
        }
    }
    Ok(Answer(WorkspaceDetailAnswer { workspace: WorkspaceView::of(&workspace), sessions }))
}

pub(super) async fn delete(
    State(workspaces): State<Workspaces>,
    caller: Caller,
    PathParam(text): PathParam,
    headers: HeaderMap,
) -> ApiResult<Answer<DeletedWorkspaceAnswer>> {
    let workspace = find(&workspaces, &caller, &text).await?;
    locks::check_workspace_locks(&workspaces, &workspace, &headers).await?;
    workspaces.delete(&workspace, caller.audit_actor()).await?;
    Ok(Answer(DeletedWorkspaceAnswer { deleted: workspace.slug }))
}

/// The files as the sessions of the workspace see them.
pub(super) async fn files(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(text): PathParam,
    StrictQueryParams(asked): StrictQueryParams<FileListQuery>,
) -> ApiResult<Answer<FileListAnswer>> {
    let workspace = find(&app.workspaces, &caller, &text).await?;
    let sessions = app.workspaces.sessions_in(&workspace).await?;
    match sessions.first() {
        Some(session) => super::files::listed(&app.sessions, session, asked).await,
        None => Ok(Answer(FileListAnswer { files: Vec::new(), source: None })),
    }
}

#[derive(Deserialize, IntoParams)]
pub(super) struct WorkspaceCheckpointsQuery {
    /// Only checkpoints with lower numbers.
    before: Option<u64>,
    /// 100 without one; more than 1000 is 1000.
    limit: Option<u32>,
}

pub(super) async fn checkpoints(
    State(workspaces): State<Workspaces>,
    caller: Caller,
    PathParam(text): PathParam,
    StrictQueryParams(range): StrictQueryParams<WorkspaceCheckpointsQuery>,
) -> ApiResult<Answer<CheckpointListAnswer>> {
    let workspace = find(&workspaces, &caller, &text).await?;
    let limit = range.limit.unwrap_or(PAGE).min(MAX_CHECKPOINTS_LISTED);
    let found = workspaces.checkpoints(&workspace, range.before, limit).await?;
    let checkpoints = found.iter().map(|row| CheckpointView::of(workspace.checkpoint, row)).collect();
    Ok(Answer(CheckpointListAnswer { checkpoints }))
}
