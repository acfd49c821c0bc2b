//! Usage and cost by turn, session, agent, owner, model or day, of everything that the caller may access.

use super::{
    extract::{StrictQueryParams, find_session},
    limits,
    retention::parse_time_or_age,
};
use crate::{
    app::AppState,
    auth::Caller,
    problem::{ApiProblem, ApiResult},
    shapes,
};
use ash_model::{AgentName, BudgetLimits, OwnerId, SessionId, TurnId};
use ash_session::Sessions;
use ash_store::{UsageGrouping, UsageQuery, UsageReportRow};
use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

const MAX_USAGE_ROWS: u32 = 1000;
/// Page size of the reference's list.
const PAGE: u32 = 100;

#[derive(Deserialize)]
pub(super) struct UsageReportQuery {
    by: Option<String>,
    #[serde(alias = "sessionId")]
    session: Option<String>,
    #[serde(alias = "agentName")]
    agent: Option<AgentName>,
    owner: Option<OwnerId>,
    /// A time or an age.
    #[serde(alias = "after")]
    since: Option<String>,
    #[serde(alias = "before")]
    until: Option<String>,
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
) -> ApiResult<Json<Value>> {
    let (by, query) = (wanted.by()?, wanted.query(&app.sessions, &caller).await?);
    let Some(by) = by else {
        let turns = app.usage.report(&caller.0, UsageGrouping::Turn, &query).await?;
        let mut events: Vec<Value> = turns.iter().flat_map(|sum| events(&caller, sum)).collect();
        events.truncate(query.limit as usize);
        return Ok(Json(json!({ "events": events })));
    };
    let sums = app.usage.report(&caller.0, by, &query).await?;
    let mut total = shapes::usage(&app.usage.total(&caller.0, &query).await?);
    total["resources"] = limits::resource_usage_json(&app.usage.total_resources(&caller.0, &query).await?);
    let mut shown: Vec<Value> = sums.iter().map(|sum| named(by, sum)).collect();
    if by == UsageGrouping::Session {
        let ids: Vec<SessionId> = sums.iter().filter_map(|sum| sum.session.clone()).collect();
        let taken = app.usage.resources_by_session(&caller.0, &ids).await?;
        for (sum, shown) in sums.iter().zip(&mut shown) {
            let taken = sum.session.as_ref().and_then(|session| taken.get(session));
            shown["resources"] = json!(taken.map(limits::resource_usage_json));
        }
    }
    Ok(Json(json!({ "by": by.as_str(), "usage": shown, "total": total })))
}

fn named(by: UsageGrouping, sum: &UsageReportRow) -> Value {
    let mut shown = shapes::usage(sum);
    let mut name = |name: &str, value: Value| shown[name] = value;
    match by {
        UsageGrouping::Turn | UsageGrouping::Session => {
            name("session", json!(sum.session));
            name("agent", json!(sum.agent));
            name("owner", json!(sum.owner));
        }
        UsageGrouping::Agent => name("agent", json!(sum.agent)),
        UsageGrouping::Owner => name("owner", json!(sum.owner)),
        UsageGrouping::Model => name("model", json!(sum.model)),
        UsageGrouping::Day => name("day", json!(sum.day)),
    }
    if by == UsageGrouping::Turn {
        name("turn", json!(sum.turn));
    }
    shown
}

fn events(caller: &Caller, sum: &UsageReportRow) -> Vec<Value> {
    let used = &sum.spent.usage;
    let numbers = [
        ("input_tokens", used.input_tokens),
        ("output_tokens", used.output_tokens),
        ("cache_creation_tokens", used.cache_creation_tokens),
        ("cache_read_tokens", used.cache_read_tokens),
        ("message", sum.turns),
    ];
    let event = |(kind, value): (&str, u64)| {
        let of = sum.turn.unwrap_or(TurnId(Uuid::nil())).0;
        let session = sum.session.as_ref().map_or("", |session| session.as_str());
        let id = Uuid::new_v5(&of, format!("{session}/{kind}").as_bytes());
        json!({ "id": id, "sessionId": sum.session, "agentName": sum.agent, "eventType": kind, "value": value,
            "createdAt": sum.last, "tenantId": caller.tenant() })
    };
    numbers.into_iter().filter(|(_, value)| *value > 0).map(event).collect()
}

/// The totals in the form of the reference.
pub(super) async fn stats(
    State(app): State<AppState>,
    caller: Caller,
    StrictQueryParams(wanted): StrictQueryParams<UsageReportQuery>,
) -> ApiResult<Json<Value>> {
    let query = wanted.query(&app.sessions, &caller).await?;
    let total = app.usage.total(&caller.0, &query).await?;
    let seconds = app.usage.total_resources(&caller.0, &query).await?.cpu_ms / 1000;
    let used = total.spent.usage;
    let stats = json!({
        "totalInputTokens": used.input_tokens, "totalOutputTokens": used.output_tokens,
        "totalCacheCreationTokens": used.cache_creation_tokens, "totalCacheReadTokens": used.cache_read_tokens,
        "totalMessages": total.turns, "totalToolCalls": 0, "totalComputeSeconds": seconds,
    });
    Ok(Json(json!({ "stats": stats })))
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
