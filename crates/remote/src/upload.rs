//! Uploads: an agent before its sessions, a parent before its forks, and the checkpoints of a session one after the
//! other. Several sessions are sent at a time, so that a slow or failing one does not delay the others.

use crate::{
    Error, Replicator, Result, blocking, object_keys, pack_log,
    replicator::{FIRST_RETRY_DELAY, KnownRemotePacks, MAX_RETRY_DELAY},
    write_once::WriteOnceOutcome,
};
use ash_cloud::{BucketError, BucketErrorCode, PutOutcome};
use ash_model::{
    AgentName, EventSeq, SessionRowId, TenantId,
    remote::{AgentDefinition, SessionTombstone},
};
use ash_snapshot::{Repo, TreeId};
use ash_store::{Checkpoint, PendingUpload, RemotePack, SessionRow};
use futures::{StreamExt, stream::FuturesUnordered};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Pending uploads that are read at a time.
const PAGE: u32 = 200;
/// Lanes that send at the same time.
const MAX_BUSY_LANES: usize = 4;
/// How often pending uploads are checked without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The pause before data is tried again that cannot be sent because it is damaged on this machine.
const LOCAL_FAULT_RETRY_DELAY: Duration = Duration::from_secs(600);
const DELETED_AT_ONCE: u32 = 1000;

/// Uploads of one lane are sent one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum UploadLane {
    Agent(TenantId, AgentName),
    Session(SessionRowId),
    /// The queue of objects to delete.
    Deletions,
}

impl UploadLane {
    fn of(one: &PendingUpload) -> UploadLane {
        match one {
            PendingUpload::Agent(agent) => UploadLane::Agent(agent.tenant.clone(), agent.name.clone()),
            PendingUpload::Checkpoint { session, .. }
            | PendingUpload::Log { session, .. }
            | PendingUpload::Tombstone { session, .. } => UploadLane::Session(*session),
        }
    }
}

type LaneUploads = (UploadLane, Vec<PendingUpload>);

/// The lanes that are sending, and those that wait after a failure.
#[derive(Default)]
struct UploadScheduler {
    busy: HashSet<UploadLane>,
    delays: HashMap<UploadLane, UploadDelay>,
    /// The lane that caused the trouble that is shown.
    troubled: Option<UploadLane>,
    /// The last known number of retractions.
    retractions: u64,
}

struct UploadDelay {
    until: Instant,
    backoff: Duration,
    fault: UploadFault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadFault {
    /// Data on this machine is damaged or lost.
    Local,
    ObjectStore,
}

impl UploadScheduler {
    fn is_unavailable(&self, lane: &UploadLane) -> bool {
        let delayed = self.delays.get(lane).is_some_and(|delay| delay.until > Instant::now());
        delayed || self.busy.contains(lane)
    }

    /// Sessions that are being sent or wait after a failure.
    fn unavailable_sessions(&self) -> Vec<SessionRowId> {
        let all = self.busy.iter().chain(self.delays.keys()).filter(|lane| self.is_unavailable(lane));
        let sessions = all.filter_map(|lane| match lane {
            UploadLane::Session(session) => Some(*session),
            UploadLane::Agent(..) | UploadLane::Deletions => None,
        });
        sessions.collect()
    }

    fn delay(&mut self, lane: &UploadLane) {
        let before = self.delays.get(lane).map_or(FIRST_RETRY_DELAY, |delay| delay.backoff);
        let backoff = (before * 2).min(MAX_RETRY_DELAY);
        let until = Instant::now() + backoff;
        self.delays.insert(lane.clone(), UploadDelay { until, backoff, fault: UploadFault::ObjectStore });
    }

    /// Forgets the delays of lanes that have nothing to send any more.
    fn forget(&mut self, sending: &[LaneUploads]) {
        let now = Instant::now();
        let waits = |lane: &UploadLane| {
            *lane == UploadLane::Deletions || sending.iter().any(|(other, _)| other == lane)
        };
        self.delays.retain(|lane, delay| delay.until > now || waits(lane));
    }

    /// After a retraction, tries data again that was lost here: it may exist again.
    fn clear_delays_after_retraction(&mut self, retractions: u64) {
        if std::mem::replace(&mut self.retractions, retractions) != retractions {
            self.delays.retain(|_, delay| delay.fault == UploadFault::ObjectStore);
        }
    }

    /// When to check again: at the end of the first delay, and at least after the poll interval.
    fn wake(&self) -> Instant {
        let now = Instant::now();
        let delayed = self.delays.values().map(|delay| delay.until).filter(|until| *until > now);
        delayed.chain([now + POLL_INTERVAL]).min().unwrap_or(now)
    }
}

impl Replicator {
    /// Sends as long as the server lives, while it holds the claim on the bucket. If the claim is lost, uploads in
    /// progress are aborted.
    pub async fn send_for_ever(&self) {
        while let Err(error) = self.services.store.set_remote(&self.bucket.to_string()).await {
            tracing::error!(%error, "the address of the object store could not be written to the database");
            tokio::time::sleep(MAX_RETRY_DELAY).await;
        }
        loop {
            self.claim.until_held().await;
            tokio::select! {
                () = self.send_while_held() => {}
                () = self.claim.until_lost() => {}
            }
        }
    }

    async fn send_while_held(&self) {
        let (mut lanes, mut under_way) = (UploadScheduler::default(), FuturesUnordered::new());
        loop {
            match self.ready(&mut lanes).await {
                Ok(ready) => {
                    for (lane, group) in ready {
                        lanes.busy.insert(lane.clone());
                        under_way.push(async move { (lane, self.send_group(group).await) });
                    }
                }
                Err(error) => tracing::error!(%error, "pending uploads could not be read"),
            }
            // Never during an upload: the objects to delete may include what it sends.
            if under_way.is_empty() {
                self.delete_and_check(&mut lanes).await;
            }
            tokio::select! {
                Some((lane, result)) = under_way.next() => self.judge(&mut lanes, lane, result),
                () = self.bell.notified() => {}
                () = tokio::time::sleep_until(lanes.wake()) => {}
            }
        }
    }

    /// The lanes that can start now.
    async fn ready(&self, lanes: &mut UploadScheduler) -> Result<Vec<LaneUploads>> {
        let mut ready = Vec::new();
        lanes.clear_delays_after_retraction(*self.retractions.read().await);
        if lanes.busy.len() >= MAX_BUSY_LANES {
            return Ok(ready);
        }
        let mut groups: Vec<LaneUploads> = Vec::new();
        let found = self.services.store.pending_uploads(PAGE, &lanes.unavailable_sessions()).await?;
        let is_all = found.len() < PAGE as usize;
        for one in found {
            let lane = UploadLane::of(&one);
            match groups.iter_mut().find(|(other, _)| *other == lane) {
                Some((_, group)) => group.push(one),
                None => groups.push((lane, vec![one])),
            }
        }
        if is_all {
            lanes.forget(&groups);
        }
        let missing = missing_agents(&groups, lanes);
        for (lane, group) in groups {
            if lanes.busy.len() + ready.len() < MAX_BUSY_LANES
                && !lanes.is_unavailable(&lane)
                && !self.must_wait(&lane, &missing).await?
            {
                ready.push((lane, group));
            }
        }
        Ok(ready)
    }

    /// Whether a session must wait for its agent, or a fork for its parent's log, without which it cannot be restored.
    async fn must_wait(
        &self,
        lane: &UploadLane,
        missing: &HashSet<(TenantId, AgentName, u32)>,
    ) -> Result<bool> {
        let UploadLane::Session(session) = lane else { return Ok(false) };
        let Some(session) = self.services.store.session(*session).await? else { return Ok(false) };
        if !self.may_be_sent(&session).await? {
            return Ok(true);
        }
        if missing.contains(&(session.tenant, session.agent, session.version)) {
            return Ok(true);
        }
        let Some(base) = session.base else { return Ok(false) };
        let Some(parent) = self.services.store.session(base.parent).await? else { return Ok(false) };
        let uploaded = match parent.remote_checkpoint {
            Some(number) => self.services.store.checkpoint(parent.workspace, number).await?,
            None => None,
        };
        Ok(uploaded.is_none_or(|checkpoint| checkpoint.seq < base.seq))
    }

    /// Handles the result of a lane. Every failure delays the lane; a failure of the object store is shown to the
    /// operator.
    fn judge(&self, lanes: &mut UploadScheduler, lane: UploadLane, result: Result<()>) {
        lanes.busy.remove(&lane);
        match result {
            Ok(()) => {
                lanes.delays.remove(&lane);
                if lanes.troubled.as_ref().is_none_or(|troubled| *troubled == lane) {
                    lanes.troubled = None;
                    self.set_trouble(None);
                }
            }
            Err(Error::Bucket(why)) => {
                self.set_trouble(Some(why));
                lanes.delay(&lane);
                lanes.troubled = Some(lane);
            }
            Err(error) => {
                tracing::error!(?lane, %error, "data could not be sent to the object store");
                let until = Instant::now() + LOCAL_FAULT_RETRY_DELAY;
                lanes.troubled.take_if(|troubled| *troubled == lane);
                lanes.delays.insert(
                    lane,
                    UploadDelay { until, backoff: FIRST_RETRY_DELAY, fault: UploadFault::Local },
                );
            }
        }
    }

    /// Deletes what is queued. If the lane that caused the shown trouble is gone, checks whether the trouble is over.
    async fn delete_and_check(&self, lanes: &mut UploadScheduler) {
        if lanes.is_unavailable(&UploadLane::Deletions) {
            return;
        }
        let gone = |lane: &UploadLane| *lane == UploadLane::Deletions || !lanes.delays.contains_key(lane);
        let alone = lanes.troubled.as_ref().is_none_or(gone);
        let done = match self.delete_some().await {
            Ok(0) if alone && self.trouble().is_some() => {
                lanes.troubled = None;
                self.check().await
            }
            Ok(0) => return,
            Ok(_) => {
                // The queue may hold more.
                self.notify();
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.judge(lanes, UploadLane::Deletions, done);
    }

    /// Whether the checkpoint was removed meanwhile, so that there is nothing to send.
    async fn is_given_up(&self, one: &PendingUpload) -> Result<bool> {
        let PendingUpload::Checkpoint { checkpoint, .. } = one else { return Ok(false) };
        let row = self.services.store.checkpoint(checkpoint.workspace, checkpoint.number).await?;
        Ok(row.is_none_or(|row| row.removed_at.is_some()))
    }

    async fn send_group(&self, group: Vec<PendingUpload>) -> Result<()> {
        let mut failed = None;
        for one in group {
            if self.is_given_up(&one).await? {
                continue;
            }
            let retractions = *self.retractions.read().await;
            let seq = match &one {
                PendingUpload::Agent(agent) => self.send_agent(agent).await.map(|()| 0),
                PendingUpload::Checkpoint { session, checkpoint } => {
                    self.send_checkpoint(*session, checkpoint).await
                }
                PendingUpload::Log { session, seq } => self.send_manifest(*session, None, *seq).await,
                PendingUpload::Tombstone { tombstone, .. } => self.send_tombstone(tombstone).await,
            };
            let seq = match seq {
                Ok(seq) => seq,
                // An unreadable checkpoint does not delay later ones.
                Err(error) if is_own_fault(&error) => {
                    failed = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Another server may hold the claim by now, and delete what was just sent.
            self.writer().await?;
            let now = self.retractions.read().await;
            if *now != retractions {
                // A pack that this upload relied on may have vanished, so the upload is repeated.
                self.notify();
                return Ok(());
            }
            self.services.store.mark_uploaded(&one, seq, self.services.clock()).await?;
            drop(now);
            self.sent.send_modify(|count| *count += 1);
        }
        failed.map_or(Ok(()), Err)
    }

    /// If another server has written something else under the name, uses the next number: the highest counts.
    async fn send_agent(&self, agent: &AgentDefinition) -> Result<()> {
        self.send_packs(&agent.tenant, &agent.tree).await?;
        let mut changes = agent.changes;
        loop {
            let key = object_keys::version(&agent.tenant, &agent.name, agent.version, changes);
            let numbered = AgentDefinition { changes, ..agent.clone() };
            match self.put_or_compare(&agent.tenant, &key, &numbered).await? {
                WriteOnceOutcome::Same => return Ok(()),
                WriteOnceOutcome::Other => changes += 1,
            }
        }
    }

    /// Returns the last event of the log that is in the bucket now.
    async fn send_checkpoint(&self, session: SessionRowId, checkpoint: &Checkpoint) -> Result<u64> {
        let of = self.services.store.session(session).await?.ok_or(Error::NoSession)?;
        match of.base.filter(|base| checkpoint.seq <= base.seq) {
            Some(base) => self.send_fork_start(&of, checkpoint, base.seq).await,
            None => {
                self.send_log(&of, &checkpoint.tree).await?;
                self.send_packs(&of.tenant, &checkpoint.tree).await?;
                self.send_manifest(session, Some(checkpoint), checkpoint.seq).await
            }
        }
    }

    /// Sends packs of removed checkpoints that were never sent: without them the log would have a gap.
    async fn send_log(&self, of: &SessionRow, tree: &str) -> Result<()> {
        let repo = self.services.repo(&of.tenant)?;
        let mut missing = Vec::new();
        let is_suspect = self.is_suspect(&of.tenant).await?;
        let mut next = log_before(&repo, of, tree).await;
        while let Some(tree) = next {
            let here = repo.pack_file(tree.pack_name()).is_some();
            let is_there = !here || self.is_known(&of.tenant, tree.pack_name()).await?;
            // If packs are missing in the bucket, one before this one may be among them.
            if is_there && !is_suspect {
                break;
            }
            next = log_before(&repo, of, tree.as_str()).await;
            missing.extend((!is_there).then_some(tree));
        }
        for tree in missing.into_iter().rev() {
            match self.send_packs(&of.tenant, tree.as_str()).await {
                // Its files are gone. The pack is sent for its log, and not recorded, because its files cannot be
                // relied on.
                Err(Error::Snapshot(ash_snapshot::Error::Damaged { .. })) => {
                    self.put_pack(&of.tenant, &repo, tree.pack_name()).await?;
                }
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Sends the checkpoints that a fork begins with, and its first event, which names the fork point.
    async fn send_fork_start(
        &self,
        fork: &SessionRow,
        checkpoint: &Checkpoint,
        base: EventSeq,
    ) -> Result<u64> {
        let repo = self.services.repo(&fork.tenant)?;
        for first in self.initial_checkpoints(&repo, fork, base).await? {
            self.send_packs(&fork.tenant, &first.tree).await?;
        }
        self.send_manifest(fork.no, Some(checkpoint), base + 1).await
    }

    async fn send_manifest(
        &self,
        session: SessionRowId,
        checkpoint: Option<&Checkpoint>,
        seq: u64,
    ) -> Result<u64> {
        let session = self.services.store.session(session).await?.ok_or(Error::NoSession)?;
        let manifest = self.manifest(&session, checkpoint, seq).await?;
        let key = object_keys::manifest(&session.tenant, &session.id, manifest.epoch, seq);
        self.put(&session.tenant, &key, &manifest).await?;
        Ok(seq)
    }

    /// Writes the tombstone in place of the session's next manifest, or after what another server has written there.
    pub(crate) async fn send_tombstone(&self, tombstone: &SessionTombstone) -> Result<u64> {
        let mut seq = tombstone.seq;
        loop {
            let key = object_keys::manifest(&tombstone.tenant, &tombstone.session, tombstone.epoch, seq);
            let numbered = SessionTombstone { seq, ..tombstone.clone() };
            match self.put_or_compare(&tombstone.tenant, &key, &numbered).await? {
                WriteOnceOutcome::Same => return Ok(seq),
                WriteOnceOutcome::Other => seq += 1,
            }
        }
    }

    /// Sends all packs that a tree needs, each after the packs that it refers to.
    async fn send_packs(&self, tenant: &TenantId, tree: &str) -> Result<()> {
        let tree =
            TreeId::parse(tree).map_err(|_| Error::Damaged(format!("\"{tree}\" names no snapshot")))?;
        let repo = self.services.repo(tenant)?;
        let mut visiting = HashSet::new();
        let mut waiting = vec![(tree.pack_name().to_owned(), false)];
        let is_suspect = self.is_suspect(tenant).await?;
        while let Some((pack, ready)) = waiting.pop() {
            if self.is_known(tenant, &pack).await? {
                continue;
            }
            // A pack that is not here came from the bucket with everything that it needs, unless packs are missing
            // there.
            if !is_suspect && repo.pack_file(&pack).is_none() && self.find_pack(tenant, &pack).await? {
                continue;
            }
            if !ready {
                let (from, name) = (repo.clone(), pack.clone());
                let needs = blocking(move || Ok(from.references_of(&name)?)).await;
                // Garbage collection has made the pack smaller, and with it removed the names of the packs that it
                // needs.
                if let Err(Error::Snapshot(ash_snapshot::Error::Damaged { .. })) = needs {
                    return self.send_all_packs(tenant, &tree).await;
                }
                let needs = needs?;
                visiting.insert(pack.clone());
                waiting.push((pack, true));
                waiting.extend(
                    needs.into_iter().filter(|need| !visiting.contains(need)).map(|need| (need, false)),
                );
                continue;
            }
            self.send_pack(tenant, &repo, &pack).await?;
        }
        Ok(())
    }

    /// Sends all packs that a tree needs, the oldest first, because a pack refers only to older packs.
    async fn send_all_packs(&self, tenant: &TenantId, tree: &TreeId) -> Result<()> {
        let (repo, from, of) = (self.services.repo(tenant)?, self.services.repo(tenant)?, tree.clone());
        let mut packs = blocking(move || {
            let packs = from.packs_of(&of)?;
            let age = |pack: &String| {
                let path = from.pack_file(pack).map(|(path, _)| path)?;
                std::fs::metadata(path).and_then(|is| is.modified()).ok()
            };
            let mut packs: Vec<_> = packs.into_iter().map(|pack| (age(&pack), pack)).collect();
            packs.sort();
            Ok(packs)
        })
        .await?;
        for (_, pack) in packs.drain(..) {
            if !self.is_known(tenant, &pack).await? {
                self.send_pack(tenant, &repo, &pack).await?;
            }
        }
        Ok(())
    }

    async fn send_pack(&self, tenant: &TenantId, repo: &Arc<Repo>, pack: &str) -> Result<()> {
        if repo.pack_file(pack).is_none() && self.find_pack(tenant, pack).await? {
            return Ok(());
        }
        let there = self.put_pack(tenant, repo, pack).await?;
        self.remember_pack(tenant, pack, there).await?;
        match repo.pack_file(pack) {
            // The pack was sent after garbage collection had made it smaller, and was captured anew since.
            Some((_, here)) if here > there => self.replace(tenant, repo, pack).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the size of the pack in the bucket.
    async fn put_pack(&self, tenant: &TenantId, repo: &Arc<Repo>, pack: &str) -> Result<u64> {
        let key = object_keys::pack(tenant, pack);
        // The pack may be queued for deletion and needed again. Nothing is deleted during an upload.
        self.services.store.cancel_deletes(std::slice::from_ref(&key)).await?;
        let (path, size) = repo.pack_file(pack).ok_or_else(|| {
            let what = "its pack is not there".to_owned();
            Error::Snapshot(ash_snapshot::Error::Damaged { tree: pack.to_owned(), what })
        })?;
        match self.writer().await?.put_file(&key, &path, &|_| {}).await {
            Ok(PutOutcome::Created | PutOutcome::AlreadyExists) => Ok(size),
            // Garbage collection made one of the two smaller, but both are this pack.
            Err(BucketError { code: BucketErrorCode::Damaged, .. }) => {
                Ok(self.upload_bucket.head(&key).await.map_err(Error::Bucket)?.unwrap_or(size))
            }
            Err(error) => Err(Error::Bucket(error)),
        }
    }

    /// Whether the bucket is known to have the whole pack.
    async fn is_known(&self, tenant: &TenantId, pack: &str) -> Result<bool> {
        let here = self.services.repo(tenant)?.pack_file(pack).map(|(_, size)| size);
        self.with_known(tenant, |known| match (known.sizes.get(pack), here) {
            (Some(there), Some(here)) => *there >= here,
            (Some(_), None) => true,
            (None, _) => false,
        })
        .await
    }

    /// Whether packs are missing in the bucket. Then a pack that is there may need a missing one.
    async fn is_suspect(&self, tenant: &TenantId) -> Result<bool> {
        self.with_known(tenant, |known| !known.missing.is_empty()).await
    }

    /// Packs that neither this machine nor the bucket has.
    pub(crate) async fn lost(&self, tenant: &TenantId) -> Result<HashSet<String>> {
        let repo = self.services.repo(tenant)?;
        let is_lost = |pack: &&String| repo.pack_file(pack).is_none();
        self.with_known(tenant, |known| known.missing.iter().filter(is_lost).cloned().collect()).await
    }

    async fn with_known<T>(&self, tenant: &TenantId, look: impl FnOnce(&KnownRemotePacks) -> T) -> Result<T> {
        let mut known = self.known.lock().await;
        if !known.contains_key(tenant) {
            let sizes = self.services.store.remote_packs(tenant).await?;
            let missing = self.services.store.missing_packs(tenant).await?;
            known.insert(tenant.clone(), KnownRemotePacks { sizes, missing });
        }
        Ok(look(&known[tenant]))
    }

    /// Asks the bucket whether it has a pack that is not here.
    async fn find_pack(&self, tenant: &TenantId, pack: &str) -> Result<bool> {
        let Some(size) =
            self.upload_bucket.head(&object_keys::pack(tenant, pack)).await.map_err(Error::Bucket)?
        else {
            return Ok(false);
        };
        self.remember_pack(tenant, pack, size).await?;
        Ok(true)
    }

    pub(crate) async fn remember_pack(&self, tenant: &TenantId, pack: &str, size: u64) -> Result<()> {
        self.services.store.add_remote_packs(tenant, &[RemotePack { pack: pack.to_owned(), size }]).await?;
        if let Some(known) = self.known.lock().await.get_mut(tenant) {
            known.sizes.insert(pack.to_owned(), size);
            known.missing.remove(pack);
        }
        Ok(())
    }

    /// Checks that the bucket can be listed, written and read. Writes the mark that it belongs to this program.
    pub(crate) async fn check(&self) -> Result<()> {
        self.writer().await?.check().await.map_err(Error::Bucket)
    }

    async fn delete_some(&self) -> Result<usize> {
        let doomed = self.services.store.queued_deletes(DELETED_AT_ONCE).await?;
        if doomed.is_empty() {
            return Ok(0);
        }
        let (numbers, keys): (Vec<i64>, Vec<String>) =
            doomed.into_iter().map(|doomed| (doomed.number, doomed.key)).unzip();
        // Renewed and not only remembered, because a deletion is final.
        self.claim.renew().await.map_err(Error::Bucket)?;
        self.writer().await?.delete(&keys).await.map_err(Error::Bucket)?;
        self.services.store.dequeue_deletes(&numbers).await?;
        Ok(numbers.len())
    }
}

/// Whether data on this machine is damaged or lost.
fn is_own_fault(error: &Error) -> bool {
    matches!(error, Error::Snapshot(why) if !matches!(why, ash_snapshot::Error::Far { .. }))
}

/// Versions of agents that must be sent first. A version that is damaged here does not delay sessions.
fn missing_agents(groups: &[LaneUploads], lanes: &UploadScheduler) -> HashSet<(TenantId, AgentName, u32)> {
    let hopeless =
        |lane: &UploadLane| lanes.delays.get(lane).is_some_and(|delay| delay.fault == UploadFault::Local);
    let groups = groups.iter().filter(|(lane, _)| !hopeless(lane));
    let agents = groups.flat_map(|(_, group)| group).filter_map(|one| match one {
        PendingUpload::Agent(agent) => Some((agent.tenant.clone(), agent.name.clone(), agent.version)),
        PendingUpload::Checkpoint { .. } | PendingUpload::Log { .. } | PendingUpload::Tombstone { .. } => {
            None
        }
    });
    agents.collect()
}

/// The snapshot whose pack has the events before those in this pack, if they belong to the session.
async fn log_before(repo: &Arc<Repo>, of: &SessionRow, tree: &str) -> Option<TreeId> {
    let (repo, tree, of) = (repo.clone(), TreeId::parse(tree).ok()?, of.clone());
    let base = of.base.map_or(0, |base| base.seq);
    let read = blocking(move || pack_log::read_record(&repo, &tree)).await;
    // The checkpoint after an unreadable pack holds the whole log again.
    let record =
        read.ok().flatten().filter(|record| pack_log::is_record_of(record, &of) && record.after > base)?;
    TreeId::parse(&record.previous).ok()
}
