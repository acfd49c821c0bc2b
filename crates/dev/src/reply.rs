//! What a model says in one answer, before it is put into the shapes of the API.

use crate::conversation::ConversationId;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptedReply {
    pub(crate) id: ConversationId,
    /// How often the same conversation was answered before.
    pub(crate) repeat_count: u32,
    pub(crate) model: String,
    pub(crate) blocks: Vec<ReplyBlock>,
    pub(crate) input_tokens: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ReplyBlock {
    Text { text: String, pace: TextPace },
    Thinking(String),
    Call { name: String, input: Value },
}

/// How a text comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextPace {
    AtOnce,
    /// So many pieces, with a pause before each.
    Slow(usize),
}

pub(crate) const PAUSE: Duration = Duration::from_millis(50);

impl ReplyBlock {
    pub(crate) fn text(text: impl Into<String>) -> ReplyBlock {
        ReplyBlock::Text { text: text.into(), pace: TextPace::AtOnce }
    }

    fn characters(&self) -> usize {
        match self {
            ReplyBlock::Text { text, .. } | ReplyBlock::Thinking(text) => text.chars().count(),
            ReplyBlock::Call { name, input } => name.chars().count() + input.to_string().chars().count(),
        }
    }
}

impl ScriptedReply {
    pub(crate) fn message_id(&self) -> String {
        let again = if self.repeat_count > 0 { self.repeat_count.to_string() } else { String::new() };
        format!("msg_01{}", self.id.derive(&format!("message{again}")).as_str())
    }

    /// The id of the call at a place of the answer: no other answer of the conversation has it.
    pub(crate) fn call_id(&self, index: usize) -> String {
        format!("toolu_01{}", self.id.derive(&index.to_string()).as_str())
    }

    pub(crate) fn signature(&self, index: usize) -> String {
        format!("signature-{}", self.id.derive(&format!("signature {index}")).as_str())
    }

    pub(crate) fn stop_reason(&self) -> &'static str {
        let calls = self.blocks.iter().any(|block| matches!(block, ReplyBlock::Call { .. }));
        if calls { "tool_use" } else { "end_turn" }
    }

    pub(crate) fn output_tokens(&self) -> u64 {
        tokens(self.blocks.iter().map(ReplyBlock::characters).sum())
    }

    /// The whole message, as it is answered without streaming.
    pub(crate) fn whole(&self) -> Value {
        let content: Vec<Value> =
            self.blocks.iter().enumerate().map(|(at, block)| self.block(at, block)).collect();
        json!({
            "id": self.message_id(),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": self.stop_reason(),
            "stop_sequence": null,
            "usage": self.usage(self.output_tokens()),
        })
    }

    fn block(&self, index: usize, block: &ReplyBlock) -> Value {
        match block {
            ReplyBlock::Text { text, .. } => json!({ "type": "text", "text": text }),
            ReplyBlock::Thinking(text) => {
                json!({ "type": "thinking", "thinking": text, "signature": self.signature(index) })
            }
            ReplyBlock::Call { name, input } => {
                json!({ "type": "tool_use", "id": self.call_id(index), "name": name, "input": input })
            }
        }
    }

    pub(crate) fn usage(&self, output_tokens: u64) -> Value {
        json!({
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
        })
    }
}

/// About four characters are a token, and nothing has less than one.
pub(crate) fn tokens(characters: usize) -> u64 {
    (characters as u64).div_ceil(4).max(1)
}
