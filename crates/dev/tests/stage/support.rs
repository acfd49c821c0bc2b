//! A model server in this process, and helpers for its clients. Dropping it removes everything.

use ash_dev::{ListenAddress, ModelScript, ModelServer, ModelServerOptions};
use reqwest::Response;
use serde_json::{Value, json};
use std::{path::PathBuf, time::Duration};
use tempfile::TempDir;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    pub(crate) server: ModelServer,
    pub(crate) dir: TempDir,
    pub(crate) log: PathBuf,
}

pub(crate) fn directory() -> TempDir {
    tempfile::Builder::new().prefix("ash-test-").tempdir().expect("a directory")
}

impl Stage {
    pub(crate) async fn start() -> Stage {
        Stage::with("").await
    }

    pub(crate) async fn with(script: &str) -> Stage {
        Stage::on(ListenAddress::Tcp(([127, 0, 0, 1], 0).into()), script, directory()).await
    }

    pub(crate) async fn on(listen: ListenAddress, script: &str, dir: TempDir) -> Stage {
        let log = dir.path().join("log");
        let script = ModelScript::parse(script).expect("a script");
        let options = ModelServerOptions { listen, script, log: Some(log.clone()), window: None };
        Stage { server: ModelServer::start(options).await.expect("a server"), dir, log }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server.address())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> reqwest::Result<Response> {
        let client = reqwest::Client::builder().no_proxy().timeout(DEADLINE).build().expect("a client");
        client.post(self.url(path)).json(body).send().await
    }

    /// The response to a request without streaming.
    pub(crate) async fn ask(&self, body: &Value) -> (u16, Value) {
        let response = self.post("/v1/messages", body).await.expect("an answer");
        (response.status().as_u16(), response.json().await.expect("json"))
    }

    pub(crate) async fn say(&self, prompt: &str) -> (u16, Value) {
        self.ask(&request(prompt)).await
    }

    /// The received events of a stream, and whether the stream ended properly.
    pub(crate) async fn stream(&self, prompt: &str) -> (Vec<Value>, bool) {
        let mut body = request(prompt);
        body["stream"] = json!(true);
        let mut response = self.post("/v1/messages", &body).await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        let mut text = Vec::new();
        let whole = loop {
            match response.chunk().await {
                Ok(Some(bytes)) => text.extend_from_slice(&bytes),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        (events(&String::from_utf8(text).expect("text")), whole)
    }

    pub(crate) fn logged(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).expect("a log");
        text.lines().map(|line| serde_json::from_str(line).expect("json")).collect()
    }

    /// Waits until the log satisfies the condition.
    pub(crate) async fn until(&self, holds: impl Fn(&[String]) -> bool) {
        let waiting = async {
            while !holds(&self.answered()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waiting).await.expect("the log says so in time");
    }

    pub(crate) fn answered(&self) -> Vec<String> {
        self.logged().iter().map(|line| line["answered"].as_str().expect("a reason").to_owned()).collect()
    }
}

pub(crate) fn request(prompt: &str) -> Value {
    json!({
        "model": "test-model",
        "max_tokens": 4096,
        "messages": [{ "role": "user", "content": prompt }],
        "tools": [{ "name": "Bash" }, { "name": "AskUserQuestion" }],
    })
}

/// Parses a stream of events; each has a name, one line of data, and the name equals the data's type.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let frames = text.split_terminator("\n\n").map(|frame| {
        let (name, data) = frame.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("json");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    frames.collect()
}

/// The joined text of all deltas of one kind.
pub(crate) fn gathered(events: &[Value], field: &str) -> String {
    events.iter().filter_map(|event| event["delta"][field].as_str()).collect()
}
