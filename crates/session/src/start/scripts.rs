//! An agent's own scripts, run in its sandbox before it starts: `install.sh` once for a workspace, `startup.sh`
//! whenever a sandbox is made. They are files of the workspace, and run with the rights of the agent. Their output goes
//! into the session's log.

use super::SessionStartJob;
use crate::{
    Error, Result,
    agent_logs::LogLineSource,
    blocking,
    error::{SETUP_FAILED, SETUP_TIMEOUT},
    live_directory::open_root,
    resource_limits,
    workspace::{SETUP, Sandbox},
};
use ash_model::{LimitReached, Problem, SandboxRequirements};
use ash_sandbox::{JournalPayload, JournalRecord, ProcessExit, ProcessSpec, RecordStream};
use ash_snapshot::{DiskUsage, LinkPolicy, RelPath, SnapshotErrorKind};
use ash_store::AgentVersion;
use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    time::Duration,
};
use tokio::time::Instant;

/// In the home, so that this marker is captured, restored, forked and rewound together with what `install.sh` made. An
/// agent that creates or removes the marker affects only itself.
const INSTALLED: &str = ".ash/installed";
/// Reads the first line of a script as the kernel does, but also for files without execute permission: uploaded ones
/// have none.
const RUN_SCRIPT: &str = r##"[ -f "$1" ] || { echo "$1 is not there any more: nothing to do"; exit 0; }
IFS= read -r first <"$1"
case "$first" in '#!'*) set -f; exec ${first#??} "$1" ;; esac
exec /bin/sh "$1""##;
/// How often disk usage is measured meanwhile, and the largest part of the time that measuring may take.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const DISK_CHECK_TIME_DIVISOR: u32 = 10;
/// How many of the last lines of a script are reported with its failure.
const LAST_LINES: usize = 10;
const LAST_BYTES: usize = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SetupScript {
    Install,
    Startup,
}

impl SetupScript {
    fn name(self) -> &'static str {
        match self {
            SetupScript::Install => "install.sh",
            SetupScript::Startup => "startup.sh",
        }
    }

    fn level(self) -> LogLineSource {
        match self {
            SetupScript::Install => LogLineSource::Install,
            SetupScript::Startup => LogLineSource::Startup,
        }
    }

    /// The name of its time limit in ash.toml.
    fn seconds(self) -> &'static str {
        match self {
            SetupScript::Install => "installSeconds",
            SetupScript::Startup => "startupSeconds",
        }
    }
}

/// The last lines of a script.
#[derive(Default)]
struct OutputTail(VecDeque<String>);

impl OutputTail {
    fn add(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(&line[..line.len().min(LAST_BYTES)]).into_owned();
        self.0.push_back(text);
        if self.0.len() > LAST_LINES {
            self.0.pop_front();
        }
    }

    fn told(&self) -> String {
        match self.0.is_empty() {
            true => "It printed nothing.".to_owned(),
            false => format!("Its last lines:\n{}\n", Vec::from_iter(self.0.iter().cloned()).join("\n")),
        }
    }
}

/// Why a script ended early.
enum ScriptInterruption {
    Late,
    Full(LimitReached),
    Halted,
}

impl SessionStartJob {
    /// Runs the scripts in a sandbox that was just made, and that is ended again if they fail.
    pub(super) async fn set_up(
        &mut self,
        sandbox: &Sandbox,
        records: &mut RecordStream,
        version: &AgentVersion,
    ) -> Result<()> {
        let done = self.run_scripts(sandbox, records, version).await;
        if done.is_err() {
            sandbox.remote.end().await.ok();
            self.reap_previous_sandbox().await?;
        }
        done
    }

    async fn run_scripts(
        &mut self,
        sandbox: &Sandbox,
        records: &mut RecordStream,
        version: &AgentVersion,
    ) -> Result<()> {
        let SandboxRequirements { install_seconds, startup_seconds, .. } = version.needs;
        let install = match install_seconds {
            Some(_) if self.is_installed().await? => None,
            wanted => wanted,
        };
        if install.or(startup_seconds).is_none() {
            return Ok(());
        }
        let inside = self.services.inside(&self.live);
        let mut env = self.services.base_env(&self.session, &inside);
        env.extend(version.env.expose());
        env.extend(self.own_env().await?);
        let most = resource_limits::of_disk(&self.bounds(version));
        if let Some(seconds) = install {
            self.run(SetupScript::Install, seconds, (sandbox, records), (&env, most)).await?;
            self.note_installed().await;
        }
        if let Some(seconds) = startup_seconds {
            self.run(SetupScript::Startup, seconds, (sandbox, records), (&env, most)).await?;
        }
        Ok(())
    }

    async fn run(
        &self,
        script: SetupScript,
        seconds: u64,
        (sandbox, records): (&Sandbox, &mut RecordStream),
        (env, most): (&BTreeMap<String, String>, Option<DiskUsage>),
    ) -> Result<()> {
        let cwd = self.services.inside(&self.live).workspace;
        let path = cwd.join(script.name()).display().to_string();
        let argv = ["/bin/sh", "-c", RUN_SCRIPT, "sh", &path].map(str::to_owned).to_vec();
        let start = ProcessSpec { process: SETUP, argv, env: env.clone(), cwd, raw: false, stdin: false };
        sandbox.remote.start(start).await?;
        let limit = Duration::from_secs(seconds).min(self.services.settings.max_setup_time);
        let (began, mut last) = (Instant::now(), OutputTail::default());
        let cut = tokio::select! {
            ended = self.follow(script, (sandbox, records), &mut last) => {
                return self.judge(script, ended?, &last);
            }
            () = tokio::time::sleep(limit) => ScriptInterruption::Late,
            reached = self.until_full(most) => ScriptInterruption::Full(reached),
            () = self.halt.notified() => ScriptInterruption::Halted,
        };
        tracing::warn!(session = %self.session.id, script = script.name(), took = ?began.elapsed(), "the server ended a script before it was done");
        Err(match cut {
            ScriptInterruption::Late => self.failed(
                SETUP_TIMEOUT,
                format!(
                    "{name} was not done after {limit} s and was ended ([setup] {setting} in ash.toml, at most ASH_SETUP_MAX_SECONDS). {told}",
                    name = script.name(),
                    limit = limit.as_secs(),
                    setting = script.seconds(),
                    told = last.told(),
                ),
                script,
            ),
            ScriptInterruption::Full(reached) => Error::Setup(reached.problem()),
            ScriptInterruption::Halted => Error::Halted,
        })
    }

    fn judge(&self, script: SetupScript, exit: ProcessExit, last: &OutputTail) -> Result<()> {
        match exit {
            ProcessExit { code: Some(0), .. } => Ok(()),
            ProcessExit { .. } => {
                let told = format!("{} failed with {exit}. {}", script.name(), last.told());
                Err(self.failed(SETUP_FAILED, told, script))
            }
        }
    }

    fn failed(&self, code: &str, told: String, script: SetupScript) -> Error {
        let (id, name) = (&self.session.id, script.name());
        Error::Setup(Problem::new(
            code,
            format!(
                "{told} All that it printed: GET /api/sessions/{id}/logs. Mend it in the session's workspace (POST /api/sessions/{id}/files with the path {name}) and resume the session, which runs it again; nothing of the workspace was lost"
            ),
        ))
    }

    /// Follows the script to its end. Its output is copied into the session's log, so the shim need not keep it.
    async fn follow(
        &self,
        script: SetupScript,
        (sandbox, records): (&Sandbox, &mut RecordStream),
        last: &mut OutputTail,
    ) -> Result<ProcessExit> {
        while let Some(JournalRecord { offset, payload: what, process }) = records.next().await {
            sandbox.remote.ack(offset).await.ok();
            if process != SETUP && !matches!(what, JournalPayload::SandboxGone { .. }) {
                continue;
            }
            match what {
                JournalPayload::SandboxGone { how, .. } => return Err(ended_in(script, &how)),
                JournalPayload::StdoutLine(line)
                | JournalPayload::StdoutTail(line)
                | JournalPayload::StderrLine(line) => {
                    last.add(&line);
                    self.logs.add(script.level(), &line, self.services.clock());
                }
                JournalPayload::StartFailed { why } => {
                    let told = format!("{} could not be started: {why}.", script.name());
                    return Err(self.failed(SETUP_FAILED, told, script));
                }
                JournalPayload::Exit(exit) => return Ok(exit),
                JournalPayload::Started { .. }
                | JournalPayload::LineTooLong
                | JournalPayload::StdoutChunk(_)
                | JournalPayload::StderrChunk(_)
                | JournalPayload::Usage(_) => {}
            }
        }
        Err(ended_in(script, "its keeper is gone"))
    }

    /// No watchdog checks the disk usage before the agent has started.
    async fn until_full(&self, most: Option<DiskUsage>) -> LimitReached {
        let Some(most) = most else { return std::future::pending().await };
        let mut rest = DISK_CHECK_INTERVAL;
        loop {
            tokio::time::sleep(rest).await;
            // Files that cannot be measured now, because they change meanwhile, are measured the next time.
            let Ok((weight, took)) = self.services.weigh(&self.live, most).await else { continue };
            if let Some(reached) = resource_limits::reached(None, weight, most) {
                return reached;
            }
            rest = (took * DISK_CHECK_TIME_DIVISOR).max(DISK_CHECK_INTERVAL);
        }
    }

    /// Any file of that name counts as the marker; the agent is free to replace it.
    async fn is_installed(&self) -> Result<bool> {
        let home = self.live.home();
        blocking(move || match open_root(&home)?.open_file(&marker(), LinkPolicy::Refuse) {
            Ok(_) => Ok(true),
            Err(error) => Ok(error.kind() != SnapshotErrorKind::NotFound),
        })
        .await
    }

    /// If the marker cannot be written, which only the script itself can cause, the script runs again the next time.
    async fn note_installed(&self) {
        let (home, owner): (PathBuf, _) = (self.live.home(), self.owner());
        let text = format!("{{\"agent\":\"{}\",\"version\":{}}}\n", self.session.agent, self.session.version);
        let written = blocking(move || {
            Ok(open_root(&home)?.write_file(&marker(), &mut text.as_bytes(), owner, 0o644).map(drop)?)
        });
        if let Err(error) = written.await {
            tracing::warn!(session = %self.session.id, %error, "the run of install.sh could not be recorded; the next start runs it again");
        }
    }

    /// Waits, unless a client wants the session to stop.
    pub(super) async fn unless_halted<T>(&self, waiting: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            done = waiting => Ok(done),
            () = self.halt.notified() => Err(Error::Halted),
        }
    }
}

fn ended_in(script: SetupScript, how: &str) -> Error {
    let told = format!("The sandbox ended while {} ran ({how})", script.name());
    Error::Failed(Problem::new("sandbox_failed", told))
}

fn marker() -> RelPath {
    RelPath::parse(INSTALLED).expect("a plain name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, process::Command};

    /// Runs the text as it runs in the sandbox.
    fn ran(text: &str) -> (Option<i32>, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("script");
        fs::write(&path, text).expect("written");
        let output = Command::new("/bin/sh").args(["-c", RUN_SCRIPT, "sh"]).arg(&path).output().expect("sh");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    #[test]
    fn a_script_runs_by_its_first_line_or_else_by_sh() {
        assert_eq!(ran("echo plain; exit 3"), (Some(3), "plain".to_owned()));
        assert_eq!(ran("#!/bin/bash\na=(x y); echo ${a[1]}"), (Some(0), "y".to_owned()));
        assert_eq!(
            ran("#! /usr/bin/env bash\necho $BASH_VERSION | cut -c1 | tr 0-9 n"),
            (Some(0), "n".to_owned())
        );
        assert_eq!(ran("#!/bin/sh -e\nfalse\necho never"), (Some(1), String::new()));
        assert_eq!(ran(""), (Some(0), String::new()));
        assert_eq!(ran("#!/no/such/program\n").0, Some(127));
    }

    #[test]
    fn a_failure_is_reported_with_the_last_lines_only() {
        let mut last = OutputTail::default();
        assert_eq!(last.told(), "It printed nothing.");
        (0..LAST_LINES + 5).for_each(|n| last.add(n.to_string().as_bytes()));
        last.add(&vec![b'x'; 100_000]);
        let told = last.told();
        assert!(told.starts_with("Its last lines:\n6\n7\n") && told.len() < 1000, "{told}");
    }
}
