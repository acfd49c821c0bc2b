//! Damaged, missing or swapped packs: verification names every affected snapshot, and a restore never writes wrong
//! content.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ash_snapshot::{FileInfo, RelPath, Repo, SnapshotErrorKind, TreeId, VerifyDepth};

use crate::forge::{self, At, Forger};
use crate::support::{Bench, noise, restore_into, set_mtime, take};

/// Two snapshots, of which the second needs the first.
struct Pair {
    bench: Bench,
    trees: [TreeId; 2],
    packs: [(PathBuf, Vec<u8>); 2],
    /// Copies of the folder as it was at each snapshot.
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

/// Every file beneath with its content and attributes, as a user sees them.
pub(crate) fn contents(at: &Path) -> Vec<(PathBuf, Vec<u8>)> {
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

/// The snapshots that do not come back unchanged, found by restoring each and reading all its files.
fn not_restorable(pair: &Pair, repo: &Arc<Repo>) -> Vec<TreeId> {
    let hurt = |(tree, copy): &(&TreeId, &PathBuf)| {
        let room = pair.bench.empty("room");
        let restored = restore_into(repo, tree, &room.join("target"));
        if let Err(error) = &restored {
            assert_eq!(error.kind(), SnapshotErrorKind::Damaged, "{error}");
        }
        let same = restored.is_ok() && contents(&room.join("target")) == contents(copy);
        assert!(same || restored.is_err(), "something else was restored than what was captured");
        // A restore reads only one name of a hard-linked file, so read all names too.
        let whole = same && each_is_readable(repo, tree);
        assert_eq!(std::fs::read_dir(&room).expect("listed").count(), 1, "nothing beside the target");
        std::fs::remove_dir_all(room).expect("removed");
        !whole
    };
    pair.trees.iter().zip(&pair.copies).filter(hurt).map(|(tree, _)| tree.clone()).collect()
}

pub(crate) fn named(repo: &Repo, trees: &[TreeId], depth: VerifyDepth) -> Vec<TreeId> {
    let verified = repo.verify_all(trees, depth, &mut |_| {}).expect("verified");
    verified.damaged.into_iter().map(|hurt| hurt.tree).collect()
}

/// Verification names exactly the snapshots that cannot be restored; verifying the second one alone agrees.
fn assert_named(pair: &Pair, what: &str) -> Vec<TreeId> {
    let hurt = not_restorable(pair, &Arc::new(pair.bench.reopened()));
    assert_eq!(named(&pair.bench.reopened(), &pair.trees, VerifyDepth::Data), hurt, "{what}");
    let alone = pair.bench.reopened().verify(&pair.trees[1]);
    assert_eq!(alone.is_err(), hurt.contains(&pair.trees[1]), "{what}: {alone:?}");
    hurt
}

/// The blocks with changed bits, which verification finds even if the bits affect no object.
fn marred(pair: &Pair) -> Vec<String> {
    let verified = pair.bench.reopened().verify_all(&pair.trees, VerifyDepth::Data, &mut |_| {});
    verified.expect("verified").altered_blocks
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
            if assert_named(&pair, &what).is_empty() && marred(&pair).is_empty() {
                harmless.push(what);
            }
        }
    }
    assert_eq!(harmless, Vec::<String>::new(), "every byte is there for something");
    std::fs::write(path, sound).expect("written");
    assert_eq!((assert_named(&pair, "mended"), marred(&pair)), (vec![], vec![]));
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
        let structure = named(&pair.bench.reopened(), &pair.trees, VerifyDepth::Structure);
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

/// The same content is stored twice; one intact copy proves nothing about the other.
#[test]
fn verification_reads_each_copy_of_the_same_content() {
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
    assert_eq!(named(&bench.reopened(), &trees, VerifyDepth::Data), [second]);
}

/// Verification names every snapshot that contains a damaged block, not only the first one it reads.
#[test]
fn everything_that_shares_the_damage_is_named() {
    let pair = pair();
    let (path, sound) = &pair.packs[0];
    let at = sound.windows(12).position(|w| w == b"kept in both").expect("stored verbatim");
    let mut bytes = sound.clone();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("written");
    assert_eq!(assert_named(&pair, "shared"), pair.trees);
    let verified =
        pair.bench.reopened().verify_all(&pair.trees, VerifyDepth::Data, &mut |_| {}).expect("verified");
    let pack = &pair.trees[0].as_str()[64..];
    let said = format!("/workspace/dir/kept: pack {pack}: a content is not what it was");
    let told: Vec<bool> = verified.damaged.iter().map(|hurt| hurt.what.contains(&said)).collect();
    assert_eq!(told, [true, true], "{:?}", verified.damaged);
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
    assert_eq!(again.verify(&tree).expect_err("damaged").kind(), SnapshotErrorKind::Damaged);
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

/// The opposite direction: the writer produces what the format description says.
#[test]
fn written_packs_match_the_description() {
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
    let verified = bench.reopened().verify_all(&[tree], VerifyDepth::Data, &mut |_| {}).expect("verified");
    let [hurt] = &verified.damaged[..] else { panic!("one is hurt: {:?}", verified.damaged) };
    assert!(hurt.what.iter().all(|what| what.starts_with("/workspace/large: ")), "{:?}", hurt.what);
}
