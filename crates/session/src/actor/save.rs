//! Capturing the workspace. A turn is over only when this is recorded; `done` is sent after it.

use super::{Actor, Done, FarWait, RETRY};
use crate::{
    Error, Result, blocking,
    common::{Common, Floor},
    live::Live,
    luggage::{self, Luggage, Trip},
    rooms::Rooms,
    state::Phase,
};
use ash_model::{Beside, Consistency, Durability, Epoch, Fact, Incarnation, Saved, TurnId};
use ash_sandbox::Remote;
use ash_snapshot::{Taken, TreeId, Weight};
use ash_store::{Checkpoint, Session};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// What was said since the last capture is packed with the next one, and held in memory for it: who says this much is captured
/// on its way, however long its turn has been.
const MUCH: u64 = 32 << 20;
/// What an event takes beside its words.
const EVENT: u64 = 256;

/// What a capture is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The turn is over when it is recorded.
    Rest(TurnId),
    /// The turn takes long: if its sandbox dies, not all of it is lost.
    Midway(TurnId),
    /// Somebody else changed files, or wants them safe.
    Between,
}

impl Occasion {
    fn turn(self) -> Option<TurnId> {
        match self {
            Occasion::Rest(turn) | Occasion::Midway(turn) => Some(turn),
            Occasion::Between => None,
        }
    }

    /// A fail point of the capture that ends a turn: the others come by themselves, at any time.
    async fn reach(self, point: &str) {
        match self {
            Occasion::Rest(_) => ash_failpoint::reach_async(point).await,
            Occasion::Midway(_) | Occasion::Between => {}
        }
    }
}

/// When a capture that failed is tried again. What is to be saved for another turn does not wait for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backoff {
    pub(super) until: Instant,
    turn: Option<TurnId>,
    /// Of all that failed one after the other.
    failures: u32,
}

/// A disk that stays full for hours is not asked every ten seconds.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

impl Backoff {
    fn after(occasion: Occasion, before: Option<Backoff>) -> Backoff {
        let failures = before.map_or(1, |before| before.failures.saturating_add(1));
        let backoff = Backoff { until: Instant::now(), turn: occasion.turn(), failures };
        Backoff { until: backoff.until + backoff.delay(), ..backoff }
    }

    /// Twice as long with every failure.
    fn delay(self) -> Duration {
        LONGEST_RETRY.min(RETRY.saturating_mul(1 << (self.failures - 1).min(16)))
    }

    /// Until when the files of this turn are not captured.
    pub(super) fn of(self, turn: TurnId) -> Option<Instant> {
        (self.turn == Some(turn)).then_some(self.until)
    }
}

/// A tree in the repository, which nobody knows of yet.
pub(super) struct Shot {
    pub(super) number: u64,
    pub(super) taken: Taken,
    pub(super) consistency: Consistency,
    /// Turns of others that were under way.
    pub(super) beside: Vec<Beside>,
}

pub(super) struct Captured {
    shot: Shot,
    /// Until it is recorded: the next one is made on top of it.
    _floor: Floor,
}

/// A capture under way.
#[derive(Clone)]
pub(super) struct Saving {
    pub(super) rooms: Arc<Rooms>,
    pub(super) live: Live,
    pub(super) common: Arc<Common>,
    pub(super) session: Session,
    /// With which the workspace is held.
    pub(super) epoch: Epoch,
    pub(super) remote: Option<Remote>,
    /// Of the sandbox in which the agent runs, or ran last.
    pub(super) incarnation: Option<Incarnation>,
    /// If nothing was touched since the last capture, that one will do.
    pub(super) may_skip: bool,
    /// The last one of this session, and the number that the next would have if nobody else made any.
    pub(super) own: (Option<u64>, u64),
}

impl Saving {
    /// `None`: nothing changed since the last one.
    async fn run(self, occasion: Occasion) -> Result<Option<Captured>> {
        let floor = self.common.floor().await;
        let shot = self.shoot(occasion).await?;
        ash_failpoint::reach_async("save.shot").await;
        Ok(shot.map(|shot| Captured { shot, _floor: floor }))
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
    pub(super) async fn pack(&self, number: u64, turn: Option<TurnId>) -> Result<(Luggage, TreeId)> {
        let (newest, _) = self.numbers();
        let Session { tenant, agent, version, workspace, .. } = &self.session;
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
        let trip = Trip {
            session: &self.session,
            checkpoint: number,
            turn,
            before: before.as_ref().unwrap_or(&base),
            agent_tree,
            epoch: self.epoch,
            incarnation: self.incarnation,
        };
        Ok((luggage::pack(&self.rooms, &repo, trip).await?, base))
    }

    /// Only with the floor.
    pub(super) async fn shoot(&self, occasion: Occasion) -> Result<Option<Shot>> {
        let (_, number) = self.numbers();
        if self.may_skip {
            let live = self.live.clone();
            if blocking(move || Ok(live.is_untouched())).await? {
                return Ok(None);
            }
        }
        let repo = self.rooms.repo(&self.session.tenant)?;
        let (luggage, base) = self.pack(number, occasion.turn()).await?;
        let still = match &self.remote {
            Some(remote) => remote.freeze().await.unwrap_or(Consistency::Live),
            // No process, nobody writes.
            None => Consistency::Frozen,
        };
        let beside = self.common.beside(self.session.no);
        occasion.reach("save.frozen").await;
        let (live, rooms) = (self.live.clone(), self.rooms.clone());
        let taken = blocking(move || {
            let settled = live.settled();
            let taken = live.take(&repo, &base, &luggage, rooms.tracker.as_ref())?;
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
        let consistency = if held { still } else { Consistency::Live };
        Ok(Some(Shot { number, taken: taken?, consistency, beside }))
    }
}

impl Actor {
    pub(super) fn is_capture_due(&self) -> bool {
        let now = Instant::now();
        let settled = self.dirty.is_some_and(|since| since + super::SETTLE <= now);
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
        let turn = self.state.current().filter(|turn| matches!(turn.phase, Phase::Running { .. }))?;
        self.midway().filter(|at| *at <= Instant::now()).map(|_| turn.id)
    }

    /// When the turn that runs is captured next.
    pub(super) fn midway(&self) -> Option<Instant> {
        let every = Some(self.rooms.settings.checkpoint_every).filter(|every| !every.is_zero());
        let at = match self.unpacked > MUCH {
            true => Some(self.captured),
            false => every.and_then(|every| self.captured.checked_add(every)),
        };
        let running = self.state.current().is_some_and(|turn| matches!(turn.phase, Phase::Running { .. }));
        let can =
            !self.is_ephemeral() && self.hands.is_some() && self.tree().is_some() && self.effect.is_none();
        at.filter(|_| running && can && self.closing.is_none())
    }

    /// The log has these bytes more, in so many events.
    pub(super) fn said(&mut self, bytes: u64, events: usize) {
        self.unpacked = self.unpacked.saturating_add(bytes).saturating_add(EVENT * events as u64);
    }

    pub(super) fn start_save(&mut self, occasion: Occasion) {
        let newest = self.state.checkpoint;
        let began = Instant::now();
        (self.captured, self.unpacked) = (began, 0);
        let newest_is_settled = newest.is_some() && self.state.settled == newest;
        let may_skip = occasion == Occasion::Between && newest_is_settled && self.dirty.is_none();
        let saving = Saving { may_skip, ..self.saving() };
        match occasion {
            // What changes from here on may or may not be in it.
            Occasion::Rest(_) | Occasion::Between => {
                self.dirty = self.execs.is_busy().then(Instant::now);
                self.wants_capture = false;
            }
            Occasion::Midway(_) => self.touch(),
        }
        self.effect =
            Some(tokio::spawn(
                async move { Done::Saved { occasion, result: saving.run(occasion).await, began } },
            ));
    }

    pub(super) fn saving(&self) -> Saving {
        Saving {
            rooms: self.rooms.clone(),
            live: self.live.clone(),
            common: self.common.clone(),
            session: self.session.clone(),
            epoch: self.lease.epoch,
            remote: self.hands.as_ref().map(|hands| hands.remote.clone()),
            incarnation: self.state.awake.as_ref().map(|awake| awake.incarnation),
            may_skip: false,
            own: (self.state.checkpoint, self.state.last_checkpoint + 1),
        }
    }

    pub(super) async fn saved(
        &mut self,
        occasion: Occasion,
        result: Result<Option<Captured>>,
        began: Instant,
    ) -> Result<()> {
        match result {
            Ok(Some(captured)) => self.record(occasion, captured, began).await,
            Ok(None) => {
                self.backoff = None;
                Ok(())
            }
            Err(error) => self.could_not_save(occasion, error).await,
        }
    }

    async fn record(&mut self, occasion: Occasion, captured: Captured, began: Instant) -> Result<()> {
        let Captured { shot, _floor: floor } = captured;
        let failed_before = self.backoff.take();
        if self.dirty.is_none() {
            self.live.unmark_dirty();
        }
        if occasion == Occasion::Between && self.is_as_before(&shot.taken).await? {
            self.mark_settled(&shot.taken);
            return Ok(());
        }
        let (bytes, files) = (shot.taken.bytes, shot.taken.files);
        self.gauge.captured(Weight { bytes, files }, &self.live);
        occasion.reach("save.captured").await;
        let midway = self.midway_through(occasion);
        let saved =
            Saved { turn: midway.or(occasion.turn()), mid_turn: midway.is_some(), ..self.describe(&shot) };
        self.rooms.watch.saved(&saved, began.elapsed());
        let number = saved.number;
        let mut facts = vec![Fact::Saved(saved.clone())];
        let waits = self.waits_for_far(occasion);
        let end = self.end_of(occasion, Some(number)).filter(|_| waits.is_none());
        // With the ends of what was heard in it: the checkpoint covers them all.
        facts.extend(end.into_iter().flat_map(|end| self.state.with_joined(end)));
        let row = self.checkpoint_row(&saved, &shot.taken, facts.len() as u64);
        let recorded = self.commit(facts, Vec::new(), None, Some(row)).await;
        occasion.reach("save.recorded").await;
        if recorded.is_ok() {
            self.common.set_newest(number);
            self.mark_settled(&shot.taken);
        }
        drop(floor);
        match recorded {
            // The pack is there, its row is not: the capture is repeated when there is space again.
            Err(Error::Store(ash_store::Error::Full)) => {
                if !matches!(occasion, Occasion::Midway(_)) {
                    self.backoff = Some(Backoff::after(occasion, failed_before));
                }
                self.touch();
                self.give_up_rewinding(&Error::Store(ash_store::Error::Full)).await
            }
            Ok(()) => {
                if let Some(turn) = waits {
                    self.wait_for_far(turn, number);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// The turn, if it is not done before the object store has it.
    fn waits_for_far(&self, occasion: Occasion) -> Option<TurnId> {
        let Occasion::Rest(turn) = occasion else { return None };
        let current = self.state.current().filter(|current| current.id == turn)?;
        let wanted = current.ask.durability.or(self.session.options.durability);
        let wanted = wanted.unwrap_or(self.rooms.settings.durability);
        (wanted == Durability::Remote).then_some(turn)
    }

    fn wait_for_far(&mut self, turn: TurnId, checkpoint: u64) {
        let (rooms, workspace) = (self.rooms.clone(), self.lease.workspace);
        let longest = rooms.settings.remote_timeout;
        let task = tokio::spawn(async move { rooms.wait_until_far(workspace, checkpoint, longest).await });
        self.far_wait = Some(FarWait { turn, checkpoint, task });
    }

    /// The object store has it, or it is not waited for any more: the turn is over either way.
    pub(super) async fn is_far(&mut self, sent: Result<()>) -> Result<()> {
        let Some(waiting) = self.far_wait.take() else { return Ok(()) };
        let end = self.end_of(Occasion::Rest(waiting.turn), Some(waiting.checkpoint));
        let end = end.map(|end| match (end, sent) {
            (Fact::Finished { turn, how, checkpoint, problem: None }, Err(error)) => {
                tracing::warn!(session = %self.session.id, %error, "a turn ended before the object store had it");
                Fact::Finished { turn, how, checkpoint, problem: Some(error.problem()) }
            }
            (end, _) => end,
        });
        let noted = self.note(end.into_iter().collect()).await;
        if noted.is_err() {
            // For want of space: it is far already, so the next try does not wait.
            self.wait_for_far(waiting.turn, waiting.checkpoint);
        }
        noted
    }

    /// The turn that was under way: also one that is about to be cut because the session closes.
    fn midway_through(&self, occasion: Occasion) -> Option<TurnId> {
        match occasion {
            Occasion::Rest(_) => None,
            Occasion::Midway(turn) => Some(turn),
            Occasion::Between => self.state.current().and_then(|turn| match turn.phase {
                Phase::Running { .. } | Phase::Cut => Some(turn.id),
                Phase::Queued | Phase::Saving { .. } | Phase::Joined { .. } => None,
            }),
        }
    }

    /// Nothing changed since the newest checkpoint: there is nothing to record.
    pub(super) async fn is_as_before(&self, taken: &Taken) -> Result<bool> {
        let last = match self.is_shared() {
            true => self.common.newest(),
            false => self.state.settled.filter(|settled| Some(*settled) == self.state.checkpoint),
        };
        match last {
            Some(number) => self.is_checkpoint(number, taken).await,
            None => Ok(false),
        }
    }

    /// The number of the next checkpoint, if nothing is being captured.
    pub(super) fn next_number(&self) -> u64 {
        let last = self.common.newest().filter(|_| self.is_shared());
        last.unwrap_or(0).max(self.state.last_checkpoint) + 1
    }

    /// A tree that was found holds nothing that a checkpoint does not: a rewind was cut off in the middle.
    pub(super) async fn is_known(&self, taken: &Taken) -> Result<bool> {
        let all = self.rooms.store.checkpoints(self.lease.workspace, None, u32::MAX).await?;
        Ok(all.iter().any(|checkpoint| checkpoint.removed.is_none() && holds(checkpoint, taken)))
    }

    async fn is_checkpoint(&self, number: u64, taken: &Taken) -> Result<bool> {
        let checkpoint = self.rooms.store.checkpoint(self.lease.workspace, number).await?;
        Ok(checkpoint.is_some_and(|checkpoint| holds(&checkpoint, taken)))
    }

    /// The answer stands; that its files are not safe is said, and tried again.
    pub(super) async fn could_not_save(&mut self, occasion: Occasion, error: Error) -> Result<()> {
        tracing::error!(session = %self.session.id, %error, "the workspace could not be saved");
        self.rooms.notice(&error);
        self.rooms.watch.save_failed();
        if let Occasion::Midway(_) = occasion {
            // Nothing was promised: the end of the turn says whether its files are safe.
            return Ok(());
        }
        // Without a tree there is nothing to try again with.
        if self.tree().is_some() {
            self.backoff = Some(Backoff::after(occasion, self.backoff));
            self.touch();
        }
        let again =
            self.backoff.map(|backoff| format!("; the next try is in {} s", backoff.delay().as_secs()));
        let words = format!("{error}{}", again.unwrap_or_default());
        let mut facts = vec![Fact::SaveFailed { turn: occasion.turn(), error: words }];
        facts.extend(self.end_of(occasion, None));
        let noted = self.note(facts).await;
        if self.is_tree_broken() {
            // Whoever waits for the files to be safe is not kept waiting for what is gone.
            self.survive(noted)?;
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
        self.survive(noted)
    }

    pub(super) fn end_of(&self, occasion: Occasion, checkpoint: Option<u64>) -> Option<Fact> {
        let Occasion::Rest(turn) = occasion else { return None };
        let current = self.state.current().filter(|current| current.id == turn)?;
        match &current.phase {
            Phase::Saving { how, problem, .. } => {
                Some(Fact::Finished { turn: current.id, how: *how, checkpoint, problem: problem.clone() })
            }
            Phase::Queued | Phase::Running { .. } | Phase::Cut | Phase::Joined { .. } => None,
        }
    }

    /// `facts`: how many are recorded with it; the checkpoint covers them.
    pub(super) fn checkpoint_row(&self, saved: &Saved, taken: &Taken, facts: u64) -> Checkpoint {
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
            beside: saved.beside.clone(),
            back: saved.back,
            removed: None,
            far: None,
            at: self.rooms.clock(),
        }
    }
}

/// Taken without an index the same files lie in another pack.
fn holds(checkpoint: &Checkpoint, taken: &Taken) -> bool {
    TreeId::parse(&checkpoint.tree).is_ok_and(|tree| tree.same_files(&taken.tree))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_holds_up_its_own_turn_and_no_other() {
        let (failed, next) = (TurnId::fresh(), TurnId::fresh());
        let backoff = Backoff::after(Occasion::Rest(failed), None);
        assert!(backoff.of(failed).is_some_and(|until| until > Instant::now()));
        assert_eq!(backoff.of(next), None);
        assert_eq!(Backoff::after(Occasion::Between, None).of(next), None);
    }

    #[test]
    fn a_capture_that_keeps_failing_is_tried_ever_more_seldom_up_to_a_bound() {
        let mut backoff = None;
        let delays: Vec<u64> = (0..40)
            .map(|_| {
                let next = Backoff::after(Occasion::Between, backoff);
                backoff = Some(next);
                next.delay().as_secs()
            })
            .collect();
        assert_eq!(delays[..7], [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delays[39], 300);
    }
}
