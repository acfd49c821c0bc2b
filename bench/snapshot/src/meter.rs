//! Measures wall time and CPU time of this process, and of commands with everything they start.

use anyhow::{Context, Result, ensure};
use std::{
    mem::MaybeUninit,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::atomic::{AtomicI32, Ordering},
    time::Instant,
};

/// The process group under measurement, which the signal thread must end; 0 if there is none.
pub(crate) static RUNNING: AtomicI32 = AtomicI32::new(0);

/// Takes the place of a process group when the signal thread is cleaning up.
pub(crate) const ENDED: i32 = -1;

/// In seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

#[derive(Clone, Copy)]
enum Whose {
    Ours,
    Commands,
}

fn cpu(whose: Whose) -> f64 {
    let who = match whose {
        Whose::Ours => libc::RUSAGE_SELF,
        Whose::Commands => libc::RUSAGE_CHILDREN,
    };
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it fills the structure it is given, and all zeros is a valid one.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

pub(crate) fn ours<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
    let (began, before) = (Instant::now(), cpu(Whose::Ours));
    let done = work()?;
    Ok((done, Cost { wall: began.elapsed().as_secs_f64(), cpu: cpu(Whose::Ours) - before }))
}

/// Runs a command that must succeed.
pub(crate) fn command(command: &mut Command) -> Result<Cost> {
    // A process group of its own, so that one signal ends all of it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let (began, before) = (Instant::now(), cpu(Whose::Commands));
    let child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    let child_id = child.id() as i32;
    RUNNING.store(child_id, Ordering::SeqCst);
    let output = child.wait_with_output();
    // If the signal thread has taken the group, it ends this process too; wait for that.
    while RUNNING.compare_exchange(child_id, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        std::thread::park();
    }
    let cost = Cost { wall: began.elapsed().as_secs_f64(), cpu: cpu(Whose::Commands) - before };
    let output = output?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {said}");
    Ok(cost)
}
