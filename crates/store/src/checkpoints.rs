//! Checkpoints: the states of a workspace that a session can go back to.

use crate::Result;
use ash_model::{
    CaptureConsistency, ConcurrentTurn, EventSeq, TenantId, Timestamp, TurnId, WorkspaceId, WorkspaceRewind,
};
use async_trait::async_trait;

/// A checkpoint as the database has it. Its files are in the repository.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Its number in the workspace, from 1.
    pub number: u64,
    /// The turn that it ends. `None`: it was taken between turns.
    pub turn: Option<TurnId>,
    /// The last event of the session that it covers.
    pub seq: EventSeq,
    /// The snapshot with its files.
    pub tree: String,
    /// Whether the files could change while they were read.
    pub consistency: CaptureConsistency,
    /// It was taken from what a crash left behind.
    pub salvage: bool,
    /// It was taken while its turn was running.
    pub mid_turn: bool,
    /// How many files it has.
    pub files: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// How many files could not be read. `None`: not counted.
    pub skipped: Option<u64>,
    /// How many files changed while they were read. `None`: not counted.
    pub unsettled: Option<u64>,
    /// Turns of other sessions that were running in the workspace.
    pub concurrent_turns: Vec<ConcurrentTurn>,
    /// For a checkpoint that a rewind of a shared workspace made: the checkpoint that was restored.
    pub rewound_to: Option<u64>,
    /// When its files were deleted. The checkpoint stays listed.
    pub removed_at: Option<Timestamp>,
    /// Since when the object store has all of it.
    pub uploaded_at: Option<Timestamp>,
    /// When it was taken.
    pub at: Timestamp,
}

/// Everything that a tenant's repository must hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TenantSnapshots {
    /// The snapshots of all versions of its agents.
    pub versions: Vec<String>,
    /// Its checkpoints by workspace, the newest first.
    pub checkpoints: Vec<TenantCheckpoint>,
}

/// A checkpoint, and whether a retention rule may delete it.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantCheckpoint {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// A session is based on it, or counts its changes from it.
    pub needed: bool,
}

/// A rewind of the files of a shared workspace.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkspaceRewindRow {
    /// Which session rewound the files, and to which checkpoint.
    pub rewind: WorkspaceRewind,
    /// When.
    pub at: Timestamp,
}

/// Checkpoints. They are written by the step that completes them (`LogStore::append`).
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// One checkpoint of a workspace.
    async fn checkpoint(&self, workspace: WorkspaceId, number: u64) -> Result<Option<Checkpoint>>;
    /// The checkpoints with a number below `before`, the newest first.
    async fn checkpoints(
        &self,
        workspace: WorkspaceId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Checkpoint>>;
    /// The rewinds of a workspace's files after checkpoint `after`, the oldest first.
    async fn workspace_rewinds(&self, workspace: WorkspaceId, after: u64) -> Result<Vec<WorkspaceRewindRow>>;
    /// All tenants that have an agent or a workspace.
    async fn tenants(&self) -> Result<Vec<TenantId>>;
    /// Everything that a tenant's repository must hold.
    async fn tenant_snapshots(&self, tenant: &TenantId) -> Result<TenantSnapshots>;
    /// Marks the files of these checkpoints as deleted, except those that a session needs by now, and writes the audit
    /// entries. From then on a rewind to them and a fork from them fail with `Removed`. Answers how many were marked.
    async fn remove_checkpoints(&self, workspace: WorkspaceId, numbers: &[u64], at: Timestamp)
    -> Result<u64>;
}
