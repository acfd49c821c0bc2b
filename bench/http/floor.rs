//! The baseline for sessions: what the machine needs by itself for the same sandbox around the same agent and for one
//! commit, without a server.

use crate::stage::Stage;
use anyhow::{Context, Result, ensure};
use ash_model::{TenantId, Timestamp};
use ash_store::{IdempotencyRequest, IdempotencyStore, SealingKey, SqliteStore};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

const HELLO: &[u8] =
    b"{\"type\":\"control_request\",\"request_id\":\"hello\",\"request\":{\"subtype\":\"initialize\"}}\n";

/// The command line of a running sandbox, rewritten to start the agent alone.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    words: Vec<String>,
    uid: u32,
    dir: PathBuf,
}

/// Where the sources of the sandbox's mounts are in the benchmark.
struct Places {
    workspace: PathBuf,
    home: PathBuf,
    /// Takes the place of the egress directory, through which an agent reaches its model.
    egress: PathBuf,
    etc: PathBuf,
    ash: PathBuf,
}

impl Line {
    /// Reads the command line of a sandbox's bubblewrap; `etc` is the directory that the sandbox sees as /etc.
    pub(crate) fn of(bwrap: u32, etc: &Path, stage: &Stage) -> Result<Line> {
        let line = fs::read_to_string(format!("/proc/{bwrap}/cmdline"))?;
        let status = fs::read_to_string(format!("/proc/{bwrap}/status"))?;
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next());
        let uid = uid.and_then(|uid| uid.parse().ok()).context("a uid")?;
        copy_etc(etc, &stage.dir.join("etc"))?;
        let words = line.split_terminator('\0').map(str::to_owned).collect();
        Ok(Line { words, uid, dir: stage.dir.clone() })
    }

    /// Prepares a spawner with a workspace and a home of its own.
    fn ready(&self, name: &str) -> Result<Ready> {
        let own = self.dir.join("floor").join(name);
        let places = Places {
            workspace: own.join("workspace"),
            home: own.join("home"),
            egress: own.join("egress"),
            etc: self.dir.join("etc"),
            ash: self.dir.join("ash"),
        };
        for dir in [&places.workspace, &places.home, &places.egress] {
            fs::create_dir_all(dir)?;
            chown(dir, Some(self.uid), Some(self.uid))?;
        }
        Ok(Ready { words: rewritten(&self.words, &places), uid: self.uid })
    }
}

fn copy_etc(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(target)?
        } else {
            fs::copy(entry.path(), target).map(drop)?
        }
    }
    Ok(())
}

/// The same mounts with the benchmark's sources, and the agent instead of ash's init.
fn rewritten(line: &[String], places: &Places) -> Vec<String> {
    let mut words: Vec<String> = line.split(|word| word == "--").next().unwrap_or_default().to_vec();
    // The option names a descriptor that this process does not have.
    if let Some(at) = words.iter().position(|word| word == "--json-status-fd") {
        words.drain(at..(at + 2).min(words.len()));
    }
    for (at, from) in [
        ("/workspace", &places.workspace),
        ("/home/agent", &places.home),
        ("/run/ash", &places.egress),
        ("/etc", &places.etc),
        ("/.ash/ash", &places.ash),
    ] {
        let source =
            (2..words.len()).find(|n| words[*n] == at && words[n - 2].ends_with("bind")).map(|n| n - 1);
        source.into_iter().for_each(|n| words[n] = from.display().to_string());
    }
    let agent = ["--setenv", "HOME", "/home/agent", "--", "/.ash/ash", "builtin-agent", "--session-id"];
    words.extend(agent.map(str::to_owned));
    words
}

pub(crate) struct Ready {
    words: Vec<String>,
    uid: u32,
}

/// An agent that has answered. Its sandbox ends with the thread that started it.
pub(crate) struct Started {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Ready {
    /// Starts the sandbox with the agent and waits for its first answer.
    fn start(&self) -> Result<Started> {
        let mut command = if is_root() { self.as_user() } else { Command::new(&self.words[0]) };
        command.args(&self.words[1..]).arg(uuid::Uuid::new_v4().to_string()).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start bubblewrap")?;
        child.stdin.as_mut().context("a pipe")?.write_all(HELLO)?;
        let mut stdout = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut answer = String::new();
        stdout.read_line(&mut answer)?;
        let started = Started { child, stdout };
        ensure!(answer.contains("control_response"), "the bare agent answered {answer:?}");
        Ok(started)
    }

    fn as_user(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={}", self.uid), format!("--regid={}", self.uid)]);
        command.args(["--clear-groups", "--", &self.words[0]]);
        command
    }

    pub(crate) fn time(&self) -> Result<Duration> {
        let began = Instant::now();
        let started = self.start()?;
        let took = began.elapsed();
        drop(started);
        Ok(took)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        // The pipe ends when the last process inside is gone. The next sample must not pay for this sandbox.
        self.stdout.read_to_end(&mut Vec::new()).ok();
    }
}

pub(crate) fn is_root() -> bool {
    // SAFETY: reads a number of this process, and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Starts sandboxes one after the other, on a thread that serves no requests.
pub(crate) struct Walls {
    spawner: Spawner,
}

impl Walls {
    pub(crate) fn new(line: &Line) -> Result<Walls> {
        Ok(Walls { spawner: Spawner::new(line, "single", Keep::Nothing)? })
    }

    pub(crate) async fn time(&mut self) -> Result<Duration> {
        self.spawner.start(1)?;
        tokio::task::block_in_place(|| self.spawner.wait())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    /// As a server does: all sandboxes live until the spawner is dropped.
    All,
}

/// A thread that starts sandboxes. Those it keeps live as long as it does.
pub(crate) struct Spawner {
    orders: Option<mpsc::Sender<usize>>,
    answers: mpsc::Receiver<Result<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Spawner {
    pub(crate) fn new(line: &Line, name: &str, keep: Keep) -> Result<Spawner> {
        let ready = line.ready(name)?;
        let (orders, inbox) = mpsc::channel::<usize>();
        let (outbox, answers) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut kept = Vec::new();
            for count in inbox {
                if outbox.send(several(&ready, count, keep, &mut kept)).is_err() {
                    return;
                }
            }
        });
        Ok(Spawner { orders: Some(orders), answers, thread: Some(thread) })
    }

    pub(crate) fn start(&self, count: usize) -> Result<()> {
        self.orders.as_ref().context("a thread")?.send(count).context("the spawner is gone")
    }

    pub(crate) fn wait(&self) -> Result<Duration> {
        self.answers.recv().context("the spawner is gone")?
    }
}

fn several(ready: &Ready, count: usize, keep: Keep, kept: &mut Vec<Started>) -> Result<Duration> {
    if keep == Keep::Nothing {
        return (0..count).map(|_| ready.time()).sum();
    }
    let began = Instant::now();
    for _ in 0..count {
        kept.push(ready.start()?);
    }
    Ok(began.elapsed())
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.orders.take();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// A database of the benchmark's own on the same disk, and its cheapest write.
pub(crate) struct Commits {
    store: SqliteStore,
    written: u64,
}

impl Commits {
    pub(crate) async fn open(stage: &Stage) -> Result<Commits> {
        let dir = stage.dir.join("store");
        fs::create_dir_all(&dir)?;
        let store = SqliteStore::open(&dir.join("ash.db"), SealingKey::open(&dir.join("seal.key"))?).await?;
        Ok(Commits { store, written: 0 })
    }

    pub(crate) async fn time(&mut self) -> Result<Duration> {
        self.written += 1;
        let key = self.written.to_string();
        let request = IdempotencyRequest {
            tenant: TenantId::main(),
            route: "bench".to_owned(),
            key,
            hash: String::new(),
            resource: String::new(),
            at: Timestamp::now(),
        };
        let began = Instant::now();
        self.store.claim_idempotency_key(request).await?;
        Ok(began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_keeps_its_walls_and_changes_what_is_behind_them() {
        let line = "bwrap --unshare-all --json-status-fd 8 --ro-bind /usr /usr --ro-bind /mnt/etc /etc \
            --ro-bind /etc/ssl /etc/ssl --bind /mnt/workspace /workspace --bind /mnt/home /home/agent \
            --ro-bind /mnt/ash /.ash/ash --ro-bind /mnt/egress /run/ash --chdir /workspace -- /.ash/ash confine {}";
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let [workspace, home, egress, etc, ash] =
            ["/b/workspace", "/b/home", "/b/egress", "/b/etc", "/b/ash"].map(PathBuf::from);
        let places = Places { workspace, home, egress, etc, ash };
        let expected = "bwrap --unshare-all --ro-bind /usr /usr --ro-bind /b/etc /etc \
            --ro-bind /etc/ssl /etc/ssl --bind /b/workspace /workspace --bind /b/home /home/agent \
            --ro-bind /b/ash /.ash/ash --ro-bind /b/egress /run/ash --chdir /workspace --setenv HOME /home/agent -- \
            /.ash/ash builtin-agent --session-id";
        let found = rewritten(&line, &places).join(" ");
        assert_eq!(found, expected.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}
