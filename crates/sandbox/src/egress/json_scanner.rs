//! Reads a few values out of JSON as it passes, in pieces of any size, without keeping the rest. Pure.

use std::fmt;

use ash_model::TokenUsage;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;

/// For one kept value: an id, a model's name, or the usage.
pub(super) const MAX_VALUE: usize = 16 << 10;
/// A known name has at most 21 characters, each of which may be written as an escape of six.
const MAX_KEY: usize = 160;
/// Beyond this depth the scanner only counts brackets.
const MAX_DEPTH: usize = 128;

/// Objects that may contain the fields of an answer.
const WRAPPERS: [&str; 2] = ["message", "response"];
/// Fields with text that the model wrote, in all dialects. If an answer breaks off, only their length tells its usage.
const TEXTS: [&str; 12] = [
    "text",
    "thinking",
    "partial_json",
    "content",
    "arguments",
    "reasoning_content",
    "reasoning",
    "delta",
    "refusal",
    // Hidden reasoning comes encrypted, with about the same length.
    "data",
    "signature",
    "encrypted_content",
];

/// The fields of a JSON text that the proxy needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ScannedFields {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) usage: Option<TokenUsage>,
    /// The `type` of the outermost object.
    pub(super) kind: Option<String>,
    /// Bytes of text that the model wrote.
    pub(super) text: u64,
    /// The outermost object asks for it, with any value that a service could accept as true.
    pub(super) is_background: bool,
    pub(super) is_streamed: bool,
    /// Whether `stream_options` asks for token counts and nothing contradicts that. None: there are no such options.
    pub(super) includes_usage: Option<bool>,
    /// The most tokens that each choice of the answer may have.
    pub(super) max_output: Option<u64>,
    pub(super) choices: Option<u64>,
    pub(super) has_stored_input: bool,
}

impl ScannedFields {
    /// Whether a chat completion would come in pieces without its usage.
    pub(super) fn streams_without_usage(&self) -> bool {
        self.is_streamed && self.includes_usage != Some(true)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ScannedFieldName {
    Id,
    Model,
    Usage,
    Kind,
    Background,
    Stream,
    StreamOptions,
    MaxOutput,
    Choices,
    StoredInput,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum JsonStringState {
    No,
    Key,
    Text { counts: bool },
}

/// Scans one JSON text.
#[derive(Debug)]
pub(super) struct JsonScanner {
    pub(super) seen: ScannedFields,
    /// For each open bracket, whether it opens an object.
    open: Vec<bool>,
    deeper: usize,
    string: JsonStringState,
    escaped: bool,
    /// The next string is a field's name.
    expects_key: bool,
    key: Vec<u8>,
    /// The outermost field in progress is one of `WRAPPERS`.
    wrapped: bool,
    keeping: Option<(ScannedFieldName, usize)>,
    kept: Vec<u8>,
}

impl Default for JsonScanner {
    fn default() -> Self {
        Self {
            seen: ScannedFields::default(),
            open: Vec::new(),
            deeper: 0,
            string: JsonStringState::No,
            escaped: false,
            expects_key: false,
            key: Vec::new(),
            wrapped: false,
            keeping: None,
            kept: Vec::new(),
        }
    }
}

impl JsonScanner {
    /// The scanner's memory is bounded, however long the text is.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_bounds(&self) {
        assert!(
            self.open.len() <= MAX_DEPTH && self.key.len() <= MAX_KEY && self.kept.len() <= MAX_VALUE + 1
        );
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.take(*byte));
    }

    fn take(&mut self, byte: u8) {
        if self.string != JsonStringState::No {
            return self.take_in_string(byte);
        }
        match byte {
            b'"' => {
                if self.expects_key {
                    self.key.clear();
                    self.string = JsonStringState::Key;
                } else {
                    let counts = TEXTS.iter().any(|name| name.as_bytes() == self.key);
                    self.string = JsonStringState::Text { counts };
                }
                self.keep(byte);
            }
            b'{' | b'[' => {
                match self.open.len() < MAX_DEPTH {
                    true => self.open.push(byte == b'{'),
                    false => self.deeper += 1,
                }
                self.expects_key = byte == b'{';
                self.keep(byte);
            }
            b'}' | b']' if self.deeper > 0 => {
                self.deeper -= 1;
                self.keep(byte);
            }
            b'}' | b']' => {
                self.end_value_at(self.open.len());
                self.open.pop();
                self.expects_key = false;
                self.keep(byte);
                // The kept value may end with this bracket.
                self.end_value_at(self.open.len());
                if self.open.len() == 1 {
                    self.wrapped = false;
                }
            }
            b':' if self.deeper == 0 => {
                self.expects_key = false;
                self.keep(byte);
                self.begin_value();
            }
            b',' if self.deeper == 0 => {
                self.end_value_at(self.open.len());
                self.expects_key = self.open.last().is_some_and(|is_object| *is_object);
                self.keep(byte);
            }
            _ => self.keep(byte),
        }
    }

    fn take_in_string(&mut self, byte: u8) {
        self.keep(byte);
        match (self.string, byte) {
            (JsonStringState::Key, b'"') if !self.escaped => {
                self.string = JsonStringState::No;
                self.end_key();
            }
            (JsonStringState::Key, _) => {
                self.escaped = !self.escaped && byte == b'\\';
                if self.key.len() < MAX_KEY {
                    self.key.push(byte);
                }
            }
            _ if self.escaped => self.escaped = false,
            (_, b'\\') => self.escaped = true,
            (_, b'"') => self.string = JsonStringState::No,
            (JsonStringState::Text { counts: true }, _) => self.seen.text += 1,
            (JsonStringState::Text { counts: false } | JsonStringState::No, _) => {}
        }
    }

    /// A name means the same when it is written with escapes.
    fn end_key(&mut self) {
        if self.key.contains(&b'\\') {
            let quoted = [b"\"", self.key.as_slice(), b"\""].concat();
            if let Ok(key) = serde_json::from_slice::<String>(&quoted) {
                self.key = key.into_bytes();
            }
        }
    }

    fn begin_value(&mut self) {
        let depth = self.open.len();
        if depth == 1 {
            self.wrapped = WRAPPERS.iter().any(|name| name.as_bytes() == self.key);
        }
        if self.keeping.is_some() || !(depth == 1 || depth == 2 && self.wrapped) {
            return;
        }
        let field = match self.key.as_slice() {
            b"id" => ScannedFieldName::Id,
            b"model" => ScannedFieldName::Model,
            b"usage" => ScannedFieldName::Usage,
            b"type" if depth == 1 => ScannedFieldName::Kind,
            key if depth == 1 => match question_field(key) {
                // Some services would accept this spelling, and others not.
                Some(ScannedFieldName::StreamOptions) if key != b"stream_options" => {
                    self.seen.includes_usage = Some(false);
                    return;
                }
                Some(field) => field,
                None => return,
            },
            _ => return,
        };
        self.kept.clear();
        self.keeping = Some((field, depth));
    }

    fn keep(&mut self, byte: u8) {
        if self.keeping.is_some() && self.kept.len() <= MAX_VALUE {
            self.kept.push(byte);
        }
    }

    fn end_value_at(&mut self, depth: usize) {
        let Some((field, _)) = self.keeping.filter(|(_, began)| *began == depth) else { return };
        self.keeping = None;
        // None for a value that is too long or no JSON.
        let value = serde_json::from_slice::<Value>(&self.kept).ok();
        let is_yes = !matches!(value, Some(Value::Bool(false) | Value::Null));
        match field {
            ScannedFieldName::Background => self.seen.is_background |= is_yes,
            ScannedFieldName::Stream => self.seen.is_streamed |= is_yes,
            ScannedFieldName::StoredInput => self.seen.has_stored_input |= is_yes,
            ScannedFieldName::StreamOptions => {
                let includes = serde_json::from_slice::<StreamOptions>(&self.kept).is_ok_and(|asked| asked.0);
                self.seen.includes_usage = Some(includes && self.seen.includes_usage != Some(false));
            }
            ScannedFieldName::Id
            | ScannedFieldName::Model
            | ScannedFieldName::Usage
            | ScannedFieldName::Kind
            | ScannedFieldName::MaxOutput
            | ScannedFieldName::Choices => {}
        }
        let Some(value) = value else { return };
        let text = || value.as_str().filter(|text| text.len() <= 256).map(str::to_owned);
        match field {
            ScannedFieldName::Id => self.seen.id = text().or(self.seen.id.take()),
            ScannedFieldName::Model => self.seen.model = text().or(self.seen.model.take()),
            ScannedFieldName::Kind => self.seen.kind = text(),
            ScannedFieldName::Usage if value.is_object() => self.seen.usage = Some(usage(&value)),
            ScannedFieldName::MaxOutput => self.seen.max_output = self.seen.max_output.max(value.as_u64()),
            ScannedFieldName::Choices => self.seen.choices = self.seen.choices.max(value.as_u64()),
            ScannedFieldName::Usage
            | ScannedFieldName::Background
            | ScannedFieldName::Stream
            | ScannedFieldName::StreamOptions
            | ScannedFieldName::StoredInput => {}
        }
    }
}

/// Some services ignore the case of names.
fn question_field(key: &[u8]) -> Option<ScannedFieldName> {
    const FIELDS: [(&str, ScannedFieldName); 10] = [
        ("background", ScannedFieldName::Background),
        ("stream", ScannedFieldName::Stream),
        ("stream_options", ScannedFieldName::StreamOptions),
        ("n", ScannedFieldName::Choices),
        // The limit of output tokens, in all dialects.
        ("max_tokens", ScannedFieldName::MaxOutput),
        ("max_completion_tokens", ScannedFieldName::MaxOutput),
        ("max_output_tokens", ScannedFieldName::MaxOutput),
        // Input that the service stores, and that the request only names.
        ("previous_response_id", ScannedFieldName::StoredInput),
        ("conversation", ScannedFieldName::StoredInput),
        ("prompt", ScannedFieldName::StoredInput),
    ];
    let found = FIELDS.iter().find(|(name, _)| key.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(_, field)| *field)
}

/// Whether every `include_usage` asks for the usage: services differ in which of two fields of the same name counts.
struct StreamOptions(bool);

impl<'de> Deserialize<'de> for StreamOptions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = StreamOptions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<StreamOptions, A::Error> {
                let (mut said, mut all) = (false, true);
                while let Some((name, value)) = fields.next_entry::<String, Value>()? {
                    if name.eq_ignore_ascii_case("include_usage") {
                        (said, all) = (said || name == "include_usage", all && value == Value::Bool(true));
                    }
                }
                Ok(StreamOptions(said && all))
            }
        }
        from.deserialize_map(Fields)
    }
}

/// Reads the usage in any dialect. Some dialects include the tokens read from a cache in the input.
pub(super) fn usage(value: &Value) -> TokenUsage {
    let number = |name: &str| value[name].as_u64().unwrap_or(0);
    let usage = if value["prompt_tokens"].is_u64() {
        let cached = value["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let prompt = number("prompt_tokens");
        TokenUsage {
            input_tokens: prompt.saturating_sub(cached),
            output_tokens: number("completion_tokens"),
            cache_read_tokens: cached.min(prompt),
            ..TokenUsage::default()
        }
    } else if value["input_tokens_details"].is_object() {
        let cached = value["input_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let input = number("input_tokens");
        TokenUsage {
            input_tokens: input.saturating_sub(cached),
            output_tokens: number("output_tokens"),
            cache_read_tokens: cached.min(input),
            ..TokenUsage::default()
        }
    } else {
        TokenUsage::of_messages_api(value)
    };
    usage.clamped()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scanned(text: &str, step: usize) -> ScannedFields {
        let mut scanner = JsonScanner::default();
        text.as_bytes().chunks(step).for_each(|piece| scanner.push(piece));
        scanner.seen
    }

    fn used(input_tokens: u64, output_tokens: u64, cache_read_tokens: u64) -> Option<TokenUsage> {
        Some(TokenUsage { input_tokens, output_tokens, cache_read_tokens, ..TokenUsage::default() })
    }

    #[test]
    fn usage_is_read_in_every_dialect() {
        for (text, id, expected) in [
            (
                json!({"id": "msg_1", "type": "message", "model": "m", "content": [{"type": "text", "text": "hi", "id": "no"}],
                    "usage": {"input_tokens": 7, "output_tokens": 2, "cache_read_input_tokens": 3, "x": {"usage": 1}}}),
                "msg_1",
                used(7, 2, 3),
            ),
            (
                json!({"id": "msg_1", "type": "message", "model": "m", "usage": {"input_tokens": 7, "output_tokens": 2,
                    "cache_creation_input_tokens": 5, "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 4}}}),
                "msg_1",
                used(7, 2, 0).map(|usage| TokenUsage {
                    cache_creation_tokens: 5,
                    cache_creation_1h_tokens: 4,
                    ..usage
                }),
            ),
            (
                json!({"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}}),
                "msg_1",
                used(7, 1, 0),
            ),
            (
                json!({"id": "chatcmpl-1", "model": "m", "choices": [{"message": {"content": "hi"}}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}}),
                "chatcmpl-1",
                used(4, 4, 6),
            ),
            (
                json!({"type": "response.completed", "response": {"id": "resp_1", "model": "m",
                    "usage": {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5}}}),
                "resp_1",
                used(6, 5, 4),
            ),
        ] {
            let text = text.to_string();
            for step in [1, 7, text.len()] {
                let seen = scanned(&text, step);
                assert_eq!((seen.id.as_deref(), seen.model.as_deref()), (Some(id), Some("m")), "{text}");
                assert_eq!(seen.usage, expected, "{text}");
            }
        }
    }

    #[test]
    fn lookalike_fields_are_not_taken_for_usage() {
        let text = json!({"content": [{"text": "\"usage\": {\"output_tokens\": 1}", "usage": {"output_tokens": 9}}],
            "choices": [{"id": "x", "model": "y"}], "usage": null, "id": {"id": "z"}, "model": "m".repeat(300)});
        let seen = scanned(&text.to_string(), 3);
        assert_eq!((seen.id, seen.model, seen.usage), (None, None, None));
        for wild in ["", "}", "]]]", "{\"usage\":", "{\"usage\": {", "{\"id\": \"\\\"", "nonsense"] {
            assert_eq!(scanned(wild, 1).usage, None, "{wild}");
        }
        scanned(&"[{\"usage\":".repeat(1000), 100);
        scanned(&format!("{{\"usage\": {{\"x\": \"{}\"}}, \"id\": \"late\"}}", "y".repeat(1 << 20)), 4096);
    }

    #[test]
    fn work_in_the_background_is_seen_however_it_is_asked_for() {
        let spaces = " ".repeat(2 * MAX_VALUE);
        for text in [
            r#"{"model": "m", "background": true}"#,
            r#"{"background":true,"background":false}"#,
            r#"{"input": [{"background": false}], "background": 1 }"#,
            r#"{"background": "true", "x": 1}"#,
            r#"{"\u0062\u0061\u0063\u006b\u0067\u0072\u006f\u0075\u006e\u0064": true}"#,
            r#"{"a\"": "\\", "b\u0061ckground": true}"#,
            &format!(r#"{{"background": {spaces}true}}"#),
        ] {
            for step in [1, 7, text.len()] {
                assert!(scanned(text, step).is_background, "{text}");
            }
        }
        for text in [
            r#"{"model": "m"}"#,
            r#"{"background": false, "input": "\"background\": true"}"#,
            r#"{"background":null}"#,
            r#"{"metadata": {"background": true}, "response": {"background": true}}"#,
            r#"{"input": ["background", true, {"background": true}], "\\background": true}"#,
        ] {
            assert!(!scanned(text, 3).is_background, "{text}");
        }
    }

    #[test]
    fn a_stream_without_usage_is_seen_however_it_is_asked_for() {
        let spaces = " ".repeat(2 * MAX_VALUE);
        for text in [
            r#"{"stream": true}"#,
            r#"{"stream": 1, "stream_options": {}}"#,
            r#"{"STREAM": true, "stream_options": {"include_usage": "true"}}"#,
            r#"{"str\u0065am": true, "stream_options": null}"#,
            r#"{"stream": false, "stream": true, "stream_options": {"Include_Usage": true}}"#,
            r#"{"stream": true, "Stream_Options": {"include_usage": true}}"#,
            r#"{"stream": true, "stream_options": {"include_usage": true, "include_usage": false}}"#,
            r#"{"stream": true, "stream_options": {"include_usage": true}, "stream_options": {}}"#,
            r#"{"stream": true, "stream_options": {}, "stream_options": {"include_usage": true}}"#,
            r#"{"stream": true, "x": {"stream_options": {"include_usage": true}}}"#,
            &format!(r#"{{"stream": true, "stream_options": {{{spaces}"include_usage": true}}}}"#),
        ] {
            for step in [1, 7, text.len()] {
                assert!(scanned(text, step).streams_without_usage(), "{text}");
            }
        }
        let escaped: String = "stream_options".bytes().map(|byte| format!("\\u{byte:04x}")).collect();
        for text in [
            "{}",
            r#"{"stream": false}"#,
            r#"{"x": [{"stream": true}]}"#,
            r#"{"stream_options": {"include_usage": true, "x": [1]}, "stream": true}"#,
            &format!(r#"{{"stream": true, "{escaped}": {{"include_usage": true}}}}"#),
        ] {
            assert!(!scanned(text, 3).streams_without_usage(), "{text}");
        }
    }

    #[test]
    fn the_maximum_output_of_a_request_is_read() {
        let of = |text: &str| scanned(text, 5).max_output;
        assert_eq!(of(r#"{"max_tokens": 7, "max_completion_tokens": 9, "n": 2}"#), Some(9));
        assert_eq!(of(r#"{"max_output_tokens": 3, "metadata": {"max_tokens": 100}}"#), Some(3));
        assert_eq!(of(r#"{"max_tokens": -1}"#), None);
        assert_eq!(scanned(r#"{"n": 4}"#, 2).choices, Some(4));
        assert!(scanned(r#"{"previous_response_id": "r"}"#, 2).has_stored_input);
        assert!(!scanned(r#"{"previous_response_id": null}"#, 2).has_stored_input);
    }

    #[test]
    fn the_text_of_a_model_is_measured() {
        let text =
            json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "12345678"}});
        assert_eq!(scanned(&text.to_string(), 2).text, 8);
    }
}
