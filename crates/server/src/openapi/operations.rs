//! What the types of the handlers cannot say about an operation: its purpose, the errors that come from the sessions, and
//! its headers.

/// One operation, by the id that the table of routes gives it.
pub(crate) struct OperationText {
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) description: &'static str,
    /// Codes besides those of the handler's arguments.
    pub(crate) errors: &'static [&'static [&'static str]],
    pub(crate) headers: &'static [RequestHeader],
}

/// A header that some operations read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestHeader {
    IdempotencyKey,
    Lock,
    Wait,
    LastEventId,
}

use RequestHeader::{IdempotencyKey, LastEventId, Lock, Wait};

type Codes = &'static [&'static str];

const SESSION: Codes = &["invalid_session_id", "session_not_found"];
/// A write to a session, which a lock can block.
const GUARDED: Codes = &["invalid_lock", "session_locked", "lock_lost"];
const LOCKED: &[RequestHeader] = &[Lock];
/// Commands to the session's actor.
const COMMAND: Codes = &[
    "wrong_status",
    "session_ended",
    "session_unrepaired",
    "try_again",
    "server_stopping",
    "snapshot_failed",
    "io_failed",
    "disk_full",
    "quota_reached",
];
/// What needs a sandbox.
const SANDBOX: Codes = &[
    "agent_silent",
    "capacity_reached",
    "checkpoint_damaged",
    "credential_gone",
    "disk_limit",
    "model_key_missing",
    "object_store_damaged",
    "object_store_failed",
    "option_unsupported",
    "provider_required",
    "provider_shared",
    "provider_unsupported",
    "runtime_missing",
    "runtime_too_old",
    "sandbox_ended",
    "sandbox_failed",
    "session_paused",
    "session_stopped",
    "setup_failed",
    "setup_stopped",
    "setup_timeout",
    "snapshot_key_missing",
    "unpriced_model",
    "user_namespaces_refused",
    "walls_required",
    "workspace_lost",
];
/// What ends a turn or an agent.
const FAILURES: Codes = &[
    "agent_died",
    "agent_error",
    "context_full",
    "crashed_twice",
    "line_too_long",
    "machine_died",
    "model_error",
    "option_failed",
    "sandbox_died",
    "sandbox_oom",
    "turn_timeout",
];
/// The options of a session.
const OPTIONS: Codes = &[
    "invalid_credential",
    "invalid_env",
    "limit_too_high",
    "no_object_store",
    "option_unsupported",
    "own_providers_off",
    "payload_too_large",
    "provider_not_listed",
    "provider_unsupported",
    "unpriced_model",
];
const IDEMPOTENT: Codes = &["invalid_idempotency_key", "idempotency_key_reused"];
/// Files of a workspace or of a checkpoint.
const FILES: Codes = &[
    "no_workspace",
    "checkpoint_not_found",
    "checkpoint_removed",
    "checkpoint_of_another",
    "closed",
    "invalid_path",
    "too_many_files",
    "try_again",
    "snapshot_failed",
    "snapshot_key_missing",
    "object_store_failed",
    "object_store_damaged",
    "io_failed",
];
const ONE_FILE: Codes = &["file_not_found", "not_a_file", "file_too_large", "invalid_query"];
const WRITES: Codes = &["disk_limit", "disk_full", "session_ended", "wrong_status", "server_stopping"];
const ARCHIVE: Codes = &[
    "archive_bad_entry",
    "archive_damaged",
    "archive_ratio",
    "archive_too_large",
    "archive_too_many_entries",
    "archive_unsupported",
    "in_the_way",
    "invalid_base64",
];
const WORKSPACE: Codes = &["invalid_workspace", "workspace_not_found"];
const AGENT: Codes = &["agent_not_found"];

const fn text(
    id: &'static str,
    summary: &'static str,
    description: &'static str,
    errors: &'static [Codes],
) -> OperationText {
    OperationText { id, summary, description, errors, headers: &[] }
}

impl OperationText {
    const fn with(self, headers: &'static [RequestHeader]) -> OperationText {
        OperationText { headers, ..self }
    }

    pub(crate) fn of(id: &str) -> Option<&'static OperationText> {
        OPERATIONS.iter().find(|text| text.id == id)
    }
}

pub(crate) const OPERATIONS: &[OperationText] = &[
    // Server
    text("getServer", "Name and version", "For a browser, a page that explains what this server is.", &[]),
    text(
        "health",
        "Load and trouble",
        "The status is 200 whenever the server can answer. A request with a key also gets the details of every trouble.",
        &[],
    ),
    text("getMetrics", "Metrics for Prometheus", "Of all tenants together.", &[]),
    text("getOpenApi", "This document", "As JSON.", &[]),
    text("getDocsJson", "This document", "As JSON; the same as /openapi.json.", &[]),
    text("getDocsYaml", "This document", "As YAML.", &[]),
    text("getDocs", "This document", "As a page for people.", &[]),
    // Agents
    text("listAgents", "List agents", "Ordered by name.", &[]),
    text(
        "createAgent",
        "Deploy an agent",
        "From uploaded files, or from a folder on the server's machine. A deploy of an existing name makes a new version.",
        &[
            IDEMPOTENT,
            &[
                "agent_directory",
                "invalid_base64",
                "invalid_env",
                "invalid_manifest",
                "invalid_path",
                "limit_too_high",
                "path_not_allowed",
                "quota_reached",
                "archive_bad_entry",
                "archive_too_large",
                "archive_too_many_entries",
                "snapshot_failed",
                "snapshot_key_missing",
                "io_failed",
                "disk_full",
            ],
        ],
    )
    .with(&[IdempotencyKey]),
    text("getAgent", "Get an agent", "", &[AGENT]),
    text(
        "updateAgent",
        "Change an agent's settings",
        "`env` replaces all variables; `config` is merged.",
        &[AGENT, &["invalid_env"]],
    ),
    text("deleteAgent", "Delete an agent", "Its sessions stay.", &[AGENT]),
    text("getAgentConfig", "Get an agent's settings", "", &[AGENT]),
    text("updateAgentConfig", "Merge into an agent's settings", "", &[AGENT]),
    // Sessions
    text("listSessions", "List sessions", "Newest first.", &[&["invalid_workspace"]]),
    text(
        "createSession",
        "Create a session",
        "Starts the agent in a sandbox and answers when it is ready.",
        &[
            COMMAND,
            SANDBOX, FAILURES,
            OPTIONS,
            IDEMPOTENT,
            AGENT,
            &[
                "admin_only",
                "invalid_header",
                "invalid_metadata",
                "invalid_workspace",
                "session_exists",
                "workspace_busy",
                "workspace_deleting",
                "workspace_of_another_agent",
            ],
        ],
    )
    .with(&[IdempotencyKey, Wait]),
    text("getSession", "Get a session with its details", "", &[SESSION]),
    text(
        "updateSessionMetadata",
        "Replace a session's metadata",
        "",
        &[SESSION, GUARDED, COMMAND, &["invalid_metadata"]],
    )
    .with(LOCKED),
    text(
        "endSession",
        "End a session",
        "For good; its history stays readable. With `purge` nothing of it stays.",
        &[SESSION, GUARDED, COMMAND, &["session_busy"]],
    )
    .with(LOCKED),
    text(
        "updateSessionConfig",
        "Change a session's options",
        "Fields that are left out keep their values. A running agent takes a new model or permission mode at once, and the others when it restarts before its next turn.",
        &[SESSION, GUARDED, COMMAND, OPTIONS, &["setting_refused", "agent_silent", "sandbox_ended", "provider_shared"]],
    )
    .with(LOCKED),
    text(
        "pauseSession",
        "Pause a session",
        "Saves its files and ends its sandbox. During a turn it waits for the turn's end.",
        &[SESSION, GUARDED, COMMAND, &["session_stopped", "sandbox_ended", "checkpoint_failed"]],
    )
    .with(LOCKED),
    text(
        "resumeSession",
        "Resume a session",
        "Brings back the conversation, the files and the agent, and answers what was restored from where. Options in the body apply from now on.",
        &[SESSION, GUARDED, COMMAND, SANDBOX, FAILURES, OPTIONS, AGENT, &["invalid_header", "setting_refused", "not_remote", "budget_reached"]],
    )
    .with(&[Lock, Wait]),
    text(
        "stopSession",
        "Stop a session",
        "At once: a running turn is interrupted, and continues when the session is resumed.",
        &[SESSION, GUARDED, COMMAND, &["session_paused", "sandbox_ended", "checkpoint_failed"]],
    )
    .with(LOCKED),
    text(
        "forkSession",
        "Fork a session",
        "A new session with the files and the conversation of this one, or of one of its checkpoints. It is paused.",
        &[
            SESSION,
            COMMAND,
            IDEMPOTENT,
            &[
                "checkpoint_not_found",
                "checkpoint_of_another",
                "checkpoint_removed",
                "invalid_workspace",
                "no_workspace",
                "session_exists",
                "turn_running",
                "workspace_busy",
                "workspace_deleting",
                "object_store_failed",
            ],
        ],
    )
    .with(&[IdempotencyKey]),
    text(
        "rewindSession",
        "Go back to a checkpoint",
        "Conversation, agent and files together. Nothing is deleted: `from` is the way back.",
        &[
            SESSION,
            GUARDED,
            COMMAND,
            &[
                "checkpoint_not_found",
                "checkpoint_of_another",
                "checkpoint_removed",
                "checkpoint_damaged",
                "disk_limit",
                "object_store_failed",
                "sandbox_ended",
                "session_busy",
                "session_paused",
                "session_stopped",
                "turn_running",
                "workspace_busy",
            ],
        ],
    )
    .with(LOCKED),
    text("interruptSession", "Interrupt the running turn", "", &[SESSION, GUARDED, COMMAND]).with(LOCKED),
    text(
        "exec",
        "Run a command in the sandbox",
        "With the environment of the agent and the session, in the workspace. The session must be active.",
        &[
            SESSION,
            GUARDED,
            COMMAND,
            &["sandbox_ended", "sandbox_failed", "session_paused", "session_stopped", "payload_too_large", "disk_limit"],
        ],
    )
    .with(LOCKED),
    text(
        "getSessionLogs",
        "Lines that the agent and its setup wrote",
        "Only while the server keeps them in memory.",
        &[SESSION],
    ),
    // Messages and events
    text(
        "sendMessage",
        "Send a message",
        "The answer is a stream of events until `done`; with `Accept: application/json` it is the whole result at the end of the turn. A client that was cut off repeats the request with the same Idempotency-Key, or follows `GET …/stream`.",
        &[
            SESSION,
            GUARDED,
            COMMAND,
            SANDBOX, FAILURES,
            IDEMPOTENT,
            &[
                "budget_reached",
                "checkpoint_failed",
                "invalid_content",
                "invalid_header",
                "no_object_store",
                "not_remote",
                "too_many_streams",
                "turn_running",
                "session_busy",
                "agent_not_found",
            ],
        ],
    )
    .with(&[IdempotencyKey, Lock, Wait]),
    text("listMessages", "List the messages of the conversation", "Oldest first.", &[SESSION]),
    text(
        "listSessionEvents",
        "List what happened, in the event types of the Ash API",
        "Oldest first.",
        &[SESSION],
    ),
    text(
        "getConversation",
        "Read the conversation as items",
        "One item for each message of a user and each message of the agent, oldest first, with tool calls and their results together. Without what was withdrawn or superseded, unless `all` asks for it; with `checkpoint`, as it was then. An item that is still being written, or waits for results, is complete in a later answer under the same `after`.",
        &[SESSION, &["checkpoint_not_found", "checkpoint_of_another"]],
    ),
    text(
        "getSessionLog",
        "Read what the stream sent, in pages",
        "The frames that `GET …/stream` sends from the beginning, with the same ids and the same data to the byte, without the pieces of messages. Oldest first, and with everything that a rewind or a second attempt superseded, as in the stream.",
        &[SESSION],
    ),
    text(
        "streamSession",
        "Follow a session",
        "All events from the beginning, or after the one with the given id, and then each as it happens. Every frame with an `id:` can be continued after. 204: the session has ended and the client has everything.",
        &[SESSION, &["invalid_cursor", "invalid_stream_token", "too_many_streams"]],
    )
    .with(&[LastEventId]),
    text(
        "createStreamToken",
        "Create a token for the stream",
        "For clients that cannot send an Authorization header, such as a browser's EventSource: `GET …/stream?token=…` opens the stream of this session for 15 minutes, and the token opens nothing else. A stream that is open goes on until the key that made its token is deleted.",
        &[SESSION],
    ),
    // Permissions
    text("listPermissions", "List open permission requests and questions", "", &[SESSION]),
    text(
        "answerPermission",
        "Answer a permission request or a question",
        "A second answer that says the same is accepted; a different one is refused.",
        &[SESSION, COMMAND, &["permission_not_found", "permission_answered", "invalid_answer", "sandbox_ended"]],
    ),
    // Tools of the client
    text(
        "listToolCalls",
        "List the client's tools and the calls that wait",
        "The tools that the session's clients execute, and the calls of the agent that no client has answered yet.",
        &[SESSION],
    ),
    text(
        "answerToolCall",
        "Answer a call of a client's tool",
        "The first answer counts. The same answer again is accepted; a different one is refused. An answer is stored before the agent gets it, and an agent that was started again gets it as well.",
        &[SESSION, COMMAND, &["tool_call_not_found", "tool_answered", "tool_withdrawn", "invalid_answer"]],
    ),
    // Queue
    text("listQueue", "List running and waiting messages", "In the order in which they run.", &[SESSION]),
    text(
        "reorderQueue",
        "Reorder the waiting messages",
        "",
        &[SESSION, GUARDED, COMMAND, &["turn_not_found", "turn_not_waiting"]],
    )
    .with(LOCKED),
    text(
        "withdrawMessage",
        "Cancel a waiting message",
        "",
        &[SESSION, GUARDED, COMMAND, &["turn_not_found", "turn_not_waiting"]],
    )
    .with(LOCKED),
    // Locks
    text("getLock", "Who holds the lock", "", &[SESSION]),
    text(
        "acquireLock",
        "Acquire, renew or take over the lock",
        "Until it ends, only requests with its token as X-Ash-Lock may write.",
        &[SESSION, COMMAND, &["invalid_lock", "session_locked", "lock_lost", "payload_too_large"]],
    )
    .with(LOCKED),
    text("releaseLock", "Release the lock", "", &[SESSION, COMMAND, &["invalid_lock", "lock_lost"]]).with(LOCKED),
    // Files
    text("getSessionFiles", "List the files of a session", "", &[SESSION, FILES]),
    text(
        "writeSessionFiles",
        "Write files",
        "Each is written completely or not at all, and reported.",
        &[SESSION, GUARDED, FILES, WRITES],
    )
    .with(LOCKED),
    text(
        "getSessionFile",
        "Read a file",
        "The bytes, or with `format=json` its text. `path` may contain slashes.",
        &[SESSION, FILES, ONE_FILE],
    ),
    text("deleteSessionFile", "Delete a file", "`path` may contain slashes.", &[SESSION, GUARDED, FILES, WRITES, ONE_FILE])
        .with(LOCKED),
    text(
        "downloadWorkspace",
        "Download the workspace",
        "As a gzipped tar archive, without dependencies, caches and .env files.",
        &[SESSION, FILES, &["bundle_too_large", "disk_full"]],
    ),
    text(
        "uploadWorkspace",
        "Unpack an archive into the workspace",
        "All of it or nothing.",
        &[SESSION, GUARDED, FILES, WRITES, ARCHIVE],
    )
    .with(LOCKED),
    text("getPlan", "Read the agent's plan", "", &[SESSION, FILES, ONE_FILE]),
    text("listArtifacts", "List the agent's documents", "", &[SESSION, FILES]),
    text("getArtifact", "Read a document of the agent", "`path` may contain slashes.", &[SESSION, FILES, ONE_FILE]),
    // Checkpoints
    text("listCheckpoints", "List checkpoints", "Newest first.", &[SESSION]),
    text(
        "createCheckpoint",
        "Save the files now",
        "Not during a turn.",
        &[
            SESSION,
            GUARDED,
            COMMAND,
            IDEMPOTENT,
            &["turn_running", "no_workspace", "checkpoint_failed", "sandbox_ended", "session_busy"],
        ],
    )
    .with(&[IdempotencyKey, Lock]),
    text("getCheckpoint", "Get a checkpoint", "", &[SESSION, &["checkpoint_not_found"]]),
    text(
        "diffCheckpoint",
        "Files that changed since a checkpoint",
        "Up to now, or to another checkpoint.",
        &[SESSION, FILES],
    ),
    // Workspaces
    text("listWorkspaces", "List named workspaces", "", &[]),
    text(
        "createWorkspace",
        "Create a named workspace",
        "",
        &[&["invalid_workspace", "invalid_agent_name", "agent_not_found", "admin_only", "workspace_taken", "workspace_deleting", "workspace_of_another_agent", "quota_reached", "snapshot_failed"]],
    ),
    text("getWorkspace", "Get a workspace and its sessions", "", &[WORKSPACE]),
    text(
        "deleteWorkspace",
        "Delete a workspace",
        "For good, with its files. It needs the locks of all its sessions.",
        &[WORKSPACE, &["invalid_lock", "session_locked", "workspace_busy", "workspace_deleting", "session_busy", "try_again"]],
    )
    .with(LOCKED),
    text("getWorkspaceFiles", "List the files of a workspace", "", &[WORKSPACE, FILES]),
    text("listWorkspaceCheckpoints", "List the checkpoints of a workspace", "Newest first.", &[WORKSPACE]),
    // Usage
    text(
        "listUsageEvents",
        "Usage and cost",
        "With `by`, one sum for each group; without it, the list of the Ash API.",
        &[SESSION],
    ),
    text("getUsageStats", "Usage in total", "In the form of the Ash API.", &[SESSION]),
    // Retention
    text("getRetention", "The retention rules, and what they would remove now", "", &[]),
    text("applyRetention", "Apply the retention rules now", "", &[&["io_failed", "try_again"]]),
    text(
        "pruneSessions",
        "End or purge unused sessions",
        "Those that the caller may access. Sessions at work are skipped.",
        &[&["invalid_query", "io_failed", "try_again"]],
    ),
    text("listAudit", "List the audit log", "Newest first.", &[]),
    // Keys
    text("listApiKeys", "List API keys", "Without their secrets.", &[]),
    text(
        "createApiKey",
        "Create an API key",
        "With `owner`, it opens only what belongs to that owner. The answer is the only one that has the key.",
        &[IDEMPOTENT, &["key_gone", "payload_too_large", "quota_reached"]],
    )
    .with(&[IdempotencyKey]),
    text("deleteApiKey", "Delete an API key", "Its streams end at once.", &[&["key_not_found"]]),
    text("listCredentials", "List credentials", "Without their keys, the newest first. A key with an owner sees those of the owner.", &[]),
    text(
        "storeCredential",
        "Create a credential",
        "A key for a model service. Sessions use it by its id, as `credentialId`. The key is sealed, and no answer has it. A credential belongs to the owner of the API key that stores it.",
        &[&["payload_too_large", "quota_reached"]],
    ),
    text(
        "deleteCredential",
        "Delete a credential",
        "Its sessions take no new message until they are resumed with another one, or with `provider`.",
        &[&["credential_not_found"]],
    ),
    text(
        "createTenantApiKey",
        "Create an API key of any tenant",
        "It takes the server's internal secret instead of a key.",
        &[&["internal_disabled", "missing_tenant", "invalid_tenant", "payload_too_large", "quota_reached"]],
    ),
];
