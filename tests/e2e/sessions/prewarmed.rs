//! Prewarmed sandboxes: a session cannot tell that it got one, no session gets the used sandbox of another, and none
//! outlives its use.

use crate::support::{Client, Server, claude::program, eventually, is_alive, model::Model, pids};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use reqwest::Method;
use serde_json::{Value, json};
use std::{collections::BTreeSet, path::PathBuf};

/// A server with a model, and agents of both runtimes.
struct Stage {
    server: Server,
    model: Model,
    _dir: tempfile::TempDir,
}

impl Stage {
    async fn set(uid: Option<u32>, prewarm: &str) -> Stage {
        // Another user has no access to the program that the tests installed.
        let claude = uid.is_none().then(|| ("ASH_CLAUDE_BIN", program()));
        let env = [
            Some(("ANTHROPIC_API_KEY", "sk-outside".to_owned())),
            Some(("ASH_PREWARM", prewarm.to_owned())),
            claude,
        ];
        let dir = tempfile::tempdir().expect("a directory");
        let model = Model::start(dir.path());
        let env: Vec<(&str, &str)> = env
            .iter()
            .flatten()
            .map(|(name, value)| (*name, value.as_str()))
            .chain([("ANTHROPIC_BASE_URL", model.url.as_str())])
            .collect();
        let server = match uid {
            Some(uid) => Server::of_user(uid, &env).await,
            None => Server::with(&env).await,
        };
        Stage { server, model, _dir: dir }
    }

    async fn deploy(&self, name: &str, runtime: &str, words: &str) -> Value {
        let toml = format!("runtime = \"{runtime}\"\n[limits]\nmaxProcesses = 200\nmaxOpenFiles = 999\n");
        let file = |path: &str, text: &str| json!({ "path": path, "content": BASE64.encode(text) });
        let files = [
            file("CLAUDE.md", words),
            file("ash.toml", &toml),
            file("deep/er/file.txt", "deep"),
            file("run.sh", "#!/bin/sh\necho run\n"),
        ];
        self.server.client().post("/api/agents", json!({ "name": name, "files": files })).await
    }
}

async fn pool(client: &Client) -> Value {
    client.get("/health").await["pool"].clone()
}

async fn until_warm(client: &Client, count: u64) {
    eventually(&format!("{count} are ready"), async || {
        let pool = pool(client).await;
        (pool["warm"] == count && pool["warming"] == 0).then_some(())
    })
    .await;
}

async fn hits(client: &Client) -> u64 {
    pool(client).await["preWarmHits"].as_u64().expect("a number")
}

async fn made(client: &Client, body: Value) -> String {
    client.post("/api/sessions", body).await["session"]["id"].as_str().expect("an id").to_owned()
}

/// Everything that is visible from inside a sandbox, except what differs between sessions or moments by nature.
const LOOK: &str = r#"
echo "== who"; id; hostname; pwd; umask
echo "== files"; cd / && find /workspace /home/agent -printf '%p %y %m %u %g %s %l\n' | grep -v '/home/agent/\.ash/\|/\.claude\|/sessions' | sort
echo "== contents"; find /workspace /home/agent/.gitconfig -type f | sort | xargs cat
echo "== environment"; env | sort
echo "== limits"; ulimit -a; cat /proc/self/limits
echo "== walls"; grep -E 'NoNewPrivs|Seccomp|Cap|Groups|Uid|Gid' /proc/self/status; cat /proc/self/oom_score_adj
echo "== mounts"; sed 's/[0-9]*:[0-9]* //; s/^[0-9]* [0-9]* //; s/ [^ ]*tree\/[a-z]* / TREE /; s/master:[0-9]*//' /proc/self/mountinfo | awk '{print $2, $3, $4}' | sort
echo "== processes"; all=$(ps -eo user,ni,args 2>/dev/null); echo "$all" | grep -v 'ps -eo\|sh -c' | sort
"#;

/// What a session and its model see, with the session's own names replaced by one name.
async fn portrait(stage: &Stage, body: &Value, asked: &str) -> (String, Value, Vec<String>, String) {
    let client = stage.server.client();
    let before = stage.model.requests().len();
    let id = made(&client, body.clone()).await;
    let inside = client.exec(&id, LOOK).await;
    assert_eq!(inside["exitCode"], 0, "{inside}");
    let said = client.say(&id, asked).await;
    assert_eq!(said["status"], "done", "{said}");
    let session = client.session(&id).await;
    let workspace = session["workspaceId"].as_str().expect("an id").to_owned();
    let stamp = std::fs::read_to_string(stage.server.live(&id).await.join("stamp")).expect("a stamp");
    let stamp: Value = serde_json::from_str(&stamp).expect("JSON");
    // A container shows the session's own uid.
    let uid = stamp["uid"].as_u64().map_or("no uid".to_owned(), |uid| uid.to_string());
    let own = |text: &str| text.replace(&id, "SESSION").replace(&workspace, "WORKSPACE").replace(&uid, "UID");
    let mut shown = session.clone();
    for moment in ["createdAt", "lastActiveAt", "resources", "ageSeconds"] {
        shown.as_object_mut().expect("a session").remove(moment).expect(moment);
    }
    for moment in ["firstAt", "lastAt"] {
        shown["usage"].as_object_mut().expect("usage").remove(moment).expect(moment);
    }
    let mut prompts = Vec::new();
    for request in &stage.model.requests()[before..] {
        let body = &request["body"];
        prompts.push(json!({ "model": body["model"], "system": body["system"], "tools": body["tools"], "messages": body["messages"] }));
    }
    let prompts = prompts.iter().map(|prompt| timeless(&own(&prompt.to_string()))).collect();
    let shown = serde_json::from_str(&own(&shown.to_string())).expect("JSON");
    (own(inside["stdout"].as_str().expect("text")), shown, prompts, id)
}

/// Removes times, random ids and their hashes, which differ between any two sessions.
fn timeless(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let run = bytes[at..].iter().take_while(|c| c.is_ascii_hexdigit() || **c == '-').count();
        if run >= 8 {
            out.push('#');
        } else {
            out.extend(&bytes[at..at + run]);
        }
        at += run;
        if let Some(next) = bytes.get(at) {
            out.push(*next);
        }
        at += 1;
    }
    out
}

async fn cannot_tell(uid: Option<u32>, runtime: &str) {
    let fresh = Stage::set(uid, "0").await;
    let warm = Stage::set(uid, "2").await;
    for stage in [&fresh, &warm] {
        stage.deploy("twin", runtime, "You are one of two.").await;
    }
    let client = warm.server.client();
    until_warm(&client, 2).await;
    let usual = json!({ "agent": "twin" });
    let special = json!({
        "agent": "twin", "model": "claude-opus-4-6", "env": { "TEAM": "red" }, "workingDirectory": "deep",
        "systemMessage": { "mode": "append", "content": "Speak of red." }, "idleTimeout": 777,
    });
    for body in [usual, special] {
        let before = hits(&client).await;
        let one = portrait(&fresh, &body, "run: pwd; echo $TEAM; cat /workspace/CLAUDE.md").await;
        let other = portrait(&warm, &body, "run: pwd; echo $TEAM; cat /workspace/CLAUDE.md").await;
        assert_eq!(hits(&client).await, before + 1, "it was one of those");
        similar(&one.0, &other.0);
        assert_eq!(one.1, other.1, "how it is shown");
        assert!(!one.2.is_empty());
        assert_eq!(one.2, other.2, "the request to its model");
        // It stays that way.
        client.action(&other.3, "stop").await;
        let said = client.text(&other.3, "run: cat /workspace/deep/er/file.txt; echo $TEAM").await;
        assert!(said.contains("deep"), "{said}");
        until_warm(&client, 2).await;
    }
    // Limits that are fixed at a sandbox's creation are the session's own as well.
    let tight = json!({ "agent": "twin", "limits": { "maxOpenFiles": 123, "memoryMb": 777 } });
    let one = portrait(&fresh, &tight, "run: ulimit -n").await;
    let other = portrait(&warm, &tight, "run: ulimit -n").await;
    similar(&one.0, &other.0);
    assert!(other.0.contains("123") && other.1["limits"]["maxOpenFiles"] == 123, "{}", other.1);
    assert_eq!(one.1, other.1);
}

/// Compares line by line, so that a failure shows the difference.
fn similar(one: &str, other: &str) {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (one, other) = (lines(one), lines(other));
    let differ: Vec<_> = one.symmetric_difference(&other).collect();
    assert!(differ.is_empty() && one.len() > 100, "{differ:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_cannot_tell_with_the_built_in_agent() {
    cannot_tell(None, "builtin").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_cannot_tell_with_claude_code() {
    cannot_tell(None, "claude").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_a_session_of_an_ordinary_users_server_cannot_tell() {
    cannot_tell(Some(61_003), "builtin").await;
}

/// The directories of workspaces without a session.
fn unclaimed(server: &Server) -> Vec<PathBuf> {
    let live = std::fs::read_dir(server.data.join("live")).expect("a folder").flatten();
    live.map(|entry| entry.path()).filter(|dir| dir.join("unclaimed").exists()).collect()
}

fn inits_of(server: &Server) -> Vec<u32> {
    let shims = unclaimed(server).into_iter().flat_map(|dir| {
        let note = std::fs::read_dir(dir.join("run")).into_iter().flatten().flatten();
        note.filter_map(|file| {
            let text = std::fs::read(file.path()).ok()?;
            let text = String::from_utf8_lossy(&text).trim_end_matches(['\0', ' ', '\n']).to_owned();
            serde_json::from_str::<Value>(&text).ok()?["init"]["pid"].as_u64()
        })
        .collect::<Vec<_>>()
    });
    shims.filter_map(|pid| u32::try_from(pid).ok()).collect()
}

/// No session gets one of another version, another agent or other limits; sandboxes without a use are removed.
#[tokio::test]
async fn each_is_for_one_version_of_one_agent() {
    let stage = Stage::set(None, "1").await;
    let client = stage.server.client();
    stage.deploy("one", "builtin", "first").await;
    until_warm(&client, 1).await;
    let first = inits_of(&stage.server);
    assert_eq!(first.len(), 1, "it is found");
    stage.deploy("other", "builtin", "another").await;
    until_warm(&client, 2).await;
    stage.deploy("one", "builtin", "second").await;
    eventually("the old one's goes", async || (!is_alive(first[0])).then_some(())).await;
    until_warm(&client, 2).await;
    for (agent, words) in [("one", "second"), ("other", "another")] {
        let before = hits(&client).await;
        let id = made(&client, json!({ "agent": agent })).await;
        assert_eq!(client.exec(&id, "cat CLAUDE.md").await["stdout"], words);
        assert_eq!(hits(&client).await, before + 1);
        until_warm(&client, 2).await;
    }
    let before = hits(&client).await;
    let body = json!({ "agent": "one", "limits": { "maxProcesses": 50 } });
    let id = made(&client, body).await;
    assert_eq!(hits(&client).await, before, "its walls are others");
    assert!(client.exec(&id, "true").await["exitCode"] == 0);
    let shared = made(&client, json!({ "agent": "one", "workspace": "ours" })).await;
    assert_eq!(
        (hits(&client).await, client.exec(&shared, "cat CLAUDE.md").await["stdout"].as_str()),
        (before, Some("second"))
    );
    client.delete("/api/agents/other").await;
    until_warm(&client, 1).await;
}

/// A dead one causes no trouble; neither does a crash or a stop of the server.
#[tokio::test]
async fn none_outlives_its_use() {
    let mut stage = Stage::set(None, "2").await;
    let client = stage.server.client();
    stage.deploy("one", "builtin", "here").await;
    until_warm(&client, 2).await;
    for pid in inits_of(&stage.server) {
        crate::support::signal(pid, libc::SIGKILL);
    }
    let id = made(&client, json!({ "agent": "one" })).await;
    assert_eq!(client.exec(&id, "cat CLAUDE.md").await["stdout"], "here", "another one was made");
    until_warm(&client, 2).await;

    let old = (inits_of(&stage.server), unclaimed(&stage.server));
    assert_eq!((old.0.len(), old.1.len()), (2, 2));
    stage.server.kill9();
    // A death after the database knew the session, and before its tree was marked as claimed.
    let claimed = std::fs::read_dir(stage.server.data.join("live")).expect("a folder").flatten();
    let claimed = claimed.map(|entry| entry.path()).find(|dir| !old.1.contains(dir)).expect("the session's");
    std::fs::write(claimed.join("unclaimed"), "").expect("written");
    stage.server.launch().await;
    assert!(claimed.exists() && !claimed.join("unclaimed").exists(), "it is the session's");
    assert!(old.1.iter().all(|dir| !dir.exists()), "the next server cleared up: {:?}", old.1);
    assert!(old.0.iter().all(|pid| !is_alive(*pid)));
    let client = stage.server.client();
    let read = client.text(&id, "read CLAUDE.md").await;
    assert!(read.contains("here"), "and harmed no session: {read}");
    made(&client, json!({ "agent": "one" })).await;
    until_warm(&client, 2).await;

    stage.server.leave().await;
    stage.server.launch().await;
    let client = stage.server.client();
    made(&client, json!({ "agent": "one" })).await;
    until_warm(&client, 2).await;

    stage.server.stop().await;
    assert_eq!(unclaimed(&stage.server), Vec::<PathBuf>::new(), "a server that ends leaves none");
    let data = stage.server.data.display().to_string();
    let left: Vec<u32> =
        pids().into_iter().filter(|pid| crate::support::cmdline(*pid).contains(&data)).collect();
    assert_eq!(left, Vec::<u32>::new());
}

/// An agent's own setting for their number, which applies from the start of the server.
#[tokio::test]
async fn an_agent_may_want_its_own() {
    let mut server = Server::start().await;
    let client = server.client();
    let toml = |count: u32| BASE64.encode(format!("runtime = \"builtin\"\n[sandbox]\nprewarm = {count}\n"));
    let deploy =
        |count: u32| json!({ "name": "eager", "files": [{ "path": "ash.toml", "content": toml(count) }] });
    client.deploy("tester").await;
    client.post("/api/agents", deploy(2)).await;
    until_warm(&client, 2).await;
    server.crash_and_start().await;
    let client = server.client();
    until_warm(&client, 2).await;
    made(&client, json!({ "agent": "eager" })).await;
    made(&client, json!({ "agent": "tester" })).await;
    assert_eq!(hits(&client).await, 1, "others want none");
    client.post("/api/agents", deploy(0)).await;
    until_warm(&client, 0).await;
    let (status, body) = client.ask(Method::POST, "/api/agents", Some(deploy(65))).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (400, Some("invalid_manifest")), "{body}");
}

/// An agent that the operator does not permit any more cannot use one, so the server creates none.
#[tokio::test]
async fn none_is_made_of_an_agent_that_may_not_start() {
    let mut server = Server::with(&[("ASH_ALLOW_USERNS", "1")]).await;
    let client = server.client();
    let deploy = |name: &str, more: &str| {
        let toml = format!("runtime = \"builtin\"\n[sandbox]\nprewarm = 1\n{more}");
        json!({ "name": name, "files": [{ "path": "ash.toml", "content": BASE64.encode(toml) }] })
    };
    client.post("/api/agents", deploy("nesting", "userNamespaces = true\n")).await;
    until_warm(&client, 1).await;
    server.set("ASH_ALLOW_USERNS", "0");
    server.crash_and_start().await;
    let client = server.client();
    // In this order, because the ones for the start would be there before this one.
    client.post("/api/agents", deploy("usual", "")).await;
    until_warm(&client, 1).await;
    made(&client, json!({ "agent": "usual" })).await;
    assert_eq!(hits(&client).await, 1, "that one is the usual one's");
}

/// They are the first to release their places, and never cause another sandbox to be released.
#[tokio::test]
async fn prewarmed_sandboxes_take_no_sessions_slot() {
    let server = Server::with(&[("ASH_PREWARM", "3"), ("ASH_MAX_SANDBOXES", "3")]).await;
    let client = server.client();
    let first = client.create().await;
    client.say(&first, "say: hello").await;
    until_warm(&client, 2).await;
    let (second, third) = (client.create().await, client.create().await);
    for id in [&first, &second, &third] {
        assert_eq!(client.status(id).await, "active");
        assert_eq!(client.exec(id, "echo $ASH_SESSION_ID").await["exitCode"], 0);
    }
    assert_eq!(pool(&client).await["warm"], 0, "there is no room left for any");
    let fourth = client.create().await;
    assert_eq!(client.status(&fourth).await, "active");
    eventually("there are three", async || (pool(&client).await["waiting"] == 3).then_some(())).await;
    let (_, body) = client.ask(Method::GET, "/health", None).await;
    assert_eq!(body["activeSandboxes"], 3, "{body}");
}
