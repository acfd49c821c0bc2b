//! Sending: an agent before its sessions, a parent before its forks, and of each session one checkpoint after the other.
//! Several sessions at a time, and nobody waits for one that takes long or fails.

use super::{
    FIRST_RETRY_DELAY, KnownRemotePacks, MAX_RETRY_DELAY, Replicator, manifest, object_keys, trouble,
    write_once::WriteOnceOutcome,
};
use crate::{Error, Result, blocking, embedded_log, services::Services};
use ash_cloud::{BucketError, BucketErrorCode, PutOutcome};
use ash_model::{
    AgentName, EventSeq, SessionRowId, TenantId,
    remote::{AgentDefinition, SessionTombstone},
};
use ash_snapshot::TreeId;
use ash_store::{Checkpoint, PendingUpload, RemotePack, SessionRow};
use futures::{StreamExt, stream::FuturesUnordered};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// So much is looked at at a time.
const PAGE: u32 = 200;
/// Sessions whose packs are sent at the same time.
const AT_ONCE: usize = 4;
/// Without being called it looks this often.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// What cannot be sent for its own sake is tried again after this.
const LOCAL_FAULT_RETRY_DELAY: Duration = Duration::from_secs(600);
const DELETED_AT_ONCE: u32 = 1000;

/// Whose something is that is sent: of each one thing after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum UploadLane {
    Agent(TenantId, AgentName),
    Session(SessionRowId),
    /// What is to be deleted.
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

/// What is under way, and what failed.
#[derive(Default)]
struct UploadScheduler {
    busy: HashSet<UploadLane>,
    delays: HashMap<UploadLane, UploadDelay>,
    /// Who met the trouble that is told.
    troubled: Option<UploadLane>,
    /// How often something was taken back when it was last looked.
    retractions: u64,
}

struct UploadDelay {
    until: Instant,
    breath: Duration,
    fault: UploadFault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadFault {
    Local,
    /// The object store's.
    ObjectStore,
}

impl UploadScheduler {
    fn is_unavailable(&self, whose: &UploadLane) -> bool {
        let delayed = self.delays.get(whose).is_some_and(|delay| delay.until > Instant::now());
        delayed || self.busy.contains(whose)
    }

    /// Sessions that are not to be begun.
    fn unavailable_sessions(&self) -> Vec<SessionRowId> {
        let all = self.busy.iter().chain(self.delays.keys()).filter(|whose| self.is_unavailable(whose));
        let sessions = all.filter_map(|whose| match whose {
            UploadLane::Session(session) => Some(*session),
            UploadLane::Agent(..) | UploadLane::Deletions => None,
        });
        sessions.collect()
    }

    fn delay(&mut self, whose: &UploadLane) {
        let before = self.delays.get(whose).map_or(FIRST_RETRY_DELAY, |delay| delay.breath);
        let breath = (before * 2).min(MAX_RETRY_DELAY);
        let until = Instant::now() + breath;
        self.delays.insert(whose.clone(), UploadDelay { until, breath, fault: UploadFault::ObjectStore });
    }

    /// Whoever waited and is not among those who have something to send has given it up.
    fn forget(&mut self, sending: &[LaneUploads]) {
        let now = Instant::now();
        let waits = |whose: &UploadLane| {
            *whose == UploadLane::Deletions || sending.iter().any(|(other, _)| other == whose)
        };
        self.delays.retain(|whose, delay| delay.until > now || waits(whose));
    }

    /// What was lost may have been found.
    fn clear_delays_after_retraction(&mut self, retractions: u64) {
        if std::mem::replace(&mut self.retractions, retractions) != retractions {
            self.delays.retain(|_, delay| delay.fault == UploadFault::ObjectStore);
        }
    }

    fn wake(&self) -> Instant {
        let now = Instant::now();
        let delayed = self.delays.values().map(|delay| delay.until).filter(|until| *until > now);
        delayed.chain([now + POLL_INTERVAL]).min().unwrap_or(now)
    }
}

impl Replicator {
    /// As long as the server lives, whenever the bucket is ours. What is under way when it is lost is given up.
    pub async fn send_for_ever(&self, rooms: &Services) {
        while let Err(error) = rooms.store.set_remote(&self.bucket.to_string()).await {
            tracing::error!(%error, "the database does not take where everything is sent");
            tokio::time::sleep(MAX_RETRY_DELAY).await;
        }
        loop {
            self.claim.until_held().await;
            tokio::select! {
                () = self.send_while_held(rooms) => {}
                () = self.claim.until_lost() => {}
            }
        }
    }

    async fn send_while_held(&self, rooms: &Services) {
        let (mut desk, mut under_way) = (UploadScheduler::default(), FuturesUnordered::new());
        loop {
            match self.ready(rooms, &mut desk).await {
                Ok(ready) => {
                    for (whose, group) in ready {
                        desk.busy.insert(whose.clone());
                        under_way.push(async move { (whose, self.send_group(rooms, group).await) });
                    }
                }
                Err(error) => tracing::error!(%error, "what is to be sent could not be looked at"),
            }
            // Only now: what is to be deleted may be among what is sent.
            if under_way.is_empty() {
                self.delete_and_check(rooms, &mut desk).await;
            }
            tokio::select! {
                Some((whose, result)) = under_way.next() => self.judge(rooms, &mut desk, whose, result),
                () = self.bell.notified() => {}
                () = tokio::time::sleep_until(desk.wake()) => {}
            }
        }
    }

    /// What can be begun now.
    async fn ready(&self, rooms: &Services, desk: &mut UploadScheduler) -> Result<Vec<LaneUploads>> {
        let mut ready = Vec::new();
        desk.clear_delays_after_retraction(*self.retractions.read().await);
        if desk.busy.len() >= AT_ONCE {
            return Ok(ready);
        }
        let mut groups: Vec<LaneUploads> = Vec::new();
        let found = rooms.store.pending_uploads(PAGE, &desk.unavailable_sessions()).await?;
        let is_all = found.len() < PAGE as usize;
        for one in found {
            let whose = UploadLane::of(&one);
            match groups.iter_mut().find(|(other, _)| *other == whose) {
                Some((_, group)) => group.push(one),
                None => groups.push((whose, vec![one])),
            }
        }
        if is_all {
            desk.forget(&groups);
        }
        let missing = missing_agents(&groups, desk);
        for (whose, group) in groups {
            if desk.busy.len() + ready.len() < AT_ONCE
                && !desk.is_unavailable(&whose)
                && !self.must_wait(rooms, &whose, &missing).await?
            {
                ready.push((whose, group));
            }
        }
        Ok(ready)
    }

    /// A session is nothing without its agent, and a fork nothing without its parent's log.
    async fn must_wait(
        &self,
        rooms: &Services,
        whose: &UploadLane,
        missing: &HashSet<(TenantId, AgentName, u32)>,
    ) -> Result<bool> {
        let UploadLane::Session(session) = whose else { return Ok(false) };
        let Some(session) = rooms.store.session(*session).await? else { return Ok(false) };
        if !self.may_be_sent(rooms, &session).await? {
            return Ok(true);
        }
        if missing.contains(&(session.tenant, session.agent, session.version)) {
            return Ok(true);
        }
        let Some(base) = session.base else { return Ok(false) };
        let Some(parent) = rooms.store.session(base.parent).await? else { return Ok(false) };
        let far = match parent.remote_checkpoint {
            Some(number) => rooms.store.checkpoint(parent.workspace, number).await?,
            None => None,
        };
        Ok(far.is_none_or(|checkpoint| checkpoint.seq < base.seq))
    }

    /// Both kinds of failure delay whom they happen to. What the object store is to blame for is told.
    fn judge(&self, rooms: &Services, desk: &mut UploadScheduler, whose: UploadLane, result: Result<()>) {
        desk.busy.remove(&whose);
        match result {
            Ok(()) => {
                desk.delays.remove(&whose);
                if desk.troubled.as_ref().is_none_or(|troubled| *troubled == whose) {
                    desk.troubled = None;
                    self.set_trouble(None, rooms);
                }
            }
            Err(Error::Bucket(why)) => {
                self.set_trouble(Some(why), rooms);
                desk.delay(&whose);
                desk.troubled = Some(whose);
            }
            Err(error) => {
                tracing::error!(?whose, %error, "something could not be sent to the object store");
                let until = Instant::now() + LOCAL_FAULT_RETRY_DELAY;
                desk.troubled.take_if(|troubled| *troubled == whose);
                desk.delays.insert(
                    whose,
                    UploadDelay { until, breath: FIRST_RETRY_DELAY, fault: UploadFault::Local },
                );
            }
        }
    }

    /// Deletes, and finds out whether there is still trouble if nobody is left to whom it happened.
    async fn delete_and_check(&self, rooms: &Services, desk: &mut UploadScheduler) {
        if desk.is_unavailable(&UploadLane::Deletions) {
            return;
        }
        let gone = |whose: &UploadLane| *whose == UploadLane::Deletions || !desk.delays.contains_key(whose);
        let alone = desk.troubled.as_ref().is_none_or(gone);
        let done = match self.delete_some(rooms).await {
            Ok(0) if alone && self.trouble().is_some() => {
                desk.troubled = None;
                self.check().await
            }
            Ok(0) => return,
            Ok(_) => {
                // There may be more.
                self.notify();
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.judge(rooms, desk, UploadLane::Deletions, done);
    }

    async fn send_group(&self, rooms: &Services, group: Vec<PendingUpload>) -> Result<()> {
        let mut failed = None;
        for one in group {
            if is_given_up(rooms, &one).await? {
                continue;
            }
            let retractions = *self.retractions.read().await;
            let seq = match &one {
                PendingUpload::Agent(agent) => self.send_agent(rooms, agent).await.map(|()| 0),
                PendingUpload::Checkpoint { session, checkpoint } => {
                    self.send_checkpoint(rooms, *session, checkpoint).await
                }
                PendingUpload::Log { session, seq } => self.send_manifest(rooms, *session, None, *seq).await,
                PendingUpload::Tombstone { tombstone, .. } => self.send_tombstone(rooms, tombstone).await,
            };
            let seq = match seq {
                Ok(seq) => seq,
                // Of a checkpoint that cannot be read later ones need not know.
                Err(error) if is_own_fault(&error) => {
                    failed = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Another server may have the bucket by now, and delete what we have just sent.
            self.writer().await?;
            let now = self.retractions.read().await;
            if *now != retractions {
                // What was known to be there may not be: it is looked at again.
                self.notify();
                return Ok(());
            }
            rooms.store.mark_uploaded(&one, seq, rooms.clock()).await?;
            drop(now);
            self.sent.send_modify(|count| *count += 1);
        }
        failed.map_or(Ok(()), Err)
    }

    /// After whatever another server has put under its name: the highest is right.
    async fn send_agent(&self, rooms: &Services, agent: &AgentDefinition) -> Result<()> {
        self.send_packs(rooms, &agent.tenant, &agent.tree).await?;
        let mut changes = agent.changes;
        loop {
            let key = object_keys::version(&agent.tenant, &agent.name, agent.version, changes);
            let numbered = AgentDefinition { changes, ..agent.clone() };
            match self.put_or_compare(rooms, &agent.tenant, &key, &numbered).await? {
                WriteOnceOutcome::Same => return Ok(()),
                WriteOnceOutcome::Other => changes += 1,
            }
        }
    }

    /// Answers up to where the log is there now.
    async fn send_checkpoint(
        &self,
        rooms: &Services,
        session: SessionRowId,
        checkpoint: &Checkpoint,
    ) -> Result<u64> {
        let of = rooms.store.session(session).await?.ok_or(Error::NotFound)?;
        match of.base.filter(|base| checkpoint.seq <= base.seq) {
            Some(base) => self.send_fork_start(rooms, &of, checkpoint, base.seq).await,
            None => {
                self.send_log(rooms, &of, &checkpoint.tree).await?;
                self.send_packs(rooms, &of.tenant, &checkpoint.tree).await?;
                self.send_manifest(rooms, session, Some(checkpoint), checkpoint.seq).await
            }
        }
    }

    /// What leads back to the log that is there: the packs of checkpoints that were given up before they were sent.
    async fn send_log(&self, rooms: &Services, of: &SessionRow, tree: &str) -> Result<()> {
        let repo = rooms.repo(&of.tenant)?;
        let mut missing = Vec::new();
        let is_suspect = self.is_suspect(rooms, &of.tenant).await?;
        let mut next = log_before(&repo, of, tree).await;
        while let Some(tree) = next {
            let here = repo.pack_file(tree.pack_name()).is_some();
            let is_there = !here || self.is_known(rooms, &of.tenant, tree.pack_name()).await?;
            // Behind one that is there may be one that is gone.
            if is_there && !is_suspect {
                break;
            }
            next = log_before(&repo, of, tree.as_str()).await;
            missing.extend((!is_there).then_some(tree));
        }
        for tree in missing.into_iter().rev() {
            match self.send_packs(rooms, &of.tenant, tree.as_str()).await {
                // Its files are gone. It is sent for what it tells, and not listed: nobody counts on the rest of it.
                Err(Error::Snapshot(ash_snapshot::Error::Damaged { .. })) => {
                    self.put_pack(rooms, &of.tenant, &repo, tree.pack_name()).await?;
                }
                sent => sent?,
            }
        }
        Ok(())
    }

    /// What a fork begins with, all at once, and the event that says so: without it nobody knew where it stands.
    async fn send_fork_start(
        &self,
        rooms: &Services,
        fork: &SessionRow,
        checkpoint: &Checkpoint,
        base: EventSeq,
    ) -> Result<u64> {
        let repo = rooms.repo(&fork.tenant)?;
        for first in manifest::first(rooms, &repo, fork, base).await? {
            self.send_packs(rooms, &fork.tenant, &first.tree).await?;
        }
        self.send_manifest(rooms, fork.no, Some(checkpoint), base + 1).await
    }

    async fn send_manifest(
        &self,
        rooms: &Services,
        session: SessionRowId,
        checkpoint: Option<&Checkpoint>,
        seq: u64,
    ) -> Result<u64> {
        let session = rooms.store.session(session).await?.ok_or(Error::NotFound)?;
        let manifest = manifest::of(rooms, &session, checkpoint, seq).await?;
        let key = object_keys::manifest(&session.tenant, &session.id, manifest.epoch, seq);
        self.put(rooms, &session.tenant, &key, &manifest).await?;
        Ok(seq)
    }

    /// In the place of the session's next manifest, or after whatever another server has put there.
    pub(super) async fn send_tombstone(&self, rooms: &Services, tombstone: &SessionTombstone) -> Result<u64> {
        let mut seq = tombstone.seq;
        loop {
            let key = object_keys::manifest(&tombstone.tenant, &tombstone.session, tombstone.epoch, seq);
            let numbered = SessionTombstone { seq, ..tombstone.clone() };
            match self.put_or_compare(rooms, &tombstone.tenant, &key, &numbered).await? {
                WriteOnceOutcome::Same => return Ok(seq),
                WriteOnceOutcome::Other => seq += 1,
            }
        }
    }

    /// Everything that a tree needs, each pack after those that it needs itself.
    async fn send_packs(&self, rooms: &Services, tenant: &TenantId, tree: &str) -> Result<()> {
        let tree = TreeId::parse(tree).map_err(|_| Error::NoWorkspace)?;
        let repo = rooms.repo(tenant)?;
        let mut visiting = HashSet::new();
        let mut waiting = vec![(tree.pack_name().to_owned(), false)];
        let is_suspect = self.is_suspect(rooms, tenant).await?;
        while let Some((pack, ready)) = waiting.pop() {
            if self.is_known(rooms, tenant, &pack).await? {
                continue;
            }
            // It came from there, and so did what it needs, unless something is missing there.
            if !is_suspect && repo.pack_file(&pack).is_none() && self.find_pack(rooms, tenant, &pack).await? {
                continue;
            }
            if !ready {
                let (from, name) = (repo.clone(), pack.clone());
                let needs = blocking(move || Ok(from.references_of(&name)?)).await;
                // Collection has made it smaller, and it cannot say any more what it needs.
                if let Err(Error::Snapshot(ash_snapshot::Error::Damaged { .. })) = needs {
                    return self.send_all_packs(rooms, tenant, &tree).await;
                }
                let needs = needs?;
                visiting.insert(pack.clone());
                waiting.push((pack, true));
                waiting.extend(
                    needs.into_iter().filter(|need| !visiting.contains(need)).map(|need| (need, false)),
                );
                continue;
            }
            self.send_pack(rooms, tenant, &repo, &pack).await?;
        }
        Ok(())
    }

    /// Everything that a tree needs, the oldest first: what a pack needs was there before it.
    async fn send_all_packs(&self, rooms: &Services, tenant: &TenantId, tree: &TreeId) -> Result<()> {
        let (repo, from, of) = (rooms.repo(tenant)?, rooms.repo(tenant)?, tree.clone());
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
            if !self.is_known(rooms, tenant, &pack).await? {
                self.send_pack(rooms, tenant, &repo, &pack).await?;
            }
        }
        Ok(())
    }

    async fn send_pack(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        repo: &Arc<ash_snapshot::Repo>,
        pack: &str,
    ) -> Result<()> {
        if repo.pack_file(pack).is_none() && self.find_pack(rooms, tenant, pack).await? {
            return Ok(());
        }
        let there = self.put_pack(rooms, tenant, repo, pack).await?;
        self.remember_pack(rooms, tenant, pack, there).await?;
        match repo.pack_file(pack) {
            // It was sent when collection had made it smaller, and was captured anew since.
            Some((_, here)) if here > there => self.replace(rooms, tenant, repo, pack).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Answers how long it is there.
    async fn put_pack(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        repo: &Arc<ash_snapshot::Repo>,
        pack: &str,
    ) -> Result<u64> {
        let key = object_keys::pack(tenant, pack);
        // It may have been given up before, and be the same again: nothing is deleted while something is sent.
        rooms.store.cancel_deletes(std::slice::from_ref(&key)).await?;
        let (path, size) = repo.pack_file(pack).ok_or_else(|| {
            let what = "its pack is not there".to_owned();
            Error::Snapshot(ash_snapshot::Error::Damaged { tree: pack.to_owned(), what })
        })?;
        match self.writer().await?.put_file(&key, &path, &|_| {}).await {
            Ok(PutOutcome::Created | PutOutcome::AlreadyExists) => Ok(size),
            // One of the two was made smaller by collection: both are this pack.
            Err(BucketError { code: BucketErrorCode::Damaged, .. }) => {
                Ok(self.sending.head(&key).await.map_err(trouble)?.unwrap_or(size))
            }
            Err(error) => Err(trouble(error)),
        }
    }

    /// Whether all of a pack is known to be there.
    async fn is_known(&self, rooms: &Services, tenant: &TenantId, pack: &str) -> Result<bool> {
        let here = rooms.repo(tenant)?.pack_file(pack).map(|(_, size)| size);
        self.with_known(rooms, tenant, |known| match (known.sizes.get(pack), here) {
            (Some(there), Some(here)) => *there >= here,
            (Some(_), None) => true,
            (None, _) => false,
        })
        .await
    }

    /// Whether something is missing there. Then a pack that is there may need one that is not.
    async fn is_suspect(&self, rooms: &Services, tenant: &TenantId) -> Result<bool> {
        self.with_known(rooms, tenant, |known| !known.missing.is_empty()).await
    }

    /// Packs that are neither here nor there.
    pub(super) async fn lost(&self, rooms: &Services, tenant: &TenantId) -> Result<HashSet<String>> {
        let repo = rooms.repo(tenant)?;
        let is_lost = |pack: &&String| repo.pack_file(pack).is_none();
        self.with_known(rooms, tenant, |known| known.missing.iter().filter(is_lost).cloned().collect()).await
    }

    async fn with_known<T>(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        look: impl FnOnce(&KnownRemotePacks) -> T,
    ) -> Result<T> {
        let mut known = self.known.lock().await;
        if !known.contains_key(tenant) {
            let sizes = rooms.store.remote_packs(tenant).await?;
            let missing = rooms.store.missing_packs(tenant).await?;
            known.insert(tenant.clone(), KnownRemotePacks { sizes, missing });
        }
        Ok(look(&known[tenant]))
    }

    /// Whether a pack that is not here is there, as it is found out by asking.
    async fn find_pack(&self, rooms: &Services, tenant: &TenantId, pack: &str) -> Result<bool> {
        let Some(size) = self.sending.head(&object_keys::pack(tenant, pack)).await.map_err(trouble)? else {
            return Ok(false);
        };
        self.remember_pack(rooms, tenant, pack, size).await?;
        Ok(true)
    }

    pub(super) async fn remember_pack(
        &self,
        rooms: &Services,
        tenant: &TenantId,
        pack: &str,
        size: u64,
    ) -> Result<()> {
        rooms.store.add_remote_packs(tenant, &[RemotePack { pack: pack.to_owned(), size }]).await?;
        if let Some(known) = self.known.lock().await.get_mut(tenant) {
            known.sizes.insert(pack.to_owned(), size);
            known.missing.remove(pack);
        }
        Ok(())
    }

    /// Whether the bucket can be listed, written and read. Makes its mark.
    pub(super) async fn check(&self) -> Result<()> {
        self.writer().await?.check().await.map_err(trouble)
    }

    async fn delete_some(&self, rooms: &Services) -> Result<usize> {
        let doomed = rooms.store.queued_deletes(DELETED_AT_ONCE).await?;
        if doomed.is_empty() {
            return Ok(0);
        }
        let (numbers, keys): (Vec<i64>, Vec<String>) =
            doomed.into_iter().map(|doomed| (doomed.number, doomed.key)).unzip();
        // Not only by what we remember: what is deleted stays deleted.
        self.claim.renew().await.map_err(trouble)?;
        self.writer().await?.delete(&keys).await.map_err(trouble)?;
        rooms.store.dequeue_deletes(&numbers).await?;
        Ok(numbers.len())
    }
}

/// Something here, or what it needs, is damaged or lost.
fn is_own_fault(error: &Error) -> bool {
    matches!(error, Error::Snapshot(why) if !matches!(why, ash_snapshot::Error::Far { .. }))
}

/// Whether the rules were faster: then there is nothing to send any more.
async fn is_given_up(rooms: &Services, one: &PendingUpload) -> Result<bool> {
    let PendingUpload::Checkpoint { checkpoint, .. } = one else { return Ok(false) };
    let row = rooms.store.checkpoint(checkpoint.workspace, checkpoint.number).await?;
    Ok(row.is_none_or(|row| row.removed_at.is_some()))
}

/// Versions of agents that are not there yet. One that cannot be sent for its own sake keeps nobody from it.
fn missing_agents(groups: &[LaneUploads], desk: &UploadScheduler) -> HashSet<(TenantId, AgentName, u32)> {
    let hopeless =
        |whose: &UploadLane| desk.delays.get(whose).is_some_and(|delay| delay.fault == UploadFault::Local);
    let groups = groups.iter().filter(|(whose, _)| !hopeless(whose));
    let agents = groups.flat_map(|(_, group)| group).filter_map(|one| match one {
        PendingUpload::Agent(agent) => Some((agent.tenant.clone(), agent.name.clone(), agent.version)),
        PendingUpload::Checkpoint { .. } | PendingUpload::Log { .. } | PendingUpload::Tombstone { .. } => {
            None
        }
    });
    agents.collect()
}

/// The snapshot whose pack has the events before those in this one, if they are the session's own.
async fn log_before(repo: &Arc<ash_snapshot::Repo>, of: &SessionRow, tree: &str) -> Option<TreeId> {
    let (repo, tree, of) = (repo.clone(), TreeId::parse(tree).ok()?, of.clone());
    let base = of.base.map_or(0, |base| base.seq);
    let read = blocking(move || embedded_log::read(&repo, &tree)).await;
    // One that cannot be read leads nowhere; what comes after it has the whole log again.
    let record =
        read.ok().flatten().filter(|record| embedded_log::is_of(record, &of) && record.after > base)?;
    TreeId::parse(&record.previous).ok()
}
