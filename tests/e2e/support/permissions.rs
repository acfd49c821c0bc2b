//! Claude Code sessions that ask for permissions, and helpers to answer them.

use super::{Client, claude::Stage, eventually};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// A session that asks before it runs anything.
pub async fn careful(stage: &Stage) -> String {
    stage.create_with(json!({ "permissionMode": "default" })).await
}

/// The open requests.
pub async fn pending(client: &Client, id: &str) -> Value {
    client.get(&format!("/api/sessions/{id}/permissions")).await["permissions"].clone()
}

pub async fn until_asked(client: &Client, id: &str) -> Value {
    eventually("the agent asks", async || pending(client, id).await.get(0).cloned()).await
}

/// Answers a request.
pub async fn answer(client: &Client, id: &str, asked: &Value, body: Value) -> (StatusCode, Value) {
    let permission = asked["id"].as_str().expect("an id");
    client.ask(Method::POST, &format!("/api/sessions/{id}/permissions/{permission}"), Some(body)).await
}

pub async fn allow(client: &Client, id: &str, asked: &Value) {
    let (status, said) = answer(client, id, asked, json!({ "behavior": "allow" })).await;
    assert_eq!((status.as_u16(), &said["behavior"]), (200, &json!("allow")), "{said}");
}

pub async fn output(client: &Client, id: &str, command: &str) -> String {
    client.exec(id, command).await["stdout"].as_str().expect("an output").to_owned()
}

/// The content of the model's last request.
pub fn shown(stage: &Stage) -> String {
    stage.last_request()["body"]["messages"].to_string()
}
