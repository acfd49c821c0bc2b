//! Keys, retention, the audit log, and the server itself.

use super::session::SessionView;
use ash_model::{OwnerId, SessionId, SessionStatus, TenantId, Timestamp};
use ash_session::{CreatedApiKey, ExpiringSession, ServerTrouble};
use ash_store::{ApiKey, AuditEntry};
use serde::Serialize;
use utoipa::ToSchema;

/// An empty object.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyAnswer {}

#[derive(Serialize, ToSchema)]
pub(crate) struct ApiKeyListAnswer {
    pub(crate) keys: Vec<ApiKeyView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ApiKey)]
#[serde(untagged)]
pub(crate) enum ApiKeyView {
    Environment(EnvironmentApiKey),
    Stored(StoredApiKey),
}

/// The key from the server's environment.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct EnvironmentApiKey {
    pub(crate) id: &'static str,
    pub(crate) label: &'static str,
    pub(crate) key_prefix: &'static str,
    /// Always empty.
    pub(crate) created_at: &'static str,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredApiKey {
    id: String,
    label: String,
    /// The owner whose sessions and workspaces the key opens; null: those of the whole tenant.
    #[schema(required)]
    owner: Option<OwnerId>,
    key_prefix: &'static str,
    created_at: Timestamp,
}

/// No part of a key is shown.
pub(crate) const HIDDEN_KEY: &str = "••••••••";

impl StoredApiKey {
    pub(crate) fn of(key: &ApiKey) -> StoredApiKey {
        StoredApiKey {
            id: key.id.clone(),
            label: key.label.clone(),
            owner: key.owner.clone(),
            key_prefix: HIDDEN_KEY,
            created_at: key.created_at,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedApiKeyAnswer {
    id: String,
    /// Shown only here.
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    owner: Option<OwnerId>,
}

impl CreatedApiKeyAnswer {
    pub(crate) fn of(CreatedApiKey { key, text }: &CreatedApiKey) -> CreatedApiKeyAnswer {
        CreatedApiKeyAnswer { id: key.id.clone(), key: text.clone(), owner: key.owner.clone() }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreatedTenantKeyAnswer {
    #[serde(flatten)]
    pub(crate) key: CreatedApiKeyAnswer,
    pub(crate) tenant_id: TenantId,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RetentionAnswer {
    /// As in `ASH_RETENTION`.
    pub(crate) rules: Vec<String>,
    pub(crate) sessions: Vec<ExpiringSessionView>,
    /// Nothing was changed.
    pub(crate) dry_run: bool,
}

/// A session to which a rule applies.
#[derive(Serialize, ToSchema)]
#[schema(as = ExpiringSession)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExpiringSessionView {
    id: SessionId,
    #[schema(required)]
    owner: Option<OwnerId>,
    status: SessionStatus,
    last_active_at: Timestamp,
    rule: String,
    /// `end` or `purge`.
    action: &'static str,
}

impl ExpiringSessionView {
    pub(crate) fn of(leaving: &ExpiringSession) -> ExpiringSessionView {
        let ExpiringSession { session, rule, fate, .. } = leaving;
        ExpiringSessionView {
            id: session.id.clone(),
            owner: session.owner.clone(),
            status: session.summary.status,
            last_active_at: session.last_active_at,
            rule: rule.clone(),
            action: fate.as_str(),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PrunedSessionsAnswer {
    pub(crate) sessions: Vec<SessionView>,
    /// `end` or `purge`.
    pub(crate) action: &'static str,
    /// Nothing was changed.
    pub(crate) dry_run: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditListAnswer {
    pub(crate) audit: Vec<AuditLine>,
    /// The `cursor` of the next page; null: this may be the last.
    #[schema(required)]
    pub(crate) next_cursor: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AuditLine {
    /// Counts the lines of the tenant.
    id: i64,
    at: Timestamp,
    action: &'static str,
    /// What it is about; for a purged session `purged:` and a hash.
    subject: String,
    /// The owner of the subject.
    #[schema(required)]
    owner: Option<OwnerId>,
    by: AuditSource,
    /// Which checkpoints, settings, variables, agent or permission.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

/// Who caused it.
#[derive(Serialize, ToSchema)]
struct AuditSource {
    #[schema(required)]
    key: Option<String>,
    #[schema(required)]
    owner: Option<OwnerId>,
    #[schema(required)]
    rule: Option<String>,
}

impl AuditLine {
    pub(crate) fn of(line: &AuditEntry) -> AuditLine {
        let actor = line.actor.clone();
        AuditLine {
            id: line.no,
            at: line.at,
            action: line.action.as_str(),
            subject: line.subject.clone(),
            owner: line.owner.clone(),
            by: AuditSource { key: actor.key, owner: actor.owner, rule: actor.rule },
            detail: line.detail.clone(),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ServerAnswer {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) health: &'static str,
    pub(crate) api: &'static str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HealthAnswer {
    /// `ok`, `full` (too little disk space) or `stopping`.
    pub(crate) status: &'static str,
    pub(crate) active_sessions: u64,
    pub(crate) active_sandboxes: usize,
    /// Seconds.
    pub(crate) uptime: u64,
    pub(crate) version: &'static str,
    /// Always 0.
    pub(crate) remote_runners: u32,
    pub(crate) pool: PoolStats,
    /// Present and true if something is wrong.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) degraded: bool,
    #[serde(flatten)]
    pub(crate) details: HealthDetails,
}

/// For callers with a key.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HealthDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) coordinator_id: Option<String>,
    /// Free disk space, if it is too little.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) object_store: Option<ObjectStoreView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) trouble: Vec<Trouble>,
}

/// Sandboxes by state.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolStats {
    pub(crate) total: usize,
    pub(crate) cold: usize,
    pub(crate) warming: usize,
    pub(crate) warm: usize,
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) max_capacity: usize,
    pub(crate) resume_warm_hits: u64,
    pub(crate) resume_cold_hits: u64,
    pub(crate) pre_warm_hits: u64,
    /// Requests that wait for a sandbox; for callers with a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) queued: Option<usize>,
}

/// Replication to the object store.
#[derive(Serialize, ToSchema)]
#[schema(as = ObjectStoreHealth)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectStoreView {
    pub(crate) url: String,
    /// `ok` or `trouble`.
    pub(crate) status: &'static str,
    pub(crate) waiting_checkpoints: u64,
    pub(crate) lag_seconds: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) error: Option<String>,
    /// Since when it is in trouble.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) since: Option<Timestamp>,
}

/// What is wrong, since when.
#[derive(Serialize, ToSchema)]
pub(crate) struct Trouble {
    code: &'static str,
    error: String,
    since: Timestamp,
}

impl From<ServerTrouble> for Trouble {
    fn from(ServerTrouble { code, error, since }: ServerTrouble) -> Trouble {
        Trouble { code, error, since }
    }
}
