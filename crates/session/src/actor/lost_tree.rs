//! A tree that was removed, or replaced, under the session: by somebody outside, or by an agent without walls. It does not
//! count any more; the last checkpoint comes back with the next sandbox, and what is left of the tree is salvaged before.

use super::SessionActor;
use crate::{
    Result, blocking,
    live_directory::{LiveTree, LiveTreeShape},
    machine::SandboxConnection,
};
use ash_snapshot::CapturedSnapshot;

impl SessionActor {
    /// The tree that counts is not there, or is not a tree. Whoever is about to put another one in place has the floor.
    pub(super) fn is_tree_broken(&self) -> bool {
        let nobody_moves_it = || self.ctx.workspace.try_exclusive().is_some();
        self.tree().is_some()
            && self.ctx.live.shape() != LiveTreeShape::Whole
            && nobody_moves_it()
            && self.ctx.live.shape() != LiveTreeShape::Whole
    }

    pub(super) async fn lose_tree(&mut self) -> Result<()> {
        let Some(LiveTree { uid }) = self.tree() else { return Ok(()) };
        tracing::warn!(session = %self.ctx.session.id, "the files were removed or replaced from outside; the last checkpoint has them");
        let live = self.ctx.live.clone();
        blocking(move || live.distrust()).await?;
        self.ctx.workspace.set_tree(None);
        self.machine.tree_lost();
        match self.link.conn {
            // Nobody else gets it as long as it has processes.
            Some(_) => self.link.lost_uid = uid,
            None => self.ctx.services.uids.release(uid),
        }
        if self.is_shared()
            && let Some(walls) = self.ctx.workspace.sandbox()
        {
            // All who are at work in it have lost their files.
            walls.remote.end().await.ok();
        }
        Ok(())
    }

    /// Nobody can write to the tree any more that was captured: what changes from here on was changed from outside.
    pub(super) fn mark_settled(&self, taken: &CapturedSnapshot) {
        let run = &self.machine.runtime;
        let gone = run.sandbox == SandboxConnection::Absent && self.ctx.workspace.sandbox().is_none();
        if gone && run.capture.dirty.is_none() && self.ctx.workspace.has_no_writers() && !self.is_ephemeral()
        {
            self.ctx.live.mark_settled(&taken.tree);
        }
    }
}
