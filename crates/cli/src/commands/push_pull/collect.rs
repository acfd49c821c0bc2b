//! Selects the files of a folder to copy: what git would track, or everything.

use super::{LARGEST_FILE, SkippedFile};
use crate::{
    api::{CliError, Result},
    terminal,
};
use ash_model::FailureKind;
use ash_snapshot::RelPath;
use ignore::{DirEntry, WalkBuilder};
use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

/// A larger push most likely names the wrong folder.
const MAX_PUSHED_BYTES: u64 = 1_000_000_000;
const MAX_PUSHED_FILES: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSelection {
    /// Without .git and the names in .gitignore and .ignore.
    NotIgnored,
    Everything,
}

impl FileSelection {
    pub(crate) fn of(all: bool) -> FileSelection {
        if all { FileSelection::Everything } else { FileSelection::NotIgnored }
    }
}

#[derive(Debug, Default)]
pub(super) struct CollectedFiles {
    pub(super) entries: Vec<CollectedEntry>,
    pub(super) bytes: u64,
    pub(super) left_out: Vec<SkippedFile>,
}

/// A file or link, by its path relative to the folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CollectedEntry {
    pub(super) path: PathBuf,
    pub(super) what: CollectedEntryKind,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum CollectedEntryKind {
    File { size: u64, mode: u32 },
    Link { target: PathBuf },
}

pub(super) fn collect(dir: &Path, which: FileSelection) -> Result<CollectedFiles> {
    let mut found = CollectedFiles::default();
    for entry in walk(dir, which) {
        match entry {
            Ok(entry) => found.add(dir, &entry),
            Err(error) => {
                let path = unreadable(&error).map_or_else(|| ".".to_owned(), |path| relative(dir, path));
                found.left_out.push(SkippedFile { path, why: why(&error) });
            }
        }
        if which == FileSelection::NotIgnored
            && (found.bytes > MAX_PUSHED_BYTES || found.entries.len() > MAX_PUSHED_FILES)
        {
            return Err(too_much(dir));
        }
    }
    Ok(found)
}

fn too_much(dir: &Path) -> CliError {
    let most = format!("{MAX_PUSHED_FILES} files or {}", terminal::format_bytes(MAX_PUSHED_BYTES));
    let remedy = "leave some out with a .gitignore or .ignore file, name a smaller folder, or copy all of it with --all";
    CliError::new(FailureKind::TooLarge, format!("{} holds more than {most}; {remedy}", dir.display()))
}

fn walk(dir: &Path, which: FileSelection) -> ignore::Walk {
    let mut walk = WalkBuilder::new(dir);
    match which {
        FileSelection::NotIgnored => {
            walk.hidden(false).require_git(false).filter_entry(|entry| entry.file_name() != ".git")
        }
        FileSelection::Everything => walk.standard_filters(false),
    };
    walk.sort_by_file_name(Ord::cmp).build()
}

impl CollectedFiles {
    fn add(&mut self, dir: &Path, entry: &DirEntry) {
        let path = entry.path().strip_prefix(dir).unwrap_or(entry.path()).to_owned();
        // Sockets, FIFOs and devices mean nothing on another machine; git skips them too.
        let what = match entry.file_type() {
            Some(kind) if kind.is_file() => {
                entry.metadata().map_err(|error| why(&error)).and_then(|meta| file(&meta))
            }
            Some(kind) if kind.is_symlink() => fs::read_link(entry.path())
                .map_err(|error| error.to_string())
                .and_then(|target| link(&path, target)),
            _ => return,
        };
        match what {
            Ok(what) => {
                self.bytes += what.size();
                self.entries.push(CollectedEntry { path, what });
            }
            Err(why) => self.left_out.push(SkippedFile { path: path.display().to_string(), why }),
        }
    }
}

impl CollectedEntryKind {
    pub(super) fn size(&self) -> u64 {
        match self {
            CollectedEntryKind::File { size, .. } => *size,
            CollectedEntryKind::Link { .. } => 0,
        }
    }
}

fn file(meta: &fs::Metadata) -> std::result::Result<CollectedEntryKind, String> {
    let (size, mode) = (meta.len(), meta.permissions().mode() & 0o777);
    if size > LARGEST_FILE {
        return Err(format!(
            "{} is more than the {} a file may have",
            terminal::format_bytes(size),
            terminal::format_bytes(LARGEST_FILE)
        ));
    }
    Ok(CollectedEntryKind::File { size, mode })
}

/// A link out of the folder has no target in a workspace, and the server refuses it.
fn link(path: &Path, target: PathBuf) -> std::result::Result<CollectedEntryKind, String> {
    let inside = RelPath::from_walk(path.as_os_str().as_bytes())
        .is_ok_and(|path| path.link_stays_inside(target.as_os_str().as_bytes()));
    if inside {
        Ok(CollectedEntryKind::Link { target })
    } else {
        Err(format!("a link out of the folder, to {}", target.display()))
    }
}

fn relative(dir: &Path, path: &Path) -> String {
    path.strip_prefix(dir).unwrap_or(path).display().to_string()
}

fn unreadable(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => unreadable(err),
        ignore::Error::Partial(_)
        | ignore::Error::Loop { .. }
        | ignore::Error::Io(_)
        | ignore::Error::Glob { .. }
        | ignore::Error::UnrecognizedFileType(_)
        | ignore::Error::InvalidDefinition => None,
    }
}

fn why(error: &ignore::Error) -> String {
    error.io_error().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        dir
    }

    fn names(dir: &Path, which: FileSelection) -> Vec<String> {
        let found = collect(dir, which).expect("a folder");
        assert!(found.left_out.is_empty(), "{found:?}");
        found.entries.iter().map(|entry| entry.path.display().to_string()).collect()
    }

    #[test]
    fn files_that_git_ignores_stay_unless_all_are_requested() {
        let dir = folder(&[
            (".gitignore", "target/\n*.log\n!keep.log\n"),
            (".git/config", ""),
            (".hidden", ""),
            ("a.log", ""),
            ("keep.log", ""),
            ("src/.gitignore", "generated.rs\n"),
            ("src/generated.rs", ""),
            ("src/main.rs", ""),
            ("target/debug/out", ""),
        ]);
        let seen = [".gitignore", ".hidden", "keep.log", "src/.gitignore", "src/main.rs"];
        assert_eq!(names(dir.path(), FileSelection::NotIgnored), seen);
        assert_eq!(names(dir.path(), FileSelection::Everything).len(), 9);
    }

    #[test]
    fn a_link_is_copied_and_not_followed() {
        let dir = folder(&[("a/file", "x")]);
        std::os::unix::fs::symlink("a", dir.path().join("to-a")).expect("a link");
        std::os::unix::fs::symlink("nowhere", dir.path().join("to-nothing")).expect("a link");
        assert_eq!(names(dir.path(), FileSelection::NotIgnored), ["a/file", "to-a", "to-nothing"]);
    }
}
