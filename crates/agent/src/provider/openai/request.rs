//! Builds a chat completion request from the messages of the Messages API. Pure.

use crate::provider::ModelRequest;
use crate::provider::messages::{self, MessageRole};
use crate::tools;
use serde_json::{Value, json};

pub(super) fn body(model: &str, request: &ModelRequest<'_>) -> Vec<u8> {
    let system = json!({ "role": "system", "content": messages::system(request.system).join("\n\n") });
    let said = messages::messages(request.turns, None);
    let said = said.into_iter().flat_map(|(role, blocks)| match role {
        MessageRole::User => heard(blocks),
        MessageRole::Assistant => vec![answered(&blocks)],
    });
    let messages: Vec<Value> = [system].into_iter().chain(said).collect();
    let mut body = json!({
        "model": model,
        "stream": true,
        "stream_options": { "include_usage": true },
        "messages": messages,
    });
    let tools: Vec<Value> = tools::offered(request.manner).into_iter().map(tool).collect();
    // Services refuse an empty list.
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    if let Some(effort) = &request.manner.effort {
        body["reasoning_effort"] = json!(named(effort));
    }
    body.to_string().into_bytes()
}

/// OpenAI's highest effort has another name than Anthropic's.
fn named(effort: &str) -> &str {
    if effort == "max" { "xhigh" } else { effort }
}

fn tool(tool: Value) -> Value {
    let function = json!({
        "name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"],
    });
    json!({ "type": "function", "function": function })
}

/// Each result is its own message, and comes before the user's next text.
fn heard(blocks: Vec<Value>) -> Vec<Value> {
    let (results, rest): (Vec<Value>, Vec<Value>) =
        blocks.into_iter().partition(|block| block["type"] == "tool_result");
    let results = results.into_iter().map(
        |block| json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"] }),
    );
    results.chain(said(&rest)).collect()
}

fn said(blocks: &[Value]) -> Option<Value> {
    let content = match blocks {
        [] => return None,
        // Some services accept only a plain string.
        [block] if block["type"] == "text" => block["text"].clone(),
        blocks => blocks.iter().map(part).collect(),
    };
    Some(json!({ "role": "user", "content": content }))
}

fn part(block: &Value) -> Value {
    let source = &block["source"];
    let url = match (block["type"].as_str(), source["type"].as_str()) {
        (Some("text"), _) => return json!({ "type": "text", "text": block["text"] }),
        (Some("image"), Some("base64")) => {
            let of = |name: &str| source[name].as_str().unwrap_or_default();
            json!(format!("data:{};base64,{}", of("media_type"), of("data")))
        }
        (Some("image"), Some("url")) => source["url"].clone(),
        (kind, _) => {
            let kind = kind.unwrap_or("unknown");
            let text = format!("[Something of the kind \"{kind}\" that this service cannot be shown]");
            return json!({ "type": "text", "text": text });
        }
    };
    json!({ "type": "image_url", "image_url": { "url": url } })
}

fn answered(blocks: &[Value]) -> Value {
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    let calls = blocks.iter().filter(|block| block["type"] == "tool_use").map(|block| {
        let function = json!({ "name": block["name"], "arguments": block["input"].to_string() });
        json!({ "id": block["id"], "type": "function", "function": function })
    });
    let calls: Vec<Value> = calls.collect();
    let content = if texts.is_empty() { Value::Null } else { json!(texts.join("\n\n")) };
    let mut message = json!({ "role": "assistant", "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::ToolResult;
    use crate::flags::AgentSettings;
    use crate::provider::messages::testing::{
        assistant, call, conversation, interrupted, result, said, user,
    };

    fn asked(entries: &[Value], system: Option<&str>, manner: &AgentSettings) -> Value {
        let turns = conversation(entries);
        let body = body("m", &ModelRequest { system, manner, turns: &turns, room: u64::MAX });
        serde_json::from_slice(&body).expect("json")
    }

    fn sent(entries: &[Value]) -> Value {
        let asked = asked(entries, None, &AgentSettings::default());
        json!(asked["messages"].as_array().expect("messages")[1..])
    }

    fn function(id: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "run", "arguments": "{\"command\":\"ls\"}"}})
    }

    #[test]
    fn a_conversation_is_sent_whole_and_in_order() {
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
        let entries = [
            user("a", json!("hello")),
            assistant("a", "offline", json!([said("hi")])),
            user("b", json!([said("look"), said("there")])),
            assistant("b", "m", json!([thought, said("I look"), call("t1"), call("t2")])),
            result("b", "t2", "two"),
            result("b", "t1", "one"),
            assistant("b", "m", json!([call("t3")])),
        ];
        let expected = json!([
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": [said("look"), said("there")]},
            {"role": "assistant", "content": "I look", "tool_calls": [function("t1"), function("t2")]},
            {"role": "tool", "tool_call_id": "t1", "content": "one"},
            {"role": "tool", "tool_call_id": "t2", "content": "two"},
            {"role": "assistant", "content": null, "tool_calls": [function("t3")]},
            {"role": "tool", "tool_call_id": "t3", "content": ToolResult::UNKNOWN},
        ]);
        assert_eq!(sent(&entries), expected);
    }

    #[test]
    fn results_come_before_the_next_user_message() {
        let entries = [
            user("a", json!("one")),
            assistant("a", "m", json!([call("t1")])),
            interrupted("a", "aborted_tools", ""),
            user("b", json!("two")),
        ];
        let expected = json!([
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": null, "tool_calls": [function("t1")]},
            {"role": "tool", "tool_call_id": "t1", "content": ToolResult::UNKNOWN},
            {"role": "user", "content": [said("[Request interrupted by user]"), said("two")]},
        ]);
        assert_eq!(sent(&entries), expected);
    }

    #[test]
    fn pictures_are_sent_and_other_files_are_named() {
        let picture = |source: Value| json!({"type": "image", "source": source});
        let entries = [user(
            "a",
            json!([
                said("look"),
                picture(json!({"type": "base64", "media_type": "image/png", "data": "aGk="})),
                picture(json!({"type": "url", "url": "https://pictures.example/1"})),
                picture(json!({})),
                {"type": "document", "source": {"type": "base64", "data": "x"}},
                {"odd": true},
            ]),
        )];
        let shown = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let named = |kind: &str| {
            said(&format!("[Something of the kind \"{kind}\" that this service cannot be shown]"))
        };
        let expected = json!([{"role": "user", "content": [
            said("look"),
            shown("data:image/png;base64,aGk="),
            shown("https://pictures.example/1"),
            named("image"),
            named("document"),
            named("unknown"),
        ]}]);
        assert_eq!(sent(&entries), expected);
    }

    #[test]
    fn the_request_has_what_the_api_asks_for() {
        let entries = [user("a", json!("hello"))];
        let manner =
            AgentSettings { tools: vec!["read"], effort: Some("max".into()), ..AgentSettings::default() };
        let mut body = asked(&entries, Some("Be kind."), &manner);
        let system = body["messages"][0]["content"].take();
        assert!(system.as_str().is_some_and(|text| text.ends_with("\n\nBe kind.")), "{system}");
        let schema = json!({"type": "object", "properties": {"path": {"type": "string", "description": "The file."}},
            "required": ["path"], "additionalProperties": false});
        let read = json!({"name": "read", "description": "Shows a file. Of a long one the beginning.", "parameters": schema});
        let expected = json!({
            "model": "m",
            "stream": true,
            "stream_options": {"include_usage": true},
            "reasoning_effort": "xhigh",
            "messages": [{"role": "system", "content": null}, {"role": "user", "content": "hello"}],
            "tools": [{"type": "function", "function": read}],
        });
        assert_eq!(body, expected);
        let bare = asked(&entries, None, &AgentSettings { tools: Vec::new(), ..AgentSettings::default() });
        assert_eq!((bare.get("tools"), bare.get("reasoning_effort")), (None, None));
    }
}
