//! The protocol apart from turns: the greeting, invalid requests, the queue, and the end.

use crate::harness::{Place, SESSION, types};
use serde_json::{Value, json};

#[test]
fn the_greeting_is_the_first_line_and_leaves_no_file() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.control("r1", "initialize");
    let hello = json!({"agent": "builtin", "version": env!("CARGO_PKG_VERSION"), "resumed": null});
    let response = json!({"subtype": "success", "request_id": "r1", "response": hello});
    assert_eq!(agent.line(), json!({"type": "control_response", "response": response}));
    assert_eq!(agent.finish(), (vec![], Some(0)));
    assert!(!place.home().join(".ash").exists());
}

#[test]
fn an_unknown_request_is_refused_and_an_idle_interrupt_is_nothing() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.control("r1", "make_coffee");
    let response = &agent.line()["response"];
    assert_eq!((&response["subtype"], &response["request_id"]), (&json!("error"), &json!("r1")));
    agent.control("r2", "interrupt");
    let response = json!({"subtype": "success", "request_id": "r2"});
    assert_eq!(agent.line(), json!({"type": "control_response", "response": response}));
    assert_eq!(agent.answer("t", "run: echo fine"), "fine");
    assert_eq!(agent.finish(), (vec![], Some(0)));
}

#[test]
fn a_line_that_makes_no_sense_is_answered_and_forgotten() {
    let place = Place::new();
    let mut agent = place.fresh();
    let lines =
        ["{", "[]", "17", r#"{"type":"what"}"#, r#"{"type":"user","message":{"content":5}}"#, "\u{0}"];
    for line in lines {
        agent.send_raw(line);
        let answer = agent.line();
        assert_eq!((&answer["type"], &answer["subtype"]), (&json!("system"), &json!("error")), "{line}");
        assert!(answer["error"].is_string());
    }
    agent.send_raw("");
    assert_eq!(agent.answer("t", "run: echo fine"), "fine");
}

#[test]
fn prompts_wait_in_order_and_all_are_done_before_the_end() {
    let place = Place::new();
    let mut agent = place.fresh();
    for turn in ["a", "b", "c", "a"] {
        agent.prompt(turn, &format!("run: echo {turn} >> order"));
    }
    let (lines, code) = agent.finish();
    let results = lines.iter().filter(|line| line["type"] == "result");
    let turns: Value = results.map(|line| line["user_message_uuid"].clone()).collect();
    assert_eq!((turns, code), (json!(["a", "b", "c", "a"]), Some(0)));
    assert_eq!(std::fs::read_to_string(place.work("order")).expect("file"), "a\nb\nc\n");
}

#[test]
fn a_prompt_without_a_uuid_gets_one() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.send(&json!({"type": "user", "message": {"role": "user", "content": "hello"}}));
    let lines = agent.until("result");
    assert_eq!(lines[0]["turn"], lines[lines.len() - 1]["user_message_uuid"]);
    assert_eq!(lines[0]["turn"], place.entries(SESSION)[0]["turn"]);
}

#[test]
fn wrong_flags_are_refused_with_a_reason() {
    let place = Place::new();
    for flags in [&["--session-id", "../x"][..], &["--provider", "oracle"], &["--nonsense", "x"]] {
        assert_eq!(place.start(flags).finish(), (vec![], Some(2)), "{flags:?}");
    }
}

#[test]
fn at_rest_there_is_one_thread() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.ask("t", "run: echo hi");
    let tasks = format!("/proc/{}/task", agent.id());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::fs::read_dir(&tasks).expect("it runs").count() > 1 {
        assert!(std::time::Instant::now() < deadline, "the worker stays");
        std::thread::yield_now();
    }
    assert_eq!(types(&agent.ask("u", "hello")).last(), Some(&"result"));
}
