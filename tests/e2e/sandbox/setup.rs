//! Setup scripts of an agent: `install.sh` once per workspace, `startup.sh` at every start of a sandbox. Both run in the
//! sandbox like the agent, and clients can read their output.

use crate::support::{Client, Server, eventually};
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const ORDINARY_USER: u32 = 61_006;
/// Appends a line for each run, and uses only the workspace.
const INSTALL: &str = "#!/bin/bash\nset -euo pipefail\nlines=(one two)\necho \"${lines[1]} $ANSWER\"\necho complaint >&2\necho x >> installed\nmkdir -p ~/tool && echo tool > ~/tool/bin\n";
const STARTUP: &str = "echo starting\necho x >> started\n";

fn upload(files: &[(&str, &str)]) -> Vec<Value> {
    files.iter().map(|(path, text)| json!({ "path": path, "content": STANDARD.encode(text) })).collect()
}

async fn deploy(client: &Client, name: &str, files: &[(&str, &str)]) -> Value {
    let body = json!({ "name": name, "files": upload(files), "env": { "ANSWER": "42" } });
    client.post("/api/agents", body).await["agent"].clone()
}

async fn create(client: &Client, body: Value) -> (u16, Value) {
    let (status, body) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
    (status.as_u16(), body)
}

async fn session_of(client: &Client, agent: &str, id: &str) {
    let (status, body) = create(client, json!({ "agent": agent, "sessionId": id })).await;
    assert_eq!(status, 201, "{body}");
}

async fn run(client: &Client, id: &str, command: &str) -> String {
    client.exec(id, command).await["stdout"].as_str().expect("a text").to_owned()
}

async fn logs(client: &Client, id: &str, level: &str) -> Vec<String> {
    let logs = client.get(&format!("/api/sessions/{id}/logs")).await["logs"].clone();
    let lines = logs.as_array().expect("lines").iter().filter(|line| line["level"] == level);
    lines.map(|line| line["text"].as_str().expect("a text").to_owned()).collect()
}

/// How often each script has run, by the files that it left.
async fn times(client: &Client, id: &str) -> (usize, usize) {
    let counted = run(client, id, "cat installed | wc -l; cat started 2>/dev/null | wc -l").await;
    let mut numbers = counted.split_whitespace().map(|word| word.parse().expect("a number"));
    (numbers.next().expect("installed"), numbers.next().expect("started"))
}

async fn scripts_run_and_are_not_run_again(mut server: Server) {
    let mut client = server.client();
    let agent = deploy(&client, "own", &[("install.sh", INSTALL), ("startup.sh", STARTUP)]).await;
    assert_eq!(agent["needs"], json!({ "installSeconds": 600, "startupSeconds": 60 }));
    session_of(&client, "own", "one").await;
    assert_eq!(times(&client, "one").await, (1, 1));
    assert_eq!(logs(&client, "one", "startup").await, ["starting"]);
    let mut printed = logs(&client, "one", "install").await;
    printed.sort();
    assert_eq!(printed, ["complaint", "two 42"]);
    assert_eq!(
        run(&client, "one", "cat ~/tool/bin; stat -c %U installed ~/.ash/installed").await,
        "tool\nagent\nagent\n"
    );
    let listed = client.get("/api/sessions/one/files").await.to_string();
    assert!(listed.contains("\"installed\"") && !listed.contains(".ash"), "{listed}");

    // Warm: the same sandbox. Cold: a new one, with the same workspace.
    client.action("one", "pause").await;
    client.action("one", "resume").await;
    assert_eq!(times(&client, "one").await, (1, 1));
    client.action("one", "stop").await;
    client.action("one", "resume").await;
    assert_eq!(times(&client, "one").await, (1, 2));
    server.crash_and_start().await;
    client = server.client();
    assert_eq!(times(&client, "one").await, (1, 2), "a sandbox that lived on was not started");

    // A fork inherits the installation; another session installs for itself.
    client.say("one", "hello").await;
    let fork = client.post("/api/sessions/one/fork", json!({})).await["session"]["id"].clone();
    let fork = fork.as_str().expect("an id").to_owned();
    client.action(&fork, "resume").await;
    assert_eq!(times(&client, &fork).await, (1, 3));
    session_of(&client, "own", "two").await;
    assert_eq!(times(&client, "two").await, (1, 1));

    // New sessions use the new version.
    deploy(&client, "own", &[("install.sh", "echo second > installed")]).await;
    client.action("one", "stop").await;
    client.action("one", "resume").await;
    assert_eq!(times(&client, "one").await, (1, 3));
    session_of(&client, "own", "three").await;
    assert_eq!(
        run(&client, "three", "cat installed; ls").await,
        "second\nCLAUDE.md\ninstall.sh\ninstalled\n"
    );

    // From a checkpoint alone, as on another day.
    client.action("one", "stop").await;
    server.stop().await;
    let tree = server.data.join("live");
    std::fs::remove_dir_all(&tree).expect("the live trees");
    server.launch().await;
    client = server.client();
    client.action("one", "resume").await;
    assert_eq!(times(&client, "one").await, (1, 4));
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[tokio::test]
async fn install_runs_once_for_a_workspace_and_startup_at_every_start() {
    scripts_run_and_are_not_run_again(Server::start().await).await;
}

#[tokio::test]
async fn the_same_in_an_ordinary_users_server() {
    scripts_run_and_are_not_run_again(Server::of_user(ORDINARY_USER, &[]).await).await;
}

#[tokio::test]
async fn a_shared_workspace_is_installed_once_and_its_sandbox_started_once() {
    let server = Server::start().await;
    let client = server.client();
    deploy(&client, "own", &[("install.sh", INSTALL), ("startup.sh", STARTUP)]).await;
    let both = ["a", "b"].map(|id| {
        let client = client.clone();
        let body = json!({ "agent": "own", "sessionId": id, "workspace": "ours" });
        async move { create(&client, body).await }
    });
    for (status, body) in futures::future::join_all(both).await {
        assert_eq!(status, 201, "{body}");
    }
    assert_eq!(times(&client, "a").await, (1, 1));
    client.action("a", "stop").await;
    client.action("a", "resume").await;
    assert_eq!(times(&client, "b").await, (1, 1), "the other one was at work in it all along");
    client.action("a", "stop").await;
    client.action("b", "stop").await;
    client.action("b", "resume").await;
    assert_eq!(times(&client, "b").await, (1, 2));
}

async fn problem(client: &Client, id: &str) -> Value {
    client.until_status(id, "error").await;
    client.session(id).await["error"].clone()
}

fn contains(body: &Value, words: &[&str]) {
    let text = body["error"].as_str().unwrap_or_default();
    assert!(words.iter().all(|word| text.contains(word)), "{body}");
}

#[tokio::test]
async fn a_script_that_fails_says_how_and_can_be_mended() {
    let server = Server::start().await;
    let client = server.client();
    let broken = "echo kept > precious; echo first; echo the reason >&2; exit 3\n";
    deploy(&client, "broken", &[("install.sh", broken)]).await;
    let (status, body) = create(&client, json!({ "agent": "broken", "sessionId": "s" })).await;
    assert_eq!((status, body["code"].as_str()), (422, Some("setup_failed")), "{body}");
    contains(&body, &["install.sh", "exit code 3", "the reason", "/api/sessions/s/logs", "resume"]);
    assert_eq!(problem(&client, "s").await["code"], "setup_failed");
    assert_eq!(logs(&client, "s", "install").await.len(), 2);
    let run_dir = server.live("s").await.join("run");
    assert!(!run_dir.join("sock").exists(), "its sandbox is gone");
    // A second resume fails in the same way, and nothing is lost. A message does not bypass the failure.
    let (status, body) = client.ask(Method::POST, "/api/sessions/s/resume", Some(json!({}))).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (422, Some("setup_failed")), "{body}");
    assert_eq!(problem(&client, "s").await["code"], "setup_failed");
    let mended = json!({ "files": upload(&[("install.sh", "cat precious > seen\n")]) });
    client.post("/api/sessions/s/files", mended).await;
    client.action("s", "resume").await;
    assert_eq!(run(&client, "s", "cat seen").await, "kept\n");
    assert_eq!(client.session("s").await["error"], Value::Null);
    // A script that breaks later prevents the session's start, but not reading it.
    let client = &client;
    deploy(client, "later", &[("startup.sh", "test ! -e broken")]).await;
    session_of(client, "later", "t").await;
    client.say("t", "run: touch broken; echo work > work").await;
    client.action("t", "stop").await;
    let (status, body) = client.ask(Method::POST, "/api/sessions/t/resume", Some(json!({}))).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (422, Some("setup_failed")), "{body}");
    contains(&body, &["startup.sh", "exit code 1", "It printed nothing"]);
    let message =
        client.request(Method::POST, "/api/sessions/t/messages").header("accept", "application/json");
    let answer = message.json(&json!({ "content": "hello" })).send().await.expect("sent");
    let (status, body) = (answer.status(), answer.json::<Value>().await.expect("JSON"));
    assert_eq!((status.as_u16(), body["code"].as_str()), (422, Some("setup_failed")), "{body}");
    client.delete("/api/sessions/t/files/broken").await;
    let receipt = client.action("t", "resume").await["resume"].clone();
    assert_eq!(
        (receipt["tier"].as_str(), receipt["verified"].as_bool()),
        (Some("native"), Some(true)),
        "{receipt}"
    );
    assert_eq!(run(client, "t", "cat work").await, "work\n");
}

#[tokio::test]
async fn a_script_that_takes_too_long_is_ended() {
    let server = Server::with(&[("ASH_SETUP_MAX_SECONDS", "2")]).await;
    let client = server.client();
    let manifest = "[setup]\ninstallSeconds = 1\nstartupSeconds = 5000\n";
    // One of its children would keep the pipes open.
    let slow = "echo waiting; (trap '' TERM; sleep 1000) & sleep 1000\n";
    for (agent, script, seconds) in [("slow", "install.sh", "1 s"), ("slower", "startup.sh", "2 s")] {
        deploy(&client, agent, &[("ash.toml", manifest), (script, slow)]).await;
        let (status, body) = create(&client, json!({ "agent": agent, "sessionId": agent })).await;
        assert_eq!((status, body["code"].as_str()), (422, Some("setup_timeout")), "{body}");
        contains(&body, &[script, seconds, "waiting", "ASH_SETUP_MAX_SECONDS"]);
        assert_eq!(problem(&client, agent).await["code"], "setup_timeout");
    }
    for (text, word) in [
        ("[setup]\ninstallSeconds = 0\n", "setup.installSeconds must be 1 to"),
        (
            "[setup]\nseconds = 5\n",
            "seconds: there is no such field; there are installSeconds, startupSeconds",
        ),
        ("[sandbox]\nuserNamespaces = 1\n", "ash.toml: sandbox.userNamespaces must be true or false"),
    ] {
        let body = json!({ "name": "wrong", "files": upload(&[("ash.toml", text)]) });
        let (status, body) = client.ask(Method::POST, "/api/agents", Some(body)).await;
        assert_eq!(
            (status.as_u16(), body["code"].as_str()),
            (400, Some("invalid_manifest")),
            "{text}: {body}"
        );
        contains(&body, &[word]);
    }
}

/// Waits for output of a script that then runs for a long time.
async fn until_logged(client: &Client, id: &str, text: &str) {
    eventually(text, async || {
        let path = format!("/api/sessions/{id}/logs");
        let (_, body) = client.ask(Method::GET, &path, None).await;
        body["logs"].as_array()?.iter().any(|line| line["text"] == text).then_some(())
    })
    .await;
}

fn later(client: &Client, id: &str, agent: &str) -> tokio::task::JoinHandle<(u16, Value)> {
    let (client, body) = (client.clone(), json!({ "agent": agent, "sessionId": id }));
    tokio::spawn(async move { create(&client, body).await })
}

#[tokio::test]
async fn lines_come_as_they_are_printed_and_a_stop_does_not_wait_for_the_end() {
    let mut server = Server::start().await;
    let client = server.client();
    deploy(&client, "slow", &[("install.sh", "echo one > done; echo begun; sleep 1000\n")]).await;
    let made = later(&client, "s", "slow");
    until_logged(&client, "s", "begun").await;
    assert_eq!(client.status("s").await, "starting");
    assert_eq!(client.action("s", "stop").await["session"]["status"], "stopped");
    let (status, body) = made.await.expect("answered");
    assert_eq!((status, body["code"].as_str()), (409, Some("setup_stopped")), "{body}");
    let read = client.request(Method::GET, "/api/sessions/s/files/done").send().await.expect("a file");
    assert_eq!(read.text().await.expect("a text"), "one\n");
    // The same for a server that stops, and for an end.
    let made = later(&client, "t", "slow");
    until_logged(&client, "t", "begun").await;
    server.stop().await;
    made.await.expect("answered or cut off");
    server.launch().await;
    let client = server.client();
    assert_eq!(client.status("t").await, "paused");
    let made = later(&client, "u", "slow");
    until_logged(&client, "u", "begun").await;
    client.delete("/api/sessions/u").await;
    assert_eq!((client.status("u").await.as_str(), made.await.expect("answered").0), ("ended", 409));
}

/// The processes of a session's script on this machine.
fn sleeping(word: &str) -> Vec<u32> {
    crate::support::pids().into_iter().filter(|pid| crate::support::cmdline(*pid).contains(word)).collect()
}

#[tokio::test]
async fn a_server_that_is_killed_in_the_middle_runs_it_again_and_leaves_nothing() {
    let mut server = Server::start().await;
    let client = server.client();
    let nap = format!("sleep 1{:09}", std::process::id());
    let script = format!("echo x >> tries; echo begun; test \"$(wc -l < tries)\" -gt 1 || {nap}\n");
    deploy(&client, "slow", &[("install.sh", &script)]).await;
    let made = later(&client, "s", "slow");
    until_logged(&client, "s", "begun").await;
    eventually("it sleeps", async || (sleeping(&nap).len() == 1).then_some(())).await;
    server.kill9();
    drop(made.await);
    server.launch().await;
    let client = server.client();
    client.until_status("s", "paused").await;
    eventually("the sandbox of the dead server is gone", async || sleeping(&nap).is_empty().then_some(()))
        .await;
    client.action("s", "resume").await;
    assert_eq!(run(&client, "s", "cat tries").await, "x\nx\n");
    client.action("s", "stop").await;
    client.action("s", "resume").await;
    assert_eq!(run(&client, "s", "cat tries").await, "x\nx\n");
}

#[tokio::test]
async fn scripts_are_behind_the_same_walls_and_limits() {
    let server = Server::start().await;
    let client = server.client();
    let look = "{ id -u; pwd; grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status; ls /sys/class/net /proc/net/route 2>/dev/null; \
                unshare -U true >/dev/null 2>&1 || echo refused; touch /usr/x 2>&1; ulimit -n; ls -d /root 2>&1; } > seen-by-$1.tmp; sort seen-by-$1.tmp > seen-by-$1\n";
    let install = format!("set -- script\n{look}");
    deploy(&client, "own", &[("install.sh", &install)]).await;
    session_of(&client, "own", "s").await;
    client.exec("s", &format!("set -- agent\n{look}")).await;
    let (script, agent) =
        (run(&client, "s", "cat seen-by-script").await, run(&client, "s", "cat seen-by-agent").await);
    assert!(script == agent && script.contains("Seccomp:\t2"), "{script}\n{agent}");
    // More than the disk limit.
    let greedy =
        "head -c 60000000 /dev/urandom > a; head -c 60000000 /dev/urandom > b; echo full; sleep 1000\n";
    deploy(&client, "greedy", &[("install.sh", greedy)]).await;
    let body = json!({ "agent": "greedy", "sessionId": "g", "limits": { "diskMb": 100 } });
    let (status, body) = create(&client, body).await;
    assert_eq!((status, body["code"].as_str()), (422, Some("disk_limit")), "{body}");
    assert_eq!(problem(&client, "g").await["code"], "disk_limit");
    // More output than the server keeps: it is slowed down, read and discarded.
    deploy(
        &client,
        "loud",
        &[("install.sh", "yes $(head -c 4000 /dev/zero | tr '\\0' x) | head -c 80000000\n")],
    )
    .await;
    let body = json!({ "agent": "loud", "sessionId": "l", "limits": { "outputKbPerSecond": 0 } });
    assert_eq!(create(&client, body).await.0, 201);
    let kept = logs(&client, "l", "install").await.len();
    assert!((1..=10_000).contains(&kept), "{kept} lines");
}

fn folder(server: &Server, files: &[(&str, &str)]) -> PathBuf {
    let dir = server.dir.join("agent");
    std::fs::create_dir(&dir).expect("a folder");
    for (name, text) in files {
        std::fs::write(dir.join(Path::new(name)), text).expect("written");
    }
    dir
}

#[tokio::test]
async fn setup_scripts_that_do_not_come_from_the_agent_never_run() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.create().await;
    client.exec(&id, "echo 'touch ran' | tee install.sh startup.sh; chmod +x *.sh").await;
    client.action(&id, "stop").await;
    client.action(&id, "resume").await;
    assert!(run(&client, &id, "ls ran 2>&1 || true").await.contains("No such file"));
    // A script from a folder on the machine, which the agent then removes.
    let dir = folder(
        &server,
        &[("CLAUDE.md", "x"), ("startup.sh", "#!/usr/bin/env bash\n[[ -e gone ]] || echo up >> ups\n")],
    );
    client.post("/api/agents", json!({ "name": "of-folder", "path": dir })).await;
    session_of(&client, "of-folder", "f").await;
    assert_eq!(run(&client, "f", "cat ups; rm startup.sh").await, "up\n");
    client.action("f", "stop").await;
    client.action("f", "resume").await;
    assert_eq!(run(&client, "f", "cat ups").await, "up\n");
    assert!(logs(&client, "f", "startup").await.concat().contains("not there any more"));
    // The agent may replace the note, which affects only itself.
    deploy(&client, "own", &[("install.sh", INSTALL)]).await;
    session_of(&client, "own", "o").await;
    client.exec("o", "rm ~/.ash/installed; mkdir ~/.ash/installed").await;
    client.action("o", "stop").await;
    client.action("o", "resume").await;
    assert_eq!(times(&client, "o").await, (1, 0));
    client.exec("o", "rm -r ~/.ash; touch ~/.ash").await;
    client.action("o", "stop").await;
    client.action("o", "resume").await;
    assert_eq!(client.status("o").await, "active");
}
