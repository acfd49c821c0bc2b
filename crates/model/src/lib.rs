//! THE WORDS: ids, facts, options and kinds of failure that every other room speaks. Touches nothing.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod compaction;
pub mod embedded_log;
mod fact;
mod failure;
mod forwarding_headers;
mod ids;
mod image;
mod log_cursor;
mod permission;
mod price;
mod quotas;
mod receipt;
pub mod remote;
mod resource_limits;
mod sandbox_path;
mod sandbox_requirements;
pub mod secrets;
mod session_lock;
mod session_metadata;
mod time;
mod tool;
mod usage;

pub use compaction::CompactionOptions;
pub use fact::{
    AdoptedHistory, CaptureConsistency, ConcurrentTurn, ConversationPoint, Death, Event, Fact, HistorySource,
    JournalPosition, MessageDelta, MessageOptions, NewEvent, SavedCheckpoint, SessionRewind, TokenUsage,
    TurnOutcome, UnsavedPath, WorkspaceRewind,
};
pub use failure::{FailureKind, Problem};
pub use forwarding_headers::{is_forwarding_header, normalized_header_name};
pub use ids::{
    AgentName, BadName, Epoch, EventSeq, Image, Incarnation, OwnerId, PermissionId, SessionId, SessionRowId,
    Slug, TenantId, TurnId, WorkspaceId,
};
pub use log_cursor::LogCursor;
pub use permission::{
    LiveSetting, PermissionRequest, PermissionTimeoutPolicy, PermissionVerdict, ToolCallOutcome,
    ToolCallRecord, VerdictSource,
};
pub use price::{GivenPrice, ModelPrices, TokenPrice};
pub use quotas::{BadQuotas, QuotaKind, QuotaReached, Quotas};
pub use receipt::{
    AdoptionPoint, ComparisonMethod, Receipt, RemoteComparison, ResumeComparison, ResumePath, ResumeSource,
    Tier, TreeOrigin,
};
pub use resource_limits::{BadResourceLimits, ResourceLimits, ResourceUsage};
pub use sandbox_path::{BadSandboxPath, SandboxPath, SandboxRoot};
pub use sandbox_requirements::SandboxRequirements;
pub use session_lock::{LockAcquisition, SessionLock};
pub use session_metadata::{BadMetadata, SessionMetadata, SizeLimitExceeded};
pub use time::{Timestamp, parse_duration};
pub use tool::{shown_tool_name, tool_name};
pub use usage::{
    BudgetLimits, BudgetScope, LimitKind, LimitReached, ModelStopReason, UsageIncrement, UsageTotal,
    nano_to_usd,
};

use serde::{Deserialize, Serialize};

/// Where a session stands. `ended` is the only one nothing comes back from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// It is being made: its first sandbox does not answer yet.
    Starting,
    /// It takes messages; its sandbox is there, or comes with the next one.
    Active,
    /// It has no sandbox, and gets one with the next message or when somebody resumes it.
    Paused,
    /// It takes no messages until somebody resumes it.
    Stopped,
    /// Something went wrong, and it takes no messages until somebody resumes it.
    Error,
    /// It is over for good.
    Ended,
}

impl SessionStatus {
    /// All of them.
    pub const ALL: [SessionStatus; 6] = [
        SessionStatus::Starting,
        SessionStatus::Active,
        SessionStatus::Paused,
        SessionStatus::Stopped,
        SessionStatus::Error,
        SessionStatus::Ended,
    ];

    /// The name in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            SessionStatus::Starting => "starting",
            SessionStatus::Active => "active",
            SessionStatus::Paused => "paused",
            SessionStatus::Stopped => "stopped",
            SessionStatus::Error => "error",
            SessionStatus::Ended => "ended",
        }
    }

    /// The status of that name.
    pub fn parse(text: &str) -> Option<SessionStatus> {
        SessionStatus::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

impl std::fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which agent program a version runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRuntime {
    /// The agent that is built into `ash`.
    Builtin,
    /// Claude Code.
    Claude,
}

impl AgentRuntime {
    /// The name in `ash.toml`, in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            AgentRuntime::Builtin => "builtin",
            AgentRuntime::Claude => "claude",
        }
    }

    /// The runtime of that name.
    pub fn parse(text: &str) -> Option<AgentRuntime> {
        match text {
            "builtin" => Some(AgentRuntime::Builtin),
            "claude" => Some(AgentRuntime::Claude),
            _ => None,
        }
    }
}

/// Who answers the built-in agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelProvider {
    /// Nobody: it follows commands.
    Offline,
    /// The Messages API of Anthropic, or what speaks like it.
    Anthropic,
}

impl ModelProvider {
    /// The name in `ash.toml`, in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            ModelProvider::Offline => "offline",
            ModelProvider::Anthropic => "anthropic",
        }
    }

    /// The provider of that name.
    pub fn parse(text: &str) -> Option<ModelProvider> {
        match text {
            "offline" => Some(ModelProvider::Offline),
            "anthropic" => Some(ModelProvider::Anthropic),
            _ => None,
        }
    }
}

/// What a service for models speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelApiDialect {
    /// The Messages API.
    Anthropic,
    /// Chat completions, which many services speak.
    Openai,
    /// The same, of one deployment.
    Azure,
}

impl ModelApiDialect {
    /// All of them.
    pub const ALL: [ModelApiDialect; 3] =
        [ModelApiDialect::Anthropic, ModelApiDialect::Openai, ModelApiDialect::Azure];

    /// The name in the API and in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            ModelApiDialect::Anthropic => "anthropic",
            ModelApiDialect::Openai => "openai",
            ModelApiDialect::Azure => "azure",
        }
    }

    /// The dialect of that name.
    pub fn parse(text: &str) -> Option<ModelApiDialect> {
        ModelApiDialect::ALL.into_iter().find(|dialect| dialect.as_str() == text)
    }
}

/// A way to a model that a client brings with a key of its own. The key is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ByokEndpoint {
    /// What the service speaks.
    pub r#type: ModelApiDialect,
    /// Where it is, without the path of an endpoint.
    pub base_url: String,
    /// At Azure, which answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<String>,
    /// At Azure: the version of the API, as a date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
}

/// What a caller may set on a session. Stored with it, re-applied on every start. Holds no secret.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionOptions {
    /// The model; none: the agent's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// None: the agent's own, else whoever the server has a key for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ModelProvider>,
    /// Whoever comes back has to bring the key again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_provider: Option<ByokEndpoint>,
    /// Replaces the agent's own instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// When the agent asks for leave, in its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<String>,
    /// What is said after the agent's own instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub append_system_prompt: Option<String>,
    /// The only tools that there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_tools: Option<Vec<String>>,
    /// How hard the model is to think, in the agent's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Whether words are shown while they come; without it they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<bool>,
    /// Tools that the agent may call without leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// Tools that the agent may not call at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disallowed_tools: Option<Vec<String>>,
    /// Beta features of the model's API, by the names of their headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<Vec<String>>,
    /// MCP servers by name, in the agent's own form, with masks in the place of secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<serde_json::Value>,
    /// Subagents by name, in the agent's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagents: Option<serde_json::Value>,
    /// The subagent that speaks first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_agent: Option<String>,
    /// Where the agent begins; without it, in the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<SandboxPath>,
    /// Where the agent looks for what is its user's: instructions, skills, settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_dir: Option<SandboxPath>,
    /// Folders of skills, besides those that the agent finds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skill_directories: Option<Vec<SandboxPath>>,
    /// Skills that are not offered to the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_skills: Option<Vec<String>>,
    /// When long conversations are summed up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infinite_sessions: Option<CompactionOptions>,
    /// What happens to a turn that a crash cut off; none: as the server is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_interrupted: Option<InterruptedTurnPolicy>,
    /// What becomes of a message that comes while another one's turn is not over, and does not say so itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_busy: Option<BusyPolicy>,
    /// Whether the agent is told, when it comes back, how long it slept and what happened meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_report: Option<bool>,
    /// Seconds that a call waits for leave; without it, as the server is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_timeout: Option<u64>,
    /// What happens to a request for leave that nobody answers; none: it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_permission_timeout: Option<PermissionTimeoutPolicy>,
    /// Seconds that work in the background holds a turn whose answer is there; without it, as the server is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<u64>,
    /// Seconds that nobody uses it before its sandbox is let go of, 0 for ever; without it, as the server is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<u64>,
    /// Seconds after its last activity at which it is ended and put in the trash; without it, or with 0, never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// When a turn is done; without it, as the server is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// No checkpoint is made, only the log is kept: its files go with its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<bool>,
    /// What it may use, all in all: answers of the agent's loop, dollars, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// Dollars that the session may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
    /// Tokens of every kind that the session may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// What each of its turns may use, unless a message says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_limits: Option<BudgetLimits>,
    /// How much of the machine its sandbox may take; without it, as its agent says, or the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceLimits>,
    /// The checkpoint that changes are counted from; without one, the agent's own files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
}

/// When a turn is done: when it is saved here, or when the object store has it too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// When this machine's disk has it.
    #[default]
    Local,
    /// When the object store has it, too.
    Remote,
}

impl Durability {
    /// The durability of that name.
    pub fn parse(text: &str) -> Option<Durability> {
        match text {
            "local" => Some(Durability::Local),
            "remote" => Some(Durability::Remote),
            _ => None,
        }
    }
}

/// What becomes of a message that comes while a turn is not over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyPolicy {
    /// It waits for those before it.
    #[default]
    Queue,
    /// It is refused.
    Reject,
    /// The turn that runs is asked to stop, and the message goes before all that wait.
    Interrupt,
    /// The agent hears it in the turn that runs, if there is still something to be done in it; else it goes before all
    /// that wait.
    Steer,
}

/// What to do at start with a turn that a crash cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptedTurnPolicy {
    /// It goes on by itself.
    Continue,
    /// It waits until a caller says what to do.
    Ask,
}
