//! Rewinding the files of a shared workspace. The current files are captured first. Then the checkpoint's tree is
//! written beside them, with the present memories of the other sessions, and captured too: it becomes the newest
//! checkpoint. A crash before the record leaves everything as it was; after it, the next start makes the tree from that
//! checkpoint.

use super::{AgentMemoryTree, PreparedTree};
use crate::{
    Error, Result, blocking,
    capture::{CaptureJob, CheckpointCapture},
    live_directory::{LiveTree, TreeRecipe},
    machine::CaptureOccasion,
    workspace::{ExclusiveGuard, NoWriters},
};
use ash_model::{CaptureConsistency, SessionRowId};
use ash_snapshot::{FileOwner, Folder, SnapshotProgress, TreeId};
use ash_store::{SessionRow, WorkspaceSession};
use std::sync::Arc;

/// A tree that is written, captured and not in place yet. Until it is, no session can enter the workspace.
pub(crate) struct ComposedTree {
    /// The files before the rewind, for the way back, unless they equal the session's own last checkpoint.
    pub(crate) before: Option<CheckpointCapture>,
    pub(crate) after: CheckpointCapture,
    pub(crate) to: u64,
    _exclusive: ExclusiveGuard,
    _no_writers: NoWriters,
}

pub(crate) async fn compose_workspace_tree(
    saving: CaptureJob,
    recipe: TreeRecipe,
    to: u64,
) -> Result<PreparedTree> {
    let CaptureJob { services, live, workspace, session, .. } = saving.clone();
    let exclusive = workspace.exclusive().await;
    if !workspace.is_vacant(session.no) {
        return Err(Error::WorkspaceBusy("Another session is at work".to_owned()));
    }
    let no_writers = workspace.exclude_writers().await?;
    let newest = match workspace.newest() {
        Some(number) => services.store.checkpoint(session.workspace, number).await?,
        None => None,
    };
    let newest = newest.and_then(|newest| TreeId::parse(&newest.tree).ok()).ok_or(Error::NoCheckpoint)?;
    let own = workspace.newest() == saving.own.0;
    let before = saving.capture_tree(CaptureOccasion::BetweenTurns).await?;
    ash_failpoint::reach_async("rewind.captured").await;
    let before = before.filter(|shot| !own || !shot.snapshot.tree.same_files(&newest));
    let now = before.as_ref().map_or(newest, |shot| shot.snapshot.tree.clone());
    let (_, next) = saving.numbers();
    let number = next + u64::from(before.is_some());
    let kept = memories(&saving, session.no).await?;
    let (capture_notes, _) = saving.embedded_log(number, None).await?;
    let LiveTree { uid } = workspace.tree().ok_or(Error::NoWorkspace)?;
    let _turn = services.restore_permits.acquire().await.map_err(|_| Error::Stopping)?;
    let (home, progress) = (services.clone(), Arc::new(SnapshotProgress::default()));
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
        live.capture_prepared(&repo, &recipe.tree, &capture_notes)
    };
    let taken = services.bells.with_progress(session.no, &progress, blocking(work)).await?;
    ash_failpoint::reach_async("rewind.composed").await;
    let after = CheckpointCapture {
        number,
        snapshot: taken,
        consistency: CaptureConsistency::Frozen,
        concurrent_turns: Vec::new(),
    };
    let composed = ComposedTree { before, after, to, _exclusive: exclusive, _no_writers: no_writers };
    Ok(PreparedTree { uid, fresh: false, composed: Some(Box::new(composed)) })
}

/// Where the other sessions of the workspace store their agents' memories.
async fn memories(saving: &CaptureJob, but: SessionRowId) -> Result<Vec<String>> {
    let store = &saving.services.store;
    let cwd = saving.services.inside(&saving.live).workspace;
    let mut all = Vec::new();
    for WorkspaceSession { no, .. } in store.workspace_sessions(saving.session.workspace).await? {
        if let Some(SessionRow { runtime, native_id, .. }) = store.session(no).await?.filter(|_| no != but) {
            all.extend(ash_driver::driver(runtime).memory_paths(&cwd, native_id));
        }
    }
    Ok(all)
}
