//! Writes the files of a restore, grouped by block, so that each block is unpacked once. A large file is a task of
//! its own.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};

use super::directory_opener::DirectoryOpener;
use super::{PlannedFile, RestorePlan};
use crate::Error;
use crate::chunker::is_zero;
use crate::folder::{give_to, set_xattrs};
use crate::object::{ContentLayout, ContentPiece, ObjectLocation, ObjectRef};
use crate::repo::Repo;
use crate::repo::capture::SnapshotProgress;
use crate::repo::read::{ObjectReader, within};

/// Pages of this size that are all zeros are not written, so they become holes.
const PAGE: usize = 4096;

/// A restore of fewer bytes uses one thread.
const WORTH: u64 = 1 << 20;

/// The cache for blocks. Tasks follow the order of blocks, so few blocks are needed twice, and a small cache stays in
/// the CPU cache.
const AT_HAND: usize = 4 << 20;

/// A file from this size on fills several blocks, and shares few of them with others.
const LARGE: u64 = 4 << 20;

/// Files that one thread writes in one go.
type RestoreTask = Vec<usize>;

/// Writes the files that the donor tree did not provide.
pub(super) fn write(
    repo: &Repo,
    plan: &RestorePlan<'_>,
    given: &[bool],
    progress: &SnapshotProgress,
) -> Result<(), Error> {
    let tasks = tasks(repo, plan, given)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let threads = if plan.bytes() < WORTH { 1 } else { cores.min(tasks.len()).max(1) };
    let next = AtomicUsize::new(0);
    let work = || {
        let (reader, ladder) = (repo.reader_keeping(AT_HAND), plan.ladder());
        let mut writer = RestoreWriter { plan, reader, ladder, folder: None, umask: umask(), progress };
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = task.iter().try_for_each(|number| writer.file(&plan.files[*number]));
            done.inspect_err(|_| next.store(tasks.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    if threads == 1 {
        return work();
    }
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // Joins all threads before it returns the first failure.
        let done: Vec<Result<(), Error>> =
            helpers.into_iter().map(|helper| helper.join().expect("a writer does not panic")).collect();
        done.into_iter().collect()
    })
}

fn tasks(repo: &Repo, plan: &RestorePlan<'_>, given: &[bool]) -> Result<Vec<RestoreTask>, Error> {
    let reader = repo.reader_keeping(AT_HAND);
    let mut small: Vec<(ObjectLocation, usize)> = Vec::new();
    let (mut large, mut empty) = (Vec::new(), Vec::new());
    for (number, file) in plan.files.iter().enumerate() {
        if given.get(number).is_some_and(|given| *given) {
            continue;
        }
        match &file.content.layout {
            ContentLayout::Empty => empty.push(number),
            ContentLayout::List(_) if file.content.size >= LARGE => large.push(number),
            ContentLayout::Whole(at) => small.push((at.place, number)),
            // Goes with the files that share the block of its first chunk.
            ContentLayout::List(at) => {
                let pieces = reader.content(&file.content)?;
                small.push((pieces.iter().find_map(chunk).unwrap_or(at).place, number));
            }
        }
    }
    // The largest first, so that no thread is left with a large file at the end.
    large.sort_by_key(|number| std::cmp::Reverse(plan.files[*number].content.size));
    let mut tasks: Vec<RestoreTask> = large.into_iter().map(|number| vec![number]).collect();
    small.sort_by_key(|(place, _)| (place.pack, place.block, place.start));
    let blocks = small.chunk_by(|(a, _), (b, _)| (a.pack, a.block) == (b.pack, b.block));
    tasks.extend(blocks.map(|block| block.iter().map(|(_, number)| *number).collect::<RestoreTask>()));
    tasks.extend(empty.chunks(1024).map(<[usize]>::to_vec));
    Ok(tasks)
}

struct RestoreWriter<'w> {
    plan: &'w RestorePlan<'w>,
    reader: ObjectReader<'w>,
    ladder: DirectoryOpener<'w>,
    /// The directory of the last file.
    folder: Option<(usize, OwnedFd)>,
    umask: u32,
    progress: &'w SnapshotProgress,
}

impl RestoreWriter<'_> {
    fn file(&mut self, file: &PlannedFile) -> Result<(), Error> {
        match &file.content.layout {
            ContentLayout::Whole(at) => self.whole(file, at),
            ContentLayout::Empty | ContentLayout::List(_) => self.in_pieces(file),
        }
    }

    /// Checks the content before it creates the file.
    fn whole(&mut self, file: &PlannedFile, at: &ObjectRef) -> Result<(), Error> {
        let block = self.reader.block(at.place.pack, at.place.block)?;
        let outside = || self.reader.damaged(&at.place, "an object outside of its block");
        let bytes = within(&block, &at.place).ok_or_else(outside)?;
        self.reader.check(at, bytes)?;
        let handle = self.create(file)?;
        let end = put(&handle, bytes, 0).map_err(|e| Error::system("write", &file.name, e))?;
        self.finish(file, &handle, end)
    }

    fn in_pieces(&mut self, file: &PlannedFile) -> Result<(), Error> {
        let pieces = self.reader.content(&file.content)?;
        let handle = self.create(file)?;
        let (mut offset, mut end) = (0, 0);
        for row in pieces.chunk_by(follows) {
            end = end.max(self.row(file, &handle, row, offset)?);
            offset += row.iter().map(ContentPiece::length).sum::<u64>();
        }
        self.finish(file, &handle, end)
    }

    /// Checks adjacent chunks of a block one by one, but writes them in one call, because few large writes are faster
    /// than many small ones.
    fn row(&self, file: &PlannedFile, to: &File, row: &[ContentPiece], offset: u64) -> Result<u64, Error> {
        let chunks = row.iter().filter_map(chunk);
        let Some(first) = chunks.clone().next() else { return Ok(0) };
        let block = self.reader.block(first.place.pack, first.place.block)?;
        let mut end = first.place.start as usize;
        for at in chunks {
            let outside = || self.reader.damaged(&at.place, "an object outside of its block");
            let bytes = within(&block, &at.place).ok_or_else(outside)?;
            self.reader.check(at, bytes)?;
            end += bytes.len();
        }
        let bytes = &block[first.place.start as usize..end];
        put(to, bytes, offset).map_err(|e| Error::system("write", &file.name, e))
    }

    fn create(&mut self, file: &PlannedFile) -> Result<File, Error> {
        if !matches!(&self.folder, Some((number, _)) if *number == file.folder) {
            self.folder = Some((file.folder, self.plan.open(&mut self.ladder, file.folder)?));
        }
        let (_, folder) = self.folder.as_ref().expect("opened above");
        // Creates a new file; fails if the name exists, even as a link.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The mode is set at creation, except for the bits of the umask; no other process can reach the file yet.
        rustix::fs::openat(folder, file.name.as_slice(), flags, Mode::from_raw_mode(file.mode))
            .map(File::from)
            .map_err(|e| Error::system("create", &file.name, e))
    }

    fn finish(&self, file: &PlannedFile, handle: &File, end: u64) -> Result<(), Error> {
        // Zeros at the end were not written, so the length is set.
        if end < file.content.size {
            handle.set_len(file.content.size).map_err(|e| Error::system("write", &file.name, e))?;
        }
        self.dress(file, handle)
    }

    fn dress(&self, file: &PlannedFile, handle: &File) -> Result<(), Error> {
        self.progress.add(file.content.size);
        let owner = self.plan.target.owner;
        let done = give_to(handle.as_fd(), owner)
            .and_then(|()| match file.mode & self.umask {
                0 => Ok(()),
                _ => rustix::fs::fchmod(handle, Mode::from_raw_mode(file.mode)),
            })
            .and_then(|()| {
                set_xattrs(handle.as_fd(), &file.xattrs);
                rustix::fs::futimens(handle, &file.modified.as_timestamps())
            });
        done.map_err(|e| Error::system("finish", &file.name, e))
    }
}

fn chunk(piece: &ContentPiece) -> Option<&ObjectRef> {
    match piece {
        ContentPiece::Chunk { at, .. } => Some(at),
        ContentPiece::Zeros { .. } | ContentPiece::List { .. } => None,
    }
}

/// Whether two pieces of a file are also adjacent in one block.
fn follows(a: &ContentPiece, b: &ContentPiece) -> bool {
    let (Some(first), Some(next)) = (chunk(a), chunk(b)) else { return false };
    let start = first.place.start.saturating_add(first.place.length);
    next.place == ObjectLocation { start, length: next.place.length, ..first.place }
}

/// Writes what is not zero, and returns where the last written byte ends.
fn put(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<u64> {
    let mut end = 0;
    let mut write = |from: usize, to: usize| {
        if from < to {
            end = offset + to as u64;
        }
        file.write_all_at(&bytes[from..to], offset + from as u64)
    };
    let (mut start, mut at) = (0, 0);
    while bytes.len() >= PAGE && at < bytes.len() {
        // Pages are aligned to the file, not to the piece.
        let page = PAGE - ((offset + at as u64) % PAGE as u64) as usize;
        let next = (at + page).min(bytes.len());
        if page == PAGE && next - at == PAGE && is_zero(&bytes[at..next]) {
            write(start, at)?;
            start = next;
        }
        at = next;
    }
    write(start, bytes.len())?;
    Ok(end)
}

/// Reads the umask from /proc, because the system call would change it for all threads.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o777)
}
