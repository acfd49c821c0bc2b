//! Ended sessions, and servers that stop.

use super::{command, run};
use crate::support::{Point, Server, eventually};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

const PERMISSION: &str = "01a1f198-061e-76eb-be0d-f8b2f2e55b8b";

#[tokio::test]
async fn an_ended_session_has_one_sentence_and_one_exit_code() {
    let server = Server::start().await;
    let client = server.client();
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    let turn = client.say("s", "one").await["turn"].as_str().expect("a turn").to_owned();
    client.delete("/api/sessions/s").await;
    let folder = server.dir.join("project");
    std::fs::create_dir(&folder).expect("a folder");
    let folder = folder.to_str().expect("UTF-8");
    let mut sentences = Vec::new();
    for words in [
        &["session", "send", "s", "hi"][..],
        &["session", "send", "--raw", "s", "hi"],
        &["session", "--json", "send", "s", "hi"],
        &["session", "resume", "s", "--detach"],
        &["session", "exec", "s", "true"],
        &["session", "config", "s", "-o", "model=x"],
        &["session", "pause", "s"],
        &["session", "stop", "s"],
        &["session", "interrupt", "s"],
        &["session", "rewind", "s", "1"],
        &["session", "push", "s", folder],
        &["session", "lock", "s"],
        &["session", "queue", "s", "--first", &turn],
        &["session", "queue", "s", "--cancel", &turn],
        &["session", "allow", "s", PERMISSION],
        &["session", "allow", "s", PERMISSION, "--answer", "one"],
        &["session", "deny", "s", PERMISSION],
        &["session", "unlock", "s", "--lock", "1.secret"],
        &["chat", "--resume", "s", "--", "default", "hi"],
        &["chat", "--session-id", "s", "default", "hi"],
    ] {
        let (code, _, said) = run(command(&server, words)).await;
        assert_eq!(code, Some(6), "{words:?}: {said}");
        sentences.push(said.lines().last().unwrap_or_default().to_owned());
    }
    sentences.dedup();
    assert_eq!(sentences.len(), 1, "{sentences:#?}");
    assert!(sentences[0].contains("the session has ended") && sentences[0].contains("ash session fork"));
    // The API's statuses are unchanged.
    let status =
        async |method, path: &str, body: Value| client.ask(method, path, Some(body)).await.0.as_u16();
    assert_eq!(status(Method::POST, "/api/sessions/s/messages", json!({ "content": "hi" })).await, 400);
    assert_eq!(status(Method::POST, "/api/sessions/s/resume", json!({})).await, 410);
    // An ended session is still readable.
    for words in [&["session", "get", "s"][..], &["session", "files", "s"], &["session", "tail", "s"]] {
        let (code, _, said) = run(command(&server, words)).await;
        assert_eq!(code, Some(0), "{words:?}: {said}");
    }
}

#[tokio::test]
async fn a_request_that_waits_when_a_session_is_ended_gets_the_same_error() {
    let server = Server::start().await;
    let client = server.client();
    let text = "hold never: one two";
    for words in [
        &["session", "send", "ID", text][..],
        &["session", "--json", "send", "ID", text],
        &["session", "send", "--raw", "ID", text],
        &["chat", "--resume", "ID", "--", "default", text],
        &["chat", "--json", "--resume", "ID", "--", "default", text],
    ] {
        let made = client.post("/api/sessions", json!({ "agent": "default" })).await;
        let id = made["session"]["id"].as_str().expect("an id").to_owned();
        let send = || {
            let words: Vec<&str> =
                words.iter().map(|word| if *word == "ID" { id.as_str() } else { *word }).collect();
            tokio::spawn(run(command(&server, &words)))
        };
        let waiting = async |count: usize| {
            eventually("they wait", async || {
                let queue = client.get(&format!("/api/sessions/{id}/queue")).await;
                (queue["queue"].as_array().expect("a list").len() == count).then_some(())
            })
            .await;
        };
        let runs = send();
        waiting(1).await;
        let queued = send();
        waiting(2).await;
        client.delete(&format!("/api/sessions/{id}")).await;
        for sent in [runs, queued] {
            let (code, _, said) = sent.await.expect("it ends");
            assert_eq!(code, Some(6), "{words:?}: {said}");
            assert!(said.contains("the session has ended"), "{words:?}: {said}");
        }
    }
}

#[tokio::test]
async fn a_turn_that_waits_when_the_server_stops_says_so() {
    let mut server = Server::with(&[("ASH_STOP_GRACE", "0")]).await;
    let client = server.client();
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    let ask = |path: &'static str, accept: &'static str, body: Value| {
        let request = client.request(Method::POST, path).header("accept", accept).json(&body);
        tokio::spawn(async move {
            let response = request.send().await.expect("an answer");
            (response.status().as_u16(), response.text().await.expect("a body"))
        })
    };
    let messages = "/api/sessions/s/messages";
    let waiting = [
        ("runs", ask(messages, "application/json", json!({ "content": "hold never: one two" }))),
        (
            "runs a command",
            ask("/api/sessions/s/exec", "*/*", json!({ "command": "sleep 60", "timeout": 90_000 })),
        ),
    ];
    eventually("the turn runs", async || {
        let queue = client.get("/api/sessions/s/queue").await;
        (queue["queue"][0]["status"] == "running").then_some(())
    })
    .await;
    let queued = [
        ("is queued", ask(messages, "application/json", json!({ "content": "later" }))),
        ("is queued, as a stream", ask(messages, "text/event-stream", json!({ "content": "later" }))),
    ];
    eventually("all wait", async || {
        let queue = client.get("/api/sessions/s/queue").await;
        let sleeps = client.exec("s", "pgrep -x sleep").await["exitCode"] == 0;
        (queue["queue"].as_array().expect("a list").len() == 3 && sleeps).then_some(())
    })
    .await;
    server.stop().await;
    for (who, answer) in waiting.into_iter().chain(queued) {
        let (status, said) = answer.await.expect("it ends");
        assert!(
            said.contains(r#""code":"server_stopped""#) && !said.contains("store_failed"),
            "{who}: {said}"
        );
        let streamed = who.ends_with("stream");
        assert_eq!(status, if streamed { 200 } else { 503 }, "{who}: {said}");
        if !streamed && who != "runs a command" {
            let said: Value = serde_json::from_str(&said).expect("JSON");
            assert!(said["turn"].is_string() && said["queued"] != false, "{who}: {said}");
        }
    }
}

/// Each session waits for something else: its install.sh, its startup.sh, a capture, and a place in the pool.
#[tokio::test]
async fn requests_that_wait_when_the_server_stops_get_an_error_that_says_so() {
    let env = [("ASH_STOP_GRACE", "0"), ("ASH_MAX_SANDBOXES", "4")];
    let mut server = Server::with(&env).await;
    let client = server.client();
    for (agent, script, text) in [
        ("installs", "install.sh", "touch begun; sleep 1000"),
        ("starts", "startup.sh", "[ ! -e slow ] || { touch begun; sleep 1000; }"),
    ] {
        let files = json!([{ "path": script, "content": STANDARD.encode(text) }]);
        client.post("/api/agents", json!({ "name": agent, "files": files })).await;
    }
    for (agent, id) in [("default", "works"), ("starts", "back"), ("default", "saved")] {
        client.post("/api/sessions", json!({ "agent": agent, "sessionId": id })).await;
    }
    let mut running = client.send("works", "hold never: one two").await;
    running.until("text_delta").await;
    client.exec("back", "touch slow").await;
    client.action("back", "stop").await;
    client.exec("saved", "touch changed").await;
    let ask = |path: &str, body: Value| {
        let request = client.request(Method::POST, path).header("prefer", "wait=60").json(&body);
        let path = path.to_owned();
        let answer = tokio::spawn(async move {
            let response = request.send().await.expect("an answer");
            (response.status().as_u16(), response.json::<Value>().await.expect("JSON"))
        });
        (path, answer)
    };
    let mut waiting = vec![
        ask("/api/sessions", json!({ "agent": "installs", "sessionId": "new" })),
        ask("/api/sessions/back/resume", json!({})),
    ];
    for id in ["new", "back"] {
        eventually(&format!("{id} is there"), async || {
            (client.ask(Method::GET, &format!("/api/sessions/{id}"), None).await.0 == 200).then_some(())
        })
        .await;
        let begun = server.live(id).await.join("tree/workspace/begun");
        eventually(&format!("the script of {id} runs"), async || begun.exists().then_some(())).await;
    }
    server.arm("save.shot", Point::Pause);
    waiting.push(ask("/api/sessions/saved/pause", json!({})));
    server.reached("save.shot").await;
    waiting.push(ask("/api/sessions/saved/fork", json!({})));
    waiting.push(ask("/api/sessions/saved/stop", json!({})));
    let refused = async |words: &str| {
        eventually(words, async || {
            let answered = client.ask(Method::POST, "/api/sessions/saved/interrupt", Some(json!({}))).await.1;
            answered["error"].as_str().is_some_and(|error| error.contains(words)).then_some(())
        })
        .await;
    };
    refused("is stopped").await;
    waiting.push(ask("/api/sessions", json!({ "agent": "default", "sessionId": "in-line" })));
    eventually("it waits in line", async || {
        (client.get("/health").await["pool"]["queued"] == 1).then_some(())
    })
    .await;
    crate::support::signal(server.pid(), libc::SIGTERM);
    refused("The server is stopping").await;
    server.release("save.shot");
    for (path, answer) in waiting {
        let (status, said) = answer.await.expect("it ends");
        assert_eq!((status, &said["code"]), (503, &json!("server_stopped")), "{path}: {said}");
    }
    assert!(server.ended().await);
}
