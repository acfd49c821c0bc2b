//! Conversations for tests: the lines of a transcript, without irrelevant fields.

use crate::conversation::{ConversationHistory, TranscriptEntry, TranscriptTurn};
use serde_json::{Value, json};

pub(in crate::provider) fn conversation(entries: &[Value]) -> Vec<TranscriptTurn> {
    let mut conversation = ConversationHistory::default();
    for (number, entry) in entries.iter().enumerate() {
        let mut entry = entry.clone();
        entry["uuid"] = json!(number.to_string());
        entry["at"] = json!(0);
        conversation.add(serde_json::from_value::<TranscriptEntry>(entry).expect("an entry"));
    }
    conversation.turns().to_vec()
}

pub(in crate::provider) fn user(turn: &str, content: Value) -> Value {
    json!({"type": "user", "turn": turn, "message": {"role": "user", "content": content}})
}

pub(in crate::provider) fn assistant(turn: &str, model: &str, content: Value) -> Value {
    json!({"type": "assistant", "turn": turn,
        "message": {"id": "m", "role": "assistant", "model": model, "content": content, "usage": usage()}})
}

pub(in crate::provider) fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "run", "input": {"command": "ls"}})
}

pub(in crate::provider) fn result(turn: &str, id: &str, content: &str) -> Value {
    json!({"type": "tool_result", "turn": turn, "tool_use_id": id, "content": content, "is_error": false})
}

pub(in crate::provider) fn interrupted(turn: &str, reason: &str, partial: &str) -> Value {
    json!({"type": "interrupted", "turn": turn, "subtype": "error_during_execution", "is_error": true,
        "terminal_reason": reason, "num_turns": 0, "usage": usage(), "duration_ms": 0, "partial": partial})
}

pub(in crate::provider) fn said(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn usage() -> Value {
    json!({"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0})
}
