//! States that tests begin with, for promises that need no whole world.

use crate::world::USUAL;
use ash_model::{
    AgentName, CaptureConsistency, Event, EventSeq, Fact, Incarnation, MessageOptions, Problem,
    SavedCheckpoint, SessionOptions, Timestamp, TurnId, TurnOutcome,
};
use ash_session::machine::{LogState, Machine, NextStep, Now, SessionProfile};
use std::time::{Duration, Instant};
use uuid::Uuid;

pub(crate) const INCARNATION: Incarnation = Incarnation(Uuid::from_u128(77));
pub(crate) const FIRST: TurnId = TurnId(Uuid::from_u128(1));
pub(crate) const SECOND: TurnId = TurnId(Uuid::from_u128(2));
pub(crate) const THIRD: TurnId = TurnId(Uuid::from_u128(3));

pub(crate) fn fold(facts: &[Fact]) -> LogState {
    LogState::new(0).after(facts)
}

pub(crate) fn created() -> Fact {
    let agent = AgentName::parse("helper").expect("a name");
    Fact::Created { agent, version: 1, options: SessionOptions::default() }
}

pub(crate) fn awake() -> Fact {
    Fact::Awake { incarnation: INCARNATION, resumed_after: None, outdated: false, more_inputs: 0 }
}

pub(crate) fn asleep() -> Fact {
    Fact::Asleep { incarnation: Some(INCARNATION) }
}

pub(crate) fn queued(turn: TurnId) -> Fact {
    Fact::Queued {
        turn,
        content: format!("message {turn}").into(),
        options: MessageOptions::default(),
        lock: None,
    }
}

pub(crate) fn started(turn: TurnId, input: u64) -> Fact {
    Fact::Started { turn, input }
}

pub(crate) fn rested(turn: TurnId) -> Fact {
    let usage = Default::default();
    Fact::Rested { turn, outcome: TurnOutcome::Done, text: "answer".into(), usage, problem: None }
}

pub(crate) fn finished(turn: TurnId, checkpoint: Option<u64>) -> Fact {
    Fact::Finished { turn, outcome: TurnOutcome::Done, checkpoint, problem: None }
}

pub(crate) fn failed() -> Fact {
    Fact::Failed { problem: problem() }
}

pub(crate) fn problem() -> Problem {
    Problem::new("agent_failed", "It did not start")
}

pub(crate) fn checkpoint(number: u64) -> SavedCheckpoint {
    SavedCheckpoint {
        number,
        turn: None,
        tree: "tree".into(),
        consistency: CaptureConsistency::Frozen,
        files: 1,
        bytes: 1,
        skipped: Vec::new(),
        unsaved: Vec::new(),
        unsaved_more: 0,
        salvage: false,
        mid_turn: false,
        concurrent_turns: Vec::new(),
        rewound_to: None,
    }
}

pub(crate) fn event(seq: EventSeq, fact: Fact) -> Event {
    Event { seq, turn: None, at: Timestamp(0), fact }
}

/// A machine whose sandbox is there, with its files, and nothing else.
pub(crate) struct Given {
    pub(crate) machine: Machine,
    pub(crate) start: Instant,
}

impl Given {
    /// A live agent, after these facts.
    pub(crate) fn live(facts: &[Fact]) -> Given {
        Given::live_with(USUAL, facts)
    }

    pub(crate) fn live_with(profile: SessionProfile, facts: &[Fact]) -> Given {
        let all: Vec<Fact> = [created(), awake()].iter().chain(facts).cloned().collect();
        let mut given = Given::with(profile, &all);
        given.machine.runtime.connect(given.at(7200).instant);
        given.machine.runtime.tree.present = true;
        given.machine.runtime.limits.bounds = ash_session::machine::TurnTimeLimit::None;
        given
    }

    /// No sandbox and no files.
    pub(crate) fn with(profile: SessionProfile, facts: &[Fact]) -> Given {
        // Later than anything that is subtracted from it.
        let start = Instant::now() + Duration::from_secs(36_000);
        Given { machine: Machine::new(fold(facts), profile, start), start }
    }

    pub(crate) fn at(&self, seconds: u64) -> Now {
        let wall = Timestamp(i64::try_from(seconds).expect("a short time") * 1000);
        Now { instant: self.start + Duration::from_secs(seconds), wall }
    }

    pub(crate) fn plan(&self, seconds: u64) -> NextStep {
        self.machine.plan(self.at(seconds))
    }

    /// How many seconds after the start the machine wants to plan again, asked so many seconds after it.
    pub(crate) fn next(&self, seconds: u64) -> Option<u64> {
        let at = self.machine.next_deadline(self.at(seconds))?;
        Some(at.duration_since(self.start).as_secs())
    }

    /// What is due then and not before: the seconds and the step.
    pub(crate) fn due(&self) -> Option<(u64, NextStep)> {
        assert_eq!(self.plan(0), NextStep::Wait);
        let at = self.next(0)?;
        assert_eq!(self.plan(at - 1), NextStep::Wait, "not before");
        Some((at, self.plan(at)))
    }
}
