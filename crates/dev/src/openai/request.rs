//! Converts a chat completion request to the Messages API. Refuses what the real service refuses, as far as a wrongly
//! assembled conversation could cause it.

use super::deployment;
use serde_json::{Value, json};

/// Whether the stream ends with the usage.
pub(crate) fn wants_counts(body: &Value) -> bool {
    body["stream_options"]["include_usage"] == true
}

pub(crate) fn translated(path: &str, body: &Value) -> Result<Value, String> {
    let model = match (body["model"].as_str(), deployment(path)) {
        (Some(model), _) => model,
        (None, Some(deployment)) => deployment,
        (None, None) => return Err("you must provide a model parameter".into()),
    };
    let messages = body["messages"].as_array().ok_or("messages: a list is required")?;
    let mut system = Vec::new();
    let mut said = Vec::new();
    let mut before = "";
    for message in messages {
        let role = message["role"].as_str().unwrap_or_default();
        match role {
            "system" | "developer" => system.extend(blocks(&message["content"])?),
            "user" => said.push(json!({ "role": "user", "content": blocks(&message["content"])? })),
            "assistant" => said.push(answered(message)?),
            "tool" if !["assistant", "tool"].contains(&before) => {
                return Err(
                    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
                        .into(),
                );
            }
            "tool" => said.push(result(message)),
            other => return Err(format!("messages: there is no role '{other}'")),
        }
        before = role;
    }
    Ok(json!({
        "model": model,
        "system": system,
        "messages": said,
        "tools": tools(&body["tools"])?,
        "stream": body["stream"] == true,
    }))
}

/// A text or a list of parts.
fn blocks(content: &Value) -> Result<Vec<Value>, String> {
    match content {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![json!({ "type": "text", "text": text })]),
        Value::Array(parts) => parts.iter().map(block).collect(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err("content: a text or a list".into()),
    }
}

fn block(part: &Value) -> Result<Value, String> {
    match part["type"].as_str() {
        Some("text") => Ok(json!({ "type": "text", "text": part["text"] })),
        Some("image_url") if part["image_url"]["url"].is_string() => {
            Ok(json!({ "type": "image", "source": { "type": "url", "url": part["image_url"]["url"] } }))
        }
        _ => Err(format!("content: a part of no kind that is known: {part}")),
    }
}

fn answered(message: &Value) -> Result<Value, String> {
    let mut content = blocks(&message["content"])?;
    let calls = message["tool_calls"].as_array();
    if calls.is_some_and(Vec::is_empty) || (calls.is_none() && content.is_empty()) {
        return Err("an assistant message needs content, or tool_calls that are not empty".into());
    }
    for call in calls.into_iter().flatten() {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let input: Value = serde_json::from_str(arguments)
            .map_err(|error| format!("tool_calls: the arguments are no JSON: {error}"))?;
        content.push(
            json!({ "type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": input }),
        );
    }
    Ok(json!({ "role": "assistant", "content": content }))
}

fn result(message: &Value) -> Value {
    let block = json!({ "type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"] });
    json!({ "role": "user", "content": [block] })
}

fn tools(tools: &Value) -> Result<Vec<Value>, String> {
    match tools.as_array() {
        Some(tools) if tools.is_empty() => Err("tools: an empty list".into()),
        Some(tools) => Ok(tools.iter().map(|tool| json!({ "name": tool["function"]["name"] })).collect()),
        None => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "/v1/chat/completions";

    fn call(id: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "run", "arguments": arguments}})
    }

    #[test]
    fn a_request_says_the_same_in_the_other_shape() {
        let body = json!({
            "model": "m", "stream": true, "tools": [{"type": "function", "function": {"name": "run"}}],
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},
                {"role": "assistant", "content": null, "tool_calls": [call("c", "{\"command\": \"ls\"}")]},
                {"role": "tool", "tool_call_id": "c", "content": "one"},
            ],
        });
        let picture =
            json!({"type": "image", "source": {"type": "url", "url": "data:image/png;base64,aGk="}});
        let expected = json!({
            "model": "m", "stream": true, "tools": [{"name": "run"}],
            "system": [{"type": "text", "text": "Be kind."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "run", "input": {"command": "ls"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "one"}]},
            ],
        });
        assert_eq!(translated(HERE, &body), Ok(expected));
    }

    #[test]
    fn requests_that_the_real_service_refuses_are_refused() {
        let hello = json!({"role": "user", "content": "hello"});
        let late = json!([hello, {"role": "assistant", "content": null, "tool_calls": [call("c", "{}")]}, hello,
            {"role": "tool", "tool_call_id": "c", "content": ""}]);
        for body in [
            json!({"messages": [hello]}),
            json!({"model": "m"}),
            json!({"model": "m", "messages": [hello], "tools": []}),
            json!({"model": "m", "messages": late}),
            json!({"model": "m", "messages": [{"role": "oracle", "content": "x"}]}),
            json!({"model": "m", "messages": [{"role": "assistant", "content": null}]}),
            json!({"model": "m", "messages": [{"role": "assistant", "tool_calls": [call("c", "{")]}]}),
            json!({"model": "m", "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        ] {
            assert!(translated(HERE, &body).is_err(), "{body}");
        }
        let deployed = translated("/openai/deployments/d/chat/completions", &json!({"messages": [hello]}));
        assert_eq!(deployed.map(|body| body["model"].clone()), Ok(json!("d")));
    }
}
