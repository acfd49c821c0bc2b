//! What is in the place of the live tree. A user of the machine, or an agent without a sandbox, may have removed it, or
//! put a link in its place or in that of its workspace or home: no link is followed, and an incomplete tree is not
//! used.

use super::{LiveDirectory, make_dir, remove_if_there};
use crate::{Error, Result};
use ash_snapshot::Folder;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LiveTreeShape {
    /// A directory with a workspace and a home.
    Whole,
    Missing,
    /// One of the three directories is missing, or something else is in its place.
    Broken,
}

/// What is at a path, without following a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathEntryKind {
    Directory,
    Link,
    Other,
    Nothing,
}

fn found(path: &Path) -> PathEntryKind {
    match fs::symlink_metadata(path) {
        Ok(is) if is.is_dir() => PathEntryKind::Directory,
        Ok(is) if is.is_symlink() => PathEntryKind::Link,
        Ok(_) => PathEntryKind::Other,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PathEntryKind::Nothing,
        // It cannot be examined now: the next step reports the reason, if it needs the path.
        Err(_) => PathEntryKind::Directory,
    }
}

/// Opens the workspace or the home of a live tree, `<live>/<workspace>/tree/<root>`. A link in the place of any of the
/// three is not followed.
pub(crate) fn open_root(path: &Path) -> std::result::Result<Folder, ash_snapshot::Error> {
    open_last(path, 3)
}

fn open_last(path: &Path, names: usize) -> std::result::Result<Folder, ash_snapshot::Error> {
    let above = path.ancestors().nth(names).unwrap_or(Path::new("/"));
    let rest = path.strip_prefix(above).unwrap_or(path);
    let names: Vec<&OsStr> = rest.iter().collect();
    Folder::open_inside(above, &names)
}

const ROOTS: [&str; 2] = ["workspace", "home"];

impl LiveDirectory {
    pub(crate) fn shape(&self) -> LiveTreeShape {
        let tree = self.dir.join("tree");
        match (found(&self.dir), found(&tree)) {
            (PathEntryKind::Nothing, _) | (PathEntryKind::Directory, PathEntryKind::Nothing) => {
                LiveTreeShape::Missing
            }
            (PathEntryKind::Directory, PathEntryKind::Directory) => {
                let whole = ROOTS.iter().all(|root| found(&tree.join(root)) == PathEntryKind::Directory);
                if whole { LiveTreeShape::Whole } else { LiveTreeShape::Broken }
            }
            (PathEntryKind::Link | PathEntryKind::Other, _)
            | (PathEntryKind::Directory, PathEntryKind::Link | PathEntryKind::Other) => LiveTreeShape::Broken,
        }
    }

    /// Opens the tree itself.
    pub(super) fn open_tree(&self) -> std::result::Result<Folder, ash_snapshot::Error> {
        open_last(&self.dir.join("tree"), 2)
    }

    /// Marks the tree as untrusted: what is left of it is salvaged, and a new one is made. A link in its place is
    /// removed; its target stays unchanged.
    pub(crate) fn distrust(&self) -> Result<()> {
        self.forget_tracking();
        unlink(&self.dir)?;
        remove_if_there(&self.dir.join("stamp"))?;
        unlink(&self.dir.join("tree"))
    }

    /// Removes a link in the place of the whole directory before anything is read or written in it.
    pub(crate) fn remove_replacement(&self) -> Result<()> {
        unlink(&self.dir)
    }

    /// Whether anything is at this path, even a dangling link.
    pub(super) fn holds(&self, name: &str) -> bool {
        found(&self.dir.join(name)) != PathEntryKind::Nothing
    }
}

/// Removes anything but a directory from the place of a directory. The target of a link is logged and stays unchanged.
fn unlink(path: &Path) -> Result<()> {
    match found(path) {
        PathEntryKind::Directory | PathEntryKind::Nothing => Ok(()),
        PathEntryKind::Link | PathEntryKind::Other => {
            let target = fs::read_link(path).unwrap_or_default();
            tracing::warn!(path = %path.display(), target = %target.display(), "a directory of the tree was replaced by something else, which the server removes; the target of a link stays");
            remove_if_there(path)
        }
    }
}

/// Completes a tree before it is captured: a missing root becomes an empty directory, a link is removed, and a file in
/// the place of a root is kept inside it. False: there is nothing to capture.
pub(super) fn complete(tree: &Path) -> Result<bool> {
    let roots: Vec<PathBuf> = ROOTS.iter().map(|root| tree.join(root)).collect();
    if !roots.iter().any(|root| matches!(found(root), PathEntryKind::Directory | PathEntryKind::Other)) {
        return Ok(false);
    }
    for root in roots {
        match found(&root) {
            PathEntryKind::Directory => {}
            PathEntryKind::Link => {
                unlink(&root)?;
                make_dir(&root)?;
            }
            PathEntryKind::Nothing => make_dir(&root)?,
            PathEntryKind::Other => {
                let aside = root.with_extension("found");
                fs::rename(&root, &aside).map_err(Error::io("cannot put a file aside"))?;
                make_dir(&root)?;
                fs::rename(&aside, root.join("found")).map_err(Error::io("cannot keep a file"))?;
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::WorkspaceId;
    use std::os::unix::fs::symlink;

    fn live() -> (tempfile::TempDir, LiveDirectory) {
        let dir = tempfile::tempdir().expect("a directory");
        let live = LiveDirectory::new(dir.path(), WorkspaceId::fresh());
        for root in ROOTS {
            fs::create_dir_all(live.dir.join("tree").join(root)).expect("made");
        }
        (dir, live)
    }

    #[test]
    fn a_link_in_the_place_of_a_part_of_the_tree_is_not_a_tree_and_not_followed() {
        for part in ["", "tree", "tree/workspace", "tree/home"] {
            let (outside, live) = live();
            assert_eq!(live.shape(), LiveTreeShape::Whole);
            let (at, real) = (live.dir.join(part), outside.path().join("real"));
            let at: PathBuf = at.components().collect();
            fs::rename(&at, &real).expect("moved");
            symlink(&real, &at).expect("linked");
            assert_eq!(live.shape(), LiveTreeShape::Broken, "{part:?}");
            assert!(
                open_root(&live.workspace()).is_err() || open_root(&live.home()).is_err(),
                "{part:?} is followed"
            );
            fs::write(real.join("kept"), "kept").expect("written");
            live.distrust().expect("it goes");
            assert!(real.join("kept").exists(), "{part:?}: what it leads to stays");
            assert_ne!(live.shape(), LiveTreeShape::Whole);
        }
    }

    #[test]
    fn a_partial_tree_is_made_whole_to_be_captured() {
        let (_dir, live) = live();
        let tree = live.dir.join("tree");
        fs::remove_dir(live.workspace()).expect("removed");
        assert_eq!(live.shape(), LiveTreeShape::Broken);
        assert!(complete(&tree).expect("completed") && live.shape() == LiveTreeShape::Whole);
        fs::remove_dir(live.workspace()).expect("removed");
        fs::write(live.workspace(), "text").expect("written");
        assert!(complete(&tree).expect("completed"));
        assert_eq!(fs::read_to_string(live.workspace().join("found")).expect("kept"), "text");
        fs::remove_dir_all(&tree).expect("removed");
        assert_eq!(live.shape(), LiveTreeShape::Missing);
        assert!(!complete(&tree).expect("nothing"));
    }
}
