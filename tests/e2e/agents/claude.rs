//! The real Claude Code in a real sandbox; only the model behind it is the scripted one.

use crate::support::{
    Client, Server,
    claude::{SECRET, Stage, assert_whole, program},
    eventually, names, signal,
};
use serde_json::{Value, json};

#[tokio::test]
async fn a_conversation_survives_every_death() {
    let mut stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let mut said = Vec::new();
    client.say(&id, "run: echo made by claude > file").await;
    stage.say(&id, &mut said).await;
    let file = client.exec(&id, "cat file").await;
    assert_eq!(file["stdout"], "made by claude\n");

    client.action(&id, "pause").await;
    assert_whole(&stage.back(&id).await);
    stage.say(&id, &mut said).await;
    client.action(&id, "stop").await;
    assert_whole(&stage.back(&id).await);
    stage.say(&id, &mut said).await;

    for inner in [false, true] {
        let (init, agent) = stage.agent(&id).await;
        signal(if inner { init } else { agent }, libc::SIGKILL);
        client.until_status(&id, "error").await;
        assert_whole(&stage.back(&id).await);
        stage.say(&id, &mut said).await;
    }

    stage.server.crash_and_start().await;
    let client = stage.server.client();
    stage.say(&id, &mut said).await;

    client.action(&id, "stop").await;
    let live = stage.server.live(&id).await;
    stage.server.kill9();
    std::fs::remove_dir_all(live).expect("removed");
    stage.server.launch().await;
    let receipt = stage.back(&id).await;
    assert_whole(&receipt);
    assert_eq!(receipt["from"], "checkpoint");
    stage.say(&id, &mut said).await;

    stage.server.stop().await;
    let moved = stage.server.dir.join("elsewhere");
    std::fs::rename(&stage.server.data, &moved).expect("moved");
    stage.server.data = moved;
    stage.server.launch().await;
    assert_whole(&stage.back(&id).await);
    stage.say(&id, &mut said).await;
    assert_eq!(stage.server.client().exec(&id, "cat file").await["stdout"], "made by claude\n");
}

#[tokio::test]
async fn a_fork_remembers_what_was_before_it_and_a_lost_conversation_is_rebuilt() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let mut said = Vec::new();
    stage.say(&id, &mut said).await;
    let fork = client.action(&id, "fork").await["session"]["id"].as_str().expect("an id").to_owned();
    let mut theirs = said.clone();
    stage.say(&fork, &mut theirs).await;
    stage.say(&id, &mut said).await;
    client.action(&fork, "stop").await;
    assert_whole(&stage.back(&fork).await);

    client.action(&id, "stop").await;
    let home = stage.server.live(&id).await.join("tree/home/.claude/projects");
    std::fs::remove_dir_all(home).expect("removed");
    let receipt = stage.back(&id).await;
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("rebuilt"), &json!(false)), "{receipt}");
    assert_eq!(receipt["lost"], json!(["what the agent had noted beside the messages"]));
    stage.say(&id, &mut said).await;
    client.action(&id, "stop").await;
    assert_whole(&stage.back(&id).await);
}

#[tokio::test]
async fn a_turn_in_which_it_dies_goes_on_and_no_call_is_made_twice() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo once >> count; touch begun; sleep 2").await;
    eventually("the command runs", async || {
        (client.exec(&id, "cat begun").await["exitCode"] == 0).then_some(())
    })
    .await;
    let (_, agent) = stage.agent(&id).await;
    signal(agent, libc::SIGKILL);
    stream.rest().await;
    client.until_status(&id, "error").await;
    stage.back(&id).await;
    eventually("the turn is over", async || {
        let session = client.session(&id).await;
        (session["openTurns"] == 0 && session["status"] == "active").then_some(())
    })
    .await;
    assert_eq!(client.exec(&id, "cat count").await["stdout"], "once\n");
}

#[tokio::test]
async fn the_key_is_nowhere_inside() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    client.say(&id, "run: env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'; ls -la /run/ash").await;
    let asked = stage.requests();
    let shown = asked.last().expect("a request")["body"].to_string();
    stage.server.keeps_outside(SECRET, &shown);
}

#[tokio::test]
async fn without_the_program_or_a_key_it_says_what_to_do() {
    let program = program();
    let without_key = [("ASH_CLAUDE_BIN", program.as_str())];
    // Compose files leave an unset variable empty.
    let with_none = [("ASH_CLAUDE_BIN", program.as_str()), ("ANTHROPIC_API_KEY", "")];
    let cases = [
        (Server::without_claude(&[("ANTHROPIC_API_KEY", SECRET)]).await, "runtime_missing", "ASH_CLAUDE_BIN"),
        (Server::with(&without_key).await, "model_key_missing", "ANTHROPIC_API_KEY"),
        (Server::with(&with_none).await, "model_key_missing", "ANTHROPIC_API_KEY"),
    ];
    for (server, code, remedy) in &cases {
        let client = server.client();
        client
            .post("/api/agents", json!({ "name": "coder", "systemPrompt": "x", "runtime": "claude" }))
            .await;
        let (status, answer) =
            client.ask(reqwest::Method::POST, "/api/sessions", Some(json!({ "agent": "coder" }))).await;
        assert_eq!((status.as_u16(), &answer["code"]), (422, &json!(code)), "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(remedy)), "{answer}");
        assert_eq!(client.get("/api/sessions").await["sessions"], json!([]), "nothing was made");
    }
}

/// A process in the sandbox may write anything to the conversation's folder.
#[tokio::test]
async fn an_invalid_transcript_is_reported_and_harms_no_session() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    client.say(&id, "hello").await;
    for spoil in [
        "truncate -s 4G $T",
        "rm $T; mkfifo $T",
        "rm $T; ln -s /proc/1/environ $T",
        "rm $T; ln -s /dev/zero $T",
        "rm $T; mkdir $T",
        "rm -rf /home/agent/.claude/projects; ln -s /tmp /home/agent/.claude/projects",
        "head -c 40000000 /dev/zero | tr '\\0' x > $T",
    ] {
        let command = format!("T=$(ls -d /home/agent/.claude/projects/*/*.jsonl | head -1); {spoil}");
        assert_eq!(client.exec(&id, &command).await["exitCode"], 0, "{spoil}");
        client.action(&id, "stop").await;
        let receipt = stage.back(&id).await;
        assert_eq!(receipt["verified"], false, "{spoil}: {receipt}");
        assert_ne!(receipt["lost"], json!([]), "{spoil}: {receipt}");
        client.exec(&id, "rm -rf /home/agent/.claude/projects").await;
        client.say(&id, "hello again").await;
    }
}

/// A background command does not hold the turn; when it ends, the agent starts a turn of its own.
#[tokio::test]
async fn a_background_command_that_ends_starts_a_turn_of_the_agents_own() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let call = json!({ "type": "tool_use", "name": "Bash", "input": {
        "command": "until test -e go; do sleep 0.1; done; echo built", "description": "a build", "run_in_background": true } });
    stage.script(json!([{ "when": { "contains": "build it" }, "times": 1, "reply": [call] }])).await;
    client.say(&id, "build it").await;
    client.exec(&id, "touch go").await;
    let own = ended_turns(&client, &id, 2).await.pop().expect("two");
    assert_eq!(own["status"], "done", "{own}");
    assert!(own["checkpoint"].as_u64() > Some(1), "it is captured like any other: {own}");
    let mut said = Vec::new();
    stage.say(&id, &mut said).await;
    client.action(&id, "stop").await;
    assert_whole(&stage.back(&id).await);
}

fn agent_call(prompt: &str) -> Value {
    json!({ "type": "tool_use", "name": "Agent", "input": { "description": "a helper", "prompt": prompt,
        "subagent_type": "general-purpose", "run_in_background": true } })
}

/// A background subagent holds the turn: its answer, and the agent's reaction to it, belong to the turn.
#[tokio::test]
async fn a_turn_waits_for_helpers_in_the_background() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let rule = json!([{ "when": { "contains": "ask the helper" }, "times": 1,
        "reply": [agent_call("run: until test -e go; do sleep 0.1; done; echo helped > help")] }]);
    stage.script(rule).await;
    let mut stream = client.send(&id, "ask the helper").await;
    let mut frames = stream.until("turn_complete").await;
    client.exec(&id, "touch go").await;
    frames.extend(stream.rest().await);
    let names = names(&frames);
    assert!(names.iter().filter(|name| **name == "turn_complete").count() > 1, "{names:?}");
    assert_eq!(names.iter().filter(|name| **name == "done").count(), 1, "{names:?}");
    assert_eq!(client.exec(&id, "cat help").await["stdout"], "helped\n");
    client.action(&id, "stop").await;
    assert_whole(&stage.back(&id).await);
}

/// A subagent that takes too long does not hold the turn for ever; its later result starts a turn of the agent's own.
#[tokio::test]
async fn a_turn_does_not_wait_longer_than_its_limit() {
    let stage = Stage::set().await;
    let id = stage.create_with(json!({ "maxWait": 1 })).await;
    let client = stage.server.client();
    let rule = json!([{ "when": { "contains": "ask the helper" }, "times": 1,
        "reply": [agent_call("run: touch begun; until test -e go; do sleep 0.1; done; echo helped > help")] }]);
    stage.script(rule).await;
    let first = client.say(&id, "ask the helper").await;
    assert_eq!(client.exec(&id, "test -e help").await["exitCode"], 1, "the helper still works: {first}");
    // A subagent that finished before the wait would be part of the turn.
    eventually("the helper works", async || {
        (client.exec(&id, "test -e begun").await["exitCode"] == 0).then_some(())
    })
    .await;
    client.exec(&id, "touch go").await;
    // The agent answers by itself. If it is through before the server hears of it, the answer has no turn of its own.
    answers(&client, &id, 2).await;
    assert_eq!(client.exec(&id, "cat help").await["stdout"], "helped\n");
    let mut said = Vec::new();
    stage.say(&id, &mut said).await;
}

/// Messages behind a summary do not count as missing.
#[tokio::test]
async fn a_conversation_that_was_compacted_is_whole() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    client.say(&id, "say: the tower is high").await;
    client.say(&id, "say: the water is cold").await;
    let rule = json!([{ "when": { "contains": "Your task is to create a detailed summary" }, "times": 1,
        "reply": [{ "type": "text", "text": "<summary>They spoke of a tower and of water.</summary>" }] }]);
    stage.script(rule).await;
    client.say(&id, "/compact").await;
    client.say(&id, "say: the bread is warm").await;
    let shown = stage.last_request()["body"]["messages"].to_string();
    assert!(shown.contains("They spoke of a tower and of water"), "it was summed up: {shown}");
    assert!(!shown.contains("the tower is high"), "{shown}");
    client.action(&id, "stop").await;
    assert_whole(&stage.back(&id).await);
    client.say(&id, "say: and now?").await;
    let shown = stage.last_request()["body"]["messages"].to_string();
    for words in ["They spoke of a tower and of water", "the bread is warm", "and now?"] {
        assert!(shown.contains(words), "{words:?} is forgotten: {shown}");
    }
}

/// Waits until the agent has given this many answers.
async fn answers(client: &Client, id: &str, count: usize) {
    eventually("the agent answers", async || {
        let events = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
        let given = events["events"].as_array()?.iter().filter(|event| event["type"] == "turn_complete");
        (given.count() == count).then_some(())
    })
    .await;
}

async fn ended_turns(client: &Client, id: &str, count: usize) -> Vec<Value> {
    eventually("turns are over", async || {
        let events = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
        let data = events["events"].as_array()?.iter().filter_map(|event| event["data"].as_str());
        let data = data.filter_map(|data| serde_json::from_str(data).ok());
        let ended: Vec<Value> = data.filter(|data: &Value| data["action"] == "turn_ended").collect();
        (ended.len() == count).then_some(ended)
    })
    .await
}
