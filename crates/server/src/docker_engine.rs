//! The Docker engine that makes the sandboxes, if configured. It may be stopped or slow: the server starts without it,
//! reports that in `/health`, and uses it when it is back. Running sandboxes can be taken over without the engine.

use crate::config::ServerConfig;
use ash_sandbox::{DockerBackend, Error};
use ash_session::ServerStatus;
use std::{path::PathBuf, time::Duration};

const LOOK_EVERY: Duration = Duration::from_secs(2);
const UNREACHABLE: &str = "engine_unreachable";
const UNUSABLE: &str = "engine_unusable";

/// An engine that answers must be usable. One that does not answer may become usable later.
pub(crate) async fn connect_engine(config: &ServerConfig, exe: PathBuf) -> Result<DockerBackend, Error> {
    let docker = config.docker(exe)?;
    match docker.ping().await {
        Ok(()) => {
            prepare(&docker).await?;
            docker.try_out().await?;
        }
        Err(error) => {
            tracing::warn!(%error, "the Docker engine does not answer: no sandbox can be started")
        }
    }
    Ok(docker)
}

/// Checks that the engine has what sandboxes need, and removes remains of dead sandboxes, before anything is started.
async fn prepare(docker: &DockerBackend) -> Result<(), Error> {
    let version = docker.check().await?;
    let orphans = docker.clone();
    match tokio::task::spawn_blocking(move || orphans.clear_orphans()).await {
        Ok(Ok(cleared)) => tracing::info!(version, cleared, "a Docker engine is ready for sandboxes"),
        Ok(Err(error)) => tracing::warn!(%error, "unused containers could not be removed"),
        Err(error) => tracing::warn!(%error, "unused containers could not be removed"),
    }
    Ok(())
}

/// Reports when the engine becomes unreachable and when it is back.
pub(crate) async fn watch_engine(status: ServerStatus, docker: DockerBackend) {
    let mut rounds = tokio::time::interval(LOOK_EVERY);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // True also if the engine answered at the start: it may have come up between that check and this one.
    let mut away = true;
    loop {
        rounds.tick().await;
        match docker.ping().await {
            Err(error) => {
                away = true;
                status.set_trouble(UNREACHABLE, format!("No sandbox can be started: {error}"));
            }
            Ok(()) if away => match prepare(&docker).await {
                Ok(()) => {
                    away = false;
                    status.clear_trouble(UNREACHABLE);
                    status.clear_trouble(UNUSABLE);
                }
                Err(error) => status.set_trouble(UNUSABLE, format!("No sandbox can be started: {error}")),
            },
            Ok(()) => {}
        }
    }
}
