//! Two servers with one bucket: one of them holds the claim, and the other reports the conflict.

use crate::support::{Client, Server, eventually, remote::until_remote};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Longer than any test waits: a request that succeeds does not wait at all.
const LONG: &str = "600";
const SHORT: &str = "0.2";

struct Shelf(tempfile::TempDir);

impl Shelf {
    fn new() -> Shelf {
        Shelf(tempfile::tempdir().expect("a directory"))
    }

    /// A server with its own data directory, not started yet.
    fn server(&self, interval: &str) -> Server {
        let url = format!("file://{}", self.0.path().display());
        let env = [
            ("ASH_SNAPSHOT_URL", url.as_str()),
            ("ASH_REMOTE_CLAIM_EVERY", interval),
            ("ASH_REMOTE_TIMEOUT", "1"),
        ];
        Server::prepare(&env)
    }

    fn claims(&self) -> Vec<PathBuf> {
        let claims = std::fs::read_dir(self.0.path().join("claims")).into_iter().flatten().flatten();
        claims.map(|entry| entry.path()).collect()
    }

    /// The whole content except claims.
    fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        walk(self.0.path(), &mut found);
        found.retain(|path, _| !path.starts_with(self.0.path().join("claims")));
        found
    }
}

fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).expect("listed").flatten() {
        match entry.path() {
            path if path.is_dir() => walk(&path, found),
            path => _ = found.insert(path.clone(), std::fs::read(path).expect("read")),
        }
    }
}

fn node_id(server: &Server) -> String {
    std::fs::read_to_string(server.data.join("node-id")).expect("a node id")
}

/// The troubles in `/health`, once this one is among them.
async fn until_trouble(client: &Client, code: &str) -> Value {
    eventually(code, async || {
        let health = client.get("/health").await;
        let mut troubles = health["trouble"].as_array().cloned().unwrap_or_default();
        troubles.retain(|trouble| trouble["code"] == code);
        assert!(troubles.is_empty() || health["degraded"] == true, "{health}");
        troubles.pop()
    })
    .await
}

/// A turn that requests remote durability, and learns that it is not remote.
async fn is_not_remote(client: &Client, id: &str) {
    let path = format!("/api/sessions/{id}/messages");
    let message = json!({ "content": "write late.txt: late", "durability": "remote" });
    let answer = client.request(reqwest::Method::POST, &path).json(&message).send().await.expect("sent");
    let text = answer.text().await.expect("a stream");
    assert!(text.contains("\"code\":\"not_remote\"") && text.contains("event: done"), "{text}");
}

#[tokio::test]
async fn a_second_server_writes_nothing_and_leaves_when_the_first_one_lives() {
    let shelf = Shelf::new();
    let mut first = shelf.server(LONG);
    first.launch().await;
    let client = first.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: one").await;
    until_remote(&client, &id).await;
    first.kill9();
    let (before, claims) = (shelf.content(), shelf.claims());
    assert_eq!(claims.len(), 1, "a crash leaves the claim: {claims:?}");

    let mut second = shelf.server(LONG);
    // This server would also collect garbage there.
    second.set("ASH_GC_EVERY", "1");
    second.launch().await;
    let other = second.client();
    let told = until_trouble(&other, "bucket_claimed").await;
    let error = told["error"].as_str().expect("a sentence").to_owned();
    assert!(error.contains(&node_id(&first)) && error.contains("ash serve --take-over"), "{error}");
    let mine = other.create().await;
    other.say(&mine, "write b.txt: two").await;
    is_not_remote(&other, &mine).await;
    assert_eq!(other.session(&mine).await["checkpoint"]["remote"], Value::Null);
    assert!(shelf.content() == before && shelf.claims() == claims, "it wrote to the bucket");

    // The same data directory continues at once; the claim's number increases.
    first.launch().await;
    let client = first.client();
    client.action(&id, "resume").await;
    client.say(&id, "write a.txt: two").await;
    until_remote(&client, &id).await;
    assert!(!second.ended().await, "it ended as if all were well");
    let said = second.log();
    let last = said.lines().last().expect("a last line");
    for words in [&node_id(&first), &first.url, "on host ", "ash serve --take-over"] {
        assert!(last.contains(words), "{words:?} is missing: {last}");
    }
    let of_second = shelf.content().into_keys().any(|path| path.to_string_lossy().contains(&mine));
    assert!(!of_second, "it wrote to the bucket");
    assert!(client.get("/health").await["degraded"].is_null());
}

#[tokio::test]
async fn a_bucket_is_taken_over_and_its_holder_says_so() {
    let shelf = Shelf::new();
    let mut holder = shelf.server(SHORT);
    holder.launch().await;
    let client = holder.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: one").await;
    until_remote(&client, &id).await;

    let mut next = shelf.server(SHORT);
    next.take_over().await;
    let other = next.client();
    let mine = other.create().await;
    other.say(&mine, "write b.txt: two").await;
    until_remote(&other, &mine).await;
    let told = until_trouble(&client, "bucket_taken").await;
    let error = told["error"].as_str().expect("a sentence").to_owned();
    assert!(error.contains(&node_id(&next)) && error.contains(&next.url), "{error}");
    let before = shelf.content();
    is_not_remote(&client, &id).await;
    let checkpoint = client.session(&id).await["checkpoint"].clone();
    assert_eq!((&checkpoint["local"], &checkpoint["remote"]), (&json!(2), &json!(1)), "{checkpoint}");
    assert!(shelf.content() == before, "it wrote to the bucket");
    assert!(other.get("/health").await["degraded"].is_null());

    next.stop().await;
    assert_eq!(shelf.claims(), [""; 0].map(PathBuf::from), "a clean stop deletes the claim");
    let mut third = shelf.server(LONG);
    third.launch().await;
    let client = third.client();
    client.action(&mine, "resume").await;
    client.say(&mine, "write b.txt: three").await;
    until_remote(&client, &mine).await;
    holder.stop().await;
    assert_eq!(shelf.claims().len(), 1, "the claim is another one's");
}
