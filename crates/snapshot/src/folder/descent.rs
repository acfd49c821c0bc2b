//! Walks down a tree and up again by handles: no path gets too long, nothing recurses, and the number of open handles
//! stays limited at any depth.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use super::{FileAttributes, Folder, ForcedHandle, LinkPolicy, forced_open, mode_loans::ModeLoanGuard, open};

/// At most this many levels stay open. Handles further up are closed, and reopened through `..` on the way back.
const OPEN_LEVELS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DescentPurpose {
    /// Permissions that were lent on the way down are given back on the way up.
    Read,
    Erase,
}

#[derive(Debug)]
pub(crate) struct TreeDescent {
    levels: Vec<DescentLevel>,
    purpose: DescentPurpose,
}

#[derive(Debug)]
struct DescentLevel {
    dir: Option<ForcedHandle>,
    id: (u64, u64),
    /// The mode loan of a level whose handle is closed.
    lent: Option<ModeLoanGuard>,
}

impl DescentLevel {
    fn of(dir: ForcedHandle) -> DescentLevel {
        DescentLevel { id: dir.is.id, dir: Some(dir), lent: None }
    }

    fn close(&mut self) {
        self.lent = self.dir.take().and_then(ForcedHandle::close);
    }
}

impl TreeDescent {
    pub(crate) fn from(folder: &Folder, purpose: DescentPurpose) -> Result<TreeDescent> {
        let handle = rustix::fs::openat(folder.fd(), c".", open::DIRECTORY, Mode::empty())?;
        Ok(TreeDescent { levels: vec![DescentLevel::of(ForcedHandle::again(handle, None)?)], purpose })
    }

    /// The current directory.
    pub(crate) fn here(&self) -> BorrowedFd<'_> {
        let dir = self.levels.last().and_then(|level| level.dir.as_ref());
        dir.expect("the last level is always open: down() opens it and up() opens it again").handle.as_fd()
    }

    pub(crate) fn depth(&self) -> usize {
        self.levels.len() - 1
    }

    pub(crate) fn down(&mut self, name: &[u8]) -> Result<FileAttributes> {
        let dir = match self.purpose {
            DescentPurpose::Read => forced_open::directory(self.here(), name, 0o500)?,
            DescentPurpose::Erase => forced_open::directory(self.here(), name, 0o700)?.keep(),
        };
        let is = dir.is;
        self.levels.push(DescentLevel::of(dir));
        // The root stays open, so that no lookup of `..` ever starts there.
        if let Some(far) = self.depth().checked_sub(OPEN_LEVELS).filter(|&far| far > 0) {
            self.levels[far].close();
        }
        Ok(is)
    }

    /// Returns to the parent directory that the descent came from. If the tree was moved meanwhile, the error is
    /// ESTALE.
    pub(crate) fn up(&mut self) -> Result<()> {
        self.leave(|_| Ok(()))
    }

    /// Reopens the parent by its path after the tree was moved. Returns false if nothing is there; the caller then
    /// tries the next level up. The root always exists.
    pub(crate) fn return_to(&mut self, path: &[u8]) -> Result<bool> {
        self.levels.pop();
        let [root, .., at] = &mut self.levels[..] else { return Ok(true) };
        let root = root.dir.as_ref().expect("the root stays open").handle.as_fd();
        match open::beneath(root, path, open::DIRECTORY, LinkPolicy::Refuse) {
            Ok(handle) => {
                let is = FileAttributes::of(&handle)?;
                let lent = at.lent.take().filter(|_| is.id == at.id);
                *at = DescentLevel::of(ForcedHandle::again(handle, lent)?);
                Ok(true)
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Goes up. `last` runs on the directory when the way up is already open, so it may even remove our own
    /// permission to be there.
    pub(crate) fn leave(&mut self, last: impl FnOnce(BorrowedFd<'_>) -> Result<()>) -> Result<()> {
        let [.., parent, left] = &mut self.levels[..] else { return Err(Errno::STALE) };
        if let (None, Some(left)) = (&parent.dir, &left.dir) {
            let flags = open::DIRECTORY | OFlags::NOFOLLOW;
            let above = rustix::fs::openat(&left.handle, c"..", flags, Mode::empty())?;
            if FileAttributes::of(&above)?.id != parent.id {
                return Err(Errno::STALE);
            }
            parent.dir = Some(ForcedHandle::again(above, parent.lent.take())?);
        }
        let done = last(self.here());
        self.levels.pop();
        done
    }
}

impl Drop for TreeDescent {
    /// An abandoned descent still gives back the permissions that were lent to it.
    fn drop(&mut self) {
        while self.depth() > 0 && self.up().is_ok() {}
    }
}
