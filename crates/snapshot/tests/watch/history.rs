//! Random histories: an index that is updated only by the reported paths finally equals the result of a full walk.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ash_snapshot::{FilesystemWatch, TouchedNames, TouchedPaths, TrackedFolder};
use rustix::fs::{CWD, RenameFlags};

use crate::support::{Alone, Bench, MANY, track, watch};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    is_dir: bool,
    inode: u64,
    mode: u32,
    modified: SystemTime,
    names: u64,
    content: Vec<u8>,
}

impl Entry {
    fn of(path: &Path) -> Option<Entry> {
        let is = fs::symlink_metadata(path).ok()?;
        let content = if is.is_file() { fs::read(path).ok()? } else { Vec::new() };
        // The link count of a directory follows from its content.
        let names = if is.is_dir() { 1 } else { is.nlink() };
        let modified = is.modified().ok()?;
        Some(Entry { is_dir: is.is_dir(), inode: is.ino(), mode: is.mode(), modified, names, content })
    }
}

type Index = BTreeMap<PathBuf, Entry>;

/// A correct capture: its rules are those in the module's documentation.
struct Consumer<'a> {
    root: &'a Path,
    index: Index,
}

impl Consumer<'_> {
    fn walk(root: &Path, at: &Path, index: &mut Index) {
        let Some(entry) = Entry::of(&root.join(at)) else { return };
        let is_dir = entry.is_dir;
        index.insert(at.to_owned(), entry);
        if is_dir && let Ok(entries) = fs::read_dir(root.join(at)) {
            for entry in entries.flatten() {
                Consumer::walk(root, &at.join(entry.file_name()), index);
            }
        }
    }

    fn apply(&mut self, touched: &TouchedPaths) {
        let TouchedPaths::Folders { folders, linked } = touched else {
            self.index.clear();
            Consumer::walk(self.root, Path::new(""), &mut self.index);
            return;
        };
        let by_inode = self.paths_by_inode();
        let elsewhere = by_inode.values().filter(|paths| self.index[&paths[0]].names > paths.len() as u64);
        let linked = linked.iter().filter_map(|inode| by_inode.get(inode));
        let more: Vec<PathBuf> = linked.chain(elsewhere).flatten().cloned().collect();
        for (folder, names) in folders {
            let folder = Path::new(OsStr::from_bytes(folder));
            match names {
                TouchedNames::All => self.walk_anew(folder),
                TouchedNames::These(names) => {
                    self.visit(folder);
                    names.iter().for_each(|name| self.visit(&folder.join(OsStr::from_bytes(name))));
                }
            }
        }
        more.iter().for_each(|path| self.visit(path));
    }

    fn paths_by_inode(&self) -> BTreeMap<u64, Vec<PathBuf>> {
        let mut paths = BTreeMap::<u64, Vec<PathBuf>>::new();
        for (path, entry) in self.index.iter().filter(|(_, entry)| !entry.is_dir) {
            paths.entry(entry.inode).or_default().push(path.clone());
        }
        paths
    }

    fn visit(&mut self, path: &Path) {
        let known = self.index.get(path).filter(|entry| entry.is_dir).map(|entry| entry.inode);
        match Entry::of(&self.root.join(path)) {
            Some(entry) if entry.is_dir && known == Some(entry.inode) => {
                self.index.insert(path.to_owned(), entry);
            }
            Some(_) | None => self.walk_anew(path),
        }
    }

    fn walk_anew(&mut self, path: &Path) {
        self.index.retain(|known, _| !known.starts_with(path));
        Consumer::walk(self.root, path, &mut self.index);
    }
}

/// Makes random changes with a few names.
struct Actor {
    random: u64,
    root: PathBuf,
    outside: PathBuf,
    open: Vec<File>,
}

impl Actor {
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    fn path(&mut self) -> PathBuf {
        let mut path = if self.below(5) == 0 { self.outside.clone() } else { self.root.clone() };
        for _ in 0..=self.below(4) {
            path.push(["a", "b", "c", "\n"][self.below(4) as usize]);
        }
        path
    }

    /// Most changes fail, because their paths do not exist.
    fn act(&mut self) {
        let (path, other) = (self.path(), self.path());
        match self.below(14) {
            0 => drop(fs::create_dir_all(&path)),
            1 | 2 => drop(fs::write(&path, self.random.to_string())),
            3 => drop(File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"more"))),
            4 => drop(File::options().write(true).open(&path).and_then(|file| file.set_len(3))),
            5 => drop(fs::set_permissions(&path, fs::Permissions::from_mode(0o700 + self.below(8) as u32))),
            6 => drop(File::open(&path).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH))),
            7 | 8 => self.rename(&path, &other, RenameFlags::empty()),
            9 => self.rename(&path, &other, RenameFlags::EXCHANGE),
            10 => drop(fs::remove_file(&path)),
            11 if self.below(3) == 0 => drop(fs::remove_dir_all(&path)),
            11 => drop(fs::remove_dir(&path)),
            // Links to the outside are left to the next full walk.
            12 if path.starts_with(&self.root) && other.starts_with(&self.root) => {
                drop(fs::hard_link(&path, &other));
            }
            12 => {}
            _ => self.write_by_handle(&path),
        }
    }

    fn rename(&mut self, from: &Path, to: &Path, how: RenameFlags) {
        if from.starts_with(&self.outside) || to.starts_with(&self.outside) {
            self.open.clear();
        }
        let _ = rustix::fs::renameat_with(CWD, from, CWD, to, how);
    }

    fn write_by_handle(&mut self, path: &Path) {
        if let Ok(file) = File::options().append(true).open(path) {
            self.open.push(file);
        }
        let which = self.below(8) as usize;
        if let Some(mut file) = self.open.get(which) {
            file.write_all(b"by handle").expect("written");
        }
        if self.open.len() > 8 {
            self.open.remove(which);
        }
    }
}

struct Stage {
    root: PathBuf,
    outside: PathBuf,
    tracked: TrackedFolder,
}

fn stage(on: &Path, watch: &FilesystemWatch) -> Stage {
    let (root, outside) = (on.join("root"), on.join("outside"));
    fs::create_dir(&root).expect("made");
    fs::create_dir(&outside).expect("made");
    Stage { tracked: track(watch, &root), root, outside }
}

impl Stage {
    fn actor(&self, seed: u64) -> Actor {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Actor { random, root: self.root.clone(), outside: self.outside.clone(), open: Vec::new() }
    }

    fn consumer(&self) -> Consumer<'_> {
        let mut consumer = Consumer { root: &self.root, index: Index::new() };
        consumer.apply(&TouchedPaths::Everything);
        consumer
    }

    fn check(&self, consumer: &Consumer<'_>, touched: &TouchedPaths, what: &str) {
        let walked = self.consumer().index;
        let paths = walked.keys().chain(consumer.index.keys());
        let differ: Vec<_> = paths
            .filter(|path| !as_good_as(consumer.index.get(*path), walked.get(*path)))
            .map(|path| (path, consumer.index.get(path), walked.get(path)))
            .collect();
        assert!(differ.is_empty(), "{what}: {touched:?} misses {differ:#?}");
    }
}

/// A link count that is too high is fine, because nothing was written through the lost name.
fn as_good_as(known: Option<&Entry>, walked: Option<&Entry>) -> bool {
    match (known, walked) {
        (Some(known), Some(walked)) => {
            known.names >= walked.names && *known == Entry { names: known.names, ..walked.clone() }
        }
        (known, walked) => known == walked,
    }
}

fn quiet_history(stage: &Stage, seed: u64) {
    let (mut actor, mut consumer) = (stage.actor(seed), stage.consumer());
    for interval in 0..60 {
        for _ in 0..actor.below(30) {
            actor.act();
        }
        let touched = stage.tracked.take_changes();
        assert_ne!(touched, TouchedPaths::Everything, "no rename runs while we look");
        consumer.apply(&touched);
        stage.check(&consumer, &touched, &format!("seed {seed}, interval {interval}"));
    }
}

#[test]
fn as_root_after_any_history_the_reported_paths_are_all_that_changed() {
    let alone = Alone::new();
    let watch = watch(&alone.path, MANY);
    for seed in 1..=12 {
        let place = alone.path.join(seed.to_string());
        fs::create_dir(&place).expect("made");
        quiet_history(&stage(&place, &watch), seed);
    }
}

#[test]
fn as_root_the_same_holds_on_a_disk_that_others_use() {
    let bench = Bench::new();
    let (root, outside) = (bench.root(), bench.dir.path().join("outside"));
    quiet_history(&Stage { root, outside, tracked: bench.tracked }, 99);
}

#[test]
fn as_root_endless_renames_hide_no_change() {
    let alone = Alone::new();
    let watch = watch(&alone.path, MANY);
    let stage = stage(&alone.path, &watch);
    let (mut certain, mut rounds) = (0, 0);
    let mut consumer = stage.consumer();
    for seed in 1..=8 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for n in 0..2 {
                let mut actor = stage.actor(seed * 2 + n);
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        actor.act();
                    }
                });
            }
            let end = Instant::now() + Duration::from_millis(250);
            while Instant::now() < end {
                let touched = stage.tracked.take_changes();
                rounds += 1;
                certain += u32::from(touched != TouchedPaths::Everything);
                consumer.apply(&touched);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let touched = stage.tracked.take_changes();
        consumer.apply(&touched);
        stage.check(&consumer, &touched, &format!("seed {seed}"));
    }
    assert!(certain > 0, "in {rounds} rounds there was never a certain answer");
}
