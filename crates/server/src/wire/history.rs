//! Messages and the timeline of a session, in the shapes of the Ash API.

use ash_model::{EventSeq, Problem, SessionId, TenantId, Timestamp, TokenUsage, TurnId, TurnOutcome};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// A message of the conversation.
#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MessageView {
    pub(crate) id: Uuid,
    pub(crate) session_id: SessionId,
    pub(crate) tenant_id: TenantId,
    /// `user` or `assistant`.
    pub(crate) role: &'static str,
    /// JSON as text: `{"type": "user", "content": …}`, or the agent's own message.
    pub(crate) content: String,
    /// Its number in the session.
    pub(crate) sequence: u64,
    #[schema(required)]
    pub(crate) turn: Option<TurnId>,
    pub(crate) created_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct MessageListAnswer {
    pub(crate) messages: Vec<MessageView>,
}

/// An entry of the timeline.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionEvent)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionEventView {
    pub(crate) id: Uuid,
    pub(crate) session_id: SessionId,
    pub(crate) tenant_id: TenantId,
    /// `text`, `tool_start`, `tool_result`, `reasoning`, `error`, `turn_complete` or `lifecycle`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// JSON as text. Of a `lifecycle` entry, `action` says what happened.
    pub(crate) data: String,
    /// The number of the event; the entries of one event have the same.
    pub(crate) sequence: u64,
    #[schema(required)]
    pub(crate) turn: Option<TurnId>,
    pub(crate) created_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct SessionEventListAnswer {
    pub(crate) events: Vec<SessionEventView>,
}

/// A frame of the session's stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SessionLogEvent)]
pub(crate) struct LogEntryView {
    /// The id of the frame: a stream continues after it.
    pub(crate) id: String,
    /// The name of the event.
    pub(crate) event: String,
    /// The data of the `StreamEvent` with this name. A text if the agent wrote a line that is no JSON.
    #[schema(value_type = Value)]
    pub(crate) data: Box<RawValue>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SessionLog)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionLogAnswer {
    pub(crate) events: Vec<LogEntryView>,
    /// `after` of the next page; null if there is none.
    #[schema(required)]
    pub(crate) next_after: Option<EventSeq>,
}

/// The whole result of a message.
#[derive(Serialize, ToSchema)]
#[schema(as = TurnResult)]
pub(crate) struct TurnAnswer {
    pub(crate) turn: TurnId,
    pub(crate) status: TurnOutcome,
    /// The agent's final text.
    pub(crate) text: String,
    /// What the agent says the turn used; null if it did not say.
    #[schema(required)]
    pub(crate) usage: Option<TokenUsage>,
    /// The checkpoint after the turn.
    #[schema(required)]
    pub(crate) checkpoint: Option<u64>,
    /// What went wrong.
    #[schema(required)]
    pub(crate) error: Option<Problem>,
}
