//! The conversation: send a message, follow the stream, read the history.

use super::{
    extract::{
        FromFields, LargeBody, PathParam, QueryParams, StrictJsonBody, StrictQueryParams, find_session,
        find_session_or_remote, queue_timeout,
    },
    locks::HeldLockNumber,
    session_options::check_model_name,
    usage,
};
use crate::{
    app::AppState,
    auth::Caller,
    field_coercion::{self, FieldError, UnknownFieldPolicy},
    idempotency::{idempotency_key, idempotent_request},
    openapi::{Answer, DocumentedAnswer, ErrorDetails, OperationDraft},
    problem::{ApiProblem, ApiResult},
    shapes,
    sse::{self, DeltaVisibility, SseStream},
    turn::{TurnStreamAction, TurnWatcher, stopped},
    wire::{
        history::{MessageListAnswer, SessionEventListAnswer, SessionEventView, TurnAnswer},
        stream::frame_schema,
    },
};
use ash_model::{
    BudgetLimits, BusyPolicy, Durability, Event, Fact, LogCursor, MessageOptions, SessionStatus, TurnId,
};
use ash_session::{LogVisibility, PromptSpec, Sessions, StreamItem, WakePolicy};
use ash_store::{EventQuery, LogItemContent, NumberedMessage, SessionRow};
use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode, header::ACCEPT},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};

const MAX_CONTENT_CHARS: usize = 500_000;
const MAX_CONTENT_BLOCKS: usize = 20;
const BLOCK_TYPES: [&str; 3] = ["text", "image", "document"];
pub(super) const PAGE: u32 = 500;
/// Maximum size of one answer, unless its first entry alone is larger: the agent decides how long entries are.
pub(super) const MAX_RESPONSE_BYTES: usize = 8 << 20;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SendMessageRequest {
    #[schema(schema_with = content_schema)]
    content: Value,
    /// Whether the stream has the pieces of messages that are not complete yet.
    #[serde(default)]
    include_partial_messages: bool,
    /// False: a session that is paused or stopped is not resumed by the message.
    auto_resume: Option<bool>,
    #[schema(max_length = 100)]
    model: Option<String>,
    /// Limit for answers of the model in this turn.
    #[schema(minimum = 1)]
    max_turns: Option<u32>,
    /// Limit for the cost of this turn.
    #[schema(minimum = 0)]
    max_budget_usd: Option<f64>,
    /// Limit for tokens of all kinds in this turn.
    #[schema(minimum = 1)]
    max_tokens: Option<u64>,
    /// `low`, `medium`, `high` or `max`.
    effort: Option<String>,
    thinking: Option<ThinkingOptions>,
    output_format: Option<OutputFormat>,
    durability: Option<Durability>,
    on_busy: Option<BusyPolicy>,
}

fn content_schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
    use utoipa::openapi::schema::{
        AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type,
    };
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(MAX_CONTENT_CHARS));
    let kind = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(BLOCK_TYPES));
    let block = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property("type", kind)
        .required("type")
        .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(true)));
    let blocks = ArrayBuilder::new().items(block).min_items(Some(1)).max_items(Some(MAX_CONTENT_BLOCKS));
    let description = "A text, or blocks of the Messages API with their own fields: `text`, `source`, …";
    OneOfBuilder::new().item(text).item(blocks).description(Some(description)).into()
}

#[derive(Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ThinkingOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_tokens: Option<u64>,
}

#[derive(Deserialize, Serialize, ToSchema)]
struct OutputFormat {
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Map<String, Value>>,
}

impl FromFields for SendMessageRequest {
    fn from_fields(object: Value) -> Result<Self, FieldError> {
        field_coercion::deserialize_fields(object, UnknownFieldPolicy::Refuse)
    }
}

pub(super) async fn send(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    Extension(HeldLockNumber(lock)): Extension<HeldLockNumber>,
    headers: HeaderMap,
    LargeBody { body, memory }: LargeBody<StrictJsonBody<SendMessageRequest>>,
) -> ApiResult<MessageAnswer> {
    let session = find_session_or_remote(&app.sessions, &caller, &id).await?;
    app.sessions.check_durability(body.value.durability)?;
    let deltas =
        if body.value.include_partial_messages { DeltaVisibility::Show } else { DeltaVisibility::Hide };
    let on_busy = body.value.on_busy.or(session.options.on_busy).unwrap_or_default();
    let prompt = PromptSpec { on_busy, lock, queue_timeout: queue_timeout(&headers)?, ..prompt(body.value)? };
    let route = format!("POST /api/sessions/{id}/messages");
    let alone = match idempotency_key(&headers)? {
        Some(key) => Some(app.idempotency_locks.lock((session.no, key.to_owned())).await),
        None => None,
    };
    let request = idempotent_request(&caller, &headers, (&route, &body.summary.hash))?;
    let claim = app.idempotency.claim(request.as_ref(), prompt.turn.to_string()).await?;
    let turn = TurnId::parse(&claim.resource).ok_or_else(|| ApiProblem::internal("a turn without an id"))?;
    if let Err(refused) = app.sessions.prompt(session.no, PromptSpec { turn, ..prompt }).await {
        if let Some(request) = &request {
            app.idempotency.release(request).await?;
        }
        return Err(refused.into());
    }
    // From here on the message is in the queue, which has its own quotas.
    drop((alone, memory));
    let row = app.sessions.turn(session.no, turn).await?;
    let queued = row.ok_or_else(|| ApiProblem::internal("the message is not there"))?.seq;
    // A repeated request need not see interruptions that the turn has already survived.
    let since = if claim.is_replay { app.sessions.get(session.no).await?.last_seq } else { queued };
    let turn = TurnWatcher::new(turn, since);
    if wants_json(&headers) {
        let result = respond_when_turn_ends(&app.sessions, &session, turn, queued).await?;
        return Ok(MessageAnswer(Answer(result).into_response()));
    }
    let follower =
        app.sessions.follow(session.no, LogCursor::delta(queued.saturating_sub(1), i64::MAX as u64));
    let sessions = app.sessions;
    let stream =
        SseStream { sessions, follower, session: session.id, turn: Some(turn), deltas, already_sent: None };
    Ok(MessageAnswer(stream.response()))
}

/// The stream of a message, or its result.
pub(super) struct MessageAnswer(Response);

/// The stream of a session, or nothing if there is no more of it.
pub(super) struct StreamAnswer(Response);

impl IntoResponse for MessageAnswer {
    fn into_response(self) -> Response {
        self.0
    }
}

impl IntoResponse for StreamAnswer {
    fn into_response(self) -> Response {
        self.0
    }
}

impl DocumentedAnswer for MessageAnswer {
    fn describe(operation: &mut OperationDraft) {
        let frame = frame_schema(operation);
        operation.answer(StatusCode::OK, "text/event-stream", frame);
        operation.json_answer::<TurnAnswer>(StatusCode::OK);
    }
}

impl DocumentedAnswer for StreamAnswer {
    fn describe(operation: &mut OperationDraft) {
        let frame = frame_schema(operation);
        operation.answer(StatusCode::OK, "text/event-stream", frame);
        operation.answer_without_body(
            StatusCode::NO_CONTENT,
            "The session has ended, and the client has everything",
        );
    }
}

fn wants_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains("application/json") && !accept.contains("text/event-stream")
}

fn prompt(message: SendMessageRequest) -> ApiResult<PromptSpec> {
    check_content(&message.content)?;
    check_model_name(message.model.as_deref())?;
    usage::check(&BudgetLimits {
        max_turns: message.max_turns,
        max_budget_usd: message.max_budget_usd,
        max_tokens: message.max_tokens,
    })?;
    if let Some(effort) = &message.effort
        && !["low", "medium", "high", "max"].contains(&effort.as_str())
    {
        return Err(ApiProblem::invalid("invalid_body", "effort must be low, medium, high or max"));
    }
    let ask = MessageOptions {
        model: message.model,
        max_turns: message.max_turns,
        max_budget_usd: message.max_budget_usd,
        max_tokens: message.max_tokens,
        effort: message.effort,
        thinking: message.thinking.map(|thinking| json!(thinking)),
        output_format: message.output_format.map(|format| json!(format)),
        durability: message.durability,
    };
    let wake = if message.auto_resume == Some(false) { WakePolicy::Forbidden } else { WakePolicy::Allowed };
    let on_busy = BusyPolicy::default();
    let (lock, patience) = (None, None);
    Ok(PromptSpec {
        turn: TurnId::fresh(),
        content: message.content,
        options: ask,
        wake,
        on_busy,
        lock,
        queue_timeout: patience,
    })
}

fn check_content(content: &Value) -> ApiResult<()> {
    let invalid = |error: &str| Err(ApiProblem::invalid("invalid_content", error));
    match content {
        Value::String(text) if text.is_empty() => invalid("content must not be empty"),
        Value::String(text) if text.chars().count() > MAX_CONTENT_CHARS => {
            invalid("content must not be longer than 500000 characters")
        }
        Value::String(_) => Ok(()),
        Value::Array(blocks) if blocks.is_empty() || blocks.len() > MAX_CONTENT_BLOCKS => {
            invalid("content must have 1 to 20 blocks")
        }
        Value::Array(blocks) => {
            let known =
                |block: &Value| block["type"].as_str().is_some_and(|kind| BLOCK_TYPES.contains(&kind));
            if blocks.iter().all(known) {
                Ok(())
            } else {
                invalid("each block needs a type: text, image or document")
            }
        }
        _ => invalid("content must be a string or a list of blocks"),
    }
}

/// Waits for the end of the turn and answers with the whole result.
async fn respond_when_turn_ends(
    sessions: &Sessions,
    session: &SessionRow,
    mut turn: TurnWatcher,
    queued: u64,
) -> ApiResult<TurnAnswer> {
    let mut follower = sessions.follow(session.no, LogCursor::event(queued));
    let (mut text, mut usage, mut unsaved) = (String::new(), None, None);
    loop {
        let items = match follower.next().await {
            Ok(StreamItem::Items(items)) => items,
            Ok(StreamItem::Restoring(_)) => continue,
            // The message was accepted, but its progress is unknown.
            Err(error) if error.code() == "server_stopped" => {
                return Err(failed(stopped()).with(ErrorDetails::cut(turn.id().to_string(), None)));
            }
            Err(error) => return Err(error.into()),
        };
        for item in items {
            if let TurnStreamAction::Interrupted(problem) = turn.classify(&item) {
                let queued = follower.is_open(turn.id()).await.ok();
                let problem = if sessions.is_stopping() { stopped() } else { problem };
                return Err(failed(problem).with(ErrorDetails::cut(turn.id().to_string(), queued)));
            }
            match item.content {
                LogItemContent::Event(Fact::Rested { turn: over, text: said, usage: used, .. })
                    if over == turn.id() =>
                {
                    text = said;
                    usage = Some(used);
                }
                LogItemContent::Event(Fact::SaveFailed { turn: Some(of), error }) if of == turn.id() => {
                    unsaved = Some(ash_model::Problem::new("checkpoint_failed", error));
                }
                LogItemContent::Event(Fact::Finished { turn: over, outcome: how, checkpoint, problem })
                    if over == turn.id() =>
                {
                    // The answer is complete, but its files may not be saved: the caller learns both.
                    let error = problem.or(unsaved);
                    return Ok(TurnAnswer { turn: over, status: how, text, usage, checkpoint, error });
                }
                LogItemContent::Event(_) | LogItemContent::Delta(_) => {}
            }
        }
    }
}

fn failed(problem: ash_model::Problem) -> ApiProblem {
    ash_session::Error::Failed(problem).into()
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionStreamQuery {
    /// The id of the last frame that the client has; Last-Event-ID wins.
    after: Option<String>,
    /// False: without the pieces of messages that are not complete yet.
    include_partial_messages: Option<bool>,
    /// A token of `POST …/stream-token`, for clients that cannot send an Authorization header. A header wins.
    #[expect(dead_code, reason = "`auth.rs` reads it, and the document is made of this type")]
    token: Option<String>,
}

pub(super) async fn stream(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    headers: HeaderMap,
    QueryParams(asked): QueryParams<SessionStreamQuery>,
) -> ApiResult<StreamAnswer> {
    let session = find_session(&sessions, &caller, &id).await?;
    let given =
        headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned).or(asked.after);
    let cursor = match given.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => LogCursor::parse(text).filter(|cursor| cursor.seq <= session.last_seq),
        None => Some(LogCursor::START),
    };
    let cursor = cursor.ok_or_else(|| {
        ApiProblem::invalid("invalid_cursor", "This is not the id of an event of this session")
    })?;
    if session.summary.status == SessionStatus::Ended
        && cursor.seq >= session.last_seq
        && cursor.frames.is_none()
    {
        // Nothing more will come. An EventSource that gets this status does not reconnect.
        return Ok(StreamAnswer(StatusCode::NO_CONTENT.into_response()));
    }
    let (after, skip) = sse::resume_position(cursor);
    let deltas = if asked.include_partial_messages == Some(false) {
        DeltaVisibility::Hide
    } else {
        DeltaVisibility::Show
    };
    let follower = sessions.follow(session.no, after);
    let stream =
        SseStream { sessions, follower, session: session.id, turn: None, deltas, already_sent: skip };
    Ok(StreamAnswer(stream.response()))
}

#[derive(Deserialize, IntoParams)]
pub(super) struct TimelineQuery {
    /// 100 messages or 200 events without one.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only entries with a higher `sequence`.
    after: Option<u64>,
    /// Of events: only those of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Of messages: also those that a rewind superseded.
    all: Option<bool>,
}

impl TimelineQuery {
    fn limit(&self, usual: usize) -> ApiResult<usize> {
        page_limit(self.limit, usual, 1000)
    }
}

pub(super) fn page_limit(asked: Option<usize>, usual: usize, most: usize) -> ApiResult<usize> {
    match asked.unwrap_or(usual) {
        limit if (1..=most).contains(&limit) => Ok(limit),
        _ => Err(ApiProblem::invalid("invalid_query", format!("limit must be 1 to {most}"))),
    }
}

pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(asked): StrictQueryParams<TimelineQuery>,
) -> ApiResult<Answer<MessageListAnswer>> {
    let session = find_session(&sessions, &caller, &id).await?;
    let limit = asked.limit(100)?;
    let past = if asked.all == Some(true) {
        LogVisibility::default()
    } else {
        sessions.log_visibility(&session).await?
    };
    let (mut shown, mut bytes, mut after) = (Vec::new(), 0, asked.after.unwrap_or(0));
    loop {
        // A few more than requested, because some may be hidden.
        let page = PAGE.min(u32::try_from(limit).unwrap_or(PAGE) + 8);
        let found = sessions.messages(session.no, after, page).await?;
        let Some(last) = found.last() else { break };
        after = last.ordinal;
        for NumberedMessage { ordinal, event } in found.iter().filter(|message| !past.hides(&message.event)) {
            let Some(entry) = shapes::message(&session, event, *ordinal) else { continue };
            bytes += entry.content.len();
            if shown.len() == limit || (!shown.is_empty() && bytes > MAX_RESPONSE_BYTES) {
                return Ok(Answer(MessageListAnswer { messages: shown }));
            }
            shown.push(entry);
        }
    }
    Ok(Answer(MessageListAnswer { messages: shown }))
}

pub(super) async fn events(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(asked): StrictQueryParams<TimelineQuery>,
) -> ApiResult<Answer<SessionEventListAnswer>> {
    let session = find_session(&sessions, &caller, &id).await?;
    let limit = asked.limit(200)?;
    let wanted = |entry: &SessionEventView| {
        asked.kind.as_deref().is_none_or(|kind| kind.is_empty() || entry.kind == kind)
    };
    let show = |event: &Event| shapes::timeline(&session, event).into_iter().filter(wanted).collect();
    let events = read(&sessions, &session, (asked.after.unwrap_or(0), limit), show).await?;
    Ok(Answer(SessionEventListAnswer { events }))
}

/// Reads until there are enough entries, or too much data for one answer. The entries of one event stay together,
/// because a reader continues by its number.
async fn read(
    sessions: &Sessions,
    session: &SessionRow,
    (after, limit): (u64, usize),
    show: impl Fn(&Event) -> Vec<SessionEventView>,
) -> ApiResult<Vec<SessionEventView>> {
    let (mut shown, mut bytes) = (Vec::new(), 0);
    let mut query = EventQuery { after: after.min(i64::MAX as u64), limit: PAGE, kinds: Vec::new() };
    loop {
        let events = sessions.events(session.no, &query).await?;
        let Some(last) = events.last() else { return Ok(shown) };
        query.after = last.seq;
        for event in &events {
            let entries = show(event);
            bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
            if !shown.is_empty() && (shown.len() + entries.len() > limit || bytes > MAX_RESPONSE_BYTES) {
                return Ok(shown);
            }
            shown.extend(entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_text_or_blocks() {
        for good in [json!("hi"), json!([{"type": "text", "text": "x"}])] {
            assert!(check_content(&good).is_ok(), "{good}");
        }
        for bad in [
            json!(""),
            json!(5),
            json!(null),
            json!([]),
            json!([{"type": "video"}]),
            json!(["x"]),
            json!("x".repeat(500_001)),
        ] {
            assert!(check_content(&bad).is_err());
        }
    }
}
