//! Without root's rights: the owner can still capture, restore and erase what an agent locked. As root, these tests
//! start themselves again as another user.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use ash_snapshot::{CaptureRequest, CapturedSnapshot, DiskUsage, Folder, SnapshotErrorKind, TreeId};

use crate::support::{Bench, Line, chmod, open};

const NOBODY: u32 = 54_321;
const INSIDE: &str = "ASH_TEST_ORDINARY_USER";

/// Returns true in the child process, where the test runs; the parent only waits for it.
fn as_ordinary_user(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() || !rustix::process::geteuid().is_root() {
        return true;
    }
    // A place that the other user can reach, wherever the test was built.
    let dir = tempfile::tempdir().expect("a directory");
    let exe = dir.path().join("tests");
    std::fs::copy(std::env::current_exe().expect("a path"), &exe).expect("copied");
    chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("given");
    let mut child = Command::new(exe);
    child.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").env("TMPDIR", dir.path());
    let child = child.current_dir(dir.path()).uid(NOBODY).gid(NOBODY).output().expect("run");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    false
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("there").permissions().mode() & 0o7777
}

const LOCKED: [(&str, u32); 5] =
    [("file", 0o000), ("write only", 0o200), ("a/b", 0o000), ("a", 0o444), ("c", 0o555)];

fn lock(bench: &Bench) {
    for path in ["file", "write only", "a/b/inside", "c/inside"] {
        bench.write(path, path);
    }
    std::fs::hard_link(bench.at("a/b/inside"), bench.at("z")).expect("linked");
    for (path, mode) in LOCKED {
        chmod(&bench.at(path), mode);
    }
}

#[test]
fn locked_entries_are_captured_restored_and_erased() {
    if !as_ordinary_user("ordinary_user::locked_entries_are_captured_restored_and_erased") {
        return;
    }
    let bench = Bench::new();
    lock(&bench);
    assert!(std::fs::read(bench.at("file")).is_err(), "the locks are real");
    let taken = bench.take();
    assert_eq!((taken.files, &taken.skipped), (4, &vec![]));
    assert_eq!(mode(&bench.at("a")), 0o444, "given back");
    let to = bench.empty("restored");
    bench.restore(&taken.tree, &to, None);
    assert_eq!(bench.compare(&taken.tree, &to), vec![]);
    for (path, expected) in LOCKED.into_iter().filter(|(path, _)| *path != "a/b") {
        assert_eq!((mode(&to.join(path)), mode(&bench.at(path))), (expected, expected), "{path}");
    }
    chmod(&to, 0);
    open(&to).list().expect("a root that was taken from us is taken back");
    chmod(&bench.workspace(), 0);
    for path in [&to, &bench.workspace()] {
        Folder::erase(path).expect("erased");
        assert!(!path.exists());
    }
}

#[test]
fn deep_locked_folders_come_back_too() {
    if !as_ordinary_user("ordinary_user::deep_locked_folders_come_back_too") {
        return;
    }
    let bench = Bench::new();
    let path = |depth: usize| vec!["d"; depth].join("/");
    bench.write(&format!("{}/file", path(150)), "deep");
    for depth in (1..=150).rev() {
        chmod(&bench.at(&path(depth)), 0o000);
    }
    let taken: CapturedSnapshot = bench.take();
    assert_eq!((taken.files, taken.skipped), (1, vec![]));
    let to = bench.empty("restored");
    bench.restore(&taken.tree, &to, None);
    assert_eq!(bench.compare(&taken.tree, &to), vec![]);
    assert_eq!((mode(&to.join("d")), mode(&bench.at("d"))), (0, 0));
    assert!(std::fs::read_dir(to.join("d/d")).is_err(), "locked again at every depth");
    Folder::erase(&to).expect("erased");
    Folder::erase(&bench.workspace()).expect("erased");
}

/// Several threads work in one tree. None takes the permissions that another thread lent itself for those of the
/// owner.
#[test]
fn locked_entries_stay_locked_for_concurrent_readers() {
    if !as_ordinary_user("ordinary_user::locked_entries_stay_locked_for_concurrent_readers") {
        return;
    }
    let bench = Bench::new();
    lock(&bench);
    let folder = open(&bench.workspace());
    let over = std::sync::atomic::AtomicBool::new(false);
    let going = || !over.load(std::sync::atomic::Ordering::Relaxed);
    let trees = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while going() {
                    assert_eq!(folder.measure(DiskUsage::UNLIMITED).expect("weighed").files, 8);
                }
            });
        }
        let taking = scope.spawn(|| (0..300).map(|_| bench.take()).collect::<Vec<CapturedSnapshot>>());
        let trees = taking.join();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        trees
    });
    for (path, expected) in LOCKED.into_iter().filter(|(path, _)| *path != "a/b") {
        assert_eq!(mode(&bench.at(path)), expected, "{path} was given back");
    }
    for taken in trees.expect("no panic") {
        assert_eq!((taken.files, &taken.skipped), (4, &vec![]));
        assert_eq!(bench.compare(&taken.tree, &bench.workspace()), vec![]);
    }
}

/// The sandbox locks the root between two captures, while the server holds it open.
#[test]
fn a_root_that_cannot_be_read_is_not_taken_for_unchanged() {
    if !as_ordinary_user("ordinary_user::a_root_that_cannot_be_read_is_not_taken_for_unchanged") {
        return;
    }
    let bench = Bench::new();
    bench.write("file", "before");
    let folder = open(&bench.workspace());
    let roots = [ash_snapshot::CaptureRoot { name: "workspace", folder: &folder }];
    let index = bench.dir.path().join("index");
    let capture = |base: Option<&TreeId>| {
        bench.repo.capture(&CaptureRequest { base, index: Some(&index), ..CaptureRequest::of(&roots) })
    };
    let first = capture(None).expect("taken").tree;
    bench.write("file", "after");
    chmod(&bench.workspace(), 0);
    let refused = capture(Some(&first)).map(|taken| taken.tree == first);
    assert_eq!(refused.expect_err("not the tree of before").kind(), SnapshotErrorKind::Io);
    chmod(&bench.workspace(), 0o700);
    let second = capture(Some(&first)).expect("taken").tree;
    assert_eq!(bench.compare(&second, &bench.workspace()), vec![]);
}

/// A directory that can be entered but not listed must not cost the recorded attributes beneath it.
#[test]
fn attributes_below_a_directory_that_cannot_be_listed_are_kept() {
    if !as_ordinary_user("ordinary_user::attributes_below_a_directory_that_cannot_be_listed_are_kept") {
        return;
    }
    let bench = Bench::new();
    bench.write("locked/below/file", "x");
    // Restoring all these takes long enough that nothing beneath is too young to be trusted.
    for n in 0..400 {
        std::fs::create_dir_all(bench.at(&format!("a/{n}"))).expect("made");
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(bench.at("locked/below"), "user.kept", b"value", flags).expect("set");
    chmod(&bench.at("locked"), 0o300);
    let tree = bench.take().tree;
    let (to, index) = (bench.dir.path().join("restored"), bench.dir.path().join("index"));
    let mut line = Line::restored(&bench.repo, &tree, &to, &index);
    assert_eq!(bench.compare(&tree, &to), vec![]);
    assert!(line.take(&bench.repo).tree.same_files(&tree));
    chmod(&to.join("locked"), 0o700);
    chmod(&bench.at("locked"), 0o700);
}
