//! Event streams: the log of a session as frames with ids. A reader that reconnects with the last id that it saw
//! continues right after it.

use crate::{
    render::{self, SseFrame, StreamScope},
    turn::{self, TurnStreamAction, TurnWatcher},
};
use ash_model::{Fact, LogCursor, SessionId};
use ash_session::{LogFollower, Sessions, StreamItem};
use ash_store::{LogItem, LogItemContent};
use axum::{
    body::{Body, Bytes},
    http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, convert::Infallible, fmt::Write, time::Duration};

const HEARTBEAT: Duration = Duration::from_secs(15);

pub(crate) struct SseStream {
    pub(crate) sessions: Sessions,
    pub(crate) follower: LogFollower,
    pub(crate) session: SessionId,
    pub(crate) deltas: DeltaVisibility,
    /// The turn, if the stream is limited to one.
    pub(crate) turn: Option<TurnWatcher>,
    /// Frames of the first item that the reader already has.
    pub(crate) already_sent: Option<(LogCursor, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeltaVisibility {
    Show,
    Hide,
}

/// The position at which to start reading so that everything after `cursor` is included, and the frames to skip there.
pub(crate) fn resume_position(cursor: LogCursor) -> (LogCursor, Option<(LogCursor, u32)>) {
    let Some(frames) = cursor.frames else { return (cursor, None) };
    let item = LogCursor::delta(cursor.seq, cursor.delta);
    let before = match cursor.delta {
        0 => LogCursor::delta(cursor.seq.saturating_sub(1), i64::MAX as u64),
        delta => LogCursor::delta(cursor.seq, delta - 1),
    };
    (before, Some((item, frames)))
}

impl SseStream {
    pub(crate) fn response(self) -> Response {
        let stream = futures::stream::unfold(Some(self), |streaming| async move {
            let mut streaming = streaming?;
            let (bytes, over) = streaming.next().await;
            Some((Ok::<Bytes, Infallible>(bytes), (!over).then_some(streaming)))
        });
        let headers =
            [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache"), (CONNECTION, "keep-alive")];
        (headers, Body::from_stream(stream)).into_response()
    }

    /// The next part of the stream, and whether it is the last.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            let items = match tokio::time::timeout(HEARTBEAT, self.follower.next()).await {
                Err(_) => return (Bytes::from_static(b": still here\n\n"), false),
                Ok(Ok(StreamItem::Items(items))) => items,
                // Without an id: a reader cannot continue after it.
                Ok(Ok(StreamItem::Restoring(restoring))) => {
                    let frame = render::restore_progress_frame(&restoring);
                    let text = format!("event: {}\ndata: {}\n\n", frame.name, frame.data);
                    return (Bytes::from(text), false);
                }
                Ok(Err(error)) if error.code() == "server_stopped" => return (self.farewell(), true),
                Ok(Err(error)) => {
                    tracing::error!(session = %self.session, %error, "a stream could not be read");
                    return (Bytes::new(), true);
                }
            };
            let mut text = String::new();
            let mut over = false;
            for item in items {
                over = self.write(&item, &mut text).await;
                if over {
                    break;
                }
            }
            if !text.is_empty() || over {
                return (Bytes::from(text), over);
            }
        }
    }

    /// The last frame when the log closes. A reader that follows a session reconnects by itself, and a reader that
    /// waits for a turn gets the reason. If the server restarts at once, the reader of a turn can also reconnect.
    fn farewell(&self) -> Bytes {
        match self.turn.is_some() && self.sessions.is_stopping() {
            // Without an id: a reader cannot continue after it.
            true => {
                let frame = render::cut_frame(&turn::stopped(), None);
                Bytes::from(format!("event: {}\ndata: {}\n\n", frame.name, frame.data))
            }
            false => Bytes::new(),
        }
    }

    /// True: the stream ends after this item.
    async fn write(&mut self, item: &LogItem, text: &mut String) -> bool {
        let meaning = self.turn.as_mut().map(|turn| turn.classify(item));
        match meaning {
            Some(TurnStreamAction::Skip) => return false,
            Some(TurnStreamAction::Interrupted(problem)) => {
                let queued = self.is_open().await;
                let problem = if self.sessions.is_stopping() { turn::stopped() } else { problem };
                self.write_all(item.at, &[render::cut_frame(&problem, queued)], text);
                return true;
            }
            Some(TurnStreamAction::Send | TurnStreamAction::TurnEnded) | None => {}
        }
        let hidden = self.deltas == DeltaVisibility::Hide && matches!(item.content, LogItemContent::Delta(_));
        if !hidden {
            self.write_frames(item, text);
        }
        meaning == Some(TurnStreamAction::TurnEnded)
            || matches!(item.content, LogItemContent::Event(Fact::Ended))
    }

    /// `None` if the store cannot be read: the frame then makes no claim.
    async fn is_open(&self) -> Option<bool> {
        self.follower.is_open(self.turn.as_ref()?.id()).await.ok()
    }

    fn write_frames(&mut self, item: &LogItem, text: &mut String) {
        let view = self.turn.as_ref().map_or(StreamScope::All, |turn| StreamScope::Turn(turn.id()));
        let frames = render::sse_frames(&self.session, view, item);
        self.write_all(item.at, &frames, text);
    }

    fn write_all(&mut self, at: LogCursor, frames: &[SseFrame], text: &mut String) {
        let seen = self.already_sent.take_if(|(place, _)| *place == at).map_or(0, |(_, seen)| seen as usize);
        for (place, frame) in frames.iter().enumerate().skip(seen) {
            let id = frame_id(at, place, frames.len());
            // Writing to a string cannot fail.
            write!(text, "id: {id}\nevent: {}\ndata: {}\n\n", frame.name, escape_line_breaks(&frame.data))
                .ok();
        }
    }
}

/// The id of a frame. The last frame of an item has the item's own: a reader that has it has all of the item.
pub(crate) fn frame_id(at: LogCursor, place: usize, count: usize) -> LogCursor {
    if place + 1 == count { at } else { at.partly(place as u32 + 1) }
}

/// The data of a frame as a part of a JSON answer, to the byte. A line of an agent that is no JSON becomes a text.
pub(crate) fn raw_data(data: &str) -> Box<RawValue> {
    let text = |_| serde_json::value::to_raw_value(data).expect("a text is JSON");
    RawValue::from_string(escape_line_breaks(data).into_owned()).unwrap_or_else(text)
}

/// JSON strings may contain these characters unescaped, and some readers (Python's among them) end a line at them.
fn escape_line_breaks(json: &str) -> Cow<'_, str> {
    const BREAKS: [(char, &str); 3] =
        [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    let mut text = Cow::Borrowed(json);
    for (character, escape) in BREAKS {
        if text.contains(character) {
            text = Cow::Owned(text.replace(character, escape));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{escape_line_breaks, raw_data};

    #[test]
    fn data_is_one_line_to_every_reader_and_the_same_json() {
        let json = "{\"x\":\"a\u{2028}b\u{2029}c\u{85}ä\"}";
        let line = escape_line_breaks(json);
        assert_eq!(line, r#"{"x":"a\u2028b\u2029c\u0085ä"}"#);
        let values = [json, &line].map(|text| serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
        assert_eq!(values[0], values[1]);
    }

    #[test]
    fn data_in_a_json_answer_is_what_the_stream_sends() {
        let json = "{\"b\": 1.50, \"a\":[1e400]}";
        assert_eq!(raw_data(json).get(), json);
        assert_eq!(raw_data("\"\u{2028}\"").get(), r#""\u2028""#);
        assert_eq!(raw_data("no JSON \"").get(), r#""no JSON \"""#);
    }
}
