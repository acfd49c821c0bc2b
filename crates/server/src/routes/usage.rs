//! Usage and cost by turn, session, agent, owner, model or day, of everything that the caller may access.

use super::{
    extract::{StrictQueryParams, find_session},
    retention::parse_time_or_age,
};
use crate::{
    app::AppState,
    auth::Caller,
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::usage::{
        ResourceUsageView, UsageAnswer, UsageEventListAnswer, UsageEventView, UsageGroupView,
        UsageReportAnswer, UsageReportTotal, UsageStatsAnswer, UsageStatsView, UsageView,
    },
};
use ash_model::{AgentName, BudgetLimits, OwnerId, SessionId};
use ash_session::Sessions;
use ash_store::{UsageGrouping, UsageQuery};
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

const MAX_USAGE_ROWS: u32 = 1000;
/// Page size of the reference's list.
const PAGE: u32 = 100;

#[derive(Deserialize, IntoParams)]
pub(super) struct UsageReportQuery {
    /// `turn`, `session`, `agent`, `owner`, `model` or `day`.
    by: Option<String>,
    /// Also accepted as `sessionId`.
    #[serde(alias = "sessionId")]
    session: Option<String>,
    /// Also accepted as `agentName`.
    #[serde(alias = "agentName")]
    agent: Option<AgentName>,
    owner: Option<OwnerId>,
    /// A time or an age: `90s`, `30m`, `24h` or `7d`. Also accepted as `after`.
    #[serde(alias = "after")]
    since: Option<String>,
    /// A time or an age. Also accepted as `before`.
    #[serde(alias = "before")]
    until: Option<String>,
    /// 1000 groups or 100 events without one.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl UsageReportQuery {
    async fn query(&self, sessions: &Sessions, caller: &Caller) -> ApiResult<UsageQuery> {
        let limit = self.limit.unwrap_or(if self.by.is_some() { MAX_USAGE_ROWS } else { PAGE });
        if !(1..=MAX_USAGE_ROWS).contains(&limit) {
            return Err(ApiProblem::invalid("invalid_query", "limit is not valid (1 to 1000)"));
        }
        let now = sessions.now();
        let at = |name: &str, text: &Option<String>| {
            let text = text.as_deref().filter(|text| !text.is_empty());
            text.map(|text| parse_time_or_age(now, name, text)).transpose()
        };
        let session = match &self.session {
            Some(id) => Some(find_session(sessions, caller, id).await?.no),
            None => None,
        };
        let (since, until) = (at("since", &self.since)?, at("until", &self.until)?);
        Ok(UsageQuery { session, agent: self.agent.clone(), owner: self.owner.clone(), since, until, limit })
    }

    fn by(&self) -> ApiResult<Option<UsageGrouping>> {
        let Some(text) = &self.by else { return Ok(None) };
        let names = UsageGrouping::ALL.map(|(_, name)| name).join(", ");
        let unknown = || ApiProblem::invalid("invalid_query", format!("by must be one of {names}"));
        UsageGrouping::parse(text).map(Some).ok_or_else(unknown)
    }
}

/// Without `by`, the form of the reference: a list of single numbers.
pub(super) async fn usage(
    State(app): State<AppState>,
    caller: Caller,
    StrictQueryParams(wanted): StrictQueryParams<UsageReportQuery>,
) -> ApiResult<Answer<UsageAnswer>> {
    let (by, query) = (wanted.by()?, wanted.query(&app.sessions, &caller).await?);
    let Some(by) = by else {
        let turns = app.usage.report(&caller.0, UsageGrouping::Turn, &query).await?;
        let events = turns.iter().flat_map(|sum| UsageEventView::all_of(caller.tenant(), sum));
        let events = events.take(query.limit as usize).collect();
        return Ok(Answer(UsageAnswer::Events(UsageEventListAnswer { events })));
    };
    let sums = app.usage.report(&caller.0, by, &query).await?;
    let total = UsageReportTotal {
        sum: UsageView::of(&app.usage.total(&caller.0, &query).await?),
        resources: ResourceUsageView::of(&app.usage.total_resources(&caller.0, &query).await?),
    };
    let ids: Vec<SessionId> = match by {
        UsageGrouping::Session => sums.iter().filter_map(|sum| sum.session.clone()).collect(),
        _ => Vec::new(),
    };
    let taken = app.usage.resources_by_session(&caller.0, &ids).await?;
    let usage = sums.iter().map(|sum| {
        let taken = sum.session.as_ref().and_then(|session| taken.get(session));
        UsageGroupView::of(by, sum, taken)
    });
    let report = UsageReportAnswer { by: by.as_str(), usage: usage.collect(), total };
    Ok(Answer(UsageAnswer::Report(report)))
}

/// The totals in the form of the reference.
pub(super) async fn stats(
    State(app): State<AppState>,
    caller: Caller,
    StrictQueryParams(wanted): StrictQueryParams<UsageReportQuery>,
) -> ApiResult<Answer<UsageStatsAnswer>> {
    let query = wanted.query(&app.sessions, &caller).await?;
    let total = app.usage.total(&caller.0, &query).await?;
    let seconds = app.usage.total_resources(&caller.0, &query).await?.cpu_ms / 1000;
    let used = total.spent.usage;
    let stats = UsageStatsView {
        total_input_tokens: used.input_tokens,
        total_output_tokens: used.output_tokens,
        total_cache_creation_tokens: used.cache_creation_tokens,
        total_cache_read_tokens: used.cache_read_tokens,
        total_messages: total.turns,
        total_tool_calls: 0,
        total_compute_seconds: seconds,
    };
    Ok(Answer(UsageStatsAnswer { stats }))
}

pub(super) fn check(limits: &BudgetLimits) -> ApiResult<()> {
    let BudgetLimits { max_turns, max_budget_usd, max_tokens } = limits;
    let bad =
        *max_turns == Some(0) || *max_tokens == Some(0) || max_budget_usd.is_some_and(|most| most < 0.0);
    match bad {
        true => Err(ApiProblem::invalid(
            "invalid_body",
            "maxTurns and maxTokens must be at least 1, and maxBudgetUsd at least 0",
        )),
        false => Ok(()),
    }
}
