//! The JSON of answers, as it was before they had types. `answers.json` was written by that version: entries are added,
//! never edited.

use super::*;
use serde_json::Map;

const GOLDEN: &str = include_str!("answers.json");

/// Requests in their order, each with its body.
const CALLS: [(&str, &str); 36] = [
    ("POST /api/agents", r##"{"name":"writer","systemPrompt":"# x","runtime":"builtin","env":{"A":"b"}}"##),
    ("PATCH /api/agents/writer", r#"{"config":{"b":1,"a":{"c":null}}}"#),
    ("PATCH /api/agents/writer/config", r#"{"d":[1]}"#),
    ("GET /api/agents/writer", ""),
    ("GET /api/agents/writer/config", ""),
    ("GET /api/agents", ""),
    ("PATCH /api/sessions/s", r#"{"metadata":{"team":"blue"}}"#),
    (
        "PATCH /api/sessions/s/config",
        r#"{"model":"m","mcpServers":{"x":{"command":"c","env":{"K":"v"}}},"ttl":60,"limits":{"memoryMb":64},"turnLimits":{"maxTurns":3},"infiniteSessions":{"contextWindow":8000},"env":{"V":"w"}}"#,
    ),
    ("GET /api/sessions/s", ""),
    ("GET /api/sessions", ""),
    ("GET /api/sessions?limit=1", ""),
    ("GET /api/sessions/s/messages", ""),
    ("GET /api/sessions/s/events", ""),
    ("GET /api/sessions/s/logs", ""),
    ("GET /api/sessions/s/queue", ""),
    ("GET /api/sessions/s/permissions", ""),
    ("GET /api/sessions/s/checkpoints", ""),
    ("GET /api/sessions/s/lock", ""),
    ("POST /api/sessions/s/lock", r#"{"ttl":60,"holder":"me"}"#),
    ("POST /api/api-keys", r#"{"label":"l","owner":"alice"}"#),
    // Only one key is stored yet: the order of two that are made in one millisecond is not fixed.
    ("GET /api/api-keys", ""),
    ("POST /api/api-keys", ""),
    ("DELETE /api/api-keys/env", ""),
    ("POST /api/workspaces", r#"{"slug":"w","agent":"writer"}"#),
    ("GET /api/workspaces", ""),
    ("GET /api/workspaces/w", ""),
    ("GET /api/workspaces/w/files", ""),
    ("GET /api/workspaces/w/checkpoints", ""),
    ("GET /api/usage", ""),
    ("GET /api/usage?by=session", ""),
    ("GET /api/usage/stats", ""),
    ("GET /api/retention", ""),
    ("POST /api/prune", r#"{"olderThan":"1s","dryRun":true}"#),
    ("GET /api/audit", ""),
    ("GET /health", ""),
    ("GET /", ""),
];

/// The same for every run and machine: ids, times, ages, secrets and mechanisms are replaced by their kind.
fn without_chance(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(fields) if name == "enforcedBy" => {
            fields.keys().map(|name| (name.clone(), json!("a mechanism"))).collect()
        }
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), without_chance(name, value))).collect()
        }
        Value::Array(items) => items.iter().map(|item| without_chance(name, item)).collect(),
        Value::String(text) if uuid::Uuid::try_parse(text).is_ok() => json!("an id"),
        Value::String(text) if text.ends_with('Z') && text.len() == 24 => json!("a time"),
        Value::String(_)
            if ["key", "token", "coordinatorId", "nextCursor", "subject", "detail", "version"]
                .contains(&name) =>
        {
            json!("a text")
        }
        Value::Number(_)
            if ["ageSeconds", "uptime", "maxCapacity", "diskMb", "memoryMb", "maxProcesses"]
                .contains(&name) =>
        {
            json!("a number")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[tokio::test]
async fn answers_have_the_fields_that_they_had_before_they_had_types() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let mut answers = Map::new();
    for (place, (call, body)) in CALLS.into_iter().enumerate() {
        let headers = [("authorization", format!("Bearer {KEY}"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let answer = server.send(call, Body::from(body), &headers).await;
        let shown = json!({ "status": answer.status.as_u16(), "body": without_chance("", &answer.body) });
        answers.insert(format!("{place:02} {call}"), shown);
    }
    let golden: Map<String, Value> = serde_json::from_str(GOLDEN).expect("JSON");
    for (call, answer) in &answers {
        assert_eq!(Some(answer), golden.get(call), "{call}");
    }
    assert_eq!(answers.len(), golden.len());
}
