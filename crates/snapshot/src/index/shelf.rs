//! Indexes that were just used: the next capture of the same folder need not load them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::Index;

/// How many bytes of index files are kept. A project of 40,000 files has six million.
const MOST: u64 = 32 << 20;

#[derive(Debug, Default)]
pub(crate) struct Shelf(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    path: PathBuf,
    print: Print,
    index: Index,
}

/// A file that looks the same has not been written since.
#[derive(Debug, PartialEq, Eq)]
struct Print {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

impl Print {
    fn of(path: &Path) -> Option<Print> {
        let print = |is: Metadata| Print {
            file: (is.dev(), is.ino()),
            size: is.len(),
            changed: (is.ctime(), is.ctime_nsec()),
        };
        std::fs::metadata(path).ok().map(print)
    }
}

impl Shelf {
    /// What the index at this path says. It is off the shelf until it is put back.
    pub(crate) fn take(&self, path: &Path) -> Index {
        let mut shelf = self.0.lock().expect("nobody panics while holding it");
        let kept = shelf.iter().position(|kept| kept.path == path).map(|at| shelf.remove(at));
        drop(shelf);
        match kept {
            Some(kept) if Print::of(path).as_ref() == Some(&kept.print) => kept.index,
            Some(_) | None => Index::load(path),
        }
    }

    /// An index as it was just written.
    pub(crate) fn put(&self, path: &Path, index: Index) {
        // A torn tail would be cut off by the next append, which has to know of it.
        let Some(print) = Print::of(path).filter(|print| print.size == index.length && print.size <= MOST)
        else {
            return;
        };
        let mut shelf = self.0.lock().expect("nobody panics while holding it");
        shelf.retain(|kept| kept.path != path);
        shelf.push(Kept { path: path.to_owned(), print, index });
        let mut all: u64 = shelf.iter().map(|kept| kept.print.size).sum();
        while all > MOST {
            all -= shelf.remove(0).print.size;
        }
    }
}
