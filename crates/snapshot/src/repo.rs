//! The repository: a tenant's snapshots, each in a file named by what is in it.
//!
//! This engine writes every snapshot in full. Callers see only trees and entries, so that one which shares
//! unchanged parts can take its place.

mod compare;
mod leaves;
mod restore;
mod take;

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use compare::{Difference, What};
pub use leaves::{ContentId, Leaf, LeafKind};
pub use restore::{Restored, Target};
pub use take::{Root, Skipped, Taken, Why};

use crate::pack::{Content, Pack, PackWriter, Record, Stored, Temporary};
use crate::{Error, FileInfo, RelPath, TreeId};

/// A capture that still runs is younger than this; what is older was left by one that died.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug)]
pub struct Repo {
    dir: PathBuf,
}

/// One entry of a snapshot.
#[derive(Debug)]
pub enum Entry {
    /// The content was checked in full before it was handed out.
    File {
        size: u64,
        content: Content,
    },
    /// A symbolic link's target, verbatim.
    Link(Vec<u8>),
    Dir,
}

impl Repo {
    /// Opens the repository in a directory of ours, and makes it if there is none.
    pub fn open(dir: &Path) -> Result<Repo, Error> {
        let failed = |e| Error::system("open the repository", dir.as_os_str().as_bytes(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)?;
        remove_stale(dir).map_err(failed)?;
        Ok(Repo { dir: dir.to_owned() })
    }

    /// Captures the roots as one tree; it is on disk when this returns. `exclude(root, path)` leaves an entry
    /// out, with everything beneath it. What is equal to an existing tree becomes no new file.
    pub fn take(&self, roots: &[Root<'_>], exclude: &dyn Fn(&[u8], &[u8]) -> bool) -> Result<Taken, Error> {
        let writer = PackWriter::create(&self.dir)?;
        let (writer, report) = take::take(writer, roots, exclude)?;
        let (tree, pack) = writer.finish()?;
        let path = self.path(&tree);
        if is_complete(&path, &pack.file) {
            refresh(&path).map_err(|e| Error::system("keep", path.as_os_str().as_bytes(), e))?;
        } else {
            pack.publish(&path)?;
        }
        // Also for a pack that was there already: whoever renamed it may not have come this far yet.
        self.sync()?;
        Ok(report.of(tree))
    }

    /// Writes a tree into empty folders. A root of the tree without a target is left out.
    pub fn restore(&self, tree: &TreeId, targets: &[Target<'_>]) -> Result<Restored, Error> {
        restore::restore(&self.pack(tree)?, targets)
    }

    /// The regular files of one root, sorted by path.
    pub fn list(&self, tree: &TreeId, root: &str) -> Result<Vec<FileInfo>, Error> {
        let mut files = Vec::new();
        // Hard links look like the file they are the same as.
        let mut by_ordinal: Vec<(u64, i64)> = Vec::new();
        self.visit(tree, root, &mut |path, record| match record {
            Record::File { modified, content, .. } => {
                let (size, mtime_ms) = (content.size, modified.as_millis());
                by_ordinal.push((size, mtime_ms));
                files.push(FileInfo { path: path.to_vec(), size, mtime_ms });
            }
            Record::Same { ordinal, .. } => {
                let same = usize::try_from(*ordinal).ok().and_then(|at| by_ordinal.get(at));
                let (size, mtime_ms) = same.copied().unwrap_or_default();
                files.push(FileInfo { path: path.to_vec(), size, mtime_ms });
            }
            Record::Root { .. } | Record::Dir { .. } | Record::Link { .. } | Record::Up => {}
        })?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// One entry of a root, or `None` if it has none there.
    pub fn read(&self, tree: &TreeId, root: &str, path: &RelPath) -> Result<Option<Entry>, Error> {
        let mut found = None;
        self.visit(tree, root, &mut |at, record| {
            if at == path.as_bytes() {
                found = Some(record.clone());
            }
        })?;
        let stored = match found {
            None | Some(Record::Root { .. } | Record::Up) => return Ok(None),
            Some(Record::Dir { .. }) => return Ok(Some(Entry::Dir)),
            Some(Record::Link { target, .. }) => return Ok(Some(Entry::Link(target))),
            Some(Record::File { content, .. }) => content,
            Some(Record::Same { ordinal, .. }) => self.file_by_ordinal(tree, root, ordinal)?,
        };
        let pack = self.pack(tree)?;
        pack.unpack(&stored, path.as_bytes(), &mut |_, _| Ok(()))?;
        Ok(Some(Entry::File { size: stored.size, content: pack.content(&stored) }))
    }

    /// Reads everything and checks every hash.
    pub fn verify(&self, tree: &TreeId) -> Result<(), Error> {
        let pack = self.pack(tree)?;
        let mut records = pack.records();
        while let Some(record) = records.read()? {
            if let Record::File { name, content, .. } = record {
                pack.unpack(&content, &name, &mut |_, _| Ok(()))?;
            }
        }
        Ok(())
    }

    /// Whether the repository has this tree. [`Repo::verify`] says whether it is sound.
    pub fn holds(&self, tree: &TreeId) -> bool {
        self.path(tree).is_file()
    }

    /// Removes a tree; whether it may go is the caller's to know. One that is not there is removed already.
    pub fn remove(&self, tree: &TreeId) -> Result<(), Error> {
        match std::fs::remove_file(self.path(tree)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::system("remove", tree.as_str().as_bytes(), e)),
            Ok(()) => self.sync(),
        }
    }

    fn pack(&self, tree: &TreeId) -> Result<Pack, Error> {
        Pack::open(&self.path(tree), tree)
    }

    fn path(&self, tree: &TreeId) -> PathBuf {
        self.dir.join(format!("{tree}.pack"))
    }

    fn sync(&self) -> Result<(), Error> {
        let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
        synced.map_err(|e| Error::system("sync", self.dir.as_os_str().as_bytes(), e))
    }

    /// Shows every entry of a root with its path. The caller must not believe it before this returns Ok.
    fn visit(&self, tree: &TreeId, root: &str, see: &mut dyn FnMut(&[u8], &Record)) -> Result<(), Error> {
        let pack = self.pack(tree)?;
        let mut records = pack.records();
        let mut path = PathSoFar::default();
        let (mut inside, mut seen) = (false, false);
        while let Some(record) = records.read()? {
            match &record {
                Record::Root { name, .. } => {
                    inside = name == root.as_bytes();
                    seen |= inside;
                }
                Record::Up => path.leave(),
                Record::Dir { name, .. } => {
                    path.enter(name);
                    if inside {
                        see(path.folder(), &record);
                    }
                }
                Record::File { name, .. } | Record::Link { name, .. } | Record::Same { name, .. } => {
                    if inside {
                        see(&path.of(name), &record);
                    }
                }
            }
        }
        if seen { Ok(()) } else { Err(no_root(tree, root)) }
    }

    fn file_by_ordinal(&self, tree: &TreeId, root: &str, ordinal: u64) -> Result<Stored, Error> {
        let mut found = None;
        self.visit(tree, root, &mut |_, record| {
            if let Record::File { content, .. } = record
                && content.ordinal == ordinal
            {
                found = Some(*content);
            }
        })?;
        found.ok_or_else(|| no_root(tree, root))
    }
}

fn no_root(tree: &TreeId, root: &str) -> Error {
    Error::NotFound { path: format!("{root} in snapshot {tree}") }
}

/// The path of the directory one is in, kept while going through records.
#[derive(Default)]
pub(crate) struct PathSoFar {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl PathSoFar {
    fn enter(&mut self, name: &[u8]) {
        self.lengths.push(self.bytes.len());
        if !self.bytes.is_empty() {
            self.bytes.push(b'/');
        }
        self.bytes.extend_from_slice(name);
    }

    /// Leaving a root changes nothing.
    fn leave(&mut self) {
        self.bytes.truncate(self.lengths.pop().unwrap_or(0));
    }

    fn folder(&self) -> &[u8] {
        &self.bytes
    }

    fn of(&self, name: &[u8]) -> Vec<u8> {
        if self.bytes.is_empty() { name.to_vec() } else { [&self.bytes, &b"/"[..], name].concat() }
    }
}

/// An existing pack of the same name has the same content unless something cut it.
fn is_complete(existing: &Path, new: &File) -> bool {
    match (std::fs::metadata(existing), new.metadata()) {
        (Ok(existing), Ok(new)) => existing.len() == new.len(),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Cleanup goes by age: a tree that was just taken again is young.
fn refresh(pack: &Path) -> io::Result<()> {
    File::open(pack)?.set_modified(SystemTime::now())
}

fn remove_stale(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let ours = entry.file_name().as_bytes().starts_with(Temporary::PREFIX.as_bytes());
        if ours && age(&entry).is_some_and(|age| age > STALE) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn age(entry: &std::fs::DirEntry) -> Option<Duration> {
    entry.metadata().ok()?.modified().ok()?.elapsed().ok()
}
