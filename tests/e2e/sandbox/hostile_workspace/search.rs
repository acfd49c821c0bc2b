//! Checks that no capture contains anything from outside.

use super::{LARGEST_BUNDLE, Stage};
use ash_snapshot::{ContentId, FileEntryKind, RelPath, Repo, SnapshotEntry};
use std::{io::Read, path::Path, sync::Arc};

impl Stage {
    /// Every capture, except the other session's own.
    pub(super) fn search(&self, repo: &Path) {
        let repo = Arc::new(Repo::open(repo).expect("a repository"));
        let (snapshots, damaged) = repo.snapshots().expect("listed");
        assert!(damaged.is_empty(), "{damaged:?}");
        let (mut files, mut seen): (usize, Vec<ContentId>) = (0, Vec::new());
        for snapshot in &snapshots {
            for root in ["workspace", "home", "files"] {
                // Each snapshot has some of these roots.
                let leaves = match repo.entries(&snapshot.tree, root) {
                    Err(ash_snapshot::Error::NotFound { .. }) => continue,
                    leaves => leaves.expect("listed"),
                };
                if leaves.iter().any(|leaf| leaf.path == b"secret.txt") {
                    break;
                }
                for leaf in leaves {
                    self.is_clean("a name", &leaf.path);
                    let FileEntryKind::File { size, content: Some(id), .. } = leaf.what else { continue };
                    files += 1;
                    if size > LARGEST_BUNDLE || seen.contains(&id) {
                        continue;
                    }
                    seen.push(id);
                    let path = RelPath::from_walk(&leaf.path).expect("a path");
                    let entry = repo.read(&snapshot.tree, root, &path).expect("read");
                    let Some(SnapshotEntry::File { mut content, .. }) = entry else {
                        panic!("{path} is a file")
                    };
                    let mut bytes = Vec::new();
                    content.read_to_end(&mut bytes).expect("read");
                    self.is_clean("a checkpoint", &bytes);
                }
            }
        }
        println!("{} snapshots, {files} files, {} contents", snapshots.len(), seen.len());
        assert!(snapshots.len() > 1 && files > 100, "hardly anything was captured");
    }
}
