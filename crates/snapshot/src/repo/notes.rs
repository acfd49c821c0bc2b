//! Reads the list of snapshots and their notes from the packs alone, without any database.

use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use super::Repo;
use crate::object_id::PackId;
use crate::{Error, TreeId};

/// A snapshot as the repository knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The id of the snapshot.
    pub tree: TreeId,
    /// When it was made.
    pub at: SystemTime,
    /// The size of its pack: the content that was new in it.
    pub size: u64,
    /// The names of its notes.
    pub notes: Vec<String>,
}

impl Repo {
    /// All snapshots, the oldest first. The second list names packs that cannot be read.
    pub fn snapshots(&self) -> Result<(Vec<SnapshotInfo>, Vec<String>), Error> {
        let (mut snapshots, mut broken) = (Vec::new(), Vec::new());
        for (id, at) in self.pack_files()? {
            match self.pack(id) {
                Ok(pack) => {
                    let Some(root) = &pack.table.root else { continue };
                    let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
                    let notes = pack.table.notes.iter().map(|note| text(&note.name)).collect();
                    snapshots.push(SnapshotInfo {
                        tree: TreeId::new(&root.id, &id),
                        at,
                        size: pack.size,
                        notes,
                    });
                }
                Err(error) => broken.push(error.to_string()),
            }
        }
        snapshots.sort_by_key(|snapshot| snapshot.at);
        Ok((snapshots, broken))
    }

    /// The names of all local packs.
    pub fn pack_names(&self) -> Result<Vec<String>, Error> {
        Ok(self.pack_files()?.into_iter().map(|(id, _)| id.to_string()).collect())
    }

    /// The snapshot in a local or remote pack; `None` if the pack holds none.
    pub fn snapshot_in(&self, pack: &str) -> Result<Option<TreeId>, Error> {
        let Some(id) = PackId::parse(pack) else { return Ok(None) };
        Ok(self.pack(id)?.table.root.map(|root| TreeId::new(&root.id, &id)))
    }

    /// The snapshots whose pack names begin with `digits`. The second list holds the errors of packs that cannot be
    /// read.
    pub fn find_by_prefix(&self, digits: &str) -> Result<(Vec<TreeId>, Vec<Error>), Error> {
        let (mut trees, mut broken) = (Vec::new(), Vec::new());
        for (id, _) in self.pack_files()?.iter().filter(|(id, _)| id.to_string().starts_with(digits)) {
            match self.pack(*id) {
                Ok(pack) => trees.extend(pack.table.root.map(|root| TreeId::new(&root.id, id))),
                Err(error) => broken.push(error),
            }
        }
        Ok((trees, broken))
    }

    /// Whether the local packs were written with a key; `None` if there are none.
    pub fn is_sealed(dir: &std::path::Path) -> Option<bool> {
        let packs = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
        packs
            .filter(|path| path.extension().is_some_and(|extension| extension == crate::pack::EXTENSION))
            .find_map(|path| crate::pack::is_sealed(&path).ok())
    }

    /// The snapshot that an index describes. It may have been collected since; a caller that stores indexes deletes
    /// them when it collects.
    pub fn index_base(index: &std::path::Path) -> Option<TreeId> {
        crate::index::base_of(index)
    }

    /// A note of a snapshot.
    pub fn note(&self, tree: &TreeId, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let pack = self.pack(tree.pack())?;
        let Some(note) = pack.table.notes.iter().find(|note| note.name == name.as_bytes()) else {
            return Ok(None);
        };
        let mut at = note.at;
        if at.place.pack == PackId::SELF {
            at.place.pack = pack.id;
        }
        self.reader().chunk(&at).map(Some)
    }

    /// The size of all local packs.
    pub fn size(&self) -> Result<u64, Error> {
        let failed = |e| Error::system("look at", self.dir.as_os_str().as_bytes(), e);
        let mut size = 0;
        for (id, _) in self.pack_files()? {
            size += std::fs::metadata(self.dir.join(crate::pack::file_name(&id))).map_err(failed)?.len();
        }
        Ok(size)
    }
}
