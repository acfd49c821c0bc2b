//! The attributes of an entry from the kernel, reduced to what snapshots store and comparisons need.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Timespec, Timestamps, UTIME_OMIT};

use super::{FileInfo, FileKind, FileStat, mode_loans};

/// Snapshots never store setuid and setgid: a restored file may have another owner, whose rights it must not lend.
const KEPT_ON_FILES: u32 = 0o777;
const KEPT_ON_DIRS: u32 = 0o1777;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileTime {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileAttributes {
    pub(crate) kind: FileKind,
    /// All twelve mode bits, as on disk.
    pub(crate) raw_mode: u32,
    pub(crate) size: u64,
    pub(crate) modified: FileTime,
    pub(crate) changed: FileTime,
    pub(crate) names: u64,
    /// Device and inode number: equal pairs are the same object.
    pub(crate) id: (u64, u64),
    pub(crate) uid: u32,
}

impl FileAttributes {
    pub(crate) fn of(handle: impl AsFd) -> rustix::io::Result<FileAttributes> {
        mode_loans::look(|| rustix::fs::fstat(&handle))
    }

    /// The attributes of the name itself; links are not followed.
    pub(crate) fn at(folder: impl AsFd, name: &[u8]) -> rustix::io::Result<FileAttributes> {
        mode_loans::look(|| rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// As it is now, whatever of it we lent ourselves.
    // The widths of these fields differ between architectures.
    #[allow(clippy::unnecessary_cast)]
    pub(crate) fn as_found(stat: &rustix::fs::Stat) -> FileAttributes {
        FileAttributes {
            kind: kind(FileType::from_raw_mode(stat.st_mode)),
            raw_mode: stat.st_mode as u32 & 0o7777,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: FileTime { seconds: stat.st_mtime as i64, nanos: stat.st_mtime_nsec as u32 },
            changed: FileTime { seconds: stat.st_ctime as i64, nanos: stat.st_ctime_nsec as u32 },
            names: stat.st_nlink as u64,
            id: (stat.st_dev as u64, stat.st_ino as u64),
            uid: stat.st_uid,
        }
    }

    /// The permission bits that a snapshot stores.
    pub(crate) fn mode(&self) -> u32 {
        match self.kind {
            FileKind::Dir => self.raw_mode & KEPT_ON_DIRS,
            FileKind::File | FileKind::Link | FileKind::Socket | FileKind::Fifo | FileKind::Device => {
                self.raw_mode & KEPT_ON_FILES
            }
        }
    }

    pub(crate) fn as_file(&self, path: Vec<u8>) -> FileInfo {
        FileInfo { path, size: self.size, mtime_ms: self.modified.as_millis() }
    }

    pub(crate) fn as_stat(&self) -> FileStat {
        FileStat { size: self.size, mtime_ms: self.modified.as_millis(), mode: self.mode() }
    }
}

fn kind(of: FileType) -> FileKind {
    match of {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Link,
        FileType::Socket => FileKind::Socket,
        FileType::Fifo => FileKind::Fifo,
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => FileKind::Device,
    }
}

impl FileTime {
    pub(crate) fn as_millis(self) -> i64 {
        self.seconds.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1_000_000))
    }

    /// Timestamps that change only the modification time.
    pub(crate) fn as_timestamps(self) -> Timestamps {
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.seconds, tv_nsec: self.nanos.into() },
        }
    }
}
