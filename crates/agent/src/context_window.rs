//! How much a model can hold, and what of a longer conversation it is shown. Pure.

mod shorten;
mod token_estimate;

use crate::conversation::{
    CompactedHistory, CompactedTurn, ConversationHistory, PromptContent, TranscriptTurn,
};
use shorten::shortened;
use token_estimate::{MeasuredContext, all, bytes, measured, size, step_size, tokens};
pub(crate) use token_estimate::{TokenDensity, base, size_of};

/// A window that nobody said anything about.
const DEFAULT_WINDOW_TOKENS: u64 = 200_000;
/// Of models that are not known.
const UNKNOWN_MODEL_WINDOW_TOKENS: u64 = 128_000;
/// An answer that is longer than this is not asked for.
pub(crate) const MAX_ANSWER_TOKENS: u64 = 32_000;
const MAX_SUMMARY_TOKENS: u64 = 8_000;
const MIN_SUMMARY_TOKENS: u64 = 256;
/// Shorter than this nothing is made.
const MIN_PIECE_BYTES: usize = 200;

/// In tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ContextWindow {
    pub(crate) tokens: u64,
    /// From here on the conversation is summed up, beside the turns.
    pub(crate) background: u64,
    /// From here on a turn waits for that.
    pub(crate) full: u64,
    pub(crate) compacts: bool,
}

/// What was said of it on the command line.
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
        // There is always room for some answer.
        let most = tokens - tokens / 20;
        let full = if wanted.compacts { part(wanted.by).min(most) } else { most };
        ContextWindow { tokens, background: part(wanted.from).min(full), full, compacts: wanted.compacts }
    }

    /// What is left for an answer to a request of this size.
    pub(crate) fn room(&self, size: u64) -> u64 {
        self.tokens.saturating_sub(size).clamp(1, MAX_ANSWER_TOKENS)
    }

    pub(crate) fn summary_room(&self) -> u64 {
        (self.tokens / 16).clamp(MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS)
    }

    /// What must have been said since the last summary before another one is worth its price, in tokens.
    pub(crate) fn min_tokens_between_summaries(&self) -> u64 {
        (self.tokens / 20).max(MIN_SUMMARY_TOKENS)
    }

    /// What is kept as it was said when the rest is summed up, in bytes.
    fn tail(&self) -> u64 {
        bytes(self.tokens / 5)
    }

    /// What is longer on its own is shown by its ends.
    fn longest_piece(&self) -> usize {
        usize::try_from(bytes(self.full / 4)).unwrap_or(usize::MAX)
    }
}

impl Default for ContextWindow {
    fn default() -> ContextWindow {
        ContextWindow::new(WindowSettings::default(), None)
    }
}

/// What a model is shown, and how large it is.
#[derive(Debug, PartialEq)]
pub(crate) struct ContextView {
    pub(crate) turns: Vec<TranscriptTurn>,
    pub(crate) tokens: u64,
    /// Of most of what is in it.
    pub(crate) rate: TokenDensity,
}

/// The conversation as it is shown: a summary in the place of what it covers, and nothing longer than there is room for.
pub(crate) fn view(
    window: &ContextWindow,
    conversation: &ConversationHistory,
    base: u64,
    model: &str,
) -> ContextView {
    let turns = shown(conversation.turns(), &conversation.coverage, window.longest_piece());
    let whole = base + all(&turns);
    let measured = conversation.measured.as_deref().and_then(|step| measured(&turns, step, model));
    // Instructions may have grown since the last request, which knows nothing of that.
    match measured {
        Some(MeasuredContext { known, later }) => {
            let seen = whole.saturating_sub(later).max(1);
            // What nobody has measured may be anything.
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

/// What the view would be with this summary in it.
pub(crate) fn size_with(
    window: &ContextWindow,
    conversation: &ConversationHistory,
    coverage: &CompactedHistory,
    base: u64,
    rate: TokenDensity,
) -> u64 {
    rate.tokens(base + all(&shown(conversation.turns(), coverage, window.longest_piece())))
}

/// The same in less space, as far as pieces can be shortened; none if it does not fit however short they are.
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

/// What is to be summed up next.
#[derive(Debug, PartialEq)]
pub(crate) struct CompactionPlan {
    /// As they are shown, an earlier summary among them.
    pub(crate) turns: Vec<TranscriptTurn>,
    pub(crate) covers: Vec<CompactedTurn>,
}

/// How much of the end stays as it was said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum VerbatimTail {
    /// The last turns, as far as there is room for them.
    Recent,
    /// Only what is under way.
    Nothing,
}

/// None if it would not be worth it.
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
    // An earlier summary among them is replaced by one that is as long: only what is new makes room.
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
    /// As much of it, from the beginning, as can be asked about at once; the rest is for the next time. Rather less of the
    /// conversation than only the ends of everything in it.
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

    /// The first half of its turns, or of the steps of its only one.
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

/// Of a turn that is under way all steps but the last ones: those that there is room for, and at least one.
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

/// Steps that are shown come after those that are covered already. A summary is no turn.
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

/// In the words that models know from Claude Code.
fn summary_turn(summary: &str) -> TranscriptTurn {
    let text = format!(
        "This session is being continued from a previous conversation that ran out of context. The summary below covers \
         the earlier portion of the conversation.\n\n{summary}"
    );
    user_turn(PromptContent::Text(text))
}

/// Something that is said in the user's place.
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
    fn what_the_service_said_counts_and_what_came_since_is_guessed_high() {
        let entries = [turn("a", 1_000), turn("b", 1_000)].concat();
        let before = view(&WINDOW, &conversation(&entries[..3]), 0, "m");
        assert_eq!(before.tokens, all(&before.turns) / 4, "100 is less than it can be");
        let after = view(&WINDOW, &conversation(&entries[..4]), 0, "m");
        assert!(after.tokens >= 100 + 1_000 * 5 * 2 / 5, "{}", after.tokens);
        let other = view(&WINDOW, &conversation(&entries[..3]), 0, "another-model");
        assert!(other.tokens > before.tokens, "of another model's tokens we know nothing");
    }

    #[test]
    fn the_last_turns_stay_and_the_rest_is_summed_up() {
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
    fn little_that_is_new_beside_an_earlier_summary_is_not_summed_up_again() {
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
