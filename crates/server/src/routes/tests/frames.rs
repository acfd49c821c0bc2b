//! The stream and the timeline of every kind of event, byte for byte as they were before events had types. `frames.txt`
//! was written by that version: lines are added, never edited.

use super::*;
use crate::{
    render::{StreamScope, sse_frames},
    shapes,
};
use ash_model::{Event, LogCursor, TurnId};
use ash_store::{AccessScope, LogItem, LogItemContent};

const GOLDEN: &str = include_str!("frames.txt");
/// Facts of all kinds, as databases store them.
const FACTS: &str = include_str!("../../../../model/tests/golden/facts-1.txt");
/// Lines of agents.
const LINES: [&str; 16] = [
    r#"{"type":"assistant","message":{"content":[{"type":"text","text":"x"},{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"1","name":"run","input":{"a":1}},{"type":"other","x":1}]}}"#,
    r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"1","content":"c","is_error":true}]},"tool_use_result":{"stdout":"o","stderr":"e"}}"#,
    r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"c"}]}]},"tool_use_result":{}}"#,
    r#"{"type":"user","message":{"content":"hi"}}"#,
    r#"{"type":"result","num_turns":2,"result":"x","b":1,"a":2}"#,
    r#"{"type":"result"}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"x"}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}}"#,
    r#"{"type":"stream_event","event":{"type":"message_start"}}"#,
    r#"{"type":"system","subtype":"status","status":"compacting","tokens":8100}"#,
    r#"{"type":"system","subtype":"status","status":"compacting"}"#,
    r#"{"type":"system","subtype":"compact_boundary","compact_metadata":{"pre_tokens":3,"post_tokens":1},"summary":"s","usage":{"input_tokens":7}}"#,
    r#"{"type":"system","subtype":"compact_boundary","compact_metadata":{"pre_tokens":3}}"#,
    r#"{"type":"system","subtype":"init"}"#,
    "no JSON",
];

/// The lines of agents come after these: later facts have numbers after them.
const FIRST_FACTS: usize = 124;

fn facts() -> Vec<Fact> {
    let stored = FACTS
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(kind, json)| Fact::decode(kind, json.to_owned()).expect("a stored fact"));
    let mut facts: Vec<Fact> = stored.collect();
    let later = facts.split_off(FIRST_FACTS);
    facts.into_iter().chain(LINES.map(|line| Fact::Said { line: line.to_owned() })).chain(later).collect()
}

#[tokio::test]
async fn events_are_sent_as_they_were_before_they_had_types_and_as_documented() {
    let server = TestRouter::new().await;
    server.stopped_session("s").await;
    let id = SessionId::parse("s").expect("an id");
    let scope = AccessScope::all(&TenantId::main());
    let session = server.store.find_session(&scope, &id).await.expect("read").expect("there");
    let turn = TurnId(uuid::Uuid::from_u128(7));
    let mut sent = Vec::new();
    for (number, fact) in facts().into_iter().enumerate() {
        let seq = number as u64 + 1;
        for (name, scope) in [("turn", StreamScope::Turn(turn)), ("all", StreamScope::All)] {
            let content = LogItemContent::Event(fact.clone());
            let item = LogItem { at: LogCursor::event(seq), turn: Some(turn), time: Timestamp(0), content };
            let frames = sse_frames(&id, scope, &item).into_iter();
            sent.extend(frames.map(|frame| {
                assert_documented(&frame.name, &frame.data);
                format!("{seq} {name} {} {}", frame.name, frame.data)
            }));
        }
        let event = Event { seq, turn: Some(turn), at: Timestamp(0), fact };
        let entries = json!(shapes::timeline(&session, &event));
        let entries = entries.as_array().into_iter().flatten();
        sent.extend(entries.map(|entry| {
            let word = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            format!("{seq} timeline {} {}", word("type"), word("data"))
        }));
    }
    for (sent, golden) in sent.iter().zip(GOLDEN.lines()) {
        let golden = golden.replace("\"version\":\"0.1.0\"", &format!("\"version\":\"{}\"", crate::VERSION));
        assert_eq!(*sent, golden);
    }
    let more: Vec<String> = sent.into_iter().skip(GOLDEN.lines().count()).collect();
    assert_eq!(more, Vec::<String>::new(), "without a line");
}

/// Events that the agent names itself are in no schema.
fn assert_documented(name: &str, data: &str) {
    let Ok(data) = serde_json::from_str::<Value>(data) else { return };
    if crate::EVENTS.contains(&name) {
        let frame = json!({ "event": name, "data": data });
        let schema = json!({ "$ref": "#/components/schemas/StreamEvent" });
        assert_eq!(violations(&frame, &schema), Vec::<String>::new());
    }
}
