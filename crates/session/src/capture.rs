//! Capturing the workspace. A turn is over only when its capture is recorded; `done` is sent after that.

use crate::{
    Error, Result, blocking,
    embedded_log::{self, PackMetadata},
    live_directory::{CaptureNotes, LiveDirectory},
    machine::CaptureOccasion,
    services::Services,
    workspace::{ExclusiveGuard, Workspace},
};
use ash_model::{
    CaptureConsistency, ConcurrentTurn, Epoch, Incarnation, SavedCheckpoint, TurnId, UnsavedPath,
};
use ash_sandbox::SandboxHandle;
use ash_snapshot::{CapturedSnapshot, SkipReason, SkippedEntry, TreeId};
use ash_store::{Checkpoint, SessionRow};
use std::sync::Arc;

/// A fail point of the capture that ends a turn. Other captures happen on their own schedule, so tests cannot aim at them.
pub(crate) async fn reach(occasion: CaptureOccasion, point: &str) {
    match occasion {
        CaptureOccasion::TurnEnd(_) => ash_failpoint::reach_async(point).await,
        CaptureOccasion::Midway(_) | CaptureOccasion::BetweenTurns => {}
    }
}

/// A tree in the repository that is not recorded yet.
pub(crate) struct CheckpointCapture {
    pub(crate) number: u64,
    pub(crate) snapshot: CapturedSnapshot,
    pub(crate) consistency: CaptureConsistency,
    /// Turns of other sessions that were under way.
    pub(crate) concurrent_turns: Vec<ConcurrentTurn>,
}

pub(crate) struct LockedCapture {
    pub(crate) shot: CheckpointCapture,
    /// Held until the capture is recorded, because the next capture builds on it.
    pub(crate) _exclusive: ExclusiveGuard,
}

/// A capture under way.
#[derive(Clone)]
pub(crate) struct CaptureJob {
    pub(crate) services: Arc<Services>,
    pub(crate) live: LiveDirectory,
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) session: SessionRow,
    /// The epoch of the workspace's lease.
    pub(crate) epoch: Epoch,
    pub(crate) remote: Option<SandboxHandle>,
    /// Of the sandbox in which the agent runs, or ran last.
    pub(crate) incarnation: Option<Incarnation>,
    /// Skip the capture if nothing was touched since the last one.
    pub(crate) may_skip: bool,
    /// The last checkpoint of this session, and the number of the next if no other session made any.
    pub(crate) own: (Option<u64>, u64),
}

impl CaptureJob {
    /// `None`: nothing changed since the last one.
    pub(crate) async fn run(self, occasion: CaptureOccasion) -> Result<Option<LockedCapture>> {
        let exclusive = self.workspace.exclusive().await;
        let shot = self.capture_tree(occasion).await?;
        ash_failpoint::reach_async("save.shot").await;
        Ok(shot.map(|shot| LockedCapture { shot, _exclusive: exclusive }))
    }

    fn is_shared(&self) -> bool {
        self.session.slug.is_some()
    }

    /// The last checkpoint of any session, and the number of the next.
    pub(crate) fn numbers(&self) -> (Option<u64>, u64) {
        match self.workspace.newest().filter(|_| self.is_shared()) {
            Some(newest) => (Some(newest), newest + 1),
            None => self.own,
        }
    }

    /// The events since this session's last checkpoint, which travel with the next one. And the tree that the files are
    /// compared with.
    pub(crate) async fn embedded_log(
        &self,
        number: u64,
        turn: Option<TurnId>,
    ) -> Result<(CaptureNotes, TreeId)> {
        let (newest, _) = self.numbers();
        let SessionRow { tenant, agent, version, workspace, .. } = &self.session;
        let repo = self.services.repo(tenant)?;
        let found = self.services.store.version(tenant, agent, *version).await?;
        let agent_tree = found.map(|version| version.tree).unwrap_or_default();
        let checkpoint = match newest {
            Some(number) => self.services.store.checkpoint(*workspace, number).await?,
            None => None,
        };
        let base = checkpoint.map_or(agent_tree.clone(), |checkpoint| checkpoint.tree);
        let base = TreeId::parse(&base).map_err(|_| Error::NoWorkspace)?;
        let before = match self.own.0.filter(|_| self.is_shared()) {
            Some(number) => self.services.store.checkpoint(*workspace, number).await?,
            None => None,
        };
        let before = before.and_then(|checkpoint| TreeId::parse(&checkpoint.tree).ok());
        let trip = PackMetadata {
            session: &self.session,
            checkpoint: number,
            turn,
            before: before.as_ref().unwrap_or(&base),
            agent_tree,
            epoch: self.epoch,
            incarnation: self.incarnation,
        };
        Ok((embedded_log::collect(&self.services, &repo, trip).await?, base))
    }

    /// Requires the exclusive guard.
    pub(crate) async fn capture_tree(&self, occasion: CaptureOccasion) -> Result<Option<CheckpointCapture>> {
        let (_, number) = self.numbers();
        if self.may_skip {
            let live = self.live.clone();
            if blocking(move || Ok(live.is_untouched())).await? {
                return Ok(None);
            }
        }
        let repo = self.services.repo(&self.session.tenant)?;
        let (capture_notes, base) = self.embedded_log(number, occasion.turn()).await?;
        let still = match &self.remote {
            Some(remote) => remote.freeze().await.unwrap_or(CaptureConsistency::Live),
            // Without a sandbox no process writes.
            None => CaptureConsistency::Frozen,
        };
        let beside = self.workspace.concurrent_turns(self.session.no);
        reach(occasion, "save.frozen").await;
        let (live, services) = (self.live.clone(), self.services.clone());
        let taken = blocking(move || {
            let settled = live.settled();
            let taken = live.capture(&repo, &base, &capture_notes, services.tracker.as_ref())?;
            if let Some(before) = settled {
                // Before it is recorded: afterwards the change looks like the session's own.
                live.note_changes(&repo, &before, &taken.tree)?;
            }
            Ok(taken)
        })
        .await;
        let held = match &self.remote {
            Some(remote) => remote.thaw().await.unwrap_or(false),
            None => true,
        };
        let consistency = if held { still } else { CaptureConsistency::Live };
        Ok(Some(CheckpointCapture { number, snapshot: taken?, consistency, concurrent_turns: beside }))
    }
}

/// Whether the checkpoint holds these files. The tree ids may differ: a capture without an index writes the same files
/// into another pack.
pub(crate) fn holds(checkpoint: &Checkpoint, taken: &CapturedSnapshot) -> bool {
    TreeId::parse(&checkpoint.tree).is_ok_and(|tree| tree.same_files(&taken.tree))
}

impl CheckpointCapture {
    /// In the form for the log and for clients.
    pub(crate) fn describe(&self) -> SavedCheckpoint {
        let CheckpointCapture { number, snapshot: taken, consistency, concurrent_turns: beside } = self;
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

/// How many unsaved paths are named; the log is kept for ever.
const MAX_UNSAVED: usize = 20;
/// The longest name.
const MAX_NAME: usize = 300;

/// Files that no restore brings back. Files that were excluded on purpose, or disappeared by themselves, are not listed.
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
