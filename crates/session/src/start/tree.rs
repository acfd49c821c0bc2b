//! The files that a sandbox begins with: those on disk, those of a checkpoint, or the agent's own.

use super::{AgentProgram, SessionStartJob};
use crate::{
    Error, Result, blocking,
    ladder::StartTreeOrigin,
    live_directory::{
        AgentMemoryPaths, CheckpointFallback, LiveDirectory, LiveTree, LiveTreeComparison, TreeRecipe,
    },
    machine::LogState,
    services::Services,
};
use ash_model::{ComparisonMethod, EventSeq, Fact, SavedCheckpoint};
use ash_snapshot::{SnapshotProgress, TreeId};
use ash_store::{AgentVersion, Checkpoint, Lease, SessionRow};
use std::sync::Arc;

/// The files that a sandbox begins with.
pub(crate) struct StartTree {
    pub(crate) origin: StartTreeOrigin,
    pub(crate) uid: Option<u32>,
    pub(crate) fallback: Option<CheckpointFallback>,
}

impl SessionStartJob {
    pub(super) async fn tree(&self, version: &AgentVersion) -> Result<StartTree> {
        if let Some(LiveTree { uid }) = self.tree {
            let uid = self.of_its_own(uid).await?;
            // An earlier start died after it restored an older checkpoint and before it recorded that.
            let fallback = self.live.stamp().and_then(|stamp| stamp.fallback);
            let fallback = fallback.filter(|fallback| Some(fallback.instead_of) == self.state.checkpoint);
            let origin = if fallback.is_some() { StartTreeOrigin::Checkpoint } else { StartTreeOrigin::Live };
            return Ok(StartTree { origin, uid, fallback });
        }
        let (recipe, origin) =
            recipe(&self.services, &self.session, &self.state, &self.lease, Some(version)).await?;
        let origin = self.origin(origin, &recipe)?;
        let number = match self.session.slug {
            Some(_) => self.workspace.newest(),
            None => self.state.checkpoint,
        };
        match (make_tree(&self.services, &self.session, &self.live, recipe).await, number) {
            (Err(error), Some(number)) if is_damage(&error) => self.older(number, error.to_string()).await,
            (made, _) => Ok(StartTree { origin, uid: made?, fallback: None }),
        }
    }

    /// A tree that an unprivileged server made has no uid of its own. A server that runs as root needs one to run anything.
    async fn of_its_own(&self, uid: Option<u32>) -> Result<Option<u32>> {
        if uid.is_some() || !self.services.uids.are_given() {
            return Ok(uid);
        }
        let (services, live) = (self.services.clone(), self.live.clone());
        let uid = blocking(move || live.hand_over(&services.uids)).await?;
        tracing::info!(session = %self.session.id, uid, "the server gave a uid to a tree of a server without root");
        Ok(uid)
    }

    /// Paths that the checkpoint of these files does not hold. Paths that still exist are not reported.
    pub(super) async fn unsaved(&self, tree: &StartTree) -> Result<Vec<String>> {
        let restored = matches!(tree.origin, StartTreeOrigin::Checkpoint | StartTreeOrigin::Remote);
        let standing = match (&tree.fallback, restored) {
            (_, false) => return Ok(Vec::new()),
            (Some(fallback), true) => {
                self.services.store.checkpoint(self.session.workspace, fallback.used).await?
            }
            (None, true) => standing_on(&self.services, &self.session, &self.state).await?,
        };
        let Some(checkpoint) = standing.filter(|checkpoint| checkpoint.skipped != Some(0)) else {
            return Ok(Vec::new());
        };
        // In a shared workspace another session may have made it.
        let own = self.session.no;
        let others = self.services.store.workspace_sessions(self.session.workspace).await?;
        let others = others.into_iter().map(|other| other.no).filter(|no| *no != own);
        for no in std::iter::once(own).chain(others) {
            let facts = self.services.store.facts(no).await?;
            if let Some(saved) = facts.iter().rev().find_map(|event| saved_as(&event.fact, &checkpoint)) {
                return Ok(missed(saved));
            }
        }
        Ok(Vec::new())
    }

    fn origin(&self, origin: StartTreeOrigin, recipe: &TreeRecipe) -> Result<StartTreeOrigin> {
        let here = self.services.repo(&self.session.tenant)?.pack_file(recipe.tree.pack_name()).is_some();
        Ok(if origin == StartTreeOrigin::Checkpoint && !here { StartTreeOrigin::Remote } else { origin })
    }

    /// Falls back to the newest undamaged checkpoint before a damaged one. Checkpoints that the session went back from
    /// come last.
    async fn older(&self, number: u64, why: String) -> Result<StartTree> {
        let store = &self.services.store;
        let left = left_behind(&store.facts(self.session.no).await?);
        let mut found = store.checkpoints(self.session.workspace, Some(number), u32::MAX).await?;
        found.retain(|checkpoint| !checkpoint.salvage && checkpoint.removed_at.is_none());
        found.sort_by_key(|checkpoint| {
            left.iter().any(|(from, to)| *from < checkpoint.seq && checkpoint.seq < *to)
        });
        for checkpoint in found {
            let fallback =
                CheckpointFallback { instead_of: number, used: checkpoint.number, why: why.clone() };
            let recipe =
                recipe_of(&self.services, &self.session, &self.state, &self.lease, &checkpoint.tree)?;
            let recipe = TreeRecipe { fallback: Some(fallback.clone()), ..recipe };
            let origin = self.origin(StartTreeOrigin::Checkpoint, &recipe)?;
            match make_tree(&self.services, &self.session, &self.live, recipe).await {
                Err(error) if is_damage(&error) => {}
                made => return Ok(StartTree { origin, uid: made?, fallback: Some(fallback) }),
            }
        }
        Err(Error::NothingWhole { number, why })
    }
}

/// The result of comparing the files with the checkpoint that they should match.
#[derive(Debug, Default)]
pub(super) struct FilesComparison {
    /// `None`: there is nothing to compare with, or other sessions work in the files.
    pub(super) by: Option<ComparisonMethod>,
    /// What was changed from outside.
    pub(super) lost: Vec<String>,
}

impl SessionStartJob {
    /// Compares the files before this start writes to them. A live tree is walked while its sandbox is made; a restored
    /// tree was read byte by byte for this purpose.
    pub(super) async fn compare_files(
        &mut self,
        tree: &StartTree,
        way: &AgentProgram<'_>,
    ) -> Result<FilesComparison> {
        match tree.origin {
            StartTreeOrigin::Live if self.sandbox().is_none() && self.prepared.is_none() => {
                self.compare_live(way).await
            }
            StartTreeOrigin::Live | StartTreeOrigin::Fresh => Ok(FilesComparison::default()),
            StartTreeOrigin::Checkpoint | StartTreeOrigin::Remote => {
                Ok(FilesComparison { by: Some(ComparisonMethod::Content), lost: Vec::new() })
            }
        }
    }

    async fn compare_live(&mut self, way: &AgentProgram<'_>) -> Result<FilesComparison> {
        let checkpoint = standing_on(&self.services, &self.session, &self.state).await?;
        let checkpoint = checkpoint.filter(|_| self.session.options.ephemeral != Some(true));
        let Some((number, Ok(id))) = checkpoint.map(|found| (found.number, TreeId::parse(&found.tree)))
        else {
            self.live.unmark_settled()?;
            return Ok(FilesComparison::default());
        };
        let mut lost: Vec<String> = self.live.stamp().map(|stamp| stamp.outside).unwrap_or_default();
        let (live, repo) = (self.live.clone(), self.services.repo(&self.session.tenant)?);
        let inside = self.services.inside(&self.live);
        let own = self.session.native_id;
        let apart = AgentMemoryPaths {
            transcript: way.driver.transcript(&inside.workspace, own),
            all_but: self.session.slug.is_some().then_some(own),
        };
        let comparing = blocking(move || live.compare(&repo, &id, &apart));
        let (compared, made) = tokio::join!(comparing, self.launch_ahead(way));
        self.prepared = Some(made?);
        if !matches!(compared, Ok(LiveTreeComparison { linked: true, .. })) {
            // From here on this start writes to it.
            self.live.unmark_settled()?;
        }
        let by = match compared {
            Ok(LiveTreeComparison { linked: true, .. }) => return Err(Error::Distrusted),
            Ok(LiveTreeComparison { by, outside, linked: false }) => {
                lost.extend((!outside.is_empty()).then(|| outside.to_string()));
                Some(by)
            }
            Err(error) => {
                let told = format!("whether the files are those of checkpoint {number}: {error}");
                return Ok(FilesComparison { by: None, lost: vec![told] });
            }
        };
        let told = |paths| format!("files changed outside of the session while it was at rest: {paths}");
        Ok(FilesComparison { by, lost: lost.into_iter().map(told).collect() })
    }
}

/// What the tree is made from: the newest checkpoint, else the agent's own files.
pub(crate) async fn recipe(
    services: &Services,
    session: &SessionRow,
    state: &LogState,
    lease: &Lease,
    version: Option<&AgentVersion>,
) -> Result<(TreeRecipe, StartTreeOrigin)> {
    let checkpoint = standing_on(services, session, state).await?;
    let (tree, origin) = match (checkpoint, version) {
        (Some(checkpoint), _) => (checkpoint.tree, StartTreeOrigin::Checkpoint),
        (None, Some(version)) => (version.tree.clone(), StartTreeOrigin::Fresh),
        (None, None) => return Err(Error::NoWorkspace),
    };
    let recipe = recipe_of(services, session, state, lease, &tree)?;
    Ok((TreeRecipe { fresh: origin == StartTreeOrigin::Fresh, ..recipe }, origin))
}

/// The checkpoint whose files should be there. In a shared workspace that is the last one of any session.
pub(crate) async fn standing_on(
    services: &Services,
    session: &SessionRow,
    state: &LogState,
) -> Result<Option<Checkpoint>> {
    if session.slug.is_some() {
        let all = services.store.checkpoints(session.workspace, None, u32::MAX).await?;
        return Ok(all.into_iter().find(|checkpoint| checkpoint.removed_at.is_none() && !checkpoint.salvage));
    }
    match state.checkpoint {
        Some(number) => Ok(services.store.checkpoint(session.workspace, number).await?),
        None => Ok(None),
    }
}

/// The recipe for the contents of a checkpoint.
pub(crate) fn recipe_of(
    services: &Services,
    session: &SessionRow,
    state: &LogState,
    lease: &Lease,
    tree: &str,
) -> Result<TreeRecipe> {
    let tree = TreeId::parse(tree).map_err(|_| Error::NoWorkspace)?;
    let (epoch, boot) = (lease.epoch, services.settings.boot.clone());
    let rewound = match session.slug {
        Some(_) => services.workspace(session.workspace).last_rewind(),
        None => state.rewound,
    };
    Ok(TreeRecipe { epoch, boot, tree, fresh: false, rewound, fallback: None })
}

fn saved_as<'f>(fact: &'f Fact, checkpoint: &Checkpoint) -> Option<&'f SavedCheckpoint> {
    match fact {
        Fact::Saved(saved) if saved.number == checkpoint.number && saved.tree == checkpoint.tree => {
            Some(saved)
        }
        _ => None,
    }
}

/// Unsaved paths, in the form for a receipt.
fn missed(saved: &SavedCheckpoint) -> Vec<String> {
    let named = saved
        .unsaved
        .iter()
        .map(|one| format!("{} ({}), which checkpoint {} does not hold", one.path, one.what, saved.number));
    let more = (saved.unsaved_more > 0)
        .then(|| format!("{} more that checkpoint {} does not hold", saved.unsaved_more, saved.number));
    named.chain(more).collect()
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Snapshot(ash_snapshot::Error::Damaged { .. }))
}

/// The ranges of the log that rewinds took out of it.
fn left_behind(facts: &[ash_model::Event]) -> Vec<(EventSeq, EventSeq)> {
    let (mut left, mut counts) = (Vec::new(), EventSeq::MAX);
    for event in facts.iter().rev() {
        if let Fact::Rewound(rewound) = &event.fact
            && event.seq <= counts
        {
            left.push((rewound.seq, event.seq));
            counts = rewound.seq;
        }
    }
    left
}

pub(crate) async fn make_tree(
    services: &Arc<Services>,
    session: &SessionRow,
    live: &LiveDirectory,
    recipe: TreeRecipe,
) -> Result<Option<u32>> {
    let _turn = services.restore_permits.acquire().await.map_err(|_| Error::Stopping)?;
    let (home, live, tenant) = (services.clone(), live.clone(), session.tenant.clone());
    let progress = Arc::new(SnapshotProgress::default());
    let counting = progress.clone();
    let making = blocking(move || live.make(&recipe, (&*home.repo(&tenant)?, &counting), &home.uids));
    services
        .bells
        .with_progress(session.no, &progress, making)
        .await
        .inspect_err(|error| services.note_disk_full(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{ConversationPoint, Event, SessionRewind, Timestamp};

    #[test]
    fn a_later_rewind_restores_ranges_of_an_earlier_one() {
        let rewound = |seq, to_seq| {
            let fact = Fact::Rewound(SessionRewind {
                to: 1,
                from: None,
                seq: to_seq,
                conversation: ConversationPoint::default(),
            });
            Event { seq, turn: None, at: Timestamp(0), fact }
        };
        assert_eq!(left_behind(&[rewound(20, 5), rewound(30, 25)]), [(25, 30), (5, 20)]);
        // A rewind forward, into the range between the two.
        assert_eq!(left_behind(&[rewound(20, 5), rewound(30, 12)]), [(12, 30)]);
    }
}
