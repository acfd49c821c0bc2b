//! Purged stays purged, whatever else is lost.

use super::{
    comparison,
    stage::{Stage, back_up, restore_backup},
};
use crate::support::eventually;
use serde_json::json;

async fn purge(stage: &Stage) {
    let answer = stage.server.client().delete("/api/sessions/s?purge=true").await;
    assert!(answer.is_object(), "{answer}");
}

fn tombstones(stage: &Stage) -> String {
    std::fs::read_to_string(stage.server.data.join("repo/default/tombstones")).unwrap_or_default()
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
    assert!(tombstones(&stage).contains("\"session\":\"s\""));

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
    assert!(tombstones(&stage).contains("\"session\":\"s\""), "durable before the row went");
    stage.server.crash_and_start().await;
    comparison(&stage.server, 3).await;
    assert!(super::troubles(&stage.server).await.is_empty());
}
