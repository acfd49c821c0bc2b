//! Idle sessions release their sandboxes, and lose nothing.

use crate::support::{Client, Server, eventually};
use reqwest::Method;
use serde_json::json;

async fn create(client: &Client, body: serde_json::Value) -> String {
    client.deploy("helper").await;
    let mut body = body;
    body["agent"] = json!("helper");
    client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned()
}

async fn until_released(client: &Client) {
    eventually("its sandbox goes", async || {
        (client.get("/health").await["activeSandboxes"] == 0).then_some(())
    })
    .await;
}

/// On a busy machine the session may be asleep before the request.
async fn exec_awake(client: &Client, id: &str, command: &str) -> String {
    eventually("it is awake for as long as it takes to begin", async || {
        client.action(id, "resume").await;
        let body = Some(json!({ "command": command }));
        let (status, said) = client.ask(Method::POST, &format!("/api/sessions/{id}/exec"), body).await;
        let asleep = status == 400 && said["error"] == "Session is paused";
        assert!(asleep || status.is_success(), "{status} {said}");
        said["stdout"].as_str().map(str::to_owned)
    })
    .await
}

/// Announced, captured, released and paused; the next message finds everything.
#[tokio::test]
async fn an_idle_session_is_paused_and_comes_back() {
    let server = Server::start().await;
    let client = server.client();
    let id = create(&client, json!({ "idleTimeout": 4 })).await;
    let mut follower = client.follow(&id, "0").await;
    client.say(&id, "write a.txt: kept").await;
    let frames = follower.until("paused").await;
    let idle: Vec<(&str, bool)> = frames
        .iter()
        .filter(|frame| ["session_idle", "timeout_warning"].contains(&frame.event.as_str()))
        .map(|frame| (frame.event.as_str(), frame.data["idleDurationMs"] == 0))
        .collect();
    assert_eq!(idle, [("session_idle", true), ("timeout_warning", false), ("session_idle", false)]);
    let warning = frames.iter().find(|frame| frame.event == "timeout_warning").expect("a warning");
    assert!(warning.data["remainingMs"].as_u64().is_some_and(|left| left <= 2000), "{:?}", warning.data);
    until_released(&client).await;
    let said = client.say(&id, "read a.txt").await;
    assert!(said["text"].as_str().is_some_and(|text| text.contains("kept")), "{said}");
}

/// A running command counts as use; so does any request during the release.
#[tokio::test]
async fn use_keeps_a_session_active() {
    let server = Server::with(&[("ASH_IDLE_TIMEOUT", "1")]).await;
    let client = server.client();
    let id = create(&client, json!({})).await;
    client.say(&id, "say: hello").await;
    assert_eq!(exec_awake(&client, &id, "sleep 2.5; echo still here").await, "still here\n");
    for round in 0..3 {
        client.until_status(&id, "paused").await;
        let said = client.say(&id, &format!("say: round {round}")).await;
        assert_eq!(said["status"], "done", "{said}");
    }
    let never = create(&client, json!({ "idleTimeout": 0 })).await;
    client.say(&never, "say: hello").await;
    client.until_status(&id, "paused").await;
    assert_eq!(client.status(&never).await, "active");
}

/// In a shared sandbox each session becomes idle separately, and the last one releases it.
#[tokio::test]
async fn the_last_one_at_rest_lets_a_shared_sandbox_go() {
    let server = Server::start().await;
    let client = server.client();
    let one = create(&client, json!({ "workspace": "idle", "idleTimeout": 1 })).await;
    let two = create(&client, json!({ "workspace": "idle", "idleTimeout": 3 })).await;
    client.say(&one, "write one.txt: 1").await;
    client.say(&two, "write two.txt: 2").await;
    client.until_status(&one, "paused").await;
    assert_eq!(exec_awake(&client, &two, "cat one.txt two.txt").await, "12", "the other one is at work");
    client.until_status(&two, "paused").await;
    until_released(&client).await;
    for id in [&one, &two] {
        client.say(id, "say: back").await;
        assert_eq!(client.exec(id, "cat one.txt two.txt").await["stdout"], "12");
    }
}
