//! Releases of Claude Code from npm, in place of the one that the other tests use; and programs that only claim to be
//! one.

use crate::support::{
    Client, Server,
    claude::{Stage, assert_whole, pretend},
    permissions::{allow, careful, output, shown, until_asked},
    signal,
};
use ash_driver::OLDEST_CLAUDE;
use reqwest::Method;
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command};

/// The oldest that works, the newest tested, and five in between.
const RELEASES: [&str; 7] = ["2.1.113", "2.1.140", "2.1.197", "2.1.225", "2.1.260", "2.1.290", "2.1.325"];

/// Installs a release with the script that `./test` uses.
fn install(version: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/claude");
    let installed = Command::new(script).arg(version).output().expect(".ci/claude");
    assert!(installed.status.success(), "{version}: {}", String::from_utf8_lossy(&installed.stderr));
    String::from_utf8(installed.stdout).expect("a path").trim().to_owned()
}

#[tokio::test]
async fn slowly_every_release_from_the_oldest_on_goes_through_a_session_s_life() {
    assert_eq!(RELEASES[0], OLDEST_CLAUDE.to_string());
    for version in RELEASES {
        let program = install(version);
        let began = std::time::Instant::now();
        let mut stage = Stage::with(&[("ASH_CLAUDE_BIN", &program)]).await;
        converse(&mut stage).await;
        asked(&stage).await;
        instructed(&stage).await;
        println!("{version}: {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// Turns end by themselves, and the conversation continues after a pause, and after deaths of the agent and of the
/// server.
async fn converse(stage: &mut Stage) {
    let id = stage.create().await;
    let client = stage.server.client();
    let mut said = Vec::new();
    stage.say(&id, &mut said).await;
    client.say(&id, "run: echo made by claude > file").await;
    stage.say(&id, &mut said).await;

    client.action(&id, "pause").await;
    assert_whole(&stage.back(&id).await);
    stage.say(&id, &mut said).await;

    let (_, agent) = stage.agent(&id).await;
    signal(agent, libc::SIGKILL);
    client.until_status(&id, "error").await;
    assert_whole(&stage.back(&id).await);
    stage.say(&id, &mut said).await;

    stage.server.crash_and_start().await;
    stage.say(&id, &mut said).await;
    let client = stage.server.client();
    assert_eq!(output(&client, &id, "cat file").await, "made by claude\n");
    client.action(&id, "stop").await;
}

async fn asked(stage: &Stage) {
    let id = careful(stage).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo allowed > file").await;
    let asked = until_asked(&client, &id).await;
    assert_eq!(asked["input"]["command"], "echo allowed > file");
    allow(&client, &id, &asked).await;
    stream.rest().await;
    assert_eq!(output(&client, &id, "cat file").await, "allowed\n");
    client.action(&id, "stop").await;
}

/// A change of the appended system prompt applies from the next start, also with releases that do not keep a prompt.
async fn instructed(stage: &Stage) {
    let id = stage.create_with(json!({ "appendSystemPrompt": "Speak of towers." })).await;
    let client = stage.server.client();
    client.say(&id, "hello").await;
    let system = || stage.last_request()["body"]["system"].to_string();
    assert!(system().contains("Speak of towers."), "{}", system());
    let (path, water) =
        (format!("/api/sessions/{id}/config"), json!({ "appendSystemPrompt": "Speak of water." }));
    let (status, changed) = client.ask(Method::PATCH, &path, Some(water)).await;
    assert_eq!(status.as_u16(), 200, "{changed}");
    client.say(&id, "hello again").await;
    assert!(system().contains("Speak of water.") && !system().contains("towers"), "{}", system());
    assert!(shown(stage).contains("hello again") && shown(stage).contains("\"hello\""), "{}", shown(stage));
    client.action(&id, "stop").await;
}

fn assert_too_old((status, refused): (reqwest::StatusCode, Value), version: &str, program: &Path) {
    let says = format!(
        "Claude Code {version} at {} is too old for ash: {OLDEST_CLAUDE} is the oldest that works. Install a newer one with \
         `npm install -g @anthropic-ai/claude-code@latest`, or set ASH_CLAUDE_BIN to one",
        program.display()
    );
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("runtime_too_old")), "{refused}");
    assert_eq!(refused["error"], says);
}

async fn deploy(client: &Client, runtime: &str) -> (reqwest::StatusCode, Value) {
    let agent = json!({ "name": runtime, "systemPrompt": "Be brief.", "runtime": runtime });
    client.ask(Method::POST, "/api/agents", Some(agent)).await
}

/// A server with this file as Claude Code.
async fn server(place: impl FnOnce(&Server) -> std::path::PathBuf) -> (Server, std::path::PathBuf) {
    let mut server = Server::prepare(&[("ANTHROPIC_API_KEY", "sk-none")]);
    let program = place(&server);
    server.set("ASH_CLAUDE_BIN", program.to_str().expect("a name"));
    server.launch().await;
    (server, program)
}

#[tokio::test]
async fn deploy_and_create_refuse_a_claude_code_that_is_too_old_and_name_the_oldest_that_works() {
    let (server, program) = server(|server| {
        let program = server.dir.canonicalize().expect("a folder").join("claude");
        pretend(&program, "2.0.14");
        program
    })
    .await;
    let client = server.client();
    assert_too_old(deploy(&client, "claude").await, "2.0.14", &program);
    assert_eq!(deploy(&client, "builtin").await.0.as_u16(), 201, "it is nothing to other agents");

    pretend(&program, "2.1.325");
    assert_eq!(deploy(&client, "claude").await.0.as_u16(), 201, "what is in its place counts at once");
    pretend(&program, "2.1.112");
    let new = json!({ "agent": "claude" });
    let refused = client.ask(Method::POST, "/api/sessions", Some(new.clone())).await;
    assert_too_old(refused, "2.1.112", &program);
    assert_eq!(client.get("/api/sessions").await["sessions"], json!([]), "nothing was made");

    fs::remove_file(&program).expect("removed");
    assert_eq!(deploy(&client, "claude").await.0.as_u16(), 201, "it may be installed later");
    let (_, missing) = client.ask(Method::POST, "/api/sessions", Some(new)).await;
    assert_eq!(missing["code"], "runtime_missing");
    assert!(
        missing["error"].as_str().is_some_and(|error| error.contains(&format!("{OLDEST_CLAUDE} or newer"))),
        "{missing}"
    );
}

/// The last release that is a Node script.
#[tokio::test]
async fn slowly_the_release_before_the_oldest_that_works_is_refused() {
    let (server, program) = server(|_| install("2.1.112").into()).await;
    assert_too_old(deploy(&server.client(), "claude").await, "2.1.112", &program);
}
