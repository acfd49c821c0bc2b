//! How much a session and its turns may use, and what follows when that is used up: a turn that goes on is asked to
//! stop, as by an interrupt; a session pauses, lets go of its sandbox, in which something might go on, and goes on
//! with whatever waits when the limit is raised.

use super::{Awake, Phase, State, Turn, asked_to_stop};
use ash_model::{
    BudgetOf, Fact, Limits, Options, Outcome, Prices, Problem, Reached, Spent, Status, TurnId, Which,
};
use ash_sandbox::Allowance;

/// What the session's options allow. They are not in the log, so whoever looks after a session says so.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Budget {
    pub session: Limits,
    /// Of each turn whose message says nothing else.
    pub turn: Limits,
}

impl Budget {
    pub fn of(options: &Options) -> Budget {
        Budget { session: Limits::of_session(options), turn: options.turn_limits.unwrap_or_default() }
    }
}

/// What may still be used. None: any amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub tokens: Option<u64>,
    pub nano_usd: Option<u64>,
}

impl Left {
    /// For a shim whose journal is counted up to a position.
    pub fn allowance(self, prices: &Prices, position: u64) -> Allowance {
        let Left { tokens, nano_usd } = self;
        Allowance { position, tokens, nano_usd, prices: nano_usd.map(|_| prices.clone()) }
    }
}

impl State {
    /// Why the session may not use any more.
    pub fn used_up(&self) -> Option<Reached> {
        let used_up = self.budget.session.used_up(&self.meter.session);
        used_up.map(|what| reached(None, BudgetOf::Session, what))
    }

    /// What is left for whatever asks a model next: of the session's budget, or of that of the turn that runs.
    pub fn left(&self) -> Left {
        let turn = self.turns.front().filter(|turn| matches!(turn.phase, Phase::Running { .. } | Phase::Cut));
        let mut budgets = vec![(self.budget.session, self.meter.session)];
        budgets.extend(turn.map(|turn| (self.limits(turn), self.meter.turn)));
        let least = |left: fn(&(Limits, Spent)) -> Option<u64>| budgets.iter().filter_map(left).min();
        Left {
            tokens: least(|(limits, spent)| limits.tokens_left(spent)),
            nano_usd: least(|(limits, spent)| limits.nano_usd_left(spent)),
        }
    }

    /// It rests because its budget was used up, and nobody wanted anything else since.
    pub(super) fn is_broke(&self) -> bool {
        self.status == Status::Paused && self.reached.is_some_and(|reached| reached.of == BudgetOf::Session)
    }

    /// A session that rested for want of a budget has one again, and something waits.
    pub(super) fn may_go_on(&self) -> bool {
        self.is_broke() && self.used_up().is_none() && !self.turns.is_empty()
    }

    /// Why a turn was asked to stop, if that was not somebody's wish.
    pub(super) fn stopped_for(&self, turn: TurnId) -> Option<Problem> {
        self.reached.filter(|reached| reached.turn == Some(turn)).map(|reached| reached.problem())
    }

    /// What is to be done about it now.
    pub(super) fn out_of_budget(&self) -> Option<Vec<Fact>> {
        match self.turns.front() {
            Some(Turn { phase: Phase::Saving { .. }, .. }) => None,
            Some(Turn { phase: Phase::Running { .. }, .. }) => self.stop_running_turn(),
            Some(turn @ Turn { phase: Phase::Cut, .. }) => self.pause().or_else(|| self.give_up(turn)),
            Some(Turn { phase: Phase::Queued | Phase::Joined { .. }, .. }) | None => self.pause(),
        }
    }

    /// A turn goes on to its end while its session is paused, too, but not beyond its budget.
    pub(super) fn stop_running_turn(&self) -> Option<Vec<Fact>> {
        match (self.turns.front(), &self.awake) {
            (Some(turn @ Turn { phase: Phase::Running { inputs }, .. }), Some(awake)) => {
                if asked_to_stop(inputs) { None } else { self.stop(turn, awake) }
            }
            (_, _) => None,
        }
    }

    /// The turn that runs is to stop, for something that no answer of a model says: it took too long, or too much space.
    pub fn stop_for(&self, what: (Which, u64, u64)) -> Vec<Fact> {
        match (self.turns.front(), &self.awake) {
            (Some(Turn { id, phase: Phase::Running { inputs }, .. }), Some(awake))
                if !asked_to_stop(inputs) =>
            {
                let reached = reached(Some(*id), BudgetOf::Turn, what);
                vec![Fact::BudgetReached(reached), Fact::Interrupting { turn: *id, input: awake.next_input }]
            }
            (Some(_) | None, _) => Vec::new(),
        }
    }

    /// After a death nothing goes on that has no budget.
    pub(super) fn stays_broke(&self) -> Option<Vec<Fact>> {
        match self.status {
            Status::Starting | Status::Active => self.pause(),
            Status::Paused | Status::Error => {
                let mut facts = self.pause()?;
                facts.pop();
                Some(facts)
            }
            Status::Stopped | Status::Ended => None,
        }
    }

    fn limits(&self, turn: &Turn) -> Limits {
        Limits::of_turn(&turn.ask, self.budget.turn)
    }

    fn stop(&self, turn: &Turn, awake: &Awake) -> Option<Vec<Fact>> {
        let stops = |limits: Limits, spent: Spent| {
            let settled = self.meter.settled(spent)?;
            limits.used_up(&settled)
        };
        let session = stops(self.budget.session, self.meter.session).map(|what| (BudgetOf::Session, what));
        let own = || stops(self.limits(turn), self.meter.turn).map(|what| (BudgetOf::Turn, what));
        let price = || self.without_price(turn).map(|what| (BudgetOf::Turn, what));
        let (of, what) = session.or_else(own).or_else(price)?;
        let interrupting = Fact::Interrupting { turn: turn.id, input: awake.next_input };
        Some(vec![Fact::BudgetReached(reached(Some(turn.id), of, what)), interrupting])
    }

    /// There is a limit in dollars, and nobody knows how many are used.
    fn without_price(&self, turn: &Turn) -> Option<(Which, u64, u64)> {
        let limits = [self.budget.session, self.limits(turn)];
        let limited = limits.iter().any(|limits| limits.max_budget_usd.is_some());
        let Spent { unpriced, nano_usd, .. } = self.meter.turn;
        (limited && unpriced).then_some((Which::Price, 0, nano_usd))
    }

    /// One that was cut off does not go on.
    fn give_up(&self, turn: &Turn) -> Option<Vec<Fact>> {
        let reached = reached(Some(turn.id), BudgetOf::Turn, self.limits(turn).used_up(&self.meter.turn)?);
        let (how, problem) = (Outcome::Interrupted, Some(reached.problem()));
        let finished = Fact::Finished { turn: turn.id, how, checkpoint: self.checkpoint, problem };
        Some(vec![Fact::BudgetReached(reached), finished])
    }

    fn pause(&self) -> Option<Vec<Fact>> {
        let reached = self.used_up()?;
        let is_known = |known: Reached| {
            (known.of, known.which, known.limit) == (reached.of, reached.which, reached.limit)
        };
        let news = (!self.reached.is_some_and(is_known)).then_some(Fact::BudgetReached(reached));
        Some(news.into_iter().chain([Fact::Paused]).collect())
    }
}

fn reached(turn: Option<TurnId>, of: BudgetOf, (which, limit, used): (Which, u64, u64)) -> Reached {
    Reached { turn, of, which, limit, used }
}
