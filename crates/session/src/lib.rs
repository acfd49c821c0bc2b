//! The lifecycle of a session, from its first message to its end: it survives crashes of its agent, its sandbox and the
//! server. Knows no HTTP and no SQL. Read `machine.rs` first, then `actor.rs`.

#![forbid(unsafe_code)]

mod actor;
mod agent_env;
mod agent_logs;
mod agents;
mod api_keys;
mod artifacts;
mod audit;
mod capture;
mod claude_program;
mod client_credentials;
mod client_tools;
mod clocks;
mod credentials;
mod embedded_log;
mod error;
mod files;
mod fold_log;
mod follower;
mod fork;
mod gc;
mod idempotency;
mod keyed_mutex;
mod ladder;
mod live_directory;
pub mod machine;
mod mailbox;
mod named_workspaces;
mod observer;
mod operator_policy;
mod path_list;
mod permission;
mod pool;
mod prewarm;
mod pricing;
mod provider_access;
mod queued_messages;
mod resource_limits;
mod rewind;
mod sandbox_conn;
mod server_status;
mod server_troubles;
mod services;
mod session_ttl;
mod sessions;
mod settings;
mod slots;
mod start;
mod stream_tokens;
mod tool_calls;
mod trusted_clock;
mod uid_pool;
mod upload;
mod usage;
mod visibility;
mod witness;
mod workspace;

pub use agent_logs::{LogLine, LogLineSource};
pub use agents::{AgentEdit, AgentServices, AgentSettingsChange, Agents, CapturedAgentFiles};
pub use api_keys::{
    ApiKeyDerivationKey, ApiKeyServices, CreatedApiKey, Keys, NewApiKey, constant_time_eq, hash_key,
};
pub use artifacts::SessionArtifacts;
pub use ash_remote::{
    ClaimConflict, Claimant, RemoteRestoreReport, ReplicatedSession, ReplicationTarget, Replicator,
    Repositories, RepositorySettings, list_remote_sessions,
};
pub use ash_snapshot::PathChange;
pub use audit::{Audit, AuditSubject, ConfigChange, NewAuditEntry};
pub use claude_program::ClaudeProgram;
pub use client_tools::OpenToolCall;
pub use clocks::Clocks;
pub use credentials::{Credentials, NewCredential};
pub use error::{Error, Result};
pub use files::{FileLookup as FoundFile, FileSource, TreeState, WorkspaceFiles, is_closed};
pub use follower::{LogFollower, RestoreProgress, StreamItem};
pub use fork::ForkSpec;
pub use gc::RetentionPolicy;
pub use idempotency::{IdempotencyKeys, IdempotentRequest, IdempotentResource};
pub use keyed_mutex::KeyedMutex;
pub use machine::{CommandRefusal, LockRequest, Turn, TurnPhase, WakePolicy, plain_text};
pub use mailbox::{ExecOutput, OptionsChange};
pub use named_workspaces::Workspaces;
pub use observer::{SessionObserver, SweepReport};
pub use operator_policy::{LimitsRequester, OperatorPolicy};
pub use pool::PoolCounts;
pub use provider_access::{ProviderAccess, ProviderRefusal, egress_with_key, key_header, upstream};
pub use server_status::{ObjectStoreStatus, ServerStatus};
pub use server_troubles::{ServerTrouble, ServerTroubles};
pub use services::{Backends, Services, TouchedOptions, WallClock};
pub use session_ttl::{ExpiringSession, PruneRule, SessionTtlRule, SessionTtlRules, earlier_by, is_at_rest};
pub use sessions::{
    IdFrom, LocklessWrite, NewSession, PromptSpec, ProposedPlan, SandboxReservation, Sessions,
};
pub use settings::ServiceSettings;
pub use stream_tokens::{StreamToken, StreamTokenClaims, StreamTokenKey, StreamTokens};
pub use trusted_clock::{ClockReading, TrustedClock};
pub use uid_pool::UidPool;
pub use upload::{WorkspaceUpload, weight_of};
pub use usage::Usage;
pub use visibility::LogVisibility;
pub use witness::{DatabaseComparison, RepairMode, RepairedSession, SessionBehindWitness};

/// Runs work that waits for a disk on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Gone)?
}
