//! The settings of the running server, which may differ from those of this shell. The server records them at its start,
//! and all checks use them.

use super::{DoctorCheck, ServerConfigArgs};
use crate::{args::CliArgs, settings::RunningServer};
use ash_server::{SECRETS, ServerConfig};
use clap::{
    Arg, ArgMatches, Command, CommandFactory, FromArgMatches,
    builder::Resettable,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};
use std::collections::BTreeMap;

const NAME: &str = "settings";

/// The settings of `ash serve` from the flags and the environment of this process, by flag.
pub(in crate::commands) fn settings_by_flag() -> BTreeMap<String, String> {
    let matches = CliArgs::command().try_get_matches().ok();
    let serve = matches.as_ref().and_then(|matches| matches.subcommand_matches("serve"));
    serve.map(|serve| values(serve, |_| true)).unwrap_or_default()
}

fn values(matches: &ArgMatches, is_wanted: impl Fn(ValueSource) -> bool) -> BTreeMap<String, String> {
    let value = |arg: &Arg| {
        let id = arg.get_id().as_str();
        let source = matches.value_source(id)?;
        let raw = matches.try_get_raw(id).ok()??.map(|value| value.to_string_lossy());
        is_wanted(source).then(|| (arg.get_long()?.to_owned(), raw.collect::<Vec<_>>().join(",")).into())?
    };
    ServerConfigArgs::command().get_arguments().filter_map(value).collect()
}

/// `None`: this server is older than the note about settings.
pub(super) fn config_of(running: &RunningServer) -> Option<ServerConfig> {
    // This shell's environment is not the server's.
    let command = ServerConfigArgs::command().mut_args(|arg| arg.env(Resettable::Reset));
    let flags: Vec<String> =
        running.settings.iter().filter_map(|(flag, value)| written(&command, flag, value)).collect();
    let matches = command.try_get_matches_from([String::from("ash")].into_iter().chain(flags)).ok()?;
    (!running.settings.is_empty())
        .then(|| ServerConfigArgs::from_arg_matches(&matches).ok())?
        .map(|server| server.config)
}

/// A newer server may have settings that we do not know.
fn written(command: &Command, flag: &str, value: &str) -> Option<String> {
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag))?;
    match (arg.get_action().takes_values(), value) {
        (true, value) => Some(format!("--{flag}={value}")),
        (false, "1" | "true") => Some(format!("--{flag}")),
        (false, _) => None,
    }
}

/// Says whose settings the checks use, and which settings of this shell the server does not have.
pub(super) fn judge(running: &RunningServer) -> DoctorCheck {
    let of = format!("those of the running server (pid {})", running.pid);
    let differ = differing(running);
    if differ.is_empty() {
        return DoctorCheck::fine(NAME, of);
    }
    let found = format!("{of}, which has other ones than this shell: {}", differ.join(", "));
    DoctorCheck::warning(
        NAME,
        found,
        "`ash restart` starts it with those of this shell; its sessions continue",
    )
}

/// Names of variables that differ. A variable that this shell does not set is no difference.
fn differing(running: &RunningServer) -> Vec<String> {
    let command = ServerConfigArgs::command();
    let named = |flag: &str| {
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag))?;
        arg.get_env().map(|name| name.to_string_lossy().into_owned())
    };
    let matches = ServerConfigArgs::command().try_get_matches_from(["ash"]);
    let here = matches.map(|matches| values(&matches, |source| source == ValueSource::EnvVariable));
    let plain = here.unwrap_or_default().into_iter();
    let plain = plain.filter(|(flag, value)| running.settings.get(flag) != Some(value));
    let plain = plain.filter_map(|(flag, _)| named(&flag));
    plain.chain(model_key(running.models.is_some())).collect()
}

/// The variable of a bad value: the server's command line has no flags here.
pub(super) fn variable_of(error: &clap::Error) -> String {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return String::new() };
    let flag = arg.split(' ').next().unwrap_or_default().trim_start_matches('-');
    let command = ServerConfigArgs::command();
    let variable = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).and_then(Arg::get_env);
    variable.map_or_else(String::new, |name| format!(" (from {})", name.to_string_lossy()))
}

/// A model key that only this shell has.
fn model_key(server_has_models: bool) -> Option<String> {
    let is_set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let of_models = SECRETS.iter().map(|(name, _)| *name).filter(|name| !name.starts_with("ASH_"));
    of_models.filter(|_| !server_has_models).find(is_set).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(settings: &[(&str, &str)]) -> RunningServer {
        let settings = settings.iter().map(|(flag, value)| ((*flag).to_owned(), (*value).to_owned()));
        let (pid, url, version) = (1, "http://127.0.0.1:4100".to_owned(), "0".to_owned());
        RunningServer { pid, url, version, settings: settings.collect(), models: None, claude: None }
    }

    #[test]
    fn what_a_server_notes_is_read_as_what_it_was_given() {
        let words = ["ash", "--port=0", "--agent-dirs=/a,/b", "--allow-userns", "--limits=diskMb=5"];
        let matches = ServerConfigArgs::command().try_get_matches_from(words).expect("valid");
        let noted = values(&matches, |_| true);
        assert_eq!((noted["port"].as_str(), noted["agent-dirs"].as_str()), ("0", "/a,/b"));
        assert!(noted.keys().all(|flag| !flag.contains("key")), "no key is noted: {noted:?}");
        let mut noted: Vec<_> = noted.iter().map(|(flag, value)| (flag.as_str(), value.as_str())).collect();
        noted.push(("of-a-newer-server", "x"));
        let config = config_of(&running(&noted)).expect("a configuration");
        assert_eq!((config.port, config.allow_userns, config.take_over), (0, true, false));
        assert_eq!(config.agent_dirs, ["/a", "/b"].map(std::path::PathBuf::from));
        assert_eq!((config.limits.disk_mb, config.max_sandboxes), (Some(5), 1000));
    }

    #[test]
    fn a_server_that_notes_nothing_is_not_taken_for_one_with_the_usual_settings() {
        assert!(config_of(&running(&[])).is_none());
    }
}
