//! The owner and the metadata of sessions and workspaces.

use super::extract::{JsonBody, PathParam, find_open_session, too_large};
use super::quotas;
use super::sessions::answer;
use crate::{
    app::AppState,
    auth::Caller,
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::session::SessionAnswer,
};
use ash_model::{FailureKind, OwnerId, Quotas, SessionMetadata};
use ash_session::{AuditSubject, ConfigChange};
use ash_store::AccessScope;
use axum::extract::State;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The owner of a new resource: that of the key, or the one that a caller without an owner names.
pub(super) fn resolve_owner(caller: &Caller, named: Option<OwnerId>) -> ApiResult<AccessScope> {
    let Caller(scope, _) = caller;
    match (&scope.owner, named) {
        (Some(own), Some(named)) if *own != named => {
            let error = format!("This key is owner \"{own}\"'s; what it makes belongs to nobody else");
            Err(ApiProblem::new(FailureKind::Forbidden, "admin_only", error))
        }
        (Some(_), _) => Ok(scope.clone()),
        (None, named) => Ok(AccessScope { owner: named, ..scope.clone() }),
    }
}

pub(super) fn metadata(quotas: &Quotas, given: BTreeMap<String, String>) -> ApiResult<SessionMetadata> {
    quotas::metadata(quotas, given.iter())?;
    SessionMetadata::try_from(given).map_err(|error| match error.oversize() {
        Some(size) => too_large(error.to_string(), size),
        None => ApiProblem::invalid("invalid_metadata", error.to_string()),
    })
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetMetadataRequest {
    /// All entries.
    #[schema(value_type = SessionMetadata)]
    metadata: BTreeMap<String, String>,
}

/// Replaces the whole metadata of a session.
pub(super) async fn change(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    body: JsonBody<SetMetadataRequest>,
) -> ApiResult<Answer<SessionAnswer>> {
    let found = find_open_session(&app.sessions, &caller, &id).await?;
    let metadata = metadata(&app.quotas, body.value.metadata)?;
    let change = ConfigChange { fields: vec!["metadata".to_owned()], variables: None };
    let subject = AuditSubject::Session(&found);
    app.audit.record_config_change(&caller.audit_actor(), subject, change).await?;
    Ok(answer(&app.sessions, &app.sessions.set_metadata(found.no, metadata).await?))
}
