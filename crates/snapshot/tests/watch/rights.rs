//! Where following is not permitted or not possible, the error gives the reason, which `ash doctor` shows.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use ash_snapshot::{FilesystemWatch, Folder, SnapshotErrorKind, WatchError};

use crate::support::Bench;

const NOBODY: u32 = 54_321;

#[test]
fn an_ordinary_user_gets_an_error_that_names_root() {
    if rustix::process::geteuid().is_root() {
        let dir = tempfile::tempdir().expect("a directory");
        let exe = dir.path().join("tests");
        std::fs::copy(std::env::current_exe().expect("a path"), &exe).expect("copied");
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("given");
        let test = "rights::an_ordinary_user_gets_an_error_that_names_root";
        let mut child = Command::new(exe);
        child.args(["--exact", test, "--nocapture"]).env("TMPDIR", dir.path()).current_dir(dir.path());
        let child = child.uid(NOBODY).gid(NOBODY).output().expect("run");
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let refused = FilesystemWatch::start(&std::env::temp_dir()).err().expect("refused");
    assert!(matches!(refused, WatchError::Rights), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "following a file system needs root (CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH)"
    );
}

#[test]
fn a_file_system_without_lasting_handles_is_refused() {
    let refused = FilesystemWatch::start(Path::new("/proc")).err().expect("refused");
    match rustix::process::geteuid().is_root() {
        true => assert!(matches!(refused, WatchError::Filesystem { .. }), "{refused:?}"),
        false => {
            assert!(matches!(refused, WatchError::Rights | WatchError::Filesystem { .. }), "{refused:?}")
        }
    }
}

#[test]
fn as_root_a_folder_elsewhere_is_not_followed_in_silence() {
    let bench = Bench::new();
    let watch = FilesystemWatch::start(&bench.root()).expect("started");
    let elsewhere = watch.track(&Folder::open(Path::new("/proc")).expect("opened")).err();
    assert!(elsewhere.is_some());
    let other = crate::support::Alone::new();
    let refused = watch.track(&Folder::open(&other.path).expect("opened")).err().expect("refused");
    assert_eq!(refused.kind(), SnapshotErrorKind::Io);
}
