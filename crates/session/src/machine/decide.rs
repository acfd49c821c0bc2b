//! Decides a command in the current state: the facts that follow from it, or the reason to refuse it.

use super::{CommandRefusal, LogState, StateCommand, TurnPhase, WakePolicy, asked_to_stop};
use ash_model::{
    BusyPolicy, ConversationPoint, EventSeq, Fact, Receipt, ResumePath, ResumeSource, SessionRewind,
    SessionStatus, Tier, TreeOrigin, TurnId, TurnOutcome,
};

impl LogState {
    pub fn decide(&self, command: &StateCommand) -> Result<Vec<Fact>, CommandRefusal> {
        match command {
            StateCommand::Prompt { turn, content, ask, wake, on_busy, lock } => {
                if let Some(reached) = self.exhausted_limit().filter(|_| self.status != SessionStatus::Ended)
                {
                    return Err(CommandRefusal::Budget(reached));
                }
                let (content, ask) = (content.clone(), ask.clone());
                let queued = Fact::Queued { turn: *turn, content, options: ask, lock: *lock };
                let mut facts = match self.status {
                    SessionStatus::Active | SessionStatus::Starting => vec![queued],
                    SessionStatus::Ended => return Err(CommandRefusal::WrongStatus(self.status)),
                    SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error
                        if *wake == WakePolicy::Forbidden =>
                    {
                        return Err(CommandRefusal::WrongStatus(self.status));
                    }
                    SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error => {
                        vec![queued, self.resume_fact()]
                    }
                };
                facts.extend(self.apply_busy_policy(*turn, *on_busy)?);
                Ok(facts)
            }
            StateCommand::Withdraw { turn } => self.withdraw(*turn),
            StateCommand::Reorder { first } => self.reorder(first),
            StateCommand::Interrupt => self.interrupt(),
            StateCommand::Answer { id, verdict } => self.answer(*id, verdict),
            StateCommand::AnswerTool { id, output } => self.answer_tool(*id, output),
            StateCommand::Pause => match self.status {
                SessionStatus::Active => Ok(vec![Fact::Paused]),
                status => Err(CommandRefusal::NotPossible { command: "pause", status }),
            },
            StateCommand::Stop => match self.status {
                SessionStatus::Active | SessionStatus::Starting => {
                    Ok(self.give_up_current().chain([Fact::Stopped]).collect())
                }
                status => Err(CommandRefusal::NotPossible { command: "stop", status }),
            },
            StateCommand::Release { by_force: false } if !self.turns.is_empty() => Err(CommandRefusal::Busy),
            StateCommand::Release { .. } => match self.status {
                SessionStatus::Active | SessionStatus::Starting => {
                    Ok(self.give_up_current().chain([Fact::Paused]).collect())
                }
                SessionStatus::Paused
                | SessionStatus::Stopped
                | SessionStatus::Error
                | SessionStatus::Ended => Ok(Vec::new()),
            },
            StateCommand::Resume => match self.status {
                SessionStatus::Active | SessionStatus::Starting => Ok(Vec::new()),
                SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error => {
                    match self.exhausted_limit() {
                        Some(reached) => Err(CommandRefusal::Budget(reached)),
                        None => Ok(vec![self.resume_fact()]),
                    }
                }
                SessionStatus::Ended => Err(CommandRefusal::SessionEnded),
            },
            StateCommand::Rewind { to, seq, then, .. } => match self.status {
                SessionStatus::Ended => Err(CommandRefusal::WrongStatus(self.status)),
                SessionStatus::Starting
                | SessionStatus::Active
                | SessionStatus::Paused
                | SessionStatus::Stopped
                | SessionStatus::Error => self.rewind(*to, *seq, then),
            },
            StateCommand::End => match self.status {
                SessionStatus::Ended => Ok(Vec::new()),
                _ => Ok(self.give_up_current().chain(self.cancel_queued()).chain([Fact::Ended]).collect()),
            },
        }
    }

    /// What a message does to the messages before it.
    fn apply_busy_policy(&self, turn: TurnId, on_busy: BusyPolicy) -> Result<Vec<Fact>, CommandRefusal> {
        if self.turns.is_empty() {
            return Ok(Vec::new());
        }
        match on_busy {
            BusyPolicy::Queue => Ok(Vec::new()),
            BusyPolicy::Reject => Err(CommandRefusal::SessionBusy),
            BusyPolicy::Interrupt => {
                Ok(self.order_fact(&[], turn).into_iter().chain(self.interrupt()?).collect())
            }
            BusyPolicy::Steer => {
                let first = self.order_fact(&self.undelivered_steering(), turn);
                Ok(first.into_iter().chain(self.steer(turn)).collect())
            }
        }
    }

    /// Places a new message behind the turns in `before`, and before all other waiting turns.
    fn order_fact(&self, before: &[TurnId], turn: TurnId) -> Option<Fact> {
        let rest: Vec<TurnId> = self.waiting().filter(|waiting| !before.contains(waiting)).collect();
        let order = || before.iter().copied().chain([turn]).chain(rest.iter().copied()).collect();
        (!rest.is_empty()).then(|| Fact::Requeued { order: order(), withdrawn: Vec::new() })
    }

    /// The turns that have not begun, in order.
    pub fn waiting(&self) -> impl Iterator<Item = TurnId> {
        self.turns.iter().filter(|turn| turn.phase == TurnPhase::Queued).map(|turn| turn.id)
    }

    fn withdraw(&self, turn: TurnId) -> Result<Vec<Fact>, CommandRefusal> {
        let order: Vec<TurnId> = self.waiting().filter(|waiting| *waiting != turn).collect();
        if order.len() == self.waiting().count() || self.is_known_to_agent(turn) {
            return Err(CommandRefusal::NotWaiting);
        }
        let cancelled =
            Fact::Finished { turn, outcome: TurnOutcome::Cancelled, checkpoint: None, problem: None };
        Ok(vec![Fact::Requeued { order, withdrawn: vec![turn] }, cancelled])
    }

    fn reorder(&self, first: &[TurnId]) -> Result<Vec<Fact>, CommandRefusal> {
        let waiting: Vec<TurnId> = self.waiting().collect();
        if first.iter().any(|turn| !waiting.contains(turn)) {
            return Err(CommandRefusal::NotWaiting);
        }
        let rest = waiting.iter().filter(|turn| !first.contains(turn));
        let order: Vec<TurnId> = first.iter().chain(rest).copied().collect();
        Ok((order != waiting)
            .then_some(Fact::Requeued { order, withdrawn: Vec::new() })
            .into_iter()
            .collect())
    }

    /// Makes the session active again: at once if the sandbox is still there.
    pub(super) fn resume_fact(&self) -> Fact {
        let as_it_is = self.awake.is_some() && !self.agent_options_outdated;
        if as_it_is { Fact::Resumed { receipt: self.warm_receipt(), head: None } } else { Fact::Resuming }
    }

    fn warm_receipt(&self) -> Receipt {
        Receipt {
            path: ResumePath::Warm,
            source: ResumeSource::Local,
            from: TreeOrigin::Live,
            tier: Tier::Native,
            checkpoint: self.checkpoint,
            verified: true,
            lost: Vec::new(),
            compared: None,
            repaired: Vec::new(),
            salvage: None,
            adopted: None,
        }
    }

    /// Refused while turns are open: they would end in files that do not belong to them.
    fn rewind(&self, to: u64, seq: EventSeq, then: &ConversationPoint) -> Result<Vec<Fact>, CommandRefusal> {
        if !self.turns.is_empty() {
            return Err(CommandRefusal::Busy);
        }
        Ok(vec![Fact::Rewound(SessionRewind { to, from: self.checkpoint, seq, conversation: then.clone() })])
    }

    fn interrupt(&self) -> Result<Vec<Fact>, CommandRefusal> {
        let Some(turn) = self.turns.front() else { return Ok(Vec::new()) };
        let interrupted = Fact::Finished {
            turn: turn.id,
            outcome: TurnOutcome::Interrupted,
            checkpoint: self.checkpoint,
            problem: None,
        };
        match (&turn.phase, &self.awake) {
            (TurnPhase::Running { inputs }, Some(awake)) if !asked_to_stop(inputs) => {
                Ok(vec![Fact::Interrupting { turn: turn.id, input: awake.next_input }])
            }
            (TurnPhase::Cut, _) => {
                Ok(self.refuse_requests_of_cut_turn(turn.id).into_iter().chain([interrupted]).collect())
            }
            (
                TurnPhase::Running { .. }
                | TurnPhase::Saving { .. }
                | TurnPhase::Queued
                | TurnPhase::Joined { .. },
                _,
            ) => Ok(Vec::new()),
        }
    }

    /// The running turn ends here; the caller has captured its files.
    pub(super) fn give_up_current(&self) -> impl Iterator<Item = Fact> {
        let checkpoint = self.checkpoint;
        let current =
            self.current().map(|turn| (turn.id, turn.phase.clone(), self.budget_stop_problem(turn.id)));
        current.into_iter().map(move |(turn, phase, stopped)| {
            let (how, problem) = match phase {
                TurnPhase::Saving { how, problem, .. } => (how, problem),
                TurnPhase::Running { .. } | TurnPhase::Cut | TurnPhase::Queued | TurnPhase::Joined { .. } => {
                    (TurnOutcome::Interrupted, stopped)
                }
            };
            Fact::Finished { turn, outcome: how, checkpoint, problem }
        })
    }

    fn cancel_queued(&self) -> impl Iterator<Item = Fact> {
        let queued = self.turns.iter().filter(|turn| turn.phase == TurnPhase::Queued);
        queued.map(|turn| Fact::Finished {
            turn: turn.id,
            outcome: TurnOutcome::Cancelled,
            checkpoint: None,
            problem: None,
        })
    }
}
