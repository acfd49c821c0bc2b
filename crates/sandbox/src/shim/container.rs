//! Sandboxes by a Docker engine: a container whose first process is our own init. It is no child of the shim, so the
//! shim meets it at a socket and watches it by a pidfd.

use std::{
    ffi::{CStr, c_int, c_void},
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{PermissionsExt, chown},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt::socket_peercred};

use crate::{
    confine,
    container::{self, ContainerPolicy, ContainerRequest, DockerContainer, ExecutableBundle},
    docker_engine, egress, etc_files,
    frame::ShimPlan,
    init_protocol::{ConfineConfig, InitControlSocket},
    journal::ProcessExit,
    limits::{Cgroup, Rlimits},
    process,
};

/// In the directory that the container sees, until the init has connected.
const SOCKET: &str = "init.sock";
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an engine may take to report that a container has ended: a session waits for it.
const EXIT_NOTICE_TIME: Duration = Duration::from_secs(1);

/// A running container.
#[derive(Debug)]
pub(super) struct RunningContainer {
    pub(super) control: OwnedFd,
    pub(super) init: u32,
    pub(super) groups: Cgroup,
}

/// The result of a container that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerExit {
    pub(super) how: String,
    pub(super) oom: bool,
}

pub(super) fn start_container(plan: &ShimPlan, container: &DockerContainer) -> io::Result<RunningContainer> {
    let wanted = plan.container.as_ref().ok_or_else(|| io::Error::other("the plan names no image"))?;
    let user = plan.uid.map_or_else(own_user, |uid| (uid, uid));
    let etc = plan.run_dir.join("etc");
    etc_files::write_names(&etc, user)?;
    let listener = listen(&plan.run_dir.join(egress::DIR), user.0)?;
    let program = program(&plan.exe);
    let policy = ContainerPolicy {
        image: &wanted.image,
        incarnation: plan.incarnation,
        run_dir: &plan.run_dir,
        user,
        etc: &etc,
        workspace: &plan.workspace,
        home: &plan.home,
        program: &program,
        readonly: &plan.readonly,
        limits: &plan.limits,
        orders: orders(plan, &program),
    };
    make(wanted, container, &policy)?;
    let raised =
        container.engine.start(&container.name).and_then(|()| accept_init(container, &listener, user.0));
    let _ = fs::remove_file(plan.run_dir.join(egress::DIR).join(SOCKET));
    raised.inspect_err(|_| drop(container.engine.remove(&container.name)))
}

fn make(
    wanted: &ContainerRequest,
    container: &DockerContainer,
    policy: &ContainerPolicy<'_>,
) -> io::Result<()> {
    let ContainerRequest { engine, image } = wanted;
    engine.ping().map_err(|e| io::Error::other(docker_engine::explained(&engine.socket, &e)))?;
    if let Some(volume) = container::hidden_volume(&engine.volumes(image)?) {
        return Err(io::Error::other(format!(
            "the image {image} has a VOLUME at {volume}: no checkpoint would hold what is written there. Use an image without it"
        )));
    }
    let made = engine.create(&container.name, &container::config(policy));
    made.map_err(|e| match engine.has_image(image) {
        Ok(false) => io::Error::other(format!(
            "the image {image} is not on this machine; bring it here with `docker pull {image}`, or build it"
        )),
        Ok(true) | Err(_) => e,
    })
}

fn own_user() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn orders(plan: &ShimPlan, program: &ExecutableBundle) -> String {
    let orders = ConfineConfig {
        control: InitControlSocket::Listening(Path::new(egress::INSIDE).join(SOCKET)),
        backend: plan.backend,
        rlimits: Rlimits::of(&plan.limits),
        writable: vec![confine::WORKSPACE.into(), confine::HOME.into()],
        prefix: program.prefix(),
        user_namespaces: plan.user_namespaces,
        required: plan.required.clone(),
    };
    serde_json::to_string(&orders).expect("numbers and fixed paths always serialize")
}

fn listen(dir: &Path, uid: u32) -> io::Result<OwnedFd> {
    let handle = fs::File::open(dir)?;
    // Through its descriptor: a socket address holds 108 bytes, and a data directory may have a longer path.
    let path = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd())).join(SOCKET);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Ok(()) | Err(_) => {}
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(uid), Some(uid))?;
    }
    rustix::net::listen(&socket, 1)?;
    Ok(socket)
}

/// Waits until the init connects. No other process can: only the shim and the container can open the directory, and in
/// the container nothing runs before the shim commands the init to start it. The peer is checked anyway.
fn accept_init(container: &DockerContainer, listener: &OwnedFd, uid: u32) -> io::Result<RunningContainer> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        process::poll(&mut [process::wants(listener, libc::POLLIN)], Some(Duration::from_millis(100)))?;
        if let Ok(control) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            let peer = socket_peercred(&control)?;
            let pid = peer.pid.as_raw_nonzero().get() as u32;
            let init = container.engine.state(&container.name)?.map(|state| state.pid);
            if peer.uid.as_raw() == uid && init == Some(pid) {
                return Ok(RunningContainer { control, init: pid, groups: Cgroup::of(pid) });
            }
            return Err(io::Error::other("somebody else came in the place of the init"));
        }
        let ended = container.engine.state(&container.name)?.filter(|state| !state.running);
        if ended.is_some() || Instant::now() >= deadline {
            let how = if ended.is_some() { "the container ended" } else { "its init did not answer" };
            return Err(io::Error::other(format!(
                "{how}: {}",
                container.engine.last_output(&container.name)
            )));
        }
    }
}

/// The result of a container whose init is gone.
pub(super) fn ended(container: &DockerContainer) -> ContainerExit {
    let DockerContainer { engine, name, .. } = container;
    let deadline = Instant::now() + EXIT_NOTICE_TIME;
    loop {
        let state = match engine.state_within(EXIT_NOTICE_TIME, name) {
            Ok(Some(state)) if state.running && Instant::now() < deadline => None,
            Ok(state) => Some(state),
            Err(e) => return ContainerExit { how: format!("the container ended, and {e}"), oom: false },
        };
        match state {
            None => drop(process::poll(&mut [], Some(Duration::from_millis(10)))),
            Some(None) => return ContainerExit { how: "the container was removed".to_owned(), oom: false },
            Some(Some(state)) => {
                let exit = exit(state.exit_code, state.oom_killed);
                let words = engine.last_output(name);
                let how = if words.is_empty() { exit.to_string() } else { format!("{exit}: {words}") };
                // An engine also reports this if an earlier kill hit another process of the container.
                let oom = state.oom_killed && exit.signal == Some(libc::SIGKILL);
                return ContainerExit { how, oom };
            }
        }
    }
}

/// Engines report a signal as a shell does, as 128 plus its number.
fn exit(code: i32, oom: bool) -> ProcessExit {
    let signal = (code > 128).then(|| code - 128);
    ProcessExit { code: signal.is_none().then_some(code), signal, oom }
}

/// Our program as it runs here: it needs the libraries that are loaded now.
fn program(exe: &Path) -> ExecutableBundle {
    let mut loaded: Vec<(u64, PathBuf)> = Vec::new();
    // SAFETY: the callback gets the pointer to `loaded`, which outlives the call and which no other code uses.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut loaded).cast::<c_void>()) };
    // SAFETY: reads a number that the kernel gave this process.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    let is_loader = |(at, _): &(u64, PathBuf)| base != 0 && *at == base;
    let loader = loaded.iter().position(is_loader).map(|n| loaded.remove(n).1);
    ExecutableBundle {
        exe: exe.to_owned(),
        loader,
        libraries: loaded.into_iter().map(|(_, path)| path).collect(),
    }
}

unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, loaded: *mut c_void) -> c_int {
    // SAFETY: both pointers are valid for this call, and the name is a string that ends.
    let (info, loaded) = unsafe { (&*info, &mut *loaded.cast::<Vec<(u64, PathBuf)>>()) };
    if !info.dlpi_name.is_null() {
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        // The program itself has no name here, and the kernel's vDSO has no path.
        if path.is_absolute() {
            loaded.push((info.dlpi_addr, path.to_owned()));
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_needed_to_start_ash_are_on_this_machine() {
        let ExecutableBundle { loader, libraries, .. } = program("/usr/bin/ash".as_ref());
        assert!(loader.iter().chain(&libraries).all(|file| file.is_file()), "{loader:?} {libraries:?}");
        assert_eq!(
            loader.is_some(),
            libraries.iter().any(|file| file.ends_with("libc.so.6")),
            "{libraries:?}"
        );
    }

    #[test]
    fn an_exit_code_above_128_is_a_signal() {
        assert_eq!(exit(137, true).to_string(), "signal 9 (out of memory)");
        assert_eq!(exit(1, false), ProcessExit { code: Some(1), signal: None, oom: false });
    }
}
