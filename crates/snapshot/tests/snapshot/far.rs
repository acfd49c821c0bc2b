//! Remote packs: snapshots come back unchanged, are read only once, and are checked like everything else.

mod kept;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use ash_snapshot::{
    CaptureRequest, CaptureRoot, DiskWriter, DonorTree, EncryptionKey, Error, FetchProgress, GcRoots,
    PackRange, Repo, RestoreTarget, SimulatedCrash, SnapshotEntry, SnapshotErrorKind, SnapshotProgress,
    TreeId, VerifyDepth, changes,
};

use crate::damage::contents;
use crate::depot::{Asked, Depot, Weather};
use crate::forge::{self, Forger};
use crate::support::{Bench, Line, noise, open, rel, restore_into};

/// A cache limit that no test reaches.
const PLENTY: u64 = 1 << 40;

/// A complete repository, and one that has nothing but the remote store to read from.
struct Pair {
    bench: Bench,
    depot: Arc<Depot>,
    key: Option<EncryptionKey>,
}

impl Pair {
    fn new() -> Pair {
        Pair::of(Bench::in_memory(), None)
    }

    fn of(bench: Bench, key: Option<EncryptionKey>) -> Pair {
        let depot = Depot::new(&bench.dir.path().join("depot"));
        Pair { bench, depot, key }
    }

    fn send(&self, tree: &TreeId) {
        self.depot.send(&self.bench.repo, tree);
    }

    fn elsewhere(&self) -> PathBuf {
        self.bench.dir.path().join("elsewhere")
    }

    /// The other repository, as a new process opens it.
    fn away(&self) -> Repo {
        self.away_with(DiskWriter::default(), PLENTY)
    }

    fn away_with(&self, disk: DiskWriter, most: u64) -> Repo {
        let repo = Repo::open_with(&self.elsewhere(), self.key.clone(), disk).expect("opened");
        repo.with_remote(self.depot.clone(), most).expect("opened")
    }

    fn forget_everything(&self) {
        std::fs::remove_dir_all(self.elsewhere()).expect("removed");
    }

    /// The cached file of a pack.
    fn kept(&self, pack: &str) -> PathBuf {
        self.elsewhere().join("cache/far").join(pack)
    }

    /// Restores, and compares the result with the complete repository.
    fn check(&self, repo: &Repo, tree: &TreeId) {
        let to = self.bench.dir.path().join("restored");
        restore_into(repo, tree, &to).expect("restored");
        assert_eq!(self.bench.compare(tree, &to), vec![]);
        std::fs::remove_dir_all(to).expect("removed");
    }
}

/// A tree with one entry of each kind, and a pack that is larger than one read.
fn furnish(bench: &Bench) {
    bench.write("dir/small", "text");
    bench.write("dir/below/same", "text");
    std::fs::write(bench.at("large"), noise(9 << 20, 1)).expect("written");
    std::fs::write(bench.at("medium"), noise(300_000, 2)).expect("written");
    std::fs::write(bench.at("empty"), "").expect("written");
    std::fs::hard_link(bench.at("dir/small"), bench.at("link")).expect("linked");
    std::os::unix::fs::symlink("dir", bench.at("symlink")).expect("linked");
    for number in 0..300 {
        bench.write(&format!("many/{}/{number}", number % 7), &format!("file {number}"));
    }
}

#[test]
fn a_tree_that_is_only_far_comes_back_as_it_was_and_is_read_once() {
    let pair = Pair::new();
    furnish(&pair.bench);
    let tree = pair.bench.take().tree;
    pair.send(&tree);
    pair.check(&pair.away(), &tree);
    let asked = pair.depot.asked();
    assert_eq!(asked.begun, [tree.pack_name()]);
    let mut ranges: Vec<(u64, u64)> =
        asked.reads.iter().map(|part| (part.range.start, part.range.end)).collect();
    ranges.sort_unstable();
    let gaps_are_small = ranges.windows(2).all(|pair| pair[1].0 + (256 << 10) >= pair[0].1);
    assert!(gaps_are_small && ranges.len() <= 6, "few large reads: {ranges:?}");
    // In another process, too.
    pair.check(&pair.away(), &tree);
    assert_eq!(pair.depot.asked().counts(), (0, 0));
}

#[test]
fn a_changed_file_on_top_of_what_is_here_costs_one_read() {
    let pair = Pair::new();
    furnish(&pair.bench);
    let mut line = pair.bench.line();
    line.take(&pair.bench.repo);
    let first = line.base.clone().expect("taken");
    std::fs::create_dir(pair.elsewhere()).expect("made");
    let (path, _) = pair.bench.repo.pack_file(first.pack_name()).expect("here");
    std::fs::copy(&path, pair.elsewhere().join(path.file_name().expect("a name"))).expect("copied");
    pair.bench.write("many/3/3", "changed");
    std::fs::write(pair.bench.at("medium"), noise(900_000, 3)).expect("written");
    let second = line.take(&pair.bench.repo).tree;
    pair.send(&second);
    pair.check(&pair.away(), &second);
    assert_eq!(pair.depot.asked(), Asked { begun: vec![second.pack_name().to_owned()], reads: vec![] });

    // The largest pack whose rest is fetched with one read.
    std::fs::write(pair.bench.at("medium"), noise(4_000_000, 4)).expect("written");
    let third = line.take(&pair.bench.repo).tree;
    pair.send(&third);
    pair.check(&pair.away(), &third);
    let size = pair.bench.repo.pack_file(third.pack_name()).expect("here").1;
    let rest = PackRange { pack: third.pack_name().to_owned(), range: 1 << 20..size };
    assert_eq!(pair.depot.asked(), Asked { begun: vec![rest.pack.clone()], reads: vec![rest] });
}

/// A restore needs parts of twenty packs, and requests them all at once.
#[test]
fn packs_that_are_needed_together_are_read_together() {
    let pair = Pair::new();
    let mut line = pair.bench.line();
    for turn in 0..20 {
        pair.bench.write(&format!("{turn}"), &format!("turn {turn}"));
        line.take(&pair.bench.repo);
    }
    let tree = line.base.expect("taken");
    pair.send(&tree);
    let mut told: Vec<FetchProgress> = Vec::new();
    let repo = pair.away();
    let fetched = repo.fetch(&tree, &["workspace"], &mut |fetched| told.push(fetched)).expect("fetched");
    let all: u64 = std::fs::read_dir(&pair.depot.dir)
        .expect("listed")
        .map(|f| f.expect("one").metadata().expect("there").len())
        .sum();
    assert_eq!(fetched, FetchProgress { packs: 20, reads: 20, bytes: all, of: all });
    assert!(told.windows(2).all(|pair| pair[0].bytes <= pair[1].bytes && pair[0].of <= pair[1].of));
    assert!(told.iter().all(|told| told.bytes <= told.of) && told.last() == Some(&fetched));
    pair.depot.asked();
    pair.check(&repo, &tree);
    assert_eq!(pair.depot.asked().counts(), (0, 0), "it was all there");
    assert_eq!(repo.fetch(&tree, &["workspace"], &mut |_| {}).expect("fetched"), FetchProgress::default());
}

#[test]
fn two_restores_at_the_same_time_do_not_disturb_each_other() {
    let bench = Bench::in_memory();
    furnish(&bench);
    let tree = bench.take().tree;
    // Both readers find an empty cache and fetch everything.
    let depot = Depot::meeting(&bench.dir.path().join("depot"), Some(Barrier::new(2)));
    depot.send(&bench.repo, &tree);
    let pair = Pair { bench, depot, key: None };
    let repo = pair.away();
    let places = ["one", "two"].map(|name| pair.bench.dir.path().join(name));
    std::thread::scope(|scope| {
        for to in &places {
            let (repo, tree) = (&repo, &tree);
            scope.spawn(move || restore_into(repo, tree, to).expect("restored"));
        }
    });
    for to in &places {
        assert_eq!(pair.bench.compare(&tree, to), vec![]);
    }
}

#[test]
fn a_sealed_repository_is_as_sealed_far_away() {
    let key = EncryptionKey::new([7; 32]);
    let pair = Pair::of(Bench::sealed(key.clone()), Some(key));
    pair.bench.write("dir/file", "a secret");
    std::fs::write(pair.bench.at("large"), noise(300_000, 1)).expect("written");
    let tree = pair.bench.take().tree;
    pair.send(&tree);
    pair.check(&pair.away(), &tree);
    let kept = std::fs::read(pair.kept(tree.pack_name())).expect("read");
    let sent = std::fs::read(pair.depot.path(tree.pack_name())).expect("read");
    assert!(kept == sent, "what is kept is as sealed as the pack");
    let other = Pair { key: Some(EncryptionKey::new([8; 32])), ..pair };
    let refused = other.away().verify(&tree).expect_err("another key");
    assert!(matches!(refused, Error::Sealed { .. }), "{refused}");
}

/// Three turns, the last of which needs a little of the first, and a collection that shrinks the first pack.
fn shrunk(pair: &Pair) -> (TreeId, TreeId) {
    let mut line = pair.bench.line();
    std::fs::write(pair.bench.at("large"), noise(3 << 20, 1)).expect("written");
    (0..30)
        .for_each(|n| std::fs::write(pair.bench.at(&format!("part{n}")), noise(20_000, n)).expect("written"));
    pair.bench.write("stays", "a little");
    let first = line.take(&pair.bench.repo).tree;
    pair.send(&first);
    std::fs::remove_file(pair.bench.at("large")).expect("removed");
    (0..30).for_each(|n| std::fs::remove_file(pair.bench.at(&format!("part{n}"))).expect("removed"));
    let second = line.take(&pair.bench.repo).tree;
    pair.send(&second);
    (first, second)
}

#[test]
fn a_pack_that_was_made_smaller_is_read_from_far_too() {
    let pair = Pair::new();
    let (first, second) = shrunk(&pair);
    let wanted = GcRoots { trees: vec![second.clone()], ..GcRoots::default() };
    let collected = pair.bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!(collected.rewritten, [first.pack_name()]);
    pair.depot.put(&pair.bench.repo, first.pack_name());
    pair.check(&pair.away(), &second);
    pair.depot.asked();
    // A trimmed block has a check of its own.
    pair.check(&pair.away(), &second);
    assert_eq!(pair.depot.asked().counts(), (0, 0));
    assert_eq!(pair.away().verify(&first).expect_err("it is gone").kind(), SnapshotErrorKind::Damaged);
}

/// As many blocks as otherwise only a pack of many gigabytes has.
#[test]
fn a_table_longer_than_guessed_takes_one_more_read() {
    let pair = Pair::new();
    let mut forger = Forger::default();
    let names: Vec<String> = (0..12_000).map(|n| format!("{n:05}")).collect();
    let entries: Vec<forge::Item> = names
        .iter()
        .zip(0..)
        .map(|(name, seed)| forge::whole(name.as_bytes(), forger.chunk(&noise(500, seed))))
        .collect();
    let tree = forger.store_workspace(&entries, &pair.bench.repo_dir());
    pair.send(&tree);
    let size = pair.bench.repo.pack_file(tree.pack_name()).expect("here").1;
    assert!(size > 4 << 20);
    let repo = pair.away();
    assert!(repo.contains(&tree));
    let asked = pair.depot.asked();
    assert_eq!(asked.counts(), (1, 2));
    assert_eq!((asked.reads[0].range.end, asked.reads[1].range.end), (size, asked.reads[0].range.start));
    repo.verify(&tree).expect("whole");
}

#[test]
fn a_remote_tree_answers_every_query_of_a_local_one() {
    let pair = Pair::new();
    furnish(&pair.bench);
    let folder = open(&pair.bench.workspace());
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let notes: [(&str, &[u8]); 1] = [("session", b"what travels")];
    let tree = pair
        .bench
        .repo
        .capture(&CaptureRequest { notes: &notes, ..CaptureRequest::of(&roots) })
        .expect("taken")
        .tree;
    pair.send(&tree);
    let (here, away) = (&pair.bench.repo, Arc::new(pair.away()));
    assert!(away.contains(&tree));
    assert_eq!(away.note(&tree, "session").expect("read").as_deref(), Some(&b"what travels"[..]));
    assert_eq!(
        away.list(&tree, "workspace").expect("listed"),
        here.list(&tree, "workspace").expect("listed")
    );
    let leaves = away.entries(&tree, "workspace").expect("listed");
    assert_eq!(leaves, here.entries(&tree, "workspace").expect("listed"));
    let now = folder.entries(&|_, _| false, usize::MAX).expect("listed");
    let changed = changes(leaves, now, &|path| away.content_id(&folder, path)).expect("compared");
    assert_eq!(changed, vec![]);
    assert_eq!(away.compare(&tree, "workspace", &folder).expect("compared"), vec![]);
    pair.depot.asked();
    let Some(SnapshotEntry::File { mut content, .. }) =
        away.read(&tree, "workspace", &rel("large")).expect("read")
    else {
        panic!("a file");
    };
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut content, &mut bytes).expect("read");
    assert!(bytes == noise(9 << 20, 1));
    assert!(pair.depot.asked().reads.len() <= 3, "a file is read at once, not block by block");
    away.verify(&tree).expect("whole");
    let verified =
        away.verify_all(std::slice::from_ref(&tree), VerifyDepth::Data, &mut |_| {}).expect("verified");
    assert_eq!((verified.damaged, verified.altered_blocks), (vec![], vec![]));
    assert_eq!(away.references(&tree).expect("read"), Vec::<String>::new());
    assert_eq!(
        away.snapshots().expect("listed"),
        (vec![], vec![]),
        "no local list names the remote snapshots"
    );
}

/// A session resumes from a checkpoint that is only remote.
#[test]
fn a_capture_on_top_of_a_far_tree_adds_what_changed() {
    let pair = Pair::new();
    furnish(&pair.bench);
    let first = pair.bench.take().tree;
    pair.send(&first);
    let repo = pair.away();
    let (folder, index) = (pair.bench.dir.path().join("folder"), pair.bench.dir.path().join("index"));
    let mut line = Line::restored(&repo, &first, &folder, &index);
    std::fs::write(folder.join("dir/small"), "changed").expect("written");
    let taken = line.take(&repo);
    assert!(taken.written < 10_000, "{} bytes", taken.written);
    assert_eq!(repo.references(&taken.tree).expect("read"), [first.pack_name()]);
    pair.depot.send(&repo, &taken.tree);
    pair.forget_everything();
    assert_eq!(pair.away().compare(&taken.tree, "workspace", &open(&folder)).expect("compared"), vec![]);
    // Without the base the capture cannot know what changed. It stores everything, and nothing is lost.
    pair.forget_everything();
    pair.depot.set(Weather::Down);
    let again = line.take(&pair.away());
    assert!(again.written > 9 << 20 && again.tree.same_files(&taken.tree));
}

#[test]
fn a_rewind_reads_only_content_that_the_folder_lacks() {
    let pair = Pair::new();
    std::fs::write(pair.bench.at("large"), noise(9 << 20, 1)).expect("written");
    pair.bench.write("file", "before");
    let mut line = pair.bench.line();
    let first = line.take(&pair.bench.repo).tree;
    pair.send(&first);
    pair.bench.write("file", "after");
    line.take(&pair.bench.repo);
    let to = pair.bench.empty("back");
    let (folder, from) = (open(&to), pair.bench.empty("from"));
    std::fs::rename(pair.bench.workspace(), from.join("workspace")).expect("moved");
    let from = open(&from);
    let donor = DonorTree { folder: &from, index: &line.index };
    let targets = [RestoreTarget { root: "workspace", folder: &folder, owner: None }];
    let restored = pair
        .away()
        .restore_with_donor(&first, &targets, None, (&SnapshotProgress::default(), donor))
        .expect("restored");
    assert_eq!((restored.files, restored.taken_over), (2, 1));
    assert_eq!(pair.bench.compare(&first, &to), vec![]);
    let read: u64 = pair.depot.asked().reads.iter().map(|part| part.range.end - part.range.start).sum();
    assert!(read < 2 << 20, "{read} bytes");
}

#[test]
fn the_contents_of_the_first_root_are_requested_first() {
    let pair = Pair::new();
    let home = pair.bench.empty("home");
    std::fs::write(home.join("one"), noise(12 << 20, 1)).expect("written");
    std::fs::write(pair.bench.at("other"), noise(12 << 20, 2)).expect("written");
    let (home, workspace) = (open(&home), open(&pair.bench.workspace()));
    let take = |name, folder| {
        let roots = [CaptureRoot { name, folder }];
        pair.bench.repo.capture(&CaptureRequest::of(&roots)).expect("taken").tree
    };
    let alone = [take("home", &home), take("workspace", &workspace)];
    let roots =
        [CaptureRoot { name: "home", folder: &home }, CaptureRoot { name: "workspace", folder: &workspace }];
    let both = pair.bench.repo.capture(&CaptureRequest::of(&roots)).expect("taken").tree;
    pair.send(&both);
    for (order, only) in [(["home", "workspace"], &alone[0]), (["workspace", "home"], &alone[1])] {
        let repo = pair.away();
        repo.fetch(&both, &order[..1], &mut |_| {}).expect("fetched");
        let first: Vec<PackRange> = pair.depot.asked().reads;
        let bytes: u64 = first.iter().map(|part| part.range.end - part.range.start).sum();
        let size = pair.bench.repo.pack_file(only.pack_name()).expect("here").1;
        assert!(bytes < size + (2 << 20), "nothing of the other: {bytes} of {size}");
        pair.forget_everything();
        let progress = SnapshotProgress::default();
        let folders = order.map(|name| (name, pair.bench.empty(&format!("{name} of {}", order[0]))));
        let folders = folders.each_ref().map(|(name, path)| (*name, open(path)));
        let targets = folders.each_ref().map(|(root, folder)| RestoreTarget { root, folder, owner: None });
        pair.away().restore_with_progress(&both, &targets, None, &progress).expect("restored");
        let reads = pair.depot.asked().reads;
        // A read may cover parts of both roots; the reads without parts of the first root come last.
        let of_the_first = |read: &PackRange| {
            first[1..]
                .iter()
                .any(|part| part.range.start < read.range.end && read.range.start < part.range.end)
        };
        assert!(
            reads[1..].is_sorted_by_key(|read| !of_the_first(read)),
            "{order:?}: {first:?} within {reads:?}"
        );
        assert!(!reads[1..].iter().all(of_the_first), "after the table");
        let all: u64 = reads.iter().map(|part| part.range.end - part.range.start).sum();
        let all = all + (1 << 20);
        let counted =
            [&progress.fetched, &progress.to_fetch].map(|n| n.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(counted, [all, all]);
        pair.forget_everything();
    }
}

#[test]
fn references_are_what_the_pack_itself_names() {
    let pair = Pair::new();
    furnish(&pair.bench);
    let mut line = pair.bench.line();
    let first = line.take(&pair.bench.repo).tree;
    let repo = &pair.bench.repo;
    assert_eq!(repo.references(&first).expect("read"), Vec::<String>::new());
    // A chunk in the middle of a large file changes: the list is new, and most of its references are old.
    let large = std::fs::File::options().write(true).open(pair.bench.at("large")).expect("opened");
    large.write_all_at(b"changed", 5 << 20).expect("written");
    let second = line.take(repo).tree;
    assert_eq!(repo.references(&second).expect("read"), [first.pack_name()]);
    // The third pack needs the first one only through the second.
    pair.bench.write("dir/small", "changed");
    let third = line.take(repo).tree;
    let mut both = [first.pack_name(), second.pack_name()];
    both.sort_unstable();
    assert_eq!(repo.references(&third).expect("read"), both);
    // A pack with notes alone: the whole tree is in other packs.
    let folder = open(&pair.bench.workspace());
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let capture = CaptureRequest {
        base: Some(&third),
        index: Some(&line.index),
        notes: &[("events", b"what happened")],
        unchanged: ash_snapshot::UnchangedPolicy::WriteNotes,
        ..CaptureRequest::of(&roots)
    };
    let fourth = repo.capture(&capture).expect("taken").tree;
    assert_ne!(fourth, third);
    assert_eq!(repo.references(&fourth).expect("read"), [third.pack_name()]);
    let nowhere: Option<(PathBuf, u64)> = None;
    assert_eq!(repo.pack_file("../../etc/passwd"), nowhere);
    assert_eq!(repo.pack_file(&"0".repeat(32)), nowhere);
    let is = |path: &Path| std::fs::metadata(path).expect("there").len();
    let (path, size) = repo.pack_file(third.pack_name()).expect("here");
    assert_eq!(is(&path), size);
}
