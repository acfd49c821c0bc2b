//! What an anonymous caller, a browser and another tenant see of the server.

use crate::support::{Client, Server, disk_mb, eventually, signal};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use std::collections::BTreeSet;

async fn plain(client: &Client, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = client.http.get(format!("{}{path}", client.url));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.expect("an answer")
}

fn fields(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[tokio::test]
async fn health_without_a_key_has_the_fields_of_the_reference_and_no_name_of_the_machine() {
    let server = Server::start().await;
    let client = server.client();
    for headers in [&[][..], &[("authorization", "Bearer wrong")]] {
        let response = plain(&client, "/health", headers).await;
        assert_eq!(response.status(), 200);
        let health: Value = response.json().await.expect("JSON");
        let known =
            ["status", "activeSessions", "activeSandboxes", "uptime", "pool", "version", "remoteRunners"];
        assert_eq!(fields(&health), BTreeSet::from(known), "{health}");
        let counts = [
            "total",
            "cold",
            "warming",
            "warm",
            "waiting",
            "running",
            "maxCapacity",
            "resumeWarmHits",
            "resumeColdHits",
            "preWarmHits",
        ];
        assert_eq!(fields(&health["pool"]), BTreeSet::from(counts));
        assert_eq!(health["status"], "ok");
    }
}

#[tokio::test]
async fn health_with_a_key_reports_troubles_and_the_object_store() {
    let store = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", store.path().display());
    let server =
        Server::with(&[("ASH_SNAPSHOT_URL", &url), ("ASH_MIN_FREE_MB", &disk_mb().to_string())]).await;
    let client = server.client();
    let stranger: Value = plain(&client, "/health", &[]).await.json().await.expect("JSON");
    assert_eq!((&stranger["status"], &stranger["degraded"]), (&json!("full"), &json!(true)), "{stranger}");
    let hidden =
        ["trouble", "objectStore", "error", "freeBytes", "coordinatorId"].map(|name| &stranger[name]);
    assert_eq!(hidden, [&Value::Null; 5]);
    let known = client.get("/health").await;
    let trouble = &known["trouble"][0];
    assert_eq!(fields(trouble), BTreeSet::from(["code", "error", "since"]), "{known}");
    assert_eq!(trouble["code"], "disk_full");
    assert_eq!(known["objectStore"]["url"].as_str(), Some(url.as_str()), "{known}");
}

/// The health check must not fail only because the database is unavailable.
#[tokio::test]
async fn health_is_answered_while_the_database_is_not() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("tester").await;
    client.create().await;
    let health = async || {
        let response = plain(&client, "/health", &[]).await;
        (response.status().as_u16(), response.json::<Value>().await.expect("JSON"))
    };
    let (status, well) = health().await;
    assert_eq!(
        (status, &well["activeSessions"], &well["degraded"]),
        (200, &json!(1), &Value::Null),
        "{well}"
    );
    let options = SqliteConnectOptions::new().filename(server.data.join("ash.db"));
    let mut db = SqliteConnection::connect_with(&options).await.expect("the database");
    sqlx::query("ALTER TABLE sessions RENAME TO elsewhere").execute(&mut db).await.expect("renamed");
    let (status, ill) = health().await;
    assert_eq!((status, &ill["status"]), (200, &json!("ok")), "it serves: {ill}");
    assert_eq!((&ill["activeSessions"], &ill["degraded"]), (&json!(0), &json!(true)), "{ill}");
    assert_eq!(ill["trouble"], Value::Null, "{ill}");
    let known = client.get("/health").await;
    let trouble = &known["trouble"][0];
    assert_eq!(trouble["code"], "store_failed", "{known}");
    assert!(trouble["error"].as_str().is_some_and(|error| error.contains("database")), "{known}");
    sqlx::query("ALTER TABLE elsewhere RENAME TO sessions").execute(&mut db).await.expect("renamed");
    let (status, well) = health().await;
    assert_eq!(
        (status, &well["activeSessions"], &well["degraded"]),
        (200, &json!(1), &Value::Null),
        "{well}"
    );
}

#[tokio::test]
async fn web_pages_may_call_only_from_allowed_origins_and_without_credentials() {
    let (closed, open) = (
        Server::start().await,
        Server::with(&[("ALLOWED_ORIGINS", "https://a.example, https://b.example")]).await,
    );
    let allowed = async |server: &Server, origin: &str| {
        let response = plain(&server.client(), "/health", &[("origin", origin)]).await;
        assert!(response.headers().get("access-control-allow-credentials").is_none());
        response
            .headers()
            .get("access-control-allow-origin")
            .map(|value| value.to_str().expect("text").to_owned())
    };
    assert_eq!(allowed(&closed, "https://a.example").await, None);
    assert_eq!(allowed(&open, "https://evil.example").await, None);
    assert_eq!(allowed(&open, "https://b.example").await.as_deref(), Some("https://b.example"));
}

#[tokio::test]
async fn on_loopback_other_host_names_must_be_allowed() {
    let server = Server::start().await;
    let client = server.client();
    let port = client.url.rsplit(':').next().expect("a port");
    let ask = async |client: &Client, host: &str| {
        let response = plain(client, "/health", &[("host", host)]).await;
        (response.status().as_u16(), response.json::<Value>().await.expect("JSON"))
    };
    for own in ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:1"] {
        assert_eq!(ask(&client, own).await.0, 200, "{own}");
    }
    assert_eq!(ask(&client, &format!("localhost:{port}")).await.0, 200);
    for foreign in
        ["evil.example", "localhost.evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example"]
    {
        let (status, body) = ask(&client, foreign).await;
        assert_eq!((status, &body["code"]), (403, &json!("host_not_allowed")), "{foreign}: {body}");
        assert!(body["error"].as_str().expect("words").contains("ASH_ALLOWED_HOSTS"), "{body}");
    }
    let behind_proxy = Server::with(&[("ASH_ALLOWED_HOSTS", "ash.example.com, other.example")]).await;
    assert_eq!(ask(&behind_proxy.client(), "ash.example.com").await.0, 200);
    assert_eq!(ask(&behind_proxy.client(), "other.example:443").await.0, 200);
    assert_eq!(ask(&behind_proxy.client(), "evil.example").await.0, 403);
}

#[tokio::test]
async fn json_answers_are_not_stored_and_streams_are_not_cached() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    for path in ["/health", "/api/sessions", "/api/sessions/unknown", "/nowhere"] {
        let response = client.request(Method::GET, path).send().await.expect("an answer");
        assert_eq!(response.headers()["cache-control"], "no-store", "{path}");
    }
    let unknown = plain(&client, "/api/sessions", &[]).await;
    assert_eq!(
        (unknown.status().as_u16(), &unknown.headers()["cache-control"]),
        (401, &"no-store".parse().expect("a value"))
    );
    let stream =
        client.request(Method::GET, &format!("/api/sessions/{id}/stream")).send().await.expect("a stream");
    assert_eq!(stream.headers()["cache-control"], "no-cache");
}

#[tokio::test]
async fn the_first_page_forbids_scripts_and_frames() {
    let server = Server::start().await;
    let page = plain(&server.client(), "/", &[("accept", "text/html")]).await;
    let policy = page.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("script-src"), "{policy}");
}

#[tokio::test]
async fn metrics_of_all_tenants_are_only_for_the_operator() {
    let server = Server::with(&[("ASH_INTERNAL_SECRET", "a-secret-for-internal-use")]).await;
    let operator = server.client();
    let minted = server.client_with("a-secret-for-internal-use");
    let key = minted.post("/api/internal/api-keys", json!({ "tenantId": "other" })).await;
    let owned = operator.post("/api/api-keys", json!({ "owner": "alice" })).await;
    for (key, code) in [(key, "operator_only"), (owned, "admin_only")] {
        let client = server.client_with(key["key"].as_str().expect("a key"));
        let (status, body) = client.ask(Method::GET, "/metrics", None).await;
        assert_eq!((status.as_u16(), &body["code"]), (403, &json!(code)), "{body}");
    }
    assert_eq!(operator.request(Method::GET, "/metrics").send().await.expect("metrics").status(), 200);
}

#[tokio::test]
async fn health_says_that_the_server_is_stopping() {
    let mut server = Server::with(&[("ASH_STOP_GRACE", "60")]).await;
    let client = server.client();
    client.deploy("tester").await;
    let id = client.create().await;
    let mut stream = client.send(&id, "hold go: slowly").await;
    stream.until("session_start").await;
    let health = client.get("/health").await;
    assert_eq!(health["status"], "ok", "{health}");
    signal(server.pid(), libc::SIGTERM);
    let stopping = async || (client.get("/health").await["status"] == "stopping").then_some(());
    eventually("it says so while the turn goes on", stopping).await;
    server.let_go(&id, "go").await;
    assert!(server.ended().await);
}
