//! What replication and restore use of the server: the store, the repositories, the clock and callbacks.

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
    /// The name of this node, which becomes the holder of restored sessions.
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

/// Reports to the operator what is wrong with the server as a whole.
pub trait TroubleReporter: Send + Sync {
    fn set(&self, code: &'static str, error: String, since: Timestamp);
    /// Clears the trouble, if there is one.
    fn clear(&self, code: &'static str);
}

/// Folds the events of a session after `base`, which are all of its own. The caller defines what events mean.
pub type FoldLog = fn(base: EventSeq, events: &[Event]) -> FoldedLog;

/// The state that a log leads to.
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
