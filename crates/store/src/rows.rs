//! What goes in and comes out of a store, as the rest of the program sees it.

use crate::SecretEnv;
use ash_model::{
    AgentName, AgentRuntime, CaptureConsistency, ConcurrentTurn, Epoch, Event, EventSeq, HistorySource,
    Image, JournalPosition, LogCursor, MessageDelta, ModelProvider, NewEvent, OwnerId, Problem,
    ResourceLimits, SandboxRequirements, SessionId, SessionLock, SessionMetadata, SessionOptions,
    SessionRowId, SessionStatus, Slug, TenantId, Timestamp, TurnId, WorkspaceId,
    embedded_log::EventLine,
    remote::{AgentDefinition, SessionManifest, SessionTombstone},
};
use uuid::Uuid;

/// Whose sessions and workspaces somebody may see: all of a tenant's, or one owner's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessScope {
    pub tenant: TenantId,
    pub owner: Option<OwnerId>,
}

impl AccessScope {
    /// For those who look after the whole tenant.
    pub fn all(tenant: &TenantId) -> AccessScope {
        AccessScope { tenant: tenant.clone(), owner: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    pub id: String,
    pub tenant: TenantId,
    /// None: it opens all of the tenant's.
    pub owner: Option<OwnerId>,
    pub label: String,
    pub created_at: Timestamp,
}

/// How much is kept of a tenant's agents, whether they were deleted or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptAgentCounts {
    pub names: u64,
    /// Of the agent that was asked for.
    pub versions: u64,
}

#[derive(Debug, Clone)]
pub struct NewAgentVersion {
    pub tenant: TenantId,
    pub name: AgentName,
    pub tree: String,
    pub runtime: AgentRuntime,
    pub provider: Option<ModelProvider>,
    /// What its sandbox is made from, where that can be chosen.
    pub image: Option<Image>,
    /// What its sandboxes may take of the machine, as far as it says so.
    pub limits: Option<ResourceLimits>,
    pub needs: SandboxRequirements,
    /// The folder it was deployed from, or where uploads are said to be.
    pub origin: String,
    /// `None` keeps what is there.
    pub env: Option<SecretEnv>,
    /// The idempotency key that the deploy was claimed with (`Store::once`): it makes one version, however often it comes.
    pub claim: Option<DeployIdempotencyKey>,
    pub at: Timestamp,
}

/// The row of an idempotency key that a deploy came with.
#[derive(Debug, Clone)]
pub struct DeployIdempotencyKey {
    pub route: String,
    pub key: String,
}

#[derive(Debug, Clone)]
pub struct AgentRow {
    pub id: Uuid,
    pub tenant: TenantId,
    pub name: AgentName,
    pub version: u32,
    pub runtime: AgentRuntime,
    pub provider: Option<ModelProvider>,
    pub image: Option<Image>,
    pub limits: Option<ResourceLimits>,
    pub needs: SandboxRequirements,
    pub tree: String,
    pub origin: String,
    pub config: String,
    pub env: SecretEnv,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone)]
pub struct AgentVersion {
    pub tree: String,
    pub runtime: AgentRuntime,
    pub provider: Option<ModelProvider>,
    pub image: Option<Image>,
    pub limits: Option<ResourceLimits>,
    pub needs: SandboxRequirements,
    pub env: SecretEnv,
}

#[derive(Debug, Clone)]
pub struct NewSessionRow {
    pub tenant: TenantId,
    pub owner: Option<OwnerId>,
    pub metadata: SessionMetadata,
    pub id: SessionId,
    pub workspace: WorkspaceId,
    /// The workspace is there already, under this name. Otherwise it is made with the session.
    pub slug: Option<Slug>,
    pub node: String,
    pub agent: AgentName,
    pub version: u32,
    pub runtime: AgentRuntime,
    pub native_id: Uuid,
    pub options: SessionOptions,
    pub env: SecretEnv,
    /// What the options hold masks for, by JSON pointer.
    pub secrets: SecretEnv,
    pub parent: Option<SessionId>,
    /// For a fork: whose events up to where are also its own.
    pub base: Option<(SessionRowId, EventSeq)>,
    /// For a fork: the checkpoints its own chain begins with.
    pub first_checkpoints: Vec<Checkpoint>,
    pub summary: SessionSummary,
    pub events: Vec<NewEvent>,
    /// With which its workspace is held, if it is made with the session.
    pub epoch: Epoch,
    pub at: Timestamp,
}

/// What is sealed of a session, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SealedSessionValues {
    pub env: Option<String>,
    pub secrets: Option<String>,
}

/// The part of a session's row that changes with its log.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSummary {
    pub status: SessionStatus,
    pub title: Option<String>,
    pub last_text: Option<String>,
    pub turns: u64,
    /// Turns that are not over.
    pub open_turns: u64,
    pub problem: Option<Problem>,
    pub checkpoint: Option<u64>,
    /// Events by which the agent asked for leave that it still waits for.
    pub pending: Vec<EventSeq>,
    /// The last one that was not given up; it may be over.
    pub lock: Option<SessionLock>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    pub no: SessionRowId,
    pub tenant: TenantId,
    pub owner: Option<OwnerId>,
    pub metadata: SessionMetadata,
    pub id: SessionId,
    pub workspace: WorkspaceId,
    /// The name that its workspace had when it was made, if that is shared.
    pub slug: Option<Slug>,
    pub agent: AgentName,
    pub version: u32,
    pub runtime: AgentRuntime,
    pub native_id: Uuid,
    pub options: SessionOptions,
    pub parent: Option<SessionId>,
    pub base: Option<(SessionRowId, EventSeq)>,
    pub last_seq: EventSeq,
    pub summary: SessionSummary,
    /// The last checkpoint that the object store has.
    pub remote_checkpoint: Option<u64>,
    /// Up to which event its log is there.
    pub remote_seq: EventSeq,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    pub agent: Option<AgentName>,
    pub status: Option<SessionStatus>,
    /// The name that its workspace had when it was made.
    pub workspace: Option<Slug>,
    pub id_prefix: Option<String>,
    pub owner: Option<OwnerId>,
    /// All of these are noted on it.
    pub metadata: Vec<(String, String)>,
    /// Last active before this.
    pub older: Option<Timestamp>,
    /// Last active at this or after.
    pub newer: Option<Timestamp>,
    pub limit: Option<u32>,
    pub offset: u32,
    /// Only sessions older than this one, by (created, number).
    pub before: Option<(Timestamp, SessionRowId)>,
}

#[derive(Debug, Clone)]
pub struct SessionPage {
    pub sessions: Vec<SessionRow>,
    pub total: u64,
}

/// Who holds a workspace, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolder {
    pub node: String,
    pub epoch: Epoch,
}

/// Our hold on a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub workspace: WorkspaceId,
    pub epoch: Epoch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnState {
    Queued,
    Running,
    Saving,
    Cut,
    Done,
    Failed,
    Interrupted,
    Cancelled,
}

impl TurnState {
    const ALL: [(TurnState, &'static str); 8] = [
        (TurnState::Queued, "queued"),
        (TurnState::Running, "running"),
        (TurnState::Saving, "saving"),
        (TurnState::Cut, "cut"),
        (TurnState::Done, "done"),
        (TurnState::Failed, "failed"),
        (TurnState::Interrupted, "interrupted"),
        (TurnState::Cancelled, "cancelled"),
    ];

    pub fn as_str(self) -> &'static str {
        TurnState::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }

    pub fn parse(text: &str) -> Option<TurnState> {
        TurnState::ALL.iter().find(|(_, name)| *name == text).map(|(state, _)| *state)
    }

    pub fn is_over(self) -> bool {
        match self {
            TurnState::Queued | TurnState::Running | TurnState::Saving | TurnState::Cut => false,
            TurnState::Done | TurnState::Failed | TurnState::Interrupted | TurnState::Cancelled => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    pub id: TurnId,
    /// Where its `queued` stands in the log.
    pub seq: EventSeq,
    pub state: TurnState,
    pub attempt: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    pub workspace: WorkspaceId,
    pub number: u64,
    pub turn: Option<TurnId>,
    /// The session's last event that the checkpoint covers.
    pub seq: EventSeq,
    pub tree: String,
    pub consistency: CaptureConsistency,
    pub salvage: bool,
    /// Taken while its turn was under way.
    pub mid_turn: bool,
    pub files: u64,
    pub bytes: u64,
    /// How much could not be taken, and how many files did not hold still; `None`: nobody counted.
    pub skipped: Option<u64>,
    pub unsettled: Option<u64>,
    /// Turns of others that were under way in the workspace.
    pub concurrent_turns: Vec<ConcurrentTurn>,
    /// It is what a shared workspace went back to, and the number of that.
    pub rewound_to: Option<u64>,
    /// When its files were given up; it stays listed.
    pub removed_at: Option<Timestamp>,
    /// Since when the object store has all of it.
    pub uploaded_at: Option<Timestamp>,
    pub at: Timestamp,
}

/// A workspace that sessions share, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceRow {
    pub id: WorkspaceId,
    pub tenant: TenantId,
    pub owner: Option<OwnerId>,
    pub slug: Slug,
    pub agent: AgentName,
    pub created_at: Timestamp,
    /// Its data may be gone already.
    pub deleting: bool,
    pub sessions: u64,
    /// The last one that was made.
    pub checkpoint: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct NewWorkspaceRow {
    pub id: WorkspaceId,
    pub tenant: TenantId,
    /// Only if one is there already that is theirs; none: whosever it is.
    pub owner: Option<OwnerId>,
    pub slug: Slug,
    pub agent: AgentName,
    pub node: String,
    pub at: Timestamp,
}

/// Everything of a tenant that a repository holds for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TenantSnapshots {
    /// The trees of all versions of its agents.
    pub versions: Vec<String>,
    /// By workspace, the newest first.
    pub checkpoints: Vec<TenantCheckpoint>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TenantCheckpoint {
    pub checkpoint: Checkpoint,
    /// A session stands on it, or counts its changes from it.
    pub needed: bool,
}

/// One step of a session: everything in it becomes durable together.
#[derive(Debug, Clone)]
pub struct LogAppend {
    pub session: SessionRowId,
    /// The number of the first note; what is there must end right before it.
    pub first_seq: EventSeq,
    pub events: Vec<NewEvent>,
    pub deltas: Vec<MessageDelta>,
    pub turns: Vec<TurnRow>,
    pub summary: SessionSummary,
    pub checkpoint: Option<Checkpoint>,
    /// How far the shim's journal is used up by this step.
    pub journal: Option<JournalPosition>,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LogItem {
    pub at: LogCursor,
    pub turn: Option<TurnId>,
    pub time: Timestamp,
    pub content: LogItemContent,
}

#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a page is short-lived, and a box per event would cost more")]
pub enum LogItemContent {
    Event(ash_model::Fact),
    Delta(String),
}

impl LogItem {
    pub fn into_event(self) -> Option<Event> {
        match self.content {
            LogItemContent::Event(fact) => {
                Some(Event { seq: self.at.seq, turn: self.turn, at: self.time, fact })
            }
            LogItemContent::Delta(_) => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    pub after: EventSeq,
    pub limit: u32,
    /// Empty: all kinds.
    pub kinds: Vec<&'static str>,
}

impl EventQuery {
    /// Kinds that say what of a log does not count any more. They are few, and every list of messages needs all of them: they
    /// are found without reading the log.
    pub const SUPERSEDING: [&'static str; 4] = ["forked", "continued", "requeued", "rewound"];
}

/// Something that the object store does not have yet.
#[derive(Debug, Clone, PartialEq)]
pub enum PendingUpload {
    Agent(AgentDefinition),
    Checkpoint(SessionRowId, Checkpoint),
    /// The log went on after the last checkpoint, up to here, and rests now.
    Log(SessionRowId, EventSeq),
    /// A session was purged: nobody brings it back from there.
    Tombstone(SessionRowId, SessionTombstone),
}

/// How much is still to be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicationLag {
    pub checkpoints: u64,
    pub oldest: Option<Timestamp>,
}

/// How far the log of a session goes, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLogEnd {
    pub no: SessionRowId,
    pub session: SessionId,
    pub workspace: WorkspaceId,
    pub epoch: Epoch,
    pub seq: EventSeq,
    /// Up to here the object store has it.
    pub remote_seq: EventSeq,
}

/// A session goes on with the history that another witness has of it.
#[derive(Debug, Clone)]
pub struct HistoryAdoption {
    pub session: SessionRowId,
    /// What was compared: if the session's log ends elsewhere by now, nothing is adopted.
    pub last_seq: EventSeq,
    /// The last event that both have.
    pub common: EventSeq,
    /// What becomes of the events that only the database has.
    pub diverged: Option<DivergedFork>,
    pub rebuilt: RebuiltSession,
}

/// The fork that keeps a history which is no beginning of the one that was adopted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DivergedFork {
    pub id: SessionId,
    pub workspace: WorkspaceId,
}

/// A session as a witness outside of the database knows it.
#[derive(Debug, Clone)]
pub struct RebuiltSession {
    pub witness: HistorySource,
    /// It comes back for its forks alone, which share its log: it stays in the trash.
    pub purged: Option<SessionTombstone>,
    pub manifest: SessionManifest,
    pub node: String,
    pub summary: SessionSummary,
    pub agents: Vec<AgentDefinition>,
    /// Its whole log, from its first event of its own.
    pub events: Vec<EventLine>,
    pub turns: Vec<TurnRow>,
    pub checkpoints: Vec<Checkpoint>,
    pub at: Timestamp,
}

impl RebuiltSession {
    pub fn last_seq(&self) -> EventSeq {
        self.events.last().map_or(self.manifest.seq, |line| line.seq)
    }

    /// Up to where the object store has its log.
    pub fn remote_seq(&self) -> EventSeq {
        match self.witness {
            HistorySource::Bucket => self.manifest.seq,
            HistorySource::Packs => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdempotencyClaim {
    /// The resource to make.
    New(String),
    /// A retry of the same request: the resource to find, or to make if a crash came between.
    Retry(String),
    /// The key was used for another request.
    Conflict,
}
