//! Requests that Claude Code makes beside the conversation: a session title, a key check, a summary before the context is
//! full. They get a harmless reply.

use crate::conversation::MessagesRequest;
use serde_json::{Map, Value, json};

/// A limit of tokens that is too low for a conversation.
const MAX_HELPER_TOKENS: u64 = 1024;

/// A helper request has no tools, and also has an output schema, a marker around its subject, or a very low token limit.
pub(crate) fn is_helper(conversation: &MessagesRequest) -> bool {
    let has_form = schema(conversation).is_some();
    let is_marked = conversation.newest_text().starts_with("<session>");
    let has_no_room =
        conversation.max_tokens.is_some_and(|most| most <= MAX_HELPER_TOKENS) && is_of_claude(conversation);
    conversation.tools.is_empty() && (has_form || is_marked || has_no_room)
}

/// Other agents may set a low limit for a real conversation.
fn is_of_claude(conversation: &MessagesRequest) -> bool {
    conversation.metadata["user_id"].is_string()
}

fn schema(conversation: &MessagesRequest) -> Option<&Value> {
    conversation.output_config.pointer("/format/schema")
}

pub(crate) fn helper_answer(conversation: &MessagesRequest) -> String {
    match schema(conversation) {
        Some(schema) => sample(schema, 0).to_string(),
        None => "A scripted session".into(),
    }
}

/// A sample value for the requested schema.
fn sample(schema: &Value, depth: usize) -> Value {
    let choice = schema["enum"].as_array().and_then(|choices| choices.first()).or(schema.get("const"));
    if let Some(choice) = choice {
        return choice.clone();
    }
    match schema["type"].as_str() {
        Some("object") if depth < 8 => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let fields = fields.map(|(name, field)| (name.clone(), sample(field, depth + 1)));
            Value::Object(fields.collect::<Map<String, Value>>())
        }
        Some("array") => json!([]),
        Some("boolean") => json!(false),
        Some("integer" | "number") => json!(0),
        Some("string") => json!("A scripted session"),
        _ => Value::Null,
    }
}

pub(crate) fn asks_for_summary(prompt: &str) -> bool {
    prompt.contains("<summary>") && prompt.contains("summary of the")
}

/// Includes the conversation's id, so that later requests do not count as a new conversation.
pub(crate) fn summary(conversation: &MessagesRequest) -> String {
    // The summary request itself is one of the messages.
    let seen = conversation.prompt_count().saturating_sub(1);
    let name = conversation.id().marker();
    format!("<summary>\nOf {name}: {seen} user messages were seen before this summary.\n</summary>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> MessagesRequest {
        MessagesRequest::read(&body).expect("a conversation")
    }

    #[test]
    fn a_title_has_the_requested_form() {
        let schema =
            json!({"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]});
        let request = read(json!({
            "messages": [{"role": "user", "content": "<session>\nfail 529\n</session>\nWrite the title"}],
            "tools": [], "max_tokens": 128_000,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        }));
        assert!(is_helper(&request));
        assert_eq!(helper_answer(&request), r#"{"title":"A scripted session"}"#);
    }

    #[test]
    fn a_low_token_limit_means_a_helper_only_from_claude_code() {
        let request = |metadata: Value| {
            read(
                json!({"messages": [{"role": "user", "content": "quota"}], "max_tokens": 1, "metadata": metadata}),
            )
        };
        assert!(is_helper(&request(json!({"user_id": "u"}))));
        assert!(!is_helper(&request(json!({}))));
    }
}
