//! What a resume restored, from where, how it was checked, and what is missing.

use crate::{Epoch, EventSeq};
use serde::{Deserialize, Serialize};

/// Whether the session had a sandbox when it was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumePath {
    /// The sandbox was still there.
    Warm,
    /// A sandbox was made.
    Cold,
}

/// Where what was restored came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeSource {
    /// This machine.
    Local,
    /// The object store.
    Cloud,
    /// Nowhere: the session began anew.
    Fresh,
}

/// Where the files came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeOrigin {
    /// They were still in their place.
    Live,
    /// A checkpoint was restored.
    Checkpoint,
}

/// How the agent got its memory back, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The agent's own transcript, as it was.
    Native,
    /// The agent's own transcript, mended from the log.
    Repaired,
    /// A transcript made from the log alone.
    Rebuilt,
    /// The agent is told the conversation as a text.
    History,
    /// Nothing: the agent does not know the conversation.
    Fresh,
}

/// What one resume restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Whether there was a sandbox.
    pub path: ResumePath,
    /// Where the state came from.
    pub source: ResumeSource,
    /// Where the files came from.
    pub from: TreeOrigin,
    /// How the agent got its memory back.
    pub tier: Tier,
    /// The checkpoint that the session goes on from.
    pub checkpoint: Option<u64>,
    /// True only if what was loaded was compared with what was saved and nothing was missing. A warm resume loads nothing.
    pub verified: bool,
    /// What did not come back, by name. Empty means nothing.
    pub lost: Vec<String>,
    /// What was looked at on both sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<Box<ResumeComparison>>,
    /// What of the agent's memory had to be mended, and how.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
    /// The checkpoint number under which a tree that could not be trusted was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salvage: Option<u64>,
    /// The database knew less of the session than another witness, whose history it goes on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<AdoptionPoint>,
}

/// Up to where a history was taken from another witness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptionPoint {
    /// The epoch of the last event that was adopted.
    pub epoch: Epoch,
    /// The last event that was adopted.
    pub seq: EventSeq,
    /// The newest checkpoint that was adopted.
    pub checkpoint: Option<u64>,
}

/// How files were compared with a checkpoint's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonMethod {
    /// By what the file system says of each file, beside what it said at the last capture. Files that look changed were
    /// read.
    Metadata,
    /// Every byte.
    Content,
}

/// How much of what was saved was compared with what came back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResumeComparison {
    /// Events of the log that the newest checkpoint holds, to the byte.
    pub events: u64,
    /// Messages of the conversation that the agent should have in its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<u64>,
    /// The files and all that belongs to them, as the checkpoint names them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// How the files that came back were compared with that tree; none: others were at work in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<ComparisonMethod>,
    /// The version of the agent.
    pub agent_version: u32,
    /// The model that the session is set to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The permission mode that the session is set to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<String>,
    /// Settings that are not as the checkpoint has them: somebody changed them since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Why the object store's history was not compared with the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteComparison>,
}

/// Why the object store was not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteComparison {
    /// It did not answer in time. Nothing of the session counts as remote until it was compared.
    Unreachable,
}
