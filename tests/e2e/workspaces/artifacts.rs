//! A session's plan and documents: readable for its clients, wherever the session is at the moment.

use crate::support::{Client, KEY, Server, claude, eventually, remote::until_remote, signal};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// A session's own folder, as a client sees it.
#[derive(Clone)]
struct Own {
    client: Client,
    id: String,
}

impl Own {
    async fn new(client: &Client, mut body: Value) -> Own {
        client.deploy("tester").await;
        body["agent"] = json!("tester");
        let made = client.post("/api/sessions", body).await;
        Own { client: client.clone(), id: made["session"]["id"].as_str().expect("an id").to_owned() }
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/sessions/{}/{rest}", self.id)
    }

    /// Written by the agent itself.
    async fn write(&self, plan: &str, notes: &str) {
        let dir = self.dir().await;
        self.client.say(&self.id, &format!("write {dir}/plan.md: {plan}")).await;
        self.client.say(&self.id, &format!("write {dir}/files/deep/notes.txt: {notes}")).await;
    }

    async fn run(&self, command: &str) {
        let said = self.client.say(&self.id, &format!("run: {command}")).await;
        assert_eq!(said["status"], "done", "{said}");
    }

    async fn dir(&self) -> String {
        let said = self.client.exec(&self.id, "printf %s $ASH_SESSION_DIR").await;
        said["stdout"].as_str().expect("a path").to_owned()
    }

    async fn plan(&self) -> Value {
        self.client.get(&self.path("plan")).await["plan"].clone()
    }

    async fn plan_at(&self, checkpoint: u64) -> Value {
        self.client.get(&self.path(&format!("plan?checkpoint={checkpoint}"))).await["plan"].clone()
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.client.get(&self.path("artifacts")).await;
        let artifacts = listed["artifacts"].as_array().expect("a list").iter();
        artifacts.map(|one| one["path"].as_str().expect("a path").to_owned()).collect()
    }

    async fn text(&self, name: &str) -> String {
        let response = self.client.request(Method::GET, &self.path(&format!("artifacts/{name}")));
        let response = response.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK, "{name}");
        response.text().await.expect("a text")
    }

    async fn refused(&self, rest: &str) -> (u16, String) {
        let (status, problem) = self.client.ask(Method::GET, &self.path(rest), None).await;
        (status.as_u16(), problem["code"].as_str().unwrap_or_default().to_owned())
    }

    async fn checkpoint(&self) -> u64 {
        self.client.session(&self.id).await["checkpoint"]["local"].as_u64().expect("a checkpoint")
    }

    async fn rewind(&self, checkpoint: u64, files: bool) {
        let body = json!({ "checkpoint": checkpoint, "files": files });
        self.client.post(&self.path("rewind"), body).await;
    }

    async fn fork(&self, body: Value) -> Own {
        let made = self.client.post(&self.path("fork"), body).await;
        let id = made["session"]["id"].as_str().expect("an id").to_owned();
        Own { client: self.client.clone(), id }
    }

    fn of(&self, server: &Server) -> Own {
        Own { client: server.client(), id: self.id.clone() }
    }

    /// The plan and the documents, and the source of the response.
    async fn holds(&self, plan: &str, notes: &str, source: &str) {
        let answer = self.client.get(&self.path("plan")).await;
        assert_eq!((&answer["plan"], &answer["source"]), (&json!(plan), &json!(source)), "{answer}");
        assert!(answer["updatedAt"].is_string(), "{answer}");
        let path = answer["path"].as_str().expect("a path");
        assert!(path.contains("/.ash/session/") && path.ends_with("/plan.md"), "{path}");
        let listed = self.client.get(&self.path("artifacts")).await;
        let one = &listed["artifacts"][0];
        assert_eq!((&one["path"], &one["size"]), (&json!("deep/notes.txt"), &json!(notes.len())), "{listed}");
        assert!(one["modifiedAt"].is_string() && listed["artifacts"][1].is_null(), "{listed}");
        assert_eq!(self.text("deep/notes.txt").await, notes);
        let shown = self.client.get(&self.path("artifacts/deep/notes.txt?format=json")).await;
        let expected =
            json!({ "path": "deep/notes.txt", "content": notes, "size": notes.len(), "source": source });
        assert_eq!(shown, expected);
    }
}

#[tokio::test]
async fn plan_and_documents_are_read_wherever_the_session_is() {
    let bucket = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", bucket.path().display());
    let mut server = Server::with(&[("ASH_SNAPSHOT_URL", &url)]).await;
    let own = Own::new(&server.client(), json!({ "sessionId": "user-123-task-456" })).await;
    let nothing = own.client.get(&own.path("plan")).await;
    assert_eq!((&nothing["plan"], &nothing["updatedAt"]), (&Value::Null, &Value::Null), "{nothing}");
    assert_eq!(own.names().await, [""; 0]);
    assert_eq!(own.refused("artifacts/notes.txt").await, (404, "file_not_found".to_owned()));

    own.write("# First look, then leap", "as was found").await;
    own.holds("# First look, then leap", "as was found", "sandbox").await;
    for (action, source) in [("pause", "sandbox"), ("resume", "sandbox"), ("stop", "snapshot")] {
        own.client.action(&own.id, action).await;
        own.holds("# First look, then leap", "as was found", source).await;
    }
    until_remote(&own.client, &own.id).await;
    server.crash_and_start().await;
    own.of(&server).holds("# First look, then leap", "as was found", "snapshot").await;
    let live = server.live(&own.id).await;
    server.kill9();
    std::fs::remove_dir_all(live).expect("deleted");
    server.launch().await;
    own.of(&server).holds("# First look, then leap", "as was found", "snapshot").await;
    own.of(&server).client.action(&own.id, "resume").await;
    own.of(&server).holds("# First look, then leap", "as was found", "sandbox").await;

    server.lose_the_machine().await;
    let own = own.of(&server);
    own.client.action(&own.id, "resume").await;
    own.holds("# First look, then leap", "as was found", "sandbox").await;
    let dir = own.dir().await;
    assert_eq!(own.client.text(&own.id, &format!("read {dir}/plan.md")).await, "# First look, then leap");
    own.client.delete(own.path("").trim_end_matches('/')).await;
    own.holds("# First look, then leap", "as was found", "snapshot").await;
}

#[tokio::test]
async fn a_rewind_brings_the_old_plan_back() {
    let server = Server::start().await;
    let own = Own::new(&server.client(), json!({})).await;
    own.write("one", "first").await;
    let then = own.checkpoint().await;
    own.write("two", "second").await;
    own.run("echo new > $ASH_SESSION_DIR/files/new.txt").await;
    let now = own.checkpoint().await;
    assert_eq!((own.plan_at(then).await, own.plan_at(now).await), (json!("one"), json!("two")));
    let older = format!("artifacts/deep/notes.txt?checkpoint={then}");
    assert_eq!(
        own.client
            .request(Method::GET, &own.path(&older))
            .send()
            .await
            .expect("it")
            .text()
            .await
            .expect("text"),
        "first"
    );
    assert_eq!(own.plan_at(0).await, Value::Null, "the agent's own files have no plan");
    assert_eq!(own.refused("plan?checkpoint=99").await.0, 404);

    own.rewind(then, false).await;
    own.holds("one", "first", "snapshot").await;
    own.client.action(&own.id, "resume").await;
    own.holds("one", "first", "sandbox").await;
    own.rewind(now, false).await;
    assert_eq!((own.plan().await, own.names().await.len()), (json!("two"), 2), "and forward again");
}

#[tokio::test]
async fn a_fork_begins_with_a_copy() {
    let server = Server::start().await;
    let own = Own::new(&server.client(), json!({})).await;
    own.write("one", "first").await;
    let fork = own.fork(json!({})).await;
    fork.holds("one", "first", "snapshot").await;
    let forks_fork = fork.fork(json!({})).await;
    for fork in [&fork, &forks_fork] {
        fork.client.action(&fork.id, "resume").await;
        fork.holds("one", "first", "sandbox").await;
    }
    let born = fork.checkpoint().await;
    // Before any checkpoint holds it, and after.
    let ahead = own.fork(json!({})).await;
    ahead.client.action(&ahead.id, "resume").await;
    ahead.client.exec(&ahead.id, "printf ahead > $ASH_SESSION_DIR/plan.md").await;
    ahead.holds("ahead", "first", "sandbox").await;
    signal(server.processes(&ahead.id).await.shim, libc::SIGKILL);
    ahead.client.until_status(&ahead.id, "error").await;
    ahead.client.action(&ahead.id, "resume").await;
    ahead.holds("ahead", "first", "sandbox").await;
    ahead.client.say(&ahead.id, "hello").await;
    ahead.holds("ahead", "first", "sandbox").await;
    own.holds("one", "first", "sandbox").await;
    fork.write("its own way", "second").await;
    fork.holds("its own way", "second", "sandbox").await;
    own.holds("one", "first", "sandbox").await;
    forks_fork.holds("one", "first", "sandbox").await;
    // To a point before the fork's first start, where it has its parent's documents.
    fork.rewind(born, false).await;
    assert_eq!(fork.plan_at(born).await, "one");
    fork.holds("one", "first", "snapshot").await;
    fork.client.action(&fork.id, "resume").await;
    fork.holds("one", "first", "sandbox").await;
}

#[tokio::test]
async fn sessions_of_one_workspace_have_a_plan_each() {
    let server = Server::start().await;
    let client = server.client();
    let (left, right) = (
        Own::new(&client, json!({ "workspace": "project" })).await,
        Own::new(&client, json!({ "workspace": "project" })).await,
    );
    assert_ne!(left.dir().await, right.dir().await);
    left.write("left one", "left first").await;
    let then = left.checkpoint().await;
    right.write("right one", "right first").await;
    left.write("left two", "left second").await;
    left.run("echo new > $ASH_SESSION_DIR/files/new.txt").await;
    let beside = left.fork(json!({ "workspace": "project" })).await;

    // A rewind of a conversation also rewinds its plan: what it had not written by then is gone.
    left.rewind(then, false).await;
    left.holds("left one", "left first", "sandbox").await;
    right.holds("right one", "right first", "sandbox").await;
    left.client.action(&left.id, "resume").await;
    left.holds("left one", "left first", "sandbox").await;
    assert_eq!(beside.plan().await, "left two");
    beside.client.action(&beside.id, "resume").await;
    assert_eq!((beside.plan().await, beside.names().await.len()), (json!("left two"), 2));
    beside.write("its own way", "third").await;
    left.holds("left one", "left first", "sandbox").await;

    // A rewind of all files keeps the own folders of the other sessions.
    right.run("rm -r $ASH_SESSION_DIR/files/deep; echo other > $ASH_SESSION_DIR/files/other.txt").await;
    left.rewind(then, true).await;
    left.holds("left one", "left first", "snapshot").await;
    assert_eq!((right.plan().await, right.names().await), (json!("right one"), vec!["other.txt".to_owned()]));
    assert_eq!(beside.plan().await, "its own way");
}

#[tokio::test]
async fn only_plans_are_read_and_nothing_leads_outside() {
    let server = Server::start().await;
    let own = Own::new(&server.client(), json!({})).await;
    own.write("one", "first").await;
    for (made, live, stored) in [
        ("ln -s /etc/passwd", (400, "not_a_file"), (400, "not_a_file")),
        ("ln -s ../../../.gitconfig", (400, "not_a_file"), (400, "not_a_file")),
        ("mkfifo", (400, "not_a_file"), (200, "")),
        ("mkdir", (400, "not_a_file"), (400, "not_a_file")),
        ("truncate -s 1G", (400, "file_too_large"), (400, "file_too_large")),
    ] {
        own.run(&format!("cd $ASH_SESSION_DIR && rm -rf plan.md && {made} plan.md")).await;
        let (status, code) = own.refused("plan").await;
        assert_eq!((status, code.as_str()), live, "{made}");
        let (status, code) = own.refused(&format!("plan?checkpoint={}", own.checkpoint().await)).await;
        assert_eq!((status, code.as_str()), stored, "{made}, from its checkpoint");
    }
    own.run("cd $ASH_SESSION_DIR/files && rm -r deep && ln -s /etc etc && ln -s /etc/passwd link && mkfifo fifo && printf x > \"$(printf 'a\\nb\\033[2Jc')\" && printf x > \"$(printf 'no\\377text')\" && truncate -s 1G big").await;
    let expected = ["a\nb\u{1b}[2Jc", "big", "no\u{fffd}text"];
    assert_eq!(own.names().await, expected);
    assert_eq!(own.text("a%0Ab%1B%5B2Jc").await, "x");
    for (path, refused) in [
        ("link", (400, "not_a_file")),
        ("etc/passwd", (400, "not_a_file")),
        ("fifo", (400, "not_a_file")),
        ("big", (400, "file_too_large")),
        ("..%2Fplan.md", (400, "invalid_path")),
        ("%2Fetc%2Fpasswd", (400, "invalid_path")),
        ("a%00b", (400, "invalid_path")),
        ("x?format=xml", (400, "invalid_query")),
    ] {
        let (status, code) = own.refused(&format!("artifacts/{path}")).await;
        assert_eq!((status, code.as_str()), refused, "{path}");
    }
    let ran = ash(&server, &["session", "artifacts", &own.id]).await;
    assert!(ran.contains("a\u{fffd}b\u{fffd}[2Jc") && !ran.contains('\u{1b}'), "{ran:?}");
    // From its checkpoint as well.
    own.client.action(&own.id, "stop").await;
    let live = server.live(&own.id).await;
    std::fs::remove_dir_all(live.join("tree")).expect("deleted");
    let at = own.checkpoint().await;
    let listed = own.client.get(&own.path(&format!("artifacts?checkpoint={at}"))).await;
    assert_eq!(listed["artifacts"].as_array().map(Vec::len), Some(3), "{listed}");
    for path in ["link", "etc/passwd", "fifo"] {
        let (status, _) = own.refused(&format!("artifacts/{path}?checkpoint={at}")).await;
        assert!([400, 404].contains(&status), "{path}: {status}");
    }
}

#[tokio::test]
async fn an_agent_that_gives_its_folder_away_has_none_and_goes_on() {
    let server = Server::start().await;
    let own = Own::new(&server.client(), json!({})).await;
    own.write("one", "first").await;
    own.run(
        "cd ~/.ash && rm -rf session && mkdir /workspace/elsewhere && ln -s /workspace/elsewhere session",
    )
    .await;
    let fork = own.fork(json!({})).await;
    own.client.action(&own.id, "stop").await;
    for own in [&own, &fork] {
        own.client.action(&own.id, "resume").await;
        assert_eq!(own.client.say(&own.id, "hello").await["status"], "done");
        assert_eq!(own.client.exec(&own.id, "ls /workspace/elsewhere").await["stdout"], "");
        assert_eq!(own.names().await, [""; 0]);
    }
    own.run("cd ~/.ash && rm session && ln -s /etc session").await;
    assert_eq!(own.refused("plan").await, (400, "not_a_file".to_owned()));
}

async fn ash(server: &Server, args: &[&str]) -> String {
    let mut command = Command::new(crate::support::ash());
    command.args(args).env_clear().env("PATH", std::env::var("PATH").expect("PATH")).stdin(Stdio::null());
    command.env("HOME", &server.dir).env("ASH_SERVER_URL", &server.url).env("ASH_API_KEY", KEY);
    command.current_dir(&server.dir);
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("a thread").expect("ash");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[tokio::test]
async fn the_command_line_shows_them() {
    let server = Server::start().await;
    let own = Own::new(&server.client(), json!({ "sessionId": "mine" })).await;
    assert_eq!(ash(&server, &["session", "plan", "mine"]).await, "");
    assert_eq!(ash(&server, &["session", "artifacts", "mine"]).await, "");
    own.write("one", "first").await;
    let then = own.checkpoint().await.to_string();
    own.write("two", "second").await;
    assert_eq!(ash(&server, &["session", "plan", "mine"]).await, "two\n");
    assert_eq!(ash(&server, &["session", "plan", "mine", "--checkpoint", &then]).await, "one\n");
    let listed = ash(&server, &["session", "artifacts", "mine"]).await;
    assert!(
        listed.contains("PATH") && listed.contains("deep/notes.txt") && listed.contains("6 B"),
        "{listed}"
    );
    let listed: Value =
        serde_json::from_str(&ash(&server, &["session", "artifacts", "mine", "--json"]).await).expect("json");
    assert_eq!(listed["artifacts"][0]["path"], "deep/notes.txt");
    assert_eq!(ash(&server, &["session", "artifacts", "mine", "deep/notes.txt"]).await, "second");
    ash(&server, &["session", "artifacts", "mine", "deep/notes.txt", "--out", "here.txt"]).await;
    assert_eq!(std::fs::read_to_string(server.dir.join("here.txt")).expect("written"), "second");
}

/// Claude Code invents a name for the plan's file, tells the model, and shows the plan when it asks for permission.
#[tokio::test]
async fn a_plan_of_claude_code_is_found_in_the_log() {
    let mut stage = claude::Stage::set().await;
    let id = stage.create_with(json!({ "permissionMode": "plan" })).await;
    let own = Own { client: stage.server.client(), id: id.clone() };
    own.client.say(&id, "hello").await;
    let before = own.checkpoint().await;
    assert_eq!(own.plan().await, Value::Null);
    let shown = stage.last_request()["body"].to_string();
    let start = shown.find("/home/agent/.claude/plans/").expect("where the plan goes");
    let file = shown[start..].split(".md").next().expect("a name").to_owned() + ".md";
    let write = json!({ "file_path": file, "content": "# First look, then leap" });
    stage
        .script(json!([
            { "when": { "contains": "make a plan" }, "reply": [{ "type": "tool_use", "name": "Write", "input": write }] },
            { "when": { "contains": "File created" }, "reply": [{ "type": "tool_use", "name": "ExitPlanMode", "input": {} }] },
        ]))
        .await;
    let mut stream = own.client.send(&id, "make a plan").await;
    stream.until("permission_request").await;
    let answer = own.client.get(&own.path("plan")).await;
    assert_eq!((&answer["plan"], &answer["source"]), (&json!("# First look, then leap"), &json!("log")));
    let asked = crate::support::permissions::until_asked(&own.client, &id).await;
    crate::support::permissions::allow(&own.client, &id, &asked).await;
    stream.until("done").await;
    assert_eq!(own.plan().await, "# First look, then leap");
    assert_eq!(own.plan_at(before).await, Value::Null);
    assert_eq!(own.fork(json!({})).await.plan().await, "# First look, then leap");
    stage.server.crash_and_start().await;
    let own = own.of(&stage.server);
    assert_eq!(own.plan().await, "# First look, then leap");
    // A plan that the session wrote itself comes first.
    own.client.exec(&id, "echo mine > $ASH_SESSION_DIR/plan.md").await;
    let answer = own.client.get(&own.path("plan")).await;
    assert_eq!((&answer["plan"], &answer["source"]), (&json!("mine\n"), &json!("sandbox")), "{answer}");
    eventually("it is at rest", async || (own.client.session(&id).await["openTurns"] == 0).then_some(()))
        .await;
    own.rewind(before, false).await;
    assert_eq!(own.plan().await, Value::Null, "it had none then");
}
