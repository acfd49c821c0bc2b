//! A lock gives one client exclusive write access to a session for a while. The JSON is stored with the facts: see
//! `docs/formats.md`.

use crate::Timestamp;
use serde::{Deserialize, Serialize};

/// The lock of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionLock {
    /// Higher than the number of every earlier lock.
    pub number: u64,
    /// The hash of its token. Only the holder knows the token.
    pub hash: String,
    /// How long the lock lasts after its last use, in milliseconds.
    pub ttl_ms: u64,
    /// When the lock expires.
    pub until: Timestamp,
    /// The holder's name for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// A turn of the holder is running, so the lock holds whatever `until` says. Only in rows: in facts it follows from
    /// the `lock` of the messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_use: bool,
}

impl SessionLock {
    /// Whether the lock excludes other clients at this time.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.in_use || self.until > now
    }
}

/// How a client acquired a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockAcquisition {
    /// No client held it.
    Free,
    /// The holder renewed it.
    Renewed,
    /// Taken over from its holder.
    Over,
}
