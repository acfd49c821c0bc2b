//! A tree that was removed, or replaced, under the session: by somebody outside, or by an agent without walls. It does not
//! count any more; the last checkpoint comes back with the next sandbox, and what is left of the tree is salvaged before.

use super::SessionActor;
use crate::{Result, blocking, live_directory::LiveTreeShape, state::StateCommand};
use ash_model::{Fact, SessionStatus};
use ash_snapshot::CapturedSnapshot;

impl SessionActor {
    /// The tree that counts is not there, or is not a tree. Whoever is about to put another one in place has the floor.
    pub(super) fn is_tree_broken(&self) -> bool {
        let nobody_moves_it = || self.workspace.try_exclusive().is_some();
        self.tree().is_some()
            && self.live.shape() != LiveTreeShape::Whole
            && nobody_moves_it()
            && self.live.shape() != LiveTreeShape::Whole
    }

    /// The agent that runs has lost its files.
    pub(super) fn has_lost_tree(&self) -> bool {
        self.conn.is_some() && self.tree().is_none() && self.state.is_at_rest()
    }

    pub(super) async fn lose_tree(&mut self) -> Result<()> {
        let Some(uid) = self.tree() else { return Ok(()) };
        tracing::warn!(session = %self.session.id, "the files were removed or replaced from outside; the last checkpoint has them");
        let live = self.live.clone();
        blocking(move || live.distrust()).await?;
        self.workspace.set_tree(None);
        (self.dirty, self.backoff) = (None, None);
        match self.conn {
            // Nobody else gets it as long as it has processes.
            Some(_) => self.lost_uid = uid,
            None => self.services.uids.release(uid),
        }
        if self.is_shared()
            && let Some(walls) = self.workspace.sandbox()
        {
            // All who are at work in it have lost their files.
            walls.remote.end().await.ok();
        }
        Ok(())
    }

    /// What follows from a wish to go on, if the agent that is there has lost its files: it comes back cold.
    pub(super) fn without_tree(&self, wish: &StateCommand, facts: Vec<Fact>) -> Vec<Fact> {
        if !self.has_lost_tree() {
            return facts;
        }
        let active = self.state.status == SessionStatus::Active && self.state.turns.is_empty();
        if *wish == StateCommand::Resume && active && facts.is_empty() {
            return vec![Fact::Resuming];
        }
        let coldly = |fact| match fact {
            Fact::Resumed { .. } => Fact::Resuming,
            fact => fact,
        };
        facts.into_iter().map(coldly).collect()
    }

    /// Somebody wants to write files where none are: the sandbox that has lost them goes first. True: look again.
    pub(super) async fn make_way_for_writers(&mut self) -> Result<bool> {
        if self.writing.is_empty() {
            return Ok(false);
        }
        if self.is_tree_broken() {
            self.lose_tree().await?;
        }
        if self.has_lost_tree() {
            self.begin_sandbox_end();
            return Ok(true);
        }
        Ok(false)
    }

    /// Nobody can write to the tree any more that was captured: what changes from here on was changed from outside.
    pub(super) fn mark_settled(&self, taken: &CapturedSnapshot) {
        let gone =
            self.conn.is_none() && self.departing_sandbox.is_none() && self.workspace.sandbox().is_none();
        if gone && self.dirty.is_none() && self.workspace.has_no_writers() && !self.is_ephemeral() {
            self.live.mark_settled(&taken.tree);
        }
    }
}
