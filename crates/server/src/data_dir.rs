//! The data directory: who may enter it, which server owns it, and what its disk can do. It holds keys and every
//! conversation.

use crate::filesystem::FilesystemInfo;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
    time::Duration,
};

/// A disk that was full counts as usable again when it takes this many bytes.
const PROBE_BYTES: usize = 1 << 20;

/// Creates the directory if it does not exist. If other users can enter it, this restricts it if it is ours, and
/// refuses it otherwise.
pub(crate) fn create_private(path: &Path) -> Result<(), String> {
    create_private_dir(path)?;
    let cannot = |error: std::io::Error| format!("cannot look at {}: {error}", path.display());
    let found = fs::metadata(path).map_err(cannot)?;
    check(path, (found.uid(), found.mode()), rustix::process::geteuid().as_raw())
}

/// Creates a directory that only our user can enter, if it does not exist.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), String> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| format!("cannot make {}: {error}", path.display()))
}

fn check(path: &Path, (owner, mode): (u32, u32), us: u32) -> Result<(), String> {
    let at = path.display();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    // The sticky bit marks a directory that users share, such as /tmp. Restricting it would break the machine.
    if mode & 0o1000 != 0 {
        return Err(format!(
            "{at} is a directory that all users share: give this server one of its own with ASH_DATA_DIR"
        ));
    }
    if owner != us {
        return Err(format!(
            "the data directory {at} can be entered by others (mode {:04o}, owned by uid {owner}, and this server runs as {us}): give this server one of its own with ASH_DATA_DIR, or `chown {us} {at} && chmod 0700 {at}`",
            mode & 0o7777
        ));
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))
        .map_err(|error| format!("cannot set the mode of {at} to 0700: {error}"))?;
    tracing::warn!(path = %at, was = format!("{:04o}", mode & 0o7777), "the data directory was open to others; its mode is now 0700");
    Ok(())
}

/// SQLite relies on locks, which network file systems do not provide reliably.
pub(crate) fn check_disk(data: &Path) -> Result<(), String> {
    let disk =
        FilesystemInfo::of(data).map_err(|error| format!("cannot look at {}: {error}", data.display()))?;
    match disk.network_filesystem {
        None => Ok(()),
        Some(kind) => Err(format!(
            "{} is on a network file system ({kind}), where SQLite loses data. Choose a local directory with --data-dir or ASH_DATA_DIR",
            data.display()
        )),
    }
}

/// Only one server may own a data directory.
pub(crate) fn lock(data: &Path) -> Result<fs::File, String> {
    let path = data.join("ash.lock");
    let file = fs::File::create(&path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    for _ in 0..20 {
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        // A server that was just killed may still hold the lock, and so may a process that only tests it.
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!(
        "another ash server uses {}. Stop it, or choose another directory with --data-dir",
        data.display()
    ))
}

/// Tells ext4 that the trees in this directory are unrelated, so that it spreads them over the disk. In one block group
/// all trees search for free inodes among those that were just erased. Without a journal this takes most of the time of
/// a new session. Other file systems do not know this hint and do not need it.
pub(crate) fn hint_top_level_dirs(dir: &Path) {
    if let Ok(dir) = fs::File::open(dir)
        && let Ok(flags) = ioctl_getflags(&dir)
    {
        ioctl_setflags(&dir, flags | IFlags::TOPDIR).ok();
    }
}

pub(crate) fn node_id(data: &Path) -> Result<String, String> {
    let path = data.join("node-id");
    if let Ok(text) = fs::read_to_string(&path)
        && !text.trim().is_empty()
    {
        return Ok(text.trim().to_owned());
    }
    let id = uuid::Uuid::new_v4().to_string();
    let fresh = data.join("node-id.new");
    fs::write(&fresh, &id)
        .and_then(|()| fs::rename(&fresh, &path))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(id)
}

/// Changes with every boot. Writes from before a boot that were not synced are lost.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Whether the disk accepts a file of the size that a small turn writes.
pub(crate) fn probe_disk_space(data: &Path) -> std::io::Result<()> {
    let path = data.join("probe.new");
    let written = fs::File::create(&path).and_then(|mut file| {
        file.write_all(&vec![0; PROBE_BYTES])?;
        file.sync_all()
    });
    fs::remove_file(&path).ok();
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn a_data_directory_that_others_can_enter_is_closed_to_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        create_private(&data).expect("made");
        assert_eq!(mode(&data), 0o700);
        fs::set_permissions(&data, Permissions::from_mode(0o755)).expect("open");
        create_private(&data).expect("closed");
        assert_eq!(mode(&data), 0o700);
    }

    #[test]
    fn an_open_data_directory_of_another_user_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = check(dir.path(), (1001, 0o40_755), 1000).expect_err("refused");
        assert!(refused.contains("ASH_DATA_DIR") && refused.contains("uid 1001"), "{refused}");
        assert_eq!(check(dir.path(), (1001, 0o40_700), 0), Ok(()), "only its owner can enter it");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).expect("shared");
        create_private(dir.path()).expect_err("a shared place is not closed");
        assert_eq!(mode(dir.path()), 0o1777);
    }
}
