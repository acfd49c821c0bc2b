//! Brings back sessions and agents that the object store has and the database does not. Their files are fetched when a
//! session is resumed, or at once by `ash restore`.

use crate::{
    Error, Replicator, Result, blocking,
    bucket_listing::{CONCURRENT_READS, newest_manifests},
    manifest_history::{ManifestHistory, PurgedSessionPolicy},
    object_keys,
    rows::{damaged, parse_object},
};
use ash_model::{AgentName, SessionId, TenantId, WorkspaceId, remote::AgentDefinition};
use ash_store::{AccessScope, RebuiltSession};
use futures::{StreamExt, TryStreamExt};
use std::collections::BTreeMap;

/// The number of bytes of a pack that are read at a time.
const PIECE: u64 = 8 << 20;
/// More generations of forks than any session has.
const MAX_FORK_GENERATIONS: usize = 1000;

/// The number of sessions, agents and bytes that came back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteRestoreReport {
    pub sessions: u64,
    pub agents: u64,
    /// Bytes of packs.
    pub bytes: u64,
    /// What did not come back, and why.
    pub failed: Vec<String>,
}

impl Replicator {
    /// Brings back all sessions and agents that the database does not have. With `lazily`, their packs stay in the
    /// bucket.
    pub async fn bring_back_all(
        &self,
        lazily: bool,
        tell: &mut (dyn FnMut(&RemoteRestoreReport) + Send),
    ) -> Result<RemoteRestoreReport> {
        let mut returned = RemoteRestoreReport::default();
        for tenant in self.tenants().await? {
            if !lazily {
                self.bring_packs(&tenant, &mut returned, tell).await?;
            }
            let names = self.bucket.list_dirs(&object_keys::agents(&tenant)).await.map_err(Error::Bucket)?;
            for name in names.iter().filter_map(|name| AgentName::parse(name).ok()) {
                let agents = self.agents(&tenant, &name, None).await?;
                returned.agents += u64::from(!agents.is_empty());
                self.services.store.add_agents(agents, self.services.clock()).await?;
            }
            for id in newest_manifests(&self.bucket, &tenant).await?.into_keys() {
                match self.bring_back(&AccessScope::all(&tenant), &id).await {
                    Ok(found) => returned.sessions += u64::from(found),
                    Err(Error::Bucket(error)) => return Err(Error::Bucket(error)),
                    Err(error) => returned.failed.push(format!("session {id} of {tenant}: {error}")),
                }
                tell(&returned);
            }
        }
        Ok(returned)
    }

    /// Downloads all packs of a tenant that are not on this machine.
    async fn bring_packs(
        &self,
        tenant: &TenantId,
        returned: &mut RemoteRestoreReport,
        tell: &mut (dyn FnMut(&RemoteRestoreReport) + Send),
    ) -> Result<()> {
        let repo = self.services.repo(tenant)?;
        let mut all = self.bucket.list(&object_keys::packs(tenant));
        while let Some(found) = all.try_next().await.map_err(Error::Bucket)? {
            let Some(pack) = found.key.rsplit('/').next() else { continue };
            if repo.pack_file(pack).is_some() {
                continue;
            }
            let Some(mut arriving) = repo.import_pack(pack)? else { continue };
            let mut at = 0;
            while at < found.size {
                let range = at..found.size.min(at + PIECE);
                let bytes = self.bucket.get_range(&found.key, range.clone()).await.map_err(Error::Bucket)?;
                arriving = blocking(move || Ok(arriving.write(&bytes)?)).await?;
                at = range.end;
                returned.bytes += range.end - range.start;
                tell(returned);
            }
            blocking(move || Ok(arriving.finish()?)).await?;
        }
        Ok(())
    }

    /// Brings a session back, with the sessions that it was forked from. False: there is none within this scope. The
    /// caller holds the tenant's lock, so that two requests do not do it at once.
    pub async fn bring_back(&self, scope: &AccessScope, id: &SessionId) -> Result<bool> {
        let (tenant, all_owners) = (&scope.tenant, AccessScope::all(&scope.tenant));
        ash_failpoint::reach_async(&format!("far.back.{tenant}")).await;
        let mut line: Vec<ManifestHistory> = Vec::new();
        let mut next = Some(id.clone());
        while let Some(id) = next.take() {
            if line.len() > MAX_FORK_GENERATIONS {
                return Err(damaged(&id, "it is a fork of a fork without an end"));
            }
            // The parent's log is needed even if the parent was purged and another session has its id now.
            let purged = match line.last() {
                None => PurgedSessionPolicy::IsGone,
                Some(fork) => PurgedSessionPolicy::IsRead(fork.manifest.created_at),
            };
            let there = match purged {
                PurgedSessionPolicy::IsGone => self.services.store.find_session(&all_owners, &id).await?,
                PurgedSessionPolicy::IsRead(then) => {
                    self.services.store.session_then(tenant, &id, then).await?
                }
            };
            if there.is_some() {
                break;
            }
            let known = self.known_or_purged((tenant, &id), purged).await?;
            let Some(known) = known.session() else { break };
            let manifest = &known.manifest;
            if line.is_empty() && scope.owner.is_some() && scope.owner != manifest.owner {
                return Ok(false);
            }
            next = manifest.base.and(manifest.parent.clone());
            line.push(known);
        }
        let found = !line.is_empty();
        let shared = line.first().map(|known| &known.manifest).filter(|manifest| manifest.slug.is_some());
        if let Some((workspace, id)) = shared.map(|shared| (shared.workspace, shared.session.clone())) {
            let siblings = self.siblings(tenant, (workspace, &id)).await?;
            line.splice(0..0, siblings);
            // The sessions of a workspace have one epoch, and the next server to claim it takes a higher one.
            let same = |known: &ManifestHistory| known.manifest.workspace == workspace;
            let highest = line.iter().filter(|known| same(known)).map(|known| known.manifest.epoch).max();
            for known in line.iter_mut().filter(|known| same(known)) {
                known.manifest.epoch = highest.unwrap_or(known.manifest.epoch);
            }
        }
        // A purged session waits for the fork that needs it: the trash keeps only those that a fork shares.
        let mut together = Vec::new();
        for known in line.into_iter().rev() {
            let purged = known.buried.clone();
            if let Some(tombstone) = &purged {
                self.services.witnesses.note_purge(tombstone.clone()).await?;
            }
            let rebuilt = Box::pin(self.rebuilt(known)).await?;
            let is_purged = purged.is_some();
            together.push(RebuiltSession { purged, ..rebuilt });
            if !is_purged {
                self.services.store.rebuild(std::mem::take(&mut together)).await?;
            }
        }
        if !together.is_empty() {
            self.services.store.rebuild(together).await?;
        }
        Ok(found)
    }

    /// The other sessions of a shared workspace that the database does not know. They come back together, because the
    /// workspace's files are those of the last checkpoint of any of them.
    async fn siblings(
        &self,
        tenant: &TenantId,
        (workspace, but): (WorkspaceId, &SessionId),
    ) -> Result<Vec<ManifestHistory>> {
        let mut siblings = Vec::new();
        for id in newest_manifests(&self.bucket, tenant).await?.into_keys().filter(|id| id != but) {
            if self.services.store.find_session(&AccessScope::all(tenant), &id).await?.is_some() {
                continue;
            }
            let found = self.known_session(tenant, &id).await?.session();
            siblings.extend(found.filter(|known| known.manifest.workspace == workspace));
        }
        Ok(siblings)
    }

    /// The newest version of an agent and the version `only`, or all versions.
    pub(crate) async fn agents(
        &self,
        tenant: &TenantId,
        name: &AgentName,
        only: Option<u32>,
    ) -> Result<Vec<AgentDefinition>> {
        let mut newest: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        let mut all = self.bucket.list(&object_keys::agent(tenant, name));
        while let Some(found) = all.try_next().await.map_err(Error::Bucket)? {
            let Some((version, changes)) = object_keys::numbers(&found.key) else { continue };
            let kept = newest.entry(version).or_default();
            if changes >= kept.0 {
                *kept = (changes, found.key);
            }
        }
        let last = newest.keys().max().copied();
        let wanted =
            |version: &u64| only.is_none_or(|only| u64::from(only) == *version) || Some(*version) == last;
        let read = newest.into_iter().filter(|(version, _)| wanted(version));
        let read =
            read.map(|(_, (_, key))| async move { self.fetched::<AgentDefinition>(tenant, &key).await });
        let agents: Vec<AgentDefinition> =
            futures::stream::iter(read).buffered(CONCURRENT_READS).try_collect().await?;
        Ok(agents.into_iter().filter(|agent| agent.tenant == *tenant && agent.name == *name).collect())
    }

    async fn fetched<T: serde::de::DeserializeOwned>(&self, tenant: &TenantId, key: &str) -> Result<T> {
        let bytes = self.bucket.get(key).await.map_err(Error::Bucket)?;
        let bytes = self.services.repo(tenant)?.unseal(bytes.into(), key)?;
        parse_object(key, &bytes)
    }
}
