//! The bucket knows more of a session than the database, or contradicts it.

use super::{
    stage::{Stage, back_up, restore_backup},
    troubles,
};
use crate::support::{eventually, remote::until_remote};
use serde_json::json;
use std::fs;

/// Restores a backup of the database from after the first of two turns.
async fn older_database(stage: &mut Stage) {
    stage.turn(1).await;
    stage.server.stop().await;
    back_up(&stage.server);
    stage.server.launch().await;
    stage.resume().await;
    stage.turn(2).await;
    stage.server.stop().await;
    restore_backup(&stage.server);
}

/// Removes newer packs, so that only the bucket has the later work.
fn without_newer_packs(stage: &Stage) {
    let repo = stage.server.data.join("repo/default");
    fs::remove_dir_all(&repo).expect("packs are gone");
    fs::remove_dir_all(stage.server.data.join("live")).expect("trees are gone");
}

#[tokio::test]
async fn a_session_goes_on_with_what_only_the_bucket_knows() {
    let mut stage = Stage::with_bucket(&[]).await;
    older_database(&mut stage).await;
    without_newer_packs(&stage);
    let before = stage.manifests();
    stage.server.launch().await;
    let receipt = stage.resume().await;
    assert_eq!(receipt["adopted"]["checkpoint"], 2, "{receipt}");
    assert_eq!(receipt["lost"], json!([]), "{receipt}");
    assert_eq!((stage.file("one.txt").await, stage.file("two.txt").await), ("1".to_owned(), "2".to_owned()));
    stage.turn(3).await;
    assert!(
        before.iter().any(|manifest| manifest.exists()),
        "what was there is not superseded by something older"
    );
    let again = stage.server.client().action("s", "stop").await;
    assert_eq!(again["session"]["status"], "stopped");
    assert_eq!(stage.resume().await.get("adopted"), None, "the adoption is reported once");
}

#[tokio::test]
async fn two_histories_are_both_kept() {
    let mut stage = Stage::with_bucket(&[]).await;
    older_database(&mut stage).await;
    without_newer_packs(&stage);
    // The machine still has its own packs from before the backup.
    let (repo, packs) =
        (stage.server.data.join("repo/default"), stage.bucket().join("tenants/default/packs"));
    fs::create_dir_all(&repo).expect("made");
    for pack in older_packs(&packs, stage.bucket()) {
        fs::copy(packs.join(&pack), repo.join(format!("{pack}.pack"))).expect("a pack");
    }
    stage.server.launch().await;
    // The server continues without the bucket, on another history.
    let aside = stage.server.dir.join("bucket-away");
    break_bucket(&stage, &aside);
    let client = stage.server.client();
    let receipt = stage.resume().await;
    assert_eq!(receipt["compared"]["remote"], "unreachable", "{receipt}");
    client.say("s", "write other.txt: another way").await;
    assert!(
        client.session("s").await["checkpoint"]["remote"] != client.session("s").await["checkpoint"]["local"]
    );
    client.action("s", "stop").await;
    stage.server.stop().await;

    fs::remove_file(stage.bucket()).expect("out of the way");
    fs::rename(&aside, stage.bucket()).expect("back");
    stage.server.launch().await;
    let client = stage.server.client();
    let receipt = stage.resume().await;
    assert_eq!(receipt["adopted"]["checkpoint"], 2, "{receipt}");
    let lost = receipt["lost"].to_string();
    assert!(lost.contains("s.diverged-"), "{receipt}");
    assert_eq!(
        (stage.file("two.txt").await, stage.file("other.txt").await),
        ("2".to_owned(), "404 Not Found".to_owned())
    );
    let listed = client.get("/api/sessions").await["sessions"].as_array().expect("sessions").clone();
    let fork = listed.iter().filter_map(|one| one["id"].as_str()).find(|id| id.contains(".diverged-"));
    let fork = fork.expect("the fork").to_owned();
    assert!(lost.contains(&fork), "{receipt}");
    client.action(&fork, "resume").await;
    let other = client.request(reqwest::Method::GET, &format!("/api/sessions/{fork}/files/other.txt"));
    let other = other.send().await.expect("an answer").text().await.expect("text");
    assert!(other.contains("another way"), "{other}");
    stage.turn(3).await;
    client.say(&fork, "say: on").await;
    until_remote(&client, &fork).await;
    eventually("no trouble is left", async || troubles(&stage.server).await.is_empty().then_some(())).await;
}

/// Makes all reads and writes there fail until it is restored.
fn break_bucket(stage: &Stage, aside: &std::path::Path) {
    fs::rename(stage.bucket(), aside).expect("moved");
    fs::write(stage.bucket(), "in the way").expect("a file where the bucket was");
}

/// The packs that the first manifest with a checkpoint needs: those before the last one.
fn older_packs(packs: &std::path::Path, bucket: &std::path::Path) -> Vec<String> {
    let sessions = bucket.join("tenants/default/sessions/s");
    let mut trees = Vec::new();
    for name in super::stage::names(&sessions) {
        let text = fs::read(sessions.join(name)).expect("a manifest");
        let manifest: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        if let Some(tree) = manifest["checkpoint"]["tree"].as_str() {
            trees.push(tree[64..].to_owned());
        }
    }
    let newest = trees.last().expect("checkpoints").clone();
    super::stage::names(packs).into_iter().filter(|pack| *pack != newest).collect()
}

#[tokio::test]
async fn a_silent_bucket_delays_no_request_and_confirms_nothing() {
    let mut stage = Stage::with_bucket(&[]).await;
    stage.turn(1).await;
    stage.server.stop().await;
    stage.server.launch().await;
    let aside = stage.server.dir.join("bucket-away");
    break_bucket(&stage, &aside);
    let receipt = stage.resume().await;
    assert_eq!(receipt["compared"]["remote"], "unreachable", "{receipt}");
    let client = stage.server.client();
    client.say("s", "write two.txt: 2").await;
    let checkpoint = client.session("s").await["checkpoint"].clone();
    assert_eq!((&checkpoint["local"], &checkpoint["remote"]), (&json!(2), &json!(1)), "{checkpoint}");
    fs::remove_file(stage.bucket()).expect("out of the way");
    fs::rename(&aside, stage.bucket()).expect("back");
    until_remote(&client, "s").await;
    client.action("s", "stop").await;
    let receipt = stage.resume().await;
    assert_eq!(receipt["compared"].get("remote"), None, "{receipt}");
}

/// Another writer uses the names of a session that was already compared, as two servers on one prefix would.
#[tokio::test]
async fn a_different_manifest_does_not_count_as_sent() {
    let stage = Stage::with_bucket(&[]).await;
    stage.turn(1).await;
    let last = stage.manifests().pop().expect("a manifest");
    let name = last.file_name().expect("a name").to_string_lossy().into_owned();
    let (epoch, seq) = name.trim_end_matches(".json").split_once('-').expect("two numbers");
    let seq: u64 = seq.parse().expect("a number");
    let mut foreign: serde_json::Value =
        serde_json::from_slice(&fs::read(&last).expect("read")).expect("a manifest");
    for (field, value) in
        [("events", json!([])), ("chain", json!("0".repeat(96))), ("checkpoint", serde_json::Value::Null)]
    {
        foreign[field] = value;
    }
    let mut planted = Vec::new();
    for after in 1..40 {
        let path = last.with_file_name(format!("{epoch}-{:016}.json", seq + after));
        if path.exists() {
            continue;
        }
        foreign["seq"] = json!(seq + after);
        fs::write(&path, foreign.to_string()).expect("planted");
        planted.push((path, foreign.to_string()));
    }
    let client = stage.server.client();
    client.say("s", "write two.txt: 2").await;
    eventually("the server says what it found", async || {
        stage.server.log().contains("is not what this server would put there").then_some(())
    })
    .await;
    let checkpoint = client.session("s").await["checkpoint"].clone();
    assert_eq!((&checkpoint["local"], &checkpoint["remote"]), (&json!(2), &json!(1)), "{checkpoint}");
    for (path, text) in planted {
        assert_eq!(fs::read_to_string(path).expect("read"), text, "what others wrote stays");
    }
}
