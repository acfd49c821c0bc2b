//! The running sandbox as the shim holds it: the outer process, the init inside, their pipes and groups.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{FileExt, MetadataExt},
            process::ExitStatusExt,
        },
    },
    path::Path,
    process::ExitStatus,
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, Signal},
};

use super::{
    container,
    launch::{self, LaunchedSandbox},
};
use crate::{
    BackendKind,
    container::DockerContainer,
    egress::EgressSockets,
    frame::{HostProcess, ShimPlan},
    init_protocol::{self, InitCommand, InitReport},
    journal::{Journal, ProcessExit},
    limits::Cgroup,
    process,
    reap::ShimRemains,
};

/// The end of bubblewrap's output matters most.
const MAX_COMPLAINT_BYTES: usize = 4096;
const MAX_STATUS_BYTES: usize = 64 << 10;
/// One page: overwritten in place, a reader finds the old or the new text, never a mix.
const NOTE_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct ShimSandbox {
    backend: BackendKind,
    dir: File,
    note: File,
    left: ShimRemains,
    child: Option<u32>,
    control: Option<OwnedFd>,
    status: Option<OwnedFd>,
    status_text: Vec<u8>,
    complaints: Option<OwnedFd>,
    complaint_tail: Vec<u8>,
    /// A handle of the init process itself: its number may belong to another process by the time of a kill.
    init: Option<(HostProcess, OwnedFd)>,
    orders: VecDeque<(InitCommand, Vec<OwnedFd>)>,
    doors: EgressSockets,
    swept: bool,
    /// For a container: set when its init has ended, with the engine's report.
    container_exit: Option<container::ContainerExit>,
}

impl ShimSandbox {
    pub(super) fn build(plan: &ShimPlan) -> io::Result<(Self, Journal)> {
        let dir = File::open(&plan.run_dir)?;
        let journal = Journal::create(&dir, plan.incarnation)?;
        let mut left = ShimRemains {
            incarnation: plan.incarnation,
            boot: process::boot_id(),
            shim: HostProcess::of(std::process::id()),
            init: None,
            cgroup: None,
            container: plan.container.as_ref().map(|wanted| DockerContainer::of(wanted, plan.incarnation)),
        };
        // Before anything runs: whatever server finds this shim dead must know which processes to end. The groups have
        // our name.
        let note = leave(&dir, &left)?;
        let doors = EgressSockets::make(&dir, plan.uid)?;
        let LaunchedSandbox { child, init, control, status, complaints } = launch::build(plan, &mut left)?;
        let mut sandbox = Self {
            backend: plan.backend,
            dir,
            note,
            left,
            child,
            control: Some(control),
            status,
            status_text: Vec::new(),
            complaints,
            complaint_tail: Vec::new(),
            init: None,
            orders: VecDeque::new(),
            doors,
            swept: false,
            container_exit: None,
        };
        if let Some(init) = init {
            sandbox.found_init(init)?;
        }
        Ok((sandbox, journal))
    }

    pub(super) fn control(&self) -> Option<&OwnedFd> {
        self.control.as_ref()
    }

    pub(super) fn status(&self) -> Option<&OwnedFd> {
        self.status.as_ref()
    }

    pub(super) fn complaints(&self) -> Option<&OwnedFd> {
        self.complaints.as_ref()
    }

    pub(super) fn doors(&self) -> &EgressSockets {
        &self.doors
    }

    pub(super) fn doors_mut(&mut self) -> &mut EgressSockets {
        &mut self.doors
    }

    pub(super) fn init(&self) -> Option<HostProcess> {
        self.init.as_ref().map(|(process, _)| *process)
    }

    /// Whether init is pid 1 of a namespace, so that it can stop everything there and nothing else.
    pub(super) fn has_own_pids(&self) -> bool {
        self.backend != BackendKind::None
    }

    pub(super) fn read_complaints(&mut self) {
        let Some(fd) = &self.complaints else { return };
        let mut buffer = [0; 4096];
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => self.complaints = None,
            Ok(n) => {
                self.complaint_tail.extend_from_slice(&buffer[..n]);
                let excess = self.complaint_tail.len().saturating_sub(MAX_COMPLAINT_BYTES);
                self.complaint_tail.drain(..excess);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.complaints = None,
        }
    }

    pub(super) fn last_output(&mut self) -> String {
        for _ in 0..16 {
            self.read_complaints();
        }
        String::from_utf8_lossy(&self.complaint_tail).trim().to_owned()
    }

    pub(super) fn exit_description(&mut self, status: i32) -> String {
        let status = ExitStatus::from_raw(status);
        let exit = ProcessExit { code: status.code(), signal: status.signal(), oom: false };
        let words = self.last_output();
        if words.is_empty() { exit.to_string() } else { format!("{exit}: {words}") }
    }

    /// Bubblewrap writes one JSON document per line; the first contains the init's pid on the host.
    pub(super) fn read_status(&mut self) -> io::Result<()> {
        let Some(fd) = &self.status else { return Ok(()) };
        let mut buffer = [0; 4096];
        match rustix::io::read(fd, &mut buffer) {
            Ok(n) if n > 0 && self.status_text.len() < MAX_STATUS_BYTES => {
                self.status_text.extend(&buffer[..n])
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) | Err(_) => self.status = None,
        }
        let told = self.status_text.split(|byte| *byte == b'\n').find_map(|line| {
            serde_json::from_slice::<serde_json::Value>(line).ok()?.get("child-pid")?.as_u64()
        });
        match told.and_then(|pid| u32::try_from(pid).ok()) {
            Some(pid) if self.init.is_none() => self.found_init(pid),
            Some(_) | None => Ok(()),
        }
    }

    fn found_init(&mut self, pid: u32) -> io::Result<()> {
        let gone = || io::Error::other("the init process is gone");
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let handle = rustix::process::pidfd_open(id, PidfdFlags::empty()).map_err(|_| gone())?;
        let host = HostProcess::of(pid).ok_or_else(gone)?;
        self.init = Some((host, handle));
        self.left.init = Some(host);
        self.note.write_all_at(&page(&self.left)?, 0)
    }

    pub(super) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    pub(super) fn order(&mut self, order: InitCommand, fds: Vec<OwnedFd>) {
        self.orders.push_back((order, fds));
        self.send_orders();
    }

    pub(super) fn send_orders(&mut self) {
        let Some(control) = &self.control else { return };
        while let Some((order, fds)) = self.orders.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match init_protocol::send(control, order, &borrowed) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // If init is gone, the shim sees a dead child, and the commands have no effect.
                Ok(()) | Err(_) => drop(self.orders.pop_front()),
            }
        }
    }

    /// None: no report for now, or an invalid one.
    pub(super) fn hear(&mut self) -> Option<InitReport> {
        match init_protocol::receive::<InitReport>(self.control.as_ref()?) {
            // Descriptors from inside are dropped: no report has any.
            Ok(Some((report, _fds))) => Some(report),
            Err(e) if is_passing(&e) => None,
            Ok(None) | Err(_) => {
                self.control = None;
                // Without the socket no process inside can be controlled any more.
                self.kill();
                None
            }
        }
    }

    /// Readable when the init of a container has ended: it is no child, so no signal announces it.
    pub(super) fn watched(&self) -> Option<&OwnedFd> {
        let (_, handle) = self.init.as_ref()?;
        (self.backend == BackendKind::Docker && self.container_exit.is_none()).then_some(handle)
    }

    /// Asks the engine how its container ended.
    pub(super) fn on_container_exit(&mut self) -> String {
        let ended = self.left.container.as_ref().map(container::ended);
        let how = ended.as_ref().map(|ended| ended.how.clone()).unwrap_or_default();
        self.container_exit = ended;
        how
    }

    /// Whether this child was the outer process of the sandbox.
    pub(super) fn child_ended(&mut self, pid: u32) -> bool {
        let ours = self.child == Some(pid);
        if ours {
            self.child = None;
        }
        ours
    }

    pub(super) fn oom_kills(&self) -> u64 {
        let counted = self.left.groups().map_or(0, Cgroup::oom_kills);
        // A container's control group disappears with it, but its engine remembers whether there was a kill.
        counted.max(self.container_exit.as_ref().map_or(0, |ended| u64::from(ended.oom)))
    }

    pub(super) fn was_oom_killed(&self) -> bool {
        self.container_exit.as_ref().is_some_and(|ended| ended.oom)
    }

    pub(super) fn counts_memory(&self) -> bool {
        // An engine limits its containers, whether or not the shim sees their groups.
        self.left.container.is_some() || self.left.groups().is_some_and(Cgroup::counts_memory)
    }

    pub(super) fn can_freeze(&self) -> bool {
        self.left.groups().is_some_and(Cgroup::can_freeze)
    }

    pub(super) fn freeze(&self) -> bool {
        self.left.groups().is_some_and(|groups| groups.can_freeze() && groups.freeze().is_ok())
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.left.groups().is_some_and(Cgroup::is_frozen)
    }

    pub(super) fn thaw(&self) {
        if let Some(groups) = self.left.groups() {
            let _ = groups.thaw();
        }
    }

    pub(super) fn kill(&mut self) {
        match (&self.init, self.child) {
            (Some((_, handle)), _) => drop(rustix::process::pidfd_send_signal(handle, Signal::KILL)),
            (None, Some(child)) => process::kill(child as i32, libc::SIGKILL),
            (None, None) => {}
        }
        // v1 does not kill frozen processes before the thaw.
        self.thaw();
    }

    /// Removes what a killed sandbox leaves. Called until `is_empty`. `overdue`: kill the outer process and remove the
    /// container. `give_up`: leave the rest to the next server.
    pub(super) fn sweep(&mut self, overdue: bool, give_up: bool) {
        if overdue && let Some(child) = self.child.take() {
            process::kill(child as i32, libc::SIGKILL);
        }
        if self.child.is_some() || self.swept {
            return;
        }
        if let Some(container) = &self.left.container {
            // If the container is overdue, the removal also ends it.
            let due = self.container_exit.is_some() || overdue;
            self.swept = due && (container.engine.remove(&container.name).is_ok() || overdue);
            return;
        }
        if self.backend == BackendKind::None {
            process::kill_descendants();
        }
        self.swept = self.left.cgroup.as_ref().is_none_or(Cgroup::try_remove) || give_up;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.child.is_none() && self.swept
    }

    /// Whether the run directory no longer exists, or another one has its path.
    pub(super) fn is_run_dir_replaced(&self, run_dir: &Path) -> bool {
        match (fs::metadata(run_dir), self.dir.metadata()) {
            (Ok(there), Ok(ours)) => (there.dev(), there.ino()) != (ours.dev(), ours.ino()),
            (Err(e), _) => e.kind() == io::ErrorKind::NotFound,
            (Ok(_), Err(_)) => false,
        }
    }
}

fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::InvalidData)
}

/// Written to another file and renamed: a reader finds the whole text or none.
fn leave(dir: &File, left: &ShimRemains) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(dir, "init.tmp", flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all_at(&page(left)?, 0)?;
    rustix::fs::renameat(dir, "init.tmp", dir, "init")?;
    Ok(file)
}

fn page(left: &ShimRemains) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(left).map_err(io::Error::other)?;
    text.resize(text.len().max(NOTE_BYTES), b' ');
    Ok(text)
}
