//! What a folder has under a path, found without following any link.

use crate::api::{Failure, Result};
use ash_snapshot::{Folder, Links, RelPath, Stat, Trouble};
use std::{
    collections::HashSet,
    fs::File,
    io::{Read, Seek},
};

/// How much of a folder that is in a file's way is looked at.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(super) enum Here {
    Nothing,
    File(File, Stat),
    Link(Vec<u8>),
    Folder,
    /// Something that is none of these, or that one gets to only through a link.
    Blocked,
}

impl Here {
    pub(super) fn look(folder: &Folder, path: &RelPath) -> std::result::Result<Here, ash_snapshot::Error> {
        match folder.open_file(path, Links::Refuse) {
            Ok((file, stat)) => return Ok(Here::File(file, stat)),
            Err(error) => match error.kind() {
                Trouble::NotFound => return Ok(Here::Nothing),
                Trouble::NotAFile if folder.sub(path).is_ok() => return Ok(Here::Folder),
                Trouble::NotAFile | Trouble::Invalid => {}
                Trouble::Full | Trouble::Damaged | Trouble::Io => return Err(error),
            },
        }
        Ok(folder.read_link(path).map_or(Here::Blocked, Here::Link))
    }

    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Here::File(_, stat) => Some(stat.size),
            Here::Nothing | Here::Link(_) | Here::Folder | Here::Blocked => None,
        }
    }

    pub(super) fn is_executable(&self) -> Option<bool> {
        match self {
            Here::File(_, stat) => Some(stat.mode & 0o100 != 0),
            Here::Nothing | Here::Link(_) | Here::Folder | Here::Blocked => None,
        }
    }

    pub(super) fn holds(&mut self, content: &[u8]) -> Result<bool> {
        let Here::File(file, stat) = self else { return Ok(false) };
        if stat.size != content.len() as u64 {
            return Ok(false);
        }
        let mut found = Vec::with_capacity(content.len());
        file.rewind()
            .and_then(|()| file.take(stat.size).read_to_end(&mut found))
            .map_err(Failure::local("cannot read a file to compare it"))?;
        Ok(found == content)
    }

    /// As git does it: of a mode only whether one can execute it travels; the rest is what is usual here.
    pub(super) fn mode_for(&self, theirs: u32) -> u32 {
        let ours = match self {
            Here::File(_, stat) => stat.mode,
            Here::Nothing | Here::Link(_) | Here::Folder | Here::Blocked => 0o666 & !umask(),
        };
        if theirs & 0o100 == 0 { ours & !0o111 } else { ours | (ours & 0o444) >> 2 }
    }
}

/// Asking the kernel for it would change it for a moment.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

/// Whether a folder holds nothing but what is going to be removed.
pub(super) fn holds_only(folder: &Folder, path: &RelPath, gone: &HashSet<Vec<u8>>) -> bool {
    let leaves = folder.sub(path).and_then(|sub| sub.leaves(&|_, _| false, MOST));
    leaves.is_ok_and(|leaves| {
        let whole = |leaf: &[u8]| [path.as_bytes(), b"/", leaf].concat();
        leaves.len() < MOST && leaves.iter().all(|leaf| gone.contains(&whole(&leaf.path)))
    })
}
