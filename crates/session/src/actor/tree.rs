//! The files that a sandbox begins with: those that are there, those of a checkpoint, or the agent's own.

use super::wake::{Waking, Way};
use crate::{
    Error, Result, blocking,
    ladder::Origin,
    live::{Comparison, Fallback, Live, Memories, Recipe},
    rooms::Rooms,
    state::State,
};
use ash_model::{ComparedBy, Fact, Saved, Seq};
use ash_snapshot::{Progress, TreeId};
use ash_store::{Checkpoint, Lease, Session, Version};
use std::sync::Arc;

/// The files that a sandbox begins with.
pub(super) struct Tree {
    pub(super) origin: Origin,
    pub(super) uid: Option<u32>,
    pub(super) fallback: Option<Fallback>,
}

impl Waking {
    pub(super) async fn tree(&self, version: &Version) -> Result<Tree> {
        if let Some(uid) = self.tree {
            let uid = self.of_its_own(uid).await?;
            // Somebody died after the older tree was there, and before that was said.
            let fallback = self.live.stamp().and_then(|stamp| stamp.fallback);
            let fallback = fallback.filter(|fallback| Some(fallback.instead_of) == self.state.checkpoint);
            let origin = if fallback.is_some() { Origin::Checkpoint } else { Origin::Live };
            return Ok(Tree { origin, uid, fallback });
        }
        let (recipe, origin) =
            recipe(&self.rooms, &self.session, &self.state, &self.lease, Some(version)).await?;
        let origin = self.origin(origin, &recipe)?;
        let number = match self.session.slug {
            Some(_) => self.common.newest(),
            None => self.state.checkpoint,
        };
        match (make_tree(&self.rooms, &self.session, &self.live, recipe).await, number) {
            (Err(error), Some(number)) if is_damage(&error) => self.older(number, error.to_string()).await,
            (made, _) => Ok(Tree { origin, uid: made?, fallback: None }),
        }
    }

    /// A tree that an ordinary user's server made has no uid of its own. Root runs nothing without one.
    async fn of_its_own(&self, uid: Option<u32>) -> Result<Option<u32>> {
        if uid.is_some() || !self.rooms.uids.are_given() {
            return Ok(uid);
        }
        let (rooms, live) = (self.rooms.clone(), self.live.clone());
        let uid = blocking(move || live.hand_over(&rooms.uids)).await?;
        tracing::info!(session = %self.session.id, uid, "the tree of an ordinary user's server has a uid of its own now");
        Ok(uid)
    }

    /// What the checkpoint does not hold that the files came from. What is still there is not missed.
    pub(super) async fn unsaved(&self, tree: &Tree) -> Result<Vec<String>> {
        let restored = matches!(tree.origin, Origin::Checkpoint | Origin::Far);
        let standing = match (&tree.fallback, restored) {
            (_, false) => return Ok(Vec::new()),
            (Some(fallback), true) => {
                self.rooms.store.checkpoint(self.session.workspace, fallback.used).await?
            }
            (None, true) => standing_on(&self.rooms, &self.session, &self.state).await?,
        };
        let Some(checkpoint) = standing.filter(|checkpoint| checkpoint.skipped != Some(0)) else {
            return Ok(Vec::new());
        };
        // In a shared workspace another session may have made it.
        let own = self.session.no;
        let others = self.rooms.store.sessions_of(self.session.workspace).await?;
        let others = others.into_iter().map(|(no, _)| no).filter(|no| *no != own);
        for no in std::iter::once(own).chain(others) {
            let facts = self.rooms.store.facts(no).await?;
            if let Some(saved) = facts.iter().rev().find_map(|event| saved_as(&event.fact, &checkpoint)) {
                return Ok(missed(saved));
            }
        }
        Ok(Vec::new())
    }

    fn origin(&self, origin: Origin, recipe: &Recipe) -> Result<Origin> {
        let here = self.rooms.repo(&self.session.tenant)?.pack_file(recipe.tree.pack_name()).is_some();
        Ok(if origin == Origin::Checkpoint && !here { Origin::Far } else { origin })
    }

    /// The newest checkpoint before a damaged one that is whole. What the session went back from comes last.
    async fn older(&self, number: u64, why: String) -> Result<Tree> {
        let store = &self.rooms.store;
        let left = left_behind(&store.facts(self.session.no).await?);
        let mut found = store.checkpoints(self.session.workspace, Some(number), u32::MAX).await?;
        found.retain(|checkpoint| !checkpoint.salvage && checkpoint.removed.is_none());
        found.sort_by_key(|checkpoint| {
            left.iter().any(|(from, to)| *from < checkpoint.seq && checkpoint.seq < *to)
        });
        for checkpoint in found {
            let fallback = Fallback { instead_of: number, used: checkpoint.number, why: why.clone() };
            let recipe = recipe_of(&self.rooms, &self.session, &self.state, &self.lease, &checkpoint.tree)?;
            let recipe = Recipe { fallback: Some(fallback.clone()), ..recipe };
            let origin = self.origin(Origin::Checkpoint, &recipe)?;
            match make_tree(&self.rooms, &self.session, &self.live, recipe).await {
                Err(error) if is_damage(&error) => {}
                made => return Ok(Tree { origin, uid: made?, fallback: Some(fallback) }),
            }
        }
        Err(Error::NothingWhole { number, why })
    }
}

/// What came of comparing the files that came back with the checkpoint that they should be.
#[derive(Debug, Default)]
pub(super) struct ComparedFiles {
    /// `None`: there is nothing to compare with, or others are at work in them.
    pub(super) by: Option<ComparedBy>,
    /// What was changed from outside.
    pub(super) lost: Vec<String>,
}

impl Waking {
    /// Before anything is written to them by this start. A live tree is walked through while its sandbox is made; one that
    /// was restored was read byte by byte for it.
    pub(super) async fn compare_files(&mut self, tree: &Tree, way: &Way<'_>) -> Result<ComparedFiles> {
        match tree.origin {
            Origin::Live if self.walls().is_none() && self.prepared.is_none() => self.compare_live(way).await,
            Origin::Live | Origin::Fresh => Ok(ComparedFiles::default()),
            Origin::Checkpoint | Origin::Far => {
                Ok(ComparedFiles { by: Some(ComparedBy::Content), lost: Vec::new() })
            }
        }
    }

    async fn compare_live(&mut self, way: &Way<'_>) -> Result<ComparedFiles> {
        let checkpoint = standing_on(&self.rooms, &self.session, &self.state).await?;
        let checkpoint = checkpoint.filter(|_| self.session.options.ephemeral != Some(true));
        let Some((number, Ok(id))) = checkpoint.map(|found| (found.number, TreeId::parse(&found.tree)))
        else {
            self.live.unsettle()?;
            return Ok(ComparedFiles::default());
        };
        let mut lost: Vec<String> = self.live.stamp().map(|stamp| stamp.outside).unwrap_or_default();
        let (live, repo) = (self.live.clone(), self.rooms.repo(&self.session.tenant)?);
        let inside = self.rooms.inside(&self.live);
        let own = self.session.native_id;
        let apart = Memories {
            transcript: way.driver.transcript(&inside.workspace, own),
            all_but: self.session.slug.is_some().then_some(own),
        };
        let comparing = blocking(move || live.compare(&repo, &id, &apart));
        let (compared, made) = tokio::join!(comparing, self.launch_ahead(way));
        self.prepared = Some(made?);
        if !matches!(compared, Ok(Comparison { linked: true, .. })) {
            // From here on this start writes to it.
            self.live.unsettle()?;
        }
        let by = match compared {
            Ok(Comparison { linked: true, .. }) => return Err(Error::Distrusted),
            Ok(Comparison { by, outside, linked: false }) => {
                lost.extend((!outside.is_empty()).then(|| outside.to_string()));
                Some(by)
            }
            Err(error) => {
                let told = format!("whether the files are those of checkpoint {number}: {error}");
                return Ok(ComparedFiles { by: None, lost: vec![told] });
            }
        };
        let told = |paths| format!("files changed outside of the session while it was at rest: {paths}");
        Ok(ComparedFiles { by, lost: lost.into_iter().map(told).collect() })
    }
}

/// What the tree is made from: the newest checkpoint, else the agent's own files.
pub(super) async fn recipe(
    rooms: &Rooms,
    session: &Session,
    state: &State,
    lease: &Lease,
    version: Option<&Version>,
) -> Result<(Recipe, Origin)> {
    let checkpoint = standing_on(rooms, session, state).await?;
    let (tree, origin) = match (checkpoint, version) {
        (Some(checkpoint), _) => (checkpoint.tree, Origin::Checkpoint),
        (None, Some(version)) => (version.tree.clone(), Origin::Fresh),
        (None, None) => return Err(Error::NoWorkspace),
    };
    let recipe = recipe_of(rooms, session, state, lease, &tree)?;
    Ok((Recipe { fresh: origin == Origin::Fresh, ..recipe }, origin))
}

/// The checkpoint whose files are to be there. In a shared workspace that is the last one, whoever made it.
pub(super) async fn standing_on(
    rooms: &Rooms,
    session: &Session,
    state: &State,
) -> Result<Option<Checkpoint>> {
    if session.slug.is_some() {
        let all = rooms.store.checkpoints(session.workspace, None, u32::MAX).await?;
        return Ok(all.into_iter().find(|checkpoint| checkpoint.removed.is_none() && !checkpoint.salvage));
    }
    match state.checkpoint {
        Some(number) => Ok(rooms.store.checkpoint(session.workspace, number).await?),
        None => Ok(None),
    }
}

/// To make what a checkpoint holds.
pub(super) fn recipe_of(
    rooms: &Rooms,
    session: &Session,
    state: &State,
    lease: &Lease,
    tree: &str,
) -> Result<Recipe> {
    let tree = TreeId::parse(tree).map_err(|_| Error::NoWorkspace)?;
    let (epoch, boot) = (lease.epoch, rooms.settings.boot.clone());
    let rewound = match session.slug {
        Some(_) => rooms.common(session.workspace).back(),
        None => state.rewound,
    };
    Ok(Recipe { epoch, boot, tree, fresh: false, rewound, fallback: None })
}

fn saved_as<'f>(fact: &'f Fact, checkpoint: &Checkpoint) -> Option<&'f Saved> {
    match fact {
        Fact::Saved(saved) if saved.number == checkpoint.number && saved.tree == checkpoint.tree => {
            Some(saved)
        }
        _ => None,
    }
}

/// As a receipt says it.
fn missed(saved: &Saved) -> Vec<String> {
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

/// The stretches of the log that rewinds took out of it.
fn left_behind(facts: &[ash_model::Event]) -> Vec<(Seq, Seq)> {
    let (mut left, mut counts) = (Vec::new(), Seq::MAX);
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

pub(super) async fn make_tree(
    rooms: &Arc<Rooms>,
    session: &Session,
    live: &Live,
    recipe: Recipe,
) -> Result<Option<u32>> {
    let _turn = rooms.restores.acquire().await.map_err(|_| Error::Stopping)?;
    let (home, live, tenant) = (rooms.clone(), live.clone(), session.tenant.clone());
    let progress = Arc::new(Progress::default());
    let counting = progress.clone();
    let making = blocking(move || live.make(&recipe, (&*home.repo(&tenant)?, &counting), &home.uids));
    rooms.bells.told(session.no, &progress, making).await.inspect_err(|error| rooms.notice(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{Event, Rewound, Then, Timestamp};

    #[test]
    fn what_a_rewind_took_back_is_not_left_behind() {
        let rewound = |seq, to_seq| {
            let fact = Fact::Rewound(Rewound { to: 1, from: None, seq: to_seq, then: Then::default() });
            Event { seq, turn: None, at: Timestamp(0), fact }
        };
        assert_eq!(left_behind(&[rewound(20, 5), rewound(30, 25)]), [(25, 30), (5, 20)]);
        // Forward again to what lies between the two.
        assert_eq!(left_behind(&[rewound(20, 5), rewound(30, 12)]), [(12, 30)]);
    }
}
