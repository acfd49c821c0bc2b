//! Compaction in Claude Code. It starts by itself at a part of the window minus a reserve for the answer, and the turn
//! waits. This sets the thresholds with Claude Code's own variables.

use ash_model::CompactionOptions;

/// The part of the window that Claude Code reserves for an answer.
const ANSWER_RESERVE_TOKENS: u64 = 20_000;

pub(super) fn environment(set: &CompactionOptions) -> Vec<(String, String)> {
    if !set.enabled {
        return vec![("DISABLE_AUTO_COMPACT".to_owned(), "1".to_owned())];
    }
    let window = set.context_window.unwrap_or(CompactionOptions::DEFAULT_WINDOW);
    let from = set.background_compaction_threshold * window as f64;
    // The threshold in percent of the window without the reserve.
    let percent =
        (from * 100.0 / window.saturating_sub(ANSWER_RESERVE_TOKENS).max(1) as f64).clamp(1.0, 100.0);
    let percent = ("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE".to_owned(), format!("{percent:.2}"));
    let window =
        set.context_window.map(|tokens| ("CLAUDE_CODE_AUTO_COMPACT_WINDOW".to_owned(), tokens.to_string()));
    [percent].into_iter().chain(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_window_is_said_as_a_part_of_what_it_uses_of_it() {
        let set = CompactionOptions { context_window: Some(100_000), ..CompactionOptions::default() };
        let said = |set: &CompactionOptions| {
            environment(set).into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let window = "CLAUDE_CODE_AUTO_COMPACT_WINDOW=100000";
        assert_eq!(said(&set), ["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE=100.00", window]);
        let half = CompactionOptions { background_compaction_threshold: 0.5, ..set };
        assert_eq!(said(&half), ["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE=62.50", window]);
        assert_eq!(said(&CompactionOptions::default()), ["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE=88.89"]);
        assert_eq!(said(&CompactionOptions { enabled: false, ..set }), ["DISABLE_AUTO_COMPACT=1"]);
    }
}
