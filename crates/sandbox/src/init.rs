//! `ash confine`: the first process inside. It restricts itself before it starts anything, so no process can escape a
//! restriction. Then it starts, signals and reaps processes for the shim.

mod image_environment;
mod landlock;
mod mounts;
mod seccomp;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, FromRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use self::image_environment::ImageEnvironment;
use crate::{
    BackendKind,
    frame::ProcessSpec,
    init_protocol::{self, ConfineConfig, InitCommand, InitControlSocket, InitReport},
    limits::{self, Rlimits},
    process,
};

/// Processes in uninterruptible sleep do not stop. After this time the capture continues without a full stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn main(args: &[OsString]) -> i32 {
    let orders =
        args.first().and_then(|text| serde_json::from_slice::<ConfineConfig>(text.as_encoded_bytes()).ok());
    let Some(orders) = orders else {
        eprintln!("ash confine: is started by the shim, not by hand");
        return 64;
    };
    match begin(&orders).and_then(|mut init| init.run()) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("ash confine: {e}");
            1
        }
    }
}

struct SandboxInit {
    control: OwnedFd,
    children: OwnedFd,
    backend: BackendKind,
    /// By pid: init also reaps orphans that the shim did not start.
    running: BTreeMap<u32, u16>,
    image: ImageEnvironment,
}

fn begin(orders: &ConfineConfig) -> io::Result<SandboxInit> {
    process::prefer_for_oom_kill();
    if orders.backend == BackendKind::Docker {
        // A Docker engine starts this init, so no shim has lowered the priority already.
        process::lower_cpu_priority();
        mounts::refuse_beneath(&orders.writable)?;
    }
    // Before any other process runs: an agent could read the control socket and the memory of a dumpable init.
    process::set_undumpable()?;
    let control = connected(&orders.control)?;
    rustix::io::fcntl_setfd(&control, rustix::io::FdFlags::CLOEXEC)?;
    process::set_subreaper()?;
    // The modes of the agent's files must not depend on how the server was started.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let children = process::watch_children()?;
    limits::restrict(&Rlimits { processes: nproc(orders), ..orders.rlimits.clone() })?;
    match orders.backend {
        BackendKind::Bubblewrap | BackendKind::Docker => {
            rustix::thread::set_no_new_privs(true)?;
            let enforced = landlock::apply(&orders.writable, orders.user_namespaces);
            orders.required.check_inside(enforced.map_err(io::Error::other)?).map_err(io::Error::other)?;
            seccomp::apply(orders.user_namespaces).map_err(io::Error::other)?;
        }
        BackendKind::None => {}
    }
    let image = match orders.backend {
        BackendKind::Docker => ImageEnvironment::new(orders.prefix.clone()),
        BackendKind::Bubblewrap | BackendKind::None => ImageEnvironment::default(),
    };
    Ok(SandboxInit { control, children, backend: orders.backend, running: BTreeMap::new(), image })
}

fn connected(control: &InitControlSocket) -> io::Result<OwnedFd> {
    match control {
        // SAFETY: the shim left exactly this descriptor open for us, and nothing here has used it yet.
        InitControlSocket::Inherited(fd) => Ok(unsafe { OwnedFd::from_raw_fd(*fd) }),
        InitControlSocket::Listening(path) => {
            use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket)
        }
    }
}

/// Only in a user namespace, where the kernel counts separately. Elsewhere the limit would count all processes of the
/// user.
fn nproc(orders: &ConfineConfig) -> Option<u64> {
    match orders.backend {
        BackendKind::Bubblewrap => orders.rlimits.processes.filter(|_| process::kernel_at_least(5, 14)),
        BackendKind::Docker | BackendKind::None => None,
    }
}

impl SandboxInit {
    fn run(&mut self) -> io::Result<()> {
        self.report(&InitReport::Ready)?;
        loop {
            let mut fds =
                [process::wants(&self.control, libc::POLLIN), process::wants(&self.children, libc::POLLIN)];
            process::poll(&mut fds, None)?;
            if fds[1].revents != 0 {
                process::forget_signals(&self.children);
                self.reap()?;
            }
            if fds[0].revents != 0 && !self.obey() {
                self.kill_all();
                return Ok(());
            }
        }
    }

    /// False: the shim is gone, so every process here must end.
    fn obey(&mut self) -> bool {
        let (order, fds) = match init_protocol::receive::<InitCommand>(&self.control) {
            Ok(Some(message)) => message,
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Interrupted) => {
                return true;
            }
            Ok(None) | Err(_) => return false,
        };
        let report = match order {
            InitCommand::Start => self.start(fds),
            InitCommand::Signal { process, signal } => {
                self.signal(process, signal);
                return true;
            }
            InitCommand::StopAll => Some(InitReport::Stopped { all: self.stop_all() }),
            InitCommand::ContinueAll => {
                self.signal_everything(libc::SIGCONT);
                return true;
            }
        };
        report.is_none_or(|report| self.report(&report).is_ok())
    }

    fn report(&self, report: &InitReport) -> io::Result<()> {
        init_protocol::send(self.control.as_fd(), report, &[])
    }

    fn start(&mut self, fds: Vec<OwnedFd>) -> Option<InitReport> {
        let [what, stdin, stdout, stderr] = <[OwnedFd; 4]>::try_from(fds).ok()?;
        let start = init_protocol::unseal(what).ok()?;
        let process = start.process;
        Some(match spawn(&self.image.with_image_environment(start), [stdin, stdout, stderr], self.backend) {
            Ok(pid) => {
                self.running.insert(pid, process);
                InitReport::Started { process, pid }
            }
            Err(e) => InitReport::StartFailed { process, why: shortened(&e.to_string()) },
        })
    }

    fn signal(&self, process: u16, signal: i32) {
        if let Some((pid, _)) = self.running.iter().find(|(_, number)| **number == process) {
            // The whole group: the caller wants to interrupt a shell's children too.
            process::kill(-(*pid as i32), signal);
        }
    }

    fn stop_all(&self) -> bool {
        match self.backend {
            BackendKind::Bubblewrap | BackendKind::Docker => {
                self.signal_everything(libc::SIGSTOP);
                wait_until_stopped(Instant::now() + STOP_TIMEOUT)
            }
            BackendKind::None => false,
        }
    }

    /// -1 means every process in the pid namespace except its init, atomically against fork. Without a namespace it
    /// would mean every process of the user.
    fn signal_everything(&self, signal: i32) {
        if self.backend != BackendKind::None && std::process::id() == 1 {
            process::kill(-1, signal);
        }
    }

    fn reap(&mut self) -> io::Result<()> {
        while let Some((pid, status)) = process::reap_one() {
            if let Some(process) = self.running.remove(&pid) {
                let status = ExitStatus::from_raw(status);
                self.report(&InitReport::Exited { process, code: status.code(), signal: status.signal() })?;
            }
        }
        Ok(())
    }

    fn kill_all(&self) {
        match self.backend {
            // The end of pid 1 ends its namespace.
            BackendKind::Bubblewrap | BackendKind::Docker => {}
            BackendKind::None => process::kill_descendants(),
        }
    }
}

fn spawn(
    start: &ProcessSpec,
    [stdin, stdout, stderr]: [OwnedFd; 3],
    backend: BackendKind,
) -> io::Result<u32> {
    let (program, args) = start.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(&start.env).current_dir(&start.cwd);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    // SAFETY: only system calls; this process has one thread, so nothing can hold a lock here.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            process::unblock_signals()?;
            // CLOEXEC instead of close: std still needs its own pipe to report a failed exec.
            process::close_on_exec_from(3)?;
            if backend == BackendKind::None {
                // Without a pid namespace, each child must end with its parent by itself.
                process::die_with_parent()?;
            }
            Ok(())
        })
    };
    // `command` owns these copies of the pipes and must be dropped: another open copy would prevent end of file.
    match command.spawn() {
        Ok(child) => Ok(child.id()),
        Err(e) if e.kind() == io::ErrorKind::NotFound && !start.cwd.is_dir() => {
            Err(io::Error::new(e.kind(), format!("directory {:?}: {e}", start.cwd)))
        }
        Err(e) => Err(io::Error::new(e.kind(), format!("{program:?}: {e}"))),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(1000).collect()
}

/// The state is that of the first thread, which may have ended before the others.
fn is_running(process: process::ProcessStat) -> bool {
    let still = |state: char| matches!(state, 'T' | 't' | 'Z' | 'X');
    let others = || process::threads(process.pid as i32).into_iter();
    let ended = matches!(process.state, 'Z' | 'X');
    !still(process.state)
        || ended
            && others().filter_map(|thread| process::stat(thread as u32)).any(|thread| !still(thread.state))
}

/// A process acts on the signal some time after it is sent, so this waits until every process is stopped.
fn wait_until_stopped(deadline: Instant) -> bool {
    loop {
        let moving = process::all().into_iter().filter(|p| p.pid != 1).any(is_running);
        if !moving {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        let _ = process::poll(&mut [], Some(Duration::from_millis(1)));
    }
}
