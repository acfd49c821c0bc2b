//! Opens directories at any depth. Neighbours share most of their path, so it keeps handles on the way instead of
//! starting at the root each time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::folder::{open_beneath, pass_beneath};

/// How many levels one lookup passes. For deeper paths it keeps a handle after each such step.
const LEVELS: usize = 128;

pub(super) struct DirectoryOpener<'l> {
    root: BorrowedFd<'l>,
    /// Handles by path; each is beneath the one before.
    rungs: Vec<(Vec<u8>, OwnedFd)>,
}

impl<'l> DirectoryOpener<'l> {
    pub(super) fn new(root: BorrowedFd<'l>) -> DirectoryOpener<'l> {
        DirectoryOpener { root, rungs: Vec::new() }
    }

    /// Opens a directory by its path; the empty path is the root.
    pub(super) fn open(&mut self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        while self.rungs.last().is_some_and(|(above, _)| !is_beneath(path, above)) {
            self.rungs.pop();
        }
        loop {
            let (from, start) = match self.rungs.last() {
                Some((above, handle)) => (handle.as_fd(), above.len() + 1),
                None => (self.root, 0),
            };
            let rest = &path[start..];
            let Some(end) = rest.iter().enumerate().filter(|(_, b)| **b == b'/').nth(LEVELS - 1) else {
                return open_beneath(from, if rest.is_empty() { b"." } else { rest });
            };
            let handle = pass_beneath(from, &rest[..end.0])?;
            self.rungs.push((path[..start + end.0].to_vec(), handle));
        }
    }
}

fn is_beneath(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"))
}
