//! Checkpoints of a session: list them, compare the workspace between two of them, and rewind.

use super::{
    extract::{
        CheckpointPathParams, JsonBody, PathParam, QueryParams, StrictQueryParams, blocking,
        find_open_session, find_session,
    },
    files::{self, ALWAYS_SKIPPED},
    sessions::change_options,
};
use crate::{
    app::AppState,
    auth::Caller,
    gitignore::GitignoreFilter,
    idempotency::idempotent_request,
    openapi::{Answer, Created},
    problem::{ApiProblem, ApiResult},
    wire::{
        files::{
            ChangedFile, CheckpointAnswer, CheckpointDetailView, CheckpointDiff, CheckpointListAnswer,
            CheckpointView, CreatedCheckpointAnswer, FileStateView,
        },
        session::{RewindView, RewoundSessionAnswer, SessionView},
    },
};
use ash_model::SessionOptions;
use ash_session::{PathChange, Sessions, WorkspaceFiles};
use ash_snapshot::{FileEntryKind, TreeId};
use axum::{extract::State, http::HeaderMap};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

const MAX_CHECKPOINTS_LISTED: u32 = 1000;

#[derive(Deserialize, IntoParams)]
pub(super) struct CheckpointListQuery {
    /// 100 without one.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only checkpoints with lower numbers.
    before: Option<u64>,
}

/// Newest first; the next page begins before the last number of this one.
pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(asked): StrictQueryParams<CheckpointListQuery>,
) -> ApiResult<Answer<CheckpointListAnswer>> {
    let session = find_session(&sessions, &caller, &id).await?;
    let limit = asked.limit.unwrap_or(100);
    if !(1..=MAX_CHECKPOINTS_LISTED).contains(&limit) {
        return Err(ApiProblem::invalid(
            "invalid_query",
            format!("limit must be 1 to {MAX_CHECKPOINTS_LISTED}"),
        ));
    }
    let found = sessions.checkpoints(&session, asked.before, limit).await?;
    let current = session.summary.checkpoint;
    let checkpoints = found.iter().map(|checkpoint| CheckpointView::of(current, checkpoint)).collect();
    Ok(Answer(CheckpointListAnswer { checkpoints }))
}

pub(super) async fn get(
    State(sessions): State<Sessions>,
    caller: Caller,
    named: CheckpointPathParams,
) -> ApiResult<Answer<CheckpointAnswer>> {
    let session = find_session(&sessions, &caller, &named.id).await?;
    let found = sessions.checkpoint(&session, named.number()?).await?;
    let checkpoint = CheckpointDetailView::of(session.summary.checkpoint, &found);
    Ok(Answer(CheckpointAnswer { checkpoint }))
}

#[derive(Deserialize, ToSchema)]
pub(super) struct RewindRequest {
    /// Its number.
    checkpoint: u64,
    /// Whether to rewind the files, too. Default: yes, unless other sessions are using them.
    files: Option<bool>,
}

pub(super) async fn rewind(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    body: JsonBody<RewindRequest>,
) -> ApiResult<Answer<RewoundSessionAnswer>> {
    let found = find_open_session(&sessions, &caller, &id).await?;
    let (session, rewound) = sessions.rewind(&found, body.value.checkpoint, body.value.files).await?;
    let session = SessionView::of(&session, sessions.now());
    Ok(Answer(RewoundSessionAnswer { session, rewound: RewindView::of(&rewound) }))
}

#[derive(Deserialize, ToSchema)]
pub(super) struct CreateCheckpointRequest {
    /// Count changes from this checkpoint on.
    #[serde(default)]
    base: bool,
}

pub(super) async fn create(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    headers: HeaderMap,
    body: JsonBody<CreateCheckpointRequest>,
) -> ApiResult<Created<CreatedCheckpointAnswer>> {
    let found = find_open_session(&app.sessions, &caller, &id).await?;
    let route = format!("POST /api/sessions/{id}/checkpoints");
    let request = idempotent_request(&caller, &headers, (&route, &body.summary.hash))?;
    let number = app.sessions.capture(&found).await?;
    // The number is known only now. Of several attempts the first one's number counts, because later checkpoints have
    // later files.
    let claim = app.idempotency.claim(request.as_ref(), number.to_string()).await?;
    let number = claim.resource.parse().map_err(ApiProblem::internal)?;
    if body.value.base {
        let forward = |base: Option<u64>| Some(base.map_or(number, |base| base.max(number)));
        let change = |options: SessionOptions| Ok(SessionOptions { base: forward(options.base), ..options });
        change_options(&app, found.no, change).await?;
    }
    Ok(Created(CreatedCheckpointAnswer { checkpoint: number }))
}

#[derive(Deserialize, IntoParams)]
pub(super) struct DiffQuery {
    /// Also files that .gitignore excludes, and dependencies.
    all: Option<bool>,
    /// Another checkpoint; without one, the current files.
    to: Option<u64>,
}

pub(super) async fn diff(
    State(sessions): State<Sessions>,
    caller: Caller,
    named: CheckpointPathParams,
    QueryParams(asked): QueryParams<DiffQuery>,
) -> ApiResult<Answer<CheckpointDiff>> {
    let session = find_session(&sessions, &caller, &named.id).await?;
    let number = named.number()?;
    let since = sessions.tree_at(&session, number).await?;
    let place = files::workspace_files(&sessions, &session, asked.to).await?;
    let all = asked.all == Some(true);
    let changes = blocking(move || changes(&place, &since, all)).await?;
    Ok(Answer(shown(number, asked.to, &changes)))
}

fn changes(place: &WorkspaceFiles, since: &TreeId, all: bool) -> ApiResult<Vec<PathChange>> {
    let skip = |name: &[u8], _: bool| !all && ALWAYS_SKIPPED.iter().any(|skipped| skipped.as_bytes() == name);
    let mut changes = place.changes(since, &skip)?;
    if !all {
        let mut ignored = GitignoreFilter::of(place);
        // A file that existed before stays in the diff, whatever .gitignore says now.
        changes.retain(|change| change.before.is_some() || !ignored.ignores(&change.path));
    }
    Ok(changes)
}

/// JSON is text: a name that is not UTF-8 is only counted.
fn shown(from: u64, to: Option<u64>, changes: &[PathChange]) -> CheckpointDiff {
    let files: Vec<ChangedFile> = changes.iter().filter_map(shown_change).collect();
    let unnamed = changes.len() - files.len();
    CheckpointDiff { from, to, files, unnamed }
}

fn shown_change(change: &PathChange) -> Option<ChangedFile> {
    let path = std::str::from_utf8(&change.path).ok()?;
    let (word, leaf) = match (&change.before, &change.now) {
        (None, Some(now)) => ("added", now),
        (Some(_), Some(now)) => ("modified", now),
        (Some(before), None) => ("deleted", before),
        (None, None) => return None,
    };
    let before = match (&change.before, &change.now) {
        (Some(before), Some(_)) => Some(shown_leaf(before)?),
        (_, _) => None,
    };
    Some(ChangedFile { path: path.to_owned(), change: word, state: shown_leaf(leaf)?, before })
}

fn shown_leaf(leaf: &FileEntryKind) -> Option<FileStateView> {
    match leaf {
        FileEntryKind::File { size, mode, .. } => {
            Some(FileStateView { kind: "file", size: *size, mode: *mode, target: None })
        }
        FileEntryKind::Link { target } => {
            let target = std::str::from_utf8(target).ok()?;
            let (size, target) = (target.len() as u64, Some(target.to_owned()));
            Some(FileStateView { kind: "link", size, mode: 0o777, target })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(size: u64, mode: u32) -> Option<FileEntryKind> {
        Some(FileEntryKind::File { size, mode, content: None })
    }

    #[test]
    fn changes_are_shown_as_in_the_first_version() {
        let link = Some(FileEntryKind::Link { target: b"a".to_vec() });
        let changes = [
            PathChange { path: b"a".to_vec(), before: None, now: file(3, 0o644) },
            PathChange { path: b"b/c".to_vec(), before: file(3, 0o644), now: file(4, 0o755) },
            PathChange { path: b"d".to_vec(), before: file(5, 0o600), now: None },
            PathChange { path: b"e".to_vec(), before: file(6, 0o644), now: link },
            PathChange { path: b"\xff".to_vec(), before: None, now: file(1, 0o644) },
        ];
        let golden = json!([
            { "path": "a", "change": "added", "kind": "file", "size": 3, "mode": 420 },
            { "path": "b/c", "change": "modified", "kind": "file", "size": 4, "mode": 493,
              "before": { "kind": "file", "size": 3, "mode": 420 } },
            { "path": "d", "change": "deleted", "kind": "file", "size": 5, "mode": 384 },
            { "path": "e", "change": "modified", "kind": "link", "size": 1, "mode": 511, "target": "a",
              "before": { "kind": "file", "size": 6, "mode": 420 } },
        ]);
        assert_eq!(json!(shown(4, None, &changes)), json!({ "from": 4, "files": golden, "unnamed": 1 }));
        let between = json!({ "from": 4, "to": 5, "files": golden, "unnamed": 1 });
        assert_eq!(json!(shown(4, Some(5), &changes)), between);
    }
}
