//! A session's plan and its documents, which its agent keeps in a folder of the session in the agent's home. Everything
//! is opened beneath a directory handle, and no link is followed. Blocking, except for finding the folder.

use crate::{
    Result,
    files::{self, FileLookup, FileSource},
};
use ash_driver::session_folder;
use ash_snapshot::{
    FileInfo, FileOwner, Folder, LinkPolicy, RelPath, Repo, SnapshotEntry, SnapshotErrorKind,
};
use std::{path::PathBuf, sync::Arc};
use uuid::Uuid;

const PLAN: &str = "plan.md";
const DOCUMENTS: &str = "files";
/// The most that a fork copies from its parent: an agent may have made sparse files that are larger than the disk.
const MAX_COPIED_BYTES: u64 = 1 << 30;
const MAX_COPIED_FILES: usize = 10_000;

/// What a session's agent made for itself and for its user, as it is now or in a checkpoint.
pub struct SessionArtifacts {
    pub(crate) source: FileSource,
    pub(crate) repo: Arc<Repo>,
    /// The agent's home, if there is a live tree.
    pub(crate) home: PathBuf,
    /// The session's folder, relative to the home.
    pub(crate) own: String,
    /// The folder of the session that this one was forked from. It is used as long as the session's own does not exist.
    pub(crate) inherited: Option<String>,
    /// The session's folder, as the agent sees it.
    pub(crate) inside: PathBuf,
}

impl SessionArtifacts {
    /// The name that clients know the source by.
    pub fn name(&self) -> &'static str {
        self.source.name()
    }

    /// The path of the plan, as the agent sees it.
    pub fn plan_path(&self) -> PathBuf {
        self.inside.join(PLAN)
    }

    /// The path of the documents, as the agent sees it.
    pub fn path(&self) -> PathBuf {
        self.inside.join(DOCUMENTS)
    }

    pub fn plan(&self) -> Result<FileLookup> {
        self.at(PLAN.as_bytes())
    }

    /// The documents, by their paths in their folder.
    pub fn list(&self) -> Result<Vec<FileInfo>> {
        let folder = rel(&[self.folder()?.as_bytes(), DOCUMENTS.as_bytes()])?;
        let listed = match &self.source {
            FileSource::Live { .. } => files::open(&self.home)?
                .open_subfolder(&folder)
                .and_then(|folder| folder.walk(&|_, _| false, files::MAX_FILES)),
            FileSource::Checkpoint { tree } => self.repo.list_in(tree, "home", &folder),
        };
        match listed {
            // If something else is in its place, such as a link, it is not the folder of this session.
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            other => Ok(other?),
        }
    }

    /// Opens one document.
    pub fn open(&self, path: &RelPath) -> Result<FileLookup> {
        self.at(&[DOCUMENTS.as_bytes(), path.as_bytes()].join(&b'/'))
    }

    /// The folder that is in use, relative to the home.
    fn folder(&self) -> Result<&str> {
        let Some(inherited) = &self.inherited else { return Ok(&self.own) };
        let own = rel(&[self.own.as_bytes()])?;
        let is_there = match &self.source {
            FileSource::Live { .. } => files::open(&self.home)?.open_subfolder(&own).is_ok(),
            FileSource::Checkpoint { tree } => {
                matches!(self.repo.read(tree, "home", &own), Ok(Some(SnapshotEntry::Dir)))
            }
        };
        Ok(if is_there { &self.own } else { inherited })
    }

    fn at(&self, path: &[u8]) -> Result<FileLookup> {
        // The path is longer than any path can be, so nothing can be there.
        let Ok(path) = rel(&[self.folder()?.as_bytes(), path]) else { return Ok(FileLookup::NotFound) };
        match &self.source {
            FileSource::Live { .. } => match files::open(&self.home)?.open_file(&path, LinkPolicy::Refuse) {
                Ok((file, stat)) => Ok(FileLookup::live(file, stat)),
                Err(error) => files::missing_or(error),
            },
            FileSource::Checkpoint { tree } => match self.repo.read(tree, "home", &path) {
                // An agent's own files have no home.
                Err(error) if error.kind() == SnapshotErrorKind::NotFound => Ok(FileLookup::NotFound),
                other => Ok(FileLookup::stored(other?)),
            },
        }
    }
}

/// Creates the folder unless it exists. A fork's folder begins as a copy of the parent's. The parent's folder stays,
/// because a rewind to before the fork's first start copies it again.
pub(crate) fn lay_out(
    home: &Folder,
    (own, forked_from): (Uuid, Option<Uuid>),
    owner: Option<FileOwner>,
) -> Result<()> {
    let own = session_folder(own);
    let is_there = home.open_subfolder(&rel(&[own.as_bytes()])?).is_ok();
    if let Some(from) = forked_from.filter(|_| !is_there) {
        // The copy becomes visible only when it is whole. A later start finds it and does not overwrite newer files
        // with a second copy.
        let coming = format!("{own}.coming");
        copy(home, (&session_folder(from), &coming), owner)?;
        let name = own.rsplit('/').next().unwrap_or(&own);
        home.rename_aside(&rel(&[coming.as_bytes()])?, name)?;
    }
    Ok(home.make_subfolder(&rel(&[own.as_bytes(), DOCUMENTS.as_bytes()])?, owner)?)
}

fn copy(home: &Folder, (from, to): (&str, &str), owner: Option<FileOwner>) -> Result<()> {
    let from = match home.open_subfolder(&rel(&[from.as_bytes()])?) {
        Err(error) if is_absent(&error) => return Ok(()),
        other => other?,
    };
    let mut files = from.walk(&|_, _| false, MAX_COPIED_FILES)?;
    // The plan first, however many other files there are.
    files.sort_by_key(|file| file.path != PLAN.as_bytes());
    let mut left = MAX_COPIED_BYTES;
    for file in files {
        let (Ok(path), Ok(to)) = (RelPath::from_walk(&file.path), rel(&[to.as_bytes(), &file.path])) else {
            continue;
        };
        let (bytes, stat) = match from.open_file(&path, LinkPolicy::Refuse) {
            Err(error) if is_absent(&error) => continue,
            other => other?,
        };
        if stat.size > left {
            tracing::warn!(path = %to, size = stat.size, "the fork gets no copy of this file: it is too large");
            continue;
        }
        left -= stat.size;
        home.write_file(&to, &mut std::io::Read::take(bytes, stat.size), owner, 0o644)?;
    }
    Ok(())
}

fn rel(parts: &[&[u8]]) -> Result<RelPath> {
    Ok(RelPath::from_bytes(&parts.join(&b'/')).map_err(ash_snapshot::Error::from)?)
}

fn is_absent(error: &ash_snapshot::Error) -> bool {
    match error.kind() {
        SnapshotErrorKind::NotFound | SnapshotErrorKind::NotAFile | SnapshotErrorKind::Invalid => true,
        SnapshotErrorKind::Full | SnapshotErrorKind::Damaged | SnapshotErrorKind::Io => false,
    }
}
