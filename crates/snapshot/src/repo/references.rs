//! Finds the packs that a snapshot depends on. Replication uploads a pack after the packs it refers to, so the remote
//! store never holds a pack without its dependencies.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use super::Repo;
use super::read::follow;
use crate::object_id::PackId;
use crate::pack::file_name;
use crate::{Error, TreeId};

impl Repo {
    /// The packs that the snapshot's own pack refers to directly. The cost grows with the size of that pack alone. If
    /// collection has shrunk the pack, some references may be missing.
    pub fn references(&self, tree: &TreeId) -> Result<Vec<String>, Error> {
        let own = tree.pack();
        let (mut named, mut seen) = (BTreeSet::new(), HashSet::new());
        follow(&self.reader(), self.root(tree)?, &mut |_, place| {
            if place.pack != own {
                named.insert(place.pack);
            }
            place.pack == own && seen.insert(*place)
        })?;
        Ok(named.iter().map(PackId::to_string).collect())
    }

    /// Like [`Repo::references`], for the snapshot that begins in this pack.
    pub fn references_of(&self, pack: &str) -> Result<Vec<String>, Error> {
        let id = PackId::parse(pack).ok_or_else(|| Error::NotFound { path: pack.to_owned() })?;
        let root = self.pack(id)?.table.root;
        root.map_or(Ok(Vec::new()), |root| self.references(&TreeId::new(&root.id, &id)))
    }

    /// All packs that a snapshot needs, directly or not. The cost grows with the number of its folders.
    pub fn packs_of(&self, tree: &TreeId) -> Result<Vec<String>, Error> {
        let (mut packs, mut seen) = (BTreeSet::from([tree.pack()]), HashSet::new());
        follow(&self.reader(), self.root(tree)?, &mut |_, place| {
            packs.insert(place.pack);
            seen.insert(*place)
        })?;
        Ok(packs.iter().map(PackId::to_string).collect())
    }

    /// The path and size of a pack, if it is local.
    pub fn pack_file(&self, pack: &str) -> Option<(PathBuf, u64)> {
        let path = self.dir.join(file_name(&PackId::parse(pack)?));
        let size = std::fs::metadata(&path).ok()?.len();
        Some((path, size))
    }
}
