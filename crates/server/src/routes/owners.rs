//! Whose sessions and workspaces are, and what is noted on them.

use super::quotas;
use super::sessions::answer;
use super::take::{Body, Part, open_session, too_large};
use crate::{
    app::App,
    audit::{self, Changed},
    auth::Caller,
    problem::{Answer, Problem},
};
use ash_model::{Kind, Metadata, OwnerId};
use ash_store::Scope;
use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Whom something new belongs to: the owner of the key, or whomever a key without one names.
pub(super) fn for_whom(caller: &Caller, named: Option<OwnerId>) -> Answer<Scope> {
    let Caller(scope, _) = caller;
    match (&scope.owner, named) {
        (Some(own), Some(named)) if *own != named => {
            let error = format!("This key is owner \"{own}\"'s; what it makes belongs to nobody else");
            Err(Problem::new(Kind::Forbidden, "admin_only", error))
        }
        (Some(_), _) => Ok(scope.clone()),
        (None, named) => Ok(Scope { owner: named, ..scope.clone() }),
    }
}

pub(super) fn metadata(app: &App, given: BTreeMap<String, String>) -> Answer<Metadata> {
    quotas::metadata(app, given.iter())?;
    Metadata::try_from(given).map_err(|error| match error.oversize() {
        Some(size) => too_large(error.to_string(), size),
        None => Problem::invalid("invalid_metadata", error.to_string()),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    metadata: BTreeMap<String, String>,
}

/// What is noted on a session is replaced as a whole.
pub(super) async fn change(
    State(app): State<App>,
    caller: Caller,
    Part(id): Part,
    body: Body<Change>,
) -> Answer<Json<Value>> {
    let found = open_session(&app, &caller, &id).await?;
    let metadata = metadata(&app, body.value.metadata)?;
    let changed = (vec!["metadata".to_owned()], None);
    audit::of_change(&app, &caller, Changed::Session(&found), changed).await?;
    Ok(answer(&app, &app.sessions.label(found.no, metadata).await?))
}
