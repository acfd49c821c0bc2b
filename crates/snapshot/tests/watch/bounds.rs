//! Too many changes become `Everything` and are never lost; no call blocks, and nothing stays behind.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ash_snapshot::TouchedPaths;

use crate::support::{Alone, Bench, MANY, covers, folders, track, watch};

fn root(on: &Path, name: &str) -> std::path::PathBuf {
    let path = on.join(name);
    fs::create_dir(&path).expect("made");
    path
}

#[test]
fn as_root_more_names_than_are_remembered_are_everything_and_then_it_starts_anew() {
    let alone = Alone::new();
    let watch = watch(&alone.path, 40);
    let (full, other) = (root(&alone.path, "full"), root(&alone.path, "other"));
    let (tracked, calm) = (track(&watch, &full), track(&watch, &other));
    for n in 0..50 {
        fs::write(full.join(n.to_string()), "text").expect("written");
    }
    fs::write(other.join("file"), "text").expect("written");
    assert_eq!(tracked.take_changes(), TouchedPaths::Everything);
    assert_eq!(calm.take_changes(), folders(&[("", Some(&["file"]))], &[]), "only the one with too many");
    fs::write(full.join("0"), "text").expect("written");
    assert_eq!(tracked.take_changes(), folders(&[("", Some(&["0"]))], &[]));
}

#[test]
fn as_root_a_queue_that_ran_over_is_everything_for_all() {
    let alone = Alone::new();
    let watch = watch(&alone.path, MANY);
    let (noisy, calm) = (root(&alone.path, "noisy"), root(&alone.path, "calm"));
    let trackers = [track(&watch, &noisy), track(&watch, &calm)];
    // Without a reader thread, the events wait in the queue until they are taken.
    drop(watch);
    let limit = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").expect("a limit");
    for n in 0..limit.trim().parse::<u32>().expect("a number") + 1000 {
        fs::write(noisy.join(n.to_string()), "").expect("written");
    }
    assert!(trackers.iter().all(|tracked| tracked.take_changes() == TouchedPaths::Everything));
    fs::write(calm.join("file"), "text").expect("written");
    assert!(trackers[0].take_changes().is_empty());
    assert_eq!(trackers[1].take_changes(), folders(&[("", Some(&["file"]))], &[]));
}

#[test]
fn as_root_twenty_thousand_changes_in_a_burst_are_all_seen() {
    let alone = Alone::new();
    let watch = watch(&alone.path, MANY);
    let path = root(&alone.path, "root");
    for dir in 0..10 {
        fs::create_dir(path.join(dir.to_string())).expect("made");
    }
    let tracked = track(&watch, &path);
    tracked.take_changes();
    let name = |n: u32| format!("{}/{n}", n % 10);
    for n in 0..20_000 {
        fs::write(path.join(name(n)), "").expect("written");
    }
    let touched = tracked.take_changes();
    assert!((0..20_000).all(|n| covers(&touched, Path::new(&name(n)), 0)));
    assert!(tracked.take_changes().is_empty());
}

/// The central promise: no change that finished before the call is missing, while the reader reads, other callers take
/// changes, and another thread makes noise.
#[test]
fn as_root_a_take_has_every_change_that_was_finished_before_it() {
    let bench = Bench::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let noise = scope.spawn(|| {
            for n in (0..100u32).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                fs::write(bench.outside(&n.to_string()), "noise").expect("written");
                std::thread::yield_now();
            }
        });
        let writers: Vec<_> = (0..4u32)
            .map(|n| {
                scope.spawn({
                    let bench = &bench;
                    move || write_and_take(bench, n)
                })
            })
            .collect();
        let failed = writers.into_iter().any(|writer| writer.join().is_err());
        stop.store(true, Ordering::Relaxed);
        assert!(noise.join().is_ok() && !failed);
    });
}

fn write_and_take(bench: &Bench, writer: u32) {
    let (path, tracked) = bench.another_root(&format!("writer {writer}"));
    for n in 0..1500u32 {
        let dir = (n / 100).to_string();
        let name = Path::new(&dir).join((n % 7).to_string());
        fs::create_dir_all(path.join(&dir)).expect("made");
        fs::write(path.join(&name), n.to_string()).expect("written");
        let touched = tracked.take_changes();
        assert!(covers(&touched, &name, 0), "{n}: {touched:?}");
    }
}

#[test]
fn as_root_untracked_folders_are_forgotten() {
    let bench = Bench::new();
    let (path, tracked) = bench.another_root("other");
    fs::write(path.join("file"), "text").expect("written");
    drop(tracked);
    fs::write(path.join("later"), "text").expect("written");
    fs::write(bench.at("file"), "text").expect("written");
    assert_eq!(bench.take(), folders(&[("", Some(&["file"]))], &[]));
}

#[test]
fn as_root_the_reader_ends_with_the_watch_and_tracked_folders_continue() {
    let alone = Alone::new();
    let watch = watch(&alone.path, MANY);
    let path = root(&alone.path, "root");
    let tracked = track(&watch, &path);
    fs::write(path.join("before"), "text").expect("written");
    drop(watch);
    fs::write(path.join("after"), "text").expect("written");
    assert_eq!(tracked.take_changes(), folders(&[("", Some(&["after", "before"]))], &[]));
}

/// The directory of these events no longer exists, so only inodes can be reported.
#[test]
fn as_root_writes_in_a_deleted_directory_are_reported_by_inode() {
    let alone = Alone::new();
    let watch = watch(&alone.path, MANY);
    let path = root(&alone.path, "root");
    fs::create_dir(path.join("gone")).expect("made");
    fs::write(path.join("gone/one"), "text").expect("written");
    fs::hard_link(path.join("gone/one"), path.join("other")).expect("linked");
    track(&watch, &path).take_changes();
    let tracked = track(&watch, &path);
    drop(watch);
    fs::write(path.join("gone/one"), "more").expect("written");
    fs::remove_dir_all(path.join("gone")).expect("removed");
    let inode = fs::metadata(path.join("other")).expect("there").ino();
    assert_eq!(tracked.take_changes(), folders(&[("", Some(&["gone"]))], &[inode]));
}
