//! A change of options refuses the same values as a create: field by field, with the same text.

use super::asked;
use crate::support::{Client, claude};
use reqwest::Method;
use serde_json::{Value, json};

/// Wrong values of every option, for every runtime.
fn wrong() -> Vec<Value> {
    let long = |letters: usize| "x".repeat(letters);
    let variables = |name: &str, value: &str| json!({ name: { "A": value } });
    let mut all = vec![
        json!({ "modle": "x" }),
        json!({ "model": {} }),
        json!({ "model": "" }),
        json!({ "model": long(129) }),
        json!({ "provider": "oracle" }),
        json!({ "provider": "openai" }),
        json!({ "provider": { "type": "oracle", "apiKey": "k" } }),
        json!({ "provider": { "type": "anthropic", "apiKey": "k", "baseUrl": "http://10.0.0.1" } }),
        json!({ "provider": { "type": "openai", "apiKey": "k" } }),
        json!({ "provider": { "type": "azure", "apiKey": "k" } }),
        json!({ "provider": { "type": "anthropic", "apiKey": "k", "headers": { "host": "x" } } }),
        json!({ "systemPrompt": {} }),
        json!({ "systemPrompt": long(1_000_001) }),
        json!({ "systemMessage": 7 }),
        json!({ "systemMessage": { "mode": "prepend", "content": "x" } }),
        json!({ "systemMessage": long(30_001) }),
        json!({ "appendSystemPrompt": long(30_001) }),
        json!({ "permissionMode": "root" }),
        json!({ "availableTools": {} }),
        json!({ "allowedTools": {} }),
        json!({ "disallowedTools": [{}] }),
        json!({ "excludedTools": [{}] }),
        json!({ "reasoningEffort": "enormous" }),
        json!({ "effort": "enormous" }),
        json!({ "streaming": "yes" }),
        json!({ "betas": {} }),
        json!({ "mcpServers": [] }),
        json!({ "mcpServers": { "x": { "command": "y", "env": { "A": "***" } } } }),
        json!({ "subagents": "x" }),
        json!({ "initialAgent": {} }),
        json!({ "customAgents": [{ "name": "x" }] }),
        json!({ "customAgents": [{ "name": "", "prompt": "y" }] }),
        json!({ "customAgents": [{ "name": "x", "promt": "y" }] }),
        json!({ "workingDirectory": "/etc" }),
        json!({ "workingDirectory": "a/../../b" }),
        json!({ "configDir": "/workspace/config" }),
        json!({ "configDir": "~" }),
        json!({ "skillDirectories": ["/usr/share"] }),
        json!({ "skillDirectories": vec!["a"; 21] }),
        json!({ "disabledSkills": ["two\nlines"] }),
        json!({ "disabledSkills": vec!["a"; 201] }),
        json!({ "infiniteSessions": 5 }),
        json!({ "infiniteSessions": { "enabled": "yes" } }),
        json!({ "infiniteSessions": { "contextWindow": 1 } }),
        json!({ "infiniteSessions": { "backgroundCompactionThreshold": 0.96 } }),
        json!({ "infiniteSessions": { "unheard": 1 } }),
        json!({ "onInterrupted": "panic" }),
        json!({ "onBusy": "panic" }),
        json!({ "onPermissionTimeout": "shrug" }),
        json!({ "wakeReport": "yes" }),
        json!({ "ephemeral": "yes" }),
        json!({ "permissionTimeout": 604_801 }),
        json!({ "maxWait": 604_801 }),
        json!({ "idleTimeout": 604_801 }),
        json!({ "idleTimeout": "30m" }),
        json!({ "ttl": 315_360_001 }),
        json!({ "ttl": "7d" }),
        json!({ "durability": "remote" }),
        json!({ "durability": "somewhere" }),
        json!({ "maxTurns": 0 }),
        json!({ "maxTokens": 0 }),
        json!({ "maxBudgetUsd": -0.01 }),
        json!({ "model": "unheard-of-1", "maxBudgetUsd": 1 }),
        json!({ "turnLimits": { "maxTurns": 0 } }),
        json!({ "turnLimits": { "maxTurn": 1 } }),
        json!({ "model": "unheard-of-1", "turnLimits": { "maxBudgetUsd": 1 } }),
        json!({ "limits": 5 }),
        json!({ "limits": { "memoryMb": 15 } }),
        json!({ "limits": { "memory": 64 } }),
        json!({ "limits": { "maxProcesses": "8" } }),
        json!({ "env": { "A B": "x" } }),
        json!({ "env": (0..257).map(|n| (format!("V{n}"), json!("x"))).collect::<serde_json::Map<_, _>>() }),
        json!({ "extraEnv": { "A": null } }),
    ];
    all.push(variables("env", &long(100_001)));
    all.push(variables("extraEnv", "a\0b"));
    all
}

async fn are_alike(client: &Client, (agent, id): (&str, &str), options: &Value) {
    let mut new = options.clone();
    new["agent"] = json!(agent);
    let made = asked(client, Method::POST, "/api/sessions", Some(new)).await;
    let shown: String = options.to_string().chars().take(100).collect();
    assert!((400..500).contains(&made.0), "{agent} {shown}: {made:?}");
    for (method, path) in [(Method::PATCH, "config"), (Method::POST, "resume")] {
        let path = format!("/api/sessions/{id}/{path}");
        let changed = asked(client, method, &path, Some(options.clone())).await;
        assert_eq!(changed, made, "{agent} {path} {shown}");
    }
}

#[tokio::test]
async fn every_option_is_refused_on_a_change_as_on_create() {
    let stage = claude::Stage::set().await;
    let client = stage.server.client();
    client.deploy("helper").await;
    client.post("/api/sessions", json!({ "agent": "helper", "sessionId": "plain" })).await;
    let of_claude = stage.create().await;
    for (agent, id) in [("helper", "plain"), ("coder", of_claude.as_str())] {
        let before = client.session(id).await["config"].clone();
        for options in wrong() {
            are_alike(&client, (agent, id), &options).await;
        }
        let only = match agent {
            "helper" => vec![json!({ "permissionMode": "plan" }), json!({ "permissionMode": "default" })],
            _ => vec![
                json!({ "provider": "offline" }),
                json!({ "provider": { "type": "openai", "apiKey": "k" }, "model": "m" }),
                json!({ "infiniteSessions": { "bufferExhaustionThreshold": 0.95 } }),
                json!({ "infiniteSessions": { "contextWindow": 8000 } }),
            ],
        };
        for options in only {
            are_alike(&client, (agent, id), &options).await;
        }
        assert_eq!(client.session(id).await["config"], before, "nothing of it was stored");
    }
    assert_eq!(client.get("/api/sessions").await["total"], 2, "nothing was made");
}

/// Checks that depend on the caller, or on sharing.
#[tokio::test]
async fn limits_of_a_tenant_and_keys_in_a_shared_workspace_are_refused_alike() {
    let stage = claude::Stage::with(&[("ASH_INTERNAL_SECRET", "a-secret-for-internal-use")]).await;
    let secret = stage.server.client_with("a-secret-for-internal-use");
    let key = secret.post("/api/internal/api-keys", json!({ "tenantId": "other" })).await;
    let theirs = stage.server.client_with(key["key"].as_str().expect("a key"));
    theirs.deploy("helper").await;
    theirs.post("/api/sessions", json!({ "agent": "helper", "sessionId": "small" })).await;
    let large = json!({ "limits": { "memoryMb": 1_000_000 } });
    are_alike(&theirs, ("helper", "small"), &large).await;

    let client = stage.server.client();
    client.deploy("helper").await;
    let shared = json!({ "agent": "helper", "sessionId": "shared", "workspace": "ours" });
    client.post("/api/sessions", shared).await;
    let own = json!({ "provider": { "type": "anthropic", "apiKey": "k" } });
    let new = json!({ "agent": "helper", "workspace": "ours", "provider": own["provider"] });
    let made = asked(&client, Method::POST, "/api/sessions", Some(new)).await;
    let changed = asked(&client, Method::PATCH, "/api/sessions/shared/config", Some(own)).await;
    assert_eq!((made.0, &changed), (422, &made));
}
