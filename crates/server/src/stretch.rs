//! How long a thread for requests works without a rest, in CPU time. A rest comes between tasks only, so no task has
//! ever held a thread for longer than the longest stretch.

use rustix::time::{ClockId, clock_gettime};
use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

thread_local! {
    static BEGAN: Cell<Option<Duration>> = const { Cell::new(None) };
}

static LONGEST: AtomicU64 = AtomicU64::new(0);

/// Has the threads of this runtime watched.
pub fn watch_stretches(runtime: &mut tokio::runtime::Builder) -> &mut tokio::runtime::Builder {
    runtime.on_thread_unpark(begin).on_thread_park(end)
}

fn begin() {
    BEGAN.set(Some(spent()));
}

fn end() {
    if let Some(began) = BEGAN.take() {
        let stretch = spent().saturating_sub(began).as_nanos();
        LONGEST.fetch_max(u64::try_from(stretch).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// By this thread since it began: what others do with the cores is not its fault.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

pub(crate) fn longest() -> Duration {
    Duration::from_nanos(LONGEST.load(Ordering::Relaxed))
}
