//! What a death means: of the agent, of its sandbox, of the server, of the machine.

use super::{Found, Phase, State};
use ash_model::{Death, Fact, OnInterrupted, Outcome, Problem, Status};

/// How many processes may die under one turn before it is given up.
const DEATHS: u32 = 2;

impl State {
    /// The sandbox or its agent is gone while we looked after it.
    pub fn died(&self, death: &Death) -> Vec<Fact> {
        let Some(awake) = &self.awake else { return Vec::new() };
        let asleep = Fact::Asleep { incarnation: Some(awake.incarnation) };
        let failed = match self.status {
            // It was to end anyway.
            Status::Stopped | Status::Ended => None,
            // If we ended it ourselves because its turn would not stop, another agent is started.
            Status::Starting | Status::Active | Status::Paused | Status::Error => {
                (!self.was_asked_to_stop()).then(|| Fact::Failed { problem: death.problem() })
            }
        };
        self.withdraw_all().chain(self.cut(death)).chain([asleep]).chain(failed).collect()
    }

    /// The running turn's process is gone. One that was asked to stop has stopped; any other goes on later.
    fn cut(&self, death: &Death) -> Vec<Fact> {
        let Some(turn) = self.running() else { return Vec::new() };
        // Nobody asked for what the agent began by itself; it hears itself what became of it.
        if self.was_asked_to_stop() || self.turns.front().is_some_and(|turn| turn.own) {
            return self.give_up_current().collect();
        }
        let deaths = self.turns.front().map_or(0, |turn| turn.deaths);
        let mut facts = vec![Fact::Cut { turn, death: death.clone() }];
        if counts(death) && deaths + 1 >= DEATHS {
            let problem = Problem::new(
                "crashed_twice",
                "The turn's process died twice; the turn was given up. Send the message again.",
            );
            facts.push(Fact::Finished {
                turn,
                how: Outcome::Failed,
                checkpoint: self.checkpoint,
                problem: Some(problem),
            });
        }
        facts
    }

    /// We stop on purpose: what still runs is cut and goes on at the next start.
    pub fn shut_down(&self) -> Vec<Fact> {
        let cut = self.withdraw_all().chain(self.cut(&Death::Shutdown));
        let asleep = self.awake.as_ref().map(|awake| Fact::Asleep { incarnation: Some(awake.incarnation) });
        let paused = matches!(self.status, Status::Active | Status::Starting).then_some(Fact::Paused);
        cut.chain(asleep).chain(paused).collect()
    }

    /// Whoever looked after the session died. Everything its sandbox still said has been applied.
    pub fn bereaved(&self, found: Found, on_interrupted: OnInterrupted) -> Vec<Fact> {
        if self.awake.as_ref().is_some_and(|awake| found == Found::Alive(awake.incarnation)) {
            return Vec::new();
        }
        let cut = self.cut(&Death::Machine);
        let gave_up = cut.iter().any(|fact| matches!(fact, Fact::Finished { .. }));
        let broken =
            self.turns.front().is_some_and(|t| t.phase == Phase::Cut) || (!cut.is_empty() && !gave_up);
        let asleep = self.awake.as_ref().map(|awake| Fact::Asleep { incarnation: Some(awake.incarnation) });
        let mut facts: Vec<Fact> = self.withdraw_all().chain(cut).chain(asleep).collect();
        let waiting = self.turns.iter().any(|turn| turn.phase == Phase::Queued);
        match self.stays_broke().filter(|_| broken || waiting) {
            Some(broke) => facts.extend(broke),
            None => facts.extend(self.after_a_death(broken, on_interrupted)),
        }
        facts
    }

    fn after_a_death(&self, broken: bool, on_interrupted: OnInterrupted) -> Option<Fact> {
        let waiting = self.turns.iter().any(|turn| turn.phase == Phase::Queued);
        match self.status {
            Status::Ended | Status::Stopped => None,
            Status::Starting | Status::Active | Status::Paused | Status::Error if broken => {
                Some(match on_interrupted {
                    OnInterrupted::Continue => Fact::Resuming,
                    OnInterrupted::Ask => Fact::Failed { problem: Death::Machine.problem() },
                })
            }
            Status::Starting | Status::Active if waiting => Some(Fact::Resuming),
            Status::Paused if waiting && !self.held => Some(Fact::Resuming),
            Status::Starting | Status::Active => Some(Fact::Paused),
            Status::Paused | Status::Error => None,
        }
    }
}

/// A turn that we cut ourselves has not crashed.
pub(super) fn counts(death: &Death) -> bool {
    match death {
        Death::Agent { .. }
        | Death::Sandbox { .. }
        | Death::OutOfMemory
        | Death::LineTooLong
        | Death::Machine => true,
        Death::Shutdown => false,
    }
}
