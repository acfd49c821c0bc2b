//! Files, checkpoints, artifacts.

use ash_model::{
    AgentName, CaptureConsistency, ConcurrentTurn, OwnerId, SessionId, SessionStatus, Slug, Timestamp,
    TurnId, WorkspaceId,
};
use ash_snapshot::FileInfo;
use ash_store::{Checkpoint, WorkspaceRow};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
#[schema(as = FileEntry)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileView {
    path: String,
    /// In bytes.
    size: u64,
    modified_at: Timestamp,
}

impl FileView {
    pub(crate) fn of(file: &FileInfo) -> FileView {
        FileView {
            path: String::from_utf8_lossy(&file.path).into_owned(),
            size: file.size,
            modified_at: Timestamp(file.mtime_ms),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct FileListAnswer {
    pub(crate) files: Vec<FileView>,
    /// `sandbox` while a sandbox runs in the workspace, else `snapshot`. Left out for a workspace without sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) source: Option<&'static str>,
}

/// A file as text.
#[derive(Serialize, ToSchema)]
pub(crate) struct FileContentAnswer {
    pub(crate) path: String,
    pub(crate) content: String,
    /// In bytes.
    pub(crate) size: usize,
    /// `sandbox` or `snapshot`.
    pub(crate) source: &'static str,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct WrittenFilesAnswer {
    pub(crate) files: Vec<WrittenFile>,
}

/// What became of one file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WrittenFile {
    pub(crate) path: String,
    pub(crate) written: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) size: Option<u64>,
    /// Why it was not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) error: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct DeletedFileAnswer {
    pub(crate) path: String,
    /// Always true.
    pub(crate) deleted: bool,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct UploadedWorkspaceAnswer {
    /// `Workspace restored to live sandbox` or `Workspace saved as snapshot`.
    pub(crate) message: &'static str,
    /// How many entries were written.
    pub(crate) written: usize,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Plan)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlanResponse {
    /// Null: there is none.
    #[schema(required)]
    pub(crate) plan: Option<String>,
    /// The path in the sandbox.
    pub(crate) path: String,
    #[schema(required)]
    pub(crate) updated_at: Option<Timestamp>,
    /// `sandbox` or `snapshot`, as for files; `log`: the plan exists only in a permission request.
    pub(crate) source: &'static str,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ArtifactListAnswer {
    pub(crate) artifacts: Vec<FileView>,
    /// The path of their folder in the sandbox.
    pub(crate) path: String,
    /// `sandbox` or `snapshot`.
    pub(crate) source: &'static str,
}

/// A saved state of conversation, agent and files.
#[derive(Serialize, ToSchema)]
#[schema(as = Checkpoint)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckpointView {
    number: u64,
    /// The turn that it ends; null: it was taken between turns.
    #[schema(required)]
    turn: Option<TurnId>,
    /// The last event that it covers.
    seq: u64,
    at: Timestamp,
    files: u64,
    bytes: u64,
    consistency: CaptureConsistency,
    /// It was taken from what a crash left behind.
    salvage: bool,
    mid_turn: bool,
    /// The session is at this checkpoint.
    current: bool,
    /// The object store has all of it.
    remote: bool,
    /// Present and true if its files were deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
    /// Turns of other sessions that were running in the workspace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<ConcurrentTurn>,
    /// The checkpoint to which a shared workspace went back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    back: Option<u64>,
}

/// A checkpoint with all details.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckpointDetail)]
pub(crate) struct CheckpointDetailView {
    #[serde(flatten)]
    checkpoint: CheckpointView,
    /// How many files could not be read; null: not counted.
    #[schema(required)]
    skipped: Option<u64>,
    /// How many files changed while they were read; null: not counted.
    #[schema(required)]
    unsettled: Option<u64>,
}

impl CheckpointView {
    /// `current`: the checkpoint that the session is at.
    pub(crate) fn of(current: Option<u64>, row: &Checkpoint) -> CheckpointView {
        CheckpointView {
            number: row.number,
            turn: row.turn,
            seq: row.seq,
            at: row.at,
            files: row.files,
            bytes: row.bytes,
            consistency: row.consistency,
            salvage: row.salvage,
            mid_turn: row.mid_turn,
            current: current == Some(row.number),
            remote: row.uploaded_at.is_some(),
            removed: row.removed_at.is_some(),
            beside: row.concurrent_turns.clone(),
            back: row.rewound_to,
        }
    }
}

impl CheckpointDetailView {
    pub(crate) fn of(current: Option<u64>, row: &Checkpoint) -> CheckpointDetailView {
        let checkpoint = CheckpointView::of(current, row);
        CheckpointDetailView { checkpoint, skipped: row.skipped, unsettled: row.unsettled }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CheckpointListAnswer {
    pub(crate) checkpoints: Vec<CheckpointView>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CheckpointAnswer {
    pub(crate) checkpoint: CheckpointDetailView,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedCheckpointAnswer {
    /// Its number.
    pub(crate) checkpoint: u64,
}

/// What changed between two states of the files.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckpointDiff {
    pub(crate) from: u64,
    /// Left out: the current files.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) to: Option<u64>,
    pub(crate) files: Vec<ChangedFile>,
    /// How many more there are whose names are not UTF-8.
    pub(crate) unnamed: usize,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ChangedFile {
    pub(crate) path: String,
    /// `added`, `modified` or `deleted`.
    pub(crate) change: &'static str,
    #[serde(flatten)]
    pub(crate) state: FileStateView,
    /// What a modified file was before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) before: Option<FileStateView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = FileState)]
pub(crate) struct FileStateView {
    /// `file` or `link`.
    pub(crate) kind: &'static str,
    pub(crate) size: u64,
    /// The permission bits.
    pub(crate) mode: u32,
    /// The target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) target: Option<String>,
}

/// A workspace that several sessions can share.
#[derive(Serialize, ToSchema)]
#[schema(as = Workspace)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkspaceView {
    id: WorkspaceId,
    slug: Slug,
    #[schema(required)]
    owner: Option<OwnerId>,
    agent_name: AgentName,
    /// How many sessions it has.
    sessions: u64,
    /// Its newest checkpoint.
    #[schema(required)]
    checkpoint: Option<u64>,
    /// `ready` or `deleting`.
    status: &'static str,
    created_at: Timestamp,
}

impl WorkspaceView {
    pub(crate) fn of(workspace: &WorkspaceRow) -> WorkspaceView {
        WorkspaceView {
            id: workspace.id,
            slug: workspace.slug.clone(),
            owner: workspace.owner.clone(),
            agent_name: workspace.agent.clone(),
            sessions: workspace.sessions,
            checkpoint: workspace.checkpoint,
            status: if workspace.deleting { "deleting" } else { "ready" },
            created_at: workspace.created_at,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct WorkspaceListAnswer {
    pub(crate) workspaces: Vec<WorkspaceView>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct WorkspaceAnswer {
    pub(crate) workspace: WorkspaceView,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct WorkspaceDetailAnswer {
    pub(crate) workspace: WorkspaceView,
    pub(crate) sessions: Vec<WorkspaceMember>,
}

/// A session of a workspace.
#[derive(Serialize, ToSchema)]
pub(crate) struct WorkspaceMember {
    pub(crate) id: SessionId,
    pub(crate) status: SessionStatus,
    #[schema(required)]
    pub(crate) title: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct DeletedWorkspaceAnswer {
    pub(crate) deleted: Slug,
}
