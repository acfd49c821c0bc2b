//! Commands that callers run in the sandbox beside the agent.

use super::SessionActor;
use crate::{
    Error, Result,
    machine::CommandRefusal,
    mailbox::{ExecOutput, ReplySender},
    workspace::{COMMANDS, FIRST_COMMAND},
};
use ash_model::{Problem, SessionStatus};
use ash_sandbox::{JournalPayload, ProcessExit, ProcessSpec, SandboxHandle, SandboxLayout};
use ash_store::SessionRow;
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// The most output of one command; the rest is dropped, and the answer says so.
const OUTPUT: usize = 10 << 20;

pub(super) struct ExecTable {
    /// Commands that wait for the session's next sandbox.
    waiting: Vec<WaitingExec>,
    running: HashMap<u16, RunningExec>,
    finished: Vec<(RunningExec, ProcessExit)>,
    first: u16,
    next: u16,
}

struct RunningExec {
    /// The command's own start record was received. Earlier records under its number belong to another command.
    started: bool,
    reply: ReplySender<ExecOutput>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
    deadline: Instant,
    timed_out: bool,
}

/// A command of an active session that has no sandbox at this moment: it is between two of them.
struct WaitingExec {
    command: String,
    timeout: Duration,
    reply: ReplySender<ExecOutput>,
    deadline: Instant,
}

impl SessionActor {
    /// Starts the commands that waited for a sandbox, and refuses those that waited in vain.
    pub(super) async fn start_waiting_execs(&mut self) {
        let now = Instant::now();
        for exec in std::mem::take(&mut self.execs.waiting) {
            let comes = self.machine.takes_commands() && self.link.conn.is_none();
            if comes && exec.deadline > now && !exec.reply.is_closed() {
                self.execs.waiting.push(exec);
            } else if comes {
                let starting = CommandRefusal::WrongStatus(SessionStatus::Starting);
                exec.reply.send(Err(starting.into())).ok();
            } else {
                Box::pin(self.exec(exec.command, exec.timeout, exec.reply)).await;
            }
        }
    }

    pub(super) async fn exec(&mut self, command: String, timeout: Duration, reply: ReplySender<ExecOutput>) {
        if self.machine.has_lost_tree() || self.is_tree_broken() {
            reply.send(Err(Error::TreeLost)).ok();
            return;
        }
        if !self.machine.takes_commands() {
            reply.send(Err(CommandRefusal::WrongStatus(self.machine.log.status).into())).ok();
            return;
        }
        let Some(conn) = &self.link.conn else {
            let deadline = Instant::now() + timeout;
            self.execs.waiting.push(WaitingExec { command, timeout, reply, deadline });
            return;
        };
        let inside = &self.ctx.services.inside(&self.ctx.live);
        let env = match self.environment(inside).await {
            Ok(env) => env,
            Err(error) => {
                reply.send(Err(error)).ok();
                return;
            }
        };
        let process = self.execs.number();
        let start = ProcessSpec {
            process,
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), command],
            env,
            cwd: inside.workspace.clone(),
            raw: true,
            stdin: false,
        };
        match conn.remote.start(start).await {
            Ok(()) => self.execs.add(process, reply, Instant::now() + timeout),
            Err(error) => {
                reply.send(Err(error.into())).ok();
            }
        }
        self.touch();
    }

    /// The environment of a command: that of the agent, without what only the agent program uses.
    async fn environment(&self, inside: &SandboxLayout) -> Result<BTreeMap<String, String>> {
        let SessionRow { no, tenant, agent, version, .. } = &self.ctx.session;
        let mut env = self.ctx.services.base_env(&self.ctx.session, inside);
        let version = self.ctx.services.store.version(tenant, agent, *version).await?;
        env.extend(version.map(|version| version.env.expose()).unwrap_or_default());
        match self.ctx.services.store.env(*no).await {
            Ok(own) => env.extend(own.expose()),
            // The receipt of the resume has reported this already.
            Err(ash_store::Error::Sealed) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(env)
    }
}

impl ExecTable {
    pub(super) fn new() -> ExecTable {
        ExecTable {
            waiting: Vec::new(),
            running: HashMap::new(),
            finished: Vec::new(),
            first: FIRST_COMMAND,
            next: FIRST_COMMAND,
        }
    }

    /// A sandbox begins: commands are numbered from `first`.
    pub(super) fn begin(&mut self, first: u16) {
        (self.first, self.next) = (first, first);
    }

    /// The numbers of the running commands.
    pub(super) fn numbers(&self) -> Vec<u16> {
        self.running.keys().copied().collect()
    }

    fn number(&mut self) -> u16 {
        loop {
            let number = self.next;
            self.next = if number - self.first + 1 < COMMANDS { number + 1 } else { self.first };
            if !self.running.contains_key(&number) {
                return number;
            }
        }
    }

    fn add(&mut self, process: u16, reply: ReplySender<ExecOutput>, deadline: Instant) {
        let running = RunningExec {
            started: false,
            reply,
            stdout: Vec::new(),
            stderr: Vec::new(),
            truncated: false,
            deadline,
            timed_out: false,
        };
        self.running.insert(process, running);
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let running =
            self.running.values().filter(|running| !running.timed_out).map(|running| running.deadline);
        running.chain(self.waiting.iter().map(|waiting| waiting.deadline)).min()
    }

    /// Ends commands that ran out of time or whose callers are gone.
    pub(super) async fn expire(&mut self, remote: Option<&SandboxHandle>) {
        let now = Instant::now();
        for (process, running) in &mut self.running {
            if !running.timed_out && (running.deadline <= now || running.reply.is_closed()) {
                running.timed_out = true;
                if let Some(remote) = remote {
                    remote.signal(*process, 9).await.ok();
                }
            }
        }
    }

    pub(super) fn hear(&mut self, process: u16, what: JournalPayload) {
        let Some(running) = self.running.get_mut(&process) else { return };
        running.started |=
            matches!(what, JournalPayload::Started { .. } | JournalPayload::StartFailed { .. });
        if !running.started {
            return;
        }
        match what {
            JournalPayload::StdoutChunk(bytes)
            | JournalPayload::StdoutLine(bytes)
            | JournalPayload::StdoutTail(bytes) => keep(&mut running.stdout, &bytes, &mut running.truncated),
            JournalPayload::StderrChunk(bytes) | JournalPayload::StderrLine(bytes) => {
                keep(&mut running.stderr, &bytes, &mut running.truncated)
            }
            JournalPayload::Exit(exit) => self.finish(process, exit),
            JournalPayload::StartFailed { why } => {
                keep(&mut running.stderr, why.as_bytes(), &mut running.truncated);
                self.finish(process, ProcessExit { code: Some(127), signal: None, oom: false });
            }
            JournalPayload::Started { .. }
            | JournalPayload::LineTooLong
            | JournalPayload::SandboxGone { .. }
            | JournalPayload::Usage(_) => {}
        }
    }

    fn finish(&mut self, process: u16, exit: ProcessExit) {
        if let Some(running) = self.running.remove(&process) {
            self.finished.push((running, exit));
        }
    }

    /// Answers callers whose command has ended, once the end is committed.
    pub(super) fn answer(&mut self) {
        for (running, exit) in self.finished.drain(..) {
            // As a shell reports it: 128 plus the signal; 124 as `timeout` does.
            let by_signal = 128 + exit.signal.unwrap_or(0);
            let exit_code = if running.timed_out { 124 } else { exit.code.unwrap_or(by_signal) };
            let RunningExec { stdout, stderr, timed_out, truncated, .. } = running;
            running.reply.send(Ok(ExecOutput { exit_code, stdout, stderr, timed_out, truncated })).ok();
        }
    }

    pub(super) fn fail(&mut self, problem: &Problem) {
        self.answer();
        for (_, running) in self.running.drain() {
            running.reply.send(Err(Error::Failed(problem.clone()))).ok();
        }
    }
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8], truncated: &mut bool) {
    let room = OUTPUT.saturating_sub(kept.len());
    *truncated |= bytes.len() > room;
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}
