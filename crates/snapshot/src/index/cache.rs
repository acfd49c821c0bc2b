//! Keeps recently used indexes in memory, so that the next capture of the same folder need not load them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::CaptureIndex;

/// Upper limit for the size of all cached index files. A project of 40,000 files has six million bytes.
const MAX_CACHED_BYTES: u64 = 32 << 20;

#[derive(Debug, Default)]
pub(crate) struct IndexCache(Mutex<Vec<CachedIndex>>);

#[derive(Debug)]
struct CachedIndex {
    path: PathBuf,
    print: IndexFileStamp,
    index: CaptureIndex,
}

/// Identifies one state of an index file: equal stamps mean that nothing has written to the file in between.
#[derive(Debug, PartialEq, Eq)]
struct IndexFileStamp {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

impl IndexFileStamp {
    fn of(path: &Path) -> Option<IndexFileStamp> {
        let print = |is: Metadata| IndexFileStamp {
            file: (is.dev(), is.ino()),
            size: is.len(),
            changed: (is.ctime(), is.ctime_nsec()),
        };
        std::fs::metadata(path).ok().map(print)
    }
}

impl IndexCache {
    /// Takes the index of this path out of the cache, or loads it. The caller puts it back after use.
    pub(crate) fn take(&self, path: &Path) -> CaptureIndex {
        let mut cached = self.0.lock().expect("no code panics while it holds this lock");
        let kept = cached.iter().position(|kept| kept.path == path).map(|at| cached.remove(at));
        drop(cached);
        match kept {
            Some(kept) if IndexFileStamp::of(path).as_ref() == Some(&kept.print) => kept.index,
            Some(_) | None => CaptureIndex::load(path),
        }
    }

    /// Caches an index that was just written.
    pub(crate) fn put(&self, path: &Path, index: CaptureIndex) {
        // If the file is longer than the index, it has a torn tail. The next append must load the file to cut the
        // tail off.
        let Some(print) = IndexFileStamp::of(path)
            .filter(|print| print.size == index.length && print.size <= MAX_CACHED_BYTES)
        else {
            return;
        };
        let mut cached = self.0.lock().expect("no code panics while it holds this lock");
        cached.retain(|kept| kept.path != path);
        cached.push(CachedIndex { path: path.to_owned(), print, index });
        let mut all: u64 = cached.iter().map(|kept| kept.print.size).sum();
        while all > MAX_CACHED_BYTES {
            all -= cached.remove(0).print.size;
        }
    }
}
