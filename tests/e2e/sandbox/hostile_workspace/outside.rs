//! Files outside the workspace that no code for a workspace may read or change, and the check that it did not.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Files outside the workspace that no code for a workspace may read or change.
pub(super) struct Outside {
    pub(super) dir: PathBuf,
    /// Each word is in one place outside, and must appear nowhere else.
    pub(super) words: Vec<String>,
}

impl Outside {
    /// `seen/open`: every user has full access. `seen/closed`: only root has. `decoy`: for the path-based code.
    pub(super) fn new() -> Outside {
        let dir = std::env::temp_dir().join(format!("ash-test-{}", uuid::Uuid::new_v4()));
        let words: Vec<String> = (0..4).map(|_| format!("canary-{}", uuid::Uuid::new_v4())).collect();
        for (place, mode) in
            [("", 0o755), ("seen", 0o755), ("seen/open", 0o777), ("seen/closed", 0o700), ("decoy", 0o777)]
        {
            fs::DirBuilder::new().create(dir.join(place)).expect("a directory");
            fs::set_permissions(dir.join(place), fs::Permissions::from_mode(mode)).expect("open to all");
        }
        fs::create_dir(dir.join("seen/open/sub")).expect("a directory");
        let files = [("seen/open", 1), ("seen/open/sub", 1), ("seen/closed", 2), ("decoy", 3)];
        for (place, word) in files {
            let word: &String = &words[word];
            // A listing would reveal the name, and a read the content.
            for name in ["f", word] {
                fs::write(dir.join(place).join(name), word).expect("a file");
            }
        }
        fs::set_permissions(dir.join("seen/open/f"), fs::Permissions::from_mode(0o666)).expect("open to all");
        fs::set_permissions(dir.join("seen/closed/f"), fs::Permissions::from_mode(0o600)).expect("closed");
        Outside { dir, words }
    }

    pub(super) fn repo(&self) -> PathBuf {
        self.dir.join("repo")
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// All properties of a tree except access times. The change time reveals changes of any other property.
pub(super) type Look = BTreeMap<PathBuf, ([u64; 4], [i64; 4], Vec<u8>)>;

pub(super) fn look(path: &Path) -> Look {
    let is = path.symlink_metadata().expect("still there");
    let numbers = [is.mode().into(), is.uid().into(), is.gid().into(), is.nlink()];
    let times = [is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec()];
    let content = if is.is_file() { fs::read(path).expect("read") } else { Vec::new() };
    let mut found = Look::from([(path.to_owned(), (numbers, times, content))]);
    if is.is_dir() {
        for entry in fs::read_dir(path).expect("listed") {
            found.extend(look(&entry.expect("an entry").path()));
        }
    }
    found
}

/// A client that sends a message a moment later gets a new tree without any content of the old one.
pub(super) fn is_gone(live: &Path) {
    let name = live.file_name().and_then(|name| name.to_str()).expect("an id");
    let left = fs::read_dir(live.parent().expect("live")).expect("listed").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|found| found.contains(name) && found != name), "{left:?}");
    for place in ["tree/workspace/racer", "tree/home/swaps", "tree.old", "tree.gone"] {
        assert!(!live.join(place).exists(), "{place}");
    }
}
