//! The readable text of logged messages, for an agent that has lost its own memory of them. Both agents' messages have
//! the same shape in the log.

use serde_json::Value;

/// A message in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetoldMessage {
    /// `Assistant` or `User`.
    pub speaker: &'static str,
    /// What was said; tool calls and their results are in square brackets.
    pub text: String,
}

/// The readable text in a line of an agent's stream. `None`: there is none, or a subagent said it.
pub fn retold_message(line: &str) -> Option<RetoldMessage> {
    let value: Value = serde_json::from_str(line).ok()?;
    if value.get("parent_tool_use_id").is_some_and(|parent| !parent.is_null()) {
        return None;
    }
    let speaker = match value["type"].as_str()? {
        "assistant" => "Assistant",
        "user" => "User",
        _ => return None,
    };
    let text = content_text(&value["message"]["content"]);
    (!text.is_empty()).then_some(RetoldMessage { speaker, text })
}

/// The text of a message's content: a string, or a list of blocks.
pub fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(block_text).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

fn block_text(block: &Value) -> Option<String> {
    match block["type"].as_str()? {
        "text" => block["text"].as_str().map(str::to_owned),
        "tool_use" => {
            Some(format!("[called {} with {}]", block["name"].as_str().unwrap_or("a tool"), block["input"]))
        }
        "tool_result" => Some(format!("[the call answered: {}]", content_text(&block["content"]))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retold_message_has_calls_and_their_outcomes() {
        let retold =
            |line: &str| retold_message(line).map(|message| format!("{}: {}", message.speaker, message.text));
        let line = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"I look"},{"type":"tool_use","name":"Bash","input":{"command":"ls"}}]}}"#;
        assert_eq!(
            retold(line).as_deref(),
            Some("Assistant: I look\n[called Bash with {\"command\":\"ls\"}]")
        );
        let line = r#"{"type":"user","message":{"content":[{"type":"tool_result","content":"a.txt"}]}}"#;
        assert_eq!(retold(line).as_deref(), Some("User: [the call answered: a.txt]"));
        assert_eq!(
            retold(r#"{"type":"assistant","parent_tool_use_id":"t","message":{"content":"x"}}"#),
            None
        );
    }
}
