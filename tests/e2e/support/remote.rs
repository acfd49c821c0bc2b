//! Reads what a session holds: its replication state, its files and its messages.

use super::{Client, eventually};
use serde_json::Value;
use std::collections::BTreeMap;

pub async fn until_remote(client: &Client, id: &str) {
    eventually("the object store has it", async || {
        let checkpoint = client.session(id).await["checkpoint"].clone();
        (checkpoint["local"].is_u64() && checkpoint["local"] == checkpoint["remote"]).then_some(())
    })
    .await;
}

pub async fn files(client: &Client, id: &str) -> BTreeMap<String, Vec<u8>> {
    let listed = client.get(&format!("/api/sessions/{id}/files")).await;
    let mut files = BTreeMap::new();
    for file in listed["files"].as_array().expect("files") {
        let path = file["path"].as_str().expect("a path");
        let got = client.request(reqwest::Method::GET, &format!("/api/sessions/{id}/files/{path}"));
        let got = got.send().await.expect("a file");
        assert!(got.status().is_success(), "{path}: {}", got.status());
        files.insert(path.to_owned(), got.bytes().await.expect("bytes").to_vec());
    }
    files
}

pub async fn messages(client: &Client, id: &str) -> Value {
    client.get(&format!("/api/sessions/{id}/messages?limit=1000")).await["messages"].clone()
}
