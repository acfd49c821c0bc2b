//! What a session is told on create and on resume: visible, in force, and still so whatever happened in between.

use crate::{
    claude::program,
    model::Model,
    support::{Client, Server},
};
use reqwest::Method;
use serde_json::{Value, json};

struct Stage {
    server: Server,
    model: Model,
    _bucket: tempfile::TempDir,
    runtime: &'static str,
}

impl Stage {
    async fn set(runtime: &'static str) -> Stage {
        let bucket = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", bucket.path().display());
        let mut server = Server::prepare(&[
            ("ASH_CLAUDE_BIN", &program()),
            ("ANTHROPIC_API_KEY", "sk-outside"),
            ("ASH_SNAPSHOT_URL", &url),
        ]);
        let model = Model::start(&server.dir);
        server.set("ANTHROPIC_BASE_URL", &model.url);
        server.launch().await;
        let agent = server.dir.join("agent");
        std::fs::create_dir_all(&agent).expect("a folder");
        std::fs::write(agent.join("CLAUDE.md"), "Answer in one line.").expect("written");
        std::fs::write(agent.join("ash.toml"), format!("runtime = \"{runtime}\"\n")).expect("written");
        server.client().post("/api/agents", json!({ "name": runtime, "path": agent })).await;
        Stage { server, model, _bucket: bucket, runtime }
    }

    fn client(&self) -> Client {
        self.server.client()
    }

    /// The next message goes to the model as the options say, and they are shown as they were set.
    async fn is(&self, id: &str, wanted: &Wanted) {
        let client = self.client();
        let config = client.session(id).await["config"].clone();
        for (name, value) in [
            ("model", json!(wanted.model)),
            ("reasoningEffort", json!(wanted.effort)),
            ("streaming", json!(wanted.streaming)),
            ("availableTools", json!(wanted.tools)),
            ("disallowedTools", json!(["Write"])),
            ("appendSystemPrompt", json!(wanted.words)),
        ] {
            assert_eq!(config[name], value, "{name}: {config}");
        }
        let mut stream = client.send(id, "say: as the options say").await;
        let deltas = stream.rest().await.iter().filter(|frame| frame.event == "text_delta").count();
        assert_eq!(deltas > 0, wanted.streaming, "{deltas} deltas");
        let body = self.model.requests().pop().expect("a request")["body"].clone();
        assert_eq!(body["model"], wanted.model);
        assert_eq!(body["output_config"]["effort"], wanted.effort, "{}", body["output_config"]);
        let said = body["system"].to_string();
        assert!(said.contains(wanted.words), "{said}");
        let mut tools: Vec<String> = body["tools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|tool| tool["name"].as_str().map(str::to_lowercase))
            .collect();
        tools.sort();
        assert_eq!(tools, wanted.offered, "{}", self.runtime);
    }
}

struct Wanted {
    model: &'static str,
    effort: &'static str,
    streaming: bool,
    tools: &'static [&'static str],
    /// Of those the ones that are not excluded.
    offered: &'static [&'static str],
    words: &'static str,
}

async fn are_kept(runtime: &'static str) {
    let mut stage = Stage::set(runtime).await;
    let first = Wanted {
        model: "claude-opus-4-6",
        effort: "low",
        streaming: false,
        tools: &["Read", "Write"],
        offered: &["read"],
        words: "Speak of towers only.",
    };
    let body = json!({
        "agent": runtime, "model": first.model, "reasoningEffort": first.effort, "streaming": first.streaming,
        "availableTools": first.tools, "excludedTools": ["Write"],
        "systemMessage": { "mode": "append", "content": first.words },
    });
    let made = stage.client().post("/api/sessions", body).await;
    let id = made["session"]["id"].as_str().expect("an id").to_owned();
    stage.is(&id, &first).await;
    for rest in ["pause", "stop"] {
        stage.client().action(&id, rest).await;
        stage.client().action(&id, "resume").await;
        stage.is(&id, &first).await;
    }
    stage.server.crash_and_start().await;
    stage.is(&id, &first).await;

    let second = Wanted {
        model: "claude-sonnet-4-6",
        effort: "high",
        streaming: true,
        tools: &["Read", "Edit", "Write"],
        offered: &["edit", "read"],
        words: "Speak of water only.",
    };
    stage.client().action(&id, "stop").await;
    let body = json!({
        "model": second.model, "reasoningEffort": second.effort, "streaming": second.streaming,
        "availableTools": second.tools, "systemMessage": second.words,
    });
    stage.client().post(&format!("/api/sessions/{id}/resume"), body).await;
    stage.is(&id, &second).await;
    crate::far::until_remote(&stage.client(), &id).await;
    stage.server.lose_the_machine().await;
    stage.client().action(&id, "resume").await;
    stage.is(&id, &second).await;
}

#[tokio::test]
async fn what_the_built_in_agent_was_told_is_kept() {
    are_kept("builtin").await;
}

#[tokio::test]
async fn what_claude_code_was_told_is_kept() {
    are_kept("claude").await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let server = Server::start().await;
    let client = server.client();
    client.deploy("helper").await;
    for wrong in [
        json!({ "reasoningEffort": "enormous" }),
        json!({ "systemMessage": { "mode": "prepend", "content": "x" } }),
        json!({ "systemMessage": 7 }),
        json!({ "availableTools": "Read" }),
        json!({ "streaming": "yes" }),
        json!({ "idleTimeout": -1 }),
    ] {
        let mut body: Value = wrong.clone();
        body["agent"] = json!("helper");
        let (status, refused) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
        assert_eq!((status.as_u16(), &refused["code"]), (400, &json!("invalid_body")), "{wrong}: {refused}");
    }
}
