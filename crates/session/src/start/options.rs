//! What the session's options require in the sandbox before the agent starts: folders, and links to other folders. The
//! sandbox may be at work in them meanwhile, so everything is opened by handle.

use super::SessionStartJob;
use crate::{Error, Result, blocking, live_directory::open_root};
use ash_driver::{AgentDriver, HomeEntry};
use ash_model::{Problem, SandboxPath, SandboxRoot};
use ash_sandbox::SandboxLayout;
use ash_snapshot::{FileOwner, RelPath};
use std::path::{Path, PathBuf};

impl SessionStartJob {
    /// Answers the folder in which the agent starts.
    pub(super) async fn put_home_entries(
        &self,
        driver: &dyn AgentDriver,
        inside: &SandboxLayout,
    ) -> Result<PathBuf> {
        let options = &self.session.options;
        let (begin, furniture) = (options.working_directory.clone(), driver.home_entries(options));
        let cwd = begin.as_ref().map_or_else(|| inside.workspace.clone(), |path| at(path, inside));
        if begin.is_none() && furniture.is_empty() {
            return Ok(cwd);
        }
        let (workspace, home, owner) = (self.live.workspace(), self.live.home(), self.owner());
        blocking(move || {
            if let Some(path) = begin {
                let (root, rest) = path.root();
                let root = if root == SandboxRoot::Workspace { &workspace } else { &home };
                make_dir(root, rest, owner).map_err(|error| in_the_way("workingDirectory", &error))?;
            }
            furniture.iter().try_for_each(|piece| put(&home, piece, owner))
        })
        .await?;
        Ok(cwd)
    }
}

fn at(path: &SandboxPath, inside: &SandboxLayout) -> PathBuf {
    match path.root() {
        (SandboxRoot::Workspace, rest) => inside.workspace.join(rest),
        (SandboxRoot::Home, rest) => inside.home.join(rest),
    }
}

fn put(home: &Path, piece: &HomeEntry, owner: Option<FileOwner>) -> Result<()> {
    match piece {
        HomeEntry::Folder(path) => make_dir(home, path, owner),
        HomeEntry::Link(path, to) => make_link(home, path, to, owner),
    }
    .map_err(|error| in_the_way("configDir or skillDirectories", &error))
}

fn make_dir(root: &Path, path: &str, owner: Option<FileOwner>) -> Result<()> {
    match RelPath::parse(path) {
        Ok(path) => Ok(open_root(root)?.make_dir(&path, owner)?),
        // The root itself.
        Err(_) => Ok(()),
    }
}

/// Makes a link. A directory in its place is put aside, so that its owner can find it.
fn make_link(root: &Path, path: &str, to: &str, owner: Option<FileOwner>) -> Result<()> {
    let folder = open_root(root)?;
    let Ok(path) = RelPath::parse(path) else { return Ok(()) };
    if folder.read_link(&path).is_ok_and(|there| there == to.as_bytes()) {
        return Ok(());
    }
    if folder.open_subfolder(&path).is_ok() {
        folder.rename_aside(&path, &format!("{path}.{}", uuid::Uuid::new_v4().simple()))?;
    }
    Ok(folder.symlink(&path, to.as_bytes(), owner)?)
}

fn in_the_way(option: &str, error: &Error) -> Error {
    let error = format!("What {option} names cannot be made in the sandbox: {error}");
    Error::Failed(Problem::new("option_failed", error))
}
