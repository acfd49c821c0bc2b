//! Restoring: the whole index is checked before the first byte is written, every content while it is.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, Gid, Mode, Uid};

use super::PathSoFar;
use crate::folder::{Descent, Purpose, Time, create_file, give_to, make_directory};
use crate::pack::{Pack, Record, Records, Stored};
use crate::{Error, Folder, Owner};

/// Where a root of the tree goes: an empty folder that nobody else uses yet.
pub struct Target<'a> {
    pub root: &'a str,
    pub folder: &'a Folder,
    pub owner: Option<Owner>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Regular files, hard links counted once.
    pub files: u64,
    pub bytes: u64,
}

pub(super) fn restore(pack: &Pack, targets: &[Target<'_>]) -> Result<Restored, Error> {
    let mut shared = shared_files(pack)?;
    for target in targets {
        if !target.folder.list()?.is_empty() {
            return Err(Error::NotEmpty { path: target.root.to_owned() });
        }
    }
    let mut restored = Restored::default();
    let mut records = pack.records();
    while let Some(record) = records.read()? {
        let Record::Root { name, modified } = record else { continue };
        let Some(target) = targets.iter().find(|target| target.root.as_bytes() == name) else { continue };
        let wanted = shared.remove(&name).unwrap_or_default();
        let mut restoring = Restoring::start(pack, target, wanted)?;
        restoring.run(&mut records, modified)?;
        restored.files += restoring.restored.files;
        restored.bytes = restored.bytes.saturating_add(restoring.restored.bytes);
    }
    Ok(restored)
}

/// For each root the numbers of the files that have further names. Reading them checks the index.
fn shared_files(pack: &Pack) -> Result<HashMap<Vec<u8>, HashSet<u64>>, Error> {
    let mut shared: HashMap<Vec<u8>, HashSet<u64>> = HashMap::new();
    let mut root = Vec::new();
    let mut records = pack.records();
    while let Some(record) = records.read()? {
        match record {
            Record::Root { name, .. } => root = name,
            Record::Same { ordinal, .. } => {
                shared.entry(root.clone()).or_default().insert(ordinal);
            }
            Record::Dir { .. } | Record::File { .. } | Record::Link { .. } | Record::Up => {}
        }
    }
    Ok(shared)
}

struct Restoring<'a> {
    pack: &'a Pack,
    target: &'a Target<'a>,
    descent: Descent,
    /// The directories one is in, without the root.
    levels: Vec<Level>,
    path: PathSoFar,
    wanted: HashSet<u64>,
    places: Places,
    restored: Restored,
}

struct Level {
    name: Vec<u8>,
    mode: u32,
    modified: Time,
    /// Its number in [`Places`], if something in it has further names.
    known: Option<usize>,
}

impl<'a> Restoring<'a> {
    fn start(pack: &'a Pack, target: &'a Target<'a>, wanted: HashSet<u64>) -> Result<Restoring<'a>, Error> {
        let descent = Descent::from(target.folder, Purpose::Read)
            .map_err(|e| Error::system("open", target.root.as_bytes(), e))?;
        let (levels, path, places) = (Vec::new(), PathSoFar::default(), Places::default());
        Ok(Restoring { pack, target, descent, levels, path, wanted, places, restored: Restored::default() })
    }

    /// Up to and with the end of this root.
    fn run(&mut self, records: &mut Records<'_>, modified: Time) -> Result<(), Error> {
        while let Some(record) = records.read()? {
            match record {
                Record::Dir { name, mode, modified } => self.enter(name, mode, modified)?,
                Record::File { name, mode, modified, content } => {
                    self.file(&name, &content).and_then(|file| self.dress(&name, &file, mode, modified))?;
                }
                Record::Link { name, modified, target } => self.link(&name, &target, modified)?,
                Record::Same { name, ordinal } => self.same(&name, ordinal)?,
                Record::Up => match self.levels.pop() {
                    Some(level) => self.leave(&level)?,
                    None => return self.finish(modified),
                },
                Record::Root { .. } => return Err(self.pack.damaged("a root within a root")),
            }
        }
        Err(self.pack.damaged("a root without an end"))
    }

    fn enter(&mut self, name: Vec<u8>, mode: u32, modified: Time) -> Result<(), Error> {
        // Open to us alone until it is finished.
        make_directory(self.descent.here(), &name, 0o700).map_err(|e| self.failed("make", &name, e))?;
        self.descent.down(&name).map_err(|e| self.failed("open", &name, e))?;
        self.path.enter(&name);
        self.levels.push(Level { name, mode, modified, known: None });
        Ok(())
    }

    /// A directory gets its mode and time last: filling it needs the one and changes the other.
    fn leave(&mut self, level: &Level) -> Result<(), Error> {
        let owner = self.target.owner;
        let left = self.descent.leave(|dir| dress(dir, owner, level.mode, level.modified));
        self.path.leave();
        left.map_err(|e| self.failed("finish", &level.name, e))
    }

    fn finish(&mut self, modified: Time) -> Result<(), Error> {
        // The mode of the root is the caller's.
        let root = self.target.folder.fd();
        let done = give_to(root, self.target.owner)
            .and_then(|()| rustix::fs::futimens(root, &modified.as_timestamps()));
        done.map_err(|e| Error::system("finish", self.target.root.as_bytes(), e))
    }

    fn file(&mut self, name: &[u8], content: &Stored) -> Result<File, Error> {
        let file = create_file(self.descent.here(), name).map_err(|e| self.failed("create", name, e))?;
        let path = self.path.of(name);
        let failed = |e| Error::system("write", &path, e);
        self.pack.unpack(content, &path, &mut |at, bytes| file.write_all_at(bytes, at).map_err(failed))?;
        file.set_len(content.size).map_err(failed)?;
        if self.wanted.contains(&content.ordinal) {
            self.places.remember(&mut self.levels, content.ordinal, name);
        }
        self.restored.files += 1;
        self.restored.bytes = self.restored.bytes.saturating_add(content.size);
        Ok(file)
    }

    fn dress(&self, name: &[u8], file: &File, mode: u32, modified: Time) -> Result<(), Error> {
        dress(file.as_fd(), self.target.owner, mode, modified).map_err(|e| self.failed("finish", name, e))
    }

    fn link(&self, name: &[u8], target: &[u8], modified: Time) -> Result<(), Error> {
        let here = self.descent.here();
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        let done = rustix::fs::symlinkat(target, here, name)
            .and_then(|()| match self.target.owner {
                Some(Owner { uid, gid }) => {
                    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                    rustix::fs::chownat(here, name, Some(uid), Some(gid), itself)
                }
                None => Ok(()),
            })
            .and_then(|()| rustix::fs::utimensat(here, name, &modified.as_timestamps(), itself));
        done.map_err(|e| self.failed("link", name, e))
    }

    fn same(&self, name: &[u8], ordinal: u64) -> Result<(), Error> {
        let Some((folders, first)) = self.places.find(ordinal) else {
            return Err(self.pack.damaged("a hard link to nothing"));
        };
        let failed = |e| self.failed("link", name, e);
        let mut to = Descent::from(self.target.folder, Purpose::Read).map_err(failed)?;
        for folder in folders {
            to.down(folder).map_err(failed)?;
        }
        rustix::fs::linkat(to.here(), first, self.descent.here(), name, AtFlags::empty()).map_err(failed)
    }

    fn failed(&self, what: &'static str, name: &[u8], cause: rustix::io::Errno) -> Error {
        Error::system(what, &self.path.of(name), cause)
    }
}

/// Owner first: changing it clears bits of the mode.
fn dress(handle: BorrowedFd<'_>, owner: Option<Owner>, mode: u32, modified: Time) -> rustix::io::Result<()> {
    give_to(handle, owner)?;
    rustix::fs::fchmod(handle, Mode::from_raw_mode(mode))?;
    rustix::fs::futimens(handle, &modified.as_timestamps())
}

/// Where files with further names were put. Directories are kept once each, however many files are in them.
#[derive(Default)]
struct Places {
    folders: Vec<(Option<usize>, Vec<u8>)>,
    files: HashMap<u64, (Option<usize>, Vec<u8>)>,
}

impl Places {
    fn remember(&mut self, levels: &mut [Level], ordinal: u64, name: &[u8]) {
        let mut folder = None;
        for level in levels {
            let number = *level.known.get_or_insert_with(|| {
                self.folders.push((folder, level.name.clone()));
                self.folders.len() - 1
            });
            folder = Some(number);
        }
        self.files.insert(ordinal, (folder, name.to_vec()));
    }

    /// The directories from the root down, and the name in the last of them.
    fn find(&self, ordinal: u64) -> Option<(Vec<&[u8]>, &[u8])> {
        let &(mut folder, ref name) = self.files.get(&ordinal)?;
        let mut folders = Vec::new();
        while let Some((above, name)) = folder.and_then(|number| self.folders.get(number)) {
            folders.push(name.as_slice());
            folder = *above;
        }
        folders.reverse();
        Some((folders, name))
    }
}
