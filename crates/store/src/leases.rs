//! Who owns a workspace. An epoch that only grows fences off every earlier owner.

use crate::Result;
use ash_model::{Epoch, Timestamp, WorkspaceId};
use async_trait::async_trait;

/// The server that holds a workspace, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The server.
    pub node: String,
    /// The epoch with which it holds the workspace.
    pub epoch: Epoch,
}

/// The right to write to the sessions of a workspace, as long as no later epoch exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// The epoch with which it is held.
    pub epoch: Epoch,
}

/// A server takes a workspace over from a holder that it has read before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseClaim {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// The server that claims it.
    pub node: String,
    /// The holder to take it from. If the database has another one by now, the claim fails.
    pub from: LeaseHolder,
}

impl LeaseClaim {
    /// The epoch after a successful claim.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.from.epoch.0 + 1)
    }
}

/// Leases on workspaces. Each claim is one compare-and-set on the holder and its epoch, so it needs no transaction that
/// outlives the call.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// The database's time. Leases and claims are judged by it, not by the clock of the server that asks: servers that share
    /// a database then agree on what has expired.
    async fn now(&self) -> Result<Timestamp>;
    /// Who holds a workspace. `None`: there is no such workspace.
    async fn lease_holder(&self, workspace: WorkspaceId) -> Result<Option<LeaseHolder>>;
    /// Takes a workspace over. `Stale`: the database has another holder than `from`.
    async fn claim(&self, claim: LeaseClaim) -> Result<Lease>;
    /// Makes every later claim of the workspace get a higher epoch than this.
    async fn raise_epoch(&self, workspace: WorkspaceId, epoch: Epoch) -> Result<()>;
}
