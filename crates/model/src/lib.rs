//! The vocabulary that all crates share: ids, facts, options and kinds of failure. No I/O.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod client_tool;
mod compaction;
mod credential;
mod death;
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
mod schema;
pub mod secrets;
mod session_lock;
mod session_metadata;
mod time;
mod tool;
mod usage;

pub use client_tool::{ClientTool, ToolAnswer, ToolOutput, ToolRepeat, ToolRequest, ToolTimeoutPolicy};
pub use compaction::CompactionOptions;
pub use credential::CredentialKind;
pub use death::Death;
pub use fact::{
    AdoptedHistory, CaptureConsistency, ConcurrentTurn, ConversationPoint, Event, Fact, HistorySource,
    JournalPosition, MessageDelta, MessageOptions, NewEvent, SavedCheckpoint, SessionRewind, TurnOutcome,
    UnsavedPath, WorkspaceRewind,
};
pub use failure::{FailureKind, Problem};
pub use forwarding_headers::{is_forwarding_header, normalized_header_name};
pub use ids::{
    AgentName, BadName, CredentialId, Epoch, EventSeq, Image, Incarnation, OwnerId, PermissionId, SessionId,
    SessionRowId, Slug, TenantId, ToolRequestId, TurnId, WorkspaceId,
};
pub use log_cursor::LogCursor;
pub use permission::{
    LiveSetting, PermissionRequest, PermissionTimeoutPolicy, PermissionVerdict, ToolCallOutcome,
    ToolCallRecord, VerdictSource,
};
pub use price::{ModelPrices, OperatorPrice, TokenPrice};
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
    BudgetLimits, BudgetScope, LimitKind, LimitReached, ModelStopReason, TokenUsage, UsageIncrement,
    UsageTotal, nano_to_usd,
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The status of a session. Only `ended` is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// The session is new: its first sandbox is not ready yet.
    Starting,
    /// The session accepts messages; it has a sandbox, or gets one with the next message.
    Active,
    /// The session has no sandbox, and gets one with the next message or a resume.
    Paused,
    /// The session accepts no messages until a client resumes it.
    Stopped,
    /// The session failed, and accepts no messages until a client resumes it.
    Error,
    /// The session is over for good.
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

/// The agent program of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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

/// The model provider of the built-in agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelProvider {
    /// No model: the agent follows commands in prompts.
    Offline,
    /// Anthropic's Messages API, or a compatible service.
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

/// The API of a model service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelApiDialect {
    /// The Messages API.
    Anthropic,
    /// Chat completions, which many services offer.
    Openai,
    /// Chat completions of one Azure deployment.
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

/// A model service that a client uses with its own key. The key itself is not stored here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ByokEndpoint {
    /// The API of the service.
    pub r#type: ModelApiDialect,
    /// The base URL, without the path of an endpoint.
    pub base_url: String,
    /// At Azure: the deployment to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub deployment_id: Option<String>,
    /// At Azure: the version of the API, as a date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub api_version: Option<String>,
}

/// The options that a caller may set on a session. Stored with it, and applied again on every start. They contain no
/// secret.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionOptions {
    /// The model; `None`: the agent's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub model: Option<String>,
    /// `None`: the agent's own provider, or the one that the server has a key for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub provider: Option<ModelProvider>,
    /// The client's own service. Without `credentialId`, a client that resumes the session must send the key again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub own_provider: Option<ByokEndpoint>,
    /// The stored credential whose key is added to calls of `ownProvider`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub credential_id: Option<CredentialId>,
    /// Replaces the agent's own instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub system_prompt: Option<String>,
    /// When the agent asks for permission, in its own terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub permission_mode: Option<String>,
    /// Text after the agent's own instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub append_system_prompt: Option<String>,
    /// The only tools that the agent has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub available_tools: Option<Vec<String>>,
    /// The reasoning effort, in the agent's own terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reasoning_effort: Option<String>,
    /// Whether the agent streams partial answers; the default is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub streaming: Option<bool>,
    /// Tools that the agent may call without permission.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub allowed_tools: Option<Vec<String>>,
    /// Tools that the agent may not call at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub disallowed_tools: Option<Vec<String>>,
    /// Beta features of the model's API, by their header names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub betas: Option<Vec<String>>,
    /// MCP servers by name, in the agent's own format, with masks instead of secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub mcp_servers: Option<serde_json::Value>,
    /// Subagents by name, in the agent's own format.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub subagents: Option<serde_json::Value>,
    /// The subagent that starts the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub initial_agent: Option<String>,
    /// The agent's working directory; `None`: the workspace itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub working_directory: Option<SandboxPath>,
    /// Where the agent looks for its user's configuration: instructions, skills, settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub config_dir: Option<SandboxPath>,
    /// Folders with skills, besides those that the agent finds by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub skill_directories: Option<Vec<SandboxPath>>,
    /// Skills that the agent does not get.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub disabled_skills: Option<Vec<String>>,
    /// When the agent compacts long conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub infinite_sessions: Option<CompactionOptions>,
    /// What happens to a turn that a crash interrupted; `None`: the server's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_interrupted: Option<InterruptedTurnPolicy>,
    /// The default for messages that arrive during another turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_busy: Option<BusyPolicy>,
    /// Whether a resumed agent gets a note about how long it slept and what happened meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub wake_report: Option<bool>,
    /// How many seconds a call waits for permission; `None`: the server's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub permission_timeout: Option<u64>,
    /// What happens to a permission request without an answer; `None`: it is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_permission_timeout: Option<PermissionTimeoutPolicy>,
    /// Tools that the clients of the session execute.
    #[serde(rename = "tools", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub client_tools: Option<Vec<ClientTool>>,
    /// How many seconds a call of a client's tool waits, 0: without limit; `None`: a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tool_timeout: Option<u64>,
    /// What happens to a call of a client's tool without an answer; `None`: it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_tool_timeout: Option<ToolTimeoutPolicy>,
    /// How many seconds background work may delay the end of a turn; `None`: the server's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_wait: Option<u64>,
    /// How many seconds a session may be unused before its sandbox is released, 0 for ever; `None`: the server's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub idle_timeout: Option<u64>,
    /// How many seconds after its last activity the session ends and goes to the trash; `None` or 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub ttl: Option<u64>,
    /// When a turn counts as done; `None`: the server's setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub durability: Option<Durability>,
    /// Keep only the log and make no checkpoints: the files are lost with the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub ephemeral: Option<bool>,
    /// The limit for answers of the agent's loop in the whole session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_turns: Option<u32>,
    /// The limit for the cost of the session, in dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_budget_usd: Option<f64>,
    /// The limit for tokens of all kinds in the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_tokens: Option<u64>,
    /// The limits of each turn, unless a message sets its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub turn_limits: Option<BudgetLimits>,
    /// The resource limits of the sandbox; `None`: the agent's, or the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limits: Option<ResourceLimits>,
    /// The checkpoint that changes are relative to; `None`: the agent's own files.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub base: Option<u64>,
}

impl SessionOptions {
    /// Whether the key of its model service is known to the client alone, which must send it on every resume.
    pub fn has_client_key(&self) -> bool {
        self.own_provider.is_some() && self.credential_id.is_none()
    }
}

/// When a turn counts as done: once it is saved here, or once the object store has it too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Once this machine's disk has it.
    #[default]
    Local,
    /// Once the object store has it as well.
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

/// What happens to a message that arrives while a turn is running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BusyPolicy {
    /// The message waits for the messages before it.
    #[default]
    Queue,
    /// The session refuses the message.
    Reject,
    /// The running turn is interrupted, and the message goes before all waiting ones.
    Interrupt,
    /// The agent receives the message in the running turn if that still makes model calls; otherwise the message goes
    /// before all waiting ones.
    Steer,
}

/// What a start does with a turn that a crash interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptedTurnPolicy {
    /// The turn continues by itself.
    Continue,
    /// The turn waits for a caller's decision.
    Ask,
}
