//! Deletes a whole tree that hostile code built. It removes links instead of following them, and works at any depth
//! and with missing permissions. Only another file system mounted inside stops it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::io::{Errno, Result};

use super::{DescentPurpose, Folder, TreeDescent, walker};
use crate::Error;

const MARK: &str = ".erasing-";

/// How often a directory that another process keeps filling is emptied before it is an error.
const ROUNDS: usize = 8;

impl Folder {
    /// Deletes the file or tree at a path of the host. The tree is renamed first, so that a half-deleted tree never
    /// appears under its name. Does nothing if the path does not exist.
    pub fn erase(path: &Path) -> std::result::Result<(), Error> {
        let failed = |e| Error::system("erase", path.as_os_str().as_bytes(), e);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(Errno::INVAL));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = match Folder::open(parent) {
            Err(Error::NotFound { .. }) => return Ok(()),
            opened => opened?,
        };
        let doomed = doomed_name(name);
        match rustix::fs::renameat(parent.fd(), name, parent.fd(), doomed.as_slice()) {
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed(e)),
            Ok(()) => erase_entry(&parent, &doomed).map_err(failed),
        }
    }

    /// Finishes deletions that [`Folder::erase`] began in this directory before a crash. Returns the number of trees.
    pub fn finish_erasing(parent: &Path) -> std::result::Result<u64, Error> {
        let folder = Folder::open(parent)?;
        let mut finished = 0;
        for entry in folder.list()? {
            if is_doomed(&entry.name) {
                erase_entry(&folder, &entry.name).map_err(|e| Error::system("erase", &entry.name, e))?;
                finished += 1;
            }
        }
        Ok(finished)
    }
}

fn doomed_name(name: &OsStr) -> Vec<u8> {
    // A name may have 255 bytes, and the mark needs 42 of them.
    let name = name.as_bytes();
    let start = &name[..name.len().min(200)];
    let random = uuid::Uuid::new_v4().simple().to_string();
    [b".", start, MARK.as_bytes(), random.as_bytes()].concat()
}

fn is_doomed(name: &[u8]) -> bool {
    let Some(start) = name.len().checked_sub(MARK.len() + 32) else { return false };
    let (mark, random) = name[start..].split_at(MARK.len());
    name.starts_with(b".") && mark == MARK.as_bytes() && random.iter().all(u8::is_ascii_hexdigit)
}

fn erase_entry(parent: &Folder, name: &[u8]) -> Result<()> {
    let mut erasing =
        TreeEraser { descent: TreeDescent::from(parent, DescentPurpose::Erase)?, levels: Vec::new() };
    if !erasing.unlink(name)? {
        erasing.enter(name.to_vec(), 0)?;
        while erasing.step()? {}
    }
    Ok(())
}

struct TreeEraser {
    descent: TreeDescent,
    levels: Vec<EraserLevel>,
}

struct EraserLevel {
    name: Vec<u8>,
    /// Subdirectories still to be entered.
    waiting: Vec<Vec<u8>>,
    round: usize,
}

impl TreeEraser {
    /// Enters one directory or removes one; returns false when the last one is gone.
    fn step(&mut self) -> Result<bool> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        match level.waiting.pop() {
            Some(name) => self.enter(name, 0)?,
            None => self.leave()?,
        }
        Ok(true)
    }

    fn enter(&mut self, name: Vec<u8>, round: usize) -> Result<()> {
        match self.descent.down(&name) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(()),
            // Another process put something else in its place.
            Err(Errno::LOOP | Errno::NOTDIR) => return self.unlink(&name).map(drop),
            Err(e) => return Err(e),
        }
        let waiting = self.unlink_all()?;
        self.levels.push(EraserLevel { name, waiting, round });
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        self.descent.up()?;
        match rustix::fs::unlinkat(self.descent.here(), level.name.as_slice(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY) if level.round < ROUNDS => self.enter(level.name, level.round + 1),
            Err(e) => Err(e),
        }
    }

    /// Removes everything here except directories, and returns their names.
    fn unlink_all(&self) -> Result<Vec<Vec<u8>>> {
        let mut directories = Vec::new();
        for name in walker::names(self.descent.here())? {
            if !self.unlink(&name)? {
                directories.push(name);
            }
        }
        Ok(directories)
    }

    /// Returns false if it is a directory.
    fn unlink(&self, name: &[u8]) -> Result<bool> {
        match rustix::fs::unlinkat(self.descent.here(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::ISDIR) => Ok(false),
            Err(e) => Err(e),
        }
    }
}
