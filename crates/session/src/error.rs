//! What can go wrong with a session, in sentences for the client that sent the request.

use crate::{machine::CommandRefusal, provider_access::ProviderRefusal};
use ash_driver::ClaudeVersion;
use ash_model::{
    AgentRuntime, FailureKind, LimitReached, ModelApiDialect, Problem, QuotaReached, SessionId, SessionLock,
    SessionOptions, SessionStatus, Slug, Timestamp,
};
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Refused(#[from] CommandRefusal),
    #[error("Session not found")]
    NotFound,
    #[error("The session has no such turn")]
    NoTurn,
    #[error(
        "The session is locked by {holder} until {until}: send its token as `X-Ash-Lock`, wait, or take the lock over with POST …/lock {{\"takeover\": true}}"
    )]
    Locked { holder: String, until: Timestamp },
    #[error(
        "The lock of this token is not yours any more: it was given up or taken over. Take a new one with POST …/lock, or leave out `X-Ash-Lock`"
    )]
    LockLost,
    #[error("An agent of runtime \"{runtime}\" cannot do anything with {}: leave it out, or use another agent", .options.join(", "))]
    Unsupported { runtime: &'static str, options: Vec<&'static str> },
    #[error("Agent \"{0}\" not found")]
    NoAgent(String),
    #[error(
        "Claude Code is not installed here: put `claude` ({} or newer) on the server's PATH or set ASH_CLAUDE_BIN, or write runtime = \"builtin\" into the agent's ash.toml to use the agent that ash brings along",
        ash_driver::OLDEST_CLAUDE
    )]
    NoClaude,
    #[error(
        "Claude Code {found} at {} is too old for ash: {} is the oldest that works. Install a newer one with `npm install -g @anthropic-ai/claude-code@latest`, or set ASH_CLAUDE_BIN to one",
        .path.display(), ash_driver::OLDEST_CLAUDE
    )]
    OldClaude { found: ClaudeVersion, path: PathBuf },
    #[error(
        "There is no key for model calls: set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN for the server and restart it, or write runtime = \"builtin\" and provider = \"offline\" into the agent's ash.toml to work without a model"
    )]
    NoKey,
    #[error(
        "The session was made with a key of its client's own, which is kept nowhere: resume it with `provider` again"
    )]
    ProviderRequired,
    #[error(
        "Claude Code cannot call a provider of type \"{}\": it speaks \"anthropic\" alone, with any baseUrl that does. An agent with runtime = \"builtin\" in its ash.toml speaks all of them",
        .0.as_str()
    )]
    ProviderUnsupported(ModelApiDialect),
    #[error(
        "A key of one's own is for a sandbox of one's own: leave out `workspace`, or `provider` and `credentialId`"
    )]
    ProviderShared,
    #[error(transparent)]
    ProviderRefused(#[from] ProviderRefusal),
    /// The caller names a credential that no session can be created with.
    #[error("{0}")]
    InvalidCredential(&'static str),
    #[error("{0}")]
    CredentialUnsupported(&'static str),
    #[error(
        "The session's credential was deleted: resume it with `credentialId` of another one, or with `provider`"
    )]
    CredentialGone,
    #[error(
        "There is a limit in dollars, and model \"{0}\" has no price: give it one with ASH_PRICES, or limit maxTokens instead"
    )]
    Unpriced(String),
    #[error(
        "There is a limit in dollars, and the session has called a model without a price, so what it has cost is unknown: leave out maxBudgetUsd, or limit maxTokens instead"
    )]
    UnpricedUsage,
    #[error("No workspace available for this session")]
    NoWorkspace,
    /// The sandbox or its agent did not start, or died.
    #[error("{}", .0.error)]
    Failed(Problem),
    /// The failure of one caller, for the callers that waited for the same result.
    #[error("{}", .problem.error)]
    Shared { kind: FailureKind, problem: Problem },
    /// A script of the agent failed.
    #[error("{}", .0.error)]
    Setup(Problem),
    #[error("The session was stopped before its agent had started; resume it to start it")]
    Halted,
    /// A later command took effect before this one was answered.
    #[error("The session was {0} in the meantime; resume it to go on")]
    Overtaken(SessionStatus),
    #[error(
        "The agent wants user namespaces ([sandbox] userNamespaces in its ash.toml), which this server does not allow: leave that out, or set ASH_ALLOW_USERNS=1 for the server; docs/security.md says what that weakens"
    )]
    UserNamespaces,
    #[error(
        "This server has no sandbox without limits (ASH_WALLS_REQUIRED=limits), and {0} would be none: ask for a number, or leave it out"
    )]
    Unlimited(&'static str),
    #[error(
        "The session's files were removed or replaced on the server's disk. Resume the session, or send it a message: its last checkpoint comes back"
    )]
    TreeLost,
    #[error("The agent refuses the setting: {0}")]
    Setting(String),
    #[error("The agent did not say within 10 s whether it goes on with the setting; ask again")]
    Silent,
    #[error("The session has no such checkpoint")]
    NoCheckpoint,
    #[error(
        "Checkpoint {0} was removed by the rules for keeping checkpoints; its conversation can still be read"
    )]
    Removed(u64),
    #[error(
        "Checkpoint {number} is damaged ({why}), and there is none before it that is whole. Bring the tenant's packs back from a copy; `ash snapshot verify --read-data` says which. The conversation can still be read"
    )]
    NothingWhole { number: u64, why: String },
    #[error(
        "Session \"{0}\" is in the packs of this server but not in its database, which was lost or replaced by an older copy: choose another id, or stop the server and run `ash repair`"
    )]
    Unrepaired(SessionId),
    #[error(
        "Session id \"{id}\" was purged, and sessions are at work in workspace \"{slug}\": there it is free again when all of them have been paused for a minute, and in a workspace of its own at once"
    )]
    PurgedHere { id: SessionId, slug: Slug },
    #[error("The workspace holds more than {0} files; leave folders out, or remove some")]
    TooManyFiles(usize),
    /// The upload would exceed the session's limits.
    #[error(
        "Nothing was written: with these files the session would take {} of {}, and may take {}. Remove some with DELETE …/files/PATH, or raise limits.{} with PATCH …/config",
        .0.used, .0.kind.as_str(), .0.limit, .0.kind.as_str()
    )]
    NoRoom(LimitReached),
    #[error("the workspace could not be saved: {0}")]
    Save(String),
    #[error("The server is stopping; try again in a moment")]
    Stopping,
    /// For a caller that was already waiting when the server stopped.
    #[error("The server was stopped before this was done; ask again when it is started again")]
    Stopped,
    #[error(
        "The server's disk has only {0} MB left, so nothing new is begun; free some space, or lower ASH_MIN_FREE_MB"
    )]
    LittleSpace(u64),
    #[error("There is no workspace \"{0}\"")]
    NoSuchWorkspace(Slug),
    #[error(
        "{0} in the shared workspace: its files go back when everybody else is at rest. Wait, go back without the files, or fork the session from that checkpoint to have both"
    )]
    WorkspaceBusy(String),
    #[error("Checkpoint {0} was made by another session of the workspace; go back to one of its own")]
    AnothersCheckpoint(u64),
    #[error("Too many sessions are at work in this workspace; end or stop one")]
    Crowded,
    #[error(
        "Sandbox capacity reached ({0}), and every one is at work; try again later, wait in line with the header `Prefer: wait=60`, end or stop a session, or raise ASH_MAX_SANDBOXES"
    )]
    Capacity(usize),
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    /// Internal: the caller acquires a permit for a sandbox and asks again.
    #[error("The session has no sandbox any more; try again")]
    Placeless,
    #[error("Every sandbox is at work, and {0} requests wait in line for one already; try again later")]
    LongLine(usize),
    #[error(
        "The server has only {0} MB of memory left, so no sandbox is begun; end or stop a session, or lower ASH_MIN_MEMORY_MB"
    )]
    LittleMemory(u64),
    #[error("This Idempotency-Key was used for a different request; use a new one")]
    IdempotencyKeyReused,
    #[error("The key that this Idempotency-Key made is gone; use a new one to make another")]
    ApiKeyGone,
    #[error(transparent)]
    Store(#[from] ash_store::Error),
    #[error(transparent)]
    Snapshot(#[from] ash_snapshot::Error),
    #[error(transparent)]
    Sandbox(#[from] ash_sandbox::Error),
    /// From replication or a restore.
    #[error(transparent)]
    Remote(ash_remote::Error),
    #[error(
        "There is no object store to wait for: set ASH_SNAPSHOT_URL for the server, or ask for durability \"local\""
    )]
    NoBucket,
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    /// Internal: something replaced the live tree. It is not followed or used; the last checkpoint takes its place.
    #[error("the live tree was replaced from outside")]
    Distrusted,
    #[error("the workspace's files were replaced in the middle of the request; ask again")]
    Moved,
    /// The session's actor has ended. A new request starts another actor.
    #[error("the session's keeper ended in the middle of the request; ask again")]
    Gone,
}

impl From<ash_remote::Error> for Error {
    fn from(error: ash_remote::Error) -> Error {
        match error {
            // These errors get the same variant wherever they come from.
            ash_remote::Error::Store(error) => Error::Store(error),
            ash_remote::Error::Snapshot(error) => Error::Snapshot(error),
            ash_remote::Error::Io { what, source } => Error::Io { what, source },
            ash_remote::Error::NoSession => Error::NotFound,
            ash_remote::Error::Interrupted => Error::Gone,
            own @ (ash_remote::Error::Bucket(_)
            | ash_remote::Error::Damaged(_)
            | ash_remote::Error::EncryptionKey(_)
            | ash_remote::Error::NotUploaded { .. }) => Error::Remote(own),
        }
    }
}

const DISK_FULL: &str = "disk_full";
pub(crate) const DISK_LIMIT: &str = "disk_limit";
const QUOTA_REACHED: &str = "quota_reached";
pub(crate) const SETUP_FAILED: &str = "setup_failed";
pub(crate) const SETUP_TIMEOUT: &str = "setup_timeout";

/// The kind of a problem that was read from the log, which stores only the code. Every code that `Error::code` returns
/// is listed; codes of agents and models are `Internal`.
fn kind_of(code: &str) -> FailureKind {
    match code {
        "wrong_status" | "invalid_body" | "invalid_credential" => FailureKind::Invalid,
        "own_providers_off" | "provider_not_listed" => FailureKind::Forbidden,
        // The owner of the session can change it.
        DISK_LIMIT
        | SETUP_FAILED
        | SETUP_TIMEOUT
        | "model_key_missing"
        | "runtime_missing"
        | "runtime_too_old"
        | "provider_required"
        | "provider_shared"
        | "provider_unsupported"
        | "credential_gone"
        | "option_unsupported"
        | "setting_refused"
        | "invalid_answer"
        | "unpriced_model"
        | "snapshot_key_missing"
        | "user_namespaces_refused"
        | "walls_required"
        | "no_object_store"
        | "idempotency_key_reused"
        | "checkpoint_damaged" => FailureKind::Unprocessable,
        // Another caller issued a conflicting command: nothing failed.
        "session_paused"
        | "session_stopped"
        | "setup_stopped"
        | "sandbox_ended"
        | "turn_running"
        | "session_busy"
        | "turn_not_waiting"
        | "permission_answered"
        | "budget_reached"
        | "session_locked"
        | "lock_lost"
        | "workspace_lost"
        | "workspace_busy"
        | "workspace_taken"
        | "workspace_deleting"
        | "workspace_of_another_agent"
        | "checkpoint_of_another"
        | "session_unrepaired"
        | "key_gone"
        | "session_exists" => FailureKind::Conflict,
        "session_ended" | "checkpoint_removed" => FailureKind::Gone,
        "session_not_found"
        | "turn_not_found"
        | "permission_not_found"
        | "agent_not_found"
        | "no_workspace"
        | "workspace_not_found"
        | "checkpoint_not_found" => FailureKind::NotFound,
        "too_many_files" => FailureKind::TooLarge,
        QUOTA_REACHED => FailureKind::TooMany,
        DISK_FULL
        | "capacity_reached"
        | "server_stopping"
        | "server_stopped"
        | "try_again"
        | "agent_silent"
        | "sandbox_failed"
        | "not_remote"
        | "object_store_failed" => FailureKind::Unavailable,
        // `checkpoint_failed`, `store_failed`, `snapshot_failed`, `io_failed`, `object_store_damaged`, and codes of
        // agents.
        _ => FailureKind::Internal,
    }
}

impl Error {
    /// Whether the disk is full, whichever part noticed it: the same request may work later, and nothing else is wrong.
    pub(crate) fn is_full(&self) -> bool {
        let of_disk = |source: &std::io::Error| {
            matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        };
        match self {
            Error::Io { source, .. } => of_disk(source),
            // A failure that was reported to another caller, of which only the code is known.
            Error::Failed(problem) | Error::Shared { problem, .. } => problem.code == DISK_FULL,
            other => matches!(
                other,
                Error::LittleSpace(_)
                    | Error::Store(ash_store::Error::Full)
                    | Error::Snapshot(ash_snapshot::Error::Full { .. })
            ),
        }
    }

    pub fn kind(&self) -> FailureKind {
        match self {
            full if full.is_full() => FailureKind::Unavailable,
            Error::Refused(CommandRefusal::SessionEnded) => FailureKind::Gone,
            Error::Refused(
                CommandRefusal::Busy
                | CommandRefusal::SessionBusy
                | CommandRefusal::NotWaiting
                | CommandRefusal::AlreadyAnswered
                | CommandRefusal::ToolAnswered
                | CommandRefusal::ToolWithdrawn
                | CommandRefusal::Budget(_),
            )
            | Error::Locked { .. }
            | Error::LockLost
            | Error::Halted
            | Error::Overtaken(_)
            | Error::TreeLost
            | Error::WorkspaceBusy(_)
            | Error::AnothersCheckpoint(_)
            | Error::Unrepaired(_)
            | Error::ApiKeyGone
            | Error::PurgedHere { .. } => FailureKind::Conflict,
            Error::Refused(CommandRefusal::NoSuchPermission | CommandRefusal::NoSuchToolCall) => {
                FailureKind::NotFound
            }
            Error::Refused(CommandRefusal::AnswersMissing | CommandRefusal::NotAQuestion)
            | Error::Setting(_) => FailureKind::Unprocessable,
            Error::Refused(CommandRefusal::WrongStatus(_) | CommandRefusal::NotPossible { .. }) => {
                FailureKind::Invalid
            }
            Error::NotFound
            | Error::NoTurn
            | Error::NoAgent(_)
            | Error::NoWorkspace
            | Error::NoSuchWorkspace(_)
            | Error::NoCheckpoint => FailureKind::NotFound,
            Error::Removed(_) => FailureKind::Gone,
            Error::NoClaude
            | Error::OldClaude { .. }
            | Error::NoKey
            | Error::ProviderRequired
            | Error::ProviderShared
            | Error::CredentialUnsupported(_)
            | Error::CredentialGone
            | Error::Unsupported { .. }
            | Error::ProviderUnsupported(_)
            | Error::Unpriced(_)
            | Error::UnpricedUsage
            | Error::NothingWhole { .. }
            | Error::Setup(_)
            | Error::UserNamespaces
            | Error::Unlimited(_)
            | Error::IdempotencyKeyReused
            | Error::NoBucket => FailureKind::Unprocessable,
            Error::Snapshot(ash_snapshot::Error::Far { .. }) => FailureKind::Unavailable,
            Error::ProviderRefused(refusal) => refusal.kind(),
            Error::InvalidCredential(_) => FailureKind::Invalid,
            Error::Remote(error) => error.kind(),
            Error::TooManyFiles(_) | Error::NoRoom(_) => FailureKind::TooLarge,
            Error::Quota(_) => FailureKind::TooMany,
            Error::Stopping
            | Error::Stopped
            | Error::LittleSpace(_)
            | Error::Crowded
            | Error::Capacity(_)
            | Error::LongLine(_)
            | Error::Placeless
            | Error::LittleMemory(_)
            | Error::Gone
            | Error::Moved
            | Error::Distrusted
            | Error::Silent => FailureKind::Unavailable,
            Error::Store(error) => error.kind(),
            Error::Sandbox(error) => error.kind(),
            Error::Failed(problem) => kind_of(&problem.code),
            Error::Shared { kind, .. } => *kind,
            Error::Save(_) | Error::Snapshot(_) | Error::Io { .. } => FailureKind::Internal,
        }
    }

    pub fn code(&self) -> &str {
        match self {
            full if full.is_full() => DISK_FULL,
            Error::Refused(CommandRefusal::SessionEnded) => "session_ended",
            Error::Refused(CommandRefusal::Busy) => "turn_running",
            Error::Refused(CommandRefusal::SessionBusy) => "session_busy",
            Error::Refused(CommandRefusal::NotWaiting) => "turn_not_waiting",
            Error::Refused(CommandRefusal::Budget(_)) => "budget_reached",
            Error::Unpriced(_) | Error::UnpricedUsage => "unpriced_model",
            Error::Locked { .. } => "session_locked",
            Error::LockLost => "lock_lost",
            Error::NoTurn => "turn_not_found",
            Error::Unsupported { .. } | Error::CredentialUnsupported(_) => "option_unsupported",
            Error::ProviderRefused(refusal) => refusal.code(),
            Error::InvalidCredential(_) => "invalid_credential",
            Error::CredentialGone => "credential_gone",
            Error::Refused(CommandRefusal::NoSuchPermission) => "permission_not_found",
            Error::Refused(CommandRefusal::AlreadyAnswered) => "permission_answered",
            Error::Refused(CommandRefusal::NoSuchToolCall) => "tool_call_not_found",
            Error::Refused(CommandRefusal::ToolAnswered) => "tool_answered",
            Error::Refused(CommandRefusal::ToolWithdrawn) => "tool_withdrawn",
            Error::Refused(CommandRefusal::AnswersMissing | CommandRefusal::NotAQuestion) => "invalid_answer",
            Error::Setting(_) => "setting_refused",
            Error::Silent => "agent_silent",
            Error::Refused(CommandRefusal::WrongStatus(_) | CommandRefusal::NotPossible { .. }) => {
                "wrong_status"
            }
            Error::NotFound => "session_not_found",
            Error::NoAgent(_) => "agent_not_found",
            Error::NoClaude => "runtime_missing",
            Error::OldClaude { .. } => "runtime_too_old",
            Error::NoKey => "model_key_missing",
            Error::ProviderRequired => "provider_required",
            Error::ProviderShared => "provider_shared",
            Error::ProviderUnsupported(_) => "provider_unsupported",
            Error::NoWorkspace => "no_workspace",
            Error::WorkspaceBusy(_) => "workspace_busy",
            Error::AnothersCheckpoint(_) => "checkpoint_of_another",
            Error::Unrepaired(_) => "session_unrepaired",
            Error::NoSuchWorkspace(_) => "workspace_not_found",
            Error::Store(ash_store::Error::SlugTaken(_)) => "workspace_taken",
            Error::Store(ash_store::Error::Deleting(_)) => "workspace_deleting",
            Error::Store(ash_store::Error::OtherAgent { .. }) => "workspace_of_another_agent",
            Error::Failed(problem) | Error::Shared { problem, .. } | Error::Setup(problem) => &problem.code,
            Error::Halted => "setup_stopped",
            Error::Overtaken(SessionStatus::Stopped) => "session_stopped",
            Error::Overtaken(SessionStatus::Paused) => "session_paused",
            Error::Overtaken(_) => "wrong_status",
            Error::TreeLost => "workspace_lost",
            Error::UserNamespaces => "user_namespaces_refused",
            Error::Unlimited(_) => "walls_required",
            Error::NoCheckpoint => "checkpoint_not_found",
            Error::Removed(_) | Error::Store(ash_store::Error::Removed(_)) => "checkpoint_removed",
            Error::NothingWhole { .. } => "checkpoint_damaged",
            Error::TooManyFiles(_) => "too_many_files",
            Error::NoRoom(_) => DISK_LIMIT,
            Error::Quota(_) => QUOTA_REACHED,
            Error::Save(_) => "checkpoint_failed",
            Error::Stopping => "server_stopping",
            Error::Capacity(_) | Error::LongLine(_) | Error::LittleMemory(_) | Error::Crowded => {
                "capacity_reached"
            }
            Error::LittleSpace(_) => DISK_FULL,
            Error::Store(ash_store::Error::Taken(_)) | Error::PurgedHere { .. } => "session_exists",
            Error::Store(ash_store::Error::Stale)
            | Error::Placeless
            | Error::Gone
            | Error::Moved
            | Error::Distrusted => "try_again",
            Error::Stopped | Error::Store(ash_store::Error::Closed) => "server_stopped",
            Error::IdempotencyKeyReused => "idempotency_key_reused",
            Error::ApiKeyGone => "key_gone",
            Error::Store(_) => "store_failed",
            Error::Snapshot(ash_snapshot::Error::Far { .. }) => "object_store_failed",
            Error::Remote(error) => error.code(),
            Error::NoBucket => "no_object_store",
            Error::Snapshot(_) => "snapshot_failed",
            Error::Sandbox(_) => "sandbox_failed",
            Error::Io { .. } => "io_failed",
        }
    }

    /// Refuses options that agents of this runtime do not support.
    pub(crate) fn unless_supported(runtime: AgentRuntime, options: &SessionOptions) -> Result<()> {
        let lacking = ash_driver::driver(runtime).unsupported_options(options);
        match lacking.is_empty() {
            true => Ok(()),
            false => Err(Error::Unsupported { runtime: runtime.as_str(), options: lacking }),
        }
    }

    /// Another client holds the session's lock.
    pub fn locked(lock: &SessionLock) -> Error {
        let holder = match &lock.holder {
            Some(name) => format!("\"{name}\" (lock {})", lock.number),
            None => format!("another client (lock {})", lock.number),
        };
        Error::Locked { holder, until: lock.until }
    }

    pub fn problem(&self) -> Problem {
        Problem::new(self.code(), self.to_string())
    }

    /// The same failure for another caller that waited for the same result: kind, code and sentence.
    pub(crate) fn shared(&self) -> Error {
        Error::Shared { kind: self.kind(), problem: self.problem() }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}

#[cfg(test)]
mod tests;
