//! Everything with a content, by path: what two states of a workspace are told apart by.

use rustix::io::Errno;

use super::Repo;
use super::read::visit;
use crate::file_chunker;
use crate::folder::{DirectoryWalker, FileAttributes, WalkerEvent, open_to_read};
use crate::object::TreeNode;
use crate::object_id::ObjectId;
use crate::{Error, FileKind, Folder, RelPath, TreeId};

/// A file or a symbolic link. Directories count only by what is in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the root or folder it was found in.
    pub path: Vec<u8>,
    /// What it is.
    pub what: FileEntryKind,
}

/// What a snapshot has at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileEntryKind {
    /// A file.
    File {
        /// Its length in bytes.
        size: u64,
        /// Its permissions.
        mode: u32,
        /// What a tree knows of it and a folder does not: see [`Repo::content_id`].
        content: Option<ContentId>,
    },
    /// A symbolic link.
    Link {
        /// What it says.
        target: Vec<u8>,
    },
}

/// The same for the same bytes, and for no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(Option<ObjectId>);

impl Repo {
    /// The leaves of one root, sorted by path. A hard link is a file like any other.
    pub fn entries(&self, tree: &TreeId, root: &str) -> Result<Vec<FileEntry>, Error> {
        let reader = self.reader();
        let mut leaves = Vec::new();
        visit(&reader, &self.root_at(&reader, tree, root)?, &mut |path, entry| {
            let what = match &entry.node {
                TreeNode::File(content) => {
                    let id = Some(ContentId(content.layout.object().map(|at| at.id)));
                    FileEntryKind::File { size: content.size, mode: entry.mode, content: id }
                }
                TreeNode::Link(target) => FileEntryKind::Link { target: target.clone() },
                TreeNode::Dir(_) => return Ok(()),
            };
            leaves.push(FileEntry { path: path.to_vec(), what });
            Ok(())
        })?;
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(leaves)
    }

    /// What a file holds now; `None` if there is no file any more.
    pub fn content_id(&self, folder: &Folder, path: &RelPath) -> Result<Option<ContentId>, Error> {
        let failed = |e: Errno| Error::system("read", path.as_bytes(), e);
        let found = match open_to_read(folder.fd(), path.as_bytes()) {
            Err(Errno::ACCESS) => folder.read_by_force(path),
            found => found.map(|(file, lent)| (file, lent.is)),
        };
        let Some((file, is)) = there(found).map_err(failed)? else { return Ok(None) };
        let named = file_chunker::name_of(&file, is.size, &self.naming);
        Ok(Some(ContentId(named.map_err(|e| Error::system("read", path.as_bytes(), e))?)))
    }
}

impl Folder {
    /// The leaves beneath, sorted by path, without reading any content. `skip(name, is_dir)` leaves a file or a
    /// whole directory out; the walk stops after `limit` leaves. Unlike [`Folder::walk`] it fails if something
    /// cannot be read: what is left out here would count as deleted.
    pub fn entries(&self, skip: &dyn Fn(&[u8], bool) -> bool, limit: usize) -> Result<Vec<FileEntry>, Error> {
        let mut tour = DirectoryWalker::start(self)?;
        let mut leaves = Vec::new();
        while leaves.len() < limit
            && let Some(met) = tour.next_event()?
        {
            let WalkerEvent::Entry(name) = met else { continue };
            let path = tour.path_of(&name);
            // The folder is alive.
            let Some(is) = there(tour.attributes(&name)).map_err(|e| Error::system("read", &path, e))? else {
                continue;
            };
            if skip(&name, is.kind == FileKind::Dir) {
                continue;
            }
            match is.kind {
                FileKind::Dir => {
                    there(tour.enter(&name)).map_err(|e| Error::system("list", &path, e))?;
                }
                FileKind::File => leaves.push(FileEntry { path, what: file(&is) }),
                FileKind::Link => {
                    let target = there(rustix::fs::readlinkat(tour.here(), name.as_slice(), Vec::new()))
                        .map_err(|e| Error::system("read", &path, e))?;
                    let link =
                        |target: std::ffi::CString| FileEntryKind::Link { target: target.into_bytes() };
                    leaves.extend(target.map(|target| FileEntry { path, what: link(target) }));
                }
                FileKind::Socket | FileKind::Fifo | FileKind::Device => {}
            }
        }
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(leaves)
    }
}

fn file(is: &FileAttributes) -> FileEntryKind {
    FileEntryKind::File { size: is.size, mode: is.mode(), content: None }
}

/// `None`: it is gone, or something else is in its place since it was listed.
fn there<T>(found: rustix::io::Result<T>) -> rustix::io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::STALE) => Ok(None),
        Err(e) => Err(e),
    }
}
