//! What callers ask for, and when they are answered: some at once, some when the files are safe.

use super::{
    Actor, Executed, OptionsChange, WantedLock, close::Closing, load::Sourced, rewind::Rewinding,
    save::Occasion,
};
use crate::{
    Error, Result,
    pool::Passage,
    state::{Budget, Next, Refused, Turn, Wish},
};
use ash_driver::Say;
use ash_model::{Fact, Limits, Lock, Metadata, Receipt, Rewound, Seq, Status, TurnId};
use ash_store::{Checkpoint, Session};
use std::time::Duration;
use tokio::{sync::oneshot, time::Instant};
use uuid::Uuid;

pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

#[expect(clippy::large_enum_variant, reason = "one at a time, looked at and gone")]
pub(crate) enum Request {
    Wish {
        wish: Wish,
        passage: Passage,
        reply: Reply<Answer>,
    },
    /// The turns that are not over, in order.
    Queue {
        reply: Reply<Vec<Turn>>,
    },
    Lock {
        wanted: WantedLock,
        reply: Reply<Lock>,
    },
    /// The holder of lock `number` used it.
    Renew {
        number: u64,
        reply: Reply<()>,
    },
    Unlock {
        number: u64,
        reply: Reply<()>,
    },
    /// Lock `number` is over, and another client writes.
    Outlive {
        number: u64,
        reply: Reply<()>,
    },
    Exec {
        command: String,
        timeout: Duration,
        reply: Reply<Executed>,
    },
    Files {
        purpose: Purpose,
        reply: Reply<Sourced>,
    },
    /// Whose conversation it takes up, as long as no checkpoint holds its own.
    Inherited {
        reply: Reply<Option<Uuid>>,
    },
    /// Answered when the live agent, if there is one, goes on with them.
    Options {
        wanted: OptionsChange,
        reply: Reply<()>,
    },
    /// What callers note on it is this from now on.
    Label {
        metadata: Metadata,
        reply: Reply<()>,
    },
    /// Its time is over, or a rule wants it to end: unless somebody is at work with it. The rule has seen its log up to
    /// `seen`, and nobody is to have used it for so long.
    Expire {
        seen: Seq,
        unused: Duration,
        reply: Reply<Answer>,
    },
    /// Somebody else needs its sandbox more. Refused by whoever is at work.
    Evict {
        reply: Reply<Answer>,
    },
    /// Files were written from outside.
    Touched,
    ForkPoint {
        reply: Reply<ForkPoint>,
    },
    /// Another session of the workspace took the files back.
    HearOfBacks {
        reply: Reply<()>,
    },
    /// Nobody has used it for long: its files need not be here if the object store has them. Answers whether they went.
    GoCold {
        reply: Reply<bool>,
    },
    Shutdown {
        grace: Duration,
        reply: Reply<()>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) receipt: Option<Receipt>,
    /// The turn that a wish concerned, if any.
    pub(crate) turn: Option<TurnId>,
    pub(crate) rewound: Option<Box<Rewound>>,
}

/// What a fork is made from.
#[derive(Debug, Clone)]
pub(crate) struct ForkPoint {
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) memory: uuid::Uuid,
    pub(crate) told: u64,
    pub(crate) waiting: Vec<TurnId>,
    pub(crate) card: ash_store::Card,
}

impl Actor {
    pub(super) async fn take(&mut self, request: Request) -> Result<()> {
        self.idle_since = Instant::now();
        match request {
            Request::Wish { wish, passage, reply } => match self.kept_out(&wish) {
                Some(refusal) => {
                    reply.send(Err(refusal)).ok();
                    Ok(())
                }
                None => {
                    self.passage.add(passage);
                    self.grant(wish, reply).await
                }
            },
            Request::Queue { reply } => {
                reply.send(Ok(self.state.turns.iter().cloned().collect())).ok();
                Ok(())
            }
            Request::Lock { wanted, reply } => self.lock(wanted, reply).await,
            Request::Renew { number, reply } => self.renew_lock(number, reply).await,
            Request::Unlock { number, reply } => self.unlock(number, reply).await,
            Request::Outlive { number, reply } => self.outlive_lock(number, reply).await,
            Request::Exec { command, timeout, reply } => {
                self.exec(command, timeout, reply).await;
                Ok(())
            }
            Request::Files { purpose, reply } => {
                self.files(purpose, reply);
                Ok(())
            }
            Request::Inherited { reply } => {
                reply.send(Ok(self.state.unborn)).ok();
                Ok(())
            }
            Request::Options { wanted, reply } => {
                self.change_options(wanted, reply);
                Ok(())
            }
            Request::Label { metadata, reply } => {
                let noted = self.note(vec![Fact::Labelled { metadata }]).await;
                self.rooms.ring_far();
                let failed = noted.as_ref().err().map(Error::shared);
                reply.send(failed.map_or(Ok(()), Err)).ok();
                self.survive(noted)
            }
            Request::Expire { seen, unused, reply } if self.is_at_work(seen, unused) => {
                reply.send(Err(Refused::Busy.into())).ok();
                Ok(())
            }
            Request::Expire { reply, .. } => self.grant(Wish::End, reply).await,
            Request::Evict { reply } => self.make_way(reply).await,
            Request::Touched => {
                self.touch();
                Ok(())
            }
            Request::ForkPoint { reply } => {
                self.wants_capture |= self.hands.is_some() || self.dirty.is_some();
                self.forking.push(reply);
                Ok(())
            }
            Request::HearOfBacks { reply } => {
                let heard = self.hear_of_backs().await;
                reply.send(Ok(())).ok();
                self.survive(heard)
            }
            Request::GoCold { reply } => {
                let gone = self.go_cold().await;
                reply.send(gone).ok();
                Ok(())
            }
            Request::Shutdown { grace, reply } => {
                self.close(Closing::shutdown(Instant::now() + grace, reply));
                Ok(())
            }
        }
    }

    pub(super) async fn grant(&mut self, wish: Wish, reply: Reply<Answer>) -> Result<()> {
        let reply = match &mut self.closing {
            Some(closing) => match closing.join(&wish, reply) {
                Some(reply) => reply,
                None => return Ok(()),
            },
            None => reply,
        };
        if self.closing.as_ref().is_some_and(Closing::is_release) && !matches!(wish, Wish::Stop | Wish::End) {
            self.later.push((wish, std::mem::take(&mut self.passage), reply));
            return Ok(());
        }
        if let Some(refusal) = self.closing.as_ref().and_then(|closing| closing.refusal(&wish)) {
            reply.send(Err(refusal)).ok();
            return Ok(());
        }
        let again = self.was_accepted(&wish).await?;
        if matches!(wish, Wish::Resume | Wish::Prompt { .. }) && self.is_tree_broken() {
            self.lose_tree().await?;
        }
        let facts = match self.state.decide(&wish) {
            Ok(facts) => self.without_tree(&wish, facts),
            // Sent again with one key: it may be in its own way.
            Err(Refused::Occupied | Refused::Budget(_)) if again => Vec::new(),
            Err(refused) => {
                reply.send(self.refuse(&wish, refused).await).ok();
                return Ok(());
            }
        };
        let open = |turn: &TurnId| self.state.turns.iter().any(|known| known.id == *turn);
        let wakes = match &wish {
            // Its answer is there.
            Wish::Prompt { turn, .. } => !again || open(turn),
            wish => matches!(wish, Wish::Resume),
        };
        if wakes && self.lacks_key().await {
            reply.send(Err(Error::ProviderRequired)).ok();
            return Ok(());
        }
        if let Some(model) = self.unpriced(&wish).filter(|_| !again)
            && self.pays_somebody().await
        {
            reply.send(Err(Error::Unpriced(model))).ok();
            return Ok(());
        }
        // A message that is answered with an error must not run later.
        if matches!(wish, Wish::Prompt { .. })
            && !again
            && self.hands.is_none()
            && let Err(missing) = self.can_start().await
        {
            reply.send(Err(missing)).ok();
            return Ok(());
        }
        if wakes && self.lacks_place(&facts) {
            reply.send(Err(Error::Placeless)).ok();
            return Ok(());
        }
        match wish {
            // Sent twice with one key: the first one counts. If it was cut, this is the wish to go on.
            Wish::Prompt { turn, .. } if again => {
                let open = open(&turn);
                let back = self.state.decide(&Wish::Resume).unwrap_or_default();
                if open && self.lacks_place(&back) {
                    reply.send(Err(Error::Placeless)).ok();
                    return Ok(());
                }
                if open && !back.is_empty() {
                    self.note(back).await?;
                }
                reply.send(Ok(Answer { turn: Some(turn), ..Answer::default() })).ok();
                Ok(())
            }
            Wish::Prompt { turn, .. } => match self.admit_to_queue(&wish) {
                Ok(()) => {
                    let accepted = self.accept(turn, &wish, facts, reply).await;
                    // Also if it could not be written.
                    self.settle_queue();
                    accepted
                }
                Err(reached) => {
                    reply.send(Err(reached)).ok();
                    Ok(())
                }
            },
            Wish::Withdraw { .. } | Wish::Reorder { .. } => {
                let noted = if facts.is_empty() { Ok(()) } else { self.note(facts).await };
                let failed = noted.as_ref().err().map(Error::shared);
                reply.send(failed.map_or_else(|| Ok(Answer::default()), Err)).ok();
                self.survive(noted)
            }
            Wish::Interrupt => self.interrupt(facts, reply).await,
            Wish::Answer { .. } => self.answer(facts, reply).await,
            Wish::Pause => {
                // Processes that a turn left behind may have written since.
                self.wants_capture = true;
                self.pausing.push(reply);
                Ok(())
            }
            Wish::Resume => self.resume(facts, reply).await,
            Wish::Rewind { .. } => {
                self.rewinding.push_back(Rewinding::new(wish, reply));
                Ok(())
            }
            Wish::Stop | Wish::End if facts.is_empty() => {
                reply.send(Ok(Answer::default())).ok();
                Ok(())
            }
            Wish::Stop | Wish::Release { .. } | Wish::End => {
                self.close(Closing::wish(wish, reply));
                Ok(())
            }
        }
    }

    /// Whether it is to come back by this, and there is neither a sandbox nor a place for one: whoever asked took it for one
    /// that had a sandbox, which is gone since. Asked before anything is written.
    fn lacks_place(&self, facts: &[Fact]) -> bool {
        let joins = self.is_shared() && self.common.is_inhabited();
        if self.passage.room.is_some() || self.hands.is_some() || joins {
            return false;
        }
        let mut state = self.state.clone();
        (state.last_seq + 1..).zip(facts).for_each(|(seq, fact)| state.apply(seq, fact));
        self.state.status != Status::Starting && state.status == Status::Starting
    }

    /// Whether everything is there that a start needs: key, program, engine, image.
    async fn can_start(&self) -> Result<()> {
        let Session { tenant, agent, version, .. } = &self.session;
        let found = self.rooms.store.version(tenant, agent, *version).await?;
        let version = found.ok_or_else(|| Error::NoAgent(agent.to_string()))?;
        self.rooms.start_needs(&self.session, &version).await?;
        match self.common.is_inhabited() {
            true => Ok(()),
            false => Ok(self.rooms.backend.can_launch(version.image.as_ref()).await?),
        }
    }

    /// A message: noted, told at once if nothing is in its way, and answered in between.
    async fn accept(
        &mut self,
        turn: TurnId,
        wish: &Wish,
        facts: Vec<Fact>,
        reply: Reply<Answer>,
    ) -> Result<()> {
        let told = match self.at_once(&facts) {
            Some((fact, input, say)) => Some((self.with_calls(fact).await?, input, say)),
            None => None,
        };
        let beside = facts.iter().find_map(|fact| interrupting(fact).or_else(|| steering(fact, wish)));
        let begun = told.iter().map(|(fact, ..)| fact.clone());
        let committed = self.note(facts.into_iter().chain(begun).collect()).await;
        let answer = committed.as_ref().map(|()| Answer { turn: Some(turn), ..Answer::default() });
        reply.send(answer.map_err(Error::shared)).ok();
        if let (Ok(()), Some((_, input, say))) = (&committed, told) {
            self.captured = Instant::now();
            self.tell(input, &say).await;
        }
        if let (Ok(()), Some((input, say))) = (&committed, beside) {
            self.tell(input, &say).await;
            if matches!(say, Say::Interrupt { .. }) {
                self.lose_patience_later();
            }
        }
        self.survive(committed)
    }

    /// A message that was accepted before.
    async fn was_accepted(&self, wish: &Wish) -> Result<bool> {
        match wish {
            Wish::Prompt { turn, .. } => Ok(self.rooms.store.turn(self.session.no, *turn).await?.is_some()),
            _ => Ok(false),
        }
    }

    /// A message whose turn has a limit in dollars, and a model that has no price.
    fn unpriced(&self, wish: &Wish) -> Option<String> {
        let Wish::Prompt { ask, .. } = wish else { return None };
        let Budget { session, turn } = self.state.budget;
        let limited = session.max_budget_usd.or(Limits::of_turn(ask, turn).max_budget_usd).is_some();
        // What an agent calls a model by another name than its service does is known when it has answered.
        let model = self.driver.model(&self.session.options).or(self.state.meter.model());
        let unpriced = self.rooms.settings.unpriced(model);
        unpriced.filter(|_| limited).map(str::to_owned)
    }

    /// Whether there is a way to a model at all. Who answers offline costs nothing, whatever the model is called.
    async fn pays_somebody(&self) -> bool {
        !matches!(self.way_out().await, Ok(None))
    }

    /// A message that nothing is in the way of is told at once: that it was accepted and that it was told share one
    /// commit.
    fn at_once(&self, facts: &[Fact]) -> Option<(Fact, u64, Say)> {
        let waiting = !self.writing.is_empty()
            || !self.rewinding.is_empty()
            || !self.pausing.is_empty()
            || !self.forking.is_empty();
        let busy = self.effect.is_some() || self.leaving.is_some() || self.closing.is_some();
        let busy = busy || self.has_lost_tree() || self.is_tree_broken();
        if waiting || busy || self.hands.is_none() || self.ear.stirs() {
            return None;
        }
        let mut state = self.state.clone();
        (state.last_seq + 1..).zip(facts).for_each(|(seq, fact)| state.apply(seq, fact));
        match state.next() {
            Next::Tell { fact, input, say } => Some((fact, input, say)),
            Next::Wait | Next::Wake | Next::Note { .. } | Next::Save { .. } | Next::Sleep => None,
        }
    }

    async fn interrupt(&mut self, facts: Vec<Fact>, reply: Reply<Answer>) -> Result<()> {
        let turn = self.state.current().map(|turn| turn.id);
        let told = facts.iter().find_map(interrupting);
        if !facts.is_empty() {
            self.note(facts).await?;
        }
        if let Some((input, say)) = told {
            self.tell(input, &say).await;
        }
        self.lose_patience_later();
        reply.send(Ok(Answer { turn, ..Answer::default() })).ok();
        Ok(())
    }

    async fn resume(&mut self, facts: Vec<Fact>, reply: Reply<Answer>) -> Result<()> {
        let warm = facts.iter().find_map(|fact| match fact {
            Fact::Resumed { receipt, .. } => Some(receipt.clone()),
            _ => None,
        });
        let began = Instant::now();
        if !facts.is_empty() {
            self.note(facts).await?;
        }
        match warm {
            Some(receipt) => {
                self.rooms.watch.resumed(&receipt, began.elapsed());
                self.log_resume(&receipt);
                reply.send(Ok(Answer { receipt: Some(receipt), ..Answer::default() })).ok();
            }
            None if self.state.status == Status::Starting || self.state.next() == Next::Wake => {
                self.resuming.push(reply)
            }
            None => {
                reply.send(Ok(Answer::default())).ok();
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
            self.start_save(Occasion::Between);
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
        let facts = match self.state.decide(&Wish::Pause) {
            Ok(facts) => facts,
            Err(refused) => {
                waiting.into_iter().for_each(|reply| drop(reply.send(Err(refused.into()))));
                return Ok(());
            }
        };
        let noted = self.note(facts).await;
        for reply in waiting {
            let failed = noted.as_ref().err().map(Error::shared);
            reply.send(failed.map_or_else(|| Ok(Answer::default()), Err)).ok();
        }
        self.survive(noted)
    }

    async fn answer_forkers(&mut self) -> Result<()> {
        if self.forking.is_empty() {
            return Ok(());
        }
        let checkpoint = match self.state.settled {
            Some(number) => self.rooms.store.checkpoint(self.lease.workspace, number).await?,
            None => None,
        };
        let memory = self.state.unborn.unwrap_or(self.session.native_id);
        let mut card = self.state.card();
        // Turns that are not over are not shared.
        card.turns -= card.open_turns;
        let shared = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.seq);
        let waiting = self.state.turns.iter().filter(|turn| turn.seq <= shared).map(|turn| turn.id).collect();
        let point = ForkPoint { checkpoint, memory, told: self.state.told, waiting, card };
        for reply in self.forking.drain(..) {
            reply.send(Ok(point.clone())).ok();
        }
        Ok(())
    }

    pub(super) fn lose_patience_later(&mut self) {
        if self.patience.is_none() && self.state.was_asked_to_stop() {
            self.patience = Some(Instant::now() + self.rooms.settings.interrupt_grace);
        }
    }

    /// An agent that does not stop its turn when asked is ended; the turn is over either way.
    pub(super) async fn lose_patience(&mut self) {
        if self.patience.is_some_and(|at| at <= Instant::now()) {
            self.patience = None;
            if let Some(hands) = &self.hands {
                hands.remote.signal(hands.process, 9).await.ok();
            }
        }
    }
}

/// What the agent is told by it.
fn interrupting(fact: &Fact) -> Option<(u64, Say)> {
    match fact {
        Fact::Interrupting { turn, input } => Some((*input, Say::Interrupt { turn: *turn })),
        _ => None,
    }
}

/// What the agent is told of it in the middle of a turn.
fn steering(fact: &Fact, wish: &Wish) -> Option<(u64, Say)> {
    match (fact, wish) {
        (Fact::Steering { turn, into, input }, Wish::Prompt { content, .. }) => {
            Some((*input, Say::Steer { turn: *turn, into: *into, content: content.clone() }))
        }
        _ => None,
    }
}
