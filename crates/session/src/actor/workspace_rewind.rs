//! Taking the files of a shared workspace back. What is there is captured first, the tree of the checkpoint is written
//! beside it, with what the other sessions remember now, and captured too: that is the newest checkpoint from then on.
//! Whoever dies before it is recorded leaves everything as it was, and after it the next start makes the tree from it.

use super::{
    EffectOutcome, SessionActor,
    capture::{CaptureJob, CheckpointCapture},
    rewind::PreparedTree,
    tree::recipe_of,
};
use crate::{
    Error, Result, blocking,
    history::standing,
    live_directory::TreeRecipe,
    machine::CaptureOccasion,
    workspace::{ExclusiveGuard, NoWriters},
};
use ash_model::{CaptureConsistency, Fact, SavedCheckpoint, SessionRewind, SessionRowId};
use ash_snapshot::{FileInfo, FileOwner, Folder, RelPath, Repo, SnapshotEntry, SnapshotProgress, TreeId};
use ash_store::SessionRow;
use std::sync::Arc;

/// A tree that is written, captured and not in place yet. Until it is, nobody comes in.
pub(super) struct ComposedTree {
    /// What was there before, unless it is the session's own last checkpoint: the way back.
    before: Option<CheckpointCapture>,
    after: CheckpointCapture,
    to: u64,
    _floor: ExclusiveGuard,
    _no_pens: NoWriters,
}

impl SessionActor {
    pub(super) async fn start_compose(&mut self) -> Result<()> {
        let Some(to) = self.machine.rewind_target() else {
            return self.refuse_rewind(Error::NoCheckpoint).await;
        };
        let checkpoint = self.ctx.services.store.checkpoint(self.ctx.lease.workspace, to).await?;
        let recipe = checkpoint.ok_or(Error::NoCheckpoint).and_then(standing).and_then(|checkpoint| {
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

    /// What was there becomes a checkpoint like any other; then, in one step, the rewind and what is there now.
    pub(super) async fn commit_composed(
        &mut self,
        facts: Vec<Fact>,
        composed: &ComposedTree,
    ) -> Result<Vec<Fact>> {
        let ComposedTree { before, after, to, .. } = composed;
        if let Some(before) = before {
            let saved = self.describe(before);
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
        let saved = SavedCheckpoint { rewound_to: Some(*to), ..self.describe(after) };
        let facts: Vec<Fact> = facts.chain([Fact::Saved(saved.clone())]).collect();
        let row = self.checkpoint_row(&saved, &after.snapshot, facts.len() as u64);
        self.commit(facts.clone(), Vec::new(), None, Some(row)).await?;
        self.ctx.workspace.set_newest(after.number);
        self.ctx.workspace.set_last_rewind(after.number);
        Ok(facts)
    }

    /// Of others who took the files back while this one rested.
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

async fn compose_workspace_tree(saving: CaptureJob, recipe: TreeRecipe, to: u64) -> Result<PreparedTree> {
    let CaptureJob { rooms, live, common, session, .. } = saving.clone();
    let floor = common.exclusive().await;
    if !common.is_vacant(session.no) {
        return Err(Error::WorkspaceBusy("Another session is at work".to_owned()));
    }
    let no_pens = common.exclude_writers().await?;
    let newest = match common.newest() {
        Some(number) => rooms.store.checkpoint(session.workspace, number).await?,
        None => None,
    };
    let newest = newest.and_then(|newest| TreeId::parse(&newest.tree).ok()).ok_or(Error::NoCheckpoint)?;
    let own = common.newest() == saving.own.0;
    let before = saving.capture_tree(CaptureOccasion::BetweenTurns).await?;
    ash_failpoint::reach_async("rewind.captured").await;
    let before = before.filter(|shot| !own || !shot.snapshot.tree.same_files(&newest));
    let now = before.as_ref().map_or(newest, |shot| shot.snapshot.tree.clone());
    let (_, next) = saving.numbers();
    let number = next + u64::from(before.is_some());
    let kept = memories(&saving, session.no).await?;
    let (luggage, _) = saving.embedded_log(number, None).await?;
    let uid = common.tree().ok_or(Error::NoWorkspace)?;
    let _turn = rooms.restore_permits.acquire().await.map_err(|_| Error::Stopping)?;
    let (home, progress) = (rooms.clone(), Arc::new(SnapshotProgress::default()));
    let counting = progress.clone();
    let tenant = session.tenant.clone();
    let work = move || {
        let repo = home.repo(&tenant)?;
        live.prepare(&recipe, (&repo, &counting), uid)?;
        ash_failpoint::reach("rewind.written");
        let folder = Folder::open(&live.prepared_home())?;
        let owner = uid.map(|uid| FileOwner { uid, gid: uid });
        let now = AgentMemoryTree::of(&repo, &now)?;
        kept.iter().try_for_each(|path| now.put_back(path, &folder, owner))?;
        live.capture_prepared(&repo, &recipe.tree, &luggage)
    };
    let taken = rooms.bells.with_progress(session.no, &progress, blocking(work)).await?;
    ash_failpoint::reach_async("rewind.composed").await;
    let after = CheckpointCapture {
        number,
        snapshot: taken,
        consistency: CaptureConsistency::Frozen,
        concurrent_turns: Vec::new(),
    };
    let composed = ComposedTree { before, after, to, _floor: floor, _no_pens: no_pens };
    Ok(PreparedTree { uid, fresh: false, composed: Some(Box::new(composed)) })
}

/// Where the other sessions of the workspace have what they remember.
async fn memories(saving: &CaptureJob, but: SessionRowId) -> Result<Vec<String>> {
    let store = &saving.rooms.store;
    let cwd = saving.rooms.inside(&saving.live).workspace;
    let mut all = Vec::new();
    for (no, _) in store.workspace_sessions(saving.session.workspace).await? {
        if let Some(SessionRow { runtime, native_id, .. }) = store.session(no).await?.filter(|_| no != but) {
            all.extend(ash_driver::driver(runtime).memory_paths(&cwd, native_id));
        }
    }
    Ok(all)
}

/// What agents remember, in a tree. An agent's home may hold any number of files: they are listed once.
pub(crate) struct AgentMemoryTree<'m> {
    repo: &'m Arc<Repo>,
    tree: &'m TreeId,
    files: Vec<FileInfo>,
}

impl<'m> AgentMemoryTree<'m> {
    pub(crate) fn of(repo: &'m Arc<Repo>, tree: &'m TreeId) -> Result<AgentMemoryTree<'m>> {
        Ok(AgentMemoryTree { repo, tree, files: repo.list(tree, "home")? })
    }

    /// What is at `from`, a file or a folder of them, written to `to`, over what is there.
    pub(crate) fn put(
        &self,
        (from, to): (&str, &str),
        home: &Folder,
        owner: Option<FileOwner>,
    ) -> Result<()> {
        for file in &self.files {
            let below = file.path.strip_prefix(from.as_bytes());
            let Some(below) = below.filter(|rest| rest.is_empty() || rest.starts_with(b"/")) else {
                continue;
            };
            let to = RelPath::from_bytes(&[to.as_bytes(), below].concat());
            let (Ok(path), Ok(to)) = (RelPath::from_bytes(&file.path), to) else { continue };
            if let Some(SnapshotEntry::File { mut content, .. }) = self.repo.read(self.tree, "home", &path)? {
                home.write_file(&to, &mut content, owner, 0o600)?;
            }
        }
        Ok(())
    }

    /// What is at a path becomes what it was then and nothing else: what it did not hold then is put aside.
    pub(crate) fn put_back(&self, path: &str, home: &Folder, owner: Option<FileOwner>) -> Result<()> {
        if !self.files.iter().any(|file| file.path == path.as_bytes()) {
            let at = RelPath::parse(path).map_err(ash_snapshot::Error::from)?;
            home.rename_aside(&at, &format!("rewound.{}", uuid::Uuid::new_v4()))?;
        }
        self.put((path, path), home, owner)
    }
}
