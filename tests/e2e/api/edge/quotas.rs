//! Quotas: how much one tenant may store on the server.

use crate::support::{Client, Server, eventually};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

const SECRET: &str = "a-secret-for-internal-use";

async fn tenant(server: &Server, name: &str) -> Client {
    let minted = server.client_with(SECRET).post("/api/internal/api-keys", json!({ "tenantId": name })).await;
    server.client_with(minted["key"].as_str().expect("a key"))
}

/// The status, the code, and the quota with its usage.
async fn refused(client: &Client, method: Method, path: &str, body: Value) -> (u16, Value) {
    let (status, said) = client.ask(method, path, Some(body)).await;
    let fields = ["code", "quota", "limit", "used"].map(|name| said[name].clone());
    (status.as_u16(), Value::from(fields.to_vec()))
}

fn eager(name: &str, prewarm: u32) -> Value {
    let toml = format!("runtime = \"builtin\"\n[sandbox]\nprewarm = {prewarm}\n");
    json!({ "name": name, "files": [{ "path": "ash.toml", "content": STANDARD.encode(toml) }] })
}

#[tokio::test]
async fn keys_agents_and_sizes_have_quotas_that_the_operator_sets() {
    let quotas = "keys=3,agents=2,labelBytes=20,configKb=2,metadataKb=1,prewarmed=2";
    let server = Server::with(&[("ASH_INTERNAL_SECRET", SECRET), ("ASH_QUOTAS", quotas)]).await;
    let (one, other) = (tenant(&server, "one").await, tenant(&server, "other").await);

    let (keys, label) = ("/api/api-keys", json!({ "label": "x".repeat(20) }));
    let made = one.post(keys, label).await;
    let long = json!({ "label": "x".repeat(21) });
    let too_large =
        |quota: &str, limit: u64, used: u64| (413, json!(["payload_too_large", quota, limit, used]));
    assert_eq!(refused(&one, Method::POST, keys, long.clone()).await, too_large("labelBytes", 20, 21));
    let both = [one.ask(Method::POST, keys, Some(json!({}))), one.ask(Method::POST, keys, Some(json!({})))];
    let mut both: Vec<u16> =
        futures::future::join_all(both).await.iter().map(|(status, _)| status.as_u16()).collect();
    both.sort_unstable();
    assert_eq!(both, [201, 429], "two at once, and room for one");
    let full = |quota: &str, limit: u64, used: u64| (429, json!(["quota_reached", quota, limit, used]));
    assert_eq!(refused(&one, Method::POST, keys, json!({})).await, full("keys", 3, 3));
    let internal = json!({ "tenantId": "one" });
    let operator = server.client_with(SECRET);
    assert_eq!(
        refused(&operator, Method::POST, "/api/internal/api-keys", internal).await,
        full("keys", 3, 3)
    );
    other.post(keys, json!({})).await;
    one.delete(&format!("{keys}/{}", made["id"].as_str().expect("an id"))).await;
    one.post(keys, json!({})).await;

    one.deploy("a").await;
    one.post("/api/agents", eager("b", 0)).await;
    assert_eq!(refused(&one, Method::POST, "/api/agents", eager("c", 0)).await, full("agents", 2, 2));
    let default = json!({ "agent": "default" });
    assert_eq!(refused(&one, Method::POST, "/api/sessions", default).await, full("agents", 2, 2));
    one.deploy("a").await;
    assert_eq!(refused(&one, Method::POST, "/api/agents", eager("a", 3)).await, full("prewarmed", 2, 0));
    other.deploy("c").await;

    let config = json!({ "note": "x".repeat(1500) });
    one.ask(Method::PATCH, "/api/agents/a/config", Some(config)).await;
    let more = json!({ "more": "x".repeat(1000) });
    let (status, said) = refused(&one, Method::PATCH, "/api/agents/a/config", more.clone()).await;
    assert_eq!((status, &said[1], &said[2]), (413, &json!("configKb"), &json!(2)), "what adds up counts");
    let (status, _) = refused(&one, Method::PATCH, "/api/agents/a", json!({ "config": more })).await;
    assert_eq!(status, 413);
    let noted = json!({ "agent": "a", "metadata": { "a": "x".repeat(1000), "b": "x".repeat(100) } });
    assert_eq!(refused(&one, Method::POST, "/api/sessions", noted).await, too_large("metadataKb", 1, 2));
    let subagents = json!({ "x": { "description": "x", "prompt": "x".repeat(3000) } });
    let large = json!({ "agent": "a", "subagents": subagents });
    let (status, said) = refused(&one, Method::POST, "/api/sessions", large).await;
    assert_eq!((status, &said[1]), (413, &json!("configKb")), "{said}");

    // Secrets behind *** count as well, also when a request leaves them unchanged.
    let servers = |env: Value| json!({ "x": { "command": "x", "env": env } });
    let secret =
        |length: usize| json!({ "agent": "a", "mcpServers": servers(json!({ "A": "x".repeat(length) })) });
    let (status, said) = refused(&one, Method::POST, "/api/sessions", secret(3000)).await;
    assert_eq!((status, &said[1]), (413, &json!("configKb")), "{said}");
    let made = one.post("/api/sessions", secret(1000)).await;
    let config = format!("/api/sessions/{}/config", made["session"]["id"].as_str().expect("an id"));
    let more = json!({ "mcpServers": servers(json!({ "A": "***", "B": "x".repeat(1000) })) });
    let (status, said) = refused(&one, Method::PATCH, &config, more).await;
    assert_eq!((status, &said[1]), (413, &json!("configKb")), "{said}");
    let less = json!({ "mcpServers": servers(json!({ "A": "***", "B": "x".repeat(500) })) });
    assert_eq!(one.ask(Method::PATCH, &config, Some(less)).await.0, 200);
}

/// A request with an Idempotency-Key.
async fn keyed(client: &Client, path: &str, body: &Value) -> (u16, Value) {
    let request = client.request(Method::POST, path).header("Idempotency-Key", "again").json(body);
    let answer = request.send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

#[tokio::test]
async fn a_request_that_was_answered_is_answered_again_though_the_quota_is_reached() {
    let quotas = "keys=2,agents=1,agentVersions=1";
    let server = Server::with(&[("ASH_INTERNAL_SECRET", SECRET), ("ASH_QUOTAS", quotas)]).await;
    let one = tenant(&server, "one").await;
    for (path, body) in [
        ("/api/api-keys", json!({ "label": "mine" })),
        ("/api/agents", json!({ "name": "a", "systemPrompt": "You are a test." })),
    ] {
        let first = keyed(&one, path, &body).await;
        assert_eq!(first.0, 201, "{first:?}");
        let (full, said) = one.ask(Method::POST, path, Some(body.clone())).await;
        assert_eq!((full.as_u16(), &said["code"]), (429, &json!("quota_reached")), "{said}");
        assert_eq!(keyed(&one, path, &body).await, first);
    }
    assert_eq!(one.get("/api/agents/a").await["agent"]["version"], 1);
}

#[tokio::test]
async fn versions_and_deleted_agents_have_quotas_because_they_are_kept() {
    let quotas = "agents=2,keptAgents=3,agentVersions=2";
    let server = Server::with(&[("ASH_INTERNAL_SECRET", SECRET), ("ASH_QUOTAS", quotas)]).await;
    let (one, other) = (tenant(&server, "one").await, tenant(&server, "other").await);
    let full = |quota: &str, limit: u64, used: u64| (429, json!(["quota_reached", quota, limit, used]));
    let deploy = |name: &str| json!({ "name": name, "systemPrompt": "You are a test." });

    for _ in 0..2 {
        one.deploy("a").await;
    }
    let again = refused(&one, Method::POST, "/api/agents", deploy("a")).await;
    assert_eq!(again, full("agentVersions", 2, 2));
    one.delete("/api/agents/a").await;
    let again = refused(&one, Method::POST, "/api/agents", deploy("a")).await;
    assert_eq!(again, full("agentVersions", 2, 2), "deleting it forgets no version");

    for name in ["b", "c"] {
        one.deploy(name).await;
        one.delete(&format!("/api/agents/{name}")).await;
    }
    assert_eq!(refused(&one, Method::POST, "/api/agents", deploy("d")).await, full("keptAgents", 3, 3));
    one.deploy("c").await;
    other.deploy("d").await;
}

#[tokio::test]
async fn changes_of_an_agent_at_the_same_time_all_count() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("a").await;
    let change = async |n: usize| {
        let fields = json!({ format!("field{n}"): n });
        // Both routes change the same configuration.
        let (path, body) = match n % 2 {
            0 => ("/api/agents/a/config", fields),
            _ => ("/api/agents/a", json!({ "config": fields })),
        };
        client.ask(Method::PATCH, path, Some(body)).await.0.as_u16()
    };
    let changed = futures::future::join_all((0..20).map(change)).await;
    assert_eq!(changed, [200; 20]);
    let config = client.get("/api/agents/a/config").await["config"].clone();
    let lost: Vec<usize> = (0..20).filter(|n| config[format!("field{n}")] != *n).collect();
    assert!(lost.is_empty(), "{lost:?} of {config}");
}

#[tokio::test]
async fn messages_that_wait_have_quotas_of_their_session_and_tenant() {
    let quotas = "sessionMessages=2,tenantMessages=3,tenantQueuedKb=2";
    let mut server = Server::with(&[("ASH_INTERNAL_SECRET", SECRET), ("ASH_QUOTAS", quotas)]).await;
    let one = tenant(&server, "one").await;
    one.deploy("tester").await;
    let make = async |id: &str| {
        one.post("/api/sessions", json!({ "agent": "tester", "sessionId": id })).await;
        drop(one.send(id, "run: until [ -e go ]; do sleep 0.02; done").await);
    };
    make("a").await;
    make("b").await;
    eventually("both turns run", async || {
        (server.client().get("/health").await["pool"]["running"] == 2).then_some(())
    })
    .await;
    let queue = async |client: &Client, id: &str, text: &str| {
        let path = format!("/api/sessions/{id}/messages");
        let response = client.request(Method::POST, &path).json(&json!({ "content": text }));
        let response = response.send().await.expect("an answer");
        let status = response.status().as_u16();
        let said: Value = match status {
            200 => Value::Null,
            _ => response.json().await.expect("json"),
        };
        (status, said["quota"].clone(), said["used"].clone())
    };
    let queued = (200, Value::Null, Value::Null);
    for _ in 0..2 {
        assert_eq!(queue(&one, "a", "hi").await, queued);
    }
    assert_eq!(queue(&one, "a", "hi").await, (429, json!("sessionMessages"), json!(2)));
    assert_eq!(queue(&one, "b", &"x".repeat(2100)).await, (429, json!("tenantQueuedKb"), json!(1)));
    assert_eq!(queue(&one, "b", "hi").await, queued);
    assert_eq!(queue(&one, "b", "hi").await, (429, json!("tenantMessages"), json!(3)));
    let two = tenant(&server, "two").await;
    two.deploy("tester").await;
    two.post("/api/sessions", json!({ "agent": "tester", "sessionId": "c" })).await;
    assert_eq!(queue(&two, "c", "hi").await, queued, "another tenant's are not counted");
    server.crash_and_start().await;
    // Messages that waited when the server died still wait, and count.
    let url = server.url.clone();
    let one = Client { url, ..one };
    // The server recovers each session when it answers; an earlier message would be accepted, and count.
    for id in ["a", "b"] {
        one.exec(id, "true").await;
    }
    assert_eq!(queue(&one, "b", "hi").await, (429, json!("tenantMessages"), json!(3)));
    for id in ["a", "b"] {
        one.exec(id, "touch go").await;
    }
    eventually("the queues are empty", async || {
        let open = one.get("/api/sessions/a/queue").await;
        open["queue"].as_array().is_some_and(Vec::is_empty).then_some(())
    })
    .await;
    assert_eq!(queue(&one, "a", "hi").await, queued);
}

#[tokio::test]
async fn sandboxes_made_in_advance_have_quotas_of_a_tenant_and_of_all() {
    let quotas = "prewarmed=2,prewarmedTotal=3";
    let server = Server::with(&[
        ("ASH_INTERNAL_SECRET", SECRET),
        ("ASH_QUOTAS", quotas),
        // Counts every agent in use, whether it asks for sandboxes or not.
        ("ASH_PREWARM", "5"),
    ])
    .await;
    let (one, two) = (tenant(&server, "one").await, tenant(&server, "two").await);
    let warm = async |count: u64| {
        eventually(&format!("{count} are ready"), async || {
            let pool = server.client().get("/health").await["pool"].clone();
            assert!(pool["warm"].as_u64() <= Some(count), "{pool}");
            (pool["warm"] == count && pool["warming"] == 0).then_some(())
        })
        .await;
    };
    one.post("/api/agents", eager("a", 2)).await;
    one.deploy("b").await;
    warm(2).await;
    let (status, said) = refused(&one, Method::POST, "/api/agents", eager("c", 1)).await;
    assert_eq!((status, said), (429, json!(["quota_reached", "prewarmed", 2, 2])));
    two.post("/api/agents", eager("a", 2)).await;
    warm(3).await;
}
