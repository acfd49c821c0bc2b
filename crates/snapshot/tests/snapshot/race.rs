//! A process in the sandbox continuously swaps files and directories for links to a secret outside, while the host
//! works.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ash_snapshot::{Folder, LinkPolicy, SnapshotEntry};

use crate::support::{Bench, open, rel, take};

const LENGTH: Duration = Duration::from_secs(2);
/// On a busy machine the naive reader may take longer to be caught.
const LONGEST: Duration = Duration::from_secs(120);
const SECRET: &str = "the secret outside";

/// `victim/file` is in turn a file, a link to the secret, and a path beneath a link to the directory outside.
fn swap(workspace: &Path, outside: &Path, stop: &AtomicBool) {
    let at = |name: &str| workspace.join(name);
    let is_link = |name: &str| std::fs::symlink_metadata(at(name)).is_ok_and(|is| is.is_symlink());
    while !stop.load(Ordering::Relaxed) {
        // The host threads remove and replace what is swapped. Restore it first, through names that are not links.
        if is_link("victim/file") || !at("victim/file").exists() {
            std::fs::write(at("fresh"), "harmless").expect("written");
            std::fs::rename(at("fresh"), at("victim/file")).expect("put back");
        }
        if !is_link("link") {
            symlink(outside.join("file"), at("new link")).expect("linked");
            std::fs::rename(at("new link"), at("link")).expect("put back");
        }
        for (a, b) in [("victim", "linked dir"), ("victim/file", "link")] {
            for _ in 0..2 {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                // A host thread may just have removed one of them.
                let _ = rustix::fs::renameat_with(rustix::fs::CWD, at(a), rustix::fs::CWD, at(b), flags);
            }
        }
    }
}

#[test]
fn nothing_outside_is_read_or_written_while_links_are_swapped_in() {
    let bench = Bench::new();
    let outside = bench.empty("outside");
    std::fs::write(outside.join("file"), SECRET).expect("written");
    bench.write("victim/file", "harmless");
    symlink(&outside, bench.at("linked dir")).expect("linked");
    symlink(outside.join("file"), bench.at("link")).expect("linked");

    let (stop, naive_leaks) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let running = || {
        let shown = naive_leaks.load(Ordering::Relaxed) > 0;
        begun.elapsed() < if shown { LENGTH } else { LONGEST }
    };
    let path = rel("victim/file");
    std::thread::scope(|scope| {
        scope.spawn(|| swap(&bench.workspace(), &outside, &stop));
        let ours = [
            scope.spawn(|| {
                let folder = open(&bench.workspace());
                while running() {
                    for links in [LinkPolicy::Refuse, LinkPolicy::Inside] {
                        check_read(&folder, &path, links);
                    }
                    if naive_read(&bench.workspace()).is_some_and(|text| text == SECRET) {
                        naive_leaks.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }),
            scope.spawn(|| {
                let folder = open(&bench.workspace());
                while running() {
                    let _ = folder.write_file(&path, &mut &b"harmless"[..], None, 0o644);
                    let _ = folder.write_file(&rel("victim/new/file"), &mut &b"harmless"[..], None, 0o644);
                    let _ = folder.symlink(&rel("victim/link"), b"file", None);
                    let _ = folder.remove_file(&path);
                    for file in folder.walk(&|_, _| false, 1000).expect("walked") {
                        assert_ne!(file.size, SECRET.len() as u64, "{:?}", file.path);
                    }
                    check_capture(&bench);
                }
            }),
        ];
        let failed = ours.into_iter().any(|thread| thread.join().is_err());
        stop.store(true, Ordering::Relaxed);
        assert!(!failed);
    });
    let left: Vec<_> = std::fs::read_dir(&outside).expect("listed").collect();
    assert_eq!(left.len(), 1, "nothing was made outside");
    assert_eq!(std::fs::read_to_string(outside.join("file")).expect("still there"), SECRET);
    assert!(naive_leaks.into_inner() > 0, "the race is real: checking first and reading then does leak");
}

/// The naive approach without handles: resolve, check that the path is inside, read. It waits long enough to be
/// caught.
fn naive_read(workspace: &Path) -> Option<String> {
    let path = workspace.join("victim/file");
    let inside = path.canonicalize().ok()?.starts_with(workspace.canonicalize().ok()?);
    let is_link = |name: &str| workspace.join(name).symlink_metadata().is_ok_and(|is| is.is_symlink());
    for _ in 0..2000 {
        if is_link("victim") || is_link("victim/file") {
            break;
        }
        std::thread::yield_now();
    }
    inside.then(|| std::fs::read_to_string(&path).ok()).flatten()
}

fn check_read(folder: &Folder, path: &ash_snapshot::RelPath, links: LinkPolicy) {
    if let Ok((mut file, _)) = folder.open_file(path, links) {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "harmless");
    }
}

fn check_capture(bench: &Bench) {
    let tree = take(&bench.repo, &bench.workspace()).tree;
    for file in bench.repo.list(&tree, "workspace").expect("listed") {
        let path = ash_snapshot::RelPath::from_bytes(&file.path).expect("a path");
        let entry = bench.repo.read(&tree, "workspace", &path).expect("read");
        let Some(SnapshotEntry::File { mut content, .. }) = entry else { panic!("{path} is a file") };
        let mut text = String::new();
        content.read_to_string(&mut text).expect("text");
        assert!(matches!(text.as_str(), "harmless" | ""), "{path}: {text}");
    }
}
