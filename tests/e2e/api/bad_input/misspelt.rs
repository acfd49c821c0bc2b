//! Misspelt fields and parameters are refused by name. Everything in the reference is accepted, including fields without
//! effect and coercions.

use crate::support::{KEY, Server};
use reqwest::Method;
use serde_json::{Value, json};
use std::process::Command;

#[tokio::test]
async fn the_command_line_names_the_nearest_option() {
    let server = Server::start().await;
    let output = Command::new(crate::support::ash())
        .args(["session", "create", "default", "-o", "modle=x"])
        .env("ASH_SERVER_URL", &server.url)
        .env("ASH_API_KEY", KEY)
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("modle: did you mean model?"), "{said}");
}

#[tokio::test]
async fn nested_fields_are_checked_as_the_outer_ones() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    let config = format!("/api/sessions/{id}/config");
    let kinds = "type must be one of stdio, local, http, streamable-http, sse, ws";
    for (server, words) in [
        (json!(5), "mcpServers.x must be an object".to_owned()),
        (json!(null), "mcpServers.x must be an object".to_owned()),
        (json!({ "command": ["c", "d"] }), "mcpServers.x.command must be a string".to_owned()),
        (json!({ "command": "c", "args": [{}] }), "mcpServers.x.args must be a string".to_owned()),
        (json!({ "url": "u", "timeout": "soon" }), "mcpServers.x.timeout must be a whole number".to_owned()),
        (json!({ "url": "u", "headers": ["K"] }), "mcpServers.x.headers must be an object".to_owned()),
        (json!({ "type": "carrier", "url": "u" }), format!("mcpServers.x.{kinds}")),
    ] {
        for (method, path, body) in [
            (Method::POST, "/api/sessions", json!({ "agent": "default", "mcpServers": { "x": server } })),
            (Method::PATCH, config.as_str(), json!({ "mcpServers": { "x": server } })),
        ] {
            let (status, refused) = client.ask(method, path, Some(body)).await;
            assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_body")), "{refused}");
            assert!(refused["error"].as_str().is_some_and(|error| error.starts_with(&words)), "{refused}");
        }
    }
    for (field, value, words) in [
        ("thinking", json!({ "budgetTokens": "x" }), "thinking.budgetTokens must be a whole number"),
        ("outputFormat", json!({ "schema": 5 }), "outputFormat.schema must be an object"),
        ("maxTurns", json!(5_000_000_000_u64), "maxTurns must be a whole number, at most 4294967295"),
        ("maxTokens", json!(1e20), "maxTokens must be a whole number, at most 18446744073709551615"),
    ] {
        let body = json!({ "content": "x", field: value });
        let (status, refused) =
            client.ask(Method::POST, &format!("/api/sessions/{id}/messages"), Some(body)).await;
        assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_body")), "{refused}");
        assert!(refused["error"].as_str().is_some_and(|error| error.starts_with(words)), "{refused}");
    }
    let far = json!({ "type": "http", "url": "u", "headers": { "K": "v" }, "timeout": 5000, "tools": ["*"] });
    let near =
        json!({ "type": "stdio", "command": "c", "args": ["a"], "env": { "K": 5 }, "cwd": "/workspace" });
    let both = json!({ "mcpServers": { "far": far, "near": near, "mixed": { "url": "u", "env": {} } } });
    let (status, changed) = client.ask(Method::PATCH, &config, Some(both.clone())).await;
    let mut shown = both["mcpServers"].clone();
    shown["far"]["headers"]["K"] = json!("***");
    shown["near"]["env"]["K"] = json!("***");
    assert_eq!((status.as_u16(), &changed["session"]["config"]["mcpServers"]), (200, &shown), "{changed}");
}

/// Every field of POST /api/sessions in the reference, as sent and as shown.
fn of_create() -> Vec<(&'static str, Value, Value)> {
    let helper = json!({ "x": { "description": "helps", "prompt": "Help." } });
    let far = json!({ "x": { "url": "https://tools.example" } });
    let near = json!({ "x": { "command": "c", "args": ["a"], "env": { "A": "b" } } });
    let shown_near = json!({ "x": { "command": "c", "args": ["a"], "env": { "A": "***" } } });
    vec![
        ("credentialId", json!(null), json!(null)),
        ("extraEnv", json!({ "PORT": "8080" }), json!(null)),
        ("extraEnv", json!({ "PORT": 8080, "DEBUG": true }), json!(null)),
        ("model", json!(5), json!("5")),
        ("model", json!("m"), json!("m")),
        ("model", json!(["m"]), json!("m")),
        ("mcpServers", far.clone(), far),
        ("mcpServers", near, shown_near),
        ("systemPrompt", json!("be brief"), json!("be brief")),
        ("permissionMode", json!("bypassPermissions"), json!("bypassPermissions")),
        ("permissionMode", json!(["permissionsByAgent"]), json!("permissionsByAgent")),
        ("allowedTools", json!(["Read"]), json!(["Read"])),
        ("allowedTools", json!("Read"), json!(["Read"])),
        ("disallowedTools", json!(["WebFetch"]), json!(["WebFetch"])),
        ("disallowedTools", json!("WebFetch"), json!(["WebFetch"])),
        ("betas", json!(["b"]), json!(["b"])),
        ("betas", json!("b"), json!(["b"])),
        ("subagents", helper.clone(), helper),
        ("initialAgent", json!("x"), json!("x")),
    ]
}

const OF_CONFIG: [&str; 6] =
    ["model", "allowedTools", "disallowedTools", "betas", "subagents", "initialAgent"];

#[tokio::test]
async fn every_option_that_the_reference_names_is_taken_on_create_and_change() {
    let server = Server::start().await;
    let client = server.client();
    let agent = json!({ "name": "a", "systemPrompt": "x", "slug": "a", "description": "d", "model": "m", "backend": "b", "config": {} });
    client.post("/api/agents", agent).await;
    let changed = client.post("/api/sessions", json!({ "agent": "a" })).await;
    let changed = format!("/api/sessions/{}", changed["session"]["id"].as_str().expect("an id"));
    for (field, given, shown) in of_create() {
        let (status, made) =
            client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": ["a"], field: given }))).await;
        assert_eq!(status.as_u16(), 201, "{field}: {given}: {made}");
        assert_eq!(made["session"]["config"][field], shown, "{made}");
        if OF_CONFIG.contains(&field) {
            let (status, said) =
                client.ask(Method::PATCH, &format!("{changed}/config"), Some(json!({ field: given }))).await;
            assert_eq!(status.as_u16(), 200, "{field}: {given}: {said}");
            assert_eq!(said["session"]["config"][field], shown, "{said}");
        }
    }
    let mut all = json!({ "agent": "a" });
    for (field, given, _) in of_create() {
        all[field] = given;
    }
    let made = client.post("/api/sessions", all).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(client.text(&id, "run: echo $PORT $DEBUG").await, "8080 true");

    let unknown = json!({ "agent": "a", "credentialId": "c1" });
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(unknown)).await;
    assert_eq!((status.as_u16(), &refused["error"]), (400, &json!("Invalid or inaccessible credential")));
}

#[tokio::test]
async fn every_field_and_parameter_that_the_reference_names_is_taken_elsewhere_and_coerced() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("a").await;
    let made = client.post("/api/sessions", json!({ "agent": "a" })).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    let of = |path: &str| format!("/api/sessions/{id}{path}");
    let text = json!([{ "type": "text", "text": "run: echo hi" }]);
    for (field, value) in [
        ("content", text),
        ("includePartialMessages", json!("false")),
        ("includePartialMessages", json!(1)),
        ("model", json!(["m"])),
        ("maxTurns", json!("5")),
        ("maxTurns", json!(5.0)),
        ("maxBudgetUsd", json!("1.5")),
        ("effort", json!("low")),
        ("effort", json!("max")),
        ("thinking", json!({ "type": "enabled", "budgetTokens": 1024 })),
        ("thinking", json!({ "type": "disabled" })),
        ("outputFormat", json!({ "type": "json_schema", "schema": { "type": "object" } })),
        ("outputFormat", json!(null)),
    ] {
        let mut message = json!({ "content": "run: echo hi" });
        message[field] = value;
        let send = client.request(Method::POST, &of("/messages"));
        let response = send.header("accept", "application/json").json(&message).send().await.expect("sent");
        let status = response.status().as_u16();
        let said: Value = response.json().await.expect("JSON");
        assert_eq!((status, &said["text"]), (200, &json!("hi")), "{message}: {said}");
    }
    for path in [
        "/api/sessions?agent=a&status=active&limit=5&offset=0&includeTotal=true".to_owned(),
        "/api/sessions?agent=&status=".to_owned(),
        "/api/sessions?limit=5.0&offset=0.0&includeTotal=0".to_owned(),
        of("/messages?limit=1000&after=0"),
        of("/events?limit=1000&after=0&type=text"),
        of("/events?type="),
        of("/logs?after=-1"),
        of("/files?includeHidden=true"),
        of("/files?includeHidden=false"),
        of("/files/CLAUDE.md?format=json"),
        "/api/agents".to_owned(),
        "/api/api-keys".to_owned(),
        format!("/api/usage?sessionId={id}&agentName=a&after=&before=&limit=1000"),
        "/api/usage?after=2020-01-01T00:00:00Z&before=2030-01-01T00:00:00.000Z".to_owned(),
        format!("/api/usage/stats?sessionId={id}&agentName=a&after=&before="),
    ] {
        let (status, answer) = client.ask(Method::GET, &path, None).await;
        assert_eq!(status.as_u16(), 200, "{path}: {answer}");
    }
    let (_, found) = client.ask(Method::GET, "/api/sessions?includeTotal=true&limit=5", None).await;
    assert_eq!(found["total"], json!(1), "{found}");
    let done = client.post(&of("/exec"), json!({ "command": ["true"], "timeout": "5000" })).await;
    assert_eq!(done["exitCode"], 0, "{done}");
    let files = json!({ "files": [{ "path": "n", "content": "eA==", "mimeType": "text/plain" }], "targetPath": "sub" });
    let written = client.post(&of("/files"), files).await;
    assert_eq!(client.exec(&id, "cat sub/n").await["stdout"], "x", "{written}");
    for (method, path, body) in [
        (Method::PATCH, "/api/agents/a", json!({ "env": { "A": "b" }, "config": { "any": 1 } })),
        (Method::PATCH, "/api/agents/a/config", json!({ "any": { "thing": [1] } })),
        (Method::POST, "/api/api-keys", json!({ "label": "dashboard-key" })),
    ] {
        let (status, answer) = client.ask(method, path, Some(body)).await;
        assert!(status.is_success(), "{path}: {answer}");
    }
}
