//! Owners: the key of an owner gives access to the owner's sessions and nothing else, on every route.

use crate::support::{Client, KEY, Server, eventually};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../docs/openapi.json");
const SECRET: &str = "internal-secret";

/// Routes that every key may use: the test checks their responses one by one below. Every other route must refuse other
/// owners.
const OPEN: [&str; 20] = [
    "GET /",
    "GET /health",
    "GET /openapi.json",
    "GET /docs",
    "GET /docs/json",
    "GET /docs/yaml",
    "GET /api/agents",
    "GET /api/agents/{name}",
    "GET /api/agents/{name}/config",
    "GET /api/sessions",
    "POST /api/sessions",
    "GET /api/workspaces",
    "POST /api/workspaces",
    "POST /api/prune",
    "GET /api/usage",
    "GET /api/usage/stats",
    "GET /api/credentials",
    "POST /api/credentials",
    "DELETE /api/credentials/{id}",
    "POST /api/internal/api-keys",
];

/// Every method and path of the API, from the document that the table of routes makes.
fn routes() -> Vec<String> {
    let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let of_path = |(path, operations): (&String, &Value)| {
        let path = path
            .replace("/files/{path}", "/files/{*path}")
            .replace("/artifacts/{path}", "/artifacts/{*path}");
        let methods = operations.as_object().expect("methods").keys();
        methods.map(|method| format!("{} {path}", method.to_uppercase())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

/// A body that the route accepts.
fn body(route: &str) -> Option<Value> {
    let (method, path) = route.split_once(' ').expect("a method and a path");
    if method == "GET" || method == "DELETE" {
        return None;
    }
    Some(match path {
        "/api/agents" => json!({ "name": "tester", "systemPrompt": "x" }),
        "/api/sessions/{id}" => json!({ "metadata": { "stolen": "yes" } }),
        "/api/sessions/{id}/rewind" => json!({ "checkpoint": 1 }),
        "/api/sessions/{id}/exec" => json!({ "command": "touch stolen" }),
        "/api/sessions/{id}/permissions/{permission}" => json!({ "behavior": "allow" }),
        "/api/sessions/{id}/messages" => json!({ "content": "hello" }),
        "/api/sessions/{id}/queue" => json!({ "order": [] }),
        "/api/sessions/{id}/files" => json!({ "files": [{ "path": "stolen", "content": "aGkK" }] }),
        "/api/sessions/{id}/workspace" => json!({ "bundle": "aGkK" }),
        _ => json!({}),
    })
}

fn path(route: &str, (session, key): (&str, &str)) -> String {
    let path = route.split_once(' ').expect("a method and a path").1;
    let id = if path.contains("api-keys") { key } else { session };
    path.replace("{id}", id)
        .replace("{name}", "tester")
        .replace("{slug}", "project")
        .replace("{n}", "1")
        .replace("{permission}", "00000000-0000-0000-0000-000000000001")
        .replace("{*path}", "note")
}

/// The status, and the code of a refusal. Does not wait for streams.
async fn answer(client: &Client, route: &str, at: (&str, &str)) -> (StatusCode, String) {
    let method = Method::from_bytes(route.split(' ').next().expect("a method").as_bytes()).expect("a method");
    let request = client.request(method, &path(route, at));
    let request = if let Some(body) = body(route) { request.json(&body) } else { request };
    let response = request.send().await.expect(route);
    let status = response.status();
    let refusal: Value =
        if status.is_success() { Value::Null } else { response.json().await.unwrap_or_default() };
    (status, refusal["code"].as_str().unwrap_or_default().to_owned())
}

async fn mint(server: &Server, owner: &str) -> (Client, String) {
    let made = server.client().post("/api/api-keys", json!({ "owner": owner, "label": owner })).await;
    assert_eq!(made["owner"], owner);
    let text = made["key"].as_str().expect("a key");
    (server.client_with(text), made["id"].as_str().expect("an id").to_owned())
}

fn ids(listed: &Value) -> BTreeSet<String> {
    let sessions = listed["sessions"].as_array().expect("a list");
    sessions.iter().map(|session| session["id"].as_str().expect("an id").to_owned()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn make(client: &Client, body: Value) -> Value {
    client.post("/api/sessions", body).await["session"].clone()
}

#[tokio::test]
async fn no_route_shows_or_changes_another_owners_data() {
    let server = Server::with(&[("ASH_INTERNAL_SECRET", SECRET)]).await;
    server.client().deploy("tester").await;
    let (alice, key) = mint(&server, "alice").await;
    let (bob, _) = mint(&server, "bob").await;
    let minted = json!({ "tenantId": "elsewhere" });
    let elsewhere = server.client_with(SECRET).post("/api/internal/api-keys", minted).await;
    let elsewhere = server.client_with(elsewhere["key"].as_str().expect("a key"));
    let new = json!({ "agent": "tester", "sessionId": "hers", "workspace": "project" });
    assert_eq!(make(&alice, new).await["owner"], "alice");
    alice.say("hers", "run: echo secret > note").await;
    let before = (server.client().session_seq("hers").await, server.client().session("hers").await);

    let routes = routes();
    assert!(routes.len() > 40, "{routes:?}");
    for open in OPEN {
        assert!(routes.iter().any(|route| route == open), "{open} is not there any more");
    }
    let at = ("hers", key.as_str());
    for route in routes.iter().filter(|route| !OPEN.contains(&route.as_str())) {
        let (status, code) = answer(&bob, route, at).await;
        let refused = match status {
            StatusCode::NOT_FOUND => ["session_not_found", "workspace_not_found"].contains(&code.as_str()),
            StatusCode::FORBIDDEN => code == "admin_only",
            _ => false,
        };
        assert!(refused, "{route} answers another owner {status} {code}");
        if route.contains("/api/sessions/") || route.contains("/api/workspaces/") {
            let (status, code) = answer(&elsewhere, route, at).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{route} answers another tenant {code}");
        }
    }
    let after = (server.client().session_seq("hers").await, server.client().session("hers").await);
    assert_eq!(before.0, after.0, "nothing happened to it");
    assert_eq!(before.1["metadata"], after.1["metadata"]);
    let note = alice.get("/api/sessions/hers/files").await.to_string();
    assert!(note.contains("note") && !note.contains("stolen"), "{note}");

    // A token of hers opens her stream without a key. Bob has no way to one.
    let token = alice.post("/api/sessions/hers/stream-token", json!({})).await["token"].clone();
    let token = token.as_str().expect("a token");
    let path = format!("{}/api/sessions/hers/stream?token={token}", server.url);
    let opened = async |request: reqwest::RequestBuilder| request.send().await.expect("an answer").status();
    assert_eq!(opened(bob.http.get(&path)).await, StatusCode::OK);
    assert_eq!(
        opened(bob.http.get(&path).bearer_auth(&bob.key)).await,
        StatusCode::NOT_FOUND,
        "a key decides"
    );

    // The open routes reveal nothing to other owners, and list none of the names.
    assert_eq!(ids(&bob.get("/api/sessions").await), set(&[]));
    assert_eq!(bob.get("/api/workspaces").await["workspaces"], json!([]));
    let pruned = bob.post("/api/prune", json!({ "olderThan": "0s", "dryRun": true })).await;
    assert_eq!(ids(&pruned), set(&[]));
    for (path, body, code) in [
        ("/api/sessions", json!({ "agent": "tester", "sessionId": "hers" }), "session_exists"),
        ("/api/sessions", json!({ "agent": "tester", "workspace": "project" }), "workspace_taken"),
        ("/api/workspaces", json!({ "slug": "project", "agent": "default" }), "workspace_taken"),
    ] {
        let (status, problem) = bob.ask(Method::POST, path, Some(body)).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!(code)), "{problem}");
        let words = problem.to_string();
        assert!(!words.contains("alice") && !words.contains("agent"), "{words}");
    }
    let (status, problem) =
        bob.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "tester", "owner": "alice" }))).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("admin_only")));
    let (status, _) = bob.ask(Method::POST, "/api/internal/api-keys", Some(json!({ "tenantId": "x" }))).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);

    // The same requests succeed for the owner, so the refusals were not caused by the paths.
    let order = |route: &&String| match route.split(' ').next() {
        Some("DELETE") if !route.contains("files") => 2,
        Some("GET") => 0,
        _ => 1,
    };
    let mut own: Vec<&String> = routes.iter().filter(|route| !OPEN.contains(&route.as_str())).collect();
    own.sort_by_key(order);
    for route in own.into_iter().filter(|route| route.contains("sessions/") || route.contains("workspaces/"))
    {
        let (status, code) = answer(&alice, route, at).await;
        let missing = ["session_not_found", "workspace_not_found", "admin_only", "invalid_body"];
        assert!(!missing.contains(&code.as_str()), "{route} answers its owner {status} {code}");
    }
}

#[tokio::test]
async fn an_admin_sees_all_and_may_set_the_owner_of_a_session() {
    let server = Server::start().await;
    let admin = server.client();
    admin.deploy("tester").await;
    let (alice, _) = mint(&server, "alice").await;
    make(&alice, json!({ "agent": "tester", "sessionId": "own" })).await;
    let given = make(&admin, json!({ "agent": "tester", "sessionId": "given", "owner": "alice" })).await;
    assert_eq!(given["owner"], "alice");
    let open = make(&admin, json!({ "agent": "tester", "sessionId": "open" })).await;
    assert_eq!(open["owner"], Value::Null);
    assert_eq!(ids(&alice.get("/api/sessions").await), set(&["own", "given"]));
    assert_eq!(ids(&admin.get("/api/sessions").await), set(&["own", "given", "open"]));
    assert_eq!(ids(&admin.get("/api/sessions?owner=alice").await), set(&["own", "given"]));
    let fork = admin.post("/api/sessions/own/fork", json!({ "sessionId": "copy" })).await;
    assert_eq!(fork["session"]["owner"], "alice", "a fork is whose its parent is");
    // A session in an owner's workspace belongs to that owner, also when another key creates it.
    make(&alice, json!({ "agent": "tester", "sessionId": "shared", "workspace": "project" })).await;
    let joined = json!({ "agent": "tester", "sessionId": "joined", "workspace": "project" });
    assert_eq!(make(&admin, joined).await["owner"], "alice");
    let other = json!({ "agent": "tester", "workspace": "project", "owner": "bob" });
    let (status, problem) = admin.ask(Method::POST, "/api/sessions", Some(other)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("workspace_taken")));
    let bad = json!({ "agent": "tester", "owner": "a b" });
    assert_eq!(admin.ask(Method::POST, "/api/sessions", Some(bad)).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn two_owners_may_use_the_same_idempotency_key() {
    let server = Server::start().await;
    server.client().deploy("tester").await;
    let ((alice, _), (bob, _)) = (mint(&server, "alice").await, mint(&server, "bob").await);
    let create = async |client: &Client| {
        let request = client.request(Method::POST, "/api/sessions").header("idempotency-key", "first");
        let made = request.json(&json!({ "agent": "tester" })).send().await.expect("made");
        assert_eq!(made.status(), StatusCode::CREATED);
        made.json::<Value>().await.expect("json")["session"]["id"].clone()
    };
    let (hers, his) = (create(&alice).await, create(&bob).await);
    assert_ne!(hers, his);
    assert_eq!((create(&alice).await, create(&bob).await), (hers, his));
}

#[tokio::test]
async fn metadata_is_found_replaced_and_bounded() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    let noted = json!({ "ticket": "42", "a b&c=d": "ä" });
    let one = make(&client, json!({ "agent": "tester", "sessionId": "user-1", "metadata": noted })).await;
    assert_eq!(one["metadata"], noted);
    make(&client, json!({ "agent": "tester", "sessionId": "user-2", "metadata": { "ticket": "43" } })).await;
    let found = async |query: &str| ids(&client.get(&format!("/api/sessions?{query}")).await);
    assert_eq!(found("metadata.ticket=42").await, set(&["user-1"]));
    assert_eq!(found("metadata.a%20b%26c%3Dd=%C3%A4").await, set(&["user-1"]));
    assert_eq!(found("metadata.ticket=42&metadata.other=1").await, set(&[]));
    assert_eq!(found("idPrefix=user-").await, set(&["user-1", "user-2"]));
    assert_eq!(found("olderThan=1h").await, set(&[]));
    assert_eq!(found("newerThan=1h&idPrefix=user-2").await, set(&["user-2"]));
    for bad in [
        "olderThan=soon",
        "newerThan=1w",
        "idPrefix=%2F",
        "owner=a%20b",
        "workspace=A_B",
        "limit=0",
        "metadata.a=1&metadata.a=2",
    ] {
        let (status, _) = client.ask(Method::GET, &format!("/api/sessions?{bad}"), None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
    }
    let patch = async |body: Value| client.ask(Method::PATCH, "/api/sessions/user-1", Some(body)).await;
    let (status, answer) = patch(json!({ "metadata": { "ticket": "44" } })).await;
    assert_eq!((status, &answer["session"]["metadata"]), (StatusCode::OK, &json!({ "ticket": "44" })));
    assert_eq!(found("metadata.ticket=42").await, set(&[]));
    let many: Value = (0..51).map(|n| (n.to_string(), json!(""))).collect::<serde_json::Map<_, _>>().into();
    for (large, limit, used) in [
        (many, 50, 51),
        (json!({ "n".repeat(65): "" }), 64, 65),
        (json!({ "n": "v".repeat(1025) }), 1024, 1025),
    ] {
        let (status, problem) = patch(json!({ "metadata": large })).await;
        assert_eq!((status, &problem["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("payload_too_large")));
        assert_eq!((&problem["limit"], &problem["used"]), (&json!(limit), &json!(used)), "{problem}");
    }
    for bad in [json!({ "": "v" }), json!({ "n": {} }), json!([])] {
        let (status, problem) = patch(json!({ "metadata": bad })).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    }
    assert_eq!(client.session("user-1").await["metadata"], json!({ "ticket": "44" }), "nothing was changed");
    let events = client.get("/api/sessions/user-1/events?type=lifecycle").await;
    let told = events["events"].as_array().and_then(|events| events.last()).expect("an event");
    let told: Value = serde_json::from_str(told["data"].as_str().expect("a text")).expect("json");
    assert_eq!(told, json!({ "action": "metadata", "metadata": { "ticket": "44" } }));
}

#[tokio::test]
async fn owner_and_metadata_survive_the_loss_of_the_machine() {
    let bucket = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", bucket.path().display());
    let mut server = Server::with(&[("ASH_SNAPSHOT_URL", &url)]).await;
    server.client().deploy("tester").await;
    let (alice, _) = mint(&server, "alice").await;
    let new = json!({ "agent": "tester", "sessionId": "hers", "metadata": { "ticket": "42" }, "workspace": "project" });
    make(&alice, new).await;
    alice.say("hers", "run: echo hello > note").await;
    alice.post("/api/sessions/hers/stop", json!({})).await;
    // Set last, so that no checkpoint comes after it.
    let noted = json!({ "metadata": { "ticket": "43" } });
    assert_eq!(alice.ask(Method::PATCH, "/api/sessions/hers", Some(noted)).await.0, StatusCode::OK);
    let last = server.client().session_seq("hers").await;
    let manifest = format!("-{:0>16}.json", last);
    let sessions = bucket.path().join("tenants/default/sessions/hers");
    eventually("the object store has it", async || {
        let names = std::fs::read_dir(&sessions).ok()?.flatten();
        names.map(|name| name.file_name()).find(|name| name.to_string_lossy().ends_with(&manifest)).map(drop)
    })
    .await;
    server.lose_the_machine().await;
    let (bob, _) = mint(&server, "bob").await;
    let (status, _) = bob.ask(Method::POST, "/api/sessions/hers/resume", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(
        ids(&server.client_with(KEY).get("/api/sessions").await),
        set(&[]),
        "nor was it brought back for him"
    );
    let (alice, _) = mint(&server, "alice").await;
    let back = alice.post("/api/sessions/hers/resume", json!({})).await["session"].clone();
    assert_eq!((&back["owner"], &back["metadata"]), (&json!("alice"), &json!({ "ticket": "43" })));
    assert_eq!(alice.text("hers", "read note").await, "hello\n");
    assert_eq!(alice.get("/api/workspaces").await["workspaces"][0]["owner"], "alice");
    assert_eq!(bob.ask(Method::GET, "/api/workspaces/project", None).await.0, StatusCode::NOT_FOUND);
}
