//! A server for the real Claude Code; only the model behind it is the scripted one.

use super::{Server, children, cmdline, model::Model};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

/// The key of the model, which no sandbox may see.
pub const SECRET: &str = "sk-only-outside";

/// Where ./test has installed it. Without it these tests fail, because a skipped test proves nothing.
pub fn program() -> String {
    std::env::var("ASH_TEST_CLAUDE").expect("ASH_TEST_CLAUDE names no Claude Code binary: run ./test")
}

pub struct Stage {
    pub server: Server,
    model: Model,
}

impl Stage {
    pub async fn set() -> Stage {
        Stage::with(&[]).await
    }

    pub async fn with(env: &[(&str, &str)]) -> Stage {
        let mut server = Server::prepare(&[("ASH_CLAUDE_BIN", &program()), ("ANTHROPIC_API_KEY", SECRET)]);
        env.iter().for_each(|(name, value)| server.set(name, value));
        let model = Model::start(&server.dir);
        server.set("ANTHROPIC_BASE_URL", &model.url);
        server.launch().await;
        Stage { server, model }
    }

    /// Sets the model's replies from now on.
    pub async fn script(&self, rules: Value) {
        let http = self.server.client().http;
        let sent = http.post(format!("{}/_script", self.model.url)).body(rules.to_string()).send().await;
        assert!(sent.expect("a model server").status().is_success(), "{rules}");
    }

    /// Uses another program in the place of Claude Code.
    pub async fn with_agent(mut self, program: &Path) -> Stage {
        self.server.kill9();
        let copy = self.server.dir.join("bin/claude");
        std::fs::create_dir(self.server.dir.join("bin")).expect("a folder");
        std::fs::copy(program, &copy).expect("copied");
        std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("made to run");
        self.server.set("ASH_CLAUDE_BIN", copy.to_str().expect("a name"));
        self.server.launch().await;
        self
    }

    pub async fn create(&self) -> String {
        self.create_with(json!({})).await
    }

    pub async fn create_with(&self, mut options: Value) -> String {
        let client = self.server.client();
        let agent = self.server.dir.join("agent");
        std::fs::create_dir_all(&agent).expect("a folder");
        std::fs::write(agent.join("CLAUDE.md"), "Answer in one line.").expect("written");
        std::fs::write(agent.join("ash.toml"), "runtime = \"claude\"\n").expect("written");
        client.post("/api/agents", json!({ "name": "coder", "path": agent })).await;
        options["agent"] = json!("coder");
        let made = client.post("/api/sessions", options).await;
        made["session"]["id"].as_str().expect("an id").to_owned()
    }

    /// All requests that the model received.
    pub fn requests(&self) -> Vec<Value> {
        self.model.requests()
    }

    /// The last request of a conversation, without title requests and the like, which Claude Code makes at any time.
    pub fn last_request(&self) -> Value {
        let of_conversation = |request: &Value| request["answered"] != "helper";
        self.requests().into_iter().rfind(of_conversation).expect("a request")
    }

    /// Sends a message, and checks that the model saw all earlier messages.
    pub async fn say(&self, id: &str, said: &mut Vec<String>) {
        let text = format!("message number {}", said.len() + 1);
        self.server.client().say(id, &text).await;
        said.push(text);
        let last = self.last_request();
        let shown = last["body"]["messages"].to_string();
        for before in said.iter() {
            assert!(shown.contains(before.as_str()), "{before:?} is forgotten: {shown}");
        }
        assert_eq!(last["headers"]["x-api-key"], SECRET);
    }

    pub async fn back(&self, id: &str) -> Value {
        self.server.client().action(id, "resume").await["resume"].clone()
    }

    /// The shim, the init and the agent.
    pub async fn processes(&self, id: &str) -> (u32, u32, u32) {
        let note = self.server.note(id).await;
        let pid = |who: &str| note[who]["pid"].as_u64().expect("a pid") as u32;
        let (shim, init) = (pid("shim"), pid("init"));
        let agent = children(init).into_iter().find(|pid| cmdline(*pid).contains("claude"));
        (shim, init, agent.expect("the agent"))
    }

    pub async fn agent(&self, id: &str) -> (u32, u32) {
        let (_, init, agent) = self.processes(id).await;
        (init, agent)
    }
}

pub fn assert_whole(receipt: &Value) {
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("native"), &json!(true)), "{receipt}");
    assert_eq!(receipt["lost"], json!([]), "{receipt}");
}

/// A program that reports this version.
pub fn pretend(program: &Path, version: &str) {
    let new = program.with_extension("new");
    fs::write(&new, format!("#!/bin/sh\necho '{version} (Claude Code)'\n")).expect("written");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("made to run");
    fs::rename(new, program).expect("renamed");
}
