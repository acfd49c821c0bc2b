//! `ash dev`: tools for tests and demonstrations.

use super::doctor::ServerConfigArgs;
use crate::{
    api::{CliError, Result},
    args::{DevCommand, ModelServerArgs},
};
use ash_dev::{ListenAddress, ModelScript, ModelServer, ModelServerOptions};
use ash_model::FailureKind;
use std::{error::Error, io::Write, path::Path};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) async fn run(command: DevCommand) -> Result<()> {
    match command {
        DevCommand::ModelServer(wanted) => model_server(wanted).await,
        DevCommand::Fill { sessions } => fill(sessions).await,
    }
}

async fn fill(sessions: usize) -> Result<()> {
    let config = ServerConfigArgs::of_environment()?;
    let made = ash_server::fill(&config, sessions).await;
    made.map_err(|error| CliError::invalid(error.to_string()))?;
    eprintln!("made {sessions} sessions");
    Ok(())
}

async fn model_server(wanted: ModelServerArgs) -> Result<()> {
    let script = wanted.script.as_deref().map(script).transpose()?.unwrap_or_default();
    let listen = wanted.unix.map_or(ListenAddress::Tcp(wanted.listen), ListenAddress::Unix);
    // Installed before the address is printed: a caller that reads it may send a signal at once.
    let mut terminate =
        signal(SignalKind::terminate()).map_err(CliError::from_io("cannot wait for signals"))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(CliError::from_io("cannot wait for signals"))?;
    let server =
        ModelServer::start(ModelServerOptions { listen, script, log: wanted.log, window: wanted.window })
            .await
            .map_err(refused)?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", server.address())
        .and_then(|()| out.flush())
        .map_err(CliError::from_io("cannot print the address"))?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn script(path: &Path) -> Result<ModelScript> {
    let text = std::fs::read_to_string(path)
        .map_err(CliError::from_io(&format!("cannot read {}", path.display())))?;
    ModelScript::parse(&text).map_err(|error| CliError::invalid(format!("{}: {error}", path.display())))
}

fn refused(error: ash_dev::ModelServerError) -> CliError {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    CliError::new(FailureKind::Internal, format!("{error}{cause}"))
}
