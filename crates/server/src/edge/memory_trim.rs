//! Returns unused memory to the kernel. The C library keeps freed memory for later use, which a server that runs for
//! months does not need.

use std::time::Duration;

/// Interval between checks for memory to return.
const TRIM_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A server that has grown by less since its minimum is not trimmed.
const MIN_GROWTH_BYTES: u64 = 8 << 20;
/// After a trim without effect the number of rounds to wait doubles, up to this many.
const MAX_ROUNDS: u32 = 6;
/// The allocator maps larger blocks one by one, and returns each to the kernel when it is freed.
#[cfg(target_env = "gnu")]
const LARGE_BLOCK: i32 = 128 << 10;

/// Without a fixed threshold the allocator raises its own whenever a large block is freed, and then keeps all smaller
/// blocks.
pub(crate) fn set_mmap_threshold() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator, which takes its own lock for it.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
    }
}

/// Returns free memory after every burst, for ever.
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

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small blocks come from the allocator's heap. A block after them stays, so that the heap cannot simply shrink.
    #[test]
    fn freed_memory_is_returned() {
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
