//! Going to another checkpoint: end the sandbox, capture the current files, write the other tree beside them, commit
//! the fact, and put the tree in place. A crash leaves the session either as it was or rewound: the fact decides, and a
//! tree that is older than the fact is not used any more.

use super::{EffectOutcome, SessionActor};
use crate::{
    Error, Result, blocking,
    live_directory::{LiveTree, LiveTreeStamp, open_root},
    mailbox::CommandReply,
    rewind::{AgentMemoryTree, ComposedTree, PreparedTree, compose_workspace_tree, with_files},
    start::recipe_of,
};
use ash_model::{Fact, SavedCheckpoint, SessionRewind};
use ash_snapshot::{FileOwner, SnapshotProgress, TreeId};
use std::{collections::BTreeMap, sync::Arc};

impl SessionActor {
    /// Nothing has changed yet: the caller may try again.
    pub(super) async fn refuse_rewind(&mut self, error: Error) -> Result<()> {
        self.discard_prepared_tree();
        let Some(waiter) = self.machine.take_rewind() else { return Ok(()) };
        self.waiters.answer(waiter, Err(error));
        if self.is_shared() || !self.ctx.live.has_unfinished_trees() {
            return Ok(());
        }
        let live = self.ctx.live.clone();
        blocking(move || live.erase_unfinished_trees()).await
    }

    pub(super) fn discard_prepared_tree(&mut self) {
        if let Some(PreparedTree { uid, fresh: true, .. }) = self.prepared_tree.take() {
            self.ctx.services.uids.release(uid);
        }
    }

    pub(super) async fn give_up_rewinding(&mut self, error: &Error) -> Result<()> {
        while !self.machine.runtime.waiting.rewinding.is_empty() {
            self.refuse_rewind(error.shared()).await?;
        }
        Ok(())
    }

    /// An unreadable checkpoint is found here, before anything has changed.
    pub(super) async fn start_prepare(&mut self) -> Result<()> {
        let checkpoint = match self.machine.rewind_target() {
            Some(to) => self.ctx.services.store.checkpoint(self.ctx.lease.workspace, to).await?,
            None => None,
        };
        let recipe = checkpoint.ok_or(Error::NoCheckpoint).and_then(with_files).and_then(|checkpoint| {
            recipe_of(
                &self.ctx.services,
                &self.ctx.session,
                &self.machine.log,
                &self.ctx.lease,
                &checkpoint.tree,
            )
        });
        let recipe = match recipe {
            Ok(recipe) => recipe,
            Err(error) => return self.refuse_rewind(error).await,
        };
        let (services, live, tenant, tree) =
            (self.ctx.services.clone(), self.ctx.live.clone(), self.ctx.session.tenant.clone(), self.tree());
        let (no, progress) = (self.ctx.session.no, Arc::new(SnapshotProgress::default()));
        self.begin_effect(async move {
            let Ok(_turn) = services.restore_permits.acquire().await else {
                return EffectOutcome::RewindPrepared(Err(Error::Stopping));
            };
            let (home, counting) = (services.clone(), progress.clone());
            let work = move || {
                let uid = tree.map_or_else(|| home.uids.allocate(), |tree| Ok(tree.uid))?;
                let repo = home.repo(&tenant);
                let written = repo.and_then(|repo| live.prepare(&recipe, (&repo, &counting), uid));
                ash_failpoint::reach("rewind.written");
                if written.is_err() && tree.is_none() {
                    home.uids.release(uid);
                }
                written.map(|()| PreparedTree { uid, fresh: tree.is_none(), composed: None })
            };
            EffectOutcome::RewindPrepared(services.bells.with_progress(no, &progress, blocking(work)).await)
        });
        Ok(())
    }

    /// In a shared workspace only the agent's own memory goes back, before the fact is committed. A crash in between
    /// leaves a memory that is older than the log, which the next start repairs.
    pub(super) async fn start_memory_rewind(&mut self) -> Result<()> {
        let checkpoint = match self.machine.rewind_target() {
            Some(to) => self.ctx.services.store.checkpoint(self.ctx.lease.workspace, to).await?,
            None => None,
        };
        let tree = checkpoint.ok_or(Error::NoCheckpoint).and_then(with_files);
        let tree = tree.and_then(|found| TreeId::parse(&found.tree).map_err(|_| Error::NoWorkspace));
        let tree = match tree {
            Ok(tree) => tree,
            Err(error) => return self.refuse_rewind(error).await,
        };
        let (workspace, repo) =
            (self.ctx.workspace.clone(), self.ctx.services.repo(&self.ctx.session.tenant)?);
        let inside = self.ctx.services.inside(&self.ctx.live);
        let kept = self.ctx.driver.memory_paths(&inside.workspace, self.ctx.session.native_id);
        let live = self.ctx.live.clone();
        self.begin_effect(async move {
            let _exclusive = workspace.exclusive().await;
            let uid = workspace.tree().and_then(|tree| tree.uid);
            // Without a tree there is nothing to replace: the next tree is made by what the log says.
            let prepared = PreparedTree { uid, fresh: false, composed: None };
            if workspace.tree().is_none() {
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
        });
        Ok(())
    }

    pub(super) async fn on_rewind_prepared(&mut self, prepared: Result<PreparedTree>) -> Result<()> {
        match prepared {
            Ok(prepared) => {
                if self.machine.rewind_prepared() {
                    self.prepared_tree = Some(prepared);
                }
                Ok(())
            }
            Err(error) => self.refuse_rewind(error).await,
        }
    }

    /// Commits the rewind; from then on it holds, even if this actor dies.
    pub(super) async fn rewind(&mut self, facts: Vec<Fact>) -> Result<()> {
        let Some(PreparedTree { uid, fresh, composed }) = self.prepared_tree.take() else {
            return self.refuse_rewind(Error::Gone).await;
        };
        let noted = match &composed {
            Some(composed) => self.commit_composed(facts, composed).await,
            None => self.commit_facts(facts.clone()).await.map(|()| facts),
        };
        let facts = match noted {
            Ok(facts) => facts,
            Err(error) => {
                if fresh {
                    self.ctx.services.uids.release(uid);
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
        tracing::info!(session = %self.ctx.session.id, checkpoint = self.machine.log.checkpoint, "rewound");
        if composed.is_some() || !self.is_shared() {
            self.put_in_place(uid).await;
            ash_failpoint::reach_async("rewind.placed").await;
        }
        drop(composed);
        if let Some(waiter) = self.machine.take_rewind() {
            self.waiters.answer(waiter, Ok(CommandReply { rewound, ..CommandReply::default() }));
        }
        Ok(())
    }

    /// A failure costs only time: the next start makes the tree again.
    async fn put_in_place(&mut self, uid: Option<u32>) {
        let stamp = LiveTreeStamp {
            epoch: self.ctx.lease.epoch,
            boot: self.ctx.services.settings.boot.clone(),
            uid,
            rewound: if self.is_shared() {
                self.ctx.workspace.last_rewind()
            } else {
                self.machine.log.rewound
            },
            fallback: None,
            mended: None,
            mends: BTreeMap::new(),
            outside: Vec::new(),
        };
        let live = self.ctx.live.clone();
        self.machine.runtime.capture.dirty = None;
        match blocking(move || live.replace(&stamp)).await {
            Ok(()) => self.ctx.workspace.set_tree(Some(LiveTree { uid })),
            Err(error) => {
                tracing::warn!(session = %self.ctx.session.id, %error, "the files of a rewind could not be put in place; the next start does it");
                self.ctx.workspace.set_tree(None);
                self.ctx.services.uids.release(uid);
            }
        }
    }
}

impl SessionActor {
    pub(super) async fn start_compose(&mut self) -> Result<()> {
        let Some(to) = self.machine.rewind_target() else {
            return self.refuse_rewind(Error::NoCheckpoint).await;
        };
        let checkpoint = self.ctx.services.store.checkpoint(self.ctx.lease.workspace, to).await?;
        let recipe = checkpoint.ok_or(Error::NoCheckpoint).and_then(with_files).and_then(|checkpoint| {
            recipe_of(
                &self.ctx.services,
                &self.ctx.session,
                &self.machine.log,
                &self.ctx.lease,
                &checkpoint.tree,
            )
        });
        let recipe = match recipe {
            Ok(recipe) => recipe,
            Err(error) => return self.refuse_rewind(error).await,
        };
        let job = self.capture_job();
        self.begin_effect(async move {
            EffectOutcome::RewindPrepared(compose_workspace_tree(job, recipe, to).await)
        });
        Ok(())
    }

    /// The current files become a checkpoint like any other; then one commit holds the rewind and the restored files.
    pub(super) async fn commit_composed(
        &mut self,
        facts: Vec<Fact>,
        composed: &ComposedTree,
    ) -> Result<Vec<Fact>> {
        let ComposedTree { before, after, to, .. } = composed;
        if let Some(before) = before {
            let saved = before.describe();
            let row = self.checkpoint_row(&saved, &before.snapshot, 1);
            self.commit(vec![Fact::Saved(saved)], Vec::new(), None, Some(row)).await?;
            self.ctx.workspace.set_newest(before.number);
            ash_failpoint::reach_async("rewind.way_back_recorded").await;
        }
        let from = self.machine.log.checkpoint;
        let facts = facts.into_iter().map(|fact| match fact {
            Fact::Rewound(rewound) => Fact::Rewound(SessionRewind { from, ..rewound }),
            other => other,
        });
        let saved = SavedCheckpoint { rewound_to: Some(*to), ..after.describe() };
        let facts: Vec<Fact> = facts.chain([Fact::Saved(saved.clone())]).collect();
        let row = self.checkpoint_row(&saved, &after.snapshot, facts.len() as u64);
        self.commit(facts.clone(), Vec::new(), None, Some(row)).await?;
        self.ctx.workspace.set_newest(after.number);
        self.ctx.workspace.set_last_rewind(after.number);
        Ok(facts)
    }

    /// Records rewinds by other sessions that happened while this one had no sandbox.
    pub(super) async fn note_workspace_rewinds(&mut self) -> Result<()> {
        if self.machine.log.awake.is_some()
            || self.ctx.workspace.last_rewind() <= self.machine.log.last_workspace_rewind
        {
            return Ok(());
        }
        let news = self
            .ctx
            .services
            .workspace_rewinds_since(&self.ctx.session, self.machine.log.last_workspace_rewind)
            .await?;
        match news.is_empty() {
            true => Ok(()),
            false => self.commit_facts(news.into_iter().map(Fact::WorkspaceRewound).collect()).await,
        }
    }
}
