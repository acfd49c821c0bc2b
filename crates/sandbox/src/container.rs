//! Builds the container configuration that the engine gets: what a container may see and do. Pure: a policy in, one
//! document out, so a change of the restrictions shows as a change of one snapshot.

use std::path::{Path, PathBuf};

use ash_model::Incarnation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    SandboxLimits,
    confine::{EXE, HOME, MASKED, SHM_BYTES, WORKSPACE},
    docker_engine::DockerEngine,
    egress,
    limits::Cgroup,
};

/// Where the libraries of our program are inside, for images that have other libraries or none.
const LIBRARIES: &str = "/.ash/lib";
/// Root's home. Images close it to other users, but an agent's program may be installed there.
const CLOSED: &str = "/root";
/// What engines mask by default. A list of our own replaces their list, so it repeats these paths.
const MASKED_BY_ENGINES: [&str; 6] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/scsi",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// Label with the incarnation of the sandbox. Containers without it are never touched.
pub(crate) const INCARNATION: &str = "ash.incarnation";
pub(crate) const RUN_DIR: &str = "ash.run_dir";

/// The part of a plan that describes the container to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRequest {
    pub(crate) engine: DockerEngine,
    pub(crate) image: String,
}

/// A container that exists, or that the shim is about to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DockerContainer {
    pub(crate) engine: DockerEngine,
    pub(crate) name: String,
    /// The engine's control groups. The shim can freeze and read them, but must not remove them.
    pub(crate) groups: Option<Cgroup>,
}

impl DockerContainer {
    pub(crate) fn of(wanted: &ContainerRequest, incarnation: Incarnation) -> Self {
        Self { engine: wanted.engine.clone(), name: format!("ash-{incarnation}"), groups: None }
    }
}

/// Our program, with the loader and the libraries that it needs in an image that has neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecutableBundle {
    pub(crate) exe: PathBuf,
    /// None: the program is linked statically.
    pub(crate) loader: Option<PathBuf>,
    pub(crate) libraries: Vec<PathBuf>,
}

/// The first volume of an image that lies in a directory that checkpoints capture: it would hide its files from them.
pub(crate) fn hidden_volume(volumes: &[String]) -> Option<&str> {
    let is_hidden = |at: &&String| {
        let at = cleaned(Path::new(at.as_str()));
        [WORKSPACE, HOME].iter().any(|place| at != Path::new(place) && at.starts_with(place))
    };
    volumes.iter().find(is_hidden).map(String::as_str)
}

/// A path without `.` and `..`, as an engine resolves it.
fn cleaned(path: &Path) -> PathBuf {
    use std::path::Component;
    path.components().fold(PathBuf::from("/"), |mut clean, part| {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
        clean
    })
}

fn in_libraries(file: &Path) -> String {
    format!("{LIBRARIES}/{}", file.file_name().unwrap_or_default().to_string_lossy())
}

impl ExecutableBundle {
    /// The words that go before the program's own command line inside.
    pub(crate) fn prefix(&self) -> Vec<String> {
        match &self.loader {
            Some(loader) => vec![in_libraries(loader), "--library-path".to_owned(), LIBRARIES.to_owned()],
            None => Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ContainerPolicy<'a> {
    pub(crate) image: &'a str,
    pub(crate) incarnation: Incarnation,
    pub(crate) run_dir: &'a Path,
    pub(crate) user: (u32, u32),
    /// The files with the names of users and groups that the server writes.
    pub(crate) etc: &'a Path,
    pub(crate) workspace: &'a Path,
    pub(crate) home: &'a Path,
    pub(crate) program: &'a ExecutableBundle,
    pub(crate) readonly: &'a [PathBuf],
    pub(crate) limits: &'a SandboxLimits,
    /// The argument of `ash confine`: a [`crate::init_protocol::ConfineConfig`] as JSON.
    pub(crate) orders: String,
}

pub(crate) fn config(policy: &ContainerPolicy<'_>) -> Value {
    let mut entry = policy.program.prefix();
    entry.extend([EXE.to_owned(), "confine".to_owned(), policy.orders.clone()]);
    let (uid, gid) = policy.user;
    json!({
        "Image": policy.image,
        "Entrypoint": entry,
        "Cmd": [],
        "User": format!("{uid}:{gid}"),
        "WorkingDir": WORKSPACE,
        "Hostname": "ash",
        "NetworkDisabled": true,
        // SIGKILL is the only signal from outside that ends an init.
        "StopSignal": "SIGKILL",
        "Healthcheck": { "Test": ["NONE"] },
        "Labels": { INCARNATION: policy.incarnation, RUN_DIR: policy.run_dir },
        "HostConfig": host(policy),
    })
}

fn host(policy: &ContainerPolicy<'_>) -> Value {
    let limits = policy.limits;
    json!({
        "Mounts": mounts(policy),
        "Tmpfs": scratch(policy),
        "ShmSize": SHM_BYTES,
        "ReadonlyRootfs": true,
        "NetworkMode": "none",
        "IpcMode": "private",
        // Files must have the same owner inside and on the host.
        "UsernsMode": "host",
        "CapDrop": ["ALL"],
        "Privileged": false,
        "SecurityOpt": ["no-new-privileges"],
        "MaskedPaths": MASKED.iter().chain(&MASKED_BY_ENGINES).collect::<Vec<_>>(),
        "Memory": limits.memory_bytes.unwrap_or(0),
        // Memory and swap together: the same value means no swap.
        "MemorySwap": limits.memory_bytes.unwrap_or(0),
        "PidsLimit": limits.processes.unwrap_or(0),
        // The server goes first if both want the same processor: a container has 1024 by default.
        "CpuShares": 512,
        "NanoCpus": limits.cpu_millis.unwrap_or(0) * 1_000_000,
        "RestartPolicy": { "Name": "no" },
        // The log holds only the init's own output; the output of agents goes through the shim.
        "LogConfig": { "Type": "json-file", "Config": { "max-size": "64k", "max-file": "1" } },
    })
}

/// The agent owns these mounts: if the path exists in the image, engines apply the mode that it has there.
fn scratch(policy: &ContainerPolicy<'_>) -> Value {
    let (uid, gid) = policy.user;
    let tmp = policy.limits.tmp_bytes;
    let mut places =
        json!({ "/tmp": format!("rw,exec,nosuid,nodev,mode=1777,uid={uid},gid={gid},size={tmp}") });
    if policy.readonly.iter().any(|dir| dir.starts_with(CLOSED)) {
        places[CLOSED] = json!(format!("rw,noexec,nosuid,nodev,mode=0755,uid={uid},gid={gid},size=64k"));
    }
    places
}

fn mounts(policy: &ContainerPolicy<'_>) -> Vec<Value> {
    let bind = |from: &Path, at: &str, readonly: bool| json!({ "Type": "bind", "Source": from, "Target": at, "ReadOnly": readonly });
    let mut mounts = vec![
        bind(policy.workspace, WORKSPACE, false),
        bind(policy.home, HOME, false),
        bind(&policy.run_dir.join(egress::DIR), egress::INSIDE, true),
        bind(&policy.etc.join("passwd"), "/etc/passwd", true),
        bind(&policy.etc.join("group"), "/etc/group", true),
        bind(&policy.program.exe, EXE, true),
    ];
    let libraries = policy.program.loader.iter().chain(&policy.program.libraries);
    mounts.extend(libraries.map(|file| bind(file, &in_libraries(file), true)));
    mounts.extend(policy.readonly.iter().map(|dir| bind(dir, &dir.to_string_lossy(), true)));
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_beneath_what_is_saved_are_found() {
        let hidden = |at: &str| hidden_volume(&[at.to_owned()]).is_some();
        for beneath in [
            "/workspace/data",
            "/home/agent/.cache/",
            "//workspace//x",
            "/srv/../workspace/./y",
            "workspace/z",
        ] {
            assert!(hidden(beneath), "{beneath}");
        }
        for elsewhere in
            ["/workspace", "/home/agent/", "/home", "/data", "/workspaces/x", "/workspace/../data"]
        {
            assert!(!hidden(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn the_container_is_exactly_this() {
        let program = ExecutableBundle {
            exe: "/usr/bin/ash".into(),
            loader: Some("/lib64/ld-linux-x86-64.so.2".into()),
            libraries: vec!["/lib/x86_64-linux-gnu/libc.so.6".into()],
        };
        let policy = ContainerPolicy {
            image: "ash-agent",
            incarnation: Incarnation(uuid::Uuid::nil()),
            run_dir: "/data/run".as_ref(),
            user: (200_001, 200_001),
            etc: "/data/run/etc".as_ref(),
            workspace: "/data/workspace".as_ref(),
            home: "/data/home".as_ref(),
            program: &program,
            readonly: &["/opt/tools".into(), "/root/.local/claude".into()],
            limits: &SandboxLimits::default(),
            orders: "{}".into(),
        };
        insta::assert_snapshot!(serde_json::to_string_pretty(&config(&policy)).expect("a document"));
    }
}
