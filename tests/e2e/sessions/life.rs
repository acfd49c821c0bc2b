//! A session's life without failures.

use crate::support::{Server, names};
use reqwest::Method;
use serde_json::json;

#[tokio::test]
async fn a_turn_streams_in_the_reference_order_and_ends_with_done() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let frames = client.send(&id, "hello there").await.rest().await;
    let names = names(&frames);
    assert_eq!(names.first(), Some(&"session_start"));
    assert_eq!(names.last(), Some(&"done"));
    let complete = names.iter().position(|name| *name == "turn_complete").expect("turn_complete");
    assert_eq!(names[complete + 1], "message");
    assert!(names.contains(&"text_delta"));
    let deltas: String =
        frames.iter().filter(|f| f.event == "text_delta").filter_map(|f| f.data["delta"].as_str()).collect();
    assert_eq!(frames[complete].data["result"], deltas.as_str());
    assert!(deltas.starts_with("This is turn 1. I remember 0 earlier messages"), "{deltas}");
    assert_eq!(frames.last().expect("done").data["checkpoint"], 1);
}

#[tokio::test]
async fn without_partial_messages_no_delta_is_shown() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let request = client
        .request(Method::POST, &format!("/api/sessions/{id}/messages"))
        .json(&json!({ "content": "hi" }));
    let frames = crate::support::Sse::of(request.send().await.expect("send")).rest().await;
    assert_eq!(names(&frames), ["session_start", "message", "message", "turn_complete", "message", "done"]);
}

#[tokio::test]
async fn pause_and_resume_is_warm_and_remembers() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "my name is Ada").await;
    assert_eq!(client.action(&id, "pause").await["session"]["status"], "paused");
    let resumed = client.action(&id, "resume").await;
    assert_eq!(resumed["session"]["status"], "active");
    assert_eq!(resumed["resume"]["path"], "warm");
    assert_eq!(resumed["resume"]["verified"], true);
    let text = client.text(&id, "who am I?").await;
    assert!(text.contains("turn 2") && text.contains("my name is Ada"), "{text}");
}

#[tokio::test]
async fn stop_and_resume_is_cold_and_remembers_conversation_and_files() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "write notes/a.txt: remember the milk").await;
    assert_eq!(client.action(&id, "stop").await["session"]["status"], "stopped");
    let resume = client.action(&id, "resume").await["resume"].clone();
    assert_eq!(resume["path"], "cold");
    assert_eq!(resume["source"], "local");
    assert_eq!(resume["tier"], "native");
    assert_eq!(resume["verified"], true);
    assert_eq!(resume["lost"], json!([]));
    assert_eq!(client.text(&id, "read notes/a.txt").await, "remember the milk");
    let metrics =
        client.request(Method::GET, "/metrics").send().await.expect("metrics").text().await.expect("text");
    assert!(metrics.contains("ash_resume_total{path=\"cold\"} 1"), "{metrics}");
    assert!(metrics.contains("ash_resume_cold_total{source=\"local\"} 1"), "{metrics}");
}

#[tokio::test]
async fn a_message_wakes_a_resting_session_unless_it_forbids_that() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "one").await;
    client.action(&id, "stop").await;
    let path = format!("/api/sessions/{id}/messages");
    let (status, body) =
        client.ask(Method::POST, &path, Some(json!({ "content": "x", "autoResume": false }))).await;
    assert_eq!((status.as_u16(), body["error"].as_str()), (400, Some("Session is stopped")));
    assert!(client.text(&id, "two").await.contains("turn 2"));
    assert_eq!(client.status(&id).await, "active");
}

#[tokio::test]
async fn a_fork_has_the_conversation_and_the_files_and_goes_its_own_way() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "write a.txt: one").await;
    let fork = client.action(&id, "fork").await["session"].clone();
    assert_eq!(
        (fork["status"].as_str(), fork["parentSessionId"].as_str()),
        (Some("paused"), Some(id.as_str()))
    );
    let fork = fork["id"].as_str().expect("an id").to_owned();
    let before =
        client.get(&format!("/api/sessions/{fork}/messages")).await["messages"].as_array().map(Vec::len);
    assert_eq!(before, Some(4));
    client.say(&id, "write a.txt: changed by the parent").await;
    assert_eq!(client.text(&fork, "read a.txt").await, "one");
    let text = client.text(&fork, "still there?").await;
    assert!(text.contains("turn 3") && text.contains("write a.txt: one"), "{text}");
    client.say(&fork, "write a.txt: changed by the fork").await;
    assert_eq!(client.text(&id, "read a.txt").await, "changed by the parent");
    // Forks of a fork that has never run, and of an ended session.
    client.delete(&format!("/api/sessions/{fork}")).await;
    let second = client.action(&fork, "fork").await["session"]["id"].as_str().expect("an id").to_owned();
    let third = client.action(&second, "fork").await["session"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(client.text(&third, "read a.txt").await, "changed by the fork");
    assert!(client.text(&third, "hello").await.contains("turn 6"));
}

#[tokio::test]
async fn the_end_is_final_and_takes_a_last_checkpoint() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.exec(&id, "echo late > late.txt").await;
    assert_eq!(client.delete(&format!("/api/sessions/{id}")).await["session"]["status"], "ended");
    assert_eq!(client.delete(&format!("/api/sessions/{id}")).await["session"]["status"], "ended");
    let (status, body) = client.ask(Method::POST, &format!("/api/sessions/{id}/resume"), None).await;
    assert_eq!(
        (status.as_u16(), body["error"].as_str()),
        (410, Some("Session has ended — create a new session"))
    );
    let (status, body) = client
        .ask(Method::POST, &format!("/api/sessions/{id}/messages"), Some(json!({ "content": "x" })))
        .await;
    assert_eq!((status.as_u16(), body["error"].as_str()), (400, Some("Session is ended")));
    let file = client.get(&format!("/api/sessions/{id}/files/late.txt?format=json")).await;
    assert_eq!((file["content"].as_str(), file["source"].as_str()), (Some("late\n"), Some("snapshot")));
    let live = std::fs::read_dir(server.data.join("live")).expect("live").count();
    assert_eq!(live, 0, "the directory of an ended session is removed");
}

#[tokio::test]
async fn an_interrupted_turn_ends_and_the_next_one_runs() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut stream = client.send(&id, "hold never: one two").await;
    stream.until("text_delta").await;
    client.action(&id, "interrupt").await;
    let frames = stream.until("done").await;
    assert_eq!(frames.last().expect("done").data["status"], "interrupted");
    assert!(client.text(&id, "and now?").await.contains("turn 2"));
}

#[tokio::test]
async fn exec_runs_beside_the_agent_and_does_not_end_its_stream() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let mut stream = client.send(&id, "hold go: one two three four five six").await;
    stream.until("text_delta").await;
    let done = client.exec(&id, "echo out; echo err >&2; exit 3").await;
    assert_eq!(
        (done["exitCode"].as_i64(), done["stdout"].as_str(), done["stderr"].as_str()),
        (Some(3), Some("out\n"), Some("err\n"))
    );
    server.let_go(&id, "go").await;
    assert_eq!(stream.until("done").await.last().expect("done").data["status"], "done");
    let late = client
        .post(&format!("/api/sessions/{id}/exec"), json!({ "command": "sleep 100", "timeout": 200 }))
        .await;
    assert_eq!((late["timedOut"].as_bool(), late["exitCode"].as_i64()), (Some(true), Some(124)));
    client.action(&id, "pause").await;
    let (status, body) = client
        .ask(Method::POST, &format!("/api/sessions/{id}/exec"), Some(json!({ "command": "true" })))
        .await;
    assert_eq!((status.as_u16(), body["error"].as_str()), (400, Some("Session is paused")));
}

#[tokio::test]
async fn a_stream_goes_on_right_after_the_last_id_at_every_frame() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.say(&id, "run: echo hi").await;
    client.delete(&format!("/api/sessions/{id}")).await;
    let whole = client.follow(&id, "").await.rest().await;
    assert!(whole.len() > 10, "{whole:#?}");
    for (place, frame) in whole.iter().enumerate() {
        let rest = if frame.event == "ended" {
            Vec::new()
        } else {
            client.follow(&id, &frame.id).await.rest().await
        };
        assert_eq!(rest, whole[place + 1..], "after {}", frame.id);
    }
}

#[tokio::test]
async fn the_same_idempotency_key_makes_one_session_and_one_turn() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let create = |body: serde_json::Value| {
        client.request(Method::POST, "/api/sessions").header("idempotency-key", "k1").json(&body).send()
    };
    let first = crate::support::ok(create(json!({ "agent": "tester" })).await.expect("create")).await;
    let second = crate::support::ok(create(json!({ "agent": "tester" })).await.expect("create")).await;
    assert_eq!(first["session"]["id"], second["session"]["id"]);
    let other = create(json!({ "agent": "tester", "model": "x" })).await.expect("create");
    assert_eq!(other.status().as_u16(), 422);
    let id = first["session"]["id"].as_str().expect("an id");
    let path = format!("/api/sessions/{id}/messages");
    let send = || {
        let request = client
            .request(Method::POST, &path)
            .header("idempotency-key", "m1")
            .header("accept", "application/json");
        request.json(&json!({ "content": "run: echo x >> count" })).send()
    };
    let answers = futures::future::join_all((0..5).map(|_| send())).await;
    let mut turns = Vec::new();
    for answer in answers {
        turns.push(crate::support::ok(answer.expect("send")).await["turn"].clone());
    }
    turns.dedup();
    assert_eq!(turns.len(), 1, "{turns:?}");
    assert_eq!(client.text(id, "read count").await, "x\n");
}

#[tokio::test]
async fn sessions_are_listed_with_filters_pages_and_totals() {
    let server = Server::start().await;
    let client = server.client();
    let first = client.create().await;
    client.say(&first, "the title of this one").await;
    let others = [client.create().await, client.create().await];
    client.action(&others[0], "pause").await;
    let all = client.get("/api/sessions").await;
    assert_eq!(all["total"], 3);
    let listed: Vec<&str> =
        all["sessions"].as_array().expect("a list").iter().filter_map(|s| s["id"].as_str()).collect();
    assert_eq!(listed, [&others[1], &others[0], &first]);
    let paused = client.get("/api/sessions?status=paused&includeTotal=true").await;
    assert_eq!(
        (paused["total"].as_u64(), paused["sessions"][0]["id"].as_str()),
        (Some(1), Some(others[0].as_str()))
    );
    let page = client.get("/api/sessions?limit=2").await;
    let next = page["nextCursor"].as_str().expect("a cursor");
    let rest = client.get(&format!("/api/sessions?limit=2&cursor={next}")).await;
    assert_eq!(rest["sessions"][0]["id"], first.as_str());
    assert_eq!(rest["sessions"][0]["title"], "the title of this one");
    assert_eq!(rest["sessions"][0]["turns"], 1);
    assert!(rest["sessions"][0]["lastText"].as_str().expect("a text").contains("turn 1"));
    let (status, _) = client.ask(Method::GET, "/api/sessions?status=odd", None).await;
    assert_eq!(status.as_u16(), 400);
}

#[tokio::test]
async fn an_agent_names_its_runtime_and_a_deleted_one_can_come_back() {
    let server = Server::start().await;
    let client = server.client();
    let manifest = "cnVudGltZSA9ICJidWlsdGluIgo=";
    let files =
        json!([{ "path": "ash.toml", "content": manifest }, { "path": "docs/x.md", "content": "aGk=" }]);
    let agent = client
        .post("/api/agents", json!({ "name": "tester", "files": files, "env": { "TOKEN": "hunter2" } }))
        .await;
    assert_eq!(
        (agent["agent"]["runtime"].as_str(), agent["agent"]["version"].as_u64()),
        (Some("builtin"), Some(1))
    );
    assert_eq!(agent["agent"]["env"], json!({ "TOKEN": "***" }));
    let id = client.create().await;
    assert_eq!(client.text(&id, "run: echo $TOKEN; cat docs/x.md").await, "hunter2\nhi");
    client.action(&id, "stop").await;
    client.delete("/api/agents/tester").await;
    assert_eq!(client.status(&id).await, "stopped");
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "tester" }))).await;
    assert_eq!((status.as_u16(), body["error"].as_str()), (404, Some("Agent \"tester\" not found")));
    assert_eq!(client.deploy("tester").await["agent"]["version"], 2);
    assert_eq!(client.action(&id, "resume").await["resume"]["tier"], "native");
    let db = std::fs::read(server.data.join("ash.db")).expect("the database");
    let wal = std::fs::read(server.data.join("ash.db-wal")).unwrap_or_default();
    // The agent's answer contains it, so the log has it once; it must not be readable as a setting.
    let needle = br#""TOKEN":"hunter2""#;
    assert!(![db, wal].iter().any(|bytes| bytes.windows(needle.len()).any(|w| w == needle)));
}
