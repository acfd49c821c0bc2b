//! Corner cases that an adversarial review found: two operations at once, or a death between two steps.

use crate::support::{Client, Point, Server, eventually, let_go, ok, signal};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn write(client: &Client, id: &str, path: &str, text: &str) {
    let files = json!({ "files": [{ "path": path, "content": STANDARD.encode(text) }] });
    assert_eq!(client.post(&format!("/api/sessions/{id}/files"), files).await["files"][0]["written"], true);
}

async fn read(client: &Client, id: &str, path: &str) -> Value {
    client.get(&format!("/api/sessions/{id}/files/{path}?format=json")).await["content"].clone()
}

fn live_dirs(server: &Server) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(server.data.join("live")).expect("live").flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The state after a reboot.
fn change_boot(server: &Server) {
    for dir in live_dirs(server) {
        let stamp = dir.join("stamp");
        let mut value: Value =
            serde_json::from_slice(&std::fs::read(&stamp).expect("a stamp")).expect("json");
        value["boot"] = json!("another-boot");
        std::fs::write(&stamp, value.to_string()).expect("write");
    }
}

#[tokio::test]
async fn a_command_after_a_crash_never_gets_the_output_of_one_before_it() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let body = json!({ "command": "echo > started; while :; do echo SECRET; done", "timeout": 300_000 });
    let path = format!("/api/sessions/{id}/exec");
    let started = server.live(&id).await.join("tree/workspace/started");
    tokio::select! {
        _ = client.ask(Method::POST, &path, Some(body)) => panic!("it ends only with the server"),
        () = eventually("it runs", async || started.exists().then_some(())) => {}
    }
    server.crash_and_start().await;
    let done = server.client().exec(&id, "echo mine").await;
    assert_eq!((done["exitCode"].as_i64(), done["stdout"].as_str()), (Some(0), Some("mine\n")));
}

#[tokio::test]
async fn a_caller_that_hangs_up_during_a_create_leaves_a_whole_session_or_none() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let address = server.url.strip_prefix("http://").expect("http").to_owned();
    let mut whole = 0;
    for (point, begun) in
        [("create.asked", false), ("create.placed", true), ("create.recorded", true), ("create.seated", true)]
    {
        server.arm(point, Point::Pause);
        let body = r#"{"agent":"tester"}"#;
        let text = format!(
            "POST /api/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            crate::support::KEY,
            body.len()
        );
        let mut socket = tokio::net::TcpStream::connect(&address).await.expect("connect");
        socket.write_all(text.as_bytes()).await.expect("send");
        server.reached(point).await;
        socket.shutdown().await.expect("the caller hangs up");
        // The server closes the connection as well: from here on no client waits for the session.
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.ok();
        assert!(answer.is_empty(), "{point}: {}", String::from_utf8_lossy(&answer));
        server.release(point);
        whole += usize::from(begun);
        eventually("no session is half made", async || {
            let sessions = client.get("/api/sessions").await["sessions"].as_array().cloned().expect("a list");
            let active = sessions.iter().filter(|session| session["status"] == "active").count();
            ((active, sessions.len()) == (whole, whole)).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_file_written_to_a_resting_session_is_captured_after_a_crash() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "hello").await;
    client.action(&id, "stop").await;
    let before = client.session(&id).await["checkpoint"]["local"].as_u64();
    write(&client, &id, "acked.txt", "acked").await;
    server.crash_and_start().await;
    let client = server.client();
    eventually("it is captured", async || {
        (client.session(&id).await["checkpoint"]["local"].as_u64() > before).then_some(())
    })
    .await;
    server.stop().await;
    std::fs::remove_dir_all(live_dirs(&server)[0].clone()).expect("remove");
    server.launch().await;
    assert_eq!(read(&server.client(), &id, "acked.txt").await, "acked");
}

#[tokio::test]
async fn an_untrusted_tree_is_kept_whichever_request_comes_first() {
    for first in ["write", "resume", "end"] {
        let mut server = Server::start().await;
        let client = server.client();
        let id = client.create().await;
        client.say(&id, "hello").await;
        server.stop().await;
        change_boot(&server);
        std::fs::write(live_dirs(&server)[0].join("tree/workspace/found.txt"), "found").expect("write");
        server.launch().await;
        let client = server.client();
        match first {
            "write" => write(&client, &id, "new.txt", "new").await,
            "resume" => drop(client.action(&id, "resume").await),
            _ => drop(client.delete(&format!("/api/sessions/{id}")).await),
        }
        let events = client.get(&format!("/api/sessions/{id}/events?type=lifecycle&limit=1000")).await;
        let kept = events["events"].as_array().expect("a list").iter().any(|event| {
            let data: Value =
                serde_json::from_str(event["data"].as_str().unwrap_or_default()).unwrap_or_default();
            data["action"] == "checkpoint" && data["salvage"] == true
        });
        assert!(kept, "{first}: {events}");
    }
}

#[tokio::test]
async fn a_torn_note_of_the_shim_does_not_brick_the_session() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let processes = server.processes(&id).await;
    server.kill9();
    signal(processes.shim, libc::SIGKILL);
    std::fs::write(live_dirs(&server)[0].join("run/init"), "").expect("write");
    server.launch().await;
    assert!(server.client().text(&id, "still there?").await.contains("remember me"));
}

#[tokio::test]
async fn a_shim_that_does_not_answer_is_ended() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let processes = server.processes(&id).await;
    server.kill9();
    signal(processes.shim, libc::SIGSTOP);
    server.launch().await;
    let client = server.client();
    client.until_status(&id, "paused").await;
    assert!(client.text(&id, "still there?").await.contains("remember me"));
}

#[tokio::test]
async fn a_fork_keeps_its_conversation_when_files_are_written_before_its_first_start() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let fork = client.action(&id, "fork").await["session"]["id"].as_str().expect("an id").to_owned();
    write(&client, &fork, "x.txt", "x").await;
    eventually("it is captured", async || {
        (client.session(&fork).await["checkpoint"]["local"] == 2).then_some(())
    })
    .await;
    let resume = client.action(&fork, "resume").await["resume"].clone();
    assert_eq!(
        (resume["tier"].as_str(), resume["lost"].as_array().map(Vec::len)),
        (Some("native"), Some(0)),
        "{resume}"
    );
    assert_eq!(client.text(&fork, "read x.txt").await, "x");
}

#[tokio::test]
async fn sending_again_with_the_same_key_finds_the_end_of_a_turn_that_was_cut_and_continued() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let processes = server.processes(&id).await;
    let path = format!("/api/sessions/{id}/messages");
    let body = json!({ "content": "run: echo x >> ran\nhold go: one two three four five six" });
    let again = |client: &Client| {
        let request = client
            .request(Method::POST, &path)
            .header("idempotency-key", "k")
            .header("accept", "application/json");
        request.json(&body).send()
    };
    let live = server.live(&id).await;
    let ran = live.join("tree/workspace/ran");
    tokio::select! {
        _ = again(&client) => panic!("it is cut before it ends"),
        () = eventually("the tool ran", async || ran.exists().then_some(())) => {}
    }
    server.kill9();
    signal(processes.shim, libc::SIGKILL);
    let_go(&live, "go");
    server.launch().await;
    for _ in 0..2 {
        let answer = ok(again(&server.client()).await.expect("send")).await;
        assert_eq!(answer["status"], "done", "{answer}");
    }
    assert_eq!(server.client().text(&id, "read ran").await, "x\n");
}

#[tokio::test]
async fn a_pause_that_meets_a_stop_is_answered() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.exec(&id, "head -c 20000000 /dev/urandom > ballast").await;
    let path = |action: &str| format!("/api/sessions/{id}/{action}");
    let (pause, stop, fork) = (path("pause"), path("stop"), path("fork"));
    let all = async {
        tokio::join!(
            client.ask(Method::POST, &pause, None),
            client.ask(Method::POST, &stop, None),
            client.ask(Method::POST, &fork, None),
        )
    };
    let ((paused, _), (stopped, _), (forked, _)) =
        tokio::time::timeout(crate::support::DEADLINE, all).await.expect("each is answered");
    assert!(paused.is_success() || paused.as_u16() == 400, "{paused}");
    assert!(stopped.is_success() || stopped.as_u16() == 400, "{stopped}");
    assert_eq!(forked.as_u16(), 201);
}

#[tokio::test]
async fn an_interrupt_holds_over_a_crash_of_the_server() {
    let mut server = Server::with(&[("ASH_INTERRUPT_GRACE", "1")]).await;
    let client = server.client();
    let id = client.create().await;
    let processes = server.processes(&id).await;
    let mut stream = client.send(&id, "slow 60000: never").await;
    stream.until("message").await;
    signal(processes.agent, libc::SIGSTOP);
    client.action(&id, "interrupt").await;
    server.crash_and_start().await;
    let frames = server.client().follow(&id, "").await.until("done").await;
    assert_eq!(frames.last().expect("done").data["status"], "interrupted");
}

#[tokio::test]
async fn a_waiting_message_gets_an_error_when_the_session_is_stopped() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut running = client.send(&id, "hold go: one two").await;
    running.until("text_delta").await;
    let mut waiting = client.send(&id, "second").await;
    waiting.until("session_start").await;
    client.action(&id, "stop").await;
    let error = waiting.rest().await.pop().expect("a last frame");
    assert_eq!((error.event.as_str(), error.data["code"].as_str()), ("error", Some("session_stopped")));
    server.let_go(&id, "go").await;
    client.action(&id, "resume").await;
    eventually("it runs then", async || (client.session(&id).await["openTurns"] == 0).then_some(())).await;
}

#[tokio::test]
async fn the_stream_of_an_ended_session_ends_for_every_client() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.delete(&format!("/api/sessions/{id}")).await;
    let last = client.follow(&id, "").await.rest().await.pop().expect("a last frame");
    let again =
        client.request(Method::GET, &format!("/api/sessions/{id}/stream")).header("last-event-id", last.id);
    assert_eq!(again.send().await.expect("follow").status().as_u16(), 204);
}

#[tokio::test]
async fn changed_options_hold_from_the_next_start_on() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let path = format!("/api/sessions/{id}/config");
    let prompt = "x".repeat(300_000);
    let body = json!({ "model": "another", "systemPrompt": prompt });
    let (status, _) = client.ask(Method::PATCH, &path, Some(body)).await;
    assert_eq!(status.as_u16(), 200);
    client.action(&id, "stop").await;
    client.action(&id, "resume").await;
    let agent = server.processes(&id).await.agent;
    let line = crate::support::cmdline(agent);
    assert!(line.contains("--model another") && !line.contains("xxx"), "{line}");
}

#[tokio::test]
async fn two_changes_of_options_at_the_same_time_both_count() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let path = format!("/api/sessions/{id}/config");
    for round in 0..30 {
        let value = round.to_string();
        let change = |name: &str| client.ask(Method::PATCH, &path, Some(json!({ name: value })));
        let answers = tokio::join!(change("model"), change("systemPrompt"), change("appendSystemPrompt"));
        assert!([answers.0, answers.1, answers.2].iter().all(|(status, _)| status.is_success()));
        let config = client.session(&id).await["config"].clone();
        let found = ["model", "systemPrompt", "appendSystemPrompt"].map(|name| config[name].clone());
        assert_eq!(found, [json!(value), json!(value), json!(value)], "round {round}");
    }
}

#[tokio::test]
async fn a_checkpoint_asked_for_again_is_the_first_one() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let path = format!("/api/sessions/{id}/checkpoints");
    let ask = |key: &'static str| {
        client
            .request(Method::POST, &path)
            .header("idempotency-key", key)
            .json(&json!({ "base": true }))
            .send()
    };
    write(&client, &id, "a.txt", "first").await;
    let first = ok(ask("k").await.expect("asked")).await;
    write(&client, &id, "a.txt", "second").await;

    let again = ok(ask("k").await.expect("asked")).await;

    assert_eq!(again, first);
    assert_eq!(client.session(&id).await["config"]["base"], first["checkpoint"]);
    let another = ok(ask("another").await.expect("asked")).await;
    assert_ne!(another, first);
    assert_eq!(client.session(&id).await["config"]["base"], another["checkpoint"]);
}

#[tokio::test]
async fn a_key_asked_for_again_is_the_first_one_until_it_is_removed() {
    let server = Server::start().await;
    let client = server.client();
    let ask = |label: &str| {
        let body = json!({ "label": label });
        client.request(Method::POST, "/api/api-keys").header("idempotency-key", "k").json(&body).send()
    };
    let first = ok(ask("mine").await.expect("asked")).await;

    let again = ok(ask("mine").await.expect("asked")).await;

    assert_eq!(again, first);
    let named = client.get("/api/api-keys").await;
    let named = named["keys"].as_array().expect("keys").iter().filter(|key| key["label"] == "mine").count();
    assert_eq!(named, 1);
    server.client_with(first["key"].as_str().expect("a key")).get("/api/sessions").await;
    assert_eq!(ask("another").await.expect("asked").status().as_u16(), 422);
    client.delete(&format!("/api/api-keys/{}", first["id"].as_str().expect("an id"))).await;
    assert_eq!(ask("mine").await.expect("asked").status().as_u16(), 409, "what was removed stays removed");
}

/// `ash … | head -1`.
#[tokio::test]
async fn a_reader_that_closes_the_pipe_causes_no_panic() {
    let mut child = tokio::process::Command::new(crate::support::ash())
        .args(["completions", "zsh"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    // More output than a pipe holds, and no reader.
    drop(child.stdout.take());
    let ended = child.wait_with_output().await.expect("ended");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(libc::SIGPIPE));
}
