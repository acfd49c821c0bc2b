//! How much memory is available: on the machine, and in the server's control group, which may have a lower limit.

use std::{fs, path::Path};

/// In bytes; `None`: it cannot be determined.
pub(super) fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups.lines().filter_map(of_group).chain(machine).min()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// What the control group's limit leaves. Inactive page cache does not count as used.
fn of_group(line: &str) -> Option<u64> {
    let mut words = line.splitn(3, ':').skip(1);
    let (controllers, path) = (words.next()?, words.next()?.trim_start_matches('/'));
    let (root, most, now, cache) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
        "memory" => (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file ",
        ),
        _ => return None,
    };
    let dir = Path::new(root).join(path);
    let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    let stat = fs::read_to_string(dir.join("memory.stat")).ok()?;
    let cache = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok());
    Some(number(most)?.saturating_sub(number(now)?.saturating_sub(cache.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_is_left() {
        let text = "MemTotal:       24668832 kB\nMemFree: 1 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(of_machine(text), Some(22_000_000 << 10));
        assert_eq!(of_machine("MemTotal: 1 kB\n"), None);
        assert!(available().is_some_and(|bytes| bytes > 1 << 20), "this machine says it, too");
    }
}
