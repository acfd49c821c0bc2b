//! The events of a stream.

use super::{
    permission::PermissionView,
    session::RewindView,
    tool::{AnsweredToolCall, ToolCallView},
};
use crate::{openapi::OperationDraft, render::SseFrame};
use ash_model::{
    AdoptedHistory, AgentName, BudgetScope, EventSeq, LimitKind, LimitReached, LiveSetting, LockAcquisition,
    PermissionId, PermissionVerdict, Receipt, SavedCheckpoint, SessionId, SessionLock, SessionMetadata, Tier,
    Timestamp, TokenUsage, ToolCallRecord, TurnId, TurnOutcome, VerdictSource, WorkspaceRewind,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Declares the events: a function that makes the frame of each, and its schema. The function's name is the event's.
macro_rules! stream_events {
    (
        $($(#[doc = $doc:literal])+ $name:ident($data:ty) as $schema:literal;)*
        verbatim: $(#[doc = $doc_of_agent:literal])+ $of_agent:ident($agent_data:ty) as $agent_schema:literal;
    ) => {
        $(pub(crate) fn $name(data: &$data) -> SseFrame {
            SseFrame::of(stringify!($name), data)
        })*

        /// The names of our own events, which no agent can use. `session_end` is declared by the Ash API and never sent.
        pub const EVENTS: &[&str] = &[$(stringify!($name),)* stringify!($of_agent), "session_end"];

        fn documented_events(operation: &mut OperationDraft) -> Vec<DocumentedEvent> {
            vec![$(DocumentedEvent {
                schema: $schema,
                name: stringify!($name),
                description: concat!($($doc),+),
                data: operation.schema_of::<$data>(),
            },)* DocumentedEvent {
                schema: $agent_schema,
                name: stringify!($of_agent),
                description: concat!($($doc_of_agent),+),
                data: operation.schema_of::<$agent_data>(),
            }]
        }
    };
}

struct DocumentedEvent {
    schema: &'static str,
    name: &'static str,
    description: &'static str,
    data: Value,
}

stream_events! {
    /// A message was accepted. It is the first event of a message's stream.
    session_start(SessionStart) as "SessionStartEvent";
    /// A piece of the agent's text.
    text_delta(DeltaText) as "TextDeltaEvent";
    /// A piece of the agent's thinking; also a whole thinking block.
    thinking_delta(DeltaText) as "ThinkingDeltaEvent";
    /// The agent calls a tool.
    tool_use(ToolUse) as "ToolUseEvent";
    /// The result of a call.
    tool_result(ToolResult) as "ToolResultEvent";
    /// The agent's loop came to its end; its files are not saved yet.
    turn_complete(TurnComplete) as "TurnCompleteEvent";
    /// Something failed. With `queued`, it is the last frame of a message's stream that was cut off.
    error(StreamError) as "ErrorEvent";
    /// The turn is over and its files are saved. It is the last event of a message's stream.
    done(TurnDone) as "DoneEvent";
    /// An interrupted turn continues: what came after event `discardAfter` does not count.
    turn_continued(TurnContinued) as "TurnContinuedEvent";
    /// A turn begins.
    turn_started(TurnStarted) as "TurnStartedEvent";
    /// A client interrupts the turn.
    interrupting(TurnRef) as "InterruptingEvent";
    /// A message reached the agent in the middle of another turn, and ends with it.
    steered(SteeredMessage) as "SteeredEvent";
    /// A checkpoint was made.
    checkpoint(SavedCheckpoint) as "CheckpointEvent";
    /// The session was created.
    created(SessionCreated) as "CreatedEvent";
    /// The session is a fork.
    forked(SessionForked) as "ForkedEvent";
    /// The session was resumed.
    resumed(Receipt) as "ResumedEvent";
    /// The agent did not start with its memory; the next lower tier is tried.
    resume_failed(FailedTier) as "ResumeFailedEvent";
    /// The session went back to a checkpoint.
    rewound(RewindView) as "RewoundEvent";
    /// Another session of the workspace rewound the files of all.
    workspace_rewound(WorkspaceRewind) as "WorkspaceRewoundEvent";
    /// The agent waits for permission, or for an answer.
    permission_request(PermissionView) as "PermissionRequestEvent";
    /// A permission request is closed.
    permission_answered(StreamedAnswer) as "PermissionAnsweredEvent";
    /// The agent calls a tool of the client, and waits for the output.
    tool_requested(ToolCallView) as "ToolRequestedEvent";
    /// A call of a client's tool is closed.
    tool_answered(AnsweredToolCall) as "ToolAnsweredEvent";
    /// A setting of the running agent changed.
    setting(LiveSetting) as "SettingEvent";
    /// The order of the waiting messages changed.
    queue(QueueOrder) as "QueueEvent";
    /// A client acquired the lock.
    locked(LockTaken) as "LockedEvent";
    /// The lock was released, or had expired.
    unlocked(LockNumber) as "UnlockedEvent";
    /// A limit is used up; the running turn is interrupted.
    budget_reached(ReachedLimit) as "BudgetReachedEvent";
    /// What the agent says the turn used.
    usage(TurnUsage) as "UsageReportEvent";
    /// The session is unused, and its sandbox will be released.
    timeout_warning(IdleWarning) as "TimeoutWarningEvent";
    /// The session came to rest, or its sandbox was released.
    session_idle(IdleSession) as "SessionIdleEvent";
    /// The options of the session changed.
    config(NoData) as "ConfigEvent";
    /// The metadata of the session changed.
    metadata(ChangedMetadata) as "MetadataEvent";
    /// Files are being restored. It has no id: a client cannot continue after it.
    restore_progress(RestoreStatus) as "RestoreProgressEvent";
    /// The agent begins to summarize its conversation.
    compaction_start(CompactionStart) as "CompactionStartEvent";
    /// The agent has summarized its conversation.
    compaction_complete(CompactionResult) as "CompactionCompleteEvent";
    /// The session is paused.
    paused(NoData) as "PausedEvent";
    /// The session was stopped.
    stopped(NoData) as "StoppedEvent";
    /// The session has ended. It is the last event.
    ended(NoData) as "EndedEvent";
    /// The packs or the object store knew more of the session than the database.
    adopted(AdoptedHistory) as "AdoptedEvent";
    /// An event that is lost. It keeps its number.
    missing(NoData) as "MissingEvent";

    verbatim:
    /// The agent's own message, verbatim. It follows the granular events that come from it.
    message(AgentMessage) as "MessageEvent";
}

const DESCRIPTION: &str = "A frame of an event stream: `event` is its name, `data` its JSON. The frame also has an `id:`, \
after which a client can continue. Blocks and deltas of the agent that are none of these come under names of their own: a \
client ignores events that it does not know.";

/// The schema of a frame, with the event's name as discriminator.
pub(crate) fn frame_schema(operation: &mut OperationDraft) -> Value {
    let (mut forms, mut mapping) = (Vec::new(), Map::new());
    for DocumentedEvent { schema, name, description, data } in documented_events(operation) {
        let reference = format!("#/components/schemas/{schema}");
        let shown = json!({
            "type": "object", "description": description.trim(), "required": ["event", "data"],
            "properties": { "event": { "type": "string", "const": name }, "data": data },
        });
        operation.schemas.insert(schema.to_owned(), shown);
        forms.push(json!({ "$ref": reference }));
        mapping.insert(name.to_owned(), json!(reference));
    }
    let frame = json!({
        "description": DESCRIPTION, "oneOf": forms,
        "discriminator": { "propertyName": "event", "mapping": mapping },
    });
    operation.schemas.insert("StreamEvent".to_owned(), frame);
    json!({ "$ref": "#/components/schemas/StreamEvent" })
}

/// An empty object.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoData {}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionStart {
    pub(crate) session_id: SessionId,
    /// The server's version.
    pub(crate) version: &'static str,
    pub(crate) turn: TurnId,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct DeltaText {
    #[schema(value_type = String)]
    pub(crate) delta: Value,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ToolUse {
    #[schema(value_type = String)]
    pub(crate) id: Value,
    /// Letters, digits, `-` and `_` only; the agent's message has the original.
    pub(crate) name: String,
    pub(crate) input: Value,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ToolResult {
    #[schema(value_type = String)]
    pub(crate) tool_use_id: Value,
    /// A text, or blocks of content.
    pub(crate) content: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub(crate) is_error: Option<Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TurnComplete {
    /// How many answers of the model it took; null if the agent does not say.
    #[schema(value_type = Option<u64>, required)]
    pub(crate) num_turns: Value,
    /// The agent's final text; null if there is none.
    #[schema(value_type = Option<String>, required)]
    pub(crate) result: Value,
}

/// As the agent sent it: `type` is `assistant`, `user`, `result`, `system`, `stream_event` or another.
#[derive(Serialize, ToSchema)]
#[schema(value_type = BTreeMap<String, Value>)]
pub(crate) struct AgentMessage(Value);

#[derive(Serialize, ToSchema)]
pub(crate) struct StreamError {
    /// For people.
    pub(crate) error: String,
    /// For programs, as of an `ApiError`.
    pub(crate) code: String,
    /// Whether the message is still in the queue; null if the server cannot tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<bool>)]
    pub(crate) queued: Option<Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TurnDone {
    pub(crate) session_id: SessionId,
    pub(crate) turn: TurnId,
    pub(crate) status: TurnOutcome,
    #[schema(required)]
    pub(crate) checkpoint: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TurnContinued {
    pub(crate) turn: TurnId,
    /// The first attempt was 1.
    pub(crate) attempt: u32,
    /// The last event that counts.
    pub(crate) discard_after: EventSeq,
    /// The calls of earlier attempts, and what became of them.
    pub(crate) calls: Vec<ToolCallRecord>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TurnStarted {
    pub(crate) turn: TurnId,
    /// `agent`: the agent began by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) origin: Option<&'static str>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TurnRef {
    pub(crate) turn: TurnId,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct SteeredMessage {
    /// The message's own turn.
    pub(crate) turn: TurnId,
    /// The turn that received it.
    pub(crate) into: TurnId,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionCreated {
    pub(crate) agent_name: AgentName,
    pub(crate) agent_version: u32,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionForked {
    /// Null: the parent was purged.
    #[schema(required)]
    pub(crate) parent_session_id: Option<SessionId>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct FailedTier {
    /// The tier that was tried.
    pub(crate) tier: Tier,
    pub(crate) reason: String,
}

/// The decision on a permission request.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AnsweredRequest {
    id: PermissionId,
    /// `allow`, `deny`, or `cancelled`: the agent does not wait any more.
    behavior: &'static str,
    by: VerdictSource,
    /// A replacement for the tool's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_input: Option<Value>,
    /// For a question: the chosen options, by the text of each question.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    answers: BTreeMap<String, String>,
    /// Rules that apply from now on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    updated_permissions: Vec<Value>,
    /// Why it was denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    message: Option<String>,
}

impl AnsweredRequest {
    pub(crate) fn of(
        id: PermissionId,
        verdict: Option<&PermissionVerdict>,
        by: VerdictSource,
    ) -> AnsweredRequest {
        let bare = |behavior| AnsweredRequest {
            id,
            behavior,
            by,
            updated_input: None,
            answers: BTreeMap::new(),
            updated_permissions: Vec::new(),
            message: None,
        };
        match verdict.cloned() {
            None => bare("cancelled"),
            Some(PermissionVerdict::Deny { message }) => {
                AnsweredRequest { message: Some(message), ..bare("deny") }
            }
            Some(PermissionVerdict::Allow { updated_input, answers, updated_permissions }) => {
                AnsweredRequest { updated_input, answers, updated_permissions, ..bare("allow") }
            }
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct StreamedAnswer {
    #[serde(flatten)]
    pub(crate) answered: AnsweredRequest,
    /// Null: the agent asked outside of a turn.
    #[schema(required)]
    pub(crate) turn: Option<TurnId>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct QueueOrder {
    /// All waiting messages, the next one first.
    pub(crate) order: Vec<TurnId>,
    /// Messages that a caller withdrew.
    pub(crate) withdrawn: Vec<TurnId>,
}

/// The new holder of a lock.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LockTaken {
    number: u64,
    #[schema(required)]
    holder: Option<String>,
    expires_at: Timestamp,
    /// Tells the previous holder that it has lost the lock.
    taken_over: bool,
}

impl LockTaken {
    pub(crate) fn of(how: LockAcquisition, lock: &SessionLock) -> LockTaken {
        LockTaken {
            number: lock.number,
            holder: lock.holder.clone(),
            expires_at: lock.until,
            taken_over: how == LockAcquisition::Over,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct LockNumber {
    pub(crate) number: u64,
}

/// A limit that is used up.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReachedLimit {
    of: BudgetScope,
    /// The name of the option.
    which: &'static str,
    /// Null: no price is known for the model.
    #[schema(value_type = Option<f64>, required)]
    limit: Value,
    #[schema(value_type = f64)]
    used: Value,
    #[schema(required)]
    turn: Option<TurnId>,
    /// There is a limit in dollars, and the model has no price.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unpriced: bool,
}

impl ReachedLimit {
    pub(crate) fn of(reached: &LimitReached) -> ReachedLimit {
        let unpriced = reached.kind == LimitKind::Price;
        ReachedLimit {
            of: reached.scope,
            which: reached.kind.as_str(),
            limit: if unpriced { Value::Null } else { reached.display_value(reached.limit) },
            used: reached.display_value(reached.used),
            turn: reached.turn,
            unpriced,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TurnUsage {
    #[serde(flatten)]
    pub(crate) usage: TokenUsage,
    pub(crate) turn: TurnId,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IdleWarning {
    /// How long the session has been unused.
    pub(crate) idle_duration_ms: u64,
    /// When its sandbox is released.
    pub(crate) remaining_ms: u64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IdleSession {
    pub(crate) idle_duration_ms: u64,
    /// `evicted`: another session needed the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) reason: Option<&'static str>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ChangedMetadata {
    pub(crate) metadata: SessionMetadata,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RestoreStatus {
    /// `fetching` from the object store, or `writing` to the disk.
    pub(crate) phase: &'static str,
    pub(crate) fetched_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Fields that the agent leaves out are left out.
#[derive(Serialize, ToSchema)]
pub(crate) struct CompactionStart {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, nullable = false)]
    pub(crate) tokens: Option<Value>,
}

/// Fields that the agent leaves out are left out.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CompactionResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, nullable = false)]
    pub(crate) tokens_before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, nullable = false)]
    pub(crate) tokens_after: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub(crate) summary: Option<Value>,
    /// As the model's service counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Value>,
}
