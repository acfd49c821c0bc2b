//! The queue of a session: list, reorder and cancel waiting messages.

use super::extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams, TurnPathParams, find_session};
use crate::{
    auth::Caller,
    problem::{ApiProblem, ApiResult},
};
use ash_model::TurnId;
use ash_session::{Sessions, TurnPhase};
use ash_store::{EventQuery, SessionRow};
use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;

const PAGE: u32 = 500;

pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Json<Value>> {
    let found = find_session(&sessions, &caller, &id).await?;
    shown(&sessions, &found).await
}

async fn shown(sessions: &Sessions, session: &SessionRow) -> ApiResult<Json<Value>> {
    let turns = sessions.queue(session.no).await?;
    let first = turns.iter().map(|turn| turn.seq).min().unwrap_or_default();
    let mut asked = HashMap::new();
    let mut query =
        EventQuery { after: first.saturating_sub(1), limit: PAGE, kinds: vec!["queued", "stirred"] };
    while !turns.is_empty() {
        let events = sessions.events(session.no, &query).await?;
        let Some(last) = events.last() else { break };
        query.after = last.seq;
        asked.extend(events.iter().map(|event| (event.seq, event.at)));
    }
    let turns = turns.iter().enumerate().map(|(position, turn)| {
        let status = match turn.phase {
            TurnPhase::Queued => "queued",
            TurnPhase::Running { .. } => "running",
            TurnPhase::Saving { .. } => "saving",
            TurnPhase::Cut => "cut",
            TurnPhase::Joined { .. } => "steering",
        };
        json!({
            "turn": turn.id, "position": position, "status": status, "content": turn.content,
            "attempt": turn.attempt, "createdAt": asked.get(&turn.seq),
        })
    });
    Ok(Json(json!({ "queue": turns.collect::<Vec<_>>() })))
}

#[derive(Deserialize)]
pub(super) struct ReorderQueueRequest {
    /// Messages that are not named keep their order, after these.
    order: Vec<String>,
}

pub(super) async fn reorder(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    body: JsonBody<ReorderQueueRequest>,
) -> ApiResult<Json<Value>> {
    let found = find_session(&sessions, &caller, &id).await?;
    let first: Option<Vec<TurnId>> = body.value.order.iter().map(|turn| TurnId::parse(turn)).collect();
    let first = first.ok_or(ash_session::Error::NoTurn)?;
    let mut sorted = first.clone();
    sorted.sort();
    sorted.dedup();
    if sorted.len() != first.len() {
        return Err(ApiProblem::invalid("invalid_body", "order names a turn twice"));
    }
    sessions.reorder(found.no, first).await?;
    shown(&sessions, &found).await
}

pub(super) async fn withdraw(
    State(sessions): State<Sessions>,
    caller: Caller,
    waiting: TurnPathParams,
) -> ApiResult<Json<Value>> {
    let found = find_session(&sessions, &caller, &waiting.id).await?;
    let turn = waiting.turn()?;
    sessions.withdraw(found.no, turn).await?;
    Ok(Json(json!({ "turn": turn, "status": "cancelled" })))
}
