//! After a kill at any point the same uuid completes the turn, and nothing runs twice.

use crate::harness::{Place, SESSION, types};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;

const TURN: &str = "turn-1";
const PROMPT: &str = "run: echo x >> one\nrun: echo x >> two\nrun: echo x >> three";
const FILES: [&str; 3] = ["one", "two", "three"];
const UNKNOWN: &str = "[Tool call interrupted: its outcome is unknown]";

fn count(place: &Place, name: &str) -> usize {
    fs::read_to_string(place.work(name)).map_or(0, |text| text.lines().count())
}

/// Sends the turn again, as the host does, and returns the output.
fn again(place: &Place) -> Vec<Value> {
    let mut agent = place.resumed();
    agent.send(&json!({"type": "user", "uuid": TURN, "continue": true, "message": {"role": "user", "content": PROMPT}}));
    let lines = agent.until("result");
    assert_eq!(agent.finish(), (vec![], Some(0)), "one result and no more");
    lines
}

fn assert_whole(place: &Place, lines: &[Value]) {
    let result = lines.last().expect("a result");
    assert_eq!((&result["subtype"], &result["user_message_uuid"]), (&json!("success"), &json!(TURN)));
    assert_eq!(
        ["user", "assistant", "tool_result", "result"].map(|kind| place.entries_of(kind)),
        [1, 4, 3, 1]
    );
    let said = result["result"].as_str().expect("text");
    for (file, outcome) in FILES.iter().zip(said.lines()) {
        let times = count(place, file);
        match outcome {
            "[no output]" => assert_eq!(times, 1, "{file}"),
            UNKNOWN => assert!(times <= 1, "{file} {times}"),
            _ => panic!("{outcome}"),
        }
    }
}

#[test]
fn killed_after_any_line() {
    let place = Place::new();
    let lines = place.fresh().ask(TURN, PROMPT);
    for killed_after in 0..=lines.len() {
        let place = Place::new();
        let mut agent = place.fresh();
        agent.prompt(TURN, PROMPT);
        (0..killed_after).for_each(|_| drop(agent.line()));
        agent.kill();
        assert_whole(&place, &again(&place));
    }
}

/// A kill from outside would hit a gap between two entries only by luck.
#[test]
fn cut_after_any_entry_and_in_the_middle_of_any() {
    let place = Place::new();
    place.fresh().ask(TURN, PROMPT);
    let whole = fs::read_to_string(place.transcript(SESSION)).expect("transcript");
    let entries: Vec<&str> = whole.split_inclusive('\n').collect();
    assert_eq!(entries.len(), 9);
    for kept in 0..entries.len() {
        for torn in ["", &entries[kept][..entries[kept].len() / 2]] {
            let place = Place::new();
            let mut agent = place.fresh();
            agent.prompt(TURN, PROMPT);
            agent.until("result");
            drop(agent);
            let before = FILES.map(|file| count(&place, file));
            fs::write(place.transcript(SESSION), entries[..kept].concat() + torn).expect("write");
            let lines = again(&place);
            for (number, file) in FILES.iter().enumerate() {
                let recorded = kept >= 2 + 2 * number;
                let more = usize::from(!recorded);
                assert_eq!(count(&place, file), before[number] + more, "{file} after {kept} entries");
            }
            let shown = types(&lines).into_iter().filter(|kind| *kind != "stream_event").collect::<Vec<_>>();
            let all = [
                "system",
                "assistant",
                "user",
                "assistant",
                "user",
                "assistant",
                "user",
                "assistant",
                "result",
            ];
            assert_eq!(shown, all, "the log of the second attempt is whole");
            let kinds = ["user", "assistant", "tool_result", "result"].map(|kind| place.entries_of(kind));
            assert_eq!(kinds, [1, 4, 3, 1], "after {kept} entries");
        }
    }
}

/// The state of the transcript if the agent is killed right after that many entries.
fn keep_entries(place: &Place, kept: usize) {
    let whole = fs::read_to_string(place.transcript(SESSION)).expect("transcript");
    fs::write(place.transcript(SESSION), whole.split_inclusive('\n').take(kept).collect::<String>())
        .expect("write");
}

#[test]
fn an_unknown_outcome_is_recorded_once_however_often_it_crashes() {
    let place = Place::new();
    place.fresh().ask(TURN, PROMPT);
    keep_entries(&place, 2);
    for _ in 0..2 {
        let lines = again(&place);
        assert_eq!(lines[2]["message"]["content"][0]["content"], UNKNOWN);
        assert_eq!(place.entries_of("tool_result"), 3);
        assert_eq!(count(&place, "one"), 1);
        keep_entries(&place, 3);
    }
}

#[test]
fn a_finished_turn_is_shown_again_and_not_run_again() {
    let place = Place::new();
    let lines = place.fresh().ask(TURN, PROMPT);
    let before = fs::read(place.transcript(SESSION)).expect("transcript");
    let shown = again(&place);
    assert_eq!(shown, lines[lines.len() - 2..]);
    assert_eq!(fs::read(place.transcript(SESSION)).expect("transcript"), before);
    assert_eq!(FILES.map(|file| count(&place, file)), [1, 1, 1]);
}

#[test]
fn another_prompt_after_a_cut_turn_does_not_stumble_over_it() {
    let place = Place::new();
    place.fresh().ask(TURN, PROMPT);
    keep_entries(&place, 2);
    let mut agent = place.resumed();
    assert!(agent.answer("other", "hello").starts_with("This is turn 2. I remember 1 earlier messages"));
    assert!(agent.answer(TURN, PROMPT).starts_with(UNKNOWN));
    assert_eq!(count(&place, "one"), 1);
}

#[test]
fn without_disk_space_for_the_transcript_nothing_runs_and_the_error_says_why() {
    let place = Place::new();
    let transcript = place.transcript(SESSION);
    let mut agent = place.fresh();
    agent.hello();
    // Done after the agent's start, because the agent moves aside a folder that it finds there at start.
    fs::create_dir_all(transcript.parent().expect("a folder")).expect("folder");
    std::os::unix::fs::symlink(place.work("later/file"), &transcript).expect("a link to nowhere");
    let lines = agent.ask(TURN, PROMPT);
    assert_eq!(types(&lines), ["result"]);
    assert_eq!(lines[0]["terminal_reason"], "transcript_error");
    assert_eq!(count(&place, "one"), 0);
    fs::create_dir(place.work("later")).expect("folder");
    assert_eq!(agent.answer(TURN, PROMPT), "[no output]\n[no output]\n[no output]");
}

#[test]
fn a_host_that_stopped_listening_ends_the_agent() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let mut agent = place.command(&["--session-id", SESSION]).stdout(writer).spawn().expect("it starts");
    let prompt = json!({"type": "user", "uuid": TURN, "message": {"role": "user", "content": "hello"}});
    // Held open, so that the agent does not exit because of the end of input.
    let mut stdin = agent.stdin.take().expect("piped");
    stdin.write_all(format!("{prompt}\n").as_bytes()).expect("the agent reads");
    assert_eq!(agent.wait().expect("it ends").code(), Some(1));
}
