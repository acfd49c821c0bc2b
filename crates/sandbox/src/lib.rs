//! THE WALLS: starts sandboxes and carries lines in and out of them, across any crash of the server.
//!
//! A [`Backend`] launches a shim, a small process that builds the walls and outlives us; a [`Link`] is the
//! connection to it. Everything the sandbox says is a [`Record`] at an offset of its journal: acknowledge what
//! is stored, and after a crash [`knock`] and follow from there. When the shim itself is dead, [`drain`] reads
//! what it left, and [`reap`] clears up after it.

mod confine;
mod container;
mod control;
mod docker;
mod egress;
mod engine;
mod etc;
mod frame;
mod init;
mod journal;
mod limits;
mod link;
mod memory;
mod nameless;
mod private;
mod probe;
mod process;
mod reap;
mod required;
mod shim;
mod spent;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use ash_model::{Epoch, Image, Incarnation, Kind};
use serde::{Deserialize, Serialize};

pub use docker::Docker;
pub use egress::{Allowance, Egress, is_beneath, origin_of};
pub use frame::{Hello, HostProcess, Start};
pub use journal::{Exit, ModelUsage, Record, What, drain};
pub use limits::Limits;
pub use link::{Knocked, Link, Records, Remote, knock};
pub use nameless::nameless_bytes;
pub use private::write_private;
pub use probe::{Groups, find as find_bubblewrap, groups, landlock_abi};
pub use process::keep_memory_private;
pub use reap::{processes, reap, remove_empty_groups};
pub use required::{BadWall, Lack, Machine, Required, Wall};
pub use spent::{Spent, scratch_files, spent};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Walls {
    Bubblewrap,
    /// A container of a Docker engine.
    Docker,
    /// `ASH_SANDBOX=none`: the agent runs as any other process of the user.
    None,
}

/// Whether processes inside may make user namespaces. In one of their own they have every capability, over nothing but
/// what is theirs; but with it they reach parts of the kernel that nobody else inside does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserNamespaces {
    #[default]
    Refused,
    Allowed,
}

impl UserNamespaces {
    pub(crate) fn are_refused(&self) -> bool {
        *self == UserNamespaces::Refused
    }
}

/// Where the patience of a shim ends. The defaults are the product's; tests make them small.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    /// With more than this unacknowledged, processes are not read any more.
    pub unacked_bytes: u64,
    /// A longer line of stdout ends its process.
    pub line_bytes: usize,
    /// A sandbox held still for longer is let go.
    pub hold_ms: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self { unacked_bytes: 64 << 20, line_bytes: 32 << 20, hold_ms: 30_000 }
    }
}

/// One sandbox to launch. All paths are absolute and exist.
#[derive(Debug, Clone)]
pub struct Spec {
    /// New for every launch.
    pub incarnation: Incarnation,
    pub epoch: Epoch,
    /// Ours alone: socket, journal and notes. Reaped before the launch, if it was used before.
    pub run_dir: PathBuf,
    /// Owned by `uid`, as is `home`.
    pub workspace: PathBuf,
    pub home: PathBuf,
    /// The user the sandbox runs as. None: our own, who must then not be root.
    pub uid: Option<u32>,
    pub limits: Limits,
    /// Directories that appear inside at the same path.
    pub readonly: Vec<PathBuf>,
    /// The image that the agent wants, where there are images.
    pub image: Option<Image>,
    pub user_namespaces: UserNamespaces,
    /// How long a shim waits for a server before it ends.
    pub orphan_ttl: Duration,
}

/// Where things are for the agent inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    pub workspace: PathBuf,
    pub home: PathBuf,
    pub exe: PathBuf,
    /// Where model calls are taken, as HTTP. What becomes of them is for [`Remote::egress`] to say.
    pub model_socket: PathBuf,
    /// Where [`write_private`] puts files. In no checkpoint.
    pub private: PathBuf,
}

impl Inside {
    /// The socket of the session whose agent is this process: several may share a sandbox, and each pays for its own.
    pub fn model_socket_of(&self, process: u16) -> PathBuf {
        self.model_socket.with_file_name(egress::socket_name(process))
    }
}

#[async_trait::async_trait]
pub trait Backend: Send + Sync {
    fn inside(&self, spec: &Spec) -> Inside;

    /// Returns when the init inside has answered. If the walls cannot be built, the error says what they said.
    async fn launch(&self, spec: &Spec) -> Result<Link, Error>;

    /// Whether `launch` finds what it needs outside of this process: the engine, and the image that an agent names. Asked
    /// before a message is accepted, so that a message which cannot run is not queued.
    async fn can_launch(&self, image: Option<&Image>) -> Result<(), Error>;
}

/// Sandboxes by bubblewrap, with Landlock and seccomp inside.
#[derive(Debug, Clone)]
pub struct Bubblewrap {
    exe: PathBuf,
    bwrap: PathBuf,
    etc: Option<PathBuf>,
    caps: Caps,
    required: Required,
}

impl Bubblewrap {
    /// Builds walls once, as sessions will, and takes them down again. `exe` is a program that calls
    /// [`shim_main`] and [`confine_main`] for its arguments `shim` and `confine`.
    pub async fn probe(exe: PathBuf) -> Result<Self, Error> {
        Self::probe_with(exe, Required::default()).await
    }

    /// The same, for walls that are not built at all if they lack something of this.
    pub async fn probe_with(exe: PathBuf, required: Required) -> Result<Self, Error> {
        let bwrap = probe::find()?;
        let walls = Self { exe, bwrap, etc: None, caps: Caps::default(), required };
        probe::try_out(&walls).await?;
        Ok(walls)
    }

    /// Keeps one /etc for all sandboxes in `dir`, instead of one for each. Blocking.
    pub fn sharing_etc(self, dir: PathBuf) -> Result<Self, Error> {
        match etc::write(&dir) {
            Ok(()) => Ok(Self { etc: Some(dir), ..self }),
            Err(source) => Err(Error::File { what: "prepare", path: dir, source }),
        }
    }

    pub fn with_caps(self, caps: Caps) -> Self {
        Self { caps, ..self }
    }
}

#[async_trait::async_trait]
impl Backend for Bubblewrap {
    fn inside(&self, _spec: &Spec) -> Inside {
        Inside {
            workspace: confine::WORKSPACE.into(),
            home: confine::HOME.into(),
            exe: confine::EXE.into(),
            model_socket: egress::socket_in(egress::INSIDE.as_ref()),
            private: egress::INSIDE.into(),
        }
    }

    async fn launch(&self, spec: &Spec) -> Result<Link, Error> {
        if spec.uid.is_none() && rustix::process::geteuid().is_root() {
            // Mapped to 1000 or not, it would still be root to every file it can see.
            return Err(Error::Walls { why: "started by root it needs a uid of its own".to_owned() });
        }
        let plan = plan(spec, Walls::Bubblewrap, (&self.exe, &self.bwrap), (&self.caps, &self.required))?;
        link::launch(frame::Plan { etc: self.etc.clone(), ..plan }).await
    }

    async fn can_launch(&self, image: Option<&Image>) -> Result<(), Error> {
        // It may have been removed since the server started.
        if !self.bwrap.is_file() {
            return Err(probe::not_installed());
        }
        needs_no_image(image)
    }
}

/// No walls at all: for machines that cannot build them, by the operator's explicit wish.
#[derive(Debug, Clone)]
pub struct Bare {
    exe: PathBuf,
    caps: Caps,
    required: Required,
}

impl Bare {
    pub fn new(exe: PathBuf) -> Self {
        Self { exe, caps: Caps::default(), required: Required::default() }
    }

    /// Processes that are not started at all if they lack something of this.
    pub fn requiring(self, required: Required) -> Self {
        Self { required, ..self }
    }

    pub fn with_caps(self, caps: Caps) -> Self {
        Self { caps, ..self }
    }
}

#[async_trait::async_trait]
impl Backend for Bare {
    fn inside(&self, spec: &Spec) -> Inside {
        Inside {
            workspace: spec.workspace.clone(),
            home: spec.home.clone(),
            exe: self.exe.clone(),
            model_socket: egress::socket_in(&spec.run_dir.join(egress::DIR)),
            private: spec.run_dir.join(egress::DIR),
        }
    }

    async fn launch(&self, spec: &Spec) -> Result<Link, Error> {
        let paths = (self.exe.as_path(), Path::new(""));
        link::launch(plan(spec, Walls::None, paths, (&self.caps, &self.required))?).await
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
            Err(Error::Walls { why })
        }
    }
}

fn plan(
    spec: &Spec,
    walls: Walls,
    (exe, bwrap): (&Path, &Path),
    (caps, required): (&Caps, &Required),
) -> Result<frame::Plan, Error> {
    let paths = [&spec.run_dir, &spec.workspace, &spec.home].into_iter().chain(&spec.readonly);
    for path in paths.map(PathBuf::as_path).chain([exe]) {
        if path.to_str().is_none() || !path.is_absolute() {
            return Err(Error::Path(path.to_owned()));
        }
    }
    if walls != Walls::Docker {
        needs_no_image(spec.image.as_ref())?;
    }
    required.permits(spec, walls).map_err(|why| Error::Walls { why: why.to_owned() })?;
    Ok(frame::Plan {
        version: frame::VERSION,
        incarnation: spec.incarnation,
        epoch: spec.epoch,
        walls,
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

/// The hidden subcommand `shim`. Call it first thing in `main`, before any thread exists.
pub fn shim_main() -> i32 {
    shim::main()
}

/// The hidden subcommand `confine`, with the arguments after that word. Before any thread exists, too.
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
    Walls { why: String },
    #[error("{why}. {remedy}")]
    NoWalls { why: String, remedy: &'static str },
    #[error("the sandbox refused: {why}")]
    Refused { why: String },
    #[error("the sandbox's keeper said something we do not understand")]
    Foreign(#[from] frame::Malformed),
    #[error("the sandbox is gone")]
    Gone,
    #[error("the sandbox did not {what} in time")]
    Late { what: &'static str },
    #[error("{bytes} bytes of input at once are too many")]
    TooLarge { bytes: usize },
    #[error("the way to a model cannot be used: {why}")]
    Egress { why: String },
    #[error("processes of a dead sandbox still run after 5 s")]
    StillRuns,
}

impl Error {
    pub fn kind(&self) -> Kind {
        match self {
            Error::File { .. } | Error::Path(_) | Error::Foreign(_) | Error::StillRuns => Kind::Internal,
            Error::Walls { .. } | Error::NoWalls { .. } | Error::Gone | Error::Late { .. } => {
                Kind::Unavailable
            }
            Error::Refused { .. } => Kind::Conflict,
            Error::Egress { .. } => Kind::Invalid,
            Error::TooLarge { .. } => Kind::TooLarge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_bubblewrap_nothing_can_be_launched() {
        let (exe, etc) = ("/bin/true".into(), None);
        let (caps, required) = (Caps::default(), Required::default());
        let mut walls = Bubblewrap { exe, bwrap: "/nowhere/bwrap".into(), etc, caps, required };
        let refused = walls.can_launch(None).await.expect_err("it is gone");
        assert!(refused.to_string().contains("bubblewrap is not installed"), "{refused}");
        walls.bwrap = "/bin/true".into();
        assert!(walls.can_launch(None).await.is_ok());
    }
}
