//! Where the data is, or will be.

use super::Check;
use crate::out;
use ash_server::{Config, Disk};
use ash_snapshot::Unwatched;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const LITTLE_SPACE: u64 = 1_000_000_000;
const FEW_INODES: u64 = 10_000;

pub(super) fn check(config: &Config) -> Vec<Check> {
    let dir = match config.data_dir() {
        Ok(dir) => dir,
        Err(why) => return vec![Check::problem("data", why, "")],
    };
    let mut checks = vec![directory(&dir), changes(&existing(&dir))];
    match Disk::of(&existing(&dir)) {
        Ok(disk) => checks.extend([space(&disk), file_system(&dir, &disk)]),
        Err(error) => checks.push(Check::warning("disk", format!("cannot be looked at: {error}"), "")),
    }
    checks
}

/// The directory itself, or the nearest one above it that is there.
fn existing(dir: &Path) -> PathBuf {
    let found = dir.ancestors().find(|path| path.exists());
    found.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("/")).to_owned()
}

fn directory(dir: &Path) -> Check {
    let me = me();
    match fs::symlink_metadata(dir).and_then(|_| fs::metadata(dir)) {
        Ok(meta) => {
            let found = Found { is_dir: meta.is_dir(), mode: meta.mode(), owner: meta.uid(), me };
            judge_directory(dir, &found)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => not_yet(dir),
        Err(error) => {
            let remedy = "choose a directory of yours with ASH_DATA_DIR";
            Check::problem("data", format!("{}: {error}", dir.display()), remedy)
        }
    }
}

/// Whether captures know what was touched, or look at every file.
fn changes(dir: &Path) -> Check {
    let name = "changes";
    match ash_snapshot::Watch::start(dir) {
        Ok(_) => Check::fine(name, "followed by fanotify: a checkpoint visits only what was touched"),
        Err(why @ (Unwatched::Rights | Unwatched::Kernel)) => {
            Check::fine(name, format!("not followed, so a checkpoint looks at every file: {why}"))
        }
        Err(why @ (Unwatched::Filesystem { .. } | Unwatched::System { .. })) => Check::warning(
            name,
            format!("not followed, so a checkpoint looks at every file: {why}"),
            "put ASH_DATA_DIR on a local ext4, xfs or tmpfs, if workspaces are large",
        ),
    }
}

fn me() -> u32 {
    // SAFETY: reads a number of this process, and cannot fail.
    unsafe { libc::geteuid() }
}

fn not_yet(dir: &Path) -> Check {
    let above = existing(dir);
    let path = std::ffi::CString::new(above.as_os_str().as_encoded_bytes()).unwrap_or_default();
    // SAFETY: the path ends with a NUL and outlives the call.
    let writable = unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 };
    if writable {
        return Check::fine("data", format!("{} is made at the first start", dir.display()));
    }
    let found = format!("{} cannot be made: no permission to write to {}", dir.display(), above.display());
    Check::problem("data", found, "choose a directory of yours with ASH_DATA_DIR")
}

struct Found {
    is_dir: bool,
    mode: u32,
    owner: u32,
    me: u32,
}

fn judge_directory(dir: &Path, found: &Found) -> Check {
    let shown = dir.display();
    if !found.is_dir {
        return Check::problem(
            "data",
            format!("{shown} is not a directory"),
            "move it away, or set ASH_DATA_DIR",
        );
    }
    if found.owner != found.me {
        let what = format!("{shown} belongs to uid {}, and you are uid {}", found.owner, found.me);
        return Check::problem("data", what, "run ash as its owner, or set ASH_DATA_DIR");
    }
    let mode = found.mode & 0o777;
    if mode & 0o077 != 0 {
        let what = format!("{shown} is open to others (mode {mode:04o})");
        return Check::warning("data", what, format!("chmod 700 {shown}"));
    }
    if mode & 0o700 != 0o700 {
        let what = format!("{shown} is closed to its owner (mode {mode:04o})");
        return Check::problem("data", what, format!("chmod 700 {shown}"));
    }
    Check::fine("data", format!("{shown}, open to nobody else"))
}

fn space(disk: &Disk) -> Check {
    let inodes = disk.free_inodes.map_or_else(String::new, |free| format!(", {free} inodes"));
    let found = format!("{}{inodes} free", out::size(disk.free_bytes));
    let free_some = "free some, or move the data with ASH_DATA_DIR: turns cannot be saved on a full disk";
    let few = disk.free_inodes.is_some_and(|free| free < FEW_INODES);
    match disk.free_bytes {
        0 => Check::problem("disk", found, free_some),
        _ if disk.free_bytes < LITTLE_SPACE || few => Check::warning("disk", found, free_some),
        _ => Check::fine("disk", found),
    }
}

fn file_system(dir: &Path, disk: &Disk) -> Check {
    match disk.remote {
        Some(kind) => Check::problem(
            "database",
            format!("{} is on {kind}, where SQLite loses data", dir.display()),
            "set ASH_DATA_DIR to a directory on a local disk",
        ),
        None => Check::fine("database", "on a local file system"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn judge(is_dir: bool, mode: u32, owner: u32) -> Level {
        judge_directory(Path::new("/d"), &Found { is_dir, mode, owner, me: 1000 }).level
    }

    #[test]
    fn the_data_belongs_to_its_server_alone() {
        assert_eq!(judge(true, 0o40700, 1000), Level::Fine);
        assert_eq!(judge(true, 0o40750, 1000), Level::Warning);
        assert_eq!(judge(true, 0o40500, 1000), Level::Problem);
        assert_eq!(judge(true, 0o40700, 0), Level::Problem);
        assert_eq!(judge(false, 0o100_600, 1000), Level::Problem);
    }

    #[test]
    fn a_full_disk_is_a_problem_and_a_nearly_full_one_a_warning() {
        let disk = |free_bytes, free_inodes| space(&Disk { free_bytes, free_inodes, remote: None }).level;
        assert_eq!(disk(70_000_000_000, Some(1_000_000)), Level::Fine);
        assert_eq!(disk(70_000_000_000, None), Level::Fine);
        assert_eq!(disk(900_000_000, Some(1_000_000)), Level::Warning);
        assert_eq!(disk(70_000_000_000, Some(10)), Level::Warning);
        assert_eq!(disk(0, None), Level::Problem);
    }

    #[test]
    fn a_database_is_refused_on_a_network_file_system() {
        let disk = Disk { free_bytes: 1, free_inodes: None, remote: Some("NFS") };
        let check = file_system(Path::new("/net/ash"), &disk);
        assert_eq!(check.level, Level::Problem);
        assert_eq!(check.found, "/net/ash is on NFS, where SQLite loses data");
    }

    #[test]
    fn what_is_not_there_yet_is_judged_by_what_is_above_it() {
        assert_eq!(existing(Path::new("/tmp/no such/place/at all")), Path::new("/tmp"));
        assert_eq!(existing(Path::new("relative/nowhere")), Path::new("/"));
    }
}
