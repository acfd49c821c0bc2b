//! A message that is refused because something is missing does not run later and frees its Idempotency-Key: once the
//! missing part is back, the same key runs the message once.

use crate::support::{Client, Point, Server, claude, claude::pretend, docker, model::Model};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{fs, path::Path, pin::pin, time::Duration};

const KEY: &str = "sk-0123456789abcdef";

/// All messages use one key.
async fn send(client: &Client, id: &str, text: &str) -> (u16, Value) {
    let request = client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
    let request = request.header("Idempotency-Key", "k1").header("Accept", "application/json");
    let answer = request.json(&json!({ "content": text })).send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

/// How many messages were ever queued, and how many keys of messages are taken.
async fn traces(server: &Server) -> (i64, i64) {
    let options = SqliteConnectOptions::new().filename(server.data.join("ash.db"));
    let mut db = SqliteConnection::connect_with(&options).await.expect("the database");
    let both = sqlx::query_as(
        "SELECT (SELECT count(*) FROM events WHERE kind = 'queued'),
                (SELECT count(*) FROM idempotency WHERE route LIKE '%/messages')",
    );
    let traces = both.fetch_one(&mut db).await.expect("two numbers");
    db.close().await.expect("closed");
    traces
}

async fn is_refused(server: &Server, id: &str, (status, code, words): (u16, &str, &str)) {
    let client = server.client();
    let before = traces(server).await;
    // The second message has another body, which works only if the key is free again.
    for text in ["first", "second"] {
        let (got, body) = send(&client, id, text).await;
        assert_eq!((got, &body["code"]), (status, &json!(code)), "{body}");
        assert!(body["error"].as_str().is_some_and(|error| error.contains(words)), "{body}");
        assert_eq!(client.session(id).await["openTurns"], 0);
        assert_eq!(traces(server).await, before);
    }
}

/// The missing part is back.
async fn runs_once(server: &Server, id: &str) {
    let client = server.client();
    let (queued, keys) = traces(server).await;
    let (status, first) = send(&client, id, "third").await;
    assert_eq!((status, &first["status"]), (200, &json!("done")), "{first}");
    let (status, again) = send(&client, id, "third").await;
    assert_eq!((status, &again["turn"]), (200, &first["turn"]), "{again}");
    assert_eq!(traces(server).await, (queued + 1, keys + 1));
    let all = client.get(&format!("/api/sessions/{id}/messages")).await;
    let told = |role: &str| {
        let messages = all["messages"].as_array().expect("a list").iter();
        messages.filter(|message| message["role"] == role).map(Value::to_string).collect::<String>()
    };
    let users = told("user");
    assert!(users.contains("third") && !users.contains("first") && !users.contains("second"), "{all}");
}

async fn create(client: &Client, body: Value) -> String {
    let made = client.post("/api/sessions", body).await;
    made["session"]["id"].as_str().expect("an id").to_owned()
}

/// A server that had a key when it created its session, and has none any more.
async fn without_its_key() -> (Server, String) {
    let mut server = Server::with(&[("ANTHROPIC_API_KEY", KEY)]).await;
    let client = server.client();
    client.deploy("helper").await;
    let id = create(&client, json!({ "agent": "helper", "provider": "anthropic" })).await;
    server.stop().await;
    server.set("ANTHROPIC_API_KEY", "");
    server.launch().await;
    (server, id)
}

#[tokio::test]
async fn a_message_refused_for_a_missing_model_key_runs_once_when_the_key_is_back() {
    let (mut server, id) = without_its_key().await;
    is_refused(&server, &id, (422, "model_key_missing", "ANTHROPIC_API_KEY")).await;
    server.stop().await;
    let model = Model::start(&server.dir);
    server.set("ANTHROPIC_API_KEY", KEY);
    server.set("ANTHROPIC_BASE_URL", &model.url);
    server.launch().await;
    runs_once(&server, &id).await;
    assert_eq!(model.requests().len(), 1, "one message, one request");
}

#[tokio::test]
async fn messages_with_one_key_at_the_same_time_are_all_refused_and_leave_nothing() {
    let (server, id) = without_its_key().await;
    let client = server.client();
    let same = || send(&client, &id, "the same");
    let (a, b, c, d) = tokio::join!(same(), same(), same(), same());
    for (status, body) in [a, b, c, d] {
        assert_eq!((status, &body["code"]), (422, &json!("model_key_missing")), "{body}");
    }
    assert_eq!(traces(&server).await, (0, 0));
    assert_eq!(client.session(&id).await["openTurns"], 0);
}

#[tokio::test]
async fn a_refusal_does_not_free_the_key_of_a_message_that_is_accepted_meanwhile() {
    let (server, id) = without_its_key().await;
    let client = server.client();
    server.arm("prompt.asked", Point::PauseAt(1));
    let same = || send(&client, &id, "the same");
    let (mut first, mut second) = (pin!(same()), pin!(same()));
    tokio::select! {
        answer = &mut first => panic!("it is held: {answer:?}"),
        () = server.reached("prompt.asked") => {}
    }
    // The second request waits for the first. Otherwise it would be refused within this time.
    let early = tokio::time::timeout(Duration::from_millis(500), &mut second).await;
    assert!(early.is_err(), "{early:?}");
    let offline = Some(json!({ "provider": "offline" }));
    client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), offline).await;
    server.release("prompt.asked");
    let ((status, first), (_, second)) = tokio::join!(first, second);
    assert_eq!((status, &first["status"]), (200, &json!("done")), "{first}");
    assert_eq!((&second["turn"], &same().await.1["turn"]), (&first["turn"], &first["turn"]));
    assert_eq!(traces(&server).await, (1, 1));
}

#[tokio::test]
async fn a_message_refused_for_the_agents_missing_program_runs_once_when_it_is_back() {
    let stage = claude::Stage::set().await.with_agent(Path::new(&claude::program())).await;
    let id = stage.create().await;
    let server = &stage.server;
    server.client().action(&id, "stop").await;
    let (program, away) = (server.dir.join("bin/claude"), server.dir.join("bin/away"));
    fs::rename(&program, &away).expect("moved away");
    is_refused(server, &id, (422, "runtime_missing", "ASH_CLAUDE_BIN")).await;
    fs::rename(&away, &program).expect("moved back");
    runs_once(server, &id).await;
}

/// A second name for an image that other tests use as well.
struct SecondName(String);

impl SecondName {
    fn bring(&self) -> u16 {
        docker::ask("POST", &format!("/images/ash-test-busybox/tag?repo={}&tag=latest", self.0)).0
    }

    fn remove(&self) -> u16 {
        docker::ask("DELETE", &format!("/images/{}:latest?force=1", self.0)).0
    }
}

impl Drop for SecondName {
    fn drop(&mut self) {
        self.remove();
    }
}

#[tokio::test]
async fn as_root_in_docker_a_message_refused_for_a_missing_image_runs_once_when_it_is_back() {
    let mut server = docker::prepare(&[]);
    server.launch().await;
    let client = server.client();
    let image = SecondName(format!("ash-test-refused-{}", std::process::id()));
    assert_eq!(image.bring(), 201);
    let folder = server.dir.join("agent");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("ash.toml"), format!("image = {:?}\n", image.0)).expect("written");
    client.post("/api/agents", json!({ "name": "imaged", "path": folder })).await;
    let id = create(&client, json!({ "agent": "imaged" })).await;
    client.action(&id, "stop").await;
    assert_eq!(image.remove(), 200);
    let words = format!("the image {} is not on this machine. Bring it here with `docker pull`", image.0);
    is_refused(&server, &id, (503, "sandbox_failed", &words)).await;
    assert_eq!(image.bring(), 201);
    runs_once(&server, &id).await;
}

#[tokio::test]
async fn as_root_in_docker_a_message_refused_for_a_stopped_engine_runs_once_when_it_is_back() {
    let (mut server, gate) = docker::behind_a_gate();
    gate.open();
    server.launch().await;
    let client = server.client();
    let id = client.create().await;
    client.action(&id, "stop").await;
    gate.close();
    is_refused(&server, &id, (503, "sandbox_failed", "there is no Docker engine")).await;
    gate.open();
    runs_once(&server, &id).await;
    gate.close();
}

#[tokio::test]
async fn a_change_of_options_is_refused_as_a_new_session_would_be() {
    let (server, id) = without_its_key().await;
    let client = server.client();
    let openai = json!({ "type": "openai", "baseUrl": "https://example.com/v1", "apiKey": "sk-of-a-client" });
    let own = json!({ "type": "anthropic", "apiKey": "sk-of-a-client" });
    for (options, code) in [
        (json!({ "provider": "anthropic" }), "model_key_missing"),
        (json!({ "provider": "openai" }), "invalid_body"),
        (json!({ "provider": openai }), "invalid_body"),
        (json!({ "provider": own, "model": "unheard-of-1", "maxBudgetUsd": 1.0 }), "unpriced_model"),
        (json!({ "provider": "offline", "limits": { "memoryMb": 3 } }), "invalid_body"),
        (json!({ "provider": "offline", "durability": "remote" }), "no_object_store"),
        (json!({ "provider": "offline", "permissionMode": "whatever" }), "invalid_body"),
        (json!({ "provider": "offline", "model": "" }), "invalid_body"),
    ] {
        let mut new = options.clone();
        new["agent"] = json!("helper");
        let (made, body) = client.ask(Method::POST, "/api/sessions", Some(new)).await;
        assert_eq!(body["code"], code, "{options}: {body}");
        let path = format!("/api/sessions/{id}/config");
        let (changed, refused) = client.ask(Method::PATCH, &path, Some(options.clone())).await;
        assert_eq!((changed, &refused), (made, &body), "{options}");
    }
}

#[tokio::test]
async fn a_missing_program_refuses_a_change_of_the_service_as_it_refuses_a_new_session() {
    let stage = claude::Stage::set().await.with_agent(Path::new(&claude::program())).await;
    let id = stage.create().await;
    let (server, client) = (&stage.server, stage.server.client());
    client.action(&id, "stop").await;
    fs::rename(server.dir.join("bin/claude"), server.dir.join("bin/away")).expect("moved away");
    let new = json!({ "agent": "coder", "provider": "anthropic" });
    let (made, body) = client.ask(Method::POST, "/api/sessions", Some(new)).await;
    assert_eq!((made.as_u16(), &body["code"]), (422, &json!("runtime_missing")), "{body}");
    let path = format!("/api/sessions/{id}/config");
    let change = json!({ "provider": "anthropic" });
    let (changed, refused) = client.ask(Method::PATCH, &path, Some(change)).await;
    assert_eq!((changed, &refused), (made, &body));
}

#[tokio::test]
async fn a_program_that_is_too_old_refuses_a_change_of_the_service_as_it_refuses_a_new_session() {
    let stage = claude::Stage::set().await.with_agent(Path::new(&claude::program())).await;
    let id = stage.create().await;
    let (server, client) = (&stage.server, stage.server.client());
    client.action(&id, "stop").await;
    pretend(&server.dir.join("bin/claude"), "2.1.112");
    let new = json!({ "agent": "coder", "provider": "anthropic" });
    let (made, body) = client.ask(Method::POST, "/api/sessions", Some(new)).await;
    assert_eq!((made.as_u16(), &body["code"]), (422, &json!("runtime_too_old")), "{body}");
    let path = format!("/api/sessions/{id}/config");
    let change = json!({ "provider": "anthropic" });
    let (changed, refused) = client.ask(Method::PATCH, &path, Some(change)).await;
    assert_eq!((changed, &refused), (made, &body));
    let (status, other) = client.ask(Method::PATCH, &path, Some(json!({ "maxTurns": 5 }))).await;
    assert_eq!(status.as_u16(), 200, "the service stays as it is: {other}");
}

#[tokio::test]
async fn a_change_of_something_else_is_not_refused_for_a_missing_key() {
    let (server, id) = without_its_key().await;
    let client = server.client();
    let change = json!({ "appendSystemPrompt": "Be brief.", "maxTurns": 5 });
    let path = format!("/api/sessions/{id}/config");
    let (status, body) = client.ask(Method::PATCH, &path, Some(change)).await;
    assert_eq!(status.as_u16(), 200, "{body}");
    // Another provider is also a way out of the error.
    let offline = json!({ "provider": "offline" });
    let (status, body) = client.ask(Method::PATCH, &path, Some(offline)).await;
    assert_eq!(status.as_u16(), 200, "{body}");
    runs_once(&server, &id).await;
}
