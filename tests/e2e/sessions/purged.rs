//! A purged session is not named anywhere, and its id is free at once: a session created under it is new.

use crate::support::{
    Client, Point, Server,
    claude::Stage,
    eventually,
    permissions::{allow, until_asked},
    remote::messages,
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::path::Path;

/// Runs a collection at the start, and then so rarely that only the test triggers it.
const SELDOM: (&str, &str) = ("ASH_GC_EVERY", "0");
const ID: &str = "walrus-of-tuesday";
/// A word that occurs only in this session.
const WORD: &str = "marmalade";

/// Every list, and everything of the remaining sessions.
async fn everything(client: &Client, left: &[&str]) -> Vec<(String, String)> {
    let mut paths: Vec<String> = [
        "/health",
        "/metrics",
        "/api/agents",
        "/api/agents/coder",
        "/api/agents/coder/config",
        "/api/sessions?limit=200",
        "/api/workspaces",
        "/api/workspaces/project",
        "/api/workspaces/project/files",
        "/api/workspaces/project/checkpoints",
        "/api/usage",
        "/api/usage/stats",
        "/api/retention",
        "/api/audit?limit=1000",
        "/api/api-keys",
    ]
    .map(str::to_owned)
    .into();
    paths.extend(
        ["turn", "session", "agent", "owner", "model", "day"].map(|by| format!("/api/usage?by={by}")),
    );
    let of_one = [
        "",
        "/logs",
        "/permissions",
        "/messages",
        "/events?limit=1000",
        "/log?limit=1000",
        "/conversation?all=true",
        "/queue",
        "/lock",
        "/files",
        "/checkpoints",
    ];
    for id in left {
        paths.extend(of_one.map(|rest| format!("/api/sessions/{id}{rest}")));
    }
    let mut all = Vec::new();
    for path in paths {
        let answer = client.request(Method::GET, &path).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        all.push((path, answer.text().await.expect("text")));
    }
    all
}

/// The files of the data directory that contain a text.
fn files_with(data: &Path, text: &str) -> Vec<String> {
    let found = std::process::Command::new("grep").args(["-rlaF", text]).arg(data).output().expect("grep");
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

async fn with_key(client: &Client, path: &str, key: &str, body: Value) -> Value {
    let request = client.request(Method::POST, path).header("idempotency-key", key);
    let request = request.header("accept", "application/json").json(&body);
    crate::support::ok(request.send().await.expect("an answer")).await
}

fn new_one(workspace: Option<&str>) -> Value {
    let mut body = json!({ "agent": "coder", "sessionId": ID, "permissionMode": "default" });
    if let Some(workspace) = workspace {
        body["workspace"] = json!(workspace);
    }
    body
}

/// Creates every kind of data that a session can leave.
async fn live_fully(client: &Client) {
    let made = with_key(client, "/api/sessions", "create", new_one(None)).await;
    assert_eq!(made["session"]["id"], ID, "{made}");
    let asking = client.send(ID, &format!("run: echo {WORD} > file")).await;
    let asked = until_asked(client, ID).await;
    allow(client, ID, &asked).await;
    { asking }.until("done").await;
    client.exec(ID, &format!("echo {WORD} >> other")).await;
    let lock = client.post(&format!("/api/sessions/{ID}/lock"), json!({ "holder": WORD })).await;
    let unlock = client.request(Method::DELETE, &format!("/api/sessions/{ID}/lock"));
    let token = lock["lock"]["token"].as_str().expect("a token");
    crate::support::ok(unlock.header("x-ash-lock", token).send().await.expect("an answer")).await;
    for (path, body) in [
        ("", json!({ "metadata": { "note": WORD } })),
        ("/config", json!({ "systemPrompt": WORD, "extraEnv": { "WORD": WORD } })),
    ] {
        let (status, said) =
            client.ask(Method::PATCH, &format!("/api/sessions/{ID}{path}"), Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{said}");
    }
    with_key(client, &format!("/api/sessions/{ID}/messages"), "say", json!({ "content": "say: hello" }))
        .await;
}

#[tokio::test]
async fn a_purged_session_is_named_nowhere_and_its_id_is_free_at_once() {
    let stage = Stage::with(&[SELDOM]).await;
    let mut server = stage.server;
    let client = server.client();
    client.post("/api/agents", json!({ "name": "coder", "runtime": "claude", "systemPrompt": "x" })).await;
    client.post("/api/workspaces", json!({ "slug": "project", "agent": "coder" })).await;
    // A fork before the first message, and one in the middle.
    live_fully(&client).await;
    let fork = json!({ "sessionId": "fork" });
    with_key(&client, &format!("/api/sessions/{ID}/fork"), "fork", fork).await;
    client.post("/api/sessions/fork/fork", json!({ "sessionId": "fork-of-fork" })).await;
    client.say(ID, &format!("say: {WORD} after the fork")).await;
    let said = messages(&client, "fork").await;
    let before = everything(&client, &["fork"]).await;
    assert!(
        before.iter().filter(|(_, text)| text.contains(ID)).count() >= 5,
        "it is named first: {before:?}"
    );
    assert!(!files_with(&server.data, ID).is_empty() && !files_with(&server.data, WORD).is_empty());
    let purged = client.delete(&format!("/api/sessions/{ID}?purge=true")).await;
    assert_eq!((&purged["session"]["id"], &purged["purged"]), (&json!(ID), &json!(true)));

    for (path, text) in everything(&client, &["fork", "fork-of-fork"]).await {
        assert!(!text.contains(ID), "{path} names it: {text}");
    }
    assert_eq!(messages(&client, "fork").await, said, "what a fork shares it has");
    let fork = client.session("fork").await;
    assert_eq!(
        (&fork["parentSessionId"], &client.session("fork-of-fork").await["parentSessionId"]),
        (&Value::Null, &json!("fork"))
    );
    let who = client.get(&format!("/api/audit?session={ID}")).await;
    let deeds: Vec<&str> =
        who["audit"].as_array().expect("a list").iter().filter_map(|line| line["action"].as_str()).collect();
    assert_eq!(deeds[..2], ["purged", "ended"], "who knows the id learns who ordered it: {who}");

    // The id is free, and nothing of the first session shows, not even with the same idempotency keys.
    let again = with_key(&client, "/api/sessions", "create", new_one(None)).await["session"].clone();
    assert_eq!(again["id"], ID);
    assert_ne!(again["workspaceId"], purged["session"]["workspaceId"]);
    let of_one = ["", "/messages", "/events?limit=1000", "/checkpoints", "/files", "/queue", "/lock"];
    for rest in of_one {
        let path = format!("/api/sessions/{ID}{rest}");
        let text = client.get(&path).await.to_string();
        assert!(!text.contains(WORD) && !text.contains("hello"), "{path}: {text}");
    }
    assert_eq!(client.session(ID).await["usage"]["inputTokens"], 0);
    assert_eq!(client.exec(ID, "ls -A; echo $WORD").await["stdout"], "CLAUDE.md\n\n");
    let path = format!("/api/sessions/{ID}/messages");
    let said = with_key(&client, &path, "say", json!({ "content": "say: hello" })).await;
    assert_eq!(said["text"], "hello", "a turn of its own: {said}");
    let of_new = client.get(&format!("/api/audit?session={ID}")).await.to_string();
    assert!(of_new.contains("created") && !of_new.contains("purged\""), "{of_new}");
    assert_eq!(client.session("fork").await["parentSessionId"], Value::Null, "it is not the fork's parent");

    // Both sessions survive a crash, and the second is not confused with the first.
    server.crash_and_start().await;
    let client = server.client();
    client.action(ID, "resume").await;
    assert_eq!(client.text(ID, "say: still there").await, "still there");
    for id in [ID, "fork", "fork-of-fork"] {
        assert_eq!(client.delete(&format!("/api/sessions/{id}?purge=true")).await["purged"], true);
    }
    // In the end nothing is left of them on this machine.
    server.stop().await;
    for (name, value) in [("ASH_TRASH_TTL", "0"), ("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0")] {
        server.set(name, value);
    }
    server.launch().await;
    for text in [ID, WORD] {
        eventually(&format!("{text} is in no file"), async || {
            files_with(&server.data, text).is_empty().then_some(())
        })
        .await;
    }
    let told = server.client().get("/api/audit?limit=1000").await.to_string();
    assert!(told.contains("forgotten") && !told.contains(ID), "{told}");
}

/// Data that a fork does not share with its parent is deleted when the trash expires, although the fork lives.
#[tokio::test]
async fn a_fork_keeps_what_it_shares_of_a_purged_session_and_no_more() {
    let mut server =
        Server::with(&[("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0"), ("ASH_TRASH_TTL", "0")]).await;
    let client = server.client();
    client.deploy("tester").await;
    client.post("/api/sessions", json!({ "agent": "tester", "sessionId": ID })).await;
    client.say(ID, "say: shared").await;
    client.post(&format!("/api/sessions/{ID}/fork"), json!({ "sessionId": "fork" })).await;
    client.say(ID, &format!("say: {WORD}")).await;
    let said = messages(&client, "fork").await;
    client.delete(&format!("/api/sessions/{ID}?purge=true")).await;
    eventually("the rest of it is gone", async || {
        let files = files_with(&server.data, WORD);
        (!files.iter().any(|file| file.contains("ash.db"))).then_some(())
    })
    .await;
    assert_eq!(messages(&client, "fork").await, said);
    client.post("/api/sessions", json!({ "agent": "tester", "sessionId": ID })).await;
    server.crash_and_start().await;
    let client = server.client();
    assert_eq!(messages(&client, "fork").await, said);
    let receipt = client.action("fork", "resume").await["resume"].clone();
    assert_eq!((&receipt["tier"], &receipt["lost"]), (&json!("native"), &json!([])), "{receipt}");
    assert!(client.text("fork", "say: on").await.contains("on"));
}

/// While other sessions of the workspace are active, two sessions with one id cannot be distinguished until a new hold on
/// the workspace: the error says when.
#[tokio::test]
async fn in_a_shared_workspace_the_refusal_says_when_the_id_is_free() {
    let mut server = Server::with(&[SELDOM]).await;
    let client = server.client();
    client.deploy("tester").await;
    let body = |id: &str| json!({ "agent": "tester", "sessionId": id, "workspace": "project" });
    for id in [ID, "another", "beside"] {
        client.post("/api/sessions", body(id)).await;
        client.say(id, &format!("write {id}.txt: {WORD}")).await;
    }
    for id in [ID, "another"] {
        client.delete(&format!("/api/sessions/{id}?purge=true")).await;
    }
    for path in ["/api/sessions/beside/checkpoints", "/api/sessions/beside/events?limit=1000"] {
        let shown = client.get(path).await.to_string();
        assert!(!shown.contains(&format!("\"{ID}\"")), "{path} names it: {shown}");
    }
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body(ID))).await;
    assert_eq!((status, &refused["code"]), (StatusCode::CONFLICT, &json!("session_exists")), "{refused}");
    assert!(
        refused["error"].as_str().is_some_and(|error| error.contains("paused for a minute")),
        "{refused}"
    );
    let fork = json!({ "sessionId": ID, "workspace": "project" });
    let (status, refused) = client.ask(Method::POST, "/api/sessions/beside/fork", Some(fork)).await;
    assert_eq!((status, &refused["code"]), (StatusCode::CONFLICT, &json!("session_exists")), "{refused}");
    // Without active sessions the id is free at once.
    let elsewhere = json!({ "agent": "tester", "sessionId": "another", "workspace": "other" });
    client.post("/api/sessions", elsewhere).await;
    let shown = client.get("/api/workspaces/project").await["sessions"].clone();
    let ids: Vec<_> = shown.as_array().expect("a list").iter().map(|session| &session["id"]).collect();
    assert_eq!(ids, ["beside"], "the new session with a purged one's id is in another workspace");

    server.crash_and_start().await;
    let client = server.client();
    client.post("/api/sessions", body(ID)).await;
    client.say(ID, "say: made again").await;
    // No tombstone of the first session affects the second in any comparison.
    for _ in 0..2 {
        server.crash_and_start().await;
        let client = server.client();
        client.action(ID, "resume").await;
        let said = messages(&client, ID).await.to_string();
        assert!(said.contains("made again") && !said.contains(WORD), "{said}");
    }
    assert!(server.client().text("beside", "say: here").await.contains("here"));
}

/// Wherever the server dies meanwhile, the next start completes the purge, and the id is free.
#[tokio::test]
async fn a_purge_that_was_begun_is_finished_by_the_next_start() {
    let mut server = Server::with(&[SELDOM]).await;
    server.client().deploy("tester").await;
    for point in ["purge.ordered", "purge.recorded", "purge.buried"] {
        let client = server.client();
        let made = client.post("/api/sessions", json!({ "agent": "tester", "sessionId": ID })).await;
        client.say(ID, &format!("say: {WORD}")).await;
        client.post(&format!("/api/sessions/{ID}/fork"), json!({ "sessionId": "fork" })).await;
        server.arm(point, Point::Abort);
        let path = format!("/api/sessions/{ID}?purge=true");
        client.request(Method::DELETE, &path).send().await.ok();
        server.died_at(point).await;
        server.launch().await;
        let client = server.client();
        let (status, there) = client.ask(Method::GET, &format!("/api/sessions/{ID}"), None).await;
        if status == StatusCode::OK {
            assert_eq!((point, &there["session"]["status"]), ("purge.ordered", &json!("active")), "{there}");
            client.delete(&path).await;
        }
        for path in ["/api/sessions", "/api/sessions/fork", "/api/usage?by=session", "/api/audit?limit=1000"]
        {
            let text = client.get(path).await.to_string();
            assert!(!text.contains(ID), "{point}: {path} names it: {text}");
        }
        let again = client.post("/api/sessions", json!({ "agent": "tester", "sessionId": ID })).await;
        assert_ne!(again["session"]["workspaceId"], made["session"]["workspaceId"]);
        // The packs of the first session prove nothing about the second, and its tombstones do not delete it.
        server.crash_and_start().await;
        let client = server.client();
        client.action(ID, "resume").await;
        assert!(!messages(&client, ID).await.to_string().contains(WORD), "{point}");
        for id in ["fork", ID] {
            client.delete(&format!("/api/sessions/{id}?purge=true")).await;
        }
    }
}

/// The same for the removal from the trash.
#[tokio::test]
async fn a_trash_that_was_half_emptied_is_emptied_by_the_next_start() {
    let mut server =
        Server::with(&[("ASH_GC_EVERY", "1"), ("ASH_GC_GRACE", "0"), ("ASH_TRASH_TTL", "0")]).await;
    server.client().deploy("tester").await;
    for point in ["trash.told", "trash.burying"] {
        let client = server.client();
        client.post("/api/sessions", json!({ "agent": "tester", "sessionId": ID })).await;
        client.say(ID, &format!("say: {WORD}")).await;
        server.arm(point, Point::Abort);
        client.request(Method::DELETE, &format!("/api/sessions/{ID}?purge=true")).send().await.ok();
        server.died_at(point).await;
        // Created again before the next start has finished with the first one.
        server.launch().await;
        let client = server.client();
        client.post("/api/sessions", json!({ "agent": "tester", "sessionId": ID })).await;
        client.say(ID, "say: new").await;
        eventually("nothing is left of the first one", async || {
            files_with(&server.data, WORD).is_empty().then_some(())
        })
        .await;
        let said = messages(&client, ID).await.to_string();
        assert!(said.contains("new"), "{point}: {said}");
        client.delete(&format!("/api/sessions/{ID}?purge=true")).await;
    }
}
