//! Helpers for the tests: a tracked folder with another folder outside it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ash_snapshot::{FilesystemWatch, Folder, TouchedNames, TouchedPaths, TrackedFolder};

pub(crate) const MANY: usize = 100_000;

/// Only root can follow a file system, so tests with a watch are named `as_root_…`; `rights.rs` tests the error
/// without root.
pub(crate) fn watch(on: &Path, names: usize) -> FilesystemWatch {
    FilesystemWatch::start_with_limit(on, names)
        .unwrap_or_else(|why| panic!("{why}: {:?}", std::error::Error::source(&why)))
}

/// One watch for the whole binary, as in a server: every test causes events for all.
fn shared_watch() -> &'static FilesystemWatch {
    static WATCH: OnceLock<FilesystemWatch> = OnceLock::new();
    WATCH.get_or_init(|| watch(&std::env::temp_dir(), MANY))
}

pub(crate) struct Bench {
    pub(crate) tracked: TrackedFolder,
    pub(crate) dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("root")).expect("made");
        std::fs::create_dir(dir.path().join("outside")).expect("made");
        let tracked = track(shared_watch(), &dir.path().join("root"));
        Bench { tracked, dir }
    }

    /// Files that were opened in a deleted directory are reported to every root, so those of other tests are filtered
    /// out.
    pub(crate) fn take(&self) -> TouchedPaths {
        self.only_ours(self.tracked.take_changes())
    }

    pub(crate) fn only_ours(&self, touched: TouchedPaths) -> TouchedPaths {
        let TouchedPaths::Folders { folders, mut linked } = touched else { return touched };
        let ours = inodes(self.dir.path());
        linked.retain(|inode| ours.contains(inode));
        TouchedPaths::Folders { folders, linked }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.dir.path().join("outside").join(path)
    }

    pub(crate) fn write(&self, path: &str) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, "text").expect("written");
    }

    pub(crate) fn inode(&self, path: &str) -> u64 {
        std::fs::symlink_metadata(self.at(path)).expect("there").ino()
    }

    pub(crate) fn another_root(&self, name: &str) -> (PathBuf, TrackedFolder) {
        let path = self.dir.path().join(name);
        std::fs::create_dir(&path).expect("made");
        let tracked = track(shared_watch(), &path);
        (path, tracked)
    }
}

fn inodes(beneath: &Path) -> BTreeSet<u64> {
    let entries = std::fs::read_dir(beneath).expect("listed").map(|entry| entry.expect("an entry"));
    let each = entries.flat_map(|entry| {
        let deeper =
            if entry.file_type().expect("a kind").is_dir() { inodes(&entry.path()) } else { [].into() };
        deeper.into_iter().chain([std::os::unix::fs::DirEntryExt::ino(&entry)])
    });
    each.collect()
}

pub(crate) fn track(watch: &FilesystemWatch, root: &Path) -> TrackedFolder {
    watch.track(&Folder::open(root).expect("opened")).expect("tracked")
}

/// A file system of its own, whose queue has no events of other tests.
pub(crate) struct Alone {
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Alone {
    pub(crate) fn new() -> Alone {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mount");
        std::fs::create_dir(&path).expect("made");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &path, "tmpfs", flags, None).expect("mounted");
        Alone { path, _dir: dir }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
    }
}

/// `None` stands for a folder as a whole.
pub(crate) type Expected<'a> = (&'a str, Option<&'a [&'a str]>);

pub(crate) fn folders(expected: &[Expected<'_>], linked: &[u64]) -> TouchedPaths {
    let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<BTreeSet<_>>();
    let folders = expected.iter().map(|(path, of)| {
        let names = of.map_or(TouchedNames::All, |of| TouchedNames::These(names(of)));
        (path.as_bytes().to_vec(), names)
    });
    TouchedPaths::Folders {
        folders: folders.collect::<BTreeMap<_, _>>(),
        linked: linked.iter().copied().collect(),
    }
}

/// Whether this file or directory is among the paths to visit.
pub(crate) fn covers(touched: &TouchedPaths, path: &Path, inode: u64) -> bool {
    let TouchedPaths::Folders { folders, linked } = touched else { return true };
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let whole = path.ancestors().any(|above| folders.get(&bytes(above)) == Some(&TouchedNames::All));
    let named = path.parent().is_some_and(|parent| match folders.get(&bytes(parent)) {
        Some(TouchedNames::These(names)) => names.contains(path.file_name().expect("a name").as_bytes()),
        Some(TouchedNames::All) => true,
        None => false,
    });
    whole || named || folders.contains_key(&bytes(path)) || linked.contains(&inode)
}
