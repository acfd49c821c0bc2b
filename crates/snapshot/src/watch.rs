//! Which folders of a live tree were touched since the last capture, so that a capture visits only those.
//!
//! fanotify tells of every change on a whole file system, by directory handle and name, in the system call
//! that makes the change. So when [`Tracked::take`] has read what was queued when it began, it knows every
//! change that was finished before. Events are kept by handle and get paths only when somebody takes them:
//! what a directory is called meanwhile, and by whom it is renamed, does not matter until then.
//!
//! # What the capture must still do
//! - Walk everything the first time, after [`Touched::Everything`], and now and then: what could be missed is
//!   listed below, and only a walk finds it.
//! - Visit each listed folder itself and the listed names in it. A name that is a directory the last capture
//!   did not know under this path and inode is new: walk it. A path that is not there any more is no error.
//! - Visit every name the last capture found for the inodes in `linked`, and, always, the files that have
//!   more names than it found: those can be written through a name outside the root.
//! - Ask [`mapped_writable`] and [`sync_mapped`] the result before reading: writes to a shared mapping are
//!   reported only when the mapping ends.
//! - [`Tracked::give_back`] what it took and could not use.
//!
//! # What is not seen
//! - Writes to shared mappings, until the last one of that opened file ends (that closes the file).
//! - Writes through a name outside the root that was linked after the last capture. Nobody can make one
//!   across the mounts of a sandbox.
//! - Other file systems mounted inside the root, and changes beneath the file system (the block device).
//! - System calls that have not returned: what a thread is in the middle of is in the next take.
//!
//! # Bounds
//! The kernel queues 16,384 events (`fs.fanotify.max_queued_events`) and then says so: everything. The reader
//! looks at most every 5 ms, so that takes more than three million events a second. 100,000 remembered names
//! in one root: everything. Somebody who floods the queue on purpose makes captures walk, nothing worse.
//!
//! # Cost
//! On two loaded cores and ext4, by `examples/watch.rs`: the reader takes
//! 1 µs for each file written outside all roots (a million a second on one core) and 2 µs beneath one; the
//! kernel's own part makes the writer's open, write and close 2.5 µs longer (6 without). A take of what a turn
//! touches, 12 files in 12 folders, is 0.3 ms; one of 20,000 files 4 µs each.

mod change_ledger;
mod fanotify;
mod handle;
mod mapped;
mod paths;
mod root_membership;
mod seen_changes;
mod touched;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

pub use mapped::{MappedFile, SharedMappings, mapped_writable, sync_mapped};
pub use touched::{TouchedNames, TouchedPaths};

use crate::{Error, Folder};
use change_ledger::ChangeLedger;
use fanotify::FanotifyQueue;
use handle::{HandleLookup, HandleMount};
use root_membership::TrackedRootId;
use seen_changes::SeenChanges;

/// Some seven hundred events.
const BUFFER: usize = 64 << 10;
const MAX_NAMES: usize = 100_000;
/// Between two readings, so that a busy file system does not wake us for every event.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Why changes are not followed; captures walk instead.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The process may not watch a file system.
    #[error("following a file system needs root (CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH)")]
    Rights,
    /// The kernel cannot do it.
    #[error("the kernel is too old to tell of renames as a whole; Linux 5.17 can")]
    Kernel,
    /// The file system cannot be watched.
    #[error("this file system cannot be followed")]
    Filesystem {
        /// What the system says.
        source: io::Error,
    },
    /// A call failed.
    #[error("could not {what}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// Follows one file system. One per server and file system is enough, whatever the number of sessions.
pub struct FilesystemWatch {
    shared: Arc<WatchShared>,
    reader: Option<JoinHandle<()>>,
}

/// One root that is followed; dropping it ends that. It works on after its [`Watch`] is gone, only that
/// nothing empties the queue between takes.
pub struct TrackedFolder {
    shared: Arc<WatchShared>,
    id: TrackedRootId,
    root: OwnedFd,
    returned: Mutex<TouchedPaths>,
}

struct WatchShared {
    queue: FanotifyQueue,
    mount: HandleMount,
    stop: OwnedFd,
    /// How many want the lock now: the reader lets them go first.
    takers: AtomicUsize,
    reading: Mutex<WatchReader>,
    most_names: usize,
}

struct WatchReader {
    ledger: ChangeLedger,
    buffer: Box<[u8]>,
}

impl FilesystemWatch {
    /// Follows the file system that a path of ours is on.
    pub fn start(on: &Path) -> Result<FilesystemWatch, WatchError> {
        FilesystemWatch::start_with_limit(on, MAX_NAMES)
    }

    /// As [`Watch::start`]; more names than this in one root are [`Touched::Everything`].
    pub fn start_with_limit(on: &Path, names: usize) -> Result<FilesystemWatch, WatchError> {
        let shared = Arc::new(WatchShared::new(on, names)?);
        let reader = std::thread::Builder::new().name("ash-watch".to_owned()).spawn({
            let shared = shared.clone();
            move || shared.read_until_stopped()
        });
        let reader = reader.map_err(|source| WatchError::System { what: "start a thread", source })?;
        Ok(FilesystemWatch { shared, reader: Some(reader) })
    }

    /// Follows a folder. When this has returned nothing that happens beneath it is missed.
    pub fn track(&self, root: &Folder) -> Result<TrackedFolder, Error> {
        let failed = |source: io::Error| Error::Io { what: "follow", path: ".".to_owned(), source };
        let met = self.shared.mount.handle_of(root.fd()).map_err(|e| failed(e.into()))?;
        // On another mount its events may come, but the way from a handle up to it is not open on ours.
        let HandleLookup::Here(handle) = met else { return Err(failed(Errno::XDEV.into())) };
        let root = root.fd().try_clone_to_owned().map_err(failed)?;
        let id = self.shared.lock().ledger.add(handle);
        Ok(TrackedFolder { shared: self.shared.clone(), id, root, returned: Mutex::default() })
    }
}

impl Drop for FilesystemWatch {
    fn drop(&mut self) {
        // Fails only when it was written 2^64 times.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            tracing::error!("the reader of file system events panicked");
        }
    }
}

impl TrackedFolder {
    /// What was touched since the last call, or since it is tracked: every change whose system call had
    /// returned when this was called. For one caller at a time: two would each get a part.
    pub fn take_changes(&self) -> TouchedPaths {
        let seen = self.shared.take(self.id);
        let returned = std::mem::take(&mut *self.returned());
        paths::settle(seen, self.root.as_fd(), &self.shared.mount).and(returned, self.shared.most_names)
    }

    /// What a capture took and could not use; it is in the next take again.
    pub fn return_changes(&self, touched: TouchedPaths) {
        let mut returned = self.returned();
        *returned = std::mem::take(&mut *returned).and(touched, self.shared.most_names);
    }
}

impl TrackedFolder {
    fn returned(&self) -> MutexGuard<'_, TouchedPaths> {
        // Nothing that is done under this lock leaves it half done.
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TrackedFolder {
    fn drop(&mut self) {
        self.shared.lock().ledger.remove(self.id);
    }
}

impl WatchShared {
    fn new(on: &Path, most_names: usize) -> Result<WatchShared, WatchError> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let system = |what| move |e: Errno| WatchError::System { what, source: e.into() };
        let at = rustix::fs::open(on, flags, rustix::fs::Mode::empty()).map_err(system("open the folder"))?;
        let mount = HandleMount::of(at).map_err(|e| match e {
            Errno::PERM => WatchError::Rights,
            Errno::OPNOTSUPP | Errno::STALE | Errno::OVERFLOW => WatchError::Filesystem { source: e.into() },
            e => WatchError::System { what: "open a folder by its handle", source: e.into() },
        })?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(WatchShared {
            queue: FanotifyQueue::of(mount.fd())?,
            mount,
            stop: rustix::event::eventfd(0, flags).map_err(system("make a bell"))?,
            takers: AtomicUsize::new(0),
            reading: Mutex::new(WatchReader {
                ledger: ChangeLedger::new(most_names),
                buffer: vec![0; BUFFER].into_boxed_slice(),
            }),
            most_names,
        })
    }

    fn lock(&self) -> MutexGuard<'_, WatchReader> {
        self.takers.fetch_add(1, Ordering::Relaxed);
        let reading = self.lock_as_reader();
        self.takers.fetch_sub(1, Ordering::Relaxed);
        reading
    }

    fn lock_as_reader(&self) -> MutexGuard<'_, WatchReader> {
        self.reading.lock().unwrap_or_else(|poisoned| {
            // Somebody panicked over an event, and the rest of what he had read is lost.
            self.reading.clear_poison();
            let mut reading = poisoned.into_inner();
            reading.ledger.doubt();
            reading
        })
    }

    /// Reads what is queued now and no more: somebody who writes without a pause must not hold us for ever.
    fn take(&self, id: TrackedRootId) -> SeenChanges {
        let mut reading = self.lock();
        // Only a descriptor that is no queue cannot be asked; then until it is empty.
        let mut waiting = self.queue.waiting().unwrap_or(usize::MAX);
        while waiting > 0 {
            match reading.read(self) {
                Ok(0) => break,
                Ok(read) => waiting = waiting.saturating_sub(read),
                Err(error) => {
                    tracing::warn!(%error, "file system events cannot be read");
                    reading.ledger.doubt();
                    break;
                }
            }
        }
        reading.ledger.take(id)
    }

    fn read_until_stopped(&self) {
        while self.wait_for_events() && self.read_what_is_there() && self.rest() {}
    }

    /// False when events cannot be read any more; takes find that out for themselves.
    fn read_what_is_there(&self) -> bool {
        loop {
            let read = self.lock_as_reader().read(self);
            match read {
                Ok(0) => return true,
                Ok(_) if self.takers.load(Ordering::Relaxed) > 0 => return true,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "file system events cannot be read");
                    self.lock_as_reader().ledger.doubt();
                    return false;
                }
            }
        }
    }

    /// False when it is time to stop, as in [`Shared::rest`].
    fn wait_for_events(&self) -> bool {
        let mut bells = [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.queue, PollFlags::IN)];
        goes_on(&mut bells, None)
    }

    fn rest(&self) -> bool {
        goes_on(&mut [PollFd::new(&self.stop, PollFlags::IN)], Some(PAUSE))
    }
}

/// Waits for one of the bells, of which the first says to stop.
fn goes_on(bells: &mut [PollFd<'_>], longest: Option<Timespec>) -> bool {
    match rustix::event::poll(bells, longest.as_ref()) {
        Ok(_) | Err(Errno::INTR) => bells.first().is_some_and(|stop| stop.revents().is_empty()),
        Err(error) => {
            tracing::warn!(%error, "file system events cannot be waited for");
            false
        }
    }
}

impl WatchReader {
    /// How many events were read; none when none were there.
    fn read(&mut self, shared: &WatchShared) -> io::Result<usize> {
        let Some(events) = shared.queue.read(&mut self.buffer)? else { return Ok(0) };
        let mut read = 0;
        for event in events {
            read += 1;
            match event {
                Ok(event) => self.ledger.note(&event, &shared.mount),
                Err(fanotify::GarbledEvent) => self.ledger.doubt(),
            }
        }
        Ok(read)
    }
}
