//! A session that one client has to itself for a while. The JSON is stored with the facts: see `docs/formats.md`.

use crate::Timestamp;
use serde::{Deserialize, Serialize};

/// Who may write to a session, as long as it lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionLock {
    /// Higher than that of every lock before it.
    pub number: u64,
    /// Of its token, which nobody but its holder knows.
    pub hash: String,
    /// How long it lasts after its last use, in milliseconds.
    pub ttl_ms: u64,
    /// When it runs out.
    pub until: Timestamp,
    /// What its holder calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// A turn that its holder sent is under way: until that is over the lock holds, whatever `until` says. In rows, never
    /// in facts: there it follows from the `lock` of the messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_use: bool,
}

impl SessionLock {
    /// Whether others are kept out at this time.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.in_use || self.until > now
    }
}

/// How a client came by a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockAcquisition {
    /// Nobody had it.
    Free,
    /// By its holder, who goes on.
    Renewed,
    /// From its holder.
    Over,
}
