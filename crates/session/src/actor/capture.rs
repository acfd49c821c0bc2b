//! Capturing the workspace. A turn is over only when this is recorded; `done` is sent after it.

use super::{CAPTURE_RETRY_DELAY, EffectOutcome, RemoteWait, SessionActor};
use crate::{
    Error, Result, blocking,
    embedded_log::{self, EmbeddedLog, PackMetadata},
    live_directory::LiveDirectory,
    services::Services,
    state::TurnPhase,
    workspace::{ExclusiveGuard, Workspace},
};
use ash_model::{
    CaptureConsistency, ConcurrentTurn, Durability, Epoch, Fact, Incarnation, SavedCheckpoint, TurnId,
};
use ash_sandbox::SandboxHandle;
use ash_snapshot::{CapturedSnapshot, DiskUsage, TreeId};
use ash_store::{Checkpoint, SessionRow};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// What was said since the last capture is packed with the next one, and held in memory for it: who says this much is captured
/// on its way, however long its turn has been.
const MAX_UNPACKED_LOG_BYTES: u64 = 32 << 20;
/// What an event takes beside its words.
const EVENT_OVERHEAD_BYTES: u64 = 256;

/// What a capture is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaptureOccasion {
    /// The turn is over when it is recorded.
    TurnEnd(TurnId),
    /// The turn takes long: if its sandbox dies, not all of it is lost.
    Midway(TurnId),
    /// Somebody else changed files, or wants them safe.
    BetweenTurns,
}

impl CaptureOccasion {
    fn turn(self) -> Option<TurnId> {
        match self {
            CaptureOccasion::TurnEnd(turn) | CaptureOccasion::Midway(turn) => Some(turn),
            CaptureOccasion::BetweenTurns => None,
        }
    }

    /// A fail point of the capture that ends a turn: the others come by themselves, at any time.
    async fn reach(self, point: &str) {
        match self {
            CaptureOccasion::TurnEnd(_) => ash_failpoint::reach_async(point).await,
            CaptureOccasion::Midway(_) | CaptureOccasion::BetweenTurns => {}
        }
    }
}

/// When a capture that failed is tried again. What is to be saved for another turn does not wait for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CaptureBackoff {
    pub(super) until: Instant,
    turn: Option<TurnId>,
    /// Of all that failed one after the other.
    failures: u32,
}

/// A disk that stays full for hours is not asked every ten seconds.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

impl CaptureBackoff {
    fn after(occasion: CaptureOccasion, before: Option<CaptureBackoff>) -> CaptureBackoff {
        let failures = before.map_or(1, |before| before.failures.saturating_add(1));
        let backoff = CaptureBackoff { until: Instant::now(), turn: occasion.turn(), failures };
        CaptureBackoff { until: backoff.until + backoff.delay(), ..backoff }
    }

    /// Twice as long with every failure.
    fn delay(self) -> Duration {
        MAX_RETRY_DELAY.min(CAPTURE_RETRY_DELAY.saturating_mul(1 << (self.failures - 1).min(16)))
    }

    /// Until when the files of this turn are not captured.
    pub(super) fn of(self, turn: TurnId) -> Option<Instant> {
        (self.turn == Some(turn)).then_some(self.until)
    }
}

/// A tree in the repository, which nobody knows of yet.
pub(super) struct CheckpointCapture {
    pub(super) number: u64,
    pub(super) snapshot: CapturedSnapshot,
    pub(super) consistency: CaptureConsistency,
    /// Turns of others that were under way.
    pub(super) concurrent_turns: Vec<ConcurrentTurn>,
}

pub(super) struct LockedCapture {
    shot: CheckpointCapture,
    /// Until it is recorded: the next one is made on top of it.
    _floor: ExclusiveGuard,
}

/// A capture under way.
#[derive(Clone)]
pub(super) struct CaptureJob {
    pub(super) rooms: Arc<Services>,
    pub(super) live: LiveDirectory,
    pub(super) common: Arc<Workspace>,
    pub(super) session: SessionRow,
    /// With which the workspace is held.
    pub(super) epoch: Epoch,
    pub(super) remote: Option<SandboxHandle>,
    /// Of the sandbox in which the agent runs, or ran last.
    pub(super) incarnation: Option<Incarnation>,
    /// If nothing was touched since the last capture, that one will do.
    pub(super) may_skip: bool,
    /// The last one of this session, and the number that the next would have if nobody else made any.
    pub(super) own: (Option<u64>, u64),
}

impl CaptureJob {
    /// `None`: nothing changed since the last one.
    async fn run(self, occasion: CaptureOccasion) -> Result<Option<LockedCapture>> {
        let floor = self.common.exclusive().await;
        let shot = self.capture_tree(occasion).await?;
        ash_failpoint::reach_async("save.shot").await;
        Ok(shot.map(|shot| LockedCapture { shot, _floor: floor }))
    }

    fn is_shared(&self) -> bool {
        self.session.slug.is_some()
    }

    /// The last checkpoint, whoever made it, and the number of the next.
    pub(super) fn numbers(&self) -> (Option<u64>, u64) {
        match self.common.newest().filter(|_| self.is_shared()) {
            Some(newest) => (Some(newest), newest + 1),
            None => self.own,
        }
    }

    /// What travels with a checkpoint: what happened since the last one that this session made. With the tree that the
    /// files are compared with.
    pub(super) async fn embedded_log(
        &self,
        number: u64,
        turn: Option<TurnId>,
    ) -> Result<(EmbeddedLog, TreeId)> {
        let (newest, _) = self.numbers();
        let SessionRow { tenant, agent, version, workspace, .. } = &self.session;
        let repo = self.rooms.repo(tenant)?;
        let found = self.rooms.store.version(tenant, agent, *version).await?;
        let agent_tree = found.map(|version| version.tree).unwrap_or_default();
        let checkpoint = match newest {
            Some(number) => self.rooms.store.checkpoint(*workspace, number).await?,
            None => None,
        };
        let base = checkpoint.map_or(agent_tree.clone(), |checkpoint| checkpoint.tree);
        let base = TreeId::parse(&base).map_err(|_| Error::NoWorkspace)?;
        let before = match self.own.0.filter(|_| self.is_shared()) {
            Some(number) => self.rooms.store.checkpoint(*workspace, number).await?,
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
        Ok((embedded_log::collect(&self.rooms, &repo, trip).await?, base))
    }

    /// Only with the floor.
    pub(super) async fn capture_tree(&self, occasion: CaptureOccasion) -> Result<Option<CheckpointCapture>> {
        let (_, number) = self.numbers();
        if self.may_skip {
            let live = self.live.clone();
            if blocking(move || Ok(live.is_untouched())).await? {
                return Ok(None);
            }
        }
        let repo = self.rooms.repo(&self.session.tenant)?;
        let (luggage, base) = self.embedded_log(number, occasion.turn()).await?;
        let still = match &self.remote {
            Some(remote) => remote.freeze().await.unwrap_or(CaptureConsistency::Live),
            // No process, nobody writes.
            None => CaptureConsistency::Frozen,
        };
        let beside = self.common.concurrent_turns(self.session.no);
        occasion.reach("save.frozen").await;
        let (live, rooms) = (self.live.clone(), self.rooms.clone());
        let taken = blocking(move || {
            let settled = live.settled();
            let taken = live.capture(&repo, &base, &luggage, rooms.tracker.as_ref())?;
            if let Some(before) = settled {
                // Before it is recorded: from then on it looks like the session's own.
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

impl SessionActor {
    pub(super) fn is_capture_due(&self) -> bool {
        let now = Instant::now();
        let settled = self.dirty.is_some_and(|since| since + super::CHANGE_SETTLE_TIME <= now);
        settled
            && self.tree().is_some()
            && self.state.is_at_rest()
            && self.backoff.is_none_or(|backoff| backoff.until <= now)
    }

    /// Saving this turn failed a moment ago.
    pub(super) fn backs_off(&self, turn: TurnId) -> bool {
        self.backoff.and_then(|backoff| backoff.of(turn)).is_some_and(|until| until > Instant::now())
    }

    /// A turn that takes long is captured on its way.
    pub(super) fn is_midway_due(&self) -> Option<TurnId> {
        let turn = self.state.current().filter(|turn| matches!(turn.phase, TurnPhase::Running { .. }))?;
        self.midway().filter(|at| *at <= Instant::now()).map(|_| turn.id)
    }

    /// When the turn that runs is captured next.
    pub(super) fn midway(&self) -> Option<Instant> {
        let every = Some(self.services.settings.checkpoint_every).filter(|every| !every.is_zero());
        let at = match self.unpacked_log_bytes > MAX_UNPACKED_LOG_BYTES {
            true => Some(self.captured),
            false => every.and_then(|every| self.captured.checked_add(every)),
        };
        let running =
            self.state.current().is_some_and(|turn| matches!(turn.phase, TurnPhase::Running { .. }));
        let can =
            !self.is_ephemeral() && self.conn.is_some() && self.tree().is_some() && self.effect.is_none();
        at.filter(|_| running && can && self.closing.is_none())
    }

    /// The log has these bytes more, in so many events.
    pub(super) fn add_log_bytes(&mut self, bytes: u64, events: usize) {
        self.unpacked_log_bytes = self
            .unpacked_log_bytes
            .saturating_add(bytes)
            .saturating_add(EVENT_OVERHEAD_BYTES * events as u64);
    }

    pub(super) fn start_save(&mut self, occasion: CaptureOccasion) {
        let newest = self.state.checkpoint;
        let began = Instant::now();
        (self.captured, self.unpacked_log_bytes) = (began, 0);
        let newest_is_settled = newest.is_some() && self.state.last_full_checkpoint == newest;
        let may_skip = occasion == CaptureOccasion::BetweenTurns && newest_is_settled && self.dirty.is_none();
        let saving = CaptureJob { may_skip, ..self.saving() };
        match occasion {
            // What changes from here on may or may not be in it.
            CaptureOccasion::TurnEnd(_) | CaptureOccasion::BetweenTurns => {
                self.dirty = self.execs.is_busy().then(Instant::now);
                self.wants_capture = false;
            }
            CaptureOccasion::Midway(_) => self.touch(),
        }
        self.effect = Some(tokio::spawn(async move {
            EffectOutcome::Saved { occasion, result: saving.run(occasion).await, began }
        }));
    }

    pub(super) fn saving(&self) -> CaptureJob {
        CaptureJob {
            rooms: self.services.clone(),
            live: self.live.clone(),
            common: self.workspace.clone(),
            session: self.session.clone(),
            epoch: self.lease.epoch,
            remote: self.conn.as_ref().map(|hands| hands.remote.clone()),
            incarnation: self.state.awake.as_ref().map(|awake| awake.incarnation),
            may_skip: false,
            own: (self.state.checkpoint, self.state.last_checkpoint + 1),
        }
    }

    pub(super) async fn saved(
        &mut self,
        occasion: CaptureOccasion,
        result: Result<Option<LockedCapture>>,
        began: Instant,
    ) -> Result<()> {
        match result {
            Ok(Some(captured)) => self.record(occasion, captured, began).await,
            Ok(None) => {
                self.backoff = None;
                Ok(())
            }
            Err(error) => self.on_capture_failed(occasion, error).await,
        }
    }

    async fn record(
        &mut self,
        occasion: CaptureOccasion,
        captured: LockedCapture,
        began: Instant,
    ) -> Result<()> {
        let LockedCapture { shot, _floor: floor } = captured;
        let failed_before = self.backoff.take();
        if self.dirty.is_none() {
            self.live.unmark_dirty();
        }
        if occasion == CaptureOccasion::BetweenTurns && self.is_unchanged(&shot.snapshot).await? {
            self.mark_settled(&shot.snapshot);
            return Ok(());
        }
        let (bytes, files) = (shot.snapshot.bytes, shot.snapshot.files);
        self.limits.captured(DiskUsage { bytes, files }, &self.live);
        occasion.reach("save.captured").await;
        let midway = self.midway_through(occasion);
        let saved = SavedCheckpoint {
            turn: midway.or(occasion.turn()),
            mid_turn: midway.is_some(),
            ..self.describe(&shot)
        };
        self.services.watch.saved(&saved, began.elapsed());
        let number = saved.number;
        let mut facts = vec![Fact::Saved(saved.clone())];
        let waits = self.waits_for_remote(occasion);
        let end = self.end_of(occasion, Some(number)).filter(|_| waits.is_none());
        // With the ends of what was heard in it: the checkpoint covers them all.
        facts.extend(end.into_iter().flat_map(|end| self.state.with_joined(end)));
        let row = self.checkpoint_row(&saved, &shot.snapshot, facts.len() as u64);
        let recorded = self.commit(facts, Vec::new(), None, Some(row)).await;
        occasion.reach("save.recorded").await;
        if recorded.is_ok() {
            self.workspace.set_newest(number);
            self.mark_settled(&shot.snapshot);
        }
        drop(floor);
        match recorded {
            // The pack is there, its row is not: the capture is repeated when there is space again.
            Err(Error::Store(ash_store::Error::Full)) => {
                if !matches!(occasion, CaptureOccasion::Midway(_)) {
                    self.backoff = Some(CaptureBackoff::after(occasion, failed_before));
                }
                self.touch();
                self.give_up_rewinding(&Error::Store(ash_store::Error::Full)).await
            }
            Ok(()) => {
                if let Some(turn) = waits {
                    self.wait_for_remote(turn, number);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// The turn, if it is not done before the object store has it.
    fn waits_for_remote(&self, occasion: CaptureOccasion) -> Option<TurnId> {
        let CaptureOccasion::TurnEnd(turn) = occasion else { return None };
        let current = self.state.current().filter(|current| current.id == turn)?;
        let wanted = current.options.durability.or(self.session.options.durability);
        let wanted = wanted.unwrap_or(self.services.settings.durability);
        (wanted == Durability::Remote).then_some(turn)
    }

    fn wait_for_remote(&mut self, turn: TurnId, checkpoint: u64) {
        let (rooms, workspace) = (self.services.clone(), self.lease.workspace);
        let longest = rooms.settings.remote_timeout;
        let task = tokio::spawn(async move { rooms.wait_until_remote(workspace, checkpoint, longest).await });
        self.remote_wait = Some(RemoteWait { turn, checkpoint, task });
    }

    /// The object store has it, or it is not waited for any more: the turn is over either way.
    pub(super) async fn on_remote_wait_done(&mut self, sent: Result<()>) -> Result<()> {
        let Some(waiting) = self.remote_wait.take() else { return Ok(()) };
        let end = self.end_of(CaptureOccasion::TurnEnd(waiting.turn), Some(waiting.checkpoint));
        let end = end.map(|end| match (end, sent) {
            (Fact::Finished { turn, outcome: how, checkpoint, problem: None }, Err(error)) => {
                tracing::warn!(session = %self.session.id, %error, "a turn ended before the object store had it");
                Fact::Finished { turn, outcome: how, checkpoint, problem: Some(error.problem()) }
            }
            (end, _) => end,
        });
        let noted = self.commit_facts(end.into_iter().collect()).await;
        if noted.is_err() {
            // For want of space: it is far already, so the next try does not wait.
            self.wait_for_remote(waiting.turn, waiting.checkpoint);
        }
        noted
    }

    /// The turn that was under way: also one that is about to be cut because the session closes.
    fn midway_through(&self, occasion: CaptureOccasion) -> Option<TurnId> {
        match occasion {
            CaptureOccasion::TurnEnd(_) => None,
            CaptureOccasion::Midway(turn) => Some(turn),
            CaptureOccasion::BetweenTurns => self.state.current().and_then(|turn| match turn.phase {
                TurnPhase::Running { .. } | TurnPhase::Cut => Some(turn.id),
                TurnPhase::Queued | TurnPhase::Saving { .. } | TurnPhase::Joined { .. } => None,
            }),
        }
    }

    /// Nothing changed since the newest checkpoint: there is nothing to record.
    pub(super) async fn is_unchanged(&self, taken: &CapturedSnapshot) -> Result<bool> {
        let last = match self.is_shared() {
            true => self.workspace.newest(),
            false => {
                self.state.last_full_checkpoint.filter(|settled| Some(*settled) == self.state.checkpoint)
            }
        };
        match last {
            Some(number) => self.is_checkpoint(number, taken).await,
            None => Ok(false),
        }
    }

    /// The number of the next checkpoint, if nothing is being captured.
    pub(super) fn next_number(&self) -> u64 {
        let last = self.workspace.newest().filter(|_| self.is_shared());
        last.unwrap_or(0).max(self.state.last_checkpoint) + 1
    }

    /// A tree that was found holds nothing that a checkpoint does not: a rewind was cut off in the middle.
    pub(super) async fn is_known(&self, taken: &CapturedSnapshot) -> Result<bool> {
        let all = self.services.store.checkpoints(self.lease.workspace, None, u32::MAX).await?;
        Ok(all.iter().any(|checkpoint| checkpoint.removed_at.is_none() && holds(checkpoint, taken)))
    }

    async fn is_checkpoint(&self, number: u64, taken: &CapturedSnapshot) -> Result<bool> {
        let checkpoint = self.services.store.checkpoint(self.lease.workspace, number).await?;
        Ok(checkpoint.is_some_and(|checkpoint| holds(&checkpoint, taken)))
    }

    /// The answer stands; that its files are not safe is said, and tried again.
    pub(super) async fn on_capture_failed(&mut self, occasion: CaptureOccasion, error: Error) -> Result<()> {
        tracing::error!(session = %self.session.id, %error, "the workspace could not be saved");
        self.services.note_disk_full(&error);
        self.services.watch.save_failed();
        if let CaptureOccasion::Midway(_) = occasion {
            // Nothing was promised: the end of the turn says whether its files are safe.
            return Ok(());
        }
        // Without a tree there is nothing to try again with.
        if self.tree().is_some() {
            self.backoff = Some(CaptureBackoff::after(occasion, self.backoff));
            self.touch();
        }
        let again =
            self.backoff.map(|backoff| format!("; the next try is in {} s", backoff.delay().as_secs()));
        let words = format!("{error}{}", again.unwrap_or_default());
        let mut facts = vec![Fact::SaveFailed { turn: occasion.turn(), error: words }];
        facts.extend(self.end_of(occasion, None));
        let noted = self.commit_facts(facts).await;
        if self.is_tree_broken() {
            // Whoever waits for the files to be safe is not kept waiting for what is gone.
            self.tolerate(noted)?;
            return self.lose_tree().await;
        }
        let words = error.to_string();
        for reply in self.pausing.drain(..) {
            reply.send(Err(Error::Save(words.clone()))).ok();
        }
        for reply in self.forking.drain(..) {
            reply.send(Err(Error::Save(words.clone()))).ok();
        }
        self.give_up_rewinding(&Error::Save(words)).await?;
        self.tolerate(noted)
    }

    pub(super) fn end_of(&self, occasion: CaptureOccasion, checkpoint: Option<u64>) -> Option<Fact> {
        let CaptureOccasion::TurnEnd(turn) = occasion else { return None };
        let current = self.state.current().filter(|current| current.id == turn)?;
        match &current.phase {
            TurnPhase::Saving { how, problem, .. } => {
                Some(Fact::Finished { turn: current.id, outcome: *how, checkpoint, problem: problem.clone() })
            }
            TurnPhase::Queued | TurnPhase::Running { .. } | TurnPhase::Cut | TurnPhase::Joined { .. } => None,
        }
    }

    /// `facts`: how many are recorded with it; the checkpoint covers them.
    pub(super) fn checkpoint_row(
        &self,
        saved: &SavedCheckpoint,
        taken: &CapturedSnapshot,
        facts: u64,
    ) -> Checkpoint {
        Checkpoint {
            workspace: self.lease.workspace,
            number: saved.number,
            turn: saved.turn,
            seq: self.state.last_seq + facts,
            tree: saved.tree.clone(),
            consistency: saved.consistency,
            salvage: saved.salvage,
            mid_turn: saved.mid_turn,
            files: saved.files,
            bytes: saved.bytes,
            skipped: Some(taken.skipped.len() as u64),
            unsettled: Some(taken.unsettled.len() as u64),
            concurrent_turns: saved.concurrent_turns.clone(),
            rewound_to: saved.rewound_to,
            removed_at: None,
            uploaded_at: None,
            at: self.services.clock(),
        }
    }
}

/// Taken without an index the same files lie in another pack.
fn holds(checkpoint: &Checkpoint, taken: &CapturedSnapshot) -> bool {
    TreeId::parse(&checkpoint.tree).is_ok_and(|tree| tree.same_files(&taken.tree))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_holds_up_its_own_turn_and_no_other() {
        let (failed, next) = (TurnId::fresh(), TurnId::fresh());
        let backoff = CaptureBackoff::after(CaptureOccasion::TurnEnd(failed), None);
        assert!(backoff.of(failed).is_some_and(|until| until > Instant::now()));
        assert_eq!(backoff.of(next), None);
        assert_eq!(CaptureBackoff::after(CaptureOccasion::BetweenTurns, None).of(next), None);
    }

    #[test]
    fn a_capture_that_keeps_failing_is_tried_ever_more_seldom_up_to_a_bound() {
        let mut backoff = None;
        let delays: Vec<u64> = (0..40)
            .map(|_| {
                let next = CaptureBackoff::after(CaptureOccasion::BetweenTurns, backoff);
                backoff = Some(next);
                next.delay().as_secs()
            })
            .collect();
        assert_eq!(delays[..7], [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delays[39], 300);
    }
}
