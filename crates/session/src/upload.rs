//! Uploads of many files at once: all of them are put into the workspace, or none is.
//!
//! An upload is first written into a directory beside the tree, where no sandbox sees it. A mark then says that it is
//! complete, and only after that its files move to their places, while the tree can be neither captured nor replaced.
//! Writing directly into the workspace would be atomic only without crashes and conflicts. With the mark, the server
//! may be killed between any two files: the next server drops incomplete uploads and finishes complete ones. One
//! exception remains: if the agent meanwhile blocks the way of the other files, those that moved before the crash stay.

use crate::{
    Error, Result, Sessions, blocking,
    files::{FileSource, WorkspaceFiles},
    live_directory::{LiveDirectory, LiveTree, make_dir, open_root},
    resource_limits::{self, of_disk},
    workspace::{ExclusiveGuard, Workspace},
};
use ash_snapshot::{DiskUsage, FileOwner, Folder, LinkPolicy, RelPath};
use ash_store::SessionRow;
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
    uid: Option<u32>,
    /// While this is held, the upload is not taken for that of a dead server.
    _common: Option<Arc<Workspace>>,
}

impl WorkspaceUpload {
    fn begin(common: Arc<Workspace>, uid: Option<u32>) -> Result<WorkspaceUpload> {
        let dir = common.live.uploads().join(uuid::Uuid::new_v4().to_string());
        for name in [FILES, REPLACED] {
            // Tried twice, because another upload that ends may remove the parent directory in between.
            make_dir(&dir.join(name)).or_else(|_| make_dir(&dir.join(name)))?;
        }
        Ok(WorkspaceUpload { files: Folder::open(&dir.join(FILES))?, dir, uid, _common: Some(common) })
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

    fn put(self, common: &Workspace, most: Option<DiskUsage>) -> Result<()> {
        self.if_there(self.put_in(common, most))
    }

    fn put_in(&self, common: &Workspace, most: Option<DiskUsage>) -> Result<()> {
        let tree = open_root(&common.live.workspace())?;
        let replaced = tree.measure_replaced(&self.files)?;
        if let Some(most) = most {
            fits(common, most, (self.files.measure(DiskUsage::UNLIMITED)?, replaced))?;
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
            tracing::warn!(%error, "an upload that is over could not be removed");
        }
        // Succeeds only for the last upload; others may be in progress.
        if let Some(uploads) = self.dir.parent() {
            fs::remove_dir(uploads).ok();
        }
    }
}

/// Whether new files fit in place of old ones.
fn fits(common: &Workspace, most: DiskUsage, (new, old): (DiskUsage, DiskUsage)) -> Result<()> {
    if common.has_plenty(most, new) {
        return Ok(());
    }
    let room = |most: u64, new: u64, old: u64| most.saturating_add(old).saturating_sub(new);
    let room = DiskUsage {
        bytes: room(most.bytes, new.bytes, old.bytes),
        files: room(most.files, new.files, old.files),
    };
    let is = resource_limits::weigh(&common.live, room)?;
    let then = DiskUsage {
        bytes: is.bytes.saturating_add(new.bytes).saturating_sub(old.bytes),
        files: is.files.saturating_add(new.files).saturating_sub(old.files),
    };
    match resource_limits::reached(None, then, most) {
        Some(reached) => Err(Error::NoRoom(reached)),
        None => {
            common.set_disk_usage(then);
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
            let upload = WorkspaceUpload { dir, files, uid: tree.and_then(|tree| tree.uid), _common: None };
            if let (Some(_), true) = (tree, upload.dir.join(WHOLE).exists())
                && let Err(error) = upload.finish(&open_root(&self.workspace())?)
            {
                tracing::warn!(%error, "an upload that a dead server had begun does not fit any more: it is dropped");
            }
        }
        fs::remove_dir(self.uploads()).ok();
        Ok(())
    }
}

/// A file that is missing was removed meanwhile: by the session's end, a rewind, or a process in the sandbox.
fn moved(error: Error) -> Error {
    match error {
        Error::Snapshot(ash_snapshot::Error::NotFound { .. }) => Error::Moved,
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Error::Moved,
        other => other,
    }
}

impl Sessions {
    /// Begins an upload of at least this size. Nothing changes in the workspace before `commit_upload`.
    pub async fn upload(&self, session: &SessionRow, least: DiskUsage) -> Result<WorkspaceUpload> {
        self.check_room_for_work()?;
        let most = of_disk(&self.rooms().bounds(session).await?).unwrap_or(DiskUsage::UNLIMITED);
        if let Some(reached) = resource_limits::reached(None, least, most) {
            return Err(Error::NoRoom(reached));
        }
        let common = self.rooms().workspace(session.workspace);
        // Holds no writer guard, so the tree can be replaced while the files are uploaded.
        let uid = match common.tree() {
            Some(LiveTree { uid }) => uid,
            None => self.files_to_write(session).await?.owner()?,
        };
        blocking(move || WorkspaceUpload::begin(common, uid).map_err(moved)).await
    }

    /// Puts all files in place, atomically for captures and replacements of the tree.
    pub async fn commit_upload(&self, session: &SessionRow, upload: WorkspaceUpload) -> Result<()> {
        let common = self.rooms().workspace(session.workspace);
        let put = match self.ready_to_put(session, &common).await {
            Ok((most, place, floor)) => {
                blocking(move || {
                    let _floor = floor;
                    // The tree was replaced meanwhile, and the files have the wrong owner for it.
                    if place.owner()? != upload.uid {
                        return Err(Error::Moved);
                    }
                    upload.put(&common, most).map_err(moved)
                })
                .await
            }
            Err(error) => {
                // Dropping the upload removes all that was written.
                blocking(move || {
                    drop(upload);
                    Ok(())
                })
                .await?;
                Err(error)
            }
        };
        self.touched(session.no).await?;
        put
    }

    async fn ready_to_put(
        &self,
        session: &SessionRow,
        common: &Workspace,
    ) -> Result<(Option<DiskUsage>, WorkspaceFiles, ExclusiveGuard)> {
        let most = of_disk(&self.rooms().bounds(session).await?);
        loop {
            let place = self.files_to_write(session).await?;
            match common.try_exclusive() {
                Some(floor) => return Ok((most, place, floor)),
                // Wait without the writer guard: the holder of the exclusive guard may need it.
                None => drop(place),
            }
            drop(common.exclusive().await);
        }
    }

    /// Whether files of these sizes fit in place of the existing ones. If not, nothing was written.
    pub async fn check_disk_limit(&self, session: &SessionRow, files: Vec<(RelPath, u64)>) -> Result<()> {
        self.check_room_for_work()?;
        let Some(most) = of_disk(&self.rooms().bounds(session).await?) else { return Ok(()) };
        let common = self.rooms().workspace(session.workspace);
        let new = weight_of(files.iter().map(|(_, size)| *size));
        if common.has_plenty(most, new) {
            return Ok(());
        }
        let _turn = self.rooms().disk_usage_permits.acquire().await.map_err(|_| Error::Stopping)?;
        blocking(move || match open_root(&common.live.workspace()) {
            Ok(tree) => fits(&common, most, (new, replaced(&tree, &files))).map_err(moved),
            // The tree does not exist yet, or is lost: it will hold the agent's own files, or its last checkpoint.
            Err(ash_snapshot::Error::NotFound { .. } | ash_snapshot::Error::Outside { .. }) => {
                resource_limits::reached(None, new, most)
                    .map_or(Ok(()), |reached| Err(Error::NoRoom(reached)))
            }
            Err(error) => Err(error.into()),
        })
        .await
    }
}

impl WorkspaceFiles {
    /// The uid of new files, if the workspace has one of its own.
    fn owner(&self) -> Result<Option<u32>> {
        match &self.source {
            FileSource::Live { uid, .. } => Ok(*uid),
            FileSource::Checkpoint { .. } => Err(Error::NoWorkspace),
        }
    }
}

/// The disk usage of files of these sizes.
pub fn weight_of(sizes: impl Iterator<Item = u64>) -> DiskUsage {
    let blocks = |size: u64| size.div_ceil(BLOCK).saturating_mul(BLOCK);
    sizes.fold(DiskUsage::default(), |sum, size| sum.plus(DiskUsage { bytes: blocks(size), files: 1 }))
}

fn replaced(tree: &Folder, files: &[(RelPath, u64)]) -> DiskUsage {
    let mut paths: Vec<&RelPath> = files.iter().map(|(path, _)| path).collect();
    paths.sort_unstable();
    paths.dedup();
    let size = |path: &&RelPath| tree.open_file(path, LinkPolicy::Refuse).ok().map(|(_, stat)| stat.size);
    weight_of(paths.iter().filter_map(size))
}
