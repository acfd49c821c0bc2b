//! Estimates of token counts: guesses that err on the high side, and measurements that the service reports.

use crate::conversation::{ApiUsage, AssistantBlock, PromptContent, TranscriptTurn, TurnStep};
use serde_json::Value;

/// The JSON around the text of a block, in bytes.
const WRAPPING: u64 = 80;
/// What a provider adds itself.
const PREAMBLE: u64 = 800;
/// A picture costs tokens by its dimensions, not by its bytes. This is the cost of the largest, in bytes of text.
const PICTURE: u64 = 12_500;
/// Providers send at most this much of a tool result.
const MAX_RESULT_BYTES: usize = 48 << 10;

/// Tokens per thousand bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TokenDensity(u64);

impl TokenDensity {
    /// An upper bound: text has about four bytes per token, numbers and rare words have fewer.
    pub(crate) const SAFE: TokenDensity = TokenDensity(400);
    const LEAST: u64 = 250;

    /// The measured density plus a margin.
    pub(super) fn measured(tokens: u64, bytes: u64) -> TokenDensity {
        TokenDensity::of(tokens.saturating_mul(1100) / bytes.max(1))
    }

    /// The value can come from a file, so it is clamped.
    pub(crate) fn of(per_thousand: u64) -> TokenDensity {
        TokenDensity(per_thousand.clamp(TokenDensity::LEAST, TokenDensity::SAFE.0))
    }

    pub(crate) fn per_thousand(self) -> u64 {
        self.0
    }

    pub(super) fn tokens(self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.0).div_ceil(1000)
    }
}

pub(super) fn tokens(bytes: u64) -> u64 {
    TokenDensity::SAFE.tokens(bytes)
}

pub(super) fn bytes(tokens: u64) -> u64 {
    tokens.saturating_mul(5) / 2
}

/// The size of a request without the conversation, in bytes.
pub(crate) fn base(system: Option<&str>, tools: &[Value]) -> u64 {
    PREAMBLE + written(system.unwrap_or_default()) + tools.iter().map(value).sum::<u64>()
}

/// Tokens that the service reported for a request and its answer, and bytes that were added after it.
pub(super) struct MeasuredContext {
    pub(super) known: u64,
    pub(super) later: u64,
}

/// The measurement of the request that this step answered.
pub(super) fn measured(turns: &[TranscriptTurn], step: &str, model: &str) -> Option<MeasuredContext> {
    let place = |turn: &TranscriptTurn| turn.steps.iter().position(|other| other.uuid == step);
    let (index, at) = turns.iter().enumerate().rev().find_map(|(index, turn)| Some((index, place(turn)?)))?;
    let turn = &turns[index];
    let message = &turn.steps[at].message;
    let ApiUsage { input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens } =
        message.usage;
    let parts = [input_tokens, output_tokens, cache_creation_input_tokens, cache_read_input_tokens];
    let known = parts.into_iter().fold(0, u64::saturating_add);
    if message.model != model || known == 0 {
        return None;
    }
    let is_last = |index: usize| index + 1 == turns.len();
    let later = turn.steps[at + 1..].iter().map(|step| step_size(step, is_last(index))).sum::<u64>();
    let partial = turn.ended.as_ref().map_or(0, |ended| piece(&ended.partial));
    let next = turns[index + 1..].iter().enumerate();
    let next = next.map(|(number, turn)| size(turn, is_last(index + 1 + number))).sum::<u64>();
    Some(MeasuredContext { known, later: results(&turn.steps[at]) + later + partial + next })
}

pub(super) fn all(turns: &[TranscriptTurn]) -> u64 {
    turns.iter().enumerate().map(|(index, turn)| size(turn, index + 1 == turns.len())).sum()
}

/// Only the last turn is shown with its thinking blocks.
pub(super) fn size(turn: &TranscriptTurn, is_last: bool) -> u64 {
    let prompt = turn.prompt.as_ref().map_or(WRAPPING, content);
    let head = turn.head.as_deref().map_or(0, piece);
    let partial = turn.ended.as_ref().map_or(0, |ended| piece(&ended.partial));
    prompt + head + partial + turn.steps.iter().map(|step| step_size(step, is_last)).sum::<u64>()
}

fn content(content: &PromptContent) -> u64 {
    match content {
        PromptContent::Text(text) => piece(text),
        PromptContent::Blocks(blocks) => blocks.iter().map(block).sum(),
    }
}

fn block(block: &Value) -> u64 {
    let is_picture = block["type"] == "image";
    WRAPPING + if is_picture { PICTURE } else { value(block) }
}

pub(super) fn step_size(step: &TurnStep, with_thoughts: bool) -> u64 {
    let said = step.message.content.iter().map(|block| match block {
        AssistantBlock::Text { text } => piece(text),
        AssistantBlock::ToolUse(call) => {
            WRAPPING + piece(&call.id) + written(&call.name) + value(&call.input)
        }
        AssistantBlock::Thinking { thinking, signature } if with_thoughts => {
            piece(thinking) + written(signature)
        }
        AssistantBlock::RedactedThinking { data } if with_thoughts => piece(data),
        AssistantBlock::Thinking { .. } | AssistantBlock::RedactedThinking { .. } => 0,
    });
    said.sum::<u64>() + results(step)
}

/// Each call has a result, even if it only says that there is none; the user's steering messages follow.
fn results(step: &TurnStep) -> u64 {
    let longest = MAX_RESULT_BYTES as u64 + WRAPPING;
    let there = step.results.iter().map(|shown| piece(&shown.content.content).min(2 * longest) + WRAPPING);
    let missing = step.message.calls().count().saturating_sub(step.results.len()) as u64;
    let steers = step.steers.iter().map(|steer| content(&steer.content));
    there.chain(steers).sum::<u64>() + missing * 2 * WRAPPING
}

fn piece(text: &str) -> u64 {
    WRAPPING + written(text)
}

fn value(value: &Value) -> u64 {
    value.to_string().len() as u64
}

/// The size as JSON.
fn written(text: &str) -> u64 {
    let more = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
        0..0x20 => 5,
        _ => 0,
    });
    text.len() as u64 + more.sum::<u64>()
}

/// The size in bytes.
pub(crate) fn size_of(turn: &TranscriptTurn) -> u64 {
    size(turn, false)
}
