//! Sessions that do not end because they grew long: what was said long ago is summed up before a model's window is full.

use serde::{Deserialize, Serialize};

/// Thresholds are parts of the context window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactionOptions {
    /// Whether anything is summed up at all.
    pub enabled: bool,
    /// From here on it is summed up beside the turns.
    pub background_compaction_threshold: f64,
    /// From here on turns wait for that.
    pub buffer_exhaustion_threshold: f64,
    /// In tokens; without it, as is usual for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
}

impl CompactionOptions {
    /// The usual `background_compaction_threshold`.
    pub const BACKGROUND: f64 = 0.80;
    /// The usual `buffer_exhaustion_threshold`.
    pub const EXHAUSTION: f64 = 0.95;
    /// What a session without a word about it assumes of a model.
    pub const DEFAULT_WINDOW: u64 = 200_000;
    /// Tools and instructions alone take half of less.
    pub const MIN_WINDOW: u64 = 4_000;
    /// The largest window that a caller may name, in tokens.
    pub const MAX_WINDOW: u64 = 10_000_000;
    /// Those that Claude Code can be told of.
    pub const WINDOWS_OF_CLAUDE: std::ops::RangeInclusive<u64> = 100_000..=1_000_000;
}

impl Default for CompactionOptions {
    fn default() -> CompactionOptions {
        CompactionOptions {
            enabled: true,
            background_compaction_threshold: CompactionOptions::BACKGROUND,
            buffer_exhaustion_threshold: CompactionOptions::EXHAUSTION,
            context_window: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_stored_as_in_the_first_version() {
        let set = CompactionOptions { context_window: Some(8_000), ..CompactionOptions::default() };
        let stored = r#"{"enabled":true,"backgroundCompactionThreshold":0.8,"bufferExhaustionThreshold":0.95,"contextWindow":8000}"#;
        assert_eq!(serde_json::to_string(&set).expect("json"), stored);
        assert_eq!(serde_json::from_str::<CompactionOptions>(stored).expect("read"), set);
        assert_eq!(
            serde_json::from_str::<CompactionOptions>("{}").expect("read"),
            CompactionOptions::default()
        );
    }
}
