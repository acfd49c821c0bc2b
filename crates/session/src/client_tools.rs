//! Calls of the client's tools that wait for an answer, and the answers.

use crate::{Result, Sessions, machine::StateCommand};
use ash_model::{Fact, SessionRowId, Timestamp, ToolOutput, ToolRequest, ToolRequestId};
use ash_store::{EventQuery, SessionRow};

/// A call that waits for a client.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenToolCall {
    pub asked: ToolRequest,
    /// When the agent made the call.
    pub requested_at: Timestamp,
}

impl Sessions {
    /// The open calls, in the order in which they were made.
    pub async fn open_tool_calls(&self, session: &SessionRow) -> Result<Vec<OpenToolCall>> {
        let mut found = Vec::new();
        for seq in &session.summary.pending {
            let query = EventQuery { after: seq.saturating_sub(1), limit: 1, kinds: vec!["tool_requested"] };
            let events = self.services().store.events(session.no, &query).await?;
            found.extend(events.into_iter().filter(|event| event.seq == *seq).filter_map(|event| {
                match event.fact {
                    Fact::ToolRequested(asked) => Some(OpenToolCall { asked, requested_at: event.at }),
                    _ => None,
                }
            }));
        }
        Ok(found)
    }

    /// Answers a call. The same answer again is accepted; a different one, or an answer to a withdrawn call, is refused.
    pub async fn answer_tool(&self, no: SessionRowId, id: ToolRequestId, output: ToolOutput) -> Result<()> {
        self.open_for_work()?;
        self.command(no, StateCommand::AnswerTool { id, output }).await?;
        Ok(())
    }
}
