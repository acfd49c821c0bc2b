//! Parsers for flag values. A wrong value fails here with the accepted ones, before the client contacts the server.

use ash_server::SECRETS;
use clap::{
    Arg, Command,
    builder::{RangedI64ValueParser, TypedValueParser},
    error::ErrorKind,
};
use std::{convert::Infallible, ffi::OsStr, time::Duration};

pub(super) const PERMISSION_MODES: [&str; 6] =
    ["bypassPermissions", "permissionsByAgent", "default", "acceptEdits", "plan", "dontAsk"];
pub(super) const ON_BUSY: [&str; 4] = ["queue", "reject", "interrupt", "steer"];
/// Statuses of sessions that `prune` accepts.
pub(super) const RESTING: [&str; 4] = ["paused", "stopped", "error", "ended"];
const LONGEST_COMMAND: Duration = Duration::from_secs(300);

/// Number of entries that a list shows.
pub(super) fn limit() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1000)
}

/// Checked here, and sent to the server unchanged.
pub(super) fn age(text: &str) -> Result<String, &'static str> {
    ash_model::parse_duration(text).map(|_| text.to_owned())
}

/// An age or a time.
pub(super) fn when(text: &str) -> Result<String, String> {
    let is_time = text.parse::<jiff::Timestamp>().is_ok();
    match is_time || ash_model::parse_duration(text).is_ok() {
        true => Ok(text.to_owned()),
        false => Err("write it as 30m, 24h or 7d ago, or as a time: 2026-11-15T12:00:00Z".to_owned()),
    }
}

/// Time limit of a command, also in milliseconds.
pub(super) fn patience(text: &str) -> Result<Duration, &'static str> {
    let millis = text.strip_suffix("ms").and_then(|number| number.parse().ok()).map(Duration::from_millis);
    let given = millis.map_or_else(|| ash_model::parse_duration(text), Ok);
    match given {
        Ok(given) if !given.is_zero() && given <= LONGEST_COMMAND => Ok(given),
        Ok(_) => Err("it may be 1ms to 300s"),
        Err(_) => Err("write it as 500ms, 30s or 5m"),
    }
}

/// Value parser of hidden key flags, which always refuses: every user of this machine can read a command line.
#[derive(Debug, Clone)]
pub(crate) struct NoKey;

/// NAME=VALUE for `ash start`. It refuses keys.
#[derive(Debug, Clone)]
pub(super) struct Setting;

impl TypedValueParser for NoKey {
    type Value = Infallible;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, _: &OsStr) -> Result<Infallible, clap::Error> {
        let remedy =
            "set the environment variable ASH_API_KEY, or save the key with `ASH_API_KEY=KEY ash link URL`";
        Err(refused(command, &format!("{NOT_AS_FLAG}: {remedy}")))
    }
}

impl TypedValueParser for Setting {
    type Value = String;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, given: &OsStr) -> Result<String, clap::Error> {
        let given = given.to_string_lossy();
        match given.split_once('=') {
            Some((name, _)) if SECRETS.iter().any(|(secret, _)| *secret == name) => {
                let remedy = format!("set {name} in the environment of `ash start`, which the server gets");
                Err(refused(command, &format!("{NOT_AS_FLAG}: {remedy}")))
            }
            Some((name, _)) if !name.is_empty() => Ok(given.into_owned()),
            Some(_) | None => Err(refused(command, &format!("{given:?} must be NAME=VALUE"))),
        }
    }
}

const NOT_AS_FLAG: &str = "keys are not taken as flags, which every user of this machine can read";

/// Clap's own errors would repeat the value, which may be a key.
fn refused(command: &Command, words: &str) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{words}\n")).with_cmd(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_without_a_unit_are_refused() {
        for bad in ["7", "0", "", "d", "-1s"] {
            assert!(age(bad).is_err() && when(bad).is_err() && patience(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            (age("7d"), when("7d"), when("2026-11-15T12:00:00Z").is_ok()),
            (Ok("7d".into()), Ok("7d".into()), true)
        );
        assert_eq!(
            ["500ms", "30s", "5m"].map(|text| patience(text).map(|it| it.as_millis())),
            [Ok(500), Ok(30_000), Ok(300_000)]
        );
        assert!(patience("0ms").is_err() && patience("301s").is_err());
    }

    #[test]
    fn no_key_is_taken_as_a_setting() {
        let given = |text: &str| Setting.parse_ref(&Command::new("ash"), None, OsStr::new(text));
        assert_eq!(given("ASH_PORT=1").expect("a setting"), "ASH_PORT=1");
        for (name, _) in SECRETS {
            let refused = given(&format!("{name}=sk-secret")).expect_err(name).to_string();
            assert!(refused.contains(name) && !refused.contains("sk-secret"), "{refused}");
        }
        assert!(given("ASH_PORT").is_err() && given("=1").is_err());
    }
}
