//! Calls of the client's tools, and the answers to them.

use super::extract::{
    JsonBody, NoQueryParams, PathParam, StrictQueryParams, ToolCallPathParams, bad_body, check_max_chars,
    check_max_size, find_session,
};
use crate::{
    app::AppState,
    auth::Caller,
    field_coercion,
    openapi::Answer,
    problem::{ApiProblem, ApiResult},
    wire::tool::{ToolAnswerReceipt, ToolListAnswer, WaitingToolCall},
};
use ash_model::{ClientTool, FailureKind, ToolOutput};
use ash_session::{AuditSubject, NewAuditEntry, Sessions};
use ash_store::AuditAction;
use axum::extract::State;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeSet;
use utoipa::ToSchema;

const MAX_TOOLS: usize = 64;
const MAX_NAME_CHARS: usize = 64;
const MAX_DESCRIPTION_CHARS: usize = 10_000;
/// Of all tools of a session, as JSON: the agent reads them at every start.
const MAX_TOOLS_BYTES: usize = 256 << 10;

pub(super) async fn list(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    _: StrictQueryParams<NoQueryParams>,
) -> ApiResult<Answer<ToolListAnswer>> {
    let found = find_session(&sessions, &caller, &id).await?;
    let open = sessions.open_tool_calls(&found).await?;
    let tools = found.options.client_tools.clone().unwrap_or_default();
    Ok(Answer(ToolListAnswer { tools, calls: open.iter().map(WaitingToolCall::of).collect() }))
}

pub(super) async fn answer(
    State(app): State<AppState>,
    caller: Caller,
    asked: ToolCallPathParams,
    body: JsonBody<ToolOutputRequest>,
) -> ApiResult<Answer<ToolAnswerReceipt>> {
    let found = find_session(&app.sessions, &caller, &asked.id).await?;
    let id = asked.call()?;
    let output = body.value.output()?;
    let detail = Some(format!("{} {id}", if output.is_error() { "error" } else { "result" }));
    let (action, subject) = (AuditAction::ToolAnswered, AuditSubject::Session(&found));
    app.audit.record(NewAuditEntry { actor: caller.audit_actor(), action, subject, detail }).await?;
    app.sessions.answer_tool(found.no, id, output).await?;
    Ok(Answer(ToolAnswerReceipt { id, answered: true }))
}

/// What the tool returned: either of the two.
#[derive(Deserialize, ToSchema)]
pub(super) struct ToolOutputRequest {
    /// The result: a text, or JSON that the agent gets as text. Null is a result.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Value>)]
    result: Option<Value>,
    /// Why there is no result, for the model.
    error: Option<String>,
}

/// A null that the caller sent, which is not the same as nothing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl ToolOutputRequest {
    fn output(self) -> ApiResult<ToolOutput> {
        match (self.result, self.error) {
            (Some(result), None) => Ok(ToolOutput::Result(result)),
            (None | Some(Value::Null), Some(error)) => Ok(ToolOutput::Error(error)),
            (Some(_), Some(_)) | (None, None) => {
                let error = "an answer has either `result` or `error`";
                Err(ApiProblem::new(FailureKind::Unprocessable, "invalid_answer", error))
            }
        }
    }
}

/// Refuses tools that an agent or a model service would refuse.
pub(super) fn check(tools: &[ClientTool]) -> ApiResult<()> {
    check_max_size("tools", (tools.len(), "tools"), MAX_TOOLS)?;
    let bytes = serde_json::to_vec(tools).map_or(0, |json| json.len());
    check_max_size("tools", (bytes, "bytes"), MAX_TOOLS_BYTES)?;
    let mut names = BTreeSet::new();
    for ClientTool { name, description, input_schema } in tools {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.chars().all(plain) {
            let error = format!(
                "tools: a name has 1 to {MAX_NAME_CHARS} letters, digits, `-` or `_`, and {name:?} does not"
            );
            return Err(ApiProblem::invalid("invalid_body", error));
        }
        if !names.insert(name) {
            return Err(ApiProblem::invalid("invalid_body", format!("tools: two have the name {name:?}")));
        }
        check_max_chars("tools: description", Some(description), MAX_DESCRIPTION_CHARS)?;
        let is_object = input_schema.get("type").is_some_and(|kind| kind == "object");
        if !is_object {
            let error =
                format!("tools: the inputSchema of {name:?} must be a JSON Schema of type \"object\"");
            return Err(ApiProblem::invalid("invalid_body", error));
        }
    }
    Ok(())
}

/// The declared tools of a body.
pub(super) fn parse(given: Option<Vec<Value>>) -> ApiResult<Option<Vec<ClientTool>>> {
    let Some(given) = given else { return Ok(None) };
    let tools = given.into_iter().map(field_coercion::as_written);
    let tools: Vec<ClientTool> =
        tools.collect::<Result<_, _>>().map_err(|error| bad_body(error.within("tools")))?;
    check(&tools)?;
    Ok(Some(tools))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn output(body: Value) -> Option<ToolOutput> {
        serde_json::from_value::<ToolOutputRequest>(body).ok()?.output().ok()
    }

    #[test]
    fn an_answer_is_a_result_or_an_error() {
        assert_eq!(output(json!({"result": {"a": 1}})), Some(ToolOutput::Result(json!({"a": 1}))));
        assert_eq!(output(json!({"result": null})), Some(ToolOutput::Result(Value::Null)));
        assert_eq!(output(json!({"error": "no"})), Some(ToolOutput::Error("no".into())));
        assert_eq!(output(json!({"result": null, "error": "no"})), Some(ToolOutput::Error("no".into())));
        assert_eq!(output(json!({"result": 1, "error": "no"})), None);
        assert_eq!(output(json!({})), None);
    }

    #[test]
    fn tools_that_no_agent_could_offer_are_refused() {
        let tool = |name: &str| json!({"name": name, "description": "d", "inputSchema": {"type": "object"}});
        let accepts = |tools: Vec<Value>| parse(Some(tools)).is_ok();
        assert!(accepts(vec![tool("look_up-2"), tool("other")]));
        assert!(accepts(vec![json!({"name": "plain"})]), "a tool may take any object");
        for name in ["", "two words", "ä", "a.b", &"x".repeat(65)] {
            assert!(!accepts(vec![tool(name)]), "{name:?}");
        }
        assert!(!accepts(vec![tool("twice"), tool("twice")]));
        assert!(!accepts(vec![json!({"name": "t", "inputSchema": {"type": "string"}})]));
        assert!(!accepts(vec![json!({"name": "t", "inputSchma": {}})]), "misspelt");
        assert!(!accepts((0..65).map(|n| tool(&format!("t{n}"))).collect()));
        assert!(!accepts(vec![json!({"name": "t", "description": "x".repeat(10_001)})]));
    }
}
