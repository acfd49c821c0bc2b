//! Reads randomly changed packs and indexes, for a minute; that must never do harm.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ash_snapshot::{GcRoots, RelPath, SnapshotErrorKind, TreeId, VerifyDepth};

use crate::forge::{self, At, Forger};
use crate::support::{Bench, Dice, Line, is_slow, noise, open, restore_into};

/// Much longer than any read takes, so that it detects endless loops.
const LONGEST: Duration = Duration::from_secs(60);

struct Subject {
    bench: Bench,
    line: Line,
    trees: Vec<TreeId>,
    packs: Vec<(std::path::PathBuf, Vec<u8>)>,
    index: Vec<u8>,
}

/// Two snapshots with one entry of each kind. One is forged, because more changes matter without compression.
fn subject() -> Subject {
    let bench = Bench::in_memory();
    bench.write("dir/file", "content");
    std::fs::hard_link(bench.at("dir/file"), bench.at("same")).expect("linked");
    std::os::unix::fs::symlink("dir/file", bench.at("link")).expect("linked");
    std::fs::write(bench.at("large"), noise(200_000, 1)).expect("written");
    let mut line = bench.line();
    let mut trees = vec![line.take(&bench.repo).tree];
    std::fs::remove_dir_all(bench.at("dir")).expect("removed");
    bench.write("new", "x");
    trees.push(line.take(&bench.repo).tree);
    trees.push(forged(&bench.repo_dir()));
    let packs =
        bench.packs().into_iter().map(|path| (path.clone(), std::fs::read(path).expect("read"))).collect();
    let index = std::fs::read(&line.index).expect("read");
    Subject { bench, line, trees, packs, index }
}

fn forged(repo: &Path) -> TreeId {
    let mut forger = Forger::default();
    let x = forger.chunk(b"xy");
    let low = forger.list(0, &[forge::zeros(5), forge::piece(2, x)]);
    let high = forger.list(1, &[forge::sublist(7, low), forge::zeros(100)]);
    let inner = forger.directory(&[forge::with(forge::whole(b"a", x), 16, &7u64.to_le_bytes())]);
    let entries = [
        forge::dir(b"dir", 0o1755, inner),
        forge::listed(b"high", 107, high),
        forge::link(b"link", b"dir/a"),
        forge::with(forge::whole(b"same", x), 16, &7u64.to_le_bytes()),
    ];
    forger.store_workspace(&entries, repo)
}

fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..=dice.roll() % 4 {
        if bytes.is_empty() {
            return;
        }
        let at = dice.roll() as usize % bytes.len();
        let length = 1 + dice.roll() as usize % 16.min(bytes.len() - at);
        match dice.roll() % 6 {
            0 => bytes[at] ^= 1 << (dice.roll() % 8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][dice.roll() as usize % 5],
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + length)),
            4 => drop(bytes.splice(at..at, noise(length, dice.roll()))),
            _ => bytes[at..at + length].fill_with(|| dice.roll() as u8),
        }
    }
}

/// Changes the table and corrects the footer. The place and the encoding of a block are not part of the pack's name,
/// so such a change is found only when the block is read.
fn mended(dice: &mut Dice, pack: &[u8]) -> Option<Vec<u8>> {
    let (body, footer) = pack.split_at_checked(pack.len().checked_sub(45)?)?;
    let offset = u64::from_le_bytes(footer[1..9].try_into().expect("8 bytes")) as usize;
    let (blocks, table) = body.split_at_checked(offset)?;
    let mut table = table.to_vec();
    mutate(dice, &mut table);
    let mut whole = [blocks, &table, &[0][..], &(offset as u64).to_le_bytes()].concat();
    whole.extend((table.len() as u32).to_le_bytes());
    whole.extend(blake3::hash(&table).as_bytes());
    Some(whole)
}

/// Runs everything that reads on the current state.
fn read_everything(subject: &Subject, trees: &[TreeId]) {
    let bench = &subject.bench;
    let repo = Arc::new(bench.reopened());
    for tree in trees {
        let room = bench.empty("room");
        let restored = restore_into(&repo, tree, &room.join("target"));
        assert_eq!(std::fs::read_dir(&room).expect("listed").count(), 1, "nothing beside the target");
        let verified = repo.verify(tree);
        if let Err(error) = &verified {
            assert_eq!(error.kind(), SnapshotErrorKind::Damaged, "{error}");
        }
        if verified.is_ok() {
            restored.as_ref().expect("what is sound can be restored");
        }
        if restored.is_ok() {
            let different = repo.compare(tree, "workspace", &open(&room.join("target")));
            assert_eq!(different.expect("compared"), vec![]);
        }
        for file in repo.list(tree, "workspace").unwrap_or_default() {
            let path = RelPath::from_bytes(&file.path).expect("a path that stays beneath");
            let _ = repo.read(tree, "workspace", &path);
        }
        ash_snapshot::Folder::erase(&room).expect("erased");
    }
    repo.verify_all(trees, VerifyDepth::Structure, &mut |_| {}).expect("only damage");
    repo.snapshots().expect("listed");
}

fn restore_sound(subject: &Subject) {
    for path in subject.bench.packs() {
        std::fs::remove_file(path).expect("removed");
    }
    subject.packs.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).expect("written"));
}

#[test]
fn nonsense_does_no_harm() {
    let length = Duration::from_secs(if is_slow() { 60 } else { 2 });
    let seed = std::env::var("ASH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0002);
    println!("seed {seed}");
    let (subject, mut dice) = (subject(), Dice(seed));
    let outside = listing(subject.bench.dir.path());
    let end = Instant::now() + length;
    let mut rounds = 0u64;
    while Instant::now() < end || rounds <= 10 {
        let begun = Instant::now();
        rounds += 1;
        let (path, sound) = &subject.packs[dice.roll() as usize % subject.packs.len()];
        match dice.roll() % 4 {
            0 => {
                let mut bytes = sound.clone();
                mutate(&mut dice, &mut bytes);
                std::fs::write(path, bytes).expect("written");
                read_everything(&subject, &subject.trees);
            }
            1 => {
                if let Some(bytes) = mended(&mut dice, sound) {
                    std::fs::write(path, bytes).expect("written");
                    read_everything(&subject, &subject.trees);
                }
            }
            2 => read_everything(&subject, &[random_tree(&mut dice, &subject.bench.repo_dir())]),
            _ => with_a_wrong_index(&subject, &mut dice),
        }
        restore_sound(&subject);
        assert!(begun.elapsed() < LONGEST, "round {rounds} took {:?}", begun.elapsed());
    }
    assert_eq!(listing(subject.bench.dir.path()), outside, "nothing was made elsewhere");
    let wanted = GcRoots { trees: subject.trees.clone(), ..GcRoots::default() };
    subject.bench.reopened().collect_garbage(&wanted, Duration::ZERO).expect("all is as it was");
}

fn listing(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).expect("listed").map(|e| e.expect("an entry").file_name()).collect();
    names.sort();
    names
}

fn with_a_wrong_index(subject: &Subject, dice: &mut Dice) {
    let mut bytes = subject.index.clone();
    mutate(dice, &mut bytes);
    std::fs::write(&subject.line.index, bytes).expect("written");
    let repo = subject.bench.reopened();
    let taken = subject.line.clone().take(&repo);
    assert_eq!(
        repo.compare(&taken.tree, "workspace", &open(&subject.line.folder)).expect("compared"),
        vec![]
    );
}

/// A tree of random bytes whose hashes are all correct.
fn random_tree(dice: &mut Dice, repo: &Path) -> TreeId {
    let mut forger = Forger::default();
    let x = forger.chunk(b"xy");
    let mut known: Vec<At> = vec![x, forger.list(0, &[forge::piece(2, x)]), forger.directory(&[])];
    for _ in 0..1 + dice.roll() % 6 {
        let at = known[dice.roll() as usize % known.len()];
        let mut items = match dice.roll() % 6 {
            0 => vec![forge::dir(b"a", dice.roll() % 0o2000, at)],
            1 => vec![forge::whole(b"a", at), forge::empty(b"b")],
            2 => vec![forge::listed(b"a", dice.roll() % 10, at)],
            3 => vec![forge::link(b"a", b"../../outside"), forge::dir(b"b", 0o755, at)],
            4 => vec![forge::piece(at.length, at), forge::zeros(1 + dice.roll() % 9)],
            _ => vec![forge::sublist(1 + dice.roll() % 9, at)],
        };
        if dice.roll().is_multiple_of(2) {
            let item = dice.roll() as usize % items.len();
            mutate(dice, &mut items[item].logical);
        }
        known.push(match dice.roll() % 3 {
            0 => forger.list((dice.roll() % 3) as u8, &items),
            _ => forger.directory(&items),
        });
    }
    let top = known[known.len() - 1];
    forger.store_root(top, repo)
}
