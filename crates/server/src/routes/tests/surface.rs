//! Who is let in, and what every answer has in common.

use super::*;
use crate::openapi::schema_check::the_document;
use std::collections::BTreeSet;

/// Every route with a valid body. `s` is a session that exists.
pub(super) const CALLS: [(&str, &str); 74] = [
    ("GET /metrics", ""),
    ("GET /api/agents", ""),
    ("POST /api/agents", r#"{"name":"x"}"#),
    ("GET /api/agents/tester", ""),
    ("PATCH /api/agents/tester", r#"{"env":{"A":"b"}}"#),
    ("DELETE /api/agents/tester", ""),
    ("GET /api/agents/tester/config", ""),
    ("PATCH /api/agents/tester/config", r#"{"a":1}"#),
    ("GET /api/sessions", ""),
    ("POST /api/sessions", r#"{"agent":"tester"}"#),
    ("GET /api/sessions/s", ""),
    ("PATCH /api/sessions/s", r#"{"metadata":{"a":"b"}}"#),
    ("DELETE /api/sessions/s", ""),
    ("PATCH /api/sessions/s/config", "{}"),
    ("POST /api/sessions/s/pause", ""),
    ("POST /api/sessions/s/resume", ""),
    ("POST /api/sessions/s/stop", ""),
    ("POST /api/sessions/s/fork", ""),
    ("POST /api/sessions/s/rewind", r#"{"checkpoint":1}"#),
    ("POST /api/sessions/s/interrupt", ""),
    ("POST /api/sessions/s/exec", r#"{"command":"true"}"#),
    ("GET /api/sessions/s/logs", ""),
    ("GET /api/workspaces", ""),
    ("POST /api/workspaces", r#"{"slug":"w","agent":"tester"}"#),
    ("GET /api/workspaces/w", ""),
    ("DELETE /api/workspaces/w", ""),
    ("GET /api/workspaces/w/files", ""),
    ("GET /api/workspaces/w/checkpoints", ""),
    ("GET /api/sessions/s/permissions", ""),
    ("GET /api/sessions/s/tools", ""),
    ("POST /api/sessions/s/tools/00000000-0000-0000-0000-000000000001", r#"{"result":1}"#),
    ("POST /api/sessions/s/permissions/00000000-0000-0000-0000-000000000001", r#"{"behavior":"allow"}"#),
    ("GET /api/sessions/s/messages", ""),
    ("POST /api/sessions/s/messages", r#"{"content":"x"}"#),
    ("GET /api/sessions/s/events", ""),
    ("GET /api/sessions/s/log", ""),
    ("GET /api/sessions/s/conversation", ""),
    ("GET /api/sessions/s/stream", ""),
    ("POST /api/sessions/s/stream-token", ""),
    ("GET /api/sessions/s/queue", ""),
    ("PATCH /api/sessions/s/queue", r#"{"order":[]}"#),
    ("DELETE /api/sessions/s/queue/00000000-0000-0000-0000-000000000001", ""),
    ("GET /api/sessions/s/lock", ""),
    ("POST /api/sessions/s/lock", ""),
    ("DELETE /api/sessions/s/lock", ""),
    ("GET /api/sessions/s/files", ""),
    ("POST /api/sessions/s/files", r#"{"files":[{"path":"x","content":""}]}"#),
    ("GET /api/sessions/s/files/a.txt", ""),
    ("DELETE /api/sessions/s/files/a.txt", ""),
    ("GET /api/sessions/s/workspace", ""),
    ("POST /api/sessions/s/workspace", r#"{"bundle":"H4sIAAAAAAAAAwMAAAAAAAAAAAA="}"#),
    ("GET /api/sessions/s/plan", ""),
    ("GET /api/sessions/s/artifacts", ""),
    ("GET /api/sessions/s/artifacts/a", ""),
    ("GET /api/sessions/s/checkpoints", ""),
    ("POST /api/sessions/s/checkpoints", ""),
    ("GET /api/sessions/s/checkpoints/1", ""),
    ("GET /api/sessions/s/checkpoints/1/diff", ""),
    ("GET /api/usage", ""),
    ("GET /api/usage/stats", ""),
    ("GET /api/retention", ""),
    ("POST /api/retention", ""),
    ("POST /api/prune", "{}"),
    ("GET /api/audit", ""),
    ("GET /api/api-keys", ""),
    ("POST /api/api-keys", "{}"),
    ("DELETE /api/api-keys/x", ""),
    ("GET /api/credentials", ""),
    ("POST /api/credentials", r#"{"type":"custom","key":"k"}"#),
    ("DELETE /api/credentials/x", ""),
    ("POST /api/internal/api-keys", r#"{"tenantId":"x"}"#),
    ("GET /no/such/route", ""),
    ("PUT /api/sessions", ""),
    ("GET /API/sessions", ""),
];

#[tokio::test]
async fn no_route_answers_without_a_good_key_and_none_changes_anything() {
    let server = TestRouter::with_internal_secret(Some("the-secret-of-the-operator")).await;
    server.stopped_session("s").await;
    let before = (server.get("/api/agents").await, server.get("/api/api-keys").await);
    for (call, body) in CALLS {
        for headers in [&[][..], &[("authorization", "Bearer wrong")], &[("authorization", KEY)]] {
            let answer = server.send(call, Body::from(body), headers).await;
            assert_eq!(answer.code(), (401, "unauthorized"), "{call}: {}", answer.body);
            assert_eq!(answer.headers["cache-control"], "no-store", "{call}");
        }
    }
    assert_eq!((server.get("/api/agents").await, server.get("/api/api-keys").await), before);
    assert_eq!(server.get("/api/sessions/s").await["session"]["status"], "stopped");
}

#[test]
fn every_openapi_operation_that_needs_a_key_is_among_the_calls() {
    let id = |operation: &Value| operation["operationId"].as_str().expect("an id").to_owned();
    let called: BTreeSet<String> = CALLS
        .iter()
        .filter_map(|(call, _)| call.split_once(' '))
        .filter_map(|(method, path)| documented(method, path))
        .map(id)
        .collect();
    let paths = the_document()["paths"].as_object().expect("paths").values();
    let operations = paths.flat_map(|methods| methods.as_object().expect("methods").values());
    let closed = |operation: &&Value| {
        operation["security"].as_array().is_none_or(|kinds| !kinds.is_empty() && !kinds.contains(&json!({})))
    };
    assert_eq!(called, operations.filter(closed).map(id).collect());
}

#[tokio::test]
async fn a_deleted_key_opens_nothing() {
    let server = TestRouter::new().await;
    let made = server.ask(KEY, "POST /api/api-keys", json!({})).await.body;
    let (key, id) = (made["key"].as_str().expect("a key"), made["id"].as_str().expect("an id"));
    assert_eq!(server.ask(key, "GET /api/sessions", Value::Null).await.status, StatusCode::OK);
    let deleted = server.ask(KEY, &format!("DELETE /api/api-keys/{id}"), Value::Null).await;
    assert_eq!(deleted.status, StatusCode::OK, "{}", deleted.body);
    let refused = server.ask(key, "GET /api/sessions", Value::Null).await;
    assert_eq!((refused.code(), &refused.body["error"]), ((401, "unauthorized"), &json!("Invalid API key")));
}

#[tokio::test]
async fn without_an_internal_secret_no_caller_makes_keys_for_other_tenants() {
    let server = TestRouter::new().await;
    let refused = server.ask(KEY, "POST /api/internal/api-keys", json!({ "tenantId": "x" })).await;
    assert_eq!(refused.code(), (503, "internal_disabled"));
}

#[tokio::test]
async fn a_session_of_another_tenant_is_as_if_it_did_not_exist() {
    let secret = "the-secret-of-the-operator";
    let server = TestRouter::with_internal_secret(Some(secret)).await;
    server.stopped_session("s").await;
    let minted = server.ask(secret, "POST /api/internal/api-keys", json!({ "tenantId": "other" })).await.body;
    let minted = minted["key"].as_str().expect("a key");
    for (call, body) in CALLS.iter().filter(|(call, _)| call.contains("/sessions/s")) {
        let ask = async |call: &str| {
            let key = format!("Bearer {minted}");
            server.send(call, Body::from(*body), &[("authorization", &key)]).await
        };
        let (foreign, unknown) =
            (ask(call).await, ask(&call.replace("/sessions/s", "/sessions/unknown")).await);
        assert_eq!(foreign.code(), (404, "session_not_found"), "{call}: {}", foreign.body);
        assert_eq!(foreign.body, unknown.body, "{call}");
    }
}
