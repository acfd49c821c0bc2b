//! Fail points: named instants at which a test ends or holds this process, so that no test has to guess when an
//! instant comes. A debug build obeys them; in a release build both functions are empty.
//!
//! Code marks an instant: [`reach`] where a thread may block, [`reach_async`] in a future.
//!
//! ```
//! ash_failpoint::reach("rewind.recorded");
//! ```
//!
//! A test names a directory in `ASH_FAIL_POINTS` when it starts the process, and arms a point at any time with a file
//! of the point's name in there. The file holds one word:
//!
//! - `abort`: the process ends right there, as by `kill -9`.
//! - `pause`: the process creates `NAME.reached`, which tells the test that it is there, and waits until the test
//!   removes the file `NAME`. It removes `NAME.reached` when it goes on.
//!
//! A second word is a number: `abort 3` ends the process at the third pass since the point was armed.
//!
//! `Server::arm`, `Server::reached` and `Server::release` in `tests/e2e/support/points.rs` do this for a server.

#![forbid(unsafe_code)]

/// The variable that names the directory.
pub const VARIABLE: &str = "ASH_FAIL_POINTS";

/// Marks an instant where the calling thread may block.
#[inline]
pub fn reach(name: &str) {
    #[cfg(debug_assertions)]
    armed::reach(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// Marks an instant in a future: other tasks of the runtime go on while a test holds this one.
#[inline]
pub async fn reach_async(name: &str) {
    #[cfg(debug_assertions)]
    armed::reach_async(name).await;
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod armed {
    use std::{
        collections::HashMap,
        path::PathBuf,
        sync::{LazyLock, Mutex, PoisonError},
        task::Poll,
        time::Duration,
    };

    /// How often a held point checks whether it may continue.
    const INTERVAL: Duration = Duration::from_millis(2);

    static DIRECTORY: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os(super::VARIABLE).map(PathBuf::from));
    static PASSES: LazyLock<Mutex<HashMap<String, u64>>> = LazyLock::new(Mutex::default);

    pub(super) fn reach(name: &str) {
        let Some(held) = PausedFailPoint::at(name) else { return };
        while held.is_held() {
            std::thread::sleep(INTERVAL);
        }
        held.leave();
    }

    pub(super) async fn reach_async(name: &str) {
        let Some(held) = PausedFailPoint::at(name) else { return };
        std::future::poll_fn(|context| {
            if !held.is_held() {
                return Poll::Ready(());
            }
            // A thread instead of a timer: this crate works with every runtime, and with a clock that a test has
            // stopped.
            let waker = context.waker().clone();
            std::thread::spawn(move || {
                std::thread::sleep(INTERVAL);
                waker.wake();
            });
            Poll::Pending
        })
        .await;
        held.leave();
    }

    /// A point at which a test holds the process.
    struct PausedFailPoint {
        armed: PathBuf,
        reached: PathBuf,
    }

    impl PausedFailPoint {
        /// `None` if the process may continue. Does not return if it must end here.
        fn at(name: &str) -> Option<PausedFailPoint> {
            let directory = DIRECTORY.as_ref()?;
            let armed = directory.join(name);
            let order = std::fs::read_to_string(&armed).ok();
            let pass = count(name, order.is_some());
            let order = order?;
            let mut words = order.split_whitespace();
            // The file is empty while a test writes it.
            let action = words.next()?;
            let wanted = words.next().map(|number| {
                number.parse::<u64>().unwrap_or_else(|_| panic!("fail point {name}: {number:?} is no number"))
            });
            if wanted.is_some_and(|wanted| wanted != pass) {
                return None;
            }
            match action {
                "abort" => end(),
                "pause" => {
                    let reached = directory.join(format!("{name}.reached"));
                    std::fs::write(&reached, "").expect("a test's directory is writable");
                    Some(PausedFailPoint { armed, reached })
                }
                other => panic!("fail point {name}: {other:?} is neither abort nor pause"),
            }
        }

        fn is_held(&self) -> bool {
            self.armed.exists()
        }

        fn leave(&self) {
            std::fs::remove_file(&self.reached).ok();
        }
    }

    /// The number of this pass since the point was armed.
    fn count(name: &str, is_armed: bool) -> u64 {
        let mut passes = PASSES.lock().unwrap_or_else(PoisonError::into_inner);
        let pass = passes.entry(name.to_owned()).or_default();
        *pass = if is_armed { *pass + 1 } else { 0 };
        *pass
    }

    fn end() -> ! {
        // SIGKILL, not SIGABRT: nothing of this process runs any more, and no core file is written.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).ok();
        loop {
            std::thread::park();
        }
    }
}
