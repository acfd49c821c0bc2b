//! Tokens for the streams of browsers: what they open, and when they end.

use crate::support::{Client, Frame, Server, Sse, names};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

async fn token(client: &Client, id: &str) -> String {
    let made = client.post(&format!("/api/sessions/{id}/stream-token"), json!({})).await;
    made["token"].as_str().expect("a token").to_owned()
}

/// As an EventSource asks: without an Authorization header.
async fn open(client: &Client, id: &str, token: &str, after: &str) -> reqwest::Response {
    let url = format!("{}/api/sessions/{id}/stream?token={token}&after={after}", client.url);
    client.http.get(url).send().await.expect("an answer")
}

/// The status, and the code of a refusal. Does not wait for streams.
async fn refusal(client: &Client, id: &str, token: &str) -> (StatusCode, Value) {
    refused_with(open(client, id, token, "").await).await
}

async fn refused_with(answer: reqwest::Response) -> (StatusCode, Value) {
    let status = answer.status();
    assert!(!status.is_success(), "it opened");
    (status, answer.json::<Value>().await.expect("a refusal")["code"].clone())
}

fn refused() -> (StatusCode, Value) {
    (StatusCode::UNAUTHORIZED, json!("invalid_stream_token"))
}

#[tokio::test]
async fn a_token_opens_its_stream_and_nothing_else_also_after_a_restart_of_the_server() {
    let mut server = Server::start().await;
    let client = server.client();
    let (id, other) = (client.create().await, client.create().await);
    let token = token(&client, &id).await;
    client.say(&id, "hello").await;
    let mut stream = Sse::of(open(&client, &id, &token, "").await);
    let seen = stream.until("done").await;
    let mut followed = client.follow(&id, "").await;
    assert_eq!(seen, followed.until("done").await, "the same as with the key");
    assert_eq!(refusal(&client, &other, &token).await, refused());
    for path in ["", "/messages", "/events", "/files", "/stream-token"] {
        let url = format!("{}/api/sessions/{id}{path}?token={token}", client.url);
        let answer = client.http.get(&url).send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        let with_token_as_key = client.http.get(&url).bearer_auth(&token).send().await.expect("an answer");
        assert_eq!(with_token_as_key.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    drop((stream, followed));
    server.crash_and_start().await;
    let client = server.client();
    let mut again = Sse::of(open(&client, &id, &token, &seen.last().expect("a frame").id).await);
    client.say(&id, "hello again").await;
    let more = again.until("done").await;
    assert!(!names(&more).contains(&"created"), "it continues after the id: {:?}", names(&more));
    assert!(!server.log().contains("ast_"), "no token is logged: {}", server.log());
    assert!(!client.get("/api/audit?limit=1000").await.to_string().contains("ast_"));
}

#[tokio::test]
async fn a_deleted_key_ends_the_streams_of_its_tokens_and_the_tokens() {
    let server = Server::with(&[("ASH_MAX_STREAMS", "2")]).await;
    let client = server.client();
    let id = client.create().await;
    let made = client.post("/api/api-keys", json!({ "label": "dashboard" })).await;
    let dashboard = server.client_with(made["key"].as_str().expect("a key"));
    let token = token(&dashboard, &id).await;
    let mut streams =
        [open(&client, &id, &token, "").await, open(&client, &id, &token, "").await].map(Sse::of);
    // They count for the key, whose limit they have reached.
    let third = dashboard.request(Method::GET, &format!("/api/sessions/{id}/stream")).send().await;
    let too_many = (StatusCode::TOO_MANY_REQUESTS, json!("too_many_streams"));
    assert_eq!(refused_with(third.expect("an answer")).await, too_many);
    assert_eq!(refusal(&client, &id, &token).await, too_many);
    for stream in &mut streams {
        stream.next().await.expect("a first frame");
    }
    client.delete(&format!("/api/api-keys/{}", made["id"].as_str().expect("an id"))).await;
    for stream in &mut streams {
        let rest: Vec<Frame> = stream.rest().await;
        assert!(!names(&rest).contains(&"ended"), "the session goes on");
    }
    assert_eq!(refusal(&client, &id, &token).await, refused());
}

#[tokio::test]
async fn a_token_of_a_purged_session_does_not_open_a_new_one_with_its_id() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let new = json!({ "agent": "tester", "sessionId": "reused" });
    client.post("/api/sessions", new.clone()).await;
    let old = token(&client, "reused").await;
    client.delete("/api/sessions/reused?purge=true").await;
    assert_eq!(refusal(&client, "reused", &old).await, refused());
    client.post("/api/sessions", new).await;
    assert_eq!(refusal(&client, "reused", &old).await, refused());
    let fresh = token(&client, "reused").await;
    assert_eq!(open(&client, "reused", &fresh, "").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_lock_does_not_keep_a_client_from_reading() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.post(&format!("/api/sessions/{id}/lock"), json!({ "ttl": 60 })).await;
    let token = token(&client, &id).await;
    assert_eq!(open(&client, &id, &token, "").await.status(), StatusCode::OK);
}
