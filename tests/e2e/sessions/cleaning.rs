//! Retention and deletion: sessions that end by TTL, by rules or by request; and the audit log of it.

use crate::support::{Client, Server, claude::Stage, eventually};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::process::Output;

/// Runs a collection every second.
const OFTEN: (&str, &str) = ("ASH_GC_EVERY", "1");
/// Runs a collection at the start, and then so rarely that only the test triggers it.
const SELDOM: (&str, &str) = ("ASH_GC_EVERY", "0");

async fn make(client: &Client, body: Value) -> Value {
    client.post("/api/sessions", body).await["session"].clone()
}

async fn is_gone(client: &Client, id: &str) -> bool {
    client.ask(Method::GET, &format!("/api/sessions/{id}"), None).await.0 == StatusCode::NOT_FOUND
}

async fn until_gone(client: &Client, id: &str) {
    eventually("it is gone", async || is_gone(client, id).await.then_some(())).await;
}

/// The audit entries of a session after its creation, oldest first, each with the key and the rule behind it.
async fn audit(client: &Client, subject: &str) -> Vec<(String, Value, Value)> {
    let answer = client.get(&format!("/api/audit?session={subject}")).await;
    let lines = answer["audit"].as_array().expect("a list");
    let text = |line: &Value| line["action"].as_str().expect("a deed").to_owned();
    lines
        .iter()
        .rev()
        .filter(|line| line["action"] != "created")
        .map(|line| (text(line), line["by"]["key"].clone(), line["by"]["rule"].clone()))
        .collect()
}

fn deed(action: &str, key: Value, rule: Value) -> (String, Value, Value) {
    (action.to_owned(), key, rule)
}

fn ash(server: &Server, args: &[&str]) -> Output {
    server.command_of(args).env("ASH_SERVER_URL", &server.url).output().expect("ash")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A turn that continues until its release.
async fn set_to_work(client: &Client, id: &str) {
    let sent = client.send(id, "run: while [ ! -e go ]; do sleep 0.05; done").await;
    drop(sent);
    eventually("it works", async || (client.session(id).await["openTurns"] == 1).then_some(())).await;
}

async fn let_go(client: &Client, id: &str) {
    let go = json!({ "files": [{ "path": "go", "content": "" }] });
    client.post(&format!("/api/sessions/{id}/files"), go).await;
    eventually("it rests", async || (client.session(id).await["openTurns"] == 0).then_some(())).await;
}

#[tokio::test]
async fn a_session_goes_when_its_time_is_over_but_not_while_it_works() {
    let server = Server::with(&[OFTEN]).await;
    let client = server.client();
    client.deploy("tester").await;
    let new = |id: &str, ttl: u64| json!({ "agent": "tester", "sessionId": id, "ttl": ttl });
    let busy = make(&client, new("busy", 2)).await;
    assert!(busy["expiresAt"].as_str() > busy["lastActiveAt"].as_str(), "{busy}");
    set_to_work(&client, "busy").await;
    for (id, ttl) in [("stays", 0), ("later", 3600)] {
        make(&client, new(id, ttl)).await;
    }
    assert_eq!(client.session("stays").await.get("expiresAt"), None);
    // Created after the busy session: once this one is gone, the TTL of the other is over as well.
    make(&client, new("idle", 2)).await;
    until_gone(&client, "idle").await;
    let ttl = |action: &str| deed(action, Value::Null, json!("ttl"));
    assert_eq!(audit(&client, "idle").await, [ttl("ended"), ttl("purged")]);
    for id in ["busy", "stays", "later"] {
        assert_eq!(client.status(id).await, "active", "{id}");
    }
    let_go(&client, "busy").await;
    until_gone(&client, "busy").await;
    assert_eq!(audit(&client, "busy").await, [ttl("ended"), ttl("purged")]);
    // A later setting applies as well.
    let set = client.ask(Method::PATCH, "/api/sessions/later/config", Some(json!({ "ttl": 1 }))).await;
    assert_eq!(set.0, StatusCode::OK);
    until_gone(&client, "later").await;
    assert!(!is_gone(&client, "stays").await);
}

#[tokio::test]
async fn rules_say_first_what_they_would_do() {
    let server = Server::with(&[SELDOM, ("ASH_RETENTION", "ended:1s=purge, paused:1s=end")]).await;
    let client = server.client();
    client.deploy("tester").await;
    for id in ["over", "rests", "works", "mine"] {
        make(&client, json!({ "agent": "tester", "sessionId": id })).await;
    }
    client.delete("/api/sessions/over").await;
    client.action("rests", "pause").await;
    set_to_work(&client, "works").await;
    client.action("works", "pause").await;
    let would = eventually("they are old enough", async || {
        let would = client.get("/api/retention").await;
        (would["sessions"].as_array()?.len() == 2).then_some(would)
    })
    .await;
    assert_eq!(
        (&would["dryRun"], &would["rules"]),
        (&json!(true), &json!(["ended:1s=purge", "paused:1s=end"]))
    );
    let named = |told: &Value| {
        let one = |session: &Value| json!([session["id"], session["action"], session["rule"]]);
        told["sessions"].as_array().expect("a list").iter().map(one).collect::<Vec<_>>()
    };
    let expected = [json!(["over", "purge", "ended:1s=purge"]), json!(["rests", "end", "paused:1s=end"])];
    assert_eq!(named(&would), expected);
    assert_eq!(
        (client.status("over").await, client.status("rests").await),
        ("ended".into(), "paused".into())
    );
    let did = client.post("/api/retention", json!({})).await;
    assert_eq!((&did["dryRun"], named(&did)), (&json!(false), expected.to_vec()));
    assert!(is_gone(&client, "over").await);
    assert_eq!(client.status("rests").await, "ended");
    assert_eq!(
        (client.status("works").await, client.status("mine").await),
        ("paused".into(), "active".into())
    );
    let by = |action: &str, rule: &str| deed(action, Value::Null, json!(rule));
    assert_eq!(
        audit(&client, "over").await,
        [deed("ended", json!("env"), Value::Null), by("purged", "ended:1s=purge")]
    );
    assert_eq!(audit(&client, "rests").await, [by("ended", "paused:1s=end")]);
    let_go(&client, "works").await;
}

#[tokio::test]
async fn implausible_rules_keep_a_server_from_starting() {
    let server = Server::prepare(&[("ASH_RETENTION", "active:7d=end")]);
    let refused = server.command().output().expect("ash serve");
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("sessions at work are left alone"), "{}", said(&refused));
}

#[tokio::test]
async fn prune_lists_confirms_and_deletes_only_its_owners_sessions() {
    let server = Server::with(&[SELDOM]).await;
    let client = server.client();
    client.deploy("tester").await;
    let key = client.post("/api/api-keys", json!({ "owner": "alice" })).await;
    let alice = server.client_with(key["key"].as_str().expect("a key"));
    for (id, owner) in
        [("hers", "alice"), ("hers-active", "alice"), ("his", "bob"), ("hers-at-work", "alice")]
    {
        make(&client, json!({ "agent": "tester", "sessionId": id, "owner": owner })).await;
    }
    set_to_work(&client, "hers-at-work").await;
    for id in ["hers", "his", "hers-at-work"] {
        client.action(id, "pause").await;
    }
    let prune = ["session", "prune", "--older-than", "0s", "--owner", "alice"];
    let with = |more: &[&'static str]| ash(&server, &[&prune[..], more].concat());
    let dry = with(&["--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{}", said(&dry));
    let told = said(&dry);
    assert!(told.contains("hers ") && told.contains("would end 1"), "{told}");
    assert!(!told.contains("his") && !told.contains("hers-active") && !told.contains("at-work"), "{told}");
    let unasked = with(&[]);
    assert_eq!(unasked.status.code(), Some(2), "{}", said(&unasked));
    assert!(said(&unasked).contains("--yes"), "{}", said(&unasked));
    assert_eq!(client.status("hers").await, "paused", "nothing was done");
    let done = with(&["--yes"]);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    assert_eq!(client.status("hers").await, "ended");
    assert_eq!(audit(&client, "hers").await, [deed("ended", json!("env"), json!("prune"))]);
    // An owner's key deletes only the owner's sessions, whatever the request says.
    let asked = json!({ "olderThan": "0s", "purge": true, "owner": "bob" });
    assert_eq!(alice.post("/api/prune", asked).await["sessions"], json!([]));
    let pruned =
        alice.post("/api/prune", json!({ "olderThan": "0s", "purge": true, "status": "ended" })).await;
    assert_eq!(pruned["sessions"].as_array().map(Vec::len), Some(1), "{pruned}");
    assert!(is_gone(&client, "hers").await);
    let by = audit(&client, "hers").await.pop().expect("a line");
    assert_eq!(by, deed("purged", key["id"].clone(), json!("prune")));
    assert_eq!(
        (client.status("his").await, client.status("hers-active").await),
        ("paused".into(), "active".into())
    );
    assert_eq!(client.status("hers-at-work").await, "paused");
    let (status, problem) =
        client.ask(Method::POST, "/api/prune", Some(json!({ "olderThan": "1d", "status": "active" }))).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_body")));
    let_go(&client, "hers-at-work").await;
}

#[tokio::test]
async fn the_audit_says_who_made_changed_and_ran_what() {
    let stage = Stage::with(&[("ASH_INTERNAL_SECRET", "inner")]).await;
    let server = &stage.server;
    let client = server.client();
    let deploy =
        json!({ "name": "tester", "runtime": "claude", "systemPrompt": "x", "env": { "TOKEN": "hidden" } });
    client.post("/api/agents", deploy).await;
    client.ask(Method::PATCH, "/api/agents/tester", Some(json!({ "env": { "A": "hidden" } }))).await;
    client.ask(Method::PATCH, "/api/agents/tester/config", Some(json!({ "colour": "hidden" }))).await;
    let asks = json!({ "agent": "tester", "sessionId": "s", "permissionMode": "default" });
    make(&client, asks).await;
    // Sent twice, created once.
    for _ in 0..2 {
        let deploy = json!({ "name": "again", "systemPrompt": "x" });
        let deploy = client.request(Method::POST, "/api/agents").header("idempotency-key", "k").json(&deploy);
        crate::support::ok(deploy.send().await.expect("an answer")).await;
    }
    // Created implicitly by a session.
    client.post("/api/workspaces", json!({ "slug": "project", "agent": "default" })).await;
    client.exec("s", "echo hidden").await;
    let change = json!({ "maxTurns": 5, "extraEnv": { "B": "hidden" } });
    let (status, said) = client.ask(Method::PATCH, "/api/sessions/s/config", Some(change)).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    client.ask(Method::PATCH, "/api/sessions/s", Some(json!({ "metadata": { "k": "hidden" } }))).await;
    let mut turn = client.send("s", "run: echo asked > file").await;
    let asked = crate::support::permissions::until_asked(&client, "s").await;
    let always = json!({ "behavior": "allow", "updatedPermissions": [asked["suggestions"][0]] });
    let path = format!("/api/sessions/s/permissions/{}", asked["id"].as_str().expect("an id"));
    client.post(&path, always).await;
    turn.until("done").await;
    client.post("/api/sessions/s/fork", json!({ "sessionId": "f" })).await;
    client.delete("/api/agents/tester").await;
    let wrong = server.client_with("wrong").ask(Method::GET, "/api/sessions", None).await;
    assert_eq!(wrong.0, StatusCode::UNAUTHORIZED);
    let answer = client.get("/api/audit").await;
    assert!(!answer.to_string().contains("hidden"), "names, never values: {answer}");
    let allowed = format!("allow {}, and one rule for later", asked["id"].as_str().expect("an id"));
    let lines = answer["audit"].as_array().expect("a list");
    let told: Vec<Value> =
        lines.iter().rev().map(|line| json!([line["action"], line["subject"], line["detail"]])).collect();
    let expected = [
        json!(["deployed", "tester", null]),
        json!(["env_changed", "tester", "TOKEN"]),
        json!(["env_changed", "tester", "A"]),
        json!(["config_changed", "tester", "colour"]),
        json!(["created", "s", "agent tester"]),
        json!(["deployed", "again", null]),
        json!(["deployed", "default", "built in"]),
        json!(["executed", "s", null]),
        json!(["config_changed", "s", "maxTurns"]),
        json!(["env_changed", "s", "B"]),
        json!(["config_changed", "s", "metadata"]),
        json!(["permission_answered", "s", allowed]),
        json!(["created", "f", "fork of s"]),
        json!(["agent_deleted", "tester", null]),
        json!(["key_refused", "127.0.0.1", "1"]),
    ];
    assert_eq!(told, expected);
    // Entry ids count per tenant, so they do not reveal the activity of other tenants.
    let inner = server.client_with("inner");
    let other = inner.post("/api/internal/api-keys", json!({ "tenantId": "other" })).await;
    let other = server.client_with(other["key"].as_str().expect("a key"));
    other.post("/api/agents", json!({ "name": "theirs", "systemPrompt": "x" })).await;
    let ids = |audit: Value| -> Vec<i64> {
        audit["audit"]
            .as_array()
            .expect("a list")
            .iter()
            .rev()
            .filter_map(|line| line["id"].as_i64())
            .collect()
    };
    assert_eq!(ids(other.get("/api/audit").await), [1, 2]);
    assert_eq!(ids(client.get("/api/audit").await), (1..=15).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_change_that_a_quota_refuses_is_not_in_the_audit() {
    let server = Server::with(&[("ASH_QUOTAS", "configKb=1")]).await;
    let client = server.client();
    client.deploy("tester").await;
    let large = json!({ "note": "x".repeat(2000) });
    for (path, body) in
        [("/api/agents/tester/config", large.clone()), ("/api/agents/tester", json!({ "config": large }))]
    {
        let (status, said) = client.ask(Method::PATCH, path, Some(body)).await;
        assert_eq!((status.as_u16(), &said["quota"]), (413, &json!("configKb")), "{path}: {said}");
    }
    client.ask(Method::PATCH, "/api/agents/tester/config", Some(json!({ "colour": "blue" }))).await;
    let answer = client.get("/api/audit").await;
    let lines = answer["audit"].as_array().expect("a list").iter().rev();
    let told: Vec<Value> = lines.map(|line| json!([line["action"], line["detail"]])).collect();
    assert_eq!(told, [json!(["deployed", null]), json!(["config_changed", "colour"])]);
}

#[tokio::test]
async fn the_audit_says_who_made_and_removed_what() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let key = client.post("/api/api-keys", json!({ "owner": "alice", "label": "hers" })).await;
    let (id, alice) =
        (key["id"].as_str().expect("an id"), server.client_with(key["key"].as_str().expect("a key")));
    make(&alice, json!({ "agent": "tester", "sessionId": "s", "workspace": "project" })).await;
    alice.delete("/api/workspaces/project").await;
    alice.delete("/api/sessions/s?purge=true").await;
    let (status, problem) = alice.ask(Method::GET, "/api/audit", None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("admin_only")));
    client.delete(&format!("/api/api-keys/{id}")).await;
    let answer = client.get("/api/audit").await;
    let lines = answer["audit"].as_array().expect("a list").clone();
    let told: Vec<Value> = lines
        .iter()
        .rev()
        .map(|line| {
            json!([line["action"], line["subject"], line["owner"], line["by"]["key"], line["by"]["owner"]])
        })
        .collect();
    let purged = &told[5][1];
    assert!(purged.as_str().is_some_and(|name| name.starts_with("purged:")), "it is named nowhere: {purged}");
    let expected = [
        json!(["deployed", "tester", null, "env", null]),
        json!(["key_created", id, "alice", "env", null]),
        json!(["created", purged, "alice", id, "alice"]),
        json!(["workspace_deleted", "project", "alice", id, "alice"]),
        json!(["ended", purged, "alice", id, "alice"]),
        json!(["purged", purged, "alice", id, "alice"]),
        json!(["key_removed", id, "alice", "env", null]),
    ];
    assert_eq!(told, expected);
    let first = client.get("/api/audit?limit=4").await;
    let cursor = first["nextCursor"].as_str().expect("there is more");
    let rest = client.get(&format!("/api/audit?limit=4&cursor={cursor}")).await;
    let pages: Vec<Value> = [&first, &rest]
        .into_iter()
        .flat_map(|page| page["audit"].as_array().expect("a list").clone())
        .collect();
    assert_eq!((pages, &rest["nextCursor"]), (lines.clone(), &Value::Null));
    let since = lines[2]["at"].as_str().expect("a time");
    let late = client.get(&format!("/api/audit?since={since}")).await;
    assert!(late["audit"].as_array().is_some_and(|late| late.len() >= 3 && late.len() < 5), "{late}");
    assert_eq!(client.ask(Method::GET, "/api/audit?since=x", None).await.0, StatusCode::BAD_REQUEST);
    let shown = said(&ash(&server, &["audit", "--session", "s"]));
    assert!(shown.contains("purged") && shown.contains(id) && !shown.contains("key_created"), "{shown}");
}

/// At any death of the server, a deletion and its audit entry exist together or not at all.
#[tokio::test]
async fn no_deletion_goes_without_its_line_nor_a_line_without_its_deletion() {
    let mut server = Server::with(&[SELDOM]).await;
    server.client().deploy("tester").await;
    let mut seen = (0, 0);
    for round in 0..8 {
        let client = server.client();
        let ids: Vec<String> = (0..4).map(|n| format!("s-{round}-{n}")).collect();
        for id in &ids {
            make(&client, json!({ "agent": "tester", "sessionId": id })).await;
        }
        let (deleting, ending) = (server.client(), ids.clone());
        let deleting = tokio::spawn(async move {
            for id in ending {
                deleting.request(Method::DELETE, &format!("/api/sessions/{id}?purge=true")).send().await.ok();
            }
        });
        // The server dies at the next deletion, or after some more.
        if let Some(last) = (round % 4_usize).checked_sub(1) {
            until_gone(&client, &ids[last]).await;
        }
        server.crash_and_start().await;
        deleting.abort();
        let client = server.client();
        for id in &ids {
            let told: Vec<String> = audit(&client, id).await.into_iter().map(|(action, ..)| action).collect();
            // An end and a purge in one request happen together.
            let gone = is_gone(&client, id).await;
            assert_eq!(told, if gone { vec!["ended", "purged"] } else { vec![] }, "{id}");
            assert!(gone || client.status(id).await != "ended", "{id} has half gone");
            if gone { seen.1 += 1 } else { seen.0 += 1 }
        }
    }
    assert!(seen.0 > 0 && seen.1 > 0, "it died always before or always after: {seen:?}");
}
