//! The changes beneath one root since they were last taken. Directories are identified by handle, so that renames do
//! not matter.

use std::collections::{BTreeSet, HashMap};

use super::handle::FileHandle;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SeenChanges {
    pub(super) everything: bool,
    pub(super) dirs: HashMap<FileHandle, SeenDirectory>,
    /// Inodes of touched files whose names are unknown.
    pub(super) inodes: BTreeSet<u64>,
    remembered: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SeenDirectory {
    /// The whole directory is new here: created, or moved here with all its content.
    pub(super) whole: bool,
    /// The touched names, each with the files that had it at the time; none for directories.
    pub(super) names: HashMap<Box<[u8]>, Vec<FileHandle>>,
}

impl SeenChanges {
    pub(super) fn everything(&mut self) {
        *self = SeenChanges { everything: true, ..SeenChanges::default() };
    }

    /// Above this number of remembered names the result becomes `everything`: memory stays limited, and a walk is
    /// then cheaper.
    pub(super) fn keep_within(&mut self, bound: usize) {
        if self.remembered > bound {
            self.everything();
        }
    }

    pub(super) fn directory(&mut self, dir: &[u8]) {
        self.dir(dir);
    }

    pub(super) fn whole(&mut self, dir: &[u8]) {
        if let Some(dir) = self.dir(dir) {
            dir.whole = true;
        }
    }

    pub(super) fn name(&mut self, dir: &[u8], name: &[u8], file: Option<&[u8]>) {
        let Some(dir) = self.dir(dir) else { return };
        let mut new = 0;
        if !dir.names.contains_key(name) {
            dir.names.insert(name.into(), Vec::new());
            new += 1;
        }
        if let (Some(files), Some(file)) = (dir.names.get_mut(name), file)
            && !files.iter().any(|known| **known == *file)
        {
            files.push(file.into());
            new += 1;
        }
        self.remembered += new;
    }

    pub(super) fn inode(&mut self, inode: u64) {
        if !self.everything && self.inodes.insert(inode) {
            self.remembered += 1;
        }
    }

    fn dir(&mut self, dir: &[u8]) -> Option<&mut SeenDirectory> {
        if self.everything {
            return None;
        }
        if !self.dirs.contains_key(dir) {
            self.dirs.insert(dir.into(), SeenDirectory::default());
            self.remembered += 1;
        }
        self.dirs.get_mut(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_again_costs_nothing_and_too_much_is_everything() {
        let mut seen = SeenChanges::default();
        for _ in 0..3 {
            seen.name(b"dir", b"name", Some(b"file"));
            seen.name(b"dir", b"name", None);
            seen.directory(b"dir");
            seen.inode(7);
            seen.keep_within(4);
        }
        assert_eq!((seen.everything, seen.remembered), (false, 4));
        seen.name(b"dir", b"name", Some(b"another file"));
        seen.keep_within(4);
        assert_eq!(seen, SeenChanges { everything: true, ..SeenChanges::default() });
        seen.name(b"dir", b"name", None);
        seen.whole(b"dir");
        seen.inode(8);
        assert_eq!(seen, SeenChanges { everything: true, ..SeenChanges::default() });
    }
}
