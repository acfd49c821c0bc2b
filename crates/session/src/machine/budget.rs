//! How much a session and its turns may use, and what happens when that is used up. A running turn is asked to stop, as
//! by an interrupt. The session pauses and lets go of its sandbox, in which work might continue. It continues with the
//! waiting messages when the limit is raised.

use super::{AwakeAgent, LogState, Turn, TurnPhase, asked_to_stop};
use ash_model::{
    BudgetLimits, BudgetScope, Fact, LimitKind, LimitReached, ModelPrices, Problem, SessionOptions,
    SessionStatus, TurnId, TurnOutcome, UsageTotal,
};
use ash_sandbox::UsageAllowance;

/// The limits from the session's options. They are not in the log, so the actor sets them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SessionBudget {
    pub session: BudgetLimits,
    /// For each turn whose message sets no limits of its own.
    pub turn: BudgetLimits,
}

impl SessionBudget {
    pub fn of(options: &SessionOptions) -> SessionBudget {
        SessionBudget {
            session: BudgetLimits::of_session(options),
            turn: options.turn_limits.unwrap_or_default(),
        }
    }
}

/// What may still be used. None: unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemainingBudget {
    pub tokens: Option<u64>,
    pub nano_usd: Option<u64>,
}

impl RemainingBudget {
    /// For a shim whose journal is counted up to `position`.
    pub fn allowance(self, prices: &ModelPrices, position: u64) -> UsageAllowance {
        let RemainingBudget { tokens, nano_usd } = self;
        UsageAllowance { position, tokens, nano_usd, prices: nano_usd.map(|_| prices.clone()) }
    }
}

impl LogState {
    /// The limit that forbids the session any further use.
    pub fn exhausted_limit(&self) -> Option<LimitReached> {
        let used_up = self.budget.session.first_reached(&self.meter.session);
        used_up.map(|what| reached(None, BudgetScope::Session, what))
    }

    /// What the next model request may use: the rest of the session's budget or of the running turn's, whichever is less.
    pub fn remaining_budget(&self) -> RemainingBudget {
        let turn = self
            .turns
            .front()
            .filter(|turn| matches!(turn.phase, TurnPhase::Running { .. } | TurnPhase::Cut));
        let mut budgets = vec![(self.budget.session, self.meter.session)];
        budgets.extend(turn.map(|turn| (self.limits(turn), self.meter.turn)));
        let least =
            |left: fn(&(BudgetLimits, UsageTotal)) -> Option<u64>| budgets.iter().filter_map(left).min();
        RemainingBudget {
            tokens: least(|(limits, spent)| limits.tokens_left(spent)),
            // Without a price for something it is unknown what is left.
            nano_usd: least(|(limits, spent)| {
                limits.nano_usd_left(spent).map(|left| if spent.unpriced { 0 } else { left })
            }),
        }
    }

    /// Whether the session is paused because its budget was used up, and no client has sent a command since.
    pub(super) fn is_paused_for_budget(&self) -> bool {
        self.status == SessionStatus::Paused
            && self.reached.is_some_and(|reached| reached.scope == BudgetScope::Session)
    }

    /// Whether a session that is paused for its budget has one again, and a turn waits.
    pub(super) fn can_resume_after_budget(&self) -> bool {
        self.is_paused_for_budget() && self.exhausted_limit().is_none() && !self.turns.is_empty()
    }

    /// The budget problem for which a turn was asked to stop, if no client asked for it.
    pub(super) fn budget_stop_problem(&self, turn: TurnId) -> Option<Problem> {
        self.reached.filter(|reached| reached.turn == Some(turn)).map(|reached| reached.problem())
    }

    /// What follows from a used-up budget now.
    pub(super) fn out_of_budget(&self) -> Option<Vec<Fact>> {
        match self.turns.front() {
            Some(Turn { phase: TurnPhase::Saving { .. }, .. }) => None,
            Some(Turn { phase: TurnPhase::Running { .. }, .. }) => self.stop_running_turn(),
            Some(turn @ Turn { phase: TurnPhase::Cut, .. }) => self.pause().or_else(|| self.give_up(turn)),
            Some(Turn { phase: TurnPhase::Queued | TurnPhase::Joined { .. }, .. }) | None => self.pause(),
        }
    }

    /// A turn runs to its end even while its session is paused, but not beyond its budget.
    pub(super) fn stop_running_turn(&self) -> Option<Vec<Fact>> {
        match (self.turns.front(), &self.awake) {
            (Some(turn @ Turn { phase: TurnPhase::Running { inputs }, .. }), Some(awake)) => {
                if asked_to_stop(inputs) { None } else { self.stop(turn, awake) }
            }
            (_, _) => None,
        }
    }

    /// Stops the running turn for a limit that no model answer shows: its time, or the size of its files.
    pub fn stop_turn_for_limit(&self, what: (LimitKind, u64, u64)) -> Vec<Fact> {
        match (self.turns.front(), &self.awake) {
            (Some(Turn { id, phase: TurnPhase::Running { inputs }, .. }), Some(awake))
                if !asked_to_stop(inputs) =>
            {
                let reached = reached(Some(*id), BudgetScope::Turn, what);
                vec![Fact::BudgetReached(reached), Fact::Interrupting { turn: *id, input: awake.next_input }]
            }
            (Some(_) | None, _) => Vec::new(),
        }
    }

    /// After a death, nothing continues without a budget.
    pub(super) fn pause_without_budget(&self) -> Option<Vec<Fact>> {
        match self.status {
            SessionStatus::Starting | SessionStatus::Active => self.pause(),
            SessionStatus::Paused | SessionStatus::Error => {
                let mut facts = self.pause()?;
                facts.pop();
                Some(facts)
            }
            SessionStatus::Stopped | SessionStatus::Ended => None,
        }
    }

    fn limits(&self, turn: &Turn) -> BudgetLimits {
        BudgetLimits::of_turn(&turn.options, self.budget.turn)
    }

    fn stop(&self, turn: &Turn, awake: &AwakeAgent) -> Option<Vec<Fact>> {
        let stops = |limits: BudgetLimits, spent: UsageTotal| {
            let settled = self.meter.without_open_answer(spent)?;
            limits.first_reached(&settled)
        };
        let session = stops(self.budget.session, self.meter.session).map(|what| (BudgetScope::Session, what));
        let own = || stops(self.limits(turn), self.meter.turn).map(|what| (BudgetScope::Turn, what));
        let price = || self.without_price(turn).map(|what| (BudgetScope::Turn, what));
        let (of, what) = session.or_else(own).or_else(price)?;
        let interrupting = Fact::Interrupting { turn: turn.id, input: awake.next_input };
        Some(vec![Fact::BudgetReached(reached(Some(turn.id), of, what)), interrupting])
    }

    /// Whether there is a limit in dollars and the cost so far is unknown.
    fn without_price(&self, turn: &Turn) -> Option<(LimitKind, u64, u64)> {
        let limits = [self.budget.session, self.limits(turn)];
        let limited = limits.iter().any(|limits| limits.max_budget_usd.is_some());
        let UsageTotal { unpriced, nano_usd, .. } = self.meter.turn;
        (limited && unpriced).then_some((LimitKind::Price, 0, nano_usd))
    }

    /// A turn that was cut does not continue.
    fn give_up(&self, turn: &Turn) -> Option<Vec<Fact>> {
        let reached =
            reached(Some(turn.id), BudgetScope::Turn, self.limits(turn).first_reached(&self.meter.turn)?);
        let (how, problem) = (TurnOutcome::Interrupted, Some(reached.problem()));
        let finished = Fact::Finished { turn: turn.id, outcome: how, checkpoint: self.checkpoint, problem };
        let denied = self.refuse_requests_of_cut_turn(turn.id);
        Some([Fact::BudgetReached(reached)].into_iter().chain(denied).chain([finished]).collect())
    }

    fn pause(&self) -> Option<Vec<Fact>> {
        let reached = self.exhausted_limit()?;
        let is_known = |known: LimitReached| {
            (known.scope, known.kind, known.limit) == (reached.scope, reached.kind, reached.limit)
        };
        let news = (!self.reached.is_some_and(is_known)).then_some(Fact::BudgetReached(reached));
        Some(news.into_iter().chain([Fact::Paused]).collect())
    }
}

fn reached(
    turn: Option<TurnId>,
    of: BudgetScope,
    (which, limit, used): (LimitKind, u64, u64),
) -> LimitReached {
    LimitReached { turn, scope: of, kind: which, limit, used }
}
