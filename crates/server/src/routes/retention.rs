//! Retention and deletion: the rules and their effects, pruning by a caller, and the audit log.

use super::{
    extract::{JsonBody, NoQueryParams, StrictQueryParams},
    session_list::ago,
    sessions::shown,
};
use crate::{
    app::AppState,
    auth::{Caller, TenantAdmin},
    problem::{ApiProblem, ApiResult},
};
use ash_model::{OwnerId, SessionId, SessionStatus, Timestamp};
use ash_session::{ExpiringSession, PruneRule, Sessions, is_at_rest};
use ash_store::{AuditActor, AuditEntry, AuditQuery, EndDisposition};
use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};

const PAGE: u32 = 100;
const MAX_AUDIT_LIMIT: u32 = 1000;

/// The rules, and what they would do now, without doing it.
pub(super) async fn retention(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Json<Value>> {
    let leaving = app.sessions.expiring_sessions(&app.retention).await?;
    Ok(Json(retention_json(&app, &caller, &leaving, true)))
}

/// Applies the rules now instead of at the next interval.
pub(super) async fn apply_retention(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
) -> ApiResult<Json<Value>> {
    let gone = app.sessions.apply_session_ttl(&app.retention).await?;
    Ok(Json(retention_json(&app, &caller, &gone, false)))
}

fn retention_json(app: &AppState, caller: &Caller, leaving: &[ExpiringSession], dry: bool) -> Value {
    let rules: Vec<String> = app.retention.0.iter().map(ToString::to_string).collect();
    let own = leaving.iter().filter(|leaving| leaving.session.tenant == *caller.tenant());
    let sessions: Vec<Value> = own
        .map(|ExpiringSession { session, rule, fate, .. }| {
            json!({ "id": session.id, "owner": session.owner, "status": session.summary.status,
                "lastActiveAt": session.last_active_at, "rule": rule, "action": fate.as_str() })
        })
        .collect();
    json!({ "rules": rules, "sessions": sessions, "dryRun": dry })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PruneRequest {
    older_than: String,
    status: Option<SessionStatus>,
    owner: Option<OwnerId>,
    #[serde(default)]
    purge: bool,
    #[serde(default)]
    dry_run: bool,
}

/// Ends or purges unused sessions that the caller may access. Busy sessions are skipped.
pub(super) async fn prune(
    State(sessions): State<Sessions>,
    caller: Caller,
    body: JsonBody<PruneRequest>,
) -> ApiResult<Json<Value>> {
    let PruneRequest { older_than, status, owner, purge, dry_run } = body.value;
    if let Some(status) = status.filter(|status| !is_at_rest(*status)) {
        let error = format!(
            "Sessions that are {status} are at work; prune those that are paused, stopped, error or ended"
        );
        return Err(ApiProblem::invalid("invalid_body", error));
    }
    let fate = if purge { EndDisposition::Purge } else { EndDisposition::End };
    let unused = ash_model::parse_duration(&older_than)
        .map_err(|error| ApiProblem::invalid("invalid_body", format!("olderThan is not valid: {error}")))?;
    let rule = PruneRule { unused, status, owner, fate };
    let gone = match dry_run {
        true => sessions.prunable_sessions(&caller.0, &rule).await?,
        false => {
            let by = AuditActor { rule: Some("prune".to_owned()), ..caller.audit_actor() };
            sessions.prune(&caller.0, &rule, &by).await?
        }
    };
    let gone: Vec<Value> = gone.iter().map(|session| shown(&sessions, session)).collect();
    Ok(Json(json!({ "sessions": gone, "action": fate.as_str(), "dryRun": dry_run })))
}

#[derive(Deserialize)]
pub(super) struct AuditListQuery {
    session: Option<SessionId>,
    /// A time or an age.
    since: Option<String>,
    limit: Option<u32>,
    cursor: Option<i64>,
}

/// Newest first.
pub(super) async fn audit(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    StrictQueryParams(asked): StrictQueryParams<AuditListQuery>,
) -> ApiResult<Json<Value>> {
    let limit = asked.limit.unwrap_or(PAGE);
    if limit == 0 || limit > MAX_AUDIT_LIMIT {
        return Err(ApiProblem::invalid("invalid_query", "limit is not valid (1 to 1000)"));
    }
    let since = asked.since.as_deref().map(|text| parse_time_or_age(app.now(), "since", text)).transpose()?;
    let subject = asked.session.map(String::from);
    let query = AuditQuery { subject, since, before: asked.cursor, limit };
    let lines = app.audit.list(caller.tenant(), &query).await?;
    let next = lines.last().filter(|_| lines.len() == limit as usize).map(|line| line.no.to_string());
    let lines: Vec<Value> = lines.iter().map(line).collect();
    Ok(Json(json!({ "audit": lines, "nextCursor": next })))
}

/// A time or an age.
pub(super) fn parse_time_or_age(now: Timestamp, name: &str, text: &str) -> ApiResult<Timestamp> {
    let time = serde_json::from_value::<Timestamp>(json!(text));
    time.or_else(|_| ago(now, name, text))
}

fn line(line: &AuditEntry) -> Value {
    let mut shown = json!({
        "id": line.no, "at": line.at, "action": line.action.as_str(), "subject": line.subject, "owner": line.owner,
        "by": { "key": line.actor.key, "owner": line.actor.owner, "rule": line.actor.rule },
    });
    if let Some(detail) = &line.detail {
        shown["detail"] = json!(detail);
    }
    shown
}
