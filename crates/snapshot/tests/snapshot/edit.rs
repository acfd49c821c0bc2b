//! Random edits of a folder, like those of real programs. Sizes and offsets are mostly at the limits that the format
//! distinguishes.

use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::{Just, Strategy, any, prop_oneof};

use crate::support::{chmod, is_root, noise, set_mtime};

/// Picks one of the existing things, modulo their number.
type Pick = u16;

#[derive(Debug, Clone)]
pub(crate) enum Edit {
    Create { dir: Pick, name: u8, size: u64, seed: u64 },
    MakeDir { dir: Pick, name: u8 },
    Overwrite { file: Pick, seed: u64 },
    Patch { file: Pick, at: u64, length: u64, seed: u64 },
    Zero { file: Pick, at: u64, length: u64 },
    Punch { file: Pick, at: u64, length: u64 },
    Append { file: Pick, length: u64, seed: u64 },
    Truncate { file: Pick, to: u64 },
    Insert { file: Pick, at: u64, length: u64, seed: u64 },
    Delete { entry: Pick },
    Rename { entry: Pick, dir: Pick, name: u8 },
    Chmod { entry: Pick, mode: u32 },
    Touch { entry: Pick, seconds: i64, nanos: i64 },
    Symlink { dir: Pick, name: u8, target: Vec<u8> },
    HardLink { file: Pick, dir: Pick, name: u8 },
    FileToDirectoryOrBack { entry: Pick },
    Attribute { entry: Pick, name: u8, value: Option<Vec<u8>> },
}

/// Chunks recognise zeros in blocks of 64 KiB, and files of more than 128 KiB are cut into chunks.
fn extent() -> impl Strategy<Value = u64> {
    let near = |edge: u64| (Just(edge), 0u64..3).prop_map(|(edge, off)| (edge + off).saturating_sub(1));
    let edges = (0u64..9).prop_flat_map(move |n| near(n * (64 << 10)));
    prop_oneof![4 => 0u64..300, 4 => edges, 2 => (0u64..9).prop_map(|n| n * (64 << 10)), 1 => 0u64..700_000]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(1u8..=255, 1..40)
}

pub(crate) fn edit() -> impl Strategy<Value = Edit> {
    let pick = any::<Pick>;
    let seed = any::<u64>;
    let name = || 0u8..6;
    prop_oneof![
        4 => (pick(), name(), extent(), seed())
            .prop_map(|(dir, name, size, seed)| Edit::Create { dir, name, size, seed }),
        2 => (pick(), name()).prop_map(|(dir, name)| Edit::MakeDir { dir, name }),
        2 => (pick(), seed()).prop_map(|(file, seed)| Edit::Overwrite { file, seed }),
        3 => (pick(), extent(), extent(), seed())
            .prop_map(|(file, at, length, seed)| Edit::Patch { file, at, length, seed }),
        2 => (pick(), extent(), extent()).prop_map(|(file, at, length)| Edit::Zero { file, at, length }),
        2 => (pick(), extent(), extent()).prop_map(|(file, at, length)| Edit::Punch { file, at, length }),
        3 => (pick(), extent(), seed()).prop_map(|(file, length, seed)| Edit::Append { file, length, seed }),
        2 => (pick(), extent()).prop_map(|(file, to)| Edit::Truncate { file, to }),
        1 => (pick(), extent(), 1u64..5000, seed())
            .prop_map(|(file, at, length, seed)| Edit::Insert { file, at, length, seed }),
        2 => pick().prop_map(|entry| Edit::Delete { entry }),
        3 => (pick(), pick(), name()).prop_map(|(entry, dir, name)| Edit::Rename { entry, dir, name }),
        1 => (pick(), 0u32..0o2000).prop_map(|(entry, mode)| Edit::Chmod { entry, mode }),
        1 => (pick(), -5i64..2_000_000_000, 0i64..1_000_000_000)
            .prop_map(|(entry, seconds, nanos)| Edit::Touch { entry, seconds, nanos }),
        1 => (pick(), name(), bytes()).prop_map(|(dir, name, target)| Edit::Symlink { dir, name, target }),
        2 => (pick(), pick(), name()).prop_map(|(file, dir, name)| Edit::HardLink { file, dir, name }),
        1 => pick().prop_map(|entry| Edit::FileToDirectoryOrBack { entry }),
        1 => (pick(), 0u8..3, proptest::option::of(bytes()))
            .prop_map(|(entry, name, value)| Edit::Attribute { entry, name, value }),
    ]
}

pub(crate) fn edits(most: usize) -> impl Strategy<Value = Vec<Edit>> {
    proptest::collection::vec(edit(), 0..most)
}

/// Everything beneath a folder, parents before their children.
#[derive(Default)]
struct There {
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    links: Vec<PathBuf>,
}

fn look(root: &Path) -> There {
    let mut there = There { dirs: vec![root.to_owned()], ..There::default() };
    let mut next = 0;
    while next < there.dirs.len() {
        let mut entries: Vec<_> = std::fs::read_dir(&there.dirs[next])
            .expect("listed")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        entries.sort();
        for path in entries {
            let kind = std::fs::symlink_metadata(&path).expect("there").file_type();
            match (kind.is_dir(), kind.is_symlink()) {
                (true, _) => there.dirs.push(path),
                (false, true) => there.links.push(path),
                (false, false) => there.files.push(path),
            }
        }
        next += 1;
    }
    there
}

impl There {
    fn dir(&self, pick: Pick) -> &Path {
        &self.dirs[usize::from(pick) % self.dirs.len()]
    }

    fn file(&self, pick: Pick) -> Option<&Path> {
        self.files.get(usize::from(pick) % self.files.len().max(1)).map(PathBuf::as_path)
    }

    /// Any entry except the root.
    fn entry(&self, pick: Pick) -> Option<PathBuf> {
        let all: Vec<&PathBuf> = self.dirs[1..].iter().chain(&self.files).chain(&self.links).collect();
        all.get(usize::from(pick) % all.len().max(1)).map(|path| (*path).clone())
    }

    /// A path in a directory. Anything there except a directory is removed.
    fn place(&self, dir: Pick, name: u8) -> PathBuf {
        let path = self.dir(dir).join(format!("n{name}"));
        if std::fs::symlink_metadata(&path).is_ok_and(|is| !is.is_dir()) {
            std::fs::remove_file(&path).expect("removed");
        }
        path
    }
}

fn open_to_write(path: &Path) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(path).expect("opened")
}

/// Applies an edit if it is possible.
pub(crate) fn apply(root: &Path, edit: &Edit) {
    let there = look(root);
    match edit {
        Edit::Create { dir, name, size, seed } => {
            let path = there.place(*dir, *name);
            if !path.exists() {
                std::fs::write(path, noise(*size as usize, *seed)).expect("written");
            }
        }
        Edit::MakeDir { dir, name } => {
            let path = there.place(*dir, *name);
            if !path.exists() {
                std::fs::create_dir(path).expect("made");
            }
        }
        Edit::Symlink { dir, name, target } => {
            let path = there.place(*dir, *name);
            if !path.exists() {
                symlink(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(target), path)
                    .expect("linked");
            }
        }
        Edit::Delete { entry } => {
            if let Some(path) = there.entry(*entry) {
                remove(&path);
            }
        }
        Edit::Rename { entry, dir, name } => rename(&there, *entry, there.dir(*dir), *name),
        Edit::Chmod { entry, mode } => set_mode(there.entry(*entry), *mode),
        Edit::Touch { entry, seconds, nanos } => {
            if let Some(path) = there.entry(*entry) {
                set_mtime(&path, *seconds, *nanos);
            }
        }
        Edit::HardLink { file, dir, name } => {
            if let Some(file) = there.file(*file) {
                let path = there.dir(*dir).join(format!("n{name}"));
                if std::fs::symlink_metadata(&path).is_err() {
                    std::fs::hard_link(file, path).expect("linked");
                }
            }
        }
        Edit::FileToDirectoryOrBack { entry } => {
            if let Some(path) = there.entry(*entry) {
                let was_dir = std::fs::symlink_metadata(&path).expect("there").is_dir();
                remove(&path);
                if was_dir {
                    std::fs::write(&path, "was a directory").expect("written");
                } else {
                    std::fs::create_dir(&path).expect("made");
                    std::fs::write(path.join("n0"), "was a file").expect("written");
                }
            }
        }
        Edit::Attribute { entry, name, value } => attribute(there.entry(*entry), *name, value.as_deref()),
        Edit::Overwrite { .. }
        | Edit::Patch { .. }
        | Edit::Zero { .. }
        | Edit::Punch { .. }
        | Edit::Append { .. }
        | Edit::Truncate { .. }
        | Edit::Insert { .. } => change(&there, edit),
    }
}

/// Changes the bytes of a file.
fn change(there: &There, edit: &Edit) {
    let on = |file: Pick, change: &dyn Fn(&std::fs::File, u64)| {
        if let Some(path) = there.file(file) {
            let file = open_to_write(path);
            let size = file.metadata().expect("there").len();
            change(&file, size);
        }
    };
    match edit {
        Edit::Overwrite { file, seed } => on(*file, &|file, size| {
            file.write_all_at(&noise(size as usize, *seed), 0).expect("written");
        }),
        Edit::Patch { file, at, length, seed } => on(*file, &|file, _| {
            file.write_all_at(&noise(*length as usize, *seed), *at).expect("written");
        }),
        Edit::Zero { file, at, length } => on(*file, &|file, _| {
            file.write_all_at(&vec![0; *length as usize], *at).expect("written");
        }),
        Edit::Punch { file, at, length } => on(*file, &|file, size| {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            if *length > 0 && *at < size {
                rustix::fs::fallocate(file, flags, *at, *length).expect("punched");
            }
        }),
        Edit::Append { file, length, seed } => on(*file, &|file, size| {
            file.write_all_at(&noise(*length as usize, *seed), size).expect("written");
        }),
        Edit::Truncate { file, to } => on(*file, &|file, _| file.set_len(*to).expect("set")),
        Edit::Insert { file, at, length, seed } => {
            if let Some(path) = there.file(*file) {
                let mut bytes = std::fs::read(path).expect("read");
                let at = (*at as usize).min(bytes.len());
                bytes.splice(at..at, noise(*length as usize, *seed));
                let mut file = open_to_write(path);
                file.write_all(&bytes).expect("written");
            }
        }
        other => unreachable!("{other:?} is no change of a content"),
    }
}

fn remove(path: &Path) {
    if std::fs::symlink_metadata(path).expect("there").is_dir() {
        std::fs::remove_dir_all(path).expect("removed");
    } else {
        std::fs::remove_file(path).expect("removed");
    }
}

fn rename(there: &There, entry: Pick, dir: &Path, name: u8) {
    let Some(from) = there.entry(entry) else { return };
    let to = dir.join(format!("n{name}"));
    // A directory can move neither into itself nor over one of its parents.
    if to.starts_with(&from) || from.starts_with(&to) {
        return;
    }
    if std::fs::symlink_metadata(&to).is_ok() {
        remove(&to);
    }
    std::fs::rename(from, to).expect("renamed");
}

fn set_mode(path: Option<PathBuf>, mode: u32) {
    let Some(path) = path else { return };
    let is = std::fs::symlink_metadata(&path).expect("there");
    let kept = if is.is_dir() { 0o1777 } else { 0o777 };
    let ours = if is_root() { 0 } else { 0o700 };
    if !is.is_symlink() {
        chmod(&path, mode & kept | ours);
    }
}

fn attribute(path: Option<PathBuf>, name: u8, value: Option<&[u8]>) {
    let Some(path) = path.filter(|path| !path.is_symlink()) else { return };
    let name = format!("user.{name}");
    match value {
        // The file system may not support attributes; then none are kept.
        Some(value) => drop(rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty())),
        None => drop(rustix::fs::removexattr(&path, name)),
    }
}
