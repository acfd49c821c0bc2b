//! What goes in and comes out of a store, as the rest of the program sees it.

use crate::Env;
use ash_model::{
    AgentName, Beside, Bounds, Consistency, Cursor, Delta, Epoch, Event, Image, JournalPosition, Lock,
    Metadata, Needs, Note, Options, OwnerId, Problem, Provider, Runtime, Seq, SessionId, SessionNo, Slug,
    Status, TenantId, Timestamp, TurnId, Witness, WorkspaceId,
    far::{FarAgent, Manifest, Tombstone},
    luggage::Line,
};
use uuid::Uuid;

/// Whose sessions and workspaces somebody may see: all of a tenant's, or one owner's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub tenant: TenantId,
    pub owner: Option<OwnerId>,
}

impl Scope {
    /// For those who look after the whole tenant.
    pub fn all(tenant: &TenantId) -> Scope {
        Scope { tenant: tenant.clone(), owner: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    pub id: String,
    pub tenant: TenantId,
    /// None: it opens all of the tenant's.
    pub owner: Option<OwnerId>,
    pub label: String,
    pub created_at: Timestamp,
}

/// How much is kept of a tenant's agents, whether they were deleted or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptAgents {
    pub names: u64,
    /// Of the agent that was asked for.
    pub versions: u64,
}

#[derive(Debug, Clone)]
pub struct NewAgent {
    pub tenant: TenantId,
    pub name: AgentName,
    pub tree: String,
    pub runtime: Runtime,
    pub provider: Option<Provider>,
    /// What its sandbox is made from, where that can be chosen.
    pub image: Option<Image>,
    /// What its sandboxes may take of the machine, as far as it says so.
    pub limits: Option<Bounds>,
    pub needs: Needs,
    /// The folder it was deployed from, or where uploads are said to be.
    pub origin: String,
    /// `None` keeps what is there.
    pub env: Option<Env>,
    /// The idempotency key that the deploy was claimed with (`Store::once`): it makes one version, however often it comes.
    pub claim: Option<DeployClaim>,
    pub at: Timestamp,
}

/// The row of an idempotency key that a deploy came with.
#[derive(Debug, Clone)]
pub struct DeployClaim {
    pub route: String,
    pub key: String,
}

#[derive(Debug, Clone)]
pub struct Agent {
    pub id: Uuid,
    pub tenant: TenantId,
    pub name: AgentName,
    pub version: u32,
    pub runtime: Runtime,
    pub provider: Option<Provider>,
    pub image: Option<Image>,
    pub limits: Option<Bounds>,
    pub needs: Needs,
    pub tree: String,
    pub origin: String,
    pub config: String,
    pub env: Env,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone)]
pub struct Version {
    pub tree: String,
    pub runtime: Runtime,
    pub provider: Option<Provider>,
    pub image: Option<Image>,
    pub limits: Option<Bounds>,
    pub needs: Needs,
    pub env: Env,
}

#[derive(Debug, Clone)]
pub struct NewSession {
    pub tenant: TenantId,
    pub owner: Option<OwnerId>,
    pub metadata: Metadata,
    pub id: SessionId,
    pub workspace: WorkspaceId,
    /// The workspace is there already, under this name. Otherwise it is made with the session.
    pub slug: Option<Slug>,
    pub node: String,
    pub agent: AgentName,
    pub version: u32,
    pub runtime: Runtime,
    pub native_id: Uuid,
    pub options: Options,
    pub env: Env,
    /// What the options hold masks for, by JSON pointer.
    pub secrets: Env,
    pub parent: Option<SessionId>,
    /// For a fork: whose events up to where are also its own.
    pub base: Option<(SessionNo, Seq)>,
    /// For a fork: the checkpoints its own chain begins with.
    pub first_checkpoints: Vec<Checkpoint>,
    pub card: Card,
    pub notes: Vec<Note>,
    /// With which its workspace is held, if it is made with the session.
    pub epoch: Epoch,
    pub at: Timestamp,
}

/// What is sealed of a session, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SealedValues {
    pub env: Option<String>,
    pub secrets: Option<String>,
}

/// The part of a session's row that changes with its log.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    pub status: Status,
    pub title: Option<String>,
    pub last_text: Option<String>,
    pub turns: u64,
    /// Turns that are not over.
    pub open_turns: u64,
    pub problem: Option<Problem>,
    pub checkpoint: Option<u64>,
    /// Events by which the agent asked for leave that it still waits for.
    pub pending: Vec<Seq>,
    /// The last one that was not given up; it may be over.
    pub lock: Option<Lock>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    pub no: SessionNo,
    pub tenant: TenantId,
    pub owner: Option<OwnerId>,
    pub metadata: Metadata,
    pub id: SessionId,
    pub workspace: WorkspaceId,
    /// The name that its workspace had when it was made, if that is shared.
    pub slug: Option<Slug>,
    pub agent: AgentName,
    pub version: u32,
    pub runtime: Runtime,
    pub native_id: Uuid,
    pub options: Options,
    pub parent: Option<SessionId>,
    pub base: Option<(SessionNo, Seq)>,
    pub last_seq: Seq,
    pub card: Card,
    /// The last checkpoint that the object store has.
    pub far_checkpoint: Option<u64>,
    /// Up to which event its log is there.
    pub far_seq: Seq,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub agent: Option<AgentName>,
    pub status: Option<Status>,
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
    pub before: Option<(Timestamp, SessionNo)>,
}

#[derive(Debug, Clone)]
pub struct Page {
    pub sessions: Vec<Session>,
    pub total: u64,
}

/// Who holds a workspace, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
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
    pub seq: Seq,
    pub state: TurnState,
    pub attempt: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    pub workspace: WorkspaceId,
    pub number: u64,
    pub turn: Option<TurnId>,
    /// The session's last event that the checkpoint covers.
    pub seq: Seq,
    pub tree: String,
    pub consistency: Consistency,
    pub salvage: bool,
    /// Taken while its turn was under way.
    pub mid_turn: bool,
    pub files: u64,
    pub bytes: u64,
    /// How much could not be taken, and how many files did not hold still; `None`: nobody counted.
    pub skipped: Option<u64>,
    pub unsettled: Option<u64>,
    /// Turns of others that were under way in the workspace.
    pub beside: Vec<Beside>,
    /// It is what a shared workspace went back to, and the number of that.
    pub back: Option<u64>,
    /// When its files were given up; it stays listed.
    pub removed: Option<Timestamp>,
    /// Since when the object store has all of it.
    pub far: Option<Timestamp>,
    pub at: Timestamp,
}

/// A workspace that sessions share, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
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
pub struct NewWorkspace {
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
pub struct Holdings {
    /// The trees of all versions of its agents.
    pub versions: Vec<String>,
    /// By workspace, the newest first.
    pub checkpoints: Vec<Held>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    pub checkpoint: Checkpoint,
    /// A session stands on it, or counts its changes from it.
    pub needed: bool,
}

/// One step of a session: everything in it becomes durable together.
#[derive(Debug, Clone)]
pub struct Append {
    pub session: SessionNo,
    /// The number of the first note; what is there must end right before it.
    pub first: Seq,
    pub notes: Vec<Note>,
    pub deltas: Vec<Delta>,
    pub turns: Vec<TurnRow>,
    pub card: Card,
    pub checkpoint: Option<Checkpoint>,
    /// How far the shim's journal is used up by this step.
    pub journal: Option<JournalPosition>,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    pub at: Cursor,
    pub turn: Option<TurnId>,
    pub time: Timestamp,
    pub what: WhatItem,
}

#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a page is short-lived, and a box per event would cost more")]
pub enum WhatItem {
    Event(ash_model::Fact),
    Delta(String),
}

impl Item {
    pub fn into_event(self) -> Option<Event> {
        match self.what {
            WhatItem::Event(fact) => Some(Event { seq: self.at.seq, turn: self.turn, at: self.time, fact }),
            WhatItem::Delta(_) => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    pub after: Seq,
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
pub enum Outgoing {
    Agent(FarAgent),
    Checkpoint(SessionNo, Checkpoint),
    /// The log went on after the last checkpoint, up to here, and rests now.
    Log(SessionNo, Seq),
    /// A session was purged: nobody brings it back from there.
    Tombstone(SessionNo, Tombstone),
}

/// How much is still to be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    pub checkpoints: u64,
    pub oldest: Option<Timestamp>,
}

/// How far the log of a session goes, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPosition {
    pub no: SessionNo,
    pub session: SessionId,
    pub workspace: WorkspaceId,
    pub epoch: Epoch,
    pub seq: Seq,
    /// Up to here the object store has it.
    pub far_seq: Seq,
}

/// A session goes on with the history that another witness has of it.
#[derive(Debug, Clone)]
pub struct Adoption {
    pub session: SessionNo,
    /// What was compared: if the session's log ends elsewhere by now, nothing is adopted.
    pub last_seq: Seq,
    /// The last event that both have.
    pub common: Seq,
    /// What becomes of the events that only the database has.
    pub diverged: Option<Diverged>,
    pub rebuilt: Rebuilt,
}

/// The fork that keeps a history which is no beginning of the one that was adopted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diverged {
    pub id: SessionId,
    pub workspace: WorkspaceId,
}

/// A session as a witness outside of the database knows it.
#[derive(Debug, Clone)]
pub struct Rebuilt {
    pub witness: Witness,
    /// It comes back for its forks alone, which share its log: it stays in the trash.
    pub purged: Option<Tombstone>,
    pub manifest: Manifest,
    pub node: String,
    pub card: Card,
    pub agents: Vec<FarAgent>,
    /// Its whole log, from its first event of its own.
    pub events: Vec<Line>,
    pub turns: Vec<TurnRow>,
    pub checkpoints: Vec<Checkpoint>,
    pub at: Timestamp,
}

impl Rebuilt {
    pub fn last_seq(&self) -> Seq {
        self.events.last().map_or(self.manifest.seq, |line| line.seq)
    }

    /// Up to where the object store has its log.
    pub fn far_seq(&self) -> Seq {
        match self.witness {
            Witness::Bucket => self.manifest.seq,
            Witness::Packs => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The resource to make.
    First(String),
    /// A retry of the same request: the resource to find, or to make if a crash came between.
    Again(String),
    /// The key was used for another request.
    Other,
}
