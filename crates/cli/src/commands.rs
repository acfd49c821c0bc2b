//! What each command does.

mod agents;
mod artifacts;
mod busy;
mod chat;
mod cleaning;
mod daemon;
mod dev;
mod doctor;
mod far;
mod folder;
mod history;
mod keys;
mod link;
mod permission;
mod repair;
pub(crate) mod serve;
mod sessions;
mod show;
pub(crate) mod snapshot;
mod usage;
mod workspaces;

use crate::{
    api::{Api, Failure, Result},
    args::Command,
};

/// Runs a client command; answers the exit code.
pub(crate) async fn run(command: Command) -> Result<u8> {
    match command {
        Command::Chat(chat) => chat::run(chat).await,
        Command::Session { settings, command } => {
            sessions::run(&Api::new(&settings), command, settings.json).await
        }
        Command::Deploy(deploy) => done(agents::deploy(deploy).await),
        Command::Agent { settings, command } => {
            done(agents::run(&Api::new(&settings), command, settings.json).await)
        }
        Command::Workspace { settings, command } => {
            done(workspaces::run(&Api::new(&settings), command, settings.json).await)
        }
        Command::Key { settings, command } => {
            done(keys::run(&Api::new(&settings), command, settings.json).await)
        }
        Command::Audit { settings, session, since, limit } => {
            done(cleaning::audit(&Api::new(&settings), (session, since, limit), settings.json).await)
        }
        Command::Usage { settings, usage } => {
            done(usage::run(&Api::new(&settings), usage, settings.json).await)
        }
        Command::Sessions { settings, from: None } => {
            sessions::all(&Api::new(&settings), settings.json).await
        }
        Command::Sessions { settings, from: Some(from) } => done(far::sessions(from, settings.json).await),
        Command::Restore { from, lazy, json } => Box::pin(far::restore(from, lazy, json)).await,
        Command::Repair { yes, json } => repair::run(yes, json).await,
        Command::Start(daemon) => done(daemon::start(daemon).await),
        Command::Stop => done(daemon::stop().await),
        Command::Restart(daemon) => done(daemon::restart(daemon).await),
        Command::Status(client) => done(daemon::status(&client.settings).await),
        Command::Logs { follow } => done(daemon::logs(follow).await),
        Command::Health(client) => done(daemon::health(&client.settings).await),
        Command::Doctor(client) => doctor::run(&client.settings).await,
        Command::Link { url, client } => done(link::link(url, &client.settings).await),
        Command::Unlink => done(link::unlink()),
        Command::Dev { command } => done(dev::run(command).await),
        Command::Serve(_) | Command::Completions { .. } | Command::Snapshot { .. } => {
            Err(Failure::invalid("not a client command"))
        }
    }
}

fn done(result: Result<()>) -> Result<u8> {
    result.map(|()| 0)
}

/// `NAME=VALUE` as people write it.
fn variables(given: &[String]) -> Result<Vec<(String, String)>> {
    given.iter().map(|pair| split(pair).ok_or_else(|| not_a_pair(pair))).collect()
}

/// For a session's or an agent's environment: with a name alone the value is this shell's, and in no command line.
fn environment(given: &[String]) -> Result<Vec<(String, String)>> {
    let one = |pair: &String| match (split(pair), std::env::var(pair)) {
        (Some(both), _) => Ok(both),
        (None, Ok(value)) if !pair.is_empty() && !pair.contains('=') => Ok((pair.clone(), value)),
        (None, _) if pair.is_empty() || pair.contains('=') => Err(not_a_pair(pair)),
        (None, _) => Err(Failure::invalid(format!("{pair} is not set here: set it, or write {pair}=VALUE"))),
    };
    given.iter().map(one).collect()
}

fn split(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=').filter(|(name, _)| !name.is_empty())?;
    Some((name.to_owned(), value.to_owned()))
}

fn not_a_pair(pair: &str) -> Failure {
    Failure::invalid(format!("\"{pair}\" must be NAME=VALUE"))
}
