//! What an object store keeps besides packs: an agent's version, and a session as it was at one moment. From these and the
//! packs everything can be told again. A stored format: see `docs/formats.md`.

use crate::{
    AgentName, AgentRuntime, CaptureConsistency, ConcurrentTurn, Epoch, EventSeq, Image, ModelProvider,
    OwnerId, ResourceLimits, SandboxRequirements, SessionId, SessionMetadata, SessionOptions, SessionStatus,
    Slug, TenantId, Timestamp, TurnId, WorkspaceId, embedded_log::EventLine,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A version of an agent, and what the agent is like otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinition {
    /// The agent's id, which stays when it is deployed again.
    pub id: Uuid,
    /// Whose agent it is.
    pub tenant: TenantId,
    /// Its name, unique within the tenant.
    pub name: AgentName,
    /// The version that this is the definition of.
    pub version: u32,
    /// How often it was changed: of two the higher one is right.
    pub changes: u64,
    /// The snapshot of its files.
    pub tree: String,
    /// The program that runs it.
    pub runtime: AgentRuntime,
    /// Who answers the built-in agent; none: the server decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ModelProvider>,
    /// The container image; none: the server's own sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// How much of the machine its sandboxes may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceLimits>,
    /// What else it wants of its sandboxes.
    #[serde(default, skip_serializing_if = "SandboxRequirements::is_empty")]
    pub needs: SandboxRequirements,
    /// Where it was deployed from, for people.
    pub origin: String,
    /// Its configuration, as JSON.
    pub config: String,
    /// Sealed with the server's own key, which is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// When it was first deployed.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// When it was deleted, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// A session up to an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionManifest {
    /// Whose session it is.
    pub tenant: TenantId,
    /// Its id, unique within the tenant.
    pub session: SessionId,
    /// The workspace with its files.
    pub workspace: WorkspaceId,
    /// The name of its workspace, if it shares one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<Slug>,
    /// The workspace was deleted since, and its name is free.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unnamed: bool,
    /// Of two that tell different things the one with the higher epoch is right.
    pub epoch: Epoch,
    /// The last event that it tells of.
    pub seq: EventSeq,
    /// The name of its agent.
    pub agent: AgentName,
    /// The version of the agent.
    pub version: u32,
    /// The program that this version runs.
    pub runtime: AgentRuntime,
    /// The id under which the agent keeps the conversation.
    pub native_id: Uuid,
    /// The session's options.
    pub options: SessionOptions,
    /// The session's environment, sealed with the server's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// What the options hold masks for, sealed like the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<String>,
    /// The session that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// A fork has its parent's events up to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<EventSeq>,
    /// Whose it is, of the tenant's people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// What callers noted on the session.
    #[serde(default, skip_serializing_if = "SessionMetadata::is_empty")]
    pub metadata: SessionMetadata,
    /// The checkpoints that a fork began with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "first")]
    pub initial_checkpoints: Vec<ManifestCheckpoint>,
    /// Where it stands.
    pub status: SessionStatus,
    /// Its title, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The agent's last words, if it has said any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_text: Option<String>,
    /// How many turns are over.
    pub turns: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used.
    pub last_active_at: Timestamp,
    /// What it was made for; none: only the log went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<ManifestCheckpoint>,
    /// The snapshot from which on back the packs have the events up to `covers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "chain")]
    pub log_snapshot: Option<String>,
    /// The last event that is in packs.
    #[serde(rename = "covers")]
    pub packed_through: EventSeq,
    /// Those after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventLine>,
}

/// A session that was purged: no witness brings it back up to here. It stands in the place of its last manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionTombstone {
    /// Whose session it was.
    pub tenant: TenantId,
    /// The id that it had.
    pub session: SessionId,
    /// A session that is made again under this id begins with the next one.
    pub epoch: Epoch,
    /// The last event that it had.
    pub seq: EventSeq,
    /// When it was purged.
    pub purged_at: Timestamp,
}

/// The same in a repository: a line that is recognised by the id and does not tell it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TombstoneLine {
    /// Of the session's id, in hexadecimal digits.
    pub hash: String,
    /// Of what the ids begin with of all sessions that diverged from the one that this one diverged from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged: Option<String>,
    /// The epoch that the session had at its end.
    pub epoch: Epoch,
    /// The last event that it had.
    pub seq: EventSeq,
    /// When it was purged.
    pub purged_at: Timestamp,
}

/// A checkpoint, as a manifest names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestCheckpoint {
    /// Its number in the workspace.
    pub number: u64,
    /// The turn that it was made after, if any.
    pub turn: Option<TurnId>,
    /// The event that recorded it.
    pub seq: EventSeq,
    /// The id of the snapshot.
    pub tree: String,
    /// Of its own pack, in bytes.
    pub size: u64,
    /// How still the sandbox was meanwhile.
    pub consistency: CaptureConsistency,
    /// It holds a tree that was found, not one that a turn left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salvage: bool,
    /// It was made while its turn was under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mid_turn: bool,
    /// How many files, folders and links it has.
    pub files: u64,
    /// How many bytes its files have.
    pub bytes: u64,
    /// How many entries could not be captured; none: nobody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// How many files changed while they were read; none: nobody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<u64>,
    /// Turns of others that were under way in the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "beside")]
    pub concurrent_turns: Vec<ConcurrentTurn>,
    /// The older checkpoint that the workspace went back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "back")]
    pub rewound_to: Option<u64>,
    /// When it was made.
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_far_away_is_written_and_read_as_in_the_first_version() {
        let agent = r#"{"id":"00000000-0000-0000-0000-000000000001","tenant":"default","name":"a","version":2,"changes":5,"tree":"t0","runtime":"builtin","origin":"/a","config":"{}","createdAt":"2025-11-15T22:00:00.007Z","updatedAt":"2025-11-15T22:00:01.007Z"}"#;
        let read: AgentDefinition = serde_json::from_str(agent).expect("an agent");
        assert_eq!(serde_json::to_string(&read).expect("plain"), agent);
        let least = r#"{"tenant":"default","session":"s1","workspace":"00000000-0000-0000-0000-000000000001","epoch":3,"seq":19,"agent":"a","version":2,"runtime":"builtin","nativeId":"00000000-0000-0000-0000-000000000002","options":{},"status":"paused","turns":1,"createdAt":"2025-11-15T22:00:00.007Z","lastActiveAt":"2025-11-15T22:00:01.007Z","covers":0}"#;
        let read: SessionManifest = serde_json::from_str(least).expect("a manifest");
        assert_eq!(serde_json::to_string(&read).expect("plain"), least);
        let most = r#"{"tenant":"default","session":"s1","workspace":"00000000-0000-0000-0000-000000000001","epoch":3,"seq":19,"agent":"a","version":2,"runtime":"claude","nativeId":"00000000-0000-0000-0000-000000000002","options":{"model":"m"},"env":"sealed","secrets":"sealed too","parent":"s0","base":7,"first":[{"number":1,"turn":null,"seq":7,"tree":"t1","size":9,"consistency":"frozen","files":1,"bytes":2,"at":"2025-11-15T22:00:00.007Z"}],"status":"active","title":"t","lastText":"l","turns":2,"createdAt":"2025-11-15T22:00:00.007Z","lastActiveAt":"2025-11-15T22:00:01.007Z","checkpoint":{"number":3,"turn":"00000000-0000-0000-0000-000000000003","seq":19,"tree":"t2","size":9,"consistency":"live","salvage":true,"midTurn":true,"files":1,"bytes":2,"skipped":1,"unsettled":0,"at":"2025-11-15T22:00:00.007Z"},"chain":"t2","covers":17,"events":[{"seq":18,"turn":null,"at":"2025-11-15T22:00:00.007Z","kind":"paused","json":"{}"}]}"#;
        let read: SessionManifest = serde_json::from_str(most).expect("a manifest");
        assert_eq!(serde_json::to_string(&read).expect("plain"), most);
    }

    #[test]
    fn a_tombstone_is_written_and_read_as_in_the_first_version() {
        let text =
            r#"{"tenant":"default","session":"s1","epoch":3,"seq":20,"purgedAt":"2025-11-15T22:00:00.007Z"}"#;
        let read: SessionTombstone = serde_json::from_str(text).expect("a tombstone");
        assert_eq!(serde_json::to_string(&read).expect("plain"), text);
        assert!(serde_json::from_str::<SessionManifest>(text).is_err(), "a tombstone is no manifest");
        for line in [
            r#"{"hash":"0a","epoch":3,"seq":20,"purgedAt":"2025-11-15T22:00:00.007Z"}"#,
            r#"{"hash":"0a","diverged":"0b","epoch":3,"seq":20,"purgedAt":"2025-11-15T22:00:00.007Z"}"#,
        ] {
            let read: TombstoneLine = serde_json::from_str(line).expect("a line");
            assert_eq!(serde_json::to_string(&read).expect("plain"), line);
            assert!(serde_json::from_str::<TombstoneLine>(text).is_err(), "they are told apart");
        }
    }

    #[test]
    fn an_owner_and_metadata_are_kept_far_away_as_in_the_first_version() {
        let owned = r#"{"tenant":"default","session":"s1","workspace":"00000000-0000-0000-0000-000000000001","epoch":3,"seq":19,"agent":"a","version":2,"runtime":"builtin","nativeId":"00000000-0000-0000-0000-000000000002","options":{"ttl":60},"owner":"alice@example.com","metadata":{"ticket":"42"},"status":"paused","turns":1,"createdAt":"2025-11-15T22:00:00.007Z","lastActiveAt":"2025-11-15T22:00:01.007Z","covers":0}"#;
        let read: SessionManifest = serde_json::from_str(owned).expect("a manifest");
        assert_eq!(serde_json::to_string(&read).expect("plain"), owned);
    }
}
