//! Compares two states of a folder, file by file.

use std::cmp::Ordering;

use super::entries::{ContentId, FileEntry, FileEntryKind};
use crate::{Error, RelPath};

/// A file or link that differs between the states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathChange {
    /// The path, beginning with the name of its root, as bytes.
    pub path: Vec<u8>,
    /// `None`: it did not exist.
    pub before: Option<FileEntryKind>,
    /// `None`: it no longer exists.
    pub now: Option<FileEntryKind>,
}

type ContentLookup<'a> = &'a dyn Fn(&RelPath) -> Result<Option<ContentId>, Error>;

/// The differences between two states, both sorted by path. Times and permissions do not count, except the executable
/// bit. `ask` reads the content of a file where it is not known yet.
pub fn changes(
    before: Vec<FileEntry>,
    now: Vec<FileEntry>,
    ask: ContentLookup<'_>,
) -> Result<Vec<PathChange>, Error> {
    let (mut before, mut now) = (before.into_iter().peekable(), now.into_iter().peekable());
    let mut changes = Vec::new();
    loop {
        let order = match (before.peek(), now.peek()) {
            (None, None) => return Ok(changes),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(was), Some(is)) => was.path.cmp(&is.path),
        };
        let was = if order == Ordering::Greater { None } else { before.next() };
        let is = if order == Ordering::Less { None } else { now.next() };
        let Some(path) = is.as_ref().or(was.as_ref()).map(|leaf| leaf.path.clone()) else { continue };
        if let (Some(was), Some(is)) = (&was, &is)
            && is_same(was, is, ask)?
        {
            continue;
        }
        changes.push(PathChange { path, before: was.map(|leaf| leaf.what), now: is.map(|leaf| leaf.what) });
    }
}

fn is_same(was: &FileEntry, is: &FileEntry, ask: ContentLookup<'_>) -> Result<bool, Error> {
    match (&was.what, &is.what) {
        (FileEntryKind::Link { target: was }, FileEntryKind::Link { target: is }) => Ok(was == is),
        (
            FileEntryKind::File { size: was_size, mode: was_mode, content: was_content },
            FileEntryKind::File { size, mode, content },
        ) => {
            if was_size != size || (was_mode ^ mode) & 0o100 != 0 {
                return Ok(false);
            }
            let content = match content {
                Some(content) => Some(*content),
                None => ask(&RelPath::from_walk(&is.path)?)?,
            };
            Ok(*was_content == content)
        }
        (FileEntryKind::Link { .. }, FileEntryKind::File { .. })
        | (FileEntryKind::File { .. }, FileEntryKind::Link { .. }) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64, mode: u32) -> FileEntry {
        FileEntry { path: path.into(), what: FileEntryKind::File { size, mode, content: None } }
    }

    fn link(path: &str, target: &str) -> FileEntry {
        FileEntry { path: path.into(), what: FileEntryKind::Link { target: target.into() } }
    }

    fn changed(before: Vec<FileEntry>, now: Vec<FileEntry>) -> Vec<String> {
        let changes = super::changes(before, now, &|_| Ok(None)).expect("no I/O");
        let shown = |change: &PathChange| {
            let sign = match (&change.before, &change.now) {
                (None, _) => '+',
                (_, None) => '-',
                (Some(_), Some(_)) => '~',
            };
            format!("{sign}{}", String::from_utf8_lossy(&change.path))
        };
        changes.iter().map(shown).collect()
    }

    #[test]
    fn added_changed_and_deleted_files_are_found() {
        let before = vec![file("a", 1, 0o644), file("b", 1, 0o644), file("d", 1, 0o644), link("l", "x")];
        let now = vec![file("b", 2, 0o644), file("c", 1, 0o644), file("d", 1, 0o644), link("l", "y")];
        assert_eq!(changed(before, now), ["-a", "~b", "+c", "~l"]);
    }

    #[test]
    fn of_permissions_only_the_executable_bit_counts() {
        let before = vec![file("a", 1, 0o644), file("b", 1, 0o644)];
        let now = vec![file("a", 1, 0o600), file("b", 1, 0o755)];
        assert_eq!(changed(before, now), ["~b"]);
    }

    #[test]
    fn a_folder_that_became_a_file_is_both_gone_and_there() {
        assert_eq!(changed(vec![file("a/x", 1, 0o644)], vec![link("a", "b")]), ["+a", "-a/x"]);
        assert_eq!(changed(vec![link("a", "b")], vec![file("a", 1, 0o644)]), ["~a"]);
    }
}
