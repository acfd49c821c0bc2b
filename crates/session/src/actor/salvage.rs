//! A tree that was found and is not trusted is kept before anything takes its place.

use super::{
    EffectOutcome, SessionActor,
    capture::CheckpointCapture,
    start::SessionStartJob,
    tree::{StartTree, standing_on},
};
use crate::{
    Result, blocking,
    ladder::{SalvageOnlyFiles, StartTreeOrigin},
    path_list::PathList,
};
use ash_model::{CaptureConsistency, Fact, SavedCheckpoint, UnsavedPath};
use ash_snapshot::{CapturedSnapshot, Repo, SkipReason, SkippedEntry, TreeId};

impl SessionActor {
    /// Keeps what is on disk and cannot be trusted, before anything takes its place.
    pub(super) fn start_salvage(&mut self) {
        let (rooms, live, tenant) =
            (self.ctx.services.clone(), self.ctx.live.clone(), self.ctx.session.tenant.clone());
        let common = self.ctx.workspace.clone();
        self.begin_effect(async move {
            let _floor = common.exclusive().await;
            // Somebody else was faster, who may have made another tree, or deleted the workspace.
            if common.sandbox().is_some() || !live.has_leftovers(common.tree().is_some()) {
                return EffectOutcome::Salvaged(Ok(None));
            }
            let salvaged = blocking(move || {
                ash_sandbox::reap(&live.run())?;
                live.salvage(&*rooms.repo(&tenant)?, &rooms.uids)
            });
            EffectOutcome::Salvaged(salvaged.await)
        });
    }

    pub(super) async fn on_salvaged(&mut self, salvaged: Result<Option<CapturedSnapshot>>) -> Result<()> {
        match salvaged {
            Ok(Some(taken)) if self.is_known(&taken).await? => {}
            Ok(Some(taken)) => {
                let number = self.next_number();
                let shot = CheckpointCapture {
                    number,
                    snapshot: taken,
                    consistency: CaptureConsistency::Live,
                    concurrent_turns: Vec::new(),
                };
                let saved = SavedCheckpoint { salvage: true, ..self.describe(&shot) };
                let row = self.checkpoint_row(&saved, &shot.snapshot, 1);
                self.commit(vec![Fact::Saved(saved)], Vec::new(), None, Some(row)).await?;
                self.ctx.workspace.set_newest(number);
            }
            Ok(None) => {}
            Err(error) => {
                self.give_up_end(&error);
                self.give_up_rewinding(&error).await?;
                self.answer_failed_writers(&error);
                return if self.machine.log.status == ash_model::SessionStatus::Starting {
                    self.on_start_failed(error).await
                } else {
                    Ok(())
                };
            }
        }
        let live = self.ctx.live.clone();
        blocking(move || live.forget_old()).await
    }

    pub(super) fn describe(
        &self,
        CheckpointCapture { number, snapshot: taken, consistency, concurrent_turns: beside }: &CheckpointCapture,
    ) -> SavedCheckpoint {
        let (unsaved, unsaved_more) = unsaved(taken);
        SavedCheckpoint {
            unsaved,
            unsaved_more,
            number: *number,
            turn: None,
            tree: taken.tree.as_str().to_owned(),
            consistency: *consistency,
            files: taken.files,
            bytes: taken.bytes,
            skipped: taken
                .skipped
                .iter()
                .take(100)
                .map(|skipped| String::from_utf8_lossy(&skipped.path).into_owned())
                .collect(),
            salvage: false,
            mid_turn: false,
            concurrent_turns: beside.clone(),
            rewound_to: None,
        }
    }
}

impl SessionStartJob {
    /// What the tree that was salvaged holds and the one in its place does not. A look that fails costs nobody the start.
    pub(super) async fn only_in_salvage(&self, tree: &StartTree) -> Result<Option<SalvageOnlyFiles>> {
        let Some(number) = self.state.salvaged else { return Ok(None) };
        if !matches!(tree.origin, StartTreeOrigin::Checkpoint | StartTreeOrigin::Remote) {
            return Ok(None);
        }
        let store = &self.rooms.store;
        let salvage = store.checkpoint(self.session.workspace, number).await?;
        let now = match &tree.fallback {
            Some(fallback) => store.checkpoint(self.session.workspace, fallback.used).await?,
            None => standing_on(&self.rooms, &self.session, &self.state).await?,
        };
        let (Some(salvage), Some(now)) = (salvage, now) else { return Ok(None) };
        let (Ok(salvage), Ok(now)) = (TreeId::parse(&salvage.tree), TreeId::parse(&now.tree)) else {
            return Ok(None);
        };
        let repo = self.rooms.repo(&self.session.tenant)?;
        let found = blocking(move || only_in(&repo, &salvage, &now)).await;
        Ok(Some(match found {
            Ok(files) => SalvageOnlyFiles { files, unreadable: None },
            Err(error) => {
                SalvageOnlyFiles { unreadable: Some(error.to_string()), ..SalvageOnlyFiles::default() }
            }
        }))
    }
}

/// Files and links of `salvage` that are not so in `now`.
fn only_in(repo: &Repo, salvage: &TreeId, now: &TreeId) -> Result<PathList> {
    let mut files = PathList::default();
    for root in ["workspace", "home"] {
        let (before, found) = (repo.entries(now, root)?, repo.entries(salvage, root)?);
        let changes = ash_snapshot::changes(before, found, &|_| Ok(None))?;
        changes.iter().filter(|change| change.now.is_some()).for_each(|change| files.add(root, &change.path));
    }
    Ok(files)
}

/// Of these so many are named, in a log that is kept for ever.
const MAX_UNSAVED: usize = 20;
/// And no name is longer.
const MAX_NAME: usize = 300;

/// What is there and no restore brings back. What was left out on purpose, or was gone by itself, is not missed.
fn unsaved(taken: &CapturedSnapshot) -> (Vec<UnsavedPath>, u64) {
    let missed = |skipped: &&SkippedEntry| match skipped.why {
        SkipReason::Socket
        | SkipReason::Fifo
        | SkipReason::Device
        | SkipReason::Mount
        | SkipReason::Unreadable(_) => true,
        SkipReason::Excluded | SkipReason::Gone => false,
    };
    let all: Vec<&SkippedEntry> = taken.skipped.iter().filter(missed).collect();
    let named = all.iter().take(MAX_UNSAVED).map(|skipped| UnsavedPath {
        path: String::from_utf8_lossy(&skipped.path).chars().take(MAX_NAME).collect(),
        what: skipped.why.to_string(),
    });
    (named.collect(), all.len().saturating_sub(MAX_UNSAVED) as u64)
}
