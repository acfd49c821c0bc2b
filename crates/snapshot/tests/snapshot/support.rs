//! Helpers for the tests: a repository, a folder to capture and one to restore to.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ash_snapshot::{
    CaptureRequest, CaptureRoot, CapturedSnapshot, DiskWriter, EncryptionKey, Error, FileOwner, Folder,
    FolderDifference, RelPath, Repo, RestoreReport, RestoreTarget, TreeId,
};

pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) repo: Arc<Repo>,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench::within(&std::env::temp_dir())
    }

    /// In memory if possible, for tests that need large trees but no disk.
    pub(crate) fn in_memory() -> Bench {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Bench::within(memory) } else { Bench::new() }
    }

    fn within(place: &Path) -> Bench {
        Bench::keyed(place, None)
    }

    /// In memory, and sealed with a key.
    pub(crate) fn sealed(key: EncryptionKey) -> Bench {
        let memory = Path::new("/dev/shm");
        Bench::keyed(if memory.is_dir() { memory } else { Path::new("/tmp") }, Some(key))
    }

    fn keyed(place: &Path, key: Option<EncryptionKey>) -> Bench {
        let dir = tempfile::tempdir_in(place).expect("a directory");
        let repo =
            Repo::open_with(&dir.path().join("repo"), key, DiskWriter::default()).expect("a repository");
        let repo = Arc::new(repo);
        std::fs::create_dir(dir.path().join("workspace")).expect("made");
        Bench { dir, repo }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.workspace().join(path)
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, content).expect("written");
    }

    pub(crate) fn take(&self) -> CapturedSnapshot {
        take(&self.repo, &self.workspace())
    }

    /// A line that captures the workspace.
    pub(crate) fn line(&self) -> Line {
        Line::new(&self.workspace(), &self.dir.path().join("workspace.index"))
    }

    pub(crate) fn repo_dir(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    /// Opens the repository as another process would, without caches.
    pub(crate) fn reopened(&self) -> Repo {
        Repo::open(&self.repo_dir()).expect("opened")
    }

    /// Creates an empty directory.
    pub(crate) fn empty(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir(&path).expect("made");
        path
    }

    pub(crate) fn restore(&self, tree: &TreeId, to: &Path, owner: Option<FileOwner>) -> RestoreReport {
        let folder = open(to);
        let target = RestoreTarget { root: "workspace", folder: &folder, owner };
        self.repo.restore(tree, &[target], None).expect("restored")
    }

    pub(crate) fn compare(&self, tree: &TreeId, with: &Path) -> Vec<FolderDifference> {
        self.repo.compare(tree, "workspace", &open(with)).expect("compared")
    }

    /// The packs in the repository's directory, without its lists.
    pub(crate) fn packs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path().join("repo")).expect("listed");
        let files = entries.map(|entry| entry.expect("an entry").path());
        files.filter(|path| !["inventory", "forgotten"].iter().any(|list| path.ends_with(list))).collect()
    }
}

/// A folder that is captured repeatedly, each time with the previous snapshot as base.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) folder: PathBuf,
    pub(crate) index: PathBuf,
    pub(crate) base: Option<TreeId>,
}

impl Line {
    pub(crate) fn new(folder: &Path, index: &Path) -> Line {
        Line { folder: folder.to_owned(), index: index.to_owned(), base: None }
    }

    pub(crate) fn take(&mut self, repo: &Repo) -> CapturedSnapshot {
        self.try_take(repo).expect("taken")
    }

    pub(crate) fn try_take(&mut self, repo: &Repo) -> Result<CapturedSnapshot, Error> {
        let folder = open(&self.folder);
        let roots = [CaptureRoot { name: "workspace", folder: &folder }];
        let (base, index) = (self.base.as_ref(), Some(self.index.as_path()));
        let taken = repo.capture(&CaptureRequest { base, index, ..CaptureRequest::of(&roots) })?;
        self.base = Some(taken.tree.clone());
        Ok(taken)
    }

    /// Restores a snapshot into a new folder, and continues from there.
    pub(crate) fn restored(repo: &Repo, tree: &TreeId, folder: &Path, index: &Path) -> Line {
        std::fs::create_dir(folder).expect("made");
        let target = open(folder);
        let targets = [RestoreTarget { root: "workspace", folder: &target, owner: None }];
        repo.restore(tree, &targets, Some(index)).expect("restored");
        Line { base: Some(tree.clone()), ..Line::new(folder, index) }
    }
}

/// Restores into a new folder, which also remains after an error, with whatever was written.
pub(crate) fn restore_into(repo: &Repo, tree: &TreeId, to: &Path) -> Result<RestoreReport, Error> {
    std::fs::create_dir(to).expect("made");
    let folder = open(to);
    repo.restore(tree, &[RestoreTarget { root: "workspace", folder: &folder, owner: None }], None)
}

pub(crate) fn take(repo: &Repo, workspace: &Path) -> CapturedSnapshot {
    let folder = open(workspace);
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    repo.capture(&CaptureRequest::of(&roots)).expect("taken")
}

pub(crate) fn open(path: &Path) -> Folder {
    Folder::open(path).expect("opened")
}

pub(crate) fn rel(path: &str) -> RelPath {
    RelPath::parse(path).expect("a good path")
}

/// Whether the slow tests run.
pub(crate) fn is_slow() -> bool {
    std::env::var("ASH_SLOW").is_ok_and(|slow| slow == "1")
}

/// This number of cases, and twenty times as many in the slow tests.
pub(crate) fn cases(usually: u32) -> proptest::prelude::ProptestConfig {
    let cases = if is_slow() { usually * 20 } else { usually };
    proptest::prelude::ProptestConfig { cases, failure_persistence: None, ..Default::default() }
}

/// Some tests need root's rights: mounts, other owners.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn set_mtime(path: &Path, seconds: i64, nanos: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("set");
}

pub(crate) fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
}

/// A generator of random numbers; the same seed gives the same numbers.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Incompressible bytes.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Waits until earlier changes are older than a clock tick, so that equal times prove equal content.
pub(crate) fn let_the_clock_tick() {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    let begun = now();
    while now() < begun + 30_000_000 {
        std::thread::yield_now();
    }
}
