//! Calls of the client's tools, on their way from the agent to clients and back. The output is a fact before it is sent to
//! the agent, under a number that the agent accepts once.

use super::{
    SessionActor,
    permission::{MAX_OPEN_REQUESTS, MAX_REQUEST_BYTES},
    records::InterpretedRecords,
};
use crate::{Result, machine::CommandRefusal, mailbox::CommandReply};
use ash_driver::AgentInput;
use ash_model::{
    Fact, Timestamp, ToolAnswer, ToolOutput, ToolRequest, ToolRequestId, ToolTimeoutPolicy, VerdictSource,
};
use ash_store::EventQuery;

/// How many seconds a call waits for a client, unless the session says something else.
const DEFAULT_TOOL_TIMEOUT: u64 = 24 * 60 * 60;

impl SessionActor {
    /// An empty call with the limits that the session sets.
    pub(super) fn tool_limits(&self) -> ToolRequest {
        let (now, options) = (self.ctx.services.clock(), &self.ctx.session.options);
        let seconds = options.tool_timeout.unwrap_or(DEFAULT_TOOL_TIMEOUT);
        let expires_at = Timestamp(now.0.saturating_add_unsigned(seconds.saturating_mul(1000)));
        ToolRequest {
            id: ToolRequestId::fresh(),
            turn: None,
            request: String::new(),
            tool: String::new(),
            input: serde_json::json!({}),
            tool_use_id: None,
            expires_at: (seconds > 0).then_some(expires_at),
            on_timeout: options.on_tool_timeout.unwrap_or_default(),
        }
    }

    /// `length`: of its line.
    pub(super) fn understand_tool_call(
        &self,
        call: ToolRequest,
        length: usize,
        meaning: &mut InterpretedRecords,
    ) {
        // Earlier calls of this batch count.
        let log = self.machine.log.after(&meaning.facts);
        let crowded = log.open_tool_calls().count() >= MAX_OPEN_REQUESTS;
        // A client may have changed its tools since the agent started, and an agent may say anything.
        let declared = self.ctx.session.options.client_tools.iter().flatten();
        let is_declared = declared.into_iter().any(|tool| tool.name == call.tool);
        let call = match crowded || length > MAX_REQUEST_BYTES || !is_declared {
            true => failed_at_once(call, self.ctx.services.clock()),
            false => call,
        };
        // Its input gets a number when it is written.
        meaning.facts.push(log.tool_call(call, 0));
    }

    /// A repeated identical answer succeeds; any other answer is too late.
    pub(super) async fn refuse_tool_output(
        &self,
        id: ToolRequestId,
        output: &ToolOutput,
        refused: CommandRefusal,
    ) -> Result<CommandReply> {
        if refused != CommandRefusal::NoSuchToolCall {
            return Err(refused.into());
        }
        match self.tool_answer(id).await? {
            Some(ToolAnswer { output: Some(before), by: VerdictSource::Client, .. }) if before == *output => {
                Ok(CommandReply::default())
            }
            Some(ToolAnswer { output: None, .. }) => Err(CommandRefusal::ToolWithdrawn.into()),
            Some(_) => Err(CommandRefusal::ToolAnswered.into()),
            None => Err(CommandRefusal::NoSuchToolCall.into()),
        }
    }

    async fn tool_answer(&self, wanted: ToolRequestId) -> Result<Option<ToolAnswer>> {
        let mut query = EventQuery { after: 0, limit: 1000, kinds: vec!["tool_answered"] };
        loop {
            let events = self.ctx.services.store.events(self.ctx.session.no, &query).await?;
            let Some(last) = events.last() else { return Ok(None) };
            query.after = last.seq;
            for event in events {
                if let Fact::ToolAnswered(answer) = event.fact
                    && answer.id == wanted
                {
                    return Ok(Some(answer));
                }
            }
        }
    }

    /// The answer to an agent that asked for the client's tools, with the tools.
    pub(super) fn with_client_tools(&self, say: &AgentInput) -> Option<AgentInput> {
        let AgentInput::ToolServerReply { request, message, .. } = say else { return None };
        let tools = self.ctx.session.options.client_tools.clone().unwrap_or_default();
        Some(AgentInput::ToolServerReply { request: request.clone(), message: message.clone(), tools })
    }
}

/// Fails without asking a client, as if no client had answered.
fn failed_at_once(call: ToolRequest, now: Timestamp) -> ToolRequest {
    ToolRequest {
        input: serde_json::json!({}),
        expires_at: Some(now),
        on_timeout: ToolTimeoutPolicy::Fail,
        ..call
    }
}

/// Numbers the inputs in these facts from `next` on. Answers whether there are any.
pub(super) fn number_inputs(facts: &mut [Fact], next: u64) -> bool {
    let mut number = next;
    for fact in facts {
        let input = match fact {
            Fact::ToolServerAsked { input, .. } => Some(input),
            Fact::ToolRepeated(repeat) => repeat.input.as_mut(),
            _ => None,
        };
        if let Some(input) = input {
            *input = number;
            number += 1;
        }
    }
    number > next
}
