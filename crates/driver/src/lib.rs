//! Agent drivers: one file per agent program. A driver encodes our inputs as lines, and decodes the agent's lines into
//! events. It has no I/O, no clock and no async code, so any transport can carry the lines.
//!
//! Every driver keeps messages in the shape of the Claude Agent SDK (`assistant`, `user`, `result`, `stream_event`),
//! because clients of the Ash API already read that.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod builtin;
mod claude;
mod control;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod retelling;
mod stream_json;
mod system_reminder;
mod tool_server;
mod turn_tracker;
mod usage;

pub use builtin::BuiltinDriver;
pub use claude::{ClaudeDriver, ClaudeVersion, OLDEST_CLAUDE, is_never_captured};
pub use retelling::{RetoldMessage, content_text, retold_message};
pub use turn_tracker::TurnTracker;
pub use usage::UsageReport;

use ash_model::{
    AgentRuntime, ClientTool, LiveSetting, MessageOptions, ModelApiDialect, PermissionVerdict, Problem,
    SandboxPath, SandboxRoot, SessionOptions, TokenUsage, ToolOutput, TurnId, TurnOutcome,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use uuid::Uuid;

/// What the agent's process needs to know when it starts.
#[derive(Debug, Clone)]
pub struct AgentLaunch {
    /// The agent's working folder, as a path in the sandbox.
    pub workspace: PathBuf,
    /// The agent's home, as a path in the sandbox.
    pub home: PathBuf,
    /// Our own program, as a path in the sandbox.
    pub exe: PathBuf,
    /// The agent's own program as a path in the sandbox, if it is not ours.
    pub program: PathBuf,
    /// The version that Claude Code reports, if that is the program.
    pub claude_version: Option<ClaudeVersion>,
    /// The HTTP socket for model calls. The server behind it has the key.
    pub model_socket: PathBuf,
    /// The file with `mcpServers` and their secrets, where there are any.
    pub mcp_config: PathBuf,
    /// The dialect of the model service, for the built-in agent; `None`: there is no service.
    pub provider: Option<ModelApiDialect>,
    /// The conversation that the agent resumes.
    pub memory: ConversationSource,
    /// The start continues a turn that was interrupted.
    pub continues_cut_turn: bool,
    /// What the caller set on the session.
    pub options: SessionOptions,
}

impl AgentLaunch {
    /// The path that the agent uses for a sandbox path.
    pub(crate) fn at(&self, path: &SandboxPath) -> PathBuf {
        match path.root() {
            (SandboxRoot::Workspace, rest) => self.workspace.join(rest),
            (SandboxRoot::Home, rest) => self.home.join(rest),
        }
    }
}

/// Which conversation the agent resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationSource {
    /// A new conversation.
    Fresh {
        /// The id for the new conversation.
        id: Uuid,
    },
    /// The session's own conversation.
    Resume {
        /// The id that the agent keeps it under.
        id: Uuid,
    },
    /// The first start of a fork: the parent's conversation under a new id.
    Fork {
        /// The id of the parent's conversation.
        from: Uuid,
        /// The id for the copy.
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

/// An input to the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentInput {
    /// The first input of every process.
    Hello {
        /// Replaces the agent's own instructions.
        system_prompt: Option<String>,
        /// Appended to the agent's own instructions.
        append_system_prompt: Option<String>,
        /// The tools of the client.
        client_tools: Vec<ClientTool>,
    },
    /// A message that begins a turn.
    Prompt {
        /// The turn.
        turn: TurnId,
        /// Our note before the message.
        head: Option<String>,
        /// The message: a text, or blocks of content.
        content: serde_json::Value,
        /// The options of the message.
        ask: MessageOptions,
        /// Which attempt of the turn this is, from 1.
        attempt: u32,
    },
    /// Stops a turn.
    Interrupt {
        /// The turn to stop.
        turn: TurnId,
    },
    /// A message during turn `into`.
    Steer {
        /// The message's own turn.
        turn: TurnId,
        /// The running turn.
        into: TurnId,
        /// The message: a text, or blocks of content.
        content: serde_json::Value,
    },
    /// The answer to a permission request; `input` is the tool input of that request.
    Answer {
        /// The agent's own name for the request.
        request: String,
        /// The input for the tool.
        input: serde_json::Value,
        /// What was decided.
        verdict: PermissionVerdict,
    },
    /// What a tool of the client returned.
    ToolOutput {
        /// The agent's own name for the request.
        request: String,
        /// What the agent gets.
        output: ToolOutput,
    },
    /// The answer to a message of the protocol by which the agent gets the client's tools.
    ToolServerReply {
        /// The agent's own name for the request.
        request: String,
        /// What it asked.
        message: serde_json::Value,
        /// The tools of the client, as they are now. A log does not hold them with every answer.
        tools: Vec<ClientTool>,
    },
    /// Changes a setting of the running agent; `input` identifies this command.
    SetLiveSetting {
        /// The new setting.
        setting: LiveSetting,
        /// The number of the input.
        input: u64,
    },
}

/// What an agent's line means.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// The agent is ready. `None`: it started without an earlier conversation.
    Ready {
        /// What the agent found of an earlier conversation.
        resumed: Option<ResumedConversation>,
    },
    /// A part of a message; the complete message follows.
    Delta {
        /// The agent's line, verbatim.
        line: String,
    },
    /// A complete message of the conversation.
    Message {
        /// The agent's line, or a replacement if it is not JSON.
        line: String,
    },
    /// The agent waits for a permission or for the answer to a question.
    PermissionRequested {
        /// The agent's own name for the request.
        request: String,
        /// The tool's name.
        tool: String,
        /// The input for the tool.
        input: serde_json::Value,
        /// The id of the call in the agent's message.
        tool_use_id: Option<String>,
        /// Permission rules that the agent suggests, so that it does not ask again.
        suggestions: Vec<serde_json::Value>,
        /// It is a question to a person, not a permission request.
        question: bool,
    },
    /// The agent has compacted its memory, perhaps between two turns.
    MemoryCompacted,
    /// The agent has received this message in the running turn.
    Steered {
        /// The message's own turn.
        turn: TurnId,
    },
    /// The agent calls a tool of the client and waits for the output.
    ToolRequested {
        /// The agent's own name for the request.
        request: String,
        /// The tool's name.
        tool: String,
        /// The input for the tool.
        input: serde_json::Value,
        /// The id of the call in the agent's message.
        tool_use_id: Option<String>,
    },
    /// A message of the protocol by which the agent gets the client's tools. It waits for a `ToolServerReply`.
    ToolServerAsked {
        /// The agent's own name for the request.
        request: String,
        /// What it asks.
        message: serde_json::Value,
    },
    /// The agent no longer waits for this request: a permission request, or a call of a client's tool. The name of a call
    /// may have more words than the withdrawal.
    RequestWithdrawn {
        /// The agent's own name for the request.
        request: String,
    },
    /// The agent accepted the setting of this input, or says why not.
    SettingAnswered {
        /// The number of the input that carried the setting.
        input: u64,
        /// The reason for a refusal; `None`: it was accepted.
        refused: Option<String>,
    },
    /// The turn is over; no more events follow for it.
    TurnEnded {
        /// The turn that is over.
        turn: TurnId,
        /// How it ended.
        how: TurnOutcome,
        /// The agent's final text in it.
        text: String,
        /// What the agent says the turn used.
        usage: TokenUsage,
        /// What went wrong, if it failed.
        problem: Option<Problem>,
    },
}

/// What the agent reports about an earlier conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResumedConversation {
    /// Whether there is a conversation at all.
    pub is_found: bool,
    /// How many of our messages are in it.
    pub turns: u64,
    /// How many transcript entries it could not read.
    pub damaged: u64,
}

impl ResumedConversation {
    /// There is no conversation, or none of it is readable.
    pub fn is_nothing(&self) -> bool {
        !self.is_found || (self.turns == 0 && self.damaged > 0)
    }
}

/// The folder in the home for a session's plan and documents. It is named after the conversation's own id, so that a
/// rewind and a fork include it.
pub fn session_folder(id: Uuid) -> String {
    format!(".ash/session/{id}")
}

/// Everything that differs between agents: how to start one, how to encode inputs, and what its lines mean.
pub trait AgentDriver: Send + Sync {
    /// How its process is started.
    fn launch(&self, launch: &AgentLaunch) -> LaunchCommand;
    /// The lines that encode this input, each with its newline.
    fn tell(&self, say: &AgentInput) -> Vec<u8>;
    /// The meaning of a line; `ear` holds the state from the lines before.
    fn parse_line(&self, ear: &mut TurnTracker, line: &[u8]) -> Vec<AgentEvent>;

    /// What the line reports about the usage of model answers.
    fn reported_usage(&self, line: &[u8]) -> Option<UsageReport>;

    /// Whether a running agent can change its model or permission mode.
    fn takes_settings(&self) -> bool {
        false
    }

    /// The model that the agent will request, if that is known before the first answer.
    fn model<'o>(&self, options: &'o SessionOptions) -> Option<&'o str> {
        options.model.as_deref()
    }

    /// The options that this agent cannot honour and therefore refuses, by their API names.
    fn unsupported_options(&self, options: &SessionOptions) -> Vec<&'static str>;

    /// The options without effect on this agent. It accepts them, because clients of the Ash API send them to every
    /// agent.
    fn ignores(&self, _options: &SessionOptions) -> Vec<&'static str> {
        Vec::new()
    }

    /// Entries that its home needs before a start.
    fn home_entries(&self, _options: &SessionOptions) -> Vec<HomeEntry> {
        Vec::new()
    }

    /// The path of the transcript in the agent's home, if we must read it ourselves because the agent does not report
    /// what it found.
    fn transcript(&self, _cwd: &Path, _id: Uuid) -> Option<String> {
        None
    }

    /// The files and folders in the agent's home that belong to one conversation alone.
    fn memory_paths(&self, cwd: &Path, id: Uuid) -> Vec<String>;

    /// The plan in a tool call that the agent asks permission for.
    fn plan<'i>(&self, _tool: &str, _input: &'i serde_json::Value) -> Option<&'i str> {
        None
    }

    /// The fingerprint of this line, if the agent keeps it as a message of its conversation.
    fn message_fingerprint(&self, _line: &str) -> Option<MessageFingerprint> {
        None
    }

    /// The calls that a line starts (with the tool) or ends (without).
    fn calls(&self, line: &str) -> Vec<(String, Option<String>)> {
        stream_json::calls(line)
    }

    /// The background task that this line starts (with a description) or ends, by its id.
    fn background_task(&self, _line: &str) -> Option<(String, Option<String>)> {
        None
    }

    /// Which of these messages the agent will know, judged by the lines of its transcript.
    fn survey(
        &self,
        _lines: &mut dyn Iterator<Item = Vec<u8>>,
        _expected: &[ExpectedMessage],
    ) -> TranscriptSurvey {
        TranscriptSurvey::default()
    }

    /// The repaired transcript, from its readable part and our own log.
    fn mend(
        &self,
        _lines: &mut dyn Iterator<Item = Vec<u8>>,
        _log: &[LoggedMessage],
        _native: &TranscriptIdentity,
    ) -> MendedTranscript {
        MendedTranscript::default()
    }
}

/// An entry of the agent's home, by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeEntry {
    /// A folder, made if it is not there.
    Folder(String),
    /// A link, and its target.
    Link(String, String),
}

/// The fingerprint of one message of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFingerprint {
    /// The agent's id for the message.
    pub id: Uuid,
    /// The message has a call or a result, and the effect of a call must not happen twice.
    pub has_call_or_result: bool,
    /// The digest of the content that the agent should have.
    pub digest: u64,
}

/// A message that the agent should know according to our log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedMessage {
    /// The message's id.
    pub id: Uuid,
    /// It is one of our messages, not one of the agent's.
    pub prompt: bool,
    /// The digest of the content, if the agent keeps it unchanged: we may have put a note before a prompt.
    pub digest: Option<u64>,
}

/// The result of checking the agent's transcript.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TranscriptSurvey {
    /// The conversation that the agent will find.
    pub resumed: ResumedConversation,
    /// Which of the expected messages the agent will not know.
    pub missing: Vec<usize>,
    /// The transcript needs no repair.
    pub is_sound: bool,
    /// Which prompts the agent will know, including steering messages.
    pub prompts: Vec<Uuid>,
}

/// A message of our log, with its content if the repair needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedMessage {
    /// The message's id.
    pub id: Uuid,
    /// The time in RFC 3339.
    pub at: String,
    /// `None`: not needed, because the transcript has the content.
    pub words: Option<LoggedContent>,
}

/// The content of a message, as the log has it.
#[derive(Debug, Clone, PartialEq)]
pub enum LoggedContent {
    /// A message of ours: a text, or blocks of content.
    Prompt(serde_json::Value),
    /// The agent's own line.
    Line(String),
}

/// The identity of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptIdentity {
    /// The id that the agent keeps the conversation under.
    pub id: Uuid,
    /// The agent's working folder, as a path in the sandbox.
    pub cwd: PathBuf,
}

/// A transcript after the repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MendedTranscript {
    /// The lines, without newlines.
    pub lines: Vec<Vec<u8>>,
    /// No original entry was usable: everything comes from our log.
    pub rebuilt: bool,
    /// The repairs, for people.
    pub repairs: Vec<String>,
    /// What the repair could not restore, for people.
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
