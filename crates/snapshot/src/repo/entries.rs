//! Lists everything that has content, by path: the input for comparing two states of a workspace.

use rustix::io::Errno;

use super::Repo;
use super::read::visit;
use crate::file_chunker;
use crate::folder::{DirectoryWalker, FileAttributes, WalkerEvent, open_to_read};
use crate::object::TreeNode;
use crate::object_id::ObjectId;
use crate::{Error, FileKind, Folder, RelPath, TreeId};

/// A file or a symbolic link. Directories are not listed; they count only by their content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the root or folder that was listed.
    pub path: Vec<u8>,
    /// The kind of the entry.
    pub what: FileEntryKind,
}

/// The kind and content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileEntryKind {
    /// A file.
    File {
        /// Its length in bytes.
        size: u64,
        /// Its permission bits.
        mode: u32,
        /// The id of the content. A tree knows it and a folder does not: see [`Repo::content_id`].
        content: Option<ContentId>,
    },
    /// A symbolic link.
    Link {
        /// The target of the link.
        target: Vec<u8>,
    },
}

/// Identifies content: equal ids mean equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(Option<ObjectId>);

impl Repo {
    /// The files and links of one root, sorted by path. A hard link is a file like any other.
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

    /// The id of a file's current content; `None` if there is no file any more.
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

/// An owner that closes its directory in a loop can take back the permission that we lend ourselves, right before we use
/// it.
const MAX_ENTER_ATTEMPTS: usize = 20;

impl Folder {
    /// The files and links beneath, sorted by path, without reading any content. `skip(name, is_dir)` leaves out a
    /// file or a whole directory; the walk stops after `limit` entries. Unlike [`Folder::walk`] it fails if an entry
    /// cannot be read: leaving it out would make it look deleted.
    pub fn entries(&self, skip: &dyn Fn(&[u8], bool) -> bool, limit: usize) -> Result<Vec<FileEntry>, Error> {
        let mut tour = DirectoryWalker::start(self)?;
        let mut leaves = Vec::new();
        while leaves.len() < limit
            && let Some(met) = tour.next_event()?
        {
            let WalkerEvent::Entry(name) = met else { continue };
            let path = tour.path_of(&name);
            // Other processes may change the folder meanwhile.
            let Some(is) = there(tour.attributes(&name)).map_err(|e| Error::system("read", &path, e))? else {
                continue;
            };
            if skip(&name, is.kind == FileKind::Dir) {
                continue;
            }
            match is.kind {
                FileKind::Dir => {
                    let entered = (0..MAX_ENTER_ATTEMPTS).find_map(|_| match tour.enter(&name) {
                        Err(Errno::ACCESS) => None,
                        entered => Some(entered),
                    });
                    let entered = entered.unwrap_or(Err(Errno::ACCESS));
                    there(entered).map_err(|e| Error::system("list", &path, e))?;
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

/// `None`: the entry was removed or replaced since the listing.
fn there<T>(found: rustix::io::Result<T>) -> rustix::io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::STALE) => Ok(None),
        Err(e) => Err(e),
    }
}
