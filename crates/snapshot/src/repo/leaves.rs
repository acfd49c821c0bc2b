//! Everything with a content, by path: what two states of a workspace are told apart by.

use rustix::io::Errno;

use super::Repo;
use super::read::visit;
use crate::cutting;
use crate::folder::{Attributes, Met, Tour, open_to_read};
use crate::id::Id;
use crate::object::Node;
use crate::{Error, Folder, Kind, RelPath, TreeId};

/// A file or a symbolic link. Directories count only by what is in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Relative to the root or folder it was found in.
    pub path: Vec<u8>,
    pub what: LeafKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafKind {
    File {
        size: u64,
        mode: u32,
        /// What a tree knows of it and a folder does not: see [`Repo::content_id`].
        content: Option<ContentId>,
    },
    Link {
        target: Vec<u8>,
    },
}

/// The same for the same bytes, and for no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(Option<Id>);

impl Repo {
    /// The leaves of one root, sorted by path. A hard link is a file like any other.
    pub fn leaves(&self, tree: &TreeId, root: &str) -> Result<Vec<Leaf>, Error> {
        let reader = self.reader();
        let mut leaves = Vec::new();
        visit(&reader, &self.root_at(&reader, tree, root)?, &mut |path, entry| {
            let what = match &entry.node {
                Node::File(content) => {
                    let id = Some(ContentId(content.layout.object().map(|at| at.id)));
                    LeafKind::File { size: content.size, mode: entry.mode, content: id }
                }
                Node::Link(target) => LeafKind::Link { target: target.clone() },
                Node::Dir(_) => return Ok(()),
            };
            leaves.push(Leaf { path: path.to_vec(), what });
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
        let named = cutting::name_of(&file, is.size, &self.naming);
        Ok(Some(ContentId(named.map_err(|e| Error::system("read", path.as_bytes(), e))?)))
    }
}

impl Folder {
    /// The leaves beneath, sorted by path, without reading any content. `skip(name, is_dir)` leaves a file or a
    /// whole directory out; the walk stops after `limit` leaves. Unlike [`Folder::walk`] it fails if something
    /// cannot be read: what is left out here would count as deleted.
    pub fn leaves(&self, skip: &dyn Fn(&[u8], bool) -> bool, limit: usize) -> Result<Vec<Leaf>, Error> {
        let mut tour = Tour::start(self)?;
        let mut leaves = Vec::new();
        while leaves.len() < limit
            && let Some(met) = tour.meet()?
        {
            let Met::Entry(name) = met else { continue };
            let path = tour.path_of(&name);
            // The folder is alive.
            let Some(is) = there(tour.attributes(&name)).map_err(|e| Error::system("read", &path, e))? else {
                continue;
            };
            if skip(&name, is.kind == Kind::Dir) {
                continue;
            }
            match is.kind {
                Kind::Dir => {
                    there(tour.enter(&name)).map_err(|e| Error::system("list", &path, e))?;
                }
                Kind::File => leaves.push(Leaf { path, what: file(&is) }),
                Kind::Link => {
                    let target = there(rustix::fs::readlinkat(tour.here(), name.as_slice(), Vec::new()))
                        .map_err(|e| Error::system("read", &path, e))?;
                    let link = |target: std::ffi::CString| LeafKind::Link { target: target.into_bytes() };
                    leaves.extend(target.map(|target| Leaf { path, what: link(target) }));
                }
                Kind::Socket | Kind::Fifo | Kind::Device => {}
            }
        }
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(leaves)
    }
}

fn file(is: &Attributes) -> LeafKind {
    LeafKind::File { size: is.size, mode: is.mode(), content: None }
}

/// `None`: it is gone, or something else is in its place since it was listed.
fn there<T>(found: rustix::io::Result<T>) -> rustix::io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::STALE) => Ok(None),
        Err(e) => Err(e),
    }
}
