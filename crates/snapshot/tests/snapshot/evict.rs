//! Collection with remote packs: packs that only cold snapshots need may leave, and the only copy of anything stays.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ash_snapshot::{
    DiskWriter, Error, Folder, GcReport, GcRoots, Repo, SimulatedCrash, SnapshotErrorKind, TreeId,
    VerifyDepth,
};
use proptest::prelude::{Just, Strategy, any, prop_oneof};

use crate::collect::copy_all;
use crate::depot::{Depot, Weather};
use crate::edit::{Edit, apply, edits};
use crate::support::{Bench, Line, cases, noise, open, restore_into, set_mtime};

/// A small cache, so that remote data is read repeatedly.
const LITTLE: u64 = 200_000;

fn with_far(bench: &Bench, depot: &Arc<Depot>, disk: DiskWriter) -> Repo {
    let repo = Repo::open_with(&bench.repo_dir(), None, disk).expect("opened");
    repo.with_remote(depot.clone(), LITTLE).expect("opened")
}

/// Three turns; each adds a file, and all need the first.
struct Turns {
    bench: Bench,
    depot: Arc<Depot>,
    repo: Repo,
    trees: [TreeId; 3],
}

impl Turns {
    fn new() -> Turns {
        let bench = Bench::in_memory();
        let depot = Depot::new(&bench.dir.path().join("depot"));
        let repo = with_far(&bench, &depot, DiskWriter::default());
        let mut line = bench.line();
        let trees = [0, 1, 2].map(|turn| {
            std::fs::write(bench.at(&format!("{turn}")), noise(300_000, turn)).expect("written");
            line.take(&repo).tree
        });
        Turns { bench, depot, repo, trees }
    }

    fn send(&self, turns: &[usize]) -> HashSet<String> {
        turns.iter().for_each(|turn| self.depot.send(&self.repo, &self.trees[*turn]));
        let packs = std::fs::read_dir(&self.depot.dir).expect("listed");
        packs.map(|pack| pack.expect("one").file_name().into_string().expect("a name")).collect()
    }

    fn trees(&self, turns: &[usize]) -> Vec<TreeId> {
        turns.iter().map(|turn| self.trees[*turn].clone()).collect()
    }

    fn collect(&self, hot: &[usize], cold: &[usize], far: &HashSet<String>) -> GcReport {
        let (trees, cold) = (self.trees(hot), self.trees(cold));
        let wanted = GcRoots { trees, remote_suffices: cold, remote: far.clone(), ..GcRoots::default() };
        self.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected")
    }

    fn here(&self) -> [bool; 3] {
        self.trees.each_ref().map(|tree| self.repo.pack_file(tree.pack_name()).is_some())
    }

    fn names(&self, turns: &[usize]) -> Vec<String> {
        let mut names: Vec<String> =
            turns.iter().map(|turn| self.trees[*turn].pack_name().to_owned()).collect();
        names.sort();
        names
    }
}

#[test]
fn cold_remote_packs_are_evicted_and_come_back() {
    let turns = Turns::new();
    let far = turns.send(&[2]);
    let size = turns.repo.size().expect("known");
    let collected = turns.collect(&[], &[0, 1, 2], &far);
    assert_eq!(collected, GcReport { evicted: 3, freed: size, ..GcReport::default() });
    assert_eq!((turns.here(), turns.repo.size().expect("known")), ([false; 3], 0));
    for (tree, number) in turns.trees.iter().zip(0..) {
        let to = turns.bench.dir.path().join(format!("restored {number}"));
        restore_into(&turns.repo, tree, &to).expect("restored");
        assert_eq!(std::fs::read_dir(&to).expect("listed").count(), number + 1);
        assert_eq!(turns.repo.compare(tree, "workspace", &open(&to)).expect("compared"), vec![]);
    }
    let again = turns.collect(&[], &[0, 1, 2], &far);
    assert_eq!(again, GcReport::default());
}

#[test]
fn packs_of_warm_snapshots_and_packs_without_a_remote_copy_stay() {
    let turns = Turns::new();
    let far = turns.send(&[1]);
    // Only a cold snapshot needs the last pack, but no other copy exists.
    assert_eq!((turns.collect(&[0], &[1, 2], &far).evicted, turns.here()), (1, [true, false, true]));
    // The second pack is now only remote, and the warm snapshot needs it: it stays remote, and the first stays local.
    let collected = turns.collect(&[0, 1], &[2], &far);
    assert_eq!((collected.evicted, turns.here()), (0, [true, false, true]));
    turns.repo.verify_all(&turns.trees, VerifyDepth::Data, &mut |_| {}).expect("verified");
}

#[test]
fn evicted_packs_are_not_reported_damaged_without_the_remote() {
    let turns = Turns::new();
    let far = turns.send(&[1]);
    turns.collect(&[0], &[1, 2], &far);
    assert_eq!(turns.here(), [true, false, true]);
    let alone = turns.bench.reopened();
    let offered = [turns.trees[0].clone(), turns.trees[2].clone()];
    let verified = alone.verify_all(&offered, VerifyDepth::Data, &mut |_| {}).expect("verified");
    assert_eq!((verified.damaged, verified.remote), (vec![], 1));
    assert_eq!(alone.missing_packs().expect("read"), Vec::<String>::new());
}

/// Whatever the caller's list says: before a pack leaves, collection checks that the remote copy is identical.
#[test]
fn nothing_leaves_that_far_does_not_have_as_it_is_here() {
    let turns = Turns::new();
    let far: HashSet<String> = turns.names(&[0, 1, 2]).into_iter().collect();
    let stays = GcReport { kept: 3, ..GcReport::default() };
    assert_eq!(turns.collect(&[], &[0, 1, 2], &far), stays, "it is not there");
    turns.send(&[2]);
    turns.depot.set(Weather::Down);
    assert_eq!(turns.collect(&[], &[0, 1, 2], &far), stays, "it cannot be reached");
    turns.depot.set(Weather::Fine);
    let path = turns.depot.path(turns.trees[0].pack_name());
    let whole = std::fs::read(&path).expect("read");
    std::fs::write(&path, &whole[..whole.len() - 1]).expect("written");
    assert_eq!(turns.collect(&[], &[0, 1, 2], &far).evicted, 2, "it is cut short");
    assert_eq!(turns.here(), [true, false, false]);
    std::fs::write(&path, &whole).expect("written");
    assert_eq!(turns.collect(&[], &[0, 1, 2], &far).evicted, 1);
    // Without a remote store, nothing could bring the pack back.
    let bench = Bench::in_memory();
    bench.write("file", "text");
    let tree = bench.take().tree;
    let far = HashSet::from([tree.pack_name().to_owned()]);
    let wanted = GcRoots { remote_suffices: vec![tree], remote: far, ..GcRoots::default() };
    assert_eq!(bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected").evicted, 0);
}

/// The pack was shrunk and uploaded, then captured again in full. The list says that it is remote, but the remote
/// copy has only half of it.
#[test]
fn a_pack_of_which_far_has_less_stays() {
    let bench = Bench::in_memory();
    let depot = Depot::new(&bench.dir.path().join("depot"));
    let repo = with_far(&bench, &depot, DiskWriter::default());
    std::fs::write(bench.at("large"), noise(3 << 20, 1)).expect("written");
    bench.write("dir/small", "x");
    set_mtime(&bench.workspace(), 1000, 0);
    let mut line = bench.line();
    let first = line.take(&repo).tree;
    std::fs::rename(bench.at("large"), bench.dir.path().join("aside")).expect("moved");
    let second = line.take(&repo).tree;
    let wanted = GcRoots { trees: vec![second.clone()], ..GcRoots::default() };
    assert_eq!(
        repo.collect_garbage(&wanted, Duration::ZERO).expect("collected").rewritten,
        [first.pack_name()]
    );
    depot.put(&repo, first.pack_name());
    depot.put(&repo, second.pack_name());
    std::fs::rename(bench.dir.path().join("aside"), bench.at("large")).expect("moved back");
    set_mtime(&bench.workspace(), 1000, 0);
    assert_eq!(crate::support::take(&repo, &bench.workspace()).tree, first, "the same pack, whole again");
    let far = HashSet::from([first.pack_name().to_owned(), second.pack_name().to_owned()]);
    let wanted =
        GcRoots { remote_suffices: vec![first.clone(), second.clone()], remote: far, ..GcRoots::default() };
    let collected = repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!((collected.evicted, collected.kept), (1, 1));
    repo.verify(&first).expect("whole");
    depot.put(&repo, first.pack_name());
    assert_eq!(repo.collect_garbage(&wanted, Duration::ZERO).expect("collected").evicted, 1);
    repo.verify(&first).expect("whole");
    repo.verify(&second).expect("whole");
}

/// If the first pack of a retained snapshot is only remote, collection cannot know which packs it refers to.
#[test]
fn content_behind_a_remote_pack_is_never_garbage() {
    let turns = Turns::new();
    let far = turns.send(&[1]);
    // The second pack leaves. The first, which it needs, stays local as if another snapshot kept it here.
    assert_eq!((turns.collect(&[0], &[1], &far).evicted, turns.here()), (1, [true, false, false]));
    let collected = turns.collect(&[], &[1], &far);
    assert_eq!((collected.removed.len(), collected.evicted, turns.here()), (0, 1, [false; 3]));
    turns.repo.verify(&turns.trees[1]).expect("whole");
    // Once no retained snapshot refers to remote packs, the local ones are garbage like any other.
    let turns = Turns::new();
    let far = turns.send(&[1]);
    assert_eq!(turns.collect(&[0], &[1], &far).removed, turns.names(&[2]), "never sent, and unwanted");
    assert_eq!(turns.collect(&[], &[], &far).removed, turns.names(&[0]));
}

/// The same in the middle of a tree: its root is local, and one of its folders is only remote.
#[test]
fn content_behind_a_remote_folder_is_never_garbage() {
    let bench = Bench::in_memory();
    let depot = Depot::new(&bench.dir.path().join("depot"));
    let repo = with_far(&bench, &depot, DiskWriter::default());
    let mut line = bench.line();
    let mut turn = |path: &str| {
        bench.write(path, "text");
        line.take(&repo).tree
    };
    let (first, second, third) = (turn("dir/one"), turn("dir/two"), turn("top"));
    depot.send(&repo, &third);
    std::fs::remove_file(repo.pack_file(second.pack_name()).expect("here").0).expect("removed");
    let repo = with_far(&bench, &depot, DiskWriter::default());
    let far = [&first, &second, &third].iter().map(|tree| tree.pack_name().to_owned()).collect();
    let wanted = GcRoots { trees: vec![third.clone()], remote: far, ..GcRoots::default() };
    let collected = repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!((collected.removed.len(), collected.evicted, collected.kept), (0, 1, 1));
    repo.verify(&third).expect("whole");
}

/// Notes refer to no further objects.
#[test]
fn notes_that_are_only_far_are_left_there() {
    let turns = Turns::new();
    let far = turns.send(&[1]);
    assert_eq!(turns.collect(&[], &[0, 1], &far).evicted, 2);
    turns.depot.asked();
    let wanted = GcRoots { notes: turns.trees(&[0, 1]), remote: far, ..GcRoots::default() };
    assert_eq!(turns.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected"), GcReport::default());
    assert_eq!(turns.depot.asked().counts(), (0, 0));
}

#[test]
fn the_cached_parts_of_a_pack_go_with_it() {
    let turns = Turns::new();
    let kept = turns.bench.repo_dir().join("cache/far").join(turns.trees[0].pack_name());
    let (path, _) = turns.repo.pack_file(turns.trees[0].pack_name()).expect("here");
    std::fs::copy(path, &kept).expect("copied");
    assert_eq!(turns.collect(&[], &[], &HashSet::new()).removed, turns.names(&[0, 1, 2]));
    assert!(!kept.exists());
}

#[test]
fn a_far_pack_is_not_made_smaller_while_something_unknown_may_need_it() {
    let bench = Bench::in_memory();
    let depot = Depot::new(&bench.dir.path().join("depot"));
    let repo = with_far(&bench, &depot, DiskWriter::default());
    let mut line = bench.line();
    std::fs::write(bench.at("large"), noise(3 << 20, 1)).expect("written");
    bench.write("dir/small", "x");
    let first = line.take(&repo).tree;
    bench.write("other", "y");
    let second = line.take(&repo).tree;
    std::fs::remove_file(bench.at("large")).expect("removed");
    let third = line.take(&repo).tree;
    depot.send(&repo, &third);
    let far: HashSet<String> =
        [&first, &second, &third].iter().map(|tree| tree.pack_name().to_owned()).collect();
    let wanted = GcRoots {
        trees: vec![third.clone()],
        remote_suffices: vec![second.clone()],
        remote: far,
        ..GcRoots::default()
    };
    // The third needs the small file in the first's pack. The second is only remote, and needs the large file.
    std::fs::remove_file(repo.pack_file(second.pack_name()).expect("here").0).expect("removed");
    let repo = with_far(&bench, &depot, DiskWriter::default());
    let collected = repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!((&collected.rewritten, &collected.removed), (&vec![], &vec![]));
    repo.verify(&second).expect("whole");
    // Without the second snapshot most of the pack is garbage.
    let wanted = GcRoots { remote_suffices: vec![], ..wanted };
    let collected = repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!(collected.rewritten, [first.pack_name()]);
    repo.verify(&third).expect("whole");
}

#[test]
fn a_pack_that_is_nowhere_stops_a_collection() {
    let turns = Turns::new();
    let far = turns.send(&[0]);
    std::fs::remove_file(turns.repo.pack_file(turns.trees[1].pack_name()).expect("here").0).expect("removed");
    let repo = with_far(&turns.bench, &turns.depot, DiskWriter::default());
    let wanted = GcRoots { remote_suffices: turns.trees(&[2]), remote: far, ..GcRoots::default() };
    let refused = repo.collect_garbage(&wanted, Duration::ZERO).expect_err("something is missing");
    assert_eq!(refused.kind(), SnapshotErrorKind::Damaged);
    turns.depot.set(Weather::Down);
    let refused = repo.collect_garbage(&wanted, Duration::ZERO).expect_err("something may be missing");
    assert!(matches!(refused, Error::Far { .. }), "{refused}");
    assert_eq!(turns.here(), [true, false, true]);
}

#[test]
fn young_packs_are_not_evicted() {
    let turns = Turns::new();
    let far = turns.send(&[2]);
    let wanted = GcRoots { remote_suffices: turns.trees(&[0, 1, 2]), remote: far, ..GcRoots::default() };
    let collected = turns.repo.collect_garbage(&wanted, Duration::from_secs(3600)).expect("collected");
    assert_eq!((collected.evicted, collected.kept), (0, 3));
}

#[derive(Debug, Clone)]
enum Step {
    /// With the remote store reachable or not.
    Turn {
        line: usize,
        edits: Vec<Edit>,
        down: bool,
    },
    Fork {
        snapshot: usize,
    },
    Drop {
        snapshot: usize,
    },
    Send {
        snapshot: usize,
    },
    /// Makes a snapshot cold, or warm again.
    Cool {
        snapshot: usize,
    },
    /// Makes all other snapshots cold.
    Rest {
        awake: usize,
    },
    Collect {
        death: Option<u64>,
        down: bool,
        deep: bool,
    },
    ForgetWhatIsKept,
}

fn step() -> impl Strategy<Value = Step> {
    let pick = any::<usize>;
    let down = || prop_oneof![4 => Just(false), 1 => Just(true)];
    let death = prop_oneof![3 => Just(None), 1 => (0u64..14).prop_map(Some)];
    prop_oneof![
        6 => (pick(), edits(5), down()).prop_map(|(line, edits, down)| Step::Turn { line, edits, down }),
        1 => pick().prop_map(|snapshot| Step::Fork { snapshot }),
        3 => pick().prop_map(|snapshot| Step::Drop { snapshot }),
        4 => pick().prop_map(|snapshot| Step::Send { snapshot }),
        1 => pick().prop_map(|snapshot| Step::Cool { snapshot }),
        3 => pick().prop_map(|awake| Step::Rest { awake }),
        5 => (death, down(), any::<bool>())
            .prop_map(|(death, down, deep)| Step::Collect { death, down, deep }),
        1 => Just(Step::ForgetWhatIsKept),
    ]
}

/// A retained snapshot, and a copy of its folder that the repository did not make.
struct Kept {
    tree: TreeId,
    copy: PathBuf,
    cold: bool,
}

struct World {
    bench: Bench,
    depot: Arc<Depot>,
    repo: Repo,
    lines: Vec<Line>,
    kept: Vec<Kept>,
    made: usize,
    /// The references of each pack, as read when it was captured.
    references: HashMap<String, Vec<String>>,
    sent: HashSet<String>,
}

impl World {
    fn new() -> World {
        let bench = Bench::in_memory();
        let depot = Depot::new(&bench.dir.path().join("depot"));
        let repo = with_far(&bench, &depot, DiskWriter::default());
        let lines = vec![bench.line()];
        let (references, sent) = (HashMap::new(), HashSet::new());
        World { bench, depot, repo, lines, kept: Vec::new(), made: 0, references, sent }
    }

    fn fresh(&mut self, what: &str) -> PathBuf {
        self.made += 1;
        self.bench.dir.path().join(format!("{what} {}", self.made))
    }

    fn pick(&mut self, snapshot: usize) -> Option<&mut Kept> {
        let count = self.kept.len().max(1);
        self.kept.get_mut(snapshot % count)
    }

    fn trees(&self, cold: bool) -> Vec<TreeId> {
        self.kept.iter().filter(|kept| kept.cold == cold).map(|kept| kept.tree.clone()).collect()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Turn { line, edits, down } => self.turn(line % self.lines.len(), edits, *down),
            Step::Fork { snapshot } => {
                if let Some(tree) = self.pick(*snapshot).map(|kept| kept.tree.clone()) {
                    let (folder, index) = (self.fresh("fork"), self.fresh("index"));
                    self.lines.push(Line::restored(&self.repo, &tree, &folder, &index));
                }
            }
            Step::Drop { snapshot } => {
                if let Some(tree) = self.pick(*snapshot).map(|kept| kept.tree.clone()) {
                    self.kept.retain(|kept| kept.tree != tree);
                    let orphans = self.lines.iter_mut().filter(|line| line.base.as_ref() == Some(&tree));
                    orphans.for_each(|line| line.base = None);
                }
            }
            Step::Send { snapshot } => {
                if let Some(pack) = self.pick(*snapshot).map(|kept| kept.tree.pack_name().to_owned()) {
                    self.send(&pack);
                }
            }
            Step::Cool { snapshot } => {
                if let Some(kept) = self.pick(*snapshot) {
                    kept.cold = !kept.cold;
                }
            }
            Step::Rest { awake } => {
                self.kept.iter_mut().for_each(|kept| kept.cold = true);
                if let Some(kept) = self.pick(*awake) {
                    kept.cold = false;
                }
            }
            Step::Collect { death, down, deep } => self.collect(*death, *down, *deep),
            Step::ForgetWhatIsKept => {
                Folder::erase(&self.bench.repo_dir().join("cache")).expect("erased");
                self.repo = with_far(&self.bench, &self.depot, DiskWriter::default());
            }
        }
    }

    fn turn(&mut self, line: usize, edits: &[Edit], down: bool) {
        let folder = self.lines[line].folder.clone();
        edits.iter().for_each(|edit| apply(&folder, edit));
        self.depot.set(if down { Weather::Down } else { Weather::Fine });
        let taken = self.lines[line].take(&self.repo);
        self.depot.set(Weather::Fine);
        let pack = taken.tree.pack_name().to_owned();
        if taken.written > 0 {
            self.references.insert(pack.clone(), self.repo.references(&taken.tree).expect("read"));
        }
        let copy = self.fresh("copy");
        copy_all(&folder, &copy);
        self.kept.push(Kept { tree: taken.tree, copy, cold: false });
    }

    /// Uploads a pack after those it needs. A pack that is gone was not needed.
    fn send(&mut self, pack: &str) {
        let Some((_, size)) = self.repo.pack_file(pack) else { return };
        // A new capture of the same pack may hold more than the uploaded form.
        if self.sent.contains(pack) && size <= self.depot.length(pack) {
            return;
        }
        for needed in self.references[pack].clone() {
            self.send(&needed);
        }
        self.depot.put(&self.repo, pack);
        self.sent.insert(pack.to_owned());
    }

    /// Uploads the new form of packs that were shrunk here.
    fn replace(&mut self) {
        for pack in &self.sent {
            if self.repo.pack_file(pack).is_some_and(|(_, size)| size != self.depot.length(pack)) {
                self.depot.put(&self.repo, pack);
            }
        }
    }

    fn collect(&mut self, death: Option<u64>, down: bool, deep: bool) {
        let disk = death
            .map_or_else(DiskWriter::default, |step| DiskWriter::crashing(SimulatedCrash::at_step(step)));
        // Packs whose local form differs from the remote one must be uploaded again first.
        let same = |pack: &&String| {
            self.repo.pack_file(pack).is_none_or(|(_, size)| size == self.depot.length(pack))
        };
        let (far, unlike) = self.sent.iter().cloned().partition(|pack| same(&pack));
        let (trees, cold) = (self.trees(false), self.trees(true));
        let there =
            deep.then(|| self.sent.iter().map(|pack| (pack.clone(), self.depot.length(pack))).collect());
        let wanted = GcRoots {
            trees,
            remote_suffices: cold,
            remote: far,
            remote_differs: unlike,
            all_remote: there,
            ..GcRoots::default()
        };
        let repo = with_far(&self.bench, &self.depot, DiskWriter::default());
        let dying = with_far(&self.bench, &self.depot, disk);
        self.depot.set(if down { Weather::Down } else { Weather::Fine });
        let collected = dying.collect_garbage(&wanted, Duration::ZERO);
        self.depot.set(Weather::Fine);
        self.repo = repo;
        // After a crash the result is unknown, so nothing is deleted remotely.
        let Ok(GcReport { removed, unneeded, .. }) = collected else {
            assert!(death.is_some() || (down && deep), "{collected:?}");
            return;
        };
        for pack in removed.into_iter().chain(unneeded) {
            std::fs::remove_file(self.depot.path(&pack)).ok();
            self.sent.remove(&pack);
        }
        self.replace();
        if deep {
            self.check_no_garbage();
        }
    }

    /// Every retained snapshot is complete, locally or remotely, to the last byte.
    fn check(&self) {
        let trees: Vec<TreeId> = self.kept.iter().map(|kept| kept.tree.clone()).collect();
        let verified = self.repo.verify_all(&trees, VerifyDepth::Data, &mut |_| {}).expect("verified");
        assert_eq!((verified.trees, verified.damaged), (trees.len() as u64, vec![]));
        for kept in &self.kept {
            let different = self.repo.compare(&kept.tree, "workspace", &open(&kept.copy)).expect("compared");
            assert_eq!(different, vec![]);
        }
    }

    /// No unneeded pack is remote, unless it is also local: then a later collection decides.
    fn check_no_garbage(&self) {
        let needed: HashSet<String> =
            self.kept.iter().flat_map(|kept| self.repo.packs_of(&kept.tree).expect("read")).collect();
        let garbage: Vec<&String> = self
            .sent
            .iter()
            .filter(|pack| !needed.contains(*pack) && self.repo.pack_file(pack).is_none())
            .collect();
        assert_eq!(garbage, Vec::<&String>::new());
    }

    /// The uploaded snapshots are complete without any local pack.
    fn check_far_alone(&mut self) {
        let dir = self.fresh("alone");
        let alone =
            Repo::open(&dir).expect("opened").with_remote(self.depot.clone(), LITTLE).expect("opened");
        let trees = self.kept.iter().filter(|kept| self.sent.contains(kept.tree.pack_name()));
        let trees: Vec<TreeId> = trees.map(|kept| kept.tree.clone()).collect();
        let verified = alone.verify_all(&trees, VerifyDepth::Data, &mut |_| {}).expect("verified");
        assert_eq!(verified.damaged, vec![]);
    }
}

proptest::proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn evictions_never_lose_wanted_content(steps in proptest::collection::vec(step(), 1..30)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.check_far_alone();
        // At the end every pack may leave.
        let packs: Vec<String> = world.kept.iter().map(|kept| kept.tree.pack_name().to_owned()).collect();
        packs.iter().for_each(|pack| world.send(pack));
        world.kept.iter_mut().for_each(|kept| kept.cold = true);
        // First upload the packs that a crashed collection has shrunk.
        world.replace();
        world.collect(None, false, true);
        // A remote pack that was shrunk is local until it is uploaded, and leaves with the next collection. That
        // collection may in turn shrink another one.
        for _ in 0..world.sent.len() {
            if world.repo.size().expect("known") > 0 {
                world.collect(None, false, true);
            }
        }
        assert_eq!(world.repo.size().expect("known"), 0, "nothing is here any more");
        world.check();
        world.check_far_alone();
        world.collect(None, false, false);
        world.kept.iter_mut().for_each(|kept| kept.cold = false);
        world.collect(None, false, true);
        world.check();
    }
}
