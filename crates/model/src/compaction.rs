//! Options of compaction: the agent summarizes the old part of a long conversation before the model's window is full.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Thresholds are fractions of the context window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactionOptions {
    /// Whether the agent compacts at all.
    #[schema(required)]
    pub enabled: bool,
    /// From this fraction on the agent compacts in the background.
    #[schema(required)]
    pub background_compaction_threshold: f64,
    /// From this fraction on turns wait for the compaction.
    #[schema(required)]
    pub buffer_exhaustion_threshold: f64,
    /// The window in tokens; `None`: the model's usual window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub context_window: Option<u64>,
}

impl CompactionOptions {
    /// The default of `background_compaction_threshold`.
    pub const BACKGROUND: f64 = 0.80;
    /// The default of `buffer_exhaustion_threshold`.
    pub const EXHAUSTION: f64 = 0.95;
    /// The window that a session without this option assumes for a model.
    pub const DEFAULT_WINDOW: u64 = 200_000;
    /// Tools and instructions alone would fill half of a smaller window.
    pub const MIN_WINDOW: u64 = 4_000;
    /// The largest window that a caller may name, in tokens.
    pub const MAX_WINDOW: u64 = 10_000_000;
    /// The windows that Claude Code accepts.
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
