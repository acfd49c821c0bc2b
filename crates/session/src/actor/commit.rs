//! The log first, then the agent: facts are stored before the agent or a client learns of them.

use super::SessionActor;
use crate::{
    Error, Result,
    machine::{PreparedCommit, StateCommand, TurnPhase},
    queued_messages::NewQueuedMessage,
};
use ash_driver::AgentInput;
use ash_model::{Fact, JournalPosition, MessageDelta, SessionStatus, UsageIncrement};
use ash_store::{Checkpoint, LogAppend};

impl SessionActor {
    /// Sends an input to the agent. Its fact is stored already: if the input is lost, the next actor sends it again.
    pub(super) async fn tell(&mut self, input: u64, say: &AgentInput) {
        if let AgentInput::Prompt { turn, .. } = say {
            self.link.tracker.expect(*turn);
        }
        let Some(conn) = &self.link.conn else { return };
        let with_tools = self.with_client_tools(say);
        let say = with_tools.as_ref().unwrap_or(say);
        // A dead shim shows in its records, so the error needs no handling here.
        conn.remote.input(conn.process, input, self.ctx.driver.tell(say)).await.ok();
    }

    /// Puts facts into the log, all or none, and notifies every listener.
    pub(super) async fn commit_facts(&mut self, facts: Vec<Fact>) -> Result<()> {
        match facts.is_empty() {
            true => Ok(()),
            false => self.commit(facts, Vec::new(), None, None).await,
        }
    }

    pub(super) async fn commit(
        &mut self,
        facts: Vec<Fact>,
        deltas: Vec<MessageDelta>,
        position: Option<JournalPosition>,
        checkpoint: Option<Checkpoint>,
    ) -> Result<()> {
        let at = self.ctx.services.clock();
        let PreparedCommit { events, mut state, finished_turns } = self.machine.log.prepare(facts, at);
        let noted = !events.is_empty();
        let used: Vec<UsageIncrement> = events.iter().filter_map(|event| used(&event.fact)).collect();
        let resting = checkpoint.is_some() || state.status != self.machine.log.status;
        let append = LogAppend {
            session: self.ctx.session.no,
            first_seq: self.machine.log.last_seq + 1,
            events,
            deltas,
            turns: state.take_changed_turns(),
            summary: state.summary(),
            checkpoint,
            journal: position,
            at,
        };
        let requeued = !append.turns.is_empty();
        self.ctx.services.store.append(&self.ctx.lease, append).await?;
        let before = std::mem::replace(&mut self.machine.log, state).status;
        if requeued {
            self.settle_queue();
        }
        self.forget_key(before).await;
        self.allow(position).await;
        if noted {
            self.link.deltas = 0;
        }
        if resting {
            self.ctx.services.notify_replicator();
        }
        used.iter().for_each(|used| self.ctx.services.watch.used(used));
        (0..finished_turns).for_each(|_| self.ctx.services.watch.turn_over());
        self.ctx.services.bells.ring(self.ctx.session.no);
        Ok(())
    }

    /// Makes the messages that wait in this session count towards the tenant's quotas.
    pub(super) fn settle_queue(&self) {
        let waiting = self.machine.log.turns.iter().filter(|turn| turn.phase == TurnPhase::Queued);
        let waiting = waiting.map(|turn| (turn.id, &turn.content, &turn.options));
        self.ctx.services.queued.settle(&self.ctx.session.tenant, self.ctx.session.no, waiting);
    }

    /// Whether the quotas of the session and its tenant have room for a message.
    pub(super) fn admit_to_queue(&self, command: &StateCommand) -> Result<()> {
        let StateCommand::Prompt { turn, content, ask, .. } = command else { return Ok(()) };
        let (tenant, session) = (&self.ctx.session.tenant, self.ctx.session.no);
        let new = NewQueuedMessage { tenant, session, turn: *turn, content, ask };
        Ok(self.ctx.services.queued.admit(&self.ctx.services.settings.quotas, &new)?)
    }

    /// A client key is kept as long as the session is active, or may go on by itself.
    async fn forget_key(&mut self, before: SessionStatus) {
        let rests = matches!(
            self.machine.log.status,
            SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Ended
        );
        if self.ctx.session.options.own_provider.is_none() || !rests || before == self.machine.log.status {
            return;
        }
        self.ctx.services.client_credentials.forget(self.ctx.session.no);
        if let Some(conn) = &self.link.conn
            && self.ctx.session.options.has_client_key()
        {
            conn.remote.set_egress(None).await.ok();
        }
    }

    /// Whether a command that wakes the session needs a client key that the server does not have. If the server has it,
    /// an existing sandbox gets it.
    pub(super) async fn lacks_client_key(&self) -> bool {
        if !self.ctx.session.options.has_client_key() {
            return false;
        }
        match (self.ctx.services.client_credentials.get(self.ctx.session.no), &self.link.conn) {
            // The running agent uses another provider; the next agent gets the key when it starts.
            (Some(_), Some(_)) if self.machine.log.agent_options_outdated => false,
            (Some(way), Some(conn)) => conn.remote.set_egress(Some(way)).await.is_err(),
            (Some(_), None) => false,
            // The shim still has the key from a server that died.
            (None, Some(_)) => self.machine.log.status != SessionStatus::Active,
            (None, None) => true,
        }
    }

    /// Tells the shim what is left of the budgets, if that has changed: the shim enforces them while no server runs.
    /// `heard`: the journal is counted up to here, if that is more than before.
    pub(super) async fn allow(&mut self, heard: Option<JournalPosition>) {
        let Some(conn) = &mut self.link.conn else { return };
        let left = self.machine.log.remaining_budget();
        if conn.allowed == Some(left) {
            return;
        }
        let heard = heard.filter(|heard| heard.incarnation == conn.incarnation);
        let position = heard.map_or(conn.position, |heard| heard.position.max(conn.position));
        let allowance = left.allowance(&self.ctx.services.settings.prices, position);
        if conn.remote.set_allowance(conn.process, Some(allowance)).await.is_ok() {
            conn.allowed = Some(left);
        }
    }

    /// A full disk is an error for the caller and does not end the actor; a lost lease does.
    pub(super) fn tolerate(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Store(ash_store::Error::Full | ash_store::Error::Removed(_))) => Ok(()),
            other => other,
        }
    }
}

fn used(fact: &Fact) -> Option<UsageIncrement> {
    match fact {
        Fact::Used(used) => Some(used.clone()),
        _ => None,
    }
}
