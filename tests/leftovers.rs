//! Runs last: the tests must leave nothing on the machine. What existed before they began, such as a developer's own
//! server, or belongs to another user, does not count.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

/// Shims notice within seconds that their directory is gone; nothing else may take longer.
const DEADLINE: Duration = Duration::from_secs(60);

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

/// Seconds after boot at which the tests began, which `./test` sets; without it, everything counts as later.
fn began() -> f64 {
    std::env::var("ASH_TESTS_BEGAN").ok().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").expect("uptime");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("seconds")
}

/// A process's start in clock ticks, of which Linux shows a hundred a second, is the 20th word after its name.
fn is_new_process(pid: &Path) -> bool {
    let stat = fs::read_to_string(pid.join("stat")).unwrap_or_default();
    let start = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)?.parse::<f64>().ok());
    // Not the owner of its directory, which is root's if it may not be traced.
    let status = fs::read_to_string(pid.join("status")).unwrap_or_default();
    let uid =
        status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
    start.is_some_and(|ticks| ticks / 100.0 >= began()) && uid.is_some_and(is_ours)
}

fn is_new(path: &Path) -> bool {
    let changed = fs::metadata(path).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let age = SystemTime::now().duration_since(changed).unwrap_or_default();
    uptime() - age.as_secs_f64() >= began() && fs::metadata(path).is_ok_and(|found| is_ours(found.uid()))
}

/// Tests of root start sandboxes as other users; tests of any other user only as that user.
fn is_ours(uid: u32) -> bool {
    let own = fs::metadata("/proc/self").map(|own| own.uid()).expect("/proc");
    own == 0 || uid == own
}

fn processes() -> Vec<String> {
    let names = ["serve", "shim", "confine", "builtin-agent", "dev"];
    let found = fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
        let bytes = fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<String> =
            bytes.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let program = Path::new(words.first()?).file_name()?.to_str()?;
        let ours = program == "ash" && words.get(1).is_some_and(|word| names.contains(&word.as_str()));
        let walls = program == "bwrap" && words.iter().any(|word| word.contains("/.ash/"));
        let agent = program == "claude" && words[0].contains("/ash-test/");
        let server = words.iter().any(|word| word.contains("moto.server") || word.contains("/azurite/dist/"));
        let engine = words.iter().any(|word| word.contains("/ash-test-engine."));
        ((ours || walls || agent || server || engine) && is_new_process(&entry.path()))
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
        .map(|entry| entry.path())
        .chain(engines())
        .filter(|path| path.is_dir() && is_new(path))
        .map(|path| format!("cgroup {}", path.display()))
        .collect()
}

/// The control groups of containers, in one hierarchy or in several.
fn engines() -> Vec<std::path::PathBuf> {
    let list = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let top = Path::new("/sys/fs/cgroup");
    let all = list(top).chain(list(top).flat_map(|dir| list(&dir).collect::<Vec<_>>()));
    all.filter(|path| path.to_string_lossy().contains("/ash-test-engine-")).collect()
}

fn directories() -> Vec<String> {
    let entries = fs::read_dir(std::env::temp_dir()).expect("a temporary directory").flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("ash-test-"));
    ours.filter(|entry| is_new(&entry.path()))
        .map(|entry| format!("directory {}", entry.path().display()))
        .collect()
}
