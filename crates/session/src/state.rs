//! A session as a pure state machine. Start reading here.
//!
//! `decide` answers a wish with facts or a refusal, `apply` folds a fact in, `next` says what is to be done as
//! things stand, and `bereaved` what it means that the last one who looked after the session died. It is
//! level-triggered: after a crash there is no list of effects, only a state.
//!
//! The words are here; `decide`, `apply` and `next` have a file each, and `death` has what deaths mean.

mod apply;
mod budget;
mod death;
mod decide;
mod meter;
mod next;
mod permission;
mod steer;

pub use budget::{Budget, Left};
pub use meter::{Meanwhile, Meter};
pub use permission::Pending;
pub(crate) use permission::cancelled;

use ash_driver::Say;
use ash_model::{
    Adopted, Ask, Event, Fact, Incarnation, Lock, OnBusy, Outcome, PermissionId, Problem, Reached, Seq,
    Status, Then, TurnId, Verdict,
};
use ash_store::{Card, TurnRow};
use std::{collections::VecDeque, sync::Arc};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub status: Status,
    /// Turns that are not over, in order. Only the first can be anything but queued.
    pub turns: VecDeque<Turn>,
    pub awake: Option<Awake>,
    /// The agent that runs was started with options that are not those of the session any more.
    pub outdated: bool,
    /// Where the last change of options stands in the log that an agent has to be started for.
    pub configured: Seq,
    /// What the agent waits for, in the order that it asked.
    pub pending: Vec<Pending>,
    /// Who has the session to itself. It may be over: a state knows no time.
    lock: Option<Lock>,
    /// The highest number ever given to a lock.
    pub locks: u64,
    /// The newest checkpoint that holds what a turn or a change left, or the one that was gone back to.
    pub checkpoint: Option<u64>,
    /// The newest that is not from the middle of a turn: what a fork begins with.
    pub settled: Option<u64>,
    /// Turns that are over and whose files no checkpoint holds: saving them failed, or the machine went down before.
    pub unsaved: u64,
    /// The last turn whose files are in a checkpoint of its end.
    saved_turn: Option<TurnId>,
    /// The salvage checkpoint of a tree that could not be trusted, until a receipt has named it.
    pub salvaged: Option<u64>,
    /// Where the last rewind stands in the log. A tree from before it is not the session's any more.
    pub rewound: Seq,
    /// The highest number ever given to a checkpoint of this workspace.
    pub last_checkpoint: u64,
    /// The last time that the files of the workspace went back, of which the session knows, by the checkpoint's number.
    pub backs: u64,
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
    pub meter: Meter,
    /// Another witness knew more than the database; the next receipt says so.
    pub adopted: Option<Adopted>,
    /// Events that no witness has any more, from the first to the last; the next receipt names them.
    pub missing: Vec<(Seq, Seq)>,
    /// What its options allow it to use.
    pub budget: Budget,
    /// Which limit was used up last, until it goes on.
    reached: Option<Reached>,
    changed: Vec<TurnRow>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub id: TurnId,
    pub seq: Seq,
    pub content: serde_json::Value,
    pub ask: Ask,
    /// The number of the lock that its sender held.
    pub lock: Option<u64>,
    pub attempt: u32,
    pub deaths: u32,
    /// The agent's own, without a prompt.
    pub own: bool,
    /// The agent that runs was told of it in the middle of another turn.
    pub told: bool,
    /// The agent said that it has heard it in the middle of another turn.
    pub heard: bool,
    pub phase: Phase,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    Queued,
    Running {
        inputs: Vec<(u64, Say)>,
    },
    Saving {
        how: Outcome,
        text: String,
        problem: Option<Problem>,
    },
    Cut,
    /// The agent has heard it in the middle of another one, and it ends with that.
    Joined {
        into: TurnId,
    },
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
        on_busy: OnBusy,
        /// The number of the lock that its sender holds.
        lock: Option<u64>,
    },
    /// A message that waits is taken back.
    Withdraw {
        turn: TurnId,
    },
    /// These go before the others that wait, in this order.
    Reorder {
        first: Vec<TurnId>,
    },
    Interrupt,
    /// To something that the agent waits for.
    Answer {
        id: PermissionId,
        verdict: Verdict,
    },
    Pause,
    Stop,
    /// The sandbox is to go; the session may come back.
    Release {
        /// Whatever it is at.
        by_force: bool,
    },
    Resume,
    /// To checkpoint `to`, which covers the log up to `seq`.
    Rewind {
        to: u64,
        seq: Seq,
        then: Then,
        /// In a shared workspace: the files of everybody, too.
        files: bool,
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
    #[error(
        "The session is busy: a turn is not over. Wait for it, or send the message with onBusy \"queue\""
    )]
    Occupied,
    #[error(
        "The turn does not wait any more: the agent was told of it, or it is over. One that runs can be interrupted"
    )]
    NotWaiting,
    #[error("{0}")]
    Budget(Reached),
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
    /// This is so, and what it says to the agent is to be said.
    Note {
        facts: Vec<Fact>,
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
            outdated: false,
            configured: 0,
            pending: Vec::new(),
            lock: None,
            locks: 0,
            checkpoint: None,
            settled: None,
            unsaved: 0,
            saved_turn: None,
            salvaged: None,
            rewound: 0,
            last_checkpoint: 0,
            backs: 0,
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
            meter: Meter::default(),
            adopted: None,
            missing: Vec::new(),
            budget: Budget::default(),
            reached: None,
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

    pub fn was_asked_to_stop(&self) -> bool {
        matches!(self.turns.front(), Some(Turn { phase: Phase::Running { inputs }, .. }) if asked_to_stop(inputs))
    }

    /// The conversation as it stands, for somebody who comes back to it later.
    pub fn then(&self) -> Then {
        // What was heard in the middle of a turn is part of the conversation, although it never began by itself.
        let waits = |turn: &&Turn| turn.attempt == 0 && !matches!(turn.phase, Phase::Joined { .. });
        let waiting: Vec<TurnId> = self.turns.iter().filter(waits).map(|turn| turn.id).collect();
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
            lock: self.lock(),
        }
    }

    /// The last lock that was not given up. Turns of a session that rests do not run, so they do not keep it.
    pub fn lock(&self) -> Option<Lock> {
        let lock = self.lock.clone()?;
        let runs = matches!(self.status, Status::Starting | Status::Active);
        let in_use = runs && self.turns.iter().any(|turn| turn.lock == Some(lock.number));
        Some(Lock { in_use, ..lock })
    }

    /// The turn rows that changed since this was last asked.
    pub fn take_changed(&mut self) -> Vec<TurnRow> {
        std::mem::take(&mut self.changed)
    }
}

/// Whether the agent was told to give the turn up.
fn asked_to_stop(inputs: &[(u64, Say)]) -> bool {
    inputs.iter().any(|(_, say)| matches!(say, Say::Interrupt { .. }))
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
