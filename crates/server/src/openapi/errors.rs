//! The codes of errors: their status, and what they mean for a client.

use serde::Serialize;
use utoipa::ToSchema;

/// The body of every error.
#[derive(Serialize, ToSchema)]
#[schema(as = ApiError)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApiErrorBody {
    /// For people: the cause and the remedy.
    #[schema(example = "Session not found")]
    pub(crate) error: String,
    /// The status of the answer.
    #[schema(example = 404)]
    pub(crate) status_code: u16,
    /// For programs; never changes.
    #[schema(example = "session_not_found")]
    pub(crate) code: String,
    #[serde(flatten)]
    pub(crate) details: ErrorDetails,
}

/// Fields that only some errors have.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorDetails {
    /// The quota that is reached: its name in `ASH_QUOTAS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) quota: Option<String>,
    /// The limit that is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) limit: Option<u64>,
    /// How much was used or sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) used: Option<u64>,
    /// The turn of a message whose answer was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) turn: Option<String>,
    /// Whether that message is still in the queue; null if the server cannot tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub(crate) queued: Option<serde_json::Value>,
}

impl ErrorDetails {
    pub(crate) fn quota(name: &str, limit: u64, used: u64) -> ErrorDetails {
        ErrorDetails { quota: Some(name.to_owned()), ..ErrorDetails::size(limit, used) }
    }

    /// A limit that no quota sets.
    pub(crate) fn size(limit: u64, used: u64) -> ErrorDetails {
        ErrorDetails { limit: Some(limit), used: Some(used), ..ErrorDetails::default() }
    }

    /// `queued`: `None` if the server cannot tell.
    pub(crate) fn cut(turn: String, queued: Option<bool>) -> ErrorDetails {
        ErrorDetails { turn: Some(turn), queued: Some(queued.into()), ..ErrorDetails::default() }
    }
}

/// (code, statuses, meaning)
pub(crate) const ERROR_CODES: &[(&str, &[u16], &str)] = &[
    ("admin_only", &[403], "It takes a key without an owner"),
    ("agent_died", &[500], "The agent's process ended"),
    (
        "agent_directory",
        &[400],
        "The agent's folder cannot be read, or has no CLAUDE.md, AGENTS.md or ash.toml",
    ),
    ("agent_error", &[500], "The agent reported an error"),
    ("agent_not_found", &[404], "There is no such agent"),
    ("agent_silent", &[503], "The agent does not answer"),
    ("archive_bad_entry", &[400], "An entry of the archive leaves the workspace or has an unsupported kind"),
    ("archive_damaged", &[400], "The archive is cut off or corrupt"),
    ("archive_ratio", &[413], "The archive is compressed too much"),
    ("archive_too_large", &[413], "The archive holds too many bytes"),
    ("archive_too_many_entries", &[413], "The archive has too many entries"),
    ("archive_unsupported", &[400], "Not a tar archive, or an empty one"),
    ("budget_reached", &[409], "A budget is used up; raise it and send again"),
    ("bundle_too_large", &[413], "The workspace is too large for one archive"),
    (
        "capacity_reached",
        &[503],
        "All sandboxes are busy; try again later, or wait with `Prefer: wait=SECONDS`",
    ),
    ("checkpoint_damaged", &[422], "No checkpoint can be restored completely"),
    ("checkpoint_failed", &[500], "The files could not be saved"),
    ("checkpoint_not_found", &[404], "There is no such checkpoint"),
    ("checkpoint_of_another", &[409], "The checkpoint belongs to another session of the workspace"),
    ("checkpoint_removed", &[410], "The files of the checkpoint were deleted by the retention rules"),
    ("closed", &[409], "The permissions of the file or its folder close it to the server"),
    ("context_full", &[500], "The conversation does not fit into the model's context any more"),
    ("crashed_twice", &[500], "The turn was cut off twice"),
    (
        "credential_gone",
        &[422],
        "The session's credential was deleted: resume it with another one, or with `provider`",
    ),
    ("credential_not_found", &[404], "There is no such credential"),
    ("disk_full", &[503], "The server has too little disk space"),
    ("disk_limit", &[413, 422], "The session may not use more disk space or files"),
    ("file_not_found", &[404], "There is no such file"),
    ("file_too_large", &[400], "The file is too large for this form"),
    ("host_not_allowed", &[403], "The server does not answer under this host name"),
    ("idempotency_key_reused", &[422], "The Idempotency-Key was used for another request"),
    ("in_the_way", &[409], "Something in the workspace is in the way of the archive"),
    ("internal", &[500], "A fault of the server"),
    ("internal_disabled", &[503], "The server has no internal secret"),
    ("invalid_agent_name", &[400], "The agent's name is not valid"),
    ("invalid_answer", &[422], "The answer does not fit the permission request or the call"),
    ("invalid_base64", &[400], "The content is not base64"),
    ("invalid_body", &[400], "A field of the body is missing or has a wrong value"),
    ("invalid_content", &[400], "The content is no text and no list of blocks"),
    ("invalid_credential", &[400], "The caller has no such credential, or its key is not of its type's form"),
    ("invalid_cursor", &[400], "Not the id of an event of this session"),
    ("invalid_env", &[400], "An environment variable has an invalid name or value"),
    ("invalid_header", &[400], "A header has a wrong value"),
    ("invalid_idempotency_key", &[400], "The Idempotency-Key is empty or too long"),
    ("invalid_json", &[400], "The body is not JSON"),
    ("invalid_lock", &[400], "X-Ash-Lock is not a token"),
    ("invalid_manifest", &[400], "The agent's ash.toml is not valid"),
    ("invalid_metadata", &[400], "The metadata is not valid"),
    ("invalid_path", &[400], "The path is not valid"),
    ("invalid_query", &[400], "A parameter of the query is missing or has a wrong value"),
    ("invalid_session_id", &[400], "The session id is not valid"),
    (
        "invalid_stream_token",
        &[401],
        "The stream token is wrong, has expired or is for another session, or its key was deleted",
    ),
    ("invalid_tenant", &[400], "The tenant id is not valid"),
    ("invalid_workspace", &[400], "The workspace name is not valid, or is not the parent's"),
    ("io_failed", &[500], "The server could not read or write a file"),
    ("key_gone", &[409], "The key that this Idempotency-Key made is gone"),
    ("key_not_found", &[404], "There is no such key"),
    ("limit_too_high", &[422], "The operator does not allow such a limit"),
    ("line_too_long", &[500], "The agent wrote a line that is too long"),
    ("lock_lost", &[409], "The lock has expired or was taken over"),
    ("machine_died", &[500], "The machine or the sandbox went away during the turn"),
    ("missing_tenant", &[400], "The tenant is missing"),
    ("model_error", &[500], "The model service refused or failed"),
    ("model_key_missing", &[422], "The server has no key for the model service"),
    ("no_object_store", &[422], "The server has no object store to wait for"),
    ("no_workspace", &[404], "The session has no files"),
    ("not_a_file", &[400], "The path is not a regular file"),
    ("not_remote", &[503], "The object store does not have the session yet"),
    ("object_store_damaged", &[500], "An object in the object store is damaged"),
    ("object_store_failed", &[503], "The object store does not answer"),
    ("operator_only", &[403], "It takes a key of tenant `default` without an owner"),
    ("option_failed", &[500], "An option could not be applied"),
    ("option_unsupported", &[422], "The agent's runtime, or any session, cannot do this"),
    ("own_providers_off", &[403], "The server takes no model service from clients"),
    ("path_not_allowed", &[400], "The server does not read this path"),
    ("payload_too_large", &[413], "The body, or a part of it, is too large"),
    ("permission_answered", &[409], "The permission request has another answer already"),
    ("permission_not_found", &[404], "There is no such permission request"),
    ("provider_not_listed", &[403], "The operator does not allow this model service"),
    ("provider_required", &[422], "The session needs its model service again, with its key"),
    ("provider_shared", &[422], "Sessions of the workspace must use one model service"),
    ("provider_unsupported", &[422], "No agent here can call such a model service"),
    ("quota_reached", &[429], "A quota of the tenant is reached"),
    ("request_timeout", &[408], "The client stopped in the middle of the body"),
    ("runtime_missing", &[422], "The server has no Claude Code"),
    ("runtime_too_old", &[422], "The server's Claude Code is too old"),
    ("sandbox_died", &[500], "The sandbox ended"),
    ("sandbox_ended", &[409], "The sandbox ended in the middle of the request"),
    ("sandbox_failed", &[503], "The sandbox could not be started"),
    ("sandbox_oom", &[500], "The sandbox ran out of memory"),
    ("server_stopped", &[503], "The server stopped while the request waited"),
    ("server_stopping", &[503], "The server is stopping"),
    ("session_busy", &[409], "The session is at work"),
    ("session_ended", &[410], "The session has ended; create a new one"),
    ("session_exists", &[409], "There is a session with this id"),
    ("session_locked", &[409], "Another client holds the lock"),
    ("session_not_found", &[404], "There is no such session, or it belongs to another tenant or owner"),
    ("session_paused", &[409], "Another caller paused the session meanwhile"),
    ("session_stopped", &[409], "Another caller stopped the session meanwhile"),
    ("session_unrepaired", &[409], "The server still compares the session with its witnesses"),
    ("setting_refused", &[422], "The running agent does not accept the setting"),
    ("setup_failed", &[422], "A setup script of the agent failed"),
    ("setup_stopped", &[409], "Another caller stopped the session during its setup"),
    ("setup_timeout", &[422], "A setup script of the agent took too long"),
    ("snapshot_failed", &[500], "A checkpoint could not be written or read"),
    ("snapshot_key_missing", &[422], "The key of the tenant's checkpoints is missing"),
    ("store_failed", &[500], "The database does not answer"),
    ("too_many_connections", &[503], "All connections are busy"),
    ("too_many_files", &[413], "The workspace has too many files to list"),
    ("too_many_large_bodies", &[503], "Too many large bodies at once; try again"),
    ("too_many_streams", &[429], "The key has too many open streams"),
    ("too_many_wrong_keys", &[429], "Too many wrong keys came from this address"),
    ("tool_answered", &[409], "The call has another answer already"),
    ("tool_call_not_found", &[404], "There is no such call of a tool"),
    (
        "tool_withdrawn",
        &[409],
        "The call was withdrawn, because its turn is over or the agent does not wait any more",
    ),
    ("try_again", &[503], "Repeat the same request"),
    ("turn_not_found", &[404], "There is no such turn"),
    ("turn_not_waiting", &[409], "The turn is not waiting any more"),
    ("turn_running", &[409], "A turn is running"),
    ("turn_timeout", &[500], "The turn took longer than its limit"),
    ("unauthorized", &[401], "The key is missing or wrong"),
    ("unknown_field", &[400], "The body has a field that does not exist"),
    ("unknown_parameter", &[400], "The query has a parameter that does not exist"),
    ("unpriced_model", &[422], "There is a limit in dollars, and the model has no price"),
    ("unreadable_body", &[400], "The body could not be read"),
    ("user_namespaces_refused", &[422], "The server allows no user namespaces in sandboxes"),
    ("walls_required", &[422], "The server cannot enforce a required limit"),
    ("workspace_busy", &[409], "Other sessions of the workspace are at work"),
    ("workspace_deleting", &[409], "The workspace is being deleted"),
    ("workspace_lost", &[409], "The files of the session were lost; send again"),
    ("workspace_not_found", &[404], "There is no such workspace"),
    ("workspace_of_another_agent", &[409], "The workspace belongs to another agent"),
    ("workspace_taken", &[409], "There is a workspace with this name"),
    ("wrong_status", &[400, 409], "The session's status does not allow this"),
];
