//! The disk under the benchmark: a journaling file system in an image file. Without a journal, creating files soon
//! after others were deleted takes ten times as long and would hide everything else.

use anyhow::{Context, Result, ensure};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

const GIGABYTES: u64 = 8;

pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// Mounts for this process and its children only. Callers must run it before they start threads, which would not
    /// see the mount.
    pub(crate) fn make(beneath: &Path) -> Result<Disk> {
        // SAFETY: it only reads.
        ensure!(unsafe { libc::geteuid() } == 0, "mounting needs root: or give --dir");
        // SAFETY: no memory is involved, and there is one thread.
        let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
        ensure!(done == 0, "cannot have mounts of our own: {}", std::io::Error::last_os_error());
        run(Command::new("mount").args(["--make-rprivate", "/"]))?;
        let dir = beneath.join(format!("ash-bench-far-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot make {dir:?}"))?;
        let disk = Disk { image: dir.with_extension("img"), dir };
        File::create(&disk.image)?.set_len(GIGABYTES << 30)?;
        let mkfs = ["-q", "-F", "-J", "size=128", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        run(Command::new("mkfs.ext4").args(mkfs).arg(&disk.image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&disk.image).arg(&disk.dir))?;
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg("--lazy").arg(&self.dir)) {
            eprintln!("{error:#}");
        }
        fs::remove_dir(&self.dir).ok();
        fs::remove_file(&self.image).ok();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let done = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}
