//! An interrupt ends only the running turn, soon and with a result.

use crate::harness::{Agent, Place, SESSION, types};
use serde_json::{Value, json};

fn interrupted(agent: &Agent) -> (Vec<Value>, Value) {
    let mut lines = agent.until("result");
    let result = lines.pop().expect("a result");
    assert_eq!((&result["subtype"], &result["is_error"]), (&json!("error_during_execution"), &json!(true)));
    (lines, result)
}

#[test]
fn while_it_speaks() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.prompt("t", "slow 1: first\nslow 600000: never");
    assert_eq!(types(&agent.until("stream_event")), ["system", "stream_event"]);
    agent.control("i", "interrupt");
    let (lines, result) = interrupted(&agent);
    assert_eq!(types(&lines), ["control_response"]);
    assert_eq!(
        (&result["terminal_reason"], &result["user_message_uuid"]),
        (&json!("aborted_streaming"), &json!("t"))
    );
    assert_eq!(result["result"], "first");
    assert_eq!(place.entries(SESSION)[1]["type"], "interrupted");

    assert_eq!(agent.ask("t", "slow 1: first\nslow 600000: never"), [result], "asked again it does not run");
    let said = agent.answer("u", "hello");
    assert!(
        said.starts_with("This is turn 2. I remember 1 earlier messages; the first was: \"slow 1"),
        "{said}"
    );
}

/// A held text sends its first word, and the rest when a file exists, however long that takes.
#[test]
fn while_it_holds_a_text() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.prompt("t", "hold go: one two three");
    assert_eq!(types(&agent.until("stream_event")), ["system", "stream_event"]);
    assert_eq!(place.entries_of("result"), 0);
    std::fs::write(place.work("go"), "").expect("a file");
    assert_eq!(agent.until("result").pop().expect("a result")["result"], "one two three");

    agent.prompt("u", "hold never: one two three");
    agent.until("stream_event");
    agent.control("i", "interrupt");
    let (_, result) = interrupted(&agent);
    assert_eq!((&result["user_message_uuid"], &result["result"]), (&json!("u"), &json!("one ")));
}

#[test]
fn while_a_command_runs() {
    let place = Place::new();
    let mut agent = place.fresh();
    let flag = place.work("flag");
    rustix::fs::mkfifoat(rustix::fs::CWD, &flag, rustix::fs::Mode::RWXU).expect("pipe");
    agent.prompt("t", "run: echo begun; echo > flag; sleep 600 | sleep 600\nrun: touch never");
    std::fs::read(&flag).expect("the command has begun");
    agent.control("i", "interrupt");
    let (lines, result) = interrupted(&agent);
    assert_eq!(types(&lines), ["system", "assistant", "control_response", "user"]);
    assert_eq!(result["terminal_reason"], "aborted_tools");
    let outcome = &lines[3]["message"]["content"][0];
    assert_eq!(outcome["content"], "begun\n[interrupted: the command was killed]");
    assert!(!place.work("never").exists());
    assert_eq!(agent.answer("u", "run: echo alive"), "alive");
}

#[test]
fn right_behind_its_prompt_and_sparing_the_next() {
    let place = Place::new();
    let mut agent = place.fresh();
    agent.prompt("t", "slow 600000: never");
    agent.prompt("u", "run: echo next");
    agent.control("i", "interrupt");
    let (_, result) = interrupted(&agent);
    assert_eq!(result["user_message_uuid"], "t");
    let next = agent.until("result").pop().expect("a result");
    assert_eq!((&next["user_message_uuid"], &next["result"]), (&json!("u"), &json!("next")));
}
