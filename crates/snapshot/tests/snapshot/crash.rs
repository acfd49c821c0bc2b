//! Simulates a crash at every step that changes the disk. Acknowledged snapshots must be complete afterwards, and the
//! next capture must work.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ash_snapshot::{DiskWriter, GcRoots, Repo, SimulatedCrash, TreeId, VerifyDepth};

use crate::support::{Bench, Line, noise, open, restore_into};

/// A snapshot, and a copy of its folder at that time.
struct Acknowledged {
    tree: TreeId,
    copy: PathBuf,
}

/// Copies the folder for each snapshot, so that the expected state does not come from the code under test.
fn acknowledged(bench: &Bench, line: &Line, number: usize) -> Acknowledged {
    let copy = bench.dir.path().join(format!("copy {number}"));
    let done = std::process::Command::new("cp").arg("-a").arg(&line.folder).arg(&copy).status();
    assert!(done.expect("run").success());
    Acknowledged { tree: line.base.clone().expect("taken"), copy }
}

fn check(bench: &Bench, repo: &Repo, snapshots: &[Acknowledged], when: &str) {
    let trees: Vec<TreeId> = snapshots.iter().map(|snapshot| snapshot.tree.clone()).collect();
    let verified = repo.verify_all(&trees, VerifyDepth::Data, &mut |_| {}).expect("verified");
    assert_eq!(verified.damaged, vec![], "{when}");
    for snapshot in snapshots {
        let different = repo.compare(&snapshot.tree, "workspace", &open(&snapshot.copy)).expect("compared");
        assert_eq!(different, vec![], "{when}");
        let to = bench.dir.path().join("restored");
        restore_into(repo, &snapshot.tree, &to).expect(when);
        assert_eq!(
            repo.compare(&snapshot.tree, "workspace", &open(&to)).expect("compared"),
            vec![],
            "{when}"
        );
        std::fs::remove_dir_all(to).expect("removed");
    }
}

fn dying(dir: &Path, death: &Arc<SimulatedCrash>) -> Repo {
    Repo::open_with(dir, None, DiskWriter::crashing(death.clone())).expect("opened")
}

/// Captures after `edit` with a crash at each step in turn. Returns the number of steps.
fn die_in_capture(bench: &Bench, edit: &dyn Fn(u64)) -> u64 {
    let mut line = bench.line();
    line.take(&bench.repo);
    let mut snapshots = vec![acknowledged(bench, &line, 0)];
    for step in 0.. {
        edit(step);
        let death = SimulatedCrash::at_step(step);
        let done = line.clone().try_take(&dying(&bench.repo_dir(), &death));
        let when = format!("death at step {step}");
        let healthy = bench.reopened();
        check(bench, &healthy, &snapshots, &when);
        if death.steps() <= step {
            done.expect("no fail point was reached");
            return step;
        }
        // After a crash behind the last important step the capture was acknowledged, and is the base of the next one.
        let acknowledged_late = done.ok().map(|taken| taken.tree);
        line.base = acknowledged_late.clone().or(line.base);
        let next = line.take(&healthy).tree;
        assert!(acknowledged_late.is_none_or(|tree| tree == next), "{when}");
        snapshots.truncate(1);
        snapshots.push(acknowledged(bench, &line, 1 + step as usize));
        check(bench, &healthy, &snapshots, &format!("a capture after a {when}"));
    }
    unreachable!("some run comes to its end")
}

#[test]
fn a_small_capture_may_die_at_every_step() {
    let bench = Bench::in_memory();
    bench.write("dir/file", "before");
    bench.write("other", "stays");
    let steps = die_in_capture(&bench, &|step| bench.write("dir/file", &format!("after {step}")));
    assert!(steps >= 7, "create, write, write, sync, rename, sync, and what is left: {steps}");
    assert!(
        bench.packs().iter().any(|path| is_temporary(path)),
        "the dead left something, and it does not disturb"
    );
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("new-"))
}

#[test]
fn a_large_capture_may_die_at_every_step() {
    let bench = Bench::in_memory();
    bench.write("dir/file", "before");
    let steps = die_in_capture(&bench, &|step| {
        // Larger than the write buffer, so that there are several writes.
        std::fs::write(bench.at("large"), noise(5 << 19, step)).expect("written");
    });
    assert!(steps >= 9, "several writes: {steps}");
}

/// Three snapshots, two of which will be dropped, and an unwanted one: one pack is removed, two shrink, one stays.
fn history(bench: &Bench) -> (Line, Vec<Acknowledged>) {
    let mut line = bench.line();
    let mut snapshots = Vec::new();
    for (number, name) in ["first", "second", "third"].into_iter().enumerate() {
        for stale in ["only first", "only second", "only third"] {
            let _ = std::fs::remove_file(bench.at(stale));
        }
        // Blocks have 1 MiB: dead and live data must not share one.
        std::fs::write(bench.at(&format!("only {name}")), noise(2 << 20, number as u64)).expect("written");
        std::fs::write(bench.at(&format!("from {name} on")), noise(1 << 20, 10 + number as u64))
            .expect("written");
        line.take(&bench.repo);
        snapshots.push(acknowledged(bench, &line, number));
    }
    // A snapshot that no caller retains.
    let mut other = Line::new(&bench.empty("elsewhere"), &bench.dir.path().join("elsewhere.index"));
    std::fs::write(other.folder.join("file"), "unwanted").expect("written");
    other.take(&bench.repo);
    (line, snapshots)
}

#[test]
fn a_collection_may_die_at_every_step() {
    let bench = Bench::in_memory();
    let (line, mut snapshots) = history(&bench);
    let original = bench.dir.path().join("original");
    copy_packs(&bench.repo_dir(), &original);
    snapshots.remove(0);
    snapshots.remove(0);
    let trees = snapshots.iter().map(|snapshot| snapshot.tree.clone()).collect();
    let wanted = GcRoots { trees, ..GcRoots::default() };
    for step in 0.. {
        std::fs::remove_dir_all(bench.repo_dir()).expect("removed");
        copy_packs(&original, &bench.repo_dir());
        let death = SimulatedCrash::at_step(step);
        let done = dying(&bench.repo_dir(), &death).collect_garbage(&wanted, Duration::ZERO);
        let when = format!("death at step {step}");
        let healthy = bench.reopened();
        check(&bench, &healthy, &snapshots, &when);
        nothing_is_called_damaged(&healthy, &when);
        if death.steps() <= step {
            let collected = done.expect("no fail point was reached");
            assert_eq!(
                (collected.removed.len(), collected.rewritten.len(), collected.kept),
                (1, 2, 1),
                "{step} steps"
            );
            assert!(step >= 12, "{step} steps");
            return;
        }
        // A capture continues from here, and the collection can be repeated.
        let mut line = line.clone();
        std::fs::write(bench.at("after"), format!("step {step}")).expect("written");
        let next = line.take(&healthy).tree;
        assert_eq!(healthy.compare(&next, "workspace", &open(&bench.workspace())).expect("compared"), vec![]);
        let wanted = GcRoots {
            trees: [&wanted.trees[..], std::slice::from_ref(&next)].concat(),
            ..GcRoots::default()
        };
        healthy.collect_garbage(&wanted, Duration::ZERO).expect(&when);
        check(&bench, &healthy, &snapshots, &format!("a collection after a {when}"));
        healthy.verify(&next).expect(&when);
    }
}

/// Every snapshot that the repository still offers can be restored, and no pack counts as missing.
fn nothing_is_called_damaged(repo: &Repo, when: &str) {
    let forgotten = repo.discarded().expect("read");
    let (all, broken) = repo.snapshots().expect("listed");
    assert_eq!(broken, Vec::<String>::new(), "{when}");
    let offered: Vec<TreeId> =
        all.into_iter().map(|one| one.tree).filter(|tree| !forgotten.contains(tree)).collect();
    let verified = repo.verify_all(&offered, VerifyDepth::Data, &mut |_| {}).expect("verified");
    assert_eq!(verified.damaged, vec![], "{when}");
    assert_eq!(repo.missing_packs().expect("read"), Vec::<String>::new(), "{when}");
}

#[test]
fn a_pack_removed_by_hand_is_reported_though_nothing_refers_to_it() {
    let bench = Bench::in_memory();
    let mut line = bench.line();
    for text in ["one", "two"] {
        bench.write("file", text);
        line.take(&bench.repo);
    }
    let newest = line.base.clone().expect("taken");
    let repo = bench.reopened();
    assert_eq!(repo.missing_packs().expect("read"), Vec::<String>::new());
    std::fs::remove_file(bench.repo_dir().join(format!("{}.pack", newest.pack_name()))).expect("removed");
    assert_eq!(repo.missing_packs().expect("read"), [newest.pack_name()]);
}

#[test]
fn a_repository_without_a_list_gets_one_with_its_next_pack() {
    let bench = Bench::in_memory();
    bench.write("file", "one");
    let first = bench.take().tree;
    std::fs::remove_file(bench.repo_dir().join("inventory")).expect("as an older version left it");
    bench.write("file", "two");
    let second = bench.take().tree;
    for tree in [&first, &second] {
        std::fs::remove_file(bench.repo_dir().join(format!("{}.pack", tree.pack_name()))).expect("removed");
    }
    let mut expected = vec![first.pack_name().to_owned(), second.pack_name().to_owned()];
    expected.sort();
    assert_eq!(bench.reopened().missing_packs().expect("read"), expected);
}

#[test]
fn a_new_capture_lifts_the_tombstone_of_its_tree() {
    let bench = Bench::in_memory();
    bench.write("file", "one");
    let tree = bench.take().tree;
    bench.repo.discard(std::slice::from_ref(&tree)).expect("forgotten");
    assert_eq!(bench.take().tree, tree, "the same files are the same pack");
    assert!(bench.repo.discarded().expect("read").is_empty());
    bench.repo.collect_garbage(&GcRoots::default(), Duration::ZERO).expect("collected");
    assert!(!bench.repo.contains(&tree));
    assert_eq!(bench.repo.missing_packs().expect("read"), Vec::<String>::new());
}

fn copy_packs(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(done.expect("run").success());
}

#[test]
fn remains_of_a_dead_capture_are_removed_after_a_day() {
    let bench = Bench::new();
    bench.write("a", "1");
    let (old, young) = (bench.repo_dir().join("new-old"), bench.repo_dir().join("new-young"));
    for path in [&old, &young] {
        std::fs::write(path, "half a pack").expect("written");
    }
    let day = Duration::from_secs(25 * 60 * 60);
    let file = std::fs::File::options().write(true).open(&old).expect("opened");
    file.set_modified(std::time::SystemTime::now() - day).expect("set");
    let again = bench.reopened();
    let tree = crate::support::take(&again, &bench.workspace()).tree;
    again.verify(&tree).expect("sound");
    assert_eq!((old.exists(), young.exists()), (false, true));
    assert_eq!(bench.packs().len(), 2, "the pack and what may belong to another capture");
}
