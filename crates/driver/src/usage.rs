//! Reads usage reports from an agent's lines.
//!
//! Claude Code prints a line for each block of an answer, all with the usage at the answer's start. The final usage is in
//! the stream of deltas. The usage of subagents is only in the sum of each result. No sum includes an answer that was cut
//! off.

use ash_model::{ModelStopReason, TokenUsage};
use serde_json::Value;

/// The longest id or model name, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// The limit for models in one sum; further ones are ignored.
const MAX_MODELS: usize = 32;

/// What one line reports about the usage of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageReport {
    /// The usage of an answer so far. A repeated or smaller report changes nothing.
    Answer {
        /// The service's id of the answer.
        id: String,
        /// The model that answered.
        model: String,
        /// The answer belongs to a subagent, not to the agent's own loop.
        helper: bool,
        /// The usage so far.
        usage: TokenUsage,
        /// How the answer ended; `None`: it continues.
        end: Option<ModelStopReason>,
    },
    /// An answer that passed through the shim, for any process in the sandbox.
    Routed {
        /// The service's id of the answer.
        id: String,
        /// The model that answered.
        model: String,
        /// The usage of the answer.
        usage: TokenUsage,
    },
    /// A later report for the agent's own answer that is in progress.
    More {
        /// The usage so far.
        usage: TokenUsage,
        /// How the answer ended; `None`: it continues.
        end: Option<ModelStopReason>,
    },
    /// The usage of a turn from the result of an agent without sums. It counts only if no other report covered the turn.
    Turn {
        /// The model that answered.
        model: String,
        /// The usage of the turn.
        usage: TokenUsage,
    },
    /// The agent's own sum since its last one, by model. An answer that was in progress is over, or was cut off.
    Sum {
        /// The usage of each model.
        models: Vec<(String, TokenUsage)>,
        /// The answer in progress was cut off.
        torn: bool,
    },
}

/// Whether an answer's line is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerLineKind {
    Whole,
    Blocks,
}

pub(crate) fn used(line: &[u8], lines: AnswerLineKind) -> Option<UsageReport> {
    // Most lines are parts of a text, so skip the parser.
    let line = std::str::from_utf8(line).ok()?;
    if !line.contains("\"usage\"") && !line.contains("\"tool_result\"") {
        return None;
    }
    let value: Value = serde_json::from_str(line).ok()?;
    let helper = value.get("parent_tool_use_id").is_some_and(|of| !of.is_null());
    match (value["type"].as_str()?, value["subtype"].as_str()) {
        ("assistant", _) => {
            let end = (lines == AnswerLineKind::Whole)
                .then(|| if calls(&value) { ModelStopReason::ToolCalls } else { ModelStopReason::Complete });
            answer(&value["message"], helper, end)
        }
        // A tool result: the answer that made the call is over.
        ("user", _) if lines == AnswerLineKind::Blocks && !helper => {
            Some(UsageReport::More { usage: TokenUsage::default(), end: Some(ModelStopReason::ToolCalls) })
        }
        ("stream_event", _) => piece(&value["event"], helper),
        ("result", _) => sum(&value),
        ("system", Some("compact_boundary")) => compaction_usage(&value),
        _ => None,
    }
}

fn answer(message: &Value, helper: bool, end: Option<ModelStopReason>) -> Option<UsageReport> {
    let (id, model) = (name(&message["id"])?, name(&message["model"])?);
    let usage = TokenUsage::of_messages_api(message.get("usage")?);
    // Synthetic messages do not come from a model.
    (model != "<synthetic>").then_some(UsageReport::Answer { id, model, helper, usage, end })
}

fn piece(event: &Value, helper: bool) -> Option<UsageReport> {
    match event["type"].as_str()? {
        "message_start" => answer(&event["message"], helper, None),
        "message_delta" if !helper => {
            let end = event["delta"]["stop_reason"].as_str().map(|reason| match reason {
                "tool_use" => ModelStopReason::ToolCalls,
                _ => ModelStopReason::Complete,
            });
            Some(UsageReport::More { usage: TokenUsage::of_messages_api(&event["usage"]), end })
        }
        _ => None,
    }
}

fn sum(result: &Value) -> Option<UsageReport> {
    let Some(models) = result["model_usage_since_last_result"].as_object() else { return of_turn(result) };
    let models = models.iter().take(MAX_MODELS).filter(|(name, _)| name.len() <= MAX_NAME_BYTES);
    let aborted = result["terminal_reason"].as_str().is_some_and(|reason| reason.starts_with("aborted"));
    let torn = aborted || result["is_error"] == true;
    Some(UsageReport::Sum { models: models.map(|(name, used)| (name.clone(), summed(used))).collect(), torn })
}

fn of_turn(result: &Value) -> Option<UsageReport> {
    let usage = TokenUsage::of_messages_api(result.get("usage")?);
    // The model is certain only if there is exactly one.
    let models = result["modelUsage"].as_object().filter(|models| models.len() == 1);
    let model = models.and_then(|models| models.keys().next()).filter(|name| name.len() <= MAX_NAME_BYTES);
    let model = model.cloned().unwrap_or_default();
    (!usage.is_zero()).then_some(UsageReport::Turn { model, usage })
}

/// The request for a compaction summary, which is not part of the conversation.
fn compaction_usage(line: &Value) -> Option<UsageReport> {
    let (id, usage) = (name(&line["uuid"])?, TokenUsage::of_messages_api(line.get("usage")?));
    let model = name(&line["model"]).unwrap_or_default();
    Some(UsageReport::Answer { id, model, helper: true, usage, end: Some(ModelStopReason::Complete) })
}

fn calls(line: &Value) -> bool {
    let blocks = line["message"]["content"].as_array().into_iter().flatten();
    blocks.into_iter().any(|block| block["type"] == "tool_use")
}

fn name(value: &Value) -> Option<String> {
    value.as_str().filter(|text| text.len() <= MAX_NAME_BYTES).map(str::to_owned)
}

fn summed(used: &Value) -> TokenUsage {
    let number = |name: &str| used[name].as_u64().unwrap_or(0);
    let usage = TokenUsage {
        input_tokens: number("inputTokens"),
        output_tokens: number("outputTokens"),
        cache_creation_tokens: number("cacheCreationInputTokens"),
        cache_read_tokens: number("cacheReadInputTokens"),
        ..TokenUsage::default()
    };
    usage.clamped()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn heard(line: Value, lines: AnswerLineKind) -> Option<UsageReport> {
        used(line.to_string().as_bytes(), lines)
    }

    fn usage(input_tokens: u64, output_tokens: u64) -> TokenUsage {
        TokenUsage { input_tokens, output_tokens, ..TokenUsage::default() }
    }

    #[test]
    fn as_claude_code_was_recorded() {
        let message = json!({"id": "msg_1", "model": "m", "content": [{"type": "tool_use"}],
            "usage": {"input_tokens": 7, "output_tokens": 1}});
        let first = |helper, end| {
            let (id, model) = ("msg_1".to_owned(), "m".to_owned());
            Some(UsageReport::Answer { id, model, helper, usage: usage(7, 1), end })
        };
        let line = |of: Value| json!({"type": "assistant", "parent_tool_use_id": of, "message": message});
        assert_eq!(heard(line(Value::Null), AnswerLineKind::Blocks), first(false, None));
        assert_eq!(heard(line(json!("toolu_1")), AnswerLineKind::Blocks), first(true, None));
        assert_eq!(
            heard(line(Value::Null), AnswerLineKind::Whole),
            first(false, Some(ModelStopReason::ToolCalls))
        );
        let event = |event: Value| json!({"type": "stream_event", "event": event});
        let start = event(json!({"type": "message_start", "message": message}));
        assert_eq!(heard(start, AnswerLineKind::Blocks), first(false, None));
        let delta = |reason: Value| {
            let delta = json!({"stop_reason": reason});
            heard(
                event(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}})),
                AnswerLineKind::Blocks,
            )
        };
        let more = |end| Some(UsageReport::More { usage: usage(0, 9), end });
        assert_eq!(delta(json!("tool_use")), more(Some(ModelStopReason::ToolCalls)));
        assert_eq!(delta(json!("end_turn")), more(Some(ModelStopReason::Complete)));
        assert_eq!(delta(Value::Null), more(None));
        let result = |reason: &str| {
            json!({"type": "result", "terminal_reason": reason, "usage": {"input_tokens": 3},
                "modelUsage": {"m": {"inputTokens": 1000}},
                "model_usage_since_last_result": {"m": {"inputTokens": 7, "outputTokens": 9, "costUSD": 0.1}}})
        };
        let sum = |torn| Some(UsageReport::Sum { models: vec![("m".to_owned(), usage(7, 9))], torn });
        assert_eq!(heard(result("completed"), AnswerLineKind::Blocks), sum(false));
        assert_eq!(heard(result("aborted_streaming"), AnswerLineKind::Blocks), sum(true));
    }

    #[test]
    fn a_result_without_a_sum_reports_its_turns_usage() {
        let told = |models: Value| {
            heard(
                json!({"type": "result", "usage": {"input_tokens": 3, "output_tokens": 4}, "modelUsage": models}),
                AnswerLineKind::Blocks,
            )
        };
        let turn = |model: &str| Some(UsageReport::Turn { model: model.to_owned(), usage: usage(3, 4) });
        assert_eq!(told(json!({"m": {}})), turn("m"));
        assert_eq!(told(json!({"m": {}, "n": {}})), turn(""));
        assert_eq!(told(Value::Null), turn(""));
        let nothing = json!({"type": "result", "usage": {"input_tokens": 0}});
        assert_eq!(heard(nothing, AnswerLineKind::Whole), None);
    }

    #[test]
    fn usage_beside_the_conversation_counts_once_too() {
        let line = json!({"type": "system", "subtype": "compact_boundary", "uuid": "u",
            "usage": {"input_tokens": 7, "output_tokens": 1}});
        let report = heard(line, AnswerLineKind::Whole);
        let (id, model) = ("u".to_owned(), String::new());
        assert_eq!(
            report,
            Some(UsageReport::Answer {
                id,
                model,
                helper: true,
                usage: usage(7, 1),
                end: Some(ModelStopReason::Complete)
            })
        );
        let without =
            json!({"type": "system", "subtype": "compact_boundary", "uuid": "u", "x": {"usage": 1}});
        assert_eq!(heard(without, AnswerLineKind::Whole), None);
    }

    #[test]
    fn invalid_usage_reports_do_no_harm() {
        for line in [
            json!({"type": "assistant", "usage": 1}),
            json!({"type": "assistant", "message": {"id": "i", "model": "<synthetic>", "usage": {}}}),
            json!({"type": "assistant", "message": {"id": "i".repeat(300), "model": "m", "usage": {}}}),
            json!({"type": "assistant", "message": [{"usage": 1}]}),
            json!({"type": "result", "usage": [1], "model_usage_since_last_result": [1]}),
            json!(["usage"]),
        ] {
            assert_eq!(heard(line.clone(), AnswerLineKind::Blocks), None, "{line}");
        }
        let wild = json!({"type": "assistant", "message": {"id": "i", "model": "m",
            "usage": {"input_tokens": u64::MAX, "output_tokens": -1, "cache_read_input_tokens": "x"}}});
        let Some(UsageReport::Answer { usage, .. }) = heard(wild, AnswerLineKind::Whole) else {
            panic!("an answer")
        };
        assert_eq!(usage, TokenUsage { input_tokens: u64::MAX, ..TokenUsage::default() }.clamped());
    }
}
