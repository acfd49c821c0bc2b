//! Permission requests and questions.

use ash_model::{PermissionId, PermissionRequest, PermissionTimeoutPolicy, Timestamp, TurnId};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// The agent waits for permission to call a tool, or for the answer to a question.
#[derive(Serialize, ToSchema)]
#[schema(as = Permission)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PermissionView {
    id: PermissionId,
    /// Null: the agent asks outside of a turn.
    #[schema(required)]
    turn: Option<TurnId>,
    tool: String,
    /// The input for the tool.
    input: Value,
    /// The id of the call in the agent's message.
    #[schema(required)]
    tool_use_id: Option<String>,
    /// Rules that the agent suggests, so that it does not ask again; `updatedPermissions` of an answer takes some of them.
    suggestions: Vec<Value>,
    /// A question to a person: it needs `answers`.
    question: bool,
    expires_at: Timestamp,
    /// What happens when it expires.
    on_timeout: PermissionTimeoutPolicy,
}

impl PermissionView {
    pub(crate) fn of(asked: &PermissionRequest) -> PermissionView {
        PermissionView {
            id: asked.id,
            turn: asked.turn,
            tool: asked.tool.clone(),
            input: asked.input.clone(),
            tool_use_id: asked.tool_use_id.clone(),
            suggestions: asked.suggestions.clone(),
            question: asked.question,
            expires_at: asked.expires_at,
            on_timeout: asked.on_timeout,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct PermissionListAnswer {
    pub(crate) permissions: Vec<PermissionView>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AnsweredPermission {
    pub(crate) id: PermissionId,
    /// `allow` or `deny`.
    pub(crate) behavior: &'static str,
}
