//! Permissions that an agent waits for, and the options that a client changes in a live session.

use crate::{Result, Sessions, machine::StateCommand};
use ash_model::{Fact, PermissionId, PermissionRequest, PermissionVerdict, SessionRowId};
use ash_store::{EventQuery, SessionRow};

impl Sessions {
    /// The open requests, in the order in which they were made.
    pub async fn pending(&self, session: &SessionRow) -> Result<Vec<PermissionRequest>> {
        let mut found = Vec::new();
        for seq in &session.summary.pending {
            let query = EventQuery { after: seq.saturating_sub(1), limit: 1, kinds: vec!["asked"] };
            let events = self.services().store.events(session.no, &query).await?;
            found.extend(events.into_iter().filter(|event| event.seq == *seq).filter_map(|event| {
                match event.fact {
                    Fact::PermissionRequested(asked) => Some(asked),
                    _ => None,
                }
            }));
        }
        Ok(found)
    }

    /// Answers a request. The same answer again is accepted; a different one, or an answer to a withdrawn request, is
    /// refused.
    pub async fn answer(&self, no: SessionRowId, id: PermissionId, verdict: PermissionVerdict) -> Result<()> {
        self.open_for_work()?;
        self.command(no, StateCommand::Answer { id, verdict }).await?;
        Ok(())
    }
}
