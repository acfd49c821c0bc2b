//! A tree that was removed or replaced while the session used it: from outside, or by an agent that runs without a
//! sandbox. It does not count any more. The next sandbox starts from the last checkpoint, after the remains of the tree
//! are salvaged.

use super::SessionActor;
use crate::{
    Result, blocking,
    live_directory::{LiveTree, LiveTreeShape},
    machine::SandboxConnection,
};
use ash_snapshot::CapturedSnapshot;

impl SessionActor {
    /// Whether the current tree is missing or is not a tree. A task that is replacing the tree holds the exclusive
    /// guard, so the tree does not count as broken then.
    pub(super) fn is_tree_broken(&self) -> bool {
        let is_not_being_replaced = || self.ctx.workspace.try_exclusive().is_some();
        self.tree().is_some()
            && self.ctx.live.shape() != LiveTreeShape::Whole
            && is_not_being_replaced()
            && self.ctx.live.shape() != LiveTreeShape::Whole
    }

    pub(super) async fn lose_tree(&mut self) -> Result<()> {
        let Some(LiveTree { uid }) = self.tree() else { return Ok(()) };
        tracing::warn!(session = %self.ctx.session.id, "a process outside of the sandbox removed or replaced the files; the last checkpoint has them");
        let live = self.ctx.live.clone();
        blocking(move || live.distrust()).await?;
        self.ctx.workspace.set_tree(None);
        self.machine.tree_lost();
        match self.link.conn {
            // No other tree gets this uid as long as it has processes.
            Some(_) => self.link.lost_uid = uid,
            None => self.ctx.services.uids.release(uid),
        }
        if self.is_shared()
            && let Some(sandbox) = self.ctx.workspace.sandbox()
        {
            // Every session in this sandbox has lost its files.
            sandbox.remote.end().await.ok();
        }
        Ok(())
    }

    /// No session can write to the captured tree any more: later changes come from outside.
    pub(super) fn mark_settled(&self, taken: &CapturedSnapshot) {
        let run = &self.machine.runtime;
        let gone = run.sandbox == SandboxConnection::Absent && self.ctx.workspace.sandbox().is_none();
        if gone && run.capture.dirty.is_none() && self.ctx.workspace.has_no_writers() && !self.is_ephemeral()
        {
            self.ctx.live.mark_settled(&taken.tree);
        }
    }
}
