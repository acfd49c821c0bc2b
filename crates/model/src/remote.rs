//! What the object store holds besides packs: agent versions and session manifests. Together with the packs they are
//! enough to rebuild everything. A stored format: see `docs/formats.md`.

use crate::{
    AgentName, AgentRuntime, CaptureConsistency, ConcurrentTurn, Epoch, EventSeq, Image, ModelProvider,
    OwnerId, ResourceLimits, SandboxRequirements, SessionId, SessionMetadata, SessionOptions, SessionStatus,
    Slug, TenantId, Timestamp, TurnId, WorkspaceId, embedded_log::EventLine,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A version of an agent, and the agent's other properties.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinition {
    /// The agent's id, which survives a new deploy.
    pub id: Uuid,
    /// The tenant that owns the agent.
    pub tenant: TenantId,
    /// Its name, unique within the tenant.
    pub name: AgentName,
    /// The version that this defines.
    pub version: u32,
    /// The number of changes: of two definitions the higher number is current.
    pub changes: u64,
    /// The snapshot of its files.
    pub tree: String,
    /// The agent program.
    pub runtime: AgentRuntime,
    /// The model provider of the built-in agent; `None`: the server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ModelProvider>,
    /// The container image; none: the server's own sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// The resource limits of its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceLimits>,
    /// Other requirements of its sandboxes.
    #[serde(default, skip_serializing_if = "SandboxRequirements::is_empty")]
    pub needs: SandboxRequirements,
    /// The source of the deploy, for people.
    pub origin: String,
    /// Its configuration, as JSON.
    pub config: String,
    /// The environment, sealed with the server's own key, which is not in the object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// When it was first deployed.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// When it was deleted, if it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// A session up to one event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionManifest {
    /// The tenant that owns the session.
    pub tenant: TenantId,
    /// Its id, unique within the tenant.
    pub session: SessionId,
    /// The workspace with its files.
    pub workspace: WorkspaceId,
    /// The name of the workspace, if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slug: Option<Slug>,
    /// The workspace has been deleted, and its name is free.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unnamed: bool,
    /// Of two manifests that contradict each other the one with the higher epoch is right.
    pub epoch: Epoch,
    /// The last event that the manifest covers.
    pub seq: EventSeq,
    /// The name of its agent.
    pub agent: AgentName,
    /// The version of the agent.
    pub version: u32,
    /// The agent program of this version.
    pub runtime: AgentRuntime,
    /// The id under which the agent keeps the conversation.
    pub native_id: Uuid,
    /// The session's options.
    pub options: SessionOptions,
    /// The session's environment, sealed with the server's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The values behind masks in the options, sealed like the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<String>,
    /// The session that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// For a fork: the last event that it shares with its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<EventSeq>,
    /// The tenant's owner whose session it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// The metadata that callers set on the session.
    #[serde(default, skip_serializing_if = "SessionMetadata::is_empty")]
    pub metadata: SessionMetadata,
    /// The checkpoints that a fork started with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "first")]
    pub initial_checkpoints: Vec<ManifestCheckpoint>,
    /// The session's status.
    pub status: SessionStatus,
    /// Its title, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The agent's latest final text, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_text: Option<String>,
    /// How many turns are complete.
    pub turns: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used.
    pub last_active_at: Timestamp,
    /// The checkpoint that caused this manifest; `None`: only the log has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<ManifestCheckpoint>,
    /// The newest snapshot with events; its pack and those before it hold the events up to `packed_through`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "chain")]
    pub log_snapshot: Option<String>,
    /// The last event that is in packs.
    #[serde(rename = "covers")]
    pub packed_through: EventSeq,
    /// The events after that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventLine>,
}

/// A purged session: no witness restores it up to this event. It replaces the session's last manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionTombstone {
    /// The tenant that owned the session.
    pub tenant: TenantId,
    /// The session's id.
    pub session: SessionId,
    /// The last epoch; a new session under this id starts with the next one.
    pub epoch: Epoch,
    /// The session's last event.
    pub seq: EventSeq,
    /// When it was purged.
    pub purged_at: Timestamp,
}

/// A tombstone in a repository: it matches the session's id without revealing it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TombstoneLine {
    /// The hash of the session's id, in hexadecimal digits.
    pub hash: String,
    /// The hash of the id prefix that all sessions have that diverged from the same session as this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged: Option<String>,
    /// The session's last epoch.
    pub epoch: Epoch,
    /// The session's last event.
    pub seq: EventSeq,
    /// When it was purged.
    pub purged_at: Timestamp,
}

/// A checkpoint in a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestCheckpoint {
    /// Its number in the workspace.
    pub number: u64,
    /// The turn before the checkpoint, if any.
    pub turn: Option<TurnId>,
    /// The event that recorded it.
    pub seq: EventSeq,
    /// The id of the snapshot.
    pub tree: String,
    /// The size of its own pack, in bytes.
    pub size: u64,
    /// Whether processes could write during the capture.
    pub consistency: CaptureConsistency,
    /// A tree that we found, not the result of a turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salvage: bool,
    /// Taken while the turn was running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mid_turn: bool,
    /// How many files, folders and links it has.
    pub files: u64,
    /// How many bytes its files have.
    pub bytes: u64,
    /// How many entries could not be captured; `None`: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// How many files changed while they were read; `None`: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<u64>,
    /// Turns of other sessions that were running in the workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "beside")]
    pub concurrent_turns: Vec<ConcurrentTurn>,
    /// The earlier checkpoint whose files the workspace returned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "back")]
    pub rewound_to: Option<u64>,
    /// When it was taken.
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_objects_are_written_and_read_as_in_the_first_version() {
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
    fn remote_owners_and_metadata_are_as_in_the_first_version() {
        let owned = r#"{"tenant":"default","session":"s1","workspace":"00000000-0000-0000-0000-000000000001","epoch":3,"seq":19,"agent":"a","version":2,"runtime":"builtin","nativeId":"00000000-0000-0000-0000-000000000002","options":{"ttl":60},"owner":"alice@example.com","metadata":{"ticket":"42"},"status":"paused","turns":1,"createdAt":"2025-11-15T22:00:00.007Z","lastActiveAt":"2025-11-15T22:00:01.007Z","covers":0}"#;
        let read: SessionManifest = serde_json::from_str(owned).expect("a manifest");
        assert_eq!(serde_json::to_string(&read).expect("plain"), owned);
    }
}
