//! Names the environment variable in an error about a value, if the value comes from a variable and not from a flag.

use super::CliArgs;
use clap::{
    Command, CommandFactory, Error, Parser,
    builder::StyledStr,
    error::{ContextKind, ContextValue},
};
use std::ffi::OsString;

pub(crate) fn parse() -> CliArgs {
    CliArgs::try_parse()
        .unwrap_or_else(|error| blamed(error, &std::env::args_os().collect::<Vec<_>>()).exit())
}

fn blamed(mut error: Error, written: &[OsString]) -> Error {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return error };
    let flag = arg.split([' ', '=']).next().unwrap_or_default().to_owned();
    let is_written = written.iter().any(|word| word.to_string_lossy().starts_with(&flag));
    let variable = variable(&CliArgs::command(), flag.trim_start_matches('-'));
    if let Some(variable) = variable.filter(|name| !is_written && std::env::var_os(name).is_some()) {
        let tip = StyledStr::from(format!("the value comes from the environment variable {variable}"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

fn variable(command: &Command, long: &str) -> Option<String> {
    let own = command.get_arguments().find(|arg| arg.get_long() == Some(long) && arg.get_env().is_some());
    let own = own.and_then(|arg| arg.get_env()).map(|name| name.to_string_lossy().into_owned());
    own.or_else(|| command.get_subcommands().find_map(|command| variable(command, long)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_of_the_server_has_its_variable() {
        let named = |long| variable(&CliArgs::command(), long);
        assert_eq!(named("retention").as_deref(), Some("ASH_RETENTION"));
        assert_eq!(named("limits").as_deref(), Some("ASH_LIMITS"));
        assert_eq!((named("take-over"), named("no-such-flag")), (None, None));
    }

    #[test]
    fn a_flag_on_the_command_line_is_not_blamed_on_a_variable() {
        let words = ["ash", "serve", "--port=many"].map(OsString::from);
        let error = CliArgs::try_parse_from(["ash", "serve", "--port=many"]).err().expect("refused");
        assert!(!blamed(error, &words).to_string().contains("environment variable"));
    }
}
