//! Assembles a chat completion from its chunks. Pure. Compatible services leave out different fields, so this requires
//! only those that it needs.

use crate::conversation::{ApiUsage, AssistantBlock, ToolUse};
use crate::provider::ModelReply;
use crate::provider::failure::{ProviderErrorBody, ProviderFailure};
use crate::provider::service_call::{self, StopReason};
use serde::Deserialize;
use serde_json::Value;

/// More than any model makes in one answer.
const MAX_CALLS: usize = 1000;
/// The end marker, which is no chunk.
const DONE: &[u8] = b"[DONE]";

#[derive(Deserialize)]
struct ChatCompletionChunk {
    id: Option<String>,
    choices: Option<Vec<ChatCompletionChoice>>,
    usage: Option<ChatCompletionUsage>,
    error: Option<ProviderErrorBody>,
}

#[derive(Deserialize)]
struct ChatCompletionChoice {
    #[serde(default)]
    index: u64,
    delta: Option<ChatCompletionDelta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ChatCompletionDelta {
    content: Option<String>,
    /// The model's text when it declines.
    refusal: Option<String>,
    tool_calls: Option<Vec<ToolCallDelta>>,
}

/// A part of a call: the name and the id come first, the arguments follow.
#[derive(Deserialize)]
struct ToolCallDelta {
    #[serde(default)]
    index: u64,
    id: Option<String>,
    function: Option<FunctionCallDelta>,
}

#[derive(Deserialize, Default)]
struct FunctionCallDelta {
    name: Option<String>,
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
struct ChatCompletionUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Deserialize)]
struct PromptTokensDetails {
    cached_tokens: Option<u64>,
}

struct PartialToolCall {
    index: u64,
    id: String,
    name: String,
    input: String,
}

#[derive(Default)]
pub(super) struct OpenAiAssembler {
    id: String,
    text: String,
    calls: Vec<PartialToolCall>,
    usage: ApiUsage,
    finish_reason: Option<String>,
    over: bool,
}

impl service_call::AnswerAssembler for OpenAiAssembler {
    fn take(&mut self, data: &[u8]) -> Result<Option<String>, ProviderFailure> {
        if data.trim_ascii() == DONE {
            self.over = true;
            return Ok(None);
        }
        let chunk: ChatCompletionChunk =
            serde_json::from_slice(data).map_err(|error| ProviderFailure::malformed(&error.to_string()))?;
        if let Some(error) = chunk.error {
            return Err(ProviderFailure::Refused(error.into()));
        }
        if self.id.is_empty() {
            self.id = chunk.id.unwrap_or_default();
        }
        if let Some(counts) = chunk.usage {
            self.usage = counted(&counts);
        }
        let mut shown = String::new();
        // The request asks for one choice.
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
            if let Some(delta) = choice.delta {
                shown.extend(delta.content.into_iter().chain(delta.refusal));
                delta.tool_calls.into_iter().flatten().try_for_each(|piece| self.add(piece))?;
            }
        }
        self.text.push_str(&shown);
        Ok(Some(shown).filter(|shown| !shown.is_empty()))
    }

    fn is_over(&self) -> bool {
        self.over
    }

    /// Some services close the connection without an end marker.
    fn is_whole(&self) -> bool {
        self.over || self.finish_reason.is_some()
    }

    fn reply(self) -> Result<ModelReply, ProviderFailure> {
        let end = match self.finish_reason.as_deref() {
            Some("length") => StopReason::OutOfTokens,
            Some("content_filter") => StopReason::Declined,
            Some(_) => StopReason::Complete,
            None => return Err(ProviderFailure::malformed("it is over without a reason")),
        };
        let text =
            Some(self.text).filter(|text| !text.is_empty()).map(|text| Ok(AssistantBlock::Text { text }));
        let calls = self.calls.into_iter().map(|PartialToolCall { id, name, input, .. }| {
            let input = service_call::input(&name, &input, end)?;
            Ok(AssistantBlock::ToolUse(ToolUse { id, name, input }))
        });
        let content =
            text.into_iter().chain(calls).collect::<Result<Vec<AssistantBlock>, ProviderFailure>>()?;
        service_call::reply(self.id, content, self.usage, end)
    }
}

impl OpenAiAssembler {
    /// A delta with another id belongs to another call, even where the service gives all calls index 0.
    fn add(&mut self, piece: ToolCallDelta) -> Result<(), ProviderFailure> {
        let FunctionCallDelta { name, arguments } = piece.function.unwrap_or_default();
        let (id, name) = (piece.id.unwrap_or_default(), name.unwrap_or_default());
        let same = |call: &PartialToolCall| call.index == piece.index && (id.is_empty() || call.id == id);
        let at = match self.calls.iter().rposition(same) {
            Some(at) => at,
            None if name.is_empty() => return Err(ProviderFailure::malformed("a piece of no call")),
            None if self.calls.len() >= MAX_CALLS => {
                return Err(ProviderFailure::malformed("calls without end"));
            }
            None => {
                self.calls.push(PartialToolCall { index: piece.index, id, name, input: String::new() });
                self.calls.len() - 1
            }
        };
        match arguments {
            Value::Null => {}
            Value::String(more) => self.calls[at].input.push_str(&more),
            // Some services send all arguments at once, as an object.
            Value::Object(_) => self.calls[at].input.push_str(&arguments.to_string()),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                return Err(ProviderFailure::malformed("the arguments of a call"));
            }
        }
        Ok(())
    }
}

/// Counts cached tokens apart, as the transcript does.
fn counted(counts: &ChatCompletionUsage) -> ApiUsage {
    let prompt = counts.prompt_tokens.unwrap_or(0);
    let cached = counts.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
    let cached = cached.unwrap_or(0).min(prompt);
    ApiUsage {
        input_tokens: prompt - cached,
        output_tokens: counts.completion_tokens.unwrap_or(0),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: cached,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::service_call::AnswerAssembler as _;
    use super::super::super::sse::SseDecoder;
    use super::*;
    use serde_json::json;

    /// In OpenAI's format; the file with the content filter is in Azure's.
    const TEXT: &str = include_str!("../../../tests/streams/text.sse");
    const CALLS: &str = include_str!("../../../tests/streams/calls.sse");
    const FILTERED: &str = include_str!("../../../tests/streams/filtered.sse");
    const ERROR: &str = include_str!("../../../tests/streams/error.sse");

    fn take(stream: &str, size: usize) -> Result<(OpenAiAssembler, String), ProviderFailure> {
        let (mut events, mut message, mut shown) =
            (SseDecoder::default(), OpenAiAssembler::default(), String::new());
        for piece in stream.as_bytes().chunks(size) {
            for data in events.take(piece)? {
                shown.extend(message.take(&data)?);
            }
        }
        Ok((message, shown))
    }

    fn chunks(chunks: &[Value]) -> Result<(OpenAiAssembler, String), ProviderFailure> {
        take(&chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect::<String>(), 4096)
    }

    fn delta(delta: Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn finish(reason: &str) -> Value {
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    }

    fn call(id: &str, name: &str, input: Value) -> AssistantBlock {
        AssistantBlock::ToolUse(ToolUse { id: id.into(), name: name.into(), input })
    }

    #[test]
    fn a_text_is_put_together_and_counted_however_it_is_cut() {
        for size in 1..200 {
            let (message, shown) = take(TEXT, size).expect("taken");
            assert_eq!((shown.as_str(), message.is_over()), ("Grüße aus dem Turm.", true), "{size}");
            let expected = ModelReply {
                id: "chatcmpl-A1".into(),
                content: vec![AssistantBlock::Text { text: "Grüße aus dem Turm.".into() }],
                usage: ApiUsage {
                    input_tokens: 98,
                    output_tokens: 9,
                    cache_creation_input_tokens: 0,
                    cache_read_input_tokens: 1024,
                },
            };
            assert_eq!(message.reply(), Ok(expected), "{size}");
        }
    }

    #[test]
    fn two_calls_at_once_come_in_pieces() {
        let (message, shown) = take(CALLS, 7).expect("taken");
        assert_eq!((shown.as_str(), message.is_over()), ("I look.", true));
        let reply = message.reply().expect("a reply");
        let expected = vec![
            AssistantBlock::Text { text: "I look.".into() },
            call("call_aaa", "run", json!({"command": "ls -la"})),
            call("call_bbb", "read", json!({"path": "notes.txt"})),
        ];
        assert_eq!(reply.content, expected);
        assert_eq!((reply.usage.input_tokens, reply.usage.output_tokens), (310, 44));
    }

    #[test]
    fn an_answer_that_is_cut_anywhere_is_not_whole() {
        let end = CALLS.find("\"finish_reason\":\"tool_calls\"").expect("an end");
        for size in 0..end {
            if CALLS.is_char_boundary(size) {
                let (message, _) = take(&CALLS[..size], 64).expect("taken");
                assert!(!message.is_whole(), "{size}");
            }
        }
        let (message, _) = chunks(&[delta(json!({"content": "hi"})), finish("stop")]).expect("taken");
        assert!(message.is_whole() && !message.is_over(), "it may hang up now");
        let done = take("data: {\"choices\":[]}\n\ndata: [DONE]\n\n", 64).expect("taken").0;
        assert!(matches!(done.reply(), Err(ProviderFailure::Broken(_))), "over without a reason");
    }

    #[test]
    fn a_filter_declines_and_an_error_in_the_middle_is_a_refusal() {
        let (message, shown) = take(FILTERED, 64).expect("taken");
        assert_eq!((shown.as_str(), message.reply()), ("The tow", Err(ProviderFailure::Declined)));
        let Err(ProviderFailure::Refused(refusal)) = take(ERROR, 64) else { panic!("a refusal") };
        assert_eq!((refusal.status, refusal.kind.as_str()), (None, "server_error"));
        assert!(refusal.message.starts_with("The server had an error"), "{}", refusal.message);
    }

    #[test]
    fn services_that_count_in_their_own_way_are_understood() {
        let piece = |index: Option<u64>, id: &str, name: &str, arguments: Value| {
            let mut piece =
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            if let Some(index) = index {
                piece["index"] = json!(index);
            }
            delta(json!({"content": null, "tool_calls": [piece]}))
        };
        let content = |all: &[Value]| {
            let (message, _) = chunks(&[all, &[finish("tool_calls")]].concat()).expect("taken");
            message.reply().expect("a reply").content
        };
        let two = vec![call("a", "run", json!({"x": 1})), call("b", "run", json!({"x": 2}))];
        // Every call has index 0, or none has an index and each comes at once.
        let first =
            [piece(Some(0), "a", "run", json!("{\"x\":1}")), piece(Some(0), "b", "run", json!("{\"x\":2}"))];
        assert_eq!(content(&first), two);
        let none = [piece(None, "a", "run", json!({"x": 1})), piece(None, "b", "run", json!({"x": 2}))];
        assert_eq!(content(&none), two);
        // The id and the name are repeated with each delta.
        let again = [piece(Some(3), "a", "run", json!("{\"x\"")), piece(Some(3), "a", "run", json!(":1}"))];
        assert_eq!(content(&again), two[..1]);
        assert_eq!(content(&[piece(Some(0), "a", "list", Value::Null)]), [call("a", "list", json!({}))]);
    }

    #[test]
    fn a_call_is_kept_under_a_name_that_services_accept() {
        let called = |name: &str| {
            let piece = json!({"index": 0, "id": "t", "function": {"name": name, "arguments": "{}"}});
            let call = delta(json!({"tool_calls": [piece]}));
            chunks(&[call, finish("tool_calls")]).expect("taken").0.reply()
        };
        let reply = called("Read\n\u{202e}\u{1b}[2J").map(|reply| reply.content);
        assert_eq!(reply, Ok(vec![call("t", "Read2J", json!({}))]));
        assert!(matches!(called("\n"), Err(ProviderFailure::Broken(_))), "nothing is left of its name");
    }

    #[test]
    fn nonsense_is_refused() {
        let piece = |piece: Value| delta(json!({"tool_calls": [piece]}));
        for chunk in [
            json!("text"),
            json!([]),
            json!({"choices": 7}),
            json!({"choices": [{"delta": "x"}]}),
            delta(json!({"content": 7})),
            delta(json!({"tool_calls": {}})),
            piece(json!({"index": -1, "id": "a", "function": {"name": "run"}})),
            piece(json!({"index": 0, "function": {"arguments": "{}"}})),
            piece(json!({"index": 0, "id": "a", "function": {"name": "run", "arguments": [1]}})),
            json!({"usage": {"prompt_tokens": "many"}}),
        ] {
            let refused = chunks(std::slice::from_ref(&chunk)).map(|(_, shown)| shown);
            assert!(matches!(refused, Err(ProviderFailure::Broken(_))), "{chunk}: {refused:?}");
        }
        for data in [&b"{"[..], b"\xff", b"", b"DONE"] {
            assert!(OpenAiAssembler::default().take(data).is_err());
        }
        let call = |number: usize| piece(json!({"index": number, "id": "a", "function": {"name": "run"}}));
        assert!(chunks(&(0..=MAX_CALLS).map(call).collect::<Vec<_>>()).is_err());
    }

    #[test]
    fn an_invalid_call_is_requested_again_unless_the_window_was_full() {
        let half = delta(json!({"tool_calls": [{"index": 0, "id": "t", "function":
            {"name": "write", "arguments": "{\"path\": \"a"}}]}));
        let reply = |reason| chunks(&[half.clone(), finish(reason)]).expect("taken").0.reply();
        assert!(matches!(reply("tool_calls"), Err(ProviderFailure::Broken(_))));
        assert_eq!(reply("length").map(|reply| reply.content), Ok(vec![call("t", "write", json!({}))]));
    }

    #[test]
    fn an_empty_answer_says_why() {
        let reply = |reason| chunks(&[finish(reason)]).expect("taken").0.reply();
        assert_eq!(reply("content_filter"), Err(ProviderFailure::Declined));
        assert_eq!(reply("length"), Err(ProviderFailure::OutOfTokens));
        assert_eq!(reply("stop").map(|reply| reply.content), Ok(vec![]));
        let said =
            chunks(&[delta(json!({"content": null, "refusal": "No."})), finish("stop")]).expect("taken");
        assert_eq!(said.1, "No.");
    }
}
