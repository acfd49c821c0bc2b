//! Disk usage of files that have no name any more but use space as long as a process has them open or mapped. A walk
//! over a tree does not find them, so this looks for them in the processes that hold them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{self, File, Metadata},
    io::{self, BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::{
    process::{self, ThreadResource},
    reap,
};

/// For a thread that is not the first of its process; since Linux 6.9.
const ONE_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

/// Bounds a scan, so that a process with very many mappings cannot make it endless. It cannot hide others either: scans
/// start at varying processes.
const MAX_SCAN_TIME: Duration = Duration::from_secs(2);

/// Bytes of files on device `dev` that a sandbox holds and that have no name.
pub fn unlinked_bytes(run_dir: &Path, dev: u64) -> u64 {
    let mut found = UnlinkedFiles { dev, files: BTreeMap::new(), until: Instant::now() + MAX_SCAN_TIME };
    let mut all = reap::processes(run_dir);
    // Start at another process each time, so that those beyond the time limit are scanned sooner or later.
    let first = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.subsec_micros() as usize);
    let count = all.len().max(1);
    all.rotate_left(first % count);
    for pid in all {
        if found.is_late() {
            break;
        }
        // This leaves out a first thread that has ended: it holds nothing, while the other threads may.
        let threads = process::threads(pid);
        for thread in with_tables_of_their_own(&threads) {
            open_files(pid, thread).iter().for_each(|file| found.add(file));
        }
        threads.first().into_iter().for_each(|thread| found.add_mapped(*thread));
    }
    found.files.into_values().sum()
}

/// Threads mostly share one table of open files. A thread with a table of its own may hide files in it.
fn with_tables_of_their_own(threads: &[i32]) -> Vec<i32> {
    let mut own: Vec<i32> = Vec::new();
    for thread in threads {
        if !own.iter().any(|other| process::shares_resource(ThreadResource::Files, *other, *thread)) {
            own.push(*thread);
        }
    }
    own
}

fn open_files(pid: i32, thread: i32) -> Vec<Metadata> {
    match fs::read_dir(format!("/proc/{thread}/fd")) {
        Ok(entries) => entries.flatten().filter_map(|entry| fs::metadata(entry.path()).ok()).collect(),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => taken_files(pid, thread).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// A process can make itself undumpable, and then only root can read its descriptors in /proc. The user that created
/// its namespace may still duplicate them.
fn taken_files(pid: i32, thread: i32) -> Option<Vec<Metadata>> {
    let flags = if pid == thread { PidfdFlags::empty() } else { ONE_THREAD };
    let handle = rustix::process::pidfd_open(Pid::from_raw(thread)?, flags).ok()?;
    let entries = fs::read_dir(format!("/proc/{thread}/fdinfo")).ok()?;
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let taken =
        numbers.filter_map(|n| rustix::process::pidfd_getfd(&handle, n, PidfdGetfdFlags::empty()).ok());
    Some(taken.filter_map(|file| File::from(file).metadata().ok()).collect())
}

struct UnlinkedFiles {
    dev: u64,
    /// By inode number, so that a file held several times counts once.
    files: BTreeMap<u64, u64>,
    until: Instant,
}

impl UnlinkedFiles {
    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    fn add(&mut self, file: &Metadata) {
        if file.is_file() && file.nlink() == 0 && file.dev() == self.dev {
            self.files.insert(file.ino(), file.blocks() * 512);
        }
    }

    fn add_mapped(&mut self, thread: i32) {
        // Line by line: the mappings of all processes together may be hundreds of megabytes.
        let Ok(maps) = File::open(format!("/proc/{thread}/maps")) else { return };
        let lines = BufReader::new(maps).split(b'\n').map_while(io::Result::ok);
        let mut guessed = BTreeMap::new();
        for line in lines {
            if self.is_late() {
                break;
            }
            let Some(map) = ProcMapsLine::without_name(&String::from_utf8_lossy(&line)) else { continue };
            let file = format!("/proc/{thread}/map_files/{:x}-{:x}", map.from, map.to);
            match fs::metadata(file) {
                Ok(file) => self.add(&file),
                // Only root may read map_files. For other users a file counts as large as the mapped part of it.
                Err(_) if map.dev == (rustix::fs::major(self.dev), rustix::fs::minor(self.dev)) => {
                    let bytes: &mut u64 = guessed.entry(map.ino).or_default();
                    *bytes = (*bytes).max(map.end_in_file());
                }
                Err(_) => {}
            }
        }
        for (ino, bytes) in guessed {
            // An open descriptor has given the exact size already.
            if let Entry::Vacant(file) = self.files.entry(ino) {
                file.insert(bytes);
            }
        }
    }
}

/// A line of /proc/PID/maps.
#[derive(Debug, PartialEq, Eq)]
struct ProcMapsLine {
    from: u64,
    to: u64,
    offset: u64,
    dev: (u32, u32),
    ino: u64,
}

impl ProcMapsLine {
    fn without_name(line: &str) -> Option<ProcMapsLine> {
        let mut words = line.strip_suffix(" (deleted)")?.split(' ');
        let (from, to) = words.next()?.split_once('-')?;
        let offset = words.nth(1)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
        Some(ProcMapsLine {
            from: number(from)?,
            to: number(to)?,
            offset: number(offset)?,
            dev: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            ino: words.next()?.parse().ok()?,
        })
    }

    fn end_in_file(&self) -> u64 {
        self.offset.saturating_add(self.to.saturating_sub(self.from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_unlinked_file_is_recognized_by_its_line() {
        let line = "7f10a0000000-7f10a0100000 rw-s 00200000 fe:10 247706     /work space/a b (deleted)";
        let map = ProcMapsLine::without_name(line).expect("it has no name");
        let expected = ProcMapsLine {
            from: 0x7f10_a000_0000,
            to: 0x7f10_a010_0000,
            offset: 2 << 20,
            dev: (0xfe, 0x10),
            ino: 247_706,
        };
        assert_eq!(map, expected);
        assert_eq!(map.end_in_file(), 3 << 20);
        assert_eq!(ProcMapsLine::without_name(&line.replace(" (deleted)", "")), None);
        assert_eq!(ProcMapsLine::without_name("nonsense (deleted)"), None);
    }
}
