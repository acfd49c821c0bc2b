//! A session's checkpoints as its history: the state at each checkpoint, and going back to one.

use super::Sessions;
use crate::{
    Error, LogVisibility, Result,
    files::{FileSource, WorkspaceFiles},
    machine::{CommandRefusal, LogState, StateCommand},
    mailbox::{ActorMessage, ForkPoint},
    rewind::with_files,
};
use ash_model::{ConversationPoint, Event, EventSeq, Fact, SessionRewind, SessionRowId, SessionStatus};
use ash_snapshot::TreeId;
use ash_store::{Checkpoint, EventQuery, SessionRow, SessionSummary, WorkspaceSession};

impl Sessions {
    /// The newest first.
    pub async fn checkpoints(
        &self,
        session: &SessionRow,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Checkpoint>> {
        Ok(self.services.store.checkpoints(session.workspace, before, limit).await?)
    }

    pub async fn checkpoint(&self, session: &SessionRow, number: u64) -> Result<Checkpoint> {
        let found = self.services.store.checkpoint(session.workspace, number).await?;
        found.ok_or(Error::NoCheckpoint)
    }

    /// A checkpoint that the session made itself. In a shared workspace, other checkpoints belong to other
    /// conversations.
    pub(crate) async fn own_checkpoint(&self, session: &SessionRow, number: u64) -> Result<Checkpoint> {
        let found = self.checkpoint(session, number).await?;
        if session.slug.is_some() {
            let query = EventQuery { after: 0, limit: u32::MAX, kinds: vec!["saved"] };
            let saved = self.services.store.events(session.no, &query).await?;
            let own = |event: &Event| matches!(&event.fact, Fact::Saved(saved) if saved.number == number);
            if !saved.iter().any(own) {
                return Err(Error::AnothersCheckpoint(number));
            }
        }
        Ok(found)
    }

    /// The number of a checkpoint that holds the workspace as it is now; 0 if it still equals the agent's own files.
    /// Refused while a turn runs, because a later comparison needs a checkpoint of a workspace that does not change.
    pub async fn capture(&self, session: &SessionRow) -> Result<u64> {
        let point: ForkPoint = self.ask(session.no, |reply| ActorMessage::ForkPoint { reply }).await?;
        if point.summary.open_turns > 0 {
            return Err(CommandRefusal::Busy.into());
        }
        Ok(point.checkpoint.map_or(0, |checkpoint| checkpoint.number))
    }

    /// A checkpoint's tree. Number 0 is the agent's own files.
    pub async fn tree_at(&self, session: &SessionRow, number: u64) -> Result<TreeId> {
        let tree = if number == 0 {
            let store = &self.services.store;
            let version = store.version(&session.tenant, &session.agent, session.version).await?;
            version.ok_or(Error::NoCheckpoint)?.tree
        } else {
            with_files(self.checkpoint(session, number).await?)?.tree
        };
        TreeId::parse(&tree).map_err(|_| Error::NoWorkspace)
    }

    /// A workspace's files at a checkpoint.
    pub async fn files_at(&self, session: &SessionRow, number: u64) -> Result<WorkspaceFiles> {
        let tree = self.tree_at(session, number).await?;
        Ok(WorkspaceFiles {
            source: FileSource::Checkpoint { tree },
            repo: self.services.repo(&session.tenant)?,
            _pen: None,
        })
    }

    /// Which events of the session's log are not part of the conversation any more.
    pub async fn log_visibility(&self, session: &SessionRow) -> Result<LogVisibility> {
        LogVisibility::read(self.services.store.as_ref(), session.no, EventSeq::MAX).await
    }

    /// The last event of a checkpoint, and which events up to it were not part of the conversation then.
    pub async fn visibility_at_checkpoint(
        &self,
        session: &SessionRow,
        number: u64,
    ) -> Result<(EventSeq, LogVisibility)> {
        let checkpoint = self.own_checkpoint(session, number).await?;
        let then = self.conversation_at(session, checkpoint.seq).await?;
        let past = LogVisibility::read(self.services.store.as_ref(), session.no, checkpoint.seq).await?;
        Ok((checkpoint.seq, past.without_waiting(then.waiting)))
    }

    /// Takes conversation, agent and files to a checkpoint together, back or forward. In a shared workspace the files
    /// stay as they are unless the caller asks for them, because other sessions work on them.
    pub async fn rewind(
        &self,
        session: &SessionRow,
        number: u64,
        files: Option<bool>,
    ) -> Result<(SessionRow, SessionRewind)> {
        self.open_for_work()?;
        let checkpoint = with_files(self.own_checkpoint(session, number).await?)?;
        let then = self.conversation_at(session, checkpoint.seq).await?;
        let files = session.slug.is_some() && files == Some(true);
        let others = if files { self.release_other_sessions(session).await? } else { Vec::new() };
        let command = StateCommand::Rewind { to: number, seq: checkpoint.seq, then, files };
        let answer = self.command(session.no, command).await?;
        for no in others {
            // A session that misses this message learns of the rewind when its actor starts again.
            self.ask(no, |reply| ActorMessage::NoteWorkspaceRewinds { reply }).await.ok();
        }
        Ok((self.get(session.no).await?, *answer.rewound.ok_or(Error::Gone)?))
    }

    /// All other sessions of a workspace. Those at rest leave its sandbox; a locked or running one is an error.
    async fn release_other_sessions(&self, session: &SessionRow) -> Result<Vec<SessionRowId>> {
        let mut others = Vec::new();
        for WorkspaceSession { no, status, .. } in
            self.services.store.workspace_sessions(session.workspace).await?
        {
            if no == session.no || status == SessionStatus::Ended {
                continue;
            }
            let other = self.get(no).await?;
            if other.summary.lock.is_some_and(|lock| lock.is_held(self.services.clock())) {
                return Err(Error::WorkspaceBusy(format!("Session {} is locked", other.id)));
            }
            others.push(no);
        }
        for no in &others {
            match self.release(*no, false).await {
                Err(Error::Refused(CommandRefusal::Busy)) => {
                    let busy = self.get(*no).await?;
                    return Err(Error::WorkspaceBusy(format!("Session {} is at work", busy.id)));
                }
                other => other?,
            }
        }
        Ok(others)
    }

    pub(crate) async fn fork_point_at(&self, session: &SessionRow, number: u64) -> Result<ForkPoint> {
        let checkpoint = with_files(self.own_checkpoint(session, number).await?)?;
        let ConversationPoint { turns_delivered: told, turns, title, last_text, memory, waiting, .. } =
            self.conversation_at(session, checkpoint.seq).await?;
        let memory = memory.unwrap_or(session.native_id);
        let card = SessionSummary { title, last_text, turns, ..session.summary.clone() };
        Ok(ForkPoint { checkpoint: Some(checkpoint), memory, turns_delivered: told, waiting, summary: card })
    }

    /// The session's conversation after event `seq`: a fold over its events up to there, including those that it shares
    /// with the sessions it was forked from.
    pub(crate) async fn conversation_at(
        &self,
        session: &SessionRow,
        seq: EventSeq,
    ) -> Result<ConversationPoint> {
        let mut line = vec![(session.clone(), seq)];
        while let Some((child, seq)) = line.last()
            && let Some(base) = child.base
        {
            let seq = (*seq).min(base.seq);
            line.push((self.get(base.parent).await?, seq));
        }
        let mut then = ConversationPoint::default();
        let mut parent = None;
        for (session, seq) in line.into_iter().rev() {
            let shared = session.base.map_or(0, |base| base.seq);
            then = if seq > shared {
                let mut facts = self.services.store.facts(session.no).await?;
                facts.retain(|event| event.seq <= seq);
                let mut state = LogState::new(shared);
                state.inherit(&then);
                state.replay(&facts).conversation_point()
            } else {
                // From before this session was created: the conversation still has the parent's id.
                ConversationPoint { memory: then.memory.or(parent), ..then }
            };
            parent = Some(session.native_id);
        }
        Ok(then)
    }
}
