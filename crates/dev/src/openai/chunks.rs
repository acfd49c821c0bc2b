//! A reply as a chat completion, complete or as the chunks of a stream.

use crate::{
    reply::{ReplyBlock, ScriptedReply},
    sse_events::{PacedSseEvent, at_once, paced},
};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) fn whole(reply: &ScriptedReply) -> Value {
    let texts: Vec<&str> = texts(reply).collect();
    let content = if texts.is_empty() { Value::Null } else { json!(texts.concat()) };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    let calls: Vec<Value> = calls(reply)
        .map(|(index, name, input)| call(&call_id(reply, index), name, &input.to_string()))
        .collect();
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish(reply) });
    about(reply, "chat.completion", json!([choice]), usage(reply))
}

/// `counted`: the last chunk has the usage.
pub(crate) fn chunks(reply: &ScriptedReply, counted: bool) -> Vec<PacedSseEvent> {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish });
        about(reply, "chat.completion.chunk", json!([choice]), Value::Null)
    };
    let mut events =
        vec![PacedSseEvent::new(chunk(json!({ "role": "assistant", "content": "" }), Value::Null))];
    for (index, block) in reply.blocks.iter().enumerate() {
        let deltas = deltas(reply, index, block).into_iter();
        events.extend(deltas.map(|(delta, pause)| PacedSseEvent { data: chunk(delta, Value::Null), pause }));
    }
    events.push(PacedSseEvent::new(chunk(json!({}), json!(finish(reply)))));
    if counted {
        events.push(PacedSseEvent::new(about(reply, "chat.completion.chunk", json!([]), usage(reply))));
    }
    events
}

pub(crate) fn overloaded() -> PacedSseEvent {
    PacedSseEvent::new(super::problem(503, "Overloaded"))
}

/// Sends thinking as compatible services do; OpenAI itself does not send it.
fn deltas(reply: &ScriptedReply, index: usize, block: &ReplyBlock) -> Vec<(Value, Duration)> {
    match block {
        ReplyBlock::Text { text, pace } => {
            let pieces = paced(text, *pace).into_iter();
            pieces.map(|(piece, pause)| (json!({ "content": piece }), pause)).collect()
        }
        ReplyBlock::Thinking(text) => {
            let pieces = at_once(text).into_iter();
            pieces.map(|piece| (json!({ "reasoning_content": piece }), Duration::ZERO)).collect()
        }
        ReplyBlock::Call { name, input } => {
            let place = calls(reply).position(|(at, _, _)| at == index).unwrap_or_default();
            let mut first = call(&call_id(reply, index), name, "");
            first["index"] = json!(place);
            let text = input.to_string();
            let pieces = at_once(&text).into_iter();
            let more = pieces.map(|piece| json!({ "index": place, "function": { "arguments": piece } }));
            [first]
                .into_iter()
                .chain(more)
                .map(|call| (json!({ "tool_calls": [call] }), Duration::ZERO))
                .collect()
        }
    }
}

fn about(reply: &ScriptedReply, object: &str, choices: Value, usage: Value) -> Value {
    // As with messages, each answer has its own id.
    let id = format!("chatcmpl-{}", reply.message_id());
    json!({ "id": id, "object": object, "created": 0, "model": reply.model, "choices": choices, "usage": usage })
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn call_id(reply: &ScriptedReply, index: usize) -> String {
    format!("call_{}", reply.id.derive(&index.to_string()).as_str())
}

fn texts(reply: &ScriptedReply) -> impl Iterator<Item = &str> {
    reply.blocks.iter().filter_map(|block| match block {
        ReplyBlock::Text { text, .. } => Some(text.as_str()),
        ReplyBlock::Thinking(_) | ReplyBlock::Call { .. } => None,
    })
}

fn calls(reply: &ScriptedReply) -> impl Iterator<Item = (usize, &str, &Value)> {
    reply.blocks.iter().enumerate().filter_map(|(index, block)| match block {
        ReplyBlock::Call { name, input } => Some((index, name.as_str(), input)),
        ReplyBlock::Text { .. } | ReplyBlock::Thinking(_) => None,
    })
}

fn finish(reply: &ScriptedReply) -> &'static str {
    if calls(reply).next().is_some() { "tool_calls" } else { "stop" }
}

fn usage(reply: &ScriptedReply) -> Value {
    let (prompt, completion) = (reply.input_tokens, reply.output_tokens());
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt.saturating_add(completion),
        "prompt_tokens_details": { "cached_tokens": 0 },
    })
}
