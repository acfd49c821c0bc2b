//! The audit: who ordered which deletion, key, deploy, session, command, change of settings or answer to a permission
//! request, and which keys were refused.

use crate::Result;
use ash_model::{OwnerId, SessionRowId, TenantId, Timestamp};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// By whose order something is done: a caller's with a key, a rule's, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditActor {
    /// The id of the caller's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The owner of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// The retention rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

impl AuditActor {
    /// A rule alone.
    pub fn of_rule(name: impl Into<String>) -> AuditActor {
        AuditActor { rule: Some(name.into()), ..AuditActor::default() }
    }
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditAction {
    /// A session ended.
    Ended,
    /// A session was moved into the trash.
    Purged,
    /// The last rows of a session in the trash were deleted.
    Forgotten,
    /// The deletion of a named workspace began.
    WorkspaceDeleted,
    /// The files of checkpoints were deleted.
    CheckpointsRemoved,
    /// An API key was created.
    KeyCreated,
    /// An API key was removed.
    KeyRemoved,
    /// A request had a wrong key. The subject is the address that it came from.
    KeyRefused,
    /// A session was created.
    Created,
    /// A command was run in a session's sandbox.
    Executed,
    /// A version of an agent was deployed.
    Deployed,
    /// An agent was deleted.
    AgentDeleted,
    /// The settings of a session or an agent were changed.
    ConfigChanged,
    /// The environment of a session or an agent was changed.
    EnvChanged,
    /// A permission request or a question was answered.
    PermissionAnswered,
    /// A call of a client's tool was answered.
    ToolAnswered,
    /// A credential was stored. The detail is its type.
    CredentialCreated,
    /// A credential was removed. The detail is its type.
    CredentialRemoved,
}

impl AuditAction {
    const ALL: [(AuditAction, &'static str); 18] = [
        (AuditAction::Ended, "ended"),
        (AuditAction::Purged, "purged"),
        (AuditAction::Forgotten, "forgotten"),
        (AuditAction::WorkspaceDeleted, "workspace_deleted"),
        (AuditAction::CheckpointsRemoved, "checkpoints_removed"),
        (AuditAction::KeyCreated, "key_created"),
        (AuditAction::KeyRemoved, "key_removed"),
        (AuditAction::KeyRefused, "key_refused"),
        (AuditAction::Created, "created"),
        (AuditAction::Executed, "executed"),
        (AuditAction::Deployed, "deployed"),
        (AuditAction::AgentDeleted, "agent_deleted"),
        (AuditAction::ConfigChanged, "config_changed"),
        (AuditAction::EnvChanged, "env_changed"),
        (AuditAction::PermissionAnswered, "permission_answered"),
        (AuditAction::ToolAnswered, "tool_answered"),
        (AuditAction::CredentialCreated, "credential_created"),
        (AuditAction::CredentialRemoved, "credential_removed"),
    ];

    /// The stored name.
    pub fn as_str(self) -> &'static str {
        AuditAction::ALL.iter().find(|(action, _)| *action == self).map_or("", |(_, name)| name)
    }

    /// The action with this stored name.
    pub fn parse(text: &str) -> Option<AuditAction> {
        AuditAction::ALL.iter().find(|(_, name)| *name == text).map(|(action, _)| *action)
    }
}

/// An entry of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number among the tenant's entries. The store assigns it.
    pub no: i64,
    /// When it was done.
    pub at: Timestamp,
    /// The tenant.
    pub tenant: TenantId,
    /// What was done.
    pub action: AuditAction,
    /// To what: the id of a session, key or credential, the name of a workspace or agent, or an address.
    pub subject: String,
    /// The owner of the subject.
    pub owner: Option<OwnerId>,
    /// By whose order.
    pub actor: AuditActor,
    /// Details that the action and the subject do not say.
    pub detail: Option<String>,
}

/// Which entries are listed. Every field narrows the list.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// Those about one subject.
    pub subject: Option<String>,
    /// Those at this time or after.
    pub since: Option<Timestamp>,
    /// Those with a lower number.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: u32,
}

/// The audit. Entries of what the store itself does are written by the method that does it, in the same step.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Adds an entry for something that the store does not do itself, and numbers it. `session`: the session that the subject
    /// names, if it exists; if it was purged meanwhile, the entry gets its pseudonym.
    async fn add_audit_entry(&self, entry: AuditEntry, session: Option<SessionRowId>) -> Result<()>;
    /// The newest first. Purged sessions have a pseudonym; their id finds them as long as no other session has it.
    async fn audit_entries(&self, tenant: &TenantId, query: &AuditQuery) -> Result<Vec<AuditEntry>>;
}
