//! Opening beneath a handle: in one step by openat2 where there is one, else name by name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

use super::{FileAttributes, LinkPolicy};

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// NONBLOCK: opening a FIFO without a writer would wait for one for ever.
pub(super) const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The kernel gives up with EAGAIN when something is renamed during the lookup; somebody who renames without
/// a pause must not hold us for ever.
const PATIENCE: usize = 128;

pub(super) fn beneath(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    links: LinkPolicy,
) -> Result<OwnedFd> {
    match in_one_step(root, path, flags | OFlags::CLOEXEC, links) {
        // PERM: what old seccomp filters answer for calls they do not know.
        Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => name_by_name(root, path, flags),
        done => done,
    }
}

/// A directory at a path of any length; no link is followed.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    beneath(root, path, DIRECTORY, LinkPolicy::Refuse)
}

/// A directory on the way to others: nobody needs to be allowed to list it.
pub(crate) fn pass_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    beneath(root, path, OFlags::PATH | OFlags::DIRECTORY, LinkPolicy::Refuse)
}

fn in_one_step(root: BorrowedFd<'_>, path: &[u8], flags: OFlags, links: LinkPolicy) -> Result<OwnedFd> {
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let stay = match links {
        LinkPolicy::Refuse => stay | ResolveFlags::NO_SYMLINKS,
        LinkPolicy::Inside => stay,
    };
    for _ in 1..PATIENCE {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), stay) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    rustix::fs::openat2(root, path, flags, Mode::empty(), stay)
}

/// One name is one lookup, so NOFOLLOW on each is as strict as NO_SYMLINKS on all; no name is `..`.
fn name_by_name(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let device = FileAttributes::of(root)?.id.0;
    let mut names = path.split(|&b| b == b'/').peekable();
    let mut at: Option<OwnedFd> = None;
    while let Some(name) = names.next() {
        let how = match names.peek() {
            Some(_) => OFlags::PATH | OFlags::DIRECTORY,
            None => flags,
        };
        let from = at.as_ref().map_or(root, AsFd::as_fd);
        let next = rustix::fs::openat(from, name, how | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if FileAttributes::of(&next)?.id.0 != device {
            return Err(Errno::XDEV);
        }
        at = Some(next);
    }
    at.ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Both ways must agree on what is reachable, else old kernels would be less safe.
    #[test]
    fn neither_way_of_opening_follows_a_link() {
        let root = tempfile::tempdir().expect("a directory");
        let outside = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("made");
        std::fs::write(at("a/b/file"), "inside").expect("written");
        std::fs::write(outside.path().join("file"), "secret").expect("written");
        symlink(outside.path(), at("out")).expect("linked");
        symlink("a", at("in")).expect("linked");
        symlink("file", at("a/b/link")).expect("linked");
        let folder = crate::Folder::open(root.path()).expect("opened");
        for (path, reachable) in [
            ("a/b/file", true),
            ("out/file", false),
            ("in/b/file", false),
            ("a/b/link", false),
            ("a/b/file/x", false),
            ("a/missing", false),
        ] {
            let one = in_one_step(folder.fd(), path.as_bytes(), FILE, LinkPolicy::Refuse);
            let many = name_by_name(folder.fd(), path.as_bytes(), FILE);
            assert_eq!((one.is_ok(), many.is_ok()), (reachable, reachable), "{path}");
        }
        assert!(name_by_name(folder.fd(), b".", DIRECTORY).is_ok());
    }
}
