//! Whether something may have changed in the tree since it was captured. Nobody is at work in a tree that is settled: if it
//! is not as it was captured, it was changed from outside.

use super::{Live, is_excluded, remove_if_there, shape};
use crate::{Error, Result, path_list::PathList};
use ash_model::ComparedBy;
use ash_snapshot::{Audit, Audited, Doubt, Repo, Root, TreeId, What};
use std::fs;

/// Beside the tree: what it was captured as when the last one who could write to it was gone.
const SETTLED: &str = "settled";

/// What came of comparing the tree with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) by: ComparedBy,
    /// What is different although nobody was at work in it.
    pub(crate) outside: PathList,
    /// A link is where the checkpoint has a file or a directory, although nobody was at work in it.
    pub(crate) linked: bool,
}

impl Live {
    /// Nobody can write to it any more, and this is what it holds.
    pub(crate) fn settle(&self, tree: &TreeId) {
        // Without the mark a change from outside is taken for the session's own.
        if let Err(error) = fs::write(self.dir.join(SETTLED), tree.as_str()) {
            tracing::warn!(%error, "the tree could not be marked as settled");
        }
    }

    /// Somebody is about to write to it.
    pub(crate) fn unsettle(&self) -> Result<()> {
        remove_if_there(&self.dir.join(SETTLED))
    }

    pub(crate) fn settled(&self) -> Option<TreeId> {
        let text = fs::read_to_string(self.dir.join(SETTLED)).ok()?;
        TreeId::parse(&text).ok().filter(|_| !self.is_marked_dirty())
    }

    /// Compares the tree with a checkpoint. `but`: what of the home is compared in another way.
    pub(crate) fn compare(&self, repo: &Repo, tree: &TreeId, but: Option<&str>) -> Result<Comparison> {
        let settled = self.settled().is_some_and(|settled| settled.same_files(tree));
        let (workspace, home) = (shape::open_root(&self.workspace())?, shape::open_root(&self.home())?);
        let roots = [Root { name: "workspace", folder: &workspace }, Root { name: "home", folder: &home }];
        // What somebody worked on since is different, and rightly so: it need not be read.
        let doubt = if settled { Doubt::Read } else { Doubt::Believe };
        let index = self.index();
        let audit = Audit { tree, roots: &roots, index: &index, exclude: &is_excluded, doubt };
        let (mut outside, mut linked) = (PathList::default(), false);
        let audited = repo.audit(&audit, &mut |root, difference| {
            let elsewhere = root == "home" && but.is_some_and(|but| but.as_bytes() == difference.path);
            if settled && !elsewhere {
                outside.add(root, &difference.path);
                linked |= difference.what == What::Kind && is_link(&workspace, &home, root, &difference.path);
            }
        })?;
        let by = match audited {
            Audited::Metadata => ComparedBy::Metadata,
            Audited::Content => ComparedBy::Content,
        };
        Ok(Comparison { by, outside, linked })
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
        let (before, now) = (repo.leaves(before, root)?, repo.leaves(now, root)?);
        let changes = ash_snapshot::changes(before, now, &|_| Ok(None)).map_err(Error::from)?;
        changes.iter().for_each(|change| list.add(root, &change.path));
    }
    Ok(list)
}
