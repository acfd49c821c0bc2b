//! Launches the sandbox: as root on a private stage and with the sandbox's own uid, as a user directly, or unconfined.
//! Everything here happens in the shim's only thread, because bubblewrap dies with the thread that started it, and
//! because only then a fork may do more than exec.

use std::{
    fs,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    fs::{Mode, OFlags},
    io::FdFlags,
    mount::{MountFlags, MountPropagationFlags},
    net::{AddressFamily, SocketFlags, SocketType},
};

use crate::{
    BackendKind, RequiredWalls, WallKind,
    confine::{self, BindMount, BubblewrapPolicy, HostRootEntry},
    egress, etc_files,
    frame::ShimPlan,
    init_protocol::{ConfineConfig, InitControlSocket},
    limits::{Cgroup, Rlimits},
    process,
    reap::ShimRemains,
};

use super::container;

const ROOTS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Never /tmp: bubblewrap mounts over it before it opens its sources.
const STAGES: [&str; 3] = ["/mnt", "/media", "/srv"];

#[derive(Debug)]
pub(super) struct LaunchedSandbox {
    /// Bubblewrap's outer process, or the init itself without a sandbox. None for containers, which are the engine's
    /// children.
    pub(super) child: Option<u32>,
    /// The init's pid on the host, if known already.
    pub(super) init: Option<u32>,
    pub(super) control: OwnedFd,
    /// Bubblewrap writes the init's pid on the host to this pipe.
    pub(super) status: Option<OwnedFd>,
    /// The error output of bubblewrap and init.
    pub(super) complaints: Option<OwnedFd>,
}

/// Starts the sandbox in control groups of our own or in a container.
pub(super) fn build(plan: &ShimPlan, left: &mut ShimRemains) -> io::Result<LaunchedSandbox> {
    if let Some(container) = &mut left.container {
        let container::RunningContainer { control, init, groups } =
            container::start_container(plan, container)?;
        container.groups = Some(groups);
        return Ok(LaunchedSandbox {
            child: None,
            init: Some(init),
            control,
            status: None,
            complaints: None,
        });
    }
    left.cgroup = Cgroup::create(plan.incarnation, &plan.limits);
    let limited = limited(&plan.required, left.cgroup.as_ref());
    limited.and_then(|()| launch_walls(plan, left.cgroup.as_ref())).inspect_err(|_| {
        left.cgroup.as_ref().map(Cgroup::try_remove);
    })
}

/// The server's check at its start does not ensure that control groups can be made now.
fn limited(required: &RequiredWalls, cgroup: Option<&Cgroup>) -> io::Result<()> {
    let limited = cgroup.is_some_and(|cgroup| cgroup.counts_memory() && cgroup.counts_processes());
    match required.has(WallKind::Limits) && !limited {
        true => Err(io::Error::other("ASH_WALLS_REQUIRED=limits, and no control groups can be made for it")),
        false => Ok(()),
    }
}

/// Every process of the sandbox is in `cgroup` from its first instruction.
fn launch_walls(plan: &ShimPlan, cgroup: Option<&Cgroup>) -> io::Result<LaunchedSandbox> {
    let flags = SocketFlags::CLOEXEC;
    let (control, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let (complaints, stderr) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    super::stdio::nonblocking(&control)?;
    super::stdio::nonblocking(&complaints)?;
    let raised = match plan.backend {
        BackendKind::Bubblewrap => bubblewrap(plan, cgroup, &theirs, stderr),
        BackendKind::None => bare(plan, cgroup, &theirs, stderr).map(|child| (child, None)),
        BackendKind::Docker => Err(io::Error::other("the plan names no engine")),
    };
    let (child, status) = raised.map_err(|e| explained(e, &complaints))?;
    let init = (plan.backend == BackendKind::None).then_some(child);
    Ok(LaunchedSandbox { child: Some(child), init, control, status, complaints: Some(complaints) })
}

/// A failed exec returns only an error number; the child has written the explanation to `complaints` before.
fn explained(e: io::Error, complaints: &OwnedFd) -> io::Error {
    let mut buffer = [0; 4096];
    match rustix::io::read(complaints, &mut buffer) {
        Ok(n) if n > 0 => io::Error::other(String::from_utf8_lossy(&buffer[..n]).trim().to_owned()),
        Ok(_) | Err(_) => e,
    }
}

fn orders(plan: &ShimPlan, control: &OwnedFd) -> String {
    let orders = ConfineConfig {
        control: InitControlSocket::Inherited(control.as_raw_fd()),
        backend: plan.backend,
        rlimits: Rlimits::of(&plan.limits),
        writable: vec![confine::WORKSPACE.into(), confine::HOME.into()],
        prefix: Vec::new(),
        user_namespaces: plan.user_namespaces,
        required: plan.required.clone(),
    };
    serde_json::to_string(&orders).expect("numbers and fixed paths always serialize")
}

fn bubblewrap(
    plan: &ShimPlan,
    cgroup: Option<&Cgroup>,
    control: &OwnedFd,
    stderr: OwnedFd,
) -> io::Result<(u32, Option<OwnedFd>)> {
    let (status, their_status) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    super::stdio::nonblocking(&status)?;
    let etc = match &plan.etc {
        Some(etc) => etc.clone(),
        None => own_etc(plan)?,
    };
    let mut policy = BubblewrapPolicy {
        roots: roots(),
        host_etc: etc_files::from_host(&etc),
        masked: confine::MASKED.iter().map(PathBuf::from).filter(|path| path.exists()).collect(),
        etc,
        workspace: plan.workspace.clone(),
        home: plan.home.clone(),
        exe: plan.exe.clone(),
        egress: plan.run_dir.join(egress::DIR),
        readonly: plan.readonly.iter().map(|dir| BindMount { from: dir.clone(), at: dir.clone() }).collect(),
        tmp_bytes: plan.limits.tmp_bytes,
        status_fd: their_status.as_raw_fd(),
        orders: orders(plan, control),
    };
    let stage = plan.uid.map(|uid| MountStage::for_policy(uid, &mut policy)).transpose()?;
    let mut command = Command::new(&plan.bwrap);
    command.args(confine::argv(&policy));
    let keep = [control.as_raw_fd(), their_status.as_raw_fd()];
    let enter = move || match &stage {
        Some(stage) => stage.enter(),
        None => Ok(()),
    };
    let cgroup = cgroup.cloned();
    let child = launch(command, stderr, keep, move || {
        join(cgroup.as_ref())?;
        enter()?;
        // After the change of uid, which clears it.
        process::die_with_parent()
    })?;
    Ok((child, Some(status)))
}

fn bare(plan: &ShimPlan, cgroup: Option<&Cgroup>, control: &OwnedFd, stderr: OwnedFd) -> io::Result<u32> {
    let mut command = Command::new(&plan.exe);
    command.arg("confine").arg(orders(plan, control)).current_dir(&plan.workspace);
    let uid = plan.uid;
    // No parent-death signal: when the shim dies, the init must live long enough to kill what it started.
    let cgroup = cgroup.cloned();
    launch(command, stderr, [control.as_raw_fd(); 2], move || {
        join(cgroup.as_ref())?;
        uid.map_or(Ok(()), become_user)
    })
}

fn join(cgroup: Option<&Cgroup>) -> io::Result<()> {
    cgroup.map_or(Ok(()), Cgroup::join).or_else(|e| complain("control groups", e))
}

fn launch(
    mut command: Command,
    stderr: OwnedFd,
    keep: [RawFd; 2],
    prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<u32> {
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // SAFETY: the shim has one thread, so the child's copy of the allocator and of every lock is consistent.
    unsafe {
        command.pre_exec(move || {
            process::restore_default(libc::SIGHUP);
            process::unblock_signals()?;
            process::lower_cpu_priority();
            prepare()?;
            process::close_on_exec_from(3)?;
            for fd in keep {
                let fd = std::os::fd::BorrowedFd::borrow_raw(fd);
                rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
            }
            Ok(())
        })
    };
    command.spawn().map(|child| child.id())
}

/// On merged systems /bin links into /usr; others have it as a directory of its own.
fn roots() -> Vec<HostRootEntry> {
    let look = |path: &&str| {
        let path = PathBuf::from(path);
        match fs::read_link(&path) {
            Ok(to) => Some(HostRootEntry::Link { at: path, to }),
            Err(_) if path.is_dir() => Some(HostRootEntry::Dir(path)),
            Err(_) => None,
        }
    };
    ROOTS.iter().filter_map(look).collect()
}

fn own_etc(plan: &ShimPlan) -> io::Result<PathBuf> {
    let etc = plan.run_dir.join("etc");
    etc_files::write(&etc)?;
    Ok(etc)
}

/// A private tmpfs on which the sandbox's uid reaches sources that lie beneath directories closed to it.
struct MountStage {
    uid: u32,
    base: PathBuf,
    /// From a host path to a name on the stage.
    binds: Vec<(PathBuf, PathBuf)>,
}

impl MountStage {
    /// Replaces the policy's sources by their paths on the stage.
    fn for_policy(uid: u32, policy: &mut BubblewrapPolicy) -> io::Result<Self> {
        let base = STAGES.iter().map(PathBuf::from).find(|dir| dir.is_dir());
        let base = base.ok_or_else(|| io::Error::other("none of /mnt, /media, /srv exists"))?;
        let mut stage = Self { uid, base, binds: Vec::new() };
        for (name, source) in [
            ("etc", &mut policy.etc),
            ("workspace", &mut policy.workspace),
            ("home", &mut policy.home),
            ("ash", &mut policy.exe),
            ("egress", &mut policy.egress),
        ] {
            stage.add(name.into(), source);
        }
        for (n, bind) in policy.readonly.iter_mut().enumerate() {
            stage.add(format!("readonly.{n}"), &mut bind.from);
        }
        Ok(stage)
    }

    fn add(&mut self, name: String, source: &mut PathBuf) {
        let on_stage = self.base.join(name);
        self.binds.push((std::mem::replace(source, on_stage.clone()), on_stage));
    }

    fn enter(&self) -> io::Result<()> {
        // SAFETY: separates this process's mounts; it shares memory with no other process.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return complain("own mount namespace", io::Error::last_os_error());
        }
        // Otherwise the stage would appear on the host.
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).or_else(|e| complain("private mounts", e.into()))?;
        // Opened before the tmpfs covers the base, because a source may lie beneath it.
        let sources = self.binds.iter().map(|(from, _)| open_path(from)).collect::<io::Result<Vec<_>>>()?;
        let options = c"mode=0755,size=64k";
        rustix::mount::mount(
            "ash",
            &self.base,
            "tmpfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            Some(options),
        )
        .or_else(|e| complain(&format!("tmpfs on {:?}", self.base), e.into()))?;
        for ((from, to), source) in self.binds.iter().zip(&sources) {
            bind(source, to).or_else(|e| complain(&format!("bind {from:?}"), e))?;
        }
        become_user(self.uid)
    }
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .or_else(|e| complain(&format!("open {path:?}"), e.into()))
}

fn bind(source: &OwnedFd, to: &Path) -> io::Result<()> {
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(source)?.st_mode);
    if kind.is_dir() {
        fs::create_dir(to)?;
    } else {
        fs::write(to, "")?;
    }
    Ok(rustix::mount::mount_bind_recursive(format!("/proc/self/fd/{}", source.as_raw_fd()), to)?)
}

/// Writes to stderr, which the shim reads together with bubblewrap's own errors.
fn complain<T>(what: &str, e: io::Error) -> io::Result<T> {
    let _ = writeln!(io::stderr(), "ash shim: {what}: {e}");
    Err(e)
}

fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: plain system calls in a process with one thread; groups first, while we still may.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(uid, uid, uid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    };
    if done { Ok(()) } else { complain("change of user", io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_without_groups_is_not_built_where_limits_are_required() {
        let dir = || Some(PathBuf::from("/sys/fs/cgroup/ash"));
        let none = Cgroup { memory: None, pids: None, freezer: dir(), unified: None, cpu: dir() };
        let all = Cgroup { memory: dir(), pids: dir(), ..none.clone() };
        let limits = RequiredWalls::parse("limits").expect("a wall");
        assert!(limited(&limits, Some(&all)).is_ok());
        assert!(limited(&limits, Some(&Cgroup { pids: None, ..all })).is_err());
        assert!(limited(&limits, Some(&none)).is_err() && limited(&limits, None).is_err());
        assert!(limited(&RequiredWalls::default(), None).is_ok());
    }
}
