//! With a key, the files of a repository reveal nothing without that key, and everything with it.

use std::time::Duration;

use ash_snapshot::{
    CaptureRequest, CaptureRoot, DiskWriter, EncryptionKey, Error, GcRoots, Repo, SnapshotErrorKind, TreeId,
    VerifyDepth,
};

use crate::support::{Bench, Line, noise, open, restore_into, take};

fn key() -> EncryptionKey {
    EncryptionKey::new([7; 32])
}

fn with(bench: &Bench, key: Option<EncryptionKey>) -> Repo {
    Repo::open_with(&bench.repo_dir(), key, DiskWriter::default()).expect("opened")
}

const NAME: &str = "a name that nobody should read";
const SECRET: &[u8] = b"a content that nobody should read";
const TARGET: &str = "a target that nobody should read";
const NOTE: &[u8] = b"a note that nobody should read";

fn furnish(bench: &Bench) -> TreeId {
    std::fs::create_dir(bench.at(NAME)).expect("made");
    std::fs::write(bench.at(NAME).join("file"), SECRET).expect("written");
    std::fs::write(bench.at("repeated"), SECRET.repeat(100)).expect("written");
    std::fs::write(bench.at("large"), noise(140_000, 1)).expect("written");
    std::os::unix::fs::symlink(TARGET, bench.at("link")).expect("linked");
    let folder = open(&bench.workspace());
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let notes = [("session", NOTE)];
    bench.repo.capture(&CaptureRequest { notes: &notes, ..CaptureRequest::of(&roots) }).expect("taken").tree
}

#[test]
fn a_sealed_repository_reveals_no_captured_content() {
    let bench = Bench::sealed(key());
    let tree = furnish(&bench);
    let open_bench = Bench::in_memory();
    let open_tree = furnish(&open_bench);
    assert!(!tree.same_files(&open_tree), "not even whether it is the same as something known");

    let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
    let large = noise(140_000, 1);
    let (secret, repeated) = (hash(SECRET), hash(&SECRET.repeat(100)));
    let mut telling: Vec<(&str, Vec<u8>)> = vec![
        ("a name", NAME.into()),
        ("a short name", b"repeated".to_vec()),
        ("a root", b"workspace".to_vec()),
        ("a content", SECRET.to_vec()),
        ("a part of one", b"nobody should".to_vec()),
        ("the beginning of a large one", large[..16].to_vec()),
        ("the end of a large one", large[large.len() - 16..].to_vec()),
        ("a target", TARGET.into()),
        ("a note", NOTE.to_vec()),
        ("a note's name", b"session".to_vec()),
    ];
    for (what, id) in [("a hash", secret), ("another hash", repeated), ("a note's hash", hash(NOTE))] {
        telling.push((what, id.to_vec()));
        telling.push((what, id[..8].to_vec()));
        telling.push((what, blake3::Hash::from(id).to_hex()[..16].as_bytes().to_vec()));
    }
    let found = |bench: &Bench| {
        let everything: Vec<u8> = bench
            .packs()
            .iter()
            .flat_map(|path| [path.to_string_lossy().as_bytes().to_vec(), std::fs::read(path).expect("read")])
            .flatten()
            .collect();
        let is_there = |bytes: &[u8]| everything.windows(bytes.len()).any(|window| window == bytes);
        telling.iter().filter(|(_, bytes)| is_there(bytes)).map(|(what, _)| *what).collect::<Vec<_>>()
    };
    assert_eq!(found(&bench), Vec::<&str>::new());
    // The same search succeeds in a repository without a key.
    for what in ["a part of one", "the end of a large one", "a note", "a note's name", "a note's hash"] {
        assert!(found(&open_bench).contains(&what), "{what}");
    }
}

#[test]
fn without_the_key_everything_is_sealed() {
    let bench = Bench::sealed(key());
    let tree = furnish(&bench);
    let wrong = EncryptionKey::new([8; 32]);
    for key in [None, Some(wrong)] {
        let repo = std::sync::Arc::new(with(&bench, key));
        let room = bench.empty("room");
        let answers: Vec<Error> = vec![
            repo.verify(&tree).expect_err("sealed"),
            restore_into(&repo, &tree, &room.join("target")).expect_err("sealed"),
            repo.list(&tree, "workspace").expect_err("sealed"),
            repo.read(&tree, "workspace", &crate::support::rel("large")).expect_err("sealed"),
            repo.note(&tree, "session").expect_err("sealed"),
            repo.compare(&tree, "workspace", &open(&bench.workspace())).expect_err("sealed"),
        ];
        for error in answers {
            assert_eq!(error.kind(), SnapshotErrorKind::Damaged);
            assert!(matches!(error, Error::Sealed { .. }), "{error}");
        }
        let verified =
            repo.verify_all(std::slice::from_ref(&tree), VerifyDepth::Data, &mut |_| {}).expect("looked");
        let hurt: Vec<TreeId> = verified.damaged.into_iter().map(|hurt| hurt.tree).collect();
        assert_eq!(hurt, std::slice::from_ref(&tree));
        let (snapshots, broken) = repo.snapshots().expect("listed");
        let pack = &tree.as_str()[64..];
        assert_eq!(
            (snapshots.len(), broken),
            (0, vec![format!("pack {pack} is sealed with a key we do not have")])
        );
        assert!(
            repo.collect_garbage(
                &GcRoots { trees: vec![tree.clone()], ..GcRoots::default() },
                Duration::ZERO
            )
            .is_err()
        );
        std::fs::remove_dir_all(room).expect("removed");
    }
    assert!(bench.repo.contains(&tree), "and no process without the key removed it");
}

#[test]
fn the_owner_reads_everything() {
    let bench = Bench::sealed(key());
    let tree = furnish(&bench);
    let repo = with(&bench, Some(key()));
    repo.verify(&tree).expect("sound");
    let to = bench.dir.path().join("restored");
    restore_into(&repo, &tree, &to).expect("restored");
    assert_eq!(repo.compare(&tree, "workspace", &open(&to)).expect("compared"), vec![]);
    assert_eq!(repo.note(&tree, "session").expect("read").as_deref(), Some(NOTE));
    assert!(take(&repo, &to).tree.same_files(&tree), "names are the same under the same key");
}

#[test]
fn keys_are_not_shown() {
    let bench = Bench::sealed(key());
    let shown = format!("{:?} {:?}", key(), bench.repo);
    for context in ["chunk", "list", "directory", "sealing"] {
        let derived = blake3::derive_key(&format!("ash snapshot 1 {context}"), &[7; 32]);
        let bytes = format!("{derived:?}");
        assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{context}: {shown}");
    }
    assert!(!shown.contains("7, 7, 7"), "{shown}");
}

#[test]
fn every_flipped_byte_of_a_sealed_pack_is_found() {
    let bench = Bench::sealed(key());
    bench.write("dir/file", "x");
    let tree = bench.take().tree;
    let path = bench.repo_dir().join(format!("{}.pack", &tree.as_str()[64..]));
    let sound = std::fs::read(&path).expect("read");
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, bytes).expect("written");
        let refused = with(&bench, Some(key())).verify(&tree).expect_err("damaged");
        assert_eq!(refused.kind(), SnapshotErrorKind::Damaged, "byte {at}: {refused}");
    }
}

#[test]
fn a_sealed_repository_is_collected_like_any_other() {
    let bench = Bench::sealed(key());
    std::fs::write(bench.at("large"), noise(9 << 18, 1)).expect("written");
    bench.write("small", "stays");
    let mut line = bench.line();
    let first = line.take(&bench.repo).tree;
    std::fs::remove_file(bench.at("large")).expect("removed");
    let second = line.take(&bench.repo).tree;
    let wanted = GcRoots { trees: vec![second.clone()], ..GcRoots::default() };
    let collected = bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!((collected.removed.len(), collected.rewritten.len(), collected.kept), (0, 1, 1));
    let again = with(&bench, Some(key()));
    again.verify(&second).expect("whole");
    assert!(again.verify(&first).is_err());
    assert_eq!(again.compare(&second, "workspace", &open(&bench.workspace())).expect("compared"), vec![]);
    let mut line = Line { base: Some(second), ..line };
    bench.write("new", "x");
    let third = line.take(&again).tree;
    again.verify(&third).expect("whole");
}
