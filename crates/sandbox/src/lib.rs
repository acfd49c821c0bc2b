//! Sandboxes: starts them and carries lines in and out of them, across any crash of the server.
//!
//! A [`SandboxBackend`] launches a shim, a small process that builds the sandbox and outlives the server. A
//! [`SandboxLink`] is the connection to it. All output of the sandbox is a [`JournalRecord`] at an offset of its
//! journal: the caller acknowledges what it has stored, and after a crash it uses [`knock`] and follows from there. If
//! the shim itself is dead, [`drain`] reads the rest of its journal, and [`reap`] removes what it left.

mod confine;
mod container;
mod docker_backend;
mod docker_engine;
mod egress;
mod etc_files;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod init;
mod init_protocol;
mod journal;
mod limits;
mod link;
mod private_files;
mod probe;
mod process;
mod process_memory;
mod reap;
mod required_walls;
mod resource_usage;
mod shim;
mod unlinked_files;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use ash_model::{Epoch, FailureKind, Image, Incarnation};
use serde::{Deserialize, Serialize};

pub use docker_backend::DockerBackend;
pub use egress::{EgressPolicy, UsageAllowance, is_beneath, origin_of};
pub use frame::{HostProcess, ProcessSpec, ShimHello};
pub use journal::{JournalPayload, JournalRecord, ModelUsage, ProcessExit, drain};
pub use limits::SandboxLimits;
pub use link::{RecordStream, SandboxHandle, SandboxLink, ShimHandshake, knock};
pub use private_files::write_private;
pub use probe::{CgroupSupport, find_bubblewrap, groups, landlock_abi};
pub use process::keep_memory_private;
pub use reap::{processes, reap, remove_empty_groups};
pub use required_walls::{BadWallName, HostWallSupport, MissingWall, RequiredWalls, WallKind};
pub use resource_usage::{SandboxResourceUsage, resource_usage, scratch_files};
pub use unlinked_files::unlinked_bytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    Bubblewrap,
    /// A container of a Docker engine.
    Docker,
    /// `ASH_SANDBOX=none`: the agent runs as any other process of the user.
    None,
}

/// Whether processes inside may create user namespaces. In its own namespace a process has every capability, but only
/// over what belongs to it. Yet it reaches parts of the kernel that no other process inside reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserNamespacePolicy {
    #[default]
    Refused,
    Allowed,
}

impl UserNamespacePolicy {
    pub(crate) fn are_refused(&self) -> bool {
        *self == UserNamespacePolicy::Refused
    }
}

/// Limits at which a shim acts. The defaults are for production; tests make them small.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimLimits {
    /// With more unacknowledged bytes than this, the shim stops reading output.
    pub unacked_bytes: u64,
    /// A longer line of stdout ends its process.
    pub line_bytes: usize,
    /// A sandbox frozen for longer is thawed.
    pub hold_ms: u64,
}

impl Default for ShimLimits {
    fn default() -> Self {
        Self { unacked_bytes: 64 << 20, line_bytes: 32 << 20, hold_ms: 30_000 }
    }
}

/// One sandbox to launch. All paths are absolute and exist.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// New for every launch.
    pub incarnation: Incarnation,
    pub epoch: Epoch,
    /// Used by this sandbox alone: socket, journal and notes. A directory that was used before must be reaped before
    /// the launch.
    pub run_dir: PathBuf,
    /// Owned by `uid`, as is `home`.
    pub workspace: PathBuf,
    pub home: PathBuf,
    /// The user that the sandbox runs as. None: the server's user, who must not be root then.
    pub uid: Option<u32>,
    pub limits: SandboxLimits,
    /// Directories that appear inside at the same path.
    pub readonly: Vec<PathBuf>,
    /// The image that the agent wants, for backends with images.
    pub image: Option<Image>,
    pub user_namespaces: UserNamespacePolicy,
    /// How long a shim waits for a server before it ends the sandbox.
    pub orphan_ttl: Duration,
}

/// The paths that the agent sees inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxLayout {
    pub workspace: PathBuf,
    pub home: PathBuf,
    pub exe: PathBuf,
    /// The socket that accepts model calls as HTTP. [`SandboxHandle::set_egress`] decides where they go.
    pub model_socket: PathBuf,
    /// The directory of the files that [`write_private`] writes. No checkpoint contains it.
    pub private: PathBuf,
}

impl SandboxLayout {
    /// The socket of the session whose agent is this process: sessions may share a sandbox, and each has its own
    /// budget.
    pub fn model_socket_of(&self, process: u16) -> PathBuf {
        self.model_socket.with_file_name(egress::socket_name(process))
    }
}

#[async_trait::async_trait]
pub trait SandboxBackend: Send + Sync {
    fn layout(&self, spec: &SandboxSpec) -> SandboxLayout;

    /// Returns when the init inside has answered. If the sandbox cannot be built, the error has the output of the
    /// failed step.
    async fn launch(&self, spec: &SandboxSpec) -> Result<SandboxLink, Error>;

    /// Whether `launch` finds what it needs outside of this process: the engine, and the image that an agent names. The
    /// server asks before it accepts a message, so that a message which cannot run is not queued.
    async fn can_launch(&self, image: Option<&Image>) -> Result<(), Error>;
}

/// Sandboxes by bubblewrap, with Landlock and seccomp inside.
#[derive(Debug, Clone)]
pub struct BubblewrapBackend {
    exe: PathBuf,
    bwrap: PathBuf,
    etc: Option<PathBuf>,
    caps: ShimLimits,
    required: RequiredWalls,
}

impl BubblewrapBackend {
    /// Builds a sandbox once, as sessions will, and removes it again. `exe` is a program that calls [`shim_main`] and
    /// [`confine_main`] for its arguments `shim` and `confine`.
    pub async fn probe(exe: PathBuf) -> Result<Self, Error> {
        Self::probe_with(exe, RequiredWalls::default()).await
    }

    /// The same, but refuses to build a sandbox that lacks one of the `required` walls.
    pub async fn probe_with(exe: PathBuf, required: RequiredWalls) -> Result<Self, Error> {
        let bwrap = probe::find_bubblewrap()?;
        let walls = Self { exe, bwrap, etc: None, caps: ShimLimits::default(), required };
        probe::test_bubblewrap(&walls).await?;
        Ok(walls)
    }

    /// Keeps one /etc for all sandboxes in `dir`, instead of one for each. Blocking.
    pub fn sharing_etc(self, dir: PathBuf) -> Result<Self, Error> {
        match etc_files::write(&dir) {
            Ok(()) => Ok(Self { etc: Some(dir), ..self }),
            Err(source) => Err(Error::File { what: "prepare", path: dir, source }),
        }
    }

    pub fn with_caps(self, caps: ShimLimits) -> Self {
        Self { caps, ..self }
    }
}

#[async_trait::async_trait]
impl SandboxBackend for BubblewrapBackend {
    fn layout(&self, _spec: &SandboxSpec) -> SandboxLayout {
        SandboxLayout {
            workspace: confine::WORKSPACE.into(),
            home: confine::HOME.into(),
            exe: confine::EXE.into(),
            model_socket: egress::socket_in(egress::INSIDE.as_ref()),
            private: egress::INSIDE.into(),
        }
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<SandboxLink, Error> {
        if spec.uid.is_none() && rustix::process::geteuid().is_root() {
            // Whether or not its uid maps to 1000, the process would still be root to every file that it can see.
            return Err(Error::StartFailed { why: "started by root it needs a uid of its own".to_owned() });
        }
        let plan =
            plan(spec, BackendKind::Bubblewrap, (&self.exe, &self.bwrap), (&self.caps, &self.required))?;
        link::launch(frame::ShimPlan { etc: self.etc.clone(), ..plan }).await
    }

    async fn can_launch(&self, image: Option<&Image>) -> Result<(), Error> {
        // It may have been removed since the server started.
        if !self.bwrap.is_file() {
            return Err(probe::not_installed());
        }
        needs_no_image(image)
    }
}

/// No sandbox at all: for machines that cannot build one, and only if the operator asks for it explicitly.
#[derive(Debug, Clone)]
pub struct UnconfinedBackend {
    exe: PathBuf,
    caps: ShimLimits,
    required: RequiredWalls,
}

impl UnconfinedBackend {
    pub fn new(exe: PathBuf) -> Self {
        Self { exe, caps: ShimLimits::default(), required: RequiredWalls::default() }
    }

    /// Refuses to start processes that lack one of the `required` walls.
    pub fn requiring(self, required: RequiredWalls) -> Self {
        Self { required, ..self }
    }

    pub fn with_caps(self, caps: ShimLimits) -> Self {
        Self { caps, ..self }
    }
}

#[async_trait::async_trait]
impl SandboxBackend for UnconfinedBackend {
    fn layout(&self, spec: &SandboxSpec) -> SandboxLayout {
        SandboxLayout {
            workspace: spec.workspace.clone(),
            home: spec.home.clone(),
            exe: self.exe.clone(),
            model_socket: egress::socket_in(&spec.run_dir.join(egress::DIR)),
            private: spec.run_dir.join(egress::DIR),
        }
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<SandboxLink, Error> {
        let paths = (self.exe.as_path(), Path::new(""));
        link::launch(plan(spec, BackendKind::None, paths, (&self.caps, &self.required))?).await
    }

    async fn can_launch(&self, image: Option<&Image>) -> Result<(), Error> {
        needs_no_image(image)
    }
}

fn needs_no_image(image: Option<&Image>) -> Result<(), Error> {
    match image {
        None => Ok(()),
        Some(image) => {
            let why = format!("its agent wants the image {image}, which only ASH_SANDBOX=docker can give it");
            Err(Error::StartFailed { why })
        }
    }
}

fn plan(
    spec: &SandboxSpec,
    backend: BackendKind,
    (exe, bwrap): (&Path, &Path),
    (caps, required): (&ShimLimits, &RequiredWalls),
) -> Result<frame::ShimPlan, Error> {
    let paths = [&spec.run_dir, &spec.workspace, &spec.home].into_iter().chain(&spec.readonly);
    for path in paths.map(PathBuf::as_path).chain([exe]) {
        if path.to_str().is_none() || !path.is_absolute() {
            return Err(Error::Path(path.to_owned()));
        }
    }
    if backend != BackendKind::Docker {
        needs_no_image(spec.image.as_ref())?;
    }
    required.permits(spec, backend).map_err(|why| Error::StartFailed { why: why.to_owned() })?;
    Ok(frame::ShimPlan {
        version: frame::VERSION,
        incarnation: spec.incarnation,
        epoch: spec.epoch,
        backend,
        bwrap: bwrap.to_owned(),
        exe: exe.to_owned(),
        run_dir: spec.run_dir.clone(),
        workspace: spec.workspace.clone(),
        home: spec.home.clone(),
        uid: spec.uid,
        limits: spec.limits.clone(),
        readonly: spec.readonly.clone(),
        etc: None,
        orphan_ttl_ms: u64::try_from(spec.orphan_ttl.as_millis()).unwrap_or(u64::MAX),
        caps: caps.clone(),
        container: None,
        user_namespaces: spec.user_namespaces,
        required: required.clone(),
    })
}

/// The hidden subcommand `shim`. Call it first in `main`, before any thread exists.
pub fn shim_main() -> i32 {
    shim::main()
}

/// The hidden subcommand `confine`, with the arguments after that word. Call it before any thread exists, too.
pub fn confine_main(args: Vec<OsString>) -> i32 {
    init::main(&args)
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} {path:?}")]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("path {0:?} is not absolute or not UTF-8")]
    Path(PathBuf),
    #[error("the sandbox could not be started: {why}")]
    StartFailed { why: String },
    #[error("{why}. {remedy}")]
    Unavailable { why: String, remedy: &'static str },
    #[error("the sandbox refused: {why}")]
    Refused { why: String },
    #[error("the sandbox's keeper said something we do not understand")]
    UnknownFrame(#[from] frame::MalformedFrame),
    #[error("the sandbox is gone")]
    Gone,
    #[error("the sandbox did not {what} in time")]
    Timeout { what: &'static str },
    #[error("{bytes} bytes of input at once are too many")]
    TooLarge { bytes: usize },
    #[error("the way to a model cannot be used: {why}")]
    InvalidEgress { why: String },
    #[error("processes of a dead sandbox still run after 5 s")]
    StillRuns,
}

impl Error {
    pub fn kind(&self) -> FailureKind {
        match self {
            Error::File { .. } | Error::Path(_) | Error::UnknownFrame(_) | Error::StillRuns => {
                FailureKind::Internal
            }
            Error::StartFailed { .. } | Error::Unavailable { .. } | Error::Gone | Error::Timeout { .. } => {
                FailureKind::Unavailable
            }
            Error::Refused { .. } => FailureKind::Conflict,
            Error::InvalidEgress { .. } => FailureKind::Invalid,
            Error::TooLarge { .. } => FailureKind::TooLarge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_bubblewrap_nothing_can_be_launched() {
        let (exe, etc) = ("/bin/true".into(), None);
        let (caps, required) = (ShimLimits::default(), RequiredWalls::default());
        let mut walls = BubblewrapBackend { exe, bwrap: "/nowhere/bwrap".into(), etc, caps, required };
        let refused = walls.can_launch(None).await.expect_err("it is gone");
        assert!(refused.to_string().contains("bubblewrap is not installed"), "{refused}");
        walls.bwrap = "/bin/true".into();
        assert!(walls.can_launch(None).await.is_ok());
    }
}
