//! Sessions.

use super::{
    agent::HIDDEN_VALUE,
    permission::PermissionView,
    tool::WaitingToolCall,
    usage::{ResourceUsageView, UsageView},
};
use ash_model::{
    AgentName, AgentRuntime, OwnerId, Problem, Receipt, ResourceLimits, SessionId, SessionLock,
    SessionMetadata, SessionOptions, SessionRewind, SessionStatus, Slug, TenantId, Timestamp, TurnId,
    WorkspaceId, secrets,
};
use ash_store::SessionRow;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A conversation with one version of an agent in one workspace.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionView {
    id: SessionId,
    tenant_id: TenantId,
    agent_name: AgentName,
    /// The version of the agent that it runs.
    agent_version: u32,
    runtime: AgentRuntime,
    sandbox_id: WorkspaceId,
    workspace_id: WorkspaceId,
    /// The name of its workspace, if that is shared.
    #[schema(required)]
    workspace: Option<Slug>,
    status: SessionStatus,
    #[schema(required)]
    model: Option<String>,
    pub(crate) config: SessionConfigView,
    /// Always null: the server has no other runners.
    #[schema(required, value_type = Option<String>)]
    runner_id: Option<String>,
    /// The session that it was forked from.
    #[schema(required)]
    parent_session_id: Option<SessionId>,
    #[schema(required)]
    title: Option<String>,
    /// The beginning of the agent's last answer.
    #[schema(required)]
    last_text: Option<String>,
    /// How many turns there were.
    turns: u64,
    /// How many of them are not over.
    open_turns: u64,
    /// Why the session cannot go on.
    #[schema(required)]
    error: Option<Problem>,
    checkpoint: LastCheckpoints,
    created_at: Timestamp,
    last_active_at: Timestamp,
    age_seconds: i64,
    #[schema(required)]
    owner: Option<OwnerId>,
    metadata: SessionMetadata,
    /// Options that have no effect on the agent's runtime.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored_options: Vec<&'static str>,
    /// When its time to live ends if it is not used before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<Timestamp>,
}

/// The last checkpoints.
#[derive(Serialize, ToSchema)]
struct LastCheckpoints {
    /// The one that the files are based on.
    #[schema(required)]
    local: Option<u64>,
    /// The last one that the object store has.
    #[schema(required)]
    remote: Option<u64>,
}

/// The options of a session.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionConfig)]
pub(crate) struct SessionConfigView {
    #[serde(flatten)]
    options: SessionOptions,
    /// The names of its variables, each with the value `***`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) env: Option<BTreeMap<String, &'static str>>,
}

impl SessionView {
    pub(crate) fn of(session: &SessionRow, now: Timestamp) -> SessionView {
        let card = &session.summary;
        SessionView {
            id: session.id.clone(),
            tenant_id: session.tenant.clone(),
            agent_name: session.agent.clone(),
            agent_version: session.version,
            runtime: session.runtime,
            sandbox_id: session.workspace,
            workspace_id: session.workspace,
            workspace: session.slug.clone(),
            status: card.status,
            model: session.options.model.clone(),
            config: SessionConfigView::of(&session.options),
            runner_id: None,
            parent_session_id: session.parent.clone(),
            title: card.title.clone(),
            last_text: card.last_text.clone(),
            turns: card.turns,
            open_turns: card.open_turns,
            error: card.problem.clone(),
            checkpoint: LastCheckpoints { local: card.checkpoint, remote: session.remote_checkpoint },
            created_at: session.created_at,
            last_active_at: session.last_active_at,
            age_seconds: (now.0 - session.created_at.0).max(0) / 1000,
            owner: session.owner.clone(),
            metadata: session.metadata.clone(),
            ignored_options: ash_driver::driver(session.runtime).ignores(&session.options),
            expires_at: expires_at(session),
        }
    }

    /// With the names of the session's variables.
    pub(crate) fn with_env(mut self, names: Option<Vec<String>>) -> SessionView {
        self.config.env = names.map(|names| names.into_iter().map(|name| (name, HIDDEN_VALUE)).collect());
        self
    }
}

impl SessionConfigView {
    fn of(options: &SessionOptions) -> SessionConfigView {
        let mut options = options.clone();
        options.mcp_servers = options.mcp_servers.as_ref().map(secrets::mask_secrets);
        SessionConfigView { options, env: None }
    }
}

/// When the session's time to live ends if it is not used before.
fn expires_at(session: &SessionRow) -> Option<Timestamp> {
    let seconds = session.options.ttl.filter(|seconds| *seconds > 0)?;
    Some(Timestamp(session.last_active_at.0 + i64::try_from(seconds).ok()?.checked_mul(1000)?))
}

/// A session with everything about it.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionDetail {
    #[serde(flatten)]
    pub(crate) session: SessionView,
    /// Open permission requests and questions.
    pub(crate) pending: Vec<PermissionView>,
    /// Calls of the client's tools that wait for an answer.
    #[serde(rename = "pendingTools")]
    pub(crate) pending_tools: Vec<WaitingToolCall>,
    #[schema(required)]
    pub(crate) lock: Option<LockView>,
    pub(crate) usage: UsageView,
    pub(crate) limits: EffectiveLimits,
    pub(crate) resources: ResourceUsageView,
}

/// The limits that apply to a sandbox of the session.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EffectiveLimits {
    #[serde(flatten)]
    pub(crate) limits: ResourceLimits,
    /// Which mechanism enforces each of them.
    pub(crate) enforced_by: BTreeMap<String, &'static str>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct SessionAnswer {
    pub(crate) session: SessionView,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct SessionDetailAnswer {
    pub(crate) session: SessionDetail,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionListAnswer {
    pub(crate) sessions: Vec<SessionView>,
    /// How many sessions the filter matches on all pages.
    pub(crate) total: u64,
    /// The `cursor` of the next page; null: this may be the last.
    #[schema(required)]
    pub(crate) next_cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct EndedSessionAnswer {
    pub(crate) session: SessionView,
    /// Present and true after a purge.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) purged: bool,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ResumedSessionAnswer {
    pub(crate) session: SessionView,
    /// What was restored from where; null if the session was active.
    #[schema(required)]
    pub(crate) resume: Option<Receipt>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct RewoundSessionAnswer {
    pub(crate) session: SessionView,
    pub(crate) rewound: RewindView,
}

/// The target of a rewind, the checkpoint that leads back, and the turn that was running at the target, which does not
/// continue.
#[derive(Serialize, ToSchema)]
#[schema(as = Rewind)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RewindView {
    checkpoint: u64,
    /// The checkpoint of the state before the rewind.
    #[schema(required)]
    from: Option<u64>,
    /// The last event that counts.
    seq: u64,
    /// How many turns the conversation has now.
    turns: u64,
    mid_turn: bool,
    #[schema(required)]
    turn: Option<TurnId>,
}

impl RewindView {
    pub(crate) fn of(rewind: &SessionRewind) -> RewindView {
        let SessionRewind { to, from, seq, conversation } = rewind;
        RewindView {
            checkpoint: *to,
            from: *from,
            seq: *seq,
            turns: conversation.turns,
            mid_turn: conversation.under_way.is_some(),
            turn: conversation.under_way,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct InterruptAnswer {
    /// Always true.
    pub(crate) ok: bool,
    /// The turn that is interrupted; null: none ran.
    #[schema(required)]
    pub(crate) turn: Option<TurnId>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ExecResult)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecAnswer {
    pub(crate) exit_code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) timed_out: bool,
    /// The command wrote more than the server keeps.
    pub(crate) truncated: bool,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct LogListAnswer {
    pub(crate) logs: Vec<LogLineView>,
    /// Always `sandbox`.
    pub(crate) source: &'static str,
}

/// A line that the agent or its setup wrote.
#[derive(Serialize, ToSchema)]
#[schema(as = LogEntry)]
pub(crate) struct LogLineView {
    pub(crate) index: u64,
    /// `stdout`, `stderr` or `system`.
    pub(crate) level: &'static str,
    pub(crate) text: String,
    pub(crate) ts: Timestamp,
}

/// Who holds the lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Lock)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LockView {
    /// Higher than that of every earlier lock.
    number: u64,
    /// The holder's name for itself.
    #[schema(required)]
    holder: Option<String>,
    expires_at: Timestamp,
    /// A turn of the holder is running, so the lock holds whatever `expiresAt` says.
    in_use: bool,
}

impl LockView {
    pub(crate) fn of(lock: &SessionLock) -> LockView {
        LockView {
            number: lock.number,
            holder: lock.holder.clone(),
            expires_at: lock.until,
            in_use: lock.in_use,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct LockAnswer {
    /// Null: nobody holds it.
    #[schema(required)]
    pub(crate) lock: Option<LockView>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AcquiredLockAnswer {
    pub(crate) lock: AcquiredLock,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AcquiredLock {
    #[serde(flatten)]
    pub(crate) lock: LockView,
    /// For the header X-Ash-Lock.
    pub(crate) token: String,
    /// Seconds after its last use.
    pub(crate) ttl: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StreamToken)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StreamTokenAnswer {
    /// For the parameter `token` of `GET …/stream`.
    pub(crate) token: String,
    /// Until then it opens the stream. A stream that is open goes on.
    pub(crate) expires_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct QueueAnswer {
    pub(crate) queue: Vec<QueuedTurn>,
}

/// A message that runs or waits.
#[derive(Serialize, ToSchema)]
#[schema(as = QueuedMessage)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueuedTurn {
    pub(crate) turn: TurnId,
    /// 0 is the first.
    pub(crate) position: usize,
    /// `queued`, `running`, `saving`, `cut` or `steering`.
    pub(crate) status: &'static str,
    /// A text, or blocks of content; null for a turn that the agent started by itself.
    pub(crate) content: Value,
    pub(crate) attempt: u32,
    #[schema(required)]
    pub(crate) created_at: Option<Timestamp>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct WithdrawnMessageAnswer {
    pub(crate) turn: TurnId,
    /// Always `cancelled`.
    pub(crate) status: &'static str,
}
