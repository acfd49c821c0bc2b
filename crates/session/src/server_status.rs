//! The state of the server as a whole, for `/health` and `/metrics`.

use crate::{Replicator, Result, ServerTrouble, ServerTroubles, services::WallClock};
use ash_model::{ResourceUsage, TenantId, Timestamp};
use ash_remote::{BucketError, BucketTraffic};
use ash_store::Store;
use std::sync::Arc;

#[derive(Clone)]
pub struct ServerStatus {
    store: Arc<dyn Store>,
    clock: WallClock,
    troubles: Arc<ServerTroubles>,
    replicator: Option<Arc<Replicator>>,
}

/// Whether everything that is saved also reaches the object store, where the loss of this machine cannot affect it.
pub struct ObjectStoreStatus {
    pub url: String,
    /// Checkpoints that are not in the object store yet.
    pub waiting_checkpoints: u64,
    /// The age of the oldest of them.
    pub lag_seconds: i64,
    /// What prevents uploads, and since when.
    pub trouble: Option<(BucketError, Timestamp)>,
    /// Requests and bytes since the start.
    pub traffic: BucketTraffic,
}

impl ServerStatus {
    pub fn new(
        store: Arc<dyn Store>,
        clock: WallClock,
        troubles: Arc<ServerTroubles>,
        replicator: Option<Arc<Replicator>>,
    ) -> ServerStatus {
        ServerStatus { store, clock, troubles, replicator }
    }

    pub async fn active_sessions(&self) -> Result<u64> {
        Ok(self.store.count_active(&TenantId::main()).await?)
    }

    /// What the sandboxes of all workspaces used together.
    pub async fn resource_usage(&self) -> Result<ResourceUsage> {
        Ok(self.store.workspace_resource_usage(None).await?)
    }

    /// `None`: there is no object store, and everything is on this machine alone.
    pub async fn object_store(&self) -> Result<Option<ObjectStoreStatus>> {
        let Some(replicator) = &self.replicator else { return Ok(None) };
        let lag = self.store.replication_lag().await?;
        let now = (self.clock)();
        Ok(Some(ObjectStoreStatus {
            url: replicator.bucket.to_string(),
            waiting_checkpoints: lag.checkpoints,
            lag_seconds: lag.oldest.map_or(0, |oldest| (now.0 - oldest.0).max(0) / 1000),
            trouble: replicator.trouble(),
            traffic: replicator.tally(),
        }))
    }

    /// The oldest first.
    pub fn troubles(&self) -> Vec<ServerTrouble> {
        self.troubles.list()
    }

    /// A trouble that the caller has just noticed. It is not added to the list.
    pub fn trouble_now(&self, code: &'static str, error: String) -> ServerTrouble {
        ServerTrouble { code, error, since: (self.clock)() }
    }

    pub fn set_trouble(&self, code: &'static str, error: String) {
        self.troubles.set(code, error, (self.clock)());
    }

    pub fn clear_trouble(&self, code: &'static str) {
        self.troubles.clear(code);
    }
}
