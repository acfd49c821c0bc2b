//! A pack that is damaged, cut or made by somebody hostile is refused and does no harm.

use std::path::Path;

use ash_snapshot::{Error, Repo, Target, TreeId, Trouble};

use crate::support::{Bench, open};

fn small() -> (Bench, TreeId, Vec<u8>) {
    let bench = Bench::new();
    bench.write("dir/file", "some content");
    bench.write("zeros", &"\0".repeat(5000));
    std::os::unix::fs::symlink("dir/file", bench.at("link")).expect("linked");
    std::fs::hard_link(bench.at("dir/file"), bench.at("same")).expect("linked");
    let tree = bench.take().tree;
    let bytes = std::fs::read(pack_path(&bench, &tree)).expect("read");
    (bench, tree, bytes)
}

fn pack_path(bench: &Bench, tree: &TreeId) -> std::path::PathBuf {
    bench.dir.path().join(format!("repo/{tree}.pack"))
}

fn restore_into(repo: &Repo, tree: &TreeId, to: &Path) -> Result<(), Error> {
    std::fs::create_dir(to).expect("made");
    let folder = open(to);
    repo.restore(tree, &[Target { root: "workspace", folder: &folder, owner: None }], None)?;
    Ok(())
}

/// Both ways of reading everything find it, and nothing appears beside the target.
fn assert_damaged(bench: &Bench, tree: &TreeId, bytes: &[u8], what: &str) {
    std::fs::write(pack_path(bench, tree), bytes).expect("written");
    let verified = bench.repo.verify(tree).expect_err(what);
    assert_eq!(verified.kind(), Trouble::Damaged, "{what}: {verified}");
    let room = bench.empty("room");
    let restored = restore_into(&bench.repo, tree, &room.join("target")).expect_err(what);
    assert_eq!(restored.kind(), Trouble::Damaged, "{what}: {restored}");
    assert_eq!(std::fs::read_dir(&room).expect("listed").count(), 1, "{what}");
    std::fs::remove_dir_all(room).expect("removed");
}

#[test]
fn every_flipped_byte_is_found() {
    let (bench, tree, bytes) = small();
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            assert_damaged(&bench, &tree, &bytes, &format!("byte {at} ^ {flip:#x}"));
        }
    }
}

#[test]
fn every_cut_is_found() {
    let (bench, tree, bytes) = small();
    for length in 0..bytes.len() {
        assert_damaged(&bench, &tree, &bytes[..length], &format!("cut to {length}"));
    }
    assert_damaged(&bench, &tree, &[&bytes[..], b"x"].concat(), "longer");
}

#[test]
fn the_damaged_file_is_named() {
    let (bench, tree, mut bytes) = small();
    let at = bytes.windows(12).position(|w| w == b"some content").expect("stored verbatim");
    bytes[at] ^= 1;
    std::fs::write(pack_path(&bench, &tree), bytes).expect("written");
    let damaged = restore_into(&bench.repo, &tree, &bench.dir.path().join("target")).expect_err("damaged");
    let expected = format!("snapshot {tree} is damaged: the content of \"dir/file\" is wrong");
    assert_eq!(damaged.to_string(), expected);
}

#[test]
fn a_cut_pack_is_written_again_by_the_next_capture() {
    let (bench, tree, bytes) = small();
    std::fs::write(pack_path(&bench, &tree), &bytes[..10]).expect("written");
    assert_eq!(bench.take().tree, tree);
    bench.repo.verify(&tree).expect("sound");
}

/// Packs with right hashes and wrong intentions, made by the description in `pack.rs`.
struct Forged {
    contents: Vec<u8>,
    index: Vec<u8>,
}

impl Forged {
    fn new() -> Forged {
        let mut index = vec![1, 9];
        index.extend_from_slice(b"workspace");
        index.extend_from_slice(&[0; 12]);
        Forged { contents: Vec::new(), index }
    }

    fn named(mut self, tag: u8, name: &[u8], rest: &[u8]) -> Forged {
        self.index.extend_from_slice(&[tag, name.len() as u8]);
        self.index.extend_from_slice(name);
        self.index.extend_from_slice(rest);
        self
    }

    fn dir(self, name: &[u8]) -> Forged {
        self.named(2, name, &[&0o755u16.to_le_bytes()[..], &[0; 12]].concat())
    }

    fn up(mut self) -> Forged {
        self.index.push(3);
        self
    }

    fn file(mut self, name: &[u8], size: u64, content: &[u8]) -> Forged {
        self.contents.extend_from_slice(content);
        let mut rest = [&0o644u16.to_le_bytes()[..], &[0; 12], &size.to_le_bytes()].concat();
        rest.extend_from_slice(&(content.len() as u64).to_le_bytes());
        rest.extend_from_slice(blake3::hash(content).as_bytes());
        self.named(4, name, &rest)
    }

    fn link(self, name: &[u8], target: &[u8]) -> Forged {
        let length = (target.len() as u16).to_le_bytes();
        self.named(5, name, &[&[0; 12][..], &length, target].concat())
    }

    fn same(self, name: &[u8], ordinal: u64) -> Forged {
        self.named(6, name, &ordinal.to_le_bytes())
    }

    fn store(self, bench: &Bench) -> TreeId {
        let magic = b"ASHPACK\0";
        let at = (magic.len() + self.contents.len()) as u64;
        let numbers = [at.to_le_bytes(), (self.index.len() as u64).to_le_bytes()].concat();
        let hash = blake3::hash(&[magic, &self.index[..], &numbers].concat());
        let bytes = [magic, &self.contents[..], &self.index, &numbers, hash.as_bytes()].concat();
        let tree = TreeId::parse(&hash.to_hex()).expect("an id");
        std::fs::write(pack_path(bench, &tree), bytes).expect("written");
        tree
    }
}

fn run(zeros: u64, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_le_bytes();
    [&zeros.to_le_bytes()[..], &length, bytes].concat()
}

#[test]
fn a_reader_by_the_description_and_this_one_agree() {
    let bench = Bench::new();
    let content = [run(2, b"xy"), run(1, b"")].concat();
    let tree = Forged::new().dir(b"d").file(b"f", 5, &content).up().same(b"s", 0).up().store(&bench);
    bench.repo.verify(&tree).expect("sound");
    let to = bench.dir.path().join("target");
    restore_into(&bench.repo, &tree, &to).expect("restored");
    assert_eq!(std::fs::read(to.join("s")).expect("read"), b"\0\0xy\0");
}

#[test]
fn a_forged_pack_is_damaged_and_writes_nothing_outside() {
    let bench = Bench::new();
    let end = run(0, b"");
    let forged = || Forged::new();
    let cases: Vec<(&str, Forged)> = vec![
        ("climbing", forged().file(b"../evil", 0, &end).up()),
        ("dot dot", forged().dir(b"..").file(b"evil", 0, &end).up().up()),
        ("absolute", forged().file(b"/tmp/evil", 0, &end).up()),
        ("slash in a directory", forged().dir(b"a/b").up().up()),
        ("NUL", forged().file(b"a\0b", 0, &end).up()),
        ("no name", forged().file(b"", 0, &end).up()),
        ("twice", forged().file(b"a", 0, &end).file(b"a", 0, &end).up()),
        ("a link, then through it", forged().link(b"a", b"/tmp").dir(b"a").file(b"evil", 0, &end).up().up()),
        ("out of order", forged().file(b"b", 0, &end).file(b"a", 0, &end).up()),
        ("a link to itself", forged().same(b"a", 0).up()),
        ("an empty target", forged().link(b"a", b"").up()),
        ("a NUL in a target", forged().link(b"a", b"x\0y").up()),
        ("not closed", forged().dir(b"a").up()),
        ("closed too often", forged().up().up()),
        ("unknown", forged().named(9, b"a", b"").up()),
        ("shorter than said", forged().file(b"a", 9, &run(0, b"")).up()),
        ("longer than said", forged().file(b"a", 1, &[run(0, b"xy"), end.clone()].concat()).up()),
        ("overflowing", forged().file(b"a", 9, &[run(u64::MAX, b"x"), end.clone()].concat()).up()),
        ("larger than any file", forged().file(b"a", u64::MAX, &run(u64::MAX, b"")).up()),
        ("a run without end", forged().file(b"a", 1, &run(0, b"x")).up()),
        (
            "a lie about memory",
            forged().file(b"a", 1 << 31, &[0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 127]).up(),
        ),
    ];
    for (what, forged) in cases {
        let tree = forged.store(&bench);
        let room = bench.empty("room");
        let refused = restore_into(&bench.repo, &tree, &room.join("target")).expect_err(what);
        assert_eq!(refused.kind(), Trouble::Damaged, "{what}: {refused}");
        assert_eq!(bench.repo.verify(&tree).expect_err(what).kind(), Trouble::Damaged, "{what}");
        assert_eq!(std::fs::read_dir(&room).expect("listed").count(), 1, "{what}");
        std::fs::remove_dir_all(room).expect("removed");
    }
    assert!(!Path::new("/tmp/evil").exists());
}

#[test]
fn what_a_killed_capture_left_does_not_disturb() {
    let bench = Bench::new();
    bench.write("a", "1");
    let repo = bench.dir.path().join("repo");
    let (old, young) = (repo.join("tmp-old"), repo.join("tmp-young"));
    for path in [&old, &young] {
        std::fs::write(path, "half a pack").expect("written");
    }
    let day = std::time::Duration::from_secs(25 * 60 * 60);
    let file = std::fs::File::options().write(true).open(&old).expect("opened");
    file.set_modified(std::time::SystemTime::now() - day).expect("set");
    let again = Repo::open(&repo).expect("opened");
    let tree = crate::support::take(&again, &bench.workspace()).tree;
    again.verify(&tree).expect("sound");
    assert_eq!((old.exists(), young.exists()), (false, true));
    assert_eq!(bench.packs().len(), 2, "the pack and what may belong to another capture");
}
