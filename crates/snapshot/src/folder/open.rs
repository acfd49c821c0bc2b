//! Opens entries beneath a handle: in one step with openat2 where the kernel has it, otherwise name by name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

use super::{FileAttributes, LinkPolicy};

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// NONBLOCK: opening a FIFO that has no writer would block for ever.
pub(super) const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The kernel returns EAGAIN when something is renamed during the lookup. The limit keeps a process that renames
/// continuously from blocking us for ever.
const PATIENCE: usize = 128;

pub(super) fn beneath(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    links: LinkPolicy,
) -> Result<OwnedFd> {
    match in_one_step(root, path, flags | OFlags::CLOEXEC, links) {
        // Old seccomp filters answer PERM for unknown calls.
        Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => name_by_name(root, path, flags),
        done => done,
    }
}

/// Opens a directory at a path of any length; no link is followed.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    beneath(root, path, DIRECTORY, LinkPolicy::Refuse)
}

/// Opens a directory only to pass through it, which needs no permission to list it.
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

/// Each step looks up one name, so NOFOLLOW on each is as strict as NO_SYMLINKS on the whole path. No name is `..`.
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

    /// Both ways must agree on what is reachable, or servers on old kernels would be less safe.
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
