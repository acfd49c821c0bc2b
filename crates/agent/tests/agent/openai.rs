//! The agent with a chat completion service. It keeps the same promises as with the Messages API, and a conversation can
//! move between services.

use crate::harness::{Agent, Place, SESSION, streamed, types};
use crate::model::{Model, UNKNOWN, notices, service};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn start(place: &Place, socket: &Path) -> Agent {
    let socket = socket.display().to_string();
    let own = ["--session-id", SESSION, "--resume", SESSION, "--provider", "openai"];
    place.start(&[&own[..], &["--model", "gpt-test", "--model-socket", &socket, "--effort", "low"]].concat())
}

fn agent(model: &Model, place: &Place) -> Agent {
    start(place, &model.socket())
}

#[test]
fn a_turn_with_tools_does_its_work_and_is_counted() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = agent(&model, &place);
    let lines = agent.ask("a", "think: hm\nwrite notes.txt: remember the milk");
    assert_eq!(types(&lines)[..3], ["system", "assistant", "user"]);
    assert_eq!(fs::read_to_string(place.work("notes.txt")).expect("a file"), "remember the milk");
    let result = lines.last().expect("a result");
    assert_eq!(result["result"], "The output begins with: Wrote 17 bytes to notes.txt.");
    assert_eq!(streamed(&lines), result["result"]);
    assert_eq!(lines[0]["model"], "gpt-test");
    for kind in ["input_tokens", "output_tokens"] {
        let said = lines.iter().filter(|line| line["type"] == "assistant");
        let spent: u64 = said.filter_map(|line| line["message"]["usage"][kind].as_u64()).sum();
        assert!(spent > 1 && result["usage"][kind] == spent, "{kind}: {result}");
    }
    let said = agent.answer("b", "and now?");
    assert!(said.contains("I can see 2 user messages of this conversation."), "{said}");
    let asked = model.last();
    let roles: Vec<&str> =
        asked["messages"].as_array().expect("a list").iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant", "user"]);
    assert_eq!((&asked["model"], &asked["reasoning_effort"]), (&json!("gpt-test"), &json!("low")));
}

#[test]
fn two_calls_at_once_are_both_answered() {
    let script = r#"{"when": {"contains": "both"}, "times": 1, "reply": [{"type": "text", "text": "I do both."},
        {"type": "tool_use", "name": "run", "input": {"command": "echo one"}},
        {"type": "tool_use", "name": "run", "input": {"command": "echo two"}}]}"#;
    let (place, model) = (Place::new(), Model::with(&script.replace('\n', " ")));
    let said = agent(&model, &place).answer("a", "both");
    assert_eq!(said, "The output begins with: one\nThe output begins with: two");
}

#[test]
fn killed_after_any_line_the_turn_is_completed_and_nothing_is_done_twice() {
    const PROMPT: &str = "run: echo x >> one\nrun: echo x >> two\nsay: done";
    let (place, model) = (Place::new(), Model::new());
    let lines = agent(&model, &place).ask("a", PROMPT);
    for killed_after in 0..lines.len() {
        let (place, model) = (Place::new(), Model::new());
        let mut first = agent(&model, &place);
        first.prompt("a", PROMPT);
        (0..killed_after).for_each(|_| drop(first.line()));
        first.kill();
        let mut agent = agent(&model, &place);
        let said = agent.answer("a", PROMPT);
        assert!(said.ends_with("done"), "{killed_after}: {said}");
        for file in ["one", "two"] {
            let times = fs::read_to_string(place.work(file)).map_or(0, |text| text.lines().count());
            assert!(times <= 1, "{killed_after}: {file} was written {times} times");
        }
        agent.answer("b", "hello");
        let unknown = model.last().to_string().matches(&format!("\"content\":\"{UNKNOWN}\"")).count();
        assert!(unknown <= 1, "{killed_after}: shown {unknown} times");
    }
}

#[test]
fn temporary_errors_are_waited_out() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = agent(&model, &place);
    for (turn, (trouble, expected)) in [
        ("fail 429", json!([[1, 429, "rate_limit"]])),
        ("fail 500", json!([[1, 500, "server_error"]])),
        ("cut 0", json!([[1, null, "unknown"]])),
        ("cut 2", json!([[1, null, "unknown"]])),
        ("overloaded-midstream", json!([[1, null, "server_error"]])),
    ]
    .into_iter()
    .enumerate()
    {
        let lines = agent.ask(&turn.to_string(), &format!("{trouble}\nsay: all is well again"));
        let result = lines.last().expect("a result");
        let said = (&result["is_error"], &result["result"]);
        assert_eq!(said, (&json!(false), &json!("all is well again")), "{trouble}");
        assert_eq!(json!(notices(&lines)), expected, "{trouble}");
        let after = lines.iter().rposition(|line| line["subtype"] == "api_retry").expect("a notice");
        assert_eq!(streamed(&lines[after..]), "all is well again", "{trouble}");
    }
}

#[test]
fn permanent_errors_are_reported_at_once_with_the_next_step() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = agent(&model, &place);
    for (status, step) in [
        (400, "set the session's `model`"),
        (401, "resume it with a `provider` whose apiKey is valid"),
        (403, "may not use gpt-test"),
        (404, "has no gpt-test"),
        (413, "Fork the session"),
    ] {
        let before = model.asked().len();
        let lines = agent.ask(&status.to_string(), &format!("fail {status}\nsay: never"));
        let result = lines.last().expect("a result");
        let why = result["result"].as_str().expect("text");
        let reason = if [400, 413].contains(&status) { "invalid_request" } else { "api_error" };
        assert_eq!((&result["is_error"], &result["terminal_reason"]), (&json!(true), &json!(reason)));
        assert!(
            why.contains(step) && why.contains(&status.to_string()) && !why.contains("ANTHROPIC"),
            "{why}"
        );
        assert_eq!(model.asked().len(), before + 1, "{status}");
    }
    assert!(agent.answer("b", "hello").starts_with("You said: \"hello\"."));
}

#[test]
fn an_interrupt_ends_the_stream_and_every_wait_and_the_partial_answer_is_remembered() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = agent(&model, &place);
    agent.prompt("a", "slow 600: one two three four five six seven eight nine ten");
    let said = streamed(&agent.until("stream_event"));
    agent.control("i", "interrupt");
    let lines = agent.until("result");
    let partial = said + &streamed(&lines);
    let result = lines.last().expect("a result");
    assert_eq!(
        (&result["terminal_reason"], &result["result"]),
        (&json!("aborted_streaming"), &json!(partial))
    );
    agent.prompt("b", "hang");
    while agent.line()["subtype"] != "init" {}
    agent.control("i", "interrupt");
    assert_eq!(agent.until("result").pop().expect("a result")["terminal_reason"], "aborted_streaming");
    agent.answer("c", "go on");
    let shown = model.last()["messages"][2].clone();
    assert_eq!(shown, json!({"role": "assistant", "content": partial}));
}

#[test]
fn a_picture_is_shown() {
    let (place, model) = (Place::new(), Model::new());
    let mut agent = agent(&model, &place);
    let picture =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}});
    let content = json!([picture, {"type": "text", "text": "say: I see"}]);
    agent.send(&json!({"type": "user", "uuid": "a", "message": {"role": "user", "content": content}}));
    assert_eq!(agent.until("result").pop().expect("a result")["result"], "I see");
    let shown = &model.last()["messages"][1]["content"][0]["image_url"]["url"];
    assert_eq!(shown, "data:image/png;base64,aGk=");
}

/// Includes thinking blocks of one service, calls of both, and offline commands from before.
#[test]
fn a_conversation_goes_on_with_another_service() {
    let (place, model) = (Place::new(), Model::new());
    place.fresh().answer("a", "run: echo offline");
    model.agent(&place).answer("b", "think: hm\nrun: echo messages");
    agent(&model, &place).answer("c", "run: echo completions");
    let completions = model.last()["messages"].to_string();
    for word in ["offline", "messages", "completions"] {
        assert!(completions.contains(&format!("\"content\":\"{word}\"")), "{word}: {completions}");
    }
    assert!(!completions.contains("thinking"), "{completions}");
    let said = model.agent(&place).answer("d", "and now?");
    assert!(said.contains("I can see 4 user messages"), "{said}");
    let calls = model.last()["messages"].to_string().matches("\"tool_use\"").count();
    assert_eq!(calls, 3);
}

fn answered(frames: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{frames}", frames.len())
}

/// A process in the sandbox may have replaced the socket.
#[test]
fn an_invalid_answer_is_requested_again() {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let said = |text: &str| chunk(json!({"content": text}), Value::Null);
    let endless = format!("data: {}", "x".repeat((16 << 20) + 1));
    let fine = format!("{}{}data: [DONE]\n\n", said("fine"), chunk(json!({}), json!("stop")));
    let answers = vec![
        answered("data: garbage\n\n"),
        answered(&said("half")),
        answered(&format!("{}data: [DONE]\n\n", said("no reason"))),
        answered(&endless),
        answered(&fine),
    ];
    let attempts = answers.len();
    let place = Place::new();
    let socket = place.home().join("model.sock");
    let service = service(&socket, answers);
    let lines = start(&place, &socket).ask("a", "hello");
    assert_eq!(lines.last().expect("a result")["result"], "fine");
    assert_eq!(notices(&lines).len(), attempts - 1);
    assert_eq!(service.join().expect("requests").len(), attempts);
}
