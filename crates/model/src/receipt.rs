//! What a resume restored, from where, how it was checked, and what is missing.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    Warm,
    Cold,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Local,
    Cloud,
    Fresh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    Live,
    Checkpoint,
}

/// How the agent got its memory back, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    Native,
    Repaired,
    Rebuilt,
    History,
    Fresh,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    pub path: Path,
    pub source: Source,
    pub from: From,
    pub tier: Tier,
    pub checkpoint: Option<u64>,
    /// True only if what was loaded was compared with what was saved and nothing was missing.
    pub verified: bool,
    /// What did not come back, by name. Empty means nothing.
    pub lost: Vec<String>,
    /// What of the agent's memory had to be mended, and how.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
    /// The checkpoint number under which a tree that could not be trusted was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salvage: Option<u64>,
}
