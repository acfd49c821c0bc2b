//! Starts the real agent in its own folder and exchanges lines with it. Every wait has a deadline.

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const SESSION: &str = "11111111-1111-4111-8111-111111111111";
const DEADLINE: Duration = Duration::from_secs(60);

/// A home and a workspace.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["home", "work"] {
            fs::create_dir(folder.path().join(name)).expect("folder");
        }
        Place { folder }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn work(&self, name: &str) -> PathBuf {
        self.folder.path().join("work").join(name)
    }

    pub(crate) fn transcript(&self, session: &str) -> PathBuf {
        self.home().join(format!(".ash/agent/{session}.jsonl"))
    }

    /// The entries; panics if one is torn.
    pub(crate) fn entries(&self, session: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.transcript(session)).expect("transcript");
        assert!(text.ends_with('\n'));
        text.lines().map(|line| serde_json::from_str(line).expect("an entry")).collect()
    }

    pub(crate) fn entries_of(&self, kind: &str) -> usize {
        self.entries(SESSION).iter().filter(|entry| entry["type"] == kind).count()
    }

    pub(crate) fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(flags).env("HOME", self.home()).current_dir(self.work(""));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn start(&self, flags: &[&str]) -> Agent {
        let mut child = self.command(flags).spawn().expect("the example was built");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        Agent { stdin: child.stdin.take(), child, lines }
    }

    pub(crate) fn fresh(&self) -> Agent {
        self.start(&["--session-id", SESSION])
    }

    pub(crate) fn resumed(&self) -> Agent {
        self.start(&["--session-id", SESSION, "--resume", SESSION])
    }
}

/// Cargo passes only the paths of binaries to tests; examples are in a neighbouring folder.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("we run");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    profile.join("examples/agent")
}

pub(crate) struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Agent {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send_raw(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("still open");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("the agent reads");
    }

    pub(crate) fn send(&mut self, line: &Value) {
        self.send_raw(&line.to_string());
    }

    pub(crate) fn prompt(&mut self, turn: &str, text: &str) {
        self.send(&json!({"type": "user", "uuid": turn, "message": {"role": "user", "content": text}}));
    }

    pub(crate) fn control(&mut self, id: &str, subtype: &str) {
        self.send(&json!({"type": "control_request", "request_id": id, "request": {"subtype": subtype}}));
    }

    pub(crate) fn raw_line(&self) -> Option<String> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("no line within {DEADLINE:?}"),
        }
    }

    pub(crate) fn line(&self) -> Value {
        let line = self.raw_line().expect("the agent speaks");
        serde_json::from_str(&line).expect("JSON")
    }

    /// All lines up to and including the next line of that type.
    pub(crate) fn until(&self, kind: &str) -> Vec<Value> {
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &Value| line["type"] != kind) {
            lines.push(self.line());
        }
        lines
    }

    pub(crate) fn ask(&mut self, turn: &str, text: &str) -> Vec<Value> {
        self.prompt(turn, text);
        self.until("result")
    }

    pub(crate) fn answer(&mut self, turn: &str, text: &str) -> String {
        let lines = self.ask(turn, text);
        let result = lines.last().expect("a result");
        assert_eq!(
            (&result["is_error"], &result["user_message_uuid"]),
            (&json!(false), &json!(turn)),
            "{result}"
        );
        result["result"].as_str().expect("text").to_owned()
    }

    pub(crate) fn hello(&mut self) -> Value {
        self.control("hello", "initialize");
        self.line()["response"]["response"]["resumed"].clone()
    }

    pub(crate) fn end_input(&mut self) {
        self.stdin = None;
    }

    /// The rest of the output, and the exit code.
    pub(crate) fn finish(mut self) -> (Vec<Value>, Option<i32>) {
        self.end_input();
        let mut rest = Vec::new();
        while let Some(line) = self.raw_line() {
            rest.push(serde_json::from_str(&line).expect("JSON"));
        }
        (rest, self.child.wait().expect("it ends").code())
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn types(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["type"].as_str().expect("a type")).collect()
}

/// The complete text of the stream.
pub(crate) fn streamed(lines: &[Value]) -> String {
    lines.iter().filter_map(|line| line["event"]["delta"]["text"].as_str()).collect()
}
