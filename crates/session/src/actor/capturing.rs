//! Captures of the workspace: starting one, and turning its outcome into facts and answers.

use super::{EffectOutcome, RemoteWaitTask, SessionActor};
use crate::{
    Error, Result,
    capture::{CaptureJob, LockedCapture, holds, reach},
    machine::{CaptureOccasion, CaptureUnderWay, Effect, RemoteWait},
};
use ash_model::{SavedCheckpoint, TurnId};
use ash_snapshot::{CapturedSnapshot, DiskUsage};
use ash_store::Checkpoint;
use std::time::Instant;

impl SessionActor {
    pub(super) fn start_capture(&mut self, occasion: CaptureOccasion) {
        let may_skip = matches!(
            self.machine.runtime.effect,
            Some(Effect::Capture(CaptureUnderWay { may_skip: true, .. }))
        );
        let job = CaptureJob { may_skip, ..self.capture_job() };
        self.begin_effect(async move { EffectOutcome::Captured(job.run(occasion).await) });
    }

    pub(super) fn capture_job(&self) -> CaptureJob {
        CaptureJob {
            services: self.ctx.services.clone(),
            live: self.ctx.live.clone(),
            workspace: self.ctx.workspace.clone(),
            session: self.ctx.session.clone(),
            epoch: self.ctx.lease.epoch,
            remote: self.link.conn.as_ref().map(|conn| conn.remote.clone()),
            incarnation: self.machine.log.awake.as_ref().map(|awake| awake.incarnation),
            may_skip: false,
            own: (self.machine.log.checkpoint, self.machine.log.last_checkpoint + 1),
        }
    }

    pub(super) async fn on_captured(
        &mut self,
        capture: CaptureUnderWay,
        result: Result<Option<LockedCapture>>,
    ) -> Result<()> {
        match result {
            Ok(Some(captured)) => self.record(capture, captured).await,
            Ok(None) => {
                self.machine.runtime.capture.backoff = None;
                Ok(())
            }
            Err(error) => self.on_capture_failed(capture.occasion, error).await,
        }
    }

    async fn record(&mut self, capture: CaptureUnderWay, captured: LockedCapture) -> Result<()> {
        let LockedCapture { shot, _exclusive: exclusive } = captured;
        let CaptureUnderWay { occasion, began, .. } = capture;
        if self.machine.runtime.capture.dirty.is_none() {
            self.ctx.live.unmark_dirty();
        }
        if occasion == CaptureOccasion::BetweenTurns && self.is_unchanged(&shot.snapshot).await? {
            self.machine.runtime.capture.backoff = None;
            self.mark_settled(&shot.snapshot);
            return Ok(());
        }
        let (bytes, files) = (shot.snapshot.bytes, shot.snapshot.files);
        self.limits.captured(DiskUsage { bytes, files }, &self.ctx.live);
        reach(occasion, "save.captured").await;
        let record = self.machine.capture_record(occasion, shot.describe());
        self.ctx.services.watch.saved(&record.saved, began.elapsed());
        let number = record.saved.number;
        let row = self.checkpoint_row(&record.saved, &shot.snapshot, record.facts.len() as u64);
        let recorded = self.commit(record.facts.clone(), Vec::new(), None, Some(row)).await;
        reach(occasion, "save.recorded").await;
        if recorded.is_ok() {
            self.machine.capture_recorded(&record);
            self.ctx.workspace.set_newest(number);
            self.mark_settled(&shot.snapshot);
        }
        drop(exclusive);
        match recorded {
            Err(Error::Store(ash_store::Error::Full)) => {
                self.machine.capture_unrecorded(occasion, Instant::now());
                self.give_up_rewinding(&Error::Store(ash_store::Error::Full)).await
            }
            Ok(()) => {
                self.wait_for_remote();
                Ok(())
            }
            other => other,
        }
    }

    /// Waits until the object store has the checkpoint of a turn, if the machine requires it.
    fn wait_for_remote(&mut self) {
        let Some(RemoteWait { checkpoint, .. }) = self.machine.runtime.remote_wait else { return };
        let (services, workspace) = (self.ctx.services.clone(), self.ctx.lease.workspace);
        let longest = services.settings.remote_timeout;
        self.remote_wait = Some(RemoteWaitTask(tokio::spawn(async move {
            services.wait_until_remote(workspace, checkpoint, longest).await
        })));
    }

    /// The object store has the checkpoint, or the wait was given up: the turn is over either way.
    pub(super) async fn on_remote_wait_done(&mut self, sent: Result<()>) -> Result<()> {
        self.remote_wait = None;
        let Some(wait) = self.machine.runtime.remote_wait.take() else { return Ok(()) };
        let trouble = sent.err().map(|error| {
            tracing::warn!(session = %self.ctx.session.id, %error, "the turn ended before its checkpoint was in the object store");
            error.problem()
        });
        let end = self.machine.remote_wait_ended(wait, trouble);
        let noted = self.commit_facts(end.into_iter().collect()).await;
        if noted.is_err() {
            // The disk is full. The checkpoint is in the object store already, so the next try does not wait.
            self.machine.runtime.remote_wait = Some(wait);
            self.wait_for_remote();
        }
        noted
    }

    /// Whether nothing changed since the newest checkpoint, so that there is nothing to record.
    pub(super) async fn is_unchanged(&self, taken: &CapturedSnapshot) -> Result<bool> {
        let last = match self.is_shared() {
            true => self.ctx.workspace.newest(),
            false => self
                .machine
                .log
                .last_full_checkpoint
                .filter(|settled| Some(*settled) == self.machine.log.checkpoint),
        };
        match last {
            Some(number) => self.is_checkpoint(number, taken).await,
            None => Ok(false),
        }
    }

    /// The number of the next checkpoint, if no capture is under way.
    pub(super) fn next_number(&self) -> u64 {
        let last = self.ctx.workspace.newest().filter(|_| self.is_shared());
        last.unwrap_or(0).max(self.machine.log.last_checkpoint) + 1
    }

    /// Whether a checkpoint already holds everything in a tree that was found: a rewind was interrupted halfway.
    pub(super) async fn is_known(&self, taken: &CapturedSnapshot) -> Result<bool> {
        let all = self.ctx.services.store.checkpoints(self.ctx.lease.workspace, None, u32::MAX).await?;
        Ok(all.iter().any(|checkpoint| checkpoint.removed_at.is_none() && holds(checkpoint, taken)))
    }

    async fn is_checkpoint(&self, number: u64, taken: &CapturedSnapshot) -> Result<bool> {
        let checkpoint = self.ctx.services.store.checkpoint(self.ctx.lease.workspace, number).await?;
        Ok(checkpoint.is_some_and(|checkpoint| holds(&checkpoint, taken)))
    }

    pub(super) async fn capture_impossible(&mut self, turn: TurnId) -> Result<()> {
        let gone = Error::Save(
            "its files are not there any more: the machine went down before they were safe, or something removed them".to_owned(),
        );
        self.on_capture_failed(CaptureOccasion::TurnEnd(turn), gone).await
    }

    async fn on_capture_failed(&mut self, occasion: CaptureOccasion, error: Error) -> Result<()> {
        tracing::error!(session = %self.ctx.session.id, %error, "the workspace could not be saved");
        self.ctx.services.note_disk_full(&error);
        self.ctx.services.watch.save_failed();
        self.machine.runtime.tree.present = self.tree().is_some();
        let facts = self.machine.capture_failed(occasion, &error.to_string(), Instant::now());
        if facts.is_empty() {
            return Ok(());
        }
        let noted = self.commit_facts(facts).await;
        if self.is_tree_broken() {
            // Callers that wait for safe files must not wait for files that are gone.
            self.tolerate(noted)?;
            return self.lose_tree().await;
        }
        let error = Error::Save(error.to_string());
        let waiters = self.machine.stop_waiting_for_files();
        self.waiters.refuse_all(waiters, &error);
        self.give_up_rewinding(&error).await?;
        self.tolerate(noted)
    }

    /// `facts`: how many facts are committed together with the checkpoint; the checkpoint covers them.
    pub(super) fn checkpoint_row(
        &self,
        saved: &SavedCheckpoint,
        taken: &CapturedSnapshot,
        facts: u64,
    ) -> Checkpoint {
        Checkpoint {
            workspace: self.ctx.lease.workspace,
            number: saved.number,
            turn: saved.turn,
            seq: self.machine.log.last_seq + facts,
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
            at: self.ctx.services.clock(),
        }
    }
}
