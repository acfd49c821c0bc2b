//! What travels in a checkpoint's pack besides files: the session as it was, and what happened to it since the
//! checkpoint before. A stored format: see `docs/formats.md`.

use crate::{
    AgentRuntime, Epoch, EventSeq, JournalPosition, OwnerId, SessionId, SessionMetadata, SessionOptions,
    Slug, TenantId, Timestamp, TurnId, WorkspaceId, remote::AgentDefinition,
};
use serde::{Deserialize, Serialize};

/// The names under which it lies in a pack; parts after the first are `events.1` and so on.
pub const SESSION_NOTE: &str = "session";
/// The name of the first part of the events.
pub const EVENTS_NOTE: &str = "events";

/// The name of a part of the events, counted from 0.
pub fn events_note_name(number: usize) -> String {
    if number == 0 { EVENTS_NOTE.to_owned() } else { format!("{EVENTS_NOTE}.{number}") }
}

/// A session as its packs know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PackSessionRecord {
    /// Whose session it is.
    pub tenant: TenantId,
    /// Its id, unique within the tenant.
    pub session: SessionId,
    /// The workspace that the packs hold the files of.
    pub workspace: WorkspaceId,
    /// The name of its agent.
    pub agent: String,
    /// The version of the agent.
    pub version: u32,
    /// The snapshot of the agent's own files.
    pub agent_tree: String,
    /// The program that this version runs.
    pub runtime: AgentRuntime,
    /// The id under which the agent keeps the conversation.
    pub native_id: uuid::Uuid,
    /// The session's options at this checkpoint.
    pub options: SessionOptions,
    /// The session that it was forked from.
    pub parent: Option<SessionId>,
    /// The number of the checkpoint that this pack belongs to.
    pub checkpoint: u64,
    /// The turn that the checkpoint was made after.
    pub turn: Option<TurnId>,
    /// The snapshot before this one: where the events up to `after` are.
    pub previous: String,
    /// The events in this pack: those after the one, up to and with the other.
    pub after: EventSeq,
    /// The last event in this pack.
    pub through: EventSeq,
    /// When the session was created.
    pub created_at: Timestamp,
    /// When the pack was written.
    pub at: Timestamp,
    /// With which the workspace was held. Like all that follows it is missing in older packs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Who of the tenant's people it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// What callers noted on the session.
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
    /// Its number in the log.
    pub seq: EventSeq,
    /// The turn that it belongs to, if any.
    pub turn: Option<TurnId>,
    /// When it was recorded.
    pub at: Timestamp,
    /// The name of the fact, as `Fact::kind` gives it.
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
