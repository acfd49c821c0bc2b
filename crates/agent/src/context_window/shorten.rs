//! Shortens pieces that are too large to their beginning and end. A note marks the gap, and the transcript stays
//! complete.

use crate::conversation::{AssistantBlock, PromptContent, TranscriptItem, TranscriptTurn};
use serde_json::Value;

pub(super) fn shortened(turn: &TranscriptTurn, longest: usize) -> TranscriptTurn {
    let mut turn = turn.clone();
    turn.prompt.iter_mut().for_each(|prompt| shorten_content(prompt, longest));
    turn.head.iter_mut().for_each(|head| shorten(head, longest));
    for step in &mut turn.steps {
        for block in &mut step.message.content {
            match block {
                AssistantBlock::Text { text } => shorten(text, longest),
                AssistantBlock::ToolUse(call) => shorten_strings(&mut call.input, longest),
                // Unchanged, because they are signed.
                AssistantBlock::Thinking { .. } | AssistantBlock::RedactedThinking { .. } => {}
            }
        }
        for TranscriptItem { content: what, .. } in &mut step.results {
            shorten(&mut what.content, longest);
        }
        step.steers.iter_mut().for_each(|steer| shorten_content(&mut steer.content, longest));
    }
    turn
}

fn shorten_content(content: &mut PromptContent, longest: usize) {
    match content {
        PromptContent::Text(text) => shorten(text, longest),
        PromptContent::Blocks(blocks) => {
            for block in blocks.iter_mut().filter(|block| block["type"] == "text") {
                shorten_strings(block, longest);
            }
        }
    }
}

fn shorten_strings(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => shorten(text, longest),
        Value::Array(items) => items.iter_mut().for_each(|item| shorten_strings(item, longest)),
        Value::Object(fields) => fields.values_mut().for_each(|field| shorten_strings(field, longest)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Keeps the beginning and the end, and puts a note in between.
fn shorten(text: &mut String, longest: usize) {
    if text.len() <= longest {
        return;
    }
    let (head, tail) = (longest * 2 / 3, longest / 3);
    let (head, tail) = (text.floor_char_boundary(head), text.ceil_char_boundary(text.len() - tail));
    let left_out = tail - head;
    let note =
        format!("\n[{left_out} bytes are left out here: there is no room for them in the context window]\n");
    text.replace_range(head..tail, &note);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shortened_text_says_so_and_never_splits_a_character() {
        let mut text = "ä".repeat(1000);
        shorten(&mut text, 101);
        assert!(
            text.starts_with("ää") && text.ends_with("ää") && text.contains(" bytes are left out here: "),
            "{text}"
        );
        let mut call = json!({"path": "x", "text": ["y".repeat(1000)]});
        shorten_strings(&mut call, 100);
        assert!(
            call["path"] == "x" && call["text"][0].as_str().is_some_and(|text| text.len() < 250),
            "{call}"
        );
    }
}
