//! Measures the longest CPU time for which a worker thread runs without parking. A thread parks only between tasks, so
//! no task has held a thread for longer than this.

use rustix::time::{ClockId, clock_gettime};
use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

thread_local! {
    static POLL_STARTED_AT: Cell<Option<Duration>> = const { Cell::new(None) };
}

static LONGEST_POLL_NANOS: AtomicU64 = AtomicU64::new(0);

/// Measures the threads of this runtime.
pub fn watch_poll_times(runtime: &mut tokio::runtime::Builder) -> &mut tokio::runtime::Builder {
    runtime.on_thread_unpark(record_unpark).on_thread_park(record_park)
}

fn record_unpark() {
    POLL_STARTED_AT.set(Some(thread_cpu_time()));
}

fn record_park() {
    if let Some(began) = POLL_STARTED_AT.take() {
        let stretch = thread_cpu_time().saturating_sub(began).as_nanos();
        LONGEST_POLL_NANOS.fetch_max(u64::try_from(stretch).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// CPU time of this thread since its start: other processes on the same cores do not affect it.
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

pub(crate) fn longest_poll() -> Duration {
    Duration::from_nanos(LONGEST_POLL_NANOS.load(Ordering::Relaxed))
}
