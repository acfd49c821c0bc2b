//! Which files of a folder are copied: what git would see, or everything.

use super::{LARGEST_FILE, LeftOut};
use crate::{
    api::{Failure, Result},
    out,
};
use ash_model::Kind;
use ash_snapshot::RelPath;
use ignore::{DirEntry, WalkBuilder};
use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

/// Somebody who pushes more than this has most likely named the wrong folder.
const MOST_BYTES: u64 = 1_000_000_000;
const MOST_FILES: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Without .git and what .gitignore and .ignore name.
    NotIgnored,
    Everything,
}

impl Which {
    pub(crate) fn of(all: bool) -> Which {
        if all { Which::Everything } else { Which::NotIgnored }
    }
}

#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: u64,
    pub(super) left_out: Vec<LeftOut>,
}

/// A file or link, by its path relative to the folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) what: What,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    File { size: u64, mode: u32 },
    Link { target: PathBuf },
}

pub(super) fn collect(dir: &Path, which: Which) -> Result<Found> {
    let mut found = Found::default();
    for entry in walk(dir, which) {
        match entry {
            Ok(entry) => found.take(dir, &entry),
            Err(error) => {
                let path = unreadable(&error).map_or_else(|| ".".to_owned(), |path| relative(dir, path));
                found.left_out.push(LeftOut { path, why: why(&error) });
            }
        }
        if which == Which::NotIgnored && (found.bytes > MOST_BYTES || found.entries.len() > MOST_FILES) {
            return Err(too_much(dir));
        }
    }
    Ok(found)
}

fn too_much(dir: &Path) -> Failure {
    let most = format!("{MOST_FILES} files or {}", out::size(MOST_BYTES));
    let remedy = "leave some out with a .gitignore or .ignore file, name a smaller folder, or copy all of it with --all";
    Failure::new(Kind::TooLarge, format!("{} holds more than {most}; {remedy}", dir.display()))
}

fn walk(dir: &Path, which: Which) -> ignore::Walk {
    let mut walk = WalkBuilder::new(dir);
    match which {
        Which::NotIgnored => {
            walk.hidden(false).require_git(false).filter_entry(|entry| entry.file_name() != ".git")
        }
        Which::Everything => walk.standard_filters(false),
    };
    walk.sort_by_file_name(Ord::cmp).build()
}

impl Found {
    fn take(&mut self, dir: &Path, entry: &DirEntry) {
        let path = entry.path().strip_prefix(dir).unwrap_or(entry.path()).to_owned();
        // Sockets, FIFOs and devices mean nothing elsewhere; git passes over them too.
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
                self.entries.push(Entry { path, what });
            }
            Err(why) => self.left_out.push(LeftOut { path: path.display().to_string(), why }),
        }
    }
}

impl What {
    pub(super) fn size(&self) -> u64 {
        match self {
            What::File { size, .. } => *size,
            What::Link { .. } => 0,
        }
    }
}

fn file(meta: &fs::Metadata) -> std::result::Result<What, String> {
    let (size, mode) = (meta.len(), meta.permissions().mode() & 0o777);
    if size > LARGEST_FILE {
        return Err(format!(
            "{} is more than the {} a file may have",
            out::size(size),
            out::size(LARGEST_FILE)
        ));
    }
    Ok(What::File { size, mode })
}

/// What leads out of the folder leads nowhere in a workspace, and no server takes it.
fn link(path: &Path, target: PathBuf) -> std::result::Result<What, String> {
    let inside = RelPath::met(path.as_os_str().as_bytes())
        .is_ok_and(|path| path.keeps_inside(target.as_os_str().as_bytes()));
    if inside {
        Ok(What::Link { target })
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

    fn names(dir: &Path, which: Which) -> Vec<String> {
        let found = collect(dir, which).expect("a folder");
        assert!(found.left_out.is_empty(), "{found:?}");
        found.entries.iter().map(|entry| entry.path.display().to_string()).collect()
    }

    #[test]
    fn what_git_does_not_see_stays_unless_all_is_wanted() {
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
        assert_eq!(names(dir.path(), Which::NotIgnored), seen);
        assert_eq!(names(dir.path(), Which::Everything).len(), 9);
    }

    #[test]
    fn a_link_is_copied_and_not_followed() {
        let dir = folder(&[("a/file", "x")]);
        std::os::unix::fs::symlink("a", dir.path().join("to-a")).expect("a link");
        std::os::unix::fs::symlink("nowhere", dir.path().join("to-nothing")).expect("a link");
        assert_eq!(names(dir.path(), Which::NotIgnored), ["a/file", "to-a", "to-nothing"]);
    }
}
