//! The Docker engine of the tests, and a gate in front of it that can be closed or stop forwarding.

use super::Server;
use serde_json::Value;
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::Command,
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// The socket of the engine that ./test has started. Without it these tests fail, because a skipped test proves nothing.
pub fn engine() -> String {
    std::env::var("ASH_TEST_DOCKER").expect("ASH_TEST_DOCKER names no engine's socket: run ./test")
}

/// The server's settings for the engine.
pub fn env() -> [(String, String); 3] {
    let host = format!("unix://{}", engine());
    [("ASH_SANDBOX", "docker"), ("DOCKER_HOST", &host), ("ASH_DOCKER_IMAGE", "ash-test")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// The group that may use the engine.
pub fn group() -> u32 {
    std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(engine()).expect("an engine"))
}

pub fn prepare(more: &[(&str, &str)]) -> Server {
    let mut server = Server::prepare(more);
    env().iter().for_each(|(name, value)| server.set(name, value));
    server
}

/// Sends a request to the engine; returns the status and the body.
pub fn ask(method: &str, path: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(engine()).expect("an engine");
    write!(stream, "{method} {path} HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_default())
}

/// Runs tests of this binary once more, with containers as sandboxes.
pub fn again(tests: &[&str]) {
    let output = Command::new(std::env::current_exe().expect("we run"))
        .args(["--test-threads", "2", "--skip", "in_docker"])
        .args(tests)
        .env("ASH_TEST_WALLS", "docker")
        .output()
        .expect("ran");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !out.contains("running 0 tests"), "{out}\n{err}");
}

/// A proxy for the engine, with its own socket.
pub struct Gate {
    socket: PathBuf,
    silent: Arc<Silence>,
}

#[derive(Default)]
struct Silence {
    kept: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn new(server: &Server) -> Gate {
        Gate { socket: server.dir.join("engine.sock"), silent: Arc::default() }
    }

    /// Accepts connections until its socket is removed.
    pub fn open(&self) {
        let listener = UnixListener::bind(&self.socket).expect("a socket");
        let (socket, silent) = (self.socket.clone(), self.silent.clone());
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                if !socket.exists() {
                    return;
                }
                let silent = silent.clone();
                thread::spawn(move || pass(connection, &silent));
            }
        });
    }

    pub fn close(&self) {
        let last = UnixStream::connect(&self.socket);
        fs::remove_file(&self.socket).expect("removed");
        // Wakes the listener, which then sees that it is over.
        drop(last);
    }

    pub fn keep_silent(&self, silent: bool) {
        *self.silent.kept.lock().expect("no code panics while it holds this lock") = silent;
        self.silent.changed.notify_all();
    }
}

/// Forwards one connection in both directions. A silent gate keeps it open without data, like a frozen engine.
fn pass(client: UnixStream, silent: &Silence) {
    let kept = silent.kept.lock().expect("no code panics while it holds this lock");
    drop(silent.changed.wait_while(kept, |kept| *kept).expect("no code panics while it holds this lock"));
    let Ok(engine) = UnixStream::connect(engine()) else { return };
    let (Ok(mut from), Ok(mut to)) = (client.try_clone(), engine.try_clone()) else { return };
    let there = thread::spawn(move || io::copy(&mut from, &mut to));
    let (mut engine, mut client) = (engine, client);
    io::copy(&mut engine, &mut client).ok();
    client.shutdown(std::net::Shutdown::Both).ok();
    there.join().ok();
}

/// A server that reaches its engine through a gate, not started yet.
pub fn behind_a_gate() -> (Server, Gate) {
    let mut server = prepare(&[]);
    let gate = Gate::new(&server);
    server.set("DOCKER_HOST", &format!("unix://{}", gate.socket.display()));
    (server, gate)
}
