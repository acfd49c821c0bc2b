//! Assembles an answer from the events of its stream. Pure.

use crate::conversation::{ApiUsage, AssistantBlock, ToolUse};
use crate::provider::ModelReply;
use crate::provider::failure::{ProviderErrorBody, ProviderFailure};
use crate::provider::service_call::{self, StopReason};
use serde::Deserialize;

/// More than any model makes in one answer.
const MAX_BLOCKS: usize = 1000;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicEvent {
    MessageStart {
        message: AnthropicMessageStart,
    },
    ContentBlockStart {
        index: usize,
        content_block: ContentBlockStart,
    },
    ContentBlockDelta {
        index: usize,
        delta: ContentBlockDelta,
    },
    MessageDelta {
        #[serde(default)]
        delta: AnthropicMessageDelta,
        #[serde(default)]
        usage: AnthropicUsage,
    },
    MessageStop,
    Error {
        error: ProviderErrorBody,
    },
    /// Pings, ends of blocks, and event types that are not known yet.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct AnthropicMessageStart {
    id: String,
    #[serde(default)]
    usage: AnthropicUsage,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlockStart {
    Text {
        #[serde(default)]
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
    },
    Thinking {
        #[serde(default)]
        thinking: String,
        #[serde(default)]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlockDelta {
    TextDelta {
        text: String,
    },
    InputJsonDelta {
        partial_json: String,
    },
    ThinkingDelta {
        thinking: String,
    },
    SignatureDelta {
        signature: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize, Default)]
struct AnthropicMessageDelta {
    stop_reason: Option<String>,
}

/// Each count is the total so far; the service leaves out unchanged counts.
#[derive(Deserialize, Default)]
struct AnthropicUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

enum PartialContentBlock {
    Text(String),
    Call { id: String, name: String, input: String },
    Thinking { thinking: String, signature: String },
    RedactedThinking(String),
    Unknown,
}

#[derive(Default)]
pub(super) struct AnthropicAssembler {
    id: String,
    parts: Vec<PartialContentBlock>,
    usage: ApiUsage,
    stop_reason: Option<String>,
    over: bool,
}

impl service_call::AnswerAssembler for AnthropicAssembler {
    fn is_over(&self) -> bool {
        self.over
    }

    fn is_whole(&self) -> bool {
        self.over
    }

    fn take(&mut self, data: &[u8]) -> Result<Option<String>, ProviderFailure> {
        let event =
            serde_json::from_slice(data).map_err(|error| ProviderFailure::malformed(&error.to_string()))?;
        match event {
            AnthropicEvent::MessageStart { message } => {
                self.id = message.id;
                self.count(&message.usage);
            }
            AnthropicEvent::ContentBlockStart { index, content_block } => {
                return self.open(index, content_block);
            }
            AnthropicEvent::ContentBlockDelta { index, delta } => return self.add(index, delta),
            AnthropicEvent::MessageDelta { delta, usage } => {
                self.stop_reason = delta.stop_reason.or(self.stop_reason.take());
                self.count(&usage);
            }
            AnthropicEvent::MessageStop => self.over = true,
            AnthropicEvent::Error { error } => return Err(ProviderFailure::Refused(error.into())),
            AnthropicEvent::Other => {}
        }
        Ok(None)
    }

    fn reply(self) -> Result<ModelReply, ProviderFailure> {
        let end = match self.stop_reason.as_deref() {
            Some("max_tokens") => StopReason::OutOfTokens,
            Some("refusal") => StopReason::Declined,
            Some(_) | None => StopReason::Complete,
        };
        let content = self.parts.into_iter().filter_map(|part| finished(part, end).transpose());
        let content = content.collect::<Result<Vec<AssistantBlock>, ProviderFailure>>()?;
        service_call::reply(self.id, content, self.usage, end)
    }
}

impl AnthropicAssembler {
    fn open(&mut self, index: usize, opened: ContentBlockStart) -> Result<Option<String>, ProviderFailure> {
        if index != self.parts.len() || index >= MAX_BLOCKS {
            return Err(ProviderFailure::malformed("a block out of order"));
        }
        let shown = if let ContentBlockStart::Text { text } = &opened { Some(text.clone()) } else { None };
        self.parts.push(match opened {
            ContentBlockStart::Text { text } => PartialContentBlock::Text(text),
            ContentBlockStart::ToolUse { id, name } => {
                PartialContentBlock::Call { id, name, input: String::new() }
            }
            ContentBlockStart::Thinking { thinking, signature } => {
                PartialContentBlock::Thinking { thinking, signature }
            }
            ContentBlockStart::RedactedThinking { data } => PartialContentBlock::RedactedThinking(data),
            ContentBlockStart::Other => PartialContentBlock::Unknown,
        });
        Ok(shown.filter(|text| !text.is_empty()))
    }

    fn add(&mut self, index: usize, delta: ContentBlockDelta) -> Result<Option<String>, ProviderFailure> {
        let part =
            self.parts.get_mut(index).ok_or_else(|| ProviderFailure::malformed("a piece of no block"))?;
        match (part, delta) {
            (PartialContentBlock::Text(text), ContentBlockDelta::TextDelta { text: more }) => {
                text.push_str(&more);
                return Ok(Some(more).filter(|more| !more.is_empty()));
            }
            (PartialContentBlock::Call { input, .. }, ContentBlockDelta::InputJsonDelta { partial_json }) => {
                input.push_str(&partial_json)
            }
            (
                PartialContentBlock::Thinking { thinking, .. },
                ContentBlockDelta::ThinkingDelta { thinking: more },
            ) => thinking.push_str(&more),
            (
                PartialContentBlock::Thinking { signature, .. },
                ContentBlockDelta::SignatureDelta { signature: whole },
            ) => *signature = whole,
            (_, ContentBlockDelta::Other) | (PartialContentBlock::Unknown, _) => {}
            _ => return Err(ProviderFailure::malformed("a piece of another kind than its block")),
        }
        Ok(None)
    }

    fn count(&mut self, counts: &AnthropicUsage) {
        let usage = &mut self.usage;
        for (number, counted) in [
            (&mut usage.input_tokens, counts.input_tokens),
            (&mut usage.output_tokens, counts.output_tokens),
            (&mut usage.cache_creation_input_tokens, counts.cache_creation_input_tokens),
            (&mut usage.cache_read_input_tokens, counts.cache_read_input_tokens),
        ] {
            *number = counted.unwrap_or(*number);
        }
    }
}

fn finished(part: PartialContentBlock, end: StopReason) -> Result<Option<AssistantBlock>, ProviderFailure> {
    Ok(match part {
        PartialContentBlock::Text(text) if text.is_empty() => None,
        PartialContentBlock::Text(text) => Some(AssistantBlock::Text { text }),
        PartialContentBlock::Call { id, name, input } => {
            let input = service_call::input(&name, &input, end)?;
            Some(AssistantBlock::ToolUse(ToolUse { id, name, input }))
        }
        PartialContentBlock::Thinking { thinking, signature } => {
            Some(AssistantBlock::Thinking { thinking, signature })
        }
        PartialContentBlock::RedactedThinking(data) => Some(AssistantBlock::RedactedThinking { data }),
        PartialContentBlock::Unknown => None,
    })
}

#[cfg(test)]
mod tests {
    use super::service_call::AnswerAssembler as _;
    use super::*;
    use serde_json::{Value, json};

    fn take(events: &[Value]) -> Result<(AnthropicAssembler, String), ProviderFailure> {
        let (mut message, mut shown) = (AnthropicAssembler::default(), String::new());
        for event in events {
            shown.extend(message.take(event.to_string().as_bytes())?);
        }
        Ok((message, shown))
    }

    fn start(index: usize, block: Value) -> Value {
        json!({"type": "content_block_start", "index": index, "content_block": block})
    }

    fn delta(index: usize, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": index, "delta": delta})
    }

    fn stop(reason: &str) -> [Value; 2] {
        let delta = json!({"stop_reason": reason, "stop_sequence": null});
        [
            json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 40}}),
            json!({"type": "message_stop"}),
        ]
    }

    fn began() -> Value {
        let usage = json!({"input_tokens": 5, "output_tokens": 1, "cache_creation_input_tokens": 6, "cache_read_input_tokens": 7});
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "usage": usage}})
    }

    #[test]
    fn an_answer_with_everything_in_it_is_put_together_in_order() {
        let events = [
            began(),
            json!({"type": "ping"}),
            start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
            delta(0, json!({"type": "signature_delta", "signature": "sig"})),
            json!({"type": "content_block_stop", "index": 0}),
            start(1, json!({"type": "redacted_thinking", "data": "xyz"})),
            start(2, json!({"type": "text", "text": ""})),
            delta(2, json!({"type": "text_delta", "text": "I am "})),
            delta(2, json!({"type": "citations_delta", "citation": {}})),
            delta(2, json!({"type": "text_delta", "text": "here"})),
            start(3, json!({"type": "novelty", "x": 1})),
            delta(3, json!({"type": "text_delta", "text": "of it"})),
            start(4, json!({"type": "tool_use", "id": "t1", "name": "run", "input": {}})),
            delta(4, json!({"type": "input_json_delta", "partial_json": ""})),
            delta(4, json!({"type": "input_json_delta", "partial_json": "{\"command\":"})),
            delta(4, json!({"type": "input_json_delta", "partial_json": "\"ls\"}"})),
            start(5, json!({"type": "tool_use", "id": "t2", "name": "list", "input": {}})),
            json!({"type": "never_heard_of", "index": "x"}),
        ];
        let (message, shown) = take(&[&events[..], &stop("tool_use")].concat()).expect("taken");
        assert_eq!((shown.as_str(), message.is_over()), ("I am here", true));
        let call = |id: &str, name: &str, input| {
            AssistantBlock::ToolUse(ToolUse { id: id.into(), name: name.into(), input })
        };
        let expected = ModelReply {
            id: "msg_1".into(),
            content: vec![
                AssistantBlock::Thinking { thinking: "hm".into(), signature: "sig".into() },
                AssistantBlock::RedactedThinking { data: "xyz".into() },
                AssistantBlock::Text { text: "I am here".into() },
                call("t1", "run", json!({"command": "ls"})),
                call("t2", "list", json!({})),
            ],
            usage: ApiUsage {
                input_tokens: 5,
                output_tokens: 40,
                cache_creation_input_tokens: 6,
                cache_read_input_tokens: 7,
            },
        };
        assert_eq!(message.reply(), Ok(expected));
    }

    #[test]
    fn a_call_is_kept_under_a_name_that_services_accept() {
        let called = |name: &str| {
            let call = start(0, json!({"type": "tool_use", "id": "t", "name": name, "input": {}}));
            take(&[&[began(), call][..], &stop("tool_use")].concat()).expect("taken").0.reply()
        };
        let call = ToolUse { id: "t".into(), name: "Read2J".into(), input: json!({}) };
        let reply = called("Read\n\u{202e}\u{1b}[2J").map(|reply| reply.content);
        assert_eq!(reply, Ok(vec![AssistantBlock::ToolUse(call)]));
        assert!(matches!(called("\n"), Err(ProviderFailure::Broken(_))), "nothing is left of its name");
    }

    #[test]
    fn nonsense_is_refused() {
        let text = start(0, json!({"type": "text", "text": ""}));
        for events in [
            vec![json!("text")],
            vec![json!({})],
            vec![json!({"type": "message_start"})],
            vec![start(1, json!({"type": "text"}))],
            vec![start(0, json!({"type": "tool_use"}))],
            vec![delta(0, json!({"type": "text_delta", "text": "x"}))],
            vec![text.clone(), delta(0, json!({"type": "input_json_delta", "partial_json": "{}"}))],
            vec![text.clone(), text],
        ] {
            assert!(matches!(take(&events), Err(ProviderFailure::Broken(_))), "{events:?}");
        }
        for data in [&b"{"[..], b"\xff", b"", b"[DONE]"] {
            assert!(AnthropicAssembler::default().take(data).is_err());
        }
        let many: Vec<Value> = (0..=MAX_BLOCKS).map(|index| start(index, json!({"type": "text"}))).collect();
        assert!(take(&many).is_err());
    }

    #[test]
    fn an_error_in_the_middle_is_a_refusal() {
        let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
        let Err(ProviderFailure::Refused(refusal)) = take(&[began(), error]) else { panic!("refused") };
        assert_eq!((refusal.status, refusal.kind.as_str()), (None, "overloaded_error"));
    }

    #[test]
    fn an_invalid_call_is_requested_again_unless_the_window_was_full() {
        let half = [
            began(),
            start(0, json!({"type": "tool_use", "id": "t", "name": "write", "input": {}})),
            delta(0, json!({"type": "input_json_delta", "partial_json": "{\"path\": \"a"})),
        ];
        let reply = |reason| take(&[&half[..], &stop(reason)].concat()).expect("taken").0.reply();
        assert!(matches!(reply("tool_use"), Err(ProviderFailure::Broken(_))));
        let call = ToolUse { id: "t".into(), name: "write".into(), input: json!({}) };
        assert_eq!(reply("max_tokens").map(|reply| reply.content), Ok(vec![AssistantBlock::ToolUse(call)]));
    }

    #[test]
    fn an_empty_answer_says_why() {
        let reply = |reason| take(&[&[began()][..], &stop(reason)].concat()).expect("taken").0.reply();
        assert_eq!(reply("refusal"), Err(ProviderFailure::Declined));
        assert_eq!(reply("max_tokens"), Err(ProviderFailure::OutOfTokens));
        assert_eq!(reply("end_turn").map(|reply| reply.content), Ok(vec![]));
    }
}
