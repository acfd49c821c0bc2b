//! Conversations that exceed the model's window. The model server refuses oversized requests, so a completed turn shows
//! that no request was too large.

use crate::harness::{Agent, Place, SESSION};
use crate::model::Model;
use serde_json::{Value, json};
use std::fs;

const WINDOW: u64 = 6_000;
const SUMMARY: &str = "user messages were seen before this summary";
const CONTINUED: &str = "This session is being continued from a previous conversation";
const ASKS_FOR_SUMMARY: &str = "Write a summary of the conversation";

fn start(place: &Place, model: &Model, more: &[&str]) -> Agent {
    let (socket, window) = (model.socket().display().to_string(), WINDOW.to_string());
    let flags =
        ["--session-id", SESSION, "--resume", SESSION, "--provider", "anthropic", "--model-socket", &socket];
    place.start(&[&flags[..], &["--context-window", &window], more].concat())
}

fn is_summary(body: &Value) -> bool {
    body["messages"].to_string().contains(ASKS_FOR_SUMMARY)
}

/// The compaction lines, in the order of the output.
fn told(lines: &[Value]) -> Vec<Value> {
    let told =
        lines.iter().filter(|line| line["status"] == "compacting" || line["subtype"] == "compact_boundary");
    told.cloned().collect()
}

/// The last request of a turn: a summary request may follow it in the background.
fn last_of_a_turn(model: &Model) -> String {
    let last = model.asked().into_iter().rfind(|body| !is_summary(body));
    last.expect("a request")["messages"].to_string()
}

fn begun(lines: &[Value]) -> usize {
    lines.iter().filter(|line| line["status"] == "compacting").count()
}

fn written(lines: &[Value]) -> usize {
    lines.iter().filter(|line| line["subtype"] == "compact_boundary").count()
}

/// About 500 tokens per message.
fn say(number: usize) -> String {
    format!("say: number {number}, {}", "word ".repeat(180))
}

fn done(lines: &[Value]) -> &Value {
    let result = lines.last().expect("a result");
    assert_eq!(result["is_error"], false, "{result}");
    result
}

#[test]
fn a_conversation_without_end_never_exceeds_the_window() {
    let (place, model) = (Place::new(), Model::of("", Some(WINDOW)));
    let mut agent = start(&place, &model, &[]);
    let mut lines = Vec::new();
    for number in 0..100 {
        lines.extend(agent.ask(&format!("t{number}"), &say(number)));
        done(&lines);
    }
    let told = told(&lines);
    assert!(told.len() > 10, "{}", told.len());
    for pair in told.chunks_exact(2) {
        let [begun, over] = pair else { panic!("pairs") };
        assert_eq!((&begun["status"], &over["subtype"]), (&json!("compacting"), &json!("compact_boundary")));
        let (before, after) =
            (&over["compact_metadata"]["pre_tokens"], &over["compact_metadata"]["post_tokens"]);
        assert_eq!(before, &begun["tokens"]);
        assert!(before.as_u64() > after.as_u64() && after.as_u64() > Some(0), "{over}");
        assert!(over["summary"].as_str().is_some_and(|summary| summary.contains(SUMMARY)), "{over}");
        assert!(over["usage"]["input_tokens"].as_u64() > Some(100), "{over}");
    }
    let asked = model.asked();
    let first =
        asked.iter().position(|body| body["messages"][0].to_string().contains(CONTINUED)).expect("a summary");
    let messages = asked[first]["messages"].to_string();
    assert!(messages.contains(SUMMARY) && !messages.contains("number 0,"), "{messages}");
    let summed = asked.iter().filter(|body| is_summary(body)).nth(1).expect("another");
    assert!(summed["messages"][0].to_string().contains(CONTINUED), "the earlier one is part of it");
    let last = last_of_a_turn(&model);
    assert!(
        last.contains("number 99,") && last.contains("number 98,"),
        "the last ones are as they were said: {last}"
    );
    drop(agent);
    let entries = place.entries(SESSION);
    let of = |kind: &str| entries.iter().filter(|entry| entry["type"] == kind).count();
    assert_eq!((of("user"), of("assistant")), (100, 100), "all of it stays in the transcript");
    assert!(of("compaction") >= told.len() / 2);
    let mut agent = start(&place, &model, &[]);
    assert_eq!(agent.hello()["turns"], 100);
    done(&agent.ask("last", "hello"));
    assert!(model.asked().last().expect("asked")["messages"][0].to_string().contains(CONTINUED));
}

#[test]
fn a_summary_that_frees_nothing_is_not_written_down_and_not_asked_for_again() {
    let place = Place::new();
    let long = format!("<summary>{}</summary>", "and so on ".repeat(2_000));
    let rules = [
        json!({"when": {"contains": "summary of the"}, "reply": [{"type": "text", "text": long}]}),
        json!({"reply": [{"type": "text", "text": "yes"}]}),
    ];
    let model = Model::of(&rules.map(|rule| rule.to_string()).join("\n"), None);
    let mut agent = start(&place, &model, &["--compact-from", "0.5"]);
    for number in 0.. {
        done(&agent.ask(&format!("t{number}"), &say(number)));
        if model.asked().iter().any(is_summary) {
            break;
        }
    }
    // A repeated turn runs nothing; it only passes time.
    while place.entries_of("compaction_discarded") == 0 {
        done(&agent.ask("t0", &say(0)));
    }
    // The conversation has hardly grown, so a summary would not help, also for a restarted agent.
    for number in 0..2 {
        done(&agent.ask(&format!("u{number}"), "hi"));
    }
    drop(agent);
    let mut agent = start(&place, &model, &["--compact-from", "0.5"]);
    for number in 2..4 {
        done(&agent.ask(&format!("u{number}"), "hi"));
    }
    drop(agent);
    assert_eq!(
        (model.asked().iter().filter(|body| is_summary(body)).count(), place.entries_of("compaction")),
        (1, 0)
    );
}

#[test]
fn instructions_that_fill_most_of_the_window_do_not_make_every_turn_pay_for_a_summary() {
    // The summary is so long that with a few more messages it would be due for another summary.
    let long = format!("<summary>{}</summary>", "and so on ".repeat(100));
    let rule = json!({"when": {"contains": "summary of the"}, "reply": [{"type": "text", "text": long}]});
    let (place, model) = (Place::new(), Model::of(&rule.to_string(), None));
    let instructions = "word ".repeat(2_000);
    let mut agent = start(&place, &model, &["--compact-from", "0.3", "--system-prompt", &instructions]);
    let mut lines = Vec::new();
    for number in 0..100 {
        lines.extend(agent.ask(&format!("t{number}"), "a few words, and no more than that"));
        done(&lines);
    }
    // A repeated turn runs nothing, and the agent reports every started summary before the result. A summary that is
    // still pending finishes by itself, unless the agent is killed.
    lines.extend(agent.ask("t99", "a few words, and no more than that"));
    while written(&lines) < begun(&lines) {
        lines.push(agent.line());
    }
    drop(agent);
    let paid = model.asked().iter().filter(|body| is_summary(body)).count();
    assert_eq!((paid, paid), (begun(&lines), place.entries_of("compaction")), "each is paid for once");
    assert!((1..=25).contains(&paid), "{paid} summaries for a hundred short turns");
}

#[test]
fn a_long_turn_is_summarized_while_it_runs() {
    let place = Place::new();
    // Without rules the model's next step would depend on how many results it sees.
    let call =
        json!({"type": "tool_use", "name": "run", "input": {"command": "echo x >> count; seq -s, 400"}});
    let rules = [
        json!({"when": {"contains": "summary of the"}, "reply": [{"type": "text", "text": "<summary>so far so good</summary>"}]}),
        json!({"times": 30, "reply": [call]}),
        json!({"reply": [{"type": "text", "text": "done"}]}),
    ];
    let script = rules.map(|rule| rule.to_string()).join("\n");
    let model = Model::of(&script, Some(WINDOW));
    let lines = start(&place, &model, &[]).ask("a", "work for long");
    assert_eq!(done(&lines)["result"], "done");
    assert_eq!(fs::read_to_string(place.work("count")).expect("a file").lines().count(), 30, "each once");
    assert!(told(&lines).len() >= 4, "{:?}", told(&lines));
    let last = last_of_a_turn(&model);
    assert!(last.contains("so far so good") && last.contains("work for long"), "{last}");
}

#[test]
fn a_message_that_is_too_large_alone_is_shortened_with_a_note() {
    let (place, model) = (Place::new(), Model::of("", Some(WINDOW)));
    let mut agent = start(&place, &model, &[]);
    done(&agent.ask("a", "run: seq 100000"));
    let shown = last_of_a_turn(&model);
    assert!(
        shown.contains("bytes are left out here: there is no room for them in the context window]"),
        "{shown}"
    );
    done(&agent.ask("b", &format!("long {}", "word ".repeat(50_000))));
    drop(agent);
    let call = json!({"type": "tool_use", "name": "run", "input": {"command": "seq 3000"}});
    let many = json!({"when": {"contains": "at once"}, "times": 1, "reply": vec![call; 12]});
    let model = Model::of(&many.to_string(), Some(WINDOW));
    done(&start(&place, &model, &[]).ask("c", "at once"));
    let shown = last_of_a_turn(&model);
    assert_eq!(shown.matches("\"tool_result\"").count(), 12, "{shown}");
    let entries = place.entries(SESSION);
    let whole =
        entries.iter().find(|entry| entry["type"] == "user" && entry["turn"] == "b").expect("a prompt");
    assert_eq!(
        whole["message"]["content"].as_str().map(str::len),
        Some(250_005),
        "the transcript has all of it"
    );
}

#[test]
fn turns_run_during_a_summary_and_wait_when_the_window_is_full() {
    let stall = r#"{"when": {"contains": "summary of the"}, "times": 1, "stall": 2000}"#;
    let (place, model) = (Place::new(), Model::of(stall, Some(WINDOW)));
    let mut agent = start(&place, &model, &["--compact-from", "0.5"]);
    (0..30).for_each(|number| agent.prompt(&format!("t{number}"), &say(number)));
    let mut lines = Vec::new();
    while lines.iter().filter(|line: &&Value| line["type"] == "result").count() < 30 {
        lines.push(agent.line());
        assert_ne!(lines.last().map(|line| &line["is_error"]), Some(&json!(true)), "{lines:?}");
    }
    let place = |what: &dyn Fn(&Value) -> bool| lines.iter().position(what).expect("a line");
    let (begun, over) =
        (place(&|line| line["status"] == "compacting"), place(&|line| line["subtype"] == "compact_boundary"));
    let beside = lines[begun..over].iter().filter(|line| line["type"] == "result").count();
    assert!(beside >= 2, "turns that were done beside it: {beside}");
    assert_eq!(lines[over - 1]["subtype"], "init", "the one that waited had not begun to answer");
}

#[test]
fn a_summary_that_is_there_between_two_turns_is_written_down_and_said() {
    let stall = r#"{"when": {"contains": "summary of the"}, "stall": 300}"#;
    let (place, model) = (Place::new(), Model::of(stall, Some(WINDOW)));
    let mut agent = start(&place, &model, &[]);
    let mut lines = Vec::new();
    for number in 0.. {
        lines = agent.ask(&format!("t{number}"), &say(number));
        if lines.iter().any(|line| line["status"] == "compacting") {
            break;
        }
        // The report comes after the result if the answer itself filled the window.
        if model.asked().iter().any(is_summary) {
            break;
        }
    }
    while written(&lines) == 0 {
        lines.push(agent.line());
    }
    assert_eq!(place.entries_of("compaction"), 1);
    assert_eq!(agent.finish(), (vec![], Some(0)));
}

#[test]
fn an_agent_that_is_to_end_does_not_wait_for_a_summary() {
    let hang = r#"{"when": {"contains": "summary of the"}, "hang": true}"#;
    let (place, model) = (Place::new(), Model::of(hang, Some(WINDOW)));
    let mut agent = start(&place, &model, &["--compact-from", "0.5"]);
    for number in 0..40 {
        agent.ask(&format!("t{number}"), &say(number));
        if model.asked().iter().any(is_summary) {
            break;
        }
    }
    assert_eq!(agent.finish().1, Some(0));
    assert_eq!(place.entries_of("compaction"), 0);
}

#[test]
fn killed_at_any_moment_of_it_a_summary_is_whole_or_not_there() {
    let (place, model) = (Place::new(), Model::of("", Some(WINDOW)));
    let mut number = 0;
    for _ in 0..12 {
        let mut agent = start(&place, &model, &[]);
        let compacting = loop {
            agent.prompt(&format!("t{number}"), &say(number));
            number += 1;
            let found = loop {
                let line = agent.line();
                match (line["type"].as_str(), line["status"].as_str()) {
                    (_, Some("compacting")) => break true,
                    (Some("result"), _) => break false,
                    _ => {}
                }
            };
            if found {
                break found;
            }
        };
        assert!(compacting);
        (0..number % 4).for_each(|_| drop(agent.line()));
        agent.kill();
        for entry in place.entries(SESSION).iter().filter(|entry| entry["type"] == "compaction") {
            assert!(entry["summary"].as_str().is_some_and(|summary| summary.contains(SUMMARY)), "{entry}");
        }
        done(&start(&place, &model, &[]).ask(&format!("t{}", number - 1), &say(number - 1)));
    }
}

#[test]
fn without_compaction_a_full_window_ends_the_turn_and_says_how_to_go_on() {
    let (place, model) = (Place::new(), Model::of("", Some(WINDOW)));
    let mut agent = start(&place, &model, &["--compaction", "off"]);
    let full = (0..).find_map(|number| {
        let result = agent.ask(&format!("t{number}"), &say(number)).pop().expect("a result");
        (result["is_error"] == true).then_some(result)
    });
    let full = full.expect("it is full one day");
    assert_eq!(full["terminal_reason"], "context_full");
    assert!(full["result"].as_str().is_some_and(|why| why.contains("infiniteSessions")), "{full}");
    assert!(!model.asked().iter().any(is_summary));
    drop(agent);
    done(&start(&place, &model, &[]).ask("again", "hello"));
    assert_eq!(place.entries_of("compaction"), 1);
}

#[test]
fn a_failed_summary_is_retried_and_then_the_turn_fails_clearly() {
    let rules = |times: u32| {
        format!(r#"{{"when": {{"contains": "summary of the"}}, "times": {times}, "fail": 400}}"#)
    };
    for (times, works) in [(2, true), (1000, false)] {
        let (place, model) = (Place::new(), Model::of(&rules(times), Some(WINDOW)));
        let mut agent = start(&place, &model, &[]);
        let results: Vec<Value> = (0..25)
            .map(|number| agent.ask(&format!("t{number}"), &say(number)).pop().expect("a result"))
            .collect();
        let failed: Vec<&Value> = results.iter().filter(|result| result["is_error"] == true).collect();
        assert_eq!(failed.is_empty(), works, "{failed:?}");
        for result in failed {
            assert_eq!(result["terminal_reason"], "context_full", "{result}");
            assert!(
                result["result"].as_str().is_some_and(|why| why.contains("could not be summed up")),
                "{result}"
            );
        }
    }
}

#[test]
fn a_transcript_with_a_summary_that_freed_nothing_is_still_understood() {
    let (place, model) = (Place::new(), Model::of("", Some(WINDOW)));
    fs::create_dir_all(place.transcript(SESSION).parent().expect("a folder")).expect("folder");
    fs::write(place.transcript(SESSION), include_bytes!("../golden/transcript-5.jsonl")).expect("written");
    let mut agent = start(&place, &model, &["--compact-from", "0.1"]);
    let resumed = agent.hello();
    assert_eq!((&resumed["turns"], &resumed["damaged"]), (&json!(2), &json!(0)));
    let lines = agent.ask("c", "say: three");
    assert_eq!((&done(&lines)["result"], begun(&lines)), (&json!("three"), 0), "it is not asked for again");
    let shown = model.asked()[0]["messages"].to_string();
    assert!(
        shown.contains("I am Ada") && !shown.contains(CONTINUED),
        "nothing stands for anything else: {shown}"
    );
}

#[test]
fn a_transcript_with_a_summary_is_still_understood() {
    let (place, model) = (Place::new(), Model::of("", Some(WINDOW)));
    fs::create_dir_all(place.transcript(SESSION).parent().expect("a folder")).expect("folder");
    fs::write(place.transcript(SESSION), include_bytes!("../golden/transcript-3.jsonl")).expect("written");
    let mut agent = start(&place, &model, &[]);
    let resumed = agent.hello();
    assert_eq!((&resumed["turns"], &resumed["damaged"]), (&json!(3), &json!(0)));
    agent.answer("d", "say: four");
    let text = |text: &str| json!({"type": "text", "text": text});
    let summary = "This session is being continued from a previous conversation that ran out of context. The summary below \
        covers the earlier portion of the conversation.\n\nAda likes tea.";
    let mut last = text("say: four");
    last["cache_control"] = json!({"type": "ephemeral"});
    let expected = json!([
        {"role": "user", "content": [text(summary), text("and now?")]},
        {"role": "assistant", "content": [text("still tea")]},
        {"role": "user", "content": [last]},
    ]);
    assert_eq!(model.asked()[0]["messages"], expected);
}
