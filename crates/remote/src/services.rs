//! What replication and restore work with on this machine.

use crate::{Repositories, Result, WitnessCache};
use ash_model::{Event, EventSeq, Problem, TenantId, Timestamp, TurnId, TurnOutcome};
use ash_snapshot::Repo;
use ash_store::{SessionSummary, Store, TurnRow};
use std::sync::Arc;

#[derive(Clone)]
pub struct RemoteServices {
    pub store: Arc<dyn Store>,
    pub repositories: Arc<Repositories>,
    pub witnesses: Arc<WitnessCache>,
    pub troubles: Arc<dyn TroubleReporter>,
    /// The name of this node. A session that comes back is held by it.
    pub node: String,
    pub now: fn() -> Timestamp,
    pub fold_log: FoldLog,
}

impl RemoteServices {
    pub fn repo(&self, tenant: &TenantId) -> Result<Arc<Repo>> {
        self.repositories.repo(tenant)
    }

    pub fn clock(&self) -> Timestamp {
        (self.now)()
    }
}

/// Shows the operator what is wrong with the server as a whole.
pub trait TroubleReporter: Send + Sync {
    fn set(&self, code: &'static str, error: String, since: Timestamp);
    /// The trouble is over, or there was none.
    fn clear(&self, code: &'static str);
}

/// Folds the events of a session that come after `base`, which are all of its own. What events mean is the caller's to say.
pub type FoldLog = fn(base: EventSeq, events: &[Event]) -> FoldedLog;

/// The state that a log comes to.
pub struct FoldedLog {
    pub summary: SessionSummary,
    pub turns: Vec<TurnRow>,
    /// The turn whose agent is done, and whose checkpoint is not recorded yet.
    pub saving: Option<SavingTurn>,
}

pub struct SavingTurn {
    pub turn: TurnId,
    pub outcome: TurnOutcome,
    pub problem: Option<Problem>,
}
