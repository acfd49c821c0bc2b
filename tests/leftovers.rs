//! Run last: nothing of ours may be left on the machine.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Shims notice within seconds that their directory is gone; nothing else may take longer.
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn no_process_mount_cgroup_or_directory_is_left() {
    let until = Instant::now() + DEADLINE;
    loop {
        let left: Vec<String> = [processes(), mounts(), cgroups(), directories()].concat();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left behind:\n{}", left.join("\n"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn processes() -> Vec<String> {
    let names = ["serve", "shim", "confine", "builtin-agent"];
    let found = fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
        let bytes = fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<String> =
            bytes.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let program = Path::new(words.first()?).file_name()?.to_str()?;
        let ours = program == "ash" && words.get(1).is_some_and(|word| names.contains(&word.as_str()));
        let walls = program == "bwrap" && words.iter().any(|word| word.contains("/.ash/"));
        (ours || walls)
            .then(|| format!("process {}: {}", entry.file_name().to_string_lossy(), words.join(" ")))
    });
    found.collect()
}

fn mounts() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.lines().filter(|line| line.contains("ash-test-")).map(|line| format!("mount {line}")).collect()
}

fn cgroups() -> Vec<String> {
    let own = fs::read_to_string("/proc/self/cgroup").expect("our groups");
    let own = own.lines().filter_map(|line| {
        let mut words = line.splitn(3, ':').skip(1);
        Some(format!("/sys/fs/cgroup/{}{}/ash", words.next()?, words.next()?))
    });
    let plain =
        ["", "memory/", "pids/", "freezer/"].map(|controller| format!("/sys/fs/cgroup/{controller}ash"));
    let roots: Vec<String> = own.chain(plain).collect();
    let entries = roots.iter().filter_map(|root| fs::read_dir(root).ok()).flatten().flatten();
    entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| format!("cgroup {}", entry.path().display()))
        .collect()
}

fn directories() -> Vec<String> {
    let entries = fs::read_dir(std::env::temp_dir()).expect("a temporary directory").flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("ash-test-"));
    ours.map(|entry| format!("directory {}", entry.path().display())).collect()
}
