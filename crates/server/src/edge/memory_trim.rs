//! Memory that was needed once. The C library keeps what was freed, in case it is needed again; a server that lives for
//! months gives it back.

use std::time::Duration;

/// So often it is looked whether there is something to give back.
const TRIM_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A server that has grown by less since it was smallest is left alone.
const MIN_GROWTH_BYTES: u64 = 8 << 20;
/// If nothing came of it, the next attempt waits for twice as many rounds, up to this many.
const MAX_ROUNDS: u32 = 6;
/// Larger blocks come from the kernel one by one, and go back there when they are freed.
#[cfg(target_env = "gnu")]
const LARGE_BLOCK: i32 = 128 << 10;

/// Without a fixed threshold the library raises its own with every large block that is freed, and keeps all smaller ones
/// from then on.
pub(crate) fn set_mmap_threshold() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator, which takes its own lock for it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
    }
}

/// Gives free memory back after every burst, for ever.
pub(crate) async fn trim_memory_forever() {
    let mut rounds = tokio::time::interval(TRIM_CHECK_INTERVAL);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut smallest, mut wait, mut waited) = (u64::MAX, 1, 0);
    loop {
        rounds.tick().await;
        let before = resident();
        smallest = smallest.min(before);
        waited += 1;
        if before < smallest + MIN_GROWTH_BYTES || waited < wait {
            continue;
        }
        tokio::task::spawn_blocking(trim).await.ok();
        let helped = resident() + MIN_GROWTH_BYTES / 8 < before;
        (wait, waited) = (if helped { 1 } else { (wait * 2).min(MAX_ROUNDS) }, 0);
    }
}

fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: releases free pages of the allocator, which takes its own locks for it.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small blocks, so that they come from the library's heap, with one after them that stays.
    #[test]
    fn what_was_freed_is_given_back() {
        set_mmap_threshold();
        let blocks: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 4096]).collect();
        let (kept, full) = (vec![1u8; 100], resident());
        drop(blocks);
        trim();
        let after = resident();
        assert!(full > after + (60 << 20), "{full} bytes before, {after} after");
        drop(kept);
    }
}
