//! System calls about Linux processes that neither std nor rustix has, shared by shim, init and reaper.

use std::{
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use crate::frame::HostProcess;

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// No other process of the same user can read our memory or take our descriptors.
pub(crate) fn set_undumpable() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }).map(drop)
}

/// For a process with keys in its memory: no other process of the same user can read it, and it leaves no core dump,
/// neither in a file nor in the machine's crash collector.
pub fn keep_memory_private() -> io::Result<()> {
    set_undumpable()?;
    crate::limits::disable_core_dumps()
}

/// The kernel gives orphans to this process instead of to pid 1 of the machine.
pub(crate) fn set_subreaper() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }).map(drop)
}

/// Processes started from here on yield to the server if both want the same processor.
pub(crate) fn lower_cpu_priority() {
    // SAFETY: takes a number only. It cannot fail: every process may lower its own priority.
    unsafe { libc::nice(5) };
}

/// If the machine runs out of memory, the kernel kills this process and its children before the server. Otherwise it
/// would compare sizes alone. It works only in a dumpable process: in others the file belongs to root.
pub(crate) fn prefer_for_oom_kill() {
    let _ = fs::write("/proc/self/oom_score_adj", "500");
}

pub(crate) fn ignore(signal: i32) {
    // SAFETY: SIG_IGN runs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Ignored signals stay ignored across exec, and a child must not inherit that from us.
pub(crate) fn restore_default(signal: i32) {
    // SAFETY: SIG_DFL runs no code.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the caller owns every descriptor from `first` on, and holds none of them as a value.
    check(unsafe { libc::close_range(first, u32::MAX, 0) }).map(drop)
}

pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: changes a flag, closes nothing now.
    check(unsafe { libc::close_range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) }).map(drop)
}

/// A descriptor that is readable when a child has changed state.
pub(crate) fn watch_children() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is read; the new descriptor has no other owner.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
        let fd = check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Blocked signals stay blocked across exec, and a shell that never receives SIGCHLD waits for ever.
pub(crate) fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        check(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut())).map(drop)
    }
}

pub(crate) fn forget_signals(watch: &OwnedFd) {
    let mut buffer = [0; 1024];
    while rustix::io::read(watch, &mut buffer).is_ok_and(|read| read > 0) {}
}

/// Any child that has ended, with its raw wait status.
pub(crate) fn reap_one() -> Option<(u32, i32)> {
    let mut status = 0;
    // SAFETY: writes one integer.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid as u32, status))
}

/// A negative number is a process group, as with kill(2). An error means that the process is gone already, so it is
/// ignored.
pub(crate) fn kill(pid: i32, signal: i32) {
    // SAFETY: takes numbers only.
    unsafe { libc::kill(pid, signal) };
}

pub(crate) fn wants(fd: &impl AsRawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    // Rounded up: a timer that fires a millisecond early would only spin.
    let wait = timeout.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: pointer and length are those of one slice.
    match check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, wait) }) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(crate) fn kernel_at_least(major: u32, minor: u32) -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
}

/// New with every start of the machine; empty where the kernel has none.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// A value of sysconf(3), at least 1.
fn sysconf(which: i32) -> u64 {
    // SAFETY: takes a number and answers one.
    u64::try_from(unsafe { libc::sysconf(which) }).unwrap_or(1).max(1)
}

/// CPU time of a process and of all children that it has waited for.
pub(crate) fn cpu_time(pid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
    let ticks: u64 = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * 1000 / sysconf(libc::_SC_CLK_TCK)))
}

/// A process and all its descendants.
pub(crate) fn with_descendants(first: i32) -> Vec<i32> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children(*pid));
        next += 1;
    }
    found
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessStat {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) state: char,
    pub(crate) starttime: u64,
}

impl ProcessStat {
    /// A zombie runs nothing. It waits for its parent, or, as the first thread of a process, for the other threads.
    fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

pub(crate) fn stat(pid: u32) -> Option<ProcessStat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself hold any character.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
    Some(ProcessStat {
        pid,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        starttime: fields.get(19)?.parse().ok()?,
    })
}

pub(crate) fn all() -> Vec<ProcessStat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(stat).collect()
}

impl HostProcess {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        stat(pid).map(|seen| Self { pid, starttime: seen.starttime })
    }

    /// A process runs as long as one of its threads does.
    pub(crate) fn runs(self) -> bool {
        self.is_there() && live_thread(self.pid as i32).is_some()
    }

    /// Whether the number still belongs to this process, running or not.
    pub(crate) fn is_there(self) -> bool {
        stat(self.pid).is_some_and(|seen| seen.starttime == self.starttime)
    }
}

/// The threads that have not ended. Each has a directory in /proc like a process.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    let living = numbers.filter_map(stat).filter(ProcessStat::is_alive);
    living.filter_map(|seen| i32::try_from(seen.pid).ok()).collect()
}

/// A thread through which the process's resources are visible: a first thread that ends before the others loses them.
pub(crate) fn live_thread(pid: i32) -> Option<i32> {
    let first = u32::try_from(pid).ok().and_then(stat)?;
    if first.is_alive() { Some(pid) } else { threads(pid).first().copied() }
}

/// Resources that threads may share; the numbers are the kernel's.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ThreadResource {
    Memory = 1,
    Files = 2,
}

/// Whether two threads share the resource. If the kernel refuses to compare them, they count as separate.
pub(crate) fn shares_resource(part: ThreadResource, one: i32, other: i32) -> bool {
    // SAFETY: takes numbers only.
    one == other || unsafe { libc::syscall(libc::SYS_kcmp, one, other, part as i32, 0, 0) } == 0
}

/// The children of all threads of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Kills all children, and their children as this process inherits them, until none is left. Only for a subreaper.
pub(crate) fn kill_descendants() {
    let me = std::process::id();
    for _round in 0..1000 {
        while reap_one().is_some() {}
        let children: Vec<_> = all().into_iter().filter(|p| p.parent == me).collect();
        if children.is_empty() {
            return;
        }
        for child in children {
            kill(-(child.pid as i32), libc::SIGKILL);
            kill(child.pid as i32, libc::SIGKILL);
        }
        let _ = poll(&mut [], Some(Duration::from_millis(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_distinguished_from_a_later_one_with_its_pid() {
        let me = HostProcess::of(std::process::id()).expect("we run");
        assert!(me.runs());
        assert!(!HostProcess { starttime: me.starttime + 1, ..me }.runs());
    }
}
