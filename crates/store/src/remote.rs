//! What the database says an object store has, and what of it is taken back when the store does not have it.

use ash_model::{AgentName, EventSeq, SessionId, SessionRowId, Timestamp, WorkspaceId};
use std::collections::{HashMap, HashSet};

/// Everything of a tenant that is said to be in the object store. A claim: only a listing knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemoteState {
    /// With their sizes.
    pub packs: HashMap<String, u64>,
    /// Packs that were found missing and were not sent since.
    pub missing: HashSet<String>,
    /// Keys of other objects, with their sizes as far as they are known.
    pub objects: HashMap<String, u64>,
    pub agents: Vec<RemoteAgent>,
    pub sessions: Vec<RemoteSession>,
    /// The trees of everything that is to be there and is not said to be: they need packs, too.
    pub waiting: Vec<String>,
}

/// A version of an agent that is said to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteAgent {
    pub name: AgentName,
    pub version: u32,
    pub tree: String,
    /// Of the newest version: with the changes up to this one.
    pub changes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSession {
    pub no: SessionRowId,
    pub id: SessionId,
    pub agent: AgentName,
    pub version: u32,
    /// Of a fork: its parent, and the last event that they share.
    pub base: Option<(SessionRowId, EventSeq)>,
    /// Up to which event the log is said to be there.
    pub seq: EventSeq,
    /// Those that were not removed.
    pub checkpoints: Vec<RemoteCheckpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteCheckpoint {
    pub workspace: WorkspaceId,
    pub number: u64,
    pub seq: EventSeq,
    pub tree: String,
    pub sent_at: Timestamp,
}

/// What is not said to be there any more, so that it is sent again. What was sent after the state was read is not affected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteRetraction {
    /// Packs that are not known to be there, or that need one that is not.
    pub packs: Vec<String>,
    /// Packs that are missing.
    pub missing: Vec<String>,
    /// Packs that are not missing any more: they are there, or are needed no more.
    pub not_missing: Vec<String>,
    pub agents: Vec<(AgentName, u32)>,
    pub checkpoints: Vec<RemoteCheckpoint>,
    pub logs: Vec<RetractedLog>,
}

/// A log that is there only up to an earlier event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetractedLog {
    pub session: SessionRowId,
    pub claimed_seq: EventSeq,
    pub actual_seq: EventSeq,
}

impl RemoteRetraction {
    pub fn is_empty(&self) -> bool {
        *self == RemoteRetraction::default()
    }
}
