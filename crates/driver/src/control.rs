//! The control lines of the newline-JSON dialect: permission requests, and settings that change while the agent runs.

use crate::AgentEvent;
use ash_model::{LiveSetting, PermissionVerdict, ToolOutput, tool_name};
use serde_json::{Value, json};

/// The tool by which Claude Code asks a person a question.
const QUESTION: &str = "AskUserQuestion";
const SETTING: &str = "set-";

/// The built-in agent's call of a client's tool.
pub(crate) fn tool_request(value: &Value) -> Option<AgentEvent> {
    let request = value.get("request")?;
    if request.get("subtype")?.as_str()? != "client_tool" {
        return None;
    }
    Some(AgentEvent::ToolRequested {
        request: value.get("request_id")?.as_str()?.to_owned(),
        tool: tool_name(request.get("tool_name")?.as_str()?)?,
        input: request.get("input").cloned().unwrap_or_else(|| json!({})),
        tool_use_id: request.get("tool_use_id").and_then(Value::as_str).map(str::to_owned),
    })
}

/// What the built-in agent gets for it.
pub(crate) fn tool_output(request: &str, output: &ToolOutput) -> Value {
    let content = json!({ "content": output.text(), "is_error": output.is_error() });
    let response = json!({ "subtype": "success", "request_id": request, "response": content });
    json!({ "type": "control_response", "response": response })
}

/// A permission request from the agent.
pub(crate) fn permission_request(value: &Value) -> Option<AgentEvent> {
    let request = value.get("request")?;
    if request.get("subtype")?.as_str()? != "can_use_tool" {
        return None;
    }
    let text = |name: &str| request.get(name).and_then(Value::as_str).map(str::to_owned);
    let tool = tool_name(request.get("tool_name")?.as_str()?)?;
    Some(AgentEvent::PermissionRequested {
        request: value.get("request_id")?.as_str()?.to_owned(),
        question: tool == QUESTION,
        tool,
        input: request.get("input").cloned().unwrap_or_else(|| json!({})),
        tool_use_id: text("tool_use_id"),
        suggestions: request
            .get("permission_suggestions")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
    })
}

pub(crate) fn withdrawn(value: &Value) -> Option<AgentEvent> {
    let request = value.get("request_id")?.as_str()?.to_owned();
    Some(AgentEvent::RequestWithdrawn { request })
}

/// `input` is the tool input of the request: the agent expects it back, changed or not.
pub(crate) fn answer(request: &str, input: &Value, verdict: &PermissionVerdict) -> Value {
    let decided = match verdict {
        PermissionVerdict::Allow { updated_input, answers, updated_permissions } => {
            let mut input = updated_input.as_ref().unwrap_or(input).clone();
            if let (false, Some(input)) = (answers.is_empty(), input.as_object_mut()) {
                input.insert("answers".to_owned(), json!(answers));
            }
            let mut decided = json!({ "behavior": "allow", "updatedInput": input });
            if !updated_permissions.is_empty() {
                decided["updatedPermissions"] = json!(updated_permissions);
            }
            decided
        }
        PermissionVerdict::Deny { message } => json!({ "behavior": "deny", "message": message }),
    };
    let response = json!({ "subtype": "success", "request_id": request, "response": decided });
    json!({ "type": "control_response", "response": response })
}

/// The request is named after the number of the input, so that its answer is distinct from other answers.
pub(crate) fn set(setting: &LiveSetting, input: u64) -> Value {
    let request = match setting {
        LiveSetting::Model(model) => json!({ "subtype": "set_model", "model": model }),
        LiveSetting::PermissionMode(mode) => json!({ "subtype": "set_permission_mode", "mode": mode }),
    };
    json!({ "type": "control_request", "request_id": format!("{SETTING}{input}"), "request": request })
}

/// Whether the agent accepted the setting.
pub(crate) fn setting_answer(response: &Value) -> Option<AgentEvent> {
    let input = response.get("request_id")?.as_str()?.strip_prefix(SETTING)?.parse().ok()?;
    let refused = (response.get("subtype").and_then(Value::as_str) != Some("success")).then(|| {
        response.get("error").and_then(Value::as_str).unwrap_or("the agent did not say why").to_owned()
    });
    Some(AgentEvent::SettingAnswered { input, refused })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgentInput, stream_json};

    fn hear(line: Value) -> Vec<AgentEvent> {
        stream_json::hear(line.to_string().as_bytes())
    }

    fn tell(say: &AgentInput) -> Value {
        serde_json::from_slice(&stream_json::tell(say)).expect("a line of JSON")
    }

    fn ask(tool: &str) -> Value {
        json!({"type": "control_request", "request_id": "r", "request": {"subtype": "can_use_tool",
            "tool_name": tool, "input": {"command": "ls"}, "tool_use_id": "t", "permission_suggestions": [{"a": 1}]}})
    }

    #[test]
    fn a_permission_request_is_parsed_with_all_its_fields() {
        let asked = |tool: &str, question| AgentEvent::PermissionRequested {
            request: "r".into(),
            tool: tool.into(),
            input: json!({"command": "ls"}),
            tool_use_id: Some("t".into()),
            suggestions: vec![json!({"a": 1})],
            question,
        };
        assert_eq!(hear(ask("Bash")), [asked("Bash", false)]);
        assert_eq!(hear(ask(QUESTION)), [asked(QUESTION, true)]);
        let cancelled = json!({"type": "control_cancel_request", "request_id": "r"});
        assert_eq!(hear(cancelled), [AgentEvent::RequestWithdrawn { request: "r".into() }]);
    }

    #[test]
    fn a_tools_name_is_letters_digits_dashes_and_underscores() {
        let name = |given: &str| match hear(ask(given)).pop() {
            Some(AgentEvent::PermissionRequested { tool, .. }) => Some(tool),
            _ => None,
        };
        assert_eq!(name("mcp__git-hub__list_9").as_deref(), Some("mcp__git-hub__list_9"));
        assert_eq!(name("Read\u{202e}\x1b[2J(ok)").as_deref(), Some("Read2Jok"));
        assert_eq!(name(&"x".repeat(500)), Some("x".repeat(128)));
        assert_eq!(name("\u{202e}"), None);
    }

    #[test]
    fn control_lines_without_a_decision_for_us_are_no_request() {
        for request in
            [json!(null), json!({}), json!({"subtype": "hook_callback"}), json!({"subtype": "can_use_tool"})]
        {
            let line = json!({"type": "control_request", "request_id": "r", "request": request});
            assert_eq!(hear(line), []);
        }
        let nameless =
            json!({"type": "control_request", "request": {"subtype": "can_use_tool", "tool_name": "x"}});
        assert_eq!(hear(nameless), []);
        assert_eq!(hear(json!({"type": "control_cancel_request"})), []);
    }

    #[test]
    fn an_answer_returns_the_input_or_its_replacement() {
        let said = |verdict| {
            let say = AgentInput::Answer { request: "r".into(), input: json!({"command": "ls"}), verdict };
            let line = tell(&say);
            assert_eq!(
                (&line["type"], &line["response"]["request_id"]),
                (&json!("control_response"), &json!("r"))
            );
            assert_eq!(line["response"]["subtype"], "success");
            line["response"]["response"].clone()
        };
        let answers = || [("Which?".to_owned(), "A".to_owned())].into();
        assert_eq!(
            said(PermissionVerdict::allow()),
            json!({"behavior": "allow", "updatedInput": {"command": "ls"}})
        );
        let other = PermissionVerdict::Allow {
            updated_input: Some(json!({"command": "pwd"})),
            answers: Default::default(),
            updated_permissions: Vec::new(),
        };
        assert_eq!(said(other), json!({"behavior": "allow", "updatedInput": {"command": "pwd"}}));
        let chosen = PermissionVerdict::Allow {
            updated_input: None,
            answers: answers(),
            updated_permissions: Vec::new(),
        };
        let whole = json!({"command": "ls", "answers": {"Which?": "A"}});
        assert_eq!(said(chosen), json!({"behavior": "allow", "updatedInput": whole}));
        let rules = vec![json!({"type": "addRules", "behavior": "allow"})];
        let always = PermissionVerdict::Allow {
            updated_input: None,
            answers: Default::default(),
            updated_permissions: rules.clone(),
        };
        let expected =
            json!({"behavior": "allow", "updatedInput": {"command": "ls"}, "updatedPermissions": rules});
        assert_eq!(said(always), expected);
        assert_eq!(said(PermissionVerdict::deny("no")), json!({"behavior": "deny", "message": "no"}));
    }

    #[test]
    fn a_call_of_a_clients_tool_and_its_output_carry_the_same_name() {
        let call = json!({"type": "control_request", "request_id": "call-t", "request": {"subtype": "client_tool",
            "tool_name": "lookup", "input": {"q": 1}, "tool_use_id": "t"}});
        let requested = AgentEvent::ToolRequested {
            request: "call-t".into(),
            tool: "lookup".into(),
            input: json!({"q": 1}),
            tool_use_id: Some("t".into()),
        };
        assert_eq!(hear(call), [requested]);
        let output = ToolOutput::Result(json!({"found": true}));
        let line = tell(&AgentInput::ToolOutput { request: "call-t".into(), output });
        assert_eq!(line["response"]["request_id"], "call-t");
        assert_eq!(line["response"]["response"], json!({"content": r#"{"found":true}"#, "is_error": false}));
    }

    #[test]
    fn a_setting_and_its_answer_carry_the_same_number() {
        let model = tell(&AgentInput::SetLiveSetting { setting: LiveSetting::Model("m".into()), input: 4 });
        assert_eq!(model["request"], json!({"subtype": "set_model", "model": "m"}));
        let mode = tell(&AgentInput::SetLiveSetting {
            setting: LiveSetting::PermissionMode("default".into()),
            input: 5,
        });
        assert_eq!(mode["request"], json!({"subtype": "set_permission_mode", "mode": "default"}));
        let answer = |response: Value| hear(json!({"type": "control_response", "response": response}));
        assert_eq!(
            answer(
                json!({"subtype": "success", "request_id": model["request_id"], "response": {"model": "m"}})
            ),
            [AgentEvent::SettingAnswered { input: 4, refused: None }]
        );
        assert_eq!(
            answer(json!({"subtype": "error", "request_id": mode["request_id"], "error": "no"})),
            [AgentEvent::SettingAnswered { input: 5, refused: Some("no".into()) }]
        );
        assert_eq!(answer(json!({"subtype": "success", "request_id": "interrupt-1"})), []);
    }
}
