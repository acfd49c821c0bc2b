//! Retention: which sessions are old enough to end, and what is deleted by age.

use crate::{AuditActor, Result, SessionRow};
use ash_model::{SessionRowId, SessionStatus, Timestamp};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// What becomes of a session when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndDisposition {
    /// It stays readable.
    End,
    /// It is purged.
    Purge,
}

impl EndDisposition {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            EndDisposition::End => "end",
            EndDisposition::Purge => "purge",
        }
    }

    /// The disposition with this stored name.
    pub fn parse(text: &str) -> Option<EndDisposition> {
        [EndDisposition::End, EndDisposition::Purge].into_iter().find(|known| known.as_str() == text)
    }
}

/// Ending sessions by order or by age, and deleting what is only kept for a while.
#[async_trait]
pub trait RetentionStore: Send + Sync {
    /// Records who wants a session to end, and what becomes of it then. The step that ends it applies both; of several
    /// requests the last one counts.
    async fn request_end(&self, no: SessionRowId, by: AuditActor, disposition: EndDisposition) -> Result<()>;
    /// Sessions whose time to live is over at `now`, without those that have an unfinished turn.
    async fn expired_sessions(&self, now: Timestamp) -> Result<Vec<SessionRow>>;
    /// Sessions of all tenants that have had this resting status since `before`.
    async fn resting_sessions(&self, status: SessionStatus, before: Timestamp) -> Result<Vec<SessionRow>>;
    /// Deletes deltas and idempotency keys from before `before`, and answers how many. Deltas of unfinished turns stay.
    async fn prune(&self, before: Timestamp) -> Result<u64>;
}
