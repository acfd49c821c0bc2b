//! What a checkpoint's pack contains besides files: the session's state, and its events since the previous checkpoint. A
//! stored format: see `docs/formats.md`.

use crate::{
    AgentRuntime, Epoch, EventSeq, JournalPosition, OwnerId, SessionId, SessionMetadata, SessionOptions,
    Slug, TenantId, Timestamp, TurnId, WorkspaceId, remote::AgentDefinition,
};
use serde::{Deserialize, Serialize};

/// The name of the session record in a pack. Event parts after the first are `events.1` and so on.
pub const SESSION_NOTE: &str = "session";
/// The name of the first part of the events.
pub const EVENTS_NOTE: &str = "events";

/// The name of a part of the events, counted from 0.
pub fn events_note_name(number: usize) -> String {
    if number == 0 { EVENTS_NOTE.to_owned() } else { format!("{EVENTS_NOTE}.{number}") }
}

/// A session as its packs describe it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackSessionRecord {
    /// The tenant that owns the session.
    pub tenant: TenantId,
    /// Its id, unique within the tenant.
    pub session: SessionId,
    /// The workspace whose files the packs hold.
    pub workspace: WorkspaceId,
    /// The name of its agent.
    pub agent: String,
    /// The version of the agent.
    pub version: u32,
    /// The snapshot of the agent's own files.
    pub agent_tree: String,
    /// The agent program of this version.
    pub runtime: AgentRuntime,
    /// The id under which the agent keeps the conversation.
    pub native_id: uuid::Uuid,
    /// The session's options at this checkpoint.
    pub options: SessionOptions,
    /// The session that it was forked from.
    pub parent: Option<SessionId>,
    /// The number of the checkpoint that this pack belongs to.
    pub checkpoint: u64,
    /// The turn before the checkpoint.
    pub turn: Option<TurnId>,
    /// The previous snapshot, which has the events up to `after`.
    pub previous: String,
    /// The pack has the events after this one, up to and including `through`.
    pub after: EventSeq,
    /// The last event in this pack.
    pub through: EventSeq,
    /// When the session was created.
    pub created_at: Timestamp,
    /// When the pack was written.
    pub at: Timestamp,
    /// The epoch in which the workspace was held. Older packs lack this field and all below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The tenant's owner whose session it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// The metadata that callers set on the session.
    #[serde(default, skip_serializing_if = "SessionMetadata::is_empty")]
    pub metadata: SessionMetadata,
    /// The name of the workspace, if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<Slug>,
    /// The session's environment, sealed with the server's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The values behind masks in the options, sealed like the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<String>,
    /// The agent's version, with everything outside its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Box<AgentDefinition>>,
    /// The journal position up to which the events include the agent's output. A rebuild of the session reads the rest of
    /// the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "heard")]
    pub journal_position: Option<JournalPosition>,
}

/// One event, as a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    /// Its number in the log.
    pub seq: EventSeq,
    /// The turn of the event, if any.
    pub turn: Option<TurnId>,
    /// When it was recorded.
    pub at: Timestamp,
    /// The name of the fact, as `Fact::kind` gives it.
    pub kind: String,
    /// The stored text: an agent's line byte for byte, or our own JSON.
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
