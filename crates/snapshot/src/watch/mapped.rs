//! Files that processes have mapped shared and writable. A store into such a page is not a system call: it causes no
//! event, and the file's time changes only if the page was clean before.
//!
//! So a capture finds these files, has the kernel write them back, and only then reads them. Write-back cleans every
//! page, so the next store changes the time again and the next capture sees it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use super::paths;
use crate::folder::{FileAttributes, FileKind};
use crate::{Error, Folder, RelPath};

/// Upper limit for guessed paths. Paths appear as the sandbox sees them, so the prefix must be guessed. For a process
/// that maps thousands of files with long paths, the inode numbers must suffice.
const GUESSES: usize = 16_384;

/// A file that a process has mapped shared: stores into its pages are not system calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedMappedFile {
    /// Device and inode number.
    pub id: (u64, u64),
    /// The path beneath the root, if the file was found there at this moment. Without a path it may still be there
    /// under a name other than the mapped one: search for its inode.
    pub path: Option<RelPath>,
    /// The link to the mapping in /proc.
    link: String,
}

/// The files on one file system that processes have mapped shared.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SharedMappings {
    /// The files on the root's file system, each once.
    pub files: Vec<SharedMappedFile>,
    /// Running processes whose mappings could not be read.
    pub unread: Vec<i32>,
}

/// The files on the root's file system that these processes have mapped shared: those that they can write, and also
/// those that they only read.
pub fn mapped_writable(
    pids: impl Iterator<Item = i32>,
    root: &Folder,
) -> std::result::Result<SharedMappings, Error> {
    let device = FileAttributes::of(root.fd()).map_err(|e| Error::system("look at", b".", e))?.id.0;
    let (mut found, mut unread) = (BTreeMap::new(), Vec::new());
    for pid in pids {
        match mappings_of(pid, device) {
            Ok(mappings) => found.extend(mappings.into_iter().map(|mapping| (mapping.id, mapping))),
            // The process has ended, and with it its mappings. That closed the files, which is an event.
            Err(Errno::NOENT | Errno::SRCH) => {}
            Err(error) => {
                tracing::debug!(%error, pid, "a process does not show its mappings");
                unread.push(pid);
            }
        }
    }
    let mut guesses = GUESSES;
    let files = found.into_values().map(|mapping| {
        let path = mapping.find(root, &mut guesses);
        SharedMappedFile { id: mapping.id, path, link: mapping.link }
    });
    Ok(SharedMappings { files: files.collect(), unread })
}

/// Writes back what was stored into these files, and returns those that could not be opened.
pub fn sync_mapped<'a>(
    root: &Folder,
    files: &'a [SharedMappedFile],
) -> std::result::Result<Vec<&'a SharedMappedFile>, Error> {
    let mut missed = Vec::new();
    for file in files {
        match open_by_path(root, file).or_else(|_| open_by_mapping(file)) {
            Ok(opened) => {
                rustix::fs::fdatasync(opened).map_err(|e| Error::system("write back", file.name(), e))?
            }
            Err(_) => missed.push(file),
        }
    }
    Ok(missed)
}

impl SharedMappedFile {
    fn name(&self) -> &[u8] {
        self.path.as_ref().map_or(self.link.as_bytes(), RelPath::as_bytes)
    }
}

fn open_by_path(root: &Folder, file: &SharedMappedFile) -> Result<OwnedFd> {
    let path = file.path.as_ref().ok_or(Errno::NOENT)?;
    let named = paths::open_beneath(root.fd(), path.as_bytes(), OFlags::PATH | OFlags::NOFOLLOW)?;
    open_if_it_is(file, named)
}

/// The link in /proc leads to the file itself, whatever its name; only root may follow it.
fn open_by_mapping(file: &SharedMappedFile) -> Result<OwnedFd> {
    open_if_it_is(file, rustix::fs::open(&*file.link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

fn open_if_it_is(file: &SharedMappedFile, named: OwnedFd) -> Result<OwnedFd> {
    let is = FileAttributes::of(&named)?;
    if is.id != file.id || is.kind != FileKind::File {
        return Err(Errno::STALE);
    }
    let link = format!("/proc/self/fd/{}", named.as_raw_fd());
    rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The useful part of one line of /proc/PID/maps.
#[derive(Debug, PartialEq, Eq)]
struct ProcMapsEntry {
    id: (u64, u64),
    /// The path as the process sees it, except that a newline is `\012` and a deleted file's path ends with `
    /// (deleted)`.
    shown: Vec<u8>,
    link: String,
}

fn mappings_of(pid: i32, device: u64) -> Result<Vec<ProcMapsEntry>> {
    let file = std::fs::File::open(format!("/proc/{pid}/maps"));
    let lines = BufReader::new(file.map_err(|e| failed(&e))?).split(b'\n');
    let mut found = Vec::new();
    for line in lines {
        let line = line.map_err(|e| failed(&e))?;
        let Some(mut mapping) = parse(pid, &line) else { continue };
        // The line shows the device number of the file system; some file systems (btrfs) give files another one.
        if let Ok(is) = rustix::fs::stat(&*mapping.link) {
            mapping.id = FileAttributes::as_found(&is).id;
        } else if is_anonymous(mapping.id.0) && is_anonymous(device) {
            mapping.id.0 = device;
        }
        if mapping.id.0 == device {
            found.push(mapping);
        }
    }
    Ok(found)
}

/// Parses `start-end perms offset major:minor inode path`, for shared mappings of files only. Mappings that are not
/// writable now count too: they may have been writable a moment ago. How the file was opened cannot be checked,
/// because the mode of the link in map_files is that of whatever was mapped there first.
fn parse(pid: i32, line: &[u8]) -> Option<ProcMapsEntry> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut text = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let (range, access, _offset, device, inode) = (text()?, text()?, text()?, text()?, text()?);
    let (major, minor) = device.split_once(':')?;
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let id = (rustix::fs::makedev(number(major)?, number(minor)?), inode.parse().ok()?);
    if id.1 == 0 || access.as_bytes().get(3) != Some(&b's') {
        return None;
    }
    let shown = fields.next().unwrap_or_default().trim_ascii_start().to_vec();
    Some(ProcMapsEntry { id, shown, link: format!("/proc/{pid}/map_files/{}", bare(range)) })
}

/// The names of the links lack the leading zeros that the lines have.
fn bare(range: &str) -> String {
    let ends = range.split('-').map(|end| match end.trim_start_matches('0') {
        "" => "0",
        end => end,
    });
    ends.collect::<Vec<_>>().join("-")
}

fn is_anonymous(device: u64) -> bool {
    rustix::fs::major(device) == 0
}

impl ProcMapsEntry {
    /// Checks the inode: whatever the shown path is, it must lead to the mapped file.
    fn find(&self, root: &Folder, guesses: &mut usize) -> Option<RelPath> {
        let plain = unescaped(&self.shown);
        let shown = std::iter::once(&self.shown).chain((plain != self.shown).then_some(&plain));
        shown.flat_map(|path| suffixes(path)).find_map(|path| {
            *guesses = guesses.checked_sub(1)?;
            let path = RelPath::from_bytes(path).ok()?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let opened = paths::open_beneath(root.fd(), path.as_bytes(), flags).ok()?;
            (FileAttributes::of(opened.as_fd()).ok()?.id == self.id).then_some(path)
        })
    }
}

/// `/a/b/c` may be `a/b/c`, `b/c` or `c` beneath the root.
fn suffixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[at + 1..])
}

/// Only newlines are escaped, and backslashes are not. So the text does not show whether `\012` was a newline.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        match rest.strip_prefix(br"\012") {
            Some(after) => {
                plain.push(b'\n');
                rest = after;
            }
            None => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

fn failed(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<ProcMapsEntry> {
        parse(7, line.as_bytes())
    }

    #[test]
    fn shared_mappings_of_files_are_found_in_the_lines() {
        let line =
            r"00400000-7f0000002000 rw-s 00001000 fe:01 123                        /a b/c\012d (deleted)";
        let mapping = ProcMapsEntry {
            id: (rustix::fs::makedev(0xfe, 1), 123),
            shown: br"/a b/c\012d (deleted)".to_vec(),
            link: "/proc/7/map_files/400000-7f0000002000".to_owned(),
        };
        assert_eq!(parsed(line), Some(mapping));
        assert!(parsed("1000-2000 r--s 00000000 fe:01 123   /a").is_some());
        for other in [
            "1000-2000 rw-p 00000000 fe:01 123   /private",
            "1000-2000 rw-s 00000000 00:01 0     ",
            "1000-2000 rw-p 00000000 00:00 0 [heap]",
            "nonsense",
            "",
        ] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn newlines_come_back_and_every_suffix_is_tried() {
        assert_eq!(unescaped(br"/a\012b\\012\01"), b"/a\nb\\\n\\01");
        let all: Vec<&[u8]> = suffixes(b"/workspace/a/b").collect();
        assert_eq!(all, [&b"workspace/a/b"[..], b"a/b", b"b"]);
    }
}
