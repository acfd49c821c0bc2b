//! Who ordered what: a line for every deletion, for keys, deploys, new sessions, commands, changes of settings, answers to
//! permission requests, and for keys that were refused.

use ash_model::{OwnerId, TenantId, Timestamp};
use serde::{Deserialize, Serialize};

/// By whose order something is done: somebody's with a key, a rule's, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditActor {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

impl AuditActor {
    pub fn of_rule(name: impl Into<String>) -> AuditActor {
        AuditActor { rule: Some(name.into()), ..AuditActor::default() }
    }
}

/// What becomes of a session that is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndDisposition {
    /// It stays readable.
    End,
    /// It goes into the trash.
    Purge,
}

impl EndDisposition {
    pub fn as_str(self) -> &'static str {
        match self {
            EndDisposition::End => "end",
            EndDisposition::Purge => "purge",
        }
    }

    pub fn parse(text: &str) -> Option<EndDisposition> {
        [EndDisposition::End, EndDisposition::Purge].into_iter().find(|fate| fate.as_str() == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditAction {
    /// A session.
    Ended,
    /// A session went into the trash.
    Purged,
    /// Nothing is left of a session that was in the trash.
    Forgotten,
    WorkspaceDeleted,
    /// The files of checkpoints were given up.
    CheckpointsRemoved,
    KeyCreated,
    KeyRemoved,
    /// A wrong key came from an address, which is the subject.
    KeyRefused,
    /// A session.
    Created,
    /// A command was run in a session's sandbox.
    Executed,
    /// A version of an agent.
    Deployed,
    AgentDeleted,
    /// Settings of a session or an agent.
    ConfigChanged,
    /// The environment of a session or an agent.
    EnvChanged,
    PermissionAnswered,
}

impl AuditAction {
    const ALL: [(AuditAction, &'static str); 15] = [
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
    ];

    pub fn as_str(self) -> &'static str {
        AuditAction::ALL.iter().find(|(deed, _)| *deed == self).map_or("", |(_, name)| name)
    }

    pub fn parse(text: &str) -> Option<AuditAction> {
        AuditAction::ALL.iter().find(|(_, name)| *name == text).map(|(deed, _)| *deed)
    }
}

/// A line of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number among the tenant's.
    pub no: i64,
    pub at: Timestamp,
    pub tenant: TenantId,
    pub action: AuditAction,
    /// The id of the session or key, the name of the workspace or agent, or an address.
    pub subject: String,
    /// Whose that was.
    pub owner: Option<OwnerId>,
    pub actor: AuditActor,
    /// What exactly, where the subject alone does not say it.
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    pub subject: Option<String>,
    /// Not before this.
    pub since: Option<Timestamp>,
    /// Only lines before this one.
    pub before: Option<i64>,
    pub limit: u32,
}
