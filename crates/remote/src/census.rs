//! The census: whether the bucket still has what the database says it has.
//!
//! Objects can vanish: by a lifecycle rule, a wrong command, or a bucket that was restored from an older copy. If an
//! object is missing, or shorter than what was sent, the database retracts it and everything that needs it, and then it
//! is sent again like a new one. A retraction is always safe: at worst it causes unnecessary requests.

mod compare;
mod pack_graph;

use crate::{Error, Replicator, Result, blocking, object_keys};
use ash_model::{AgentName, Epoch, SessionId, TenantId};
use ash_store::{RemoteRetraction, RemoteState};
use compare::{TenantObjectListing, compare};
use futures::TryStreamExt;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};
use tokio::time::Instant;

/// The shortest time between two censuses, even after an outage, which triggers one.
const MIN_CENSUS_INTERVAL: Duration = Duration::from_secs(30);
/// How many lost packs the message to the operator names.
const MAX_NAMED: usize = 3;
const LOST: &str = "remote_packs_lost";

impl Replicator {
    /// Takes the census regularly while this server holds the claim on the bucket.
    pub async fn check_for_ever(&self, every: Duration) {
        loop {
            self.claim.until_held().await;
            let began = Instant::now();
            let pause = match self.check_all().await {
                Ok(()) => every,
                Err(error) => {
                    tracing::warn!(%error, "the server could not compare the object store with the database, and tries again");
                    every.min(MIN_CENSUS_INTERVAL)
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(began + pause) => {}
                () = self.recheck.notified() => tokio::time::sleep_until(began + every.min(MIN_CENSUS_INTERVAL)).await,
            }
        }
    }

    async fn check_all(&self) -> Result<()> {
        // This first restores the mark that the bucket belongs to this program.
        self.check().await?;
        let mut lost = BTreeMap::new();
        for tenant in self.services.store.tenants().await? {
            let found = self.check_tenant(&tenant).await?;
            if !found.is_empty() {
                lost.insert(tenant, found);
            }
        }
        self.show_lost(&lost);
        Ok(())
    }

    fn show_lost(&self, lost: &BTreeMap<TenantId, BTreeSet<String>>) {
        let keys: Vec<String> = lost
            .iter()
            .flat_map(|(tenant, lost)| lost.iter().map(|pack| object_keys::pack(tenant, pack)))
            .collect();
        if keys.is_empty() {
            return self.services.troubles.clear(LOST);
        }
        let named = keys[..keys.len().min(MAX_NAMED)].join(", ");
        let error = format!(
            "{} packs that only {} had are gone from there, and sessions need them ({named}): bring them back from a copy of \
             the bucket. They are found again by themselves.",
            keys.len(),
            self.bucket
        );
        self.services.troubles.set(LOST, error, self.services.clock());
    }

    /// Returns the packs that are needed and that neither this machine nor the bucket has.
    async fn check_tenant(&self, tenant: &TenantId) -> Result<BTreeSet<String>> {
        // Read before the listing, so that an object that is sent in between does not count as missing.
        let recorded = self.services.store.remote_state(tenant).await?;
        let ids = recorded.sessions.iter().map(|session| &session.id);
        let buried = self.services.witnesses.buried_epochs(tenant, ids).await?;
        let listing = self.listing(tenant, &recorded, &buried).await?;
        let repo = self.services.repo(tenant)?;
        let (retraction, lost) = blocking(move || Ok(compare(&repo, &recorded, &listing))).await?;
        if !retraction.is_empty() {
            self.retract(tenant, retraction).await?;
        }
        Ok(lost)
    }

    async fn retract(&self, tenant: &TenantId, what: RemoteRetraction) -> Result<()> {
        let RemoteRetraction { packs, missing, not_missing, agents, checkpoints, logs } = &what;
        tracing::warn!(
            %tenant, missing = missing.len(), packs = packs.len(), agents = agents.len(), checkpoints = checkpoints.len(),
            logs = logs.len(), found = not_missing.len(),
            "the object store lost objects, or has them again; the server sends those that this machine has"
        );
        {
            // Uploads in progress relied on the recorded objects, so the retraction prevents their confirmation.
            let mut retractions = self.retractions.write().await;
            self.services.store.retract(tenant, what).await?;
            *retractions += 1;
            self.known.lock().await.remove(tenant);
        }
        self.notify();
        Ok(())
    }

    /// Lists a tenant's objects without those of purged sessions that had the same ids (`buried`).
    async fn listing(
        &self,
        tenant: &TenantId,
        recorded: &RemoteState,
        buried: &HashMap<SessionId, Epoch>,
    ) -> Result<TenantObjectListing> {
        let mut listing = TenantObjectListing::default();
        let whole = |key: &str, size: u64| recorded.objects.get(key).is_none_or(|recorded| size >= *recorded);
        let mut packs = self.bucket.list(&object_keys::packs(tenant));
        while let Some(found) = packs.try_next().await.map_err(Error::Bucket)? {
            if let Some(pack) = found.key.rsplit('/').next() {
                listing.packs.insert(pack.to_owned(), found.size);
            }
        }
        let mut manifests = self.bucket.list(&object_keys::sessions(tenant));
        while let Some(found) = manifests.try_next().await.map_err(Error::Bucket)? {
            let id = found.key.rsplit('/').nth(1).and_then(|id| SessionId::parse(id).ok());
            if let (Some(id), Some((epoch, seq)), true) =
                (id, object_keys::numbers(&found.key), whole(&found.key, found.size))
                && buried.get(&id).is_none_or(|buried| epoch > buried.0)
            {
                listing.manifests.entry(id).or_default().insert(seq);
            }
        }
        let mut versions = self.bucket.list(&object_keys::agents(tenant));
        while let Some(found) = versions.try_next().await.map_err(Error::Bucket)? {
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
