//! Measures how much disk space a tree takes, and stops early when a limit is exceeded.

use std::collections::HashSet;

use rustix::fs::{AtFlags, FileType, statat};

use super::{DirectoryWalker, Folder, WalkerEvent};
use crate::Error;

/// Disk space, and the number of files, folders and links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Disk space in bytes.
    pub bytes: u64,
    /// How many files, folders and links.
    pub files: u64,
}

impl DiskUsage {
    /// No tree exceeds this.
    pub const UNLIMITED: DiskUsage = DiskUsage { bytes: u64::MAX, files: u64::MAX };

    /// Whether the bytes or the files exceed this limit.
    pub fn exceeds(self, most: DiskUsage) -> bool {
        self.bytes > most.bytes || self.files > most.files
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: DiskUsage) -> DiskUsage {
        DiskUsage {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }
}

impl Folder {
    /// Measures the tree, and stops when the result exceeds `most`: the real usage is then at least the result. The
    /// space of a file with several names counts once. Each name counts as a file, because each must be visited,
    /// stored and created. Entries that disappear during the walk do not count.
    pub fn measure(&self, most: DiskUsage) -> Result<DiskUsage, Error> {
        let mut tour = DirectoryWalker::start(self)?;
        let (mut weight, mut linked) = (DiskUsage::default(), HashSet::new());
        while !weight.exceeds(most)
            && let Some(met) = tour.next_event()?
        {
            let WalkerEvent::Entry(name) = met else { continue };
            let Ok(is) = statat(tour.here(), name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_dir = FileType::from_raw_mode(is.st_mode) == FileType::Directory;
            let is_first = is_dir || is.st_nlink < 2 || linked.insert(is.st_ino);
            let blocks = u64::try_from(is.st_blocks).unwrap_or(0);
            let bytes = if is_first { blocks.saturating_mul(512) } else { 0 };
            weight = weight.plus(DiskUsage { bytes, files: 1 });
            if is_dir {
                // The entry may have been removed or replaced meanwhile; then there is nothing beneath it.
                let _ = tour.enter(&name);
            }
        }
        Ok(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn space_is_counted_once_and_names_are_each() {
        let dir = std::env::temp_dir().join(format!("ash-weigh-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).expect("folders");
        fs::write(dir.join("a/b/one"), vec![1; 100_000]).expect("a file");
        fs::hard_link(dir.join("a/b/one"), dir.join("two")).expect("another name");
        fs::File::create(dir.join("hole")).and_then(|file| file.set_len(1 << 40)).expect("a hole");
        std::os::unix::fs::symlink("/", dir.join("out")).expect("a link");
        let folder = Folder::open(&dir).expect("a folder");
        let weight = folder.measure(DiskUsage::UNLIMITED).expect("a weight");
        assert_eq!(weight.files, 6, "{weight:?}");
        assert!((100_000..200_000).contains(&weight.bytes), "{weight:?}");
        let most = DiskUsage { files: 2, ..DiskUsage::UNLIMITED };
        assert_eq!(folder.measure(most).expect("a weight").files, 3);
        fs::remove_dir_all(&dir).expect("removed");
    }
}
