//! Writes without system calls are found by checking which processes could make them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use ash_snapshot::{Folder, RelPath, SharedMappedFile, SharedMappings, mapped_writable, sync_mapped};

use crate::support::{Bench, folders};

const PAGE: usize = 4096;
const TMPFS: i64 = 0x0102_1994;

/// A mapped page of a file; the file itself is closed again.
struct Page(*mut u8);

impl Page {
    fn map(path: &Path, how: libc::c_int) -> Page {
        let file = File::options().read(true).write(true).open(path).expect("opened");
        Page::of(&file, libc::PROT_READ | libc::PROT_WRITE, how)
    }

    fn of(file: &File, access: libc::c_int, how: libc::c_int) -> Page {
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, how, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Page(at.cast())
    }

    fn store(&self, byte: u8) {
        // SAFETY: the page is mapped writable until this is dropped, and its file is one page long.
        unsafe { self.0.write_volatile(byte) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nothing else points into it.
        unsafe { libc::munmap(self.0.cast(), PAGE) };
    }
}

fn page_file(root: &Path, name: &[u8]) -> std::path::PathBuf {
    let path = root.join(OsStr::from_bytes(name));
    fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    fs::write(&path, [0; PAGE]).expect("written");
    path
}

fn ours(root: &Path) -> (Folder, SharedMappings) {
    let folder = Folder::open(root).expect("opened");
    let mappings = mapped_writable(std::iter::once(std::process::id() as i32), &folder).expect("asked");
    assert_eq!(mappings.unread, []);
    (folder, mappings)
}

/// Only the files with paths, because other tests of this process map files too.
fn with_paths(mappings: &SharedMappings) -> Vec<&[u8]> {
    let mut paths: Vec<_> =
        mappings.files.iter().filter_map(|file| file.path.as_ref()).map(RelPath::as_bytes).collect();
    paths.sort_unstable();
    paths
}

fn id(path: &Path) -> (u64, u64) {
    let is = fs::symlink_metadata(path).expect("there");
    (is.dev(), is.ino())
}

fn modified(path: &Path) -> SystemTime {
    fs::symlink_metadata(path).expect("there").modified().expect("a time")
}

/// Waits until a write gets a later time than this.
fn wait_for_the_clock(beside: &Path, after: SystemTime) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let probe = beside.with_extension("clock");
    while {
        fs::write(&probe, "tick").expect("written");
        modified(&probe) <= after
    } {
        assert!(Instant::now() < deadline, "the clock stands still");
    }
    fs::remove_file(&probe).expect("removed");
}

#[test]
fn a_store_into_a_shared_mapping_is_not_reported_but_found_and_moves_the_time_after_each_sync() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = page_file(dir.path(), b"a/file");
    let page = Page::map(&path, libc::MAP_SHARED);
    let memory = rustix::fs::statfs(dir.path()).expect("asked").f_type as i64 == TMPFS;
    let mut before = modified(&path);
    for turn in 1..4 {
        wait_for_the_clock(&path, before);
        page.store(turn);
        page.store(turn + 100);
        let (folder, mappings) = ours(dir.path());
        assert_eq!(with_paths(&mappings), [b"a/file"]);
        let found: Vec<&SharedMappedFile> =
            mappings.files.iter().filter(|file| file.path.is_some()).collect();
        assert_eq!(found[0].id, id(&path));
        assert_eq!(
            sync_mapped(&folder, &[found[0].clone()]).expect("synced"),
            Vec::<&SharedMappedFile>::new()
        );
        assert_eq!(fs::read(&path).expect("read")[0], turn + 100);
        // A file system in memory never writes back, and stores do not change its times; there a capture must read
        // the file.
        assert!(memory || modified(&path) > before, "turn {turn}");
        before = modified(&path);
    }
}

#[test]
fn as_root_the_end_of_a_mapping_is_reported() {
    let bench = Bench::new();
    let path = page_file(&bench.root(), b"file");
    let page = Page::map(&path, libc::MAP_SHARED);
    bench.take();
    page.store(1);
    assert!(bench.take().is_empty(), "that is why the mappings are asked for");
    drop(page);
    assert_eq!(bench.take(), folders(&[("", Some(&["file"]))], &[]));
}

#[test]
fn shared_mappings_are_named_once_and_private_ones_are_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| page_file(dir.path(), name.as_bytes());
    let protected = File::options().read(true).write(true).open(at("protected")).expect("opened");
    let _pages = [
        Page::map(&at("shared"), libc::MAP_SHARED),
        Page::map(&at("shared"), libc::MAP_SHARED),
        Page::map(&at("private"), libc::MAP_PRIVATE),
        // One call to mprotect would make it writable.
        Page::of(&protected, libc::PROT_READ, libc::MAP_SHARED),
    ];
    assert_eq!(with_paths(&ours(dir.path()).1), [&b"protected"[..], b"shared"]);
}

#[test]
fn files_under_misleading_names_are_found_by_inode() {
    let dir = tempfile::tempdir().expect("a directory");
    let names: [&[u8]; 6] =
        [b"a\nb", br"a\012b", b"gone (deleted)", b"x/ 0 rw-s /etc/passwd", b"\xff\xfe", b"x/y"];
    let files: Vec<_> = names.iter().map(|name| page_file(dir.path(), name)).collect();
    let _pages: Vec<_> = files.iter().map(|file| Page::map(file, libc::MAP_SHARED)).collect();
    page_file(dir.path(), b"y");
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(with_paths(&ours(dir.path()).1), expected);

    fs::rename(&files[0], dir.path().join("renamed")).expect("renamed");
    fs::hard_link(&files[1], dir.path().join("left")).expect("linked");
    let lost = id(&files[1]);
    fs::remove_file(&files[1]).expect("removed");
    fs::write(&files[1], "another one").expect("written");
    let (folder, mappings) = ours(dir.path());
    assert!(with_paths(&mappings).contains(&&b"renamed"[..]));
    let lost: Vec<SharedMappedFile> = mappings.files.into_iter().filter(|file| file.id == lost).collect();
    assert_eq!(lost.iter().map(|file| &file.path).collect::<Vec<_>>(), [&None]);
    // Root reaches the file through the mapping; other users get it back as not reached.
    let missed = sync_mapped(&folder, &lost).expect("synced").len();
    assert_eq!(missed, usize::from(!rustix::process::geteuid().is_root()));
}

#[test]
fn a_process_that_ended_has_no_mappings_and_one_that_hides_them_is_named() {
    let folder = Folder::open(Path::new("/")).expect("opened");
    let gone = mapped_writable([i32::MAX].into_iter(), &folder).expect("asked");
    assert_eq!(gone, SharedMappings::default());
    let first = mapped_writable([1].into_iter(), &folder).expect("asked");
    // Root may not read it either, if that process has capabilities that root lacks here.
    let hidden = File::open("/proc/1/maps").is_err();
    assert_eq!(first.unread, if hidden { vec![1] } else { vec![] });
}
