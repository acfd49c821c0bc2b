//! Memory of processes, seen from outside. The rough sum is cheap and counts shared memory once for each process. The
//! exact sum is expensive.

use std::fs;

use crate::process::{self, ThreadResource};

/// In bytes. Mapped programs and files do not count, since the kernel can read them again. Page tables count, since a
/// process can have many of them without any other memory.
pub(crate) fn resident_bytes(pid: i32) -> Option<u64> {
    sum(&status(pid)?, &["RssAnon:", "RssShmem:", "VmPTE:"])
}

/// Memory that several processes share is divided among them, so that the sum counts it once. If processes share a
/// whole address space, as after vfork, only the first of them is counted.
pub(crate) fn proportional_bytes(pids: &[i32]) -> Vec<(i32, u64)> {
    let mut counted: Vec<(i32, i32, u64)> = Vec::new();
    for pid in pids {
        let Some(thread) = process::live_thread(*pid) else { continue };
        if counted
            .iter()
            .any(|(_, other, _)| process::shares_resource(ThreadResource::Memory, *other, thread))
        {
            continue;
        }
        if let Some(bytes) = proportionally(thread).or_else(|| resident_bytes(*pid)) {
            counted.push((*pid, thread, bytes));
        }
    }
    counted.into_iter().map(|(pid, _, bytes)| (pid, bytes)).collect()
}

fn proportionally(thread: i32) -> Option<u64> {
    let shares = fs::read_to_string(format!("/proc/{thread}/smaps_rollup")).ok()?;
    Some(sum(&shares, &["Pss_Anon:", "Pss_Shmem:"])? + sum(&status(thread)?, &["VmPTE:"])?)
}

/// The status of a thread that has memory: a first thread that has ended shows none, although the others may hold some.
fn status(pid: i32) -> Option<String> {
    let of = |thread: i32| fs::read_to_string(format!("/proc/{thread}/status")).ok();
    let has_memory = |status: &String| status.contains("\nRssAnon:");
    of(pid).filter(has_memory).or_else(|| of(process::live_thread(pid)?).filter(has_memory))
}

/// None if one of the values is missing.
fn sum(text: &str, names: &[&str]) -> Option<u64> {
    let value = |name: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kb| kb * 1024)
    };
    names.iter().map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_counters_are_summed_or_rejected() {
        let said = "Rss:  9 kB\nPss_Anon:         3 kB\nPss_Shmem:\t4 kB\n";
        assert_eq!(sum(said, &["Pss_Anon:", "Pss_Shmem:"]), Some(7 << 10));
        assert_eq!(sum(said, &["Pss_Anon:", "VmPTE:"]), None);
    }

    #[test]
    fn memory_is_counted_once_however_often_it_is_queried() {
        let me = std::process::id() as i32;
        let once = proportional_bytes(&[me]);
        assert!(matches!(once[..], [(pid, bytes)] if pid == me && bytes > 0), "{once:?}");
        assert_eq!(proportional_bytes(&[me, me]).len(), 1);
    }
}
