//! The agents that sessions can have.

use super::{Check, walls::on_path};
use ash_model::Runtime;
use ash_server::Config;
use std::{path::Path, path::PathBuf, process::Stdio, time::Duration};
use tokio::io::AsyncReadExt;

/// For a program that only has to say its version.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_WORDS: u64 = 4096;

pub(super) async fn check(config: &Config) -> Vec<Check> {
    vec![builtin(config), claude(config.default_runtime).await]
}

/// Who will answer it.
fn builtin(config: &Config) -> Check {
    let answers = match config.egress() {
        Some(egress) => format!("with the models of {}", egress.upstream),
        None => "without a model: there is no ANTHROPIC_API_KEY".to_owned(),
    };
    Check::fine("agent builtin", format!("{} {answers}", ash_server::VERSION))
}

async fn claude(default: Runtime) -> Check {
    let named = std::env::var_os("ASH_CLAUDE_BIN").map(PathBuf::from);
    let by = if named.is_some() { By::Name } else { By::Search };
    let Some(program) = named.or_else(|| on_path("claude")) else { return absent(default) };
    let words = words(&program, "--version").await;
    judge(&program, words, by)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// ASH_CLAUDE_BIN: whoever set it wants it.
    Name,
    Search,
}

fn absent(default: Runtime) -> Check {
    let install = "npm install -g @anthropic-ai/claude-code, or set ASH_CLAUDE_BIN to where it is";
    match default {
        Runtime::Claude => {
            Check::problem("agent claude", "ASH_DEFAULT_RUNTIME is claude, but it is not installed", install)
        }
        Runtime::Builtin => {
            Check::fine("agent claude", "not installed; only agents with runtime claude need it")
        }
    }
}

fn judge(program: &Path, words: Result<String, String>, by: By) -> Check {
    let shown = program.display();
    let remedy = "install it anew, or set ASH_CLAUDE_BIN to one that works";
    match (words, by) {
        (Ok(words), _) => Check::fine("agent claude", format!("{words} ({shown})")),
        (Err(why), By::Name) => Check::problem("agent claude", format!("{shown} {why}"), remedy),
        (Err(why), By::Search) => Check::warning("agent claude", format!("{shown} {why}"), remedy),
    }
}

/// The first line that a program prints, or why there is none. It is ended when it takes its time.
pub(super) async fn words(program: &Path, argument: &str) -> Result<String, String> {
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
            // What cannot be read is judged as silence.
            stdout.take(MOST_WORDS).read_to_end(&mut said).await.ok();
        }
        child.wait().await
    };
    let ended = tokio::time::timeout(PATIENCE, read).await;
    let status = ended.map_err(|_| format!("did not answer within {} s", PATIENCE.as_secs()))?;
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
    use super::{super::Level, *};

    #[test]
    fn an_agent_that_nobody_asked_for_may_be_absent() {
        assert_eq!(absent(Runtime::Builtin).level, Level::Fine);
        assert_eq!(absent(Runtime::Claude).level, Level::Problem);
    }

    #[test]
    fn an_agent_that_does_not_run_is_worse_if_it_was_named() {
        let judge = |words: Result<&str, &str>, by| {
            judge(Path::new("/bin/claude"), words.map(str::to_owned).map_err(str::to_owned), by)
        };
        let good = Check::fine("agent claude", "2.1.0 (Claude Code) (/bin/claude)");
        assert_eq!(judge(Ok("2.1.0 (Claude Code)"), By::Search), good);
        assert_eq!(judge(Err("said nothing"), By::Search).level, Level::Warning);
        assert_eq!(judge(Err("said nothing"), By::Name).level, Level::Problem);
    }

    #[tokio::test]
    async fn a_program_is_judged_by_its_first_line_and_its_exit() {
        let run = async |program: &str, argument: &str| words(Path::new(program), argument).await;
        assert_eq!(run("/bin/echo", "1.2.3").await, Ok("1.2.3".to_owned()));
        assert_eq!(run("/bin/true", "").await, Err("said nothing".to_owned()));
        assert_eq!(run("/bin/false", "").await, Err("failed: exit status: 1".to_owned()));
        assert!(run("/nowhere/claude", "").await.is_err_and(|why| why.starts_with("does not run")));
        assert!(run("/bin/yes", "").await.is_err(), "endless output ends with the pipe");
    }
}
