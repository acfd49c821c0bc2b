//! Snapshots that the caller has discarded. Parts of their packs may stay because other snapshots need them, so the
//! packs alone would still show the snapshot. The file `forgotten` holds the discarded ids, one per line.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::SystemTime;

use super::Repo;
use super::inventory::packs_in;
use crate::object_id::PackId;
use crate::{Error, TreeId};

const FILE: &str = "forgotten";
const FRESH: &str = "new-forgotten";

impl Repo {
    /// Snapshots that callers must not use any more, though their packs may still exist.
    pub fn discarded(&self) -> Result<HashSet<TreeId>, Error> {
        match std::fs::read_to_string(self.forgotten_file()) {
            // An incomplete line comes from a write that never returned, so it does not count.
            Ok(text) => Ok(text.lines().filter_map(|line| TreeId::parse(line).ok()).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(HashSet::new()),
            Err(e) => Err(self.not_forgotten(e)),
        }
    }

    /// When this returns, these snapshots are durably discarded and can be collected. A snapshot whose pack is gone
    /// needs no line.
    pub fn discard(&self, trees: &[TreeId]) -> Result<(), Error> {
        let _alone = self.discarded_lock.lock().expect("no code panics while it holds this lock");
        let mut all = self.discarded()?;
        let before = all.clone();
        all.extend(trees.iter().cloned());
        self.write_changed(all, &before)
    }

    /// Discards all snapshots in `older` that are not in `wanted`, and none in `wanted`. Collection calls this before it
    /// removes anything: if it crashes halfway, it has damaged only discarded snapshots, and this list names them.
    pub(super) fn discard_all_but(
        &self,
        wanted: &HashSet<TreeId>,
        older: &[(PackId, SystemTime)],
    ) -> Result<(), Error> {
        let _alone = self.discarded_lock.lock().expect("no code panics while it holds this lock");
        let before = self.discarded()?;
        let known: HashSet<PackId> = wanted.iter().chain(&before).map(TreeId::pack).collect();
        let mut all = before.clone();
        for (id, modified) in older.iter().filter(|(id, _)| !known.contains(id)) {
            // If a capture wrote the pack again since it was listed, the snapshot may be needed by now.
            let same = self.place().is_as_it_was(id, Some(*modified)).unwrap_or(false);
            // A pack that cannot be opened shows no snapshot.
            let root = self.pack(*id).ok().filter(|_| same).and_then(|pack| pack.table.root);
            all.extend(root.map(|root| TreeId::new(&root.id, id)));
        }
        all.retain(|tree| !wanted.contains(tree));
        self.write_changed(all, &before)
    }

    /// A new capture of the same files makes the snapshot complete and needed again.
    pub(super) fn undo_discard(&self, tree: &TreeId) -> Result<(), Error> {
        // Most captures find no such line, and then write nothing.
        if !self.discarded()?.contains(tree) {
            return Ok(());
        }
        let _alone = self.discarded_lock.lock().expect("no code panics while it holds this lock");
        let before = self.discarded()?;
        let mut all = before.clone();
        all.remove(tree);
        self.write_changed(all, &before)
    }

    fn write_changed(&self, mut all: HashSet<TreeId>, before: &HashSet<TreeId>) -> Result<(), Error> {
        let packs = packs_in(&self.dir).map_err(|e| self.not_forgotten(e))?;
        all.retain(|tree| packs.contains(&tree.pack()));
        if all == *before {
            return Ok(());
        }
        let mut lines: Vec<String> = all.iter().map(|tree| format!("{tree}\n")).collect();
        lines.sort();
        self.write_forgotten(lines.concat().as_bytes()).map_err(|e| self.not_forgotten(e))
    }

    fn write_forgotten(&self, text: &[u8]) -> io::Result<()> {
        let fresh = self.dir.join(FRESH);
        self.disk.remove(&fresh)?;
        let file = self.disk.create(&fresh)?;
        self.disk.write_at(&file, text, 0)?;
        self.disk.sync(&file)?;
        self.disk.rename(&fresh, &self.forgotten_file())?;
        self.disk.sync_dir(&self.dir)
    }

    fn forgotten_file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn not_forgotten(&self, error: io::Error) -> Error {
        Error::system("write", self.forgotten_file().as_os_str().as_bytes(), error)
    }
}
