//! Tools of the client, the agent's calls of them, and the answers.

use ash_model::{
    ClientTool, Timestamp, ToolAnswer, ToolOutput, ToolRequest, ToolRequestId, TurnId, VerdictSource,
};
use ash_session::OpenToolCall;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// The agent waits for the output of a client's tool.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolCall)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolCallView {
    pub(crate) id: ToolRequestId,
    /// Null: the agent calls outside of a turn.
    #[schema(required)]
    pub(crate) turn: Option<TurnId>,
    /// The tool's name, as the client declared it.
    pub(crate) tool: String,
    /// The input for the tool.
    pub(crate) input: Value,
    /// The id of the call in the agent's message.
    #[schema(required)]
    pub(crate) tool_use_id: Option<String>,
    /// Null: the call does not expire.
    #[schema(required)]
    pub(crate) expires_at: Option<Timestamp>,
}

impl ToolCallView {
    pub(crate) fn of(asked: &ToolRequest) -> ToolCallView {
        ToolCallView {
            id: asked.id,
            turn: asked.turn,
            tool: asked.tool.clone(),
            input: asked.input.clone(),
            tool_use_id: asked.tool_use_id.clone(),
            expires_at: asked.expires_at,
        }
    }
}

/// A call that waits, and since when.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaitingToolCall {
    #[serde(flatten)]
    call: ToolCallView,
    requested_at: Timestamp,
}

impl WaitingToolCall {
    pub(crate) fn of(open: &OpenToolCall) -> WaitingToolCall {
        WaitingToolCall { call: ToolCallView::of(&open.asked), requested_at: open.requested_at }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ToolListAnswer {
    /// What the session's clients declared.
    pub(crate) tools: Vec<ClientTool>,
    /// The calls that wait for an answer, in the order in which they were made.
    pub(crate) calls: Vec<WaitingToolCall>,
}

/// A call is closed. It has a `result` or an `error`, or neither if it was withdrawn.
#[derive(Serialize, ToSchema)]
pub(crate) struct AnsweredToolCall {
    pub(crate) id: ToolRequestId,
    /// Null: the agent called outside of a turn.
    #[schema(required)]
    pub(crate) turn: Option<TurnId>,
    /// What the tool returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// Why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
    by: VerdictSource,
}

impl AnsweredToolCall {
    pub(crate) fn of(answer: &ToolAnswer) -> AnsweredToolCall {
        let (result, error) = match answer.output.clone() {
            Some(ToolOutput::Result(value)) => (Some(value), None),
            Some(ToolOutput::Error(error)) => (None, Some(error)),
            None => (None, None),
        };
        AnsweredToolCall { id: answer.id, turn: answer.turn, result, error, by: answer.by }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ToolAnswerReceipt {
    pub(crate) id: ToolRequestId,
    /// Always true: a call that takes no answer any more is refused.
    pub(crate) answered: bool,
}
