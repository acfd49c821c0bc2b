//! Tools that a client executes, with both agents: a call is a fact before a client sees it, takes one answer, and waits
//! through the deaths of the server and of the sandbox.

use crate::support::{Client, Frame, Point, children, cmdline, eventually, names, runtime::Stage, signal};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const RUNTIMES: [&str; 2] = ["builtin", "claude"];

fn lookup() -> Value {
    let properties = json!({"q": {"type": "string"}});
    let schema = json!({"type": "object", "properties": properties, "required": ["q"]});
    json!({"name": "lookup", "description": "Looks a thing up", "inputSchema": schema})
}

async fn create(stage: &Stage, mut options: Value) -> String {
    options["agent"] = json!(stage.runtime);
    options.as_object_mut().expect("options").entry("tools").or_insert(json!([lookup()]));
    let made = stage.server.client().post("/api/sessions", options).await;
    made["session"]["id"].as_str().expect("an id").to_owned()
}

async fn open_calls(client: &Client, id: &str) -> Vec<Value> {
    let tools = client.get(&format!("/api/sessions/{id}/tools")).await;
    tools["calls"].as_array().expect("calls").clone()
}

async fn until_called(client: &Client, id: &str) -> Value {
    eventually("a call waits", async || open_calls(client, id).await.pop()).await
}

async fn answer(client: &Client, id: &str, call: &Value, body: Value) -> (StatusCode, Value) {
    let call = call["id"].as_str().expect("an id");
    client.ask(Method::POST, &format!("/api/sessions/{id}/tools/{call}"), Some(body)).await
}

async fn until_rest(client: &Client, id: &str) {
    eventually("the turn is over", async || (client.session(id).await["openTurns"] == 0).then_some(())).await;
}

fn find<'f>(frames: &'f [Frame], event: &str) -> &'f Value {
    let found = frames.iter().find(|frame| frame.event == event);
    &found.unwrap_or_else(|| panic!("no {event} in {:?}", names(frames))).data
}

/// How often an event of the session's log says this.
async fn count(client: &Client, id: &str, action: &str) -> usize {
    let events = client.get(&format!("/api/sessions/{id}/events?limit=1000&type=lifecycle")).await;
    let data = events["events"].as_array().expect("events").iter().filter_map(|event| event["data"].as_str());
    data.filter(|data| data.contains(&format!("\"action\":\"{action}\""))).count()
}

/// Everything that the model was shown last.
fn shown(stage: &Stage) -> String {
    stage.model.requests().last().map(|request| request["body"]["messages"].to_string()).unwrap_or_default()
}

#[tokio::test]
async fn a_client_executes_the_call_and_the_model_gets_its_output() {
    for runtime in RUNTIMES {
        let stage = Stage::set(runtime).await;
        let client = stage.server.client();
        let id = create(&stage, json!({})).await;
        let mut stream = client.send(&id, "call lookup: {\"q\": \"rain\"}").await;
        let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
        assert_eq!((&asked["tool"], &asked["input"]), (&json!("lookup"), &json!({"q": "rain"})), "{runtime}");
        assert!(asked["toolUseId"].is_string() && asked["expiresAt"].is_string(), "{runtime}: {asked}");
        let [open] = &open_calls(&client, &id).await[..] else { panic!("{runtime}: one call waits") };
        assert_eq!(open["id"], asked["id"]);
        assert_eq!(client.session(&id).await["pendingTools"][0]["id"], asked["id"], "{runtime}");

        let output = json!({"result": {"weather": "wet all day"}});
        assert_eq!(answer(&client, &id, &asked, output.clone()).await.0, StatusCode::OK, "{runtime}");
        let frames = stream.until("done").await;
        assert_eq!(find(&frames, "done")["status"], "done", "{runtime}");
        let answered = find(&frames, "tool_answered");
        assert_eq!(
            (&answered["result"], &answered["by"]),
            (&output["result"], &json!("client")),
            "{runtime}"
        );
        assert!(shown(&stage).contains("wet all day"), "{runtime}: {}", shown(&stage));
        assert_eq!(open_calls(&client, &id).await, [json!(null); 0], "{runtime}");

        // The same answer again is accepted, so that a client may repeat it; another one is told that it is too late.
        assert_eq!(answer(&client, &id, &asked, output).await.0, StatusCode::OK, "{runtime}");
        let (status, problem) = answer(&client, &id, &asked, json!({"result": "dry"})).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("tool_answered")), "{runtime}");
        assert_eq!(count(&client, &id, "tool_answered").await, 1, "{runtime}");
    }
}

#[tokio::test]
async fn an_error_of_a_tool_is_the_models_to_handle() {
    for runtime in RUNTIMES {
        let stage = Stage::set(runtime).await;
        let client = stage.server.client();
        let id = create(&stage, json!({})).await;
        let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
        let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
        let error = json!({"error": "the archive is closed"});
        assert_eq!(answer(&client, &id, &asked, error).await.0, StatusCode::OK);
        assert_eq!(find(&stream.until("done").await, "done")["status"], "done", "{runtime}");
        assert!(shown(&stage).contains("the archive is closed"), "{runtime}");
    }
}

#[tokio::test]
async fn a_call_outlives_the_server_and_is_made_once() {
    for runtime in RUNTIMES {
        let mut stage = Stage::set(runtime).await;
        let id = create(&stage, json!({})).await;
        let client = stage.server.client();
        let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
        let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
        stage.server.crash_and_start().await;
        let client = stage.server.client();
        let call = until_called(&client, &id).await;
        assert_eq!(call["id"], asked["id"], "{runtime}: the same call");
        assert_eq!(answer(&client, &id, &call, json!({"result": "found it"})).await.0, StatusCode::OK);
        until_rest(&client, &id).await;
        assert!(shown(&stage).contains("found it"), "{runtime}");
        assert_eq!(count(&client, &id, "tool_requested").await, 1, "{runtime}");
    }
}

#[tokio::test]
async fn an_answer_that_was_stored_reaches_the_agent_although_the_server_dies_first() {
    for runtime in RUNTIMES {
        let mut stage = Stage::set(runtime).await;
        let id = create(&stage, json!({})).await;
        let client = stage.server.client();
        let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
        let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
        stage.server.arm("input.stored", Point::Abort);
        let path = format!("/api/sessions/{id}/tools/{}", asked["id"].as_str().expect("an id"));
        let request = client.request(Method::POST, &path).json(&json!({"result": "stored"}));
        let sent = tokio::spawn(request.send());
        stage.server.died_at("input.stored").await;
        assert!(sent.await.expect("a task").is_err(), "{runtime}: the caller got no answer");
        stage.server.launch().await;
        let client = stage.server.client();
        until_rest(&client, &id).await;
        assert!(shown(&stage).contains("stored"), "{runtime}");
        assert_eq!(count(&client, &id, "tool_requested").await, 1, "{runtime}");
        // The client repeats its request, and learns that it was taken.
        assert_eq!(answer(&client, &id, &asked, json!({"result": "stored"})).await.0, StatusCode::OK);
    }
}

/// Kills the agent, as the kernel does when memory runs out.
async fn kill_agent(stage: &Stage, id: &str) {
    let note = stage.server.note(id).await;
    let init = u32::try_from(note["init"]["pid"].as_u64().expect("a pid")).expect("a pid");
    let name = if stage.runtime == "claude" { "claude" } else { "builtin-agent" };
    let agent = children(init).into_iter().find(|pid| cmdline(*pid).contains(name)).expect("the agent");
    signal(agent, libc::SIGKILL);
    stage.server.client().until_status(id, "error").await;
}

#[tokio::test]
async fn a_call_outlives_the_sandbox_whether_it_is_answered_meanwhile_or_later() {
    for word in ["meanwhile", "later"] {
        let stage = Stage::set("builtin").await;
        let id = create(&stage, json!({})).await;
        let client = stage.server.client();
        let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
        let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
        kill_agent(&stage, &id).await;
        let [waiting] = &open_calls(&client, &id).await[..] else { panic!("it waits") };
        assert_eq!(waiting["id"], asked["id"]);
        let output = json!({"result": word});
        if word == "meanwhile" {
            assert_eq!(answer(&client, &id, &asked, output.clone()).await.0, StatusCode::OK);
        }
        client.action(&id, "resume").await;
        if word == "later" {
            let call = until_called(&client, &id).await;
            assert_eq!(call["id"], asked["id"], "the same call");
            assert_eq!(answer(&client, &id, &call, output).await.0, StatusCode::OK);
        }
        until_rest(&client, &id).await;
        assert!(shown(&stage).contains(word), "{}", shown(&stage));
        assert_eq!(count(&client, &id, "tool_requested").await, 1, "{word}");
        assert_eq!(count(&client, &id, "tool_answered").await, 1, "{word}");
    }
}

/// Claude Code shows the model that the call was cut off, and has no MCP server yet when it continues the turn.
#[tokio::test]
async fn a_call_that_claude_code_does_not_repeat_ends_with_its_turn_and_the_next_turn_has_the_tools() {
    let stage = Stage::set("claude").await;
    let id = create(&stage, json!({})).await;
    let client = stage.server.client();
    let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
    let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
    kill_agent(&stage, &id).await;
    assert_eq!(open_calls(&client, &id).await.len(), 1, "it waits for the next agent");
    client.action(&id, "resume").await;
    until_rest(&client, &id).await;
    let (status, problem) = answer(&client, &id, &asked, json!({"result": "late"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("tool_withdrawn")));
    assert!(shown(&stage).contains("Tool call interrupted"), "the model knows: {}", shown(&stage));
    let mut stream = client.send(&id, "call lookup: {\"q\": \"y\"}").await;
    let next = stream.until("tool_requested").await.pop().expect("a frame").data;
    assert_ne!(next["id"], asked["id"]);
    assert_eq!(answer(&client, &id, &next, json!({"result": "again"})).await.0, StatusCode::OK);
    stream.until("done").await;
    assert!(shown(&stage).contains("again"));
}

#[tokio::test]
async fn an_interrupt_withdraws_the_call_and_a_late_answer_is_told_so() {
    for runtime in RUNTIMES {
        let stage = Stage::set(runtime).await;
        let client = stage.server.client();
        let id = create(&stage, json!({})).await;
        let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
        let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
        client.action(&id, "interrupt").await;
        let frames = stream.until("done").await;
        assert_eq!(find(&frames, "done")["status"], "interrupted", "{runtime}");
        assert_eq!(find(&frames, "tool_answered")["by"], "cancelled", "{runtime}");
        let (status, problem) = answer(&client, &id, &asked, json!({"result": "late"})).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("tool_withdrawn")), "{runtime}");
        // The agent goes on.
        assert_eq!(client.text(&id, "say: well").await, "well", "{runtime}");
    }
}

#[tokio::test]
async fn a_call_that_no_client_answers_in_time_fails_or_stops_the_turn() {
    for (runtime, policy, status) in [
        ("builtin", "fail", "done"),
        ("builtin", "interrupt", "interrupted"),
        ("claude", "fail", "done"),
        ("claude", "interrupt", "interrupted"),
    ] {
        let stage = Stage::set(runtime).await;
        let client = stage.server.client();
        let id = create(&stage, json!({"toolTimeout": 1, "onToolTimeout": policy})).await;
        let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
        let frames = stream.until("done").await;
        assert_eq!(find(&frames, "done")["status"], status, "{runtime} {policy}");
        if policy == "fail" {
            let answered = find(&frames, "tool_answered");
            assert_eq!((answered["by"].as_str(), answered["error"].is_string()), (Some("policy"), true));
            assert!(shown(&stage).contains("did not answer this call in time"), "{runtime}");
        }
    }
}

#[tokio::test]
async fn tools_change_with_a_resume_and_those_that_no_agent_could_offer_are_refused() {
    for runtime in RUNTIMES {
        let stage = Stage::set(runtime).await;
        let client = stage.server.client();
        let id = create(&stage, json!({"toolTimeout": 0})).await;
        assert_eq!(client.text(&id, "say: one").await, "one", "{runtime}");
        let other = json!({"name": "other", "description": "d", "inputSchema": {"type": "object"}});
        let change = json!({"tools": [other]});
        let (status, _) =
            client.ask(Method::PATCH, &format!("/api/sessions/{id}/config"), Some(change)).await;
        assert_eq!(status, StatusCode::OK, "{runtime}");
        let mut stream = client.send(&id, "call other: {}").await;
        let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
        assert_eq!((&asked["tool"], &asked["expiresAt"]), (&json!("other"), &json!(null)), "{runtime}");
        assert_eq!(answer(&client, &id, &asked, json!({"result": "ok"})).await.0, StatusCode::OK);
        stream.until("done").await;

        for tools in [json!([{"name": "two words"}]), json!([{"name": "t"}, {"name": "t"}]), json!("lookup")]
        {
            let body = json!({"agent": runtime, "tools": tools});
            let (status, problem) = client.ask(Method::POST, "/api/sessions", Some(body)).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        }
    }
}

#[tokio::test]
async fn a_tool_that_the_client_has_taken_back_is_not_called() {
    let server = crate::support::Server::start().await;
    let client = server.client();
    let options = json!({"agent": "default", "sessionId": "s", "tools": [lookup()]});
    client.post("/api/sessions", options).await;
    let prompt = "run: until [ -e gate ]; do sleep 0.1; done\ncall lookup: {\"q\": \"x\"}";
    let mut stream = client.send("s", prompt).await;
    stream.until("tool_use").await;
    let change = json!({"tools": []});
    let (status, said) = client.ask(Method::PATCH, "/api/sessions/s/config", Some(change)).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    server.let_go("s", "gate").await;
    let frames = stream.until("done").await;
    assert_eq!(find(&frames, "tool_answered")["by"], "policy");
    assert_eq!(find(&frames, "done")["status"], "done");
}

#[tokio::test]
async fn only_those_who_see_the_session_answer_and_the_answer_has_one_form() {
    let stage = Stage::set("builtin").await;
    let client = stage.server.client();
    let id = create(&stage, json!({})).await;
    let mut stream = client.send(&id, "call lookup: {\"q\": \"x\"}").await;
    let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
    let key = client.post("/api/api-keys", json!({"owner": "mallory"})).await;
    let mallory = stage.server.client_with(key["key"].as_str().expect("a key"));
    assert_eq!(answer(&mallory, &id, &asked, json!({"result": 1})).await.0, StatusCode::NOT_FOUND);
    for bad in [json!({}), json!({"result": 1, "error": "no"})] {
        assert_eq!(answer(&client, &id, &asked, bad).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    }
    // A lock is about messages: an answer needs no token.
    client.post(&format!("/api/sessions/{id}/lock"), json!({"ttl": 60})).await;
    let foreign = json!({"id": "0196d2a4-7c1e-7b3a-9f10-2f6c1d0e5a01"});
    let (status, problem) = answer(&client, &id, &foreign, json!({"result": 1})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("tool_call_not_found")));
    assert_eq!(answer(&client, &id, &asked, json!({"result": null})).await.0, StatusCode::OK);
    stream.until("done").await;
}

#[tokio::test]
async fn the_shell_lists_the_calls_and_answers_them() {
    let stage = Stage::set("builtin").await;
    let client = stage.server.client();
    let id = create(&stage, json!({})).await;
    let mut stream = client.send(&id, "call lookup: {\"q\": \"shell\"}").await;
    let asked = stream.until("tool_requested").await.pop().expect("a frame").data;
    let call = asked["id"].as_str().expect("an id");
    let ash = async |args: &[&str]| {
        let mut command = tokio::process::Command::from(stage.server.command_of(args));
        command.env("ASH_SERVER_URL", &client.url).env("ASH_API_KEY", &client.key);
        let done = command.output().await.expect("ash");
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let (code, said) = ash(&["session", "tools", &id]).await;
    assert!(code == Some(0) && said.contains(call) && said.contains("shell"), "{said}");
    let (code, said) = ash(&["session", "answer", &id, call, "--result", "{\"n\": 1}"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(find(&stream.until("done").await, "tool_answered")["result"], json!({"n": 1}));
    let (code, said) = ash(&["session", "answer", &id, call, "--error", "no"]).await;
    assert!(code != Some(0) && said.contains("answered otherwise"), "{said}");
}
