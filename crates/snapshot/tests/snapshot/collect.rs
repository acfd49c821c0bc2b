//! Collection removes what no retained snapshot needs and nothing else, whatever happened before or at the same time.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, SystemTime};

use ash_snapshot::{
    CaptureRequest, CaptureRoot, DiskWriter, Folder, GcReport, GcRoots, Repo, RestoreTarget, SimulatedCrash,
    TreeId, VerifyDepth,
};
use proptest::prelude::{Just, Strategy, any, prop_oneof};

use crate::edit::{Edit, apply, edits};
use crate::support::{Bench, Line, cases, let_the_clock_tick, noise, open, restore_into};

#[derive(Debug, Clone)]
enum Step {
    Turn {
        line: usize,
        edits: Vec<Edit>,
        death: Option<u64>,
    },
    /// Restores a snapshot into another folder, which continues from it.
    Fork {
        snapshot: usize,
    },
    /// Restores a snapshot into an existing folder.
    Rewind {
        line: usize,
        snapshot: usize,
    },
    Drop {
        snapshot: usize,
    },
    Collect {
        death: Option<u64>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let pick = any::<usize>;
    let death = || prop_oneof![3 => Just(None), 1 => (0u64..14).prop_map(Some)];
    prop_oneof![
        5 => (pick(), edits(5), death()).prop_map(|(line, edits, death)| Step::Turn { line, edits, death }),
        1 => pick().prop_map(|snapshot| Step::Fork { snapshot }),
        1 => (pick(), pick()).prop_map(|(line, snapshot)| Step::Rewind { line, snapshot }),
        3 => pick().prop_map(|snapshot| Step::Drop { snapshot }),
        2 => death().prop_map(|death| Step::Collect { death }),
    ]
}

/// A retained snapshot, and a copy of its folder that the repository did not make.
struct Kept {
    tree: TreeId,
    copy: PathBuf,
}

struct World {
    bench: Bench,
    repo: Repo,
    lines: Vec<Line>,
    kept: Vec<Kept>,
    made: usize,
}

impl World {
    fn new() -> World {
        let bench = Bench::in_memory();
        let (repo, lines) = (bench.reopened(), vec![bench.line()]);
        World { bench, repo, lines, kept: Vec::new(), made: 0 }
    }

    /// A new path.
    fn fresh(&mut self, what: &str) -> PathBuf {
        self.made += 1;
        self.bench.dir.path().join(format!("{what} {}", self.made))
    }

    fn wanted(&self) -> GcRoots {
        GcRoots { trees: self.kept.iter().map(|kept| kept.tree.clone()).collect(), ..GcRoots::default() }
    }

    /// A repository that crashes at this step, or never.
    fn machine(&self, death: Option<u64>) -> Repo {
        let disk = death
            .map_or_else(DiskWriter::default, |step| DiskWriter::crashing(SimulatedCrash::at_step(step)));
        Repo::open_with(&self.bench.repo_dir(), None, disk).expect("opened")
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Turn { line, edits, death } => self.turn(line % self.lines.len(), edits, *death),
            Step::Fork { snapshot } => {
                if let Some(tree) = self.pick(*snapshot) {
                    let (folder, index) = (self.fresh("fork"), self.fresh("index"));
                    self.lines.push(Line::restored(&self.repo, &tree, &folder, &index));
                }
            }
            Step::Rewind { line, snapshot } => {
                if let Some(tree) = self.pick(*snapshot) {
                    let line = line % self.lines.len();
                    let Line { folder, index, .. } = self.lines[line].clone();
                    Folder::erase(&folder).expect("erased");
                    self.lines[line] = Line::restored(&self.repo, &tree, &folder, &index);
                }
            }
            Step::Drop { snapshot } => {
                if let Some(tree) = self.pick(*snapshot) {
                    self.kept.retain(|kept| kept.tree != tree);
                    // A folder must not build on a snapshot that is no longer retained.
                    let orphans = self.lines.iter_mut().filter(|line| line.base.as_ref() == Some(&tree));
                    orphans.for_each(|line| line.base = None);
                }
            }
            Step::Collect { death } => {
                let _ = self.machine(*death).collect_garbage(&self.wanted(), Duration::ZERO);
                self.repo = self.machine(None);
            }
        }
    }

    fn pick(&self, snapshot: usize) -> Option<TreeId> {
        self.kept.get(snapshot % self.kept.len().max(1)).map(|kept| kept.tree.clone())
    }

    fn turn(&mut self, line: usize, edits: &[Edit], death: Option<u64>) {
        let folder = self.lines[line].folder.clone();
        edits.iter().for_each(|edit| apply(&folder, edit));
        let dying = death.map(|death| self.machine(Some(death)));
        let taken = self.lines[line].try_take(dying.as_ref().unwrap_or(&self.repo));
        if death.is_some() {
            self.repo = self.machine(None);
        }
        if let Ok(taken) = taken {
            let copy = self.fresh("copy");
            copy_all(&folder, &copy);
            self.kept.push(Kept { tree: taken.tree, copy });
        }
    }

    /// Every retained snapshot is complete, to the last byte.
    fn check(&self) {
        let trees = self.wanted().trees;
        let verified = self.repo.verify_all(&trees, VerifyDepth::Data, &mut |_| {}).expect("verified");
        assert_eq!((verified.trees, verified.damaged), (trees.len() as u64, vec![]));
        for kept in &self.kept {
            let different = self.repo.compare(&kept.tree, "workspace", &open(&kept.copy)).expect("compared");
            assert_eq!(different, vec![]);
        }
    }

    fn check_restored(&mut self) {
        for number in 0..self.kept.len() {
            let to = self.fresh("restored");
            restore_into(&self.repo, &self.kept[number].tree, &to).expect("restored");
            let tree = &self.kept[number].tree;
            assert_eq!(self.repo.compare(tree, "workspace", &open(&to)).expect("compared"), vec![]);
        }
    }
}

pub(crate) fn copy_all(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(done.expect("run").success());
}

/// Removing any one pack damages a snapshot.
fn assert_nothing_is_left_over(bench: &Bench, wanted: &GcRoots) {
    let aside = bench.dir.path().join("aside");
    for pack in bench.packs().iter().filter(|path| path.extension().is_some_and(|is| is == "pack")) {
        std::fs::rename(pack, &aside).expect("moved");
        let verified = bench
            .reopened()
            .verify_all(&wanted.trees, VerifyDepth::Structure, &mut |_| {})
            .expect("verified");
        std::fs::rename(&aside, pack).expect("moved back");
        assert_ne!(verified.damaged, vec![], "no snapshot needs {}", pack.display());
    }
}

proptest::proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn nothing_wanted_is_ever_lost_and_nothing_else_stays(steps in proptest::collection::vec(step(), 1..30)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        let wanted = world.wanted();
        world.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
        world.check();
        world.check_restored();
        assert_nothing_is_left_over(&world.bench, &wanted);
        let again = world.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
        assert_eq!(again, GcReport { kept: again.kept, ..GcReport::default() });
    }
}

#[test]
fn a_repository_shrinks_to_what_is_wanted() {
    let bench = Bench::in_memory();
    let mut line = bench.line();
    for turn in 0..5 {
        // One file is replaced each turn, and one stays.
        std::fs::write(bench.at("replaced"), noise(3 << 20, turn)).expect("written");
        std::fs::write(bench.at(&format!("stays {turn}")), noise(1 << 20, 100 + turn)).expect("written");
        line.take(&bench.repo);
    }
    let tree = line.base.clone().expect("taken");
    let before = bench.repo.size().expect("known");
    let wanted = GcRoots { trees: vec![tree.clone()], ..GcRoots::default() };
    let collected = bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    let after = bench.repo.size().expect("known");
    assert_eq!((collected.removed.len(), collected.rewritten.len(), collected.kept), (0, 4, 1));
    assert_eq!(collected.freed, before - after);

    let fresh = Repo::open(&bench.dir.path().join("fresh")).expect("opened");
    let alone = crate::support::take(&fresh, &bench.workspace());
    assert!(alone.tree.same_files(&tree));
    let needed = fresh.size().expect("known");
    assert!(after <= 2 * needed, "{after} bytes where {needed} would do");
    bench.reopened().verify(&tree).expect("whole");
    // A capture continues in the folder as if there had been no collection.
    bench.write("new", "x");
    let next = line.take(&bench.repo).tree;
    assert_eq!(bench.compare(&next, &bench.workspace()), vec![]);
}

#[test]
fn the_notes_of_a_snapshot_stay_when_only_they_are_wanted() {
    let bench = Bench::in_memory();
    std::fs::write(bench.at("large"), noise(3 << 20, 1)).expect("written");
    let folder = open(&bench.workspace());
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let notes: [(&str, &[u8]); 1] = [("events", b"what happened")];
    let tree = bench
        .repo
        .capture(&CaptureRequest { notes: &notes, ..CaptureRequest::of(&roots) })
        .expect("taken")
        .tree;
    let wanted = GcRoots { notes: vec![tree.clone()], ..GcRoots::default() };
    let collected = bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!((collected.removed.len(), collected.rewritten.len(), collected.kept), (0, 1, 0));
    assert!(bench.repo.size().expect("known") < 1000);
    let again = bench.reopened();
    assert_eq!(again.note(&tree, "events").expect("read").as_deref(), Some(&b"what happened"[..]));
    assert!(again.verify(&tree).is_err());
}

#[test]
fn packs_younger_than_the_grace_period_stay() {
    let bench = Bench::in_memory();
    bench.write("file", "old");
    let old = bench.take().tree;
    bench.write("file", "young");
    let young = bench.take().tree;
    let path = bench.repo_dir().join(format!("{}.pack", &old.as_str()[64..]));
    let file = std::fs::File::options().write(true).open(path).expect("opened");
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("set");
    let collected =
        bench.repo.collect_garbage(&GcRoots::default(), Duration::from_secs(60)).expect("collected");
    assert_eq!((collected.removed.len(), collected.kept), (1, 1));
    assert_eq!((bench.repo.contains(&old), bench.repo.contains(&young)), (false, true));
}

/// A damaged snapshot does not show what else it needs, so collection removes nothing.
#[test]
fn nothing_is_removed_as_long_as_a_wanted_snapshot_cannot_be_read() {
    let bench = Bench::in_memory();
    bench.write("file", "one");
    let mut line = bench.line();
    let first = line.take(&bench.repo).tree;
    bench.write("file", "two");
    let second = line.take(&bench.repo).tree;
    let path = bench.repo_dir().join(format!("{}.pack", &second.as_str()[64..]));
    std::fs::write(&path, "damaged").expect("written");
    let repo = bench.reopened();
    let wanted = GcRoots { trees: vec![second], ..GcRoots::default() };
    assert!(repo.collect_garbage(&wanted, Duration::ZERO).is_err());
    assert!(repo.contains(&first));
}

/// Thirty turns of 400 KB each leave one small file each; collection removes the dead data beside it in its block.
#[test]
fn garbage_in_the_block_of_a_survivor_goes_too() {
    let bench = Bench::in_memory();
    let mut line = bench.line();
    let mut newest = None;
    for turn in 0..30 {
        bench.write(&format!("kept{turn}"), &format!("survivor {turn}"));
        std::fs::write(bench.at("large"), noise(60_000, turn)).expect("written");
        for part in 0..6 {
            std::fs::write(bench.at(&format!("part{part}")), noise(60_000, 100 * turn + part))
                .expect("written");
        }
        newest = Some(line.take(&bench.repo).tree);
    }
    (0..6).for_each(|part| std::fs::remove_file(bench.at(&format!("part{part}"))).expect("removed"));
    std::fs::remove_file(bench.at("large")).expect("removed");
    let newest = [newest.expect("taken"), line.take(&bench.repo).tree][1].clone();
    let wanted = GcRoots { trees: vec![newest.clone()], ..GcRoots::default() };
    let size = || {
        let packs = std::fs::read_dir(bench.repo_dir()).expect("listed").flatten();
        packs.map(|pack| pack.metadata().expect("there").len()).sum::<u64>()
    };
    let before = size();
    let collected = bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert!(before > 10 << 20 && size() < 200_000, "{before} bytes became {}: {collected:?}", size());
    bench.reopened().verify(&newest).expect("whole");
    let again = bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!((again.rewritten.len(), again.removed.len()), (0, 0), "once is enough");
}

/// A new capture of the same files produces the same pack, which restores the parts that collection dropped.
#[test]
fn dropped_content_comes_back_with_its_next_capture() {
    let bench = Bench::in_memory();
    std::fs::write(bench.at("large"), noise(3 << 20, 1)).expect("written");
    bench.write("dir/small", "x");
    let folder = open(&bench.workspace());
    crate::support::set_mtime(&bench.workspace(), 1000, 0);
    let mut line = bench.line();
    let first = line.take(&bench.repo).tree;
    std::fs::rename(bench.at("large"), bench.dir.path().join("aside")).expect("moved");
    let second = line.take(&bench.repo).tree;
    let wanted = GcRoots { trees: vec![second.clone()], ..GcRoots::default() };
    let collected = bench.repo.collect_garbage(&wanted, Duration::ZERO).expect("collected");
    assert_eq!((collected.rewritten.len(), bench.repo.verify(&first).is_err()), (1, true));
    bench.repo.verify(&second).expect("whole");

    std::fs::rename(bench.dir.path().join("aside"), bench.at("large")).expect("moved back");
    crate::support::set_mtime(&bench.workspace(), 1000, 0);
    let again = bench
        .repo
        .capture(&CaptureRequest::of(&[CaptureRoot { name: "workspace", folder: &folder }]))
        .expect("taken");
    assert_eq!(again.tree, first);
    bench.repo.verify(&first).expect("whole");
    bench.repo.verify(&second).expect("whole");
}

/// Makes a pack look as if it had been written an hour ago. The pack may already be collected.
fn age(bench: &Bench, tree: &TreeId) {
    let path = bench.repo_dir().join(format!("{}.pack", &tree.as_str()[64..]));
    if let Ok(file) = std::fs::File::options().write(true).open(path) {
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("set");
    }
}

#[test]
fn captures_and_restores_go_on_beside_collection() {
    // No pack gets this old by itself, so a capturing thread has enough time to record its snapshot.
    const GRACE: Duration = Duration::from_secs(1800);
    const TURNS: u64 = 80;
    let bench = Bench::in_memory();
    let wanted: Mutex<Vec<TreeId>> = Mutex::default();
    let want =
        |tree: &TreeId| wanted.lock().expect("no code panicked while it held this lock").push(tree.clone());
    let drop_oldest = |tree: &TreeId| {
        let mut wanted = wanted.lock().expect("no code panicked while it held this lock");
        let at = wanted.iter().position(|known| known == tree).expect("it was wanted");
        wanted.swap_remove(at);
    };
    // Packs to age before the next collection. They must not age during a collection, because snapshots recorded
    // since it began may need them.
    let dropped: Mutex<Vec<TreeId>> = Mutex::default();
    // Two threads capture the same files. The lock prevents a pack from ageing between its capture and the record of
    // it.
    let ageing: RwLock<()> = RwLock::default();
    let capture = |name: &str| {
        let folder = bench.empty(name);
        let mut line = Line::new(&folder, &bench.dir.path().join(format!("{name}.index")));
        let mut own: Vec<TreeId> = Vec::new();
        for turn in 0..TURNS {
            std::fs::write(folder.join(format!("{}", turn % 5)), noise(50_000, turn)).expect("written");
            let young = ageing.read().expect("no code panicked while it held this lock");
            let tree = line.take(&bench.repo).tree;
            want(&tree);
            drop(young);
            own.push(tree.clone());
            if turn % 7 == 0 {
                let to = bench.empty(&format!("{name} {turn}"));
                let target = open(&to);
                let targets = [RestoreTarget { root: "workspace", folder: &target, owner: None }];
                bench.repo.restore(&own[0], &targets, None).expect("restored beside a collection");
                std::fs::remove_dir_all(to).expect("removed");
            }
            if own.len() > 3 {
                let oldest = own.remove(0);
                drop_oldest(&oldest);
                dropped.lock().expect("no code panicked while it held this lock").push(oldest);
            }
        }
    };
    // Captures the same pack repeatedly, each time when it may be collected.
    let repeat = || {
        let folder = bench.empty("constant");
        std::fs::write(folder.join("file"), "always the same").expect("written");
        for _ in 0..TURNS {
            let young = ageing.read().expect("no code panicked while it held this lock");
            let tree = crate::support::take(&bench.repo, &folder).tree;
            want(&tree);
            drop(young);
            bench.reopened().verify(&tree).expect("it was just captured");
            let_the_clock_tick();
            bench.reopened().verify(&tree).expect("it is wanted");
            drop_oldest(&tree);
            age(&bench, &tree);
        }
    };
    let collect = |collected: &mut GcReport| {
        let old = std::mem::take(&mut *dropped.lock().expect("no code panicked while it held this lock"));
        let alone = ageing.write().expect("no code panicked while it held this lock");
        old.iter().for_each(|tree| age(&bench, tree));
        drop(alone);
        let trees = wanted.lock().expect("no code panicked while it held this lock").clone();
        let done =
            bench.repo.collect_garbage(&GcRoots { trees, ..GcRoots::default() }, GRACE).expect("collected");
        collected.removed.extend(done.removed);
        collected.rewritten.extend(done.rewritten);
    };
    let mut collected = GcReport::default();
    std::thread::scope(|scope| {
        let workers = [scope.spawn(|| capture("a")), scope.spawn(|| capture("b")), scope.spawn(repeat)];
        while workers.iter().any(|worker| !worker.is_finished()) {
            collect(&mut collected);
        }
        workers.into_iter().for_each(|worker| worker.join().expect("nothing was missing"));
    });
    collect(&mut collected);
    assert!(!collected.removed.is_empty(), "there was something to collect: {collected:?}");
    let trees = wanted.into_inner().expect("no code panicked while it held this lock");
    let verified = bench.reopened().verify_all(&trees, VerifyDepth::Data, &mut |_| {}).expect("verified");
    assert_eq!(verified.damaged, vec![]);
}

#[test]
fn an_exclusive_collection_waits_for_the_others() {
    use ash_snapshot::RepoLockMode;
    let bench = Bench::in_memory();
    let dir = bench.repo_dir();
    let shared = [
        Repo::lock(&dir, RepoLockMode::Shared).expect("locked"),
        Repo::lock(&dir, RepoLockMode::Shared).expect("too"),
    ];
    assert!(Repo::lock(&dir, RepoLockMode::Alone).is_err());
    drop(shared);
    let alone = Repo::lock(&dir, RepoLockMode::Alone).expect("locked");
    assert!(Repo::lock(&dir, RepoLockMode::Shared).is_err());
    drop(alone);
    Repo::lock(&dir, RepoLockMode::Shared).expect("free again");
}
