//! What a wish means as things stand: the facts that follow from it, or why not.

use super::{Phase, Refused, State, Wake, Wish, asked_to_stop};
use ash_model::{
    Fact, From, OnBusy, Outcome, Path, Receipt, Rewound, Seq, Source, Status, Then, Tier, TurnId,
};

impl State {
    pub fn decide(&self, wish: &Wish) -> Result<Vec<Fact>, Refused> {
        match wish {
            Wish::Prompt { turn, content, ask, wake, on_busy, lock } => {
                if let Some(reached) = self.used_up().filter(|_| self.status != Status::Ended) {
                    return Err(Refused::Budget(reached));
                }
                let (content, ask) = (content.clone(), ask.clone());
                let queued = Fact::Queued { turn: *turn, content, ask, lock: *lock };
                let mut facts = match self.status {
                    Status::Active | Status::Starting => vec![queued],
                    Status::Ended => return Err(Refused::Not(self.status)),
                    Status::Paused | Status::Stopped | Status::Error if *wake == Wake::No => {
                        return Err(Refused::Not(self.status));
                    }
                    Status::Paused | Status::Stopped | Status::Error => vec![queued, self.back()],
                };
                facts.extend(self.make_way(*turn, *on_busy)?);
                Ok(facts)
            }
            Wish::Withdraw { turn } => self.withdraw(*turn),
            Wish::Reorder { first } => self.reorder(first),
            Wish::Interrupt => self.interrupt(),
            Wish::Answer { id, verdict } => self.answer(*id, verdict),
            Wish::Pause => match self.status {
                Status::Active => Ok(vec![Fact::Paused]),
                status => Err(Refused::Cannot { wish: "pause", status }),
            },
            Wish::Stop => match self.status {
                Status::Active | Status::Starting => {
                    Ok(self.give_up_current().chain([Fact::Stopped]).collect())
                }
                status => Err(Refused::Cannot { wish: "stop", status }),
            },
            Wish::Release { by_force: false } if !self.turns.is_empty() => Err(Refused::Busy),
            Wish::Release { .. } => match self.status {
                Status::Active | Status::Starting => {
                    Ok(self.give_up_current().chain([Fact::Paused]).collect())
                }
                Status::Paused | Status::Stopped | Status::Error | Status::Ended => Ok(Vec::new()),
            },
            Wish::Resume => match self.status {
                Status::Active | Status::Starting => Ok(Vec::new()),
                Status::Paused | Status::Stopped | Status::Error => match self.used_up() {
                    Some(reached) => Err(Refused::Budget(reached)),
                    None => Ok(vec![self.back()]),
                },
                Status::Ended => Err(Refused::Gone),
            },
            Wish::Rewind { to, seq, then, .. } => match self.status {
                Status::Ended => Err(Refused::Not(self.status)),
                Status::Starting | Status::Active | Status::Paused | Status::Stopped | Status::Error => {
                    self.rewind(*to, *seq, then)
                }
            },
            Wish::End => match self.status {
                Status::Ended => Ok(Vec::new()),
                _ => Ok(self.give_up_current().chain(self.cancel_queued()).chain([Fact::Ended]).collect()),
            },
        }
    }

    /// What a message does to those before it.
    fn make_way(&self, turn: TurnId, on_busy: OnBusy) -> Result<Vec<Fact>, Refused> {
        if self.turns.is_empty() {
            return Ok(Vec::new());
        }
        match on_busy {
            OnBusy::Queue => Ok(Vec::new()),
            OnBusy::Reject => Err(Refused::Occupied),
            OnBusy::Interrupt => Ok(self.after(&[], turn).into_iter().chain(self.interrupt()?).collect()),
            OnBusy::Steer => {
                let first = self.after(&self.told_to_steer(), turn);
                Ok(first.into_iter().chain(self.steer(turn)).collect())
            }
        }
    }

    /// A new message goes after these, and before all others that wait.
    fn after(&self, before: &[TurnId], turn: TurnId) -> Option<Fact> {
        let rest: Vec<TurnId> = self.waiting().filter(|waiting| !before.contains(waiting)).collect();
        let order = || before.iter().copied().chain([turn]).chain(rest.iter().copied()).collect();
        (!rest.is_empty()).then(|| Fact::Requeued { order: order(), withdrawn: Vec::new() })
    }

    /// The turns that have not begun, in order.
    pub fn waiting(&self) -> impl Iterator<Item = TurnId> {
        self.turns.iter().filter(|turn| turn.phase == Phase::Queued).map(|turn| turn.id)
    }

    fn withdraw(&self, turn: TurnId) -> Result<Vec<Fact>, Refused> {
        let order: Vec<TurnId> = self.waiting().filter(|waiting| *waiting != turn).collect();
        if order.len() == self.waiting().count() || self.is_known(turn) {
            return Err(Refused::NotWaiting);
        }
        let cancelled = Fact::Finished { turn, how: Outcome::Cancelled, checkpoint: None, problem: None };
        Ok(vec![Fact::Requeued { order, withdrawn: vec![turn] }, cancelled])
    }

    fn reorder(&self, first: &[TurnId]) -> Result<Vec<Fact>, Refused> {
        let waiting: Vec<TurnId> = self.waiting().collect();
        if first.iter().any(|turn| !waiting.contains(turn)) {
            return Err(Refused::NotWaiting);
        }
        let rest = waiting.iter().filter(|turn| !first.contains(turn));
        let order: Vec<TurnId> = first.iter().chain(rest).copied().collect();
        Ok((order != waiting)
            .then_some(Fact::Requeued { order, withdrawn: Vec::new() })
            .into_iter()
            .collect())
    }

    /// The way back to active: at once if the sandbox is still there.
    pub(super) fn back(&self) -> Fact {
        let as_it_is = self.awake.is_some() && !self.outdated;
        if as_it_is { Fact::Resumed { receipt: self.warm(), head: None } } else { Fact::Resuming }
    }

    fn warm(&self) -> Receipt {
        Receipt {
            path: Path::Warm,
            source: Source::Local,
            from: From::Live,
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

    /// What is not over would come to its end in files that it does not know.
    fn rewind(&self, to: u64, seq: Seq, then: &Then) -> Result<Vec<Fact>, Refused> {
        if !self.turns.is_empty() {
            return Err(Refused::Busy);
        }
        Ok(vec![Fact::Rewound(Rewound { to, from: self.checkpoint, seq, then: then.clone() })])
    }

    fn interrupt(&self) -> Result<Vec<Fact>, Refused> {
        let Some(turn) = self.turns.front() else { return Ok(Vec::new()) };
        let interrupted = Fact::Finished {
            turn: turn.id,
            how: Outcome::Interrupted,
            checkpoint: self.checkpoint,
            problem: None,
        };
        match (&turn.phase, &self.awake) {
            (Phase::Running { inputs }, Some(awake)) if !asked_to_stop(inputs) => {
                Ok(vec![Fact::Interrupting { turn: turn.id, input: awake.next_input }])
            }
            (Phase::Cut, _) => Ok(vec![interrupted]),
            (Phase::Running { .. } | Phase::Saving { .. } | Phase::Queued | Phase::Joined { .. }, _) => {
                Ok(Vec::new())
            }
        }
    }

    /// The running turn ends here; the caller has captured what it left.
    pub(super) fn give_up_current(&self) -> impl Iterator<Item = Fact> {
        let checkpoint = self.checkpoint;
        let current = self.current().map(|turn| (turn.id, turn.phase.clone(), self.stopped_for(turn.id)));
        current.into_iter().map(move |(turn, phase, stopped)| {
            let (how, problem) = match phase {
                Phase::Saving { how, problem, .. } => (how, problem),
                Phase::Running { .. } | Phase::Cut | Phase::Queued | Phase::Joined { .. } => {
                    (Outcome::Interrupted, stopped)
                }
            };
            Fact::Finished { turn, how, checkpoint, problem }
        })
    }

    fn cancel_queued(&self) -> impl Iterator<Item = Fact> {
        let queued = self.turns.iter().filter(|turn| turn.phase == Phase::Queued);
        queued.map(|turn| Fact::Finished {
            turn: turn.id,
            how: Outcome::Cancelled,
            checkpoint: None,
            problem: None,
        })
    }
}
