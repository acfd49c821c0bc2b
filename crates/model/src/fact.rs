//! Facts: everything that happened to a session. The session's state is a fold over them, so an unrecorded event has no
//! effect. The JSON of a fact is a stored format: see `docs/formats.md`.

use crate::{
    AgentName, Death, Epoch, EventSeq, Incarnation, LiveSetting, LockAcquisition, PermissionId,
    PermissionRequest, PermissionVerdict, Receipt, SessionId, SessionLock, SessionMetadata, SessionOptions,
    Tier, Timestamp, TokenUsage, ToolAnswer, ToolCallRecord, ToolRepeat, ToolRequest, TurnId, UsageIncrement,
    VerdictSource, failure::Problem, usage::LimitReached,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A fact with its position in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its number in the session's log, from 1 without gaps.
    pub seq: EventSeq,
    /// The turn of the event, if any.
    pub turn: Option<TurnId>,
    /// When it was recorded.
    pub at: Timestamp,
    /// What happened.
    pub fact: Fact,
}

/// A fact without a position in the log yet.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The turn of the event, if any.
    pub turn: Option<TurnId>,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub fact: Fact,
}

/// A part of a message that is still streaming: the n-th after event `seq`.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageDelta {
    /// The last event before the message.
    pub seq: EventSeq,
    /// The number of the part, from 1.
    pub index: u64,
    /// The turn of the message, if any.
    pub turn: Option<TurnId>,
    /// The agent's line, verbatim.
    pub line: String,
}

/// What happened. The serialized name of each variant is stored and never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Fact {
    /// The first event of every session.
    Created {
        /// The agent that the session runs.
        agent: AgentName,
        /// The version of the agent.
        version: u32,
        /// The caller's options, with the agent's own settings as defaults.
        options: SessionOptions,
    },
    /// Forked from another session: its files and its conversation. The agent keeps that conversation under id `memory`,
    /// and knows `turns_delivered` turns of it.
    Forked {
        /// `None`: the parent has been purged.
        parent: Option<SessionId>,
        /// The parent's checkpoint that the fork starts from, if there was one.
        checkpoint: Option<u64>,
        /// The id under which the agent keeps the parent's conversation.
        memory: uuid::Uuid,
        /// How many turns of it the agent has received.
        #[serde(rename = "told")]
        turns_delivered: u64,
        /// Messages of the shared log that the agent had not received: they belong to the parent alone.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<TurnId>,
    },
    /// The session accepted a message. Its turn runs after the turns before it.
    Queued {
        /// The turn of the message.
        turn: TurnId,
        /// The message: a text, or blocks of content.
        content: serde_json::Value,
        /// The options of the message.
        #[serde(rename = "ask")]
        options: MessageOptions,
        /// The number of the lock that the sender held.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lock: Option<u64>,
    },
    /// The new order of the waiting messages. Withdrawn messages are not part of the conversation, because the agent
    /// never received them.
    Requeued {
        /// All waiting messages, the next one first.
        order: Vec<TurnId>,
        /// Messages that a caller withdrew.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        withdrawn: Vec<TurnId>,
    },
    /// We send a waiting message to the agent during turn `into`, as input number `input`.
    Steering {
        /// The message's own turn.
        turn: TurnId,
        /// The running turn.
        into: TurnId,
        /// The number of the input that carries it.
        input: u64,
    },
    /// The agent received the message in that turn, and it ends with the turn. If the turn is interrupted by a crash, the
    /// message waits until the agent reports it again.
    Steered {
        /// The message's own turn.
        turn: TurnId,
        /// The turn that received it.
        into: TurnId,
    },
    /// We are about to send the prompt to the agent as input number `input` of this shim's incarnation.
    Started {
        /// The turn that starts.
        turn: TurnId,
        /// The number of the input that carries the prompt.
        input: u64,
    },
    /// An interrupted turn continues. The output of earlier attempts after event `discard_after` does not count.
    Continued {
        /// The turn that continues.
        turn: TurnId,
        /// The number of this attempt; the first one was 1.
        attempt: u32,
        /// The last event that counts.
        discard_after: EventSeq,
        /// The number of the input that carries the prompt.
        input: u64,
        /// The calls of the earlier attempts, and their outcomes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolCallRecord>,
    },
    /// The agent started to work by itself, because a background task ended. A turn without a prompt.
    #[serde(rename = "stirred")]
    SelfStarted {
        /// The turn that the agent started.
        turn: TurnId,
    },
    /// The agent's own line, verbatim.
    #[serde(skip)]
    Said {
        /// One JSON object, without a newline.
        line: String,
    },
    /// A client interrupts the turn; we send this to the agent as input number `input`.
    Interrupting {
        /// The turn to stop.
        turn: TurnId,
        /// The number of the input that carries the interrupt.
        input: u64,
    },
    /// The agent waits for permission to call a tool, or for the answer to a question.
    #[serde(rename = "asked")]
    PermissionRequested(PermissionRequest),
    /// The request is closed. If the agent gets a verdict, it is input number `input`.
    Answered {
        /// The request.
        id: PermissionId,
        /// The turn that waits for it; `None`: the agent waits outside of a turn.
        turn: Option<TurnId>,
        /// The verdict for the agent; `None`: it does not wait any more.
        verdict: Option<PermissionVerdict>,
        /// Where the answer came from.
        by: VerdictSource,
        /// The number of the input that carries the verdict.
        input: Option<u64>,
    },
    /// The agent calls a tool of the client and waits for the result.
    ToolRequested(ToolRequest),
    /// The call of a client's tool is closed.
    ToolAnswered(ToolAnswer),
    /// An agent that was started again repeats a call of a client's tool.
    ToolRepeated(ToolRepeat),
    /// The agent asked, in its own protocol, which tools the client has; we answer as input number `input`.
    ToolServerAsked {
        /// The agent's own name for the request.
        request: String,
        /// What it asked.
        message: serde_json::Value,
        /// The number of the input that carries the answer.
        input: u64,
    },
    /// A client changes a setting of the running agent; we send it as input number `input`.
    Setting {
        /// The new setting.
        setting: LiveSetting,
        /// The number of the input that carries it.
        input: u64,
    },
    /// The agent is idle: the turn produces no more output. Its files are not saved yet.
    Rested {
        /// The turn that the agent ended.
        turn: TurnId,
        /// How it ended.
        #[serde(rename = "how")]
        outcome: TurnOutcome,
        /// The agent's final text in it.
        text: String,
        /// What the agent says the turn used.
        usage: TokenUsage,
        /// What went wrong, if it failed.
        problem: Option<Problem>,
    },
    /// The files of workspace and agent are on disk as checkpoint `number`.
    Saved(SavedCheckpoint),
    /// The checkpoint failed.
    SaveFailed {
        /// The turn that waits for its checkpoint, if any.
        turn: Option<TurnId>,
        /// The cause, for a person.
        error: String,
    },
    /// The turn is over. Recorded exactly once.
    Finished {
        /// The turn that is over.
        turn: TurnId,
        /// How it ended.
        #[serde(rename = "how")]
        outcome: TurnOutcome,
        /// The checkpoint after it, if there is one.
        checkpoint: Option<u64>,
        /// What went wrong, if it failed.
        problem: Option<Problem>,
    },
    /// The turn's process died before the turn was over. Not final.
    Cut {
        /// The turn that was interrupted.
        turn: TurnId,
        /// What died.
        death: Death,
    },
    /// The sandbox runs and its agent answers.
    Awake {
        /// The incarnation of the shim that runs the sandbox.
        incarnation: Incarnation,
        /// The agent remembers the output of the interrupted turn up to this event, and continues from there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(rename = "kept")]
        resumed_after: Option<EventSeq>,
        /// Options changed during the start, so the agent may have old ones: it restarts before its next turn.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        outdated: bool,
        /// How many inputs after the greeting the start took, to offer the client's tools.
        #[serde(default, skip_serializing_if = "is_zero")]
        more_inputs: u64,
    },
    /// The sandbox is gone, intentionally or not.
    Asleep {
        /// The incarnation that ended; `None`: there was no sandbox.
        incarnation: Option<Incarnation>,
    },
    /// A client resumes the session, and it needs a sandbox.
    Resuming,
    /// The session has its agent and its files again.
    Resumed {
        /// What was restored, from where, and what is missing.
        receipt: Receipt,
        /// A note for the agent before the next message: how the session came back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<String>,
    },
    /// The agent did not start with its memory from this tier; the next tier follows.
    ResumeFailed {
        /// The tier that was tried.
        tier: Tier,
        /// The reason, for a person.
        reason: String,
    },
    /// The session is paused: by a caller, by its rules, or because its sandbox is gone.
    Paused,
    /// The session was stopped.
    Stopped,
    /// The session cannot continue by itself.
    Failed {
        /// The cause and the remedy.
        problem: Problem,
    },
    /// Conversation, agent and files went back to checkpoint `to` together. Nothing is deleted: the log keeps later
    /// events, and a later rewind can return to them.
    Rewound(SessionRewind),
    /// Another session of the workspace rewound the files of all its sessions.
    #[serde(rename = "taken_back")]
    WorkspaceRewound(WorkspaceRewind),
    /// The session has been unused for `ms`. Its sandbox is released in `left_ms`; `None`: now, or it has just
    /// become idle.
    Idle {
        /// How long the session has been unused, in milliseconds.
        ms: u64,
        /// When the sandbox is released, in milliseconds from now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left_ms: Option<u64>,
        /// Another session needed the place of its sandbox.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        evicted: bool,
    },
    /// The session has these options from now on. Those that an agent reads at its start apply from its next start.
    Configured {
        /// All options, including unchanged ones.
        options: SessionOptions,
        /// A running agent has other options and must restart.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restart: bool,
    },
    /// The session has this metadata from now on.
    Labelled {
        /// All entries, including unchanged ones.
        metadata: SessionMetadata,
    },
    /// Only the holder of the lock's token may write to the session.
    Locked {
        /// How the client acquired the lock.
        #[serde(rename = "how")]
        acquisition: LockAcquisition,
        /// The new lock.
        #[serde(flatten)]
        lock: SessionLock,
    },
    /// The holder released the lock.
    Unlocked {
        /// The number of the released lock.
        number: u64,
    },
    /// A usage report for a model's answer.
    Used(UsageIncrement),
    /// A budget is used up. The running turn is interrupted.
    BudgetReached(LimitReached),
    /// Another witness knew more of this session than the database; the log up to `seq` comes from there.
    Adopted(AdoptedHistory),
    /// An event that no witness has any more. It keeps its number, so that the log has no gap.
    Missing,
    /// A caller ended the session. No event follows.
    Ended,
}

impl Fact {
    /// The name in the `kind` column.
    pub fn kind(&self) -> &'static str {
        match self {
            Fact::Created { .. } => "created",
            Fact::Forked { .. } => "forked",
            Fact::Queued { .. } => "queued",
            Fact::Requeued { .. } => "requeued",
            Fact::Steering { .. } => "steering",
            Fact::Steered { .. } => "steered",
            Fact::Started { .. } => "started",
            Fact::Continued { .. } => "continued",
            Fact::SelfStarted { .. } => "stirred",
            Fact::Said { .. } => "said",
            Fact::Interrupting { .. } => "interrupting",
            Fact::PermissionRequested(_) => "asked",
            Fact::Answered { .. } => "answered",
            Fact::ToolRequested(_) => "tool_requested",
            Fact::ToolAnswered(_) => "tool_answered",
            Fact::ToolRepeated(_) => "tool_repeated",
            Fact::ToolServerAsked { .. } => "tool_server_asked",
            Fact::Setting { .. } => "setting",
            Fact::Rested { .. } => "rested",
            Fact::Saved(_) => "saved",
            Fact::SaveFailed { .. } => "save_failed",
            Fact::Finished { .. } => "finished",
            Fact::Cut { .. } => "cut",
            Fact::Awake { .. } => "awake",
            Fact::Asleep { .. } => "asleep",
            Fact::Resuming => "resuming",
            Fact::Resumed { .. } => "resumed",
            Fact::ResumeFailed { .. } => "resume_failed",
            Fact::Paused => "paused",
            Fact::Stopped => "stopped",
            Fact::Failed { .. } => "failed",
            Fact::Rewound(_) => "rewound",
            Fact::WorkspaceRewound(_) => "taken_back",
            Fact::Idle { .. } => "idle",
            Fact::Configured { .. } => "configured",
            Fact::Labelled { .. } => "labelled",
            Fact::Locked { .. } => "locked",
            Fact::Unlocked { .. } => "unlocked",
            Fact::Used(_) => "used",
            Fact::BudgetReached(_) => "budget_reached",
            Fact::Adopted(_) => "adopted",
            Fact::Missing => "missing",
            Fact::Ended => "ended",
        }
    }

    /// The text in the `json` column: an agent's line byte for byte, or our own JSON.
    pub fn encode(&self) -> String {
        match self {
            Fact::Said { line } => line.clone(),
            other => serde_json::to_string(other).expect("facts hold only strings, numbers and JSON"),
        }
    }

    /// The fact without the ids of other sessions. A purged session must not be named any more, except by witnesses that
    /// cannot change.
    #[must_use]
    pub fn unnamed(mut self) -> Fact {
        if let Fact::Forked { parent, .. } = &mut self {
            *parent = None;
        }
        if let Fact::Saved(saved) = &mut self {
            saved.concurrent_turns.iter_mut().for_each(|turn| turn.session = None);
        }
        if let Fact::WorkspaceRewound(back) = &mut self {
            back.by = None;
        }
        if let Fact::Adopted(adopted) = &mut self {
            adopted.diverged = None;
        }
        self
    }

    /// Decodes the output of `encode`, by the text of the `kind` column.
    pub fn decode(kind: &str, json: String) -> Result<Fact, serde_json::Error> {
        match kind {
            "said" => Ok(Fact::Said { line: json }),
            _ => serde_json::from_str(&json),
        }
    }
}

/// The options of one message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageOptions {
    /// The model; `None`: the session's model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The limit for answers of the agent's loop in this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// The limit for the cost of the turn, in dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
    /// The limit for tokens of all kinds in this turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The reasoning effort, in the agent's own terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The agent's own settings for thinking, passed on unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<serde_json::Value>,
    /// A JSON schema for the answer, in the agent's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_format: Option<serde_json::Value>,
    /// When the turn counts as done; `None`: the session's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<crate::Durability>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The agent gave an answer.
    Done,
    /// The agent, its model or its sandbox failed.
    Failed,
    /// A client interrupted it while it ran.
    Interrupted,
    /// A client withdrew it before it started.
    Cancelled,
}

/// Whether processes could write while the files were captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaptureConsistency {
    /// No process of the sandbox ran (cgroup freezer), or there was none.
    Frozen,
    /// A signal stopped every process.
    Stopped,
    /// Processes may have written during the capture.
    Live,
}

/// A checkpoint, as the log names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavedCheckpoint {
    /// Its number in the workspace.
    pub number: u64,
    /// The turn before the checkpoint, if any.
    #[schema(required)]
    pub turn: Option<TurnId>,
    /// The id of the snapshot.
    pub tree: String,
    /// Whether processes could write during the capture.
    pub consistency: CaptureConsistency,
    /// How many files, folders and links the snapshot has.
    pub files: u64,
    /// How many bytes its files have.
    pub bytes: u64,
    /// Paths that were left out on purpose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Paths that a checkpoint cannot hold or could not read, up to a limit. A restore does not bring them back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<UnsavedPath>,
    /// How many more there are than `unsaved` lists.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsaved_more: u64,
    /// A tree that we found, not the result of a turn: kept so that no file is thrown away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salvage: bool,
    /// Taken while the turn was running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mid_turn: bool,
    /// Turns of other sessions that were running in the same workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "beside")]
    pub concurrent_turns: Vec<ConcurrentTurn>,
    /// The files of a shared workspace are those of this earlier checkpoint again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "back")]
    #[schema(nullable = false)]
    pub rewound_to: Option<u64>,
}

/// The session took its history from a witness that knew more than the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedHistory {
    /// The epoch of the last event that the witness knew.
    pub epoch: Epoch,
    /// The last event that the witness knew.
    pub seq: EventSeq,
    /// The newest checkpoint that the witness knew.
    #[schema(required)]
    pub checkpoint: Option<u64>,
    /// The source of the history.
    pub witness: HistorySource,
    /// What the database had instead, if it contradicted the witness: this is now a session of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub diverged: Option<SessionId>,
    /// The journal position up to which these events include the agent's output, if the witness knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "heard")]
    #[schema(ignore)]
    pub journal_position: Option<JournalPosition>,
}

/// How much of its process's journal a session has recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalPosition {
    /// The incarnation of the shim that writes the journal.
    pub incarnation: Incarnation,
    /// The number of the process in the sandbox.
    pub process: u16,
    /// The position in the journal of this incarnation.
    pub position: u64,
}

/// The source that knew more of a session than the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistorySource {
    /// Packs of this machine's repository.
    Packs,
    /// The object store.
    Bucket,
}

/// An entry of a tree that the checkpoint does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnsavedPath {
    /// The path with its root: `workspace/pipe`.
    pub path: String,
    /// What it is, or why it was not readable, for a person.
    pub what: String,
}

pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A turn of another session of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConcurrentTurn {
    /// `None`: the session has been purged.
    #[schema(required)]
    pub session: Option<SessionId>,
    /// That session's turn.
    pub turn: TurnId,
}

/// Another session of the workspace rewound the files of all sessions to checkpoint `to`; they are `checkpoint` now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceRewind {
    /// `None`: the session has been purged.
    #[schema(required)]
    pub by: Option<SessionId>,
    /// The checkpoint that the workspace has now.
    pub checkpoint: u64,
    /// The older checkpoint with the same files.
    pub to: u64,
}

/// The target of a session's rewind, and the way back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRewind {
    /// The checkpoint that is restored.
    pub to: u64,
    /// The checkpoint of the state before the rewind, for the way back.
    pub from: Option<u64>,
    /// The last event that counts; the events between it and this one are superseded.
    pub seq: EventSeq,
    /// The conversation at that checkpoint.
    #[serde(rename = "then")]
    pub conversation: ConversationPoint,
}

/// A session's conversation as it was at a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationPoint {
    /// How many turns the agent has received.
    #[serde(rename = "told")]
    pub turns_delivered: u64,
    /// How many turns were over.
    pub turns: u64,
    /// The session's title, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The agent's final text, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_text: Option<String>,
    /// For a fork that had no transcript of its own yet: the id under which the agent keeps the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<uuid::Uuid>,
    /// The turn that was running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<TurnId>,
    /// Turns that were queued and had not started: they are not part of the conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<TurnId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_comes_back_as_it_was() {
        let turn = TurnId(uuid::Uuid::from_u128(7));
        let facts = [
            Fact::Queued {
                turn,
                content: serde_json::json!("hi"),
                options: MessageOptions::default(),
                lock: None,
            },
            Fact::Said { line: r#"{"type":"assistant", "x":1}"#.into() },
            Fact::Cut { turn, death: Death::OutOfMemory },
            Fact::Paused,
        ];
        for fact in facts {
            let back = Fact::decode(fact.kind(), fact.encode()).expect("its own encoding");
            assert_eq!(back, fact);
        }
    }

    #[test]
    fn an_agents_line_is_kept_to_the_byte() {
        let line = "{ \"b\" : 1 ,\"a\":\"\\u00e4\" }";
        assert_eq!(Fact::Said { line: line.into() }.encode(), line);
    }
}
