//! Runs each sandbox as a container of a Docker engine on this machine, with our own init, Landlock and seccomp inside.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ash_model::Image;

use crate::{
    BackendKind, Error, RequiredWalls, SandboxBackend, SandboxLayout, SandboxLink, SandboxSpec, ShimLimits,
    confine,
    container::{self, ContainerRequest, INCARNATION, RUN_DIR},
    docker_engine::{self, DockerEngine, ListedContainer},
    egress, frame, link, plan, probe, reap,
};

const INSTALL_REMEDY: &str = "Install Docker and start it (`apt-get install docker.io`, `systemctl start docker`), name its socket with \
    DOCKER_HOST=unix:///PATH, and let this user use it (`usermod -aG docker USER`, then log in anew); \
    or unset ASH_SANDBOX to use bubblewrap";
const BUILD_IMAGE_REMEDY: &str = "Build it in ash's sources with `docker build -t ash-agent docker`, or name an image that you have with \
    ASH_DOCKER_IMAGE; it needs what your agents need, and for Claude Code a C library of GNU's and git";
const PULL_IMAGE_REMEDY: &str = "Bring it here with `docker pull`, or build it";
const ROOTLESS_REMEDY: &str =
    "Use an engine that runs as root, or unset ASH_SANDBOX to use bubblewrap, which needs none";
const VOLUME_REMEDY: &str = "Build it without that line, or name another one with ASH_DOCKER_IMAGE";
const ENGINE_LOG_REMEDY: &str =
    "`docker info` and the engine's log may say more; or unset ASH_SANDBOX to use bubblewrap";

#[derive(Debug, Clone)]
pub struct DockerBackend {
    exe: PathBuf,
    engine: DockerEngine,
    image: Image,
    caps: ShimLimits,
    required: RequiredWalls,
}

impl DockerBackend {
    /// `host` has the syntax of DOCKER_HOST. `image` is for agents that name none. `exe` is as for bubblewrap.
    pub fn new(exe: PathBuf, host: Option<&str>, image: Image) -> Result<Self, Error> {
        let engine =
            DockerEngine::at(host).map_err(|why| Error::Unavailable { why, remedy: INSTALL_REMEDY })?;
        Ok(Self { exe, engine, image, caps: ShimLimits::default(), required: RequiredWalls::default() })
    }

    /// Refuses to start containers that lack one of the `required` walls.
    pub fn requiring(self, required: RequiredWalls) -> Self {
        Self { required, ..self }
    }

    pub fn with_caps(self, caps: ShimLimits) -> Self {
        Self { caps, ..self }
    }

    /// Whether the engine answers at all, within seconds.
    pub async fn ping(&self) -> Result<(), Error> {
        let engine = self.engine.clone();
        let reached = tokio::task::spawn_blocking(move || reach(&engine)).await;
        reached.unwrap_or(Err(Error::Gone))
    }

    /// The engine's version. Fails if the engine cannot be reached or lacks what sandboxes need.
    pub async fn check(&self) -> Result<String, Error> {
        let Self { engine, image, .. } = self.clone();
        let looked = tokio::task::spawn_blocking(move || look(&engine, &image)).await;
        looked.unwrap_or(Err(Error::Gone))
    }

    /// Starts a container once, as sessions will, and removes it again.
    pub async fn try_out(&self) -> Result<(), Error> {
        probe::launch_and_end(self).await.map_err(|e| match e {
            Error::StartFailed { why } => Error::Unavailable {
                why: format!("no container can be started here: {why}"),
                remedy: ENGINE_LOG_REMEDY,
            },
            other => other,
        })
    }

    /// Removes our containers whose shim is dead, with their volumes. A container that cannot be removed does not stop
    /// the removal of the others; the result is then its error. Blocking.
    pub fn clear_orphans(&self) -> Result<usize, Error> {
        let failed = |source| Error::File { what: "ask", path: self.engine.socket.clone(), source };
        let orphans: Vec<_> =
            self.engine.list(RUN_DIR).map_err(failed)?.into_iter().filter(is_orphan).collect();
        let removals: Vec<_> = orphans.iter().map(|orphan| self.engine.remove(&orphan.id)).collect();
        removals.into_iter().collect::<Result<(), _>>().map_err(failed)?;
        Ok(orphans.len())
    }
}

/// A container whose shim is dead is of no use, running or not. If its directory is gone, its processes end by
/// themselves. If its directory cannot be read, the container belongs to another user.
fn is_orphan(listed: &ListedContainer) -> bool {
    let (Some(run_dir), Some(incarnation)) = (listed.labels.get(RUN_DIR), listed.labels.get(INCARNATION))
    else {
        return false;
    };
    let run_dir = Path::new(run_dir);
    let is_gone = matches!(fs::metadata(run_dir), Err(e) if e.kind() == io::ErrorKind::NotFound);
    let ended = matches!(listed.state.as_str(), "created" | "exited" | "dead");
    match reap::read(run_dir) {
        _ if is_gone => ended,
        Ok(Some(left)) if left.incarnation.to_string() == *incarnation => left.is_dead(),
        Ok(_) => ended,
        Err(_) => false,
    }
}

fn reach(engine: &DockerEngine) -> Result<(), Error> {
    let failed =
        |e| Error::Unavailable { why: docker_engine::explained(&engine.socket, &e), remedy: INSTALL_REMEDY };
    engine.ping().map_err(failed)
}

fn look(engine: &DockerEngine, image: &Image) -> Result<String, Error> {
    reach(engine)?;
    let info = engine.info().map_err(|e| Error::Unavailable {
        why: docker_engine::explained(&engine.socket, &e),
        remedy: INSTALL_REMEDY,
    })?;
    let options = info.security_options.unwrap_or_default();
    if options.iter().any(|option| option == "name=rootless") {
        // In a rootless engine only the container's root is our user, and agents must not run as root.
        let why = format!("the Docker engine at {} is rootless", engine.socket.display());
        return Err(Error::Unavailable { why, remedy: ROOTLESS_REMEDY });
    }
    let volumes = engine.volumes(image.as_str()).unwrap_or_default();
    if let Some(volume) = container::hidden_volume(&volumes) {
        let why = format!("the image {image} has a VOLUME at {volume}, which no checkpoint would hold");
        return Err(Error::Unavailable { why, remedy: VOLUME_REMEDY });
    }
    has_image(engine, image, BUILD_IMAGE_REMEDY)?;
    Ok(info.server_version)
}

fn has_image(engine: &DockerEngine, image: &Image, remedy: &'static str) -> Result<(), Error> {
    match engine.has_image(image.as_str()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(Error::Unavailable { why: format!("the image {image} is not on this machine"), remedy })
        }
        Err(e) => Err(Error::Unavailable {
            why: docker_engine::explained(&engine.socket, &e),
            remedy: INSTALL_REMEDY,
        }),
    }
}

#[async_trait::async_trait]
impl SandboxBackend for DockerBackend {
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
            return Err(Error::StartFailed { why: "started by root it needs a uid of its own".to_owned() });
        }
        self.ping().await?;
        let image = spec.image.as_ref().unwrap_or(&self.image).to_string();
        let plan = plan(spec, BackendKind::Docker, (&self.exe, Path::new("")), (&self.caps, &self.required))?;
        let container = Some(ContainerRequest { engine: self.engine.clone(), image });
        link::launch(frame::ShimPlan { container, ..plan }).await
    }

    async fn can_launch(&self, image: Option<&Image>) -> Result<(), Error> {
        let remedy = if image.is_some() { PULL_IMAGE_REMEDY } else { BUILD_IMAGE_REMEDY };
        let (engine, image) = (self.engine.clone(), image.unwrap_or(&self.image).clone());
        tokio::task::spawn_blocking(move || {
            reach(&engine)?;
            has_image(&engine, &image, remedy)
        })
        .await
        .map_err(|_| Error::Gone)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_its_engine_nothing_can_be_launched() {
        let image = Image::parse_reference("ash-agent").expect("an image");
        let docker = DockerBackend::new("/bin/true".into(), Some("unix:///nowhere/docker.sock"), image)
            .expect("a path");
        let refused = docker.can_launch(None).await.expect_err("there is no engine");
        assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
    }
}
