//! What the tests share: a repository, a folder to capture and one to restore to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ash_snapshot::{
    Capture, Difference, Folder, Owner, RelPath, Repo, Restored, Root, Taken, Target, TreeId,
};

pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) repo: Arc<Repo>,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench::within(&std::env::temp_dir())
    }

    /// In memory where that is possible: for trees whose size is the point, not the disk.
    pub(crate) fn in_memory() -> Bench {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Bench::within(memory) } else { Bench::new() }
    }

    fn within(place: &Path) -> Bench {
        let dir = tempfile::tempdir_in(place).expect("a directory");
        let repo = Arc::new(Repo::open(&dir.path().join("repo")).expect("a repository"));
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

    pub(crate) fn take(&self) -> Taken {
        take(&self.repo, &self.workspace())
    }

    /// A new empty directory.
    pub(crate) fn empty(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir(&path).expect("made");
        path
    }

    pub(crate) fn restore(&self, tree: &TreeId, to: &Path, owner: Option<Owner>) -> Restored {
        let folder = open(to);
        let target = Target { root: "workspace", folder: &folder, owner };
        self.repo.restore(tree, &[target], None).expect("restored")
    }

    pub(crate) fn compare(&self, tree: &TreeId, with: &Path) -> Vec<Difference> {
        self.repo.compare(tree, "workspace", &open(with)).expect("compared")
    }

    /// The files in the repository's directory.
    pub(crate) fn packs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path().join("repo")).expect("listed");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }
}

pub(crate) fn take(repo: &Repo, workspace: &Path) -> Taken {
    let folder = open(workspace);
    let roots = [Root { name: "workspace", folder: &folder }];
    repo.take(&Capture::of(&roots)).expect("taken")
}

pub(crate) fn open(path: &Path) -> Folder {
    Folder::open(path).expect("opened")
}

pub(crate) fn rel(path: &str) -> RelPath {
    RelPath::parse(path).expect("a good path")
}

/// Some promises can only be tested with root's rights: mounts, other owners.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
