//! The conversation of a session as items.

use super::{
    extract::{PathParam, StrictQueryParams, find_session},
    messages::{PAGE, page_limit},
};
use crate::{
    auth::Caller,
    conversation::{ConversationPage, KINDS, PageProgress},
    openapi::Answer,
    problem::ApiResult,
    wire::conversation::ConversationAnswer,
};
use ash_model::{EventSeq, TurnId};
use ash_session::{LogVisibility, Sessions};
use ash_store::{EventQuery, SessionRow};
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 500;

#[derive(Deserialize, IntoParams)]
pub(super) struct ConversationQuery {
    /// 100 without one. A page of large items has fewer.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Only items after this place: `after` of an item, or `nextAfter` of the page before.
    after: Option<EventSeq>,
    /// The conversation as it was at this checkpoint.
    checkpoint: Option<u64>,
    /// Also messages that were withdrawn, and what a rewind or a second attempt superseded.
    all: Option<bool>,
}

/// The part of a log in which the conversation is.
struct ConversationLog<'a> {
    sessions: &'a Sessions,
    session: &'a SessionRow,
    upto: EventSeq,
    past: LogVisibility,
}

pub(super) async fn conversation(
    State(sessions): State<Sessions>,
    caller: Caller,
    PathParam(id): PathParam,
    StrictQueryParams(asked): StrictQueryParams<ConversationQuery>,
) -> ApiResult<Answer<ConversationAnswer>> {
    let session = find_session(&sessions, &caller, &id).await?;
    let limit = page_limit(asked.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let after = asked.after.unwrap_or(0).min(i64::MAX as u64);
    let (upto, past) = match asked.checkpoint {
        Some(number) => sessions.visibility_at_checkpoint(&session, number).await?,
        None => (EventSeq::MAX, sessions.log_visibility(&session).await?),
    };
    let past = if asked.all == Some(true) { LogVisibility::default() } else { past };
    let log = ConversationLog { sessions: &sessions, session: &session, upto, past };
    Ok(Answer(log.page(after, limit).await?))
}

impl ConversationLog<'_> {
    async fn page(&self, after: EventSeq, limit: usize) -> ApiResult<ConversationAnswer> {
        let mut page = ConversationPage::new(after, limit);
        let mut query = EventQuery { after, limit: PAGE, kinds: KINDS.to_vec() };
        loop {
            let events = self.sessions.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { return Ok(page.finish()) };
            query.after = last.seq;
            for event in events.iter().filter(|event| !self.past.hides(event)) {
                if event.seq > self.upto {
                    return Ok(page.finish());
                }
                if let Some(turn) = page.unfinished_turn(event) {
                    self.skip_earlier_lines(&mut page, turn, after).await?;
                }
                if page.push(event) == PageProgress::Complete {
                    return Ok(page.finish());
                }
            }
        }
    }

    /// Shows a page the lines of a turn that came up to its beginning.
    async fn skip_earlier_lines(
        &self,
        page: &mut ConversationPage,
        turn: TurnId,
        upto: EventSeq,
    ) -> ApiResult<()> {
        let Some(queued) = self.sessions.turn_queued_at(self.session, turn).await? else { return Ok(()) };
        let mut query = EventQuery { after: queued, limit: PAGE, kinds: vec!["said"] };
        while query.after < upto {
            let events = self.sessions.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { return Ok(()) };
            query.after = last.seq;
            let earlier = events.iter().filter(|event| event.seq <= upto && event.turn == Some(turn));
            earlier.filter(|event| !self.past.hides(event)).for_each(|event| page.skip(event));
        }
        Ok(())
    }
}
