//! A capture that visits only touched paths has the same result as a full one, whatever happened before.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ash_snapshot::{
    CaptureRequest, CaptureRoot, CapturedSnapshot, ChangeTracking, FilesystemWatch, Folder, RelPath, Repo,
    TouchedPaths, TrackedFolder, TreeId, mapped_writable, sync_mapped,
};

/// A followed live tree with two roots.
struct Scene {
    dir: tempfile::TempDir,
    repo: Arc<Repo>,
    tracked: TrackedFolder,
    _watch: FilesystemWatch,
    base: TreeId,
}

/// Only root can follow a file system.
fn scene(fill: impl Fn(&Path)) -> Scene {
    // A file system of its own, because the noise of a busy one could fill the queue.
    let memory = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(memory).expect("a directory");
    let tree = dir.path().join("tree");
    for root in ["workspace", "home"] {
        std::fs::create_dir_all(tree.join(root)).expect("made");
    }
    fill(&tree);
    let watch = FilesystemWatch::start(dir.path()).expect("followed by root");
    let tracked = watch.track(&open(&tree)).expect("followed");
    let repo = Arc::new(Repo::open(&dir.path().join("repo")).expect("a repository"));
    let base = take(&repo, dir.path(), None, ChangeTracking::None).tree;
    Scene { dir, repo, tracked, _watch: watch, base }
}

fn open(path: &Path) -> Folder {
    Folder::open(path).expect("opened")
}

fn take(repo: &Repo, dir: &Path, base: Option<&TreeId>, tracking: ChangeTracking<'_>) -> CapturedSnapshot {
    let (workspace, home) = (open(&dir.join("tree/workspace")), open(&dir.join("tree/home")));
    let roots =
        [CaptureRoot { name: "workspace", folder: &workspace }, CaptureRoot { name: "home", folder: &home }];
    let index = dir.join("index");
    let exclude = |root: &[u8], path: &[u8]| root == b"home" && path == b"secret";
    let capture = CaptureRequest {
        base,
        index: Some(&index),
        exclude: &exclude,
        tracking,
        ..CaptureRequest::of(&roots)
    };
    repo.capture(&capture).expect("taken")
}

impl Scene {
    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// Like a server: writes mapped files back, and counts them as touched.
    fn touched(&self) -> TouchedPaths {
        let tree = open(&self.tree());
        let mapped = mapped_writable([std::process::id() as i32].into_iter(), &tree).expect("looked");
        sync_mapped(&tree, &mapped.files).expect("written back");
        let ours = mapped.files.into_iter().filter_map(|file| file.path).collect::<Vec<RelPath>>();
        self.tracked.take_changes().with_files(ours)
    }

    fn capture(&mut self) -> CapturedSnapshot {
        let touched = self.touched();
        assert_ne!(touched, TouchedPaths::Everything, "or nothing is tested here");
        let taken = take(&self.repo, self.dir.path(), Some(&self.base), ChangeTracking::Trust(&touched));
        self.base = taken.tree.clone();
        taken
    }

    /// The result of a full capture without an index.
    fn afresh(&self) -> CapturedSnapshot {
        let other = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(self.tree(), other.path().join("tree")).expect("linked");
        take(
            &Repo::open(&other.path().join("repo")).expect("a repository"),
            other.path(),
            None,
            ChangeTracking::None,
        )
    }

    fn assert_exact(&mut self, what: &str) {
        let taken = self.capture();
        let afresh = self.afresh();
        for root in ["workspace", "home"] {
            let folder = open(&self.tree().join(root));
            let differences = self.repo.compare(&taken.tree, root, &folder).expect("compared");
            assert_eq!(
                differences.iter().filter(|d| d.path != b"secret").count(),
                0,
                "{what}: {differences:?}"
            );
        }
        assert!(taken.tree.same_files(&afresh.tree), "{what}");
        assert_eq!(
            (taken.files, taken.bytes, taken.skipped),
            (afresh.files, afresh.bytes, afresh.skipped),
            "{what}"
        );
    }
}

/// A small generator: the same seed gives the same history.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn path(&mut self, tree: &Path) -> PathBuf {
        let root = ["workspace", "home"][self.below(2)];
        let mut path = tree.join(root);
        for _ in 0..self.below(4) {
            path.push(["a", "b", "c"][self.below(3)]);
        }
        path
    }
}

/// A random change of the tree; it may fail.
fn happen(dice: &mut Dice, tree: &Path) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    let (from, to) = (dice.path(tree), dice.path(tree));
    let (file, other) = (from.join(["x", "y", "z"][dice.below(3)]), to.join(["x", "y", "z"][dice.below(3)]));
    match dice.below(16) {
        0..4 => {
            std::fs::create_dir_all(&from)?;
            std::fs::write(&file, vec![dice.below(256) as u8; dice.below(300_000)])
        }
        4 => std::fs::File::options().append(true).open(&file)?.write_all(b"more"),
        5 => std::fs::File::options().write(true).open(&file)?.set_len(dice.below(400_000) as u64),
        6 => std::fs::remove_file(&file),
        7 => std::fs::rename(&file, &other),
        8 if from.components().count() > tree.components().count() + 1 => std::fs::rename(&from, &to),
        9 if from.components().count() > tree.components().count() + 1 => std::fs::remove_dir_all(&from),
        10 => std::fs::create_dir_all(&from),
        11 => std::os::unix::fs::symlink("x", from.join("link")),
        12 => std::fs::hard_link(&file, &other),
        13 => {
            let mode = [0o644, 0o755, 0o600][dice.below(3)];
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))
        }
        14 => {
            // Created outside, then moved in.
            let outside = tree.with_file_name(format!("outside-{}", dice.below(1 << 30)));
            std::fs::create_dir_all(outside.join("a"))?;
            std::fs::write(outside.join("a/x"), "from outside")?;
            std::fs::rename(&outside, from.join("b"))
        }
        15 => std::fs::write(tree.join("home/secret"), "left out"),
        _ => Ok(()),
    }
}

#[test]
fn as_root_visiting_touched_paths_finds_all_that_a_full_walk_finds() {
    for seed in 0..16 {
        let mut dice = Dice(seed);
        let mut scene = scene(|tree| {
            let mut dice = Dice(seed + 1000);
            (0..60).for_each(|_| drop(happen(&mut dice, tree)));
        });
        let tree = scene.tree();
        for round in 0..12 {
            for _ in 0..dice.below(6) {
                let _ = happen(&mut dice, &tree);
            }
            scene.assert_exact(&format!("seed {seed}, round {round}"));
        }
    }
}

#[test]
fn as_root_a_write_through_a_mapping_is_in_the_next_capture() {
    let mut scene = scene(|tree| std::fs::write(tree.join("workspace/mapped"), [1; 8192]).expect("written"));
    let path = scene.tree().join("workspace/mapped");
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("opened");
    // SAFETY: a fresh shared mapping of a file that no code truncates; it is unmapped below.
    let page = unsafe {
        let flags = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), 8192, flags.0, flags.1, std::os::fd::AsRawFd::as_raw_fd(&file), 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    drop(file);
    for value in [7u8, 8, 9] {
        // SAFETY: within the mapping.
        unsafe { page.cast::<u8>().add(5000).write_volatile(value) };
        scene.assert_exact(&format!("byte {value}"));
        // Nothing else happens between the two captures: only the mapping is written to.
        // SAFETY: within the mapping.
        unsafe { page.cast::<u8>().write_volatile(value) };
        scene.assert_exact(&format!("first byte {value}"));
    }
    // SAFETY: mapped above.
    unsafe { libc::munmap(page, 8192) };
}

#[test]
fn as_root_a_check_reports_paths_that_were_not_followed() {
    let scene = scene(|tree| {
        std::fs::create_dir(tree.join("workspace/a")).expect("made");
        std::fs::write(tree.join("workspace/a/x"), "1").expect("written");
    });
    std::fs::write(scene.tree().join("workspace/a/x"), "another").expect("written");
    // Drop the real changes, as if the kernel had not reported them.
    drop(scene.touched());
    let nothing = TouchedPaths::default();
    let checked = take(&scene.repo, scene.dir.path(), Some(&scene.base), ChangeTracking::Check(&nothing));
    assert_eq!(checked.missed_changes, [b"workspace/a".to_vec()]);
    let folder = open(&scene.tree().join("workspace"));
    assert_eq!(scene.repo.compare(&checked.tree, "workspace", &folder).expect("compared"), []);
    let again = take(&scene.repo, scene.dir.path(), Some(&checked.tree), ChangeTracking::Check(&nothing));
    assert_eq!(again.missed_changes, Vec::<Vec<u8>>::new());
}
