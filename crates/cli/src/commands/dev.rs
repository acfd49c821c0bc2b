//! `ash dev`: what tests and demonstrations play against.

use crate::{
    api::{Failure, Result},
    args::{Dev, ModelServer},
};
use ash_dev::{Listen, Options, Script, Server};
use ash_model::Kind;
use std::{error::Error, io::Write, path::Path};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) async fn run(command: Dev) -> Result<()> {
    match command {
        Dev::ModelServer(wanted) => model_server(wanted).await,
    }
}

async fn model_server(wanted: ModelServer) -> Result<()> {
    let script = wanted.script.as_deref().map(script).transpose()?.unwrap_or_default();
    let listen = wanted.unix.map_or(Listen::Tcp(wanted.listen), Listen::Unix);
    // Before anybody can know that we are here.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::local("cannot wait for signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::local("cannot wait for signals"))?;
    let server = Server::start(Options { listen, script, log: wanted.log, window: wanted.window })
        .await
        .map_err(refused)?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", server.address())
        .and_then(|()| out.flush())
        .map_err(Failure::local("cannot say where I listen"))?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn script(path: &Path) -> Result<Script> {
    let text =
        std::fs::read_to_string(path).map_err(Failure::local(&format!("cannot read {}", path.display())))?;
    Script::parse(&text).map_err(|error| Failure::invalid(format!("{}: {error}", path.display())))
}

fn refused(error: ash_dev::Failure) -> Failure {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::new(Kind::Internal, format!("{error}{cause}"))
}
