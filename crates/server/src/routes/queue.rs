//! The queue of a session: list, reorder and cancel waiting messages.

use super::extract::{JsonBody, NoQueryParams, PathParam, StrictQueryParams, TurnPathParams, find_session};
use crate::{
    auth::Caller,
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::session::{QueueAnswer, QueuedTurn, WithdrawnMessageAnswer},
};
use ash_model::TurnId;
use ash_session::{Sessions, TurnPhase};
use ash_store::{EventQuery, SessionRow};
use axum::extract::State;
use serde::Deserialize;
use std::collections::HashMap;
use utoipa::ToSchema;

const PAGE: u32 = 500;

pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Answer<QueueAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    shown(&sessions, &found).await
}

async fn shown(sessions: &Sessions, session: &SessionRow) -> ApiResult<Answer<QueueAnswer>> {
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
        QueuedTurn {
            turn: turn.id,
            position,
            status,
            content: turn.content.clone(),
            attempt: turn.attempt,
            created_at: asked.get(&turn.seq).copied(),
        }
    });
    Ok(Answer(QueueAnswer { queue: turns.collect() }))
}

#[derive(Deserialize, ToSchema)]
pub(super) struct ReorderQueueRequest {
    /// Turns, the next one first. Messages that are not named keep their order, after these.
    order: Vec<String>,
}

pub(super) async fn reorder(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    body: JsonBody<ReorderQueueRequest>,
) -> ApiResult<Answer<QueueAnswer>> {
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
) -> ApiResult<Answer<WithdrawnMessageAnswer>> {
    let found = find_session(&sessions, &caller, &waiting.id).await?;
    let turn = waiting.turn()?;
    sessions.withdraw(found.no, turn).await?;
    Ok(Answer(WithdrawnMessageAnswer { turn, status: "cancelled" }))
}
