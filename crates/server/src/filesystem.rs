//! The file system of the data directory. SQLite needs locks and shared memory, which network file systems do not
//! provide. A database there would be damaged silently, so the server refuses it.

use rustix::fs::{StatFs, major, minor, stat, statfs};
use std::{fs, io, path::Path};

/// Properties of a file system that the operator must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesystemInfo {
    pub free_bytes: u64,
    /// `None` where the file system creates inodes on demand.
    pub free_inodes: Option<u64>,
    /// The name of the network file system, if it is one.
    pub network_filesystem: Option<&'static str>,
}

const FUSE: u32 = 0x6573_5546;

/// By the number that statfs(2) returns.
const REMOTE: [(u32, &str); 13] = [
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x4750_4653, "GPFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x1980_0202, "BeeGFS"),
    (0x0000_564c, "NCP"),
];

/// FUSE file systems may be local or remote; these are known to be remote.
const REMOTE_FUSE: [&str; 16] = [
    "sshfs",
    "s3fs",
    "rclone",
    "gcsfuse",
    "glusterfs",
    "ceph-fuse",
    "davfs",
    "davfs2",
    "curlftpfs",
    "goofys",
    "juicefs",
    "mount-s3",
    "mountpoint-s3",
    "blobfuse2",
    "smbnetfs",
    "lustre",
];

impl FilesystemInfo {
    /// The file system of `path`, which must exist.
    pub fn of(path: &Path) -> io::Result<FilesystemInfo> {
        let space = statfs(path)?;
        let StatFs { f_bavail, f_frsize, f_files, f_ffree, .. } = space;
        let fuse = fuse_name(path).unwrap_or_default();
        Ok(FilesystemInfo {
            free_bytes: f_bavail.saturating_mul(u64::try_from(f_frsize).unwrap_or(0)),
            free_inodes: (f_files > 0).then_some(f_ffree),
            // The numbers have 32 bits. The field has the width of a machine word, and may be signed.
            network_filesystem: remote(space.f_type as u32, &fuse),
        })
    }
}

fn remote(magic: u32, fuse: &str) -> Option<&'static str> {
    if magic == FUSE {
        return REMOTE_FUSE.into_iter().find(|name| *name == fuse);
    }
    REMOTE.into_iter().find(|(number, _)| *number == magic).map(|(_, name)| name)
}

fn fuse_name(path: &Path) -> Option<String> {
    let device = stat(path).ok()?.st_dev;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    fuse_mount(&mounts, &format!("{}:{}", major(device), minor(device)))
}

/// `sshfs`, from the line of the device: `36 35 0:52 / /mnt rw - fuse.sshfs host:/dir rw`.
fn fuse_mount(mounts: &str, device: &str) -> Option<String> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let kind = line.split_once(" - ")?.1.split(' ').next()?;
    kind.strip_prefix("fuse.").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_distinguished_from_local_ones() {
        let (ext4, btrfs, tmpfs, overlay) = (0xef53, 0x9123_683e, 0x0102_1994, 0x794c_7630);
        for local in [ext4, btrfs, tmpfs, overlay] {
            assert_eq!(remote(local, ""), None);
        }
        assert_eq!(remote(0x6969, ""), Some("NFS"));
        // As an i64 of a 32-bit number with the highest bit set.
        assert_eq!(remote(0xffff_ffff_ff53_4d42_u64 as u32, ""), Some("CIFS"));
        assert_eq!(remote(FUSE, "sshfs"), Some("sshfs"));
        assert_eq!(remote(FUSE, "ntfs-3g"), None);
        assert_eq!(remote(FUSE, ""), None);
    }

    #[test]
    fn the_kind_of_a_fuse_mount_is_found_by_its_device() {
        let mounts = "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            36 25 0:52 / /mnt/a\\040b rw,nosuid shared:7 master:2 - fuse.sshfs me@host:/ rw,user_id=0\n";
        assert_eq!(fuse_mount(mounts, "0:52").as_deref(), Some("sshfs"));
        assert_eq!(fuse_mount(mounts, "254:0"), None);
        assert_eq!(fuse_mount(mounts, "0:99"), None);
    }

    #[test]
    fn this_machines_own_disk_is_local_and_has_space() {
        let disk = FilesystemInfo::of(&std::env::temp_dir()).expect("a file system");
        assert!(disk.free_bytes > 0 && disk.network_filesystem.is_none(), "{disk:?}");
    }
}
