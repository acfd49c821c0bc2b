//! Stop and start: on purpose, by a crash, by a reboot, and in another place.

use crate::support::{Client, Server, eventually, names};
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use std::path::Path;

/// A realistic workspace.
const FURNISH: &str = "git init -q . && git add -A && git commit -qm first && echo change >> CLAUDE.md && \
    mkdir -p node_modules/.bin node_modules/pkg empty deep/er && echo 'module.exports = 1' > node_modules/pkg/index.js && \
    ln -s ../pkg/index.js node_modules/.bin/pkg && ln -s nowhere dangling && ln -s /etc/hostname absolute && \
    echo '{}' > package-lock.json && echo lock > yarn.lock && mkdir tmp && echo t > tmp/t && \
    echo '#!/bin/sh' > run.sh && chmod 755 run.sh && echo secret > private && chmod 600 private && ln private twin && \
    touch -d '2001-02-03 04:05:06.789' old && printf 'a\\0b' > 'odd name' && git status --short | sort";

/// All properties of the files that must not change.
const INSPECT: &str = "find . -path ./.git -prune -o -printf '%p %y %m %s %l %T@\\n' | sort; find . -type f -exec sha256sum {} + | sort; \
    git log --format=%H; git status --short; stat -c %h private; git fsck 2>&1";

async fn furnished(server: &Server) -> (Client, String, String) {
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let done = client.exec(&id, FURNISH).await;
    assert_eq!(done["exitCode"], 0, "{done}");
    client.say(&id, "second").await;
    let before = inspect(&client, &id).await;
    (client, id, before)
}

async fn inspect(client: &Client, id: &str) -> String {
    let done = client.exec(id, INSPECT).await;
    assert_eq!(done["exitCode"], 0, "{done}");
    done["stdout"].as_str().expect("text").to_owned()
}

async fn is_whole(server: &Server, id: &str, before: &str) {
    let client = server.client();
    assert_eq!(inspect(&client, id).await, before);
    let text = client.text(id, "what was first?").await;
    assert!(text.contains("turn 3") && text.contains("remember me"), "{text}");
}

#[tokio::test]
async fn a_graceful_stop_captures_and_ends_every_sandbox() {
    let mut server = Server::start().await;
    let (client, id, before) = furnished(&server).await;
    let processes = server.processes(&id).await;
    let idle = client.create().await;
    server.stop().await;
    for pid in [processes.shim, processes.init, processes.agent] {
        assert!(!crate::support::is_alive(pid), "{processes:?}");
    }
    server.launch().await;
    let client = server.client();
    assert_eq!(
        (client.status(&id).await.as_str(), client.status(&idle).await.as_str()),
        ("paused", "paused")
    );
    let resume = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(
        resume,
        json!({ "path": "cold", "source": "local", "from": "live", "tier": "native", "checkpoint": resume["checkpoint"], "verified": true, "lost": [], "compared": resume["compared"] })
    );
    assert!(resume["compared"]["events"].as_u64() > Some(0), "{resume}");
    is_whole(&server, &id, &before).await;
}

#[tokio::test]
async fn a_crash_of_the_server_alone_changes_nothing() {
    let mut server = Server::start().await;
    let (_, id, before) = furnished(&server).await;
    let processes = server.processes(&id).await;
    server.crash_and_start().await;
    let client = server.client();
    assert_eq!(client.status(&id).await, "active");
    assert_eq!(server.processes(&id).await.agent, processes.agent, "the same agent goes on");
    is_whole(&server, &id, &before).await;
}

#[tokio::test]
async fn a_warm_pause_survives_a_crash_of_the_server() {
    let mut server = Server::start().await;
    let (client, id, before) = furnished(&server).await;
    client.action(&id, "pause").await;
    server.crash_and_start().await;
    let client = server.client();
    assert_eq!(client.status(&id).await, "paused");
    assert_eq!(client.action(&id, "resume").await["resume"]["path"], "warm");
    is_whole(&server, &id, &before).await;
}

#[tokio::test]
async fn when_everything_dies_in_a_turn_it_is_continued_at_start() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let processes = server.processes(&id).await;
    let mut stream =
        client.send(&id, "run: echo x >> ran\nhold go: one two three four five six seven eight").await;
    let seen = stream.until("text_delta").await;
    let live = server.live(&id).await;
    server.kill9();
    crate::support::signal(processes.shim, libc::SIGKILL);
    crate::support::let_go(&live, "go");
    server.launch().await;
    let client = server.client();
    let last = &seen.last().expect("a frame").id;
    let frames = client.follow(&id, last).await.until("done").await;
    assert!(names(&frames).contains(&"turn_continued"), "{frames:#?}");
    assert!(names(&frames).contains(&"resumed"), "{frames:#?}");
    assert_eq!(client.text(&id, "read ran").await, "x\n");
    assert!(client.text(&id, "what was first?").await.contains("turn 4"));
}

#[tokio::test]
async fn with_on_interrupted_ask_a_cut_turn_waits_for_its_caller() {
    let mut server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let body = json!({ "agent": "tester", "onInterrupted": "ask" });
    let id = client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned();
    let mut stream = client.send(&id, "hold go: one two three four five six seven eight").await;
    stream.until("text_delta").await;
    let processes = server.processes(&id).await;
    server.kill9();
    crate::support::signal(processes.shim, libc::SIGKILL);
    server.launch().await;
    let client = server.client();
    client.until_status(&id, "error").await;
    assert_eq!(client.session(&id).await["openTurns"], 1);
    client.action(&id, "interrupt").await;
    assert_eq!(client.session(&id).await["openTurns"], 0);
    assert!(client.text(&id, "go on").await.contains("turn 2"));
}

#[tokio::test]
async fn a_turn_that_a_stop_cuts_goes_on_at_the_next_start() {
    let mut server = Server::with(&[("ASH_STOP_GRACE", "0")]).await;
    let client = server.client();
    let id = client.create().await;
    let mut stream =
        client.send(&id, "run: echo x >> ran\nhold go: one two three four five six seven eight").await;
    let seen = stream.until("text_delta").await;
    let live = server.live(&id).await;
    server.stop().await;
    crate::support::let_go(&live, "go");
    server.launch().await;
    let client = server.client();
    let frames = client.follow(&id, &seen.last().expect("a frame").id).await.until("done").await;
    assert!(names(&frames).contains(&"turn_continued"), "{frames:#?}");
    assert_eq!(client.text(&id, "read ran").await, "x\n");
}

/// Whether the server is about to stop. The request names no agent, so it creates nothing while the server still runs.
async fn refuses(client: &Client) -> bool {
    let request = client.request(Method::POST, "/api/sessions").json(&json!({ "agent": "nobody" }));
    request.send().await.is_ok_and(|answer| answer.status() == 503)
}

#[tokio::test]
async fn a_turn_that_ends_within_the_grace_is_not_cut() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut stream = client.send(&id, "hold go: one two three four five six").await;
    stream.until("text_delta").await;
    let live = server.live(&id).await;
    let rest = async {
        eventually("the server takes no more", async || refuses(&client).await.then_some(())).await;
        crate::support::let_go(&live, "go");
        stream.rest().await
    };
    let (rest, ()) = tokio::join!(rest, server.stop());
    assert_eq!(rest.last().map(|frame| frame.event.as_str()), Some("done"), "{rest:#?}");
}

#[tokio::test]
async fn a_moved_data_directory_works_as_before() {
    let mut server = Server::start().await;
    let (_, id, before) = furnished(&server).await;
    server.stop().await;
    let moved = server.dir.join("elsewhere");
    std::fs::rename(&server.data, &moved).expect("move");
    server.data = moved;
    server.launch().await;
    let client = server.client();
    assert_eq!(client.action(&id, "resume").await["resume"]["verified"], true);
    is_whole(&server, &id, &before).await;
}

#[tokio::test]
async fn a_lost_live_tree_is_restored_from_the_checkpoint() {
    let mut server = Server::start().await;
    let (_, id, before) = furnished(&server).await;
    server.stop().await;
    let live = live_dir(&server);
    std::fs::remove_dir_all(live.join("tree")).expect("remove");
    std::fs::remove_file(live.join("stamp")).expect("remove");
    server.launch().await;
    let client = server.client();
    let resume = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(
        (resume["from"].as_str(), resume["verified"].as_bool()),
        (Some("checkpoint"), Some(true)),
        "{resume}"
    );
    is_whole(&server, &id, &before).await;
}

#[tokio::test]
async fn a_tree_from_before_a_reboot_is_salvaged_and_replaced() {
    let mut server = Server::start().await;
    let (_, id, before) = furnished(&server).await;
    server.stop().await;
    // The state after a reboot: another boot id, and a tree that may be torn.
    let stamp = live_dir(&server).join("stamp");
    let text = std::fs::read_to_string(&stamp).expect("a stamp");
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("json");
    value["boot"] = json!("another-boot");
    std::fs::write(&stamp, value.to_string()).expect("write");
    std::fs::write(live_dir(&server).join("tree/workspace/CLAUDE.md"), "torn").expect("write");
    server.launch().await;
    let client = server.client();
    let resume = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(resume["from"], "checkpoint");
    assert!(resume["salvage"].is_u64(), "{resume}");
    is_whole(&server, &id, &before).await;
}

fn live_dir(server: &Server) -> std::path::PathBuf {
    let mut dirs = std::fs::read_dir(server.data.join("live")).expect("live").flatten();
    dirs.next().map(|entry| entry.path()).expect("one live tree")
}

#[tokio::test]
async fn a_shim_without_a_server_ends_by_itself() {
    let mut server = Server::with(&[("ASH_ORPHAN_TTL", "1")]).await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "remember me").await;
    let processes = server.processes(&id).await;
    server.kill9();
    eventually("the orphan ends", async || {
        (!Path::new(&format!("/proc/{}", processes.shim)).exists()).then_some(())
    })
    .await;
    server.launch().await;
    let client = server.client();
    client.until_status(&id, "paused").await;
    assert!(client.text(&id, "still there?").await.contains("remember me"));
}

/// The checkpoint still has events that the log has lost, and the receipt reports it.
#[tokio::test]
async fn a_log_that_differs_from_the_checkpoint_is_reported() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "run: echo x > file").await;
    client.action(&id, "stop").await;
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["verified"], &receipt["lost"]), (&json!(true), &json!([])), "{receipt}");
    let compared = &receipt["compared"];
    assert!(compared["events"].as_u64() > Some(3) && compared["agentVersion"] == 1, "{receipt}");
    client.action(&id, "stop").await;
    server.stop().await;
    let options = SqliteConnectOptions::new().filename(server.data.join("ash.db"));
    let mut db = SqliteConnection::connect_with(&options).await.expect("a database");
    let changed = sqlx::query("UPDATE events SET json = '{\"type\":\"assistant\"}' WHERE kind = 'said'");
    assert!(changed.execute(&mut db).await.expect("changed").rows_affected() > 0);
    db.close().await.expect("closed");
    server.launch().await;
    let receipt = server.client().action(&id, "resume").await["resume"].clone();
    assert_eq!(receipt["verified"], false, "{receipt}");
    assert!(receipt["lost"][0].as_str().is_some_and(|lost| lost.contains("are not the same")), "{receipt}");
}

/// A user removes files on disk by hand while the server runs: the last checkpoint has them.
#[tokio::test]
async fn files_that_were_removed_from_outside_come_back() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: kept").await;
    client.action(&id, "stop").await;
    std::fs::remove_dir_all(server.live(&id).await).expect("removed");
    let receipt = client.action(&id, "resume").await["resume"].clone();
    assert_eq!((&receipt["tier"], &receipt["lost"]), (&json!("native"), &json!([])), "{receipt}");
    assert_eq!(client.exec(&id, "cat a.txt").await["stdout"], "kept");
}
