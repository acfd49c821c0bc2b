//! An incremental capture gives the same result as a full one, and costs only what changed.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use ash_snapshot::{
    CaptureRequest, CaptureRoot, CapturedSnapshot, DonorTree, EncryptionKey, FileEntryKind, GcRoots, Repo,
    RestoreTarget, SnapshotProgress, TreeId, UnchangedPolicy,
};

use crate::audit::agrees;
use crate::edit::{Edit, apply, edits};
use crate::support::{
    Bench, Line, cases, is_root, is_slow, let_the_clock_tick, noise, open, rel, set_mtime, take,
};

/// The parts of a capture's result that do not depend on how it was stored.
fn seen(taken: &CapturedSnapshot) -> (&str, u64, u64, bool) {
    (taken.tree.files(), taken.files, taken.bytes, taken.skipped.is_empty() && taken.unsettled.is_empty())
}

/// What must hold after every capture.
fn check(bench: &Bench, key: Option<&EncryptionKey>, taken: &CapturedSnapshot, round: usize) {
    assert_eq!(bench.compare(&taken.tree, &bench.workspace()), vec![]);
    let alone = bench.dir.path().join(format!("alone {round}"));
    let alone = Repo::open_with(&alone, key.cloned(), ash_snapshot::DiskWriter::default())
        .expect("a repository of its own");
    assert_eq!(seen(taken), seen(&take(&alone, &bench.workspace())), "the same files have the same name");
    bench.repo.verify(&taken.tree).expect("sound");
    check_contents(bench, &taken.tree);

    let at = |what: &str| bench.dir.path().join(format!("{what} {round}"));
    let mut restored = Line::restored(&bench.repo, &taken.tree, &at("copy"), &at("index"));
    assert_eq!(bench.compare(&taken.tree, &restored.folder), vec![]);
    let again = restored.take(&bench.repo);
    assert_eq!((again.written, &again.tree), (0, &taken.tree));
    assert_eq!(seen(&again), seen(taken));
    std::fs::remove_dir_all(restored.folder).expect("removed");
}

/// The content ids in a tree equal those computed from the folder.
fn check_contents(bench: &Bench, tree: &TreeId) {
    let folder = open(&bench.workspace());
    for leaf in bench.repo.entries(tree, "workspace").expect("listed") {
        if let FileEntryKind::File { content, .. } = leaf.what {
            let path = ash_snapshot::RelPath::from_bytes(&leaf.path).expect("a path");
            assert_eq!(bench.repo.content_id(&folder, &path).expect("read"), content, "{path}");
        }
    }
}

fn run(bench: &Bench, key: Option<&EncryptionKey>, turns: &[Vec<Edit>]) {
    let mut line = bench.line();
    let mut before: Vec<TreeId> = Vec::new();
    for (round, edits) in turns.iter().enumerate() {
        edits.iter().for_each(|edit| apply(&bench.workspace(), edit));
        // The other half of the captures runs within the same clock tick as the edits.
        if round % 2 == 1 {
            let_the_clock_tick();
        }
        if let Some(base) = line.base.clone() {
            agrees(&bench.repo, &line, &base);
        }
        let taken = line.take(&bench.repo);
        agrees(&bench.repo, &line, &taken.tree);
        check(bench, key, &taken, round);
        before.push(taken.tree);
    }
    let verified =
        bench.repo.verify_all(&before, ash_snapshot::VerifyDepth::Data, &mut |_| {}).expect("verified");
    assert_eq!((verified.trees, verified.damaged), (before.len() as u64, vec![]));
}

proptest::proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn any_history_is_captured_as_if_from_scratch(turns in proptest::collection::vec(edits(10), 1..6)) {
        run(&Bench::in_memory(), None, &turns);
    }
}

proptest::proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn so_is_any_history_with_a_key(turns in proptest::collection::vec(edits(10), 1..4)) {
        let key = EncryptionKey::new([7; 32]);
        run(&Bench::sealed(key.clone()), Some(&key), &turns);
    }
}

#[test]
fn an_unchanged_folder_writes_nothing() {
    let bench = Bench::new();
    bench.write("dir/file", "x");
    std::fs::write(bench.at("large"), noise(1 << 20, 1)).expect("written");
    let mut line = bench.line();
    let first = line.take(&bench.repo);
    let packs = bench.packs();
    for _ in 0..3 {
        assert_eq!(line.take(&bench.repo), CapturedSnapshot { written: 0, ..first.clone() });
    }
    assert_eq!(bench.packs(), packs);
}

fn read_times(bench: &Bench, files: usize) -> Vec<(i64, i64)> {
    let time = |n: usize| {
        let is = std::fs::metadata(bench.at(&format!("{}/{n}", n % 40))).expect("there");
        (is.atime(), is.atime_nsec())
    };
    (0..files).map(time).collect()
}

#[test]
fn one_edit_among_two_thousand_files_reads_that_file_and_writes_little() {
    const FILES: usize = 2000;
    let bench = Bench::in_memory();
    for n in 0..FILES {
        let path = format!("{}/{n}", n % 40);
        bench.write(&path, &format!("content of {n}"));
        // Times in the future make the file system update access times even if it does so lazily.
        set_mtime(&bench.at(&path), 5_000_000_000, 0);
    }
    let_the_clock_tick();
    let mut line = bench.line();
    let first = line.take(&bench.repo);
    assert_eq!((first.files, first.skipped), (FILES as u64, vec![]));
    let before = read_times(&bench, FILES);
    let index_before = std::fs::metadata(&line.index).expect("there").len();
    let_the_clock_tick();
    bench.write("7/1007", "another content");
    set_mtime(&bench.at("7/1007"), 5_000_000_000, 1);

    let second = line.take(&bench.repo);
    assert!(second.written < 10_000, "{} bytes", second.written);
    let more = std::fs::metadata(&line.index).expect("there").len() - index_before;
    assert!(more < 2_000, "{more} bytes of index for one file of fifty in a directory");
    let after = read_times(&bench, FILES);
    let read: Vec<usize> = (0..FILES).filter(|n| before[*n] != after[*n]).collect();
    assert_eq!(read, [1007]);
    assert_eq!(bench.compare(&second.tree, &bench.workspace()), vec![]);
}

/// A file system that stores whole seconds, as old ones do: rewrites without a visible change are easy to get there.
struct Seconds {
    at: std::path::PathBuf,
}

impl Seconds {
    fn mount(bench: &Bench, at: &Path) -> Seconds {
        let image = bench.dir.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("made");
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let done = std::process::Command::new(program).args(arguments).output().expect("started");
            assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
        };
        run("mkfs.ext4", &["-q".as_ref(), "-I".as_ref(), "128".as_ref(), image.as_os_str()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
        Seconds { at: at.to_owned() }
    }
}

impl Drop for Seconds {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    }
}

#[test]
fn as_root_a_rewrite_within_the_tick_of_the_last_capture_is_seen() {
    assert!(is_root(), "only root can mount");
    let bench = Bench::new();
    let _mounted = Seconds::mount(&bench, &bench.workspace());
    bench.write("small", "........");
    std::fs::write(bench.at("large"), noise(140_000, 1)).expect("written");
    for name in ["small", "large"] {
        rewrite_within_a_tick(&bench, name);
    }
}

/// Repeats until only the bytes changed between two captures, and all attributes are equal.
fn rewrite_within_a_tick(bench: &Bench, name: &str) {
    let file = std::fs::File::options().write(true).open(bench.at(name)).expect("opened");
    let look = || {
        let is = file.metadata().expect("there");
        (is.ino(), is.size(), is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec())
    };
    let mut line = bench.line();
    for n in 0u64..100 {
        file.write_all_at(&n.to_be_bytes(), 0).expect("written");
        line.take(&bench.repo);
        let before = look();
        file.write_all_at(&u64::MAX.to_be_bytes(), 0).expect("written");
        if look() == before {
            let tree = line.take(&bench.repo).tree;
            assert_eq!(bench.compare(&tree, &bench.workspace()), vec![]);
            return;
        }
    }
    panic!("{name}: never rewritten within a second");
}

/// A small line whose index has a removed and an edited directory, to check what its next capture must be.
fn settled_line(bench: &Bench) -> Line {
    bench.write("a/file", "one");
    bench.write("b/c/file", "two");
    (0..5).for_each(|n| bench.write(&format!("many/{n}"), "of them"));
    std::fs::hard_link(bench.at("a/file"), bench.at("b/same")).expect("linked");
    let mut line = bench.line();
    line.take(&bench.repo);
    std::fs::remove_dir_all(bench.at("b/c")).expect("removed");
    bench.write("a/file", "three");
    bench.write("many/3", "is another");
    std::fs::remove_file(bench.at("many/4")).expect("removed");
    let_the_clock_tick();
    line.take(&bench.repo);
    line
}

#[test]
fn a_damaged_index_does_no_harm() {
    let bench = Bench::in_memory();
    let line = settled_line(&bench);
    bench.write("a/new", "four");
    let sound = std::fs::read(&line.index).expect("read");
    let expected = take(&bench.repo, &bench.workspace());
    let with_index = |bytes: &[u8], what: &str| {
        std::fs::write(&line.index, bytes).expect("written");
        let taken = line.clone().take(&bench.repo);
        assert_eq!(seen(&taken), seen(&expected), "{what}");
    };
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << (at % 8);
        with_index(&bytes, &format!("byte {at}"));
    }
    for length in (0..sound.len()).step_by(if is_slow() { 1 } else { 7 }) {
        with_index(&sound[..length], &format!("cut to {length}"));
    }
    with_index(b"something else entirely", "foreign");
    with_index(&[&b"ASHINDEX\x00"[..], &sound[9..]].concat(), "an older version");
    with_index(&[&sound[..], b"half a record"].concat(), "torn");
    with_index(&sound, "sound");
}

#[test]
fn an_index_of_another_snapshot_is_not_used() {
    let bench = Bench::in_memory();
    bench.write("file", "one");
    let mut line = bench.line();
    let first = line.take(&bench.repo).tree;
    bench.write("file", "two");
    line.take(&bench.repo);
    // The base goes back to the first snapshot, while the index still describes the second one, which is gone.
    let wanted = GcRoots { trees: vec![first.clone()], ..GcRoots::default() };
    let collected = bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!(collected.removed.len(), 1);
    let mut rewound = Line { base: Some(first), ..line.clone() };
    let taken = rewound.take(&bench.repo);
    assert_eq!(bench.compare(&taken.tree, &bench.workspace()), vec![]);
    bench.repo.verify(&taken.tree).expect("everything is there");
    // Without a base the capture relies on nothing that was stored before.
    let mut alone = Line { base: None, ..line };
    let alone_again = Repo::open(&bench.dir.path().join("alone")).expect("opened");
    let taken = alone.take(&alone_again);
    alone_again.verify(&taken.tree).expect("everything is there");
}

/// Lines like those of a transcript: the words compress, the identifiers do not.
fn transcript(length: usize, seed: u64) -> Vec<u8> {
    let mut text = Vec::new();
    let mut dice = crate::support::Dice(seed);
    while text.len() < length {
        let id = dice.roll();
        text.extend_from_slice(
            format!("{{\"id\":\"{id:016x}\",\"role\":\"assistant\",\"text\":\"").as_bytes(),
        );
        text.extend((0..40).map(|_| b'a' + (dice.roll() % 26) as u8));
        text.extend_from_slice(b"\"}\n");
    }
    text.truncate(length);
    text
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = std::fs::File::options().append(true).open(path).expect("opened");
    std::io::Write::write_all(&mut file, bytes).expect("written");
}

#[test]
fn appending_to_a_large_file_costs_what_was_appended() {
    let bench = Bench::in_memory();
    std::fs::write(bench.at("transcript"), transcript(5 << 20, 1)).expect("written");
    let mut line = bench.line();
    line.take(&bench.repo);
    for turn in 0..50 {
        append(&bench.at("transcript"), &transcript(20 << 10, 100 + turn));
        let taken = line.take(&bench.repo);
        assert!(taken.written < 80 << 10, "turn {turn}: {} bytes", taken.written);
    }
    let tree = line.base.expect("taken");
    assert_eq!(bench.compare(&tree, &bench.workspace()), vec![]);
    assert!(tree.same_files(&take(&bench.repo, &bench.workspace()).tree));
}

#[test]
fn a_change_in_a_large_file_costs_the_chunks_around_it() {
    let bench = Bench::in_memory();
    let mut bytes = noise(6 << 20, 1);
    std::fs::write(bench.at("large"), &bytes).expect("written");
    let mut line = bench.line();
    line.take(&bench.repo);
    let mut change = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        change(&mut bytes);
        std::fs::write(bench.at("large"), &bytes).expect("written");
        let taken = line.take(&bench.repo);
        assert!(taken.written < 400 << 10, "{what}: {} bytes", taken.written);
        assert!(taken.tree.same_files(&take(&bench.repo, &bench.workspace()).tree), "{what}");
    };
    change("a page in the middle", &|bytes| bytes[3 << 20..][..4096].fill(1));
    change("an insertion at the start", &|bytes| drop(bytes.splice(0..0, *b"inserted")));
    change("a removal in the middle", &|bytes| drop(bytes.drain((2 << 20)..(2 << 20) + 1000)));
    std::fs::rename(bench.at("large"), bench.at("renamed")).expect("renamed");
    let taken = line.take(&bench.repo);
    assert!(taken.written < 10 << 10, "renamed: {} bytes", taken.written);
}

/// The cuts of a file depend only on its bytes: each of these cases once left a cut of the previous content.
#[test]
fn a_file_that_changed_is_cut_as_if_it_had_always_been_so() {
    const K: usize = 1 << 10;
    let x = |length: usize| vec![b'x'; length];
    let zeros = |length: usize| vec![0; length];
    let cases: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("it ended at a block and goes on", x(192 * K), x(300 * K)),
        (
            "zeros behind a chunk are none any more",
            [x(192 * K), zeros(128 * K), x(10)].concat(),
            [x(192 * K), b"y".repeat(64 * K), zeros(64 * K), x(10)].concat(),
        ),
        ("zeros behind a chunk are cut short", [x(192 * K), zeros(64 * K)].concat(), {
            [x(192 * K), zeros(10 * K)].concat()
        }),
        // Where the chunk before the zeros began decides which of the two cases applies.
        (
            "a chunk ends in what becomes a block of zeros",
            [noise(150 * K, 3), x(170 * K), zeros(60 * K), x(180 * K)].concat(),
            [noise(150 * K, 3), x(170 * K), zeros(64 * K), x(176 * K)].concat(),
        ),
        (
            "a chunk ends in what becomes a block of zeros, one further",
            [noise(150 * K, 3), x(234 * K), zeros(60 * K), x(180 * K)].concat(),
            [noise(150 * K, 3), x(234 * K), zeros(64 * K), x(176 * K)].concat(),
        ),
        ("zeros at the end become a block", [x(192 * K), zeros(10 * K)].concat(), {
            [x(192 * K), zeros(64 * K)].concat()
        }),
    ];
    for (what, before, after) in cases {
        for (what, before, after) in [(what, &before, &after), ("and back", &after, &before)] {
            let bench = Bench::in_memory();
            std::fs::write(bench.at("file"), before).expect("written");
            let mut line = bench.line();
            line.take(&bench.repo);
            std::fs::write(bench.at("file"), after).expect("written");
            let taken = line.take(&bench.repo);
            check(&bench, None, &taken, 0);
            assert_eq!(taken.bytes, after.len() as u64, "{what}");
        }
    }
}

#[test]
fn a_capture_costs_the_same_after_many() {
    let bench = Bench::in_memory();
    for n in 0..20 {
        bench.write(&format!("{}/{n}", n % 5), &format!("content of {n}"));
    }
    let mut line = bench.line();
    line.take(&bench.repo);
    let mut written = Vec::new();
    let turns = if is_slow() { 1000 } else { 250 };
    for turn in 0..turns {
        // The same kind of turn each time.
        bench.write(&format!("{}/{}", turn % 5, turn % 20), &format!("turn {turn:04}"));
        std::fs::write(bench.at("log"), transcript(2000, 1000 + turn)).expect("written");
        written.push(line.take(&bench.repo).written);
    }
    let around = |turn: usize| written[turn - 5..turn + 5].iter().sum::<u64>();
    let (early, late) = (around(10), around(turns as usize - 10));
    assert!(late * 5 <= early * 6 && early * 5 <= late * 6, "{early} and {late} bytes for ten turns");
    let tree = line.base.expect("taken");
    assert_eq!(bench.compare(&tree, &bench.workspace()), vec![]);
    bench.repo.verify(&tree).expect("sound");
    let index = std::fs::metadata(&line.index).expect("there").len();
    assert!(index < 1 << 20, "the index is cleaned up: {index} bytes");
}

#[test]
fn two_roots_share_an_index() {
    let bench = Bench::in_memory();
    let home = bench.empty("home");
    std::fs::write(home.join("history"), "one").expect("written");
    bench.write("file", "x");
    let index = bench.dir.path().join("both.index");
    let both = |base: Option<&TreeId>| {
        let (workspace, home) = (open(&bench.workspace()), open(&home));
        let roots = [
            CaptureRoot { name: "workspace", folder: &workspace },
            CaptureRoot { name: "home", folder: &home },
        ];
        bench
            .repo
            .capture(&CaptureRequest { base, index: Some(&index), ..CaptureRequest::of(&roots) })
            .expect("taken")
    };
    let first = both(None);
    std::fs::write(home.join("history"), "two").expect("written");
    let second = both(Some(&first.tree));
    let third = both(Some(&second.tree));
    assert_eq!((third.written, &third.tree), (0, &second.tree));
    let content = |tree: &TreeId| {
        let read = bench.repo.read(tree, "home", &rel("history")).expect("read");
        let Some(ash_snapshot::SnapshotEntry::File { mut content, .. }) = read else { panic!("a file") };
        let mut text = String::new();
        std::io::Read::read_to_string(&mut content, &mut text).expect("text");
        text
    };
    assert_eq!([content(&first.tree), content(&second.tree)], ["one", "two"]);
    bench.repo.verify(&second.tree).expect("sound");
}

/// Notes produce a pack even if no file changed.
#[test]
fn notes_travel_with_an_unchanged_folder() {
    let bench = Bench::in_memory();
    bench.write("file", "x");
    let mut line = bench.line();
    let first = line.take(&bench.repo).tree;
    let folder = open(&bench.workspace());
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let (base, index) = (Some(&first), Some(line.index.as_path()));
    let notes: [(&str, &[u8]); 2] = [("session", b"{}"), ("empty", b"")];
    let noted = bench
        .repo
        .capture(&CaptureRequest {
            base,
            index,
            notes: &notes,
            unchanged: UnchangedPolicy::WriteNotes,
            ..CaptureRequest::of(&roots)
        })
        .expect("taken");
    assert!(noted.written > 0 && noted.tree != first && noted.tree.same_files(&first));
    let note = |name: &str| bench.reopened().note(&noted.tree, name).expect("read");
    assert_eq!([note("session"), note("empty"), note("other")], [Some(b"{}".to_vec()), Some(vec![]), None]);
    bench.repo.verify(&noted.tree).expect("sound");
    line.base = Some(noted.tree.clone());
    assert_eq!(line.take(&bench.repo).tree, noted.tree, "and nothing without");
}

/// A rewind: the older state is restored beside the newer one, which is then erased.
#[test]
fn only_content_of_the_older_tree_is_reused() {
    let bench = Bench::new();
    let index = bench.dir.path().join("index");
    for n in 0..50 {
        bench.write(&format!("dir{}/file{n}", n % 5), &format!("content {n}"));
    }
    bench.write("changes", "before");
    // A capture does not trust files that are younger than a clock tick.
    let_the_clock_tick();
    let folder = open(&bench.workspace());
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let capture = |base| {
        let capture = CaptureRequest { base, index: Some(&index), ..CaptureRequest::of(&roots) };
        bench.repo.capture(&capture).expect("taken").tree
    };
    let first = capture(None);
    bench.write("changes", "after that");
    std::fs::remove_file(bench.at("dir1/file1")).expect("removed");
    bench.write("new", "x");
    let second = capture(Some(&first));
    let beside = bench.empty("beside");
    let (to, old) = (open(&beside), open(bench.dir.path()));
    let target = RestoreTarget { root: "workspace", folder: &to, owner: None };
    let new_index = bench.dir.path().join("index.new");
    let donor = DonorTree { folder: &old, index: &index };
    let restored = bench
        .repo
        .restore_with_donor(&first, &[target], Some(&new_index), (&SnapshotProgress::default(), donor))
        .expect("restored");
    assert_eq!((restored.files, restored.taken_over), (51, 49), "all but the changed and the removed one");
    assert_eq!(bench.compare(&first, &beside), vec![]);
    assert_eq!(bench.compare(&second, &bench.workspace()), vec![], "the donor is as it was");
    std::fs::remove_dir_all(bench.workspace()).expect("erased");
    std::fs::rename(&beside, bench.workspace()).expect("put in place");
    Repo::refresh_index(&new_index, &old);
    let folder = open(&bench.workspace());
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let again = CaptureRequest { base: Some(&first), index: Some(&new_index), ..CaptureRequest::of(&roots) };
    let taken = bench.repo.capture(&again).expect("taken");
    assert_eq!((taken.tree, taken.written), (first, 0));
}
