//! When Claude Code compacts. It does so by itself, at a part of its window less what it keeps for an answer, and its turn
//! waits; what can be told to it is told with its own switches.

use ash_model::InfiniteSessions;

/// What it keeps for an answer.
const KEPT: u64 = 20_000;

pub(super) fn environment(set: &InfiniteSessions) -> Vec<(String, String)> {
    if !set.enabled {
        return vec![("DISABLE_AUTO_COMPACT".to_owned(), "1".to_owned())];
    }
    let window = set.context_window.unwrap_or(InfiniteSessions::USUAL_WINDOW);
    let from = set.background_compaction_threshold * window as f64;
    // A part of what is left of the window, in percent.
    let percent = (from * 100.0 / window.saturating_sub(KEPT).max(1) as f64).clamp(1.0, 100.0);
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
        let set = InfiniteSessions { context_window: Some(100_000), ..InfiniteSessions::default() };
        let said = |set: &InfiniteSessions| {
            environment(set).into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let window = "CLAUDE_CODE_AUTO_COMPACT_WINDOW=100000";
        assert_eq!(said(&set), ["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE=100.00", window]);
        let half = InfiniteSessions { background_compaction_threshold: 0.5, ..set };
        assert_eq!(said(&half), ["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE=62.50", window]);
        assert_eq!(said(&InfiniteSessions::default()), ["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE=88.89"]);
        assert_eq!(said(&InfiniteSessions { enabled: false, ..set }), ["DISABLE_AUTO_COMPACT=1"]);
    }
}
