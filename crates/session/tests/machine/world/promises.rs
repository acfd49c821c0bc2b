//! The promises that the log must keep, after every fact and after everything that happens.

use super::{World, shim::Shim};
use ash_model::{Death, Fact, PermissionId, SessionRewind, SessionStatus, TurnId, TurnOutcome};
use ash_session::machine::{CommandRefusal, Effect, LogState, LogStep, Machine, StateCommand, TurnPhase};
use ash_store::TurnState;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) queued: Vec<TurnId>,
    pub(super) finished: BTreeMap<TurnId, TurnOutcome>,
    pub(super) rested: BTreeSet<TurnId>,
    pub(super) asked_to_stop: BTreeSet<TurnId>,
    pub(super) deaths: BTreeMap<TurnId, u32>,
    pub(super) rows: BTreeMap<TurnId, TurnState>,
    pub(super) started: BTreeSet<TurnId>,
    /// Acknowledged in the middle of the running turn.
    pub(super) joined: BTreeSet<TurnId>,
    /// The turns that are part of the conversation.
    pub(super) conversation: Vec<TurnId>,
    /// The same, as it was at each checkpoint.
    pub(super) then: BTreeMap<u64, Vec<TurnId>>,
    pub(super) checkpoint: Option<u64>,
    pub(super) ended: bool,
    /// Tokens that the log says were used.
    pub(super) used: u64,
    /// Every request, and whether it is answered.
    pub(super) asked: BTreeMap<PermissionId, bool>,
    /// How often those options were changed that an agent is started with.
    pub(super) changes: u64,
}

impl World {
    pub(super) fn check_decision(&self, wish: &StateCommand, decided: &Result<Vec<Fact>, CommandRefusal>) {
        if self.state().status != SessionStatus::Ended {
            return;
        }
        match wish {
            StateCommand::Prompt { .. } | StateCommand::Rewind { .. } => {
                assert_eq!(*decided, Err(CommandRefusal::WrongStatus(SessionStatus::Ended)));
            }
            StateCommand::Resume => assert_eq!(*decided, Err(CommandRefusal::SessionEnded)),
            StateCommand::Answer { .. } => assert_eq!(*decided, Err(CommandRefusal::NoSuchPermission)),
            StateCommand::Pause | StateCommand::Stop | StateCommand::Withdraw { .. } => {
                assert!(decided.is_err())
            }
            StateCommand::Reorder { .. } => assert!(decided.is_err(), "nothing waits"),
            StateCommand::Interrupt | StateCommand::Release { .. } | StateCommand::End => {
                assert_eq!(*decided, Ok(Vec::new()))
            }
        }
    }

    pub(super) fn check_fact(&mut self, fact: &Fact) {
        if matches!(fact, Fact::Started { .. } | Fact::Continued { .. }) {
            assert_eq!(self.state().exhausted_limit(), None, "a turn begins without a budget");
        }
        if let (Fact::Started { .. }, Some(shim)) = (fact, &self.shim) {
            assert_eq!(shim.changes, self.told.changes, "a turn begins with options that are not in force");
        }
        let told = &mut self.told;
        match fact {
            Fact::Queued { turn, .. } => {
                told.queued.push(*turn);
                told.conversation.push(*turn);
            }
            Fact::Requeued { order, withdrawn } => {
                let knows =
                    |shim: &Shim| shim.alive && withdrawn.iter().any(|turn| shim.steers.contains(turn));
                assert!(!self.shim.as_ref().is_some_and(knows), "withdrawn, and told");
                let waits = |turn: &TurnId| {
                    !told.started.contains(turn)
                        && !told.finished.contains_key(turn)
                        && !told.joined.contains(turn)
                };
                let mut waiting: Vec<TurnId> = told.queued.iter().copied().filter(waits).collect();
                told.queued.retain(|turn| !waits(turn));
                waiting.sort();
                let mut named: Vec<TurnId> = order.iter().chain(withdrawn).copied().collect();
                named.sort();
                assert_eq!(waiting, named, "what waited is named, and nothing else");
                told.queued.extend(order.iter().chain(withdrawn));
                told.conversation.retain(|turn| !withdrawn.contains(turn));
            }
            Fact::Steering { turn, into, input } => {
                assert!(told.started.contains(into) && !told.started.contains(turn), "nothing runs");
                self.check_input(*input);
            }
            Fact::Steered { turn, into } => {
                assert!(!told.finished.contains_key(turn) && !told.finished.contains_key(into), "over");
                told.queued.retain(|other| other != turn);
                let after =
                    told.queued.iter().rposition(|other| other == into || told.joined.contains(other));
                told.queued.insert(after.expect("the turn that runs") + 1, *turn);
                told.joined.insert(*turn);
            }
            Fact::Started { turn, input } | Fact::Continued { turn, input, .. } => {
                let first_open = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                assert_eq!(first_open, Some(turn), "turns run in the order they were queued");
                assert!(!told.rested.contains(turn), "told again after it rested");
                assert!(!told.asked_to_stop.contains(turn), "told again after it was asked to stop");
                assert!(told.deaths.get(turn).is_none_or(|deaths| *deaths < 2), "told a third time");
                told.started.insert(*turn);
                self.check_input(*input);
            }
            Fact::Interrupting { turn, input } => {
                told.asked_to_stop.insert(*turn);
                self.check_input(*input);
            }
            Fact::PermissionRequested(asked) => {
                assert_eq!(told.asked.insert(asked.id, false), None, "two requests of one name");
            }
            Fact::Answered { id, verdict, input, .. } => {
                assert_eq!(told.asked.insert(*id, true), Some(false), "answered twice, or never asked");
                assert_eq!(verdict.is_some(), input.is_some(), "what is answered is told");
                if let Some(input) = input {
                    self.check_input(*input);
                }
            }
            Fact::Setting { input, .. } => self.check_input(*input),
            Fact::Rested { turn, .. } => {
                told.rested.insert(*turn);
            }
            // A salvage checkpoint is not a state that the session continues from.
            Fact::Saved(saved) if saved.salvage => {}
            Fact::Saved(saved) => {
                assert!(told.then.keys().all(|number| *number < saved.number), "numbers only grow");
                let heard = |turn: &&TurnId| told.started.contains(*turn) || told.joined.contains(*turn);
                let begun = told.conversation.iter().filter(heard);
                told.then.insert(saved.number, begun.copied().collect());
                told.checkpoint = Some(saved.number);
            }
            Fact::Rewound(SessionRewind { to, from, .. }) => {
                let open = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                assert_eq!(open, None, "rewound under a turn");
                assert!(!told.ended, "rewound after its end");
                assert_eq!(*from, told.checkpoint, "there is no way back");
                told.conversation = told.then[to].clone();
                told.checkpoint = Some(*to);
            }
            Fact::Finished { turn, outcome: how, problem, .. } => {
                assert!(told.queued.contains(turn), "the end of a turn that nobody asked for");
                assert_eq!(told.finished.insert(*turn, *how), None, "a turn ended twice");
                let deaths = told.deaths.get(turn).copied().unwrap_or(0);
                let twice = problem.as_ref().is_some_and(|problem| problem.code == "crashed_twice");
                assert_eq!(twice, deaths == 2, "{deaths} deaths");
                assert_eq!(twice, *how == TurnOutcome::Failed);
            }
            Fact::Cut { turn, death } => {
                told.joined.retain(|turn| told.finished.contains_key(turn));
                *told.deaths.entry(*turn).or_default() += u32::from(*death != Death::Shutdown);
            }
            // This cuts the running turn, unless it was asked to stop or has ended.
            Fact::Asleep { .. } => {
                let front = told.queued.iter().find(|turn| !told.finished.contains_key(*turn));
                let over = |turn: &TurnId| told.asked_to_stop.contains(turn) || told.rested.contains(turn);
                if !front.is_some_and(over) {
                    told.joined.retain(|turn| told.finished.contains_key(turn));
                }
            }
            Fact::Awake { .. } => self.last_input = 1,
            Fact::Used(used) => told.used += used.usage.tokens(),
            Fact::Ended => told.ended = true,
            Fact::Configured { restart: true, .. } => told.changes += 1,
            Fact::Created { .. }
            | Fact::Forked { .. }
            | Fact::Said { .. }
            | Fact::SaveFailed { .. }
            | Fact::Resuming
            | Fact::Resumed { .. }
            | Fact::ResumeFailed { .. }
            | Fact::SelfStarted { .. }
            | Fact::Paused
            | Fact::Stopped
            | Fact::WorkspaceRewound(_)
            | Fact::Idle { .. }
            | Fact::Adopted(_)
            | Fact::Missing
            | Fact::Labelled { .. }
            | Fact::Configured { restart: false, .. }
            | Fact::Locked { .. }
            | Fact::Unlocked { .. }
            | Fact::BudgetReached(_)
            | Fact::Failed { .. } => {}
        }
    }

    fn check_input(&mut self, input: u64) {
        assert_eq!(input, self.last_input + 1, "inputs are numbered one after the other");
        self.last_input = input;
    }

    pub(super) fn check(&self) {
        let Some(machine) = &self.machine else { return };
        let state = &machine.log;
        assert_eq!(self.replayed(), *state, "a replay comes to another state");
        assert_eq!(
            self.told.ended,
            state.status == SessionStatus::Ended,
            "ended is final, and only said once"
        );
        assert_eq!(state.meter.session.usage.tokens(), self.told.used, "what was used is the sum of it");
        self.check_turns(state);
        self.check_card(state);
        self.check_pending(machine);
        let run = &machine.runtime;
        if run.effect.is_none() && run.closing.is_none() && run.remote_wait.is_none() {
            self.check_wait(machine);
        }
    }

    fn check_turns(&self, state: &LogState) {
        let open: Vec<TurnId> =
            self.told.queued.iter().filter(|turn| !self.told.finished.contains_key(*turn)).copied().collect();
        assert_eq!(state.turns.iter().map(|turn| turn.id).collect::<Vec<_>>(), open);
        for (place, turn) in state.turns.iter().enumerate() {
            let beside = matches!(turn.phase, TurnPhase::Queued | TurnPhase::Joined { .. });
            assert!(place == 0 || beside, "only the first can be under way");
            let expected = match turn.phase {
                TurnPhase::Queued => TurnState::Queued,
                TurnPhase::Running { .. } | TurnPhase::Joined { .. } => TurnState::Running,
                TurnPhase::Saving { .. } => TurnState::Saving,
                TurnPhase::Cut => TurnState::Cut,
            };
            assert_eq!(self.told.rows.get(&turn.id), Some(&expected));
            assert!(turn.deaths < 2, "given up after the second death");
        }
        for (turn, how) in &self.told.finished {
            let expected = match how {
                TurnOutcome::Done => TurnState::Done,
                TurnOutcome::Failed => TurnState::Failed,
                TurnOutcome::Interrupted => TurnState::Interrupted,
                TurnOutcome::Cancelled => TurnState::Cancelled,
            };
            assert_eq!(self.told.rows.get(turn), Some(&expected));
        }
    }

    /// Every open request of the agent can be answered, and nothing else can.
    fn check_pending(&self, machine: &Machine) {
        let (pending, run) = (&machine.log.pending, &machine.runtime);
        let open = self.told.asked.iter().filter(|(_, answered)| !**answered).map(|(id, _)| *id);
        assert_eq!(pending.iter().map(|pending| pending.asked.id).collect::<BTreeSet<_>>(), open.collect());
        let names: BTreeSet<&String> = pending.iter().map(|pending| &pending.asked.request).collect();
        match self.shim.as_ref().filter(|shim| shim.alive && run.is_connected()) {
            Some(shim) => assert_eq!(names, shim.waiting.iter().collect()),
            // Until the log says that the sandbox is gone.
            None => {
                let ending = run.effect == Some(Effect::EndSandbox);
                assert!(names.is_empty() || run.is_shutting_down() || ending);
            }
        }
    }

    fn check_card(&self, state: &LogState) {
        let card = state.summary();
        assert_eq!(card.status, state.status);
        assert_eq!(card.turns, self.told.conversation.len() as u64);
        let begun = self.told.conversation.iter().filter(|turn| self.told.started.contains(*turn)).count();
        let open = state.turns.iter().filter(|turn| turn.attempt > 0).count();
        assert_eq!(state.turns_delivered, (begun - open) as u64, "what the agent should remember");
        assert_eq!(card.open_turns, state.turns.len() as u64);
        assert_eq!(card.checkpoint, self.told.checkpoint);
        assert_eq!(card.title.is_some(), card.turns > 0);
        match card.status {
            SessionStatus::Active => assert_eq!(card.problem, None),
            SessionStatus::Error => assert!(card.problem.is_some()),
            SessionStatus::Starting
            | SessionStatus::Paused
            | SessionStatus::Stopped
            | SessionStatus::Ended => {}
        }
    }

    /// No effect is under way and the actor waits: then something outside the actor must be able to act.
    fn check_wait(&self, machine: &Machine) {
        let (state, run) = (&machine.log, &machine.runtime);
        assert_ne!(state.status, SessionStatus::Starting, "nobody starts it");
        assert_eq!(state.awake.is_some(), run.is_connected());
        let waiting = &run.waiting;
        assert!(waiting.resuming.is_empty() && waiting.pausing.is_empty() && waiting.forking.is_empty());
        assert!(waiting.rewinding.is_empty() && waiting.writing.is_empty() && waiting.deferred.is_empty());
        if matches!(state.next_step(), LogStep::Save { .. }) {
            assert!(run.capture.backoff.is_some(), "nobody saves the turn");
            return;
        }
        assert_eq!(state.next_step(), LogStep::Wait);
        let Some(front) = state.turns.front() else { return };
        match front.phase {
            TurnPhase::Running { .. } => {
                let shim = self.shim.as_ref().filter(|shim| shim.alive && run.is_connected());
                let working = shim.and_then(|shim| shim.working);
                assert_eq!(working, Some(front.id), "nobody works on the turn that runs");
            }
            TurnPhase::Saving { .. } => panic!("nobody saves the turn"),
            TurnPhase::Joined { .. } => panic!("nothing runs that it was heard in"),
            TurnPhase::Queued | TurnPhase::Cut => {
                assert_ne!(state.status, SessionStatus::Active, "nobody starts the turn")
            }
        }
    }
}
