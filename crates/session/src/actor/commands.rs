//! Commands of callers: admitted, decided, checked against what the log does not say, and carried out.

use super::SessionActor;
use crate::{
    Error, Result,
    machine::{Admittance, ClosingRefusal, CommandRefusal, Reception, SessionBudget, StateCommand, WaiterId},
    mailbox::{ActorMessage, CommandReply, ForkPoint},
};
use ash_driver::AgentInput;
use ash_model::{BudgetLimits, Fact, Receipt, TurnId};
use ash_store::SessionRow;
use std::time::Instant;

impl SessionActor {
    pub(super) async fn handle(&mut self, message: ActorMessage) -> Result<()> {
        self.machine.runtime.last_request = Instant::now();
        match message {
            ActorMessage::Command { command, admission, reply } => {
                let locked_out = self.machine.log.locked_out(&command, self.ctx.services.clock());
                if let Some(refusal) = locked_out {
                    reply.send(Err(refusal.into())).ok();
                    return Ok(());
                }
                self.admission.add(admission);
                let waiter = self.waiters.add_command(reply);
                self.handle_command(command, waiter).await
            }
            ActorMessage::Queue { reply } => {
                reply.send(Ok(self.machine.log.turns.iter().cloned().collect())).ok();
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
                reply.send(Ok(self.machine.log.inherited_memory)).ok();
                Ok(())
            }
            ActorMessage::Options { wanted, reply } => {
                self.change_options(wanted, reply);
                Ok(())
            }
            ActorMessage::SetMetadata { metadata, reply } => {
                let noted = self.commit_facts(vec![Fact::Labelled { metadata }]).await;
                self.ctx.services.notify_replicator();
                let failed = noted.as_ref().err().map(Error::shared);
                reply.send(failed.map_or(Ok(()), Err)).ok();
                self.tolerate(noted)
            }
            ActorMessage::Expire { seen, unused, reply } => {
                if self.machine.is_at_work(seen, unused, self.now()) {
                    reply.send(Err(CommandRefusal::Busy.into())).ok();
                    return Ok(());
                }
                let waiter = self.waiters.add_command(reply);
                self.handle_command(StateCommand::End, waiter).await
            }
            ActorMessage::Evict { cost, reply } => self.evict(cost, reply).await,
            ActorMessage::FilesChanged => {
                self.touch();
                Ok(())
            }
            ActorMessage::ForkPoint { reply } => {
                let waiter = self.waiters.add_fork(reply);
                self.machine.receive_fork(waiter);
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
                self.shut_down(grace, reply);
                Ok(())
            }
        }
    }

    /// Admits a command, decides it, checks it against what the log does not say, and carries it out.
    pub(super) async fn handle_command(&mut self, command: StateCommand, waiter: WaiterId) -> Result<()> {
        match self.machine.admit(&command, waiter) {
            Admittance::Open => {}
            Admittance::Joined => return Ok(()),
            Admittance::Deferred => {
                let admission = std::mem::take(&mut self.admission);
                self.waiters.keep_admission(waiter, admission);
                return Ok(());
            }
            Admittance::Refused(refusal) => {
                let error = match refusal {
                    ClosingRefusal::ServerStops => Error::Stopping,
                    ClosingRefusal::Status(status) => CommandRefusal::WrongStatus(status).into(),
                };
                self.waiters.answer(waiter, Err(error));
                return Ok(());
            }
        }
        let again = self.was_accepted(&command).await?;
        if matches!(command, StateCommand::Resume | StateCommand::Prompt { .. }) && self.is_tree_broken() {
            self.lose_tree().await?;
        }
        let facts = match self.machine.log.decide(&command) {
            Ok(facts) => self.machine.without_tree(&command, facts),
            // A retry with the same idempotency key may be refused because of its own first attempt.
            Err(CommandRefusal::SessionBusy | CommandRefusal::Budget(_)) if again => Vec::new(),
            Err(refused) => {
                let answer = self.refuse(&command, refused).await;
                self.waiters.answer(waiter, answer);
                return Ok(());
            }
        };
        if let Err(refusal) = self.check_outside(&command, &facts, again).await {
            self.waiters.answer(waiter, Err(refusal));
            return Ok(());
        }
        match command {
            StateCommand::Prompt { turn, .. } if again => self.prompt_again(turn, waiter).await,
            command => self.take_up(&command, facts, waiter).await,
        }
    }

    /// Checks what the log does not say and a command may still need: a key, a price, a program, a sandbox permit.
    async fn check_outside(&self, command: &StateCommand, facts: &[Fact], again: bool) -> Result<()> {
        let open = |turn: &TurnId| self.machine.log.turns.iter().any(|known| known.id == *turn);
        let wakes = match command {
            // A repeated prompt whose turn is over has its answer already.
            StateCommand::Prompt { turn, .. } => !again || open(turn),
            command => matches!(command, StateCommand::Resume),
        };
        if wakes && self.lacks_client_key().await {
            return Err(Error::ProviderRequired);
        }
        // Also for a running agent: a credential that was deleted is used for no new turn.
        if wakes && self.ctx.session.options.credential_id.is_some() {
            self.egress_policy().await?;
        }
        if let Some(model) = self.unpriced(command).filter(|_| !again)
            && self.has_model_route().await
        {
            return Err(Error::Unpriced(model));
        }
        let has_limit = self.machine.log.budget.session.max_budget_usd.is_some();
        if new_message(command) && !again && has_limit && self.machine.log.meter.session.unpriced {
            return Err(Error::UnpricedUsage);
        }
        // A message that is answered with an error must not run later.
        if new_message(command) && !again && self.link.conn.is_none() {
            self.can_start().await?;
        }
        match wakes && self.lacks_permit(facts) {
            true => Err(Error::Placeless),
            false => Ok(()),
        }
    }

    /// Whether the command resumes the session while there is neither a sandbox nor a permit for one: the caller saw a
    /// sandbox that is gone since. Checked before anything is written.
    fn lacks_permit(&self, facts: &[Fact]) -> bool {
        let joins = self.is_shared() && self.ctx.workspace.is_inhabited();
        self.admission.permit.is_none() && !joins && self.machine.starts_by(facts)
    }

    async fn take_up(&mut self, command: &StateCommand, facts: Vec<Fact>, waiter: WaiterId) -> Result<()> {
        match self.machine.receive(command, waiter, facts, Instant::now()) {
            Reception::Queue { facts } => match self.admit_to_queue(command) {
                Ok(()) => {
                    let accepted = self.queue_message(command, facts, waiter).await;
                    // Settled also if the write failed.
                    self.settle_queue();
                    accepted
                }
                Err(reached) => {
                    self.waiters.answer(waiter, Err(reached));
                    Ok(())
                }
            },
            Reception::Commit { facts } => {
                let noted = self.commit_facts(facts).await;
                let answer = noted.as_ref().map(|()| CommandReply::default()).map_err(Error::shared);
                self.waiters.answer(waiter, answer);
                self.tolerate(noted)
            }
            Reception::Interrupt { facts } => self.interrupt(facts, waiter).await,
            Reception::Answer { facts } => self.answer(facts, waiter).await,
            Reception::Resume { facts } => self.resume(facts, waiter).await,
            Reception::Done => {
                self.waiters.answer(waiter, Ok(CommandReply::default()));
                Ok(())
            }
            Reception::Waits => Ok(()),
            Reception::Closes(overtaken) => {
                self.closing_begins(overtaken);
                Ok(())
            }
        }
    }

    /// A message that was sent twice with one idempotency key: the first one counts. If its turn was cut, the
    /// repetition resumes it.
    async fn prompt_again(&mut self, turn: TurnId, waiter: WaiterId) -> Result<()> {
        let open = self.machine.log.turns.iter().any(|known| known.id == turn);
        let back = self.machine.log.decide(&StateCommand::Resume).unwrap_or_default();
        if open && self.lacks_permit(&back) {
            self.waiters.answer(waiter, Err(Error::Placeless));
            return Ok(());
        }
        if open {
            self.commit_facts(back).await?;
        }
        self.waiters.answer(waiter, Ok(CommandReply { turn: Some(turn), ..CommandReply::default() }));
        Ok(())
    }

    /// Whether everything that a start needs is there: key, program, engine, image.
    async fn can_start(&self) -> Result<()> {
        let SessionRow { tenant, agent, version, .. } = &self.ctx.session;
        let found = self.ctx.services.store.version(tenant, agent, *version).await?;
        let version = found.ok_or_else(|| Error::NoAgent(agent.to_string()))?;
        self.ctx.services.start_needs(&self.ctx.session, &version).await?;
        match self.ctx.workspace.is_inhabited() {
            true => Ok(()),
            false => Ok(self.ctx.services.backend.can_launch(version.image.as_ref()).await?),
        }
    }

    /// Commits a message and, if nothing is in its way, tells the agent at once.
    async fn queue_message(
        &mut self,
        command: &StateCommand,
        facts: Vec<Fact>,
        waiter: WaiterId,
    ) -> Result<()> {
        let delivery = match self.is_tree_broken() {
            true => None,
            false => self.machine.immediate_delivery(&facts),
        };
        let told = match delivery {
            Some((fact, input, say)) => Some((self.with_calls(fact).await?, input, say)),
            None => None,
        };
        let beside = facts.iter().find_map(|fact| interrupting(fact).or_else(|| steering(fact, command)));
        let begun = told.iter().map(|(fact, ..)| fact.clone());
        let committed = self.commit_facts(facts.into_iter().chain(begun).collect()).await;
        let answer =
            committed.as_ref().map(|()| CommandReply { turn: command.turn(), ..CommandReply::default() });
        self.waiters.answer(waiter, answer.map_err(Error::shared));
        if let (Ok(()), Some((_, input, say))) = (&committed, told) {
            self.machine.runtime.capture.last = Instant::now();
            self.tell(input, &say).await;
        }
        if let (Ok(()), Some((input, say))) = (&committed, beside) {
            self.tell(input, &say).await;
            if matches!(say, AgentInput::Interrupt { .. }) {
                self.machine.set_interrupt_deadline(Instant::now());
            }
        }
        self.tolerate(committed)
    }

    /// Whether this message was accepted before.
    async fn was_accepted(&self, command: &StateCommand) -> Result<bool> {
        match command {
            StateCommand::Prompt { turn, .. } => {
                Ok(self.ctx.services.store.turn(self.ctx.session.no, *turn).await?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// The model, if the message's turn has a limit in dollars and the model has no price.
    fn unpriced(&self, command: &StateCommand) -> Option<String> {
        let StateCommand::Prompt { ask, .. } = command else { return None };
        let SessionBudget { session, turn } = self.machine.log.budget;
        let limited = session.max_budget_usd.or(BudgetLimits::of_turn(ask, turn).max_budget_usd).is_some();
        // The agent's name for a model may differ from the service's name; the service's name is known after the first
        // answer.
        let model = self.ctx.driver.model(&self.ctx.session.options).or(self.machine.log.meter.model());
        let unpriced = self.ctx.services.settings.unpriced(model);
        unpriced.filter(|_| limited).map(str::to_owned)
    }

    /// Whether there is any way to reach a model. An agent that answers offline costs nothing, whatever its model is called.
    async fn has_model_route(&self) -> bool {
        !matches!(self.egress_policy().await, Ok(None))
    }

    async fn interrupt(&mut self, facts: Vec<Fact>, waiter: WaiterId) -> Result<()> {
        let turn = self.machine.log.current().map(|turn| turn.id);
        let told = facts.iter().find_map(interrupting);
        self.commit_facts(facts).await?;
        if let Some((input, say)) = told {
            self.tell(input, &say).await;
        }
        self.machine.set_interrupt_deadline(Instant::now());
        self.waiters.answer(waiter, Ok(CommandReply { turn, ..CommandReply::default() }));
        Ok(())
    }

    async fn resume(&mut self, facts: Vec<Fact>, waiter: WaiterId) -> Result<()> {
        let warm = facts.iter().find_map(|fact| match fact {
            Fact::Resumed { receipt, .. } => Some(receipt.clone()),
            _ => None,
        });
        let began = Instant::now();
        self.commit_facts(facts).await?;
        match warm {
            Some(receipt) => {
                self.ctx.services.watch.resumed(&receipt, began.elapsed());
                self.log_resume(&receipt);
                let reply = CommandReply { receipt: Some(receipt), ..CommandReply::default() };
                self.waiters.answer(waiter, Ok(reply));
            }
            None if self.machine.waits_for_start(waiter) => {}
            None => self.waiters.answer(waiter, Ok(CommandReply::default())),
        }
        Ok(())
    }

    pub(super) fn log_resume(&self, receipt: &Receipt) {
        tracing::info!(session = %self.ctx.session.id, receipt = %serde_json::to_string(receipt).unwrap_or_default(), "resumed");
    }

    pub(super) async fn pause(&mut self) -> Result<()> {
        let waiters = std::mem::take(&mut self.machine.runtime.waiting.pausing);
        let facts = match self.machine.log.decide(&StateCommand::Pause) {
            Ok(facts) => facts,
            Err(refused) => {
                self.waiters.answer_all(waiters, Err(refused.into()));
                return Ok(());
            }
        };
        let noted = self.commit_facts(facts).await;
        let answer = noted.as_ref().map(|()| CommandReply::default()).map_err(Error::shared);
        self.waiters.answer_all(waiters, answer);
        self.tolerate(noted)
    }

    pub(super) async fn answer_forkers(&mut self) -> Result<()> {
        let checkpoint = match self.machine.log.last_full_checkpoint {
            Some(number) => self.ctx.services.store.checkpoint(self.ctx.lease.workspace, number).await?,
            None => None,
        };
        let log = &self.machine.log;
        let memory = log.inherited_memory.unwrap_or(self.ctx.session.native_id);
        let mut summary = log.summary();
        // A fork does not get turns that are not over.
        summary.turns -= summary.open_turns;
        let shared = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.seq);
        let waiting = log.turns.iter().filter(|turn| turn.seq <= shared).map(|turn| turn.id).collect();
        let point = ForkPoint { checkpoint, memory, turns_delivered: log.turns_delivered, waiting, summary };
        let waiters = std::mem::take(&mut self.machine.runtime.waiting.forking);
        self.waiters.answer_forks(waiters, &point);
        Ok(())
    }

    /// Ends an agent that does not stop its turn when asked; the turn is over either way.
    pub(super) async fn kill_agent(&mut self) {
        if let Some(conn) = &self.link.conn {
            conn.remote.signal(conn.process, 9).await.ok();
        }
    }
}

/// The interrupt that this fact sends to the agent.
fn interrupting(fact: &Fact) -> Option<(u64, AgentInput)> {
    match fact {
        Fact::Interrupting { turn, input } => Some((*input, AgentInput::Interrupt { turn: *turn })),
        _ => None,
    }
}

/// The message that this fact sends to the agent in the middle of a turn.
fn steering(fact: &Fact, command: &StateCommand) -> Option<(u64, AgentInput)> {
    match (fact, command) {
        (Fact::Steering { turn, into, input }, StateCommand::Prompt { content, .. }) => {
            Some((*input, AgentInput::Steer { turn: *turn, into: *into, content: content.clone() }))
        }
        _ => None,
    }
}

fn new_message(command: &StateCommand) -> bool {
    matches!(command, StateCommand::Prompt { .. })
}
