//! The census: whether the object store still has what the database says it has.
//!
//! Objects can vanish there: by a lifecycle rule, a wrong command, a store that was restored from an older copy. What is
//! not there, or is shorter than what was sent, is taken back in the database, and so is everything that needs it; then it
//! is sent again as if it were new. Taking back is always safe: the worst that follows is a request too many.

mod compare;
mod pack_graph;

use super::{Replicator, object_keys, trouble};
use crate::{Result, blocking, services::Services};
use ash_model::{AgentName, Epoch, SessionId, TenantId};
use ash_store::{RemoteRetraction, RemoteState};
use compare::{TenantObjectListing, compare};
use futures::TryStreamExt;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};
use tokio::time::Instant;

/// After an outage it is looked at once, but no oftener than this.
const MIN_CENSUS_INTERVAL: Duration = Duration::from_secs(30);
/// As many are named when something is lost.
const NAMED: usize = 3;
const LOST: &str = "remote_packs_lost";

impl Replicator {
    /// As long as the server lives, whenever the bucket is ours.
    pub async fn check_for_ever(&self, rooms: &Services, every: Duration) {
        loop {
            self.claim.until_held().await;
            let began = Instant::now();
            let pause = match self.check_all(rooms).await {
                Ok(()) => every,
                Err(error) => {
                    tracing::warn!(%error, "what the object store has could not be compared; it is tried again");
                    every.min(MIN_CENSUS_INTERVAL)
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(began + pause) => {}
                () = self.recheck.notified() => tokio::time::sleep_until(began + every.min(MIN_CENSUS_INTERVAL)).await,
            }
        }
    }

    async fn check_all(&self, rooms: &Services) -> Result<()> {
        // Its mark comes back first: without it nothing there is known to be ours.
        self.check().await?;
        let mut lost = BTreeMap::new();
        for tenant in rooms.store.tenants().await? {
            let found = self.check_tenant(rooms, &tenant).await?;
            if !found.is_empty() {
                lost.insert(tenant, found);
            }
        }
        self.tell_lost(rooms, &lost);
        Ok(())
    }

    fn tell_lost(&self, rooms: &Services, lost: &BTreeMap<TenantId, BTreeSet<String>>) {
        let keys: Vec<String> = lost
            .iter()
            .flat_map(|(tenant, lost)| lost.iter().map(|pack| object_keys::pack(tenant, pack)))
            .collect();
        if keys.is_empty() {
            return rooms.troubles.clear(LOST);
        }
        let named = keys[..keys.len().min(NAMED)].join(", ");
        let error = format!(
            "{} packs that only {} had are gone from there, and sessions need them ({named}): bring them back from a copy of \
             the bucket. They are found again by themselves.",
            keys.len(),
            self.bucket
        );
        rooms.troubles.set(LOST, error, rooms.clock());
    }

    /// Answers which packs are neither here nor there, and needed.
    async fn check_tenant(&self, rooms: &Services, tenant: &TenantId) -> Result<BTreeSet<String>> {
        // Before the listing: what is sent later is not missing.
        let said = rooms.store.remote_state(tenant).await?;
        let ids = said.sessions.iter().map(|session| &session.id);
        let buried = rooms.buried_epochs(tenant, ids).await?;
        let listing = self.listing(tenant, &said, &buried).await?;
        let repo = rooms.repo(tenant)?;
        let (retraction, lost) = blocking(move || Ok(compare(&repo, &said, &listing))).await?;
        if !retraction.is_empty() {
            self.retract(rooms, tenant, retraction).await?;
        }
        Ok(lost)
    }

    async fn retract(&self, rooms: &Services, tenant: &TenantId, what: RemoteRetraction) -> Result<()> {
        let RemoteRetraction { packs, missing, not_missing, agents, checkpoints, logs } = &what;
        tracing::warn!(
            %tenant, missing = missing.len(), packs = packs.len(), agents = agents.len(), checkpoints = checkpoints.len(),
            logs = logs.len(), found = not_missing.len(),
            "the object store does not have all that was sent, or has it again; what is here is sent"
        );
        {
            // What is being sent counted on what was known: it is not said to be there.
            let mut retractions = self.retractions.write().await;
            rooms.store.retract(tenant, what).await?;
            *retractions += 1;
            self.known.lock().await.remove(tenant);
        }
        self.notify();
        Ok(())
    }

    /// Without what is `buried`: of sessions that were purged and had these ids.
    async fn listing(
        &self,
        tenant: &TenantId,
        said: &RemoteState,
        buried: &HashMap<SessionId, Epoch>,
    ) -> Result<TenantObjectListing> {
        let mut listing = TenantObjectListing::default();
        let whole = |key: &str, size: u64| said.objects.get(key).is_none_or(|said| size >= *said);
        let mut packs = self.bucket.list(&object_keys::packs(tenant));
        while let Some(found) = packs.try_next().await.map_err(trouble)? {
            if let Some(pack) = found.key.rsplit('/').next() {
                listing.packs.insert(pack.to_owned(), found.size);
            }
        }
        let mut manifests = self.bucket.list(&object_keys::sessions(tenant));
        while let Some(found) = manifests.try_next().await.map_err(trouble)? {
            let id = found.key.rsplit('/').nth(1).and_then(|id| SessionId::parse(id).ok());
            if let (Some(id), Some((epoch, seq)), true) =
                (id, object_keys::numbers(&found.key), whole(&found.key, found.size))
                && buried.get(&id).is_none_or(|buried| epoch > buried.0)
            {
                listing.manifests.entry(id).or_default().insert(seq);
            }
        }
        let mut versions = self.bucket.list(&object_keys::agents(tenant));
        while let Some(found) = versions.try_next().await.map_err(trouble)? {
            let name = found.key.rsplit('/').nth(1).and_then(|name| AgentName::parse(name).ok());
            if let (Some(name), Some(numbers), true) =
                (name, object_keys::numbers(&found.key), whole(&found.key, found.size))
            {
                listing.agents.entry(name).or_default().insert(numbers);
            }
        }
        Ok(listing)
    }
}
