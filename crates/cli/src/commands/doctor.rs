//! `ash doctor`: checks this machine and the server, with a remedy for each problem. No check may fail: what cannot be
//! read becomes a line of the report.

mod agents;
mod data_dir;
mod database;
mod machine;
mod object_store;
mod running_server;
mod sandbox;
mod server_settings;

use crate::{
    api::{CliError, Result},
    settings::{ClientSettings, RunningServer, running_server},
    terminal::{self, TerminalStyle, paint},
};
use ash_server::{SandboxSetting, ServerConfig};
use clap::Parser;
use running_server::ServerHealth;
use serde_json::{Value, json};
pub(super) use server_settings::settings_by_flag;

/// The server's settings as it would read them, without a command line.
#[derive(Parser)]
pub(super) struct ServerConfigArgs {
    #[command(flatten)]
    pub(super) config: ash_server::ServerConfig,
}

impl ServerConfigArgs {
    /// The settings from this shell's environment.
    pub(super) fn of_environment() -> Result<ServerConfig> {
        let server = ServerConfigArgs::try_parse_from(["ash"]);
        server.map(|server| server.config).map_err(|error| {
            let text = error.to_string();
            let reason = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            CliError::invalid(format!("{reason}{}", server_settings::variable_of(&error)))
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckSeverity {
    Fine,
    Warning,
    Problem,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DoctorCheck {
    name: &'static str,
    level: CheckSeverity,
    found: String,
    /// Instructions, one line each.
    remedy: Vec<String>,
}

impl DoctorCheck {
    fn fine(name: &'static str, found: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, level: CheckSeverity::Fine, found: found.into(), remedy: Vec::new() }
    }

    fn warning(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, level: CheckSeverity::Warning, found: found.into(), remedy: lines(remedy) }
    }

    fn problem(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, level: CheckSeverity::Problem, found: found.into(), remedy: lines(remedy) }
    }
}

fn lines(text: impl Into<String>) -> Vec<String> {
    text.into().lines().map(str::to_owned).collect()
}

pub(crate) async fn run(settings: &ClientSettings) -> Result<u8> {
    let checks = examine(settings).await;
    if settings.json {
        terminal::json(&report(&checks));
    } else {
        show(&checks);
    }
    Ok(u8::from(count(&checks, CheckSeverity::Problem) > 0))
}

async fn examine(settings: &ClientSettings) -> Vec<DoctorCheck> {
    let own = running_server();
    let noted = own.as_ref().and_then(server_settings::config_of);
    let here = ServerConfigArgs::of_environment();
    let told = running_server::query_server_health(settings).await;
    let mut checks = vec![machine::kernel()];
    checks.extend(own.as_ref().filter(|_| noted.is_some()).map(server_settings::judge));
    match (noted.clone(), here) {
        (Some(config), _) | (None, Ok(config)) => {
            // The server's note also has what the server found (such as programs), not only its settings.
            let own = own.as_ref().map(|own| (own, noted.is_some()));
            checks.extend(of_this_machine(&config, own, told.as_ref().ok()).await);
        }
        // The settings of a server here are unknown, so the other checks would describe a different server.
        (None, Err(failure)) => checks.push(settings_problem(&failure)),
    }
    match &told {
        Ok(told) => checks.extend(running_server::health_checks(told)),
        Err(check) => checks.push(check.clone()),
    }
    checks
}

/// `own`: the server on this machine, and whether it recorded its settings. `told`: the health report of the server
/// that clients use.
async fn of_this_machine(
    config: &ServerConfig,
    own: Option<(&RunningServer, bool)>,
    told: Option<&ServerHealth>,
) -> Vec<DoctorCheck> {
    let noted = own.filter(|(_, noted)| *noted).map(|(own, _)| own);
    let told = own.map(|(own, _)| told.filter(|told| told.is_of(own)).ok_or(()));
    let mut checks = vec![machine::clock(config)];
    checks.extend(sandbox::check(config).await);
    if config.sandbox != SandboxSetting::Docker {
        checks.extend(machine::groups(config));
    } else {
        // The Docker engine makes its own cgroups.
        checks.push(machine::limits(config, ash_sandbox::CgroupSupport::None));
    }
    checks.extend([machine::landlock(), machine::seccomp()]);
    checks.extend(sandbox::required(config));
    checks.extend(data_dir::check(config));
    checks.extend(database::check(config, told).await);
    match told {
        Some(told) => checks.extend(told.ok().and_then(object_store::told)),
        None => checks.extend(object_store::check(config).await),
    }
    checks.extend(agents::check(config, noted).await);
    checks.push(running_server::port(config).await);
    checks
}

fn settings_problem(failure: &CliError) -> DoctorCheck {
    let remedy = "correct this variable of the environment; `ash serve --help` lists them";
    DoctorCheck::problem("settings", failure.message.clone(), remedy)
}

fn count(checks: &[DoctorCheck], level: CheckSeverity) -> usize {
    checks.iter().filter(|check| check.level == level).count()
}

fn report(checks: &[DoctorCheck]) -> Value {
    let entry = |check: &DoctorCheck| {
        let status = match check.level {
            CheckSeverity::Fine => "ok",
            CheckSeverity::Warning => "warning",
            CheckSeverity::Problem => "problem",
        };
        json!({ "name": check.name, "status": status, "found": check.found, "remedy": check.remedy })
    };
    json!({
        "checks": checks.iter().map(entry).collect::<Vec<_>>(),
        "problems": count(checks, CheckSeverity::Problem), "warnings": count(checks, CheckSeverity::Warning),
    })
}

fn show(checks: &[DoctorCheck]) {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let (colour, mark) = match check.level {
            CheckSeverity::Fine => (TerminalStyle::Green, "✓"),
            CheckSeverity::Warning => (TerminalStyle::Yellow, "!"),
            CheckSeverity::Problem => (TerminalStyle::Red, "✗"),
        };
        let indent = width + 4;
        for (n, line) in terminal::wrapped(&check.found, indent).iter().enumerate() {
            let (mark, name) = if n == 0 { (paint(colour, mark), check.name) } else { (" ".to_owned(), "") };
            println!("{mark} {name:width$}  {line}");
        }
        for line in check.remedy.iter().flat_map(|line| terminal::wrapped(line, indent)) {
            println!("{:indent$}{}", "", paint(TerminalStyle::Dim, &line));
        }
    }
    println!("\n{}", verdict(count(checks, CheckSeverity::Problem), count(checks, CheckSeverity::Warning)));
}

fn verdict(problems: usize, warnings: usize) -> String {
    let number = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match (problems, warnings) {
        (0, 0) => paint(TerminalStyle::Green, "everything is fine"),
        (0, warnings) => paint(TerminalStyle::Yellow, &number(warnings, "warning")),
        (problems, warnings) => {
            let said = format!("{}, {}", number(problems, "problem"), number(warnings, "warning"));
            paint(TerminalStyle::Red, &said)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_what_was_found() {
        let said = [(0, 0), (0, 1), (1, 0), (2, 3)].map(|(problems, warnings)| verdict(problems, warnings));
        assert_eq!(
            said,
            ["everything is fine", "1 warning", "1 problem, 0 warnings", "2 problems, 3 warnings"]
        );
    }

    #[test]
    fn the_report_for_programs_says_the_same() {
        let checks = [
            DoctorCheck::fine("kernel", "Linux 6.1.0"),
            DoctorCheck::problem("bubblewrap", "not installed", "first do this\nthen that"),
        ];
        let expected = json!({
            "checks": [
                { "name": "kernel", "status": "ok", "found": "Linux 6.1.0", "remedy": [] },
                { "name": "bubblewrap", "status": "problem", "found": "not installed",
                  "remedy": ["first do this", "then that"] },
            ],
            "problems": 1, "warnings": 0,
        });
        assert_eq!(report(&checks), expected);
    }
}
