//! What it costs that packs are far: `cargo run --release -p ash-snapshot --example far -- DIR`. A directory stands for
//! the store, so what is seen is our own part of it.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ash_snapshot::{Capture, Far, Fetched, Folder, Part, Repo, Root, Target, TreeId};

const FILES: u64 = 41_000;
const ROUNDS: usize = 5;

/// How often something was asked for: what is asked for at once takes as long as one of it.
static TRIPS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Store(std::path::PathBuf);

impl Far for Store {
    fn sizes(&self, packs: &[String]) -> io::Result<Vec<Option<u64>>> {
        TRIPS.fetch_add(1, Ordering::Relaxed);
        Ok(packs
            .iter()
            .map(|pack| fs::metadata(self.0.join(format!("{pack}.pack"))).ok().map(|is| is.len()))
            .collect())
    }

    fn read(&self, parts: &[Part], each: &mut dyn FnMut(usize, Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        TRIPS.fetch_add(1, Ordering::Relaxed);
        parts.iter().enumerate().try_for_each(|(number, Part { pack, range })| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            fs::File::open(self.0.join(format!("{pack}.pack")))?.read_exact_at(&mut bytes, range.start)?;
            each(number, bytes)
        })
    }
}

fn main() {
    let on = std::env::args().nth(1).unwrap_or_else(|| "/tmp".to_owned());
    let dir = Path::new(&on).join(format!("ash-far-{}", std::process::id()));
    let project = dir.join("project");
    make(&project);
    let repo = Repo::open(&dir.join("repo")).expect("opened");
    let folder = Folder::open(&project).expect("opened");
    let roots = [Root { name: "workspace", folder: &folder }];
    let taken = repo.take(&Capture::of(&roots)).expect("taken");
    println!("{} files, {} bytes, a pack of {}", taken.files, taken.bytes, taken.written);
    drop(repo);
    let away = dir.join("away");
    let mut rounds: Vec<[(Duration, u64); 3]> = Vec::new();
    for _ in 0..ROUNDS {
        let here = measured(|| Repo::open(&dir.join("repo")).expect("opened"), &taken.tree, &dir);
        let open = || {
            let far = Arc::new(Store(dir.join("repo")));
            Repo::open(&away).expect("opened").with_far(far, u64::MAX).expect("opened")
        };
        TRIPS.store(0, Ordering::Relaxed);
        let begun = Instant::now();
        let fetched = open().fetch(&taken.tree, &["workspace"], &mut |_: Fetched| {}).expect("fetched");
        let (took, trips) = (begun.elapsed(), TRIPS.load(Ordering::Relaxed));
        println!("fetched alone {took:?}, {} reads in {trips} trips", fetched.reads);
        fs::remove_dir_all(&away).expect("removed");
        let cold = measured(open, &taken.tree, &dir);
        let warm = measured(open, &taken.tree, &dir);
        fs::remove_dir_all(&away).expect("removed");
        rounds.push([here, cold, warm]);
    }
    let median = |which: usize| {
        let mut column: Vec<(Duration, u64)> = rounds.iter().map(|round| round[which]).collect();
        column.sort_unstable();
        column[ROUNDS / 2]
    };
    let (here, cold, warm) = (median(0), median(1), median(2));
    let ratio = |of: Duration| of.as_secs_f64() / here.0.as_secs_f64();
    println!("here {:?}, peak {} MiB", here.0, here.1 >> 20);
    println!("far {:?}, {:.2} times that, peak {} MiB", cold.0, ratio(cold.0), cold.1 >> 20);
    println!("far and kept {:?}, {:.2} times that, peak {} MiB", warm.0, ratio(warm.0), warm.1 >> 20);
    fs::remove_dir_all(&dir).expect("removed");
}

/// As a project with its packages: many small files that look like text.
fn make(project: &Path) {
    for number in 0..FILES {
        let folder = project.join(format!("packages/{}/{}", number % 410, number % 7));
        fs::create_dir_all(&folder).expect("made");
        let line = |n: u64| {
            let value = (number << 8 | n)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
                .wrapping_mul(0xbf58_476d);
            format!("export const value{n} = 0x{value:016x};\n")
        };
        let text: String = (0..1 + number % 90).map(line).collect();
        fs::write(folder.join(format!("file{number}.js")), text).expect("written");
    }
}

/// How long a restore takes, and how much memory at most.
fn measured(open: impl Fn() -> Repo, tree: &TreeId, dir: &Path) -> (Duration, u64) {
    let to = dir.join("restored");
    fs::create_dir(&to).expect("made");
    let folder = Folder::open(&to).expect("opened");
    let targets = [Target { root: "workspace", folder: &folder, owner: None }];
    // From here on the peak is counted anew.
    fs::write("/proc/self/clear_refs", "5").expect("written");
    let begun = Instant::now();
    open().restore(tree, &targets, None).expect("restored");
    let took = begun.elapsed();
    let status = fs::read_to_string("/proc/self/status").expect("read");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("told");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    fs::remove_dir_all(&to).expect("removed");
    (took, peak << 10)
}
