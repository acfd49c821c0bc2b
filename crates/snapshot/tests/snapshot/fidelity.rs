//! Restores return what was captured: every kind of entry, with all stored attributes.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use ash_snapshot::{
    CaptureRoot, CapturedSnapshot, DifferenceKind, FileOwner, Folder, FolderDifference, GcRoots,
    RestoreReport, RestoreTarget, SkipReason, SkippedEntry, SnapshotEntry,
};

use crate::support::{Bench, chmod, is_root, is_slow, open, rel, set_mtime};

/// Creates one entry of each kind.
fn furnish(bench: &Bench) {
    bench.write("plain.txt", "hello");
    bench.write("empty", "");
    bench.write("bin/run.sh", "#!/bin/sh");
    chmod(&bench.at("bin/run.sh"), 0o4755);
    bench.write("secret", "0000");
    chmod(&bench.at("secret"), 0o000);
    std::fs::create_dir_all(bench.at("an/empty/dir")).expect("made");
    std::fs::create_dir(bench.at("sticky")).expect("made");
    chmod(&bench.at("sticky"), 0o3777);
    std::fs::create_dir(bench.at("locked")).expect("made");
    bench.write("locked/inside", "x");
    chmod(&bench.at("locked"), 0o555);
    symlink("../plain.txt", bench.at("bin/relative")).expect("linked");
    symlink("/etc/passwd", bench.at("absolute")).expect("linked");
    symlink("nowhere", bench.at("dangling")).expect("linked");
    symlink(OsStr::from_bytes(b"\xff\xfe"), bench.at("odd target")).expect("linked");
    bench.write("z/first", "shared");
    std::fs::hard_link(bench.at("z/first"), bench.at("z/second")).expect("linked");
    std::fs::hard_link(bench.at("z/first"), bench.at("a third")).expect("linked");
    std::fs::write(bench.workspace().join(OsStr::from_bytes(b"not utf-8 \xff\n")), "bytes").expect("written");
    let sparse = std::fs::File::create(bench.at("sparse")).expect("created");
    sparse.write_all_at(b"in the middle", 5 << 20).expect("written");
    sparse.set_len(1 << 33).expect("grown");
    std::fs::write(bench.at("large"), vec![7; (3 << 20) + 11]).expect("written");
    set_mtime(&bench.at("plain.txt"), 1_000_000_000, 123_456_789);
    set_mtime(&bench.at("empty"), -5, 1);
    set_mtime(&bench.at("absolute"), 1_234_567_890, 987_654_321);
    set_mtime(&bench.at("an/empty/dir"), 42, 999_999_999);
    set_mtime(&bench.at("locked"), 43, 1);
    set_mtime(&bench.workspace(), 44, 2);
}

#[test]
fn as_root_every_kind_of_entry_comes_back_as_it_was() {
    assert!(is_root(), "only root can give files away");
    let bench = Bench::new();
    furnish(&bench);
    let taken = bench.take();
    assert_eq!((&taken.skipped, &taken.unsettled), (&vec![], &vec![]));
    let to = bench.empty("restored");
    let owner = FileOwner { uid: 4321, gid: 8765 };
    let restored = bench.restore(&taken.tree, &to, Some(owner));
    assert_eq!(restored, RestoreReport { files: taken.files, bytes: taken.bytes, taken_over: 0 });
    assert_eq!(bench.compare(&taken.tree, &to), vec![]);

    for path in ["", "plain.txt", "absolute", "an/empty", "z/second", "locked"] {
        let is = std::fs::symlink_metadata(to.join(path)).expect("there");
        assert_eq!((is.uid(), is.gid()), (4321, 8765), "{path}");
    }
    let is = |path: &str| std::fs::symlink_metadata(to.join(path)).expect("there");
    assert_eq!(is("bin/run.sh").mode() & 0o7777, 0o755, "setuid is dropped");
    assert_eq!(is("sticky").mode() & 0o7777, 0o1777, "setgid is dropped, sticky kept");
    assert_eq!(is("z/first").nlink(), 3);
    assert_eq!(is("z/first").ino(), is("a third").ino());
    assert_eq!((is("absolute").mtime(), is("absolute").mtime_nsec()), (1_234_567_890, 987_654_321));
    assert_eq!((is("an/empty/dir").mtime(), is("an/empty/dir").mtime_nsec()), (42, 999_999_999));
    assert!(is("sparse").blocks() * 512 < 1 << 20, "holes are kept");
    assert_eq!(std::fs::read_link(to.join("bin/relative")).expect("a link"), Path::new("../plain.txt"));
}

#[test]
fn a_restored_tree_is_captured_as_the_same_tree() {
    let bench = Bench::new();
    furnish(&bench);
    // Mode bits that snapshots do not store show only as a difference from the original.
    let taken = bench.take();
    let to = bench.empty("restored");
    bench.restore(&taken.tree, &to, None);
    assert_eq!(crate::support::take(&bench.repo, &to).tree, taken.tree);
    let different = bench.compare(&taken.tree, &bench.workspace());
    let modes = ["bin/run.sh", "sticky"]
        .map(|path| FolderDifference { path: path.into(), what: DifferenceKind::Mode });
    assert_eq!(different, modes);
}

#[test]
fn an_unchanged_capture_costs_no_new_file() {
    let bench = Bench::new();
    bench.write("a", "1");
    let first = bench.take();
    assert_eq!((bench.take(), bench.packs().len()), (first.clone(), 1));
    bench.write("a", "2");
    assert_ne!(bench.take().tree, first.tree);
    assert_eq!(bench.packs().len(), 2);
}

#[test]
fn two_captures_at_once_of_the_same_are_one_tree() {
    let bench = Bench::new();
    for n in 0..200 {
        bench.write(&format!("dir/{n}"), &n.to_string());
    }
    let trees = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.take().tree)).collect();
        threads.into_iter().map(|thread| thread.join().expect("taken")).collect::<Vec<_>>()
    });
    assert!(trees.iter().all(|tree| *tree == trees[0]));
    assert_eq!(bench.packs().len(), 1);
    bench.repo.verify(&trees[0]).expect("sound");
}

#[test]
fn each_difference_is_found() {
    let bench = Bench::new();
    for name in ["content", "gone", "mode", "mtime", "size", "kind", "unlinked"] {
        bench.write(name, "12345");
        set_mtime(&bench.at(name), 1000, 0);
    }
    bench.write("gone dir/deep/file", "x");
    symlink("here", bench.at("link")).expect("linked");
    set_mtime(&bench.at("link"), 1000, 0);
    std::fs::hard_link(bench.at("unlinked"), bench.at("unlinked too")).expect("linked");
    set_mtime(&bench.workspace(), 1000, 0);
    let tree = bench.take().tree;
    assert_eq!(bench.compare(&tree, &bench.workspace()), vec![]);

    bench.write("content", "54321");
    bench.write("size", "123");
    for name in ["content", "size"] {
        set_mtime(&bench.at(name), 1000, 0);
    }
    std::fs::remove_file(bench.at("gone")).expect("removed");
    std::fs::remove_dir_all(bench.at("gone dir")).expect("removed");
    chmod(&bench.at("mode"), 0o600);
    set_mtime(&bench.at("mtime"), 1000, 1);
    std::fs::remove_file(bench.at("kind")).expect("removed");
    std::fs::create_dir(bench.at("kind")).expect("made");
    std::fs::remove_file(bench.at("link")).expect("removed");
    symlink("there", bench.at("link")).expect("linked");
    set_mtime(&bench.at("link"), 1000, 0);
    std::fs::remove_file(bench.at("unlinked too")).expect("removed");
    bench.write("unlinked too", "12345");
    set_mtime(&bench.at("unlinked too"), 1000, 0);
    bench.write("extra/file", "x");
    UnixListener::bind(bench.at("socket")).expect("bound");
    set_mtime(&bench.workspace(), 1000, 0);

    let found: Vec<(String, DifferenceKind)> = bench
        .compare(&tree, &bench.workspace())
        .into_iter()
        .map(|difference| (String::from_utf8(difference.path).expect("text"), difference.what))
        .collect();
    let expected = [
        ("content", DifferenceKind::Content),
        ("extra", DifferenceKind::Extra),
        ("gone", DifferenceKind::Missing),
        ("gone dir", DifferenceKind::Missing),
        ("kind", DifferenceKind::Kind),
        ("link", DifferenceKind::Target),
        ("mode", DifferenceKind::Mode),
        ("mtime", DifferenceKind::Mtime),
        ("size", DifferenceKind::Size),
        ("unlinked too", DifferenceKind::HardLink),
    ];
    assert_eq!(found, expected.map(|(path, what)| (path.to_owned(), what)));
}

#[test]
fn entries_that_cannot_be_captured_are_named() {
    let bench = Bench::new();
    bench.write("keep", "x");
    bench.write(".claude/.credentials.json", "token");
    bench.write("cache/deep/file", "x");
    let _socket = UnixListener::bind(bench.at("socket")).expect("bound");
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, bench.at("fifo"), fifo, mode, 0).expect("made");
    let (home, workspace) = (bench.empty("home"), open(&bench.workspace()));
    std::fs::write(home.join("history"), "x").expect("written");
    let home = open(&home);
    let roots =
        [CaptureRoot { name: "workspace", folder: &workspace }, CaptureRoot { name: "home", folder: &home }];
    let exclude = |root: &[u8], path: &[u8]| {
        root == b"workspace" && matches!(path, b".claude/.credentials.json" | b"cache")
    };
    let taken = bench
        .repo
        .capture(&ash_snapshot::CaptureRequest {
            exclude: &exclude,
            ..ash_snapshot::CaptureRequest::of(&roots)
        })
        .expect("taken");
    let skipped = |path: &str, why| SkippedEntry { path: path.into(), why };
    assert_eq!(
        taken.skipped,
        [
            skipped("workspace/.claude/.credentials.json", SkipReason::Excluded),
            skipped("workspace/cache", SkipReason::Excluded),
            skipped("workspace/fifo", SkipReason::Fifo),
            skipped("workspace/socket", SkipReason::Socket),
        ]
    );
    let paths = |root| {
        let files = bench.repo.list(&taken.tree, root).expect("listed");
        files.into_iter().map(|file| String::from_utf8(file.path).expect("text")).collect::<Vec<_>>()
    };
    assert_eq!((paths("home"), paths("workspace")), (vec!["history".into()], vec!["keep".into()]));
    assert!(bench.repo.list(&taken.tree, "other").is_err());
    // A root without a target is left out.
    let to = bench.empty("restored");
    let target = open(&to);
    let only = RestoreTarget { root: "home", folder: &target, owner: None };
    assert_eq!(bench.repo.restore(&taken.tree, &[only], None).expect("restored").files, 1);
    assert!(to.join("history").exists() && !to.join("keep").exists());
}

#[test]
fn a_tree_can_be_read_without_restoring_it() {
    let bench = Bench::new();
    furnish(&bench);
    let tree = bench.take().tree;
    let read = |path: &str| bench.repo.read(&tree, "workspace", &rel(path)).expect("read");
    let content = |path: &str| {
        let Some(SnapshotEntry::File { size, mut content, .. }) = read(path) else {
            panic!("{path} is a file")
        };
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).expect("read");
        assert_eq!(size, bytes.len() as u64);
        bytes
    };
    assert_eq!(content("plain.txt"), b"hello");
    assert_eq!(content("empty"), b"");
    assert_eq!(content("large"), vec![7; (3 << 20) + 11]);
    assert_eq!(content("z/second"), b"shared", "a hard link reads like its file");
    assert!(matches!(read("an/empty/dir"), Some(SnapshotEntry::Dir)));
    assert!(matches!(read("absolute"), Some(SnapshotEntry::Link(target)) if target == b"/etc/passwd"));
    assert!(read("missing").is_none() && read("plain.txt/x").is_none());
    let Some(SnapshotEntry::File { mut content, .. }) = read("sparse") else { panic!("a file") };
    let mut start = vec![1; (5 << 20) + 13];
    content.read_exact(&mut start).expect("read");
    assert!(start[..5 << 20].iter().all(|&b| b == 0) && start.ends_with(b"in the middle"));
}

#[test]
fn deeper_than_a_path_can_be_long_and_very_wide() {
    let bench = Bench::in_memory();
    let name = "d".repeat(60);
    let mut at = std::fs::File::open(bench.workspace()).expect("opened");
    for level in 0..500 {
        let (mode, flags) = (rustix::fs::Mode::RWXU, rustix::fs::OFlags::DIRECTORY);
        rustix::fs::mkdirat(&at, &name, mode).expect("made");
        let next = rustix::fs::openat(&at, &name, flags, rustix::fs::Mode::empty()).expect("opened");
        at = next.into();
        if level % 100 == 99 {
            let create = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
            let file = rustix::fs::openat(&at, "file", create, mode).expect("created");
            rustix::io::write(&file, b"deep").expect("written");
            rustix::fs::linkat(&at, "file", &at, "same", rustix::fs::AtFlags::empty()).expect("linked");
        }
    }
    let wide = if is_slow() { 100_000 } else { 10_000 };
    for n in 0..wide {
        std::fs::File::create(bench.at(&format!("w{n}"))).expect("created");
    }
    let taken = bench.take();
    assert_eq!((taken.files, taken.skipped), (wide + 5, vec![]));
    let to = bench.empty("restored");
    assert_eq!(bench.restore(&taken.tree, &to, None).files, wide + 5);
    assert_eq!(bench.compare(&taken.tree, &to), vec![]);
    let walked = open(&to).walk(&|_, _| false, usize::MAX).expect("walked");
    assert_eq!(walked.len() as u64, wide + 10);
    assert!(walked.iter().any(|file| file.path.len() > 30_000));
    assert_eq!(walked, bench.repo.list(&taken.tree, "workspace").expect("listed"));
    for path in [&to, &bench.workspace()] {
        Folder::erase(path).expect("erased");
        assert!(!path.exists());
    }
}

#[test]
fn a_file_that_never_rests_is_taken_and_named() {
    let bench = Bench::new();
    std::fs::write(bench.at("busy"), vec![1; 8 << 20]).expect("written");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let taken = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::OpenOptions::new().write(true).open(bench.at("busy")).expect("opened");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all_at(b"again", 100).expect("written");
                set_mtime(&bench.at("busy"), 1, rand_nanos());
            }
        });
        // The writer thread may not run during one of the reads.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        let mut taken = bench.take();
        while taken.unsettled.is_empty() && std::time::Instant::now() < deadline {
            taken = bench.take();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        taken
    });
    assert_eq!((taken.files, taken.unsettled), (1, vec![b"workspace/busy".to_vec()]));
    bench.repo.verify(&taken.tree).expect("a sound pack in spite of the second reading");
}

/// Nanoseconds that differ in each call, so that every read sees another time.
fn rand_nanos() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map(|now| i64::from(now.subsec_nanos()))
        .expect("after 1970")
}

#[test]
fn a_target_that_is_not_empty_is_refused() {
    let bench = Bench::new();
    bench.write("a", "1");
    let tree = bench.take().tree;
    let folder = open(&bench.workspace());
    let target = RestoreTarget { root: "workspace", folder: &folder, owner: None };
    let refused = bench.repo.restore(&tree, &[target], None).expect_err("refused");
    assert_eq!(refused.kind(), ash_snapshot::SnapshotErrorKind::Invalid);
}

#[test]
fn a_removed_tree_is_gone_and_only_it() {
    let bench = Bench::new();
    bench.write("a", "1");
    let first = bench.take().tree;
    bench.write("a", "2");
    let second = bench.take().tree;
    let wanted = GcRoots { trees: vec![second.clone()], ..GcRoots::default() };
    let collected = bench.repo.collect_garbage(&wanted, std::time::Duration::ZERO).expect("collected");
    assert_eq!((collected.removed.len(), collected.kept), (1, 1));
    assert_eq!((bench.repo.contains(&first), bench.repo.contains(&second)), (false, true));
    bench.repo.verify(&second).expect("whole");
    assert_eq!(bench.repo.verify(&first).expect_err("gone").kind(), ash_snapshot::SnapshotErrorKind::Damaged);
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).expect("set");
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let length = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

#[test]
fn attributes_of_the_user_come_back_and_no_others() {
    let bench = Bench::new();
    bench.write("dir/file", "x");
    set_attribute(&bench.at("dir/file"), "user.b", b"\xff\0binary");
    set_attribute(&bench.at("dir/file"), "user.a", b"");
    set_attribute(&bench.at("dir"), "user.dir", &[7; 1000]);
    if is_root() {
        set_attribute(&bench.at("dir/file"), "trusted.ours", b"not the agent's");
    }
    let mut line = bench.line();
    let tree = line.take(&bench.repo).tree;
    let to = bench.empty("restored");
    bench.restore(&tree, &to, None);
    assert_eq!(bench.compare(&tree, &to), vec![]);
    let file = |name| attribute(&to.join("dir/file"), name);
    assert_eq!([file("user.a"), file("user.b")], [Some(vec![]), Some(b"\xff\0binary".to_vec())]);
    assert_eq!(file("trusted.ours"), None);
    assert_eq!(attribute(&to.join("dir"), "user.dir"), Some(vec![7; 1000]));

    set_attribute(&to.join("dir/file"), "user.b", b"other");
    rustix::fs::removexattr(to.join("dir"), "user.dir").expect("removed");
    let changed = ["dir", "dir/file"]
        .map(|path| FolderDifference { path: path.into(), what: DifferenceKind::Attributes });
    assert_eq!(bench.compare(&tree, &to), changed);
    // Changing only an attribute is a change.
    set_attribute(&bench.at("dir/file"), "user.b", b"other");
    let next = line.take(&bench.repo).tree;
    assert_eq!((next.same_files(&tree), bench.compare(&next, &bench.workspace())), (false, vec![]));
}

#[test]
fn a_file_of_a_tebibyte_of_nothing_is_captured_and_restored_as_such() {
    let bench = Bench::new();
    let file = std::fs::File::create(bench.at("sparse")).expect("created");
    for (at, text) in [(0, "start"), (1 << 39, "middle"), ((1 << 40) - 3, "end")] {
        file.write_all_at(text.as_bytes(), at).expect("written");
    }
    let taken = bench.take();
    assert_eq!((taken.files, taken.bytes), (1, 1 << 40));
    assert!(taken.written < 10_000, "{} bytes", taken.written);
    let to = bench.empty("restored");
    bench.restore(&taken.tree, &to, None);
    let is = std::fs::metadata(to.join("sparse")).expect("there");
    assert_eq!(is.size(), 1 << 40);
    assert!(is.blocks() * 512 < 1 << 20, "{} blocks", is.blocks());
    assert_eq!(bench.compare(&taken.tree, &to), vec![]);
    let restored = std::fs::File::options().read(true).write(true).open(to.join("sparse")).expect("opened");
    let mut text = [0; 6];
    restored.read_exact_at(&mut text, 1 << 39).expect("read");
    assert_eq!(&text, b"middle");
    // A single byte in the middle of a hole is found.
    restored.write_all_at(b"!", 1 << 38).expect("written");
    set_mtime(&to.join("sparse"), file_time(&bench.at("sparse")).0, file_time(&bench.at("sparse")).1);
    assert_eq!(
        bench.compare(&taken.tree, &to),
        [FolderDifference { path: "sparse".into(), what: DifferenceKind::Content }]
    );
}

fn file_time(path: &Path) -> (i64, i64) {
    let is = std::fs::metadata(path).expect("there");
    (is.mtime(), is.mtime_nsec())
}

#[test]
fn as_root_special_files_are_skipped_and_counted_each_time() {
    assert!(is_root(), "only root can make devices");
    let bench = Bench::new();
    let _socket = UnixListener::bind(bench.at("socket")).expect("bound");
    let make = |name: &str, kind, device| {
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, bench.at(name), kind, mode, device).expect("made");
    };
    make("fifo", rustix::fs::FileType::Fifo, 0);
    make("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    make("disk", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(7, 200));
    bench.write("file", "x");
    let skipped = |path: &str, why| SkippedEntry { path: format!("workspace/{path}").into(), why };
    let expected = [
        skipped("disk", SkipReason::Device),
        skipped("fifo", SkipReason::Fifo),
        skipped("null", SkipReason::Device),
        skipped("socket", SkipReason::Socket),
    ];
    let mut line = bench.line();
    for _ in 0..3 {
        let taken = line.take(&bench.repo);
        assert_eq!((taken.files, &taken.skipped[..]), (1, &expected[..]));
        crate::support::let_the_clock_tick();
    }
    assert_eq!(bench.compare(&line.base.expect("taken"), &bench.workspace()), vec![]);
}

#[test]
fn a_file_whose_other_names_are_outside_is_a_file_of_its_own() {
    let bench = Bench::new();
    bench.write("a/inside", "shared with outside");
    bench.write("a/pair", "shared inside");
    std::fs::create_dir(bench.at("b")).expect("made");
    std::fs::hard_link(bench.at("a/inside"), bench.dir.path().join("outside")).expect("linked");
    std::fs::hard_link(bench.at("a/pair"), bench.at("b/pair")).expect("linked");
    let mut line = bench.line();
    let taken = line.take(&bench.repo);
    assert_eq!(taken.files, 2);
    assert_eq!(bench.compare(&taken.tree, &bench.workspace()), vec![]);
    let to = bench.empty("restored");
    bench.restore(&taken.tree, &to, None);
    let names = |path: &str| std::fs::metadata(to.join(path)).expect("there").nlink();
    assert_eq!([names("a/inside"), names("a/pair"), names("b/pair")], [1, 2, 2]);

    // Moves away a directory with one of the links: neither the file nor the directory of the other link changes.
    crate::support::let_the_clock_tick();
    line.take(&bench.repo);
    std::fs::rename(bench.at("b"), bench.dir.path().join("b outside")).expect("moved");
    let alone = line.take(&bench.repo);
    assert_eq!((alone.files, bench.compare(&alone.tree, &bench.workspace())), (2, vec![]));
    assert!(alone.tree.same_files(&crate::support::take(&bench.repo, &bench.workspace()).tree));
    std::fs::rename(bench.dir.path().join("b outside"), bench.at("b")).expect("moved back");
    let together = line.take(&bench.repo);
    assert!(together.tree.same_files(&crate::support::take(&bench.repo, &bench.workspace()).tree));
    assert_eq!(bench.compare(&together.tree, &bench.workspace()), vec![]);
}

/// Creates a chain of directories with a file at its end.
fn dig(bench: &Bench, depth: usize) {
    dig_named(bench, depth, "d");
}

fn dig_named(bench: &Bench, depth: usize, name: &str) {
    let mut at = std::fs::File::open(bench.workspace()).expect("opened");
    for _ in 0..depth {
        let (mode, flags) = (rustix::fs::Mode::RWXU, rustix::fs::OFlags::DIRECTORY);
        rustix::fs::mkdirat(&at, name, mode).expect("made");
        at = rustix::fs::openat(&at, name, flags, rustix::fs::Mode::empty()).expect("opened").into();
    }
    let create = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let file = rustix::fs::openat(&at, "file", create, rustix::fs::Mode::RUSR).expect("created");
    rustix::io::write(&file, b"deep").expect("written");
}

fn assert_deep(depth: usize) {
    let bench = Bench::in_memory();
    dig(&bench, depth);
    let mut line = bench.line();
    let taken = line.take(&bench.repo);
    assert_eq!((taken.files, &taken.skipped), (1, &vec![]));
    bench.repo.verify(&taken.tree).expect("sound");
    let to = bench.empty("restored");
    bench.restore(&taken.tree, &to, None);
    assert_eq!(bench.compare(&taken.tree, &to), vec![]);
    assert_eq!(line.take(&bench.repo), CapturedSnapshot { written: 0, ..taken });
    for path in [&to, &bench.workspace()] {
        Folder::erase(path).expect("erased");
    }
}

#[test]
fn three_hundred_levels_come_back() {
    assert_deep(300);
}

#[test]
fn thousands_of_levels_come_back() {
    assert_deep(if is_slow() { 5000 } else { 1500 });
}

/// What could be captured but not restored would be lost, with everything beside it. Slow: creates and erases ten
/// thousand nested folders.
#[test]
fn slowly_folders_too_deep_to_restore_are_left_out_and_reported() {
    let bench = Bench::in_memory();
    dig(&bench, 10_020);
    bench.write("beside", "x");
    let taken = bench.take();
    let why = SkipReason::Unreadable("it is deeper than can be restored".to_owned());
    let path = [b"workspace".to_vec(), b"/d".repeat(10_000)].concat();
    assert_eq!((taken.files, taken.skipped), (1, vec![SkippedEntry { path, why }]));
    bench.repo.verify(&taken.tree).expect("sound");
    let to = bench.empty("restored");
    bench.restore(&taken.tree, &to, None);
    assert_eq!(std::fs::read(to.join("beside")).expect("read"), b"x");
    for path in [&to, &bench.workspace()] {
        Folder::erase(path).expect("erased");
    }
}

/// Five times as many levels would take gigabytes of paths.
#[test]
fn endlessly_growing_paths_are_left_out_and_reported() {
    const DEPTH: usize = 1200;
    let bench = Bench::in_memory();
    dig_named(&bench, DEPTH, &"n".repeat(250));
    bench.write("beside", "x");
    let taken = bench.take();
    let [skipped] = &taken.skipped[..] else { panic!("{} skipped", taken.skipped.len()) };
    assert_eq!(
        skipped.why,
        SkipReason::Unreadable("the paths of all directories together are too long".to_owned())
    );
    let levels = skipped.path.split(|b| *b == b'/').count();
    assert!((900..DEPTH).contains(&levels), "{levels} levels");
    assert_eq!(taken.files, 1);
    bench.repo.verify(&taken.tree).expect("sound");
    Folder::erase(&bench.workspace()).expect("erased");
}

/// Slow: creates so many names that their list is larger than a block.
#[test]
fn slowly_a_directory_with_too_many_names_is_left_out_and_reported() {
    let bench = Bench::in_memory();
    std::fs::create_dir(bench.at("wide")).expect("made");
    for n in 0..270_000 {
        std::fs::File::create(bench.at(&format!("wide/{n:0>250}"))).expect("created");
    }
    bench.write("beside", "x");
    let mut line = bench.line();
    let why = SkipReason::Unreadable("it has more names than can be restored".to_owned());
    let skipped = [SkippedEntry { path: "workspace/wide".into(), why }];
    for _ in 0..2 {
        let taken = line.take(&bench.repo);
        assert_eq!(taken.skipped, skipped);
        bench.repo.verify(&taken.tree).expect("sound");
    }
    let to = bench.empty("restored");
    bench.restore(&line.base.expect("taken"), &to, None);
    assert_eq!(std::fs::read(to.join("beside")).expect("read"), b"x");
}
