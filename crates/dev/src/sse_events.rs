//! A reply as the events of a stream, in the order and format of the Messages API.

use crate::reply::{PAUSE, ReplyBlock, ScriptedReply, TextPace};
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PacedSseEvent {
    pub(crate) data: Value,
    pub(crate) pause: Duration,
}

impl PacedSseEvent {
    pub(crate) fn new(data: Value) -> PacedSseEvent {
        PacedSseEvent { data, pause: Duration::ZERO }
    }

    /// The text of the event, with its name if it has one.
    pub(crate) fn text(&self) -> String {
        let name = self.data["type"].as_str().map(|name| format!("event: {name}\n")).unwrap_or_default();
        format!("{name}data: {}\n\n", self.data)
    }
}

pub(crate) fn events(reply: &ScriptedReply) -> Vec<PacedSseEvent> {
    let mut start = reply.whole();
    start["content"] = json!([]);
    start["stop_reason"] = Value::Null;
    start["usage"] = reply.usage(1);
    let mut events = vec![PacedSseEvent::new(json!({ "type": "message_start", "message": start }))];
    for (index, block) in reply.blocks.iter().enumerate() {
        events.push(PacedSseEvent::new(
            json!({ "type": "content_block_start", "index": index, "content_block": opening(reply, index, block) }),
        ));
        if index == 0 {
            events.push(PacedSseEvent::new(json!({ "type": "ping" })));
        }
        events.extend(deltas(reply, index, block).into_iter().map(|(delta, pause)| PacedSseEvent {
            data: json!({ "type": "content_block_delta", "index": index, "delta": delta }),
            pause,
        }));
        events.push(PacedSseEvent::new(json!({ "type": "content_block_stop", "index": index })));
    }
    let end = json!({ "stop_reason": reply.stop_reason(), "stop_sequence": null });
    let usage = reply.usage(reply.output_tokens());
    events.push(PacedSseEvent::new(json!({ "type": "message_delta", "delta": end, "usage": usage })));
    events.push(PacedSseEvent::new(json!({ "type": "message_stop" })));
    events
}

pub(crate) fn overloaded() -> PacedSseEvent {
    let error = json!({ "type": "overloaded_error", "message": "Overloaded" });
    PacedSseEvent::new(json!({ "type": "error", "error": error }))
}

fn opening(reply: &ScriptedReply, index: usize, block: &ReplyBlock) -> Value {
    match block {
        ReplyBlock::Text { .. } => json!({ "type": "text", "text": "" }),
        ReplyBlock::Thinking(_) => json!({ "type": "thinking", "thinking": "", "signature": "" }),
        ReplyBlock::Call { name, .. } => {
            json!({ "type": "tool_use", "id": reply.call_id(index), "name": name, "input": {} })
        }
    }
}

fn deltas(reply: &ScriptedReply, index: usize, block: &ReplyBlock) -> Vec<(Value, Duration)> {
    match block {
        ReplyBlock::Text { text, pace } => {
            let delta = |(piece, pause)| (json!({ "type": "text_delta", "text": piece }), pause);
            paced(text, *pace).into_iter().map(delta).collect()
        }
        ReplyBlock::Thinking(text) => {
            let thoughts =
                at_once(text).into_iter().map(|piece| json!({ "type": "thinking_delta", "thinking": piece }));
            let signature = json!({ "type": "signature_delta", "signature": reply.signature(index) });
            thoughts.chain([signature]).map(|delta| (delta, Duration::ZERO)).collect()
        }
        ReplyBlock::Call { input, .. } => {
            let text = input.to_string();
            // The real API starts with an empty delta.
            let parts = [vec![""], at_once(&text)].concat();
            let delta = |part| (json!({ "type": "input_json_delta", "partial_json": part }), Duration::ZERO);
            parts.into_iter().map(delta).collect()
        }
    }
}

/// The parts of a text, with the pause before each.
pub(crate) fn paced(text: &str, pace: TextPace) -> Vec<(&str, Duration)> {
    let (pieces, pause) = match pace {
        TextPace::AtOnce => (at_once(text), Duration::ZERO),
        TextPace::Slow(number) => (pieces(text, number), PAUSE),
    };
    pieces.into_iter().map(|piece| (piece, pause)).collect()
}

pub(crate) fn at_once(text: &str) -> Vec<&str> {
    pieces(text, (text.chars().count() / 24).clamp(2, 64))
}

/// Splits a text into `number` parts of nearly the same length; some are empty if the text is short.
fn pieces(text: &str, number: usize) -> Vec<&str> {
    let mut bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    bounds.push(text.len());
    let characters = bounds.len() - 1;
    let bound = |piece: usize| bounds[characters * piece / number.max(1)];
    (0..number).map(|piece| &text[bound(piece)..bound(piece + 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::MessagesRequest;

    fn reply(blocks: Vec<ReplyBlock>) -> ScriptedReply {
        let body = json!({ "messages": [{ "role": "user", "content": "x" }] });
        let id = MessagesRequest::read(&body).expect("a conversation").id();
        ScriptedReply { id, repeat_count: 0, model: "m".into(), blocks, input_tokens: 7 }
    }

    #[test]
    fn pieces_are_the_text_and_as_many_as_asked_for() {
        assert_eq!(pieces("äöüß", 2), ["äö", "üß"]);
        assert_eq!(pieces("abc", 2), ["a", "bc"]);
        assert_eq!(pieces("a", 3), ["", "", "a"]);
        assert_eq!(pieces("", 2), ["", ""]);
    }

    #[test]
    fn a_stream_has_the_events_of_the_api_in_their_order() {
        let call = ReplyBlock::Call { name: "Bash".into(), input: json!({"a": 1}) };
        let reply = reply(vec![ReplyBlock::Thinking("hm so".into()), ReplyBlock::text("hello"), call]);
        let names: Vec<String> = events(&reply)
            .iter()
            .map(|event| {
                event.data["delta"]["type"].as_str().or(event.data["type"].as_str()).map(str::to_owned)
            })
            .collect::<Option<_>>()
            .expect("types");
        let expected = [
            "message_start",
            "content_block_start",
            "ping",
            "thinking_delta",
            "thinking_delta",
            "signature_delta",
            "content_block_stop",
            "content_block_start",
            "text_delta",
            "text_delta",
            "content_block_stop",
            "content_block_start",
            "input_json_delta",
            "input_json_delta",
            "input_json_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_frame_is_a_name_and_a_line_of_data() {
        assert_eq!(
            PacedSseEvent::new(json!({"type": "ping"})).text(),
            "event: ping\ndata: {\"type\":\"ping\"}\n\n"
        );
    }

    #[test]
    fn slow_texts_pause_before_each_piece() {
        let reply = reply(vec![ReplyBlock::Text { text: "abcdef".into(), pace: TextPace::Slow(3) }]);
        let pauses: Vec<Duration> =
            events(&reply).into_iter().map(|event| event.pause).filter(|pause| !pause.is_zero()).collect();
        assert_eq!(pauses, [PAUSE; 3]);
    }
}
