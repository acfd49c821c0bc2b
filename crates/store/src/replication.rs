//! Replication to an object store: what is not there yet, and which objects are to be deleted there.

use crate::{Checkpoint, Result};
use ash_model::{
    EventSeq, SessionRowId, Timestamp,
    remote::{AgentDefinition, SessionTombstone},
};
use async_trait::async_trait;

/// Something that the object store does not have yet.
#[derive(Debug, Clone, PartialEq)]
pub enum PendingUpload {
    /// A version of an agent, or a change of the agent's settings.
    Agent(AgentDefinition),
    /// A checkpoint, with the log up to it.
    Checkpoint {
        /// The session that made it.
        session: SessionRowId,
        /// The checkpoint.
        checkpoint: Checkpoint,
    },
    /// The log went on after the last checkpoint, and the session rests now.
    Log {
        /// The session.
        session: SessionRowId,
        /// Its last event.
        seq: EventSeq,
    },
    /// A purged session, which must not be restored from the object store.
    Tombstone {
        /// The session.
        session: SessionRowId,
        /// What is written in the place of its manifest.
        tombstone: SessionTombstone,
    },
}

/// How much the object store is behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicationLag {
    /// How many checkpoints it does not have.
    pub checkpoints: u64,
    /// When the oldest of them was taken.
    pub oldest: Option<Timestamp>,
}

/// An object to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedDelete {
    /// Its number in the queue.
    pub number: i64,
    /// The key of the object.
    pub key: String,
}

/// The queues of replication: uploads, which follow from the rows themselves, and deletes.
#[async_trait]
pub trait ReplicationStore: Send + Sync {
    /// Names the object store that is replicated to. If it is another one than before, everything is uploaded again.
    async fn set_remote(&self, place: &str) -> Result<()>;
    /// What the object store does not have yet, in upload order, without the checkpoints and logs of `except`.
    async fn pending_uploads(&self, limit: u32, except: &[SessionRowId]) -> Result<Vec<PendingUpload>>;
    /// The object store has this now, with the log of its session up to `seq`.
    async fn mark_uploaded(&self, what: &PendingUpload, seq: EventSeq, at: Timestamp) -> Result<()>;
    /// How much is still to be uploaded.
    async fn replication_lag(&self) -> Result<ReplicationLag>;
    /// Adds objects to the delete queue.
    async fn enqueue_deletes(&self, keys: &[String], at: Timestamp) -> Result<()>;
    /// The first objects of the delete queue.
    async fn queued_deletes(&self, limit: u32) -> Result<Vec<QueuedDelete>>;
    /// Removes these objects from the queue: they are needed again.
    async fn cancel_deletes(&self, keys: &[String]) -> Result<()>;
    /// Removes these numbers from the queue: their objects are deleted.
    async fn dequeue_deletes(&self, numbers: &[i64]) -> Result<()>;
}
