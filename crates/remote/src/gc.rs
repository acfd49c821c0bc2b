//! Garbage collection in the bucket. It deletes objects that nothing needs, and replaces packs that garbage collection
//! has made smaller on this machine.
//!
//! The bucket may have sessions that this database does not know, because the database was lost and no client has
//! requested them since. Their objects must stay, so their rows are brought back first.

use crate::{Error, Replicator, Result, bucket_listing::newest_manifests, object_keys};
use ash_model::{SessionId, TenantId, remote::SessionTombstone};
use ash_snapshot::Repo;
use ash_store::{AccessScope, SessionRow};
use futures::TryStreamExt;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

const PAGE: u32 = 1000;

/// How the packs in the bucket compare with those on this machine.
pub struct RemotePackComparison {
    /// Packs with the same size in both places, and packs that only the bucket has.
    pub same: HashSet<String>,
    pub differing: HashSet<String>,
}

impl Replicator {
    /// Sessions in the bucket that the database does not know. Empty once all were brought back.
    pub async fn unknown_sessions(&self) -> Result<BTreeMap<TenantId, Vec<SessionId>>> {
        // During an outage this does not wait: garbage on this machine is collected all the same.
        if let Some((why, _)) = self.trouble() {
            return Err(Error::Bucket(why));
        }
        self.check().await?;
        let mut unknown: BTreeMap<TenantId, Vec<SessionId>> = BTreeMap::new();
        if self.all_sessions_known.load(Ordering::Relaxed) {
            return Ok(unknown);
        }
        for tenant in self.tenants().await? {
            for id in newest_manifests(&self.bucket, &tenant).await?.into_keys() {
                if self.services.store.find_session(&AccessScope::all(&tenant), &id).await?.is_none() {
                    unknown.entry(tenant.clone()).or_default().push(id);
                }
            }
        }
        Ok(unknown)
    }

    /// Notes that all sessions in the bucket were brought back. This server sends every later one, so it knows them
    /// all.
    pub fn mark_all_sessions_known(&self) {
        self.all_sessions_known.store(true, Ordering::Relaxed);
    }

    /// All packs in the bucket with their sizes, if a search for garbage is due. Call this before reading which packs
    /// are needed: a pack that is sent afterwards is needed by a later checkpoint.
    pub async fn list_packs_for_gc(
        &self,
        tenant: &TenantId,
        every: Duration,
    ) -> Result<Option<HashMap<String, u64>>> {
        {
            let mut listed = self.gc_listed.lock().expect("no code panics while it holds this lock");
            if listed.get(tenant).is_some_and(|at| at.elapsed() < every) {
                return Ok(None);
            }
            listed.insert(tenant.clone(), Instant::now());
        }
        self.delete_superseded_manifests(tenant).await?;
        let all: Vec<_> =
            self.bucket.list(&object_keys::packs(tenant)).try_collect().await.map_err(Error::Bucket)?;
        let name = |key: &str| key.rsplit('/').next().map(str::to_owned);
        Ok(Some(all.iter().filter_map(|found| Some((name(&found.key)?, found.size))).collect()))
    }

    /// Compares the packs in the bucket with those on this machine.
    pub async fn compare_packs(&self, tenant: &TenantId) -> Result<RemotePackComparison> {
        let (known, repo) = (self.services.store.remote_packs(tenant).await?, self.services.repo(tenant)?);
        let same =
            |(pack, there): &(String, u64)| repo.pack_file(pack).is_none_or(|(_, here)| here == *there);
        let (same, differing): (Vec<_>, Vec<_>) = known.into_iter().partition(same);
        let names = |packs: Vec<(String, u64)>| packs.into_iter().map(|(pack, _)| pack).collect();
        Ok(RemotePackComparison { same: names(same), differing: names(differing) })
    }

    /// Replaces packs in the bucket that garbage collection made smaller on this machine. Nothing needs the removed
    /// parts.
    pub async fn replace_smaller(
        &self,
        tenant: &TenantId,
        listed: Option<HashMap<String, u64>>,
    ) -> Result<()> {
        let (mut known, repo) =
            (self.services.store.remote_packs(tenant).await?, self.services.repo(tenant)?);
        known.extend(listed.into_iter().flatten());
        for (pack, there) in known {
            if repo.pack_file(&pack).is_some_and(|(_, here)| here < there) {
                self.replace(tenant, &repo, &pack).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn replace(&self, tenant: &TenantId, repo: &Arc<Repo>, pack: &str) -> Result<()> {
        // The pack may have been deleted meanwhile.
        let Some((path, size)) = repo.pack_file(pack) else { return Ok(()) };
        self.writer()
            .await?
            .replace_file(&object_keys::pack(tenant, pack), &path)
            .await
            .map_err(Error::Bucket)?;
        self.remember_pack(tenant, pack, size).await
    }

    /// Deletes all objects of a purged session except its tombstone, so that it cannot be restored from the bucket.
    pub async fn forget(&self, tombstone: &SessionTombstone) -> Result<()> {
        let seq = self.send_tombstone(tombstone).await?;
        let last = (tombstone.epoch.0, seq);
        let prefix = object_keys::session(&tombstone.tenant, &tombstone.session);
        let found: Vec<_> = self.bucket.list(&prefix).try_collect().await.map_err(Error::Bucket)?;
        // Objects with higher numbers belong to a new session with the same id.
        let before = |key: &String| object_keys::numbers(key).is_some_and(|numbers| numbers < last);
        let keys: Vec<String> = found.into_iter().map(|found| found.key).filter(before).collect();
        self.writer().await?.delete(&keys).await.map_err(Error::Bucket)?;
        Ok(self.services.store.forget_remote_objects(&keys).await?)
    }

    /// Queues unneeded packs for deletion.
    pub async fn delete_packs(&self, tenant: &TenantId, packs: &[String]) -> Result<()> {
        let repo = self.services.repo(tenant)?;
        // A pack that exists here was captured anew.
        let packs: Vec<String> =
            packs.iter().filter(|pack| repo.pack_file(pack).is_none()).cloned().collect();
        if packs.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = packs.iter().map(|pack| object_keys::pack(tenant, pack)).collect();
        // Queued before the rows are removed, so that the packs are still deleted after a crash in between.
        self.services.store.enqueue_deletes(&keys, self.services.clock()).await?;
        self.services.store.forget_remote_packs(tenant, &packs).await?;
        if let Some(known) = self.known.lock().await.get_mut(tenant) {
            packs.iter().for_each(|pack| {
                known.sizes.remove(pack);
                known.missing.remove(pack);
            });
        }
        self.notify();
        Ok(())
    }

    /// Queues superseded manifests for deletion: those of removed checkpoints, and those that only continued the log.
    /// Later manifests contain everything that they say.
    async fn delete_superseded_manifests(&self, tenant: &TenantId) -> Result<()> {
        let mut all: BTreeMap<SessionId, Vec<String>> = BTreeMap::new();
        let mut listed = self.bucket.list(&object_keys::sessions(tenant));
        while let Some(found) = listed.try_next().await.map_err(Error::Bucket)? {
            let id = found.key.rsplit('/').nth(1).and_then(|id| SessionId::parse(id).ok());
            if let (Some(id), Some(_)) = (id, object_keys::numbers(&found.key)) {
                all.entry(id).or_default().push(found.key);
            }
        }
        let mut doomed = Vec::new();
        let buried = self.services.witnesses.buried_epochs(tenant, all.keys()).await?;
        for (id, mut manifests) in all {
            // Manifests of a purged session with the same id are deleted with that session, because a fork may share
            // its log.
            let buried = buried.get(&id).map_or(0, |epoch| epoch.0);
            manifests.retain(|key| object_keys::numbers(key).is_some_and(|(epoch, _)| epoch > buried));
            let Some(session) = self.services.store.find_session(&AccessScope::all(tenant), &id).await?
            else {
                continue;
            };
            let needed = self.checkpoint_seqs(&session).await?;
            manifests.sort();
            // The last manifest always stays.
            manifests.pop();
            let is_needed = |key: &String| {
                object_keys::numbers(key)
                    .is_none_or(|(_, seq)| seq >= session.remote_seq || needed.contains(&seq))
            };
            manifests.retain(|key| !is_needed(key));
            doomed.extend(manifests);
        }
        if !doomed.is_empty() {
            self.services.store.enqueue_deletes(&doomed, self.services.clock()).await?;
            self.notify();
        }
        Ok(())
    }

    /// The last events of a session's checkpoints that were not removed.
    async fn checkpoint_seqs(&self, session: &SessionRow) -> Result<HashSet<u64>> {
        let (mut seqs, mut before) = (HashSet::new(), None);
        loop {
            let page = self.services.store.checkpoints(session.workspace, before, PAGE).await?;
            let Some(last) = page.last() else { return Ok(seqs) };
            before = Some(last.number);
            seqs.extend(page.iter().filter(|one| one.removed_at.is_none()).map(|one| one.seq));
        }
    }
}
