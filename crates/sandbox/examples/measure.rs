//! How long a sandbox takes to its first line, and what it weighs: `measure N`, as root or as a user.
//! It is its own shim and init, so what it weighs is what a program of this size weighs.

use std::{collections::BTreeMap, fs, os::unix::fs::chown, path::Path, time::Duration, time::Instant};

use ash_model::{Epoch, Incarnation};
use ash_sandbox::{Backend, Bubblewrap, Limits, Spec, Start, What, reap};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let first = args.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    match first.as_str() {
        "shim" => std::process::exit(ash_sandbox::shim_main()),
        "confine" => std::process::exit(ash_sandbox::confine_main(args.collect())),
        number => measure(number.parse().unwrap_or(30)),
    }
}

#[tokio::main]
async fn measure(n: usize) {
    let walls = Bubblewrap::probe(std::env::current_exe().expect("we run")).await.expect("walls");
    let (mut times, mut running) = (Vec::new(), Vec::new());
    let mut weights = BTreeMap::<String, Vec<u64>>::new();
    for _ in 0..n {
        let base = tempfile::tempdir().expect("a directory");
        let spec = spec(base.path());
        let begin = Instant::now();
        let (remote, mut records) = walls.launch(&spec).await.expect("launched").split();
        remote.start(agent()).await.expect("sent");
        while let Some(record) = records.next().await {
            if let What::Line(_) = record.what {
                break;
            }
        }
        times.push(begin.elapsed());
        running.push((base, spec, remote, records));
    }
    // All at once: memory that sandboxes share counts once.
    for (_, spec, ..) in &running {
        for (name, weight) in weigh(&spec.run_dir) {
            weights.entry(name).or_default().push(weight);
        }
    }
    for (_base, spec, remote, mut records) in running {
        remote.end().await.expect("sent");
        while records.next().await.is_some() {}
        reap(&spec.run_dir).expect("reaped");
    }
    times.sort();
    println!(
        "create to first line, n={n}: min {:?} median {:?} p95 {:?}",
        times[0],
        times[n / 2],
        times[n * 95 / 100]
    );
    for (name, mut values) in weights {
        values.sort();
        println!("PSS {name}: median {} kB", values[values.len() / 2]);
    }
}

fn spec(base: &Path) -> Spec {
    let uid = rustix::process::geteuid().is_root().then_some(60_001);
    let [run_dir, workspace, home] = ["run", "workspace", "home"].map(|name| base.join(name));
    for dir in [&run_dir, &workspace, &home] {
        fs::create_dir(dir).expect("created");
        chown(dir, uid, uid).expect("chown");
    }
    let (incarnation, limits) = (Incarnation::fresh(), Limits::default());
    let orphan_ttl = Duration::from_secs(10);
    Spec { incarnation, epoch: Epoch(1), run_dir, workspace, home, uid, limits, readonly: vec![], orphan_ttl }
}

fn agent() -> Start {
    let argv = vec!["/bin/sh".into(), "-c".into(), "echo ready; read x".into()];
    Start { process: 1, argv, env: BTreeMap::new(), cwd: "/workspace".into(), raw: false, stdin: true }
}

fn weigh(run_dir: &Path) -> Vec<(String, u64)> {
    let notes: serde_json::Value =
        serde_json::from_slice(&fs::read(run_dir.join("init")).expect("notes")).expect("json");
    let pid = |who: &str| notes[who]["pid"].as_u64().expect("a number");
    let bwrap = fs::read_to_string(format!("/proc/{}/stat", pid("init")))
        .ok()
        .and_then(|stat| stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok());
    [("shim", Some(pid("shim"))), ("bwrap", bwrap), ("init", Some(pid("init")))]
        .into_iter()
        .filter_map(|(name, pid)| Some((name.to_owned(), pss(pid?)?)))
        .collect()
}

/// Not dumpable, so only root may look.
fn pss(pid: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
}
