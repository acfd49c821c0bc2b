//! Wrong tables: the database, its log, packs or the bucket are missing, older, damaged or foreign. Acknowledged work is
//! there or is named as lost, and none of it is deleted.

mod adoption;
mod stage;
mod table;
mod tombstones;

use crate::support::{Point, Server, eventually};
use serde_json::{Value, json};
use stage::{Stage, back_up, repair, restore_backup};

/// The codes of the server's troubles, as a client with a key sees them.
pub async fn troubles(server: &Server) -> Vec<Value> {
    server.client().get("/health").await["trouble"].as_array().cloned().unwrap_or_default()
}

async fn database_behind(server: &Server) -> Value {
    eventually("the server says that its database is behind", async || {
        troubles(server).await.into_iter().find(|trouble| trouble["code"] == "database_behind")
    })
    .await
}

async fn comparison(server: &Server, times: usize) {
    eventually("the database was compared", async || {
        let compared = server.log().matches("the database was compared with its witnesses").count();
        (compared >= times).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lost_database_is_reported_stops_collections_and_is_repaired_from_packs() {
    let mut stage = Stage::alone().await;
    stage.turn(1).await;
    stage.turn(2).await;
    let (said, packs) = (stage.messages().await, stage.packs());
    stage.server.kill9();
    for ending in ["", "-wal", "-shm"] {
        std::fs::remove_file(stage.server.data.join(format!("ash.db{ending}"))).ok();
    }
    stage.server.launch().await;
    let trouble = database_behind(&stage.server).await;
    let error = trouble["error"].as_str().expect("a sentence");
    assert!(error.contains("ash repair") && error.contains("s (unknown"), "{trouble}");
    assert!(trouble["since"].is_string(), "{trouble}");
    let public = reqwest::get(format!("{}/health", stage.server.url)).await.expect("an answer");
    let public: Value = public.json().await.expect("JSON");
    assert_eq!((&public["degraded"], &public["trouble"]), (&json!(true), &Value::Null), "without a key");
    // A sweep compares first.
    comparison(&stage.server, 4).await;
    assert_eq!(stage.packs(), packs, "nothing was collected");
    let client = stage.server.client();
    let (status, answer) = client
        .ask(reqwest::Method::POST, "/api/sessions", Some(json!({ "agent": "default", "sessionId": "s" })))
        .await;
    assert_eq!((status.as_u16(), &answer["code"]), (409, &json!("session_unrepaired")), "{answer}");
    stage.server.stop().await;
    let doctor = stage.server.command_of(&["doctor", "--json"]).output().expect("ash doctor");
    let doctor: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let check =
        doctor["checks"].as_array().expect("checks").iter().find(|check| check["name"] == "witnesses");
    assert_eq!(check.expect("a check")["status"], "problem", "{doctor}");

    let (code, planned) = repair(&stage.server, &[]);
    assert_eq!((code, &planned["dryRun"]), (1, &json!(true)), "{planned}");
    assert_eq!(planned["sessions"][0]["id"], "s", "{planned}");
    assert_eq!(planned["unknownTrees"], json!([]), "its tree comes back with it: {planned}");
    let (_, planned_again) = repair(&stage.server, &[]);
    assert_eq!(planned_again["sessions"], planned["sessions"], "a dry run changes nothing");
    let (code, done) = repair(&stage.server, &["--yes"]);
    assert_eq!((code, &done["sessions"][0]["error"]), (0, &Value::Null), "{done}");
    assert_eq!(repair(&stage.server, &[]).1["sessions"], json!([]));

    stage.server.launch().await;
    let back = stage.messages().await;
    let (back, said) = (back.as_array().expect("a list"), said.as_array().expect("a list"));
    assert_eq!(back.len(), said.len(), "every answer that was given: {:?}", back.last());
    for (back, said) in back.iter().zip(said) {
        assert_eq!(back, said);
    }
    let events = stage.server.client().get("/api/sessions/s/events?type=lifecycle").await.to_string();
    assert!(events.contains("adopted") && !events.contains("incarnation"), "our own plumbing: {events}");
    let receipt = stage.resume().await;
    assert_eq!(receipt["adopted"]["checkpoint"], 2, "{receipt}");
    assert_eq!((stage.file("one.txt").await, stage.file("two.txt").await), ("1".to_owned(), "2".to_owned()));
    stage.turn(3).await;
    assert!(troubles(&stage.server).await.is_empty());
}

/// The sandbox's journal has the agent's output since the last checkpoint. A rebuild of the session reads that part, and
/// does not repeat what packs have.
#[tokio::test]
async fn messages_after_the_last_checkpoint_come_back_from_the_journal() {
    let mut stage = Stage::alone().await;
    stage.turn(1).await;
    stage.server.arm("save.frozen", Point::Pause);
    let client = stage.server.client();
    let _stream = client.send("s", "write two.txt: 2").await;
    stage.server.reached("save.frozen").await;
    let said = stage.messages().await;
    stage.server.kill9();
    stage.server.release("save.frozen");
    for ending in ["", "-wal", "-shm"] {
        std::fs::remove_file(stage.server.data.join(format!("ash.db{ending}"))).ok();
    }
    let (code, done) = repair(&stage.server, &["--yes"]);
    assert_eq!((code, &done["sessions"][0]["error"]), (0, &Value::Null), "{done}");
    stage.server.launch().await;
    let receipt = stage.resume().await;
    let back = stage.messages().await;
    let lines = |messages: &Value| -> Vec<Value> {
        let all = messages.as_array().expect("a list").iter();
        all.filter(|message| message["role"] != "user").map(|message| message["content"].clone()).collect()
    };
    assert_eq!(lines(&back), lines(&said), "every line once: {back:#}");
    assert_eq!(receipt["salvage"], 2, "{receipt}");
    assert!(receipt["lost"].to_string().contains("two.txt"), "{receipt}");
    stage.turn(3).await;
}

#[tokio::test]
async fn one_flipped_byte_in_the_log_of_the_database_is_noticed() {
    let mut stage = Stage::alone().await;
    stage.turn(1).await;
    stage.turn(2).await;
    let packs = stage.packs();
    stage.server.kill9();
    stage::flip(&stage.server.data.join("ash.db-wal"), 100);
    stage.server.launch().await;
    database_behind(&stage.server).await;
    comparison(&stage.server, 3).await;
    assert_eq!(stage.packs(), packs);
    stage.server.stop().await;
    let (_, done) = repair(&stage.server, &["--yes"]);
    assert_eq!(done["sessions"][0]["error"], Value::Null, "{done}");
    stage.server.launch().await;
    stage.resume().await;
    assert_eq!((stage.file("one.txt").await, stage.file("two.txt").await), ("1".to_owned(), "2".to_owned()));
    comparison(&stage.server, 2).await;
    assert!(troubles(&stage.server).await.is_empty(), "{:?}", troubles(&stage.server).await);
}

#[tokio::test]
async fn a_backup_of_the_database_does_not_undo_turns_that_packs_prove() {
    let mut stage = Stage::alone().await;
    stage.turn(1).await;
    stage.server.stop().await;
    back_up(&stage.server);
    stage.server.launch().await;
    stage.resume().await;
    stage.turn(2).await;
    let said = stage.messages().await;
    stage.server.stop().await;
    restore_backup(&stage.server);
    stage.server.launch().await;
    let receipt = stage.resume().await;
    assert_eq!(receipt["adopted"]["checkpoint"], 2, "{receipt}");
    assert_eq!(receipt["adopted"]["epoch"].as_u64().map(|epoch| epoch > 1), Some(true), "{receipt}");
    assert_eq!(stage.messages().await, said, "the turn of after the backup");
    assert_eq!(stage.file("two.txt").await, "2");
    stage.turn(3).await;
    eventually("the trouble is over", async || troubles(&stage.server).await.is_empty().then_some(())).await;
}

#[tokio::test]
async fn every_deletion_of_checkpoints_is_in_the_audit() {
    let stage =
        Stage::with(&[("ASH_KEEP_LAST", "1"), ("ASH_KEEP_HOURLY", "0"), ("ASH_KEEP_DAILY", "0")]).await;
    for turn in 1..=3 {
        stage.turn(turn).await;
    }
    let client = stage.server.client();
    let told = eventually("checkpoints are given up", async || {
        let lines = client.get("/api/audit?session=s").await["audit"].as_array().cloned()?;
        let removed: Vec<Value> =
            lines.into_iter().filter(|line| line["action"] == "checkpoints_removed").collect();
        (!removed.is_empty()).then_some(removed)
    })
    .await;
    assert_eq!(told.last().expect("a line")["by"]["rule"], "keep", "{told:?}");
    let numbers: String = told.iter().filter_map(|line| line["detail"].as_str()).collect();
    assert!(numbers.contains('1'), "{told:?}");
}
