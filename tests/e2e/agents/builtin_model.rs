//! The built-in agent with a model: a real server, a real sandbox, and the proxy that adds the key. Only the model behind
//! it is the scripted one.

use crate::{
    own_key::by_hand,
    support::{Server, eventually, model::Model, signal},
};
use reqwest::Method;
use serde_json::{Value, json};

const SECRET: &str = "sk-only-outside";
const UNKNOWN: &str = "[Tool call interrupted: its outcome is unknown]";

struct Stage {
    server: Server,
    model: Model,
}

impl Stage {
    async fn set() -> Stage {
        let mut stage = Stage::without_a_key();
        stage.give_the_key();
        stage.server.launch().await;
        stage
    }

    fn without_a_key() -> Stage {
        let server = Server::prepare(&[]);
        let model = Model::on_a_socket(&server.dir);
        Stage { server, model }
    }

    /// Applies from the next start.
    fn give_the_key(&mut self) {
        self.server.set("ANTHROPIC_BASE_URL", &self.model.url);
        self.server.set("ANTHROPIC_API_KEY", SECRET);
    }

    async fn create(&self) -> String {
        self.create_with("", json!({})).await
    }

    async fn create_with(&self, manifest: &str, options: Value) -> String {
        let client = self.server.client();
        let agent = self.server.dir.join("agent");
        std::fs::create_dir_all(&agent).expect("a folder");
        std::fs::write(agent.join("CLAUDE.md"), "Answer in one line.").expect("written");
        std::fs::write(agent.join("ash.toml"), manifest).expect("written");
        client.post("/api/agents", json!({ "name": "helper", "path": agent })).await;
        let mut wanted = json!({ "agent": "helper" });
        wanted.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
        let made = client.post("/api/sessions", wanted).await;
        made["session"]["id"].as_str().expect("an id").to_owned()
    }

    /// All requests that the model received.
    fn requests(&self) -> Vec<Value> {
        self.model.requests()
    }

    fn last(&self) -> Value {
        self.requests().pop().expect("a request")
    }

    /// Sends a message, and checks that the model saw all earlier messages.
    async fn say(&self, id: &str, said: &mut Vec<String>) {
        let text = format!("message number {}", said.len() + 1);
        let answer = self.server.client().say(id, &text).await;
        assert_eq!(answer["status"], "done", "{answer}");
        said.push(text);
        let last = self.last();
        let shown = last["body"]["messages"].to_string();
        for before in said.iter() {
            assert!(shown.contains(before.as_str()), "{before:?} is forgotten: {shown}");
        }
        assert_eq!(last["headers"]["x-api-key"], SECRET);
    }

    async fn back(&self, id: &str) -> Value {
        self.server.client().action(id, "resume").await["resume"].clone()
    }
}

fn assert_whole(receipt: &Value) {
    assert_eq!((&receipt["tier"], &receipt["verified"]), (&json!("native"), &json!(true)), "{receipt}");
    assert_eq!(receipt["lost"], json!([]), "{receipt}");
}

#[tokio::test]
async fn a_conversation_with_a_model_survives_every_death() {
    let mut stage = Stage::set().await;
    let id = stage.create_with("", json!({ "model": "some-model", "systemPrompt": "Be kind." })).await;
    let client = stage.server.client();
    let answer = client.say(&id, "write notes.txt: remember the milk").await;
    assert_eq!(answer["text"], "The output begins with: Wrote 17 bytes to notes.txt.", "{answer}");
    assert_eq!(client.exec(&id, "cat notes.txt").await["stdout"], "remember the milk");
    let asked = stage.last()["body"].clone();
    assert_eq!(asked["model"], "some-model");
    let told = asked["system"][1]["text"].as_str().expect("a text");
    assert!(told.ends_with("Answer in one line.\n\nBe kind."), "{told}");
    let own = client.exec(&id, "printf %s $ASH_SESSION_DIR").await["stdout"].clone();
    let own = own.as_str().expect("a path");
    assert!(told.contains(&format!("{own}/plan.md")) && told.contains(&format!("{own}/files/")), "{told}");
    let mut said = vec!["remember the milk".to_owned()];
    stage.say(&id, &mut said).await;

    client.action(&id, "stop").await;
    assert_whole(&stage.back(&id).await);
    stage.say(&id, &mut said).await;
    for inner in [false, true] {
        let processes = stage.server.processes(&id).await;
        signal(if inner { processes.init } else { processes.agent }, libc::SIGKILL);
        client.until_status(&id, "error").await;
        assert_whole(&stage.back(&id).await);
        stage.say(&id, &mut said).await;
    }
    stage.server.crash_and_start().await;
    stage.say(&id, &mut said).await;

    stage.server.client().action(&id, "stop").await;
    let live = stage.server.live(&id).await;
    stage.server.kill9();
    std::fs::remove_dir_all(live).expect("removed");
    stage.server.launch().await;
    let receipt = stage.back(&id).await;
    assert_whole(&receipt);
    assert_eq!(receipt["from"], "checkpoint");
    stage.say(&id, &mut said).await;
    let told = stage.last()["body"]["messages"].to_string();
    assert!(
        told.contains("<system-reminder>\\nYou were asleep"),
        "the model gets a note of what happened: {told}"
    );
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_shown_once_as_unknown_and_not_made_again() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "run: echo once >> count; touch begun; sleep 600").await;
    eventually("the command runs", async || {
        (client.exec(&id, "cat begun").await["exitCode"] == 0).then_some(())
    })
    .await;
    signal(stage.server.processes(&id).await.agent, libc::SIGKILL);
    stream.rest().await;
    client.until_status(&id, "error").await;
    stage.back(&id).await;
    eventually("the turn is over", async || {
        let session = client.session(&id).await;
        (session["openTurns"] == 0 && session["status"] == "active").then_some(())
    })
    .await;
    assert_eq!(client.exec(&id, "cat count").await["stdout"], "once\n");
    let unknown = || stage.last()["body"]["messages"].to_string().matches(UNKNOWN).count();
    assert_eq!(unknown(), 1);
    client.say(&id, "hello").await;
    // The model repeats the text it received, so count only the tool results.
    let results = stage.last()["body"]["messages"][2].to_string();
    assert_eq!(results.matches(UNKNOWN).count(), 1, "{results}");
}

#[tokio::test]
async fn trouble_that_passes_is_waited_for_and_the_tokens_are_summed() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let answer = client.say(&id, "fail 529\nusage 1000\nrun: echo hi").await;
    assert_eq!((&answer["status"], &answer["error"]), (&json!("done"), &Value::Null), "{answer}");
    assert_eq!(answer["text"], "The output begins with: hi");
    assert_eq!(stage.requests().len(), 3, "one in vain, one with the call, one with its result");
    let usage = &answer["usage"];
    let input = usage["inputTokens"].as_u64().or(usage["input_tokens"].as_u64()).expect("a number");
    assert!(input > 1000, "both calls count: {usage}");
}

#[tokio::test]
async fn a_refused_key_is_a_problem_with_a_remedy() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let answer = client.say(&id, "fail 401\nsay: never").await;
    assert_eq!(
        (&answer["status"], &answer["error"]["code"]),
        (&json!("failed"), &json!("model_error")),
        "{answer}"
    );
    let why = answer["error"]["error"].as_str().expect("a text");
    assert!(why.contains("401") && why.contains("ANTHROPIC_API_KEY"), "{why}");
    assert_eq!(stage.requests().len(), 1, "it is not asked again");
    assert_eq!(client.say(&id, "hello").await["status"], "done");
}

#[tokio::test]
async fn an_interrupt_ends_a_stream_and_the_partial_answer_is_remembered() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "slow 600: one two three four five six seven eight nine ten").await;
    stream.until("text_delta").await;
    client.action(&id, "interrupt").await;
    let frames = stream.rest().await;
    assert_eq!(frames.last().expect("done").data["status"], "interrupted");
    assert_eq!(client.say(&id, "go on").await["status"], "done");
    let messages = stage.last()["body"]["messages"].clone();
    let partial = messages[1]["content"][0]["text"].as_str().expect("what was said");
    assert!("one two three four five six seven eight nine ten".starts_with(partial), "{partial}");
    assert_eq!(messages[2]["content"][0]["text"], "[Request interrupted by user]");
}

#[tokio::test]
async fn the_key_is_nowhere_inside() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    let client = stage.server.client();
    client
        .say(&id, "run: env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ls -la /run/ash")
        .await;
    let shown = stage.last()["body"].to_string();
    stage.server.keeps_outside(SECRET, &shown);
}

/// Files, batches and the organisation are behind the same key.
#[tokio::test]
async fn an_agent_may_call_only_what_talks_with_the_operators_model() {
    let stage = Stage::set().await;
    let id = stage.create().await;
    for call in ["GET /v1/files", "POST /v1/messages/batches", "POST /chat/completions", "POST /responses"] {
        let refused = by_hand(&stage.server.client(), &id, call).await;
        assert!(refused.contains("permission_error") && refused.ends_with(" 403"), "{call}: {refused}");
    }
    assert_eq!(stage.requests().len(), 0, "none of them went out");
    stage.say(&id, &mut Vec::new()).await;
}

/// People read the name in lists and at terminals, and services refuse a conversation with an invalid name.
#[tokio::test]
async fn a_tools_name_holds_nothing_that_could_mislead_a_reader() {
    const GIVEN: &str = "Read\n\u{202e}\u{1b}[2J";
    let stage = crate::support::claude::Stage::set().await;
    let client = stage.server.client();
    client.deploy("helper").await;
    client.post("/api/sessions", json!({ "agent": "helper", "sessionId": "builtin" })).await;
    for (id, recorded) in [("builtin".to_owned(), "Read2J"), (stage.create().await, GIVEN)] {
        let call = json!({ "type": "tool_use", "name": GIVEN, "input": { "path": "x" } });
        stage.script(json!([{ "when": { "contains": "call it" }, "times": 1, "reply": [call] }])).await;
        let frames = client.send(&id, "call it").await.rest().await;
        let of = |event: &'static str| frames.iter().filter(move |frame| frame.event == event);
        let shown: Vec<&Value> = of("tool_use").map(|frame| &frame.data["name"]).collect();
        assert_eq!(shown, ["Read2J"], "{frames:?}");
        assert_eq!(frames.last().expect("an end").data["status"], "done", "{frames:?}");
        let events = client.get(&format!("/api/sessions/{id}/events?limit=1000")).await;
        let begun =
            events["events"].as_array().expect("a list").iter().find(|event| event["type"] == "tool_start");
        let begun = begun.expect("a call")["data"].as_str().expect("text").to_owned();
        assert!(begun.contains(r#""toolName":"Read2J""#), "{begun}");
        // The agent's own message passes unchanged.
        let said = of("message").filter_map(|frame| frame.data["message"]["content"].as_array());
        let calls = said.flatten().filter(|block| block["type"] == "tool_use");
        let names: Vec<&Value> = calls.map(|block| &block["name"]).collect();
        assert_eq!(names, [recorded], "{frames:?}");
    }
    let shown = stage.requests().iter().map(|request| request["body"].to_string()).collect::<String>();
    assert!(shown.contains(r#""name":"Read2J""#), "{shown}");
}

#[tokio::test]
async fn a_conversation_that_began_without_a_key_goes_on_with_one() {
    let mut stage = Stage::without_a_key();
    stage.server.launch().await;
    let id = stage.create().await;
    let said = stage.server.client().text(&id, "my name is Ada").await;
    assert!(said.starts_with("This is turn 1."), "{said}");
    assert_eq!(stage.requests().len(), 0);
    stage.server.stop().await;
    stage.give_the_key();
    stage.server.launch().await;
    stage.say(&id, &mut vec!["my name is Ada".to_owned()]).await;
}

#[tokio::test]
async fn a_session_can_work_without_a_model() {
    let stage = Stage::set().await;
    let client = stage.server.client();
    for (manifest, options) in
        [("provider = \"offline\"\n", json!({})), ("", json!({ "provider": "offline" }))]
    {
        let id = stage.create_with(manifest, options).await;
        assert_eq!(client.text(&id, "run: echo hi").await, "hi", "{manifest}");
        let call = "curl -s --unix-socket /run/ash/model.sock http://localhost/v1/messages -d '{}'";
        let answer = client.exec(&id, call).await;
        assert!(
            answer["stdout"].to_string().contains("no way to a model"),
            "no process inside has a key: {answer}"
        );
    }
    assert_eq!(stage.requests().len(), 0);
    let id = stage.create_with("provider = \"offline\"\n", json!({ "provider": "anthropic" })).await;
    assert_eq!(
        client.text(&id, "run: echo hi").await,
        "The output begins with: hi",
        "the session has the last word"
    );
}

#[tokio::test]
async fn where_claude_code_is_missing_the_built_in_agent_is_named() {
    let server = Server::without_claude(&[("ANTHROPIC_API_KEY", SECRET)]).await;
    let client = server.client();
    let agent = json!({ "name": "coder", "systemPrompt": "x", "runtime": "claude" });
    client.post("/api/agents", agent).await;
    let (status, answer) = client.ask(Method::POST, "/api/sessions", Some(json!({ "agent": "coder" }))).await;
    assert_eq!((status.as_u16(), &answer["code"]), (422, &json!("runtime_missing")), "{answer}");
    let error = answer["error"].as_str().expect("a sentence");
    assert!(error.contains("ASH_CLAUDE_BIN") && error.contains("runtime = \"builtin\""), "{error}");
}

#[tokio::test]
async fn a_model_without_a_key_and_a_provider_that_is_none_are_refused() {
    let mut server = Server::prepare(&[]);
    server.launch().await;
    let client = server.client();
    client.deploy("tester").await;
    for (provider, status, code, remedy) in [
        (json!("anthropic"), 422, "model_key_missing", "provider = \"offline\""),
        (json!("oracle"), 400, "invalid_body", "offline"),
        (json!({ "type": "anthropic" }), 422, "model_key_missing", "ANTHROPIC_API_KEY"),
        (json!({ "type": "oracle", "apiKey": "k" }), 422, "provider_unsupported", "anthropic"),
    ] {
        let wanted = json!({ "agent": "tester", "provider": provider });
        let (found, answer) = client.ask(Method::POST, "/api/sessions", Some(wanted)).await;
        assert_eq!((found.as_u16(), &answer["code"]), (status, &json!(code)), "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(remedy)), "{answer}");
    }
    assert_eq!(client.get("/api/sessions").await["sessions"], json!([]), "nothing was made");
}
