//! `kill -9` of each process in turn, at each important instant of a turn of the real Claude Code: each prompt gets one
//! answer, no call runs twice, and nothing that a client saw is lost.

use crate::support::{
    Client, Frame, Sse, children, claude::Stage, eventually, parent, permissions::careful, signal,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instant {
    PromptSent,
    FirstDelta,
    ToolRunning,
    PermissionPending,
    ToolDone,
    ResultSeen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Agent,
    Sandbox,
    Shim,
    Server,
    Everything,
}

const VICTIMS: [Victim; 5] =
    [Victim::Agent, Victim::Sandbox, Victim::Shim, Victim::Server, Victim::Everything];

fn runs() -> usize {
    if std::env::var("ASH_SLOW").is_ok_and(|slow| slow == "1") { 10 } else { 5 }
}

async fn kill(stage: &mut Stage, id: &str, victim: Victim) {
    let (shim, init, agent) = stage.processes(id).await;
    let bwrap = parent(init).expect("bwrap");
    match victim {
        Victim::Agent => signal(agent, libc::SIGKILL),
        Victim::Sandbox => signal(init, libc::SIGKILL),
        Victim::Shim => signal(shim, libc::SIGKILL),
        Victim::Server => stage.server.kill9(),
        Victim::Everything => {
            stage.server.kill9();
            let inside = children(init).into_iter().chain([shim, bwrap, init]);
            inside.for_each(|pid| signal(pid, libc::SIGKILL));
        }
    }
}

fn prompt(instant: Instant, run: usize) -> String {
    match instant {
        Instant::PromptSent => format!("say: answer {run}"),
        Instant::FirstDelta => format!("slow 20: answer {run} in many words so that it takes its time"),
        Instant::ToolRunning => format!("run: echo {run} >> count; touch begun{run}; sleep 2"),
        Instant::PermissionPending | Instant::ToolDone | Instant::ResultSeen => {
            format!("run: echo {run} >> count")
        }
    }
}

/// Reads until the instant; returns what a client has seen by then.
async fn until(client: &Client, id: &str, stream: &mut Sse, instant: Instant, run: usize) -> Vec<Frame> {
    match instant {
        Instant::PromptSent => stream.next().await.into_iter().collect(),
        Instant::FirstDelta => stream.until("text_delta").await,
        Instant::ToolRunning => {
            eventually("the command runs", async || {
                let begun = client.exec(id, &format!("test -e begun{run}")).await;
                (begun["exitCode"] == 0).then_some(())
            })
            .await;
            Vec::new()
        }
        Instant::PermissionPending => stream.until("permission_request").await,
        Instant::ToolDone => stream.until("tool_result").await,
        Instant::ResultSeen => stream.until("turn_complete").await,
    }
}

async fn at(instant: Instant) {
    let mut stage = Stage::set().await;
    let id = match instant {
        Instant::PermissionPending => careful(&stage).await,
        _ => stage.create().await,
    };
    for run in 0..runs() {
        let victim = VICTIMS[run % VICTIMS.len()];
        let name = format!("{instant:?}, {victim:?}, run {run}");
        let client = stage.server.client();
        let mut stream = client.send(&id, &prompt(instant, run)).await;
        let seen = until(&client, &id, &mut stream, instant, run).await;
        kill(&mut stage, &id, victim).await;
        let seen: Vec<Frame> = seen.into_iter().chain(stream.rest().await).collect();
        match victim {
            Victim::Server | Victim::Everything => stage.server.launch().await,
            Victim::Agent | Victim::Sandbox | Victim::Shim => client.until_status(&id, "error").await,
        }
        let client = stage.server.client();
        come_to_rest(&client, &id, &name).await;
        check(&client, &id, &name, instant, run, &seen).await;
    }
    // The model still sees the whole conversation.
    let client = stage.server.client();
    client.say(&id, "say: and now?").await;
    let shown = stage.last_request()["body"]["messages"].to_string();
    for run in 0..runs() {
        let words = prompt(instant, run);
        let words = words.split_once(": ").map_or(words.as_str(), |(_, words)| words);
        assert!(shown.contains(words), "{instant:?}: {words:?} is forgotten: {shown}");
    }
}

/// The session resumes by itself or is resumed, and every permission request is allowed.
async fn come_to_rest(client: &Client, id: &str, name: &str) {
    eventually(&format!("{name}: the turn is over"), async || {
        let session = client.session(id).await;
        if session["status"] == "error" || session["status"] == "paused" {
            client.action(id, "resume").await;
        }
        for asked in session["pending"].as_array().into_iter().flatten() {
            // The agent may have withdrawn the request since.
            let permission = asked["id"].as_str().expect("an id");
            let path = format!("/api/sessions/{id}/permissions/{permission}");
            let (status, said) = client.ask(Method::POST, &path, Some(json!({ "behavior": "allow" }))).await;
            assert!([200, 409].contains(&status.as_u16()), "{name}: {said}");
        }
        if session["openTurns"] != 0 || session["status"] != "active" {
            return None;
        }
        // A newly started server may not have noticed yet that the sandbox is dead.
        let path = format!("/api/sessions/{id}/exec");
        let (status, _) = client.ask(Method::POST, &path, Some(json!({ "command": "true" }))).await;
        status.is_success().then_some(())
    })
    .await;
}

async fn check(client: &Client, id: &str, name: &str, instant: Instant, run: usize, seen: &[Frame]) {
    let made = client.exec(id, &format!("grep -cx {run} count")).await["stdout"].to_string();
    match instant {
        Instant::PromptSent | Instant::FirstDelta => {}
        Instant::ToolRunning | Instant::ToolDone | Instant::ResultSeen => {
            assert_eq!(made, "\"1\\n\"", "{name}: how often the call was made");
        }
        Instant::PermissionPending => {
            assert!(["\"0\\n\"", "\"1\\n\"", "\"\""].contains(&made.as_str()), "{name}: {made}");
        }
    }
    let events = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
    let data = events["events"].as_array().expect("a list").iter().filter_map(|event| event["data"].as_str());
    let mut ended: BTreeMap<String, u32> = BTreeMap::new();
    let how = match instant {
        Instant::PromptSent | Instant::FirstDelta => None,
        Instant::ToolRunning => Some("unknown"),
        Instant::PermissionPending => Some("not_started"),
        Instant::ToolDone | Instant::ResultSeen => Some("done"),
    };
    for event in data.map(|data| serde_json::from_str::<Value>(data).expect("json")) {
        if event["action"] == "turn_continued" {
            let calls = event["calls"].as_array().expect("a ledger").iter();
            let calls: Vec<Option<&str>> = calls.map(|call| call["how"].as_str()).collect();
            assert_eq!(calls, Vec::from_iter(how.map(Some)), "{name}: {event}");
        }
        if event["action"] == "turn_ended" {
            assert_eq!(event["status"], "done", "{name}: {event}");
            *ended.entry(event["turn"].to_string()).or_default() += 1;
        }
    }
    assert_eq!(ended.len(), run + 1, "{name}: every prompt has its turn");
    assert!(ended.values().all(|count| *count == 1), "{name}: one end to each: {ended:?}");
    let messages = client.get(&format!("/api/sessions/{id}/messages?limit=1000&all=true")).await.to_string();
    for frame in seen.iter().filter(|frame| frame.event == "message") {
        let Some(uuid) = frame.data["uuid"].as_str().filter(|_| frame.data["type"] == "assistant") else {
            continue;
        };
        assert!(messages.contains(uuid), "{name}: what the client saw is gone: {}", frame.data);
    }
}

#[tokio::test]
async fn when_the_prompt_was_sent() {
    at(Instant::PromptSent).await;
}

#[tokio::test]
async fn at_the_first_words() {
    at(Instant::FirstDelta).await;
}

#[tokio::test]
async fn while_a_tool_runs() {
    at(Instant::ToolRunning).await;
}

#[tokio::test]
async fn while_a_permission_request_is_open() {
    at(Instant::PermissionPending).await;
}

#[tokio::test]
async fn when_a_tool_is_done() {
    at(Instant::ToolDone).await;
}

#[tokio::test]
async fn when_the_result_was_seen() {
    at(Instant::ResultSeen).await;
}

/// The model's request after a cold resume has the same bytes at its start as without one.
#[tokio::test]
async fn the_request_after_a_cold_resume_begins_as_without_one() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    let mut last = Vec::new();
    for cold in [false, true] {
        let id = stage.create_with(json!({ "wakeReport": false })).await;
        client.say(&id, "say: one").await;
        client.say(&id, "run: echo two > file; cat file").await;
        if cold {
            client.action(&id, "stop").await;
            stage.back(&id).await;
        }
        client.say(&id, "say: three").await;
        last.push(stage.last_request()["body"].clone());
    }
    let [warm, cold] = &last[..] else { panic!("two requests") };
    for part in ["system", "tools", "model", "max_tokens"] {
        assert_eq!(without_ids(&warm[part]), without_ids(&cold[part]), "{part}");
    }
    let (warm, cold) =
        (warm["messages"].as_array().expect("a list"), cold["messages"].as_array().expect("a list"));
    assert_eq!(warm.len(), cold.len());
    for (number, (warm, cold)) in warm.iter().zip(cold).enumerate() {
        assert_eq!(without_ids(warm), without_ids(cold), "message {number}");
    }
}

/// Removes the ids of sessions and calls, which differ.
fn without_ids(value: &Value) -> String {
    let text = value.to_string();
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("toolu_") {
        out.push_str(&rest[..at]);
        rest = rest[at + 6..].trim_start_matches(|c: char| c.is_ascii_alphanumeric());
    }
    out.push_str(rest);
    out
}
