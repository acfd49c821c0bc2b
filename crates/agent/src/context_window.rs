//! The size of a model's context window, and which part of a longer conversation the model sees. Pure.

mod shorten;
mod token_estimate;

use crate::conversation::{
    CompactedHistory, CompactedTurn, ConversationHistory, PromptContent, TranscriptTurn,
};
use shorten::shortened;
use token_estimate::{MeasuredContext, all, bytes, measured, size, step_size, tokens};
pub(crate) use token_estimate::{TokenDensity, base, size_of};

/// The window when the session configures none.
const DEFAULT_WINDOW_TOKENS: u64 = 200_000;
/// The window of models that are not known here.
const UNKNOWN_MODEL_WINDOW_TOKENS: u64 = 128_000;
/// The agent requests no longer answer than this.
pub(crate) const MAX_ANSWER_TOKENS: u64 = 32_000;
const MAX_SUMMARY_TOKENS: u64 = 8_000;
const MIN_SUMMARY_TOKENS: u64 = 256;
/// Shortening makes no piece shorter than this.
const MIN_PIECE_BYTES: usize = 200;

/// All numbers are tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ContextWindow {
    pub(crate) tokens: u64,
    /// Above this size the agent summarizes the conversation in the background.
    pub(crate) background: u64,
    /// Above this size a turn waits for the summary.
    pub(crate) full: u64,
    pub(crate) compacts: bool,
}

/// The settings from the command line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WindowSettings {
    pub(crate) tokens: Option<u64>,
    pub(crate) from: f64,
    pub(crate) by: f64,
    pub(crate) compacts: bool,
}

impl Default for WindowSettings {
    fn default() -> WindowSettings {
        WindowSettings { tokens: None, from: 0.80, by: 0.95, compacts: true }
    }
}

impl ContextWindow {
    pub(crate) fn new(wanted: WindowSettings, model: Option<&str>) -> ContextWindow {
        let known = model.is_none_or(|model| model.contains("claude"));
        let tokens =
            wanted.tokens.unwrap_or(if known { DEFAULT_WINDOW_TOKENS } else { UNKNOWN_MODEL_WINDOW_TOKENS });
        let part = |part: f64| (tokens as f64 * part) as u64;
        // An answer always needs some space.
        let most = tokens - tokens / 20;
        let full = if wanted.compacts { part(wanted.by).min(most) } else { most };
        ContextWindow { tokens, background: part(wanted.from).min(full), full, compacts: wanted.compacts }
    }

    /// The space that remains for the answer to a request of this size.
    pub(crate) fn room(&self, size: u64) -> u64 {
        self.tokens.saturating_sub(size).clamp(1, MAX_ANSWER_TOKENS)
    }

    pub(crate) fn summary_room(&self) -> u64 {
        (self.tokens / 16).clamp(MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS)
    }

    /// A summary is worth its price only if the conversation grew by this much since the last one, in tokens.
    pub(crate) fn min_tokens_between_summaries(&self) -> u64 {
        (self.tokens / 20).max(MIN_SUMMARY_TOKENS)
    }

    /// How much of the end stays verbatim when the rest is summarized, in bytes.
    fn tail(&self) -> u64 {
        bytes(self.tokens / 5)
    }

    /// Longer pieces are shortened to their beginning and end.
    fn longest_piece(&self) -> usize {
        usize::try_from(bytes(self.full / 4)).unwrap_or(usize::MAX)
    }
}

impl Default for ContextWindow {
    fn default() -> ContextWindow {
        ContextWindow::new(WindowSettings::default(), None)
    }
}

/// What the model sees, and how large it is.
#[derive(Debug, PartialEq)]
pub(crate) struct ContextView {
    pub(crate) turns: Vec<TranscriptTurn>,
    pub(crate) tokens: u64,
    /// The density of most of the view.
    pub(crate) rate: TokenDensity,
}

/// The view of the conversation: summaries replace what they cover, and no piece is longer than the limit.
pub(crate) fn view(
    window: &ContextWindow,
    conversation: &ConversationHistory,
    base: u64,
    model: &str,
) -> ContextView {
    let turns = shown(conversation.turns(), &conversation.coverage, window.longest_piece());
    let whole = base + all(&turns);
    let measured = conversation.measured.as_deref().and_then(|step| measured(&turns, step, model));
    // The system prompt may have grown since the last request, so its usage does not include that.
    match measured {
        Some(MeasuredContext { known, later }) => {
            let seen = whole.saturating_sub(later).max(1);
            // With this much unmeasured content the density is not known.
            let is_known = later <= seen / 8;
            let rate = if is_known { TokenDensity::measured(known, seen) } else { TokenDensity::SAFE };
            ContextView { turns, tokens: known.saturating_add(tokens(later)).max(whole / 4), rate }
        }
        None => {
            let rate = conversation.rate.unwrap_or(TokenDensity::SAFE);
            ContextView { turns, tokens: rate.tokens(whole), rate }
        }
    }
}

/// The size of the view with this summary in it.
pub(crate) fn size_with(
    window: &ContextWindow,
    conversation: &ConversationHistory,
    coverage: &CompactedHistory,
    base: u64,
    rate: TokenDensity,
) -> u64 {
    rate.tokens(base + all(&shown(conversation.turns(), coverage, window.longest_piece())))
}

/// The same content with pieces shortened; `None` if it does not fit even with the shortest pieces.
pub(crate) fn squeezed(
    window: &ContextWindow,
    turns: &[TranscriptTurn],
    base: u64,
    most: u64,
) -> Option<ContextView> {
    squeezed_to(MIN_PIECE_BYTES, window, turns, base, most, TokenDensity::SAFE)
}

fn squeezed_to(
    shortest: usize,
    window: &ContextWindow,
    turns: &[TranscriptTurn],
    base: u64,
    most: u64,
    rate: TokenDensity,
) -> Option<ContextView> {
    let mut longest = window.longest_piece();
    loop {
        let turns: Vec<TranscriptTurn> = turns.iter().map(|turn| shortened(turn, longest)).collect();
        let size = rate.tokens(base + all(&turns));
        if size <= most {
            return Some(ContextView { turns, tokens: size, rate });
        }
        if longest <= shortest {
            return None;
        }
        longest = (longest / 2).max(shortest);
    }
}

/// What to summarize next.
#[derive(Debug, PartialEq)]
pub(crate) struct CompactionPlan {
    /// The turns as the model sees them, including an earlier summary.
    pub(crate) turns: Vec<TranscriptTurn>,
    pub(crate) covers: Vec<CompactedTurn>,
}

/// How much of the end stays verbatim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum VerbatimTail {
    /// The last turns that fit into the budget.
    Recent,
    /// Only the turn that is running.
    Nothing,
}

/// `None` if a summary would not be worth its price.
pub(crate) fn plan(
    window: &ContextWindow,
    turns: &[TranscriptTurn],
    conversation: &ConversationHistory,
    keep: VerbatimTail,
) -> Option<CompactionPlan> {
    let budget = match keep {
        VerbatimTail::Recent => window.tail(),
        VerbatimTail::Nothing => 0,
    };
    let running = turns.last().filter(|turn| turn.ended.is_none());
    let over = &turns[..turns.len() - usize::from(running.is_some())];
    let last = turns.len().saturating_sub(1);
    let mut kept = running.map_or(0, |turn| size(turn, true));
    let mut steps = 0;
    let mut whole = over.len();
    if let Some(turn) = running.filter(|_| kept > budget) {
        steps = older_steps(turn, budget);
    } else {
        while whole > 0 {
            kept += size(&over[whole - 1], whole - 1 == last);
            if kept > budget {
                break;
            }
            whole -= 1;
        }
    }
    let mut summed: Vec<TranscriptTurn> = over[..whole].to_vec();
    let part = running
        .filter(|_| steps > 0)
        .map(|turn| TranscriptTurn { steps: turn.steps[..steps].to_vec(), ..turn.clone() });
    let mut covers: Vec<CompactedTurn> =
        over[..whole].iter().filter_map(|turn| covered(turn, turn.steps.len(), conversation)).collect();
    covers.extend(part.iter().filter_map(|turn| covered(turn, steps, conversation)));
    summed.extend(part);
    // The new summary is as long as the earlier summary that it replaces, so only new turns free space.
    let new: Vec<TranscriptTurn> = summed.iter().filter(|turn| !turn.uuid.is_empty()).cloned().collect();
    let is_worth_it = match keep {
        VerbatimTail::Recent => tokens(all(&new)) > window.min_tokens_between_summaries(),
        VerbatimTail::Nothing => true,
    };
    let gain = tokens(all(&summed));
    (!covers.is_empty() && is_worth_it && gain > window.summary_room() + MIN_SUMMARY_TOKENS)
        .then_some(CompactionPlan { turns: summed, covers })
}

impl CompactionPlan {
    /// The longest beginning of the plan that fits into one request; the rest waits for the next summary. Fewer turns in
    /// full are better than all turns shortened to their ends.
    pub(crate) fn fitted_to_request(
        self,
        window: &ContextWindow,
        base: u64,
        rate: TokenDensity,
        conversation: &ConversationHistory,
    ) -> Option<CompactionPlan> {
        let (most, shortest) = (window.tokens - window.summary_room(), window.longest_piece() / 4);
        let mut plan = self;
        loop {
            if let Some(ContextView { turns, .. }) =
                squeezed_to(shortest, window, &plan.turns, base, most, rate)
            {
                return Some(CompactionPlan { turns, covers: plan.covers });
            }
            match plan.halved(conversation) {
                Some(half) => plan = half,
                None => {
                    let ContextView { turns, .. } = squeezed(window, &plan.turns, base, most)?;
                    return Some(CompactionPlan { turns, covers: plan.covers });
                }
            }
        }
    }

    /// The first half of the turns, or of the steps if there is only one turn.
    fn halved(&self, conversation: &ConversationHistory) -> Option<CompactionPlan> {
        let old = self.turns.len() - self.covers.len();
        let mut turns = self.turns[..old + self.covers.len().div_ceil(2)].to_vec();
        if let ([_], Some(turn)) = (&self.covers[..], turns.last_mut()) {
            if turn.steps.len() < 2 {
                return None;
            }
            turn.steps.truncate(turn.steps.len() / 2);
        }
        let covers = turns.iter().filter_map(|turn| covered(turn, turn.steps.len(), conversation)).collect();
        Some(CompactionPlan { turns, covers })
    }
}

/// The number of older steps of a running turn. The last steps that fit into the budget are not older, and neither is
/// the very last one.
fn older_steps(turn: &TranscriptTurn, budget: u64) -> usize {
    let mut older = turn.steps.len().saturating_sub(1);
    let mut kept = turn.steps.last().map_or(0, |step| step_size(step, true));
    while older > 0 {
        kept += step_size(&turn.steps[older - 1], true);
        if kept > budget {
            break;
        }
        older -= 1;
    }
    older
}

/// The visible steps come after those that are already covered. A summary is no turn.
fn covered(turn: &TranscriptTurn, shown: usize, conversation: &ConversationHistory) -> Option<CompactedTurn> {
    conversation.turn(&turn.uuid)?;
    let steps = conversation.coverage.steps.get(&turn.uuid).copied().unwrap_or(0) + shown;
    Some(CompactedTurn { turn: turn.uuid.clone(), steps })
}

fn shown(turns: &[TranscriptTurn], coverage: &CompactedHistory, longest: usize) -> Vec<TranscriptTurn> {
    let last = turns.len().saturating_sub(1);
    let rest = turns.iter().enumerate().filter_map(|(index, turn)| {
        let Some(covered) = coverage.steps.get(&turn.uuid) else { return Some(shortened(turn, longest)) };
        let steps = turn.steps.get(*covered..).unwrap_or_default();
        let is_gone = steps.is_empty() && (index != last || turn.ended.is_some());
        (!is_gone).then(|| shortened(&TranscriptTurn { steps: steps.to_vec(), ..turn.clone() }, longest))
    });
    coverage.summary.as_deref().map(summary_turn).into_iter().chain(rest).collect()
}

/// Uses the wording of Claude Code, which models know.
fn summary_turn(summary: &str) -> TranscriptTurn {
    let text = format!(
        "This session is being continued from a previous conversation that ran out of context. The summary below covers \
         the earlier portion of the conversation.\n\n{summary}"
    );
    user_turn(PromptContent::Text(text))
}

/// A message in the user's place.
pub(crate) fn user_turn(content: PromptContent) -> TranscriptTurn {
    TranscriptTurn { uuid: String::new(), prompt: Some(content), head: None, steps: Vec::new(), ended: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::TranscriptEntry;
    use serde_json::{Value, json};

    const WINDOW: ContextWindow =
        ContextWindow { tokens: 10_000, background: 8_000, full: 9_500, compacts: true };

    fn conversation(entries: &[Value]) -> ConversationHistory {
        let mut conversation = ConversationHistory::default();
        for (number, entry) in entries.iter().enumerate() {
            let mut entry = entry.clone();
            entry["uuid"] = json!(number.to_string());
            entry["at"] = json!(0);
            conversation.add(serde_json::from_value::<TranscriptEntry>(entry).expect("an entry"));
        }
        conversation
    }

    fn usage(tokens: u64) -> Value {
        json!({"input_tokens": tokens, "output_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0})
    }

    fn turn(name: &str, words: usize) -> [Value; 3] {
        let message = json!({"id": "m", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "ok"}], "usage": usage(100)});
        [
            json!({"type": "user", "turn": name, "message": {"role": "user", "content": "word ".repeat(words)}}),
            json!({"type": "assistant", "turn": name, "message": message}),
            json!({"type": "result", "turn": name, "subtype": "success", "is_error": false, "num_turns": 1,
                "usage": usage(1), "duration_ms": 0}),
        ]
    }

    fn summary(covers: &[&str]) -> Value {
        let covers: Vec<Value> = covers.iter().map(|turn| json!({"turn": turn, "steps": 1})).collect();
        json!({"type": "compaction", "turn": "x", "summary": "It was about words.", "covers": covers,
            "tokens_before": 9, "tokens_after": 5, "tokens_per_1000_bytes": 9_000_000, "usage": usage(1)})
    }

    fn names(turns: &[TranscriptTurn]) -> Vec<&str> {
        turns.iter().map(|turn| turn.uuid.as_str()).collect()
    }

    #[test]
    fn there_is_always_room_for_an_answer() {
        let window = ContextWindow::new(
            WindowSettings { tokens: Some(10_000), by: 1.0, ..WindowSettings::default() },
            Some("claude-x"),
        );
        assert_eq!((window.background, window.full, window.room(window.full)), (8_000, 9_500, 500));
        let off = ContextWindow::new(
            WindowSettings { compacts: false, by: 0.5, ..WindowSettings::default() },
            Some("claude-x"),
        );
        assert_eq!((off.tokens, off.full), (200_000, 190_000));
        assert_eq!(
            ContextWindow::new(WindowSettings::default(), Some("other")).tokens,
            UNKNOWN_MODEL_WINDOW_TOKENS
        );
    }

    #[test]
    fn a_summary_stands_for_what_it_covers_and_a_turn_under_way_is_always_shown() {
        let mut entries = [turn("a", 10), turn("b", 10), turn("c", 10)].concat();
        entries.push(summary(&["a", "b"]));
        let view = view(&WINDOW, &conversation(&entries), 0, "m");
        assert_eq!(names(&view.turns), ["", "c"]);
        assert!(view.turns[0].text().ends_with("It was about words."));
        assert_eq!(view.rate, TokenDensity::SAFE, "whatever the transcript says");
        entries.extend(turn("b", 10).into_iter().take(1));
        let mut taken_up = conversation(&entries[..entries.len() - 1]);
        taken_up.move_to_end("a");
        assert_eq!(names(&super::view(&WINDOW, &taken_up, 0, "m").turns), ["", "c"], "it is over");
    }

    #[test]
    fn reported_tokens_count_and_later_text_is_estimated_high() {
        let entries = [turn("a", 1_000), turn("b", 1_000)].concat();
        let before = view(&WINDOW, &conversation(&entries[..3]), 0, "m");
        assert_eq!(before.tokens, all(&before.turns) / 4, "100 is less than it can be");
        let after = view(&WINDOW, &conversation(&entries[..4]), 0, "m");
        assert!(after.tokens >= 100 + 1_000 * 5 * 2 / 5, "{}", after.tokens);
        let other = view(&WINDOW, &conversation(&entries[..3]), 0, "another-model");
        assert!(other.tokens > before.tokens, "of another model's tokens we know nothing");
    }

    #[test]
    fn the_last_turns_stay_and_the_rest_is_summarized() {
        let entries: Vec<Value> = ["a", "b", "c", "d"].iter().flat_map(|name| turn(name, 600)).collect();
        let conversation = conversation(&entries);
        let turns = view(&WINDOW, &conversation, 0, "m").turns;
        let plan = plan(&WINDOW, &turns, &conversation, VerbatimTail::Recent).expect("a plan");
        assert_eq!(names(&plan.turns), ["a", "b", "c"]);
        assert_eq!(plan.covers.len(), 3);
        assert_eq!(
            super::plan(&WINDOW, &turns[..1], &conversation, VerbatimTail::Recent),
            None,
            "not worth it"
        );
    }

    #[test]
    fn little_new_text_after_a_summary_is_not_summarized_again() {
        let mut entries = [turn("a", 10), turn("b", 150), turn("c", 900)].concat();
        let mut long = summary(&["a"]);
        long["summary"] = json!("It was about words. ".repeat(120));
        entries.insert(3, long);
        let conversation = conversation(&entries);
        let turns = view(&WINDOW, &conversation, 0, "m").turns;
        assert_eq!(names(&turns), ["", "b", "c"]);
        assert_eq!(plan(&WINDOW, &turns, &conversation, VerbatimTail::Recent), None, "it would free nothing");
        assert!(
            plan(&WINDOW, &turns, &conversation, VerbatimTail::Nothing).is_some(),
            "unless there is no other way"
        );
    }
}
