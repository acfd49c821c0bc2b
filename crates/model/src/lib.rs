//! THE WORDS: ids, facts, options and kinds of failure that every other room speaks. Touches nothing.

#![forbid(unsafe_code)]

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
    Starting,
    Active,
    Paused,
    Stopped,
    Error,
    Ended,
}

impl SessionStatus {
    pub const ALL: [SessionStatus; 6] = [
        SessionStatus::Starting,
        SessionStatus::Active,
        SessionStatus::Paused,
        SessionStatus::Stopped,
        SessionStatus::Error,
        SessionStatus::Ended,
    ];

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
    Builtin,
    Claude,
}

impl AgentRuntime {
    pub fn as_str(self) -> &'static str {
        match self {
            AgentRuntime::Builtin => "builtin",
            AgentRuntime::Claude => "claude",
        }
    }

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
    Anthropic,
}

impl ModelProvider {
    pub fn as_str(self) -> &'static str {
        match self {
            ModelProvider::Offline => "offline",
            ModelProvider::Anthropic => "anthropic",
        }
    }

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
    Anthropic,
    /// Chat completions, which many services speak.
    Openai,
    /// The same, of one deployment.
    Azure,
}

impl ModelApiDialect {
    pub const ALL: [ModelApiDialect; 3] =
        [ModelApiDialect::Anthropic, ModelApiDialect::Openai, ModelApiDialect::Azure];

    pub fn as_str(self) -> &'static str {
        match self {
            ModelApiDialect::Anthropic => "anthropic",
            ModelApiDialect::Openai => "openai",
            ModelApiDialect::Azure => "azure",
        }
    }

    pub fn parse(text: &str) -> Option<ModelApiDialect> {
        ModelApiDialect::ALL.into_iter().find(|dialect| dialect.as_str() == text)
    }
}

/// A way to a model that a client brings with a key of its own. The key is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ByokEndpoint {
    pub r#type: ModelApiDialect,
    pub base_url: String,
    /// At Azure, which answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
}

/// What a caller may set on a session. Stored with it, re-applied on every start. Holds no secret.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// None: the agent's own, else whoever the server has a key for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ModelProvider>,
    /// Whoever comes back has to bring the key again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_provider: Option<ByokEndpoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<String>,
    /// What is said after the agent's own instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub append_system_prompt: Option<String>,
    /// The only tools that there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Whether words are shown while they come; without it they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disallowed_tools: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagents: Option<serde_json::Value>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_skills: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infinite_sessions: Option<CompactionOptions>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
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
    #[default]
    Local,
    Remote,
}

impl Durability {
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
    Continue,
    Ask,
}
