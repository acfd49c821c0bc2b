//! THE MEMORY: what happened, in a database. `Store` is the contract, `sqlite` the first to keep it;
//! `tests/contract.rs` is what every backend must pass.

#![forbid(unsafe_code)]

mod audit;
mod remote;
mod rows;
mod seal;
mod sqlite;
mod usage;

pub use audit::{AuditAction, AuditActor, AuditEntry, AuditQuery, EndDisposition};
pub use remote::{RemoteAgent, RemoteCheckpoint, RemoteRetraction, RemoteSession, RemoteState, RetractedLog};
pub use rows::{
    AccessScope, AgentRow, AgentVersion, ApiKey, Checkpoint, DeployIdempotencyKey, DivergedFork, EventQuery,
    HistoryAdoption, IdempotencyClaim, KeptAgentCounts, Lease, LeaseHolder, LogAppend, LogItem,
    LogItemContent, NewAgentVersion, NewSessionRow, NewWorkspaceRow, PendingUpload, RebuiltSession,
    ReplicationLag, SealedSessionValues, SessionFilter, SessionLogEnd, SessionPage, SessionRow,
    SessionSummary, TenantCheckpoint, TenantSnapshots, TurnRow, TurnState, WorkspaceRow,
};
pub use seal::{PURGED, SealingKey, SecretEnv};
pub use sqlite::SqliteStore;
pub use usage::{UsageGrouping, UsageQuery, UsageReportRow};

use ash_model::remote::{AgentDefinition, SessionTombstone};
use ash_model::{
    AgentName, Epoch, Event, EventSeq, FailureKind, Incarnation, JournalPosition, LogCursor, ResourceUsage,
    SessionId, SessionRowId, SessionStatus, Slug, TenantId, Timestamp, TurnId, WorkspaceId, WorkspaceRewind,
};
use async_trait::async_trait;
use std::collections::{HashMap, HashSet};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Database(sqlx::Error),
    #[error("the database cannot be brought up to date: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    #[error("the disk is full: nothing was written; free some space")]
    Full,
    /// Somebody else owns the workspace by now. Whoever gets this stops writing.
    #[error("this server no longer owns the workspace")]
    Stale,
    #[error("{0} is taken")]
    Taken(String),
    /// Somebody else's: whoever asks learns no more than that they need another name.
    #[error("Workspace name \"{0}\" is taken; choose another")]
    SlugTaken(Slug),
    #[error("Workspace \"{0}\" is being deleted; try again when it is gone")]
    Deleting(Slug),
    #[error("Workspace \"{slug}\" belongs to agent \"{agent}\"; name that one, or another workspace")]
    OtherAgent { slug: Slug, agent: AgentName },
    /// Whoever wanted to go there finds nothing any more.
    #[error("Checkpoint {0} was removed by the rules for keeping checkpoints")]
    Removed(u64),
    #[error("row {what} cannot be read: {why}")]
    Damaged { what: &'static str, why: String },
    #[error("the secret cannot be unsealed: was it written with another seal.key?")]
    Sealed,
    #[error("The server has stopped; send it again when it is back")]
    Closed,
    #[error("SQLite {found} is older than {needed}, which fixes a loss of data")]
    TooOld { found: String, needed: &'static str },
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Error {
        match error {
            sqlx::Error::PoolClosed => Error::Closed,
            error => Error::Database(error),
        }
    }
}

impl Error {
    pub fn kind(&self) -> FailureKind {
        match self {
            Error::Full | Error::Closed => FailureKind::Unavailable,
            Error::Stale
            | Error::Taken(_)
            | Error::SlugTaken(_)
            | Error::Deleting(_)
            | Error::OtherAgent { .. } => FailureKind::Conflict,
            Error::Removed(_) => FailureKind::Gone,
            Error::Database(_)
            | Error::Migration(_)
            | Error::Damaged { .. }
            | Error::Sealed
            | Error::TooOld { .. } => FailureKind::Internal,
        }
    }
}

/// Everything the rest of the program asks of a database. A call that returned `Ok` is durable.
#[async_trait]
pub trait Store: Send + Sync {
    // Keys
    async fn key(&self, hash: &str) -> Result<Option<ApiKey>>;
    async fn keys(&self, tenant: &TenantId) -> Result<Vec<ApiKey>>;
    async fn add_key(&self, key: ApiKey, hash: String, by: AuditActor) -> Result<()>;
    async fn remove_key(&self, tenant: &TenantId, id: &str, at: Timestamp, by: AuditActor) -> Result<bool>;

    // Agents
    async fn deploy(&self, agent: NewAgentVersion) -> Result<AgentRow>;
    async fn agent(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<AgentRow>>;
    async fn agents(&self, tenant: &TenantId) -> Result<Vec<AgentRow>>;
    async fn version(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentVersion>>;
    async fn change_agent(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        config: Option<String>,
        env: Option<SecretEnv>,
    ) -> Result<bool>;
    /// What is kept of a tenant's agents, those that were deleted included.
    async fn kept_agents(&self, tenant: &TenantId, name: &AgentName) -> Result<KeptAgentCounts>;
    async fn delete_agent(&self, tenant: &TenantId, name: &AgentName, at: Timestamp) -> Result<bool>;

    // Sessions. `find` is where a caller's id becomes a number, within what they may see; nothing else takes a
    // caller's id.
    /// Also makes its workspace, held by `node` with the session's first epoch.
    async fn create_session(&self, session: NewSessionRow) -> Result<SessionRow>;
    async fn find_session(&self, scope: &AccessScope, id: &SessionId) -> Result<Option<SessionRow>>;
    async fn session(&self, no: SessionRowId) -> Result<Option<SessionRow>>;
    async fn sessions(&self, scope: &AccessScope, filter: &SessionFilter) -> Result<SessionPage>;
    /// Sessions a crash may have left in the middle of something.
    async fn needs_recovery(&self) -> Result<Vec<SessionRowId>>;
    async fn workspace_sessions(&self, workspace: WorkspaceId) -> Result<Vec<(SessionRowId, SessionStatus)>>;
    async fn env(&self, no: SessionRowId) -> Result<SecretEnv>;
    async fn set_env(&self, no: SessionRowId, env: &SecretEnv) -> Result<()>;
    /// What its options hold masks for, by JSON pointer.
    async fn secrets(&self, no: SessionRowId) -> Result<SecretEnv>;
    async fn set_secrets(&self, no: SessionRowId, secrets: &SecretEnv) -> Result<()>;
    async fn count_active(&self, tenant: &TenantId) -> Result<u64>;

    // Ownership
    async fn lease_holder(&self, workspace: WorkspaceId) -> Result<Option<LeaseHolder>>;
    /// Takes the workspace over from exactly `from`; `Stale` if somebody was quicker.
    async fn claim(&self, workspace: WorkspaceId, node: &str, from: &LeaseHolder) -> Result<Lease>;

    // The log
    /// Writes all of it or nothing, and only for the holder of `lease`.
    async fn append(&self, lease: &Lease, append: LogAppend) -> Result<()>;
    /// A session's own facts, without what the agent said: what its state is folded from.
    async fn facts(&self, no: SessionRowId) -> Result<Vec<Event>>;
    /// Events and deltas after `after`, in order, the parents' included.
    async fn read_log(&self, no: SessionRowId, after: LogCursor, limit: u32) -> Result<Vec<LogItem>>;
    /// What clients know as messages, with their ordinals in the whole log; those above `after`.
    async fn messages(&self, no: SessionRowId, after: u64, limit: u32) -> Result<Vec<(u64, Event)>>;
    /// Events only, by kind, the parents' included.
    async fn events(&self, no: SessionRowId, query: &EventQuery) -> Result<Vec<Event>>;
    /// How far each session has heard what a sandbox said in which it is at work.
    async fn journal_positions(
        &self,
        incarnation: Incarnation,
    ) -> Result<Vec<(SessionRowId, JournalPosition)>>;
    async fn turn(&self, no: SessionRowId, turn: TurnId) -> Result<Option<TurnRow>>;
    async fn checkpoint(&self, workspace: WorkspaceId, number: u64) -> Result<Option<Checkpoint>>;
    /// Newest first, those before number `before`.
    async fn checkpoints(
        &self,
        workspace: WorkspaceId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Checkpoint>>;

    /// Who took the files of a workspace back, and when, after checkpoint `after`; the oldest first.
    async fn workspace_rewinds(
        &self,
        workspace: WorkspaceId,
        after: u64,
    ) -> Result<Vec<(WorkspaceRewind, Timestamp)>>;

    // Giving up checkpoints
    async fn tenants(&self) -> Result<Vec<TenantId>>;
    async fn tenant_snapshots(&self, tenant: &TenantId) -> Result<TenantSnapshots>;
    /// Gives the files of these up, but for those that are needed by now. From then on nobody can stand on them:
    /// a step that goes there, and a fork from there, are `Removed`. Answers how many were given up.
    async fn remove_checkpoints(&self, workspace: WorkspaceId, numbers: &[u64], at: Timestamp)
    -> Result<u64>;

    // Far away: what an object store has of all this
    /// Everything goes there from now on. Of another place than before nothing is known.
    async fn set_remote(&self, place: &str) -> Result<()>;
    /// What is not there yet, in the order in which it is to be sent, but for what is of these sessions.
    async fn pending_uploads(&self, limit: u32, except: &[SessionRowId]) -> Result<Vec<PendingUpload>>;
    /// It is there now, with the log up to `seq`.
    async fn mark_uploaded(&self, what: &PendingUpload, seq: EventSeq, at: Timestamp) -> Result<()>;
    async fn replication_lag(&self) -> Result<ReplicationLag>;
    async fn remote_packs(&self, tenant: &TenantId) -> Result<HashMap<String, u64>>;
    async fn add_remote_packs(&self, tenant: &TenantId, packs: &[(String, u64)]) -> Result<()>;
    /// A session's environment and secrets as they are stored.
    async fn sealed_values(&self, no: SessionRowId) -> Result<SealedSessionValues>;
    /// Adds what is not there: agents, and the session with its log. False: it was there already.
    async fn rebuild(&self, rebuilt: RebuiltSession) -> Result<bool>;
    /// Goes on with what another witness has of a session. `Stale`: its log has grown since it was compared.
    async fn adopt(&self, adoption: HistoryAdoption) -> Result<()>;
    /// Whoever claims the workspace next gets a higher one than this.
    async fn raise_epoch(&self, workspace: WorkspaceId, epoch: Epoch) -> Result<()>;
    /// Its tombstone says that a session was purged, which the database does not know: it goes into the trash as it is.
    async fn trash_by_tombstone(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<()>;
    /// Of sessions in the trash that had this id.
    async fn tombstones_of(&self, tenant: &TenantId, id: &SessionId) -> Result<Vec<SessionTombstone>>;
    /// Which of the sessions that had this id was there at a time, those in the trash included.
    async fn session_then(
        &self,
        tenant: &TenantId,
        id: &SessionId,
        at: Timestamp,
    ) -> Result<Option<SessionRow>>;
    /// A version of an agent, whole, with its environment sealed. Also of a deleted one.
    async fn agent_definition(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentDefinition>>;
    /// How far the logs of a tenant's sessions go, those in the trash included.
    async fn log_positions(&self, tenant: &TenantId) -> Result<Vec<SessionLogEnd>>;
    /// What is to be written down of every session in the trash, so that no witness brings it back.
    async fn tombstones(&self) -> Result<Vec<(SessionRowId, SessionTombstone)>>;
    /// The same of one session, and whether the object store has it.
    async fn tombstone(&self, no: SessionRowId) -> Result<Option<(SessionTombstone, bool)>>;
    /// Reads every page of the database. `None`: it is whole.
    async fn check_integrity(&self) -> Result<Option<String>>;
    /// Agents that come back without a session.
    async fn add_agents(&self, agents: Vec<AgentDefinition>, at: Timestamp) -> Result<()>;
    /// Objects that are to be deleted there.
    async fn enqueue_deletes(&self, keys: &[String], at: Timestamp) -> Result<()>;
    async fn queued_deletes(&self, limit: u32) -> Result<Vec<(i64, String)>>;
    /// These are not to be deleted after all.
    async fn cancel_deletes(&self, keys: &[String]) -> Result<()>;
    /// Packs that are about to be deleted there.
    async fn forget_remote_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<()>;
    async fn dequeue_deletes(&self, numbers: &[i64]) -> Result<()>;
    /// What is said to be there of a tenant's.
    async fn remote_state(&self, tenant: &TenantId) -> Result<RemoteState>;
    /// Takes back what is not there. A checkpoint of a session that is said to be there is the highest one that is left.
    async fn retract(&self, tenant: &TenantId, what: RemoteRetraction) -> Result<()>;
    /// Packs that were found missing there and were not sent since.
    async fn missing_packs(&self, tenant: &TenantId) -> Result<HashSet<String>>;
    /// An object that is no pack is there, and so long.
    async fn add_remote_object(&self, key: &str, size: u64) -> Result<()>;
    async fn forget_remote_objects(&self, keys: &[String]) -> Result<()>;

    // Workspaces with a name
    /// It may be there already.
    async fn make_workspace(&self, new: NewWorkspaceRow) -> Result<WorkspaceRow>;
    async fn find_workspace(&self, scope: &AccessScope, slug: &Slug) -> Result<Option<WorkspaceRow>>;
    async fn workspaces(&self, scope: &AccessScope) -> Result<Vec<WorkspaceRow>>;
    /// Those of all tenants whose deletion was begun.
    async fn workspaces_being_deleted(&self) -> Result<Vec<WorkspaceRow>>;
    /// From now on nobody comes into it. The first order counts.
    async fn begin_deleting(&self, id: WorkspaceId, at: Timestamp, by: AuditActor) -> Result<()>;
    /// Its data is gone: its name is free, and its sessions stand on no checkpoint.
    async fn finish_deleting(&self, id: WorkspaceId, at: Timestamp) -> Result<()>;

    // Cleaning up. Whatever is done, the audit says so in the same transaction.
    /// Who wants the session to end, and what is to become of it then. Both count with the step that ends it.
    async fn request_end(&self, no: SessionRowId, by: AuditActor, fate: EndDisposition) -> Result<()>;
    /// Sessions whose time to live was over then, but for those at work.
    async fn expired_sessions(&self, now: Timestamp) -> Result<Vec<SessionRow>>;
    /// Sessions that have been like this since then, and rest.
    async fn resting_sessions(&self, status: SessionStatus, before: Timestamp) -> Result<Vec<SessionRow>>;
    /// A line of its own, for what no transaction of the store does. Its number is given here. `of`: the session that its
    /// subject names, if that was made.
    async fn add_audit_entry(&self, line: AuditEntry, of: Option<SessionRowId>) -> Result<()>;
    /// Newest first. Purged sessions have a pseudonym, and are found by their id as long as no other has it.
    async fn audit_entries(&self, tenant: &TenantId, query: &AuditQuery) -> Result<Vec<AuditEntry>>;

    // The trash
    /// An ended session: nobody finds it from now on, nothing but the audit tells of it, and its id is free. False: it has
    /// not ended, or is there already.
    async fn trash(&self, no: SessionRowId, at: Timestamp, by: AuditActor) -> Result<bool>;
    /// What is in the trash since then, but for those whose log a fork reads.
    async fn trashed_sessions(&self, before: Timestamp) -> Result<Vec<SessionRow>>;
    /// What is in the trash since then although forks read its log.
    async fn trashed_parents(&self, before: Timestamp) -> Result<Vec<SessionRowId>>;
    /// Takes some of what such a one has beyond what they read. True: nothing was left of that.
    async fn forget_unshared(&self, no: SessionRowId) -> Result<bool>;
    /// Takes some of what is left of a session in the trash. True: nothing is left.
    async fn purge(&self, no: SessionRowId, at: Timestamp) -> Result<bool>;

    // What was used
    /// Summed, the newest first; without `by`, all in one.
    async fn usage(
        &self,
        scope: &AccessScope,
        by: Option<UsageGrouping>,
        query: &UsageQuery,
    ) -> Result<Vec<UsageReportRow>>;

    /// A sandbox took so much of the machine since it began, and its files take so much now.
    async fn record_resource_usage(
        &self,
        workspace: WorkspaceId,
        of: (Incarnation, ResourceUsage),
        at: Timestamp,
    ) -> Result<()>;
    /// What a workspace took so far, or all of them together.
    async fn workspace_resource_usage(&self, workspace: Option<WorkspaceId>) -> Result<ResourceUsage>;
    /// What those took together that somebody may see and asks for, over their whole lives.
    async fn total_resource_usage(&self, scope: &AccessScope, query: &UsageQuery) -> Result<ResourceUsage>;
    /// What each of these took. A workspace that several share is each one's.
    async fn resource_usage_by_session(
        &self,
        scope: &AccessScope,
        sessions: &[SessionId],
    ) -> Result<Vec<(SessionId, ResourceUsage)>>;

    // Once
    async fn claim_idempotency_key(
        &self,
        tenant: &TenantId,
        route: &str,
        key: &str,
        hash: &str,
        resource: &str,
        at: Timestamp,
    ) -> Result<IdempotencyClaim>;

    /// What a key stands for, if it was used.
    async fn idempotency_resource(&self, tenant: &TenantId, route: &str, key: &str)
    -> Result<Option<String>>;

    /// A key whose request was refused: the next request with it is the first. Kept if its turn was accepted after all.
    async fn release_idempotency_key(&self, tenant: &TenantId, route: &str, key: &str) -> Result<()>;

    /// Forgets deltas and idempotency keys from before `before`.
    async fn prune(&self, before: Timestamp) -> Result<u64>;
}
