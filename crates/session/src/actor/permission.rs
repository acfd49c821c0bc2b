//! Permission requests of the agent, on their way to clients and back. The answer is a fact before it is sent to the
//! agent, under a number that the agent accepts once.

use super::{SessionActor, records::InterpretedRecords};
use crate::{
    Error, Result,
    machine::{CommandRefusal, StateCommand, WaiterId},
    mailbox::CommandReply,
};
use ash_driver::AgentEvent;
use ash_model::{
    Fact, PermissionId, PermissionRequest, PermissionVerdict, Timestamp, ToolRequest, ToolRequestId,
    VerdictSource,
};
use ash_store::EventQuery;
use std::time::Duration;

/// More than clients can answer: further requests are denied at once.
pub(super) const MAX_OPEN_REQUESTS: usize = 32;
/// The longest request that is sent to clients.
pub(super) const MAX_REQUEST_BYTES: usize = 4 << 20;

impl SessionActor {
    /// Handles a permission request of the agent, or its withdrawal. `length`: of its line.
    pub(super) fn understand_request(
        &self,
        heard: AgentEvent,
        length: usize,
        meaning: &mut InterpretedRecords,
    ) {
        match heard {
            AgentEvent::PermissionRequested { request, tool, input, tool_use_id, suggestions, question } => {
                let (now, options) = (self.ctx.services.clock(), &self.ctx.session.options);
                let usual = self.ctx.services.settings.permission_timeout;
                let wait = options.permission_timeout.map_or(usual, Duration::from_secs);
                let asked = PermissionRequest {
                    id: PermissionId::fresh(),
                    turn: self.machine.log.under_way().filter(|_| meaning.rested.is_none()),
                    request,
                    tool,
                    input,
                    tool_use_id,
                    suggestions,
                    question,
                    expires_at: Timestamp(now.0.saturating_add_unsigned(wait.as_millis() as u64)),
                    on_timeout: options.on_permission_timeout.unwrap_or_default(),
                };
                let others =
                    meaning.facts.iter().filter(|fact| matches!(fact, Fact::PermissionRequested(_))).count();
                let crowded = self.machine.log.pending.len() + others >= MAX_OPEN_REQUESTS;
                let asked =
                    if crowded || length > MAX_REQUEST_BYTES { denied_at_once(asked, now) } else { asked };
                meaning.facts.push(Fact::PermissionRequested(asked));
            }
            AgentEvent::ToolRequested { request, tool, input, tool_use_id } => {
                let call = ToolRequest {
                    id: ToolRequestId::fresh(),
                    turn: self.machine.log.under_way().filter(|_| meaning.rested.is_none()),
                    request,
                    tool,
                    input,
                    tool_use_id,
                    ..self.tool_limits()
                };
                self.understand_tool_call(call, length, meaning);
            }
            AgentEvent::ToolServerAsked { request, message } => {
                meaning.facts.push(Fact::ToolServerAsked { request, message, input: 0 });
            }
            // The request may be in the same batch.
            AgentEvent::RequestWithdrawn { request } => {
                meaning.facts.extend(self.machine.log.after(&meaning.facts).withdrawn(&request));
            }
            AgentEvent::SettingAnswered { input, refused } => meaning.set.push((input, refused)),
            AgentEvent::Ready { .. }
            | AgentEvent::Delta { .. }
            | AgentEvent::Message { .. }
            | AgentEvent::MemoryCompacted
            | AgentEvent::Steered { .. }
            | AgentEvent::TurnEnded { .. } => {}
        }
    }

    pub(super) async fn answer(&mut self, facts: Vec<Fact>, waiter: WaiterId) -> Result<()> {
        let is_tool_output = facts.iter().all(|fact| matches!(fact, Fact::ToolAnswered(_)));
        if self.link.conn.is_none() && !is_tool_output {
            // The agent is being ended, and its request with it.
            self.waiters.answer(waiter, Err(CommandRefusal::AlreadyAnswered.into()));
            return Ok(());
        }
        let told = self.commit_and_tell(facts).await;
        let answer = told.as_ref().map(|()| CommandReply::default()).map_err(Error::shared);
        self.waiters.answer(waiter, answer);
        self.tolerate(told)
    }

    /// A repeated identical answer succeeds; any other answer is too late.
    pub(super) async fn refuse(
        &self,
        command: &StateCommand,
        refused: CommandRefusal,
    ) -> Result<CommandReply> {
        if let StateCommand::AnswerTool { id, output } = command {
            return self.refuse_tool_output(*id, output, refused).await;
        }
        let StateCommand::Answer { id, verdict } = command else { return Err(refused.into()) };
        if refused != CommandRefusal::NoSuchPermission {
            return Err(refused.into());
        }
        match self.answered(*id).await? {
            Some((Some(before), VerdictSource::Client)) if before == *verdict => Ok(CommandReply::default()),
            Some(_) => Err(CommandRefusal::AlreadyAnswered.into()),
            None => Err(CommandRefusal::NoSuchPermission.into()),
        }
    }

    async fn answered(
        &self,
        wanted: PermissionId,
    ) -> Result<Option<(Option<PermissionVerdict>, VerdictSource)>> {
        let mut query = EventQuery { after: 0, limit: 1000, kinds: vec!["answered"] };
        loop {
            let events = self.ctx.services.store.events(self.ctx.session.no, &query).await?;
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

    /// Commits the facts and sends the agent every input that they contain.
    pub(super) async fn commit_and_tell(&mut self, facts: Vec<Fact>) -> Result<()> {
        let last = self.machine.log.awake.as_ref().map_or(0, |awake| awake.next_input.saturating_sub(1));
        self.commit_facts(facts).await?;
        ash_failpoint::reach_async("input.stored").await;
        self.tell_since(last).await;
        Ok(())
    }

    /// Sends the agent every input after this number that is in the log.
    pub(super) async fn tell_since(&mut self, last: u64) {
        for (input, say) in self.machine.log.undelivered_inputs(last) {
            self.tell(input, &say).await;
        }
    }
}

/// Denied without asking a client, as if no client had answered.
fn denied_at_once(asked: PermissionRequest, now: Timestamp) -> PermissionRequest {
    PermissionRequest {
        input: serde_json::json!({}),
        suggestions: Vec::new(),
        expires_at: now,
        on_timeout: ash_model::PermissionTimeoutPolicy::Deny,
        ..asked
    }
}
