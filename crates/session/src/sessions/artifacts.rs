//! Finds a session's plan and its documents, now or in a checkpoint.

use super::Sessions;
use crate::{LogVisibility, Result, SessionArtifacts, mailbox::ActorMessage};
use ash_driver::session_folder;
use ash_model::{EventSeq, Fact, Timestamp};
use ash_store::{EventQuery, SessionRow};
use uuid::Uuid;

/// A plan that the agent showed when it asked for permission to carry it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedPlan {
    pub text: String,
    pub at: Timestamp,
}

impl Sessions {
    pub async fn artifacts(&self, session: &SessionRow, checkpoint: Option<u64>) -> Result<SessionArtifacts> {
        let inherited = self.inherited(session, checkpoint).await?.map(session_folder);
        let place = match checkpoint {
            Some(number) => self.files_at(session, number).await?,
            None => self.files(session).await?,
        };
        let live = &self.services.workspace(session.workspace).live;
        let own = session_folder(session.native_id);
        let inside = self.services.inside(live).home.join(&own);
        Ok(SessionArtifacts {
            source: place.source,
            repo: place.repo,
            home: live.home(),
            own,
            inherited,
            inside,
        })
    }

    /// The conversation that a fork continues, if the fork has not stored its own yet.
    async fn inherited(&self, session: &SessionRow, checkpoint: Option<u64>) -> Result<Option<Uuid>> {
        match checkpoint {
            None => self.ask(session.no, |reply| ActorMessage::Inherited { reply }).await,
            Some(_) if session.base.is_none() => Ok(None),
            Some(number) => match self.own_checkpoint(session, number).await {
                Ok(checkpoint) => Ok(self.conversation_at(session, checkpoint.seq).await?.memory),
                // The agent's own files, or a checkpoint of another session.
                Err(_) => Ok(None),
            },
        }
    }

    /// The last plan in the visible part of the log. For a checkpoint: the last one before it.
    pub async fn proposed(
        &self,
        session: &SessionRow,
        checkpoint: Option<u64>,
    ) -> Result<Option<ProposedPlan>> {
        let upto = match checkpoint {
            Some(number) => match self.own_checkpoint(session, number).await {
                Ok(checkpoint) => checkpoint.seq,
                Err(_) => return Ok(None),
            },
            None => EventSeq::MAX,
        };
        let past = LogVisibility::read(self.services.store.as_ref(), session.no, upto).await?;
        let driver = ash_driver::driver(session.runtime);
        let (mut found, mut after) = (None, 0);
        loop {
            let query = EventQuery { after, limit: 100, kinds: vec!["asked"] };
            let events = self.services.store.events(session.no, &query).await?;
            let Some(last) = events.last() else { return Ok(found) };
            after = last.seq;
            for event in events.iter().filter(|event| event.seq <= upto && !past.hides(event)) {
                let Fact::PermissionRequested(asked) = &event.fact else { continue };
                if let Some(plan) = driver.plan(&asked.tool, &asked.input) {
                    found = Some(ProposedPlan { text: plan.to_owned(), at: event.at });
                }
            }
        }
    }
}
