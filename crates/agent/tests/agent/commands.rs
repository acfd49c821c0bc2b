//! The effect and the output of each command of the offline provider.

use crate::harness::{Place, SESSION, streamed, types};
use serde_json::json;
use std::fs;

#[test]
fn every_command_does_its_work_and_says_what_came_out() {
    let place = Place::new();
    let mut agent = place.fresh();
    let long = "é".repeat(90);
    for (turn, (prompt, expected)) in [
        ("run: echo hi; echo oops >&2; exit 2", "hi\noops\nexit code 2"),
        ("write a/b.txt: one\ntwo\n", "Wrote 8 bytes to a/b.txt."),
        ("read a/b.txt", "one\ntwo\n"),
        ("edit a/b.txt: two => three", "Edited a/b.txt."),
        ("edit a/b.txt: two => three", "cannot edit a/b.txt: the text to replace does not occur"),
        ("list", "a/"),
        ("list a", "b.txt"),
        ("search three", "a/b.txt:2: three"),
        ("search nothing in a", "No file contains \"nothing\"."),
        ("slow 1: one  two three", "one  two three"),
        (
            "run: echo 1\nslow 0: and then\nwrite c: x\nread c\nslow 0: done",
            "1\nWrote 1 bytes to c.\nx\ndone",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(agent.answer(&turn.to_string(), prompt), expected, "{prompt}");
    }
    assert!(agent.answer("help", "help").contains("write PATH: TEXT"));
    assert_eq!(fs::read_to_string(place.work("a/b.txt")).expect("file"), "one\nthree\n");
    let said = agent.answer("talk", &long);
    assert!(
        said.starts_with("This is turn 13. I remember 24 earlier messages; the first was: \"run: echo hi")
    );
    assert!(said.ends_with(&format!("You said: \"{long}\".")), "{said}");
}

#[test]
fn a_turn_has_the_shape_that_clients_know() {
    let place = Place::new();
    let mut agent = place.fresh();
    let lines = agent.ask("t", "run: echo hi");
    assert_eq!(types(&lines), ["system", "assistant", "user", "stream_event", "assistant", "result"]);

    let [init, call, done, delta, answer, result] = <[_; 6]>::try_from(lines).expect("six");
    let cwd = place.work("").canonicalize().expect("cwd");
    let tools = json!(["run", "read", "write", "edit", "list", "search"]);
    let expected = json!({"type": "system", "subtype": "init", "session_id": SESSION, "model": "offline",
        "tools": tools, "cwd": cwd, "turn": "t"});
    assert_eq!(init, expected);

    let used = &call["message"]["content"];
    let id = &used[0]["id"];
    assert_eq!(
        *used,
        json!([{"type": "tool_use", "id": id, "name": "run", "input": {"command": "echo hi"}}])
    );
    let expected = json!({"type": "user", "uuid": done["uuid"], "session_id": SESSION,
        "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": "hi", "is_error": false}]},
        "tool_use_result": {"stdout": "hi\n", "stderr": "", "exitCode": 0}});
    assert_eq!(done, expected);

    let event =
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}});
    assert_eq!(delta, json!({"type": "stream_event", "session_id": SESSION, "event": event}));
    assert_eq!(answer["message"]["content"], json!([{"type": "text", "text": "hi"}]));
    assert_eq!(answer["message"]["role"], "assistant");

    let usage = json!({"input_tokens": 13, "output_tokens": 7,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0});
    let expected = json!({"type": "result", "subtype": "success", "is_error": false, "result": "hi",
        "num_turns": 2, "session_id": SESSION, "user_message_uuid": "t", "uuid": result["uuid"],
        "usage": usage, "duration_ms": result["duration_ms"]});
    assert_eq!(result, expected);
}

#[test]
fn the_stream_and_the_answer_say_the_same() {
    let place = Place::new();
    let mut agent = place.fresh();
    let text = "one two three  four five six seven eight nine ten\neleven twelve".to_owned();
    let lines = agent.ask("t", &text);
    assert_eq!(streamed(&lines), lines.last().expect("a result")["result"].as_str().expect("text"));
    assert!(lines.len() > 5, "it comes in pieces");
}

#[test]
fn blocks_that_are_not_text_are_counted() {
    let place = Place::new();
    let mut agent = place.fresh();
    let content = json!([{"type": "text", "text": "look"}, {"type": "image", "source": {}}, {"type": "text", "text": "here"}]);
    agent.send(&json!({"type": "user", "uuid": "t", "message": {"role": "user", "content": content}}));
    let lines = agent.until("result");
    let said = lines.last().expect("a result")["result"].as_str().expect("text").to_owned();
    let expected = "This is turn 1. I remember 0 earlier messages. You said: \"look\nhere\". \
        With it came 1 block that is not text. Say \"help\" to see what I can do.";
    assert_eq!(said, expected);
}

#[test]
fn huge_output_is_cut_and_arrives() {
    let place = Place::new();
    let mut agent = place.fresh();
    let said = agent.answer("t", "run: yes some words | head -c 3000000");
    assert!(said.len() < (1 << 20) + 100, "{}", said.len());
    assert!(said.ends_with("[cut at 1 MiB: 1951424 more bytes]"), "{}", &said[said.len() - 80..]);
    assert_eq!(agent.answer("u", "run: echo still here"), "still here");
}

#[test]
fn a_turn_that_never_answers_comes_to_an_end() {
    let place = Place::new();
    let mut agent = place.fresh();
    let lines = agent.ask("t", &"run: echo x >> count\n".repeat(210));
    let result = lines.last().expect("a result");
    assert_eq!((&result["subtype"], &result["num_turns"]), (&json!("error_max_turns"), &json!(200)));
    assert_eq!(fs::read_to_string(place.work("count")).expect("file").lines().count(), 200);
}

#[test]
fn the_same_prompts_give_the_same_words() {
    let prompts = ["hello", "write f: x y z", "read f\nlist\nsearch x", "slow 0: a b c", "what now?"];
    let texts = || {
        let place = Place::new();
        let mut agent = place.fresh();
        let ask = |(turn, prompt): (usize, &&str)| {
            let mut lines = agent.ask(&turn.to_string(), prompt);
            for line in &mut lines {
                for name in ["uuid", "duration_ms", "cwd"] {
                    line.as_object_mut().expect("an object").remove(name);
                }
            }
            lines
        };
        prompts.iter().enumerate().map(ask).collect::<Vec<_>>()
    };
    assert_eq!(texts(), texts());
}
