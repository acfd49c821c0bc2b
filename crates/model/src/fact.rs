//! What happened to a session, one fact after the other. A session's state is a fold over these; what is not
//! here did not happen. The JSON of a fact is a stored format: see `docs/formats.md`.

use crate::{
    AgentName, Epoch, EventSeq, Incarnation, LiveSetting, LockAcquisition, PermissionId, PermissionRequest,
    PermissionVerdict, Receipt, SessionId, SessionLock, SessionMetadata, SessionOptions, Tier, Timestamp,
    ToolCallRecord, TurnId, UsageIncrement, VerdictSource, failure::Problem, usage::LimitReached,
};
use serde::{Deserialize, Serialize};

/// A fact with its place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its number in the session's log, from 1 without gaps.
    pub seq: EventSeq,
    /// The turn that it belongs to, if any.
    pub turn: Option<TurnId>,
    /// When it was recorded.
    pub at: Timestamp,
    /// What happened.
    pub fact: Fact,
}

/// A fact that has no place in the log yet.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The turn that it belongs to, if any.
    pub turn: Option<TurnId>,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub fact: Fact,
}

/// A piece of a message that is still being written: the n-th after event `seq`.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageDelta {
    /// The last event before the message.
    pub seq: EventSeq,
    /// Which piece it is, from 1.
    pub index: u64,
    /// The turn that the message belongs to, if any.
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
        /// What the caller set, with the agent's own settings beneath it.
        options: SessionOptions,
    },
    /// Made from another session: its files, and its conversation, which the agent keeps under id `memory` and
    /// which is `told` turns long.
    Forked {
        /// None: it was purged since.
        parent: Option<SessionId>,
        /// The checkpoint of the parent that it begins with, if there was one.
        checkpoint: Option<u64>,
        /// The id under which the agent keeps the parent's conversation.
        memory: uuid::Uuid,
        /// How many turns of it the agent has been told.
        #[serde(rename = "told")]
        turns_delivered: u64,
        /// Messages of the shared log that had not been told to the agent: they are the parent's alone.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<TurnId>,
    },
    /// A message was accepted. Its turn runs when those before it are over.
    Queued {
        /// The turn that the message begins.
        turn: TurnId,
        /// The message: a text, or blocks of content.
        content: serde_json::Value,
        /// What the message asks for beyond its content.
        #[serde(rename = "ask")]
        options: MessageOptions,
        /// The number of the lock that its sender held.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lock: Option<u64>,
    },
    /// Messages that wait do so in this order from now on. Those that were withdrawn are no part of the conversation: the
    /// agent never heard of them.
    Requeued {
        /// All messages that wait, the next one first.
        order: Vec<TurnId>,
        /// Messages that were taken back by a caller.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        withdrawn: Vec<TurnId>,
    },
    /// A message that waits is told to the agent in the middle of turn `into`, as input number `input`.
    Steering {
        /// The message's own turn.
        turn: TurnId,
        /// The turn that runs.
        into: TurnId,
        /// The number of the input that carries it.
        input: u64,
    },
    /// The agent has heard it there: it ends with that turn. If the turn is cut off, it waits again until the agent says so.
    Steered {
        /// The message's own turn.
        turn: TurnId,
        /// The turn that it was heard in.
        into: TurnId,
    },
    /// The prompt is about to be given to the agent as input number `input` of this shim's life.
    Started {
        /// The turn that begins.
        turn: TurnId,
        /// The number of the input that carries the prompt.
        input: u64,
    },
    /// A cut turn goes on; what was said after event `discard_after` by the attempts before does not count.
    Continued {
        /// The turn that goes on.
        turn: TurnId,
        /// Which attempt this is; the first one was 1.
        attempt: u32,
        /// The last event that still counts.
        discard_after: EventSeq,
        /// The number of the input that carries the prompt.
        input: u64,
        /// Which calls it had made before, and what became of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolCallRecord>,
    },
    /// The agent began to work by itself: something in the background came to its end. A turn without a prompt.
    #[serde(rename = "stirred")]
    SelfStarted {
        /// The turn that the agent began.
        turn: TurnId,
    },
    /// The agent's own line, verbatim.
    #[serde(skip)]
    Said {
        /// One JSON object, without a newline.
        line: String,
    },
    /// Somebody wants the turn to stop; told to the agent as input number `input`.
    Interrupting {
        /// The turn that is to stop.
        turn: TurnId,
        /// The number of the input that says so.
        input: u64,
    },
    /// The agent waits for leave to call a tool, or for the answer to a question.
    #[serde(rename = "asked")]
    PermissionRequested(PermissionRequest),
    /// Nobody needs to answer any more. What the agent is told, if anything, is input number `input`.
    Answered {
        /// Which request this answers.
        id: PermissionId,
        /// The turn that waits for it; none: the agent works on something of its own.
        turn: Option<TurnId>,
        /// What the agent is told; none: it does not wait any more.
        verdict: Option<PermissionVerdict>,
        /// Where the answer came from.
        by: VerdictSource,
        /// The number of the input that carries the verdict.
        input: Option<u64>,
    },
    /// Somebody wants the agent to go on with another setting; told to it as input number `input`.
    Setting {
        /// What the agent is to go on with.
        setting: LiveSetting,
        /// The number of the input that carries it.
        input: u64,
    },
    /// The agent rests: nothing more comes for this turn. Its files are not safe yet.
    Rested {
        /// The turn that the agent ended.
        turn: TurnId,
        /// How it ended.
        #[serde(rename = "how")]
        outcome: TurnOutcome,
        /// The agent's last words in it.
        text: String,
        /// What the agent says the turn used.
        usage: TokenUsage,
        /// What went wrong, if it failed.
        problem: Option<Problem>,
    },
    /// Workspace and agent state are on disk as checkpoint `number`.
    Saved(SavedCheckpoint),
    /// No checkpoint could be made.
    SaveFailed {
        /// The turn that waits for its checkpoint, if any.
        turn: Option<TurnId>,
        /// The cause, for a person.
        error: String,
    },
    /// The turn is over, exactly once.
    Finished {
        /// The turn that is over.
        turn: TurnId,
        /// How it ended.
        #[serde(rename = "how")]
        outcome: TurnOutcome,
        /// The checkpoint that holds what it left, if one was made.
        checkpoint: Option<u64>,
        /// What went wrong, if it failed.
        problem: Option<Problem>,
    },
    /// The turn's process is gone before the turn was over. Not final.
    Cut {
        /// The turn that was cut off.
        turn: TurnId,
        /// Who died.
        death: Death,
    },
    /// The sandbox is up and its agent answers.
    Awake {
        /// The life of the shim that runs the sandbox.
        incarnation: Incarnation,
        /// What a turn that was cut off had said and done up to this event is in the agent's memory: it goes on
        /// from there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(rename = "kept")]
        resumed_after: Option<EventSeq>,
        /// Options changed while the agent was started, and it may not know of them: it starts again before its next
        /// turn.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        outdated: bool,
    },
    /// The sandbox is gone, on purpose or not.
    Asleep {
        /// The life that ended; none: there was no sandbox.
        incarnation: Option<Incarnation>,
    },
    /// Somebody wants the session back: a sandbox has to be made for it.
    Resuming,
    /// The session is back, with its agent and its files.
    Resumed {
        /// What was restored, from where, and what is missing.
        receipt: Receipt,
        /// What the agent is told at the head of the next message: how it came back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<String>,
    },
    /// The agent did not start with its memory from there; the next step down is tried.
    ResumeFailed {
        /// The tier that was tried.
        tier: Tier,
        /// Why it did not work, for a person.
        reason: String,
    },
    /// The session is paused: by a caller, by its rules, or because its sandbox is gone.
    Paused,
    /// The session was stopped.
    Stopped,
    /// The session cannot go on by itself.
    Failed {
        /// The cause and the remedy.
        problem: Problem,
    },
    /// Conversation, agent and files went to checkpoint `to` together. Nothing is deleted: what happened since
    /// stays in the log, and a later one may go there again.
    Rewound(SessionRewind),
    /// Another session of the workspace took the files of all of them back.
    #[serde(rename = "taken_back")]
    WorkspaceRewound(WorkspaceRewind),
    /// Nobody has used it for so long. In `left_ms` its sandbox is let go of; none: now, or it has just come to rest.
    Idle {
        /// How long nobody has used it, in milliseconds.
        ms: u64,
        /// In how many milliseconds the sandbox is let go of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left_ms: Option<u64>,
        /// Somebody else needed its sandbox more.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        evicted: bool,
    },
    /// Its options are these from now on. Those that an agent is told when it starts count from its next start on.
    Configured {
        /// All options, also those that did not change.
        options: SessionOptions,
        /// An agent that runs was started with others.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restart: bool,
    },
    /// What callers note on it is this from now on.
    Labelled {
        /// All entries, also those that did not change.
        metadata: SessionMetadata,
    },
    /// Whoever has the lock's token may write to it, and nobody else.
    Locked {
        /// How the lock was come by.
        #[serde(rename = "how")]
        acquisition: LockAcquisition,
        /// The lock that holds from now on.
        #[serde(flatten)]
        lock: SessionLock,
    },
    /// Its holder gave it up.
    Unlocked {
        /// The number of the lock that was given up.
        number: u64,
    },
    /// A model's answer was heard of, or more of it.
    Used(UsageIncrement),
    /// No more may be used. What is under way is asked to stop.
    BudgetReached(LimitReached),
    /// Another witness knew more of this session than the database: its log up to `seq` was taken from there.
    Adopted(AdoptedHistory),
    /// An event that no witness has any more. It keeps its number, so that the log has no gap.
    Missing,
    /// A caller ended the session. Nothing follows.
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

    /// The text in the `json` column: an agent's line as it came, everything else as our own JSON.
    pub fn encode(&self) -> String {
        match self {
            Fact::Said { line } => line.clone(),
            other => serde_json::to_string(other).expect("facts hold only strings, numbers and JSON"),
        }
    }

    /// The same without the names of other sessions. Those that were purged since are not named any more, but by witnesses
    /// that cannot be changed.
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

    /// Reads what `encode` wrote, by the text of the `kind` column.
    pub fn decode(kind: &str, json: String) -> Result<Fact, serde_json::Error> {
        match kind {
            "said" => Ok(Fact::Said { line: json }),
            _ => serde_json::from_str(&json),
        }
    }
}

/// What one message asks for beyond its content.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageOptions {
    /// The model; none: that of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Answers of the agent's loop that the turn may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// Dollars that the turn may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
    /// Tokens of every kind that the turn may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// How hard the model is to think, in the agent's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The agent's own settings for thinking, passed on as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<serde_json::Value>,
    /// A JSON schema for the answer, in the agent's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_format: Option<serde_json::Value>,
    /// When the turn is done; without it, as the session is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<crate::Durability>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The agent answered.
    Done,
    /// The agent, its model or its sandbox gave up.
    Failed,
    /// Somebody stopped it while it ran.
    Interrupted,
    /// It was withdrawn before it began.
    Cancelled,
}

/// Tokens of one answer, or of many: how many of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenUsage {
    /// Input that was neither read from the service's cache nor written to it.
    pub input_tokens: u64,
    /// What the model wrote.
    pub output_tokens: u64,
    /// Input that was written to the service's cache.
    pub cache_creation_tokens: u64,
    /// Input that was read from the service's cache.
    pub cache_read_tokens: u64,
}

/// How still the sandbox was while its files were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureConsistency {
    /// No process of the sandbox ran (cgroup freezer), or there was none.
    Frozen,
    /// Every process was stopped by a signal.
    Stopped,
    /// Processes may have written meanwhile.
    Live,
}

/// A checkpoint, as the log names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedCheckpoint {
    /// Its number in the workspace.
    pub number: u64,
    /// The turn that it was made after, if any.
    pub turn: Option<TurnId>,
    /// The id of the snapshot.
    pub tree: String,
    /// How still the sandbox was meanwhile.
    pub consistency: CaptureConsistency,
    /// How many files, folders and links the snapshot has.
    pub files: u64,
    /// How many bytes its files have.
    pub bytes: u64,
    /// What was left out on purpose, as paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// What a checkpoint cannot hold or could not read, by name as far as there is room for it: a restore brings none of
    /// it back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<UnsavedPath>,
    /// How many more there are than `unsaved` names.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsaved_more: u64,
    /// A tree that was found, not one that a turn left: kept so that nothing is thrown away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salvage: bool,
    /// Taken while the turn was under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mid_turn: bool,
    /// Turns of others that were under way in the same workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "beside")]
    pub concurrent_turns: Vec<ConcurrentTurn>,
    /// The files of a shared workspace, gone back to those of this checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "back")]
    pub rewound_to: Option<u64>,
}

/// The history of a session was taken from a witness that knew more than the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedHistory {
    /// The epoch of the last event that the witness knew.
    pub epoch: Epoch,
    /// The last event that the witness knew.
    pub seq: EventSeq,
    /// The newest checkpoint that the witness knew.
    pub checkpoint: Option<u64>,
    /// Who knew more.
    pub witness: HistorySource,
    /// What the database had instead, if it was no beginning of this: it is a session of its own now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged: Option<SessionId>,
    /// Up to where these events have what the agent's process said, if the witness knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "heard")]
    pub journal_position: Option<JournalPosition>,
}

/// How far a session has heard what its process in a sandbox said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalPosition {
    /// The life of the shim that writes the journal.
    pub incarnation: Incarnation,
    /// The number of the process in the sandbox.
    pub process: u16,
    /// In the journal of this incarnation.
    pub position: u64,
}

/// Who knew more of a session than the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistorySource {
    /// Packs of this machine's repository.
    Packs,
    /// The object store.
    Bucket,
}

/// Something that is in a tree and in no checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsavedPath {
    /// With its root: `workspace/pipe`.
    pub path: String,
    /// What it is, or why it could not be read, in words.
    pub what: String,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A turn of another session of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcurrentTurn {
    /// None: it was purged since.
    pub session: Option<SessionId>,
    /// That session's turn.
    pub turn: TurnId,
}

/// Another session of the workspace took everybody's files back to checkpoint `to`: they are `checkpoint` now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceRewind {
    /// None: it was purged since.
    pub by: Option<SessionId>,
    /// The checkpoint that the workspace has now.
    pub checkpoint: u64,
    /// The older checkpoint with the same files.
    pub to: u64,
}

/// Where a session went back to, and the way back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRewind {
    /// The checkpoint that it went to.
    pub to: u64,
    /// The checkpoint that holds what was there before: the way back.
    pub from: Option<u64>,
    /// The last event that counts; those between it and this one do not.
    pub seq: EventSeq,
    /// The conversation at that checkpoint.
    #[serde(rename = "then")]
    pub conversation: ConversationPoint,
}

/// A session's conversation as it was at a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationPoint {
    /// Turns that the agent was told.
    #[serde(rename = "told")]
    pub turns_delivered: u64,
    /// Turns that were over.
    pub turns: u64,
    /// The session's title, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The agent's last words, if it had said any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_text: Option<String>,
    /// Of a fork that had no transcript of its own yet: under which id the agent keeps the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<uuid::Uuid>,
    /// The turn that was under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<TurnId>,
    /// Turns that had been asked for and not begun: they are not part of the conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<TurnId>,
}

/// Who died, as far as we can tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Death {
    /// The agent's process ended by itself.
    Agent {
        /// Its exit code or signal, for a person.
        how: String,
    },
    /// The sandbox ended, with every process in it.
    Sandbox {
        /// How it ended, for a person.
        how: String,
    },
    /// The kernel ended the sandbox for want of memory.
    OutOfMemory,
    /// The agent wrote a line over the limit and was ended.
    LineTooLong,
    /// The machine, or everything of ours on it.
    Machine,
    /// We stopped the server on purpose while it ran.
    Shutdown,
}

impl Death {
    /// What clients are told of it, with the remedy.
    pub fn problem(&self) -> Problem {
        match self {
            Death::Agent { how } => {
                Problem::new("agent_died", format!("The agent's process ended ({how}). {RETRY}"))
            }
            Death::Sandbox { how } => {
                Problem::new("sandbox_died", format!("The sandbox ended ({how}). {RETRY}"))
            }
            Death::OutOfMemory => Problem::new(
                "sandbox_oom",
                format!(
                    "The sandbox ran out of memory and was killed. {RETRY} Raise ASH_SANDBOX_MEMORY_MB if it happens again."
                ),
            ),
            Death::LineTooLong => Problem::new(
                "line_too_long",
                format!("The agent wrote a line of over 32 MiB and was ended. {RETRY}"),
            ),
            Death::Machine => Problem::new(
                "machine_died",
                format!("The machine or the sandbox went away during the turn. {RETRY}"),
            ),
            Death::Shutdown => Problem::new(
                "server_stopped",
                "The server was stopped during the turn, which goes on when it is started again.".to_owned(),
            ),
        }
    }
}

const RETRY: &str = "Resume the session or send a message: the turn goes on first.";

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
