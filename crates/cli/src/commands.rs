//! The commands, one module for each group.

mod agents;
mod artifacts;
mod chat;
mod checkpoints;
mod client_tools;
mod daemon;
mod dev;
mod doctor;
mod keys;
mod link;
mod object_store;
mod permission;
mod prune_and_audit;
mod push_pull;
mod queue_and_lock;
mod repair;
pub(crate) mod serve;
mod sessions;
mod show;
pub(crate) mod snapshot;
mod usage;
mod workspaces;

use crate::{
    api::{ApiClient, CliError, Result},
    args::CliCommand,
};

/// Runs a client command and returns its exit code.
pub(crate) async fn run(command: CliCommand) -> Result<u8> {
    match command {
        CliCommand::Chat(chat) => chat::run(chat).await,
        CliCommand::Session { settings, command } => {
            sessions::run(&ApiClient::new(&settings), command, settings.json).await
        }
        CliCommand::Deploy(deploy) => done(agents::deploy(deploy).await),
        CliCommand::Agent { settings, command } => {
            done(agents::run(&ApiClient::new(&settings), command, settings.json).await)
        }
        CliCommand::Workspace { settings, command } => {
            done(workspaces::run(&ApiClient::new(&settings), command, settings.json).await)
        }
        CliCommand::Key { settings, command } => {
            done(keys::run(&ApiClient::new(&settings), command, settings.json).await)
        }
        CliCommand::Audit { settings, session, since, limit } => done(
            prune_and_audit::audit(&ApiClient::new(&settings), (session, since, limit), settings.json).await,
        ),
        CliCommand::Usage { settings, usage } => {
            done(usage::run(&ApiClient::new(&settings), usage, settings.json).await)
        }
        CliCommand::Sessions { settings, from: None } => {
            sessions::all(&ApiClient::new(&settings), settings.json).await
        }
        CliCommand::Sessions { settings, from: Some(from) } => {
            done(object_store::sessions(from, settings.json).await)
        }
        CliCommand::Restore { from, lazy, json } => Box::pin(object_store::restore(from, lazy, json)).await,
        CliCommand::Repair { yes, json } => repair::run(yes, json).await,
        CliCommand::Start(daemon) => done(daemon::start(daemon).await),
        CliCommand::Stop => done(daemon::stop().await),
        CliCommand::Restart(daemon) => done(daemon::restart(daemon).await),
        CliCommand::Status(client) => done(daemon::status(&client.settings).await),
        CliCommand::Logs { follow } => done(daemon::logs(follow).await),
        CliCommand::Health(client) => done(daemon::health(&client.settings).await),
        CliCommand::Doctor(client) => doctor::run(&client.settings).await,
        CliCommand::Link { url, client } => done(link::link(url, &client.settings).await),
        CliCommand::Unlink => done(link::unlink()),
        CliCommand::Dev { command } => done(dev::run(command).await),
        CliCommand::Serve(_) | CliCommand::Completions { .. } | CliCommand::Snapshot { .. } => {
            Err(CliError::invalid("not a client command"))
        }
    }
}

fn done(result: Result<()>) -> Result<u8> {
    result.map(|()| 0)
}

/// Parses `NAME=VALUE` arguments.
fn parse_key_values(given: &[String]) -> Result<Vec<(String, String)>> {
    given.iter().map(|pair| split(pair).ok_or_else(|| not_a_pair(pair))).collect()
}

/// Environment of a session or an agent. For a NAME alone the shell has the value, so that it appears in no command
/// line.
fn environment(given: &[String]) -> Result<Vec<(String, String)>> {
    let one = |pair: &String| match (split(pair), std::env::var(pair)) {
        (Some(both), _) => Ok(both),
        (None, Ok(value)) if !pair.is_empty() && !pair.contains('=') => Ok((pair.clone(), value)),
        (None, _) if pair.is_empty() || pair.contains('=') => Err(not_a_pair(pair)),
        (None, _) => Err(CliError::invalid(format!("{pair} is not set here: set it, or write {pair}=VALUE"))),
    };
    given.iter().map(one).collect()
}

fn split(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=').filter(|(name, _)| !name.is_empty())?;
    Some((name.to_owned(), value.to_owned()))
}

fn not_a_pair(pair: &str) -> CliError {
    CliError::invalid(format!("\"{pair}\" must be NAME=VALUE"))
}
