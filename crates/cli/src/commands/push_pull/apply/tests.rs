//! Pulls from a lying server into folders in every state.

use super::*;
use std::{cell::RefCell, collections::HashMap, fs, os::unix::fs::symlink, path::PathBuf};

/// Contents by path; the flag selects the side of the change.
#[derive(Default)]
struct FixedContentSource(RefCell<HashMap<(String, bool), Vec<u8>>>);

impl ContentSource for FixedContentSource {
    async fn content(&self, path: &str, when: DiffSide) -> Result<Vec<u8>> {
        let found = self.0.borrow().get(&(path.to_owned(), when == DiffSide::Now)).cloned();
        found.ok_or_else(|| CliError::new(FailureKind::NotFound, path))
    }
}

struct PullTestFixture {
    dir: tempfile::TempDir,
    contents: FixedContentSource,
    changes: Vec<WorkspaceChange>,
}

impl PullTestFixture {
    /// A folder `in` that is pulled into, and a folder `out` beside it.
    fn new() -> PullTestFixture {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["in", "out"] {
            fs::create_dir(dir.path().join(name)).expect("a folder");
        }
        PullTestFixture { dir, contents: FixedContentSource::default(), changes: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    fn file(&mut self, path: &str, before: Option<&str>, now: Option<&str>) -> &mut PullTestFixture {
        let leaf = |text: &str| WorkspaceEntry::File { size: text.len() as u64, mode: 0o644 };
        for (text, is_now) in [(before, false), (now, true)] {
            if let Some(text) = text {
                self.contents.0.borrow_mut().insert((path.to_owned(), is_now), text.into());
            }
        }
        self.change(path, before.map(leaf), now.map(leaf))
    }

    fn change(
        &mut self,
        path: &str,
        before: Option<WorkspaceEntry>,
        now: Option<WorkspaceEntry>,
    ) -> &mut PullTestFixture {
        let (change, leaf, before) = match (before, now) {
            (before, Some(now)) => (
                if before.is_some() { WorkspaceChangeKind::Modified } else { WorkspaceChangeKind::Added },
                now,
                before,
            ),
            (Some(before), None) => (WorkspaceChangeKind::Deleted, before, None),
            (None, None) => panic!("no change"),
        };
        self.changes.push(WorkspaceChange { path: path.to_owned(), change, entry: leaf, before });
        self
    }

    /// The numbers of modified, added and deleted files; or the conflicts.
    fn pull(&self, local: LocalChangePolicy) -> Result<std::result::Result<[usize; 3], Vec<String>>> {
        let plan = self.plan(local)?;
        if plan.conflicts.is_empty() {
            let done = plan.apply()?;
            return Ok(Ok([
                WorkspaceChangeKind::Modified,
                WorkspaceChangeKind::Added,
                WorkspaceChangeKind::Deleted,
            ]
            .map(|how| done.count(how))));
        }
        Ok(Err(plan.conflicts.into_iter().map(|(path, _)| path).collect()))
    }

    fn plan(&self, local: LocalChangePolicy) -> Result<PullPlan> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let changes = WorkspaceDiff { files: self.changes.clone(), unnamed: 0 };
        runtime.block_on(plan(&self.path("in"), changes, (&self.contents, local), &|_| {}))
    }

    fn link(&mut self, path: &str, target: &str) -> &mut PullTestFixture {
        self.change(path, None, Some(WorkspaceEntry::Link { target: target.to_owned() }))
    }
}

fn done(changed: usize, added: usize, deleted: usize) -> [usize; 3] {
    [changed, added, deleted]
}

#[test]
fn changes_are_brought_and_a_second_time_there_is_nothing_to_do() {
    let mut bench = PullTestFixture::new();
    bench.write("in/changed", "old");
    bench.write("in/deep/gone", "x");
    bench.file("changed", Some("old"), Some("new")).file("new/file", None, Some("y"));
    bench.file("deep/gone", Some("x"), None);
    assert_eq!(bench.pull(LocalChangePolicy::KeepLocal).expect("a pull"), Ok(done(1, 1, 1)));
    assert_eq!((bench.read("in/changed"), bench.read("in/new/file")), (Some("new".into()), Some("y".into())));
    assert!(!bench.path("in/deep").exists(), "a folder that became empty goes too");
    assert_eq!(bench.pull(LocalChangePolicy::KeepLocal).expect("a pull"), Ok(done(0, 0, 0)));
}

#[test]
fn a_local_change_of_the_same_file_stops_the_pull_unless_forced() {
    let mut bench = PullTestFixture::new();
    for name in ["in/changed", "in/added", "in/deleted"] {
        bench.write(name, "mine");
    }
    bench.file("changed", Some("old"), Some("new")).file("added", None, Some("new"));
    bench.file("deleted", Some("olds"), None).file("fine", None, Some("new"));
    let conflicts = ["changed", "added", "deleted"].map(str::to_owned).to_vec();
    assert_eq!(bench.pull(LocalChangePolicy::KeepLocal).expect("a plan"), Err(conflicts));
    assert_eq!((bench.read("in/changed"), bench.read("in/fine")), (Some("mine".into()), None));
    assert_eq!(bench.pull(LocalChangePolicy::Overwrite).expect("a pull"), Ok(done(1, 2, 1)));
    assert_eq!((bench.read("in/changed"), bench.read("in/deleted")), (Some("new".into()), None));
}

#[test]
fn a_path_that_leads_outside_is_refused_before_anything_is_done() {
    for path in ["../out/x", "/etc/x", "a/../../x", "", "a\0b", "./x"] {
        let mut bench = PullTestFixture::new();
        bench.file("fine", None, Some("x")).file(path, None, Some("evil"));
        let failure = bench.pull(LocalChangePolicy::Overwrite).expect_err(path);
        assert_eq!(failure.exit_code(), 2, "{path}");
        assert_eq!(fs::read_dir(bench.path("in")).expect("a folder").count(), 0, "{path}");
    }
}

#[test]
fn a_link_in_the_folder_is_never_followed_out_of_it() {
    let mut bench = PullTestFixture::new();
    bench.write("out/victim", "safe");
    symlink(bench.path("out"), bench.path("in/link")).expect("a link");
    bench.file("link/victim", Some("safe"), Some("evil")).file("link/new", None, Some("evil"));
    for local in [LocalChangePolicy::KeepLocal, LocalChangePolicy::Overwrite] {
        let conflicts = bench.pull(local).expect("a plan").expect_err("conflicts");
        assert_eq!(conflicts, ["link/victim", "link/new"]);
    }
    assert_eq!((bench.read("out/victim"), bench.read("out/new")), (Some("safe".into()), None));
}

#[test]
fn git_metadata_is_left_out_and_blocks_nothing() {
    let mut bench = PullTestFixture::new();
    for path in [".git/hooks/post-commit", ".GIT/config", "sub/.Git/config", ".git"] {
        bench.file(path, None, Some("evil"));
    }
    bench.file("fine", None, Some("x")).file(".github/workflow", None, Some("y"));
    let plan = bench.plan(LocalChangePolicy::Overwrite).expect("a plan");
    let left: Vec<&str> = plan.left_out.iter().map(|left| left.path.as_str()).collect();
    assert_eq!(left, [".git/hooks/post-commit", ".GIT/config", "sub/.Git/config", ".git"]);
    plan.apply().expect("a pull");
    let mut names: Vec<_> =
        fs::read_dir(bench.path("in")).expect("a folder").map(|it| it.expect("one").file_name()).collect();
    names.sort();
    assert_eq!(names, [".github", "fine"]);
}

#[test]
fn a_link_that_leaves_the_folder_is_not_made() {
    let mut bench = PullTestFixture::new();
    fs::create_dir_all(bench.path("in/real/deep")).expect("a folder");
    symlink(bench.path("out"), bench.path("in/mine")).expect("a link");
    symlink("deep", bench.path("in/real/there")).expect("a link");
    symlink("..", bench.path("in/real/up")).expect("a link");
    let outside = bench.path("out").display().to_string();
    let leaving = [
        ("absolute", outside.as_str()),
        ("up", "../out"),
        ("real/up-twice", "../../out"),
        ("through-a-name", "real/../../out"),
        // Here `real/up` is the folder itself.
        ("through-a-link", "real/up/../out"),
        ("through-what-is-not-there-yet", "later/../x"),
        ("through-mine", "mine/victim"),
        ("to-mine", "mine"),
        ("through-a-new-one", "absolute/victim"),
        ("nothing", ""),
        ("circle", "circle"),
    ];
    let staying = [
        ("plain", "real"),
        ("real/deep/odd", "../.././/plain"),
        ("dangling", "later/on"),
        ("via", "real/there"),
    ];
    for (path, target) in leaving.iter().chain(&staying) {
        bench.link(path, target);
    }
    for local in [LocalChangePolicy::KeepLocal, LocalChangePolicy::Overwrite] {
        let plan = bench.plan(local).expect("a plan");
        let left: Vec<&str> = plan.left_out.iter().map(|left| left.path.as_str()).collect();
        assert_eq!(left, leaving.map(|(path, _)| path));
        let done = plan.apply().expect("a pull");
        assert!(done.0.iter().all(|deed| staying.iter().any(|(path, _)| deed.path == *path)), "{done:?}");
    }
    for (path, target) in staying {
        let made = fs::read_link(bench.path("in").join(path)).expect(path);
        assert_eq!(made, PathBuf::from(target), "{path}");
    }
    assert!(leaving.iter().all(|(path, _)| fs::symlink_metadata(bench.path("in").join(path)).is_err()));
}

#[test]
fn later_entries_are_not_written_through_a_link() {
    let mut bench = PullTestFixture::new();
    let target = bench.path("out").display().to_string();
    bench.link("link", &target).file("link/new", None, Some("evil"));
    let plan = bench.plan(LocalChangePolicy::Overwrite).expect("a plan");
    assert_eq!(plan.left_out.len(), 1, "{:?}", plan.left_out);
    plan.apply().expect("what is left is harmless");
    assert_eq!(bench.read("out/new"), None);
    let mut bench = PullTestFixture::new();
    bench.write("in/real/file", "mine");
    bench.link("inside", "real").file("inside/file", None, Some("evil"));
    let failure = bench.pull(LocalChangePolicy::Overwrite).expect_err("a lie");
    assert_eq!((failure.exit_code(), bench.read("in/real/file")), (1, Some("mine".into())));
}

#[test]
fn all_that_is_done_is_listed() {
    let mut bench = PullTestFixture::new();
    bench.write("in/a", "old");
    bench.write("in/b", "x");
    bench.file("a", Some("old"), Some("new")).file("b", Some("x"), None);
    bench.file(".hidden", None, Some("h")).link("link", "a");
    let done = bench.plan(LocalChangePolicy::KeepLocal).expect("a plan").apply().expect("a pull");
    let one = |path: &str, how, target: Option<&str>| Deed {
        path: path.to_owned(),
        how,
        target: target.map(str::to_owned),
    };
    let expected = [
        one("a", WorkspaceChangeKind::Modified, None),
        one("b", WorkspaceChangeKind::Deleted, None),
        one(".hidden", WorkspaceChangeKind::Added, None),
        one("link", WorkspaceChangeKind::Added, Some("a")),
    ];
    assert_eq!(done.0, expected);
    assert_eq!(done.to_string(), "1 changed, 2 added, 1 deleted");
}

#[test]
fn nothing_is_deleted_through_a_link() {
    let mut bench = PullTestFixture::new();
    bench.write("out/victim", "safe");
    symlink(bench.path("out"), bench.path("in/link")).expect("a link");
    bench.file("link/victim", Some("safe"), None);
    assert_eq!(bench.pull(LocalChangePolicy::Overwrite).expect("a pull"), Ok(done(0, 0, 0)));
    assert_eq!(bench.read("out/victim"), Some("safe".into()));
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced_and_not_written_through() {
    let mut bench = PullTestFixture::new();
    bench.write("out/victim", "safe");
    symlink(bench.path("out/victim"), bench.path("in/file")).expect("a link");
    bench.file("file", Some("old"), Some("new"));
    assert_eq!(bench.pull(LocalChangePolicy::KeepLocal).expect("a plan"), Err(vec!["file".to_owned()]));
    assert_eq!(bench.pull(LocalChangePolicy::Overwrite).expect("a pull"), Ok(done(1, 0, 0)));
    assert_eq!((bench.read("out/victim"), bench.read("in/file")), (Some("safe".into()), Some("new".into())));
}

#[test]
fn folders_and_files_change_places() {
    let mut bench = PullTestFixture::new();
    bench.write("in/folder/x", "x");
    bench.write("in/file", "f");
    bench.file("folder/x", Some("x"), None).file("folder", None, Some("now a file"));
    bench.file("file", Some("f"), None).file("file/y", None, Some("now a folder"));
    assert_eq!(bench.pull(LocalChangePolicy::KeepLocal).expect("a pull"), Ok(done(0, 2, 2)));
    assert_eq!(
        (bench.read("in/folder"), bench.read("in/file/y")),
        (Some("now a file".into()), Some("now a folder".into()))
    );
}

#[test]
fn a_folder_with_something_of_its_own_is_not_replaced_by_a_file() {
    let mut bench = PullTestFixture::new();
    bench.write("in/folder/x", "x");
    bench.write("in/folder/mine", "mine");
    bench.file("folder/x", Some("x"), None).file("folder", None, Some("now a file"));
    assert_eq!(bench.pull(LocalChangePolicy::Overwrite).expect("a plan"), Err(vec!["folder".to_owned()]));
    assert_eq!(bench.read("in/folder/x"), Some("x".into()));
}

#[test]
fn of_a_mode_only_the_executable_bit_travels() {
    let here = |mode| {
        let stat = ash_snapshot::FileStat { size: 0, mtime_ms: 0, mode };
        LocalEntry::File(tempfile::tempfile().expect("a file"), stat)
    };
    assert_eq!(here(0o600).mode_for(0o755), 0o700);
    assert_eq!(here(0o664).mode_for(0o755), 0o775);
    assert_eq!(here(0o755).mode_for(0o600), 0o644);
}
