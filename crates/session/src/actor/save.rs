//! Capturing the workspace. A turn is over only when this is recorded; `done` is sent after it.

use super::{Actor, Done, RETRY, wake::blocking};
use crate::{
    Error, Result,
    live::Live,
    luggage::{self, Trip},
    pool::Rooms,
    state::Phase,
};
use ash_model::{Consistency, Fact, Saved, TurnId};
use ash_sandbox::Remote;
use ash_snapshot::{Taken, TreeId};
use ash_store::{Checkpoint, Session};
use std::sync::Arc;
use tokio::time::Instant;

pub(super) struct Captured {
    taken: Taken,
    consistency: Consistency,
}

/// A capture under way.
struct Saving {
    rooms: Arc<Rooms>,
    live: Live,
    session: Session,
    remote: Option<Remote>,
}

impl Saving {
    async fn run(self, newest: Option<u64>, number: u64, turn: Option<TurnId>) -> Result<Captured> {
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
        let trip = Trip { session: &self.session, checkpoint: number, turn, base: &base, agent_tree };
        let luggage = luggage::pack(&self.rooms, &repo, trip).await?;
        let still = match &self.remote {
            Some(remote) => remote.freeze().await.unwrap_or(Consistency::Live),
            // No process, nobody writes.
            None => Consistency::Frozen,
        };
        let (live, rooms) = (self.live, self.rooms);
        let taken = blocking(move || live.take(&repo, &base, &luggage, rooms.tracker.as_ref())).await;
        let held = match &self.remote {
            Some(remote) => remote.thaw().await.unwrap_or(false),
            None => true,
        };
        let consistency = if held { still } else { Consistency::Live };
        Ok(Captured { taken: taken?, consistency })
    }
}

impl Actor {
    pub(super) fn is_capture_due(&self) -> bool {
        let now = Instant::now();
        let settled = self.dirty.is_some_and(|since| since + super::SETTLE <= now);
        settled
            && self.tree.is_some()
            && self.state.is_at_rest()
            && self.not_before.is_none_or(|at| at <= now)
    }

    pub(super) fn start_save(&mut self, turn: Option<TurnId>) {
        let remote = self.hands.as_ref().map(|hands| hands.remote.clone());
        let (rooms, live, session) = (self.rooms.clone(), self.live.clone(), self.session.clone());
        let (newest, number) = (self.state.checkpoint, self.state.last_checkpoint + 1);
        let began = Instant::now();
        // What changes from here on may or may not be in it.
        self.dirty = self.execs.is_busy().then(Instant::now);
        self.wants_capture = false;
        self.effect = Some(tokio::spawn(async move {
            let saving = Saving { rooms, live, session, remote };
            Done::Saved { turn, result: saving.run(newest, number, turn).await, began }
        }));
    }

    pub(super) async fn saved(
        &mut self,
        turn: Option<TurnId>,
        result: Result<Captured>,
        began: Instant,
    ) -> Result<()> {
        match result {
            Ok(captured) => self.record(turn, captured, began).await,
            Err(error) => self.could_not_save(turn, error).await,
        }
    }

    async fn record(&mut self, turn: Option<TurnId>, captured: Captured, began: Instant) -> Result<()> {
        self.not_before = None;
        if self.dirty.is_none() {
            self.live.unmark_dirty();
        }
        if turn.is_none() && self.is_as_before(&captured.taken).await? {
            return Ok(());
        }
        let saved = self.describe(&captured.taken, turn, captured.consistency, false);
        self.rooms.watch.saved(&saved, began.elapsed());
        let number = saved.number;
        let mut facts = vec![Fact::Saved(saved.clone())];
        facts.extend(self.end_of(turn, Some(number)));
        let row = self.checkpoint_row(&saved, facts.len() as u64);
        let recorded = self.commit(facts, Vec::new(), None, Some(row)).await;
        match recorded {
            // The pack is there, its row is not: the capture is repeated when there is space again.
            Err(Error::Store(ash_store::Error::Full)) => {
                self.not_before = Some(Instant::now() + RETRY);
                self.touch();
                Ok(())
            }
            other => other,
        }
    }

    /// Nothing changed since the newest checkpoint: there is nothing to record.
    async fn is_as_before(&self, taken: &Taken) -> Result<bool> {
        let Some(number) = self.state.checkpoint else { return Ok(false) };
        let newest = self.rooms.store.checkpoint(self.lease.workspace, number).await?;
        Ok(newest.is_some_and(|newest| newest.tree == taken.tree.as_str()))
    }

    /// The answer stands; that its files are not safe is said, and tried again.
    pub(super) async fn could_not_save(&mut self, turn: Option<TurnId>, error: Error) -> Result<()> {
        tracing::error!(session = %self.session.id, %error, "the workspace could not be saved");
        self.rooms.watch.save_failed();
        self.not_before = Some(Instant::now() + RETRY);
        self.touch();
        let mut facts = vec![Fact::SaveFailed { turn, error: error.to_string() }];
        facts.extend(self.end_of(turn, None));
        let noted = self.note(facts).await;
        let words = error.to_string();
        for reply in self.pausing.drain(..) {
            reply.send(Err(Error::Save(words.clone()))).ok();
        }
        for reply in self.forking.drain(..) {
            reply.send(Err(Error::Save(words.clone()))).ok();
        }
        self.survive(noted)
    }

    fn end_of(&self, turn: Option<TurnId>, checkpoint: Option<u64>) -> Option<Fact> {
        let current = self.state.current().filter(|current| Some(current.id) == turn)?;
        match &current.phase {
            Phase::Saving { how, problem, .. } => {
                Some(Fact::Finished { turn: current.id, how: *how, checkpoint, problem: problem.clone() })
            }
            Phase::Queued | Phase::Running { .. } | Phase::Cut => None,
        }
    }

    /// `facts`: how many are recorded with it; the checkpoint covers them.
    pub(super) fn checkpoint_row(&self, saved: &Saved, facts: u64) -> Checkpoint {
        Checkpoint {
            workspace: self.lease.workspace,
            number: saved.number,
            turn: saved.turn,
            seq: self.state.last_seq + facts,
            tree: saved.tree.clone(),
            consistency: saved.consistency,
            salvage: saved.salvage,
            files: saved.files,
            bytes: saved.bytes,
            at: self.rooms.clock(),
        }
    }
}
