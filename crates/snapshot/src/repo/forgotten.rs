//! Snapshots that nobody wants any more. Parts of their packs may stay, because others need them, so that the
//! packs alone would still tell of them: `forgotten` holds their ids, one to a line.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::Repo;
use crate::{Error, TreeId};

const FILE: &str = "forgotten";
const FRESH: &str = "new-forgotten";

impl Repo {
    /// What must not be used any more, though it may still be found.
    pub fn forgotten(&self) -> Result<HashSet<TreeId>, Error> {
        match std::fs::read_to_string(self.forgotten_file()) {
            // A line that is cut short is one that was never promised.
            Ok(text) => Ok(text.lines().filter_map(|line| TreeId::parse(line).ok()).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(HashSet::new()),
            Err(e) => Err(self.not_forgotten(e)),
        }
    }

    /// From when this returns these are forgotten, whatever happens; they can be collected. What has no pack any
    /// more needs no line.
    pub fn give_up(&self, trees: &[TreeId]) -> Result<(), Error> {
        let mut all = self.forgotten()?;
        let before = all.clone();
        all.extend(trees.iter().cloned());
        let packs: HashSet<_> = self.pack_files()?.into_iter().map(|(id, _)| id).collect();
        all.retain(|tree| packs.contains(&tree.pack()));
        if all == before {
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
