//! Keys of clients: they work, are stored nowhere, and a client must send them again to resume a session.

use crate::support::{Client, Server, claude::program, cmdline, model::Model, own_uid, pids, signal};
use reqwest::Method;
use serde_json::{Value, json};
use std::{os::unix::fs::MetadataExt, process::Command};

const OWN: &str = "sk-brought-by-the-client-4711";
const HEADER: &str = "gate-pass-of-the-client-0815";

/// The services that clients have keys for.
#[derive(Clone, Copy, PartialEq)]
enum Service {
    Anthropic,
    OpenAi,
    Azure,
}

impl Service {
    fn provider(self, model: &Model) -> Value {
        let url = &model.url;
        let mut provider = match self {
            Service::Anthropic => json!({ "type": "anthropic", "baseUrl": url }),
            Service::OpenAi => json!({ "type": "openai", "baseUrl": format!("{url}/v1") }),
            Service::Azure => json!({ "type": "azure", "endpoint": url, "deploymentId": "ours" }),
        };
        provider["apiKey"] = json!(OWN);
        provider["headers"] = json!({ "X-Gate": HEADER });
        provider
    }

    /// What every client may see of it.
    fn shown(self, model: &Model) -> Value {
        let url = &model.url;
        match self {
            Service::Anthropic => json!({ "type": "anthropic", "baseUrl": url }),
            Service::OpenAi => json!({ "type": "openai", "baseUrl": format!("{url}/v1") }),
            Service::Azure => {
                json!({ "type": "azure", "baseUrl": url, "deploymentId": "ours", "apiVersion": "2024-10-21" })
            }
        }
    }

    /// The header with the key, and the path of the request.
    fn asked(self) -> (&'static str, String, &'static str) {
        match self {
            Service::Anthropic => ("x-api-key", OWN.to_owned(), "/v1/messages"),
            Service::OpenAi => ("authorization", format!("Bearer {OWN}"), "/v1/chat/completions"),
            Service::Azure => (
                "api-key",
                OWN.to_owned(),
                "/openai/deployments/ours/chat/completions?api-version=2024-10-21",
            ),
        }
    }

    /// Azure's deployment selects the model, so no name is needed.
    fn model(self) -> Option<&'static str> {
        match self {
            Service::Anthropic | Service::Azure => None,
            Service::OpenAi => Some("gpt-test"),
        }
    }
}

struct Stage {
    server: Server,
    model: Model,
    agent: &'static str,
    service: Service,
}

impl Stage {
    /// A server without any key.
    async fn set(runtime: &'static str, service: Service) -> Stage {
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
        Stage { server, model, agent: runtime, service }
    }

    fn provider(&self) -> Value {
        self.service.provider(&self.model)
    }

    async fn create(&self) -> String {
        let body = json!({ "agent": self.agent, "provider": self.provider(), "model": self.service.model() });
        let made = self.server.client().post("/api/sessions", body).await["session"].clone();
        assert_eq!(made["config"]["ownProvider"], self.service.shown(&self.model), "{made}");
        made["id"].as_str().expect("an id").to_owned()
    }

    async fn say(&self, id: &str, text: &str) {
        self.say_to(self.service, id, text).await;
    }

    /// The model was called with the client's key.
    async fn say_to(&self, service: Service, id: &str, text: &str) {
        let said = self.server.client().say(id, text).await;
        assert_eq!(said["status"], "done", "{said}");
        let last = self.model.requests().pop().expect("a request");
        let (header, key, path) = service.asked();
        assert_eq!(
            (&last["headers"][header], &last["headers"]["x-gate"]),
            (&json!(key), &json!(HEADER)),
            "{last}"
        );
        // Claude Code adds a query to its paths.
        assert!(last["path"].as_str().is_some_and(|asked| asked.starts_with(path)), "{last}");
    }

    async fn refused(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let (status, refused) = self.server.client().ask(method, path, Some(body)).await;
        assert!(!refused.to_string().contains(OWN), "{refused}");
        (status.as_u16(), refused)
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

/// The key is gone after every kind of rest, and the session continues once a client sends it again.
async fn is_brought_again(runtime: &'static str, service: Service) {
    let mut stage = Stage::set(runtime, service).await;
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
    // When a server dies, the shim still has the key in memory, and the next server leaves it there.
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
async fn a_resume_needs_the_key_again() {
    is_brought_again("builtin", Service::Anthropic).await;
}

#[tokio::test]
async fn a_resume_needs_the_key_again_for_openai() {
    is_brought_again("builtin", Service::OpenAi).await;
}

#[tokio::test]
async fn a_resume_needs_the_key_again_for_azure() {
    is_brought_again("builtin", Service::Azure).await;
}

#[tokio::test]
async fn a_resume_of_claude_code_needs_the_key_again() {
    is_brought_again("claude", Service::Anthropic).await;
}

/// The death of a sandbox under an active session does not lose the key: the server keeps it while the session is active.
#[tokio::test]
async fn an_active_session_outlives_its_sandbox() {
    for service in [Service::Anthropic, Service::OpenAi, Service::Azure] {
        let stage = Stage::set("builtin", service).await;
        let id = stage.create().await;
        stage.say(&id, "hello").await;
        let client = stage.server.client();
        let shim = stage.server.note(&id).await["shim"]["pid"].as_u64().expect("a pid") as u32;
        signal(shim, libc::SIGKILL);
        client.until_status(&id, "error").await;
        stage.say(&id, "and on").await;
    }
}

/// Searches every byte that we wrote, and every byte that the agent can read.
async fn is_nowhere(runtime: &'static str, service: Service) {
    let stage = Stage::set(runtime, service).await;
    let id = stage.create().await;
    let client = stage.server.client();
    let look = "run: env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; ls -la /run/ash; grep -rlaF \
                -e 4711 -e 0815 -s /workspace /home /tmp /run /etc; echo looked";
    stage.say(&id, look).await;
    let shown = stage.model.requests().pop().expect("a request")["body"].to_string();
    assert!(shown.contains("looked"), "{shown}");
    for secret in [OWN, HEADER] {
        stage.server.keeps_outside(secret, &shown);
        // The server's log, and all its other files.
        let found =
            Command::new("grep").args(["-rlaF", secret]).arg(&stage.server.data).output().expect("grep");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
        assert!(!stage.server.log().contains(secret), "{}", stage.server.log());
        let shows = |pid: &u32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            // Searches of parallel tests have the key on their command lines.
            let cmdline = Some(cmdline(*pid)).filter(|line| !line.starts_with("grep ")).unwrap_or_default();
            cmdline.contains(secret) || String::from_utf8_lossy(&environ).contains(secret)
        };
        assert_eq!(pids().iter().find(|pid| shows(pid)), None);
    }
    for path in ["", "/events?limit=1000", "/messages", "/checkpoints", "/logs"] {
        let answer = client.get(&format!("/api/sessions/{id}{path}")).await.to_string();
        assert!(!answer.contains(OWN) && !answer.contains(HEADER), "{path}: {answer}");
    }
}

#[tokio::test]
async fn the_key_is_stored_nowhere() {
    is_nowhere("builtin", Service::Anthropic).await;
}

#[tokio::test]
async fn the_key_is_stored_nowhere_with_openai() {
    is_nowhere("builtin", Service::OpenAi).await;
}

#[tokio::test]
async fn the_key_is_stored_nowhere_with_azure() {
    is_nowhere("builtin", Service::Azure).await;
}

#[tokio::test]
async fn the_key_is_stored_nowhere_with_claude_code() {
    is_nowhere("claude", Service::Anthropic).await;
}

fn core_limit(pid: u32) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line").to_owned()
}

/// A process with keys in memory does not write them to a core dump, whatever the limit of the machine is. /proc shows
/// root as the owner of a process whose memory is private, which proves that no other collector of dumps gets the memory
/// either.
#[tokio::test]
async fn neither_server_nor_shim_leaves_a_core_dump() {
    let mut most = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both are given a whole structure; this process runs this test alone.
    unsafe {
        libc::getrlimit(libc::RLIMIT_CORE, &raw mut most);
        if own_uid() == 0 {
            most.rlim_max = libc::RLIM_INFINITY;
        }
        most.rlim_cur = most.rlim_max;
        libc::setrlimit(libc::RLIMIT_CORE, &raw const most);
    }
    let own = core_limit(std::process::id());
    assert!(most.rlim_max == 0 || own.contains("unlimited"), "or nothing is tried: {own}");
    let server = Server::of_user(if own_uid() == 0 { 4711 } else { own_uid() }, &[]).await;
    let id = server.client().create().await;
    let shim = server.note(&id).await["shim"]["pid"].as_u64().expect("a pid") as u32;
    for pid in [server.pid(), shim] {
        let limit = core_limit(pid);
        let numbers: Vec<&str> = limit.split_whitespace().skip(4).take(2).collect();
        assert_eq!(numbers, ["0", "0"], "{limit}");
        let environ = std::fs::metadata(format!("/proc/{pid}/environ")).expect("it runs");
        assert_eq!(environ.uid(), 0, "its memory is not private");
    }
}

/// The conversation belongs to the session, whichever service answers next.
#[tokio::test]
async fn a_session_goes_on_with_another_service() {
    let stage = Stage::set("builtin", Service::Anthropic).await;
    let client = stage.server.client();
    let id = stage.create().await;
    stage.say(&id, "run: echo the tower is high").await;
    let resume = format!("/api/sessions/{id}/resume");
    let wanted = |service: Service| json!({ "provider": service.provider(&stage.model) });
    // With and without the old sandbox.
    client.action(&id, "pause").await;
    let (status, refused) = stage.refused(Method::POST, &resume, wanted(Service::OpenAi)).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("`model`")), "{refused}");
    let mut openai = wanted(Service::OpenAi);
    openai["model"] = json!("gpt-test");
    client.post(&resume, openai).await;
    stage.say_to(Service::OpenAi, &id, "run: echo and wide").await;
    client.action(&id, "stop").await;
    needs_it(&client, &id).await;
    client.post(&resume, wanted(Service::Azure)).await;
    stage.say_to(Service::Azure, &id, "and on").await;
    // The running turn ends with the old service, and the next turn uses the new one.
    let config = format!("/api/sessions/{id}/config");
    let mut turn = client.send(&id, "run: until [ -e go ]; do sleep 0.01; done").await;
    turn.until("tool_use").await;
    let (status, changed) = client.ask(Method::PATCH, &config, Some(wanted(Service::Anthropic))).await;
    assert_eq!(status.as_u16(), 200, "{changed}");
    let mut waiting = client.send(&id, "and while it runs").await;
    waiting.until("session_start").await;
    stage.server.let_go(&id, "go").await;
    assert_eq!(turn.rest().await.last().expect("an end").data["status"], "done");
    assert_eq!(waiting.rest().await.last().expect("an end").data["status"], "done");
    stage.say_to(Service::Anthropic, &id, "and at last").await;
    let shown = stage.model.requests().pop().expect("a request")["body"].to_string();
    for words in ["the tower is high", "and wide"] {
        assert!(shown.contains(words), "{shown}");
    }
}

/// The error says which agents can use the service and which cannot, and the refused options are not stored.
#[tokio::test]
async fn claude_code_is_not_given_a_service_that_it_does_not_speak() {
    let stage = Stage::set("claude", Service::Anthropic).await;
    let id = stage.create().await;
    stage.server.client().action(&id, "pause").await;
    for service in [Service::OpenAi, Service::Azure] {
        let mut body = json!({ "agent": "claude", "model": "m", "provider": service.provider(&stage.model) });
        let made = stage.refused(Method::POST, "/api/sessions", body.clone()).await;
        body.as_object_mut().expect("an object").remove("agent");
        let resumed = stage.refused(Method::POST, &format!("/api/sessions/{id}/resume"), body.clone()).await;
        let changed = stage.refused(Method::PATCH, &format!("/api/sessions/{id}/config"), body).await;
        for (status, refused) in [made, resumed, changed] {
            assert_eq!((status, &refused["code"]), (422, &json!("provider_unsupported")), "{refused}");
            let error = refused["error"].as_str().expect("words");
            assert!(
                error.starts_with("Claude Code cannot") && error.contains("runtime = \"builtin\""),
                "{error}"
            );
        }
    }
    let shown = stage.server.client().session(&id).await;
    assert_eq!(shown["config"]["ownProvider"], Service::Anthropic.shown(&stage.model), "{shown}");
    assert_eq!(shown["config"]["model"], Value::Null, "{shown}");
}

/// Invalid services are refused, in an error that does not repeat the key.
#[tokio::test]
async fn invalid_services_are_refused_by_name() {
    let stage = Stage::set("builtin", Service::Anthropic).await;
    let of = |service: Service, more: Value| {
        let mut provider = service.provider(&stage.model);
        provider.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({ "agent": "builtin", "provider": provider })
    };
    let own = |more: Value| of(Service::Anthropic, more);
    let mut shared = own(json!({}));
    shared["workspace"] = json!("ours");
    for (body, status, code) in [
        (own(json!({ "type": "oracle" })), 422, "provider_unsupported"),
        (own(json!({ "deploymentId": "d" })), 400, "invalid_body"),
        (of(Service::OpenAi, json!({})), 400, "invalid_body"),
        (of(Service::OpenAi, json!({ "baseUrl": "http://127.0.0.1:1" })), 400, "invalid_body"),
        (of(Service::OpenAi, json!({ "apiVersion": "v" })), 400, "invalid_body"),
        (of(Service::Azure, json!({ "deploymentId": null })), 400, "invalid_body"),
        (of(Service::Azure, json!({ "deploymentId": "../../v1" })), 400, "invalid_body"),
        (of(Service::Azure, json!({ "deploymentId": "a/b" })), 400, "invalid_body"),
        (of(Service::Azure, json!({ "apiVersion": "1&x=y" })), 400, "invalid_body"),
        (of(Service::Azure, json!({ "endpoint": null })), 400, "invalid_body"),
        (of(Service::Azure, json!({ "endpoint": "https://10.0.0.1" })), 400, "invalid_body"),
        (of(Service::Azure, json!({ "apiKey": null, "headers": {} })), 400, "invalid_body"),
        (json!({ "agent": "builtin", "model": "m", "provider": { "type": "openai" } }), 400, "invalid_body"),
        (json!({ "agent": "builtin", "provider": "azure" }), 400, "invalid_body"),
        (own(json!({ "baseUrl": "http://127.0.0.1:1" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "https://169.254.169.254/latest" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "https://localhost" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "unix:/run/docker.sock" })), 400, "invalid_body"),
        (own(json!({ "baseUrl": "https://user:word@models.example.com" })), 400, "invalid_body"),
        (own(json!({ "apiKey": 7 })), 400, "invalid_body"),
        (own(json!({ "apiKey": "two\nlines" })), 400, "invalid_body"),
        (own(json!({ "headers": { "Transfer-Encoding": "x" } })), 400, "invalid_body"),
        (own(json!({ "headers": { "Host": "elsewhere.example" } })), 400, "invalid_body"),
        (own(json!({ "headers": { "X-Forwarded-For": "10.0.0.1" } })), 400, "invalid_body"),
        (own(json!({ "headers": { "Keep-Alive": "1" } })), 400, "invalid_body"),
        (shared, 422, "provider_shared"),
    ] {
        let (found, refused) = stage.refused(Method::POST, "/api/sessions", body.clone()).await;
        assert_eq!((found, &refused["code"]), (status, &json!(code)), "{body}: {refused}");
    }
}

/// A repeated request gets the stored answer, because that needs no call.
#[tokio::test]
async fn a_repeated_request_gets_its_answer_without_the_key() {
    let stage = Stage::set("builtin", Service::Anthropic).await;
    let (id, client) = (stage.create().await, stage.server.client());
    let send = async || {
        let request = client.request(Method::POST, &format!("/api/sessions/{id}/messages"));
        let request = request.json(&json!({ "content": "say: hello" })).header("idempotency-key", "once");
        let response = request.header("accept", "application/json").send().await.expect("sent");
        response.json::<Value>().await.expect("json")
    };
    let first = send().await;
    assert_eq!(first["text"], "hello", "{first}");
    client.action(&id, "pause").await;
    assert_eq!(send().await, first);
    assert_eq!(client.status(&id).await, "paused");
    needs_it(&client, &id).await;
}

/// The client's key gives access only to the model calls of its service.
#[tokio::test]
async fn an_agent_may_call_only_what_talks_with_the_clients_model() {
    for service in [Service::Anthropic, Service::OpenAi, Service::Azure] {
        let stage = Stage::set("builtin", service).await;
        let id = stage.create().await;
        let calls = match service {
            Service::Anthropic => ["GET /v1/files", "POST /chat/completions", "POST /responses"],
            Service::OpenAi | Service::Azure => ["GET /v1/files", "GET /files", "POST /v1/messages"],
        };
        for call in calls {
            let refused = by_hand(&stage.server.client(), &id, call).await;
            assert!(refused.contains("permission_error") && refused.ends_with(" 403"), "{call}: {refused}");
        }
        assert_eq!(stage.model.requests().len(), 0, "none of them went out");
        stage.say(&id, "hello").await;
    }
}

/// The response to a request from inside the sandbox, and its status.
pub async fn by_hand(client: &Client, id: &str, call: &str) -> String {
    let (method, path) = call.split_once(' ').expect("a method and a path");
    let command = format!(
        "curl -sS --max-time 20 --unix-socket /run/ash/model.sock -w ' %{{http_code}}' -X {method} \
         http://localhost{path}"
    );
    let done = client.exec(id, &command).await;
    done["stdout"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn the_operator_decides_which_services_clients_may_bring_keys_for() {
    let provider = |url: &str| json!({ "type": "openai", "baseUrl": url, "apiKey": "k" });
    let (listed, other) = ("https://gate.example.com/team/v1", "https://api.openai.com/v1");
    let urls = ("ASH_PROVIDER_URLS", "https://gate.example.com/team");
    for (setting, url, expected) in [
        (None, other, None),
        (None, listed, None),
        (Some("public"), other, None),
        (Some("list"), listed, None),
        (Some("list"), "https://gate.example.com/team-b/v1", Some("provider_not_listed")),
        (Some("list"), other, Some("provider_not_listed")),
        (Some("off"), other, Some("own_providers_off")),
        (Some("off"), listed, Some("own_providers_off")),
    ] {
        let own = setting.map(|setting| ("ASH_OWN_PROVIDERS", setting));
        let server = Server::with(&own.into_iter().chain([urls]).collect::<Vec<_>>()).await;
        let client = server.client();
        client.deploy("tester").await;
        let id = client.create().await;
        let (config, resume) = (format!("/api/sessions/{id}/config"), format!("/api/sessions/{id}/resume"));
        for (method, path) in [
            (Method::POST, "/api/sessions"),
            (Method::PATCH, config.as_str()),
            (Method::POST, resume.as_str()),
        ] {
            let mut body = json!({ "model": "m", "provider": provider(url) });
            if path == "/api/sessions" {
                body["agent"] = json!("tester");
            }
            let (status, answer) = client.ask(method.clone(), path, Some(body)).await;
            match expected {
                Some(code) => assert_eq!(
                    (status.as_u16(), answer["code"].as_str()),
                    (403, Some(code)),
                    "{setting:?} {method} {path} {url}: {answer}"
                ),
                None => assert!(status.is_success(), "{setting:?} {method} {path} {url}: {answer}"),
            }
        }
    }
}
