//! What the log says of a session: a fold over its events, and the questions that it alone can answer.

use super::{ClientToolCall, PendingPermission, SessionBudget, UsageMeter};
use ash_driver::AgentInput;
use ash_model::{
    AdoptedHistory, ConversationPoint, Event, EventSeq, Fact, Incarnation, LimitReached, MessageOptions,
    Problem, SessionLock, SessionStatus, TurnId, TurnOutcome,
};
use ash_store::{SessionSummary, TurnRow};
use std::{collections::VecDeque, sync::Arc};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq)]
pub struct LogState {
    pub status: SessionStatus,
    /// Turns that are not over, in order. Only the first can be anything but queued.
    pub turns: VecDeque<Turn>,
    pub awake: Option<AwakeAgent>,
    /// The running agent was started with options that have changed since.
    pub agent_options_outdated: bool,
    /// The log position of the last change of options that needs a new agent.
    pub last_options_change: EventSeq,
    /// The agent's open permission requests, in the order of asking.
    pub pending: Vec<PendingPermission>,
    /// The calls of the client's tools in the turn under way, answered or not, in the order of asking.
    pub tool_calls: Vec<ClientToolCall>,
    /// The lock. It may have run out: a log state knows no time.
    pub(super) lock: Option<SessionLock>,
    /// The highest number ever given to a lock.
    pub locks: u64,
    /// The newest checkpoint after a turn or a change, or the target of the last rewind.
    pub checkpoint: Option<u64>,
    /// The newest checkpoint that is not from the middle of a turn: forks begin with it.
    pub last_full_checkpoint: Option<u64>,
    /// Turns that are over and whose files no checkpoint holds: saving them failed, or the machine died before.
    pub unsaved: u64,
    /// The last turn whose files are in a checkpoint of its end.
    pub(super) saved_turn: Option<TurnId>,
    /// The salvage checkpoint of a tree that could not be trusted, until a receipt has named it.
    pub salvaged: Option<u64>,
    /// The log position of the last rewind. A tree from before it is not the session's any more.
    pub rewound: EventSeq,
    /// The highest number ever given to a checkpoint of this workspace.
    pub last_checkpoint: u64,
    /// The checkpoint number of the last rewind of the whole workspace that the session knows of.
    pub last_workspace_rewind: u64,
    /// Turns that were delivered to the agent and are over: what it should remember.
    pub turns_delivered: u64,
    /// A fork continues the conversation that its parent stored under this id, until a checkpoint holds its own.
    pub inherited_memory: Option<Uuid>,
    /// An agent has run since, so its own transcript is among the files.
    pub(super) has_own_memory: bool,
    /// What the agent is told at the start of the next message.
    pub briefing: Option<String>,
    pub(super) replay_history_once: bool,
    /// The agent's memory holds its interrupted turn up to this event.
    pub resumed_after: Option<EventSeq>,
    /// A client resumes the session, so the next start writes a receipt.
    pub resuming: bool,
    /// A client asked for the pause. If the server only stopped, waiting turns continue.
    pub pause_requested: bool,
    pub turns_total: u64,
    pub title: Option<String>,
    pub last_text: Option<String>,
    pub problem: Option<Problem>,
    pub last_seq: EventSeq,
    pub meter: UsageMeter,
    /// Another witness had more events than the database; the next receipt says so.
    pub adopted: Option<AdoptedHistory>,
    /// Events that no witness has any more, from the first to the last; the next receipt names them.
    pub missing: Vec<(EventSeq, EventSeq)>,
    /// What the options allow the session to use.
    pub budget: SessionBudget,
    /// The limit that was used up last, until the session continues.
    pub(super) reached: Option<LimitReached>,
    pub(super) changed: Vec<TurnRow>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub id: TurnId,
    pub seq: EventSeq,
    pub content: serde_json::Value,
    pub options: MessageOptions,
    /// The number of the lock that its sender held.
    pub lock: Option<u64>,
    pub attempt: u32,
    pub deaths: u32,
    /// The agent started it itself, without a prompt.
    pub self_started: bool,
    /// It was delivered to the running agent in the middle of another turn.
    pub delivered: bool,
    /// The agent has acknowledged it in the middle of another turn.
    pub acknowledged: bool,
    pub phase: TurnPhase,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TurnPhase {
    Queued,
    Running {
        inputs: Vec<(u64, AgentInput)>,
    },
    Saving {
        how: TurnOutcome,
        text: String,
        problem: Option<Problem>,
    },
    Cut,
    /// The agent acknowledged it in the middle of turn `into`; it ends with that turn.
    Joined {
        into: TurnId,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct AwakeAgent {
    pub incarnation: Incarnation,
    /// The number of the next line to the agent.
    pub next_input: u64,
    /// The last inputs to the agent that belong to no turn.
    pub(super) out_of_turn_inputs: VecDeque<(u64, Arc<AgentInput>)>,
}

impl LogState {
    /// A session that has just been made. Everything else follows from its events.
    pub fn new(last_seq: EventSeq) -> LogState {
        LogState {
            status: SessionStatus::Starting,
            turns: VecDeque::new(),
            awake: None,
            agent_options_outdated: false,
            last_options_change: 0,
            pending: Vec::new(),
            tool_calls: Vec::new(),
            lock: None,
            locks: 0,
            checkpoint: None,
            last_full_checkpoint: None,
            unsaved: 0,
            saved_turn: None,
            salvaged: None,
            rewound: 0,
            last_checkpoint: 0,
            last_workspace_rewind: 0,
            turns_delivered: 0,
            inherited_memory: None,
            has_own_memory: false,
            briefing: None,
            replay_history_once: false,
            resumed_after: None,
            resuming: false,
            pause_requested: false,
            turns_total: 0,
            title: None,
            last_text: None,
            problem: None,
            last_seq,
            meter: UsageMeter::default(),
            adopted: None,
            missing: Vec::new(),
            budget: SessionBudget::default(),
            reached: None,
            changed: Vec::new(),
        }
    }

    /// What a fork takes from its parent and no event of its own says.
    pub fn adopt(&mut self, card: &SessionSummary) {
        self.title = card.title.clone();
        self.last_text = card.last_text.clone();
        self.turns_total = card.turns;
    }

    /// What a fork takes from its parent's conversation at the point of the fork.
    pub fn inherit(&mut self, then: &ConversationPoint) {
        self.title = then.title.clone();
        self.last_text = then.last_text.clone();
        self.turns_total = then.turns;
    }

    pub fn replay(mut self, events: &[Event]) -> LogState {
        for event in events {
            self.apply(event.seq, &event.fact);
        }
        self.changed.clear();
        self
    }

    pub fn current(&self) -> Option<&Turn> {
        self.turns.front().filter(|turn| turn.phase != TurnPhase::Queued)
    }

    pub fn is_running(&self, turn: TurnId) -> bool {
        self.running() == Some(turn)
    }

    pub(super) fn running(&self) -> Option<TurnId> {
        self.turns.front().filter(|turn| matches!(turn.phase, TurnPhase::Running { .. })).map(|turn| turn.id)
    }

    /// Whether no turn runs or waits to be saved.
    pub fn is_at_rest(&self) -> bool {
        self.current().is_none()
    }

    pub fn was_asked_to_stop(&self) -> bool {
        matches!(self.turns.front(), Some(Turn { phase: TurnPhase::Running { inputs }, .. }) if asked_to_stop(inputs))
    }

    /// The conversation at this point, for a later rewind or fork.
    pub fn conversation_point(&self) -> ConversationPoint {
        // A message that joined a turn is part of the conversation, although it never began by itself.
        let waits = |turn: &&Turn| turn.attempt == 0 && !matches!(turn.phase, TurnPhase::Joined { .. });
        let waiting: Vec<TurnId> = self.turns.iter().filter(waits).map(|turn| turn.id).collect();
        let under_way = self.turns.iter().find(|turn| turn.attempt > 0);
        let turns = self.turns_total - waiting.len() as u64;
        ConversationPoint {
            // The turn under way does not continue, but the agent remembers it. No client told it a self-started turn.
            turns_delivered: self.turns_delivered
                + u64::from(under_way.is_some_and(|turn| !turn.self_started)),
            turns,
            title: self.title.clone().filter(|_| turns > 0),
            last_text: self.last_text.clone(),
            memory: self.inherited_memory,
            under_way: under_way.map(|turn| turn.id),
            waiting,
        }
    }

    pub fn summary(&self) -> SessionSummary {
        SessionSummary {
            status: self.status,
            title: self.title.clone(),
            last_text: self.last_text.clone(),
            turns: self.turns_total,
            open_turns: self.turns.len() as u64,
            problem: self.problem.clone(),
            checkpoint: self.checkpoint,
            pending: self.waiting_requests(),
            lock: self.lock(),
        }
    }

    /// The requests of the agent that a client can answer: permissions, questions, and calls of the client's tools.
    fn waiting_requests(&self) -> Vec<EventSeq> {
        let permissions = self.pending.iter().map(|pending| pending.seq);
        let mut all: Vec<EventSeq> = permissions.chain(self.open_tool_calls().map(|call| call.seq)).collect();
        all.sort_unstable();
        all
    }

    /// Whether the agent waits for a client.
    pub(super) fn waits_for_client(&self) -> bool {
        !self.pending.is_empty() || self.open_tool_calls().next().is_some()
    }

    /// The last lock that was not released. A turn of a session that is not running does not keep the lock alive.
    pub fn lock(&self) -> Option<SessionLock> {
        let lock = self.lock.clone()?;
        let runs = matches!(self.status, SessionStatus::Starting | SessionStatus::Active);
        let in_use = runs && self.turns.iter().any(|turn| turn.lock == Some(lock.number));
        Some(SessionLock { in_use, ..lock })
    }

    /// The end of a turn whose answer is there, and whose files this checkpoint holds.
    pub fn turn_end(&self, turn: TurnId, checkpoint: Option<u64>) -> Option<Fact> {
        let current = self.current().filter(|current| current.id == turn)?;
        match &current.phase {
            TurnPhase::Saving { how, problem, .. } => {
                Some(Fact::Finished { turn, outcome: *how, checkpoint, problem: problem.clone() })
            }
            TurnPhase::Queued | TurnPhase::Running { .. } | TurnPhase::Cut | TurnPhase::Joined { .. } => None,
        }
    }

    /// The state as it would be with these facts.
    pub fn after(&self, facts: &[Fact]) -> LogState {
        let mut state = self.clone();
        (state.last_seq + 1..).zip(facts).for_each(|(seq, fact)| state.apply(seq, fact));
        state
    }

    /// The turn rows that changed since the last call.
    pub fn take_changed_turns(&mut self) -> Vec<TurnRow> {
        std::mem::take(&mut self.changed)
    }
}

/// Whether the agent was told to stop the turn.
pub(super) fn asked_to_stop(inputs: &[(u64, AgentInput)]) -> bool {
    inputs.iter().any(|(_, say)| matches!(say, AgentInput::Interrupt { .. }))
}

/// The text of a message: a string, or the text blocks of a list.
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
