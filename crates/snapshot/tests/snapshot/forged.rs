//! Hostile packs with correct hashes: they are refused, and nothing is written outside the target.

use std::path::Path;

use ash_snapshot::{SnapshotErrorKind, TreeId, VerifyDepth};

use crate::damage::{contents, named};
use crate::forge::{self, At, Forger, Item};
use crate::support::{Bench, open, restore_into, take};

/// Writes a pack into a repository.
type Forging = Box<dyn Fn(Forger, &Path) -> TreeId>;

/// Hostile trees whose hashes are correct.
fn hostile() -> Vec<(&'static str, Forging)> {
    fn of(make: impl Fn(&mut Forger) -> Vec<Item> + 'static) -> Forging {
        Box::new(move |mut forger, repo| {
            let entries = make(&mut forger);
            forger.store_workspace(&entries, repo)
        })
    }
    fn misplaced(forger: &mut Forger, place: impl Fn(At) -> At) -> Vec<Item> {
        vec![forge::whole(b"a", place(forger.chunk(b"xy")))]
    }
    let group = |number: u64| number.to_le_bytes();
    let attribute = |name: &[u8]| [&[1][..], &forge::bytes(name), &forge::bytes(b"v")].concat();
    let mut cases: Vec<(&'static str, Forging)> = vec![
        ("an absolute name", of(|_| vec![forge::empty(b"/tmp/evil")])),
        ("a climbing name", of(|_| vec![forge::empty(b"../evil")])),
        (
            "dot dot",
            of(|f| {
                let inner = f.directory(&[forge::empty(b"evil")]);
                vec![forge::dir(b"..", 0o755, inner)]
            }),
        ),
        (
            "dot",
            of(|f| {
                let inner = f.directory(&[forge::empty(b"evil")]);
                vec![forge::dir(b".", 0o755, inner)]
            }),
        ),
        ("a slash", of(|_| vec![forge::empty(b"a/b")])),
        ("NUL", of(|_| vec![forge::empty(b"a\0b")])),
        ("no name", of(|_| vec![forge::empty(b"")])),
        ("twice", of(|_| vec![forge::empty(b"a"), forge::empty(b"a")])),
        ("out of order", of(|_| vec![forge::empty(b"b"), forge::empty(b"a")])),
        (
            "a link, and a directory through it",
            of(|f| {
                let inner = f.directory(&[forge::empty(b"evil")]);
                vec![forge::link(b"a", b"/tmp"), forge::dir(b"a", 0o755, inner)]
            }),
        ),
        ("an empty target", of(|_| vec![forge::link(b"a", b"")])),
        ("NUL in a target", of(|_| vec![forge::link(b"a", b"x\0y")])),
        ("a target longer than any path", of(|_| vec![forge::link(b"a", &[b'x'; 5000])])),
        (
            "setuid",
            of(|f| {
                let mut item = forge::whole(b"a", f.chunk(b"x"));
                item = forge::entry(3, b"a", Some(0o4755), &item.logical[8..], item.at);
                vec![item]
            }),
        ),
        ("a file that is sticky", of(|_| vec![forge::entry(2, b"a", Some(0o1644), &[], None)])),
        (
            "a directory with setgid",
            of(|f| {
                let inner = f.directory(&[]);
                vec![forge::dir(b"a", 0o2755, inner)]
            }),
        ),
        ("a mode beyond all bits", of(|_| vec![forge::entry(2, b"a", Some(1 << 20), &[], None)])),
        ("an unknown kind", of(|_| vec![forge::entry(9, b"a", Some(0o644), &[], None)])),
        ("an unknown flag", of(|_| vec![forge::entry(2 | 64, b"a", Some(0o644), &[], None)])),
        (
            "a directory in a group",
            of(move |f| {
                let inner = f.directory(&[]);
                vec![forge::with(forge::dir(b"a", 0o755, inner), 16, &group(1))]
            }),
        ),
        ("group 0", of(move |_| vec![forge::with(forge::empty(b"a"), 16, &group(0))])),
        (
            "an attribute of the system's",
            of(move |_| vec![forge::with(forge::empty(b"a"), 32, &attribute(b"security.capability"))]),
        ),
        (
            "an attribute of the trusted",
            of(move |_| vec![forge::with(forge::empty(b"a"), 32, &attribute(b"trusted.overlay.opaque"))]),
        ),
        (
            "NUL in an attribute",
            of(move |_| vec![forge::with(forge::empty(b"a"), 32, &attribute(b"user.a\0b"))]),
        ),
        ("no attributes", of(|_| vec![forge::with(forge::empty(b"a"), 32, &[0])])),
        (
            "an attribute twice",
            of(|_| {
                let one = [forge::bytes(b"user.a"), forge::bytes(b"v")].concat();
                vec![forge::with(forge::empty(b"a"), 32, &[&[2][..], &one, &one].concat())]
            }),
        ),
        (
            "more attributes than there are",
            of(|_| vec![forge::with(forge::empty(b"a"), 32, &forge::number(u64::MAX))]),
        ),
        (
            "a time that is none",
            of(|_| {
                let mut item = forge::empty(b"a");
                let at = item.logical.len() - 3;
                item.logical.splice(at..=at, forge::number(1_000_000_000));
                vec![item]
            }),
        ),
        (
            "a padded number",
            of(|_| {
                let mut item = forge::empty(b"a");
                let at = item.logical.len() - 3;
                item.logical.splice(at..=at, [0x80, 0]);
                vec![item]
            }),
        ),
        (
            "another size than its content",
            of(|f| {
                let chunk = f.chunk(b"xy");
                vec![forge::entry(
                    3,
                    b"a",
                    Some(0o644),
                    &[&forge::number(3), &chunk.id[..]].concat(),
                    Some(chunk),
                )]
            }),
        ),
        ("a content of nothing", of(|f| vec![forge::whole(b"a", f.chunk(b""))])),
        ("longer than its block", of(|f| misplaced(f, |chunk| At { length: 3, ..chunk }))),
        ("behind its block", of(|f| misplaced(f, |chunk| At { start: u64::from(u32::MAX), ..chunk }))),
        ("in no block", of(|f| misplaced(f, |chunk| At { block: 99, ..chunk }))),
        ("in no pack", of(|f| misplaced(f, |chunk| At { pack: Some([9; 16]), ..chunk }))),
        (
            "another content",
            of(|f| {
                let (x, y) = (f.chunk(b"x"), f.chunk(b"y"));
                vec![forge::whole(b"a", At { id: x.id, ..y })]
            }),
        ),
        ("a content for a directory", of(|f| vec![forge::dir(b"a", 0o755, f.chunk(b"\x00\x00"))])),
        (
            "a list for a content",
            of(|f| {
                let list = f.list(0, &[forge::zeros(5)]);
                vec![forge::whole(b"a", list)]
            }),
        ),
        (
            "a file shorter than its list",
            of(|f| {
                let list = f.list(0, &[forge::zeros(5)]);
                vec![forge::listed(b"a", 4, list)]
            }),
        ),
        (
            "a chunk shorter than its piece",
            of(|f| {
                let chunk = f.chunk(b"xy");
                let list = f.list(0, &[forge::piece(3, chunk)]);
                vec![forge::listed(b"a", 3, list)]
            }),
        ),
        (
            "a list longer than its piece",
            of(|f| {
                let low = f.list(0, &[forge::zeros(5)]);
                let high = f.list(1, &[forge::sublist(4, low)]);
                vec![forge::listed(b"a", 4, high)]
            }),
        ),
        (
            "lists within lists within lists",
            of(|f| {
                let mut list = f.list(0, &[forge::zeros(5)]);
                for _ in 0..2 {
                    list = f.list(1, &[forge::sublist(5, list)]);
                }
                vec![forge::listed(b"a", 5, list)]
            }),
        ),
        (
            "a list of a high level",
            of(|f| {
                let list = f.list(2, &[forge::zeros(5)]);
                vec![forge::listed(b"a", 5, list)]
            }),
        ),
        (
            "a piece of nothing",
            of(|f| {
                let list = f.list(0, &[forge::zeros(0)]);
                vec![forge::listed(b"a", 0, list)]
            }),
        ),
        (
            "pieces that overflow",
            of(|f| {
                let list = f.list(0, &[forge::zeros(u64::MAX), forge::zeros(2)]);
                vec![forge::listed(b"a", 1, list)]
            }),
        ),
        (
            "larger than any file",
            of(|f| {
                let list = f.list(0, &[forge::zeros(u64::MAX)]);
                vec![forge::listed(b"a", u64::MAX, list)]
            }),
        ),
    ];
    cases.extend(hostile_packs());
    cases
}

/// Packs whose hashed content is fine, but whose places or block encodings are wrong.
fn hostile_packs() -> Vec<(&'static str, Forging)> {
    let packed = |stored: Vec<u8>, raw: u64, how: u8, content: &'static [u8]| {
        move |mut forger: Forger, repo: &Path| {
            forger.blocks.push(forge::Block { stored: stored.clone(), raw, how });
            let id = *blake3::hash(content).as_bytes();
            let at = At { id, pack: None, block: 0, start: 0, length: content.len() as u64 };
            forger.store_workspace(&[forge::whole(b"a", at)], repo)
        }
    };
    static BOMB: [u8; 1000] = [0; 1000];
    let bomb = zstd::bulk::compress(&vec![0; 256 << 20], 1).expect("compressed");
    vec![
        ("a bomb that says it is small", Box::new(packed(bomb.clone(), 1000, 1, &BOMB))),
        ("a bomb that says what it is", Box::new(packed(bomb.clone(), 256 << 20, 1, &BOMB))),
        ("a bomb as large as may be", Box::new(packed(bomb, 64 << 20, 1, &BOMB))),
        ("no zstd", Box::new(packed(b"nonsense".to_vec(), 1000, 1, &BOMB))),
        ("longer than it says", Box::new(packed(vec![0; 1001], 1000, 0, &BOMB))),
        ("dropped", Box::new(packed(vec![], 1000, 2, &BOMB))),
        ("an unknown way of packing", Box::new(packed(vec![0; 1000], 1000, 3, &BOMB))),
        ("sealed, and there is no key", Box::new(packed(vec![0; 1000], 1000, 4, &BOMB))),
        (
            "a directory that lies within itself",
            Box::new(|mut forger, repo| {
                // The entry has the id of another directory, and the place of this one.
                let other = forger.directory(&[forge::empty(b"x")]);
                let block = forger.blocks.len() as u64;
                let length = 50 + 1 + 1 + 6;
                let itself = At { block, start: 0, length, ..other };
                let top = forger.directory(&[forge::dir(b"a", 0o755, itself)]);
                forger.store_root(top, repo)
            }),
        ),
        (
            "two directories that lie within each other",
            Box::new(|mut forger, repo| {
                let other = forger.directory(&[forge::empty(b"x")]);
                let block = forger.blocks.len() as u64;
                let first = forger.directory(&[forge::dir(b"a", 0o755, At { block: block + 1, ..other })]);
                let second = forger.directory(&[forge::dir(b"b", 0o755, At { block, ..other })]);
                assert_eq!((first.block, second.block), (block, block + 1));
                forger.store_root(first, repo)
            }),
        ),
        (
            "more packs than there are",
            Box::new(|mut forger, repo| {
                let entry = forge::empty(b"a");
                let top = forger.raw_directory(&entry.logical, &forge::number(u64::MAX));
                forger.store_root(top, repo)
            }),
        ),
        (
            "more places than objects",
            Box::new(|mut forger, repo| {
                let entry = forge::empty(b"a");
                let top = forger.raw_directory(&entry.logical, &[0, 0, 0, 0, 0]);
                forger.store_root(top, repo)
            }),
        ),
        (
            "fewer places than objects",
            Box::new(|mut forger, repo| {
                let entry = forge::whole(b"a", forger.chunk(b"x"));
                let top = forger.raw_directory(&entry.logical, &[0]);
                forger.store_root(top, repo)
            }),
        ),
        (
            "a root that is a file",
            Box::new(|mut forger, repo| {
                let root = forger.directory(&[forge::empty(b"workspace")]);
                forger.store(root, repo)
            }),
        ),
        (
            "deeper than any path",
            Box::new(|mut forger, repo| {
                let mut at = forger.directory(&[]);
                for _ in 0..10_100 {
                    at = forger.directory(&[forge::dir(b"d", 0o755, at)]);
                }
                forger.store_root(at, repo)
            }),
        ),
        (
            "a few directories that are a billion billion",
            Box::new(|mut forger, repo| {
                let mut at = forger.directory(&[]);
                for _ in 0..60 {
                    at = forger.directory(&[forge::dir(b"a", 0o755, at), forge::dir(b"b", 0o755, at)]);
                }
                forger.store_root(at, repo)
            }),
        ),
    ]
}

#[test]
fn a_forged_tree_is_damaged_and_writes_nothing_outside() {
    let bench = Bench::in_memory();
    for (what, forge) in hostile() {
        let tree = forge(Forger::default(), &bench.repo_dir());
        let room = bench.empty("room");
        let refused = restore_into(&bench.repo, &tree, &room.join("target")).expect_err(what);
        assert_eq!(refused.kind(), SnapshotErrorKind::Damaged, "{what}: {refused}");
        assert_eq!(contents(&room.join("target")), vec![], "{what}: nothing was begun");
        assert_eq!(std::fs::read_dir(&room).expect("listed").count(), 1, "{what}");
        let verified = bench.repo.verify(&tree).expect_err(what);
        assert_eq!(verified.kind(), SnapshotErrorKind::Damaged, "{what}: {verified}");
        let trees = [tree];
        assert_eq!(named(&bench.repo, &trees, VerifyDepth::Data), trees, "{what}");
        std::fs::remove_dir_all(room).expect("removed");
    }
    assert!(!Path::new("/tmp/evil").exists());
    assert!(peak_memory() < 600 << 20, "{} bytes at the most", peak_memory());
}

/// The peak memory of this process; nextest starts one per test.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// The sum of sizes saturates, even if no file system could hold the files.
#[test]
fn files_whose_sizes_add_up_to_more_than_there_is_are_still_files() {
    let bench = Bench::in_memory();
    let mut forger = Forger::default();
    let size = i64::MAX as u64;
    let list = forger.list(0, &[forge::zeros(size)]);
    let entries = [b"a", b"b", b"c"].map(|name| forge::listed(name, size, list));
    let tree = forger.store_workspace(&entries, &bench.repo_dir());
    let to = bench.dir.path().join("target");
    // A file system in memory accepts such files; one on disk refuses them.
    if let Ok(restored) = restore_into(&bench.repo, &tree, &to) {
        assert_eq!((restored.files, restored.bytes), (3, u64::MAX));
        assert_eq!(bench.repo.compare(&tree, "workspace", &open(&to)).expect("compared"), vec![]);
        let taken = take(&bench.repo, &to);
        assert_eq!((taken.files, taken.bytes), (3, u64::MAX));
    }
}
