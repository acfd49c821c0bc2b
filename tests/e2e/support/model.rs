//! The model behind an agent: `ash dev model-server`, which stops with the test.

use super::ash;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

pub struct Model {
    child: Child,
    /// `http://…`, or `unix:…`.
    pub url: String,
    log: PathBuf,
}

impl Drop for Model {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait().map(drop)).ok();
    }
}

impl Model {
    /// On loopback, with its log in this directory.
    pub fn start(dir: &Path) -> Model {
        Model::with(dir, &[])
    }

    /// On a socket in this directory.
    pub fn on_a_socket(dir: &Path) -> Model {
        Model::with(dir, &["--unix", dir.join("model.sock").to_str().expect("text")])
    }

    /// A model that refuses requests with more tokens than this.
    pub fn with_window(dir: &Path, tokens: u64) -> Model {
        Model::with(dir, &["--window", &tokens.to_string()])
    }

    fn with(dir: &Path, args: &[&str]) -> Model {
        let log = dir.join("model.log");
        let mut child = Command::new(ash())
            .args(["dev", "model-server", "--log"])
            .arg(&log)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a model server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        Model { child, url: line.trim_start_matches("listening on ").trim_end().to_owned(), log }
    }

    /// All requests that it received.
    pub fn requests(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).expect("a request")).collect()
    }
}
