//! Packs that are damaged, missing, exchanged or made by somebody hostile: what is hurt is named, nothing wrong is
//! restored, and nothing is written elsewhere.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ash_snapshot::{Depth, FileInfo, RelPath, Repo, TreeId, Trouble};

use crate::forge::{self, At, Forger, Item};
use crate::support::{Bench, noise, open, restore_into, set_mtime, take};

/// Two snapshots, of which the second needs the first; and what their packs are.
struct Pair {
    bench: Bench,
    trees: [TreeId; 2],
    packs: [(PathBuf, Vec<u8>); 2],
    /// Opened before anything was damaged: it has seen everything, and compares by what it saw.
    copies: [PathBuf; 2],
}

fn pair() -> Pair {
    let bench = Bench::in_memory();
    bench.write("dir/kept", "kept in both");
    bench.write("replaced", &"compressible ".repeat(20));
    std::os::unix::fs::symlink("dir/kept", bench.at("link")).expect("linked");
    std::fs::hard_link(bench.at("dir/kept"), bench.at("same")).expect("linked");
    let mut line = bench.line();
    let first = line.take(&bench.repo).tree;
    let copies = ["first", "second"].map(|name| bench.dir.path().join(name));
    restore_into(&bench.repo, &first, &copies[0]).expect("restored");
    bench.write("replaced", "only in the second");
    let second = line.take(&bench.repo).tree;
    restore_into(&bench.repo, &second, &copies[1]).expect("restored");
    let trees = [first, second];
    let packs = trees.each_ref().map(|tree| {
        let path = pack_path(&bench.repo_dir(), tree);
        let bytes = std::fs::read(&path).expect("read");
        (path, bytes)
    });
    Pair { bench, trees, packs, copies }
}

fn pack_path(repo: &Path, tree: &TreeId) -> PathBuf {
    repo.join(format!("{}.pack", &tree.as_str()[64..]))
}

/// Every file beneath with its content: what a person would see.
fn contents(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![at.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(dir).expect("listed") {
            let path = entry.expect("an entry").path();
            let is = std::fs::symlink_metadata(&path).expect("there");
            let content = if is.is_dir() {
                waiting.push(path.clone());
                Vec::new()
            } else if is.is_symlink() {
                std::os::unix::ffi::OsStringExt::into_vec(
                    std::fs::read_link(&path).expect("read").into_os_string(),
                )
            } else {
                std::fs::read(&path).expect("read")
            };
            let about = format!("{:o} {}.{}", is.mode(), is.mtime(), is.mtime_nsec()).into_bytes();
            let name = path.strip_prefix(at).expect("beneath").to_owned();
            found.push((name, [content, about].concat()));
        }
    }
    found.sort();
    found
}

fn each_is_readable(repo: &Arc<Repo>, tree: &TreeId) -> bool {
    let files = repo.list(tree, "workspace").expect("listed: it was restored");
    let path = |file: &FileInfo| RelPath::from_bytes(&file.path).expect("a path");
    files.iter().all(|file| repo.read(tree, "workspace", &path(file)).is_ok())
}

/// The snapshots that do not come back as they were, found by restoring each and reading all its files.
fn not_restorable(pair: &Pair, repo: &Arc<Repo>) -> Vec<TreeId> {
    let hurt = |(tree, copy): &(&TreeId, &PathBuf)| {
        let room = pair.bench.empty("room");
        let restored = restore_into(repo, tree, &room.join("target"));
        if let Err(error) = &restored {
            assert_eq!(error.kind(), Trouble::Damaged, "{error}");
        }
        let same = restored.is_ok() && contents(&room.join("target")) == contents(copy);
        assert!(same || restored.is_err(), "something else was restored than what was captured");
        // Of a file with several names restoring reads one.
        let whole = same && each_is_readable(repo, tree);
        assert_eq!(std::fs::read_dir(&room).expect("listed").count(), 1, "nothing beside the target");
        std::fs::remove_dir_all(room).expect("removed");
        !whole
    };
    pair.trees.iter().zip(&pair.copies).filter(hurt).map(|(tree, _)| tree.clone()).collect()
}

fn named(repo: &Repo, trees: &[TreeId], depth: Depth) -> Vec<TreeId> {
    let verified = repo.verify_all(trees, depth, &mut |_| {}).expect("verified");
    verified.hurt.into_iter().map(|hurt| hurt.tree).collect()
}

/// Exactly those are named that cannot be restored; so is the second alone.
fn assert_named(pair: &Pair, what: &str) -> Vec<TreeId> {
    let hurt = not_restorable(pair, &Arc::new(pair.bench.reopened()));
    assert_eq!(named(&pair.bench.reopened(), &pair.trees, Depth::Data), hurt, "{what}");
    let alone = pair.bench.reopened().verify(&pair.trees[1]);
    assert_eq!(alone.is_err(), hurt.contains(&pair.trees[1]), "{what}: {alone:?}");
    hurt
}

fn each_flip(number: usize) {
    let pair = pair();
    let (path, sound) = &pair.packs[number];
    let mut harmless = Vec::new();
    for at in 0..sound.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = sound.clone();
            bytes[at] ^= flip;
            std::fs::write(path, bytes).expect("written");
            let what = format!("pack {number}, byte {at} of {} ^ {flip:#x}", sound.len());
            if assert_named(&pair, &what).is_empty() {
                harmless.push(what);
            }
        }
    }
    assert_eq!(harmless, Vec::<String>::new(), "every byte is there for something");
    std::fs::write(path, sound).expect("written");
    assert_eq!(assert_named(&pair, "mended"), vec![]);
}

#[test]
fn every_flipped_byte_of_a_first_pack_names_what_it_hurts() {
    each_flip(0);
}

#[test]
fn every_flipped_byte_of_a_second_pack_names_what_it_hurts() {
    each_flip(1);
}

#[test]
fn every_cut_names_what_it_hurts() {
    let pair = pair();
    for (number, (path, sound)) in pair.packs.iter().enumerate() {
        let expected = &pair.trees[number..];
        for length in 0..sound.len() {
            std::fs::write(path, &sound[..length]).expect("written");
            assert_eq!(assert_named(&pair, &format!("pack {number} cut to {length}")), expected);
        }
        std::fs::write(path, [&sound[..], b"x"].concat()).expect("written");
        assert_eq!(assert_named(&pair, "longer"), expected);
        std::fs::write(path, sound).expect("written");
    }
}

#[test]
fn a_missing_pack_hurts_all_that_need_it() {
    let pair = pair();
    for (number, (path, sound)) in pair.packs.iter().enumerate() {
        std::fs::remove_file(path).expect("removed");
        assert_eq!(assert_named(&pair, "missing"), pair.trees[number..]);
        let structure = named(&pair.bench.reopened(), &pair.trees, Depth::Structure);
        assert_eq!(structure, pair.trees[number..], "seen without reading contents");
        std::fs::write(path, sound).expect("written");
    }
}

#[test]
fn exchanged_packs_are_not_taken_for_each_other() {
    let pair = pair();
    let [(first, first_bytes), (second, second_bytes)] = &pair.packs;
    std::fs::write(first, second_bytes).expect("written");
    std::fs::write(second, first_bytes).expect("written");
    assert_eq!(assert_named(&pair, "exchanged"), pair.trees);
}

#[test]
fn a_pack_of_another_version_says_so() {
    let pair = pair();
    let (path, sound) = &pair.packs[1];
    for version in [0, 2, 255] {
        let mut bytes = sound.clone();
        bytes[7] = version;
        std::fs::write(path, bytes).expect("written");
        let refused = pair.bench.reopened().verify(&pair.trees[1]).expect_err("refused").to_string();
        let pack = &pair.trees[1].as_str()[64..];
        assert_eq!(refused, format!("snapshot {pack} is damaged: it is no pack of this version"));
    }
}

/// The same content stored twice: that one copy is whole says nothing about the other.
#[test]
fn each_copy_of_the_same_content_is_looked_at() {
    let bench = Bench::in_memory();
    bench.write("dir/shared", "stored twice");
    bench.write("own", "first");
    let first = bench.take().tree;
    bench.write("own", "second");
    let second = bench.take().tree;
    let path = pack_path(&bench.repo_dir(), &second);
    let mut bytes = std::fs::read(&path).expect("read");
    let at = bytes.windows(12).position(|w| w == b"stored twice").expect("stored verbatim");
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("written");
    let trees = [first, second.clone()];
    assert_eq!(named(&bench.reopened(), &trees, Depth::Data), [second]);
}

/// One damaged block hurts every snapshot that has it, not only the one that is looked at first.
#[test]
fn everything_that_shares_the_damage_is_named() {
    let pair = pair();
    let (path, sound) = &pair.packs[0];
    let at = sound.windows(12).position(|w| w == b"kept in both").expect("stored verbatim");
    let mut bytes = sound.clone();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("written");
    assert_eq!(assert_named(&pair, "shared"), pair.trees);
    let verified = pair.bench.reopened().verify_all(&pair.trees, Depth::Data, &mut |_| {}).expect("verified");
    let pack = &pair.trees[0].as_str()[64..];
    let said = format!("/workspace/dir/kept: pack {pack}: a content is not what it was");
    let told: Vec<bool> = verified.hurt.iter().map(|hurt| hurt.what.contains(&said)).collect();
    assert_eq!(told, [true, true], "{:?}", verified.hurt);
}

#[test]
fn a_damaged_pack_is_written_again_by_a_capture_from_scratch() {
    let bench = Bench::in_memory();
    bench.write("file", "x");
    let tree = bench.take().tree;
    let path = pack_path(&bench.repo_dir(), &tree);
    let sound = std::fs::read(&path).expect("read");
    std::fs::write(&path, &sound[..10]).expect("written");
    let again = bench.reopened();
    assert_eq!(again.verify(&tree).expect_err("damaged").kind(), Trouble::Damaged);
    assert_eq!(take(&again, &bench.workspace()).tree, tree);
    again.verify(&tree).expect("sound");
}

#[test]
fn a_reader_by_the_description_and_this_one_agree() {
    let bench = Bench::in_memory();
    let elsewhere = {
        let mut forger = Forger::default();
        let chunk = forger.chunk(b"from another pack");
        let tree = forger.store_workspace(&[forge::whole(b"there", chunk)], &bench.repo_dir());
        At { pack: Some(forge::pack_of(&tree)), ..chunk }
    };
    let mut forger = Forger::default();
    let x = forger.chunk(b"xy");
    let low = forger.list(0, &[forge::zeros(5), forge::piece(2, x), forge::piece(17, elsewhere)]);
    let high = forger.list(1, &[forge::sublist(24, low), forge::zeros(100)]);
    let inner = forger.directory(&[forge::with(forge::whole(b"a", x), 16, &7u64.to_le_bytes())]);
    let attributes = [&forge::number(1)[..], &forge::bytes(b"user.k"), &forge::bytes(b"v")].concat();
    // Compressed, and in the middle of its block.
    let block = [&b"before "[..], b"content", b" behind"].concat();
    let stored = zstd::bulk::compress(&block, 1).expect("compressed");
    forger.blocks.push(forge::Block { stored, raw: block.len() as u64, how: 1 });
    let number = forger.blocks.len() as u64 - 1;
    let id = *blake3::hash(b"content").as_bytes();
    let middle = At { id, pack: None, block: number, start: 7, length: 7 };
    let entries = [
        forge::dir(b"dir", 0o1755, inner),
        forge::empty(b"empty"),
        forge::listed(b"high", 124, high),
        forge::link(b"link", b"dir/a"),
        forge::listed(b"low", 24, low),
        forge::whole(b"middle", middle),
        forge::with(forge::with(forge::whole(b"same", x), 16, &7u64.to_le_bytes()), 32, &attributes),
        forge::whole(b"z", elsewhere),
    ];
    let tree = forger.store_workspace(&entries, &bench.repo_dir());
    bench.repo.verify(&tree).expect("sound");
    let to = bench.dir.path().join("target");
    restore_into(&bench.repo, &tree, &to).expect("restored");
    let low = [&[0; 5][..], b"xy", b"from another pack"].concat();
    let expected: [(&str, Vec<u8>); 7] = [
        ("dir/a", b"xy".to_vec()),
        ("empty", vec![]),
        ("high", [&low[..], &[0; 100]].concat()),
        ("low", low),
        ("middle", b"content".to_vec()),
        ("same", b"xy".to_vec()),
        ("z", b"from another pack".to_vec()),
    ];
    for (path, content) in expected {
        assert_eq!(std::fs::read(to.join(path)).expect(path), content, "{path}");
    }
    let is = |path: &str| std::fs::symlink_metadata(to.join(path)).expect("there");
    assert_eq!((is("dir/a").ino(), is("dir").mode() & 0o7777), (is("same").ino(), 0o1755));
    assert_eq!([is("link").mtime(), is("dir").mtime(), is("low").mtime()], [1000; 3]);
}

/// And the other way round: what is written is what is described.
#[test]
fn what_is_written_is_what_is_described() {
    let bench = Bench::in_memory();
    let mut forger = Forger::default();
    bench.write("a", "content");
    std::fs::create_dir(bench.at("d")).expect("made");
    std::os::unix::fs::symlink("a", bench.at("l")).expect("linked");
    crate::support::chmod(&bench.at("a"), 0o644);
    crate::support::chmod(&bench.at("d"), 0o755);
    for path in [bench.at("a"), bench.at("d"), bench.at("l"), bench.workspace()] {
        set_mtime(&path, 1000, 0);
    }
    let chunk = forger.chunk(b"content");
    let nothing = forger.directory(&[]);
    let entries = [forge::whole(b"a", chunk), forge::dir(b"d", 0o755, nothing), forge::link(b"l", b"a")];
    let elsewhere = bench.empty("elsewhere");
    let forged = forger.store_workspace(&entries, &elsewhere);
    assert!(bench.take().tree.same_files(&forged));
}

/// Trees with right hashes and wrong intentions.
fn hostile() -> Vec<(&'static str, Box<dyn Fn(Forger, &Path) -> TreeId>)> {
    fn of(make: impl Fn(&mut Forger) -> Vec<Item> + 'static) -> Box<dyn Fn(Forger, &Path) -> TreeId> {
        Box::new(move |mut forger, repo| {
            let entries = make(&mut forger);
            forger.store_workspace(&entries, repo)
        })
    }
    let group = |number: u64| number.to_le_bytes();
    let attribute = |name: &[u8]| [&[1][..], &forge::bytes(name), &forge::bytes(b"v")].concat();
    let mut cases: Vec<(&'static str, Box<dyn Fn(Forger, &Path) -> TreeId>)> = vec![
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
        (
            "longer than its block",
            of(|f| {
                let chunk = f.chunk(b"xy");
                vec![forge::whole(b"a", At { length: 3, ..chunk })]
            }),
        ),
        (
            "behind its block",
            of(|f| {
                let chunk = f.chunk(b"xy");
                vec![forge::whole(b"a", At { start: u64::from(u32::MAX), ..chunk })]
            }),
        ),
        (
            "in no block",
            of(|f| {
                let chunk = f.chunk(b"xy");
                vec![forge::whole(b"a", At { block: 99, ..chunk })]
            }),
        ),
        (
            "in no pack",
            of(|f| {
                let chunk = f.chunk(b"xy");
                vec![forge::whole(b"a", At { pack: Some([9; 16]), ..chunk })]
            }),
        ),
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

/// Wrong not in what is hashed but in where things are said to lie, and in how they are packed.
fn hostile_packs() -> Vec<(&'static str, Box<dyn Fn(Forger, &Path) -> TreeId>)> {
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
                // Its entry names another directory, and says that it lies where this one does.
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
        assert_eq!(refused.kind(), Trouble::Damaged, "{what}: {refused}");
        assert_eq!(contents(&room.join("target")), vec![], "{what}: nothing was begun");
        assert_eq!(std::fs::read_dir(&room).expect("listed").count(), 1, "{what}");
        let verified = bench.repo.verify(&tree).expect_err(what);
        assert_eq!(verified.kind(), Trouble::Damaged, "{what}: {verified}");
        let trees = [tree];
        assert_eq!(named(&bench.repo, &trees, Depth::Data), trees, "{what}");
        std::fs::remove_dir_all(room).expect("removed");
    }
    assert!(!Path::new("/tmp/evil").exists());
    assert!(peak_memory() < 600 << 20, "{} bytes at the most", peak_memory());
}

/// Of this process, which nextest starts for this test alone.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Sums of sizes that no file system could hold stay sums.
#[test]
fn files_whose_sizes_add_up_to_more_than_there_is_are_still_files() {
    let bench = Bench::in_memory();
    let mut forger = Forger::default();
    let size = i64::MAX as u64;
    let list = forger.list(0, &[forge::zeros(size)]);
    let entries = [b"a", b"b", b"c"].map(|name| forge::listed(name, size, list));
    let tree = forger.store_workspace(&entries, &bench.repo_dir());
    let to = bench.dir.path().join("target");
    // Memory holds such files; a disk says that it does not.
    if let Ok(restored) = restore_into(&bench.repo, &tree, &to) {
        assert_eq!((restored.files, restored.bytes), (3, u64::MAX));
        assert_eq!(bench.repo.compare(&tree, "workspace", &open(&to)).expect("compared"), vec![]);
        let taken = take(&bench.repo, &to);
        assert_eq!((taken.files, taken.bytes), (3, u64::MAX));
    }
}

#[test]
fn a_damaged_large_file_is_named() {
    let bench = Bench::in_memory();
    std::fs::write(bench.at("large"), noise(3 << 20, 1)).expect("written");
    bench.write("small", "x");
    let tree = bench.take().tree;
    let path = pack_path(&bench.repo_dir(), &tree);
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[1 << 20] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    let verified = bench.reopened().verify_all(&[tree], Depth::Data, &mut |_| {}).expect("verified");
    let [hurt] = &verified.hurt[..] else { panic!("one is hurt: {:?}", verified.hurt) };
    assert!(hurt.what.iter().all(|what| what.starts_with("/workspace/large: ")), "{:?}", hurt.what);
}
