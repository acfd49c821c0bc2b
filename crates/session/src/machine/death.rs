//! What follows from a death: of the agent, of its sandbox, of the server, of the machine.

use super::{LogState, TurnPhase};
use ash_model::{Death, Fact, Incarnation, InterruptedTurnPolicy, Problem, SessionStatus, TurnOutcome};

/// How many processes may die during one turn before the turn is given up.
const MAX_DEATHS_PER_TURN: u32 = 2;

/// What the next actor of the session found of its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxLiveness {
    Alive(Incarnation),
    Dead,
    /// A process answers, but not as a shim does.
    Unresponsive,
}

impl LogState {
    /// The sandbox or its agent died while this actor was running.
    pub fn died(&self, death: &Death) -> Vec<Fact> {
        let Some(awake) = &self.awake else { return Vec::new() };
        let asleep = Fact::Asleep { incarnation: Some(awake.incarnation) };
        let failed = match self.status {
            // It was to end anyway.
            SessionStatus::Stopped | SessionStatus::Ended => None,
            // The server ends an agent whose turn does not stop; then another agent is started.
            SessionStatus::Starting
            | SessionStatus::Active
            | SessionStatus::Paused
            | SessionStatus::Error => {
                (!self.was_asked_to_stop()).then(|| Fact::Failed { problem: death.problem() })
            }
        };
        self.withdraw_all().chain(self.cut_running_turn(death)).chain([asleep]).chain(failed).collect()
    }

    /// The running turn's process is gone. A turn that was asked to stop has stopped; any other continues later.
    fn cut_running_turn(&self, death: &Death) -> Vec<Fact> {
        let Some(turn) = self.running() else { return Vec::new() };
        // No client asked for a self-started turn; the agent itself learns what became of it.
        if self.was_asked_to_stop() || self.turns.front().is_some_and(|turn| turn.self_started) {
            return self.give_up_current().collect();
        }
        let deaths = self.turns.front().map_or(0, |turn| turn.deaths);
        let mut facts = vec![Fact::Cut { turn, death: death.clone() }];
        if counts_as_crash(death) && deaths + 1 >= MAX_DEATHS_PER_TURN {
            let problem = Problem::new(
                "crashed_twice",
                "The turn's process died twice; the turn was given up. Send the message again.",
            );
            facts.push(Fact::Finished {
                turn,
                outcome: TurnOutcome::Failed,
                checkpoint: self.checkpoint,
                problem: Some(problem),
            });
        }
        facts
    }

    /// The server stops on purpose: running turns are cut and continue at the next start.
    pub fn shut_down(&self) -> Vec<Fact> {
        let cut = self.withdraw_all().chain(self.cut_running_turn(&Death::Shutdown));
        let asleep = self.awake.as_ref().map(|awake| Fact::Asleep { incarnation: Some(awake.incarnation) });
        let paused =
            matches!(self.status, SessionStatus::Active | SessionStatus::Starting).then_some(Fact::Paused);
        cut.chain(asleep).chain(paused).collect()
    }

    /// The session's last actor died. All records that its sandbox left have been applied.
    pub fn recover(&self, found: SandboxLiveness, on_interrupted: InterruptedTurnPolicy) -> Vec<Fact> {
        if self.awake.as_ref().is_some_and(|awake| found == SandboxLiveness::Alive(awake.incarnation)) {
            return Vec::new();
        }
        let cut = self.cut_running_turn(&Death::Machine);
        let gave_up = cut.iter().any(|fact| matches!(fact, Fact::Finished { .. }));
        let broken =
            self.turns.front().is_some_and(|t| t.phase == TurnPhase::Cut) || (!cut.is_empty() && !gave_up);
        let asleep = self.awake.as_ref().map(|awake| Fact::Asleep { incarnation: Some(awake.incarnation) });
        let mut facts: Vec<Fact> = self.withdraw_all().chain(cut).chain(asleep).collect();
        let waiting = self.turns.iter().any(|turn| turn.phase == TurnPhase::Queued);
        match self.pause_without_budget().filter(|_| broken || waiting) {
            Some(broke) => facts.extend(broke),
            None => facts.extend(self.recovery_fact(broken, on_interrupted)),
        }
        facts
    }

    fn recovery_fact(&self, broken: bool, on_interrupted: InterruptedTurnPolicy) -> Option<Fact> {
        let waiting = self.turns.iter().any(|turn| turn.phase == TurnPhase::Queued);
        match self.status {
            SessionStatus::Ended | SessionStatus::Stopped => None,
            SessionStatus::Starting
            | SessionStatus::Active
            | SessionStatus::Paused
            | SessionStatus::Error
                if broken =>
            {
                Some(match on_interrupted {
                    InterruptedTurnPolicy::Continue => Fact::Resuming,
                    InterruptedTurnPolicy::Ask => Fact::Failed { problem: Death::Machine.problem() },
                })
            }
            SessionStatus::Starting | SessionStatus::Active if waiting => Some(Fact::Resuming),
            SessionStatus::Paused if waiting && !self.pause_requested => Some(Fact::Resuming),
            SessionStatus::Starting | SessionStatus::Active => Some(Fact::Paused),
            SessionStatus::Paused | SessionStatus::Error => None,
        }
    }
}

/// A turn that the server cut itself has not crashed.
pub(super) fn counts_as_crash(death: &Death) -> bool {
    match death {
        Death::Agent { .. }
        | Death::Sandbox { .. }
        | Death::OutOfMemory
        | Death::LineTooLong
        | Death::Machine => true,
        Death::Shutdown => false,
    }
}
