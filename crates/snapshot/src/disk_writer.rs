//! Every step by which a repository changes the disk, in one place, so that a test can simulate a crash before,
//! during and after each step.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Writes packs to the disk, in an order that survives a crash.
#[derive(Debug, Clone, Default)]
pub struct DiskWriter {
    death: Option<Arc<SimulatedCrash>>,
    /// Set when a write fails because the disk is full.
    full: Option<Arc<AtomicBool>>,
}

/// A crash at a given step. Nothing reaches the disk after it.
#[derive(Debug)]
pub struct SimulatedCrash {
    at: u64,
    steps: AtomicU64,
    dead: AtomicBool,
}

impl SimulatedCrash {
    /// Crashes at the step with this number, counted from 0. A write is two steps: its first half, and the rest.
    pub fn at_step(step: u64) -> Arc<SimulatedCrash> {
        Arc::new(SimulatedCrash { at: step, steps: AtomicU64::new(0), dead: AtomicBool::new(false) })
    }

    /// How many steps there were so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::SeqCst)
    }

    fn step(&self) -> io::Result<()> {
        if self.steps.fetch_add(1, Ordering::SeqCst) >= self.at {
            self.dead.store(true, Ordering::SeqCst);
        }
        if self.dead.load(Ordering::SeqCst) { Err(io::Error::other("dead")) } else { Ok(()) }
    }
}

impl DiskWriter {
    /// A writer that crashes at the step that the test names.
    pub fn crashing(death: Arc<SimulatedCrash>) -> DiskWriter {
        DiskWriter { death: Some(death), ..DiskWriter::default() }
    }

    /// Sets `full` to true when a write fails because the disk is full. The writer never sets it back to false.
    #[must_use]
    pub fn reporting_full(self, full: Arc<AtomicBool>) -> DiskWriter {
        DiskWriter { full: Some(full), ..self }
    }

    fn step(&self) -> io::Result<()> {
        self.death.as_ref().map_or(Ok(()), |death| death.step())
    }

    fn noted<T>(&self, done: io::Result<T>) -> io::Result<T> {
        let is_full =
            |e: &io::Error| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if let (Err(e), Some(full)) = (&done, &self.full)
            && is_full(e)
        {
            full.store(true, Ordering::Relaxed);
        }
        done
    }

    pub(crate) fn create(&self, path: &Path) -> io::Result<File> {
        self.step()?;
        self.noted(File::options().read(true).write(true).create_new(true).open(path))
    }

    /// Creates the file if it does not exist.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        self.step()?;
        self.noted(File::options().read(true).write(true).create(true).truncate(false).open(path))
    }

    pub(crate) fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.death.is_none() {
            return self.noted(file.write_all_at(bytes, at));
        }
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        self.step()?;
        file.write_all_at(first, at)?;
        self.step()?;
        file.write_all_at(rest, at + first.len() as u64)
    }

    /// Appends in one write, because other processes may append too.
    pub(crate) fn append(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        if self.death.is_none() {
            return self.noted(file.write_all(bytes));
        }
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        self.step()?;
        file.write_all(first)?;
        self.step()?;
        file.write_all(rest)
    }

    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        self.step()?;
        self.noted(file.sync_data())
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        self.noted(std::fs::rename(from, to))
    }

    /// Makes renames and removals in the directory durable.
    pub(crate) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.step()?;
        self.noted(File::open(dir)?.sync_all())
    }

    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        match std::fs::remove_file(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}
