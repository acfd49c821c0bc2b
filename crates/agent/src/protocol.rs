//! The lines on stdin and stdout, in Claude Code's dialect, so that one client serves both agents.

use crate::client_calls::ClientCallResult;
use crate::conversation::{
    ApiUsage, AssistantMessage, CommandOutput, PromptContent, ToolResult, TurnResult, UserRole,
};
use crate::provider::CallRetry;
use crate::transcript::ResumeReport;
use ash_model::ClientTool;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum HostMessage {
    ControlRequest {
        request_id: Value,
        request: ControlRequest,
    },
    ControlResponse {
        response: HostResponse,
    },
    // The agent ignores `continue`: the transcript knows whether the turn has begun.
    /// A message with `steer` is only for that turn, and only while it runs.
    User {
        uuid: Option<String>,
        message: HostMessageBody,
        head: Option<String>,
        steer: Option<String>,
    },
}

#[derive(Deserialize)]
pub(crate) struct ControlRequest {
    pub(crate) subtype: String,
    #[serde(rename = "systemPrompt")]
    pub(crate) system_prompt: Option<String>,
    #[serde(rename = "appendSystemPrompt")]
    pub(crate) append_system_prompt: Option<String>,
    /// The tools that the session's client executes.
    pub(crate) tools: Option<Vec<ClientTool>>,
}

/// The host's response to a request of the agent.
#[derive(Deserialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(crate) enum HostResponse {
    Success { request_id: String, response: ClientCallResult },
    Error { request_id: String, error: String },
}

#[derive(Deserialize)]
pub(crate) struct HostMessageBody {
    pub(crate) content: PromptContent,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum AgentOutputLine<'a> {
    ControlResponse {
        response: ControlResponse<'a>,
    },
    ControlRequest {
        request_id: &'a str,
        request: AgentRequest<'a>,
    },
    /// The agent does not wait for the response any more.
    ControlCancelRequest {
        request_id: &'a str,
    },
    System(SystemNotice<'a>),
    StreamEvent {
        session_id: &'a str,
        event: StreamEvent<'a>,
    },
    Assistant {
        uuid: &'a str,
        session_id: &'a str,
        message: &'a AssistantMessage,
    },
    User {
        uuid: &'a str,
        session_id: &'a str,
        message: ToolResultMessage<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_use_result: Option<&'a CommandOutput>,
    },
    Result {
        uuid: &'a str,
        session_id: &'a str,
        user_message_uuid: &'a str,
        #[serde(flatten)]
        ending: &'a TurnResult,
        result: &'a str,
    },
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(crate) enum ControlResponse<'a> {
    Success {
        request_id: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<InitializeResponse<'a>>,
    },
    Error {
        request_id: &'a Value,
        error: &'a str,
    },
}

/// A request of the agent to the host.
#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(crate) enum AgentRequest<'a> {
    /// The session's client shall execute this call.
    ClientTool { tool_name: &'a str, input: &'a Value, tool_use_id: &'a str },
}

#[derive(Serialize)]
pub(crate) struct InitializeResponse<'a> {
    pub(crate) agent: &'static str,
    pub(crate) version: &'static str,
    pub(crate) resumed: Option<&'a ResumeReport>,
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(crate) enum SystemNotice<'a> {
    Init {
        session_id: &'a str,
        model: &'a str,
        tools: &'a [&'a str],
        cwd: &'a str,
        turn: &'a str,
    },
    Error {
        session_id: &'a str,
        error: &'a str,
    },
    /// The running turn has received a steering message.
    Steered {
        session_id: &'a str,
        uuid: &'a str,
        turn: &'a str,
    },
    /// The agent repeats the call. Text since the last message is void.
    ApiRetry {
        session_id: &'a str,
        uuid: &'a str,
        #[serde(flatten)]
        retry: ApiRetryNotice,
    },
    /// The agent is summarizing old turns.
    Status {
        session_id: &'a str,
        uuid: &'a str,
        status: &'static str,
        tokens: u64,
    },
    /// The summary is complete and replaces the old turns from here on.
    CompactBoundary {
        session_id: &'a str,
        uuid: &'a str,
        compact_metadata: CompactMetadata,
        summary: &'a str,
        /// The usage of the summary request, which no result includes.
        usage: &'a ApiUsage,
    },
}

#[derive(Serialize)]
pub(crate) struct CompactMetadata {
    pub(crate) trigger: &'static str,
    pub(crate) pre_tokens: u64,
    pub(crate) post_tokens: u64,
}

#[derive(Serialize)]
pub(crate) struct ApiRetryNotice {
    attempt: u32,
    max_retries: u32,
    retry_delay_ms: u64,
    error_status: Option<u16>,
    error: &'static str,
}

impl From<&CallRetry> for ApiRetryNotice {
    fn from(again: &CallRetry) -> ApiRetryNotice {
        ApiRetryNotice {
            attempt: again.attempt,
            max_retries: again.max_attempts - 1,
            retry_delay_ms: u64::try_from(again.delay.as_millis()).unwrap_or(u64::MAX),
            error_status: again.status,
            error: again.kind,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum StreamEvent<'a> {
    ContentBlockDelta { index: usize, delta: StreamTextDelta<'a> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum StreamTextDelta<'a> {
    TextDelta { text: &'a str },
}

#[derive(Serialize)]
pub(crate) struct ToolResultMessage<'a> {
    role: UserRole,
    content: [ToolResultBlock<'a>; 1],
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ToolResultBlock<'a> {
    ToolResult { tool_use_id: &'a str, content: &'a str, is_error: bool },
}

impl<'a> From<&'a ToolResult> for ToolResultMessage<'a> {
    fn from(result: &'a ToolResult) -> ToolResultMessage<'a> {
        let ToolResult { tool_use_id, content, is_error, tool_use_result: _ } = result;
        let block = ToolResultBlock::ToolResult { tool_use_id, content, is_error: *is_error };
        ToolResultMessage { role: UserRole::User, content: [block] }
    }
}
