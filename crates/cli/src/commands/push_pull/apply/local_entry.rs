//! What a folder has at a path, found without following any link.

use crate::api::{CliError, Result};
use ash_snapshot::{FileStat, Folder, LinkPolicy, RelPath, SnapshotErrorKind};
use std::{
    collections::HashSet,
    fs::File,
    io::{Read, Seek},
};

/// Maximum number of entries to examine in a folder that is in a file's way.
const MAX_FOLDER_ENTRIES: usize = 10_000;

#[derive(Debug)]
pub(super) enum LocalEntry {
    Nothing,
    File(File, FileStat),
    Link(Vec<u8>),
    Folder,
    /// An entry of another kind, or one that is reachable only through a link.
    Blocked,
}

impl LocalEntry {
    pub(super) fn look(
        folder: &Folder,
        path: &RelPath,
    ) -> std::result::Result<LocalEntry, ash_snapshot::Error> {
        match folder.open_file(path, LinkPolicy::Refuse) {
            Ok((file, stat)) => return Ok(LocalEntry::File(file, stat)),
            Err(error) => match error.kind() {
                SnapshotErrorKind::NotFound => return Ok(LocalEntry::Nothing),
                SnapshotErrorKind::NotAFile if folder.open_subfolder(path).is_ok() => {
                    return Ok(LocalEntry::Folder);
                }
                SnapshotErrorKind::NotAFile | SnapshotErrorKind::Invalid => {}
                SnapshotErrorKind::Full | SnapshotErrorKind::Damaged | SnapshotErrorKind::Io => {
                    return Err(error);
                }
            },
        }
        Ok(folder.read_link(path).map_or(LocalEntry::Blocked, LocalEntry::Link))
    }

    pub(super) fn size(&self) -> Option<u64> {
        match self {
            LocalEntry::File(_, stat) => Some(stat.size),
            LocalEntry::Nothing | LocalEntry::Link(_) | LocalEntry::Folder | LocalEntry::Blocked => None,
        }
    }

    pub(super) fn is_executable(&self) -> Option<bool> {
        match self {
            LocalEntry::File(_, stat) => Some(stat.mode & 0o100 != 0),
            LocalEntry::Nothing | LocalEntry::Link(_) | LocalEntry::Folder | LocalEntry::Blocked => None,
        }
    }

    pub(super) fn has_content(&mut self, content: &[u8]) -> Result<bool> {
        let LocalEntry::File(file, stat) = self else { return Ok(false) };
        if stat.size != content.len() as u64 {
            return Ok(false);
        }
        let mut found = Vec::with_capacity(content.len());
        file.rewind()
            .and_then(|()| file.take(stat.size).read_to_end(&mut found))
            .map_err(CliError::from_io("cannot read a file to compare it"))?;
        Ok(found == content)
    }

    /// Copies only the executable bit, as git does. The other bits come from the local file or the umask.
    pub(super) fn mode_for(&self, theirs: u32) -> u32 {
        let ours = match self {
            LocalEntry::File(_, stat) => stat.mode,
            LocalEntry::Nothing | LocalEntry::Link(_) | LocalEntry::Folder | LocalEntry::Blocked => {
                0o666 & !umask()
            }
        };
        if theirs & 0o100 == 0 { ours & !0o111 } else { ours | (ours & 0o444) >> 2 }
    }
}

/// Read from /proc, because the system call would change it for a moment.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

/// Whether a folder holds only entries that the pull removes.
pub(super) fn holds_only(folder: &Folder, path: &RelPath, gone: &HashSet<Vec<u8>>) -> bool {
    let leaves = folder.open_subfolder(path).and_then(|sub| sub.entries(&|_, _| false, MAX_FOLDER_ENTRIES));
    leaves.is_ok_and(|leaves| {
        let whole = |leaf: &[u8]| [path.as_bytes(), b"/", leaf].concat();
        leaves.len() < MAX_FOLDER_ENTRIES && leaves.iter().all(|leaf| gone.contains(&whole(&leaf.path)))
    })
}
