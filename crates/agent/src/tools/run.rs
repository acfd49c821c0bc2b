//! Runs a shell command in its own process group, so that the agent can stop everything that it started.
//!
//! We reap the shell last: until then no other process can get its id, which is also the id of the group.

use super::{MAX_TEXT_BYTES, ToolOutcome};
use crate::cancel::{CancelToken, timespec};
use crate::conversation::CommandOutput;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// A background process of the command may hold the pipes open for ever, so the tool waits only this long.
const OUTPUT_GRACE_AFTER_EXIT: Duration = Duration::from_secs(1);
/// A killed process exits at once, except inside an uninterruptible system call.
const EXIT_GRACE_AFTER_KILL: Duration = Duration::from_secs(5);

pub(super) fn run(command: &str, timeout_ms: Option<u64>, cancel: &CancelToken) -> ToolOutcome {
    let time = timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
    match start(command).and_then(|running| running.watch(time, cancel)) {
        Ok(outcome) => outcome,
        Err(error) => Err(format!("cannot run the command: {error}")).into(),
    }
}

fn start(command: &str) -> io::Result<RunningCommand> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).process_group(0);
    let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdout = OutputPipe::new(child.stdout.take().map(OwnedFd::from));
    let stderr = OutputPipe::new(child.stderr.take().map(OwnedFd::from));
    let group = Pid::from_child(&child);
    let exit = pidfd_open(group, PidfdFlags::empty()).or_else(|error| {
        // A command that we cannot watch must not continue.
        let _ = kill_process_group(group, Signal::KILL);
        child.wait().and(Err(error.into()))
    })?;
    Ok(RunningCommand { child, group, exit, stdout, stderr, phase: CommandPhase::Running })
}

struct RunningCommand {
    child: Child,
    group: Pid,
    exit: OwnedFd,
    stdout: OutputPipe,
    stderr: OutputPipe,
    phase: CommandPhase,
}

#[derive(Clone, Copy, PartialEq)]
enum CommandPhase {
    Running,
    Killed(KillReason),
    /// `None` if it exited by itself.
    Exited(Option<KillReason>),
}

#[derive(Clone, Copy, PartialEq)]
enum KillReason {
    Interrupted,
    TimedOut,
}

/// Which of the awaited events have happened.
struct CommandReadiness {
    exited: bool,
    cancelled: bool,
    stdout: bool,
    stderr: bool,
}

impl RunningCommand {
    fn watch(mut self, time: Duration, cancel: &CancelToken) -> io::Result<ToolOutcome> {
        let mut until = Instant::now() + time;
        while !self.is_over() {
            let left = until.saturating_duration_since(Instant::now());
            let ready = if left.is_zero() { None } else { Some(self.wait(left, cancel)?) };
            let Some(ready) = ready else {
                if self.phase != CommandPhase::Running {
                    break;
                }
                until = self.kill(KillReason::TimedOut);
                continue;
            };
            if ready.cancelled && self.phase == CommandPhase::Running {
                until = self.kill(KillReason::Interrupted);
            }
            if ready.exited {
                self.phase = self.phase.exited();
                until = Instant::now() + OUTPUT_GRACE_AFTER_EXIT;
            }
            self.read(&ready);
        }
        self.outcome(time)
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, CommandPhase::Exited(_))
            && self.stdout.pipe.is_none()
            && self.stderr.pipe.is_none()
    }

    fn kill(&mut self, why: KillReason) -> Instant {
        // Fails only if the whole group is gone, which is the goal.
        let _ = kill_process_group(self.group, Signal::KILL);
        self.phase = CommandPhase::Killed(why);
        Instant::now() + EXIT_GRACE_AFTER_KILL
    }

    fn wait(&self, time: Duration, cancel: &CancelToken) -> io::Result<CommandReadiness> {
        let happened = match self.phase {
            CommandPhase::Running => vec![self.exit.as_fd(), cancel.as_fd()],
            CommandPhase::Killed(_) => vec![self.exit.as_fd()],
            CommandPhase::Exited(_) => vec![],
        };
        let (first_pipe, pipes) = (happened.len(), [&self.stdout, &self.stderr]);
        let pipes = pipes.into_iter().filter_map(|stream| stream.pipe.as_ref().map(OwnedFd::as_fd));
        let all: Vec<_> = happened.into_iter().chain(pipes).collect();
        let mut fds: Vec<_> = all.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timespec(time))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        Ok(CommandReadiness {
            exited: first_pipe > 0 && is_ready(0),
            cancelled: first_pipe > 1 && is_ready(1),
            stdout: self.stdout.pipe.is_some() && is_ready(first_pipe),
            stderr: self.stderr.pipe.is_some()
                && is_ready(first_pipe + usize::from(self.stdout.pipe.is_some())),
        })
    }

    fn read(&mut self, ready: &CommandReadiness) {
        let room = |stdout: &OutputPipe, stderr: &OutputPipe| {
            MAX_TEXT_BYTES.saturating_sub(stdout.bytes.len() + stderr.bytes.len())
        };
        if ready.stdout {
            self.stdout.read(room(&self.stdout, &self.stderr));
        }
        if ready.stderr {
            self.stderr.read(room(&self.stdout, &self.stderr));
        }
    }

    fn outcome(mut self, time: Duration) -> io::Result<ToolOutcome> {
        let exit_code = match self.child.try_wait()? {
            Some(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
            None => 128 + Signal::KILL.as_raw(),
        };
        let ran = CommandOutput { stdout: self.stdout.text(), stderr: self.stderr.text(), exit_code };
        let note = match self.phase {
            CommandPhase::Exited(None) | CommandPhase::Running => {
                (exit_code != 0).then(|| format!("exit code {exit_code}"))
            }
            CommandPhase::Killed(KillReason::Interrupted)
            | CommandPhase::Exited(Some(KillReason::Interrupted)) => {
                Some("[interrupted: the command was killed]".into())
            }
            CommandPhase::Killed(KillReason::TimedOut) | CommandPhase::Exited(Some(KillReason::TimedOut)) => {
                Some(format!("[timed out: the command was killed after {} s]", time.as_secs_f32()))
            }
        };
        Ok(ToolOutcome { content: summary(&ran, note.as_deref()), is_error: note.is_some(), ran: Some(ran) })
    }
}

impl CommandPhase {
    fn exited(self) -> CommandPhase {
        match self {
            CommandPhase::Running => CommandPhase::Exited(None),
            CommandPhase::Killed(why) => CommandPhase::Exited(Some(why)),
            CommandPhase::Exited(why) => CommandPhase::Exited(why),
        }
    }
}

fn summary(ran: &CommandOutput, note: Option<&str>) -> String {
    let parts =
        [without_last_newline(&ran.stdout), without_last_newline(&ran.stderr), note.unwrap_or_default()];
    let said: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if said.is_empty() { "[no output]".into() } else { said.join("\n") }
}

fn without_last_newline(text: &str) -> &str {
    text.strip_suffix('\n').unwrap_or(text)
}

struct OutputPipe {
    /// `None` after end of file.
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
    dropped: u64,
}

impl OutputPipe {
    fn new(pipe: Option<OwnedFd>) -> OutputPipe {
        OutputPipe { pipe, bytes: Vec::new(), dropped: 0 }
    }

    /// Reads even without room and discards the rest: a command blocks if its pipe is full.
    fn read(&mut self, room: usize) {
        let Some(pipe) = &self.pipe else { return };
        let mut buffer = [0u8; 16 << 10];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => self.pipe = None,
            Ok(length) => {
                let kept = length.min(room);
                self.bytes.extend_from_slice(&buffer[..kept]);
                self.dropped += (length - kept) as u64;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.pipe = None,
        }
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        match self.dropped {
            0 => text.into_owned(),
            dropped => format!("{text}\n[cut at 1 MiB: {dropped} more bytes]\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_here(command: &str, timeout_ms: Option<u64>) -> ToolOutcome {
        run(command, timeout_ms, &CancelToken::new().expect("eventfd"))
    }

    #[test]
    fn both_streams_and_the_exit_code_are_reported() {
        let outcome = run_here("echo out; echo err >&2; exit 3", None);
        assert_eq!(outcome.content, "out\nerr\nexit code 3");
        assert!(outcome.is_error);
        let ran = CommandOutput { stdout: "out\n".into(), stderr: "err\n".into(), exit_code: 3 };
        assert_eq!(outcome.ran, Some(ran));
    }

    #[test]
    fn a_command_over_its_time_is_killed_with_all_it_started() {
        let outcome = run_here("echo before; sleep 600 | sleep 600", Some(100));
        assert_eq!(outcome.content, "before\n[timed out: the command was killed after 0.1 s]");
        assert_eq!(outcome.ran.map(|ran| ran.exit_code), Some(137));
    }

    #[test]
    fn background_processes_do_not_hold_the_tool() {
        let outcome = run_here("sleep 600 & echo $!", None);
        let pid: i32 = outcome.content.trim().parse().expect("a process id");
        assert!(!outcome.is_error);
        let pid = Pid::from_raw(pid).expect("a process id");
        rustix::process::kill_process(pid, Signal::KILL).expect("it was left running");
    }

    #[test]
    fn output_without_end_is_cut() {
        let outcome = run_here("yes | head -c 5000000; echo no >&2", None);
        assert!(outcome.content.len() < MAX_TEXT_BYTES + 100, "{}", outcome.content.len());
        assert!(outcome.content.contains("\n[cut at 1 MiB: 3951424 more bytes]"));
    }

    #[test]
    fn a_command_that_says_nothing_says_so() {
        assert_eq!(run_here("true", None).content, "[no output]");
        assert_eq!(run_here("kill -9 $$", None).content, "exit code 137");
    }
}
