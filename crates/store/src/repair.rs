//! Bringing back what the database lost: packs and the object store are witnesses of the same sessions, and know some of them
//! better after a crash, a restored backup or a new machine.

use crate::{Checkpoint, Result, SessionSummary, TurnRow};
use ash_model::{
    AgentName, Epoch, EventSeq, HistorySource, SessionId, SessionRowId, TenantId, Timestamp, WorkspaceId,
    embedded_log::EventLine,
    remote::{AgentDefinition, SessionManifest, SessionTombstone},
};
use async_trait::async_trait;

/// How far the log of a session goes, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionLogEnd {
    /// The row of the session.
    pub no: SessionRowId,
    /// Its id. In the trash: the id that it had.
    pub session: SessionId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// The present epoch of the workspace.
    pub epoch: Epoch,
    /// Its last event.
    pub seq: EventSeq,
    /// The last event that the object store has.
    pub remote_seq: EventSeq,
}

/// A session continues with the history that a witness has of it.
#[derive(Debug, Clone)]
pub struct HistoryAdoption {
    /// The session.
    pub session: SessionRowId,
    /// Its last event when the histories were compared. If it has another one by now, nothing is adopted.
    pub last_seq: EventSeq,
    /// The last event that both histories have.
    pub common: EventSeq,
    /// The fork that keeps the events which only the database has, if there are some.
    pub diverged: Option<DivergedFork>,
    /// The history of the witness.
    pub rebuilt: RebuiltSession,
}

/// A new fork for the events that are not part of an adopted history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DivergedFork {
    /// Its id.
    pub id: SessionId,
    /// Its workspace.
    pub workspace: WorkspaceId,
}

/// A session as a witness outside of the database knows it.
#[derive(Debug, Clone)]
pub struct RebuiltSession {
    /// Which witness.
    pub witness: HistorySource,
    /// The session was purged, and comes back only because forks share its log. It stays in the trash.
    pub purged: Option<SessionTombstone>,
    /// The columns of its row.
    pub manifest: SessionManifest,
    /// The server that holds its workspace from now on.
    pub node: String,
    /// The summary after its last event.
    pub summary: SessionSummary,
    /// The agents that it needs.
    pub agents: Vec<AgentDefinition>,
    /// Its whole own log, without what it shares with a parent.
    pub events: Vec<EventLine>,
    /// Its turns.
    pub turns: Vec<TurnRow>,
    /// Its checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// When it is brought back.
    pub at: Timestamp,
}

impl RebuiltSession {
    /// The last event of its log.
    pub fn last_seq(&self) -> EventSeq {
        self.events.last().map_or(self.manifest.seq, |line| line.seq)
    }

    /// The last event that the object store has.
    pub fn remote_seq(&self) -> EventSeq {
        match self.witness {
            HistorySource::Bucket => self.manifest.seq,
            HistorySource::Packs => 0,
        }
    }
}

/// Comparing the database with its witnesses, and adding what only they have.
#[async_trait]
pub trait RepairStore: Send + Sync {
    /// Reads every page of the database and describes the first damage. `None`: there is none.
    async fn check_integrity(&self) -> Result<Option<String>>;
    /// How far the logs of a tenant's sessions go. Those in the trash come first.
    async fn log_positions(&self, tenant: &TenantId) -> Result<Vec<SessionLogEnd>>;
    /// A version of an agent with everything that a witness keeps of it, its environment sealed. Also of a deleted agent.
    async fn agent_definition(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        version: u32,
    ) -> Result<Option<AgentDefinition>>;
    /// Adds agents and versions that the database does not have.
    async fn add_agents(&self, agents: Vec<AgentDefinition>, at: Timestamp) -> Result<()>;
    /// Adds sessions with their logs and agents, all or none: a purged session whose log a fork shares, and the fork. On its
    /// own the purged one could be deleted before its fork is there. `false`: the database has the last one already.
    async fn rebuild(&self, line: Vec<RebuiltSession>) -> Result<bool>;
    /// Continues a session with the history of a witness. `Stale`: its log has grown since it was compared.
    async fn adopt(&self, adoption: HistoryAdoption) -> Result<()>;
}
