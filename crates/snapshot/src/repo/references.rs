//! What a pack needs besides itself. Whoever sends packs away sends one after those that it needs; so what is far is
//! never without what it leads to.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use super::Repo;
use super::read::follow;
use crate::object_id::PackId;
use crate::pack::file_name;
use crate::{Error, TreeId};

impl Repo {
    /// The packs in which something lies that the snapshot's own pack names; what those name in turn is not among
    /// them. It takes as long as there is in the pack itself. Of a pack that collection has made smaller it may not be
    /// told any more.
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

    /// As [`Repo::references`], of the snapshot that begins in this pack.
    pub fn references_of(&self, pack: &str) -> Result<Vec<String>, Error> {
        let id = PackId::parse(pack).ok_or_else(|| Error::NotFound { path: pack.to_owned() })?;
        let root = self.pack(id)?.table.root;
        root.map_or(Ok(Vec::new()), |root| self.references(&TreeId::new(&root.id, &id)))
    }

    /// All packs that a snapshot needs. It takes as long as there are folders in it.
    pub fn packs_of(&self, tree: &TreeId) -> Result<Vec<String>, Error> {
        let (mut packs, mut seen) = (BTreeSet::from([tree.pack()]), HashSet::new());
        follow(&self.reader(), self.root(tree)?, &mut |_, place| {
            packs.insert(place.pack);
            seen.insert(*place)
        })?;
        Ok(packs.iter().map(PackId::to_string).collect())
    }

    /// Where a pack is and how long, if it is here.
    pub fn pack_file(&self, pack: &str) -> Option<(PathBuf, u64)> {
        let path = self.dir.join(file_name(&PackId::parse(pack)?));
        let size = std::fs::metadata(&path).ok()?.len();
        Some((path, size))
    }
}
