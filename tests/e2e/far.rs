//! The machine is lost: everything comes back from the object store alone.

use crate::{
    claude, servers,
    support::{Client, Server, eventually},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A server that sends everything to an S3 server.
struct Stage {
    server: Server,
    _s3: servers::Server,
}

impl Stage {
    async fn set(env: &[(&str, &str)]) -> Stage {
        let (s3, keys) = servers::Server::moto();
        s3.make_s3_bucket("shelf");
        let mut server = Server::prepare(&[("ASH_SNAPSHOT_URL", "s3://shelf/some/where")]);
        keys.iter().for_each(|(name, value)| server.set(name, value));
        env.iter().for_each(|(name, value)| server.set(name, value));
        server.launch().await;
        Stage { server, _s3: s3 }
    }

    /// Everything that was on the machine is gone, and another one starts.
    async fn lose_the_machine(&mut self) {
        self.server.kill9();
        std::fs::remove_dir_all(&self.server.data).expect("deleted");
        self.server.launch().await;
    }
}

async fn until_remote(client: &Client, id: &str) {
    eventually("the object store has it", async || {
        let checkpoint = client.session(id).await["checkpoint"].clone();
        (checkpoint["local"].is_u64() && checkpoint["local"] == checkpoint["remote"]).then_some(())
    })
    .await;
}

async fn files(client: &Client, id: &str) -> BTreeMap<String, Value> {
    let listed = client.get(&format!("/api/sessions/{id}/files")).await;
    let mut files = BTreeMap::new();
    for file in listed["files"].as_array().expect("files") {
        let path = file["path"].as_str().expect("a path");
        let content = client.get(&format!("/api/sessions/{id}/files/{path}")).await;
        files.insert(path.to_owned(), content["content"].clone());
    }
    files
}

async fn messages(client: &Client, id: &str) -> Value {
    client.get(&format!("/api/sessions/{id}/messages?limit=1000")).await["messages"].clone()
}

#[tokio::test]
async fn a_session_comes_back_from_the_bucket_alone() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let id = client.create().await;
    client.say(&id, "write a/b.txt the tower is high").await;
    client.say(&id, "run: echo the water is cold > water; chmod 700 water").await;
    client.say(&id, "say: the bread is warm").await;
    until_remote(&client, &id).await;
    let (before, said) = (files(&client, &id).await, messages(&client, &id).await);
    assert!(before.len() >= 2, "{before:?}");

    stage.lose_the_machine().await;
    let client = stage.server.client();
    assert_eq!(client.get("/api/sessions").await["sessions"], json!([]), "an empty database");
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(
        (&receipt["path"], &receipt["source"], &receipt["from"], &receipt["tier"], &receipt["lost"]),
        (&json!("cold"), &json!("cloud"), &json!("checkpoint"), &json!("native"), &json!([])),
        "{receipt}"
    );
    assert_eq!(receipt["verified"], true, "{receipt}");
    assert_eq!(files(&client, &id).await, before);
    assert_eq!(messages(&client, &id).await, said);
    let mode = client.exec(&id, "stat -c %a water").await;
    assert_eq!(mode["stdout"], "700\n");
    client.say(&id, "say: and on it goes").await;
    until_remote(&client, &id).await;
    let metrics = client.request(reqwest::Method::GET, "/metrics").send().await.expect("metrics");
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("ash_resume_cold_total{source=\"cloud\"} 1"), "{metrics}");

    stage.lose_the_machine().await;
    let client = stage.server.client();
    client.action(&id, "resume").await;
    assert!(messages(&client, &id).await.to_string().contains("and on it goes"), "again");
}

/// The model is shown the whole conversation by the real Claude Code on the other machine.
#[tokio::test]
async fn claude_code_goes_on_on_another_machine() {
    let (s3, keys) = servers::Server::moto();
    s3.make_s3_bucket("shelf");
    let env: Vec<(&str, &str)> = keys.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let env = [&[("ASH_SNAPSHOT_URL", "s3://shelf")], &env[..]].concat();
    let mut stage = claude::Stage::with(&env).await;
    let id = stage.create().await;
    let client = stage.server.client();
    client.say(&id, "say: the tower is high").await;
    client.say(&id, "run: echo the water is cold > water").await;
    client.say(&id, "say: the bread is warm").await;
    until_remote(&client, &id).await;
    let before = files(&client, &id).await;
    stage.server.kill9();
    std::fs::remove_dir_all(&stage.server.data).expect("deleted");
    stage.server.launch().await;
    let receipt = stage.back(&id).await;
    assert_eq!(
        (&receipt["source"], &receipt["tier"], &receipt["verified"], &receipt["lost"]),
        (&json!("cloud"), &json!("native"), &json!(true), &json!([])),
        "{receipt}"
    );
    let client = stage.server.client();
    assert_eq!(files(&client, &id).await, before);
    client.say(&id, "say: and now?").await;
    let shown = stage.requests().pop().expect("a request")["body"]["messages"].to_string();
    for words in ["the tower is high", "echo the water is cold", "the bread is warm", "and now?"] {
        assert!(shown.contains(words), "{words:?} is forgotten: {shown}");
    }
}

/// A fork needs its parent's log, and comes back with it; agents come back with their sessions.
#[tokio::test]
async fn a_fork_comes_back_with_what_it_shares() {
    let mut stage = Stage::set(&[]).await;
    let client = stage.server.client();
    let parent = client.create().await;
    client.say(&parent, "write a.txt one").await;
    let forked = client.post(&format!("/api/sessions/{parent}/fork"), json!({})).await;
    let fork = forked["session"]["id"].as_str().expect("an id").to_owned();
    client.say(&fork, "write b.txt two").await;
    for id in [&parent, &fork] {
        until_remote(&client, id).await;
    }
    let said = messages(&client, &fork).await;
    stage.lose_the_machine().await;
    let client = stage.server.client();
    let receipt = client.action(&fork, "resume").await["resume"].clone();
    assert_eq!((&receipt["source"], &receipt["lost"]), (&json!("cloud"), &json!([])), "{receipt}");
    assert_eq!(messages(&client, &fork).await, said);
    assert_eq!(files(&client, &fork).await.len(), 2);
    assert_eq!(client.session(&parent).await["id"], json!(parent), "the parent came along");
    assert_eq!(client.get("/api/agents").await["agents"].as_array().map(Vec::len), Some(1));
}
