//! Stored credentials: their key reaches the model, is nowhere inside of a sandbox and nowhere in plain text, and works
//! again after every rest and crash, until the credential is deleted.

use crate::support::{
    Client, Server, claude::program, cmdline, model::Model, pids, remote::until_remote, signal,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::{path::Path, process::Command};

const SECRET: &str = "sk-stored-for-the-tenant-1889";

#[derive(Clone, Copy)]
enum Service {
    Anthropic,
    OpenAi,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Anthropic => "anthropic",
            Service::OpenAi => "openai",
        }
    }

    fn header(self, secret: &str) -> (&'static str, String) {
        match self {
            Service::Anthropic => ("x-api-key", secret.to_owned()),
            Service::OpenAi => ("authorization", format!("Bearer {secret}")),
        }
    }
}

struct Stage {
    server: Server,
    model: Model,
    bucket: tempfile::TempDir,
    runtime: &'static str,
    service: Service,
}

impl Stage {
    /// A server without any key of its own.
    async fn set(runtime: &'static str, service: Service) -> Stage {
        let bucket = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", bucket.path().display());
        let mut server = Server::prepare(&[("ASH_CLAUDE_BIN", &program()), ("ASH_SNAPSHOT_URL", &url)]);
        let model = Model::start(&server.dir);
        server.set("ASH_PROVIDER_URLS", &model.url);
        server.launch().await;
        let agent = server.dir.join("agent");
        std::fs::create_dir_all(&agent).expect("a folder");
        std::fs::write(agent.join("CLAUDE.md"), "Answer in one line.").expect("written");
        std::fs::write(agent.join("ash.toml"), format!("runtime = \"{runtime}\"\n")).expect("written");
        server.client().post("/api/agents", json!({ "name": runtime, "path": agent })).await;
        Stage { server, model, bucket, runtime, service }
    }

    async fn store(&self, client: &Client, secret: &str) -> String {
        let body = json!({ "type": self.service.name(), "key": secret });
        let made = client.post("/api/credentials", body).await["credential"].clone();
        made["id"].as_str().expect("an id").to_owned()
    }

    /// The options of a session that uses the credential.
    fn options(&self, credential: &str) -> Value {
        let base = match self.service {
            Service::Anthropic => self.model.url.clone(),
            Service::OpenAi => format!("{}/v1", self.model.url),
        };
        let provider = json!({ "type": self.service.name(), "baseUrl": base });
        match self.service {
            Service::Anthropic => json!({ "credentialId": credential, "provider": provider }),
            Service::OpenAi => {
                json!({ "credentialId": credential, "provider": provider, "model": "gpt-test" })
            }
        }
    }

    async fn create(&self, client: &Client, credential: &str) -> String {
        let mut body = self.options(credential);
        body["agent"] = json!(self.runtime);
        let made = client.post("/api/sessions", body).await["session"].clone();
        assert_eq!(made["config"]["credentialId"], credential, "{made}");
        made["id"].as_str().expect("an id").to_owned()
    }

    /// The model was called with this key.
    async fn say_with(&self, client: &Client, (id, secret): (&str, &str), text: &str) {
        let said = client.say(id, text).await;
        assert_eq!(said["status"], "done", "{said}");
        let last = self.model.requests().pop().expect("a request");
        let (header, value) = self.service.header(secret);
        assert_eq!(last["headers"][header], value, "{last}");
    }
}

fn last_used(listed: &Value) -> &Value {
    &listed["credentials"][0]["lastUsedAt"]
}

/// The key works after every kind of rest, and no client sends it again.
async fn works_after_every_rest(runtime: &'static str, service: Service) {
    let mut stage = Stage::set(runtime, service).await;
    let client = stage.server.client();
    let credential = stage.store(&client, SECRET).await;
    assert_eq!(last_used(&client.get("/api/credentials").await), &Value::Null);
    let id = stage.create(&client, &credential).await;
    assert!(last_used(&client.get("/api/credentials").await).is_string());
    stage.say_with(&client, (&id, SECRET), "the tower is high").await;
    for rest in ["pause", "stop"] {
        client.action(&id, rest).await;
        let receipt = client.action(&id, "resume").await["resume"].clone();
        assert_eq!(receipt["tier"], "native", "{receipt}");
        stage.say_with(&client, (&id, SECRET), "and on").await;
    }
    // With the sandbox that outlived the server, and without it.
    stage.server.crash_and_start().await;
    let client = stage.server.client();
    stage.say_with(&client, (&id, SECRET), "after the crash").await;
    client.action(&id, "stop").await;
    stage.server.crash_and_start().await;
    let client = stage.server.client();
    client.action(&id, "resume").await;
    stage.say_with(&client, (&id, SECRET), "after another").await;
    let shim = stage.server.note(&id).await["shim"]["pid"].as_u64().expect("a pid") as u32;
    signal(shim, libc::SIGKILL);
    client.until_status(&id, "error").await;
    stage.say_with(&client, (&id, SECRET), "and at last").await;
    let shown = stage.model.requests().pop().expect("a request")["body"].to_string();
    assert!(shown.contains("the tower is high"), "{shown}");
    // A fork inherits it.
    let fork = client.post(&format!("/api/sessions/{id}/fork"), json!({})).await["session"].clone();
    assert_eq!(fork["config"]["credentialId"], credential, "{fork}");
    let fork = fork["id"].as_str().expect("an id");
    client.action(fork, "resume").await;
    stage.say_with(&client, (fork, SECRET), "and beside").await;
}

#[tokio::test]
async fn a_stored_key_works_after_every_rest_and_crash() {
    works_after_every_rest("builtin", Service::Anthropic).await;
}

#[tokio::test]
async fn a_stored_key_works_after_every_rest_and_crash_for_openai() {
    works_after_every_rest("builtin", Service::OpenAi).await;
}

#[tokio::test]
async fn a_stored_key_works_after_every_rest_and_crash_for_claude_code() {
    works_after_every_rest("claude", Service::Anthropic).await;
}

fn holders(dir: &Path, secret: &str) -> String {
    let found = Command::new("grep").args(["-rlaF", secret]).arg(dir).output().expect("grep");
    String::from_utf8_lossy(&found.stdout).into_owned()
}

/// Searches every byte that we wrote, and every byte that the agent can read.
async fn is_sealed(runtime: &'static str, service: Service) {
    let stage = Stage::set(runtime, service).await;
    let client = stage.server.client();
    let credential = stage.store(&client, SECRET).await;
    let id = stage.create(&client, &credential).await;
    let look = "run: env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; ls -la /run/ash; grep -rlaF \
                -e 1889 -s /workspace /home /tmp /run /etc; echo looked";
    stage.say_with(&client, (&id, SECRET), look).await;
    let shown = stage.model.requests().pop().expect("a request")["body"].to_string();
    assert!(shown.contains("looked"), "{shown}");
    stage.server.keeps_outside(SECRET, &shown);
    assert!(!stage.server.log().contains(SECRET), "{}", stage.server.log());
    let shows = |pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        // Searches of parallel tests have the key on their command lines.
        let cmdline = Some(cmdline(*pid)).filter(|line| !line.starts_with("grep ")).unwrap_or_default();
        cmdline.contains(SECRET) || String::from_utf8_lossy(&environ).contains(SECRET)
    };
    assert_eq!(pids().iter().find(|pid| shows(pid)), None);
    for path in ["", "/events?limit=1000", "/messages", "/checkpoints", "/logs"] {
        let answer = client.get(&format!("/api/sessions/{id}{path}")).await.to_string();
        assert!(!answer.contains(SECRET), "{path}: {answer}");
    }
    let audit = client.get("/api/audit").await.to_string();
    assert!(audit.contains(&credential) && !audit.contains(SECRET), "{audit}");
    client.action(&id, "stop").await;
    until_remote(&client, &id).await;
    assert_eq!(holders(&stage.server.data, SECRET), "");
    assert_eq!(holders(stage.bucket.path(), SECRET), "");
}

#[tokio::test]
async fn a_stored_key_is_nowhere_in_plain_text() {
    is_sealed("builtin", Service::Anthropic).await;
}

#[tokio::test]
async fn a_stored_key_is_nowhere_in_plain_text_with_claude_code() {
    is_sealed("claude", Service::Anthropic).await;
}

/// Nothing starts without the key, the refusal names the remedy, and the remedy works.
#[tokio::test]
async fn a_session_whose_credential_was_deleted_needs_another_one() {
    let mut stage = Stage::set("builtin", Service::Anthropic).await;
    let client = stage.server.client();
    let first = stage.store(&client, SECRET).await;
    let (active, stopped) = (stage.create(&client, &first).await, stage.create(&client, &first).await);
    for id in [&active, &stopped] {
        stage.say_with(&client, (id, SECRET), "the tower is high").await;
    }
    client.action(&stopped, "stop").await;
    client.delete(&format!("/api/credentials/{first}")).await;
    let refused = async |client: &Client, id: &str| {
        let resume = (format!("/api/sessions/{id}/resume"), json!({}));
        let message = (format!("/api/sessions/{id}/messages"), json!({ "content": "hello" }));
        for (path, body) in [resume, message] {
            let (status, refused) = client.ask(Method::POST, &path, Some(body)).await;
            assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("credential_gone")), "{refused}");
            assert!(refused["error"].as_str().is_some_and(|said| said.contains("credentialId")), "{refused}");
        }
    };
    let asked = stage.model.requests().len();
    // The second round asks a server that has seen neither the credential nor the sandbox begin.
    refused(&client, &stopped).await;
    let (status, answer) = client
        .ask(Method::POST, &format!("/api/sessions/{active}/messages"), Some(json!({ "content": "hello" })))
        .await;
    assert_eq!((status.as_u16(), &answer["code"]), (422, &json!("credential_gone")), "{answer}");
    stage.server.crash_and_start().await;
    let client = stage.server.client();
    refused(&client, &stopped).await;
    refused(&client, &active).await;
    assert_eq!(client.status(&stopped).await, "stopped");
    assert_eq!(stage.model.requests().len(), asked);
    let live = stage.server.live(&stopped).await;
    let run = live.to_string_lossy().into_owned();
    assert_eq!(pids().into_iter().map(cmdline).find(|line| line.contains(&run)), None);
    // Another credential, and then the client's own key.
    let second = stage.store(&client, "sk-another-1890").await;
    for id in [&stopped, &active] {
        client.post(&format!("/api/sessions/{id}/resume"), stage.options(&second)).await;
        stage.say_with(&client, (id, "sk-another-1890"), "and on").await;
    }
    let shown = stage.model.requests().pop().expect("a request")["body"].to_string();
    assert!(shown.contains("the tower is high"), "{shown}");
    let provider = json!({ "type": "anthropic", "baseUrl": stage.model.url, "apiKey": "sk-own-1891" });
    let config = format!("/api/sessions/{active}/config");
    let (status, changed) = client.ask(Method::PATCH, &config, Some(json!({ "provider": provider }))).await;
    assert_eq!(status.as_u16(), 200, "{changed}");
    assert_eq!(changed["session"]["config"]["credentialId"], Value::Null, "{changed}");
    stage.say_with(&client, (&active, "sk-own-1891"), "and with its own").await;
    let (status, changed) = client.ask(Method::PATCH, &config, Some(stage.options(&second))).await;
    assert_eq!(status.as_u16(), 200, "{changed}");
    stage.say_with(&client, (&active, "sk-another-1890"), "and back").await;
}

/// A key is for its owner's sessions, and an admin may give one to any.
#[tokio::test]
async fn an_owner_uses_its_own_credentials_and_those_that_an_admin_gave_its_session() {
    let stage = Stage::set("builtin", Service::Anthropic).await;
    let admin = stage.server.client();
    let owner = async |name: &str| {
        let made = admin.post("/api/api-keys", json!({ "owner": name })).await;
        stage.server.client_with(made["key"].as_str().expect("a key"))
    };
    let (alice, bob) = (owner("alice").await, owner("bob").await);
    let own = stage.store(&alice, SECRET).await;
    let id = stage.create(&alice, &own).await;
    stage.say_with(&alice, (&id, SECRET), "hello").await;
    let mut body = stage.options(&own);
    body["agent"] = json!("builtin");
    let (status, refused) = bob.ask(Method::POST, "/api/sessions", Some(body)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_credential")), "{refused}");
    assert_eq!(bob.get("/api/credentials").await["credentials"], json!([]));
    // The session that an admin makes for Bob continues with the admin's key, which Bob cannot send elsewhere.
    let common = stage.store(&admin, "sk-of-the-admin-1892").await;
    let mut body = stage.options(&common);
    (body["agent"], body["owner"]) = (json!("builtin"), json!("bob"));
    let given = admin.post("/api/sessions", body).await["session"]["id"].clone();
    let given = given.as_str().expect("an id");
    bob.action(given, "stop").await;
    bob.action(given, "resume").await;
    stage.say_with(&bob, (given, "sk-of-the-admin-1892"), "hello").await;
    let config = format!("/api/sessions/{given}/config");
    let elsewhere = json!({ "type": "anthropic", "baseUrl": format!("{}/elsewhere", stage.model.url) });
    for (body, code) in [
        (json!({ "provider": elsewhere }), "invalid_body"),
        (json!({ "provider": elsewhere, "credentialId": common }), "invalid_credential"),
    ] {
        let (status, refused) = bob.ask(Method::PATCH, &config, Some(body)).await;
        assert_eq!((status.as_u16(), &refused["code"]), (400, &json!(code)), "{refused}");
    }
}

/// Claude Code speaks one of the two, and a shared workspace has no session with a key of its own.
#[tokio::test]
async fn a_credential_that_the_runtime_or_the_workspace_cannot_use_is_refused() {
    let stage = Stage::set("claude", Service::OpenAi).await;
    let client = stage.server.client();
    let credential = stage.store(&client, SECRET).await;
    let mut body = stage.options(&credential);
    body["agent"] = json!("claude");
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("provider_unsupported")), "{refused}");
    let stored = client.post("/api/credentials", json!({ "type": "anthropic", "key": SECRET })).await;
    let id = &stored["credential"]["id"];
    let body = json!({ "agent": "claude", "credentialId": id, "workspace": "shared" });
    let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("provider_shared")), "{refused}");
}
