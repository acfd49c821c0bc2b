//! What callers ask for, and when they are answered: some at once, some when the files are safe.

use super::{
    ExecOutput, LockRequest, OptionsChange, SessionActor, capture::CaptureOccasion, closing::SessionClosing,
    rewind::PendingRewind, takeover::GuardedFileSource,
};
use crate::{
    Error, Result,
    pool::Admission,
    state::{CommandRefusal, NextStep, SessionBudget, StateCommand, Turn},
};
use ash_driver::AgentInput;
use ash_model::{
    BudgetLimits, EventSeq, Fact, Receipt, SessionLock, SessionMetadata, SessionRewind, SessionStatus, TurnId,
};
use ash_store::{Checkpoint, SessionRow};
use std::time::Duration;
use tokio::{sync::oneshot, time::Instant};
use uuid::Uuid;

pub(crate) type ReplySender<T> = oneshot::Sender<Result<T>>;

#[expect(clippy::large_enum_variant, reason = "one at a time, looked at and gone")]
pub(crate) enum ActorMessage {
    Command {
        wish: StateCommand,
        passage: Admission,
        reply: ReplySender<CommandReply>,
    },
    /// The turns that are not over, in order.
    Queue {
        reply: ReplySender<Vec<Turn>>,
    },
    Lock {
        wanted: LockRequest,
        reply: ReplySender<SessionLock>,
    },
    /// The holder of lock `number` used it.
    Renew {
        number: u64,
        reply: ReplySender<()>,
    },
    Unlock {
        number: u64,
        reply: ReplySender<()>,
    },
    /// Lock `number` is over, and another client writes.
    ExpireLock {
        number: u64,
        reply: ReplySender<()>,
    },
    Exec {
        command: String,
        timeout: Duration,
        reply: ReplySender<ExecOutput>,
    },
    Files {
        purpose: FileAccessMode,
        reply: ReplySender<GuardedFileSource>,
    },
    /// Whose conversation it takes up, as long as no checkpoint holds its own.
    Inherited {
        reply: ReplySender<Option<Uuid>>,
    },
    /// Answered when the live agent, if there is one, goes on with them.
    Options {
        wanted: OptionsChange,
        reply: ReplySender<()>,
    },
    /// What callers note on it is this from now on.
    SetMetadata {
        metadata: SessionMetadata,
        reply: ReplySender<()>,
    },
    /// Its time is over, or a rule wants it to end: unless somebody is at work with it. The rule has seen its log up to
    /// `seen`, and nobody is to have used it for so long.
    Expire {
        seen: EventSeq,
        unused: Duration,
        reply: ReplySender<CommandReply>,
    },
    /// Somebody else needs its sandbox more. Refused by whoever is at work.
    Evict {
        reply: ReplySender<CommandReply>,
    },
    /// Files were written from outside.
    FilesChanged,
    ForkPoint {
        reply: ReplySender<ForkPoint>,
    },
    /// Another session of the workspace took the files back.
    NoteWorkspaceRewinds {
        reply: ReplySender<()>,
    },
    /// Nobody has used it for long: its files need not be here if the object store has them. Answers whether they went.
    DropLocalFiles {
        reply: ReplySender<bool>,
    },
    Shutdown {
        grace: Duration,
        reply: ReplySender<()>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccessMode {
    Read,
    Write,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct CommandReply {
    pub(crate) receipt: Option<Receipt>,
    /// The turn that a wish concerned, if any.
    pub(crate) turn: Option<TurnId>,
    pub(crate) rewound: Option<Box<SessionRewind>>,
}

/// What a fork is made from.
#[derive(Debug, Clone)]
pub(crate) struct ForkPoint {
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) memory: uuid::Uuid,
    pub(crate) turns_delivered: u64,
    pub(crate) waiting: Vec<TurnId>,
    pub(crate) summary: ash_store::SessionSummary,
}

impl SessionActor {
    pub(super) async fn handle(&mut self, request: ActorMessage) -> Result<()> {
        self.idle_since = Instant::now();
        match request {
            ActorMessage::Command { wish, passage, reply } => match self.locked_out(&wish) {
                Some(refusal) => {
                    reply.send(Err(refusal)).ok();
                    Ok(())
                }
                None => {
                    self.admission.add(passage);
                    self.handle_command(wish, reply).await
                }
            },
            ActorMessage::Queue { reply } => {
                reply.send(Ok(self.state.turns.iter().cloned().collect())).ok();
                Ok(())
            }
            ActorMessage::Lock { wanted, reply } => self.lock(wanted, reply).await,
            ActorMessage::Renew { number, reply } => self.renew_lock(number, reply).await,
            ActorMessage::Unlock { number, reply } => self.unlock(number, reply).await,
            ActorMessage::ExpireLock { number, reply } => self.expire_lock(number, reply).await,
            ActorMessage::Exec { command, timeout, reply } => {
                self.exec(command, timeout, reply).await;
                Ok(())
            }
            ActorMessage::Files { purpose, reply } => {
                self.files(purpose, reply);
                Ok(())
            }
            ActorMessage::Inherited { reply } => {
                reply.send(Ok(self.state.inherited_memory)).ok();
                Ok(())
            }
            ActorMessage::Options { wanted, reply } => {
                self.change_options(wanted, reply);
                Ok(())
            }
            ActorMessage::SetMetadata { metadata, reply } => {
                let noted = self.commit_facts(vec![Fact::Labelled { metadata }]).await;
                self.services.notify_replicator();
                let failed = noted.as_ref().err().map(Error::shared);
                reply.send(failed.map_or(Ok(()), Err)).ok();
                self.tolerate(noted)
            }
            ActorMessage::Expire { seen, unused, reply } if self.is_at_work(seen, unused) => {
                reply.send(Err(CommandRefusal::Busy.into())).ok();
                Ok(())
            }
            ActorMessage::Expire { reply, .. } => self.handle_command(StateCommand::End, reply).await,
            ActorMessage::Evict { reply } => self.evict(reply).await,
            ActorMessage::FilesChanged => {
                self.touch();
                Ok(())
            }
            ActorMessage::ForkPoint { reply } => {
                self.wants_capture |= self.conn.is_some() || self.dirty.is_some();
                self.forking.push(reply);
                Ok(())
            }
            ActorMessage::NoteWorkspaceRewinds { reply } => {
                let heard = self.note_workspace_rewinds().await;
                reply.send(Ok(())).ok();
                self.tolerate(heard)
            }
            ActorMessage::DropLocalFiles { reply } => {
                let gone = self.drop_local_files().await;
                reply.send(gone).ok();
                Ok(())
            }
            ActorMessage::Shutdown { grace, reply } => {
                self.close(SessionClosing::shutdown(Instant::now() + grace, reply));
                Ok(())
            }
        }
    }

    pub(super) async fn handle_command(
        &mut self,
        wish: StateCommand,
        reply: ReplySender<CommandReply>,
    ) -> Result<()> {
        let reply = match &mut self.closing {
            Some(closing) => match closing.join(&wish, reply) {
                Some(reply) => reply,
                None => return Ok(()),
            },
            None => reply,
        };
        if self.closing.as_ref().is_some_and(SessionClosing::is_release)
            && !matches!(wish, StateCommand::Stop | StateCommand::End)
        {
            self.deferred_commands.push((wish, std::mem::take(&mut self.admission), reply));
            return Ok(());
        }
        if let Some(refusal) = self.closing.as_ref().and_then(|closing| closing.refusal(&wish)) {
            reply.send(Err(refusal)).ok();
            return Ok(());
        }
        let again = self.was_accepted(&wish).await?;
        if matches!(wish, StateCommand::Resume | StateCommand::Prompt { .. }) && self.is_tree_broken() {
            self.lose_tree().await?;
        }
        let facts = match self.state.decide(&wish) {
            Ok(facts) => self.without_tree(&wish, facts),
            // Sent again with one key: it may be in its own way.
            Err(CommandRefusal::SessionBusy | CommandRefusal::Budget(_)) if again => Vec::new(),
            Err(refused) => {
                reply.send(self.refuse(&wish, refused).await).ok();
                return Ok(());
            }
        };
        let open = |turn: &TurnId| self.state.turns.iter().any(|known| known.id == *turn);
        let wakes = match &wish {
            // Its answer is there.
            StateCommand::Prompt { turn, .. } => !again || open(turn),
            wish => matches!(wish, StateCommand::Resume),
        };
        if wakes && self.lacks_client_key().await {
            reply.send(Err(Error::ProviderRequired)).ok();
            return Ok(());
        }
        if let Some(model) = self.unpriced(&wish).filter(|_| !again)
            && self.has_model_route().await
        {
            reply.send(Err(Error::Unpriced(model))).ok();
            return Ok(());
        }
        // A message that is answered with an error must not run later.
        if matches!(wish, StateCommand::Prompt { .. })
            && !again
            && self.conn.is_none()
            && let Err(missing) = self.can_start().await
        {
            reply.send(Err(missing)).ok();
            return Ok(());
        }
        if wakes && self.lacks_permit(&facts) {
            reply.send(Err(Error::Placeless)).ok();
            return Ok(());
        }
        match wish {
            // Sent twice with one key: the first one counts. If it was cut, this is the wish to go on.
            StateCommand::Prompt { turn, .. } if again => {
                let open = open(&turn);
                let back = self.state.decide(&StateCommand::Resume).unwrap_or_default();
                if open && self.lacks_permit(&back) {
                    reply.send(Err(Error::Placeless)).ok();
                    return Ok(());
                }
                if open && !back.is_empty() {
                    self.commit_facts(back).await?;
                }
                reply.send(Ok(CommandReply { turn: Some(turn), ..CommandReply::default() })).ok();
                Ok(())
            }
            StateCommand::Prompt { turn, .. } => match self.admit_to_queue(&wish) {
                Ok(()) => {
                    let accepted = self.queue_message(turn, &wish, facts, reply).await;
                    // Also if it could not be written.
                    self.settle_queue();
                    accepted
                }
                Err(reached) => {
                    reply.send(Err(reached)).ok();
                    Ok(())
                }
            },
            StateCommand::Withdraw { .. } | StateCommand::Reorder { .. } => {
                let noted = if facts.is_empty() { Ok(()) } else { self.commit_facts(facts).await };
                let failed = noted.as_ref().err().map(Error::shared);
                reply.send(failed.map_or_else(|| Ok(CommandReply::default()), Err)).ok();
                self.tolerate(noted)
            }
            StateCommand::Interrupt => self.interrupt(facts, reply).await,
            StateCommand::Answer { .. } => self.answer(facts, reply).await,
            StateCommand::Pause => {
                // Processes that a turn left behind may have written since.
                self.wants_capture = true;
                self.pausing.push(reply);
                Ok(())
            }
            StateCommand::Resume => self.resume(facts, reply).await,
            StateCommand::Rewind { .. } => {
                self.rewinding.push_back(PendingRewind::new(wish, reply));
                Ok(())
            }
            StateCommand::Stop | StateCommand::End if facts.is_empty() => {
                reply.send(Ok(CommandReply::default())).ok();
                Ok(())
            }
            StateCommand::Stop | StateCommand::Release { .. } | StateCommand::End => {
                self.close(SessionClosing::wish(wish, reply));
                Ok(())
            }
        }
    }

    /// Whether it is to come back by this, and there is neither a sandbox nor a place for one: whoever asked took it for one
    /// that had a sandbox, which is gone since. Asked before anything is written.
    fn lacks_permit(&self, facts: &[Fact]) -> bool {
        let joins = self.is_shared() && self.workspace.is_inhabited();
        if self.admission.permit.is_some() || self.conn.is_some() || joins {
            return false;
        }
        let mut state = self.state.clone();
        (state.last_seq + 1..).zip(facts).for_each(|(seq, fact)| state.apply(seq, fact));
        self.state.status != SessionStatus::Starting && state.status == SessionStatus::Starting
    }

    /// Whether everything is there that a start needs: key, program, engine, image.
    async fn can_start(&self) -> Result<()> {
        let SessionRow { tenant, agent, version, .. } = &self.session;
        let found = self.services.store.version(tenant, agent, *version).await?;
        let version = found.ok_or_else(|| Error::NoAgent(agent.to_string()))?;
        self.services.start_needs(&self.session, &version).await?;
        match self.workspace.is_inhabited() {
            true => Ok(()),
            false => Ok(self.services.backend.can_launch(version.image.as_ref()).await?),
        }
    }

    /// A message: noted, told at once if nothing is in its way, and answered in between.
    async fn queue_message(
        &mut self,
        turn: TurnId,
        wish: &StateCommand,
        facts: Vec<Fact>,
        reply: ReplySender<CommandReply>,
    ) -> Result<()> {
        let told = match self.immediate_delivery(&facts) {
            Some((fact, input, say)) => Some((self.with_calls(fact).await?, input, say)),
            None => None,
        };
        let beside = facts.iter().find_map(|fact| interrupting(fact).or_else(|| steering(fact, wish)));
        let begun = told.iter().map(|(fact, ..)| fact.clone());
        let committed = self.commit_facts(facts.into_iter().chain(begun).collect()).await;
        let answer =
            committed.as_ref().map(|()| CommandReply { turn: Some(turn), ..CommandReply::default() });
        reply.send(answer.map_err(Error::shared)).ok();
        if let (Ok(()), Some((_, input, say))) = (&committed, told) {
            self.captured = Instant::now();
            self.tell(input, &say).await;
        }
        if let (Ok(()), Some((input, say))) = (&committed, beside) {
            self.tell(input, &say).await;
            if matches!(say, AgentInput::Interrupt { .. }) {
                self.set_interrupt_deadline();
            }
        }
        self.tolerate(committed)
    }

    /// A message that was accepted before.
    async fn was_accepted(&self, wish: &StateCommand) -> Result<bool> {
        match wish {
            StateCommand::Prompt { turn, .. } => {
                Ok(self.services.store.turn(self.session.no, *turn).await?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// A message whose turn has a limit in dollars, and a model that has no price.
    fn unpriced(&self, wish: &StateCommand) -> Option<String> {
        let StateCommand::Prompt { ask, .. } = wish else { return None };
        let SessionBudget { session, turn } = self.state.budget;
        let limited = session.max_budget_usd.or(BudgetLimits::of_turn(ask, turn).max_budget_usd).is_some();
        // What an agent calls a model by another name than its service does is known when it has answered.
        let model = self.driver.model(&self.session.options).or(self.state.meter.model());
        let unpriced = self.services.settings.unpriced(model);
        unpriced.filter(|_| limited).map(str::to_owned)
    }

    /// Whether there is a way to a model at all. Who answers offline costs nothing, whatever the model is called.
    async fn has_model_route(&self) -> bool {
        !matches!(self.egress_policy().await, Ok(None))
    }

    /// A message that nothing is in the way of is told at once: that it was accepted and that it was told share one
    /// commit.
    fn immediate_delivery(&self, facts: &[Fact]) -> Option<(Fact, u64, AgentInput)> {
        let waiting = !self.writing.is_empty()
            || !self.rewinding.is_empty()
            || !self.pausing.is_empty()
            || !self.forking.is_empty();
        let busy = self.effect.is_some() || self.departing_sandbox.is_some() || self.closing.is_some();
        let busy = busy || self.has_lost_tree() || self.is_tree_broken();
        if waiting || busy || self.conn.is_none() || self.tracker.has_self_started() {
            return None;
        }
        let mut state = self.state.clone();
        (state.last_seq + 1..).zip(facts).for_each(|(seq, fact)| state.apply(seq, fact));
        match state.next_step() {
            NextStep::Tell { fact, input, say } => Some((fact, input, say)),
            NextStep::Wait
            | NextStep::Wake
            | NextStep::Commit { .. }
            | NextStep::Save { .. }
            | NextStep::Sleep => None,
        }
    }

    async fn interrupt(&mut self, facts: Vec<Fact>, reply: ReplySender<CommandReply>) -> Result<()> {
        let turn = self.state.current().map(|turn| turn.id);
        let told = facts.iter().find_map(interrupting);
        if !facts.is_empty() {
            self.commit_facts(facts).await?;
        }
        if let Some((input, say)) = told {
            self.tell(input, &say).await;
        }
        self.set_interrupt_deadline();
        reply.send(Ok(CommandReply { turn, ..CommandReply::default() })).ok();
        Ok(())
    }

    async fn resume(&mut self, facts: Vec<Fact>, reply: ReplySender<CommandReply>) -> Result<()> {
        let warm = facts.iter().find_map(|fact| match fact {
            Fact::Resumed { receipt, .. } => Some(receipt.clone()),
            _ => None,
        });
        let began = Instant::now();
        if !facts.is_empty() {
            self.commit_facts(facts).await?;
        }
        match warm {
            Some(receipt) => {
                self.services.watch.resumed(&receipt, began.elapsed());
                self.log_resume(&receipt);
                reply.send(Ok(CommandReply { receipt: Some(receipt), ..CommandReply::default() })).ok();
            }
            None if self.state.status == SessionStatus::Starting
                || self.state.next_step() == NextStep::Wake =>
            {
                self.resuming.push(reply)
            }
            None => {
                reply.send(Ok(CommandReply::default())).ok();
            }
        }
        Ok(())
    }

    pub(super) fn log_resume(&self, receipt: &Receipt) {
        tracing::info!(session = %self.session.id, receipt = %serde_json::to_string(receipt).unwrap_or_default(), "resumed");
    }

    /// Pauses and forks want the files safe first. True: something was done, look again.
    pub(super) async fn drive_waiting(&mut self) -> Result<bool> {
        if self.pausing.is_empty() && self.forking.is_empty() {
            return Ok(false);
        }
        // A turn that runs saves by itself when it is over.
        if self.wants_capture && !self.is_ephemeral() && self.state.is_at_rest() && self.tree().is_some() {
            self.start_save(CaptureOccasion::BetweenTurns);
            return Ok(true);
        }
        self.answer_forkers().await?;
        if !self.pausing.is_empty() {
            self.pause().await?;
        }
        Ok(true)
    }

    async fn pause(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.pausing);
        let facts = match self.state.decide(&StateCommand::Pause) {
            Ok(facts) => facts,
            Err(refused) => {
                waiting.into_iter().for_each(|reply| drop(reply.send(Err(refused.into()))));
                return Ok(());
            }
        };
        let noted = self.commit_facts(facts).await;
        for reply in waiting {
            let failed = noted.as_ref().err().map(Error::shared);
            reply.send(failed.map_or_else(|| Ok(CommandReply::default()), Err)).ok();
        }
        self.tolerate(noted)
    }

    async fn answer_forkers(&mut self) -> Result<()> {
        if self.forking.is_empty() {
            return Ok(());
        }
        let checkpoint = match self.state.last_full_checkpoint {
            Some(number) => self.services.store.checkpoint(self.lease.workspace, number).await?,
            None => None,
        };
        let memory = self.state.inherited_memory.unwrap_or(self.session.native_id);
        let mut card = self.state.summary();
        // Turns that are not over are not shared.
        card.turns -= card.open_turns;
        let shared = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.seq);
        let waiting = self.state.turns.iter().filter(|turn| turn.seq <= shared).map(|turn| turn.id).collect();
        let point = ForkPoint {
            checkpoint,
            memory,
            turns_delivered: self.state.turns_delivered,
            waiting,
            summary: card,
        };
        for reply in self.forking.drain(..) {
            reply.send(Ok(point.clone())).ok();
        }
        Ok(())
    }

    pub(super) fn set_interrupt_deadline(&mut self) {
        if self.interrupt_deadline.is_none() && self.state.was_asked_to_stop() {
            self.interrupt_deadline = Some(Instant::now() + self.services.settings.interrupt_grace);
        }
    }

    /// An agent that does not stop its turn when asked is ended; the turn is over either way.
    pub(super) async fn end_unresponsive_agent(&mut self) {
        if self.interrupt_deadline.is_some_and(|at| at <= Instant::now()) {
            self.interrupt_deadline = None;
            if let Some(hands) = &self.conn {
                hands.remote.signal(hands.process, 9).await.ok();
            }
        }
    }
}

/// What the agent is told by it.
fn interrupting(fact: &Fact) -> Option<(u64, AgentInput)> {
    match fact {
        Fact::Interrupting { turn, input } => Some((*input, AgentInput::Interrupt { turn: *turn })),
        _ => None,
    }
}

/// What the agent is told of it in the middle of a turn.
fn steering(fact: &Fact, wish: &StateCommand) -> Option<(u64, AgentInput)> {
    match (fact, wish) {
        (Fact::Steering { turn, into, input }, StateCommand::Prompt { content, .. }) => {
            Some((*input, AgentInput::Steer { turn: *turn, into: *into, content: content.clone() }))
        }
        _ => None,
    }
}
