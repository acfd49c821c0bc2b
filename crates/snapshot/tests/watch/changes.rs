//! The watch reports every kind of change, and nothing else.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use ash_snapshot::{TouchedNames, TouchedPaths};
use rustix::fs::{CWD, RenameFlags, XattrFlags};

use crate::support::{Bench, Expected, folders};

struct Case<'a> {
    what: &'a str,
    change: fn(&Bench),
    touched: &'a [Expected<'a>],
    /// The paths, after the change, whose inodes are expected in `linked`.
    linked: &'a [&'a str],
}

fn prepared() -> Bench {
    let bench = Bench::new();
    for path in ["a/file", "a/sub/deep", "b/file", "b/twin"] {
        bench.write(path);
    }
    fs::hard_link(bench.at("b/twin"), bench.at("a/twin")).expect("linked");
    fs::create_dir(bench.at("empty")).expect("made");
    fs::create_dir_all(bench.outside("dir/sub")).expect("made");
    fs::write(bench.outside("dir/sub/file"), "text").expect("written");
    fs::write(bench.outside("file"), "text").expect("written");
    bench.take();
    bench
}

fn append(path: &Path) {
    let mut file = File::options().append(true).open(path).expect("opened");
    file.write_all(b"more").expect("written");
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).expect("renamed");
}

const FILE: &[Expected<'static>] = &[("a", Some(&["file"]))];

#[rustfmt::skip]
const CASES: &[Case<'static>] = &[
    Case { what: "nothing", change: |_| (), touched: &[], linked: &[] },
    Case { what: "reading", change: |b| drop(fs::read(b.at("a/file"))), touched: &[], linked: &[] },
    Case { what: "outside", change: |b| append(&b.outside("file")), touched: &[], linked: &[] },
    Case { what: "create", change: |b| b.write("a/new"), touched: &[("a", Some(&["new"]))], linked: &[] },
    Case { what: "in the root", change: |b| b.write("new"), touched: &[("", Some(&["new"]))], linked: &[] },
    Case { what: "write", change: |b| b.write("a/file"), touched: FILE, linked: &[] },
    Case { what: "append", change: |b| append(&b.at("a/file")), touched: FILE, linked: &[] },
    Case {
        what: "truncate",
        change: |b| rustix::fs::ftruncate(File::options().write(true).open(b.at("a/file")).expect("opened"), 1).expect("cut"),
        touched: FILE, linked: &[],
    },
    Case { what: "chmod", change: |b| chmod(&b.at("a/file"), 0o600), touched: FILE, linked: &[] },
    Case { what: "chown", change: |b| chown(b.at("a/file"), Some(7), Some(7)).expect("given"), touched: FILE, linked: &[] },
    Case {
        what: "utimes",
        change: |b| File::open(b.at("a/file")).expect("opened").set_modified(std::time::UNIX_EPOCH).expect("set"),
        touched: FILE, linked: &[],
    },
    Case {
        what: "setxattr",
        change: |b| rustix::fs::setxattr(b.at("a/file"), "user.x", b"y", XattrFlags::empty()).expect("set"),
        touched: FILE, linked: &[],
    },
    Case { what: "chmod of a directory", change: |b| chmod(&b.at("a"), 0o700), touched: &[("a", Some(&[]))], linked: &[] },
    Case { what: "chmod of the root", change: |b| chmod(&b.root(), 0o700), touched: &[("", Some(&[]))], linked: &[] },
    Case {
        what: "rename of a file in its directory",
        change: |b| rename(&b.at("a/file"), &b.at("a/other")),
        touched: &[("a", Some(&["file", "other"]))], linked: &["a/other"],
    },
    Case {
        what: "rename of a file over another directory's",
        change: |b| rename(&b.at("a/file"), &b.at("b/file")),
        touched: &[("a", Some(&["file"])), ("b", Some(&["file"]))], linked: &["b/file"],
    },
    Case {
        what: "rename of a directory",
        change: |b| rename(&b.at("a"), &b.at("c")),
        touched: &[("", Some(&["a", "c"])), ("c", None)], linked: &[],
    },
    Case {
        what: "rename of a directory deeper, then a write in it",
        change: |b| {
            rename(&b.at("a"), &b.at("b/c"));
            b.write("b/c/sub/deep");
        },
        touched: &[("", Some(&["a"])), ("b", Some(&["c"])), ("b/c", None)], linked: &[],
    },
    Case {
        what: "a write, then a rename of the directory above",
        change: |b| {
            b.write("a/sub/deep");
            rename(&b.at("a/sub"), &b.at("sub"));
        },
        touched: &[("", Some(&["sub"])), ("a", Some(&["sub"])), ("sub", None)], linked: &[],
    },
    Case {
        what: "two directories swapped",
        change: |b| rustix::fs::renameat_with(CWD, b.at("a"), CWD, b.at("b"), RenameFlags::EXCHANGE).expect("swapped"),
        touched: &[("", Some(&["a", "b"])), ("a", None), ("b", None)], linked: &[],
    },
    Case {
        what: "a file from outside",
        change: |b| rename(&b.outside("file"), &b.at("a/in")),
        touched: &[("a", Some(&["in"]))], linked: &[],
    },
    Case {
        what: "a directory from outside",
        change: |b| rename(&b.outside("dir"), &b.at("a/in")),
        touched: &[("a", Some(&["in"])), ("a/in", None)], linked: &[],
    },
    Case {
        what: "a file to the outside",
        change: |b| rename(&b.at("a/file"), &b.outside("out")),
        touched: FILE, linked: &["../outside/out"],
    },
    Case {
        what: "a directory to the outside, then a write in it",
        change: |b| {
            rename(&b.at("a/sub"), &b.outside("out"));
            append(&b.outside("out/deep"));
        },
        touched: &[("a", Some(&["sub"]))], linked: &[],
    },
    Case { what: "delete", change: |b| fs::remove_file(b.at("a/file")).expect("removed"), touched: FILE, linked: &[] },
    Case { what: "rmdir", change: |b| fs::remove_dir(b.at("empty")).expect("removed"), touched: &[("", Some(&["empty"]))], linked: &[] },
    Case { what: "a tree removed", change: |b| fs::remove_dir_all(b.at("a")).expect("removed"), touched: &[("", Some(&["a"]))], linked: &["b/twin"] },
    Case { what: "symlink", change: |b| symlink("x", b.at("a/link")).expect("linked"), touched: &[("a", Some(&["link"]))], linked: &[] },
    Case {
        what: "hard link",
        change: |b| fs::hard_link(b.at("a/file"), b.at("b/link")).expect("linked"),
        touched: &[("b", Some(&["link"]))], linked: &["a/file"],
    },
    Case { what: "write by one of two names", change: |b| b.write("a/twin"), touched: &[("a", Some(&["twin"]))], linked: &["b/twin"] },
    Case {
        what: "deep new directories",
        change: |b| b.write("x/y/z/file"),
        touched: &[("", Some(&["x"])), ("x", None)], linked: &[],
    },
    Case {
        what: "made and removed again",
        change: |b| {
            b.write("x/y/z/file");
            fs::remove_dir_all(b.at("x")).expect("removed");
        },
        touched: &[("", Some(&["x"]))], linked: &[],
    },
    Case {
        what: "a directory replaced by a file",
        change: |b| {
            fs::remove_dir(b.at("empty")).expect("removed");
            b.write("empty");
        },
        touched: &[("", Some(&["empty"]))], linked: &[],
    },
];

#[test]
fn as_root_every_kind_of_change_is_in_the_next_take_and_nothing_else() {
    for case in CASES {
        let bench = prepared();
        (case.change)(&bench);
        let linked: Vec<u64> = case.linked.iter().map(|path| bench.inode(path)).collect();
        assert_eq!(bench.take(), folders(case.touched, &linked), "{}", case.what);
        assert!(bench.take().is_empty(), "{}: once", case.what);
    }
}

#[test]
fn as_root_changes_before_the_first_take_are_seen() {
    let bench = Bench::new();
    bench.write("file");
    assert_eq!(bench.take(), folders(&[("", Some(&["file"]))], &[]));
}

#[test]
fn as_root_a_write_to_a_deleted_file_is_harmless_and_to_a_renamed_one_has_the_new_name() {
    let bench = prepared();
    let open = |path| File::options().write(true).open(bench.at(path)).expect("opened");
    let (mut deleted, mut renamed) = (open("a/file"), open("b/file"));
    fs::remove_file(bench.at("a/file")).expect("removed");
    rename(&bench.at("b/file"), &bench.at("a/sub/moved"));
    bench.take();
    deleted.write_all(b"written after the delete").expect("written");
    renamed.write_all(b"written after the rename").expect("written");
    let expected: [Expected<'_>; 2] = [("a", Some(&["file"])), ("a/sub", Some(&["moved"]))];
    assert_eq!(bench.take(), folders(&expected, &[]));
}

/// The kernel reports the name through which the file was opened, and that name is gone.
#[test]
fn as_root_a_write_by_a_name_that_is_gone_is_seen_under_the_name_that_is_left() {
    let bench = prepared();
    let mut file = File::options().write(true).open(bench.at("a/twin")).expect("opened");
    fs::remove_file(bench.at("a/twin")).expect("removed");
    bench.take();
    file.write_all(b"more").expect("written");
    let inode = bench.inode("b/twin");
    assert_eq!(bench.take(), folders(&[("a", Some(&["twin"]))], &[inode]));
    fs::remove_dir_all(bench.at("a")).expect("removed");
    bench.take();
    file.write_all(b"more").expect("written");
    assert_eq!(bench.take(), folders(&[], &[inode]), "the directory is gone as well");
}

#[test]
fn as_root_a_file_without_a_name_is_seen_when_it_gets_one() {
    let bench = prepared();
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let mut file = File::from(rustix::fs::open(bench.at("a"), flags, mode).expect("made"));
    file.write_all(b"text").expect("written");
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(CWD, link, CWD, bench.at("b/named"), follow).expect("linked");
    let TouchedPaths::Folders { folders: first, .. } = bench.take() else { panic!("everything") };
    assert_eq!(first.get(&b"b"[..]), Some(&TouchedNames::These([b"named".to_vec()].into())));
    file.write_all(b"more").expect("written");
    let TouchedPaths::Folders { linked, .. } = bench.take() else { panic!("everything") };
    assert_eq!(linked, [bench.inode("b/named")].into());
}

#[test]
fn as_root_names_are_bytes() {
    let bench = Bench::new();
    let (dir, file) = (OsStr::from_bytes(b"\xff\n (deleted)"), OsStr::from_bytes(b"\xfe\n\\012 "));
    fs::create_dir(bench.root().join(dir)).expect("made");
    bench.take();
    fs::write(bench.root().join(dir).join(file), "text").expect("written");
    let names = TouchedNames::These([file.as_bytes().to_vec()].into());
    let expected =
        TouchedPaths::Folders { folders: [(dir.as_bytes().to_vec(), names)].into(), linked: [].into() };
    assert_eq!(bench.take(), expected);
}

#[test]
fn as_root_two_roots_do_not_mix_and_one_inside_the_other_is_seen_by_both() {
    let bench = prepared();
    let (path, other) = bench.another_root("other");
    fs::write(path.join("file"), "text").expect("written");
    bench.write("a/file");
    assert_eq!(bench.only_ours(other.take_changes()), folders(&[("", Some(&["file"]))], &[]));
    assert_eq!(bench.take(), folders(FILE, &[]));
    rename(&bench.at("a"), &path.join("a"));
    assert_eq!(bench.take(), folders(&[("", Some(&["a"]))], &[]));
    assert_eq!(bench.only_ours(other.take_changes()), folders(&[("", Some(&["a"])), ("a", None)], &[]));
    append(&path.join("a/sub/deep"));
    assert_eq!(
        bench.only_ours(other.take_changes()),
        folders(&[("a/sub", Some(&["deep"]))], &[]),
        "it is beneath the other now"
    );
    assert!(bench.take().is_empty());

    let (inner, tracked) = bench.another_root("root/inner");
    bench.take();
    fs::write(inner.join("file"), "text").expect("written");
    assert_eq!(bench.only_ours(tracked.take_changes()), folders(&[("", Some(&["file"]))], &[]));
    assert_eq!(bench.take(), folders(&[("inner", Some(&["file"]))], &[]));
}

#[test]
fn as_root_a_root_that_is_moved_is_followed_on() {
    let bench = prepared();
    fs::create_dir(bench.outside("new")).expect("made");
    rename(&bench.root(), &bench.outside("new/root"));
    append(&bench.outside("new/root/a/file"));
    let TouchedPaths::Folders { folders, .. } = bench.take() else { panic!("everything") };
    assert_eq!(folders.get(&b"a"[..]), Some(&TouchedNames::These([b"file".to_vec()].into())));
}

#[test]
fn as_root_returned_changes_are_in_the_next_take() {
    let bench = prepared();
    bench.write("a/file");
    let touched = bench.take();
    bench.tracked.return_changes(touched);
    bench.write("b/file");
    let both: [Expected<'_>; 2] = [("a", Some(&["file"])), ("b", Some(&["file"]))];
    assert_eq!(bench.take(), folders(&both, &[]));
    bench.tracked.return_changes(TouchedPaths::Everything);
    assert_eq!(bench.take(), TouchedPaths::Everything);
    assert!(bench.take().is_empty());
}
