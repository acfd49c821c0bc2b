//! A folder's operations do what their caller asks, and never leave the folder.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use ash_snapshot::{
    CaptureRoot, FileEntryKind, FileInfo, FileKind, FileOwner, FileStat, Folder, FolderEntry, LinkPolicy,
    RelPath, Repo, SnapshotErrorKind,
};

use crate::support::{Bench, is_root, noise, open, rel};

fn kind<T: std::fmt::Debug>(result: Result<T, ash_snapshot::Error>) -> SnapshotErrorKind {
    result.expect_err("refused").kind()
}

/// A workspace with a secret beside it, and links to that secret.
fn tempting() -> Bench {
    let bench = Bench::new();
    std::fs::write(bench.dir.path().join("secret"), "secret").expect("written");
    bench.write("dir/file", "inside");
    symlink("../secret", bench.at("up")).expect("linked");
    symlink(bench.dir.path().join("secret"), bench.at("absolute")).expect("linked");
    symlink(bench.dir.path(), bench.at("out")).expect("linked");
    symlink("dir/file", bench.at("inside")).expect("linked");
    symlink("dir", bench.at("also dir")).expect("linked");
    symlink("loop", bench.at("loop")).expect("linked");
    bench
}

#[test]
fn links_lead_nowhere_but_inside_and_only_if_asked() {
    let bench = tempting();
    let folder = open(&bench.workspace());
    let read = |path: &str, links| {
        let (mut file, _) = folder.open_file(&rel(path), links)?;
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        Ok(text)
    };
    for path in ["up", "absolute", "out/secret", "loop"] {
        assert_eq!(kind(read(path, LinkPolicy::Refuse)), SnapshotErrorKind::Invalid, "{path}");
        assert_eq!(kind(read(path, LinkPolicy::Inside)), SnapshotErrorKind::Invalid, "{path}");
    }
    for path in ["inside", "also dir/file"] {
        assert_eq!(kind(read(path, LinkPolicy::Refuse)), SnapshotErrorKind::Invalid, "{path}");
        assert_eq!(read(path, LinkPolicy::Inside).expect("read"), "inside");
    }
    assert_eq!(read("dir/file", LinkPolicy::Refuse).expect("read"), "inside");
    assert_eq!(kind(folder.open_subfolder(&rel("also dir"))), SnapshotErrorKind::Invalid);
    assert_eq!(folder.open_subfolder(&rel("dir")).expect("opened").list().expect("listed").len(), 1);
}

#[test]
fn only_a_regular_file_is_opened() {
    let bench = tempting();
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, bench.at("fifo"), fifo, mode, 0).expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(bench.at("socket")).expect("bound");
    let folder = open(&bench.workspace());
    for path in ["dir", "fifo", "socket"] {
        assert_eq!(
            kind(folder.open_file(&rel(path), LinkPolicy::Inside)),
            SnapshotErrorKind::NotAFile,
            "{path}"
        );
    }
    for path in ["missing", "dir/file/x"] {
        assert_eq!(
            kind(folder.open_file(&rel(path), LinkPolicy::Inside)),
            SnapshotErrorKind::NotFound,
            "{path}"
        );
    }
    let file = std::fs::File::open(bench.at("dir/file")).expect("opened");
    let when = std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_700_000_000_123);
    file.set_modified(when).expect("set");
    let (_, stat) = folder.open_file(&rel("dir/file"), LinkPolicy::Refuse).expect("opened");
    assert_eq!(stat, FileStat { size: 6, mtime_ms: 1_700_000_000_123, mode: 0o644 });
}

#[test]
fn as_root_a_write_replaces_and_never_goes_through_a_link() {
    let bench = tempting();
    let folder = open(&bench.workspace());
    assert!(is_root(), "only root can give files away");
    let owner = Some(FileOwner { uid: 4321, gid: 8765 });
    let write = |path: &str, text: &str| folder.write_file(&rel(path), &mut text.as_bytes(), owner, 0o640);

    assert_eq!(write("new/deep/file", "hello").expect("written"), 5);
    for (path, mode) in [("new", 0o755), ("new/deep", 0o755), ("new/deep/file", 0o640)] {
        let is = std::fs::metadata(bench.at(path)).expect("there");
        assert_eq!((is.uid(), is.gid(), is.mode() & 0o7777), (4321, 8765, mode), "{path}");
    }
    write("dir/file", "changed").expect("written");
    assert_eq!(std::fs::metadata(bench.at("dir/file")).expect("there").mode() & 0o777, 0o644);
    write("up", "mine").expect("written");
    assert_eq!(std::fs::read_to_string(bench.at("up")).expect("read"), "mine");
    assert_eq!(kind(write("out/secret", "pwned")), SnapshotErrorKind::Invalid);
    assert_eq!(kind(write("out/new/file", "pwned")), SnapshotErrorKind::Invalid);
    assert_eq!(kind(write("dir", "x")), SnapshotErrorKind::NotAFile);
    assert_eq!(kind(write("dir/file/x", "x")), SnapshotErrorKind::Invalid);
    assert_eq!(std::fs::read_to_string(bench.dir.path().join("secret")).expect("read"), "secret");
    assert_eq!(std::fs::read_dir(bench.at("dir")).expect("listed").count(), 1, "nothing left beside");
}

#[test]
fn a_replaced_file_has_the_mode_it_was_given() {
    let bench = tempting();
    let folder = open(&bench.workspace());
    folder.replace_file(&rel("dir/file"), &mut &b"new"[..], None, 0o750).expect("written");
    assert_eq!(std::fs::metadata(bench.at("dir/file")).expect("there").mode() & 0o777, 0o750);
    assert_eq!(std::fs::read_to_string(bench.at("dir/file")).expect("read"), "new");
}

#[test]
fn a_link_is_created_exactly_and_never_through_another() {
    let bench = tempting();
    let folder = open(&bench.workspace());
    for (path, target) in [("new/link", "../..//secret"), ("dir/file", "x"), ("up", "/etc/passwd")] {
        folder.symlink(&rel(path), target.as_bytes(), None).expect("linked");
        assert_eq!(folder.read_link(&rel(path)).expect("read"), target.as_bytes(), "{path}");
    }
    assert_eq!(kind(folder.symlink(&rel("out/link"), b"x", None)), SnapshotErrorKind::Invalid);
    assert_eq!(kind(folder.symlink(&rel("dir"), b"x", None)), SnapshotErrorKind::NotAFile);
    assert_eq!(kind(folder.read_link(&rel("dir"))), SnapshotErrorKind::NotAFile);
    assert_eq!(kind(folder.read_link(&rel("also dir/file"))), SnapshotErrorKind::Invalid);
    assert_eq!(kind(folder.read_link(&rel("missing"))), SnapshotErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(bench.at("dir")).expect("listed").count(), 1, "nothing left beside");
}

#[test]
fn folders_go_only_while_they_are_empty_and_inside() {
    let bench = tempting();
    let folder = open(&bench.workspace());
    std::fs::create_dir_all(bench.at("dir/a/b/c")).expect("made");
    folder.remove_empty_folders(&rel("dir/a/b/c/gone")).expect("removed");
    assert!(!bench.at("dir/a").exists() && bench.at("dir/file").exists());
    std::fs::create_dir(bench.dir.path().join("empty")).expect("made");
    assert_eq!(kind(folder.remove_empty_folders(&rel("out/empty/gone"))), SnapshotErrorKind::Invalid);
    assert!(bench.dir.path().join("empty").exists());
}

#[test]
fn a_folder_and_its_snapshot_have_the_same_leaves() {
    let bench = tempting();
    bench.write("skipped/file", "x");
    std::fs::hard_link(bench.at("dir/file"), bench.at("zz same")).expect("linked");
    let folder = open(&bench.workspace());
    let skip = |name: &[u8], is_dir: bool| is_dir && name == b"skipped";
    let mut live = folder.entries(&skip, 100).expect("walked");
    for leaf in &mut live {
        if let FileEntryKind::File { content, .. } = &mut leaf.what {
            let path = RelPath::from_bytes(&leaf.path).expect("a path");
            *content = bench.repo.content_id(&folder, &path).expect("read");
        }
    }
    let mut stored = bench.repo.entries(&bench.take().tree, "workspace").expect("listed");
    stored.retain(|leaf| leaf.path != b"skipped/file");
    assert_eq!(live, stored);
    assert_eq!(live.len(), 8);
    assert_eq!(bench.repo.content_id(&folder, &rel("missing")).expect("asked"), None);
    assert_eq!(folder.entries(&skip, 3).expect("walked").len(), 3);
}

#[test]
fn a_write_that_breaks_off_changes_nothing() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the client went away"))
        }
    }
    let bench = tempting();
    let folder = open(&bench.workspace());
    let mut bytes = b"half".chain(Broken);
    assert_eq!(kind(folder.write_file(&rel("dir/file"), &mut bytes, None, 0o600)), SnapshotErrorKind::Io);
    assert_eq!(std::fs::read_to_string(bench.at("dir/file")).expect("read"), "inside");
    assert_eq!(std::fs::read_dir(bench.at("dir")).expect("listed").count(), 1);
}

#[test]
fn as_root_a_full_disk_is_reported_as_full() {
    assert!(is_root(), "only root can mount");
    let bench = Bench::new();
    let mount = bench.empty("small");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &mount, "tmpfs", flags, Some(c"size=64k")).expect("mounted");
    let folder = open(&mount);
    let mut much = std::io::repeat(1).take(1 << 20);
    let full = folder.write_file(&rel("file"), &mut much, None, 0o600);
    let left = folder.list().expect("listed");
    std::fs::write(bench.at("large"), noise(1 << 20, 1)).expect("written");
    let repo = Repo::open(&mount.join("repo")).expect("opened");
    let workspace = open(&bench.workspace());
    let not_taken = repo
        .capture(&ash_snapshot::CaptureRequest::of(&[CaptureRoot { name: "workspace", folder: &workspace }]));
    let left_in_repo = open(&mount.join("repo")).list().expect("listed");
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    assert_eq!((kind(full), left), (SnapshotErrorKind::Full, vec![]));
    assert_eq!((kind(not_taken), left_in_repo), (SnapshotErrorKind::Full, vec![]));
}

#[test]
fn as_root_another_file_system_inside_is_not_entered() {
    assert!(is_root(), "only root can mount");
    let bench = Bench::new();
    bench.write("a", "1");
    let mount = bench.at("mounted");
    std::fs::create_dir(&mount).expect("made");
    let other = bench.empty("other");
    std::fs::write(other.join("file"), "x").expect("written");
    rustix::mount::mount_bind(&other, &mount).expect("mounted");
    let folder = open(&bench.workspace());
    let opened = folder.open_file(&rel("mounted/file"), LinkPolicy::Inside);
    let walked = folder.walk(&|_, _| false, 100);
    let taken = bench.take();
    let erased = Folder::erase(&bench.workspace());
    // The removal renamed the tree before the mount stopped it.
    let untouched = other.join("file").exists();
    for line in std::fs::read_to_string("/proc/self/mounts").expect("read").lines() {
        let at = line.split(' ').nth(1).expect("a mount point");
        if at.starts_with(bench.dir.path().to_str().expect("text")) {
            rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
        }
    }
    assert!(untouched && erased.is_err());
    assert_eq!(kind(opened), SnapshotErrorKind::Invalid);
    assert_eq!(walked.expect("walked").len(), 1);
    assert_eq!(taken.skipped[0].why, ash_snapshot::SkipReason::Mount);
}

#[test]
fn files_and_links_are_removed_and_directories_are_not() {
    let bench = tempting();
    let folder = open(&bench.workspace());
    folder.remove_file(&rel("up")).expect("removed");
    folder.remove_file(&rel("dir/file")).expect("removed");
    assert_eq!(kind(folder.remove_file(&rel("dir"))), SnapshotErrorKind::NotAFile);
    assert_eq!(kind(folder.remove_file(&rel("out/secret"))), SnapshotErrorKind::Invalid);
    assert_eq!(kind(folder.remove_file(&rel("dir/file"))), SnapshotErrorKind::NotFound);
    assert!(bench.dir.path().join("secret").exists() && !bench.at("dir/file").exists());
}

#[test]
fn a_walk_sees_regular_files_in_order_up_to_a_limit() {
    let bench = tempting();
    for path in ["a/x", "a.txt", "node_modules/m", "b"] {
        bench.write(path, "12");
        std::fs::File::open(bench.at(path))
            .expect("opened")
            .set_modified(std::time::UNIX_EPOCH)
            .expect("set");
    }
    let folder = open(&bench.workspace());
    let skip = |name: &[u8], is_dir: bool| is_dir && name == b"node_modules" || name == b"dir";
    let file = |path: &str| FileInfo { path: path.into(), size: 2, mtime_ms: 0 };
    assert_eq!(folder.walk(&skip, 100).expect("walked"), [file("a.txt"), file("a/x"), file("b")]);
    assert_eq!(folder.walk(&skip, 2).expect("walked").len(), 2);
    let listed = open(&bench.at("dir")).list().expect("listed");
    assert_eq!(listed, [FolderEntry { name: b"file".to_vec(), kind: FileKind::File }]);
}

/// Moves the current folder of a walk away, below the level at which the walk keeps handles open. The walk continues with
/// what is in its place by then, if anything.
#[test]
fn a_walk_goes_on_when_the_folder_it_is_in_was_moved() {
    let bottom = format!("a/{}bottom", "d/".repeat(80));
    type Change = fn(&Bench);
    let cases: [(Change, &[&str]); 3] = [
        (|_| {}, &[&bottom, "a/old", "a/same", "zz"]),
        (|bench| std::fs::rename(bench.at("a"), bench.at("b")).expect("moved"), &[&bottom, "zz"]),
        (
            |bench| {
                std::fs::rename(bench.at("a"), bench.at("b")).expect("moved");
                bench.write("a/same", "y");
            },
            &[&bottom, "a/same", "zz"],
        ),
    ];
    for (change, expected) in cases {
        let set = || {
            let bench = Bench::in_memory();
            [&bottom, "a/old", "a/same", "zz"].iter().for_each(|path| bench.write(path, "x"));
            bench
        };
        let moved = |bench: &Bench, name: &[u8]| {
            if name == b"bottom" {
                std::fs::rename(bench.at("a/d"), bench.at("elsewhere")).expect("moved");
                change(bench);
            }
            false
        };
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let bench = set();
        let walked = open(&bench.workspace()).walk(&|name, _| moved(&bench, name), 100).expect("walked");
        assert_eq!(walked.iter().map(|file| text(&file.path)).collect::<Vec<_>>(), expected);
        let bench = set();
        let leaves = open(&bench.workspace()).entries(&|name, _| moved(&bench, name), 100).expect("walked");
        assert_eq!(leaves.iter().map(|leaf| text(&leaf.path)).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_link_is_not_opened_as_a_folder_with_or_without_a_slash() {
    let bench = tempting();
    assert!(Folder::open(&bench.at("out")).is_err());
    assert!(Folder::open(&bench.at("out/")).is_err());
    assert!(Folder::open(&bench.at("out/.")).is_err());
    assert!(Folder::open(&bench.at("dir/")).is_ok());
}

#[test]
fn erasing_follows_nothing_and_can_be_finished_later() {
    let bench = tempting();
    std::fs::set_permissions(bench.at("dir"), std::fs::Permissions::from_mode(0o000)).expect("set");
    let interrupted = bench.empty(&format!(".workspace.erasing-{}", "0".repeat(32)));
    std::fs::File::create(interrupted.join("rest")).expect("created").write_all(b"x").expect("written");
    let unrelated = bench.empty(".erasing-not-ours");
    Folder::erase(&bench.workspace()).expect("erased");
    Folder::erase(&bench.workspace()).expect("nothing to do");
    Folder::erase(&bench.dir.path().join("no/such")).expect("nothing to do");
    assert_eq!(Folder::finish_erasing(bench.dir.path()).expect("finished"), 1);
    assert!(!bench.workspace().exists() && !interrupted.exists() && unrelated.exists());
    assert!(bench.dir.path().join("secret").exists());
}

#[test]
fn folders_are_made_beneath_and_never_through_a_link() {
    let bench = tempting();
    let folder = open(&bench.workspace());
    for path in ["new/deep/er", "new/deep", "dir"] {
        folder.make_subfolder(&rel(path), None).expect("made, or there already");
    }
    assert!(bench.at("new/deep/er").is_dir());
    for path in ["out/new", "also dir/new", "up", "dir/file", "dir/file/new"] {
        assert_eq!(kind(folder.make_subfolder(&rel(path), None)), SnapshotErrorKind::Invalid, "{path}");
    }
    assert!(!bench.dir.path().join("new").exists() && !bench.at("dir/new").exists());
}

#[test]
fn holes_take_no_space_after_a_write() {
    let bench = Bench::new();
    let folder = open(&bench.workspace());
    const LARGE: u64 = 64 << 20;
    let zeros = |length| std::io::repeat(0).take(length);
    let mut content = b"begin".chain(zeros(LARGE)).chain(&b"end"[..]).chain(zeros(LARGE));
    let size = folder.write_file(&rel("sparse"), &mut content, None, 0o644).expect("written");
    let is = std::fs::metadata(bench.at("sparse")).expect("there");
    assert_eq!((size, is.len()), (2 * LARGE + 8, 2 * LARGE + 8));
    assert!(is.blocks() * 512 < LARGE / 8, "{} blocks", is.blocks());
    let bytes = std::fs::read(bench.at("sparse")).expect("read");
    let end = LARGE as usize + 5;
    assert!(bytes.starts_with(b"begin") && &bytes[end..end + 3] == b"end");
    assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 8);
}

#[test]
fn a_folder_of_a_snapshot_is_listed_alone() {
    let bench = tempting();
    bench.write("dir/deep/other", "more");
    let taken = bench.take();
    let listed = |path: &str| -> Vec<String> {
        let files = bench.repo.list_in(&taken.tree, "workspace", &rel(path)).expect("listed");
        files.iter().map(|file| String::from_utf8_lossy(&file.path).into_owned()).collect()
    };
    assert_eq!(listed("dir"), ["deep/other", "file"]);
    for nothing in ["dir/file", "also dir", "out", "nowhere", "dir/file/below"] {
        assert_eq!(listed(nothing), [""; 0], "{nothing}");
    }
}
