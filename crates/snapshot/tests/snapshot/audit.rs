//! Checking a folder against a snapshot gives the same result whether it reads everything or only what looks changed.

use std::os::unix::fs::symlink;
use std::path::Path;

use ash_snapshot::{CaptureRoot, Folder, FolderCheck, FolderCheckMethod, MismatchPolicy, Repo, TreeId};

use crate::support::{Bench, Line, chmod, let_the_clock_tick, open, set_mtime};

/// The differences found, each with its kind.
fn found(repo: &Repo, line: &Line, doubt: MismatchPolicy) -> (FolderCheckMethod, Vec<String>) {
    let folder = open(&line.folder);
    let roots = [CaptureRoot { name: "workspace", folder: &folder }];
    let tree = line.base.as_ref().expect("captured");
    let exclude = |_: &[u8], path: &[u8]| path.starts_with(b"left out");
    let mut told = Vec::new();
    let audit = FolderCheck { tree, roots: &roots, index: &line.index, exclude: &exclude, doubt };
    let by = repo
        .check_folders(&audit, &mut |root, difference| {
            assert_eq!(root, "workspace");
            told.push(format!("{:?} {}", difference.what, String::from_utf8_lossy(&difference.path)));
        })
        .expect("compared");
    told.sort();
    (by, told)
}

fn furnished() -> (Bench, Line) {
    let bench = Bench::new();
    for path in ["a/one", "a/two", "b/deep/er/three", "gone", "mode", "swapped", "c/inside"] {
        bench.write(path, &format!("what is in {path}"));
    }
    symlink("a/one", bench.at("link")).expect("linked");
    let mut line = bench.line();
    let_the_clock_tick();
    line.take(&bench.repo);
    (bench, line)
}

/// Changes the folder in every way that counts as a difference.
fn change(bench: &Bench) {
    let kept = std::fs::metadata(bench.at("swapped")).expect("there").modified().expect("a time");
    let kept = kept.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    bench.write("swapped", "WHAT IS IN swapped");
    set_mtime(&bench.at("swapped"), kept.as_secs() as i64, i64::from(kept.subsec_nanos()));
    bench.write("a/two", "longer than it was before");
    bench.write("a/new", "new");
    bench.write("left out too", "new");
    std::fs::remove_file(bench.at("gone")).expect("removed");
    chmod(&bench.at("mode"), 0o600);
    std::fs::remove_file(bench.at("link")).expect("removed");
    symlink("a/two", bench.at("link")).expect("linked");
    std::fs::rename(bench.at("c"), bench.dir.path().join("elsewhere")).expect("moved");
    symlink(bench.dir.path().join("elsewhere"), bench.at("c")).expect("linked");
    // A changed time alone is no difference.
    set_mtime(&bench.at("b/deep/er/three"), 1_000_000_000, 0);
    drop(std::os::unix::net::UnixListener::bind(bench.at("socket")).expect("bound"));
}

const CHANGED: [&str; 7] =
    ["Content swapped", "Extra a/new", "Kind c", "Missing gone", "Mode mode", "Size a/two", "Target link"];

#[test]
fn unchanged_files_are_recognized_without_reading_them() {
    let (bench, line) = furnished();
    assert_eq!(found(&bench.repo, &line, MismatchPolicy::Read), (FolderCheckMethod::Metadata, vec![]));
    assert_eq!(found(&bench.repo, &line, MismatchPolicy::Believe), (FolderCheckMethod::Metadata, vec![]));
    // Also in a process without a cached index.
    assert_eq!(found(&bench.reopened(), &line, MismatchPolicy::Read), (FolderCheckMethod::Metadata, vec![]));
}

#[test]
fn every_change_is_found_by_a_look_and_by_reading_everything() {
    let (bench, line) = furnished();
    change(&bench);
    let changed = CHANGED.map(str::to_owned).to_vec();
    assert_eq!(
        found(&bench.repo, &line, MismatchPolicy::Read),
        (FolderCheckMethod::Metadata, changed.clone())
    );
    std::fs::remove_file(&line.index).expect("removed");
    assert_eq!(found(&bench.reopened(), &line, MismatchPolicy::Read), (FolderCheckMethod::Content, changed));
}

#[test]
fn without_an_index_of_the_same_files_everything_is_read() {
    let (bench, mut line) = furnished();
    let older = line.clone();
    bench.write("a/new", "new");
    line.take(&bench.repo);
    assert_eq!(
        found(&bench.repo, &older, MismatchPolicy::Read),
        (FolderCheckMethod::Content, vec!["Extra a/new".to_owned()]),
        "the index is of a later capture"
    );
    std::fs::write(&line.index, "torn").expect("written");
    assert_eq!(found(&bench.repo, &line, MismatchPolicy::Read), (FolderCheckMethod::Content, vec![]));
}

/// After a copy to another disk, every inode number differs.
#[test]
fn a_copy_is_the_same_as_long_as_it_holds_the_same() {
    let (bench, line) = furnished();
    let copy = bench.dir.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(&line.folder).arg(&copy).status();
    assert!(copied.expect("cp").success());
    let moved = Line { folder: copy.clone(), ..line };
    assert_eq!(found(&bench.repo, &moved, MismatchPolicy::Read), (FolderCheckMethod::Metadata, vec![]));
    std::fs::write(copy.join("a/one"), "what is in a/0ne").expect("written");
    assert_eq!(
        found(&bench.repo, &moved, MismatchPolicy::Read),
        (FolderCheckMethod::Metadata, vec!["Content a/one".to_owned()])
    );
}

#[test]
fn a_link_on_the_way_to_a_folder_of_ours_is_not_followed() {
    let bench = Bench::new();
    let above = bench.dir.path();
    std::fs::create_dir_all(above.join("id/tree/workspace")).expect("made");
    let names = ["id", "tree", "workspace"].map(std::ffi::OsStr::new);
    assert!(Folder::open_inside(above, &names).is_ok());
    chmod(&above.join("id/tree/workspace"), 0o000);
    assert!(Folder::open_inside(above, &names).is_ok(), "what its inhabitant took is taken back");
    for replaced in ["id/tree/workspace", "id/tree", "id"] {
        let (at, real) = (above.join(replaced), above.join("real"));
        std::fs::rename(&at, &real).expect("moved");
        symlink(&real, &at).expect("linked");
        assert!(Folder::open_inside(above, &names).is_err(), "{replaced}");
        std::fs::remove_file(&at).expect("removed");
        std::fs::rename(&real, &at).expect("moved back");
    }
    assert!(Folder::open_inside(above, &names).is_ok());
    assert!(Path::new(above).exists());
}

/// Checks that both methods agree; the property tests of captures call this after captures and after edits.
pub(crate) fn agrees(repo: &Repo, line: &Line, tree: &TreeId) {
    let (_, told) = found(repo, line, MismatchPolicy::Read);
    let read = repo.compare(tree, "workspace", &open(&line.folder)).expect("compared");
    let counts = |what: &ash_snapshot::DifferenceKind| {
        !matches!(what, ash_snapshot::DifferenceKind::Mtime | ash_snapshot::DifferenceKind::HardLink)
    };
    let differs = read.iter().any(|difference| counts(&difference.what));
    assert_eq!(told.is_empty(), !differs, "{told:?} and {read:?}");
}
