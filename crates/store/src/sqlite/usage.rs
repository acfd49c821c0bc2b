//! Usage. A row is written in the transaction of the event that reports it.

use super::{
    SqliteStore,
    columns::{optional, owner},
    resources,
};
use crate::{
    AccessScope, Error, IncarnationUsage, Result, SessionResourceUsage, UsageGrouping, UsageQuery,
    UsageReportRow, UsageStore,
};
use ash_model::{
    AgentName, Fact, ResourceUsage, SessionId, SessionRowId, Timestamp, TokenUsage, TurnId, UsageIncrement,
    UsageTotal, WorkspaceId, embedded_log::EventLine,
};
use async_trait::async_trait;
use sqlx::{QueryBuilder, Row, SqliteConnection, SqlitePool, query, sqlite::SqliteRow};

#[async_trait]
impl UsageStore for SqliteStore {
    async fn usage(
        &self,
        scope: &AccessScope,
        by: Option<UsageGrouping>,
        query: &UsageQuery,
    ) -> Result<Vec<UsageReportRow>> {
        report(&self.readers, scope, by, query).await
    }

    async fn record_resource_usage(&self, report: IncarnationUsage) -> Result<()> {
        self.writer.write(move |db| Box::pin(async move { resources::record(db, &report).await })).await
    }

    async fn workspace_resource_usage(&self, workspace: Option<WorkspaceId>) -> Result<ResourceUsage> {
        resources::of_workspace(&self.readers, workspace).await
    }

    async fn total_resource_usage(&self, scope: &AccessScope, query: &UsageQuery) -> Result<ResourceUsage> {
        resources::total(&self.readers, scope, query).await
    }

    async fn resource_usage_by_session(
        &self,
        scope: &AccessScope,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionResourceUsage>> {
        resources::by_session(&self.readers, scope, sessions).await
    }
}

/// A day in milliseconds.
const DAY: i64 = 86_400_000;

/// The largest number that is counted. A sandbox can report any number, and must not break the sums of others. A float holds
/// every integer up to here.
const MAX_COUNT: u64 = 9_000_000_000_000_000;

pub(super) async fn add(
    db: &mut SqliteConnection,
    no: SessionRowId,
    used: &UsageIncrement,
    at: Timestamp,
) -> Result<()> {
    // What passed the shim may change the price alone.
    if used.usage.is_zero() && !used.first && !used.routed {
        return Ok(());
    }
    query(
        "INSERT INTO usage (session, turn, attempt, model, day, tenant, owner, agent, id, input, output, cache_write,
             cache_read, nano_usd, unpriced, rounds, first_at, last_at)
         SELECT ?1, ?2, ?3, ?4, ?5, tenant, owner, agent, id, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?13
         FROM sessions WHERE n = ?1
         ON CONFLICT DO UPDATE SET input = min(input + ?6, ?14), output = min(output + ?7, ?14),
             cache_write = min(cache_write + ?8, ?14), cache_read = min(cache_read + ?9, ?14),
             nano_usd = min(nano_usd + ?10, ?14), unpriced = max(unpriced, ?11), rounds = rounds + ?12, last_at = ?13",
    )
    .bind(no.0)
    .bind(used.turn.map(|turn| turn.to_string()).unwrap_or_default())
    .bind(used.attempt)
    .bind(&used.model)
    .bind(at.0.div_euclid(DAY))
    .bind(counted(used.usage.input_tokens))
    .bind(counted(used.usage.output_tokens))
    .bind(counted(used.usage.cache_creation_tokens))
    .bind(counted(used.usage.cache_read_tokens))
    .bind(counted(used.nano_usd.unwrap_or(0)))
    .bind(used.nano_usd.is_none())
    .bind(used.first && !used.helper)
    .bind(at.0)
    .bind(counted(MAX_COUNT))
    .execute(db)
    .await?;
    Ok(())
}

fn counted(number: u64) -> i64 {
    i64::try_from(number.min(MAX_COUNT)).unwrap_or(i64::MAX)
}

/// The usage of a session that comes back, from its events.
pub(super) async fn rebuild(db: &mut SqliteConnection, no: SessionRowId, events: &[EventLine]) -> Result<()> {
    for line in events.iter().filter(|line| line.kind == "used") {
        let fact = Fact::decode(&line.kind, line.json.clone());
        let fact = fact.map_err(|error| Error::Damaged { what: "event", why: error.to_string() })?;
        if let Fact::Used(used) = &fact {
            add(db, no, used, line.at).await?;
        }
    }
    Ok(())
}

/// Removes the session's name. Its usage stays with its agent and its owner.
pub(super) async fn forget(db: &mut SqliteConnection, no: SessionRowId) -> Result<()> {
    query("UPDATE usage SET id = NULL WHERE session = ?").bind(no.0).execute(db).await?;
    Ok(())
}

async fn report(
    db: &SqlitePool,
    scope: &AccessScope,
    by: Option<UsageGrouping>,
    asked: &UsageQuery,
) -> Result<Vec<UsageReportRow>> {
    let keys = match by {
        None => "",
        Some(UsageGrouping::Turn) => "turn, session, id, agent, owner",
        Some(UsageGrouping::Session) => "session, id, agent, owner",
        Some(UsageGrouping::Agent) => "agent",
        Some(UsageGrouping::Owner) => "owner",
        Some(UsageGrouping::Model) => "model",
        Some(UsageGrouping::Day) => "day",
    };
    let comma = if keys.is_empty() { "" } else { ", " };
    // total() adds floats: sum() fails when integers overflow.
    let mut sql = QueryBuilder::new(format!(
        "SELECT {keys}{comma}CAST(total(input) AS INTEGER) AS input, CAST(total(output) AS INTEGER) AS output,
             CAST(total(cache_write) AS INTEGER) AS cache_write, CAST(total(cache_read) AS INTEGER) AS cache_read,
             CAST(total(nano_usd) AS INTEGER) AS nano_usd, coalesce(max(unpriced), 0) AS unpriced,
             CAST(total(rounds) AS INTEGER) AS rounds, count(DISTINCT nullif(turn, '')) AS turns,
             min(first_at) AS first_at, max(last_at) AS last_at
         FROM usage WHERE tenant = "
    ));
    sql.push_bind(scope.tenant.as_str());
    for owner in scope.owner.iter().chain(&asked.owner) {
        sql.push(" AND owner = ").push_bind(owner.as_str());
    }
    if let Some(SessionRowId(no)) = asked.session {
        sql.push(" AND session = ").push_bind(no);
    }
    if let Some(agent) = &asked.agent {
        sql.push(" AND agent = ").push_bind(agent.as_str());
    }
    if let Some(Timestamp(since)) = asked.since {
        sql.push(" AND first_at >= ").push_bind(since);
    }
    if let Some(Timestamp(until)) = asked.until {
        sql.push(" AND first_at < ").push_bind(until);
    }
    if by.is_some() {
        sql.push(format!(" GROUP BY {keys} ORDER BY max(last_at) DESC, {keys}"));
        sql.push(" LIMIT ").push_bind(asked.limit);
    }
    sql.build().fetch_all(db).await?.iter().map(|row| sum(row, by)).collect()
}

fn sum(row: &SqliteRow, by: Option<UsageGrouping>) -> Result<UsageReportRow> {
    let number = |name: &str| row.try_get::<i64, _>(name).map(|number| u64::try_from(number).unwrap_or(0));
    let usage = TokenUsage {
        input_tokens: number("input")?,
        output_tokens: number("output")?,
        cache_creation_tokens: number("cache_write")?,
        cache_read_tokens: number("cache_read")?,
        // The table does not split what was written: its rows have the costs.
        cache_creation_1h_tokens: 0,
    };
    let spent = UsageTotal {
        usage,
        nano_usd: number("nano_usd")?,
        unpriced: number("unpriced")? > 0,
        rounds: number("rounds")?,
    };
    let at = |name: &str| row.try_get::<Option<i64>, _>(name).map(|at| at.map(Timestamp));
    let (first, last, turns) = (at("first_at")?, at("last_at")?, number("turns")?);
    let mut sum = UsageReportRow { spent, turns, first, last, ..UsageReportRow::default() };
    if by == Some(UsageGrouping::Turn) {
        let turn: String = row.try_get("turn")?;
        sum.turn = TurnId::parse(&turn);
    }
    if matches!(by, Some(UsageGrouping::Turn | UsageGrouping::Session)) {
        sum.session = optional(row, "id", |text| SessionId::parse(text).ok())?;
    }
    if matches!(by, Some(UsageGrouping::Turn | UsageGrouping::Session | UsageGrouping::Agent)) {
        sum.agent = optional(row, "agent", |text| AgentName::parse(text).ok())?;
    }
    if matches!(by, Some(UsageGrouping::Turn | UsageGrouping::Session | UsageGrouping::Owner)) {
        sum.owner = owner(row)?;
    }
    if by == Some(UsageGrouping::Model) {
        sum.model = row.try_get("model")?;
    }
    if by == Some(UsageGrouping::Day) {
        let start = Timestamp(row.try_get::<i64, _>("day")? * DAY);
        sum.day = Some(start.to_string().chars().take("2026-01-31".len()).collect());
    }
    Ok(sum)
}
