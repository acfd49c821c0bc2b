//! The baselines: what the machine itself needs to visit every entry, to create every file, and for one sync.

use anyhow::Result;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::Write,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

const THREADS: usize = 2;
const LISTING: usize = 32 << 10;

/// Directories still to be listed, and how many threads are listing one now.
#[derive(Default)]
struct Waiting {
    directories: Vec<(Arc<OwnedFd>, CString)>,
    busy: usize,
}

/// Opens every directory, lists it and reads the attributes of every entry. Returns the number of entries.
pub(crate) fn walk(root: &Path) -> Result<usize> {
    let path = CString::new(root.as_os_str().as_encoded_bytes())?;
    let first = (Arc::new(open(rustix::fs::CWD, &path)?), c".".to_owned());
    let waiting = Mutex::new(Waiting { directories: vec![first], busy: 0 });
    let (bell, seen) = (Condvar::new(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let walkers: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| walk_some(&waiting, &bell, &seen))).collect();
        walkers.into_iter().try_for_each(|walker| walker.join().expect("a walker does not panic"))
    })?;
    Ok(seen.into_inner())
}

fn open(above: impl std::os::fd::AsFd, name: &CString) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

fn walk_some(waiting: &Mutex<Waiting>, bell: &Condvar, seen: &AtomicUsize) -> Result<()> {
    let mut buffer = Vec::with_capacity(LISTING);
    let lock = || waiting.lock().expect("no code panics while it holds this lock");
    loop {
        let mut state = lock();
        let (above, name) = loop {
            if let Some(next) = state.directories.pop() {
                break next;
            }
            if state.busy == 0 {
                return Ok(());
            }
            state = bell.wait(state).expect("no code panics while it holds this lock");
        };
        state.busy += 1;
        drop(state);
        let found = look_into(&above, &name, &mut buffer, seen);
        let mut state = lock();
        state.busy -= 1;
        state.directories.extend(found?);
        bell.notify_all();
    }
}

fn look_into(
    above: &OwnedFd,
    name: &CString,
    buffer: &mut Vec<u8>,
    seen: &AtomicUsize,
) -> Result<Vec<(Arc<OwnedFd>, CString)>> {
    let here = Arc::new(open(above, name)?);
    let mut found = Vec::new();
    let mut count = 0;
    let mut listing = RawDir::new(&here, buffer.spare_capacity_mut());
    while let Some(entry) = listing.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let is = rustix::fs::statx(&here, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        count += 1;
        if u32::from(is.stx_mode) & libc::S_IFMT == libc::S_IFDIR {
            found.push((here.clone(), name.to_owned()));
        }
    }
    seen.fetch_add(count, Ordering::Relaxed);
    Ok(found)
}

/// The names and sizes of a tree.
pub(crate) struct Shape {
    folders: Vec<PathBuf>,
    files: Vec<(PathBuf, u64)>,
}

impl Shape {
    pub(crate) fn of(root: &Path) -> Result<Shape> {
        let mut shape = Shape { folders: Vec::new(), files: Vec::new() };
        let mut waiting = vec![PathBuf::new()];
        while let Some(folder) = waiting.pop() {
            for entry in fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let (path, is) = (folder.join(entry.file_name()), entry.metadata()?);
                if is.is_dir() {
                    waiting.push(path);
                } else if is.is_file() {
                    shape.files.push((path, is.len()));
                }
            }
            shape.folders.push(folder);
        }
        Ok(shape)
    }

    /// Creates the same folders and files, filled from memory.
    pub(crate) fn make(&self, target: &Path) -> Result<()> {
        for folder in &self.folders[1..] {
            fs::create_dir(target.join(folder))?;
        }
        let bytes = vec![b'x'; 1 << 20];
        // Neighbouring files go to one thread, as in any sensible restore.
        let parts: Vec<&[(PathBuf, u64)]> = self.files.chunks(64).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                for (path, size) in *part {
                    make_file(&target.join(path), *size, &bytes)?;
                }
            }
            anyhow::Ok(())
        };
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            makers.into_iter().try_for_each(|maker| maker.join().expect("a maker does not panic"))
        })
    }
}

fn make_file(path: &Path, size: u64, bytes: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let mut left = size;
    while left > 0 {
        let part = left.min(bytes.len() as u64) as usize;
        file.write_all(&bytes[..part])?;
        left -= part as u64;
    }
    Ok(())
}

/// Syncs one new file of 64 KB and its directory entry.
pub(crate) fn sync(folder: &Path, number: usize) -> Result<()> {
    let file = File::create_new(folder.join(format!("sync-{number}")))?;
    file.write_all_at(&[7; 64 << 10], 0)?;
    file.sync_data()?;
    Ok(File::open(folder)?.sync_all()?)
}
