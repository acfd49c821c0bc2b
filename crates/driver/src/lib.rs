//! THE LANGUAGES: one file per agent program. No I/O, no clock, no async: a driver turns what we want into
//! lines, and lines into what happened. Who carries them does not matter.
//!
//! Whatever an agent speaks, its messages are kept in the shape of the Claude Agent SDK's (`assistant`, `user`,
//! `result`, `stream_event`): that is what clients of the Ash API already read.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod builtin;
mod claude;
mod control;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod stream_json;
mod system_reminder;
mod turn_tracker;
mod usage;

pub use builtin::BuiltinDriver;
pub use claude::{ClaudeDriver, ClaudeVersion, OLDEST_CLAUDE};
pub use turn_tracker::TurnTracker;
pub use usage::UsageReport;

use ash_model::{
    AgentRuntime, LiveSetting, MessageOptions, ModelApiDialect, PermissionVerdict, Problem, SandboxPath,
    SandboxRoot, SessionOptions, TokenUsage, TurnId, TurnOutcome,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use uuid::Uuid;

/// What the agent's process needs to know when it starts.
#[derive(Debug, Clone)]
pub struct AgentLaunch {
    /// The folder that it works in, as the sandbox sees it.
    pub workspace: PathBuf,
    /// Its home, as the sandbox sees it.
    pub home: PathBuf,
    /// Our own program as the sandbox sees it.
    pub exe: PathBuf,
    /// The agent's own program, as the sandbox sees it, where it is not ours.
    pub program: PathBuf,
    /// What that program says of its version, where it is Claude Code.
    pub claude_version: Option<ClaudeVersion>,
    /// Where model calls go, in HTTP; whoever listens there has the key.
    pub model_socket: PathBuf,
    /// The file with `mcpServers` and their secrets, where there are any.
    pub mcp_config: PathBuf,
    /// What whoever answers speaks, where the agent is ours; none: nobody answers.
    pub provider: Option<ModelApiDialect>,
    /// Which conversation it takes up.
    pub memory: ConversationSource,
    /// A turn was cut off, and goes on.
    pub continues_cut_turn: bool,
    /// What the caller set on the session.
    pub options: SessionOptions,
}

impl AgentLaunch {
    /// Where a path of the sandbox is for the agent.
    pub(crate) fn at(&self, path: &SandboxPath) -> PathBuf {
        match path.root() {
            (SandboxRoot::Workspace, rest) => self.workspace.join(rest),
            (SandboxRoot::Home, rest) => self.home.join(rest),
        }
    }
}

/// Which conversation the agent takes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationSource {
    /// A new conversation.
    Fresh {
        /// The id that the agent is to keep it under.
        id: Uuid,
    },
    /// The session's own conversation.
    Resume {
        /// The id that the agent keeps it under.
        id: Uuid,
    },
    /// The first start of a fork: another's conversation under an own id.
    Fork {
        /// The id of the parent's conversation.
        from: Uuid,
        /// The id that the agent is to keep the copy under.
        id: Uuid,
    },
}

/// How the agent's process is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchCommand {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The whole environment: nothing is inherited.
    pub env: BTreeMap<String, String>,
}

/// What we tell an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentInput {
    /// The first input of every process.
    Hello {
        /// Replaces the agent's own instructions.
        system_prompt: Option<String>,
        /// What is said after the agent's own.
        append_system_prompt: Option<String>,
    },
    /// A message that begins a turn.
    Prompt {
        /// The turn.
        turn: TurnId,
        /// What we have to say ourselves before it.
        head: Option<String>,
        /// The message: a text, or blocks of content.
        content: serde_json::Value,
        /// What the message asks for beyond its content.
        ask: MessageOptions,
        /// Which attempt of the turn this is, from 1.
        attempt: u32,
    },
    /// The agent is to stop.
    Interrupt {
        /// The turn that is to stop.
        turn: TurnId,
    },
    /// Another message, in the middle of turn `into`.
    Steer {
        /// The message's own turn.
        turn: TurnId,
        /// The turn that runs.
        into: TurnId,
        /// The message: a text, or blocks of content.
        content: serde_json::Value,
    },
    /// To a request of its own; `input` is what the call was to be made with.
    Answer {
        /// The agent's own name for the request.
        request: String,
        /// What the tool was to be called with.
        input: serde_json::Value,
        /// What was decided.
        verdict: PermissionVerdict,
    },
    /// `input` is the number that it is said under.
    SetLiveSetting {
        /// What it is to go on with.
        setting: LiveSetting,
        /// The number of the input.
        input: u64,
    },
}

/// What an agent's line means.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// It answers; `None`: it began without a conversation.
    Ready {
        /// What it found of an earlier conversation.
        resumed: Option<ResumedConversation>,
    },
    /// A piece of a message that will follow whole.
    Delta {
        /// The agent's line, verbatim.
        line: String,
    },
    /// A whole message of the conversation.
    Message {
        /// The agent's line, or what stands for it if it is no JSON.
        line: String,
    },
    /// It waits until somebody lets it make a call, or answers a question.
    PermissionRequested {
        /// The agent's own name for the request.
        request: String,
        /// The tool's name.
        tool: String,
        /// What the tool is to be called with.
        input: serde_json::Value,
        /// The id of the call in the agent's message.
        tool_use_id: Option<String>,
        /// Rules that the agent proposes, so that it need not ask again.
        suggestions: Vec<serde_json::Value>,
        /// It is a question to a person, not a request for leave.
        question: bool,
    },
    /// It has heard this message in the turn that runs.
    Steered {
        /// The message's own turn.
        turn: TurnId,
    },
    /// It does not wait for that any more.
    PermissionWithdrawn {
        /// The agent's own name for the request.
        request: String,
    },
    /// It goes on with what was set by this input, or says why not.
    SettingAnswered {
        /// The number of the input that carried the setting.
        input: u64,
        /// Why not; none: it goes on with it.
        refused: Option<String>,
    },
    /// Nothing more comes for this turn.
    TurnEnded {
        /// The turn that is over.
        turn: TurnId,
        /// How it ended.
        how: TurnOutcome,
        /// The agent's last words in it.
        text: String,
        /// What the agent says the turn used.
        usage: TokenUsage,
        /// What went wrong, if it failed.
        problem: Option<Problem>,
    },
}

/// What the agent says it found of an earlier conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResumedConversation {
    /// Whether there is a conversation at all.
    pub is_found: bool,
    /// Messages of ours that are in it.
    pub turns: u64,
    /// Entries of its transcript that it could not read.
    pub damaged: u64,
}

impl ResumedConversation {
    /// It is not there, or nothing of it could be read.
    pub fn is_nothing(&self) -> bool {
        !self.is_found || (self.turns == 0 && self.damaged > 0)
    }
}

/// Where in the home a session has its plan and its documents, by its conversation's own id: what one conversation
/// made goes back with it, and forks with it.
pub fn session_folder(id: Uuid) -> String {
    format!(".ash/session/{id}")
}

/// What differs between agents: how one is started, what it is told, and what its lines mean.
pub trait AgentDriver: Send + Sync {
    /// How its process is started.
    fn launch(&self, launch: &AgentLaunch) -> LaunchCommand;
    /// The lines that say it, each with its newline.
    fn tell(&self, say: &AgentInput) -> Vec<u8>;
    /// What a line means; `ear` remembers what the lines before it said.
    fn parse_line(&self, ear: &mut TurnTracker, line: &[u8]) -> Vec<AgentEvent>;

    /// What the line says about what the model's answers used.
    fn reported_usage(&self, line: &[u8]) -> Option<UsageReport>;

    /// Whether a live agent can be told to go on with another model or permission mode.
    fn takes_settings(&self) -> bool {
        false
    }

    /// The model that a service will be asked for, where that is known before the first answer.
    fn model<'o>(&self, options: &'o SessionOptions) -> Option<&'o str> {
        options.model.as_deref()
    }

    /// Which of these options it refuses because it cannot hold to them, by the names that callers know.
    fn unsupported_options(&self, options: &SessionOptions) -> Vec<&'static str>;

    /// Which of these have no effect on it. They are taken all the same: clients of the Ash API send them to every agent.
    fn ignores(&self, _options: &SessionOptions) -> Vec<&'static str> {
        Vec::new()
    }

    /// What has to be in its home before it starts.
    fn home_entries(&self, _options: &SessionOptions) -> Vec<HomeEntry> {
        Vec::new()
    }

    /// Where in its home the agent keeps a conversation that we have to look at ourselves, because it does not say
    /// what it found of it.
    fn transcript(&self, _cwd: &Path, _id: Uuid) -> Option<String> {
        None
    }

    /// Where in its home the agent keeps what belongs to one conversation alone: files, and folders of them.
    fn memory_paths(&self, cwd: &Path, id: Uuid) -> Vec<String>;

    /// The plan that is in a call that the agent asked leave for.
    fn plan<'i>(&self, _tool: &str, _input: &'i serde_json::Value) -> Option<&'i str> {
        None
    }

    /// What this line says, if the agent keeps it as a message of its conversation.
    fn message_fingerprint(&self, _line: &str) -> Option<MessageFingerprint> {
        None
    }

    /// Calls that a line says were made, with the tool, and that came to an end, without.
    fn calls(&self, line: &str) -> Vec<(String, Option<String>)> {
        stream_json::calls(line)
    }

    /// Work in the background that begins (and what it is) or ends with this line, by its id.
    fn background_task(&self, _line: &str) -> Option<(String, Option<String>)> {
        None
    }

    /// What it will know of these messages, by the lines of its transcript.
    fn survey(
        &self,
        _lines: &mut dyn Iterator<Item = Vec<u8>>,
        _expected: &[ExpectedMessage],
    ) -> TranscriptSurvey {
        TranscriptSurvey::default()
    }

    /// The transcript as it should be, from what can be read of it and from our own log.
    fn mend(
        &self,
        _lines: &mut dyn Iterator<Item = Vec<u8>>,
        _log: &[LoggedMessage],
        _native: &TranscriptIdentity,
    ) -> MendedTranscript {
        MendedTranscript::default()
    }
}

/// By its path in the agent's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeEntry {
    /// A folder, made if it is not there.
    Folder(String),
    /// A link, and what it says.
    Link(String, String),
}

/// What one message of the conversation says, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFingerprint {
    /// The id that the agent gave the message.
    pub id: Uuid,
    /// A call or its outcome: what was done is not done again.
    pub has_call_or_result: bool,
    /// Of its words, as the agent should have them.
    pub digest: u64,
}

/// A message that our log says the agent knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedMessage {
    /// The message's id.
    pub id: Uuid,
    /// It is a message of ours, not one of the agent's.
    pub prompt: bool,
    /// Of its words, where they are kept as they were said: a prompt may have got a head.
    pub digest: Option<u64>,
}

/// What was found of a conversation by looking at the agent's transcript.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TranscriptSurvey {
    /// What the agent will find.
    pub resumed: ResumedConversation,
    /// Which of the expected messages it will not know.
    pub missing: Vec<usize>,
    /// Nothing is to be mended.
    pub is_sound: bool,
    /// Which prompts it will know, those in the middle of turns included.
    pub prompts: Vec<Uuid>,
}

/// A message of our log, with its words if they are needed.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedMessage {
    /// The message's id.
    pub id: Uuid,
    /// RFC 3339.
    pub at: String,
    /// None: they are not needed, because the transcript has them.
    pub words: Option<LoggedContent>,
}

/// The words of a message, as the log has them.
#[derive(Debug, Clone, PartialEq)]
pub enum LoggedContent {
    /// A message of ours: a text, or blocks of content.
    Prompt(serde_json::Value),
    /// The agent's own line.
    Line(String),
}

/// Whose transcript it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptIdentity {
    /// The id that the agent keeps the conversation under.
    pub id: Uuid,
    /// The folder that the agent works in, as the sandbox sees it.
    pub cwd: PathBuf,
}

/// A transcript in which nothing is left to mend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MendedTranscript {
    /// The lines, without newlines.
    pub lines: Vec<Vec<u8>>,
    /// Nothing of what was there could be used: it is all from our log.
    pub rebuilt: bool,
    /// What was done to it, for people.
    pub repairs: Vec<String>,
    /// What of the conversation could not be brought back, for people.
    pub lost: Vec<String>,
}

/// The driver of an agent program.
pub fn driver(runtime: AgentRuntime) -> Box<dyn AgentDriver> {
    match runtime {
        AgentRuntime::Builtin => Box::new(BuiltinDriver),
        AgentRuntime::Claude => Box::new(ClaudeDriver),
    }
}

#[cfg(test)]
mod testing {
    use crate::{AgentLaunch, ConversationSource};
    use ash_model::SessionOptions;

    pub(crate) fn launch(memory: ConversationSource) -> AgentLaunch {
        AgentLaunch {
            workspace: "/workspace".into(),
            home: "/home/agent".into(),
            exe: "/.ash/ash".into(),
            program: "/opt/claude/claude".into(),
            claude_version: None,
            model_socket: "/run/ash/model.sock".into(),
            mcp_config: "/run/ash/mcp-1.json".into(),
            provider: None,
            memory,
            continues_cut_turn: false,
            options: SessionOptions { model: Some("m".into()), ..SessionOptions::default() },
        }
    }
}
