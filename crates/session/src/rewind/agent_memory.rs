//! Finds the agents' memories in a captured tree, so that a rewind can keep or restore them.

use crate::Result;
use ash_snapshot::{FileInfo, FileOwner, Folder, RelPath, Repo, SnapshotEntry, TreeId};
use std::sync::Arc;

/// The captured tree. Its files are listed once, because an agent's home may hold any number of files.
pub(crate) struct AgentMemoryTree<'m> {
    repo: &'m Arc<Repo>,
    tree: &'m TreeId,
    files: Vec<FileInfo>,
}

impl<'m> AgentMemoryTree<'m> {
    pub(crate) fn of(repo: &'m Arc<Repo>, tree: &'m TreeId) -> Result<AgentMemoryTree<'m>> {
        Ok(AgentMemoryTree { repo, tree, files: repo.list(tree, "home")? })
    }

    /// Writes the file or folder at `from` over what is at `to`.
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

    /// Restores a path to its captured state: what the capture does not hold is put aside.
    pub(crate) fn put_back(&self, path: &str, home: &Folder, owner: Option<FileOwner>) -> Result<()> {
        if !self.files.iter().any(|file| file.path == path.as_bytes()) {
            let at = RelPath::parse(path).map_err(ash_snapshot::Error::from)?;
            home.rename_aside(&at, &format!("rewound.{}", uuid::Uuid::new_v4()))?;
        }
        self.put((path, path), home, owner)
    }
}
