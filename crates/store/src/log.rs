//! The log of a session: events, the deltas between them, and the turns that they make up. A fork's log begins with its
//! parents' logs.

use crate::{Checkpoint, Lease, Result, SessionSummary};
use ash_model::{
    Event, EventSeq, Fact, Incarnation, JournalPosition, LogCursor, MessageDelta, NewEvent, SessionRowId,
    Timestamp, TurnId,
};
use async_trait::async_trait;

/// How far a turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnState {
    /// It waits for its start.
    Queued,
    /// The agent works on it.
    Running,
    /// The agent has answered; the checkpoint is being written.
    Saving,
    /// A crash interrupted it, and what follows is not decided.
    Cut,
    /// It is finished and its checkpoint is durable.
    Done,
    /// It ended with an error.
    Failed,
    /// A caller interrupted it.
    Interrupted,
    /// A caller removed it from the queue before it started.
    Cancelled,
}

impl TurnState {
    const ALL: [(TurnState, &'static str); 8] = [
        (TurnState::Queued, "queued"),
        (TurnState::Running, "running"),
        (TurnState::Saving, "saving"),
        (TurnState::Cut, "cut"),
        (TurnState::Done, "done"),
        (TurnState::Failed, "failed"),
        (TurnState::Interrupted, "interrupted"),
        (TurnState::Cancelled, "cancelled"),
    ];

    /// The stored name.
    pub fn as_str(self) -> &'static str {
        TurnState::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }

    /// The state with this stored name.
    pub fn parse(text: &str) -> Option<TurnState> {
        TurnState::ALL.iter().find(|(_, name)| *name == text).map(|(state, _)| *state)
    }

    /// Whether the turn can change no more.
    pub fn is_over(self) -> bool {
        match self {
            TurnState::Queued | TurnState::Running | TurnState::Saving | TurnState::Cut => false,
            TurnState::Done | TurnState::Failed | TurnState::Interrupted | TurnState::Cancelled => true,
        }
    }
}

/// A turn as the database has it.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    /// Its id, which is also the id of the message that started it.
    pub id: TurnId,
    /// The event that queued it.
    pub seq: EventSeq,
    /// How far it has come.
    pub state: TurnState,
    /// How often it was started.
    pub attempt: u32,
}

/// One step of a session. Everything in it becomes durable together.
#[derive(Debug, Clone)]
pub struct LogAppend {
    /// The session.
    pub session: SessionRowId,
    /// The number of the first event. The log must end right before it.
    pub first_seq: EventSeq,
    /// The events of the step. A step may have none.
    pub events: Vec<NewEvent>,
    /// Parts of messages that are streamed before their event.
    pub deltas: Vec<MessageDelta>,
    /// Turns that change. Of several rows of one turn the last one counts.
    pub turns: Vec<TurnRow>,
    /// The summary after the step.
    pub summary: SessionSummary,
    /// The checkpoint that the step completes.
    pub checkpoint: Option<Checkpoint>,
    /// The end of the part of the sandbox's journal that the log contains after this step.
    pub journal: Option<JournalPosition>,
    /// When the step was taken.
    pub at: Timestamp,
}

/// An event or a delta, with its position in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogItem {
    /// Its position.
    pub at: LogCursor,
    /// The turn that it belongs to.
    pub turn: Option<TurnId>,
    /// When it was written.
    pub time: Timestamp,
    /// What it says.
    pub content: LogItemContent,
}

/// What an item of the log says.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a page is short-lived, and a box per event would cost more")]
pub enum LogItemContent {
    /// The payload of an event.
    Event(Fact),
    /// A part of a message, as the agent sent it.
    Delta(String),
}

impl LogItem {
    /// The event, if it is one.
    pub fn into_event(self) -> Option<Event> {
        match self.content {
            LogItemContent::Event(fact) => {
                Some(Event { seq: self.at.seq, turn: self.turn, at: self.time, fact })
            }
            LogItemContent::Delta(_) => None,
        }
    }
}

/// Which events of a log are read.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Those after this one.
    pub after: EventSeq,
    /// At most so many.
    pub limit: u32,
    /// The stored names of the kinds to read. Empty: all kinds.
    pub kinds: Vec<&'static str>,
}

impl EventQuery {
    /// The kinds that say which earlier events no longer count. They are few, and every list of messages needs all of them,
    /// so an index finds them without reading the log.
    pub const SUPERSEDING: [&'static str; 4] = ["forked", "continued", "requeued", "rewound"];
}

/// A message with its number in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberedMessage {
    /// Its number among the messages of the whole log, from 1. It never changes, because the log only grows.
    pub ordinal: u64,
    /// The event that it is.
    pub event: Event,
}

/// How much of a sandbox's journal the log of a session contains.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionJournalPosition {
    /// The session.
    pub session: SessionRowId,
    /// The end of the part that its log contains.
    pub journal: JournalPosition,
}

/// Logs of sessions. A step is written as a whole, by the holder of the workspace only.
#[async_trait]
pub trait LogStore: Send + Sync {
    /// Writes a step, all of it or nothing. `Stale`: the lease is not current, or the log does not end before the step.
    async fn append(&self, lease: &Lease, append: LogAppend) -> Result<()>;
    /// A session's own events without the agent's messages. Its state is folded from them.
    async fn facts(&self, no: SessionRowId) -> Result<Vec<Event>>;
    /// Events and deltas after a position, in order, the parents' included. A page may be shorter than `limit`; only an
    /// empty one is the end.
    async fn read_log(&self, no: SessionRowId, after: LogCursor, limit: u32) -> Result<Vec<LogItem>>;
    /// The messages with a number above `after`, in order, the parents' included.
    async fn messages(&self, no: SessionRowId, after: u64, limit: u32) -> Result<Vec<NumberedMessage>>;
    /// Events by kind, the parents' included. A page may be shorter than the limit; only an empty one is the end.
    async fn events(&self, no: SessionRowId, query: &EventQuery) -> Result<Vec<Event>>;
    /// How much of a sandbox's journal is in the log of each session that works in it.
    async fn journal_positions(&self, incarnation: Incarnation) -> Result<Vec<SessionJournalPosition>>;
    /// A turn of a session.
    async fn turn(&self, no: SessionRowId, turn: TurnId) -> Result<Option<TurnRow>>;
}
