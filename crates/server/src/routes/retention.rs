//! Retention and deletion: the rules and their effects, pruning by a caller, and the audit log.

use super::{
    extract::{JsonBody, NoQueryParams, StrictQueryParams},
    session_list::ago,
    sessions::shown,
};
use crate::{
    app::AppState,
    auth::{Caller, TenantAdmin},
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::admin::{AuditLine, AuditListAnswer, ExpiringSessionView, PrunedSessionsAnswer, RetentionAnswer},
};
use ash_model::{OwnerId, SessionId, SessionStatus, Timestamp};
use ash_session::{ExpiringSession, PruneRule, Sessions, is_at_rest};
use ash_store::{AuditActor, AuditQuery, EndDisposition};
use axum::extract::State;
use serde::Deserialize;
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

const PAGE: u32 = 100;
const MAX_AUDIT_LIMIT: u32 = 1000;

/// The rules, and what they would do now, without doing it.
pub(super) async fn retention(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Answer<RetentionAnswer>> {
    let leaving = app.sessions.expiring_sessions(&app.retention).await?;
    Ok(Answer(retention_answer(&app, &caller, &leaving, true)))
}

/// Applies the rules now instead of at the next interval.
pub(super) async fn apply_retention(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
) -> ApiResult<Answer<RetentionAnswer>> {
    let gone = app.sessions.apply_session_ttl(&app.retention).await?;
    Ok(Answer(retention_answer(&app, &caller, &gone, false)))
}

fn retention_answer(
    app: &AppState,
    caller: &Caller,
    leaving: &[ExpiringSession],
    dry_run: bool,
) -> RetentionAnswer {
    let rules = app.retention.0.iter().map(ToString::to_string).collect();
    let own = leaving.iter().filter(|leaving| leaving.session.tenant == *caller.tenant());
    RetentionAnswer { rules, sessions: own.map(ExpiringSessionView::of).collect(), dry_run }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PruneRequest {
    /// How long they have been unused: `90s`, `30m`, `24h` or `7d`.
    older_than: String,
    /// `paused`, `stopped`, `error` or `ended`.
    status: Option<SessionStatus>,
    owner: Option<OwnerId>,
    /// Whether to purge them, instead of ending them.
    #[serde(default)]
    purge: bool,
    /// Whether to show what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Ends or purges unused sessions that the caller may access. Busy sessions are skipped.
pub(super) async fn prune(
    State(sessions): State<Sessions>,
    caller: Caller,
    body: JsonBody<PruneRequest>,
) -> ApiResult<Answer<PrunedSessionsAnswer>> {
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
    let gone = gone.iter().map(|session| shown(&sessions, session)).collect();
    Ok(Answer(PrunedSessionsAnswer { sessions: gone, action: fate.as_str(), dry_run }))
}

#[derive(Deserialize, IntoParams)]
pub(super) struct AuditListQuery {
    /// Only lines about this session.
    session: Option<SessionId>,
    /// A time or an age.
    since: Option<String>,
    /// 100 without one.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `nextCursor` of a page before.
    cursor: Option<i64>,
}

/// Newest first.
pub(super) async fn audit(
    State(app): State<AppState>,
    TenantAdmin(caller): TenantAdmin,
    StrictQueryParams(asked): StrictQueryParams<AuditListQuery>,
) -> ApiResult<Answer<AuditListAnswer>> {
    let limit = asked.limit.unwrap_or(PAGE);
    if limit == 0 || limit > MAX_AUDIT_LIMIT {
        return Err(ApiProblem::invalid("invalid_query", "limit is not valid (1 to 1000)"));
    }
    let since = asked.since.as_deref().map(|text| parse_time_or_age(app.now(), "since", text)).transpose()?;
    let subject = asked.session.map(String::from);
    let query = AuditQuery { subject, since, before: asked.cursor, limit };
    let lines = app.audit.list(caller.tenant(), &query).await?;
    let next = lines.last().filter(|_| lines.len() == limit as usize).map(|line| line.no.to_string());
    Ok(Answer(AuditListAnswer { audit: lines.iter().map(AuditLine::of).collect(), next_cursor: next }))
}

/// A time or an age.
pub(super) fn parse_time_or_age(now: Timestamp, name: &str, text: &str) -> ApiResult<Timestamp> {
    let time = serde_json::from_value::<Timestamp>(json!(text));
    time.or_else(|_| ago(now, name, text))
}
