//! Packs that are not on this machine but in a remote store, which the engine knows only as [`RemotePackSource`].
//!
//! A sparse file of the same name caches what was read of a pack, every byte at its offset in the pack. Nothing records
//! which parts are present: a block is present if it matches its check. So a hole, a torn write or bit rot is simply read
//! again from the remote store, and the cache never needs a sync.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::Error;
use crate::disk_writer::DiskWriter;
use crate::encryption_key::EncryptionKey;
use crate::object_id::PackId;
use crate::pack::{FOOTER, MAGIC, PackFile, damaged, table_at};

/// The first read of a pack has this length, because the length of the pack is not yet known. It takes hardly longer than
/// asking for the length, and most packs are shorter.
const FIRST: u64 = 1 << 20;
/// For a pack up to this size, the second read fetches all the rest: a third one would take longer.
const SMALL: u64 = 4 << 20;
/// For a larger pack, the second read fetches the end, where the table is. This much describes nine thousand blocks.
const TAIL: u64 = 256 << 10;
/// Anything shorter is not a pack.
const SHORTEST: u64 = (MAGIC.len() + FOOTER) as u64;

/// The remote store of packs. Pack names have 32 hexadecimal digits. An error means that the store cannot be reached;
/// a missing pack is not an error. All methods block.
pub trait RemotePackSource: Send + Sync + fmt::Debug {
    /// Reads up to `most` bytes from the beginning of each pack, several packs at a time. It calls `each` in any
    /// order, with the index of the pack in `packs`; `None` means that the pack does not exist. The engine calls this
    /// before the first read of a pack, and not again while the cache has a part of it: collection replaces packs by
    /// shorter ones of the same name.
    fn read_prefixes(
        &self,
        packs: &[String],
        most: u64,
        each: &mut dyn FnMut(usize, Option<PackPrefix>) -> io::Result<()>,
    ) -> io::Result<()>;

    /// Reads all these ranges, several at a time. It calls `each` in any order, with the index of the range in
    /// `parts`. The result is shorter if the pack ends too early, and empty if the pack does not exist. A range has
    /// up to 64 MiB, and rarely more than 8.
    fn read_ranges(
        &self,
        parts: &[PackRange],
        each: &mut dyn FnMut(usize, Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()>;
}

/// The first bytes of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackPrefix {
    /// The size of the whole pack.
    pub size: u64,
    /// The first bytes of the pack.
    pub bytes: Vec<u8>,
}

/// A range of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackRange {
    /// The pack's name.
    pub pack: String,
    /// The range of bytes in the pack.
    pub range: Range<u64>,
}

/// How much was read from the remote store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FetchProgress {
    /// Packs from which something was read.
    pub packs: u64,
    /// The number of requests.
    pub reads: u64,
    /// The number of bytes received.
    pub bytes: u64,
    /// The number of bytes expected in total, as far as known.
    pub of: u64,
}

/// Counts what is read, and reports it to the caller.
pub(crate) struct FetchCounter<'t> {
    pub(crate) sum: FetchProgress,
    packs: HashSet<String>,
    tell: &'t mut dyn FnMut(FetchProgress),
}

impl<'t> FetchCounter<'t> {
    pub(crate) fn new(tell: &'t mut dyn FnMut(FetchProgress)) -> FetchCounter<'t> {
        FetchCounter { sum: FetchProgress::default(), packs: HashSet::new(), tell }
    }

    fn began(&mut self, pack: &str, bytes: usize) {
        self.packs.insert(pack.to_owned());
        self.sum.packs = self.packs.len() as u64;
        self.sum.reads += 1;
        self.sum.of += bytes as u64;
        self.came(bytes);
    }

    fn await_all(&mut self, parts: &[PackRange]) {
        self.packs.extend(parts.iter().map(|part| part.pack.clone()));
        self.sum.packs = self.packs.len() as u64;
        self.sum.reads += parts.len() as u64;
        self.sum.of += parts.iter().map(|part| part.range.end - part.range.start).sum::<u64>();
        (self.tell)(self.sum);
    }

    fn came(&mut self, bytes: usize) {
        self.sum.bytes += bytes as u64;
        (self.tell)(self.sum);
    }
}

/// The local cache of remote packs.
#[derive(Debug)]
pub(crate) struct RemotePackCache {
    remote: Arc<dyn RemotePackSource>,
    dir: PathBuf,
    disk: DiskWriter,
    most: u64,
    /// How many guards each pack has: the cached files of these packs must stay.
    held: Mutex<HashMap<PackId, usize>>,
    fresh: AtomicU64,
}

/// Keeps the cached file of a pack on disk while it lives.
#[derive(Debug)]
pub(crate) struct CachedPackGuard {
    away: Arc<RemotePackCache>,
    pack: PackId,
}

impl Drop for CachedPackGuard {
    fn drop(&mut self) {
        let mut held = self.away.held.lock().expect("no code panics while it holds this lock");
        if let Some(count) = held.get_mut(&self.pack) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.pack);
            }
        }
    }
}

impl CachedPackGuard {
    /// Reads the bytes of a block from the remote store.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        self.away.read_one(self.pack, range)
    }

    /// Stores bytes from the remote store in the cached file.
    pub(crate) fn keep(&self, file: &File, bytes: &[u8], at: u64) -> Result<(), Error> {
        self.away.put(file, bytes, at).map_err(|e| self.away.failed(e))
    }
}

impl RemotePackCache {
    pub(crate) fn new(
        dir: PathBuf,
        remote: Arc<dyn RemotePackSource>,
        disk: DiskWriter,
        most: u64,
    ) -> Result<Arc<RemotePackCache>, Error> {
        let (held, fresh) = (Mutex::default(), AtomicU64::new(0));
        let away = RemotePackCache { remote, dir, disk, most, held, fresh };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&away.dir);
        made.and_then(|()| away.trim()).map_err(|e| away.failed(e))?;
        Ok(Arc::new(away))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::system("write what is kept in", self.dir.as_os_str().as_bytes(), error)
    }

    fn path(&self, pack: &PackId) -> PathBuf {
        self.dir.join(pack.to_string())
    }

    pub(crate) fn hold(self: &Arc<RemotePackCache>, pack: PackId) -> CachedPackGuard {
        *self.held.lock().expect("no code panics while it holds this lock").entry(pack).or_default() += 1;
        CachedPackGuard { away: self.clone(), pack }
    }

    /// Opens a pack that is not in the cache, or whose cached file is unusable.
    pub(crate) fn open(
        self: &Arc<RemotePackCache>,
        id: PackId,
        key: Option<&EncryptionKey>,
    ) -> Result<PackFile, Error> {
        let _held = self.hold(id);
        let read = || {
            if !self.tables(&[id], &mut FetchCounter::new(&mut |_| {}))?.is_empty() {
                return Err(damaged(&id, "its pack is not there"));
            }
            // If the file is gone again, another process has trimmed the cache.
            self.kept(id, key)?.ok_or_else(|| self.failed(io::ErrorKind::NotFound.into()))
        };
        match read() {
            // Collection may have replaced the pack between the reading of its size and of its table.
            Err(Error::Damaged { .. }) => read(),
            pack => pack,
        }
    }

    /// Opens the cached file of a pack, if it holds at least the table.
    pub(crate) fn kept(
        self: &Arc<RemotePackCache>,
        id: PackId,
        key: Option<&EncryptionKey>,
    ) -> Result<Option<PackFile>, Error> {
        let held = self.hold(id);
        let file = match File::options().read(true).write(true).open(self.path(&id)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|e| self.failed(e))?,
        };
        // Trimming removes the files with the oldest modification time first.
        file.set_modified(SystemTime::now()).map_err(|e| self.failed(e))?;
        PackFile::new(file, id, key, Some(held)).map(Some)
    }

    /// Reads the tables of these packs, and small packs as a whole. Returns the packs that do not exist.
    pub(crate) fn tables(
        &self,
        packs: &[PackId],
        tally: &mut FetchCounter<'_>,
    ) -> Result<Vec<PackId>, Error> {
        let (mut missing, mut ends) = (Vec::new(), Vec::new());
        self.beginnings(packs, tally, &mut |pack, begun| {
            let Some(PackPrefix { size, bytes }) = begun else {
                missing.push(pack);
                return Ok(());
            };
            let have = bytes.len() as u64;
            if have < size {
                let end = if size <= SMALL { have } else { have.max(size - TAIL) };
                ends.push((pack, size, have, part(&pack, end..size)));
            }
            self.begin(&pack, size, &bytes, 0)
        })?;
        let parts: Vec<PackRange> = ends.iter().map(|(.., part)| part.clone()).collect();
        let mut longer = Vec::new();
        self.read(&parts, tally, &mut |number, bytes| {
            let (pack, size, have, PackRange { range, .. }) = &ends[number];
            let table = bytes.last_chunk().and_then(|footer| table_at(footer, *size));
            let begin = table.map_or(range.start, |table| table.start.max(*have));
            if begin < range.start {
                longer.push((*pack, *size, part(pack, begin..range.start)));
            }
            self.begin(pack, *size, &bytes, range.start)
        })?;
        let parts: Vec<PackRange> = longer.iter().map(|(_, _, part)| part.clone()).collect();
        self.read(&parts, tally, &mut |number, bytes| {
            let (pack, size, part) = &longer[number];
            self.begin(pack, *size, &bytes, part.range.start)
        })?;
        Ok(missing)
    }

    /// Passes on the beginnings of packs as they arrive. Packs that are too short count as missing.
    fn beginnings(
        &self,
        packs: &[PackId],
        tally: &mut FetchCounter<'_>,
        each: &mut dyn FnMut(PackId, Option<PackPrefix>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let names: Vec<String> = packs.iter().map(PackId::to_string).collect();
        let Some(first) = names.first() else { return Ok(()) };
        let mut failed = None;
        let done = self.remote.read_prefixes(&names, FIRST, &mut |number, begun| {
            let Some((pack, name)) = packs.get(number).zip(names.get(number)) else {
                return Err(io::Error::other("an answer that nobody asked for"));
            };
            let begun = begun.filter(|begun| begun.size >= SHORTEST);
            if let Some(PackPrefix { bytes, .. }) = &begun {
                tally.began(name, bytes.len());
            }
            each(*pack, begun).map_err(|error| {
                failed = Some(error);
                io::Error::other("what came cannot be used")
            })
        });
        match failed {
            Some(error) => Err(error),
            None => done.map_err(|source| Error::Far { pack: first.clone(), source }),
        }
    }

    /// Writes a part of a pack, whose whole size is given, into the cached file.
    fn begin(&self, pack: &PackId, size: u64, bytes: &[u8], at: u64) -> Result<(), Error> {
        let path = self.path(pack);
        let written = self.disk.open(&path).and_then(|mut file| {
            if file.metadata()?.len() > size {
                // The file belongs to an older, longer pack of the same name. Removing it does not disturb readers
                // that have it open.
                self.disk.remove(&path)?;
                file = self.disk.open(&path)?;
            }
            if at > 0 {
                // Every pack begins with these bytes.
                self.put(&file, MAGIC, 0)?;
            }
            self.put(&file, bytes, at)
        });
        written.map_err(|e| self.failed(e))
    }

    fn put(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        self.fresh.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.disk.write_at(file, bytes, at)
    }

    /// Passes on ranges as they arrive.
    pub(crate) fn read(
        &self,
        parts: &[PackRange],
        tally: &mut FetchCounter<'_>,
        each: &mut dyn FnMut(usize, Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if parts.is_empty() {
            return Ok(());
        }
        tally.await_all(parts);
        let mut waiting: Vec<Option<&PackRange>> = parts.iter().map(Some).collect();
        let mut failed = None;
        let done = self.remote.read_ranges(parts, &mut |number, bytes| {
            if waiting.get_mut(number).and_then(Option::take).is_none() {
                return Err(io::Error::other("an answer that nobody asked for"));
            }
            tally.came(bytes.len());
            each(number, bytes).map_err(|error| {
                failed = Some(error);
                io::Error::other("what came cannot be used")
            })
        });
        match (failed, done) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(()),
            (None, Err(source)) => {
                let pack = waiting.into_iter().flatten().next().unwrap_or(&parts[0]).pack.clone();
                Err(Error::Far { pack, source })
            }
        }
    }

    fn read_one(&self, pack: PackId, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let mut came = Vec::new();
        if range.is_empty() {
            return Ok(came);
        }
        self.read(&[part(&pack, range)], &mut FetchCounter::new(&mut |_| {}), &mut |_, bytes| {
            came = bytes;
            Ok(())
        })?;
        Ok(came)
    }

    /// Returns which of these packs are identical in the remote store, with the same blocks at the same offsets.
    /// Collection may have left different parts in two packs of the same name.
    pub(crate) fn same(&self, packs: &[Arc<PackFile>]) -> Result<HashSet<PackId>, Error> {
        let footer = |pack: &Arc<PackFile>| part(&pack.id, pack.size - FOOTER as u64..pack.size);
        let parts: Vec<PackRange> = packs.iter().map(footer).collect();
        let mut same = HashSet::new();
        self.read(&parts, &mut FetchCounter::new(&mut |_| {}), &mut |number, bytes| {
            if bytes == packs[number].footer()? {
                same.insert(packs[number].id);
            }
            Ok(())
        })?;
        Ok(same)
    }

    /// Removes the cached file of a pack. Readers that have it open are not disturbed.
    pub(crate) fn let_go(&self, pack: PackId) -> Result<(), Error> {
        self.disk.remove(&self.path(&pack)).map_err(|e| self.failed(e))
    }

    /// How many bytes were written since the last trim.
    pub(crate) fn fresh(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self) -> io::Result<bool> {
        Ok(self.size()? > self.most)
    }

    /// The disk space of the cached files.
    pub(crate) fn size(&self) -> io::Result<u64> {
        Ok(files(&self.dir)?.iter().map(|file| file.size).sum())
    }

    /// Removes the least recently used files until the rest fits.
    pub(crate) fn trim(&self) -> io::Result<()> {
        self.fresh.store(0, Ordering::Relaxed);
        let mut files = files(&self.dir)?;
        files.sort_by_key(|file| file.used);
        let mut size: u64 = files.iter().map(|file| file.size).sum();
        let held = self.held.lock().expect("no code panics while it holds this lock");
        for file in files.iter().filter(|file| !held.contains_key(&file.pack)) {
            if size <= self.most {
                break;
            }
            self.disk.remove(&self.path(&file.pack))?;
            size -= file.size;
        }
        Ok(())
    }
}

struct CachedPackFile {
    pack: PackId,
    size: u64,
    used: SystemTime,
}

fn files(dir: &Path) -> io::Result<Vec<CachedPackFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Some(pack) = entry.file_name().to_str().and_then(PackId::parse) else { continue };
        match entry.metadata() {
            // Counts allocated blocks instead of the length, because the file is mostly holes.
            Ok(is) => files.push(CachedPackFile { pack, size: is.blocks() * 512, used: is.modified()? }),
            // Another process trimmed the cache.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(files)
}

pub(crate) fn part(pack: &PackId, range: Range<u64>) -> PackRange {
    PackRange { pack: pack.to_string(), range }
}
