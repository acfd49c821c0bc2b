//! Everything with a content, by path: what two states of a workspace are told apart by.

use super::Repo;
use crate::folder::{Attributes, Met, Tour, open_to_read};
use crate::pack::{Record, encode};
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
        /// What a tree knows of it and a folder does not: see [`Folder::content_id`].
        content: Option<ContentId>,
    },
    Link {
        target: Vec<u8>,
    },
}

/// The same for the same bytes, and for no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(blake3::Hash);

impl Repo {
    /// The leaves of one root, sorted by path. A hard link is a file like any other.
    pub fn leaves(&self, tree: &TreeId, root: &str) -> Result<Vec<Leaf>, Error> {
        let mut leaves = Vec::new();
        let mut by_ordinal: Vec<LeafKind> = Vec::new();
        self.visit(tree, root, &mut |path, record| match record {
            Record::File { mode, content, .. } => {
                let id = Some(ContentId(content.hash));
                let what = LeafKind::File { size: content.size, mode: *mode, content: id };
                by_ordinal.push(what.clone());
                leaves.push(Leaf { path: path.to_vec(), what });
            }
            Record::Same { ordinal, .. } => {
                let same = usize::try_from(*ordinal).ok().and_then(|at| by_ordinal.get(at));
                leaves.extend(same.map(|what| Leaf { path: path.to_vec(), what: what.clone() }));
            }
            Record::Link { target, .. } => {
                leaves.push(Leaf { path: path.to_vec(), what: LeafKind::Link { target: target.clone() } });
            }
            Record::Root { .. } | Record::Dir { .. } | Record::Up => {}
        })?;
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(leaves)
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
            // Gone since it was listed: the folder is alive.
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

    /// What a file holds now; `None` if there is no file any more.
    pub fn content_id(&self, path: &RelPath) -> Result<Option<ContentId>, Error> {
        let failed = |e: rustix::io::Errno| Error::system("read", path.as_bytes(), e);
        let Some((file, lent)) = there(open_to_read(self.fd(), path.as_bytes())).map_err(failed)? else {
            return Ok(None);
        };
        let mut nowhere = |_: &[u8]| Ok::<(), std::convert::Infallible>(());
        match encode(&file, lent.is.size, &mut nowhere) {
            Ok(found) => Ok(Some(ContentId(found.hash))),
            Err(crate::pack::Broken::Source(e)) => Err(Error::system("read", path.as_bytes(), e)),
        }
    }
}

fn file(is: &Attributes) -> LeafKind {
    LeafKind::File { size: is.size, mode: is.mode(), content: None }
}

fn there<T>(found: rustix::io::Result<T>) -> rustix::io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}
