//! A Docker engine that is stopped or slow, and servers that use it. A gate between server and engine can be closed, and
//! can stop forwarding.

use crate::support::{Client, docker::behind_a_gate, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longer than any request may take while the engine does not answer; the timeout for the engine itself is far longer.
const SECONDS: Duration = Duration::from_secs(10);

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

/// Nothing new can start, and the error comes soon and names the remedy.
async fn is_refused(client: &Client, words: &str) {
    let began = Instant::now();
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "tester" }))).await;
    assert!(began.elapsed() < SECONDS, "{:?}", began.elapsed());
    let error = body["error"].as_str().unwrap_or_default();
    assert_eq!(status.as_u16(), 503, "{body}");
    assert!(error.contains(words) && error.contains("systemctl start docker"), "{body}");
}

#[tokio::test]
async fn as_root_in_docker_a_silent_engine_delays_no_request_and_loses_nothing() {
    let (mut server, gate) = behind_a_gate();
    gate.open();
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    gate.keep_silent(true);
    until_degraded(&client, "does not answer").await;
    is_refused(&client, "does not answer").await;
    assert!(client.text(&id, "what was first?").await.contains("remember me"), "what runs goes on");
    // A server can start meanwhile, and adopts what runs.
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
    let (mut server, gate) = behind_a_gate();
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
