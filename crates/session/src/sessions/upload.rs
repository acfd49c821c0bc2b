//! Receives uploads into the workspace of a session, and refuses what its disk limit does not allow.

use super::Sessions;
use crate::{
    Error, Result, blocking,
    files::WorkspaceFiles,
    live_directory::{LiveTree, open_root},
    resource_limits::{self, of_disk},
    upload::{WorkspaceUpload, fits, moved, replaced, weight_of},
    workspace::{ExclusiveGuard, Workspace},
};
use ash_snapshot::{DiskUsage, RelPath};
use ash_store::SessionRow;

impl Sessions {
    /// Begins an upload of at least this size. Nothing changes in the workspace before `commit_upload`.
    pub async fn upload(&self, session: &SessionRow, least: DiskUsage) -> Result<WorkspaceUpload> {
        self.check_room_for_work()?;
        let most = of_disk(&self.services().bounds(session).await?).unwrap_or(DiskUsage::UNLIMITED);
        if let Some(reached) = resource_limits::reached(None, least, most) {
            return Err(Error::NoRoom(reached));
        }
        let workspace = self.services().workspace(session.workspace);
        // Holds no writer guard, so the tree can be replaced while the files are uploaded.
        let uid = match workspace.tree() {
            Some(LiveTree { uid }) => uid,
            None => self.files_to_write(session).await?.owner()?,
        };
        blocking(move || WorkspaceUpload::begin(workspace, uid).map_err(moved)).await
    }

    /// Puts all files in place, atomically for captures and replacements of the tree.
    pub async fn commit_upload(&self, session: &SessionRow, upload: WorkspaceUpload) -> Result<()> {
        let workspace = self.services().workspace(session.workspace);
        let put = match self.ready_to_put(session, &workspace).await {
            Ok((most, place, exclusive)) => {
                blocking(move || {
                    let _exclusive = exclusive;
                    // The tree was replaced meanwhile, and the files have the wrong owner for it.
                    if place.owner()? != upload.uid {
                        return Err(Error::Moved);
                    }
                    upload.put(&workspace, most).map_err(moved)
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
        workspace: &Workspace,
    ) -> Result<(Option<DiskUsage>, WorkspaceFiles, ExclusiveGuard)> {
        let most = of_disk(&self.services().bounds(session).await?);
        loop {
            let place = self.files_to_write(session).await?;
            match workspace.try_exclusive() {
                Some(exclusive) => return Ok((most, place, exclusive)),
                // Wait without the writer guard: the holder of the exclusive guard may need it.
                None => drop(place),
            }
            drop(workspace.exclusive().await);
        }
    }

    /// Whether files of these sizes fit in place of the existing ones. If not, nothing was written.
    pub async fn check_disk_limit(&self, session: &SessionRow, files: Vec<(RelPath, u64)>) -> Result<()> {
        self.check_room_for_work()?;
        let Some(most) = of_disk(&self.services().bounds(session).await?) else { return Ok(()) };
        let workspace = self.services().workspace(session.workspace);
        let new = weight_of(files.iter().map(|(_, size)| *size));
        if workspace.has_plenty(most, new) {
            return Ok(());
        }
        let _turn = self.services().disk_usage_permits.acquire().await.map_err(|_| Error::Stopping)?;
        blocking(move || match open_root(&workspace.live.workspace()) {
            Ok(tree) => fits(&workspace, most, (new, replaced(&tree, &files))).map_err(moved),
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
