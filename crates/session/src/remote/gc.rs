//! Cleaning up there. What nobody needs any more is deleted, and what collection has made smaller here is made so there.
//!
//! The object store may have sessions that this database does not know yet: it was lost, and nobody has asked for them
//! since. What they need must stay, so they are brought back first, without their files.

use super::{Replicator, object_keys, trouble};
use crate::{Result, keyed_mutex::KeyedMutex, services::Services};
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

impl Replicator {
    /// Everybody who is there is known from now on. Until this has worked nothing is deleted there.
    pub(crate) async fn bring_back_unknown_sessions(
        &self,
        rooms: &Services,
        returning: &KeyedMutex<TenantId>,
    ) -> Result<()> {
        // In an outage nobody waits for it: what is here is collected all the same.
        if let Some((why, _)) = self.trouble() {
            return Err(trouble(why));
        }
        self.check().await?;
        if self.all_sessions_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        for tenant in self.tenants().await? {
            for id in self.newest(&tenant).await?.into_keys() {
                if rooms.store.find_session(&AccessScope::all(&tenant), &id).await?.is_none() {
                    let _alone = returning.lock(tenant.clone()).await;
                    Box::pin(self.bring_back(rooms, &AccessScope::all(&tenant), &id)).await?;
                    tracing::info!(session = %id, %tenant, "found in the object store");
                }
            }
        }
        self.all_sessions_known.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// All packs that are there, if it is time to look for what nobody needs. To be asked before it is asked what is
    /// needed: what is sent later is needed by somebody who came later.
    pub(crate) async fn listed(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        every: Duration,
    ) -> Result<Option<HashMap<String, u64>>> {
        {
            let mut looked = self.looked.lock().expect("nobody panics while holding it");
            if looked.get(tenant).is_some_and(|looked| looked.elapsed() < every) {
                return Ok(None);
            }
            looked.insert(tenant.clone(), Instant::now());
        }
        self.delete_superseded_manifests(rooms, tenant).await?;
        let all: Vec<_> =
            self.bucket.list(&object_keys::packs(tenant)).try_collect().await.map_err(trouble)?;
        let name = |key: &str| key.rsplit('/').next().map(str::to_owned);
        Ok(Some(all.iter().filter_map(|found| Some((name(&found.key)?, found.size))).collect()))
    }

    /// Packs that are there as they are here, or only there; and those that are there otherwise.
    pub(crate) async fn compared(
        &self,
        rooms: &Services,
        tenant: &TenantId,
    ) -> Result<(HashSet<String>, HashSet<String>)> {
        let (known, repo) = (rooms.store.remote_packs(tenant).await?, rooms.repo(tenant)?);
        let same =
            |(pack, there): &(String, u64)| repo.pack_file(pack).is_none_or(|(_, here)| here == *there);
        let (same, unlike): (Vec<_>, Vec<_>) = known.into_iter().partition(same);
        let names = |packs: Vec<(String, u64)>| packs.into_iter().map(|(pack, _)| pack).collect();
        Ok((names(same), names(unlike)))
    }

    /// What is smaller here than there was made so by collection, and nobody needs the rest.
    pub(crate) async fn replace_smaller(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        listed: Option<HashMap<String, u64>>,
    ) -> Result<()> {
        let (mut known, repo) = (rooms.store.remote_packs(tenant).await?, rooms.repo(tenant)?);
        known.extend(listed.into_iter().flatten());
        for (pack, there) in known {
            if repo.pack_file(&pack).is_some_and(|(_, here)| here < there) {
                self.replace(rooms, tenant, &repo, &pack).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn replace(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        repo: &Arc<Repo>,
        pack: &str,
    ) -> Result<()> {
        // It may have gone meanwhile.
        let Some((path, size)) = repo.pack_file(pack) else { return Ok(()) };
        self.writer().await?.replace_file(&object_keys::pack(tenant, pack), &path).await.map_err(trouble)?;
        self.remember_pack(rooms, tenant, pack, size).await
    }

    /// Nobody can bring this session back from there any more: only its tombstone stays.
    pub(crate) async fn forget(&self, rooms: &Services, tombstone: &SessionTombstone) -> Result<()> {
        let seq = self.send_tombstone(rooms, tombstone).await?;
        let last = (tombstone.epoch.0, seq);
        let prefix = object_keys::session(&tombstone.tenant, &tombstone.session);
        let found: Vec<_> = self.bucket.list(&prefix).try_collect().await.map_err(trouble)?;
        // What is later is of a session that was made again.
        let before = |key: &String| object_keys::numbers(key).is_some_and(|numbers| numbers < last);
        let keys: Vec<String> = found.into_iter().map(|found| found.key).filter(before).collect();
        self.writer().await?.delete(&keys).await.map_err(trouble)?;
        Ok(rooms.store.forget_remote_objects(&keys).await?)
    }

    /// Packs that nobody needs, here or elsewhere.
    pub(crate) async fn delete_packs(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        packs: &[String],
    ) -> Result<()> {
        let repo = rooms.repo(tenant)?;
        // One that is here was captured anew.
        let packs: Vec<String> =
            packs.iter().filter(|pack| repo.pack_file(pack).is_none()).cloned().collect();
        if packs.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = packs.iter().map(|pack| object_keys::pack(tenant, pack)).collect();
        // Written down before it is forgotten: whoever dies in between deletes what nobody needs.
        rooms.store.enqueue_deletes(&keys, rooms.clock()).await?;
        rooms.store.forget_remote_packs(tenant, &packs).await?;
        if let Some(known) = self.known.lock().await.get_mut(tenant) {
            packs.iter().for_each(|pack| {
                known.sizes.remove(pack);
                known.missing.remove(pack);
            });
        }
        self.notify();
        Ok(())
    }

    /// Manifests that tell nothing which a later one does not tell: those of checkpoints that were given up, and those
    /// that only told how the log went on.
    async fn delete_superseded_manifests(&self, rooms: &Services, tenant: &TenantId) -> Result<()> {
        let mut all: BTreeMap<SessionId, Vec<String>> = BTreeMap::new();
        let mut listed = self.bucket.list(&object_keys::sessions(tenant));
        while let Some(found) = listed.try_next().await.map_err(trouble)? {
            let id = found.key.rsplit('/').nth(1).and_then(|id| SessionId::parse(id).ok());
            if let (Some(id), Some(_)) = (id, object_keys::numbers(&found.key)) {
                all.entry(id).or_default().push(found.key);
            }
        }
        let mut doomed = Vec::new();
        let buried = rooms.buried_epochs(tenant, all.keys()).await?;
        for (id, mut manifests) in all {
            // Those of a session that had this id go with it: a fork may share its log.
            let buried = buried.get(&id).map_or(0, |epoch| epoch.0);
            manifests.retain(|key| object_keys::numbers(key).is_some_and(|(epoch, _)| epoch > buried));
            let Some(session) = rooms.store.find_session(&AccessScope::all(tenant), &id).await? else {
                continue;
            };
            let needed = told_of(rooms, &session).await?;
            manifests.sort();
            // The last one tells how the session is.
            manifests.pop();
            let is_needed = |key: &String| {
                object_keys::numbers(key)
                    .is_none_or(|(_, seq)| seq >= session.remote_seq || needed.contains(&seq))
            };
            manifests.retain(|key| !is_needed(key));
            doomed.extend(manifests);
        }
        if !doomed.is_empty() {
            rooms.store.enqueue_deletes(&doomed, rooms.clock()).await?;
            self.notify();
        }
        Ok(())
    }
}

/// Up to which events its checkpoints go that are still there.
async fn told_of(rooms: &Services, session: &SessionRow) -> Result<HashSet<u64>> {
    let (mut seqs, mut before) = (HashSet::new(), None);
    loop {
        let page = rooms.store.checkpoints(session.workspace, before, PAGE).await?;
        let Some(last) = page.last() else { return Ok(seqs) };
        before = Some(last.number);
        seqs.extend(page.iter().filter(|one| one.removed_at.is_none()).map(|one| one.seq));
    }
}
