//! What following a file system costs: `cargo run --release -p ash-snapshot --example watch -- DIR`, as root.
//! The figures in `src/watch.rs` come from here.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use ash_snapshot::{FilesystemWatch, Folder, TouchedPaths, TrackedFolder};

const FILES: u32 = 20_000;
const DIRS: u32 = 200;

fn main() {
    let on = std::env::args().nth(1).unwrap_or_else(|| "/tmp".to_owned());
    let dir = Path::new(&on).join(format!("ash-watch-{}", std::process::id()));
    let (root, outside) = (dir.join("root"), dir.join("outside"));
    for place in [&root, &outside] {
        (0..DIRS).for_each(|n| fs::create_dir_all(place.join(n.to_string())).expect("made"));
        append(place);
    }
    for _ in 0..3 {
        println!("without a watcher: writer {:?}", append(&outside));
        let watch = FilesystemWatch::start(&dir).expect("started");
        let tracked = watch.track(&Folder::open(&root).expect("opened")).expect("tracked");
        for (what, place) in [("beside the root", &outside), ("beneath the root", &root)] {
            let before = cpu_of("ash-watch");
            let writer = append(place);
            let reader = cpu_of("ash-watch") - before;
            let begun = Instant::now();
            let touched = tracked.take_changes();
            let take = begun.elapsed();
            println!("{what}: writer {writer:?}, reader {reader:?}; take {take:?} of {}", size(&touched));
        }
    }
    let watch = FilesystemWatch::start(&dir).expect("started");
    let tracked = watch.track(&Folder::open(&root).expect("opened")).expect("tracked");
    turn(&root, &tracked);
    fs::remove_dir_all(&dir).expect("removed");
}

/// A write and a close for each file: two events, one if the first still waits when the second comes.
fn append(place: &Path) -> Duration {
    let before = cpu_of("watch");
    for n in 0..FILES {
        let path = place.join((n % DIRS).to_string()).join(n.to_string());
        let mut file = fs::File::options().append(true).create(true).open(path).expect("opened");
        file.write_all(b"text").expect("written");
    }
    cpu_of("watch") - before
}

/// As little as a turn of an agent changes.
fn turn(root: &Path, tracked: &TrackedFolder) {
    let mut takes: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        for n in 0..12 {
            fs::write(root.join(n.to_string()).join("turn"), "text").expect("written");
        }
        let begun = Instant::now();
        tracked.take_changes();
        takes.push(begun.elapsed());
    }
    takes.sort_unstable();
    println!("take of 12 files in 12 folders: median {:?}, worst {:?}", takes[100], takes[199]);
}

fn size(touched: &TouchedPaths) -> String {
    match touched {
        TouchedPaths::Everything => "everything".to_owned(),
        TouchedPaths::Folders { folders, .. } => format!("{} folders", folders.len()),
    }
}

/// The processor time of our threads of this name: walls say little on a shared machine.
fn cpu_of(thread: &str) -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("listed").flatten();
    let nanos = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        (name.trim() == thread).then(|| times.split(' ').next()?.parse::<u64>().ok())?
    });
    Duration::from_nanos(nanos.sum())
}
