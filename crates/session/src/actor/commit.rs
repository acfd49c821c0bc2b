//! The log first, then the agent: facts are stored before anybody hears of them.

use super::SessionActor;
use crate::{
    Error, Result,
    queued_messages::NewQueuedMessage,
    state::{SessionState, StateCommand, Turn, TurnPhase},
};
use ash_driver::AgentInput;
use ash_model::{Fact, JournalPosition, MessageDelta, NewEvent, SessionStatus, TurnId, UsageIncrement};
use ash_store::{Checkpoint, LogAppend};

impl SessionActor {
    /// Says it to the agent. The fact is stored already: if this is lost, the next one says it.
    pub(super) async fn tell(&mut self, input: u64, say: &AgentInput) {
        if let AgentInput::Prompt { turn, .. } = say {
            self.tracker.expect(*turn);
        }
        let Some(hands) = &self.conn else { return };
        // A dead shim shows in its records; nothing more to do here.
        hands.remote.input(hands.process, input, self.driver.tell(say)).await.ok();
    }

    /// Puts facts into the log, all or none, and tells whoever listens.
    pub(super) async fn commit_facts(&mut self, facts: Vec<Fact>) -> Result<()> {
        self.commit(facts, Vec::new(), None, None).await
    }

    pub(super) async fn commit(
        &mut self,
        facts: Vec<Fact>,
        deltas: Vec<MessageDelta>,
        position: Option<JournalPosition>,
        checkpoint: Option<Checkpoint>,
    ) -> Result<()> {
        let at = self.services.clock();
        let first = self.state.last_seq + 1;
        let mut state = self.state.clone();
        let mut notes = Vec::with_capacity(facts.len());
        for fact in facts {
            for fact in state.with_joined(fact) {
                let turn = turn_of(&fact).or_else(|| said_in(&state, &fact));
                state.apply(first + notes.len() as u64, &fact);
                notes.push(NewEvent { turn, at, fact });
            }
        }
        let ended = notes.iter().filter(|note| matches!(note.fact, Fact::Finished { .. })).count();
        if ended > 0 && state.turns.is_empty() && state.status == SessionStatus::Active {
            let fact = Fact::Idle { ms: 0, left_ms: None, evicted: false };
            state.apply(first + notes.len() as u64, &fact);
            notes.push(NewEvent { turn: None, at, fact });
        }
        // The time of a lock begins when the turn that its holder sent is over.
        let finished = |turn: &Turn| {
            let ends =
                |note: &NewEvent| matches!(note.fact, Fact::Finished { turn: over, .. } if over == turn.id);
            turn.lock.filter(|_| notes.iter().any(ends))
        };
        let locks: Vec<u64> = self.state.turns.iter().filter_map(finished).collect();
        let renewal =
            state.lock().filter(|lock| state.status != SessionStatus::Ended && locks.contains(&lock.number));
        if let Some(fact) = renewal.and_then(|lock| super::lock::renewal(lock, at)) {
            state.apply(first + notes.len() as u64, &fact);
            notes.push(NewEvent { turn: None, at, fact });
        }
        let noted = !notes.is_empty();
        let used: Vec<UsageIncrement> = notes.iter().filter_map(|note| used(&note.fact)).collect();
        let resting = checkpoint.is_some() || state.status != self.state.status;
        let append = LogAppend {
            session: self.session.no,
            first_seq: first,
            events: notes,
            deltas,
            turns: state.take_changed_turns(),
            summary: state.summary(),
            checkpoint,
            journal: position,
            at,
        };
        let requeued = !append.turns.is_empty();
        self.services.store.append(&self.lease, append).await?;
        let before = std::mem::replace(&mut self.state, state).status;
        if requeued {
            self.settle_queue();
        }
        self.forget_key(before).await;
        self.allow(position).await;
        if noted {
            self.deltas = 0;
        }
        if resting {
            self.services.notify_replicator();
        }
        used.iter().for_each(|used| self.services.watch.used(used));
        (0..ended).for_each(|_| self.services.watch.turn_over());
        self.services.bells.ring(self.session.no);
        Ok(())
    }

    /// What waits here now is what counts towards the tenant's quotas.
    pub(super) fn settle_queue(&self) {
        let waiting = self.state.turns.iter().filter(|turn| turn.phase == TurnPhase::Queued);
        let waiting = waiting.map(|turn| (turn.id, &turn.content, &turn.options));
        self.services.queued.settle(&self.session.tenant, self.session.no, waiting);
    }

    /// Whether the quotas of the session and its tenant have room for a message.
    pub(super) fn admit_to_queue(&self, wish: &StateCommand) -> Result<()> {
        let StateCommand::Prompt { turn, content, ask, .. } = wish else { return Ok(()) };
        let (tenant, session) = (&self.session.tenant, self.session.no);
        let new = NewQueuedMessage { tenant, session, turn: *turn, content, ask };
        Ok(self.services.queued.admit(&self.services.settings.quotas, &new)?)
    }

    /// A key that a client brought is kept as long as the session is active, or may go on by itself.
    async fn forget_key(&mut self, before: SessionStatus) {
        let rests = matches!(
            self.state.status,
            SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Ended
        );
        if self.session.options.own_provider.is_none() || !rests || before == self.state.status {
            return;
        }
        self.services.client_credentials.forget(self.session.no);
        if let Some(hands) = &self.conn {
            hands.remote.set_egress(None).await.ok();
        }
    }

    /// Whether a wish that wakes the session needs a key that nobody has. With one, a sandbox that is there gets it.
    pub(super) async fn lacks_client_key(&self) -> bool {
        if self.session.options.own_provider.is_none() {
            return false;
        }
        match (self.services.client_credentials.get(self.session.no), &self.conn) {
            // The agent that runs talks to somebody else; the next one is given it when it starts.
            (Some(_), Some(_)) if self.state.agent_options_outdated => false,
            (Some(way), Some(hands)) => hands.remote.set_egress(Some(way)).await.is_err(),
            (Some(_), None) => false,
            // Its shim has it, from a server that died.
            (None, Some(_)) => self.state.status != SessionStatus::Active,
            (None, None) => true,
        }
    }

    /// Tells the shim what is left of the budgets, if that has changed: it holds to them while no server lives.
    /// `heard`: so much of the journal is counted, if it is more than before.
    pub(super) async fn allow(&mut self, heard: Option<JournalPosition>) {
        let Some(hands) = &mut self.conn else { return };
        let left = self.state.remaining_budget();
        if hands.allowed == Some(left) {
            return;
        }
        let heard = heard.filter(|heard| heard.incarnation == hands.incarnation);
        let position = heard.map_or(hands.position, |heard| heard.position.max(hands.position));
        let allowance = left.allowance(&self.services.settings.prices, position);
        if hands.remote.set_allowance(hands.process, Some(allowance)).await.is_ok() {
            hands.allowed = Some(left);
        }
    }

    /// A full disk is the caller's to know, not the end of us; a lost lease is.
    pub(super) fn tolerate(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Store(ash_store::Error::Full | ash_store::Error::Removed(_))) => Ok(()),
            other => other,
        }
    }
}

fn turn_of(fact: &Fact) -> Option<TurnId> {
    match fact {
        Fact::Queued { turn, .. }
        | Fact::SelfStarted { turn }
        | Fact::Steering { turn, .. }
        | Fact::Steered { turn, .. }
        | Fact::Started { turn, .. }
        | Fact::Continued { turn, .. }
        | Fact::Interrupting { turn, .. }
        | Fact::Rested { turn, .. }
        | Fact::Finished { turn, .. }
        | Fact::Cut { turn, .. } => Some(*turn),
        Fact::Saved(saved) => saved.turn,
        Fact::PermissionRequested(asked) => asked.turn,
        Fact::Answered { turn, .. } => *turn,
        Fact::SaveFailed { turn, .. } => *turn,
        Fact::Used(used) => used.turn,
        Fact::BudgetReached(reached) => reached.turn,
        Fact::Created { .. }
        | Fact::Forked { .. }
        | Fact::Said { .. }
        | Fact::Setting { .. }
        | Fact::Awake { .. }
        | Fact::Asleep { .. }
        | Fact::Resuming
        | Fact::Resumed { .. }
        | Fact::ResumeFailed { .. }
        | Fact::Paused
        | Fact::Stopped
        | Fact::Failed { .. }
        | Fact::Rewound(_)
        | Fact::WorkspaceRewound(_)
        | Fact::Idle { .. }
        | Fact::Configured { .. }
        | Fact::Labelled { .. }
        | Fact::Requeued { .. }
        | Fact::Locked { .. }
        | Fact::Unlocked { .. }
        | Fact::Adopted(_)
        | Fact::Missing
        | Fact::Ended => None,
    }
}

fn used(fact: &Fact) -> Option<UsageIncrement> {
    match fact {
        Fact::Used(used) => Some(used.clone()),
        _ => None,
    }
}

fn said_in(state: &SessionState, fact: &Fact) -> Option<TurnId> {
    matches!(fact, Fact::Said { .. }).then(|| state.current().map(|turn| turn.id)).flatten()
}
