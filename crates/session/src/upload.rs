//! Uploads of many files at once: all of them are put into the workspace, or none is.
//!
//! An upload is first written into a directory beside the tree, where no sandbox sees it. A mark then says that it is
//! complete, and only after that its files move to their places, while the tree can be neither captured nor replaced.
//! Writing directly into the workspace would be atomic only without crashes and conflicts. With the mark, the server
//! may be killed between any two files: the next server drops incomplete uploads and finishes complete ones. One
//! exception remains: if the agent meanwhile blocks the way of the other files, those that moved before the crash stay.

use crate::{
    Error, Result,
    live_directory::{LiveDirectory, LiveTree, make_dir, open_root},
    resource_limits,
    workspace::Workspace,
};
use ash_snapshot::{DiskUsage, FileOwner, Folder, LinkPolicy, RelPath};
use std::{fs, io::Read, path::PathBuf, sync::Arc};

/// The mark that an upload is complete.
const WHOLE: &str = "whole";
/// The uploaded files, and the replaced files until all of the upload is in place.
const FILES: &str = "files";
const REPLACED: &str = "aside";
/// The allocation unit of file systems.
const BLOCK: u64 = 4096;

/// An upload in progress. Dropped before it is put in place, it leaves nothing behind.
pub struct WorkspaceUpload {
    dir: PathBuf,
    files: Folder,
    pub(crate) uid: Option<u32>,
    /// While this is held, the upload is not taken for that of a dead server.
    _workspace: Option<Arc<Workspace>>,
}

impl WorkspaceUpload {
    pub(crate) fn begin(workspace: Arc<Workspace>, uid: Option<u32>) -> Result<WorkspaceUpload> {
        let dir = workspace.live.uploads().join(uuid::Uuid::new_v4().to_string());
        for name in [FILES, REPLACED] {
            // Tried twice, because another upload that ends may remove the parent directory in between.
            make_dir(&dir.join(name)).or_else(|_| make_dir(&dir.join(name)))?;
        }
        Ok(WorkspaceUpload { files: Folder::open(&dir.join(FILES))?, dir, uid, _workspace: Some(workspace) })
    }

    fn owner(&self) -> Option<FileOwner> {
        self.uid.map(|uid| FileOwner { uid, gid: uid })
    }

    pub fn file(&self, path: &RelPath, bytes: &mut dyn Read, mode: u32) -> Result<()> {
        ash_failpoint::reach("upload.file");
        self.if_there(self.files.replace_file(path, bytes, self.owner(), mode).map(drop).map_err(Error::from))
    }

    /// If the session ended or its workspace was deleted meanwhile, the upload's directory is gone.
    fn if_there<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| if self.dir.exists() { error } else { Error::Moved })
    }

    /// A second path with the content of a file that was uploaded before.
    pub fn copy(&self, path: &RelPath, of: &RelPath) -> Result<()> {
        let (mut file, stat) = self.files.open_file(of, LinkPolicy::Refuse)?;
        self.file(path, &mut file, stat.mode)
    }

    pub fn link(&self, path: &RelPath, target: &[u8]) -> Result<()> {
        self.if_there(self.files.symlink(path, target, self.owner()).map_err(Error::from))
    }

    pub fn folder(&self, path: &RelPath) -> Result<()> {
        self.if_there(self.files.make_subfolder(path, self.owner()).map_err(Error::from))
    }

    pub(crate) fn put(self, workspace: &Workspace, most: Option<DiskUsage>) -> Result<()> {
        self.if_there(self.put_in(workspace, most))
    }

    fn put_in(&self, workspace: &Workspace, most: Option<DiskUsage>) -> Result<()> {
        let tree = open_root(&workspace.live.workspace())?;
        let replaced = tree.measure_replaced(&self.files)?;
        if let Some(most) = most {
            fits(workspace, most, (self.files.measure(DiskUsage::UNLIMITED)?, replaced))?;
        }
        ash_failpoint::reach("upload.written");
        fs::write(self.dir.join(WHOLE), b"").map_err(Error::io("cannot finish an upload"))?;
        ash_failpoint::reach("upload.whole");
        self.finish(&tree)
    }

    fn finish(&self, tree: &Folder) -> Result<()> {
        let aside = self.dir.join(REPLACED);
        Folder::erase(&aside)?;
        make_dir(&aside)?;
        Ok(tree.merge(&self.files, &Folder::open(&aside)?, self.owner())?)
    }
}

impl Drop for WorkspaceUpload {
    fn drop(&mut self) {
        // A partly erased upload must not be taken for a complete one.
        fs::remove_file(self.dir.join(WHOLE)).ok();
        if let Err(error) = Folder::erase(&self.dir) {
            tracing::warn!(%error, "the files of a finished upload could not be removed");
        }
        // Succeeds only for the last upload; others may be in progress.
        if let Some(uploads) = self.dir.parent() {
            fs::remove_dir(uploads).ok();
        }
    }
}

/// Whether new files fit in place of old ones.
pub(crate) fn fits(workspace: &Workspace, most: DiskUsage, (new, old): (DiskUsage, DiskUsage)) -> Result<()> {
    if workspace.has_plenty(most, new) {
        return Ok(());
    }
    let room = |most: u64, new: u64, old: u64| most.saturating_add(old).saturating_sub(new);
    let room = DiskUsage {
        bytes: room(most.bytes, new.bytes, old.bytes),
        files: room(most.files, new.files, old.files),
    };
    let is = resource_limits::weigh(&workspace.live, room)?;
    let then = DiskUsage {
        bytes: is.bytes.saturating_add(new.bytes).saturating_sub(old.bytes),
        files: is.files.saturating_add(new.files).saturating_sub(old.files),
    };
    match resource_limits::reached(None, then, most) {
        Some(reached) => Err(Error::NoRoom(reached)),
        None => {
            workspace.set_disk_usage(then);
            Ok(())
        }
    }
}

impl LiveDirectory {
    /// Handles uploads of a dead server: complete ones are put into the tree, if it is the one that they were meant
    /// for.
    pub(crate) fn settle_uploads(&self, tree: Option<LiveTree>) -> Result<()> {
        let Ok(found) = fs::read_dir(self.uploads()) else { return Ok(()) };
        for dir in found.flatten().map(|entry| entry.path()) {
            let Ok(files) = Folder::open(&dir.join(FILES)) else {
                Folder::erase(&dir)?;
                continue;
            };
            let upload =
                WorkspaceUpload { dir, files, uid: tree.and_then(|tree| tree.uid), _workspace: None };
            if let (Some(_), true) = (tree, upload.dir.join(WHOLE).exists())
                && let Err(error) = upload.finish(&open_root(&self.workspace())?)
            {
                tracing::warn!(%error, "an upload of an earlier server no longer fits into the workspace: the server drops it");
            }
        }
        fs::remove_dir(self.uploads()).ok();
        Ok(())
    }
}

/// A file that is missing was removed meanwhile: by the session's end, a rewind, or a process in the sandbox.
pub(crate) fn moved(error: Error) -> Error {
    match error {
        Error::Snapshot(ash_snapshot::Error::NotFound { .. }) => Error::Moved,
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Error::Moved,
        other => other,
    }
}

/// The disk usage of files of these sizes.
pub fn weight_of(sizes: impl Iterator<Item = u64>) -> DiskUsage {
    let blocks = |size: u64| size.div_ceil(BLOCK).saturating_mul(BLOCK);
    sizes.fold(DiskUsage::default(), |sum, size| sum.plus(DiskUsage { bytes: blocks(size), files: 1 }))
}

pub(crate) fn replaced(tree: &Folder, files: &[(RelPath, u64)]) -> DiskUsage {
    let mut paths: Vec<&RelPath> = files.iter().map(|(path, _)| path).collect();
    paths.sort_unstable();
    paths.dedup();
    let size = |path: &&RelPath| tree.open_file(path, LinkPolicy::Refuse).ok().map(|(_, stat)| stat.size);
    weight_of(paths.iter().filter_map(size))
}
