//! THE MEMORY: what happened, in a database. `Store` is the contract, `sqlite` the first to keep it;
//! `tests/contract.rs` is what every backend must pass.

mod audit;
mod remote;
mod rows;
mod seal;
mod sqlite;
mod usage;

pub use audit::{AuditQuery, Audited, Deed, Fate, Order};
pub use remote::{RemoteAgent, RemoteCheckpoint, RemoteSession, RemoteState, RetractedLog, Retraction};
pub use rows::{
    Adoption, Agent, Append, Card, Checkpoint, Claimed, DeployClaim, Diverged, EventQuery, Filter, Held,
    Hold, Holdings, Item, KeptAgents, Key, Lag, Lease, LogPosition, NewAgent, NewSession, NewWorkspace,
    Outgoing, Page, Rebuilt, Scope, SealedValues, Session, TurnRow, TurnState, Version, WhatItem, Workspace,
};
pub use seal::{Env, PURGED, Seal};
pub use sqlite::Sqlite;
pub use usage::{UsageBy, UsageQuery, UsageSum};

use ash_model::far::{FarAgent, Tombstone};
use ash_model::{
    AgentName, Cursor, Epoch, Event, Incarnation, JournalPosition, Kind, Resources, Seq, SessionId,
    SessionNo, Slug, Status, TakenBack, TenantId, Timestamp, TurnId, WorkspaceId,
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
    pub fn kind(&self) -> Kind {
        match self {
            Error::Full | Error::Closed => Kind::Unavailable,
            Error::Stale
            | Error::Taken(_)
            | Error::SlugTaken(_)
            | Error::Deleting(_)
            | Error::OtherAgent { .. } => Kind::Conflict,
            Error::Removed(_) => Kind::Gone,
            Error::Database(_)
            | Error::Migration(_)
            | Error::Damaged { .. }
            | Error::Sealed
            | Error::TooOld { .. } => Kind::Internal,
        }
    }
}

/// Everything the rest of the program asks of a database. A call that returned `Ok` is durable.
#[async_trait]
pub trait Store: Send + Sync {
    // Keys
    async fn key(&self, hash: &str) -> Result<Option<Key>>;
    async fn keys(&self, tenant: &TenantId) -> Result<Vec<Key>>;
    async fn add_key(&self, key: Key, hash: String, by: Order) -> Result<()>;
    async fn remove_key(&self, tenant: &TenantId, id: &str, at: Timestamp, by: Order) -> Result<bool>;

    // Agents
    async fn deploy(&self, agent: NewAgent) -> Result<Agent>;
    async fn agent(&self, tenant: &TenantId, name: &AgentName) -> Result<Option<Agent>>;
    async fn agents(&self, tenant: &TenantId) -> Result<Vec<Agent>>;
    async fn version(&self, tenant: &TenantId, name: &AgentName, version: u32) -> Result<Option<Version>>;
    async fn change_agent(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        config: Option<String>,
        env: Option<Env>,
    ) -> Result<bool>;
    /// What is kept of a tenant's agents, those that were deleted included.
    async fn kept_agents(&self, tenant: &TenantId, name: &AgentName) -> Result<KeptAgents>;
    async fn delete_agent(&self, tenant: &TenantId, name: &AgentName, at: Timestamp) -> Result<bool>;

    // Sessions. `find` is where a caller's id becomes a number, within what they may see; nothing else takes a
    // caller's id.
    /// Also makes its workspace, held by `node` with the session's first epoch.
    async fn create(&self, session: NewSession) -> Result<Session>;
    async fn find(&self, scope: &Scope, id: &SessionId) -> Result<Option<Session>>;
    async fn session(&self, no: SessionNo) -> Result<Option<Session>>;
    async fn sessions(&self, scope: &Scope, filter: &Filter) -> Result<Page>;
    /// Sessions a crash may have left in the middle of something.
    async fn restless(&self) -> Result<Vec<SessionNo>>;
    async fn sessions_of(&self, workspace: WorkspaceId) -> Result<Vec<(SessionNo, Status)>>;
    async fn env(&self, no: SessionNo) -> Result<Env>;
    async fn set_env(&self, no: SessionNo, env: &Env) -> Result<()>;
    /// What its options hold masks for, by JSON pointer.
    async fn secrets(&self, no: SessionNo) -> Result<Env>;
    async fn set_secrets(&self, no: SessionNo, secrets: &Env) -> Result<()>;
    async fn count_active(&self, tenant: &TenantId) -> Result<u64>;

    // Ownership
    async fn hold(&self, workspace: WorkspaceId) -> Result<Option<Hold>>;
    /// Takes the workspace over from exactly `from`; `Stale` if somebody was quicker.
    async fn claim(&self, workspace: WorkspaceId, node: &str, from: &Hold) -> Result<Lease>;

    // The log
    /// Writes all of it or nothing, and only for the holder of `lease`.
    async fn append(&self, lease: &Lease, append: Append) -> Result<()>;
    /// A session's own facts, without what the agent said: what its state is folded from.
    async fn facts(&self, no: SessionNo) -> Result<Vec<Event>>;
    /// Events and deltas after `after`, in order, the parents' included.
    async fn read(&self, no: SessionNo, after: Cursor, limit: u32) -> Result<Vec<Item>>;
    /// What clients know as messages, with their ordinals in the whole log; those above `after`.
    async fn messages(&self, no: SessionNo, after: u64, limit: u32) -> Result<Vec<(u64, Event)>>;
    /// Events only, by kind, the parents' included.
    async fn events(&self, no: SessionNo, query: &EventQuery) -> Result<Vec<Event>>;
    /// How far each session has heard what a sandbox said in which it is at work.
    async fn positions(&self, incarnation: Incarnation) -> Result<Vec<(SessionNo, JournalPosition)>>;
    async fn turn(&self, no: SessionNo, turn: TurnId) -> Result<Option<TurnRow>>;
    async fn checkpoint(&self, workspace: WorkspaceId, number: u64) -> Result<Option<Checkpoint>>;
    /// Newest first, those before number `before`.
    async fn checkpoints(
        &self,
        workspace: WorkspaceId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Checkpoint>>;

    /// Who took the files of a workspace back, and when, after checkpoint `after`; the oldest first.
    async fn taken_back(&self, workspace: WorkspaceId, after: u64) -> Result<Vec<(TakenBack, Timestamp)>>;

    // Giving up checkpoints
    async fn tenants(&self) -> Result<Vec<TenantId>>;
    async fn holdings(&self, tenant: &TenantId) -> Result<Holdings>;
    /// Gives the files of these up, but for those that are needed by now. From then on nobody can stand on them:
    /// a step that goes there, and a fork from there, are `Removed`. Answers how many were given up.
    async fn remove_checkpoints(&self, workspace: WorkspaceId, numbers: &[u64], at: Timestamp)
    -> Result<u64>;

    // Far away: what an object store has of all this
    /// Everything goes there from now on. Of another place than before nothing is known.
    async fn set_far(&self, place: &str) -> Result<()>;
    /// What is not there yet, in the order in which it is to be sent, but for what is of these sessions.
    async fn outgoing(&self, limit: u32, except: &[SessionNo]) -> Result<Vec<Outgoing>>;
    /// It is there now, with the log up to `seq`.
    async fn sent(&self, what: &Outgoing, seq: Seq, at: Timestamp) -> Result<()>;
    async fn lag(&self) -> Result<Lag>;
    async fn far_packs(&self, tenant: &TenantId) -> Result<HashMap<String, u64>>;
    async fn add_far_packs(&self, tenant: &TenantId, packs: &[(String, u64)]) -> Result<()>;
    /// A session's environment and secrets as they are stored.
    async fn sealed(&self, no: SessionNo) -> Result<SealedValues>;
    /// Adds what is not there: agents, and the session with its log. False: it was there already.
    async fn rebuild(&self, rebuilt: Rebuilt) -> Result<bool>;
    /// Goes on with what another witness has of a session. `Stale`: its log has grown since it was compared.
    async fn adopt(&self, adoption: Adoption) -> Result<()>;
    /// Whoever claims the workspace next gets a higher one than this.
    async fn raise_epoch(&self, workspace: WorkspaceId, epoch: Epoch) -> Result<()>;
    /// Its tombstone says that a session was purged, which the database does not know: it goes into the trash as it is.
    async fn purge_again(&self, no: SessionNo, at: Timestamp, by: Order) -> Result<()>;
    /// Of sessions in the trash that had this id.
    async fn tombstones_of(&self, tenant: &TenantId, id: &SessionId) -> Result<Vec<Tombstone>>;
    /// Which of the sessions that had this id was there at a time, those in the trash included.
    async fn session_then(&self, tenant: &TenantId, id: &SessionId, at: Timestamp)
    -> Result<Option<Session>>;
    /// A version of an agent, whole, with its environment sealed. Also of a deleted one.
    async fn definition(&self, tenant: &TenantId, name: &AgentName, version: u32)
    -> Result<Option<FarAgent>>;
    /// How far the logs of a tenant's sessions go, those in the trash included.
    async fn log_positions(&self, tenant: &TenantId) -> Result<Vec<LogPosition>>;
    /// What is to be written down of every session in the trash, so that no witness brings it back.
    async fn tombstones(&self) -> Result<Vec<(SessionNo, Tombstone)>>;
    /// The same of one session, and whether the object store has it.
    async fn tombstone(&self, no: SessionNo) -> Result<Option<(Tombstone, bool)>>;
    /// Reads every page of the database. `None`: it is whole.
    async fn damage(&self) -> Result<Option<String>>;
    /// Agents that come back without a session.
    async fn add_agents(&self, agents: Vec<FarAgent>, at: Timestamp) -> Result<()>;
    /// Objects that are to be deleted there.
    async fn doom(&self, keys: &[String], at: Timestamp) -> Result<()>;
    async fn doomed(&self, limit: u32) -> Result<Vec<(i64, String)>>;
    /// These are not to be deleted after all.
    async fn spare(&self, keys: &[String]) -> Result<()>;
    /// Packs that are about to be deleted there.
    async fn forget_far_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<()>;
    async fn undoom(&self, numbers: &[i64]) -> Result<()>;
    /// What is said to be there of a tenant's.
    async fn remote_state(&self, tenant: &TenantId) -> Result<RemoteState>;
    /// Takes back what is not there. A checkpoint of a session that is said to be there is the highest one that is left.
    async fn retract(&self, tenant: &TenantId, what: Retraction) -> Result<()>;
    /// Packs that were found missing there and were not sent since.
    async fn missing_packs(&self, tenant: &TenantId) -> Result<HashSet<String>>;
    /// An object that is no pack is there, and so long.
    async fn add_remote_object(&self, key: &str, size: u64) -> Result<()>;
    async fn forget_remote_objects(&self, keys: &[String]) -> Result<()>;

    // Workspaces with a name
    /// It may be there already.
    async fn make_workspace(&self, new: NewWorkspace) -> Result<Workspace>;
    async fn find_workspace(&self, scope: &Scope, slug: &Slug) -> Result<Option<Workspace>>;
    async fn workspaces(&self, scope: &Scope) -> Result<Vec<Workspace>>;
    /// Those of all tenants whose deletion was begun.
    async fn half_deleted(&self) -> Result<Vec<Workspace>>;
    /// From now on nobody comes into it. The first order counts.
    async fn begin_deleting(&self, id: WorkspaceId, at: Timestamp, by: Order) -> Result<()>;
    /// Its data is gone: its name is free, and its sessions stand on no checkpoint.
    async fn deleted(&self, id: WorkspaceId, at: Timestamp) -> Result<()>;

    // Cleaning up. Whatever is done, the audit says so in the same transaction.
    /// Who wants the session to end, and what is to become of it then. Both count with the step that ends it.
    async fn order_end(&self, no: SessionNo, by: Order, fate: Fate) -> Result<()>;
    /// Sessions whose time to live was over then, but for those at work.
    async fn overdue(&self, now: Timestamp) -> Result<Vec<Session>>;
    /// Sessions that have been like this since then, and rest.
    async fn rested(&self, status: Status, before: Timestamp) -> Result<Vec<Session>>;
    /// A line of its own, for what no transaction of the store does. Its number is given here. `of`: the session that its
    /// subject names, if that was made.
    async fn record(&self, line: Audited, of: Option<SessionNo>) -> Result<()>;
    /// Newest first. Purged sessions have a pseudonym, and are found by their id as long as no other has it.
    async fn audit(&self, tenant: &TenantId, query: &AuditQuery) -> Result<Vec<Audited>>;

    // The trash
    /// An ended session: nobody finds it from now on, nothing but the audit tells of it, and its id is free. False: it has
    /// not ended, or is there already.
    async fn trash(&self, no: SessionNo, at: Timestamp, by: Order) -> Result<bool>;
    /// What is in the trash since then, but for those whose log a fork reads.
    async fn trashed(&self, before: Timestamp) -> Result<Vec<Session>>;
    /// What is in the trash since then although forks read its log.
    async fn trashed_parents(&self, before: Timestamp) -> Result<Vec<SessionNo>>;
    /// Takes some of what such a one has beyond what they read. True: nothing was left of that.
    async fn forget_unshared(&self, no: SessionNo) -> Result<bool>;
    /// Takes some of what is left of a session in the trash. True: nothing is left.
    async fn bury(&self, no: SessionNo, at: Timestamp) -> Result<bool>;

    // What was used
    /// Summed, the newest first; without `by`, all in one.
    async fn usage(&self, scope: &Scope, by: Option<UsageBy>, query: &UsageQuery) -> Result<Vec<UsageSum>>;

    /// A sandbox took so much of the machine since it began, and its files take so much now.
    async fn took(&self, workspace: WorkspaceId, of: (Incarnation, Resources), at: Timestamp) -> Result<()>;
    /// What a workspace took so far, or all of them together.
    async fn taken(&self, workspace: Option<WorkspaceId>) -> Result<Resources>;
    /// What those took together that somebody may see and asks for, over their whole lives.
    async fn taken_of(&self, scope: &Scope, query: &UsageQuery) -> Result<Resources>;
    /// What each of these took. A workspace that several share is each one's.
    async fn taken_by(&self, scope: &Scope, sessions: &[SessionId]) -> Result<Vec<(SessionId, Resources)>>;

    // Once
    async fn once(
        &self,
        tenant: &TenantId,
        route: &str,
        key: &str,
        hash: &str,
        resource: &str,
        at: Timestamp,
    ) -> Result<Claimed>;

    /// What a key stands for, if it was used.
    async fn claimed(&self, tenant: &TenantId, route: &str, key: &str) -> Result<Option<String>>;

    /// A key whose request was refused: the next request with it is the first. Kept if its turn was accepted after all.
    async fn forget_refused(&self, tenant: &TenantId, route: &str, key: &str) -> Result<()>;

    /// Forgets deltas and idempotency keys from before `before`.
    async fn prune(&self, before: Timestamp) -> Result<u64>;
}
