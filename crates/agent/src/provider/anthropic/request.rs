//! Builds a request of the Messages API from the conversation. Pure.

use super::MAX_ANSWER_TOKENS;
use crate::provider::ModelRequest;
use crate::provider::messages::{self, text};
use crate::tools;
use serde_json::{Value, json};

/// Which thinking blocks a request includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThinkingScope {
    OfTheTurn,
    LeftOut,
}

pub(super) fn body(model: &str, request: &ModelRequest<'_>, thoughts: ThinkingScope) -> Vec<u8> {
    let mut body = json!({
        "model": model,
        "max_tokens": request.room.min(MAX_ANSWER_TOKENS.into()),
        "stream": true,
        "system": system(request.system),
        "tools": tools::offered(request.manner),
        "messages": messages(model, request, thoughts),
    });
    if let Some(effort) = &request.manner.effort {
        body["output_config"] = json!({ "effort": effort });
    }
    body.to_string().into_bytes()
}

fn system(own: Option<&str>) -> Vec<Value> {
    let mut blocks: Vec<Value> = messages::system(own).into_iter().map(text).collect();
    blocks.last_mut().into_iter().for_each(remember);
    blocks
}

fn messages(model: &str, request: &ModelRequest<'_>, thoughts: ThinkingScope) -> Vec<Value> {
    let thoughts_of = match thoughts {
        ThinkingScope::OfTheTurn => Some(model),
        ThinkingScope::LeftOut => None,
    };
    let mut messages = messages::messages(request.turns, thoughts_of);
    messages.last_mut().and_then(|(_, blocks)| blocks.last_mut()).into_iter().for_each(remember);
    messages.into_iter().map(|(role, blocks)| json!({ "role": role.name(), "content": blocks })).collect()
}

/// The next request has the same prefix up to here, so the service can cache it.
fn remember(block: &mut Value) {
    block["cache_control"] = json!({ "type": "ephemeral" });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::AgentSettings;
    use crate::provider::messages::testing::{conversation, user};

    #[test]
    fn the_request_has_the_required_fields_and_two_cache_points() {
        let turns = conversation(&[user("a", json!("hello"))]);
        let body = |system| {
            let body = body(
                "m",
                &ModelRequest { system, manner: &AgentSettings::default(), turns: &turns, room: u64::MAX },
                ThinkingScope::OfTheTurn,
            );
            serde_json::from_slice::<Value>(&body).expect("json")
        };
        let asked = body(Some("Be kind."));
        assert_eq!(
            (&asked["model"], &asked["stream"], &asked["max_tokens"]),
            (&json!("m"), &json!(true), &json!(MAX_ANSWER_TOKENS))
        );
        let mark = json!({"type": "ephemeral"});
        assert_eq!(asked["system"][1], json!({"type": "text", "text": "Be kind.", "cache_control": mark}));
        assert_eq!(
            asked["messages"],
            json!([{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": mark}]}])
        );
        assert_eq!(asked.to_string().matches("cache_control").count(), 2);
        assert_eq!(body(Some(" "))["system"].as_array().map(Vec::len), Some(1));
    }
}
