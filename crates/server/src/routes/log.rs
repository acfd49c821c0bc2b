//! Our own events of a session as its stream sends them, in pages: for clients that want the past without a stream.

use super::{
    extract::{PathParam, StrictQueryParams, find_session},
    messages::{MAX_RESPONSE_BYTES, PAGE, page_limit},
};
use crate::{
    auth::Caller,
    openapi::VerbatimAnswer,
    problem::ApiResult,
    render::{StreamScope, sse_frames},
    sse,
    wire::history::{LogEntryView, SessionLogAnswer},
};
use ash_model::{Event, EventSeq, LogCursor};
use ash_session::Sessions;
use ash_store::{EventQuery, LogItem, LogItemContent, SessionRow};
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

const DEFAULT_LIMIT: usize = 200;

#[derive(Deserialize, IntoParams)]
pub(super) struct SessionLogQuery {
    /// 200 without one. The frames of one event stay together, also if they are more.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only events with a higher number: `nextAfter` of the page before.
    after: Option<EventSeq>,
}

pub(super) async fn log(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(asked): StrictQueryParams<SessionLogQuery>,
) -> ApiResult<VerbatimAnswer<SessionLogAnswer>> {
    let session = find_session(&sessions, &caller, &id).await?;
    let limit = page_limit(asked.limit, DEFAULT_LIMIT, 1000)?;
    let after = asked.after.unwrap_or(0).min(i64::MAX as u64);
    Ok(VerbatimAnswer(read(&sessions, &session, (after, limit)).await?))
}

/// Everything that a stream from there would send without deltas, also what a rewind or a second attempt superseded.
async fn read(
    sessions: &Sessions,
    session: &SessionRow,
    (after, limit): (EventSeq, usize),
) -> ApiResult<SessionLogAnswer> {
    let (mut entries, mut bytes, mut shown) = (Vec::new(), 0, after);
    // A few more than requested, because many events have no frames.
    let page = PAGE.min(u32::try_from(limit).unwrap_or(PAGE) + 8);
    let mut query = EventQuery { after, limit: page, kinds: Vec::new() };
    loop {
        let events = sessions.events(session.no, &query).await?;
        let Some(last) = events.last() else {
            return Ok(SessionLogAnswer { events: entries, next_after: None });
        };
        query.after = last.seq;
        for event in events {
            let seq = event.seq;
            let frames = frames_of(session, event);
            bytes += frames.iter().map(|entry| entry.data.get().len()).sum::<usize>();
            let is_full = entries.len() + frames.len() > limit || bytes > MAX_RESPONSE_BYTES;
            if is_full && !entries.is_empty() && !frames.is_empty() {
                return Ok(SessionLogAnswer { events: entries, next_after: Some(shown) });
            }
            entries.extend(frames);
            shown = seq;
        }
    }
}

fn frames_of(session: &SessionRow, event: Event) -> Vec<LogEntryView> {
    let at = LogCursor::event(event.seq);
    let content = LogItemContent::Event(event.fact);
    let item = LogItem { at, turn: event.turn, time: event.at, content };
    let frames = sse_frames(&session.id, StreamScope::All, &item);
    let count = frames.len();
    let numbered = frames.into_iter().enumerate();
    numbered
        .map(|(place, frame)| LogEntryView {
            id: sse::frame_id(at, place, count).to_string(),
            event: frame.name,
            data: sse::raw_data(&frame.data),
        })
        .collect()
}
