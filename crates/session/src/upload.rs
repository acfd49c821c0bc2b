//! Many files that come at once: all of them are put into the workspace, or none is.
//!
//! They are written into a folder of ours beside the tree, where no sandbox sees them. When that is whole it gets a name that
//! says so, and only then its files are moved to their places, while nobody captures or replaces the tree. Checking first
//! and then writing into the workspace itself would do as long as nobody dies and nothing is in the way; this does
//! also if the server is killed between any two files: whoever takes the workspace over throws away what was not whole,
//! and goes on with what was. Only if the agent meanwhile put something in the way of the rest does what was moved before
//! the crash stay.

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

/// Says that everything of an upload is there.
const WHOLE: &str = "whole";
/// What is to be put in place, and what gave way to it until all of it is.
const FILES: &str = "files";
const REPLACED: &str = "aside";
/// What file systems give out at once.
const BLOCK: u64 = 4096;

/// An upload on its way. Dropped before it is put in place, nothing of it was ever there.
pub struct WorkspaceUpload {
    dir: PathBuf,
    files: Folder,
    uid: Option<u32>,
    /// As long as it is on its way nobody takes it for a dead server's.
    _common: Option<Arc<Workspace>>,
}

impl WorkspaceUpload {
    fn begin(common: Arc<Workspace>, uid: Option<u32>) -> Result<WorkspaceUpload> {
        let dir = common.live.uploads().join(uuid::Uuid::new_v4().to_string());
        for name in [FILES, REPLACED] {
            // Again: the end of another upload may have taken the folder of all of them away in between.
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

    /// Of a session that ended meanwhile, or whose workspace was deleted, nothing is there any more.
    fn if_there<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| if self.dir.exists() { error } else { Error::Moved })
    }

    /// A file that came before, under another name.
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
        // What is half erased must not be taken for whole.
        fs::remove_file(self.dir.join(WHOLE)).ok();
        if let Err(error) = Folder::erase(&self.dir) {
            tracing::warn!(%error, "an upload that is over could not be removed");
        }
        // The last one; others may be on their way.
        if let Some(uploads) = self.dir.parent() {
            fs::remove_dir(uploads).ok();
        }
    }
}

/// Whether there is room for something new in place of something old.
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
    /// Of a server that died in the middle: what was whole is put into the tree, if that is the one it was meant for.
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

/// What is nowhere any more was taken away meanwhile: by an end, a rewind, or somebody inside.
fn moved(error: Error) -> Error {
    match error {
        Error::Snapshot(ash_snapshot::Error::NotFound { .. }) => Error::Moved,
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Error::Moved,
        other => other,
    }
}

impl Sessions {
    /// Begins an upload of at least so much. `put` is what makes it count.
    pub async fn upload(&self, session: &SessionRow, least: DiskUsage) -> Result<WorkspaceUpload> {
        self.check_room_for_work()?;
        let most = of_disk(&self.rooms().bounds(session).await?).unwrap_or(DiskUsage::UNLIMITED);
        if let Some(reached) = resource_limits::reached(None, least, most) {
            return Err(Error::NoRoom(reached));
        }
        let common = self.rooms().workspace(session.workspace);
        // No pen is kept: whoever replaces the tree need not wait until all of it is written.
        let uid = match common.tree() {
            Some(LiveTree { uid }) => uid,
            None => self.files_to_write(session).await?.owner()?,
        };
        blocking(move || WorkspaceUpload::begin(common, uid).map_err(moved)).await
    }

    /// All of it. In one go for everybody who captures the files or replaces them.
    pub async fn commit_upload(&self, session: &SessionRow, upload: WorkspaceUpload) -> Result<()> {
        let common = self.rooms().workspace(session.workspace);
        let put = match self.ready_to_put(session, &common).await {
            Ok((most, place, floor)) => {
                blocking(move || {
                    let _floor = floor;
                    // Another tree since it was begun, whose owner the files would not have.
                    if place.owner()? != upload.uid {
                        return Err(Error::Moved);
                    }
                    upload.put(&common, most).map_err(moved)
                })
                .await
            }
            Err(error) => {
                // All that was written is removed with it.
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
                // Waited for without the pen: whoever has the floor may want that.
                None => drop(place),
            }
            drop(common.exclusive().await);
        }
    }

    /// Whether files of these sizes may come in place of what is there. Refused, nothing was written.
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
            // Not made yet, or lost: what it will hold is the agent's own files, or its last checkpoint.
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
    /// The uid of what is written here, if it has one of its own.
    fn owner(&self) -> Result<Option<u32>> {
        match &self.source {
            FileSource::Live { uid, .. } => Ok(*uid),
            FileSource::Checkpoint { .. } => Err(Error::NoWorkspace),
        }
    }
}

/// What files of these sizes will take.
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
