//! What the database believes an object store to have. A listing of the store may disagree; then the belief is corrected and
//! the missing parts are uploaded again.

use crate::{ForkBase, Result};
use ash_model::{AgentName, EventSeq, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId};
use async_trait::async_trait;
use std::collections::{HashMap, HashSet};

/// Everything of a tenant that the object store should have. Only a listing of the store proves it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemoteState {
    /// Packs with their sizes.
    pub packs: HashMap<String, u64>,
    /// Packs that were found missing and were not uploaded since.
    pub missing: HashSet<String>,
    /// Keys of other objects, with their sizes as far as they are known.
    pub objects: HashMap<String, u64>,
    /// Versions of agents.
    pub agents: Vec<RemoteAgent>,
    /// Sessions with their logs and checkpoints.
    pub sessions: Vec<RemoteSession>,
    /// The trees of what is still to be uploaded. They need their packs, too.
    pub waiting: Vec<String>,
}

/// A version of an agent that the object store should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteAgent {
    /// The agent.
    pub name: AgentName,
    /// The version.
    pub version: u32,
    /// The snapshot of its folder.
    pub tree: String,
    /// For the newest version: the last change of the agent's settings that was uploaded.
    pub changes: Option<u64>,
}

/// A session that the object store should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSession {
    /// The session.
    pub no: SessionRowId,
    /// Its id.
    pub id: SessionId,
    /// Its agent.
    pub agent: AgentName,
    /// The version of the agent.
    pub version: u32,
    /// For a fork: the part of the parent's log that it shares.
    pub base: Option<ForkBase>,
    /// The last event that was uploaded.
    pub seq: EventSeq,
    /// Its uploaded checkpoints, without removed ones.
    pub checkpoints: Vec<RemoteCheckpoint>,
}

/// A checkpoint that the object store should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteCheckpoint {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Its number in the workspace.
    pub number: u64,
    /// The last event that it covers.
    pub seq: EventSeq,
    /// The snapshot with its files.
    pub tree: String,
    /// When it was uploaded.
    pub sent_at: Timestamp,
}

/// What the object store does not have after all, so that it is uploaded again. Whatever was uploaded after the state was
/// read is not affected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteRetraction {
    /// Packs that are not known to be complete: they, or packs that they need, are missing.
    pub packs: Vec<String>,
    /// Packs that are missing.
    pub missing: Vec<String>,
    /// Packs that are no longer missing: they were found, or are not needed.
    pub not_missing: Vec<String>,
    /// Versions of agents.
    pub agents: Vec<RetractedAgent>,
    /// Checkpoints.
    pub checkpoints: Vec<RemoteCheckpoint>,
    /// Logs that are shorter than was believed.
    pub logs: Vec<RetractedLog>,
}

impl RemoteRetraction {
    /// Whether there is nothing to correct.
    pub fn is_empty(&self) -> bool {
        *self == RemoteRetraction::default()
    }
}

/// A version of an agent that the object store does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetractedAgent {
    /// The agent.
    pub name: AgentName,
    /// The version.
    pub version: u32,
}

/// A log that the object store has only up to an earlier event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetractedLog {
    /// The session.
    pub session: SessionRowId,
    /// The last event that was believed to be there.
    pub claimed_seq: EventSeq,
    /// The last event that is there.
    pub actual_seq: EventSeq,
}

/// A pack in the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePack {
    /// Its name.
    pub pack: String,
    /// Its length in bytes.
    pub size: u64,
}

/// What the object store has, as far as uploads and the last comparison have shown.
#[async_trait]
pub trait RemoteInventoryStore: Send + Sync {
    /// The packs of a tenant that the object store has, with their sizes.
    async fn remote_packs(&self, tenant: &TenantId) -> Result<HashMap<String, u64>>;
    /// Records uploaded packs. They are no longer missing.
    async fn add_remote_packs(&self, tenant: &TenantId, packs: &[RemotePack]) -> Result<()>;
    /// Forgets packs that are about to be deleted there.
    async fn forget_remote_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<()>;
    /// The packs of a tenant that were found missing and were not uploaded since.
    async fn missing_packs(&self, tenant: &TenantId) -> Result<HashSet<String>>;
    /// Records an object that is not a pack, with its size.
    async fn add_remote_object(&self, key: &str, size: u64) -> Result<()>;
    /// Forgets objects that are no packs.
    async fn forget_remote_objects(&self, keys: &[String]) -> Result<()>;
    /// Everything of a tenant that the object store should have.
    async fn remote_state(&self, tenant: &TenantId) -> Result<RemoteState>;
    /// Corrects what the object store does not have. The last uploaded checkpoint of a session is then the highest that is
    /// left.
    async fn retract(&self, tenant: &TenantId, what: RemoteRetraction) -> Result<()>;
}
