//! Decides which checkpoints stay, and deletes the rest: the decision uses rows only, is marked in the store, and is
//! then carried out by garbage collection in the repository. Nothing that a session needs is ever deleted.

use crate::{
    Error, Replicator, Result, Sessions, SweepReport, live_directory::list_workspaces, mailbox::ActorMessage,
    session_ttl::earlier_by as long_ago, witness::write_tombstone,
};
use ash_model::{SessionStatus, TenantId, Timestamp, WorkspaceId};
use ash_remote::RemotePackComparison;
use ash_snapshot::{GcReport, GcRoots, Repo, RetentionCandidate, SnapshotRetention, TreeId};
use ash_store::{AccessScope, SessionRow, TenantCheckpoint, TenantSnapshots, WorkspaceSession};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

/// A salvage checkpoint is kept this long, whatever the rules say.
const SALVAGE_TTL_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// Garbage collection yields the CPU to sessions.
const GC_NICENESS: i32 = 10;

/// File systems may report a time that is this much before the clock's.
const COARSE_CLOCK: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Applied to each workspace separately.
    pub rules: SnapshotRetention,
    /// Nothing younger is deleted, because a request in progress may still use it.
    pub grace: Duration,
    /// Files of sessions that were not used for this long are kept only in the object store.
    pub local_ttl: Duration,
    /// A purged session stays in the trash for this long.
    pub trash_ttl: Duration,
    /// How often the object store is searched for objects that nothing needs.
    pub remote_gc_interval: Duration,
}

impl Sessions {
    /// Sweeps one tenant after the other. A failure of one tenant is logged, and does not stop the others.
    pub async fn sweep(&self, keep: &RetentionPolicy) -> Result<()> {
        let began = Instant::now();
        let mut all = SweepReport::default();
        Box::pin(self.services().compare_witnesses()).await?;
        if !self.services().may_delete() {
            tracing::warn!(
                "garbage collection deletes nothing: the database knows less than packs and the object store"
            );
            return Ok(());
        }
        if self.services().replicator.is_some() {
            let before = self.cold_before(keep);
            match self.evict_local_trees(before).await {
                Ok(0) => {}
                Ok(trees) => tracing::info!(
                    trees,
                    "the server removed local trees of idle sessions; the object store has them"
                ),
                Err(error) => {
                    tracing::warn!(%error, "some local trees that the object store has could not be removed")
                }
            }
        }
        if let Err(error) = self.empty_trash(keep.trash_ttl).await {
            tracing::error!(%error, "the trash could not be emptied; the next sweep tries again");
        }
        for tenant in self.services().store.tenants().await? {
            match self.sweep_tenant(&tenant, keep).await {
                Ok(swept) => {
                    let SweepReport { checkpoints, packs, size } = &swept;
                    let (removed, rewritten, freed) =
                        (packs.removed.len(), packs.rewritten.len(), packs.freed);
                    tracing::info!(%tenant, checkpoints, removed, rewritten, freed, size, "collected");
                    all.add(swept);
                }
                Err(error) => {
                    self.services().watch.sweep_failed();
                    tracing::error!(%tenant, %error, "garbage collection of a repository failed; it removed nothing that a session needs");
                }
            }
        }
        self.services().watch.swept(&all, began.elapsed());
        Ok(())
    }

    /// Deletes sessions for good that were purged long enough ago: first the objects from which they could come back,
    /// then their rows. Their packs go with the next collection. What a session shares with its forks stays as long as
    /// they do.
    async fn empty_trash(&self, after: Duration) -> Result<()> {
        let services = self.services();
        let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp(services.retention_clock().0.saturating_sub(after));
        for session in services.store.trashed_sessions(before).await? {
            let Some(row) = services.store.tombstone(session.no).await? else { continue };
            // Before the row is deleted: from then on only the tombstone says that the session was purged.
            write_tombstone(self.services(), session.no).await?;
            if let Some(replicator) = &services.replicator {
                replicator.forget(&row.tombstone).await?;
            }
            ash_failpoint::reach_async("trash.told").await;
            while !services.store.purge(session.no, services.clock()).await? {
                ash_failpoint::reach_async("trash.burying").await;
            }
            tracing::info!(session = session.no.0, tenant = %session.tenant, "purged");
        }
        for no in services.store.trashed_parents(before).await? {
            while !services.store.forget_unshared(no).await? {}
        }
        Ok(())
    }

    /// Sets the free bytes on the disk. If they are few, files that are safe in the object store are removed from this
    /// machine before their time. Files that are only here are never removed.
    pub async fn set_free(&self, free: u64, keep: &RetentionPolicy) {
        let before = self.replace_free(free);
        let least = self.services().settings.min_free;
        match (before < least, free < least) {
            (false, true) => {
                tracing::error!(
                    free,
                    "little disk space is left: the server starts nothing new until there is more"
                );
            }
            (true, false) => tracing::info!(free, "there is enough disk space again"),
            (_, _) => {}
        }
        // Each time, because some sessions must first check whether all of their files are safe.
        if free < least
            && let Err(error) =
                Box::pin(self.sweep(&RetentionPolicy { local_ttl: Duration::ZERO, ..*keep })).await
        {
            tracing::warn!(%error, "garbage collection failed and freed no disk space");
        }
    }

    /// Removes the live trees of sessions that were not used since `before`, if the object store has what they hold.
    async fn evict_local_trees(&self, before: Timestamp) -> Result<u64> {
        let root = self.services().settings.live_dir.clone();
        let workspaces =
            tokio::task::spawn_blocking(move || list_workspaces(&root)).await.map_err(|_| Error::Gone)?;
        let mut gone = 0;
        for workspace in workspaces {
            let mut sessions = Vec::new();
            for WorkspaceSession { no, .. } in self.services().store.workspace_sessions(workspace).await? {
                sessions.extend(self.services().store.session(no).await?);
            }
            // All sessions of a shared workspace must be unused.
            let cold = sessions.iter().all(|session| is_cold(session, before));
            // An ended session is asked only if there is no other.
            sessions.sort_by_key(|session| session.summary.status == SessionStatus::Ended);
            if let Some(session) = sessions.first().filter(|_| cold)
                && self.ask(session.no, |reply| ActorMessage::DropLocalFiles { reply }).await?
            {
                gone += 1;
            }
        }
        Ok(gone)
    }

    fn cold_before(&self, keep: &RetentionPolicy) -> Timestamp {
        let cold = i64::try_from(keep.local_ttl.as_millis()).unwrap_or(i64::MAX);
        Timestamp(self.services().retention_clock().0.saturating_sub(cold))
    }

    /// The workspaces whose files need not be on this machine, and the packs that the object store has.
    async fn cold(
        &self,
        tenant: &TenantId,
        held: &TenantSnapshots,
        keep: &RetentionPolicy,
    ) -> Result<EvictableLocalFiles> {
        let services = self.services();
        let Some(replicator) = &services.replicator else { return Ok(EvictableLocalFiles::default()) };
        let before = self.cold_before(keep);
        let RemotePackComparison { same, differing } = replicator.compare_packs(tenant).await?;
        let mut cold =
            EvictableLocalFiles { packs: same, differing_packs: differing, ..EvictableLocalFiles::default() };
        let workspaces: HashSet<WorkspaceId> =
            held.checkpoints.iter().map(|held| held.checkpoint.workspace).collect();
        for workspace in workspaces {
            let mut all = true;
            for WorkspaceSession { no, .. } in services.store.workspace_sessions(workspace).await? {
                all &= services.store.session(no).await?.is_some_and(|session| is_cold(&session, before));
            }
            if all {
                cold.workspaces.insert(workspace);
            }
        }
        Ok(cold)
    }

    async fn sweep_tenant(&self, tenant: &TenantId, keep: &RetentionPolicy) -> Result<SweepReport> {
        let services = self.services();
        let now = services.retention_clock();
        let before = services.store.tenant_snapshots(tenant).await?;
        let mut checkpoints = 0;
        for held in before.checkpoints.chunk_by(|a, b| a.checkpoint.workspace == b.checkpoint.workspace) {
            let numbers = expired_checkpoints(held, keep.rules, now);
            if let (false, Some(workspace)) = (numbers.is_empty(), workspace(held)) {
                checkpoints +=
                    services.store.remove_checkpoints(workspace, &numbers, services.clock()).await?;
            }
        }
        let replicator = self.cleaned().await;
        let there = match &replicator {
            Some(replicator) => self.listed(replicator, tenant, keep).await,
            None => None,
        };
        // Before the rows are read: anything that is written from here on is missing in them.
        let before = system_time(long_ago(services.retention_clock(), keep.grace));
        let capturing = services.repo(tenant)?.oldest_capture().unwrap_or(before);
        let before = before.min(capturing) - COARSE_CLOCK;
        let holdings = services.store.tenant_snapshots(tenant).await?;
        let cold = self.cold(tenant, &holdings, keep).await?;
        let mut wanted = retained(&holdings, now, keep.grace, cold)?;
        wanted.all_remote = there;
        wanted.undecided = services.unclear_packs(tenant).await?;
        let collected = self.collect(tenant, &wanted, before).await;
        let listed = wanted.all_remote.take();
        let (packs, size) = match collected {
            // The bucket could not be searched; collect on this machine all the same.
            Err(error) if listed.is_some() => {
                tracing::warn!(%tenant, %error, "garbage in the object store could not be searched for");
                self.collect(tenant, &wanted, before).await?
            }
            collected => collected?,
        };
        if let Some(replicator) = replicator {
            let unneeded = services.explained_packs(tenant, &packs.unneeded).await?;
            let gone = [&packs.removed[..], &unneeded].concat();
            replicator.delete_packs(tenant, &gone).await?;
            if let Err(error) = replicator.replace_smaller(tenant, listed).await {
                tracing::warn!(%tenant, %error, "smaller packs could not be copied to the object store");
            }
        }
        Ok(SweepReport { checkpoints, packs, size })
    }

    /// The object store, if garbage may be deleted there.
    async fn cleaned(&self) -> Option<&Replicator> {
        let replicator = self.services().replicator.as_deref()?;
        match self.bring_back_unknown_sessions(replicator).await {
            Ok(()) => Some(replicator),
            Err(error) => {
                tracing::warn!(%error, "garbage collection deletes nothing in the object store: some of its sessions could not be read");
                None
            }
        }
    }

    /// Brings back sessions that only the object store has, because everything that they need must stay there.
    async fn bring_back_unknown_sessions(&self, replicator: &Replicator) -> Result<()> {
        for (tenant, sessions) in replicator.unknown_sessions().await? {
            for id in sessions {
                let _alone = self.bringing_back.lock(tenant.clone()).await;
                Box::pin(replicator.bring_back(&AccessScope::all(&tenant), &id)).await?;
                tracing::info!(session = %id, %tenant, "the server restored a session that only the object store had");
            }
        }
        replicator.mark_all_sessions_known();
        Ok(())
    }

    async fn listed(
        &self,
        replicator: &Replicator,
        tenant: &TenantId,
        keep: &RetentionPolicy,
    ) -> Option<HashMap<String, u64>> {
        match replicator.list_packs_for_gc(tenant, keep.remote_gc_interval).await {
            Ok(there) => there,
            Err(error) => {
                tracing::warn!(%tenant, %error, "garbage in the object store could not be searched for");
                None
            }
        }
    }

    async fn collect(
        &self,
        tenant: &TenantId,
        wanted: &GcRoots,
        before: SystemTime,
    ) -> Result<(GcReport, u64)> {
        let (repo, wanted) = (self.services().repo(tenant)?, wanted.clone());
        at_low_priority(move || collect(&repo, &wanted, before)).await
    }
}

/// What need not be on this machine.
#[derive(Debug, Default)]
struct EvictableLocalFiles {
    workspaces: HashSet<WorkspaceId>,
    packs: HashSet<String>,
    differing_packs: HashSet<String>,
}

fn workspace(held: &[TenantCheckpoint]) -> Option<WorkspaceId> {
    held.first().map(|held| held.checkpoint.workspace)
}

/// As the file system's time.
fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(at.0).unwrap_or(0))
}

fn collect(repo: &Arc<Repo>, wanted: &GcRoots, before: SystemTime) -> Result<(GcReport, u64)> {
    // Recorded before the collection: the packs alone would still show what is half deleted.
    repo.discard(&wanted.notes)?;
    Ok((repo.collect_garbage_before(wanted, before)?, repo.size()?))
}

/// Runs work on a thread of its own with low CPU priority.
async fn at_low_priority<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (done, waiting) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("gc".to_owned()).spawn(move || {
        rustix::process::nice(GC_NICENESS).ok();
        done.send(work()).ok();
    });
    thread.map_err(Error::io("cannot start a thread"))?;
    waiting.await.map_err(|_| Error::Gone)?
}

/// The numbers of a workspace's checkpoints that the rules remove, the newest first.
fn expired_checkpoints(held: &[TenantCheckpoint], rules: SnapshotRetention, now: Timestamp) -> Vec<u64> {
    let there: Vec<&TenantCheckpoint> =
        held.iter().filter(|held| held.checkpoint.removed_at.is_none()).collect();
    let moment = |held: &&TenantCheckpoint| {
        let at = held.checkpoint.at.0;
        let found = held.checkpoint.salvage && now.0 - at < SALVAGE_TTL_MS;
        RetentionCandidate { at, needed: held.needed || found }
    };
    let moments: Vec<RetentionCandidate> = there.iter().map(moment).collect();
    let kept = rules.keep(&moments);
    there.iter().zip(kept).filter(|(_, kept)| !kept).map(|(held, _)| held.checkpoint.number).collect()
}

/// Everything that stays, with its files or with its notes alone. A fork shares trees with its parent, so a tree stays
/// if one of them keeps it.
fn retained(
    holdings: &TenantSnapshots,
    now: Timestamp,
    grace: Duration,
    cold: EvictableLocalFiles,
) -> Result<GcRoots> {
    let grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    let stays = |held: &&TenantCheckpoint| held.checkpoint.removed_at.is_none_or(|at| now.0 - at.0 < grace);
    let rows = holdings.checkpoints.iter();
    let is_cold = |held: &&TenantCheckpoint| {
        cold.workspaces.contains(&held.checkpoint.workspace) && held.checkpoint.uploaded_at.is_some()
    };
    let trees = rows.clone().filter(stays).filter(|held| !is_cold(held)).map(|held| &held.checkpoint.tree);
    let trees: HashSet<TreeId> =
        trees.chain(&holdings.versions).map(|tree| parse(tree)).collect::<Result<_>>()?;
    let resting = rows.clone().filter(stays).filter(is_cold).map(|held| parse(&held.checkpoint.tree));
    let resting: HashSet<TreeId> = resting.collect::<Result<_>>()?;
    let notes = rows.filter(|held| !stays(held)).map(|held| parse(&held.checkpoint.tree));
    let notes: HashSet<TreeId> = notes.collect::<Result<_>>()?;
    let notes = notes.into_iter().filter(|tree| !trees.contains(tree) && !resting.contains(tree)).collect();
    let resting = resting.into_iter().filter(|tree| !trees.contains(tree)).collect();
    let EvictableLocalFiles { packs: replicator, differing_packs: unlike, .. } = cold;
    Ok(GcRoots {
        trees: trees.into_iter().collect(),
        notes,
        remote_suffices: resting,
        remote: replicator,
        remote_differs: unlike,
        ..GcRoots::default()
    })
}

/// A tree that cannot be parsed cannot be kept, so the error stops the whole collection.
fn parse(tree: &str) -> Result<TreeId> {
    TreeId::parse(tree).map_err(|_| Error::NoWorkspace)
}

/// Whether a session was not used since `before`, and the object store has what it needs.
fn is_cold(session: &SessionRow, before: Timestamp) -> bool {
    let rests = matches!(
        session.summary.status,
        SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Ended
    );
    // A session of a shared workspace may have made no checkpoint.
    let made = session.summary.checkpoint.is_some() || session.slug.is_some();
    let replicator = made && session.remote_checkpoint >= session.summary.checkpoint;
    rests && replicator && session.summary.open_turns == 0 && session.last_active_at < before
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::CaptureConsistency;
    use ash_store::Checkpoint;
    use proptest::prelude::*;

    fn held(number: u64, at: i64, (salvage, needed, removed): (bool, bool, bool)) -> TenantCheckpoint {
        let checkpoint = Checkpoint {
            workspace: WorkspaceId(uuid::Uuid::nil()),
            number,
            turn: None,
            seq: number,
            tree: format!("{number:096x}"),
            consistency: CaptureConsistency::Frozen,
            salvage,
            mid_turn: false,
            files: 0,
            bytes: 0,
            skipped: None,
            unsettled: None,
            concurrent_turns: Vec::new(),
            rewound_to: None,
            removed_at: removed.then_some(Timestamp(at)),
            uploaded_at: None,
            at: Timestamp(at),
        };
        TenantCheckpoint { checkpoint, needed }
    }

    proptest! {
        #[test]
        fn needed_checkpoints_do_not_expire(
            mut rows in proptest::collection::vec((0..20 * SALVAGE_TTL_MS, any::<(bool, bool, bool)>()), 1..40),
            (last, hourly, daily) in (0..5usize, 0..5usize, 0..5usize),
        ) {
            rows.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            let now = Timestamp(20 * SALVAGE_TTL_MS);
            let count = rows.len() as u64;
            let rows: Vec<TenantCheckpoint> =
                (0..count).zip(&rows).map(|(n, (at, flags))| held(count - n, *at, *flags)).collect();
            let gone = expired_checkpoints(&rows, SnapshotRetention { last, hourly, daily }, now);
            let there: Vec<&TenantCheckpoint> = rows.iter().filter(|held| held.checkpoint.removed_at.is_none()).collect();
            for held in &there {
                let Checkpoint { number, salvage, at, .. } = held.checkpoint;
                let young = salvage && now.0 - at.0 < SALVAGE_TTL_MS;
                prop_assert!(!gone.contains(&number) || !(held.needed || young));
            }
            prop_assert!(there.iter().take(last.max(1)).all(|held| !gone.contains(&held.checkpoint.number)));
            prop_assert!(gone.iter().all(|number| there.iter().any(|held| held.checkpoint.number == *number)));
        }

        #[test]
        fn a_tree_stays_as_long_as_one_of_its_checkpoints(
            rows in proptest::collection::vec((1..8u64, 0..1000i64, any::<bool>()), 0..40),
            grace in 0..1000u64,
        ) {
            let checkpoints: Vec<TenantCheckpoint> =
                rows.iter().map(|(tree, at, removed)| held(*tree, *at, (false, false, *removed))).collect();
            let holdings = TenantSnapshots { versions: vec![format!("{:096x}", 99)], checkpoints };
            let GcRoots { trees, notes, .. } =
                retained(&holdings, Timestamp(1000), Duration::from_millis(grace), EvictableLocalFiles::default()).expect("trees");
            prop_assert!(trees.contains(&parse(&holdings.versions[0]).expect("a tree")));
            for held in &holdings.checkpoints {
                let tree = parse(&held.checkpoint.tree).expect("a tree");
                prop_assert!(held.checkpoint.removed_at.is_some() || trees.contains(&tree));
                prop_assert!(trees.contains(&tree) != notes.contains(&tree));
            }
        }
    }
}
