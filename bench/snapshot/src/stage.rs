//! The file systems under the benchmark: with a journal, in image files, in a private mount namespace. The mounts
//! disappear with this process however it ends; only the image files need removing.

use crate::meter::{self, ENDED, RUNNING};
use anyhow::{Context, Result, ensure};
use std::{
    ffi::CString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering,
};

pub(crate) struct Stage {
    dir: PathBuf,
    images: Images,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Images {
    /// ext4 with a journal, mounted from a file.
    Mounted,
    /// Plain directories on whatever is there.
    None,
}

impl Stage {
    /// Callers must run it before they start threads: the namespace and the signal mask belong to the calling thread.
    pub(crate) fn make(beneath: &Path, images: Images) -> Result<Stage> {
        let dir = beneath.join(format!("ash-bench-snapshot-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot make {dir:?}"))?;
        let stage = Stage { dir, images };
        if images == Images::Mounted {
            ensure!(rustix::process::geteuid().is_root(), "mounting needs root: or give --dir");
            private_mounts()?;
        }
        clear_on_signal(stage.dir.clone());
        Ok(stage)
    }

    /// Creates an empty file system.
    pub(crate) fn disk(&self, name: &str, gigabytes: u64) -> Result<Disk> {
        let (dir, image) = (self.dir.join(name), self.dir.join(format!("{name}.img")));
        fs::create_dir(&dir)?;
        if self.images == Images::None {
            return Ok(Disk { dir, image: None });
        }
        File::create(&image)?.set_len(gigabytes << 30)?;
        let mkfs = ["-q", "-F", "-J", "size=128", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        meter::command(Command::new("mkfs.ext4").args(mkfs).arg(&image))?;
        meter::command(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&dir))?;
        Ok(Disk { dir, image: Some(image) })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// A file system that is removed on drop, which costs less than removing its files.
pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    image: Option<PathBuf>,
}

impl Disk {
    /// Flushes pending writes, so that no contender pays for those of another one.
    pub(crate) fn settle(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.dir)?)?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        match &self.image {
            Some(image) => {
                if let Err(error) = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH) {
                    eprintln!("cannot unmount {:?}: {error}", self.dir);
                }
                fs::remove_dir(&self.dir).ok();
                fs::remove_file(image).ok();
            }
            None => drop(fs::remove_dir_all(&self.dir)),
        }
    }
}

fn private_mounts() -> Result<()> {
    // SAFETY: no memory is involved; there is only one thread.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    ensure!(done == 0, "cannot have mounts of our own: {}", std::io::Error::last_os_error());
    let flags = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change(c"/", flags)?)
}

/// On a signal, ends the running command and removes the images.
fn clear_on_signal(dir: PathBuf) {
    // SAFETY: the set is made by sigemptyset before it is used; other threads inherit the mask.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both outlive the call.
        unsafe { libc::sigwait(&set, &mut signal) };
        let running = RUNNING.swap(ENDED, Ordering::SeqCst);
        if running > 0 {
            // SAFETY: a group that we made and have not waited for.
            unsafe { libc::kill(-running, libc::SIGKILL) };
        }
        unmount_beneath(&dir);
        fs::remove_dir_all(&dir).ok();
        eprintln!("interrupted");
        std::process::exit(128 + signal);
    });
}

/// Unmounts first, because removing the files on a mounted image would take minutes.
fn unmount_beneath(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if let Ok(path) = CString::new(entry.path().into_os_string().into_encoded_bytes()) {
            // SAFETY: a path that ends with a zero. What is no mount is left alone.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
    }
}
