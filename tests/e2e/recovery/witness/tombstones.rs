//! A purged session stays purged, whatever else is lost.

use super::{
    comparison,
    stage::{Stage, back_up, restore_backup},
};
use crate::support::{
    eventually,
    remote::{messages, until_remote},
};
use serde_json::json;

/// How often the database has been compared.
fn compared(stage: &Stage) -> usize {
    stage.server.log().matches("the database was compared with its witnesses").count()
}

async fn purge(stage: &Stage) {
    let answer = stage.server.client().delete("/api/sessions/s?purge=true").await;
    assert!(answer.is_object(), "{answer}");
}

/// The repository has a tombstone, without the name.
fn is_buried(stage: &Stage) {
    let lines = std::fs::read_to_string(stage.server.data.join("repo/default/tombstones")).expect("durable");
    let line = lines.lines().find(|line| !line.is_empty()).expect("a line");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let keys: Vec<&String> = line.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["epoch", "hash", "purgedAt", "seq"], "{line}");
}

#[tokio::test]
async fn a_purge_is_in_the_bucket_when_it_is_answered_and_outlives_the_machine() {
    let mut stage = Stage::with_bucket(&[("ASH_TRASH_TTL", "3600")]).await;
    stage.turn(1).await;
    let before = stage.manifests().len();
    purge(&stage).await;
    let last = stage.manifests().pop().expect("a manifest");
    let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&last).expect("read")).expect("JSON");
    assert!(stage.manifests().len() > before);
    let keys: Vec<&String> = told.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["epoch", "purgedAt", "seq", "session", "tenant"], "{told}");
    is_buried(&stage);

    stage.server.lose_the_machine().await;
    let client = stage.server.client();
    let (status, _) = client.ask(reqwest::Method::POST, "/api/sessions/s/resume", None).await;
    assert_eq!(status.as_u16(), 404, "a purged session stays purged");
    comparison(&stage.server, 2).await;
    assert_eq!(client.get("/api/sessions").await["sessions"], json!([]));

    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    stage.turn(2).await;
    let epoch = |name: &str| name.split('-').next().and_then(|epoch| epoch.parse::<u64>().ok());
    let names: Vec<String> = stage
        .manifests()
        .iter()
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    let newest = names.iter().filter_map(|name| epoch(name)).max().expect("manifests");
    assert!(newest > told["epoch"].as_u64().expect("an epoch"), "{names:?}");
    stage.server.lose_the_machine().await;
    stage.resume().await;
    assert_eq!(stage.file("two.txt").await, "2", "the session that was made again");
    assert_eq!(stage.file("one.txt").await, "404 Not Found");
}

#[tokio::test]
async fn an_older_database_does_not_bring_a_purged_session_back() {
    let mut stage = Stage::with_bucket(&[("ASH_TRASH_TTL", "3600")]).await;
    stage.turn(1).await;
    stage.server.stop().await;
    back_up(&stage.server);
    stage.server.launch().await;
    purge(&stage).await;
    stage.server.stop().await;
    restore_backup(&stage.server);
    stage.server.launch().await;
    let client = stage.server.client();
    let (status, answer) = client.ask(reqwest::Method::POST, "/api/sessions/s/resume", None).await;
    assert_eq!(status.as_u16(), 404, "{answer}");
    eventually("it is not listed any more", async || {
        (client.get("/api/sessions").await["sessions"] == json!([])).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_purged_session_leaves_no_packs_and_no_trouble_behind() {
    let mut stage = Stage::alone().await;
    stage.turn(1).await;
    let before = stage.packs();
    purge(&stage).await;
    eventually("its packs are collected", async || (stage.packs().len() < before.len()).then_some(())).await;
    is_buried(&stage);
    stage.server.crash_and_start().await;
    comparison(&stage.server, 3).await;
    assert!(super::troubles(&stage.server).await.is_empty());
}

/// An id in the format of generated ones may have been used before.
#[tokio::test]
async fn a_purged_generated_id_is_new_again_on_another_machine() {
    let mut stage = Stage::with_bucket(&[("ASH_TRASH_TTL", "3600")]).await;
    let id = "7d0a2b54-6a4f-4c1e-9a0b-0c8f5b1f6e21";
    let made = json!({ "agent": "default", "sessionId": id });
    let client = stage.server.client();
    client.post("/api/sessions", made.clone()).await;
    client.say(id, "say: the first").await;
    until_remote(&client, id).await;
    client.delete(&format!("/api/sessions/{id}?purge=true")).await;
    stage.server.lose_the_machine().await;
    let client = stage.server.client();
    client.post("/api/sessions", made).await;
    client.say(id, "say: the second").await;
    until_remote(&client, id).await;
    let said = messages(&client, id).await;
    stage.server.crash_and_start().await;
    stage.server.client().action(id, "resume").await;
    stage.server.lose_the_machine().await;
    let client = stage.server.client();
    client.action(id, "resume").await;
    assert_eq!(messages(&client, id).await, said);
}

/// The id is free while forks use the log of the session that had it: each comes back with its own log.
#[tokio::test]
async fn a_fork_of_a_purged_session_and_the_next_of_its_name_outlive_the_machine() {
    let mut stage = Stage::with_bucket(&[("ASH_TRASH_TTL", "3600")]).await;
    stage.turn(1).await;
    let client = stage.server.client();
    client.post("/api/sessions/s/fork", json!({ "sessionId": "fork" })).await;
    client.say("fork", "say: I go on").await;
    until_remote(&client, "fork").await;
    stage.turn(2).await;
    purge(&stage).await;
    client.post("/api/sessions", json!({ "agent": "default", "sessionId": "s" })).await;
    // Its events have other numbers than those of the first session.
    let (status, _) = client
        .ask(reqwest::Method::PATCH, "/api/sessions/s", Some(json!({ "metadata": { "life": "second" } })))
        .await;
    assert_eq!(status.as_u16(), 200);
    for number in [3, 4, 5] {
        stage.turn(number).await;
    }
    let said = [messages(&client, "fork").await, messages(&client, "s").await];
    for round in 0..2 {
        stage.server.lose_the_machine().await;
        let client = stage.server.client();
        for id in ["s", "fork"] {
            client.action(id, "resume").await;
        }
        assert_eq!([messages(&client, "fork").await, messages(&client, "s").await], said, "round {round}");
        assert_eq!(client.session("fork").await["parentSessionId"], serde_json::Value::Null);
        let files = async |id: &str| client.exec(id, "ls *.txt").await["stdout"].clone();
        assert_eq!(
            (files("fork").await, files("s").await),
            (json!("one.txt\n"), json!("five.txt\nfour.txt\nthree.txt\n"))
        );
        // Unreferenced data is deleted from the object store, and both sessions keep theirs.
        comparison(&stage.server, compared(&stage) + 3).await;
        let listed = client.get("/api/sessions").await["sessions"].as_array().map(Vec::len);
        assert_eq!(listed, Some(2));
    }
    // Also after its trash has been emptied.
    stage.server.stop().await;
    stage.server.set("ASH_TRASH_TTL", "0");
    stage.server.launch().await;
    comparison(&stage.server, compared(&stage) + 3).await;
    stage.server.lose_the_machine().await;
    let client = stage.server.client();
    for id in ["s", "fork"] {
        client.action(id, "resume").await;
    }
    assert_eq!([messages(&client, "fork").await, messages(&client, "s").await], said);
}
