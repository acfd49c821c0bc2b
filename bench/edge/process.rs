//! What a process uses of the machine, as the kernel counts it. Megabytes are 1,000,000 bytes.

use anyhow::{Context, Result, ensure};
use std::{fs, io};

pub(crate) fn resident(pid: u32) -> Result<f64> {
    megabytes(pid, "VmRSS:")
}

/// Peak memory since `forget_peak`.
pub(crate) fn peak(pid: u32) -> Result<f64> {
    megabytes(pid, "VmHWM:")
}

/// Resets the peak.
pub(crate) fn forget_peak(pid: u32) -> Result<()> {
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

fn megabytes(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    kib.map(|kib: f64| kib * 1024.0 / 1e6).with_context(|| format!("no {name} of {pid}"))
}

pub(crate) fn sockets(pid: u32) -> Result<usize> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let links = files.filter_map(|entry| fs::read_link(entry.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count())
}

/// The soft and hard limits of open files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFiles {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

impl OpenFiles {
    pub(crate) fn of(pid: u32) -> Result<OpenFiles> {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let line = limits.lines().find(|line| line.starts_with("Max open files")).context("no such limit")?;
        let mut numbers = line.split_whitespace().skip(3).map(|number| number.parse().unwrap_or(u64::MAX));
        let (soft, hard) = (numbers.next(), numbers.next());
        Ok(OpenFiles { soft: soft.context("a soft limit")?, hard: hard.context("a hard limit")? })
    }

    /// Sets the limits of this process. Makes no allocation: the caller may be between fork and exec.
    pub(crate) fn set(self) -> io::Result<()> {
        let limit = libc::rlimit { rlim_cur: self.soft, rlim_max: self.hard };
        // SAFETY: the kernel reads a structure that is ours.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Raises the soft limit of open files to the hard limit.
pub(crate) fn open_many_files() -> Result<()> {
    let OpenFiles { hard, .. } = OpenFiles::of(std::process::id())?;
    OpenFiles { soft: hard, hard }.set()?;
    ensure!(hard >= 2048, "this benchmark opens a thousand files in each process, and may open {hard}");
    Ok(())
}
