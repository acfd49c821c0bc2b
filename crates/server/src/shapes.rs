//! The JSON that clients of the Ash API expect: agents, sessions, messages, events.

use crate::wire::{
    history::{MessageView, SessionEventView},
    permission::PermissionView,
    session::RewindView,
    stream::{AnsweredRequest, CompactionResult, CompactionStart, LockTaken, ReachedLimit},
    tool::{AnsweredToolCall, ToolCallView},
};
use ash_model::{
    AdoptedHistory, Event, Fact, LimitReached, LockAcquisition, PermissionId, PermissionRequest,
    PermissionVerdict, SessionRewind, VerdictSource, shown_tool_name,
};
use ash_store::{AgentRow, SessionRow};
use serde_json::{Value, json};
use uuid::Uuid;

pub(crate) fn config(agent: &AgentRow) -> Value {
    serde_json::from_str(&agent.config).unwrap_or_else(|_| json!({}))
}

pub(crate) fn rewound(rewound: &SessionRewind) -> Value {
    json!(RewindView::of(rewound))
}

pub(crate) fn limit_reached(reached: &LimitReached) -> Value {
    json!(ReachedLimit::of(reached))
}

/// Omits the position in the sandbox's journal, which is internal.
pub(crate) fn without_journal(adopted: &AdoptedHistory) -> AdoptedHistory {
    AdoptedHistory { journal_position: None, ..adopted.clone() }
}

/// A permission request or a question.
pub(crate) fn permission(asked: &PermissionRequest) -> Value {
    json!(PermissionView::of(asked))
}

/// The decision on a permission request.
pub(crate) fn permission_answered(
    id: PermissionId,
    verdict: Option<&PermissionVerdict>,
    by: VerdictSource,
) -> Value {
    json!(AnsweredRequest::of(id, verdict, by))
}

/// Ids for rows that have none of their own. The same row always gets the same id, also on another machine.
fn id(session: &SessionRow, seq: u64, part: usize) -> Uuid {
    Uuid::new_v5(&session.workspace.0, format!("{}/{seq}/{part}", session.id).as_bytes())
}

/// A message: the user's, or the agent's answer. `ordinal`: its number among all messages of the session.
pub(crate) fn message(session: &SessionRow, event: &Event, ordinal: u64) -> Option<MessageView> {
    let (role, content) = match &event.fact {
        Fact::Queued { content, .. } => ("user", json!({ "type": "user", "content": content }).to_string()),
        Fact::Said { line } => ("assistant", line.clone()),
        _ => return None,
    };
    Some(MessageView {
        id: id(session, event.seq, 0),
        session_id: session.id.clone(),
        tenant_id: session.tenant.clone(),
        role,
        content,
        sequence: ordinal,
        turn: event.turn,
        created_at: event.at,
    })
}

/// An event as zero or more entries of the timeline, in the types that clients know.
pub(crate) fn timeline(session: &SessionRow, event: &Event) -> Vec<SessionEventView> {
    let entries = match &event.fact {
        Fact::Said { line } => agent_line_entries(line),
        other => lifecycle_entry(session, other).into_iter().collect(),
    };
    let shown = entries.into_iter().enumerate().map(|(part, (kind, data))| SessionEventView {
        id: id(session, event.seq, part),
        session_id: session.id.clone(),
        tenant_id: session.tenant.clone(),
        kind,
        data: data.to_string(),
        sequence: event.seq,
        turn: event.turn,
        created_at: event.at,
    });
    shown.collect()
}

type TimelineEntry = (&'static str, Value);

fn agent_line_entries(line: &str) -> Vec<TimelineEntry> {
    let Ok(message) = serde_json::from_str::<Value>(line) else { return Vec::new() };
    let blocks = || message["message"]["content"].as_array().cloned().unwrap_or_default();
    match message["type"].as_str() {
        Some("assistant") => blocks().iter().filter_map(assistant_block).collect(),
        Some("user") => {
            blocks().iter().filter_map(|block| tool_result(block, &message["tool_use_result"])).collect()
        }
        Some("result") => {
            vec![("turn_complete", json!({ "numTurns": message["num_turns"], "result": message["result"] }))]
        }
        Some("system") => compaction(&message).map(compaction_entry).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The start or the end of a compaction, as an agent reports it.
pub(crate) enum Compaction {
    Start(CompactionStart),
    Complete(CompactionResult),
}

pub(crate) fn compaction(line: &Value) -> Option<Compaction> {
    let field = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
    match line["subtype"].as_str()? {
        "status" if line["status"] == "compacting" => {
            Some(Compaction::Start(CompactionStart { tokens: field(&line["tokens"]) }))
        }
        "compact_boundary" => {
            let told = &line["compact_metadata"];
            Some(Compaction::Complete(CompactionResult {
                tokens_before: field(&told["pre_tokens"]),
                tokens_after: field(&told["post_tokens"]),
                summary: field(&line["summary"]),
                usage: field(&line["usage"]),
            }))
        }
        _ => None,
    }
}

fn compaction_entry(compaction: Compaction) -> TimelineEntry {
    let (name, mut data) = match compaction {
        Compaction::Start(start) => ("compaction_start", json!(start)),
        Compaction::Complete(result) => ("compaction_complete", json!(result)),
    };
    data["action"] = json!(name);
    ("lifecycle", data)
}

fn assistant_block(block: &Value) -> Option<TimelineEntry> {
    match block["type"].as_str()? {
        "text" => Some(("text", json!({ "text": block["text"] }))),
        "thinking" => Some(("reasoning", json!({ "thinking": block["thinking"] }))),
        "tool_use" => Some((
            "tool_start",
            json!({ "toolName": tool_name(block), "toolId": block["id"], "input": block["input"] }),
        )),
        _ => None,
    }
}

/// A readable name of the tool in a call. The agent's own message keeps the original name.
pub(crate) fn tool_name(block: &Value) -> String {
    shown_tool_name(block["name"].as_str().unwrap_or_default())
}

fn tool_result(block: &Value, result: &Value) -> Option<TimelineEntry> {
    if block["type"] != "tool_result" {
        return None;
    }
    let stdout = result.get("stdout").cloned().unwrap_or_else(|| block["content"].clone());
    let stderr = result.get("stderr").cloned().unwrap_or_else(|| json!(""));
    let data = json!({ "toolId": block["tool_use_id"], "stdout": stdout, "stderr": stderr, "isError": block["is_error"] });
    Some(("tool_result", data))
}

fn lifecycle_entry(session: &SessionRow, fact: &Fact) -> Option<TimelineEntry> {
    let action = |name: &str, mut data: Value| {
        data["action"] = json!(name);
        Some(("lifecycle", data))
    };
    match fact {
        Fact::Created { agent, options, .. } => {
            action("created", json!({ "agentName": agent, "model": options.model }))
        }
        Fact::Forked { parent, .. } => action("forked", json!({ "parentSessionId": parent })),
        Fact::Resumed { receipt, .. } => action("resumed", serde_json::to_value(receipt).unwrap_or_default()),
        Fact::ResumeFailed { tier, reason } => {
            action("resume_failed", json!({ "tier": tier, "reason": reason }))
        }
        Fact::Continued { turn, attempt, discard_after, calls, .. } => {
            let data =
                json!({ "turn": turn, "attempt": attempt, "discardAfter": discard_after, "calls": calls });
            action("turn_continued", data)
        }
        Fact::Saved(saved) => action("checkpoint", serde_json::to_value(saved).unwrap_or_default()),
        Fact::Finished { turn, outcome: how, checkpoint, problem } => action(
            "turn_ended",
            json!({ "turn": turn, "status": how, "checkpoint": checkpoint, "error": problem }),
        ),
        Fact::Rewound(to) => action("rewound", rewound(to)),
        Fact::WorkspaceRewound(by) => {
            action("workspace_rewound", serde_json::to_value(by).unwrap_or_default())
        }
        Fact::PermissionRequested(asked) => action("permission_request", permission(asked)),
        Fact::Answered { id, verdict, by, .. } => {
            action("permission_answered", permission_answered(*id, verdict.as_ref(), *by))
        }
        Fact::ToolRequested(asked) => action("tool_requested", json!(ToolCallView::of(asked))),
        Fact::ToolAnswered(answer) => action("tool_answered", json!(AnsweredToolCall::of(answer))),
        Fact::Setting { setting, .. } => action("setting", serde_json::to_value(setting).unwrap_or_default()),
        Fact::Idle { ms, left_ms: Some(left), .. } => {
            action("timeout_warning", json!({ "idleDurationMs": ms, "remainingMs": left }))
        }
        Fact::Idle { ms, left_ms: None, evicted: false } => {
            action("session_idle", json!({ "idleDurationMs": ms }))
        }
        Fact::Idle { ms, left_ms: None, evicted: true } => {
            action("session_idle", json!({ "idleDurationMs": ms, "reason": "evicted" }))
        }
        Fact::Requeued { order, withdrawn } => {
            action("queue", json!({ "order": order, "withdrawn": withdrawn }))
        }
        Fact::Steered { turn, into } => action("steered", json!({ "turn": turn, "into": into })),
        Fact::Locked { acquisition: LockAcquisition::Renewed, .. } => None,
        Fact::Locked { acquisition: how, lock } => action("locked", json!(LockTaken::of(*how, lock))),
        Fact::Adopted(adopted) => action("adopted", json!(without_journal(adopted))),
        Fact::Missing => action("missing", json!({})),
        Fact::Unlocked { number } => action("unlocked", json!({ "number": number })),
        Fact::Configured { .. } => action("config", json!({})),
        Fact::BudgetReached(what) => action("budget_reached", limit_reached(what)),
        Fact::Labelled { metadata } => action("metadata", json!({ "metadata": metadata })),
        Fact::Paused => action("paused", json!({})),
        Fact::Stopped => action("stopped", json!({})),
        Fact::Ended => action("ended", json!({})),
        Fact::SaveFailed { error, .. } => {
            Some(("error", json!({ "error": error, "code": "checkpoint_failed" })))
        }
        Fact::Cut { death, .. } => {
            let problem = death.problem();
            Some(("error", json!({ "error": problem.error, "code": problem.code })))
        }
        Fact::Failed { problem } => {
            Some(("error", json!({ "error": problem.error, "code": problem.code, "session": session.id })))
        }
        Fact::Queued { .. }
        | Fact::ToolRepeated(_)
        | Fact::ToolServerAsked { .. }
        | Fact::Steering { .. }
        | Fact::Started { .. }
        | Fact::SelfStarted { .. }
        | Fact::Said { .. }
        | Fact::Used(_)
        | Fact::Interrupting { .. }
        | Fact::Rested { .. }
        | Fact::Awake { .. }
        | Fact::Asleep { .. }
        | Fact::Resuming => None,
    }
}

/// The shapes that only handlers send, for the tests.
#[cfg(test)]
mod sent {
    use super::{Value, json};
    use crate::wire::{files, usage::UsageView};

    pub(super) fn usage(sum: &ash_store::UsageReportRow) -> Value {
        json!(UsageView::of(sum))
    }

    pub(super) fn checkpoint(current: Option<u64>, row: &ash_store::Checkpoint) -> Value {
        json!(files::CheckpointView::of(current, row))
    }

    pub(super) fn checkpoint_detail(current: Option<u64>, row: &ash_store::Checkpoint) -> Value {
        json!(files::CheckpointDetailView::of(current, row))
    }
}
#[cfg(test)]
use sent::{checkpoint, checkpoint_detail, usage};

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{ConversationPoint, LimitKind, Timestamp, TurnId, UsageTotal};
    use ash_store::{Checkpoint, UsageReportRow};

    #[test]
    fn a_rewind_is_sent_as_in_the_first_version() {
        let turn = TurnId(Uuid::from_u128(7));
        let then = ConversationPoint { turns_delivered: 2, turns: 2, ..ConversationPoint::default() };
        let midway = ConversationPoint { under_way: Some(turn), ..then.clone() };
        let sent = [
            (
                SessionRewind { to: 3, from: Some(7), seq: 41, conversation: then },
                r#"{"checkpoint":3,"from":7,"midTurn":false,"seq":41,"turn":null,"turns":2}"#,
            ),
            (
                SessionRewind { to: 3, from: None, seq: 41, conversation: midway },
                r#"{"checkpoint":3,"from":null,"midTurn":true,"seq":41,"turn":"00000000-0000-0000-0000-000000000007","turns":2}"#,
            ),
        ];
        for (fact, json) in sent {
            assert_eq!(rewound(&fact), serde_json::from_str::<Value>(json).expect("json"));
        }
    }

    #[test]
    fn a_compaction_is_sent_as_in_the_first_version() {
        let sent = |line: Value| agent_line_entries(&line.to_string());
        let begun = json!({"type": "system", "subtype": "status", "status": "compacting", "tokens": 8100});
        assert_eq!(sent(begun), [("lifecycle", json!({"action": "compaction_start", "tokens": 8100}))]);
        let metadata = json!({"trigger": "auto", "pre_tokens": 8100, "post_tokens": 900});
        let done = json!({"type": "system", "subtype": "compact_boundary", "compact_metadata": metadata,
            "summary": "We spoke of tea.", "usage": {"input_tokens": 7}});
        let shown = json!({"action": "compaction_complete", "tokensBefore": 8100, "tokensAfter": 900,
            "summary": "We spoke of tea.", "usage": {"input_tokens": 7}});
        assert_eq!(sent(done), [("lifecycle", shown)]);
        let of_claude =
            json!({"type": "system", "subtype": "compact_boundary", "compact_metadata": {"pre_tokens": 3}});
        assert_eq!(
            sent(of_claude),
            [("lifecycle", json!({"action": "compaction_complete", "tokensBefore": 3}))]
        );
    }

    #[test]
    fn a_call_begins_under_a_name_that_cannot_mislead_a_reader() {
        let begun = |name: Value| {
            let block = json!({ "type": "tool_use", "id": "t", "name": name, "input": {} });
            agent_line_entries(&json!({ "type": "assistant", "message": { "content": [block] } }).to_string())
        };
        let shown =
            |name: &str| vec![("tool_start", json!({ "toolName": name, "toolId": "t", "input": {} }))];
        assert_eq!(begun(json!("Read\n\u{202e}\u{1b}[2J")), shown("Read2J"));
        assert_eq!(begun(json!("mcp__a__b-c")), shown("mcp__a__b-c"));
        assert_eq!(begun(json!(null)), shown("unnamed"));
    }

    #[test]
    fn a_permission_is_sent_as_in_the_first_version() {
        let asked = PermissionRequest {
            id: PermissionId(Uuid::from_u128(11)),
            turn: None,
            request: "r".into(),
            tool: "Bash".into(),
            input: json!({"command": "ls"}),
            tool_use_id: Some("t".into()),
            suggestions: vec![json!({})],
            question: false,
            expires_at: Timestamp(1000),
            on_timeout: ash_model::PermissionTimeoutPolicy::Deny,
        };
        let sent = r#"{"id":"00000000-0000-0000-0000-00000000000b","turn":null,"tool":"Bash","input":{"command":"ls"},
            "toolUseId":"t","suggestions":[{}],"question":false,"expiresAt":"1970-01-01T00:00:01.000Z","onTimeout":"deny"}"#;
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("json");
        assert_eq!(permission(&asked), read(sent));
        let answered = [
            (Some(PermissionVerdict::allow()), VerdictSource::Client, r#""by":"client","behavior":"allow""#),
            (
                Some(PermissionVerdict::deny("no")),
                VerdictSource::Policy,
                r#""by":"policy","behavior":"deny","message":"no""#,
            ),
            (None, VerdictSource::Cancelled, r#""by":"cancelled","behavior":"cancelled""#),
        ];
        for (verdict, by, rest) in answered {
            let sent = format!(r#"{{"id":"00000000-0000-0000-0000-00000000000b",{rest}}}"#);
            assert_eq!(permission_answered(asked.id, verdict.as_ref(), by), read(&sent));
        }
    }

    #[test]
    fn usage_and_limits_are_sent_as_in_the_first_version() {
        let usage = ash_model::TokenUsage {
            input_tokens: 1,
            output_tokens: 2,
            cache_creation_tokens: 3,
            cache_read_tokens: 4,
            ..ash_model::TokenUsage::default()
        };
        let spent = UsageTotal { usage, nano_usd: 1_500_000, unpriced: false, rounds: 5 };
        let at = Some(Timestamp(0));
        let sum = UsageReportRow { spent, turns: 6, first: at, last: at, ..UsageReportRow::default() };
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("json");
        let sent = r#"{"inputTokens":1,"outputTokens":2,"cacheCreationTokens":3,"cacheReadTokens":4,"tokens":10,"costUsd":0.0015,
            "unpriced":false,"rounds":5,"turns":6,"firstAt":"1970-01-01T00:00:00.000Z","lastAt":"1970-01-01T00:00:00.000Z"}"#;
        assert_eq!(super::usage(&sum), read(sent));
        let unknown = UsageReportRow { spent: UsageTotal { nano_usd: 0, unpriced: true, ..spent }, ..sum };
        assert_eq!(super::usage(&unknown)["costUsd"], Value::Null);

        let turn = Some(TurnId(Uuid::from_u128(7)));
        let of = ash_model::BudgetScope::Session;
        let budget = LimitReached {
            turn,
            scope: of,
            kind: LimitKind::MaxBudgetUsd,
            limit: 500_000_000,
            used: 510_000_000,
        };
        let sent = r#"{"of":"session","which":"maxBudgetUsd","limit":0.5,"used":0.51,"turn":"00000000-0000-0000-0000-000000000007"}"#;
        assert_eq!(limit_reached(&budget), read(sent));
        let price = LimitReached {
            turn: None,
            scope: ash_model::BudgetScope::Turn,
            kind: LimitKind::Price,
            limit: 0,
            used: 0,
        };
        let sent =
            r#"{"of":"turn","which":"maxBudgetUsd","limit":null,"used":0.0,"turn":null,"unpriced":true}"#;
        assert_eq!(limit_reached(&price), read(sent));
    }

    #[test]
    fn a_checkpoint_is_sent_as_in_the_first_version() {
        let workspace = ash_model::WorkspaceId::fresh();
        let row = Checkpoint {
            workspace,
            number: 4,
            turn: Some(TurnId(Uuid::from_u128(7))),
            seq: 41,
            tree: "237a7f".into(),
            consistency: ash_model::CaptureConsistency::Frozen,
            salvage: false,
            mid_turn: true,
            files: 10,
            bytes: 4096,
            skipped: Some(1),
            unsettled: None,
            concurrent_turns: Vec::new(),
            rewound_to: None,
            removed_at: None,
            uploaded_at: None,
            at: Timestamp(0),
        };
        let json = r#"{"at":"1970-01-01T00:00:00.000Z","bytes":4096,"consistency":"frozen","current":true,"files":10,
            "midTurn":true,"number":4,"remote":false,"salvage":false,"seq":41,"turn":"00000000-0000-0000-0000-000000000007"}"#;
        let sent = serde_json::from_str::<Value>(json).expect("json");
        assert_eq!(checkpoint(Some(4), &row), sent);
        let whole = r#"{"skipped":1,"unsettled":null}"#;
        let whole: Value = serde_json::from_str(whole).expect("json");
        let alone = checkpoint_detail(Some(3), &row);
        assert_eq!((&alone["skipped"], &alone["unsettled"]), (&whole["skipped"], &whole["unsettled"]));
        assert_eq!(alone["current"], false);
    }
}
