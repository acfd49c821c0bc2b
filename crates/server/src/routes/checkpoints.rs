//! A session's checkpoints: taking one now, and what is different in the workspace since one.

use super::{
    files::ALWAYS_SKIPPED,
    sessions::change_options,
    take::{Asked, Body, Part, blocking, open_session, session},
};
use crate::{
    app::App,
    auth::Caller,
    ignored::Ignored,
    once::{self, once},
    problem::{Answer, Problem},
};
use ash_model::Options;
use ash_session::{Change, Place};
use ash_snapshot::{LeafKind, TreeId};
use ash_store::Session;
use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
pub(super) struct New {
    /// Count changes from here on.
    #[serde(default)]
    base: bool,
}

pub(super) async fn create(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    headers: HeaderMap,
    body: Body<New>,
) -> Answer<(StatusCode, Json<Value>)> {
    let found = open_session(&app, &caller, &id).await?;
    once::key(&headers)?;
    let number = app.sessions.capture(found.no).await?;
    // Only now its number is known. Of several tries the first one's counts: later ones have later files.
    let route = format!("POST /api/sessions/{id}/checkpoints");
    let claim = once(&app, &caller.0, &headers, (&route, &body.bytes), number.to_string()).await?;
    let number = claim.resource.parse().map_err(Problem::internal)?;
    if body.value.base {
        let forward = |base: Option<u64>| Some(base.map_or(number, |base| base.max(number)));
        let change = |options: Options| Ok(Options { base: forward(options.base), ..options });
        change_options(&app, found.no, change).await?;
    }
    Ok((StatusCode::CREATED, Json(json!({ "checkpoint": number }))))
}

#[derive(Deserialize)]
pub(super) struct Wanted {
    all: Option<bool>,
}

pub(super) async fn diff(
    State(app): State<App>,
    caller: Caller,
    Path((id, number)): Path<(String, String)>,
    Asked(asked): Asked<Wanted>,
) -> Answer<Json<Value>> {
    let session = session(&app, &caller, &id).await?;
    let number = number.parse().map_err(|_| unknown())?;
    let since = tree(&app, &session, number).await?;
    let place = app.sessions.files(&session).await?;
    let all = asked.all == Some(true);
    let changes = blocking(move || changes(&place, &since, all)).await?;
    let (files, unnamed) = shown(&changes);
    Ok(Json(json!({ "from": number, "files": files, "unnamed": unnamed })))
}

pub(super) fn unknown() -> Problem {
    Problem::not_found("checkpoint_not_found", "The session has no such checkpoint")
}

async fn tree(app: &App, session: &Session, number: u64) -> Answer<TreeId> {
    app.sessions.tree_at(session, number).await?.ok_or_else(unknown)
}

fn changes(place: &Place, since: &TreeId, all: bool) -> Answer<Vec<Change>> {
    let skip = |name: &[u8], _: bool| !all && ALWAYS_SKIPPED.iter().any(|skipped| skipped.as_bytes() == name);
    let mut changes = place.changes(since, &skip)?;
    if !all {
        let mut ignored = Ignored::of(place);
        // What was there before is somebody's, whatever .gitignore says by now.
        changes.retain(|change| change.before.is_some() || !ignored.names(&change.path));
    }
    Ok(changes)
}

/// JSON is text: a name that is not cannot be said in it, only counted.
fn shown(changes: &[Change]) -> (Vec<Value>, usize) {
    let files: Vec<Value> = changes.iter().filter_map(shown_change).collect();
    let unnamed = changes.len() - files.len();
    (files, unnamed)
}

fn shown_change(change: &Change) -> Option<Value> {
    let path = std::str::from_utf8(&change.path).ok()?;
    let (word, leaf) = match (&change.before, &change.now) {
        (None, Some(now)) => ("added", now),
        (Some(_), Some(now)) => ("modified", now),
        (Some(before), None) => ("deleted", before),
        (None, None) => return None,
    };
    let mut shown = shown_leaf(leaf)?;
    if let (Some(before), Some(_)) = (&change.before, &change.now) {
        shown["before"] = shown_leaf(before)?;
    }
    shown["path"] = json!(path);
    shown["change"] = json!(word);
    Some(shown)
}

fn shown_leaf(leaf: &LeafKind) -> Option<Value> {
    match leaf {
        LeafKind::File { size, mode, .. } => Some(json!({ "kind": "file", "size": size, "mode": mode })),
        LeafKind::Link { target } => {
            let target = std::str::from_utf8(target).ok()?;
            Some(json!({ "kind": "link", "size": target.len(), "mode": 0o777, "target": target }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64, mode: u32) -> Option<LeafKind> {
        Some(LeafKind::File { size, mode, content: None })
    }

    #[test]
    fn changes_are_shown_as_in_the_first_version() {
        let link = Some(LeafKind::Link { target: b"a".to_vec() });
        let changes = [
            Change { path: b"a".to_vec(), before: None, now: file(3, 0o644) },
            Change { path: b"b/c".to_vec(), before: file(3, 0o644), now: file(4, 0o755) },
            Change { path: b"d".to_vec(), before: file(5, 0o600), now: None },
            Change { path: b"e".to_vec(), before: file(6, 0o644), now: link },
            Change { path: b"\xff".to_vec(), before: None, now: file(1, 0o644) },
        ];
        let golden = json!([
            { "path": "a", "change": "added", "kind": "file", "size": 3, "mode": 420 },
            { "path": "b/c", "change": "modified", "kind": "file", "size": 4, "mode": 493,
              "before": { "kind": "file", "size": 3, "mode": 420 } },
            { "path": "d", "change": "deleted", "kind": "file", "size": 5, "mode": 384 },
            { "path": "e", "change": "modified", "kind": "link", "size": 1, "mode": 511, "target": "a",
              "before": { "kind": "file", "size": 6, "mode": 420 } },
        ]);
        let (files, unnamed) = shown(&changes);
        assert_eq!((json!(files), unnamed), (golden, 1));
    }
}
