//! The content of one reply, independent of the API format.

use crate::conversation::ConversationId;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptedReply {
    pub(crate) id: ConversationId,
    /// How many replies the same conversation had before.
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

/// How a text is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextPace {
    AtOnce,
    /// This many parts, with a pause before each.
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

    /// The id of the call at a position of the reply, unique in the conversation.
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

    /// The complete message, for a response without streaming.
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

/// One token per four characters, and at least one.
pub(crate) fn tokens(characters: usize) -> u64 {
    (characters as u64).div_ceil(4).max(1)
}
