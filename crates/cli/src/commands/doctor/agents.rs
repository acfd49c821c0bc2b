//! Checks the runtimes that sessions can use.

use super::{DoctorCheck, sandbox::on_path};
use crate::settings::RunningServer;
use ash_driver::{ClaudeVersion, OLDEST_CLAUDE};
use ash_model::AgentRuntime;
use ash_server::ServerConfig;
use std::{path::Path, process::Stdio, time::Duration};
use tokio::io::AsyncReadExt;

/// For a program that only prints its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_VERSION_OUTPUT_BYTES: u64 = 4096;

/// `running`: the server on this machine, if it recorded its settings.
pub(super) async fn check(config: &ServerConfig, running: Option<&RunningServer>) -> Vec<DoctorCheck> {
    let models = match running {
        Some(running) => running.models.clone(),
        None => config.egress().map(|egress| egress.upstream),
    };
    vec![builtin(models, running.is_some()), claude(config, running).await]
}

/// Reports which model service answers the built-in agent.
fn builtin(models: Option<String>, runs: bool) -> DoctorCheck {
    let answers = match (models, runs) {
        (Some(upstream), _) => format!("with the models of {upstream}"),
        (None, false) => "without a model: there is no ANTHROPIC_API_KEY".to_owned(),
        (None, true) => "without a model: the running server has no ANTHROPIC_API_KEY".to_owned(),
    };
    DoctorCheck::fine("agent builtin", format!("{} {answers}", ash_server::VERSION))
}

async fn claude(config: &ServerConfig, running: Option<&RunningServer>) -> DoctorCheck {
    let named = config.claude_bin.clone().filter(|file| !file.as_os_str().is_empty());
    let by = if named.is_some() { ClaudeProgramOrigin::Name } else { ClaudeProgramOrigin::Search };
    // The server's PATH may differ from that of this shell.
    let found = || match running {
        Some(running) => running.claude.clone(),
        None => on_path("claude"),
    };
    let Some(program) = named.or_else(found) else { return absent(config.default_runtime) };
    let words = first_output_line(&program, "--version").await;
    judge(&program, words, by)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaudeProgramOrigin {
    /// ASH_CLAUDE_BIN: the operator chose this program.
    Name,
    Search,
}

fn absent(default: AgentRuntime) -> DoctorCheck {
    let install = "npm install -g @anthropic-ai/claude-code, or set ASH_CLAUDE_BIN to where it is";
    match default {
        AgentRuntime::Claude => DoctorCheck::problem(
            "agent claude",
            "ASH_DEFAULT_RUNTIME is claude, but it is not installed",
            install,
        ),
        AgentRuntime::Builtin => {
            let found = format!(
                "not installed; only agents with runtime claude need it ({OLDEST_CLAUDE} is the oldest that works)"
            );
            DoctorCheck::fine("agent claude", found)
        }
    }
}

fn judge(program: &Path, words: Result<String, String>, by: ClaudeProgramOrigin) -> DoctorCheck {
    let shown = program.display();
    let remedy = "reinstall it, or set ASH_CLAUDE_BIN to one that works";
    match (words, by) {
        (Ok(words), by) => match (words.parse::<ClaudeVersion>(), by) {
            (Ok(version), ClaudeProgramOrigin::Search) if version < OLDEST_CLAUDE => {
                DoctorCheck::warning("agent claude", too_old(version, program), newer())
            }
            (Ok(version), ClaudeProgramOrigin::Name) if version < OLDEST_CLAUDE => {
                DoctorCheck::problem("agent claude", too_old(version, program), newer())
            }
            (Ok(_), _) => DoctorCheck::fine(
                "agent claude",
                format!("{words} ({shown}); {OLDEST_CLAUDE} is the oldest that works"),
            ),
            // A program without a readable version is accepted, as at the server.
            (Err(()), _) => DoctorCheck::fine("agent claude", format!("{words} ({shown})")),
        },
        (Err(why), ClaudeProgramOrigin::Name) => {
            DoctorCheck::problem("agent claude", format!("{shown} {why}"), remedy)
        }
        (Err(why), ClaudeProgramOrigin::Search) => {
            DoctorCheck::warning("agent claude", format!("{shown} {why}"), remedy)
        }
    }
}

fn too_old(version: ClaudeVersion, program: &Path) -> String {
    let shown = program.display();
    format!("{version} at {shown} is too old for ash: {OLDEST_CLAUDE} is the oldest that works")
}

fn newer() -> &'static str {
    "npm install -g @anthropic-ai/claude-code@latest, or set ASH_CLAUDE_BIN to a newer one"
}

/// The first line that a program prints, or why there is none. A program that exceeds the time limit is killed.
pub(super) async fn first_output_line(program: &Path, argument: &str) -> Result<String, String> {
    let mut command = tokio::process::Command::new(program);
    command
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("does not run: {error}"))?;
    let mut said = Vec::new();
    let read = async {
        if let Some(stdout) = child.stdout.take() {
            // Unreadable output counts as no output.
            stdout.take(MAX_VERSION_OUTPUT_BYTES).read_to_end(&mut said).await.ok();
        }
        child.wait().await
    };
    let ended = tokio::time::timeout(VERSION_TIMEOUT, read).await;
    let status = ended.map_err(|_| format!("did not answer within {} s", VERSION_TIMEOUT.as_secs()))?;
    let status = status.map_err(|error| format!("does not run: {error}"))?;
    let line = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned();
    match (status.success(), line.is_empty()) {
        (true, false) => Ok(line),
        (true, true) => Err("said nothing".to_owned()),
        (false, _) => Err(format!("failed: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::CheckSeverity, *};

    #[test]
    fn an_agent_that_was_not_named_may_be_absent() {
        assert_eq!(absent(AgentRuntime::Builtin).level, CheckSeverity::Fine);
        assert_eq!(absent(AgentRuntime::Claude).level, CheckSeverity::Problem);
    }

    #[test]
    fn an_agent_that_does_not_run_is_worse_if_it_was_named() {
        let judge = |words: Result<&str, &str>, by| {
            judge(Path::new("/bin/claude"), words.map(str::to_owned).map_err(str::to_owned), by)
        };
        let good = format!("2.1.200 (Claude Code) (/bin/claude); {OLDEST_CLAUDE} is the oldest that works");
        assert_eq!(
            judge(Ok("2.1.200 (Claude Code)"), ClaudeProgramOrigin::Search),
            DoctorCheck::fine("agent claude", good)
        );
        let wrapped = DoctorCheck::fine("agent claude", "my wrapper (/bin/claude)");
        assert_eq!(judge(Ok("my wrapper"), ClaudeProgramOrigin::Name), wrapped);
        assert_eq!(judge(Err("said nothing"), ClaudeProgramOrigin::Search).level, CheckSeverity::Warning);
        assert_eq!(judge(Err("said nothing"), ClaudeProgramOrigin::Name).level, CheckSeverity::Problem);
    }

    #[tokio::test]
    async fn a_program_is_judged_by_its_first_line_and_its_exit() {
        let run = async |program: &str, argument: &str| first_output_line(Path::new(program), argument).await;
        assert_eq!(run("/bin/echo", "1.2.3").await, Ok("1.2.3".to_owned()));
        assert_eq!(run("/bin/true", "").await, Err("said nothing".to_owned()));
        assert_eq!(run("/bin/false", "").await, Err("failed: exit status: 1".to_owned()));
        assert!(run("/nowhere/claude", "").await.is_err_and(|why| why.starts_with("does not run")));
        assert!(run("/bin/yes", "").await.is_err(), "endless output ends with the pipe");
    }
}
