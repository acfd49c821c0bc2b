//! Sessions as rows: creating, finding and listing them, and their secrets. What happened in a session is in `log.rs`.

use crate::{AccessScope, AuditEntry, Checkpoint, Result, SecretEnv};
use ash_model::{
    AgentName, AgentRuntime, Epoch, EventSeq, NewEvent, OwnerId, Problem, SessionId, SessionLock,
    SessionMetadata, SessionOptions, SessionRowId, SessionStatus, Slug, TenantId, Timestamp, WorkspaceId,
};
use async_trait::async_trait;
use uuid::Uuid;

/// A session to create, with the first events of its log.
#[derive(Debug, Clone)]
pub struct NewSessionRow {
    /// The tenant that has it.
    pub tenant: TenantId,
    /// The owner in the tenant, if the caller's key has one.
    pub owner: Option<OwnerId>,
    /// The caller's labels.
    pub metadata: SessionMetadata,
    /// Its id, unique in the tenant.
    pub id: SessionId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// The name of a shared workspace that exists already. `None`: the workspace is created with the session.
    pub slug: Option<Slug>,
    /// The server that holds the new workspace.
    pub node: String,
    /// The agent that it runs.
    pub agent: AgentName,
    /// The version of the agent.
    pub version: u32,
    /// The program that runs the agent.
    pub runtime: AgentRuntime,
    /// The id that the runtime itself gives the conversation.
    pub native_id: Uuid,
    /// The session's settings.
    pub options: SessionOptions,
    /// The session's environment.
    pub env: SecretEnv,
    /// The values that `options` holds masks for, by JSON pointer.
    pub secrets: SecretEnv,
    /// For a fork: the session that it was forked from.
    pub parent: Option<SessionId>,
    /// For a fork: the part of the parent's log that it shares.
    pub base: Option<ForkBase>,
    /// For a fork: the checkpoints that its own workspace begins with.
    pub first_checkpoints: Vec<Checkpoint>,
    /// The summary after the first events.
    pub summary: SessionSummary,
    /// The first events of its own log.
    pub events: Vec<NewEvent>,
    /// The audit entry about its creation. It is recorded together with the session: never without it, and never alone.
    pub audit: Option<AuditEntry>,
    /// The first epoch of the workspace, if it is created with the session.
    pub epoch: Epoch,
    /// When it is created.
    pub at: Timestamp,
}

/// The part of a parent's log that a fork shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkBase {
    /// The parent.
    pub parent: SessionRowId,
    /// The last shared event.
    pub seq: EventSeq,
}

/// The sealed values of a session, encrypted as they are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SealedSessionValues {
    /// The environment.
    pub env: Option<String>,
    /// The secrets in the options.
    pub secrets: Option<String>,
}

/// The columns of a session that change with its log, so that lists need not read the log.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSummary {
    /// What the session does.
    pub status: SessionStatus,
    /// The title of the conversation.
    pub title: Option<String>,
    /// The beginning of the agent's last answer.
    pub last_text: Option<String>,
    /// How many turns there were.
    pub turns: u64,
    /// How many of them are not finished.
    pub open_turns: u64,
    /// Why the session cannot go on, if it cannot.
    pub problem: Option<Problem>,
    /// The checkpoint that the workspace is based on.
    pub checkpoint: Option<u64>,
    /// The permission requests and questions that are open, by their events.
    pub pending: Vec<EventSeq>,
    /// The last lock that was not released; it may have expired.
    pub lock: Option<SessionLock>,
}

/// A session as the database has it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// The number of the row, which is never used again.
    pub no: SessionRowId,
    /// The tenant that has it.
    pub tenant: TenantId,
    /// The owner in the tenant.
    pub owner: Option<OwnerId>,
    /// The caller's labels.
    pub metadata: SessionMetadata,
    /// Its id, unique in the tenant. In the trash: the id that it had.
    pub id: SessionId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// The name that its workspace had when the session was created, if it is shared.
    pub slug: Option<Slug>,
    /// The agent that it runs.
    pub agent: AgentName,
    /// The version of the agent.
    pub version: u32,
    /// The program that runs the agent.
    pub runtime: AgentRuntime,
    /// The id that the runtime itself gives the conversation.
    pub native_id: Uuid,
    /// The session's settings.
    pub options: SessionOptions,
    /// For a fork: the session that it was forked from, unless that was purged.
    pub parent: Option<SessionId>,
    /// For a fork: the part of the parent's log that it shares.
    pub base: Option<ForkBase>,
    /// The last event of its log.
    pub last_seq: EventSeq,
    /// The summary after that event.
    pub summary: SessionSummary,
    /// The last checkpoint that the object store has.
    pub remote_checkpoint: Option<u64>,
    /// The last event that the object store has.
    pub remote_seq: EventSeq,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its log was appended to last.
    pub last_active_at: Timestamp,
}

/// Which sessions a list contains. Every field narrows it.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Those of one agent.
    pub agent: Option<AgentName>,
    /// Those with one status.
    pub status: Option<SessionStatus>,
    /// Those created in a workspace of this name.
    pub workspace: Option<Slug>,
    /// Those whose id begins like this.
    pub id_prefix: Option<String>,
    /// Those of one owner.
    pub owner: Option<OwnerId>,
    /// Those that have all of these labels.
    pub metadata: Vec<MetadataFilter>,
    /// Those last active before this.
    pub older: Option<Timestamp>,
    /// Those last active at this or after.
    pub newer: Option<Timestamp>,
    /// At most so many.
    pub limit: Option<u32>,
    /// Without the first so many.
    pub offset: u32,
    /// Those that a list shows after this position.
    pub before: Option<SessionListCursor>,
}

/// A label that a session must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataFilter {
    /// The name of the label.
    pub name: String,
    /// Its exact value.
    pub value: String,
}

/// A position in a list of sessions, which is the newest first: the last session of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionListCursor {
    /// When that session was created.
    pub created_at: Timestamp,
    /// Its row, which orders sessions of the same time.
    pub no: SessionRowId,
}

/// A page of a list of sessions.
#[derive(Debug, Clone)]
pub struct SessionPage {
    /// The newest first.
    pub sessions: Vec<SessionRow>,
    /// How many sessions the filter matches on all pages.
    pub total: u64,
}

/// A session of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceSession {
    /// The session.
    pub no: SessionRowId,
    /// What it does.
    pub status: SessionStatus,
    /// It was purged, and its rows are not deleted yet.
    pub purged: bool,
}

/// Sessions. `find_session` is the only method that takes an id from a caller, and applies the caller's scope; all others
/// take the row number that it answers.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Creates a session, its first events and, unless it shares one, its workspace: all or nothing. `node` holds the new
    /// workspace with the given epoch.
    async fn create_session(&self, session: NewSessionRow) -> Result<SessionRow>;
    /// The session with this id, unless it is outside of the scope or in the trash.
    async fn find_session(&self, scope: &AccessScope, id: &SessionId) -> Result<Option<SessionRow>>;
    /// The session of a row, also one in the trash.
    async fn session(&self, no: SessionRowId) -> Result<Option<SessionRow>>;
    /// Which session had this id at a time, those in the trash included.
    async fn session_then(
        &self,
        tenant: &TenantId,
        id: &SessionId,
        at: Timestamp,
    ) -> Result<Option<SessionRow>>;
    /// A page of the sessions in the scope that match the filter, the newest first.
    async fn sessions(&self, scope: &AccessScope, filter: &SessionFilter) -> Result<SessionPage>;
    /// Sessions that a crash may have interrupted: active, starting, or with an unfinished turn.
    async fn needs_recovery(&self) -> Result<Vec<SessionRowId>>;
    /// All sessions of a workspace, the oldest first.
    async fn workspace_sessions(&self, workspace: WorkspaceId) -> Result<Vec<WorkspaceSession>>;
    /// How many sessions of a tenant are active.
    async fn count_active(&self, tenant: &TenantId) -> Result<u64>;
    /// The environment of a session.
    async fn env(&self, no: SessionRowId) -> Result<SecretEnv>;
    /// Replaces the environment of a session.
    async fn set_env(&self, no: SessionRowId, env: &SecretEnv) -> Result<()>;
    /// The values that the session's options hold masks for, by JSON pointer.
    async fn secrets(&self, no: SessionRowId) -> Result<SecretEnv>;
    /// Replaces those values.
    async fn set_secrets(&self, no: SessionRowId, secrets: &SecretEnv) -> Result<()>;
    /// The environment and the secrets of a session, encrypted as they are stored.
    async fn sealed_values(&self, no: SessionRowId) -> Result<SealedSessionValues>;
}
