//! Tools that the session's client executes: the agent requests each call from its host and waits for the response.

use crate::harness::{Agent, Place, SESSION, types};
use crate::model::{Model, UNKNOWN};
use serde_json::{Value, json};
use std::fs;

const NOT_ANSWERED: &str = "[Tool call cancelled: the turn was interrupted before the call was answered]";
const SERVICES: [&[&str]; 3] = [
    &["--provider", "anthropic"],
    &["--provider", "openai", "--model", "m"],
    &["--provider", "azure", "--model", "m", "--api-version", "v"],
];

fn start(place: &Place, model: &Model, service: &[&str]) -> Agent {
    let socket = model.socket().display().to_string();
    let own = ["--session-id", SESSION, "--resume", SESSION, "--tools", "run", "--model-socket", &socket];
    declared(place.start(&[&own, service].concat()), &["lookup", "a", "b"])
}

fn declared(mut agent: Agent, names: &[&str]) -> Agent {
    let tools: Vec<Value> = names.iter().map(|name| tool(name)).collect();
    agent.send(&json!({"type": "control_request", "request_id": "hello",
        "request": {"subtype": "initialize", "tools": tools}}));
    assert_eq!(agent.line()["response"]["subtype"], "success");
    agent
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("The tool {name}."), "inputSchema": schema()})
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"key": {"type": "string"}}})
}

/// The lines up to that many requests for calls, and the requests.
fn requests(agent: &Agent, count: usize) -> (Vec<Value>, Vec<Value>) {
    let mut lines: Vec<Value> = Vec::new();
    while lines.iter().filter(|line| line["type"] == "control_request").count() < count {
        lines.push(agent.line());
        assert_ne!(lines.last().expect("a line")["type"], "result", "{lines:?}");
    }
    let requests = lines.iter().filter(|line| line["type"] == "control_request").cloned().collect();
    (lines, requests)
}

fn response(request_id: &Value, content: &str) -> Value {
    let response = json!({"content": content, "is_error": false});
    json!({"type": "control_response",
        "response": {"subtype": "success", "request_id": request_id, "response": response}})
}

fn respond(agent: &mut Agent, request: &Value, content: &str) {
    agent.send(&response(&request["request_id"], content));
}

/// Returns when the agent has handled every line so far.
fn handled(agent: &mut Agent) {
    agent.control("barrier", "barrier");
    assert_eq!(
        agent.until("control_response").pop().expect("a response")["response"]["request_id"],
        "barrier"
    );
}

fn result(agent: &Agent) -> String {
    let result = agent.until("result").pop().expect("a result");
    assert_eq!(result["is_error"], false, "{result}");
    result["result"].as_str().expect("text").to_owned()
}

/// The recorded tool results, in the order of the transcript.
fn recorded(place: &Place) -> Vec<String> {
    let entries = place.entries(SESSION);
    let results = entries.iter().filter(|entry| entry["type"] == "tool_result");
    results.map(|entry| entry["content"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn a_call_is_offered_requested_answered_and_used() {
    for service in SERVICES {
        let (place, model) = (Place::new(), Model::new());
        let mut agent = start(&place, &model, service);
        agent.prompt("a", r#"call lookup: {"key": "tea"}"#);
        let (lines, asked) = requests(&agent, 1);
        assert_eq!(lines[0]["tools"], json!(["run", "lookup", "a", "b"]));
        let id = lines.iter().find_map(|line| line["message"]["content"][0]["id"].as_str()).expect("a call");
        let request = json!({"subtype": "client_tool", "tool_name": "lookup", "input": {"key": "tea"}, "tool_use_id": id});
        let expected =
            json!({"type": "control_request", "request_id": format!("call-{id}"), "request": request});
        assert_eq!(asked, [expected], "{service:?}");

        respond(&mut agent, &asked[0], "green");
        let shown = agent.until("user").pop().expect("a result");
        assert_eq!(recorded(&place), ["green"], "recorded before it is shown");
        let block = json!({"type": "tool_result", "tool_use_id": id, "content": "green", "is_error": false});
        assert_eq!(shown["message"]["content"], json!([block]));
        assert_eq!(result(&agent), "The output begins with: green", "{service:?}");

        let offered = model.asked()[0]["tools"].clone();
        let (name, description) = ("lookup", "The tool lookup.");
        let lookup = match service[1] {
            "anthropic" => json!({"name": name, "description": description, "input_schema": schema()}),
            _ => json!({"type": "function",
                "function": {"name": name, "description": description, "parameters": schema()}}),
        };
        assert_eq!((offered.as_array().map(Vec::len), &offered[1]), (Some(4), &lookup), "{service:?}");
    }
}

#[test]
fn without_a_model_calls_work_too_and_errors_are_results() {
    let place = Place::new();
    let mut agent = declared(place.fresh(), &["lookup", "read"]);
    let mut ask = |turn: &str, prompt: &str, answer: fn(&Value) -> Value| {
        agent.prompt(turn, prompt);
        let (_, asked) = requests(&agent, 1);
        agent.send(&answer(&asked[0]["request_id"]));
        let shown = agent.until("user").pop().expect("a result");
        let request = &asked[0]["request"];
        let is_error = shown["message"]["content"][0]["is_error"].clone();
        json!([request["tool_name"], request["input"], result(&agent), is_error])
    };
    let said = ask("a", "call lookup:", |id| response(id, "green"));
    assert_eq!(said, json!(["lookup", {}, "green", false]));
    let said = ask("b", r#"call lookup: {"key": 1}"#, |id| {
        let mut failed = response(id, "no such key");
        failed["response"]["response"]["is_error"] = json!(true);
        failed
    });
    assert_eq!(said, json!(["lookup", {"key": 1}, "no such key", true]));
    let said = ask("c", "call lookup:", |id| {
        json!({"type": "control_response",
            "response": {"subtype": "error", "request_id": id, "error": "the client is gone"}})
    });
    assert_eq!(said, json!(["lookup", {}, "the client is gone", true]));
    let said = ask("d", "read f", |id| response(id, "the client's own"));
    assert_eq!(said, json!(["read", {"path": "f"}, "the client's own", false]), "it replaces ours");
    let refused = "[Tool call not run: this session has no such tool]";
    assert_eq!(agent.answer("e", "call unknown:"), refused);
}

#[test]
fn the_calls_of_one_answer_are_requested_together_and_recorded_in_order() {
    let play = |mut agent: Agent, place: &Place, said: [&str; 2]| {
        agent.prompt("t", r#"call a: {"key": "1"} and call b: {"key": "2"}"#);
        let (_, asked) = requests(&agent, 2);
        let names: Vec<&Value> = asked.iter().map(|request| &request["request"]["tool_name"]).collect();
        assert_eq!(names, ["a", "b"]);
        respond(&mut agent, &asked[1], "two");
        handled(&mut agent);
        assert_eq!(recorded(place).len(), 0, "the results come in the order of the calls");
        respond(&mut agent, &asked[0], "one");
        assert_eq!(result(&agent), said.join("\n"));
        assert_eq!(recorded(place), ["one", "two"]);
    };
    for service in SERVICES {
        let (place, model) = (Place::new(), Model::new());
        let said = ["The output begins with: one", "The output begins with: two"];
        play(start(&place, &model, service), &place, said);
    }
    let place = Place::new();
    play(declared(place.fresh(), &["a", "b"]), &place, ["one", "two"]);
}

/// A model that calls `run` and `lookup` in one answer. The command waits until the test opens the file `go`.
fn model_of_both() -> Model {
    let script = r#"{"when": {"contains": "both"}, "times": 1, "reply": [
        {"type": "tool_use", "name": "lookup", "input": {}},
        {"type": "tool_use", "name": "run", "input": {"command": "echo x >> ran; echo > begun; cat go"}}]}"#;
    Model::with(&script.replace('\n', " "))
}

fn make_pipes(place: &Place) {
    for name in ["begun", "go"] {
        rustix::fs::mkfifoat(rustix::fs::CWD, place.work(name), rustix::fs::Mode::RWXU).expect("pipe");
    }
}

#[test]
fn our_own_tools_run_while_the_client_works_and_a_response_meanwhile_is_kept() {
    for service in SERVICES {
        let (place, model) = (Place::new(), model_of_both());
        make_pipes(&place);
        let mut agent = start(&place, &model, service);
        agent.prompt("t", "both");
        let (_, asked) = requests(&agent, 1);
        fs::read(place.work("begun")).expect("the command has begun");
        respond(&mut agent, &asked[0], "green");
        handled(&mut agent);
        assert_eq!(recorded(&place).len(), 0);
        fs::write(place.work("go"), "done").expect("written");
        assert_eq!(
            result(&agent),
            "The output begins with: green\nThe output begins with: done",
            "{service:?}"
        );
    }
}

#[test]
fn an_interrupt_cancels_the_open_calls_and_the_conversation_goes_on() {
    for service in SERVICES {
        let (place, model) = (Place::new(), Model::new());
        let mut agent = start(&place, &model, service);
        agent.prompt("t", "call a: and call b: and call lookup:");
        let (_, asked) = requests(&agent, 3);
        respond(&mut agent, &asked[1], "two");
        handled(&mut agent);
        agent.control("i", "interrupt");
        let lines = agent.until("result");
        let result_line = lines.last().expect("a result");
        let reason = json!(["error_during_execution", "aborted_tools"]);
        assert_eq!(json!([result_line["subtype"], result_line["terminal_reason"]]), reason);
        let cancelled = lines.iter().filter(|line| line["type"] == "control_cancel_request");
        let cancelled: Vec<Value> = cancelled.cloned().collect();
        let expected = [0, 2].map(
            |call: usize| json!({"type": "control_cancel_request", "request_id": asked[call]["request_id"]}),
        );
        assert_eq!(cancelled, expected, "{service:?}");
        assert_eq!(types(&lines).iter().filter(|kind| **kind == "user").count(), 3);
        assert_eq!(recorded(&place), [NOT_ANSWERED, "two", NOT_ANSWERED]);

        respond(&mut agent, &asked[0], "too late");
        assert!(agent.answer("u", "say: fine").contains("fine"), "the model accepts the conversation");
        assert!(!model.last().to_string().contains("too late"));
        agent.prompt("v", "call a:");
        let (_, asked) = requests(&agent, 1);
        respond(&mut agent, &asked[0], "again");
        assert_eq!(result(&agent), "The output begins with: again");
    }
}

#[test]
fn an_interrupt_of_our_own_tool_cancels_the_clients_call_too() {
    let (place, model) = (Place::new(), model_of_both());
    make_pipes(&place);
    let mut agent = start(&place, &model, SERVICES[0]);
    agent.prompt("t", "both");
    let (_, asked) = requests(&agent, 1);
    fs::read(place.work("begun")).expect("the command has begun");
    agent.control("i", "interrupt");
    let lines = agent.until("result");
    assert_eq!(types(&lines), ["control_response", "user", "control_cancel_request", "user", "result"]);
    assert_eq!(lines[2]["request_id"], asked[0]["request_id"]);
    assert_eq!(lines[4]["terminal_reason"], "aborted_tools");
}

const CUT: &str = "call a: {\"key\": \"1\"} and call b:\nrun: echo x >> ran\ncall lookup:";

/// Answers calls until the result, or for that many lines. Returns the lines, and the requests by tool.
fn play(agent: &mut Agent, most: usize) -> (Vec<Value>, Vec<[String; 3]>) {
    let (mut lines, mut asked) = (Vec::<Value>::new(), Vec::new());
    while lines.len() < most && lines.last().is_none_or(|line| line["type"] != "result") {
        let line = agent.line();
        if line["type"] == "control_request" {
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let request = &line["request"];
            let name = text(&request["tool_name"]);
            respond(agent, &line, &format!("of {name}"));
            asked.push([name, text(&line["request_id"]), text(&request["tool_use_id"])]);
        }
        lines.push(line);
    }
    (lines, asked)
}

fn continue_turn(agent: &mut Agent, prompt: &str) {
    agent.send(&json!({"type": "user", "uuid": "t", "continue": true,
        "message": {"role": "user", "content": prompt}}));
}

#[test]
fn killed_after_any_line_the_same_calls_are_requested_again_and_each_answer_is_used_once() {
    let first = |place: &Place| {
        let mut agent = declared(place.fresh(), &["a", "b", "lookup"]);
        agent.prompt("t", CUT);
        agent
    };
    let place = Place::new();
    let (lines, all) = play(&mut first(&place), usize::MAX);
    assert_eq!(all.iter().map(|[name, ..]| name.as_str()).collect::<Vec<_>>(), ["a", "b", "lookup"]);
    for killed_after in 0..=lines.len() {
        let place = Place::new();
        let mut agent = first(&place);
        play(&mut agent, killed_after);
        agent.kill();
        let mut agent = declared(place.resumed(), &["a", "b", "lookup"]);
        continue_turn(&mut agent, CUT);
        let (lines, again) = play(&mut agent, usize::MAX);
        assert!(again.iter().all(|request| all.contains(request)), "{killed_after}: {again:?}");
        let text = lines.last().expect("a result")["result"].as_str().expect("text").to_owned();
        let said: Vec<&str> = text.lines().collect();
        assert_eq!([said[0], said[1], said[3]], ["of a", "of b", "of lookup"], "{killed_after}");
        assert!(["[no output]", UNKNOWN].contains(&said[2]), "{killed_after}: {said:?}");
        let kinds = ["user", "assistant", "tool_result", "result"].map(|kind| place.entries_of(kind));
        assert_eq!(kinds, [1, 4, 4, 1], "{killed_after}");
        assert!(fs::read_to_string(place.work("ran")).map_or(0, |text| text.lines().count()) <= 1);
    }
}

#[test]
fn killed_while_it_waits_it_requests_the_open_calls_again_under_the_same_id() {
    for service in SERVICES {
        let (place, model) = (Place::new(), Model::new());
        let mut agent = start(&place, &model, service);
        agent.prompt("t", "call a: and call b:");
        let (_, asked) = requests(&agent, 2);
        respond(&mut agent, &asked[0], "one");
        agent.until("user");
        agent.kill();
        for _ in 0..2 {
            let mut agent = start(&place, &model, service);
            continue_turn(&mut agent, "call a: and call b:");
            assert_eq!(requests(&agent, 1).1, asked[1..], "{service:?}");
            agent.kill();
        }
        let mut agent = start(&place, &model, service);
        let steered = json!({"type": "user", "uuid": "s", "steer": "t",
            "message": {"role": "user", "content": "say: steered"}});
        continue_turn(&mut agent, "call a: and call b:");
        let (_, again) = requests(&agent, 1);
        agent.send(&steered);
        respond(&mut agent, &again[0], "two");
        assert_eq!(result(&agent), "steered", "the model sees what was said meanwhile");
        assert_eq!(recorded(&place), ["one", "two"]);
        assert_eq!(model.asked().len(), 2, "the first answer of the model was used again");
        let shown = model.last()["messages"].to_string();
        assert_eq!(
            ["one", "two"].map(|word| shown.matches(&format!("\"{word}\"")).count()),
            [1, 1],
            "{shown}"
        );
    }
}

#[test]
fn an_interrupt_of_a_resumed_turn_cancels_the_calls_of_the_process_that_died() {
    let place = Place::new();
    let mut agent = declared(place.fresh(), &["a"]);
    agent.prompt("t", "call a:");
    let (_, asked) = requests(&agent, 1);
    agent.kill();
    let mut agent = declared(place.resumed(), &["a"]);
    continue_turn(&mut agent, "call a:");
    agent.control("i", "interrupt");
    let lines = agent.until("result");
    let about = |kind: &str| lines.iter().find(|line| line["type"] == kind).map(|line| &line["request_id"]);
    let id = Some(&asked[0]["request_id"]);
    assert_eq!((about("control_request"), about("control_cancel_request")), (id, id));
    assert_eq!(recorded(&place), [NOT_ANSWERED]);
}

#[test]
fn after_a_crash_our_own_call_has_an_unknown_outcome_and_the_clients_call_is_requested_again() {
    let (place, model) = (Place::new(), model_of_both());
    make_pipes(&place);
    let mut agent = start(&place, &model, SERVICES[0]);
    agent.prompt("t", "both");
    let (_, asked) = requests(&agent, 1);
    fs::read(place.work("begun")).expect("the command has begun");
    agent.kill();
    let mut agent = start(&place, &model, SERVICES[0]);
    continue_turn(&mut agent, "both");
    let (_, again) = requests(&agent, 1);
    assert_eq!((&again, recorded(&place)), (&asked, vec![UNKNOWN.to_owned()]));
    respond(&mut agent, &again[0], "green");
    assert_eq!(result(&agent), format!("The output begins with: green\nIt failed: {UNKNOWN}"));
    assert_eq!(fs::read_to_string(place.work("ran")).expect("a file"), "x\n");
}

#[test]
fn a_call_of_a_tool_that_is_not_declared_any_more_has_an_unknown_outcome() {
    let place = Place::new();
    let mut agent = declared(place.fresh(), &["a", "b"]);
    agent.prompt("t", "call a: and call b:");
    requests(&agent, 2);
    agent.kill();
    let mut agent = declared(place.resumed(), &["b"]);
    continue_turn(&mut agent, "call a: and call b:");
    let (_, asked) = requests(&agent, 1);
    assert_eq!(asked[0]["request"]["tool_name"], "b");
    respond(&mut agent, &asked[0], "two");
    assert_eq!(result(&agent), format!("{UNKNOWN}\ntwo"));
}

#[test]
fn responses_that_nothing_waits_for_are_ignored() {
    let place = Place::new();
    let mut agent = declared(place.fresh(), &["a"]);
    // Without a model the ids follow from the prompt, so another place shows which id comes.
    let other = Place::new();
    let mut scout = declared(other.fresh(), &["a"]);
    scout.prompt("t", "call a:");
    let id = requests(&scout, 1).1[0]["request_id"].clone();
    agent.send(&response(&id, "early"));
    agent.prompt("t", "call a:");
    let (_, asked) = requests(&agent, 1);
    assert_eq!(asked[0]["request_id"], id);
    for foreign in ["call-other", "hello", ""] {
        agent.send(&response(&json!(foreign), "foreign"));
    }
    handled(&mut agent);
    assert_eq!(recorded(&place).len(), 0);
    for content in ["first", "second"] {
        respond(&mut agent, &asked[0], content);
    }
    assert_eq!(result(&agent), "first");
    respond(&mut agent, &asked[0], "late");
    agent.prompt("u", "call a:");
    let (_, asked) = requests(&agent, 1);
    handled(&mut agent);
    assert_eq!(recorded(&place), ["first"]);
    respond(&mut agent, &asked[0], "second turn");
    assert_eq!(result(&agent), "second turn");
    assert_eq!(agent.finish(), (vec![], Some(0)));
}

#[test]
fn a_response_of_several_mebibytes_is_recorded_whole_and_shown_to_the_model_in_part() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = start(&place, &model, SERVICES[0]);
    agent.prompt("t", "call a:");
    let (_, asked) = requests(&agent, 1);
    let big = format!("begin\n{}", "\u{1f40b} \"\\\u{1} ".repeat(1 << 20));
    assert!(big.len() > 8 << 20);
    respond(&mut agent, &asked[0], &big);
    assert_eq!(result(&agent), "The output begins with: begin");
    assert!(recorded(&place) == [big], "it is recorded whole");
    assert!(model.last().to_string().len() < 1 << 20);
}

#[test]
fn without_input_nothing_can_answer_so_the_agent_ends_and_asks_again_after_a_restart() {
    let place = Place::new();
    let mut agent = declared(place.fresh(), &["a"]);
    agent.prompt("t", "call a:");
    let (_, asked) = requests(&agent, 1);
    assert_eq!(agent.finish(), (vec![], Some(1)));
    let mut agent = declared(place.resumed(), &["a"]);
    continue_turn(&mut agent, "call a:");
    let (_, again) = requests(&agent, 1);
    assert_eq!(again, asked);
    respond(&mut agent, &again[0], "one");
    assert_eq!(result(&agent), "one");
}

#[test]
fn a_new_declaration_counts_for_a_prompt_that_waits() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.prompt("t", "hold go: one two");
    agent.until("stream_event");
    let mut agent = declared(agent, &["a"]);
    agent.prompt("u", "call a:");
    handled(&mut agent);
    fs::write(place.work("go"), "").expect("written");
    assert_eq!(result(&agent), "one two");
    let (_, asked) = requests(&agent, 1);
    respond(&mut agent, &asked[0], "green");
    assert_eq!(result(&agent), "green");
}

#[test]
fn declarations_take_space_in_the_context_window() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = start(&place, &model, &["--provider", "anthropic", "--context-window", "10000"]);
    assert_eq!(agent.answer("t", "say: hi"), "hi");
    let mut long = tool("a");
    long["description"] = json!("word ".repeat(10_000));
    agent.send(&json!({"type": "control_request", "request_id": "again",
        "request": {"subtype": "initialize", "tools": [long]}}));
    agent.line();
    let lines = agent.ask("u", "say: hi");
    assert_eq!(lines.last().expect("a result")["terminal_reason"], "context_full");
    assert_eq!(lines[0]["tools"], json!(["run", "a"]));
}
