//! Leave that an agent asks for before it calls a tool, and questions that it asks. The JSON is stored with the
//! facts: see `docs/formats.md`.

use crate::{PermissionId, Timestamp, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The agent wants to call a tool and waits until somebody lets it, or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// The id under which it is answered.
    pub id: PermissionId,
    /// None: it works on something of its own.
    pub turn: Option<TurnId>,
    /// The agent's own name for the request.
    pub request: String,
    /// The tool's name.
    pub tool: String,
    /// What the tool is to be called with.
    pub input: Value,
    /// The id of the call in the agent's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// Rules that the agent proposes, so that it need not ask again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<Value>,
    /// The call is a question to a person: it is answered, not only allowed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub question: bool,
    /// After this nobody is waited for.
    pub expires_at: Timestamp,
    /// What happens when it expires.
    pub on_timeout: PermissionTimeoutPolicy,
}

/// A call that a turn had made before it was cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallRecord {
    /// The id of the call in the agent's message.
    pub id: String,
    /// The tool's name.
    pub tool: String,
    /// What became of it.
    #[serde(rename = "how")]
    pub outcome: ToolCallOutcome,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallOutcome {
    /// It waited for leave.
    NotStarted,
    /// It may have been made, or not, or in part: the agent is told so, and does not make it again.
    Unknown,
    /// Its result is in the log.
    Done,
}

/// What happens to a request that nobody answers in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionTimeoutPolicy {
    /// The agent may not make the call.
    #[default]
    Deny,
    /// The agent makes the call.
    Allow,
    /// The turn is stopped.
    Interrupt,
}

/// What the agent is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "behavior", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum PermissionVerdict {
    /// The agent makes the call, or has its answers.
    Allow {
        /// The call is made with this instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        updated_input: Option<Value>,
        /// To a question: what was chosen, by the words of each.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        answers: BTreeMap<String, String>,
        /// Those of the agent's suggestions that hold from now on, so that it need not ask again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        updated_permissions: Vec<Value>,
    },
    /// The agent does not make the call.
    Deny {
        /// What the agent is told instead of a result.
        message: String,
    },
}

impl PermissionVerdict {
    /// Makes the call as it was asked for.
    pub fn allow() -> PermissionVerdict {
        PermissionVerdict::Allow {
            updated_input: None,
            answers: BTreeMap::new(),
            updated_permissions: Vec::new(),
        }
    }

    /// Refuses the call, and tells the agent why.
    pub fn deny(message: &str) -> PermissionVerdict {
        PermissionVerdict::Deny { message: message.to_owned() }
    }
}

/// Where the end of a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictSource {
    /// A client answered.
    Client,
    /// Nobody answered in time.
    Policy,
    /// Nobody waits for an answer any more.
    Cancelled,
}

/// What a live agent goes on with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LiveSetting {
    /// This model.
    Model(String),
    /// This mode, in the agent's own words.
    PermissionMode(String),
}
