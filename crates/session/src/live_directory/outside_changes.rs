//! Detects changes from outside. No process works in a settled tree: if it differs from its last capture, it was
//! changed from outside.

use super::{LiveDirectory, capture::is_excluded, remove_if_there, tree_shape};
use crate::{Error, Result, path_list::PathList};
use ash_model::ComparisonMethod;
use ash_snapshot::{
    CaptureRoot, DifferenceKind, FolderCheck, FolderCheckMethod, MismatchPolicy, Repo, TreeId,
};
use std::fs;
use uuid::Uuid;

/// The file beside the tree with the id of its capture, written when nothing could write to the tree any more.
const SETTLED: &str = "settled";

/// The result of comparing the tree with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveTreeComparison {
    pub(crate) by: ComparisonMethod,
    /// Differences in a settled tree.
    pub(crate) outside: PathList,
    /// A settled tree has a link where the checkpoint has a file or a directory.
    pub(crate) linked: bool,
}

impl LiveDirectory {
    /// Notes that nothing can write to the tree any more, and what it holds.
    pub(crate) fn mark_settled(&self, tree: &TreeId) {
        // Without the mark a change from outside is taken for the session's own.
        if let Err(error) = fs::write(self.dir.join(SETTLED), tree.as_str()) {
            tracing::warn!(%error, "the tree could not be marked as settled");
        }
    }

    /// Called before something writes to the tree.
    pub(crate) fn unmark_settled(&self) -> Result<()> {
        remove_if_there(&self.dir.join(SETTLED))
    }

    pub(crate) fn settled(&self) -> Option<TreeId> {
        let text = fs::read_to_string(self.dir.join(SETTLED)).ok()?;
        TreeId::parse(&text).ok().filter(|_| !self.is_marked_dirty())
    }

    /// Compares the tree with a checkpoint, except the paths `apart` in the home.
    pub(crate) fn compare(
        &self,
        repo: &Repo,
        tree: &TreeId,
        apart: &AgentMemoryPaths,
    ) -> Result<LiveTreeComparison> {
        let settled = self.settled().is_some_and(|settled| settled.same_files(tree));
        let (workspace, home) =
            (tree_shape::open_root(&self.workspace())?, tree_shape::open_root(&self.home())?);
        let roots = [
            CaptureRoot { name: "workspace", folder: &workspace },
            CaptureRoot { name: "home", folder: &home },
        ];
        // In a tree that is not settled, differences are expected, so their content need not be read.
        let doubt = if settled { MismatchPolicy::Read } else { MismatchPolicy::Believe };
        let index = self.index();
        let audit = FolderCheck { tree, roots: &roots, index: &index, exclude: &is_excluded, doubt };
        let (mut outside, mut linked) = (PathList::default(), false);
        let audited = repo.check_folders(&audit, &mut |root, difference| {
            if settled && !(root == "home" && apart.contains(&difference.path)) {
                outside.add(root, &difference.path);
                linked |= difference.what == DifferenceKind::Kind
                    && is_link(&workspace, &home, root, &difference.path);
            }
        })?;
        let by = match audited {
            FolderCheckMethod::Metadata => ComparisonMethod::Metadata,
            FolderCheckMethod::Content => ComparisonMethod::Content,
        };
        Ok(LiveTreeComparison { by, outside, linked })
    }
}

/// Paths in the home that are checked separately: agents' own memories.
#[derive(Debug, Clone)]
pub(crate) struct AgentMemoryPaths {
    /// Compared with the log, message by message.
    pub(crate) transcript: Option<String>,
    /// In a shared workspace: paths named by the id of another conversation belong to that conversation.
    pub(crate) all_but: Option<Uuid>,
}

impl AgentMemoryPaths {
    /// Whether the path is one of them, or a directory that leads to the transcript.
    fn contains(&self, path: &[u8]) -> bool {
        let path = String::from_utf8_lossy(path);
        let leads_to = |transcript: &str| {
            transcript.strip_prefix(&*path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let id = |name: &str| Uuid::parse_str(name.split('.').next().unwrap_or(name)).ok();
        let mut ids = path.split('/').filter_map(id);
        self.transcript.as_deref().is_some_and(leads_to)
            || self.all_but.is_some_and(|own| ids.any(|id| id != own))
    }
}

fn is_link(workspace: &ash_snapshot::Folder, home: &ash_snapshot::Folder, root: &str, path: &[u8]) -> bool {
    let folder = if root == "home" { home } else { workspace };
    ash_snapshot::RelPath::from_bytes(path).is_ok_and(|path| folder.read_link(&path).is_ok())
}

/// What was changed from outside in a tree that was settled as `before` and is captured as `now`.
pub(crate) fn changed(repo: &Repo, before: &TreeId, now: &TreeId) -> Result<PathList> {
    let mut list = PathList::default();
    if before.same_files(now) {
        return Ok(list);
    }
    for root in ["workspace", "home"] {
        let (before, now) = (repo.entries(before, root)?, repo.entries(now, root)?);
        let changes = ash_snapshot::changes(before, now, &|_| Ok(None)).map_err(Error::from)?;
        changes.iter().for_each(|change| list.add(root, &change.path));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_memory_is_compared_separately_and_nothing_else_of_its_home() {
        let (own, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let transcript = Some(format!(".claude/projects/-workspace/{own}.jsonl"));
        let alone = AgentMemoryPaths { transcript: transcript.clone(), all_but: None };
        let shared = AgentMemoryPaths { transcript, all_but: Some(own) };
        let others = format!(".ash/agent/{other}.jsonl");
        for (path, of_one, of_many) in [
            (format!(".claude/projects/-workspace/{own}.jsonl"), true, true),
            (".claude/projects".to_owned(), true, true),
            (".claude/proj".to_owned(), false, false),
            (format!(".ash/session/{own}/plan.md"), false, false),
            (others, false, true),
            (".bashrc".to_owned(), false, false),
        ] {
            let found = (alone.contains(path.as_bytes()), shared.contains(path.as_bytes()));
            assert_eq!(found, (of_one, of_many), "{path}");
        }
    }
}
