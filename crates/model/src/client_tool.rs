//! Tools that the clients of a session execute: their declaration, the agent's calls, and the answers. The JSON is stored
//! with the facts: see `docs/formats.md`.

use crate::{Timestamp, ToolRequestId, TurnId, VerdictSource};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A tool that a client declares and executes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientTool {
    /// Letters, digits, `-` and `_`.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// What the tool does, for the model.
    #[serde(default)]
    #[schema(max_length = 10_000)]
    pub description: String,
    /// The JSON Schema of the input: an object.
    #[serde(default = "any_object")]
    #[schema(value_type = std::collections::BTreeMap<String, Value>)]
    pub input_schema: Value,
}

fn any_object() -> Value {
    serde_json::json!({ "type": "object" })
}

/// The agent calls a tool of the client and waits for the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolRequest {
    /// The id that clients answer.
    pub id: ToolRequestId,
    /// The turn of the call, which ends with it; `None`: the agent calls outside of a turn.
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
    /// When the call expires; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// What happens when it expires.
    #[serde(default)]
    pub on_timeout: ToolTimeoutPolicy,
}

/// What happens to a call that no client answers in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolTimeoutPolicy {
    /// The agent gets an error as the result.
    #[default]
    Fail,
    /// The turn is interrupted.
    Interrupt,
}

/// What a client tool returned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ToolOutput {
    /// The result: a text, or JSON that the agent gets as text.
    Result(Value),
    /// Why there is no result, for the model.
    Error(String),
}

impl ToolOutput {
    /// The text that the agent gets.
    pub fn text(&self) -> String {
        match self {
            ToolOutput::Result(Value::String(text)) | ToolOutput::Error(text) => text.clone(),
            ToolOutput::Result(value) => value.to_string(),
        }
    }

    /// About how many bytes it holds.
    pub fn size(&self) -> usize {
        match self {
            ToolOutput::Result(Value::String(text)) | ToolOutput::Error(text) => text.len(),
            ToolOutput::Result(value) => value.to_string().len(),
        }
    }

    /// Whether the agent gets it as an error.
    pub fn is_error(&self) -> bool {
        matches!(self, ToolOutput::Error(_))
    }
}

/// A call is closed. If the agent gets the output now, that is input number `input`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnswer {
    /// The call.
    pub id: ToolRequestId,
    /// The turn of the call, if it has one.
    pub turn: Option<TurnId>,
    /// `result` or `error`; neither: the call was withdrawn.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ToolOutput>,
    /// Where the answer came from.
    pub by: VerdictSource,
    /// `None`: no agent waits for it now. An agent that makes the call again gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
}

/// An agent that was started again repeats a call. It is the same call, under another name of the agent's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolRepeat {
    /// The call.
    pub id: ToolRequestId,
    /// The turn of the call, if it has one.
    pub turn: Option<TurnId>,
    /// The agent's new name for the request.
    pub request: String,
    /// The number of the input that carries the output, if a client has answered already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use uuid::Uuid;

    fn answer(output: Option<ToolOutput>) -> Value {
        let (id, turn) = (ToolRequestId(Uuid::from_u128(1)), Some(TurnId(Uuid::from_u128(2))));
        let answer = ToolAnswer { id, turn, output, by: VerdictSource::Client, input: None };
        let json = serde_json::to_value(&answer).expect("plain data");
        assert_eq!(serde_json::from_value::<ToolAnswer>(json.clone()).expect("its own JSON"), answer);
        json
    }

    #[test]
    fn an_answer_is_a_result_or_an_error_or_neither() {
        assert_eq!(answer(Some(ToolOutput::Result(json!({"a": 1}))))["result"], json!({"a": 1}));
        assert_eq!(answer(Some(ToolOutput::Result(Value::Null)))["result"], Value::Null);
        assert_eq!(answer(Some(ToolOutput::Error("no".into())))["error"], "no");
        let withdrawn = answer(None);
        assert_eq!((withdrawn.get("result"), withdrawn.get("error")), (None, None));
    }

    #[test]
    fn an_agent_gets_a_text_as_it_is_and_everything_else_as_json() {
        assert_eq!(ToolOutput::Result(json!("as it is")).text(), "as it is");
        assert_eq!(ToolOutput::Result(json!({"b": [1]})).text(), r#"{"b":[1]}"#);
        assert_eq!(ToolOutput::Error("no".into()).text(), "no");
    }

    #[test]
    fn a_tool_without_a_schema_takes_any_object_and_a_misspelt_field_is_refused() {
        let tool: ClientTool = serde_json::from_value(json!({"name": "t"})).expect("a tool");
        assert_eq!(tool.input_schema, json!({"type": "object"}));
        assert!(serde_json::from_value::<ClientTool>(json!({"name": "t", "inputShema": {}})).is_err());
    }
}
