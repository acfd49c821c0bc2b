//! Commands that somebody runs in the sandbox beside the agent.

use super::{Actor, Reply};
use crate::{
    Error, Result,
    common::{COMMANDS, FIRST_COMMAND},
    state::Refused,
};
use ash_model::{Problem, Status};
use ash_sandbox::{Exit, Inside, Remote, Start, What};
use ash_store::Session;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};
use tokio::time::Instant;

/// What one command may print before the rest is dropped (and said to be).
const OUTPUT: usize = 10 << 20;

#[derive(Debug, Clone)]
pub struct Executed {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub timed_out: bool,
    pub truncated: bool,
}

pub(super) struct Execs {
    running: HashMap<u16, Running>,
    finished: Vec<(Running, Exit)>,
    first: u16,
    next: u16,
}

struct Running {
    /// Its own start was heard: what comes under the number before that is somebody else's.
    started: bool,
    reply: Reply<Executed>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
    deadline: Instant,
    timed_out: bool,
}

impl Actor {
    pub(super) async fn exec(&mut self, command: String, timeout: Duration, reply: Reply<Executed>) {
        if self.has_lost_tree() || self.is_tree_broken() {
            reply.send(Err(Error::TreeLost)).ok();
            return;
        }
        let Some(hands) =
            self.hands.as_ref().filter(|_| self.state.status == Status::Active && self.closing.is_none())
        else {
            reply.send(Err(Refused::Not(self.state.status).into())).ok();
            return;
        };
        let inside = &self.rooms.inside(&self.live);
        let env = match self.environment(inside).await {
            Ok(env) => env,
            Err(error) => {
                reply.send(Err(error)).ok();
                return;
            }
        };
        let process = self.execs.number();
        let start = Start {
            process,
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), command],
            env,
            cwd: inside.workspace.clone(),
            raw: true,
            stdin: false,
        };
        match hands.remote.start(start).await {
            Ok(()) => self.execs.add(process, reply, Instant::now() + timeout),
            Err(error) => {
                reply.send(Err(error.into())).ok();
            }
        }
        self.touch();
    }

    /// What a command finds in its environment: the same as the agent, but for what is the agent program's own.
    async fn environment(&self, inside: &Inside) -> Result<BTreeMap<String, String>> {
        let Session { no, tenant, agent, version, .. } = &self.session;
        let mut env = self.rooms.base_env(&self.session, inside);
        let version = self.rooms.store.version(tenant, agent, *version).await?;
        env.extend(version.map(|version| version.env.expose()).unwrap_or_default());
        match self.rooms.store.env(*no).await {
            Ok(own) => env.extend(own.expose()),
            // The receipt of the resume has said so.
            Err(ash_store::Error::Sealed) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(env)
    }
}

impl Execs {
    pub(super) fn new() -> Execs {
        let (running, finished) = (HashMap::new(), Vec::new());
        Execs { running, finished, first: FIRST_COMMAND, next: FIRST_COMMAND }
    }

    /// In a sandbox: commands are numbered from here on.
    pub(super) fn begin(&mut self, first: u16) {
        (self.first, self.next) = (first, first);
    }

    /// What runs now.
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

    fn add(&mut self, process: u16, reply: Reply<Executed>, deadline: Instant) {
        let running = Running {
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
        self.running.values().filter(|running| !running.timed_out).map(|running| running.deadline).min()
    }

    /// Ends what ran out of time, and what nobody waits for any more.
    pub(super) async fn expire(&mut self, remote: Option<&Remote>) {
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

    pub(super) fn hear(&mut self, process: u16, what: What) {
        let Some(running) = self.running.get_mut(&process) else { return };
        running.started |= matches!(what, What::Started { .. } | What::StartFailed { .. });
        if !running.started {
            return;
        }
        match what {
            What::Chunk(bytes) | What::Line(bytes) | What::Tail(bytes) => {
                keep(&mut running.stdout, &bytes, &mut running.truncated)
            }
            What::ErrChunk(bytes) | What::Err(bytes) => {
                keep(&mut running.stderr, &bytes, &mut running.truncated)
            }
            What::Exit(exit) => self.finish(process, exit),
            What::StartFailed { why } => {
                keep(&mut running.stderr, why.as_bytes(), &mut running.truncated);
                self.finish(process, Exit { code: Some(127), signal: None, oom: false });
            }
            What::Started { .. } | What::TooLong | What::Gone { .. } | What::Usage(_) => {}
        }
    }

    fn finish(&mut self, process: u16, exit: Exit) {
        if let Some(running) = self.running.remove(&process) {
            self.finished.push((running, exit));
        }
    }

    /// Answers those whose end is committed.
    pub(super) fn answer(&mut self) {
        for (running, exit) in self.finished.drain(..) {
            // As a shell puts it: 128 and the signal; 124 as `timeout` does.
            let by_signal = 128 + exit.signal.unwrap_or(0);
            let exit_code = if running.timed_out { 124 } else { exit.code.unwrap_or(by_signal) };
            let Running { stdout, stderr, timed_out, truncated, .. } = running;
            running.reply.send(Ok(Executed { exit_code, stdout, stderr, timed_out, truncated })).ok();
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

/// What every process in a sandbox finds in its environment.
pub(crate) fn base_env(session: &Session, inside: &ash_sandbox::Inside) -> BTreeMap<String, String> {
    let text = |path: &std::path::Path| path.display().to_string();
    [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOME", text(&inside.home)),
        ("USER", "agent".to_owned()),
        ("LOGNAME", "agent".to_owned()),
        ("SHELL", "/bin/sh".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TERM", "dumb".to_owned()),
        ("ASH_SESSION_ID", session.id.to_string()),
        ("ASH_SESSION_DIR", text(&inside.home.join(ash_driver::own_folder(session.native_id)))),
        ("ASH_WORKSPACE_DIR", text(&inside.workspace)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
