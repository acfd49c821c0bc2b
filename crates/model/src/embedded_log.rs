//! What travels in a checkpoint's pack besides files: the session as it was, and what happened to it since the
//! checkpoint before. A stored format: see `docs/formats.md`.

use crate::{
    AgentRuntime, Epoch, EventSeq, JournalPosition, OwnerId, SessionId, SessionMetadata, SessionOptions,
    Slug, TenantId, Timestamp, TurnId, WorkspaceId, remote::AgentDefinition,
};
use serde::{Deserialize, Serialize};

/// The names under which it lies in a pack; parts after the first are `events.1` and so on.
pub const SESSION_NOTE: &str = "session";
pub const EVENTS_NOTE: &str = "events";

pub fn events_note_name(number: usize) -> String {
    if number == 0 { EVENTS_NOTE.to_owned() } else { format!("{EVENTS_NOTE}.{number}") }
}

/// A session as its packs know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackSessionRecord {
    pub tenant: TenantId,
    pub session: SessionId,
    pub workspace: WorkspaceId,
    pub agent: String,
    pub version: u32,
    /// The snapshot of the agent's own files.
    pub agent_tree: String,
    pub runtime: AgentRuntime,
    pub native_id: uuid::Uuid,
    pub options: SessionOptions,
    pub parent: Option<SessionId>,
    pub checkpoint: u64,
    pub turn: Option<TurnId>,
    /// The snapshot before this one: where the events up to `after` are.
    pub previous: String,
    /// The events in this pack: those after the one, up to and with the other.
    pub after: EventSeq,
    pub through: EventSeq,
    pub created_at: Timestamp,
    pub at: Timestamp,
    /// With which the workspace was held. Like all that follows it is missing in older packs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    #[serde(default, skip_serializing_if = "SessionMetadata::is_empty")]
    pub metadata: SessionMetadata,
    /// The name of the workspace, if sessions share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<Slug>,
    /// The session's environment, sealed with the server's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// What the options hold masks for, sealed like the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<String>,
    /// The agent's version, with everything that is not in its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Box<AgentDefinition>>,
    /// Up to where the events have what the agent's process said: whoever rebuilds the session hears the rest of its journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "heard")]
    pub journal_position: Option<JournalPosition>,
}

/// One event, as a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    pub seq: EventSeq,
    pub turn: Option<TurnId>,
    pub at: Timestamp,
    pub kind: String,
    /// As the log has it: an agent's line to the byte, everything else our own JSON.
    pub json: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_and_read_as_in_the_first_version() {
        let text = r#"{"tenant":"default","session":"s1","workspace":"00000000-0000-0000-0000-000000000001","agent":"a","version":2,"agentTree":"t0","runtime":"builtin","nativeId":"00000000-0000-0000-0000-000000000002","options":{},"parent":null,"checkpoint":3,"turn":"00000000-0000-0000-0000-000000000003","previous":"t2","after":7,"through":19,"createdAt":"2025-11-15T22:00:00.007Z","at":"2025-11-15T22:00:01.007Z"}"#;
        let record: PackSessionRecord = serde_json::from_str(text).expect("a record");
        assert_eq!(serde_json::to_string(&record).expect("plain"), text);
        let text = r#"{"tenant":"default","session":"s1","workspace":"00000000-0000-0000-0000-000000000001","agent":"a","version":2,"agentTree":"t0","runtime":"builtin","nativeId":"00000000-0000-0000-0000-000000000002","options":{},"parent":null,"checkpoint":3,"turn":null,"previous":"t2","after":7,"through":19,"createdAt":"2025-11-15T22:00:00.007Z","at":"2025-11-15T22:00:01.007Z","epoch":4,"owner":"alice","metadata":{"ticket":"42"},"slug":"shared","env":"sealed","secrets":"sealed too","definition":{"id":"00000000-0000-0000-0000-000000000001","tenant":"default","name":"a","version":2,"changes":5,"tree":"t0","runtime":"builtin","origin":"/a","config":"{}","createdAt":"2025-11-15T22:00:00.007Z","updatedAt":"2025-11-15T22:00:01.007Z"},"heard":{"incarnation":"00000000-0000-0000-0000-000000000004","process":1,"position":77}}"#;
        let record: PackSessionRecord = serde_json::from_str(text).expect("a record with all fields");
        assert_eq!(serde_json::to_string(&record).expect("plain"), text);
        let text = r#"{"seq":8,"turn":null,"at":"2025-11-15T22:00:00.007Z","kind":"paused","json":"{\"kind\":\"paused\"}"}"#;
        let line: EventLine = serde_json::from_str(text).expect("a line");
        assert_eq!(serde_json::to_string(&line).expect("plain"), text);
    }
}
