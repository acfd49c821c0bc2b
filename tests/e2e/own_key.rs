//! Keys that clients bring: they work, are written nowhere, and have to be brought again by whoever comes back.

use crate::{
    claude::program,
    model::Model,
    support::{Client, Server, signal},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::process::Command;

const OWN: &str = "sk-brought-by-the-client-4711";
const HEADER: &str = "gate-pass-of-the-client-0815";

struct Stage {
    server: Server,
    model: Model,
    agent: &'static str,
}

impl Stage {
    /// A server that has no key at all.
    async fn set(runtime: &'static str) -> Stage {
        let mut server = Server::prepare(&[("ASH_CLAUDE_BIN", &program())]);
        let model = Model::start(&server.dir);
        server.set("ASH_PROVIDER_URLS", &model.url);
        server.launch().await;
        let client = server.client();
        let agent = server.dir.join("agent");
        std::fs::create_dir_all(&agent).expect("a folder");
        std::fs::write(agent.join("CLAUDE.md"), "Answer in one line.").expect("written");
        std::fs::write(agent.join("ash.toml"), format!("runtime = \"{runtime}\"\n")).expect("written");
        client.post("/api/agents", json!({ "name": runtime, "path": agent })).await;
        Stage { server, model, agent: runtime }
    }

    fn provider(&self) -> Value {
        json!({ "type": "anthropic", "baseUrl": self.model.url, "apiKey": OWN, "headers": { "X-Gate": HEADER } })
    }

    async fn create(&self) -> String {
        let body = json!({ "agent": self.agent, "provider": self.provider() });
        let made = self.server.client().post("/api/sessions", body).await["session"].clone();
        let shown = json!({ "type": "anthropic", "baseUrl": self.model.url });
        assert_eq!(made["config"]["ownProvider"], shown, "{made}");
        made["id"].as_str().expect("an id").to_owned()
    }

    /// The model was called with what the client brought.
    async fn say(&self, id: &str, text: &str) {
        let said = self.server.client().say(id, text).await;
        assert_eq!(said["status"], "done", "{said}");
        let last = self.model.requests().pop().expect("a request");
        assert_eq!(
            (&last["headers"]["x-api-key"], &last["headers"]["x-gate"]),
            (&json!(OWN), &json!(HEADER))
        );
    }
}

async fn needs_it(client: &Client, id: &str) {
    let resume = (format!("/api/sessions/{id}/resume"), json!({}));
    let message = (format!("/api/sessions/{id}/messages"), json!({ "content": "hello" }));
    for (path, body) in [resume, message] {
        let (status, refused) = client.ask(Method::POST, &path, Some(body)).await;
        assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("provider_required")), "{refused}");
    }
}

/// However a session came to rest, its key is gone, and with it again everything goes on.
async fn is_brought_again(runtime: &'static str) {
    let mut stage = Stage::set(runtime).await;
    let id = stage.create().await;
    stage.say(&id, "the tower is high").await;
    for rest in ["pause", "stop"] {
        let client = stage.server.client();
        client.action(&id, rest).await;
        needs_it(&client, &id).await;
        let body = json!({ "provider": stage.provider() });
        let receipt = client.post(&format!("/api/sessions/{id}/resume"), body).await["resume"].clone();
        assert_eq!(receipt["tier"], "native", "{receipt}");
        stage.say(&id, "and on").await;
    }
    // A server that dies leaves it in the memory of the shim, where the next one leaves it.
    stage.server.crash_and_start().await;
    stage.say(&id, "after the crash").await;
    let shown = stage.model.requests().pop().expect("a request")["body"].to_string();
    assert!(shown.contains("the tower is high"), "{shown}");
    let shim = stage.server.note(&id).await["shim"]["pid"].as_u64().expect("a pid") as u32;
    signal(shim, libc::SIGKILL);
    let client = stage.server.client();
    client.until_status(&id, "error").await;
    needs_it(&client, &id).await;
    client.post(&format!("/api/sessions/{id}/resume"), json!({ "provider": stage.provider() })).await;
    stage.say(&id, "and at last").await;
}

#[tokio::test]
async fn whoever_comes_back_brings_it_again() {
    is_brought_again("builtin").await;
}

#[tokio::test]
async fn whoever_comes_back_to_claude_code_brings_it_again() {
    is_brought_again("claude").await;
}

/// A sandbox that dies under an active session takes nothing along: the server has the key as long as that lasts.
#[tokio::test]
async fn an_active_session_outlives_its_sandbox() {
    let stage = Stage::set("builtin").await;
    let id = stage.create().await;
    stage.say(&id, "hello").await;
    let client = stage.server.client();
    let shim = stage.server.note(&id).await["shim"]["pid"].as_u64().expect("a pid") as u32;
    signal(shim, libc::SIGKILL);
    client.until_status(&id, "error").await;
    stage.say(&id, "and on").await;
}

/// Every byte that we wrote, and every byte that the agent can read.
async fn is_nowhere(runtime: &'static str) {
    let stage = Stage::set(runtime).await;
    let id = stage.create().await;
    let client = stage.server.client();
    let look = "run: env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; ls -la /run/ash; grep -rlaF \
                -e 4711 -e 0815 -s /workspace /home /tmp /run /etc; echo looked";
    stage.say(&id, look).await;
    let shown = stage.model.requests().pop().expect("a request")["body"].to_string();
    assert!(shown.contains("looked"), "{shown}");
    for secret in [OWN, HEADER] {
        stage.server.keeps_outside(secret, &shown);
        // The log of the server, and everything else that it wrote.
        let found =
            Command::new("grep").args(["-rlaF", secret]).arg(&stage.server.data).output().expect("grep");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
        assert!(!stage.server.log().contains(secret), "{}", stage.server.log());
        let processes = Command::new("sh")
            .args([
                "-c",
                "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -v grep",
            ])
            .output()
            .expect("looked");
        assert!(!String::from_utf8_lossy(&processes.stdout).contains(secret));
    }
    for path in ["", "/events?limit=1000", "/messages", "/checkpoints", "/logs"] {
        let answer = client.get(&format!("/api/sessions/{id}{path}")).await.to_string();
        assert!(!answer.contains(OWN) && !answer.contains(HEADER), "{path}: {answer}");
    }
}

#[tokio::test]
async fn it_is_nowhere() {
    is_nowhere("builtin").await;
}

#[tokio::test]
async fn it_is_nowhere_with_claude_code() {
    is_nowhere("claude").await;
}

/// What cannot be is refused, in words that do not repeat the key.
#[tokio::test]
async fn what_cannot_be_called_is_refused_by_name() {
    let stage = Stage::set("builtin").await;
    let client = stage.server.client();
    let own = |more: Value| {
        let mut provider = stage.provider();
        provider.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({ "agent": "builtin", "provider": provider })
    };
    let mut shared = own(json!({}));
    shared["workspace"] = json!("ours");
    for (body, status, code) in [
        (own(json!({ "type": "azure", "deploymentId": "d" })), 422, "provider_unsupported"),
        (own(json!({ "type": "openai" })), 422, "provider_unsupported"),
        (own(json!({ "baseUrl": "http://127.0.0.1:1" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "https://169.254.169.254/latest" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "https://localhost" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "unix:/run/docker.sock" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "https://user:word@models.example.com" })), 400, "invalid_body"),
        (own(json!({ "apiKey": 7 })), 400, "invalid_body"),
        (own(json!({ "apiKey": "two\nlines" })), 400, "invalid_body"),
        (own(json!({ "headers": { "Transfer-Encoding": "x" } })), 400, "invalid_body"),
        (shared, 422, "provider_shared"),
    ] {
        let (found, refused) = client.ask(Method::POST, "/api/sessions", Some(body.clone())).await;
        assert_eq!((found.as_u16(), &refused["code"]), (status, &json!(code)), "{body}: {refused}");
        assert!(!refused.to_string().contains(OWN), "{refused}");
    }
}
