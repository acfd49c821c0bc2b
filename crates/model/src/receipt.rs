//! The receipt of a resume: what was restored, from where, how it was verified, and what is missing.

use crate::{Epoch, EventSeq};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the session had a sandbox at the resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResumePath {
    /// The sandbox was still there.
    Warm,
    /// A sandbox was created.
    Cold,
}

/// The source of the restored state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResumeSource {
    /// This machine.
    Local,
    /// The object store.
    Cloud,
    /// No source: the session started anew.
    Fresh,
}

/// The source of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TreeOrigin {
    /// The live tree was still there.
    Live,
    /// A checkpoint was restored.
    Checkpoint,
}

/// How the agent got its memory back, best tier first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The agent's own transcript, unchanged.
    Native,
    /// The agent's own transcript, repaired from the log.
    Repaired,
    /// A transcript built from the log alone.
    Rebuilt,
    /// The agent gets the conversation as a text.
    History,
    /// The agent does not know the conversation.
    Fresh,
}

/// What one resume restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Whether there was a sandbox.
    pub path: ResumePath,
    /// The source of the state.
    pub source: ResumeSource,
    /// The source of the files.
    pub from: TreeOrigin,
    /// How the agent got its memory back.
    pub tier: Tier,
    /// The checkpoint that the session continues from.
    #[schema(required)]
    pub checkpoint: Option<u64>,
    /// True only if the loaded state was compared with the saved state and nothing was missing. A warm resume loads
    /// nothing.
    pub verified: bool,
    /// What is missing, by name. Empty: nothing.
    pub lost: Vec<String>,
    /// What was compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub compared: Option<Box<ResumeComparison>>,
    /// The repairs of the agent's memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
    /// The number of the checkpoint that keeps a tree that could not be trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub salvage: Option<u64>,
    /// The session took its history from another witness, which knew more than the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub adopted: Option<AdoptionPoint>,
}

/// Up to where the history comes from another witness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdoptionPoint {
    /// The epoch of the last event that was adopted.
    pub epoch: Epoch,
    /// The last event that was adopted.
    pub seq: EventSeq,
    /// The newest checkpoint that was adopted.
    #[schema(required)]
    pub checkpoint: Option<u64>,
}

/// How the files were compared with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonMethod {
    /// By the metadata of each file compared with that of the last capture. Files that look changed were read.
    Metadata,
    /// Every byte.
    Content,
}

/// How much of the saved state was compared with the restored state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResumeComparison {
    /// How many log events of the newest checkpoint were compared, byte for byte.
    #[schema(required)]
    pub events: u64,
    /// How many messages the agent should have in its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub messages: Option<u64>,
    /// The tree of the checkpoint, with all files and their metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tree: Option<String>,
    /// How the restored files were compared with that tree; `None`: other sessions were changing them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub by: Option<ComparisonMethod>,
    /// The version of the agent.
    #[schema(required)]
    pub agent_version: u32,
    /// The model that the session is set to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub model: Option<String>,
    /// The permission mode that the session is set to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub permission_mode: Option<String>,
    /// Settings that differ from the checkpoint because a caller changed them since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Why the object store's history was not compared with the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub remote: Option<RemoteComparison>,
}

/// Why the object store was not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RemoteComparison {
    /// It did not answer in time. Nothing of the session counts as remote until the comparison.
    Unreachable,
}
