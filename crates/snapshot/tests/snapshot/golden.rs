//! A repository from the first version must stay readable for ever. Its files never change; a new version of the
//! format gets a folder of its own beside them.

use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ash_snapshot::{
    CaptureRequest, CaptureRoot, DiskWriter, EncryptionKey, Repo, RestoreTarget, SnapshotEntry,
    SnapshotErrorKind, TreeId,
};

use crate::forge::{Unpacked, unpack};
use crate::support::{Bench, Dice, chmod, open, rel, set_mtime};

const FIRST: &str =
    "654759062b8cc542d3c949525df1a9b8eb86db3d80afaf3cb021d83031aa6aaebd37bbbaf646417172c32837924ff079";
const SECOND: &str =
    "fe24f83f710ce6e1d56926e36adab3f3e73a7bd8df5e693089a21e35fcd3b6043d13d225bccff656eb428052debba985";
const SEALED: &str =
    "a3a9a8edbb00ae22dee1a4b9909af5982688e61d6b1649c754137b335ec03f73a471b518ebfc7a91ac3b81cbb820ab59";
const KEY: [u8; 32] = *b"the key of the golden repository";

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/version-1").join(path)
}

/// Opens a copy, because opening a repository may clean it up.
fn repository(bench: &Bench, name: &str, key: Option<EncryptionKey>) -> Arc<Repo> {
    let dir = bench.empty(name);
    for entry in std::fs::read_dir(golden(name)).expect("listed") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, dir.join(path.file_name().expect("a name"))).expect("copied");
    }
    Arc::new(Repo::open_with(&dir, key, DiskWriter::default()).expect("opened"))
}

fn tree(text: &str) -> TreeId {
    TreeId::parse(text).expect("an id")
}

const FILE: (i64, i64) = (1_700_000_000, 123_456_789);
const OLD: (i64, i64) = (1_600_000_000, 0);

fn dated(path: &Path, (seconds, nanos): (i64, i64)) {
    set_mtime(path, seconds, nanos);
}

/// One entry of each kind, in so few directories that one thread visits them, always in the same order.
fn build_first(workspace: &Path, home: &Path) {
    let at = |path: &str| workspace.join(path);
    std::fs::create_dir(at("src")).expect("made");
    std::fs::create_dir(at("sticky")).expect("made");
    std::fs::write(at("src/main.rs"), "fn main() {}").expect("written");
    std::fs::hard_link(at("src/main.rs"), at("src/same.rs")).expect("linked");
    std::os::unix::fs::symlink("src/main.rs", at("link")).expect("linked");
    std::fs::write(at("nothing"), "").expect("written");
    std::fs::write(at("noise"), random()).expect("written");
    std::fs::write(home.join(".state"), "{}").expect("written");
    rustix::fs::setxattr(at("noise"), "user.origin", b"a dice", rustix::fs::XattrFlags::empty())
        .expect("set");
    for (path, mode) in [("src", 0o755), ("src/main.rs", 0o640), ("sticky", 0o1755), ("nothing", 0o600)] {
        chmod(&at(path), mode);
    }
    chmod(&at("noise"), 0o644);
    chmod(&home.join(".state"), 0o600);
    for path in ["src/main.rs", "link", "nothing", "noise"] {
        dated(&at(path), FILE);
    }
    dated(&home.join(".state"), FILE);
    for path in [&at("src"), &at("sticky"), workspace, home] {
        dated(path, OLD);
    }
}

/// What the second snapshot adds: a large file with zeros, and compressible content.
fn build_second(workspace: &Path) {
    let at = |path: &str| workspace.join(path);
    std::fs::write(at("text"), "the same again and again, ".repeat(40)).expect("written");
    let sparse = std::fs::File::create(at("sparse")).expect("created");
    sparse.write_all_at(b"tail", 1 << 20).expect("written");
    std::fs::remove_file(at("nothing")).expect("removed");
    for path in ["text", "sparse"] {
        chmod(&at(path), 0o644);
        dated(&at(path), (1_700_000_001, 0));
    }
    dated(workspace, (1_700_000_002, 0));
}

/// These bytes must never change, whatever noise the other tests use.
fn random() -> Vec<u8> {
    let mut dice = Dice(1);
    (0..63).flat_map(|_| dice.roll().to_le_bytes()).take(500).collect()
}

/// Two empty folders.
fn folders(bench: &Bench) -> (PathBuf, PathBuf) {
    (bench.empty("w"), bench.empty("h"))
}

const NOTES: [(&str, &[u8]); 1] = [("session", b"{\"name\":\"golden\"}")];

fn take(repo: &Repo, (workspace, home): (&Path, &Path), base: Option<&TreeId>, index: &Path) -> TreeId {
    let (w, h) = (open(workspace), open(home));
    let roots = [CaptureRoot { name: "workspace", folder: &w }, CaptureRoot { name: "home", folder: &h }];
    let index = Some(index);
    repo.capture(&CaptureRequest { base, index, notes: &NOTES, ..CaptureRequest::of(&roots) })
        .expect("taken")
        .tree
}

fn restore(
    repo: &Repo,
    tree: &TreeId,
    (workspace, home): (&Path, &Path),
    index: Option<&Path>,
) -> (u64, u64) {
    let (w, h) = (open(workspace), open(home));
    let targets = [
        RestoreTarget { root: "workspace", folder: &w, owner: None },
        RestoreTarget { root: "home", folder: &h, owner: None },
    ];
    let restored = repo.restore(tree, &targets, index).expect("restored");
    (restored.files, restored.bytes)
}

fn assert_first(repo: &Arc<Repo>, tree: &TreeId, workspace: &Path) {
    let is = |path: &str| std::fs::symlink_metadata(workspace.join(path)).expect("there");
    assert_eq!(std::fs::read(workspace.join("src/main.rs")).expect("read"), b"fn main() {}");
    assert_eq!((is("src/main.rs").mode() & 0o7777, is("src/main.rs").mtime()), (0o640, FILE.0));
    assert_eq!(is("src/main.rs").mtime_nsec(), FILE.1);
    assert_eq!(is("src/main.rs").ino(), is("src/same.rs").ino());
    assert_eq!((is("sticky").mode() & 0o7777, is("sticky").mtime()), (0o1755, OLD.0));
    assert_eq!(std::fs::read_link(workspace.join("link")).expect("a link").to_str(), Some("src/main.rs"));
    assert_eq!(std::fs::read(workspace.join("noise")).expect("read"), random());
    let mut value = [0; 20];
    let length = rustix::fs::getxattr(workspace.join("noise"), "user.origin", &mut value[..]).expect("there");
    assert_eq!(&value[..length], b"a dice");
    let Some(SnapshotEntry::File { mut content, .. }) =
        repo.read(tree, "home", &rel(".state")).expect("read")
    else {
        panic!("a file")
    };
    let mut state = String::new();
    content.read_to_string(&mut state).expect("text");
    assert_eq!(state, "{}");
    assert_eq!(repo.note(tree, "session").expect("read").as_deref(), Some(NOTES[0].1));
}

#[test]
fn the_first_repository_still_restores() {
    let bench = Bench::new();
    let repo = repository(&bench, "plain", None);
    let trees = [tree(FIRST), tree(SECOND)];
    let verified = repo.verify_all(&trees, ash_snapshot::VerifyDepth::Data, &mut |_| {}).expect("verified");
    assert_eq!((verified.trees, verified.damaged), (2, vec![]));

    let (workspace, home) = folders(&bench);
    assert_eq!(restore(&repo, &trees[0], (&workspace, &home), None), (4, 12 + 500 + 2));
    assert_first(&repo, &trees[0], &workspace);
    assert_eq!(std::fs::read(workspace.join("nothing")).expect("read"), b"");

    let (workspace, home) = (bench.empty("w2"), bench.empty("h2"));
    assert_eq!(restore(&repo, &trees[1], (&workspace, &home), None).0, 5);
    assert_first(&repo, &trees[1], &workspace);
    let text = "the same again and again, ".repeat(40);
    assert_eq!(std::fs::read(workspace.join("text")).expect("read"), text.as_bytes());
    let sparse = std::fs::read(workspace.join("sparse")).expect("read");
    assert_eq!(sparse, [&vec![0; 1 << 20][..], b"tail"].concat());
    assert!(!workspace.join("nothing").exists());
}

/// The writer still produces the same objects from the same files; otherwise the version byte has to change.
#[test]
fn the_first_repository_is_still_written_alike() {
    let bench = Bench::new();
    let (workspace, home) = folders(&bench);
    let index = bench.dir.path().join("index");
    build_first(&workspace, &home);
    let first = take(&bench.repo, (&workspace, &home), None, &index);
    // zstd may compress a block differently; its content must be equal.
    assert_eq!(unpacked(&bench.repo_dir(), &first), unpacked(&golden("plain"), &tree(FIRST)));
    assert_eq!(first.files(), tree(FIRST).files());

    build_second(&workspace);
    let second = take(&bench.repo, (&workspace, &home), Some(&first), &index);
    assert_eq!(second.files(), tree(SECOND).files());
}

fn unpacked(repo: &Path, tree: &TreeId) -> Unpacked {
    let path = repo.join(format!("{}.pack", &tree.as_str()[64..]));
    unpack(&std::fs::read(path).expect("read"))
}

/// Captures continue in a folder that was restored from the first repository.
#[test]
fn the_first_repository_is_still_built_upon() {
    let bench = Bench::new();
    let repo = repository(&bench, "plain", None);
    let (workspace, home) = folders(&bench);
    let index = bench.dir.path().join("index");
    restore(&repo, &tree(FIRST), (&workspace, &home), Some(&index));
    build_second(&workspace);
    let second = take(&repo, (&workspace, &home), Some(&tree(FIRST)), &index);
    assert_eq!(second.files(), tree(SECOND).files());
    // What it shares with the first snapshot is not stored again. The writer decides which blocks hold the rest, and
    // that changes the length of a place by a byte or two.
    let stored = |repo: &Path, tree: &TreeId| -> usize {
        unpacked(repo, tree).blocks.iter().flatten().map(Vec::len).sum()
    };
    let (now, then) =
        (stored(&bench.dir.path().join("plain"), &second), stored(&golden("plain"), &tree(SECOND)));
    assert!(now.abs_diff(then) < 16, "{now} bytes, once {then}");
    repo.verify(&second).expect("sound");
}

#[test]
fn the_first_sealed_repository_still_opens_with_its_key_and_no_other() {
    let bench = Bench::new();
    let repo = repository(&bench, "sealed", Some(EncryptionKey::new(KEY)));
    repo.verify(&tree(SEALED)).expect("sound");
    let (workspace, home) = folders(&bench);
    assert_eq!(restore(&repo, &tree(SEALED), (&workspace, &home), None), (4, 12 + 500 + 2));
    assert_first(&repo, &tree(SEALED), &workspace);
    for key in [None, Some(EncryptionKey::new([0; 32]))] {
        let other =
            Repo::open_with(&bench.dir.path().join("sealed"), key, DiskWriter::default()).expect("opened");
        assert_eq!(other.verify(&tree(SEALED)).expect_err("sealed").kind(), SnapshotErrorKind::Damaged);
    }
}
