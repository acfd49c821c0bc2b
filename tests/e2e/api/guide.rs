//! Sessions as in the guides of other SDKs: programs with the clients of other languages, against this server.

use crate::support::{KEY, Server, model::Model, python, remote::until_remote};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e/clients").join(name)
}

/// A program with a key, which reports its result.
struct Program<'p> {
    server: &'p Server,
    key: &'p str,
}

impl Program<'_> {
    /// JavaScript with only `fetch`.
    async fn node(&self, args: &[&str]) -> Value {
        let mut command = Command::new("node");
        command.arg(script("guide.mjs"));
        self.run(command, args).await
    }

    /// Python with the client from PyPI.
    async fn python(&self, args: &[&str]) -> Value {
        let mut command = Command::new(python());
        command.arg(script("guide.py"));
        self.run(command, args).await
    }

    async fn run(&self, mut command: Command, args: &[&str]) -> Value {
        command.args([&self.server.url, self.key]).args(args).env("NO_PROXY", "*").env("OWN_KEY", OWN);
        let done = tokio::task::spawn_blocking(move || command.output()).await.expect("a thread");
        let done = done.expect("a program");
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{args:?}: {out}\n{err}");
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{args:?}: {out}"))
    }
}

const OWN: &str = "sk-brought-by-a-program";

fn admin(server: &Server) -> Program<'_> {
    Program { server, key: KEY }
}

async fn start() -> Server {
    let server = Server::start().await;
    server.client().deploy("tester").await;
    server
}

fn remembers(text: &Value) {
    let text = text.as_str().expect("a text");
    assert!(text.contains("the first was: \"the tower is high\""), "{text}");
}

#[tokio::test]
async fn another_client_continues_a_session() {
    let mut server = start().await;
    let day_one = admin(&server).node(&["create", "user-123-task-456"]).await;
    assert_eq!(day_one, json!({ "id": "user-123-task-456", "status": "done" }));
    let uuid = admin(&server).python(&["name", "user-123-task-789"]).await;
    let uuid = uuid.as_str().expect("an id");
    assert_eq!(admin(&server).python(&["create", uuid]).await, uuid);

    server.stop().await;
    server.launch().await;
    let day_two = admin(&server).node(&["resume", uuid]).await;
    assert_eq!((&day_two["status"], &day_two["lost"]), (&json!("active"), &json!([])), "{day_two}");
    remembers(&day_two["text"]);
    remembers(&admin(&server).python(&["say", "user-123-task-456"]).await);
    server.crash_and_start().await;
    let day_three = admin(&server).python(&["resume", uuid]).await;
    assert_eq!((&day_three["id"], &day_three["status"]), (&json!(uuid), &json!("active")));
    remembers(&day_three["text"]);
}

#[tokio::test]
async fn a_container_is_replaced_and_its_sessions_come_back_from_the_bucket() {
    let bucket = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", bucket.path().display());
    let mut server = Server::with(&[("ASH_SNAPSHOT_URL", &url)]).await;
    server.client().deploy("tester").await;
    admin(&server).node(&["create", "session-x"]).await;
    until_remote(&server.client(), "session-x").await;
    server.lose_the_machine().await;
    let back = admin(&server).node(&["resume", "session-x"]).await;
    assert_eq!(back["lost"], json!([]), "{back}");
    remembers(&back["text"]);
}

#[tokio::test]
async fn a_resume_changes_options() {
    let server = start().await;
    admin(&server).node(&["create", "one", r#"{"model": "first"}"#]).await;
    server.client().action("one", "pause").await;
    let options = json!({
        "model": "second", "reasoningEffort": "high", "systemMessage": { "mode": "append", "content": "Be short." },
        "availableTools": ["Read"], "excludedTools": ["Write"], "streaming": false,
    });
    let resumed = admin(&server).node(&["resume", "one", &options.to_string()]).await;
    let expected = [
        ("model", json!("second")),
        ("reasoningEffort", json!("high")),
        ("appendSystemPrompt", json!("Be short.")),
        ("availableTools", json!(["Read"])),
        ("disallowedTools", json!(["Write"])),
        ("streaming", json!(false)),
    ];
    for (name, value) in expected {
        assert_eq!(resumed["config"][name], value, "{name}: {resumed}");
    }
    remembers(&resumed["text"]);
}

#[tokio::test]
async fn a_resume_sends_the_clients_key_again() {
    let mut server = Server::prepare(&[]);
    let model = Model::start(&server.dir);
    server.set("ASH_PROVIDER_URLS", &model.url);
    server.launch().await;
    server.client().deploy("tester").await;
    let came = admin(&server).node(&["ownKey", "own", &model.url]).await;
    assert_eq!(came["without"], json!([422, "provider_required"]), "{came}");
    assert_eq!(came["shown"], json!({ "type": "anthropic", "baseUrl": model.url }));
    assert_eq!(came["status"], "done");
    assert_eq!(model.requests().pop().expect("a request")["headers"]["x-api-key"], OWN);
}

#[tokio::test]
async fn ids_with_a_structure_are_found_by_it() {
    let server = start().await;
    let made = admin(&server).node(&["ids"]).await;
    let id = made["id"].as_str().expect("an id");
    assert!(id.starts_with("alice-code-review-"), "{id}");
    assert_eq!(made["hers"], json!([id]));
    let second = admin(&server).python(&["ids"]).await;
    assert!(second.as_str().expect("an id").starts_with("alice-code-review-"), "{second}");
    let listed = server.client().get("/api/sessions?idPrefix=alice-").await;
    assert_eq!(listed["total"], 2, "{listed}");
}

#[tokio::test]
async fn sessions_are_listed_and_those_that_are_too_old_are_deleted() {
    let server = start().await;
    let client = server.client();
    let at = async |id: &str| -> i64 {
        client.post("/api/sessions", json!({ "agent": "tester", "sessionId": id })).await;
        let created: jiff::Timestamp =
            client.session(id).await["createdAt"].as_str().expect("a time").parse().expect("a time");
        created.as_millisecond()
    };
    let (_, old, young) = (at("older").await, at("old").await, at("young").await);
    let listed = admin(&server).node(&["list"]).await;
    assert_eq!(listed, json!([["young", "string"], ["old", "string"], ["older", "string"]]));
    let (age, now) = ((young - old - 1).to_string(), young.to_string());
    let deleted = admin(&server).node(&["cleanup", &age, &now]).await;
    assert_eq!(deleted, json!(["old", "older"]));
    assert_eq!(admin(&server).node(&["list"]).await, json!([["young", "string"]]));
}

#[tokio::test]
async fn the_client_from_pypi_lists_and_cleans_up() {
    let server = start().await;
    let (one, two) = (server.client().create().await, server.client().create().await);
    let mut expected = [(one.clone(), "active"), (two, "ended")];
    expected.sort();
    assert_eq!(admin(&server).python(&["cleanup", &one]).await, json!(expected));
}

#[tokio::test]
async fn a_session_is_destroyed_whatever_happened_in_it() {
    let server = start().await;
    let came = admin(&server).node(&["destroy", "task"]).await;
    assert_eq!(came, json!({ "failure": "something else went wrong", "resumed": [410, "session_ended"] }));
    let kept = server.client().get("/api/sessions/task/files/done.txt?format=json").await;
    assert_eq!(kept["content"], "the task is complete", "what it left is still read");
    assert_eq!(admin(&server).python(&["destroy"]).await, "ended");
}

#[tokio::test]
async fn a_program_hears_that_a_session_is_idle_before_it_is_paused() {
    let server = start().await;
    let seen = admin(&server).node(&["idle", "quiet"]).await;
    let idle = ("session_idle", "number");
    assert_eq!(seen, json!([idle, ("timeout_warning", "number"), idle]));
}

#[tokio::test]
async fn a_session_is_resumed_by_its_owner_and_is_not_there_for_others() {
    let server = start().await;
    let mint = async |owner: &str| {
        let made = server.client().post("/api/api-keys", json!({ "owner": owner })).await;
        made["key"].as_str().expect("a key").to_owned()
    };
    let (alice, bob) = (mint("alice").await, mint("bob").await);
    let (alice, bob) = (Program { server: &server, key: &alice }, Program { server: &server, key: &bob });
    alice.node(&["create", "alice-report"]).await;
    assert_eq!(
        bob.node(&["resumeWithAuth", "alice-report"]).await,
        json!({ "refused": [404, "session_not_found"] })
    );
    assert_eq!(bob.python(&["foreign", "alice-report"]).await, json!([404, "session_not_found"]));
    assert_eq!(bob.node(&["list"]).await, json!([]));
    assert_eq!(alice.node(&["resumeWithAuth", "alice-report"]).await, "alice");
}

#[tokio::test]
async fn the_holder_of_the_lock_is_alone_with_the_session() {
    let server = start().await;
    let came = admin(&server).node(&["lock", "shared"]).await;
    let locked = json!([409, "session_locked"]);
    assert_eq!(came, json!({ "other": locked, "second": locked, "status": "done", "after": "done" }));
}

#[tokio::test]
async fn the_stored_data_of_a_session_is_shown() {
    let server = start().await;
    let kept = admin(&server).node(&["artifacts", "kept"]).await;
    assert_eq!(kept, json!({ "plan": "# Plan\n", "artifacts": ["analysis.md"], "checkpoints": 1 }));
}
