//! Permission requests and questions of an agent. The JSON is stored with the facts: see `docs/formats.md`.

use crate::{PermissionId, Timestamp, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The agent wants to call a tool and waits for a permission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// The id that clients answer.
    pub id: PermissionId,
    /// `None`: the agent asks outside of a turn.
    pub turn: Option<TurnId>,
    /// The agent's own name for the request.
    pub request: String,
    /// The tool's name.
    pub tool: String,
    /// The input for the tool.
    pub input: Value,
    /// The id of the call in the agent's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// Permission rules that the agent suggests, so that it does not ask again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<Value>,
    /// The call is a question to a person: it needs an answer, not only a permission.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub question: bool,
    /// When the request expires.
    pub expires_at: Timestamp,
    /// What happens when it expires.
    pub on_timeout: PermissionTimeoutPolicy,
}

/// A call from an earlier attempt of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallRecord {
    /// The id of the call in the agent's message.
    pub id: String,
    /// The tool's name.
    pub tool: String,
    /// The outcome of the call.
    #[serde(rename = "how")]
    pub outcome: ToolCallOutcome,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallOutcome {
    /// The call was waiting for a permission.
    NotStarted,
    /// The call may have run, fully, in part or not at all: the agent learns this, and does not repeat it.
    Unknown,
    /// Its result is in the log.
    Done,
}

/// What happens to a request that no client answers in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionTimeoutPolicy {
    /// The agent may not make the call.
    #[default]
    Deny,
    /// The agent may make the call.
    Allow,
    /// The turn is interrupted.
    Interrupt,
}

/// The answer to a permission request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "behavior", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum PermissionVerdict {
    /// The agent may make the call, or gets its answers.
    Allow {
        /// A replacement for the tool's input.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        updated_input: Option<Value>,
        /// For a question: the chosen options, by the text of each question.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        answers: BTreeMap<String, String>,
        /// Which of the agent's suggested rules apply from now on, so that it does not ask again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        updated_permissions: Vec<Value>,
    },
    /// The agent may not make the call.
    Deny {
        /// The text that the agent gets instead of a result.
        message: String,
    },
}

impl PermissionVerdict {
    /// Allows the call unchanged.
    pub fn allow() -> PermissionVerdict {
        PermissionVerdict::Allow {
            updated_input: None,
            answers: BTreeMap::new(),
            updated_permissions: Vec::new(),
        }
    }

    /// Denies the call, with a text for the agent.
    pub fn deny(message: &str) -> PermissionVerdict {
        PermissionVerdict::Deny { message: message.to_owned() }
    }
}

/// What closed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictSource {
    /// A client answered.
    Client,
    /// The request timed out.
    Policy,
    /// The agent does not wait for an answer any more.
    Cancelled,
}

/// A setting that a running agent can change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum LiveSetting {
    /// This model.
    Model(String),
    /// This permission mode, in the agent's own terms.
    PermissionMode(String),
}
