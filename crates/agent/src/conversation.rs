//! The conversation: facts in the order of the transcript, and the turns that follow from them.

use crate::context_window::TokenDensity;
use crate::ids;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// One line of the transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TranscriptEntry {
    #[serde(flatten)]
    pub(crate) fact: TranscriptFact,
    pub(crate) uuid: String,
    pub(crate) turn: String,
    /// Milliseconds since 1970.
    pub(crate) at: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TranscriptFact {
    User {
        message: UserMessage,
        /// A note from the host before the prompt, for example how long the agent slept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<String>,
    },
    Assistant {
        message: AssistantMessage,
    },
    ToolResult(ToolResult),
    /// A message that arrived while the turn ran. The line has the message's own uuid.
    Steer {
        message: UserMessage,
    },
    Result(TurnResult),
    /// Ends a turn, as a result does. Keeps the text that was already streamed, since the user saw it.
    Interrupted {
        #[serde(flatten)]
        ending: TurnResult,
        partial: String,
    },
    Compaction(CompactionRecord),
    /// A summary that was no shorter than its source. It is not used, but it was paid for, and the agent does not retry
    /// at once.
    CompactionDiscarded {
        /// The length of the conversation at that time.
        tokens: u64,
        /// The usage of the request for the summary.
        usage: ApiUsage,
    },
}

/// A summary of old turns. From here on it replaces them in requests; the transcript still holds all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompactionRecord {
    pub(crate) summary: String,
    pub(crate) covers: Vec<CompactedTurn>,
    pub(crate) tokens_before: u64,
    pub(crate) tokens_after: u64,
    /// The measured tokens per thousand bytes of the conversation. Until the next answer there is no newer measurement.
    pub(crate) tokens_per_1000_bytes: u64,
    /// The usage of the request for the summary.
    pub(crate) usage: ApiUsage,
}

/// A turn, and how many of its steps are covered, counted from the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompactedTurn {
    pub(crate) turn: String,
    pub(crate) steps: usize,
}

/// What the model does not see any more, and the summary in its place.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CompactedHistory {
    pub(crate) summary: Option<String>,
    /// The number of covered steps by turn id.
    pub(crate) steps: HashMap<String, usize>,
}

impl CompactedHistory {
    pub(crate) fn extend(&mut self, summary: &str, covers: &[CompactedTurn]) {
        self.summary = Some(summary.to_owned());
        self.steps.extend(covers.iter().map(|covered| (covered.turn.clone(), covered.steps)));
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UserMessage {
    pub(crate) role: UserRole,
    pub(crate) content: PromptContent,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UserRole {
    #[default]
    User,
}

/// A prompt as the client wrote it. Unknown blocks stay unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum PromptContent {
    Text(String),
    Blocks(Vec<Value>),
}

impl PromptContent {
    pub(crate) fn text(&self) -> String {
        match self {
            PromptContent::Text(text) => text.clone(),
            PromptContent::Blocks(blocks) => blocks.iter().filter_map(text_of).collect::<Vec<_>>().join("\n"),
        }
    }

    /// The number of blocks that are not text.
    pub(crate) fn non_text_blocks(&self) -> usize {
        match self {
            PromptContent::Text(_) => 0,
            PromptContent::Blocks(blocks) => blocks.iter().filter(|block| text_of(block).is_none()).count(),
        }
    }
}

fn text_of(block: &Value) -> Option<&str> {
    if block.get("type")? == "text" { block.get("text")?.as_str() } else { None }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AssistantMessage {
    pub(crate) id: String,
    pub(crate) role: AssistantRole,
    pub(crate) model: String,
    pub(crate) content: Vec<AssistantBlock>,
    pub(crate) usage: ApiUsage,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AssistantRole {
    #[default]
    Assistant,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum AssistantBlock {
    Text {
        text: String,
    },
    ToolUse(ToolUse),
    /// Stored unchanged, because the signature covers it.
    Thinking {
        thinking: String,
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolUse {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) input: Value,
}

impl AssistantMessage {
    pub(crate) fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|block| match block {
            AssistantBlock::Text { text } => Some(text.as_str()),
            AssistantBlock::ToolUse(_)
            | AssistantBlock::Thinking { .. }
            | AssistantBlock::RedactedThinking { .. } => None,
        });
        texts.collect()
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &ToolUse> {
        self.content.iter().filter_map(|block| match block {
            AssistantBlock::ToolUse(call) => Some(call),
            AssistantBlock::Text { .. }
            | AssistantBlock::Thinking { .. }
            | AssistantBlock::RedactedThinking { .. } => None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolResult {
    pub(crate) tool_use_id: String,
    pub(crate) content: String,
    pub(crate) is_error: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_use_result: Option<CommandOutput>,
}

impl ToolResult {
    /// The result of a call during which the process died.
    pub(crate) const UNKNOWN: &str = "[Tool call interrupted: its outcome is unknown]";

    /// The result of a call that did not run to its end.
    pub(crate) fn refused(tool_use_id: String, why: &str) -> ToolResult {
        ToolResult { tool_use_id, content: why.to_owned(), is_error: true, tool_use_result: None }
    }
}

/// The output of a command by stream, for clients that show the streams differently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CommandOutput {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    #[serde(rename = "exitCode")]
    pub(crate) exit_code: i32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnResult {
    pub(crate) subtype: ResultSubtype,
    pub(crate) is_error: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) terminal_reason: Option<TerminalReason>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
    pub(crate) num_turns: usize,
    pub(crate) usage: ApiUsage,
    pub(crate) duration_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResultSubtype {
    Success,
    ErrorDuringExecution,
    ErrorMaxTurns,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TerminalReason {
    AbortedStreaming,
    AbortedTools,
    ApiError,
    /// The model rejects this prompt, so later requests leave it out.
    InvalidRequest,
    MaxTurns,
    /// The request would be larger than the model's window.
    ContextFull,
    TranscriptError,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct ApiUsage {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) cache_creation_input_tokens: u64,
    pub(crate) cache_read_input_tokens: u64,
}

impl std::iter::Sum for ApiUsage {
    fn sum<I: Iterator<Item = ApiUsage>>(parts: I) -> ApiUsage {
        // The numbers come from the service and may be anything.
        let add = u64::saturating_add;
        parts.fold(ApiUsage::default(), |sum, part| ApiUsage {
            input_tokens: add(sum.input_tokens, part.input_tokens),
            output_tokens: add(sum.output_tokens, part.output_tokens),
            cache_creation_input_tokens: add(
                sum.cache_creation_input_tokens,
                part.cache_creation_input_tokens,
            ),
            cache_read_input_tokens: add(sum.cache_read_input_tokens, part.cache_read_input_tokens),
        })
    }
}

/// A prompt and everything that followed from it so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TranscriptTurn {
    pub(crate) uuid: String,
    /// `None` if that line of the transcript was damaged.
    pub(crate) prompt: Option<PromptContent>,
    pub(crate) head: Option<String>,
    pub(crate) steps: Vec<TurnStep>,
    pub(crate) ended: Option<TurnEndRecord>,
}

/// One answer of the provider, and the results of its tool calls.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TurnStep {
    pub(crate) uuid: String,
    pub(crate) message: AssistantMessage,
    pub(crate) results: Vec<TranscriptItem<ToolResult>>,
    /// Messages of the user after that.
    pub(crate) steers: Vec<TranscriptItem<PromptContent>>,
}

/// Content with the uuid of its line, so that a repeated output is identical.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TranscriptItem<T> {
    pub(crate) uuid: String,
    pub(crate) content: T,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TurnEndRecord {
    pub(crate) uuid: String,
    pub(crate) ending: TurnResult,
    pub(crate) partial: String,
}

impl TurnStep {
    /// Calls without a recorded result.
    pub(crate) fn open_calls(&self) -> impl Iterator<Item = &ToolUse> {
        let is_open = |call: &&ToolUse| !self.results.iter().any(|r| r.content.tool_use_id == call.id);
        self.message.calls().filter(is_open)
    }
}

impl TranscriptTurn {
    pub(crate) fn text(&self) -> String {
        self.prompt.as_ref().map(PromptContent::text).unwrap_or_default()
    }

    /// The step without tool calls, which is the final answer.
    pub(crate) fn answer(&self) -> Option<&TurnStep> {
        self.steps.last().filter(|step| step.message.calls().next().is_none())
    }

    pub(crate) fn usage(&self) -> ApiUsage {
        self.steps.iter().map(|step| step.message.usage).sum()
    }

    /// Calls without a recorded result. They may or may not have taken effect.
    pub(crate) fn open_calls(&self) -> Vec<String> {
        self.steps.iter().flat_map(TurnStep::open_calls).map(|call| call.id.clone()).collect()
    }

    fn add(&mut self, uuid: String, fact: TranscriptFact) {
        match fact {
            TranscriptFact::User { message, head } => {
                if self.prompt.is_none() {
                    (self.prompt, self.head) = (Some(message.content), head);
                }
            }
            TranscriptFact::Assistant { message } => {
                self.steps.push(TurnStep { uuid, message, results: Vec::new(), steers: Vec::new() });
            }
            TranscriptFact::ToolResult(result) => self.add_result(uuid, result),
            TranscriptFact::Steer { message } => {
                if let Some(step) = self.steps.last_mut() {
                    step.steers.push(TranscriptItem { uuid, content: message.content });
                }
            }
            TranscriptFact::Result(ending) => {
                self.end(TurnEndRecord { uuid, ending, partial: String::new() })
            }
            TranscriptFact::Interrupted { ending, partial } => {
                self.end(TurnEndRecord { uuid, ending, partial })
            }
            // These belong to the conversation, not to a turn.
            TranscriptFact::Compaction(_) | TranscriptFact::CompactionDiscarded { .. } => {}
        }
    }

    /// Drops a result whose call was lost to damage: no provider accepts one without the other.
    fn add_result(&mut self, uuid: String, what: ToolResult) {
        let called = |step: &&mut TurnStep| step.message.calls().any(|call| call.id == what.tool_use_id);
        if let Some(step) = self.steps.iter_mut().find(called) {
            step.results.push(TranscriptItem { uuid, content: what });
        }
    }

    fn end(&mut self, ended: TurnEndRecord) {
        self.ended.get_or_insert(ended);
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct ConversationHistory {
    turns: Vec<TranscriptTurn>,
    pub(crate) coverage: CompactedHistory,
    /// The last step since the last summary. The usage of its request holds for the current view.
    pub(crate) measured: Option<String>,
    /// The density before the last summary.
    pub(crate) rate: Option<TokenDensity>,
    /// How many tokens remained after the last summary.
    pub(crate) left: Option<u64>,
    /// The size of the conversation when a summary freed nothing.
    pub(crate) fruitless: Option<u64>,
}

impl ConversationHistory {
    pub(crate) fn add(&mut self, entry: TranscriptEntry) {
        match &entry.fact {
            TranscriptFact::Compaction(CompactionRecord {
                summary,
                covers,
                tokens_per_1000_bytes,
                tokens_after,
                ..
            }) => {
                self.coverage.extend(summary, covers);
                self.left = Some(*tokens_after);
                self.fruitless = None;
                self.rate = Some(TokenDensity::of(*tokens_per_1000_bytes));
                self.measured = None;
                return;
            }
            TranscriptFact::CompactionDiscarded { tokens, .. } => {
                self.fruitless = Some(*tokens);
                return;
            }
            TranscriptFact::Assistant { .. } => self.measured = Some(entry.uuid.clone()),
            TranscriptFact::User { .. }
            | TranscriptFact::ToolResult(_)
            | TranscriptFact::Steer { .. }
            | TranscriptFact::Result(_)
            | TranscriptFact::Interrupted { .. } => {}
        }
        let known = self.turns.iter().rposition(|turn| turn.uuid == entry.turn);
        let index = known.unwrap_or_else(|| {
            let (prompt, head, steps, ended) = (None, None, Vec::new(), None);
            self.turns.push(TranscriptTurn { uuid: entry.turn, prompt, head, steps, ended });
            self.turns.len() - 1
        });
        self.turns[index].add(entry.uuid, entry.fact);
    }

    /// Replaces the ids of calls that the conversation has already. Many services just number their calls, but a result
    /// must find its call, and the host knows a call by its id.
    pub(crate) fn make_call_ids_unique(&self, content: &mut [AssistantBlock]) {
        let steps = self.turns.iter().flat_map(|turn| &turn.steps);
        let mut taken: HashSet<String> =
            steps.flat_map(|step| step.message.calls()).map(|call| call.id.clone()).collect();
        for block in content {
            match block {
                AssistantBlock::ToolUse(call) => {
                    if !taken.insert(call.id.clone()) {
                        call.id = ids::prefixed("call_");
                    }
                }
                AssistantBlock::Text { .. }
                | AssistantBlock::Thinking { .. }
                | AssistantBlock::RedactedThinking { .. } => {}
            }
        }
    }

    pub(crate) fn turn(&self, uuid: &str) -> Option<&TranscriptTurn> {
        self.turns.iter().rfind(|turn| turn.uuid == uuid)
    }

    /// The user wants the resumed turn now, so it moves behind everything that came in between.
    pub(crate) fn move_to_end(&mut self, uuid: &str) {
        if let Some(index) = self.turns.iter().rposition(|turn| turn.uuid == uuid) {
            let turn = self.turns.remove(index);
            self.turns.push(turn);
        }
    }

    pub(crate) fn turns(&self) -> &[TranscriptTurn] {
        &self.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_has_an_id_that_no_other_call_of_the_conversation_has() {
        let call = |id: &str| {
            AssistantBlock::ToolUse(ToolUse { id: id.into(), name: "run".into(), input: json!({}) })
        };
        let mut conversation = ConversationHistory::default();
        let (role, usage) = (AssistantRole::Assistant, ApiUsage::default());
        let message = AssistantMessage {
            id: "m".into(),
            role,
            model: "m".into(),
            content: vec![call("call_0")],
            usage,
        };
        let (uuid, turn) = ("1".into(), "an earlier turn".into());
        conversation.add(TranscriptEntry { fact: TranscriptFact::Assistant { message }, uuid, turn, at: 0 });
        let mut content = ["call_0", "call_1", "call_1", "call_2"].map(call);
        conversation.make_call_ids_unique(&mut content);
        let ids: Vec<&str> = content
            .iter()
            .filter_map(|block| match block {
                AssistantBlock::ToolUse(call) => Some(call.id.as_str()),
                AssistantBlock::Text { .. }
                | AssistantBlock::Thinking { .. }
                | AssistantBlock::RedactedThinking { .. } => None,
            })
            .collect();
        assert_eq!((ids[1], ids[3]), ("call_1", "call_2"));
        let all: HashSet<&str> = ids.iter().copied().chain(["call_0"]).collect();
        assert_eq!(all.len(), 5, "{ids:?}");
        assert!(ids.iter().all(|id| id.starts_with("call_") && id.len() <= 40), "{ids:?}");
    }
}
