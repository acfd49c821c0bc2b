//! A session as a pure state machine. Start reading here.
//!
//! `decide` answers a wish with facts or a refusal, `apply` folds a fact in, `next` says what is to be done as
//! things stand, and `bereaved` what it means that the last one who looked after the session died. It is
//! level-triggered: after a crash there is no list of effects, only a state.

mod permission;

pub use permission::Pending;
pub(crate) use permission::cancelled;

use ash_driver::Say;
use ash_model::{
    Ask, Death, Event, Fact, From, Incarnation, OnInterrupted, Outcome, Path, PermissionId, Problem, Receipt,
    Rewound, Saved, Seq, Source, Status, Then, Tier, TurnId, Verdict,
};
use ash_store::{Card, TurnRow, TurnState};
use std::{collections::VecDeque, sync::Arc};
use uuid::Uuid;

/// How many processes may die under one turn before it is given up.
const DEATHS: u32 = 2;
const TITLE: usize = 80;
const LAST_TEXT: usize = 400;

#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub status: Status,
    /// Turns that are not over, in order. Only the first can be anything but queued.
    pub turns: VecDeque<Turn>,
    pub awake: Option<Awake>,
    /// What the agent waits for, in the order that it asked.
    pub pending: Vec<Pending>,
    /// The newest checkpoint that holds what a turn or a change left, or the one that was gone back to.
    pub checkpoint: Option<u64>,
    /// The newest that is not from the middle of a turn: what a fork begins with.
    pub settled: Option<u64>,
    /// Where the last rewind stands in the log. A tree from before it is not the session's any more.
    pub rewound: Seq,
    /// The highest number ever given to a checkpoint of this workspace.
    pub last_checkpoint: u64,
    /// Turns that were told to the agent and are over: what it should remember.
    pub told: u64,
    /// A fork takes up the conversation that its parent kept under this id, until a checkpoint holds its own.
    pub unborn: Option<Uuid>,
    /// An agent has run since, so that its own transcript is among the files.
    born: bool,
    /// What the agent is told at the head of the next message.
    pub head: Option<String>,
    tell_once: bool,
    /// What a turn that was cut off had said and done, up to here, the agent has in its memory.
    pub kept: Option<Seq>,
    /// The next start is somebody coming back, who gets a receipt.
    pub resuming: bool,
    /// Somebody wants the session paused; if it was only the server that stopped, waiting turns go on.
    pub held: bool,
    pub turns_ever: u64,
    pub title: Option<String>,
    pub last_text: Option<String>,
    pub problem: Option<Problem>,
    pub last_seq: Seq,
    changed: Vec<TurnRow>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub id: TurnId,
    pub seq: Seq,
    pub content: serde_json::Value,
    pub ask: Ask,
    pub attempt: u32,
    pub deaths: u32,
    /// The agent's own, without a prompt.
    pub own: bool,
    pub phase: Phase,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    Queued,
    Running { inputs: Vec<(u64, Say)> },
    Saving { how: Outcome, text: String, problem: Option<Problem> },
    Cut,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Awake {
    pub incarnation: Incarnation,
    /// The number the next line to the agent gets.
    pub next_input: u64,
    /// What it was told last that belongs to no turn.
    beside: VecDeque<(u64, Arc<Say>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Wish {
    Prompt {
        turn: TurnId,
        content: serde_json::Value,
        ask: Ask,
        wake: Wake,
    },
    Interrupt,
    /// To something that the agent waits for.
    Answer {
        id: PermissionId,
        verdict: Verdict,
    },
    Pause,
    Stop,
    Resume,
    /// To checkpoint `to`, which covers the log up to `seq`.
    Rewind {
        to: u64,
        seq: Seq,
        then: Then,
    },
    End,
}

/// Whether a message may wake a session that rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("Session is {0}")]
    Not(Status),
    #[error("Cannot {wish} session with status \"{status}\"")]
    Cannot { wish: &'static str, status: Status },
    #[error("Session has ended — create a new session")]
    Gone,
    #[error("A turn is not over; wait for it, or interrupt it")]
    Busy,
    #[error("There is no such permission request")]
    Unasked,
    #[error("The permission request was answered otherwise, or withdrawn")]
    Answered,
    #[error("A question is allowed with answers: what was chosen, by the words of each question")]
    NoAnswers,
    #[error("Answers are for questions; this request asks whether a call may be made")]
    NoQuestion,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, looked at and gone")]
pub enum Next {
    Wait,
    /// Make a sandbox and start the agent.
    Wake,
    /// Tell the agent: the fact first, then the words.
    Tell {
        fact: Fact,
        input: u64,
        say: Say,
    },
    /// Capture the workspace, then end the turn.
    Save {
        turn: TurnId,
    },
    /// End the sandbox.
    Sleep,
}

/// What the next one to look after the session found of its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Alive(Incarnation),
    Dead,
    /// Somebody is there who does not answer as a shim does.
    Mute,
}

impl State {
    /// A session that has just been made. Everything else follows from its events.
    pub fn new(last_seq: Seq) -> State {
        State {
            status: Status::Starting,
            turns: VecDeque::new(),
            awake: None,
            pending: Vec::new(),
            checkpoint: None,
            settled: None,
            rewound: 0,
            last_checkpoint: 0,
            told: 0,
            unborn: None,
            born: false,
            head: None,
            tell_once: false,
            kept: None,
            resuming: false,
            held: false,
            turns_ever: 0,
            title: None,
            last_text: None,
            problem: None,
            last_seq,
            changed: Vec::new(),
        }
    }

    /// What a fork has of its parent and no event of its own says.
    pub fn adopt(&mut self, card: &Card) {
        self.title = card.title.clone();
        self.last_text = card.last_text.clone();
        self.turns_ever = card.turns;
    }

    /// What a fork has of its parent, as it was where they part.
    pub fn inherit(&mut self, then: &Then) {
        self.title = then.title.clone();
        self.last_text = then.last_text.clone();
        self.turns_ever = then.turns;
    }

    pub fn replay(mut self, events: &[Event]) -> State {
        for event in events {
            self.apply(event.seq, &event.fact);
        }
        self.changed.clear();
        self
    }

    pub fn current(&self) -> Option<&Turn> {
        self.turns.front().filter(|turn| turn.phase != Phase::Queued)
    }

    pub fn is_running(&self, turn: TurnId) -> bool {
        self.running() == Some(turn)
    }

    fn running(&self) -> Option<TurnId> {
        self.turns.front().filter(|turn| matches!(turn.phase, Phase::Running { .. })).map(|turn| turn.id)
    }

    /// Nothing runs, nothing waits to be saved.
    pub fn is_at_rest(&self) -> bool {
        self.current().is_none()
    }

    pub fn decide(&self, wish: &Wish) -> Result<Vec<Fact>, Refused> {
        match wish {
            Wish::Prompt { turn, content, ask, wake } => {
                let queued = Fact::Queued { turn: *turn, content: content.clone(), ask: ask.clone() };
                match self.status {
                    Status::Active | Status::Starting => Ok(vec![queued]),
                    Status::Ended => Err(Refused::Not(self.status)),
                    Status::Paused | Status::Stopped | Status::Error if *wake == Wake::No => {
                        Err(Refused::Not(self.status))
                    }
                    Status::Paused | Status::Stopped | Status::Error => Ok(vec![queued, self.back()]),
                }
            }
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
            Wish::Resume => match self.status {
                Status::Active | Status::Starting => Ok(Vec::new()),
                Status::Paused | Status::Stopped | Status::Error => Ok(vec![self.back()]),
                Status::Ended => Err(Refused::Gone),
            },
            Wish::Rewind { to, seq, then } => match self.status {
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

    /// The way back to active: at once if the sandbox is still there.
    fn back(&self) -> Fact {
        if self.awake.is_some() { Fact::Resumed { receipt: self.warm(), head: None } } else { Fact::Resuming }
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
            (Phase::Running { .. } | Phase::Saving { .. } | Phase::Queued, _) => Ok(Vec::new()),
        }
    }

    /// The running turn ends here; the caller has captured what it left.
    fn give_up_current(&self) -> impl Iterator<Item = Fact> {
        let checkpoint = self.checkpoint;
        self.current().map(|turn| (turn.id, turn.phase.clone())).into_iter().map(move |(turn, phase)| {
            let (how, problem) = match phase {
                Phase::Saving { how, problem, .. } => (how, problem),
                Phase::Running { .. } | Phase::Cut | Phase::Queued => (Outcome::Interrupted, None),
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

    pub fn next(&self) -> Next {
        if let Some(Turn { id, phase: Phase::Saving { .. }, .. }) = self.turns.front() {
            return Next::Save { turn: *id };
        }
        match (self.status, &self.awake) {
            (Status::Stopped | Status::Ended | Status::Error, Some(_)) => Next::Sleep,
            (Status::Stopped | Status::Ended | Status::Error | Status::Paused, _) => Next::Wait,
            (Status::Starting, _) | (Status::Active, None) => Next::Wake,
            (Status::Active, Some(awake)) => self.next_turn(awake),
        }
    }

    fn next_turn(&self, awake: &Awake) -> Next {
        let Some(turn) = self.turns.front() else { return Next::Wait };
        let input = awake.next_input;
        let say = |attempt| Say::Prompt {
            turn: turn.id,
            head: self.head.clone(),
            content: turn.content.clone(),
            ask: turn.ask.clone(),
            attempt,
        };
        match turn.phase {
            Phase::Queued => Next::Tell { fact: Fact::Started { turn: turn.id, input }, input, say: say(1) },
            Phase::Cut => {
                let attempt = turn.attempt + 1;
                let discard_after = self.kept.unwrap_or(turn.seq);
                let fact = Fact::Continued { turn: turn.id, attempt, discard_after, input };
                Next::Tell { fact, input, say: say(attempt) }
            }
            Phase::Running { .. } | Phase::Saving { .. } => Next::Wait,
        }
    }

    /// What the agent was told in this shim's life beyond what the shim got: to be sent again.
    pub fn untold(&self, last_input: u64) -> Vec<(u64, Say)> {
        let of_turn = match self.turns.front() {
            Some(Turn { phase: Phase::Running { inputs }, .. }) => inputs.as_slice(),
            Some(_) | None => &[],
        };
        let beside = self.awake.iter().flat_map(|awake| &awake.beside).map(|(number, say)| (number, &**say));
        let told = of_turn.iter().map(|(number, say)| (number, say)).chain(beside);
        let untold = told.filter(|(number, _)| **number > last_input);
        let mut untold: Vec<(u64, Say)> = untold.map(|(number, say)| (*number, say.clone())).collect();
        untold.sort_by_key(|(number, _)| *number);
        untold
    }

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

    pub fn was_asked_to_stop(&self) -> bool {
        matches!(self.turns.front(), Some(Turn { phase: Phase::Running { inputs }, .. }) if asked_to_stop(inputs))
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
        facts.extend(self.after_a_death(broken, on_interrupted));
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

    pub fn apply(&mut self, seq: Seq, fact: &Fact) {
        self.last_seq = seq;
        match fact {
            Fact::Created { .. } => self.status = Status::Starting,
            Fact::Forked { checkpoint, memory, told, .. } => {
                self.status = Status::Paused;
                self.checkpoint = *checkpoint;
                self.settled = *checkpoint;
                self.last_checkpoint = checkpoint.unwrap_or(0);
                self.unborn = Some(*memory);
                self.told = *told;
            }
            Fact::Queued { turn, content, ask } => self.queue(seq, *turn, content, ask),
            Fact::Stirred { turn } => self.stir(seq, *turn),
            Fact::Started { turn, input } => self.start(*turn, 1, *input),
            Fact::Continued { turn, attempt, input, .. } => self.start(*turn, *attempt, *input),
            Fact::Said { .. } | Fact::SaveFailed { .. } => {}
            Fact::Interrupting { turn, input } => self.note_interrupt(*turn, *input),
            Fact::Asked(asked) => self.note_asked(seq, asked),
            Fact::Answered { id, verdict, input, .. } => self.note_answered(*id, verdict.as_ref(), *input),
            Fact::Setting { setting, input } => {
                self.remember(*input, Say::Set { setting: setting.clone(), input: *input });
            }
            Fact::Rested { turn, how, text, problem, .. } => {
                let phase = Phase::Saving { how: *how, text: text.clone(), problem: problem.clone() };
                self.set_phase(*turn, phase, TurnState::Saving);
            }
            Fact::Saved(saved) => self.saved(saved),
            Fact::Finished { turn, how, .. } => self.finish(*turn, *how),
            Fact::Cut { turn, death } => {
                if let Some(front) = self.turns.front_mut().filter(|front| front.id == *turn) {
                    front.deaths += u32::from(counts(death));
                }
                self.set_phase(*turn, Phase::Cut, TurnState::Cut);
            }
            Fact::Awake { incarnation, kept } => {
                self.kept = *kept;
                // Number 1 was the greeting.
                self.awake =
                    Some(Awake { incarnation: *incarnation, next_input: 2, beside: VecDeque::new() });
                self.born = true;
                self.activate();
            }
            Fact::Asleep { .. } => {
                self.stop_running();
                self.pending.clear();
                self.awake = None;
            }
            Fact::ResumeFailed { .. } => {}
            Fact::Resuming => {
                self.status = Status::Starting;
                self.resuming = true;
            }
            Fact::Resumed { receipt, head } => {
                self.activate();
                self.head.clone_from(head);
                self.tell_once = receipt.tier == Tier::History;
                // The newest could not be read, and an older one came back.
                if receipt.checkpoint.is_some() && receipt.checkpoint < self.checkpoint {
                    (self.checkpoint, self.settled) = (receipt.checkpoint, receipt.checkpoint);
                }
            }
            Fact::Paused => {
                self.status = Status::Paused;
                // A server that stops has ended the sandbox before it says so.
                self.held = self.awake.is_some();
            }
            Fact::Stopped => self.status = Status::Stopped,
            Fact::Failed { problem } => {
                self.status = Status::Error;
                self.problem = Some(problem.clone());
            }
            Fact::Rewound(rewound) => self.rewound(seq, rewound),
            Fact::Ended => self.status = Status::Ended,
        }
    }

    /// Its sandbox was ended before; whoever wants to go on wakes it.
    fn rewound(&mut self, seq: Seq, Rewound { to, then, .. }: &Rewound) {
        self.status = match self.status {
            Status::Starting | Status::Active | Status::Paused | Status::Error => Status::Paused,
            status @ (Status::Stopped | Status::Ended) => status,
        };
        self.problem = None;
        self.rewound = seq;
        self.checkpoint = Some(*to);
        self.settled = Some(*to);
        self.told = then.told;
        self.unborn = then.memory;
        self.born = false;
        self.inherit(then);
    }

    /// The conversation as it stands, for somebody who comes back to it later.
    pub fn then(&self) -> Then {
        let waiting: Vec<TurnId> =
            self.turns.iter().filter(|turn| turn.attempt == 0).map(|turn| turn.id).collect();
        let under_way = self.turns.iter().find(|turn| turn.attempt > 0).map(|turn| turn.id);
        let turns = self.turns_ever - waiting.len() as u64;
        Then {
            // What was under way does not go on, but the agent remembers it.
            told: self.told + u64::from(under_way.is_some()),
            turns,
            title: self.title.clone().filter(|_| turns > 0),
            last_text: self.last_text.clone(),
            memory: self.unborn,
            under_way,
            waiting,
        }
    }

    fn activate(&mut self) {
        self.status = Status::Active;
        self.resuming = false;
        self.problem = None;
    }

    fn queue(&mut self, seq: Seq, id: TurnId, content: &serde_json::Value, ask: &Ask) {
        let turn = Turn {
            id,
            seq,
            content: content.clone(),
            ask: ask.clone(),
            attempt: 0,
            deaths: 0,
            own: false,
            phase: Phase::Queued,
        };
        self.title.get_or_insert_with(|| shortened(&plain_text(content), TITLE));
        self.turns_ever += 1;
        self.changed.push(row(&turn, TurnState::Queued));
        self.turns.push_back(turn);
    }

    /// Before whatever waits: the agent is at it already.
    fn stir(&mut self, seq: Seq, id: TurnId) {
        let turn = Turn {
            id,
            seq,
            content: serde_json::Value::Null,
            ask: Ask::default(),
            attempt: 1,
            deaths: 0,
            own: true,
            phase: Phase::Running { inputs: Vec::new() },
        };
        self.turns_ever += 1;
        self.changed.push(row(&turn, TurnState::Running));
        self.turns.push_front(turn);
    }

    /// Whether the agent may have a turn of its own now.
    pub fn may_stir(&self) -> bool {
        self.awake.is_some() && self.status == Status::Active && self.current().is_none()
    }

    fn start(&mut self, id: TurnId, attempt: u32, input: u64) {
        let Some(turn) = self.turns.front_mut().filter(|turn| turn.id == id) else { return };
        turn.attempt = attempt;
        let (content, ask, head) = (turn.content.clone(), turn.ask.clone(), self.head.clone());
        let say = Say::Prompt { turn: id, head, content, ask, attempt };
        turn.phase = Phase::Running { inputs: vec![(input, say)] };
        self.changed.push(row(turn, TurnState::Running));
        // An agent that has the message in its memory does not read it again.
        if attempt == 1 || self.tell_once {
            self.head = None;
        }
        self.took_input(input);
    }

    fn note_interrupt(&mut self, id: TurnId, input: u64) {
        if let Some(Turn { phase: Phase::Running { inputs }, .. }) =
            self.turns.front_mut().filter(|turn| turn.id == id)
        {
            inputs.push((input, Say::Interrupt { turn: id }));
        }
        self.took_input(input);
    }

    fn took_input(&mut self, input: u64) {
        if let Some(awake) = &mut self.awake {
            awake.next_input = input + 1;
        }
    }

    fn set_phase(&mut self, id: TurnId, phase: Phase, state: TurnState) {
        if let Some(turn) = self.turns.front_mut().filter(|turn| turn.id == id) {
            turn.phase = phase;
            self.changed.push(row(turn, state));
        }
    }

    /// Without a sandbox nothing runs: a turn that was asked to stop rests, any other is cut.
    fn stop_running(&mut self) {
        let Some(turn) = self.running() else { return };
        if self.was_asked_to_stop() {
            let rested = Phase::Saving { how: Outcome::Interrupted, text: String::new(), problem: None };
            self.set_phase(turn, rested, TurnState::Saving);
        } else {
            self.set_phase(turn, Phase::Cut, TurnState::Cut);
        }
    }

    fn saved(&mut self, saved: &Saved) {
        self.last_checkpoint = saved.number;
        if !saved.salvage {
            self.checkpoint = Some(saved.number);
            if !saved.mid_turn {
                self.settled = Some(saved.number);
            }
            if self.born {
                self.unborn = None;
            }
        }
    }

    fn finish(&mut self, id: TurnId, how: Outcome) {
        let Some(place) = self.turns.iter().position(|turn| turn.id == id) else { return };
        let Some(turn) = self.turns.remove(place) else { return };
        if let Phase::Saving { text, .. } = &turn.phase
            && !text.is_empty()
        {
            self.last_text = Some(shortened(text, LAST_TEXT));
        }
        self.told += u64::from(turn.attempt > 0 && !turn.own);
        let state = match how {
            Outcome::Done => TurnState::Done,
            Outcome::Failed => TurnState::Failed,
            Outcome::Interrupted => TurnState::Interrupted,
            Outcome::Cancelled => TurnState::Cancelled,
        };
        self.changed.push(row(&turn, state));
    }

    pub fn card(&self) -> Card {
        Card {
            status: self.status,
            title: self.title.clone(),
            last_text: self.last_text.clone(),
            turns: self.turns_ever,
            open_turns: self.turns.len() as u64,
            problem: self.problem.clone(),
            checkpoint: self.checkpoint,
            pending: self.pending.iter().map(|pending| pending.seq).collect(),
        }
    }

    /// The turn rows that changed since this was last asked.
    pub fn take_changed(&mut self) -> Vec<TurnRow> {
        std::mem::take(&mut self.changed)
    }
}

fn row(turn: &Turn, state: TurnState) -> TurnRow {
    TurnRow { id: turn.id, seq: turn.seq, state, attempt: turn.attempt }
}

/// Whether the agent was told to give the turn up.
fn asked_to_stop(inputs: &[(u64, Say)]) -> bool {
    inputs.iter().any(|(_, say)| matches!(say, Say::Interrupt { .. }))
}

/// A turn that we cut ourselves has not crashed.
fn counts(death: &Death) -> bool {
    match death {
        Death::Agent { .. }
        | Death::Sandbox { .. }
        | Death::OutOfMemory
        | Death::LineTooLong
        | Death::Machine => true,
        Death::Shutdown => false,
    }
}

/// The words of a message: a string, or the text blocks of a list.
pub fn plain_text(content: &serde_json::Value) -> String {
    match content {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block.get("text")?.as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

fn shortened(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
