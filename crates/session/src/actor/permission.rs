//! Leave that the agent asks for, on its way to whoever gives it and back. The answer is a fact before the agent
//! hears it, under a number that it hears once.

use super::{Actor, Answer, Reply, hear::Meaning};
use crate::{
    Error, Result,
    state::{Refused, Wish, cancelled},
};
use ash_driver::Heard;
use ash_model::{AnsweredBy, Asked, Fact, PermissionId, Timestamp, Verdict};
use ash_store::EventQuery;
use std::time::Duration;
use tokio::time::Instant;

/// More than anybody answers: what comes on top of them is denied at once.
const MOST: usize = 32;
/// The longest request that is put to somebody.
const LONGEST: usize = 4 << 20;

impl Actor {
    /// What the agent asks of us, and that it does not any more. `length`: of its line.
    pub(super) fn understand_request(&self, heard: Heard, length: usize, meaning: &mut Meaning) {
        match heard {
            Heard::Asked { request, tool, input, tool_use_id, suggestions, question } => {
                let (now, options) = (self.rooms.clock(), &self.session.options);
                let usual = self.rooms.settings.permission_timeout;
                let wait = options.permission_timeout.map_or(usual, Duration::from_secs);
                let asked = Asked {
                    id: PermissionId::fresh(),
                    turn: self.state.under_way().filter(|_| meaning.rested.is_none()),
                    request,
                    tool,
                    input,
                    tool_use_id,
                    suggestions,
                    question,
                    expires_at: Timestamp(now.0.saturating_add_unsigned(wait.as_millis() as u64)),
                    on_timeout: options.on_permission_timeout.unwrap_or_default(),
                };
                let others = meaning.facts.iter().filter(|fact| matches!(fact, Fact::Asked(_))).count();
                let crowded = self.state.pending.len() + others >= MOST;
                let asked = if crowded || length > LONGEST { hopeless(asked, now) } else { asked };
                meaning.facts.push(Fact::Asked(asked));
            }
            Heard::Withdrawn { request } => {
                let fact = self.state.withdrawn(&request).or_else(|| withdrawn(&meaning.facts, &request));
                meaning.facts.extend(fact.filter(|fact| !meaning.facts.contains(fact)));
            }
            Heard::Set { input, refused } => meaning.set.push((input, refused)),
            Heard::Ready { .. }
            | Heard::Delta { .. }
            | Heard::Message { .. }
            | Heard::Steered { .. }
            | Heard::Rested { .. } => {}
        }
    }

    pub(super) async fn answer(&mut self, facts: Vec<Fact>, reply: Reply<Answer>) -> Result<()> {
        if self.hands.is_none() {
            // Whoever asked is on its way out, and takes the request along.
            reply.send(Err(Refused::Answered.into())).ok();
            return Ok(());
        }
        let told = self.note_and_tell(facts).await;
        let answer = told.as_ref().map(|()| Answer::default());
        reply.send(answer.map_err(Error::shared)).ok();
        self.survive(told)
    }

    /// The same answer again is the same answer; any other comes too late.
    pub(super) async fn refuse(&self, wish: &Wish, refused: Refused) -> Result<Answer> {
        let Wish::Answer { id, verdict } = wish else { return Err(refused.into()) };
        if refused != Refused::Unasked {
            return Err(refused.into());
        }
        match self.answered(*id).await? {
            Some((Some(before), AnsweredBy::Client)) if before == *verdict => Ok(Answer::default()),
            Some(_) => Err(Refused::Answered.into()),
            None => Err(Refused::Unasked.into()),
        }
    }

    async fn answered(&self, wanted: PermissionId) -> Result<Option<(Option<Verdict>, AnsweredBy)>> {
        let mut query = EventQuery { after: 0, limit: 1000, kinds: vec!["answered"] };
        loop {
            let events = self.rooms.store.events(self.session.no, &query).await?;
            let Some(last) = events.last() else { return Ok(None) };
            query.after = last.seq;
            for event in events {
                if let Fact::Answered { id, verdict, by, .. } = event.fact
                    && id == wanted
                {
                    return Ok(Some((verdict, by)));
                }
            }
        }
    }

    /// Whoever was to answer had long enough, or it does not matter any more.
    pub(super) async fn expire_requests(&mut self) -> Result<()> {
        if self.hands.is_none() {
            return Ok(());
        }
        let facts = self.state.overdue(self.rooms.clock());
        if !facts.is_empty() {
            self.note_and_tell(facts).await?;
            self.lose_patience_later();
        }
        Ok(())
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let at = self.state.next_overdue().filter(|_| self.hands.is_some())?;
        let wait = u64::try_from(at.0 - self.rooms.clock().0).unwrap_or(0);
        Instant::now().checked_add(Duration::from_millis(wait))
    }

    /// Everything that the facts say under numbers of their own.
    pub(super) async fn note_and_tell(&mut self, facts: Vec<Fact>) -> Result<()> {
        let last = self.state.awake.as_ref().map_or(0, |awake| awake.next_input.saturating_sub(1));
        self.note(facts).await?;
        for (input, say) in self.state.untold(last) {
            self.tell(input, &say).await;
        }
        Ok(())
    }
}

/// Nobody is asked: it is denied as if nobody had answered.
fn hopeless(asked: Asked, now: Timestamp) -> Asked {
    Asked {
        input: serde_json::json!({}),
        suggestions: Vec::new(),
        expires_at: now,
        on_timeout: ash_model::OnPermissionTimeout::Deny,
        ..asked
    }
}

/// It was asked and withdrawn in one breath.
fn withdrawn(facts: &[Fact], wanted: &str) -> Option<Fact> {
    facts.iter().find_map(|fact| match fact {
        Fact::Asked(asked) if asked.request == wanted => Some(cancelled(asked)),
        _ => None,
    })
}
