//! A Docker engine that is stopped or slow, and servers beside it. What stands between a server and its engine can be
//! closed, and can stop passing anything on.

use crate::support::{Client, Server, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    fs, io,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

/// Longer than any request may take beside an engine that does not answer; the engine's own patience is far above it.
const SECONDS: Duration = Duration::from_secs(10);

/// A way to the engine, at a socket of its own.
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

    /// Takes connections until its socket is removed.
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
        // Wakes the listener up, which then finds that it is over.
        drop(last);
    }

    fn keep_silent(&self, silent: bool) {
        *self.silent.kept.lock().expect("nobody panics") = silent;
        self.silent.changed.notify_all();
    }
}

/// One connection there and back. A silent one keeps it open and says nothing, as an engine that is held still does.
fn pass(client: UnixStream, silent: &Silence) {
    let kept = silent.kept.lock().expect("nobody panics");
    drop(silent.changed.wait_while(kept, |kept| *kept).expect("nobody panics"));
    let Ok(engine) = UnixStream::connect(crate::docker::engine()) else { return };
    let (Ok(mut from), Ok(mut to)) = (client.try_clone(), engine.try_clone()) else { return };
    let there = thread::spawn(move || io::copy(&mut from, &mut to));
    let (mut engine, mut client) = (engine, client);
    io::copy(&mut engine, &mut client).ok();
    client.shutdown(std::net::Shutdown::Both).ok();
    there.join().ok();
}

pub fn prepared() -> (Server, Gate) {
    let mut server = crate::docker::prepare(&[]);
    let gate = Gate::new(&server);
    server.set("DOCKER_HOST", &format!("unix://{}", gate.socket.display()));
    (server, gate)
}

async fn until_degraded(client: &Client, words: &str) {
    let told = eventually("its health says so", async || {
        let health = client.get("/health").await;
        (health["degraded"] == true).then(|| health["trouble"].clone())
    })
    .await;
    let told: Vec<&Value> = told.as_array().expect("a list").iter().collect();
    let said =
        told.iter().find(|one| one["code"] == "engine_unreachable").map(|one| one["error"].to_string());
    assert!(said.as_deref().is_some_and(|said| said.contains(words)), "{told:?}");
}

async fn until_well(client: &Client) {
    let well = async || client.get("/health").await.get("degraded").is_none().then_some(());
    eventually("its health says nothing more", well).await;
}

/// Nothing new can be started, and the answer comes soon and names the remedy.
async fn is_refused(client: &Client, words: &str) {
    let began = Instant::now();
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "tester" }))).await;
    assert!(began.elapsed() < SECONDS, "{:?}", began.elapsed());
    let error = body["error"].as_str().unwrap_or_default();
    assert_eq!(status.as_u16(), 503, "{body}");
    assert!(error.contains(words) && error.contains("systemctl start docker"), "{body}");
}

#[tokio::test]
async fn as_root_in_docker_an_engine_that_does_not_answer_holds_nobody_up_and_loses_nothing() {
    let (mut server, gate) = prepared();
    gate.open();
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    gate.keep_silent(true);
    until_degraded(&client, "does not answer").await;
    is_refused(&client, "does not answer").await;
    assert!(client.text(&id, "what was first?").await.contains("remember me"), "what runs goes on");
    // A server starts beside it, and has what runs.
    server.crash_and_start().await;
    let client = server.client();
    until_degraded(&client, "does not answer").await;
    assert!(client.text(&id, "and now?").await.contains("turn 3"));
    gate.keep_silent(false);
    until_well(&client).await;
    client.create().await;
    assert!(client.text(&id, "and now?").await.contains("turn 4"));
    gate.close();
}

#[tokio::test]
async fn as_root_in_docker_a_server_starts_without_its_engine_and_works_when_it_is_there() {
    let (mut server, gate) = prepared();
    server.launch().await;
    let client = server.client();
    until_degraded(&client, "there is no Docker engine").await;
    client.deploy("tester").await;
    is_refused(&client, "there is no Docker engine").await;
    gate.open();
    until_well(&client).await;
    let id = client.create().await;
    assert!(client.text(&id, "hello").await.contains("turn 1"));
    gate.close();
}
