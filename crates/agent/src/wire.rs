//! The lines that cross stdin and stdout, in Claude Code's dialect, so that one client serves both agents.

use crate::conversation::{AssistantMessage, Content, Ending, Ran, ToolResult, Usage, User};
use crate::provider::Again;
use crate::transcript::Resumed;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Incoming {
    ControlRequest {
        request_id: Value,
        request: Control,
    },
    // Its `continue` is not read: the transcript knows better whether the turn was begun.
    /// With `steer`, for that turn if it still runs, and for no other.
    User {
        uuid: Option<String>,
        message: Said,
        head: Option<String>,
        steer: Option<String>,
    },
}

#[derive(Deserialize)]
pub(crate) struct Control {
    pub(crate) subtype: String,
    #[serde(rename = "systemPrompt")]
    pub(crate) system_prompt: Option<String>,
    #[serde(rename = "appendSystemPrompt")]
    pub(crate) append_system_prompt: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Said {
    pub(crate) content: Content,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Line<'a> {
    ControlResponse {
        response: Answer<'a>,
    },
    System(Notice<'a>),
    StreamEvent {
        session_id: &'a str,
        event: Event<'a>,
    },
    Assistant {
        uuid: &'a str,
        session_id: &'a str,
        message: &'a AssistantMessage,
    },
    User {
        uuid: &'a str,
        session_id: &'a str,
        message: ResultMessage<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_use_result: Option<&'a Ran>,
    },
    Result {
        uuid: &'a str,
        session_id: &'a str,
        user_message_uuid: &'a str,
        #[serde(flatten)]
        ending: &'a Ending,
        result: &'a str,
    },
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(crate) enum Answer<'a> {
    Success {
        request_id: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<Hello<'a>>,
    },
    Error {
        request_id: &'a Value,
        error: &'a str,
    },
}

#[derive(Serialize)]
pub(crate) struct Hello<'a> {
    pub(crate) agent: &'static str,
    pub(crate) version: &'static str,
    pub(crate) resumed: Option<&'a Resumed>,
}

#[derive(Serialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
pub(crate) enum Notice<'a> {
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
    /// A message was heard in the turn that runs.
    Steered {
        session_id: &'a str,
        uuid: &'a str,
        turn: &'a str,
    },
    /// The model is asked again. Text that came since the last message is void.
    ApiRetry {
        session_id: &'a str,
        uuid: &'a str,
        #[serde(flatten)]
        retry: Retry,
    },
    /// What was said long ago is being summed up.
    Status {
        session_id: &'a str,
        uuid: &'a str,
        status: &'static str,
        tokens: u64,
    },
    /// It is: the summary stands for it from here on.
    CompactBoundary {
        session_id: &'a str,
        uuid: &'a str,
        compact_metadata: CompactMetadata,
        summary: &'a str,
        /// Of the request for it, which is in no result.
        usage: &'a Usage,
    },
}

#[derive(Serialize)]
pub(crate) struct CompactMetadata {
    pub(crate) trigger: &'static str,
    pub(crate) pre_tokens: u64,
    pub(crate) post_tokens: u64,
}

#[derive(Serialize)]
pub(crate) struct Retry {
    attempt: u32,
    max_retries: u32,
    retry_delay_ms: u64,
    error_status: Option<u16>,
    error: &'static str,
}

impl From<&Again> for Retry {
    fn from(again: &Again) -> Retry {
        Retry {
            attempt: again.attempt,
            max_retries: again.most - 1,
            retry_delay_ms: u64::try_from(again.delay.as_millis()).unwrap_or(u64::MAX),
            error_status: again.status,
            error: again.kind,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    ContentBlockDelta { index: usize, delta: Delta<'a> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Delta<'a> {
    TextDelta { text: &'a str },
}

#[derive(Serialize)]
pub(crate) struct ResultMessage<'a> {
    role: User,
    content: [ResultBlock<'a>; 1],
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResultBlock<'a> {
    ToolResult { tool_use_id: &'a str, content: &'a str, is_error: bool },
}

impl<'a> From<&'a ToolResult> for ResultMessage<'a> {
    fn from(result: &'a ToolResult) -> ResultMessage<'a> {
        let ToolResult { tool_use_id, content, is_error, tool_use_result: _ } = result;
        let block = ResultBlock::ToolResult { tool_use_id, content, is_error: *is_error };
        ResultMessage { role: User::User, content: [block] }
    }
}
