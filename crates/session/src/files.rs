//! A session's files for clients: from the live tree while there is one, else from its checkpoint. Everything goes
//! through `ash_snapshot`, which opens beneath a directory handle and follows no link that leads outside. Blocking.

use crate::{Error, Result, live_directory::open_root, workspace::WriterGuard};
use ash_snapshot::{
    FileInfo, FileOwner, FileStat, Folder, LinkPolicy, PathChange, RelPath, Repo, SnapshotEntry, TreeId,
    changes,
};
use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The longest listing: an agent that creates many small files must not fill the server's memory.
pub(crate) const MAX_FILES: usize = 200_000;

/// Who may write to the live tree now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeState {
    /// A sandbox runs on it.
    InSandbox,
    /// The last sandbox has left it; clients may have written since.
    Kept,
}

#[derive(Debug, Clone)]
pub enum FileSource {
    Live { workspace: PathBuf, uid: Option<u32>, state: TreeState },
    Checkpoint { tree: TreeId },
}

/// A workspace's files, as they are now or in a checkpoint.
pub struct WorkspaceFiles {
    pub(crate) source: FileSource,
    pub(crate) repo: Arc<Repo>,
    /// Held by a caller that writes: the tree is not replaced meanwhile.
    pub(crate) _pen: Option<WriterGuard>,
}

pub enum FileLookup {
    File {
        size: u64,
        mtime_ms: i64,
        bytes: Box<dyn Read + Send>,
    },
    NotAFile,
    /// The agent has removed the permission to read it, even for the server, which owns the file.
    PermissionDenied,
    NotFound,
}

impl FileLookup {
    /// Reads at most the size at the time of opening, because a process may append for ever.
    pub(crate) fn live(file: std::fs::File, FileStat { size, mtime_ms, .. }: FileStat) -> FileLookup {
        FileLookup::File { size, mtime_ms, bytes: Box::new(file.take(size)) }
    }

    pub(crate) fn stored(entry: Option<SnapshotEntry>) -> FileLookup {
        match entry {
            Some(SnapshotEntry::File { size, mtime_ms, content }) => {
                FileLookup::File { size, mtime_ms, bytes: Box::new(content) }
            }
            Some(SnapshotEntry::Link(_) | SnapshotEntry::Dir) => FileLookup::NotAFile,
            None => FileLookup::NotFound,
        }
    }
}

impl FileSource {
    /// The name that clients know it by.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            FileSource::Live { state: TreeState::InSandbox, .. } => "sandbox",
            FileSource::Live { state: TreeState::Kept, .. } | FileSource::Checkpoint { .. } => "snapshot",
        }
    }
}

impl WorkspaceFiles {
    /// The name that clients know it by.
    pub fn name(&self) -> &'static str {
        self.source.name()
    }

    pub fn list(&self, skip: &dyn Fn(&[u8], bool) -> bool) -> Result<Vec<FileInfo>> {
        match &self.source {
            FileSource::Live { workspace, .. } => Ok(open(workspace)?.walk(skip, MAX_FILES)?),
            FileSource::Checkpoint { tree } => {
                let files = self.repo.list(tree, "workspace")?;
                Ok(files.into_iter().filter(|file| !is_skipped(&file.path, skip)).collect())
            }
        }
    }

    pub fn open(&self, path: &RelPath) -> Result<FileLookup> {
        match &self.source {
            FileSource::Live { workspace, .. } => {
                match open(workspace)?.open_file(path, LinkPolicy::Inside) {
                    Ok((file, stat)) => Ok(FileLookup::live(file, stat)),
                    Err(error) => missing_or(error),
                }
            }
            FileSource::Checkpoint { tree } => {
                Ok(FileLookup::stored(self.repo.read(tree, "workspace", path)?))
            }
        }
    }

    /// What differs from an earlier tree, sorted by path. Times and permissions do not count, except whether a file can
    /// be executed. `skip(name, is_dir)` leaves a file or a whole directory out.
    pub fn changes(&self, since: &TreeId, skip: &dyn Fn(&[u8], bool) -> bool) -> Result<Vec<PathChange>> {
        let mut before = self.repo.entries(since, "workspace")?;
        before.retain(|leaf| !is_skipped(&leaf.path, skip));
        match &self.source {
            FileSource::Live { workspace, .. } => {
                let folder = open(workspace)?;
                let now = folder.entries(skip, MAX_FILES)?;
                if now.len() == MAX_FILES {
                    return Err(Error::TooManyFiles(MAX_FILES));
                }
                Ok(changes(before, now, &|path| self.repo.content_id(&folder, path))?)
            }
            FileSource::Checkpoint { tree } => {
                let mut now = self.repo.entries(tree, "workspace")?;
                now.retain(|leaf| !is_skipped(&leaf.path, skip));
                Ok(changes(before, now, &|_| Ok(None))?)
            }
        }
    }

    /// Only for files that the caller opened for writing.
    pub fn write(&self, path: &RelPath, bytes: &mut dyn Read) -> Result<u64> {
        let (folder, owner) = self.writable()?;
        Ok(folder.write_file(path, bytes, owner, 0o644)?)
    }

    pub fn remove(&self, path: &RelPath) -> Result<FileLookup> {
        let (folder, _) = self.writable()?;
        match folder.remove_file(path) {
            Ok(()) => Ok(FileLookup::File { size: 0, mtime_ms: 0, bytes: Box::new(std::io::empty()) }),
            Err(error) => missing_or(error),
        }
    }

    fn writable(&self) -> Result<(Folder, Option<FileOwner>)> {
        match &self.source {
            FileSource::Live { workspace, uid, .. } => {
                Ok((open(workspace)?, uid.map(|uid| FileOwner { uid, gid: uid })))
            }
            FileSource::Checkpoint { .. } => Err(Error::NoWorkspace),
        }
    }
}

/// Opens the workspace. Since the caller looked up where the tree is, it may have been replaced or deleted.
pub(crate) fn open(workspace: &Path) -> Result<Folder> {
    open_root(workspace).map_err(|error| match error {
        ash_snapshot::Error::NotFound { .. } | ash_snapshot::Error::Outside { .. } => Error::Moved,
        error => error.into(),
    })
}

fn is_skipped(path: &[u8], skip: &dyn Fn(&[u8], bool) -> bool) -> bool {
    let mut names = path.split(|byte| *byte == b'/').peekable();
    while let Some(name) = names.next() {
        if skip(name, names.peek().is_some()) {
            return true;
        }
    }
    false
}

/// An agent may remove permissions from its files, and a server without root rights then cannot read them.
pub fn is_closed(error: &ash_snapshot::Error) -> bool {
    let denied = |source: &std::io::Error| source.kind() == std::io::ErrorKind::PermissionDenied;
    matches!(error, ash_snapshot::Error::Io { source, .. } if denied(source))
}

pub(crate) fn missing_or(error: ash_snapshot::Error) -> Result<FileLookup> {
    match error.kind() {
        ash_snapshot::SnapshotErrorKind::Io if is_closed(&error) => Ok(FileLookup::PermissionDenied),
        ash_snapshot::SnapshotErrorKind::NotFound => Ok(FileLookup::NotFound),
        // A link that leads outside is not a file of this workspace.
        ash_snapshot::SnapshotErrorKind::NotAFile | ash_snapshot::SnapshotErrorKind::Invalid => {
            Ok(FileLookup::NotAFile)
        }
        ash_snapshot::SnapshotErrorKind::Full
        | ash_snapshot::SnapshotErrorKind::Damaged
        | ash_snapshot::SnapshotErrorKind::Io => Err(error.into()),
    }
}

impl WorkspaceFiles {
    /// The uid of new files, if the workspace has one of its own.
    pub(crate) fn owner(&self) -> Result<Option<u32>> {
        match &self.source {
            FileSource::Live { uid, .. } => Ok(*uid),
            FileSource::Checkpoint { .. } => Err(Error::NoWorkspace),
        }
    }
}
