//! The newline-JSON dialect of Claude Code, which the built-in agent speaks as well.

use crate::{AgentEvent, AgentInput, ResumedConversation, control, system_reminder, tool_server};
use ash_model::{Problem, TokenUsage, TurnOutcome, shown_tool_name};
use serde::Deserialize;
use serde_json::{Value, json};

/// Long enough to recognize the line, short enough to store.
const MAX_GARBLED_BYTES: usize = 2048;

pub(crate) fn tell(say: &AgentInput) -> Vec<u8> {
    let line = match say {
        // Not on the command line: it may be longer than an argument, and other processes must not read it.
        AgentInput::Hello { system_prompt, append_system_prompt, client_tools } => {
            let mut hello = request("hello", "initialize");
            if let Some(prompt) = system_prompt {
                hello["request"]["systemPrompt"] = json!(prompt);
            }
            if let Some(prompt) = append_system_prompt {
                hello["request"]["appendSystemPrompt"] = json!(prompt);
            }
            if !client_tools.is_empty() {
                hello["request"]["tools"] = json!(client_tools);
            }
            hello
        }
        AgentInput::Prompt { turn, head, content, ask: _, attempt } => {
            let mut line = json!({
                "type": "user", "uuid": turn, "continue": *attempt > 1,
                "message": { "role": "user", "content": content },
            });
            if let Some(head) = head {
                // The agent adds the marks itself.
                line["head"] = json!(system_reminder::without_marks(head));
            }
            line
        }
        AgentInput::Steer { turn, into, content } => json!({
            "type": "user", "uuid": turn, "steer": into, "message": { "role": "user", "content": content },
        }),
        AgentInput::Interrupt { turn } => request(&format!("interrupt-{turn}"), "interrupt"),
        AgentInput::Answer { request, input, verdict } => control::answer(request, input, verdict),
        AgentInput::ToolOutput { request, output } => control::tool_output(request, output),
        AgentInput::ToolServerReply { request, message, tools } => {
            tool_server::reply_line(request, &tool_server::reply(message, tools))
        }
        AgentInput::SetLiveSetting { setting, input } => control::set(setting, *input),
    };
    self::line(&line)
}

pub(crate) fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

fn request(id: &str, subtype: &str) -> Value {
    json!({ "type": "control_request", "request_id": id, "request": { "subtype": subtype } })
}

pub(crate) fn hear(line: &[u8]) -> Vec<AgentEvent> {
    let Some(text) = one_line(line) else { return vec![garbled(line)] };
    let Ok(value) = serde_json::from_str::<Value>(&text) else { return vec![garbled(line)] };
    match value.get("type").and_then(Value::as_str) {
        Some("control_response") => {
            ready(&value).or_else(|| control::setting_answer(&value["response"])).into_iter().collect()
        }
        Some("control_request") => match control::permission_request(&value) {
            Some(asked) => vec![asked],
            None => control::tool_request(&value).into_iter().collect(),
        },
        Some("control_cancel_request") => control::withdrawn(&value).into_iter().collect(),
        Some("keep_alive") => Vec::new(),
        Some("stream_event") => vec![AgentEvent::Delta { line: text }],
        Some("result") => {
            let rested = turn_ended(&value);
            [AgentEvent::Message { line: text }].into_iter().chain(rested).collect()
        }
        Some(_) => vec![AgentEvent::Message { line: text }],
        None => vec![garbled(line)],
    }
}

/// A carriage return outside a string is legal JSON but would end a line of an event stream.
fn one_line(line: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(line).ok()?;
    if text.contains('\r') {
        return serde_json::from_str::<Value>(text).ok().map(|value| value.to_string());
    }
    Some(text.to_owned())
}

/// Keeps the text, marked as invalid, so that no output is lost silently.
fn garbled(line: &[u8]) -> AgentEvent {
    let shown = String::from_utf8_lossy(&line[..line.len().min(MAX_GARBLED_BYTES)]);
    let line = json!({ "type": "system", "subtype": "garbled", "bytes": line.len(), "text": shown });
    AgentEvent::Message { line: line.to_string() }
}

/// The longest id, in bytes.
const MAX_NAME_BYTES: usize = 256;

pub(crate) fn calls(line: &str) -> Vec<(String, Option<String>)> {
    if !line.contains("\"tool_") {
        return Vec::new();
    }
    let Ok(value) = serde_json::from_str::<Value>(line) else { return Vec::new() };
    let text = |block: &Value, name: &str| block.get(name).and_then(Value::as_str).map(str::to_owned);
    let id = |block: &Value, name: &str| text(block, name).filter(|id| id.len() <= MAX_NAME_BYTES);
    let blocks = value["message"]["content"].as_array().into_iter().flatten();
    let calls = blocks.filter_map(|block| match block["type"].as_str() {
        Some("tool_use") => Some((id(block, "id")?, Some(shown_tool_name(&text(block, "name")?)))),
        Some("tool_result") => Some((id(block, "tool_use_id")?, None)),
        _ => None,
    });
    calls.collect()
}

fn ready(value: &Value) -> Option<AgentEvent> {
    let response = value.get("response")?;
    if response.get("request_id")?.as_str()? != "hello" {
        return None;
    }
    let resumed = response.get("response").and_then(|r| r.get("resumed")).filter(|r| !r.is_null());
    let number = |r: &Value, name: &str| r.get(name).and_then(Value::as_u64).unwrap_or(0);
    let resumed = resumed.map(|r| ResumedConversation {
        is_found: r.get("found").and_then(Value::as_bool).unwrap_or(false),
        turns: number(r, "turns"),
        damaged: number(r, "damaged"),
    });
    Some(AgentEvent::Ready { resumed })
}

#[derive(Deserialize)]
struct ResultLine {
    #[serde(default)]
    is_error: bool,
    #[serde(default)]
    subtype: String,
    #[serde(default)]
    terminal_reason: String,
    #[serde(default)]
    result: String,
}

/// Both drivers' agents write this line after a compaction.
pub(crate) fn compacted(line: &str) -> Option<AgentEvent> {
    let value: Value = line.contains("\"compact_boundary\"").then(|| serde_json::from_str(line).ok())??;
    let is_boundary = value["type"] == "system" && value["subtype"] == "compact_boundary";
    is_boundary.then_some(AgentEvent::MemoryCompacted)
}

fn turn_ended(value: &Value) -> Option<AgentEvent> {
    let turn = serde_json::from_value(value.get("user_message_uuid")?.clone()).ok()?;
    let (how, text, usage, problem) = parse_result(value)?;
    Some(AgentEvent::TurnEnded { turn, how, text, usage, problem })
}

/// Whether every count is one. An agent's own counts are; other lines are forged, and end nothing.
fn are_counts(usage: &Value) -> bool {
    let names = ["input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    usage.is_object() && names.iter().all(|name| usage.get(name).is_none_or(Value::is_u64))
}

/// How a turn ended, according to its result line.
pub(crate) fn parse_result(value: &Value) -> Option<(TurnOutcome, String, TokenUsage, Option<Problem>)> {
    let result = ResultLine::deserialize(value).ok().filter(|_| value.get("usage").is_none_or(are_counts))?;
    let how = match (result.is_error, result.terminal_reason.starts_with("aborted")) {
        (_, true) => TurnOutcome::Interrupted,
        (true, false) => TurnOutcome::Failed,
        (false, false) => TurnOutcome::Done,
    };
    let problem = (how == TurnOutcome::Failed).then(|| {
        let what = if result.result.is_empty() { &result.subtype } else { &result.result };
        // The agent's own text says which service refused, and what to do.
        match result.terminal_reason.as_str() {
            "api_error" | "invalid_request" => Problem::new("model_error", what.clone()),
            "context_full" => Problem::new("context_full", what.clone()),
            _ => Problem::new("agent_error", format!("The agent gave up: {what}")),
        }
    });
    Some((how, result.result, TokenUsage::of_messages_api(&value["usage"]), problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::TurnId;

    #[test]
    fn a_line_that_is_no_message_is_kept_as_garbled() {
        for line in [&b"\xff\xfe"[..], b"not json", b"{\"a\":", b"[]", b"{}", b"\"x\""] {
            let heard = hear(line);
            let [AgentEvent::Message { line }] = heard.as_slice() else { panic!("{heard:?}") };
            assert!(line.contains("garbled"), "{line}");
        }
    }

    #[test]
    fn a_result_is_a_message_and_the_end_of_its_turn() {
        let turn = TurnId(uuid::Uuid::from_u128(9));
        let line = json!({"type": "result", "user_message_uuid": turn, "result": "ok", "usage": {"input_tokens": 3}}).to_string();
        let usage = TokenUsage { input_tokens: 3, ..TokenUsage::default() };
        let rested =
            AgentEvent::TurnEnded { turn, how: TurnOutcome::Done, text: "ok".into(), usage, problem: None };
        assert_eq!(hear(line.as_bytes()), vec![AgentEvent::Message { line }, rested]);
    }

    #[test]
    fn a_result_without_a_turn_ends_nothing() {
        let heard = hear(br#"{"type":"result","result":"x"}"#);
        assert!(matches!(heard.as_slice(), [AgentEvent::Message { .. }]), "{heard:?}");
    }

    #[test]
    fn calls_are_known_by_names_that_cannot_mislead_a_reader() {
        let call = |name: &str| json!({"type": "tool_use", "id": "t", "name": name, "input": {}});
        let named = |name: &str| {
            calls(&json!({"type": "assistant", "message": {"content": [call(name)]}}).to_string())
        };
        let known = |name: String| vec![("t".to_owned(), Some(name))];
        assert_eq!(named("mcp__git-hub__list_9"), known("mcp__git-hub__list_9".into()));
        assert_eq!(named("Read\n\u{202e}\u{1b}[2J"), known("Read2J".into()));
        assert_eq!(named(&"x".repeat(500)), known("x".repeat(128)));
        assert_eq!(named("\n"), known("unnamed".into()));
    }

    #[test]
    fn a_message_never_holds_a_line_break() {
        let heard = hear(b"{\"type\":\"assistant\",\r\"x\":1}");
        let [AgentEvent::Message { line }] = heard.as_slice() else { panic!("{heard:?}") };
        assert!(!line.contains(['\r', '\n']));
    }

    #[test]
    fn the_same_prompt_is_sent_in_the_same_bytes() {
        let say = AgentInput::Prompt {
            turn: TurnId(uuid::Uuid::from_u128(1)),
            head: None,
            content: json!("hi"),
            ask: Default::default(),
            attempt: 1,
        };
        assert_eq!(tell(&say), tell(&say));
        assert!(tell(&say).ends_with(b"\n"));
    }
}
