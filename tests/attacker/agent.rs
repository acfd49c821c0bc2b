//! The agent itself as the attacker. The server starts it as Claude Code; it speaks that protocol, and does what each
//! message asks. Only the shim is between its stdout and the server.

use crate::{complain, endless, lines};
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, Write},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

/// Deep enough for every parser that calls itself.
const DEEP: usize = 100_000;

pub(crate) fn live() {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let Ok(heard) = serde_json::from_str::<Value>(&line) else { continue };
        match heard["type"].as_str() {
            Some("control_request") if heard["request"]["subtype"] == "initialize" => {
                let id = &heard["request_id"];
                say(
                    &json!({ "type": "control_response", "response": { "subtype": "success", "request_id": id, "response": {} } }),
                );
            }
            // It ignores requests to stop.
            Some("user") => obey(&words(&heard["message"]["content"]), &heard["uuid"]),
            _ => {}
        }
    }
}

/// The text of the last block: earlier blocks do not come from the user.
fn words(content: &Value) -> Vec<String> {
    let last = content.as_array().and_then(|blocks| blocks.last()).map_or(content, |block| &block["text"]);
    last.as_str().unwrap_or_default().split(' ').map(str::to_owned).collect()
}

fn obey(words: &[String], turn: &Value) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse().expect("a number");
    let mut said = "obeyed".to_owned();
    match words[..] {
        ["mutter", seconds] => said = mutter(Duration::from_secs(number(seconds))),
        ["lines", count] => lines(number(count)),
        ["endless", megabytes] => endless(io::stdout().lock(), number(megabytes) as u32),
        ["frames", session, of] => frames(session, of),
        ["complain", count] => complain(number(count)),
        ["forever"] => lines(u64::MAX),
        // The process continues, but prints no further line.
        ["shut"] => {
            // SAFETY: closes a descriptor that nothing here writes to any more.
            unsafe { libc::close(io::stdout().as_raw_fd()) };
            loop {
                std::thread::park();
            }
        }
        _ => {}
    }
    say(&json!({ "type": "result", "result": said, "user_message_uuid": turn }));
    say(&json!({ "type": "system", "subtype": "session_state_changed", "state": "idle" }));
}

/// Endless output on stderr, of which the server keeps only the beginning. Returns how much of it was read.
fn mutter(time: Duration) -> String {
    let (began, much, mut bytes) = (Instant::now(), [b'x'; 4096], 0);
    while began.elapsed() < time {
        if io::stderr().write_all(&much).is_err() {
            break;
        }
        bytes += much.len();
    }
    format!("{bytes} bytes in {} ms", began.elapsed().as_millis())
}

fn say(value: &Value) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}

/// Lines that are no messages, messages of wrong shapes, and messages about another session.
fn frames(session: &str, turn: &str) {
    let mut all: Vec<Vec<u8>> = vec![
        b"nonsense".to_vec(),
        b"".to_vec(),
        b"{\"type\":\"assist".to_vec(),
        b"{\"type\":\"assistant\",\"x\":\"\xf0\x9f".to_vec(),
        b"\xff\xfe\x00\x80".to_vec(),
        (0..=255).filter(|byte| *byte != b'\n').collect(),
        format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP)).into_bytes(),
        format!("{}1{}", "{\"type\":".repeat(DEEP), "}".repeat(DEEP)).into_bytes(),
    ];
    let huge = "9".repeat(1000);
    all.push(format!("{{\"type\":\"result\",\"num_turns\":{huge}}}").into_bytes());
    let shapes = [
        json!({ "type": 5 }),
        json!({ "type": ["result"] }),
        json!({ "type": "assistant", "message": 7 }),
        json!({ "type": "assistant", "message": { "content": { "type": [] } } }),
        json!({ "type": "stream_event", "event": [[[]]] }),
        json!({ "type": "control_request", "request_id": {}, "request": { "subtype": "can_use_tool" } }),
        json!({ "type": "control_response", "response": { "request_id": 1.5e300 } }),
        json!({ "type": "system", "subtype": "task_started", "task_id": { "a": 1 } }),
        json!({ "type": "command_lifecycle", "state": "started", "command_uuid": "not one" }),
        json!({ "type": "result", "result": "x", "usage": { "input_tokens": -1 } }),
        // About another session.
        json!({ "type": "result", "session_id": session, "result": "forged", "user_message_uuid": turn }),
        json!({ "type": "assistant", "session_id": session, "uuid": turn, "message": { "role": "assistant", "content": [{ "type": "text", "text": "forged" }] } }),
        json!({ "type": "command_lifecycle", "state": "completed", "command_uuid": turn, "session_id": session }),
        json!({ "type": "control_response", "response": { "request_id": format!("interrupt-{turn}"), "subtype": "success" } }),
    ];
    all.extend(shapes.iter().map(|shape| shape.to_string().into_bytes()));
    let mut out = io::stdout().lock();
    for frame in all.iter().cycle().take(20 * all.len()) {
        let _ = out.write_all(frame).and_then(|()| out.write_all(b"\n"));
    }
    let _ = out.flush();
}
