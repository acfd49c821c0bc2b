//! Going to another checkpoint: end the sandbox, capture what is here, write the other tree beside it, say so, and
//! put it in place. Whoever dies on the way leaves the session either as it was or as it was to be: the fact is the
//! line between the two, and a tree that does not know of it is not used any more.

use super::{
    CaptureOccasion, CommandReply, EffectOutcome, ReplySender, SessionActor,
    tree::recipe_of,
    workspace_rewind::{AgentMemoryTree, ComposedTree},
};
use crate::{
    Error, Result, blocking,
    history::standing,
    live_directory::{LiveTreeStamp, open_root},
    state::StateCommand,
};
use ash_model::{Fact, SessionStatus};
use ash_snapshot::{FileOwner, SnapshotProgress, TreeId};
use std::{collections::BTreeMap, sync::Arc};

pub(super) struct PendingRewind {
    wish: StateCommand,
    reply: ReplySender<CommandReply>,
    prepared: Option<PreparedTree>,
}

/// A tree that is written and not in place yet.
pub(super) struct PreparedTree {
    pub(super) uid: Option<u32>,
    /// The uid was taken for it: there was no tree whose uid it could have.
    pub(super) fresh: bool,
    /// Of a shared workspace.
    pub(super) composed: Option<Box<ComposedTree>>,
}

impl PendingRewind {
    pub(super) fn new(wish: StateCommand, reply: ReplySender<CommandReply>) -> PendingRewind {
        PendingRewind { wish, reply, prepared: None }
    }
}

impl SessionActor {
    /// One step of the first rewind that somebody waits for. True: something was done, look again.
    pub(super) async fn drive_rewinding(&mut self) -> Result<bool> {
        let Some(rewinding) = self.rewinding.front() else { return Ok(false) };
        // Looked at again before every step: a message may have come since.
        let facts = match self.state.decide(&rewinding.wish) {
            Ok(facts) => facts,
            Err(refused) => {
                self.refuse_rewind(refused.into()).await?;
                return Ok(true);
            }
        };
        // A start that was promised to somebody comes first, and may make a tree of its own.
        if self.state.status == SessionStatus::Starting {
            self.forget_prepared();
            return Ok(false);
        }
        ash_failpoint::reach_async("rewind.step").await;
        if self.conn.is_some() {
            self.begin_sandbox_end();
        } else if self.state.awake.is_some() {
            self.commit_asleep().await?;
        } else if self.live.has_leftovers(self.tree().is_some()) {
            self.start_salvage();
        } else if let Some(to) = self.target().filter(|_| self.rewinds_workspace_files()) {
            match (self.take_prepared(), self.tree()) {
                (Some(prepared), _) => self.rewind(facts, prepared).await?,
                (None, Some(_)) => self.start_compose(to).await?,
                (None, None) => self.start_making_tree(),
            }
        } else if self.tree().is_some() && self.dirty.is_some() {
            self.start_save(CaptureOccasion::BetweenTurns);
        } else if let Some(prepared) = self.take_prepared() {
            self.rewind(facts, prepared).await?;
        } else if self.is_shared() {
            self.start_memory_rewind().await?;
        } else {
            self.start_prepare().await?;
        }
        Ok(true)
    }

    fn take_prepared(&mut self) -> Option<PreparedTree> {
        self.rewinding.front_mut()?.prepared.take()
    }

    /// Whether the files of a shared workspace go back, too.
    fn rewinds_workspace_files(&self) -> bool {
        let wish = self.rewinding.front().map(|rewinding| &rewinding.wish);
        self.is_shared() && matches!(wish, Some(StateCommand::Rewind { files: true, .. }))
    }

    /// Nothing was changed yet: whoever waits may try again.
    pub(super) async fn refuse_rewind(&mut self, error: Error) -> Result<()> {
        self.forget_prepared();
        let Some(PendingRewind { reply, .. }) = self.rewinding.pop_front() else { return Ok(()) };
        reply.send(Err(error)).ok();
        if self.is_shared() || !self.live.has_unfinished_trees() {
            return Ok(());
        }
        let live = self.live.clone();
        blocking(move || live.erase_unfinished_trees()).await
    }

    fn forget_prepared(&mut self) {
        if let Some(PreparedTree { uid, fresh: true, .. }) = self.take_prepared() {
            self.services.uids.release(uid);
        }
    }

    pub(super) async fn give_up_rewinding(&mut self, error: &Error) -> Result<()> {
        while !self.rewinding.is_empty() {
            self.refuse_rewind(error.shared()).await?;
        }
        Ok(())
    }

    fn target(&self) -> Option<u64> {
        match self.rewinding.front()?.wish {
            StateCommand::Rewind { to, .. } => Some(to),
            StateCommand::Prompt { .. }
            | StateCommand::Withdraw { .. }
            | StateCommand::Reorder { .. }
            | StateCommand::Interrupt
            | StateCommand::Answer { .. }
            | StateCommand::Pause
            | StateCommand::Stop
            | StateCommand::Release { .. }
            | StateCommand::Resume
            | StateCommand::End => None,
        }
    }

    /// A checkpoint that cannot be read is found out here, while everything is still as it was.
    async fn start_prepare(&mut self) -> Result<()> {
        let checkpoint = match self.target() {
            Some(to) => self.services.store.checkpoint(self.lease.workspace, to).await?,
            None => None,
        };
        let recipe = checkpoint.ok_or(Error::NoCheckpoint).and_then(standing).and_then(|checkpoint| {
            recipe_of(&self.services, &self.session, &self.state, &self.lease, &checkpoint.tree)
        });
        let recipe = match recipe {
            Ok(recipe) => recipe,
            Err(error) => return self.refuse_rewind(error).await,
        };
        let (rooms, live, tenant, tree) =
            (self.services.clone(), self.live.clone(), self.session.tenant.clone(), self.tree());
        let (no, progress) = (self.session.no, Arc::new(SnapshotProgress::default()));
        self.effect = Some(tokio::spawn(async move {
            let Ok(_turn) = rooms.restore_permits.acquire().await else {
                return EffectOutcome::RewindPrepared(Err(Error::Stopping));
            };
            let (home, counting) = (rooms.clone(), progress.clone());
            let work = move || {
                let uid = tree.map_or_else(|| home.uids.allocate(), Ok)?;
                let repo = home.repo(&tenant);
                let written = repo.and_then(|repo| live.prepare(&recipe, (&repo, &counting), uid));
                ash_failpoint::reach("rewind.written");
                if written.is_err() && tree.is_none() {
                    home.uids.release(uid);
                }
                written.map(|()| PreparedTree { uid, fresh: tree.is_none(), composed: None })
            };
            EffectOutcome::RewindPrepared(rooms.bells.with_progress(no, &progress, blocking(work)).await)
        }));
        Ok(())
    }

    /// In a shared workspace only the agent's own memory goes back. Before it is said: who dies in between has a memory
    /// that is older than the log, which the next start makes up for.
    async fn start_memory_rewind(&mut self) -> Result<()> {
        let checkpoint = match self.target() {
            Some(to) => self.services.store.checkpoint(self.lease.workspace, to).await?,
            None => None,
        };
        let tree = checkpoint.ok_or(Error::NoCheckpoint).and_then(standing);
        let tree = tree.and_then(|found| TreeId::parse(&found.tree).map_err(|_| Error::NoWorkspace));
        let tree = match tree {
            Ok(tree) => tree,
            Err(error) => return self.refuse_rewind(error).await,
        };
        let (common, repo) = (self.workspace.clone(), self.services.repo(&self.session.tenant)?);
        let inside = self.services.inside(&self.live);
        let kept = self.driver.memory_paths(&inside.workspace, self.session.native_id);
        let live = self.live.clone();
        self.effect = Some(tokio::spawn(async move {
            let _floor = common.exclusive().await;
            let uid = common.tree().flatten();
            // Without a tree there is nothing to go back in: the next one is made with what the log says.
            let prepared = PreparedTree { uid, fresh: false, composed: None };
            if common.tree().is_none() {
                return EffectOutcome::RewindPrepared(Ok(prepared));
            }
            let work = move || {
                live.unmark_settled()?;
                let home = open_root(&live.home())?;
                let owner = uid.map(|uid| FileOwner { uid, gid: uid });
                let then = AgentMemoryTree::of(&repo, &tree)?;
                kept.iter().try_for_each(|path| then.put_back(path, &home, owner))?;
                Ok(prepared)
            };
            EffectOutcome::RewindPrepared(blocking(work).await)
        }));
        Ok(())
    }

    pub(super) async fn prepared(&mut self, prepared: Result<PreparedTree>) -> Result<()> {
        match (prepared, self.rewinding.front_mut()) {
            (Ok(prepared), Some(rewinding)) => {
                rewinding.prepared = Some(prepared);
                Ok(())
            }
            (Ok(_), None) => Ok(()),
            (Err(error), _) => self.refuse_rewind(error).await,
        }
    }

    /// Says that it is so; from then on it is, whatever becomes of us.
    async fn rewind(&mut self, facts: Vec<Fact>, prepared: PreparedTree) -> Result<()> {
        let PreparedTree { uid, fresh, composed } = prepared;
        let noted = match &composed {
            Some(composed) => self.commit_composed(facts, composed).await,
            None => self.commit_facts(facts.clone()).await.map(|()| facts),
        };
        let facts = match noted {
            Ok(facts) => facts,
            Err(error) => {
                if fresh {
                    self.services.uids.release(uid);
                }
                self.refuse_rewind(error.shared()).await?;
                return self.tolerate(Err(error));
            }
        };
        ash_failpoint::reach_async("rewind.recorded").await;
        let rewound = facts.into_iter().find_map(|fact| match fact {
            Fact::Rewound(rewound) => Some(Box::new(rewound)),
            _ => None,
        });
        tracing::info!(session = %self.session.id, checkpoint = self.state.checkpoint, "rewound");
        if composed.is_some() || !self.is_shared() {
            self.put_in_place(uid).await;
            ash_failpoint::reach_async("rewind.placed").await;
        }
        drop(composed);
        if let Some(rewinding) = self.rewinding.pop_front() {
            rewinding.reply.send(Ok(CommandReply { rewound, ..CommandReply::default() })).ok();
        }
        Ok(())
    }

    /// A failure costs nothing but time: the next start makes the tree anew.
    async fn put_in_place(&mut self, uid: Option<u32>) {
        let stamp = LiveTreeStamp {
            epoch: self.lease.epoch,
            boot: self.services.settings.boot.clone(),
            uid,
            rewound: if self.is_shared() { self.workspace.last_rewind() } else { self.state.rewound },
            fallback: None,
            mended: None,
            mends: BTreeMap::new(),
            outside: Vec::new(),
        };
        let live = self.live.clone();
        self.dirty = None;
        match blocking(move || live.replace(&stamp)).await {
            Ok(()) => self.workspace.set_tree(Some(uid)),
            Err(error) => {
                tracing::warn!(session = %self.session.id, %error, "the tree of a rewind is made at the next start");
                self.workspace.set_tree(None);
                self.services.uids.release(uid);
            }
        }
    }
}
