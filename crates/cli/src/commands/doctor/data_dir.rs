//! Checks the data directory: its path, file system, permissions and free space.

use super::DoctorCheck;
use crate::terminal;
use ash_server::{FilesystemInfo, ServerConfig};
use ash_snapshot::WatchError;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const LITTLE_SPACE: u64 = 1_000_000_000;
const FEW_INODES: u64 = 10_000;

pub(super) fn check(config: &ServerConfig) -> Vec<DoctorCheck> {
    let dir = match config.data_dir() {
        Ok(dir) => dir,
        Err(why) => return vec![DoctorCheck::problem("data", why, "")],
    };
    let mut checks = vec![directory(&dir), changes(&existing(&dir))];
    match FilesystemInfo::of(&existing(&dir)) {
        Ok(disk) => checks.extend([space(&disk), file_system(&dir, &disk)]),
        Err(error) => checks.push(DoctorCheck::warning("disk", format!("cannot be examined: {error}"), "")),
    }
    checks
}

/// The directory itself, or its nearest existing ancestor.
fn existing(dir: &Path) -> PathBuf {
    let found = dir.ancestors().find(|path| path.exists());
    found.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("/")).to_owned()
}

fn directory(dir: &Path) -> DoctorCheck {
    let me = me();
    match fs::symlink_metadata(dir).and_then(|_| fs::metadata(dir)) {
        Ok(meta) => {
            let found = DataDirStat { is_dir: meta.is_dir(), mode: meta.mode(), owner: meta.uid(), me };
            judge_directory(dir, &found)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => not_yet(dir),
        Err(error) => {
            let remedy = "choose your own directory with ASH_DATA_DIR";
            DoctorCheck::problem("data", format!("{}: {error}", dir.display()), remedy)
        }
    }
}

/// Whether a capture visits only changed files, or every file.
fn changes(dir: &Path) -> DoctorCheck {
    let name = "changes";
    match ash_snapshot::FilesystemWatch::start(dir) {
        Ok(_) => DoctorCheck::fine(name, "followed by fanotify: a checkpoint visits only what was touched"),
        Err(why @ (WatchError::Rights | WatchError::Kernel)) => {
            DoctorCheck::fine(name, format!("not followed, so a checkpoint looks at every file: {why}"))
        }
        Err(why @ (WatchError::Filesystem { .. } | WatchError::System { .. })) => DoctorCheck::warning(
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

fn not_yet(dir: &Path) -> DoctorCheck {
    let above = existing(dir);
    let path = std::ffi::CString::new(above.as_os_str().as_encoded_bytes()).unwrap_or_default();
    // SAFETY: the path ends with a NUL and outlives the call.
    let writable = unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 };
    if writable {
        return DoctorCheck::fine("data", format!("{} is made at the first start", dir.display()));
    }
    let found = format!("{} cannot be made: no permission to write to {}", dir.display(), above.display());
    DoctorCheck::problem("data", found, "choose your own directory with ASH_DATA_DIR")
}

struct DataDirStat {
    is_dir: bool,
    mode: u32,
    owner: u32,
    me: u32,
}

fn judge_directory(dir: &Path, found: &DataDirStat) -> DoctorCheck {
    let shown = dir.display();
    if !found.is_dir {
        return DoctorCheck::problem(
            "data",
            format!("{shown} is not a directory"),
            "move it away, or set ASH_DATA_DIR",
        );
    }
    if found.owner != found.me {
        let what = format!("{shown} belongs to uid {}, and you are uid {}", found.owner, found.me);
        return DoctorCheck::problem("data", what, "run ash as its owner, or set ASH_DATA_DIR");
    }
    let mode = found.mode & 0o777;
    if mode & 0o077 != 0 {
        let what = format!("{shown} is open to others (mode {mode:04o})");
        return DoctorCheck::warning("data", what, format!("chmod 700 {shown}"));
    }
    if mode & 0o700 != 0o700 {
        let what = format!("{shown} is closed to its owner (mode {mode:04o})");
        return DoctorCheck::problem("data", what, format!("chmod 700 {shown}"));
    }
    DoctorCheck::fine("data", format!("{shown}, closed to other users"))
}

fn space(disk: &FilesystemInfo) -> DoctorCheck {
    let inodes = disk.free_inodes.map_or_else(String::new, |free| format!(", {free} inodes"));
    let found = format!("{}{inodes} free", terminal::format_bytes(disk.free_bytes));
    let free_some = "free some, or move the data with ASH_DATA_DIR: turns cannot be saved on a full disk";
    let few = disk.free_inodes.is_some_and(|free| free < FEW_INODES);
    match disk.free_bytes {
        0 => DoctorCheck::problem("disk", found, free_some),
        _ if disk.free_bytes < LITTLE_SPACE || few => DoctorCheck::warning("disk", found, free_some),
        _ => DoctorCheck::fine("disk", found),
    }
}

fn file_system(dir: &Path, disk: &FilesystemInfo) -> DoctorCheck {
    match disk.network_filesystem {
        Some(kind) => DoctorCheck::problem(
            "database",
            format!("{} is on {kind}, where SQLite loses data", dir.display()),
            "set ASH_DATA_DIR to a directory on a local disk",
        ),
        None => DoctorCheck::fine("database", "on a local file system"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::CheckSeverity, *};

    fn judge(is_dir: bool, mode: u32, owner: u32) -> CheckSeverity {
        judge_directory(Path::new("/d"), &DataDirStat { is_dir, mode, owner, me: 1000 }).level
    }

    #[test]
    fn the_data_belongs_to_its_server_alone() {
        assert_eq!(judge(true, 0o40700, 1000), CheckSeverity::Fine);
        assert_eq!(judge(true, 0o40750, 1000), CheckSeverity::Warning);
        assert_eq!(judge(true, 0o40500, 1000), CheckSeverity::Problem);
        assert_eq!(judge(true, 0o40700, 0), CheckSeverity::Problem);
        assert_eq!(judge(false, 0o100_600, 1000), CheckSeverity::Problem);
    }

    #[test]
    fn a_full_disk_is_a_problem_and_a_nearly_full_one_a_warning() {
        let disk = |free_bytes, free_inodes| {
            space(&FilesystemInfo { free_bytes, free_inodes, network_filesystem: None }).level
        };
        assert_eq!(disk(70_000_000_000, Some(1_000_000)), CheckSeverity::Fine);
        assert_eq!(disk(70_000_000_000, None), CheckSeverity::Fine);
        assert_eq!(disk(900_000_000, Some(1_000_000)), CheckSeverity::Warning);
        assert_eq!(disk(70_000_000_000, Some(10)), CheckSeverity::Warning);
        assert_eq!(disk(0, None), CheckSeverity::Problem);
    }

    #[test]
    fn a_database_is_refused_on_a_network_file_system() {
        let disk = FilesystemInfo { free_bytes: 1, free_inodes: None, network_filesystem: Some("NFS") };
        let check = file_system(Path::new("/net/ash"), &disk);
        assert_eq!(check.level, CheckSeverity::Problem);
        assert_eq!(check.found, "/net/ash is on NFS, where SQLite loses data");
    }

    #[test]
    fn a_missing_directory_is_judged_by_its_parent() {
        assert_eq!(existing(Path::new("/tmp/no such/place/at all")), Path::new("/tmp"));
        assert_eq!(existing(Path::new("relative/nowhere")), Path::new("/"));
    }
}
