//! The /etc that sandboxes see: our own names, and mount points for the few parts of the host's /etc that hold none. It
//! is the same for all sandboxes, so a server keeps one: a dozen files per sandbox would be most of its disk writes.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

const HOST: [&str; 5] =
    ["/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl", "/etc/ca-certificates", "/etc/localtime"];

const OWN: [(&str, &str); 5] = [
    (
        "passwd",
        "root:x:0:0:root:/root:/usr/sbin/nologin\n\
         agent:x:1000:1000:agent:/home/agent:/bin/bash\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"),
    ("hosts", "127.0.0.1 localhost ash\n::1 localhost\n"),
    ("resolv.conf", ""),
];

/// The parts of the host's /etc to bind: those that exist on the host and have a mount point in `etc`.
pub(crate) fn from_host(etc: &Path) -> Vec<PathBuf> {
    let fits = |path: &PathBuf| match (path.metadata(), point(etc, path).metadata()) {
        (Ok(there), Ok(point)) => there.is_dir() == point.is_dir(),
        (Ok(_), Err(_)) | (Err(_), _) => false,
    };
    HOST.iter().map(PathBuf::from).filter(fits).collect()
}

fn point(etc: &Path, path: &Path) -> PathBuf {
    etc.join(path.strip_prefix("/etc").unwrap_or(path))
}

/// Creates the directory or repairs it. Correct files stay untouched, because running sandboxes read them.
pub(crate) fn write(etc: &Path) -> io::Result<()> {
    make_dir(etc)?;
    for path in HOST.map(Path::new) {
        let point = point(etc, path);
        match path.metadata() {
            Ok(there) if there.is_dir() => make_dir(&point)?,
            Ok(_) => make_file(&point, None)?,
            Err(_) => {}
        }
    }
    OWN.iter().try_for_each(|(name, text)| make_file(&etc.join(name), Some(text)))
}

/// Only the files with names, for an image that has the rest. The agent has the same numbers there as on the host.
pub(crate) fn write_names(etc: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    make_dir(etc)?;
    let numbers = |text: &str| text.replace("x:1000:1000:", &format!("x:{uid}:{gid}:"));
    make_file(&etc.join("passwd"), Some(&numbers(OWN[0].1)))?;
    make_file(&etc.join("group"), Some(&OWN[1].1.replace("x:1000:", &format!("x:{gid}:"))))
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    readable(path, 0o755)
}

/// Atomic: a crash must not leave half of a file that later looks complete.
fn make_file(path: &Path, text: Option<&str>) -> io::Result<()> {
    let is_right = match text {
        Some(text) => fs::read_to_string(path).is_ok_and(|found| found == text),
        None => path.is_file(),
    };
    if is_right {
        return Ok(());
    }
    let aside = path.with_file_name(format!(".{}", uuid::Uuid::new_v4()));
    fs::write(&aside, text.unwrap_or_default())?;
    readable(&aside, 0o644)?;
    fs::rename(&aside, path)
}

/// The sandbox's uid is not ours, so the server's umask must not decide what the sandbox can read.
fn readable(path: &Path, mode: u32) -> io::Result<()> {
    let right = fs::metadata(path)?.permissions().mode() & 0o777 == mode;
    if right { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(mode)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn wrong_files_are_replaced_and_right_ones_stay() {
        let base = tempfile::tempdir().expect("a directory");
        let etc = base.path().join("etc");
        write(&etc).expect("made");
        let inode = |name: &str| fs::metadata(etc.join(name)).expect("there").ino();
        let (group, names) = (inode("group"), fs::read_dir(&etc).expect("a list").count());
        fs::write(etc.join("passwd"), "root:x:0").expect("torn");
        fs::remove_file(etc.join("hosts")).expect("removed");
        fs::set_permissions(&etc, Permissions::from_mode(0o700)).expect("closed");

        write(&etc).expect("mended");

        assert_eq!(fs::read_to_string(etc.join("passwd")).expect("there"), OWN[0].1);
        assert_eq!(fs::read_to_string(etc.join("hosts")).expect("there"), OWN[3].1);
        assert_eq!(fs::metadata(&etc).expect("there").permissions().mode() & 0o777, 0o755);
        assert_eq!((inode("group"), fs::read_dir(&etc).expect("a list").count()), (group, names));
    }
}
