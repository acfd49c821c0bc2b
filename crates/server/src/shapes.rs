//! The JSON that clients of the Ash API expect: agents, sessions, messages, events.

use ash_model::{
    AdoptedHistory, Event, EventSeq, Fact, LimitKind, LimitReached, LockAcquisition, PermissionId,
    PermissionRequest, PermissionVerdict, SessionLock, SessionRewind, Timestamp, ToolCallRecord, TurnId,
    UsageTotal, VerdictSource, nano_to_usd, secrets, shown_tool_name,
};
use ash_store::{AgentRow, Checkpoint, SessionRow, UsageReportRow};
use serde_json::{Value, json};
use uuid::Uuid;

pub(crate) fn agent(agent: &AgentRow) -> Value {
    let mut shown = json!({
        "id": agent.id, "tenantId": agent.tenant, "name": agent.name, "version": agent.version, "path": agent.origin,
        "runtime": agent.runtime, "config": config(agent),
        "createdAt": agent.created_at, "updatedAt": agent.updated_at,
    });
    if let Some(provider) = agent.provider {
        shown["provider"] = json!(provider);
    }
    if let Some(image) = &agent.image {
        shown["image"] = json!(image);
    }
    if let Some(limits) = &agent.limits {
        shown["limits"] = json!(limits);
    }
    if !agent.needs.is_empty() {
        shown["needs"] = json!(agent.needs);
    }
    if !agent.env.0.is_empty() {
        shown["env"] = agent.env.0.keys().map(|name| (name.clone(), json!("***"))).collect();
    }
    shown
}

pub(crate) fn config(agent: &AgentRow) -> Value {
    serde_json::from_str(&agent.config).unwrap_or_else(|_| json!({}))
}

pub(crate) fn session(session: &SessionRow, now: Timestamp) -> Value {
    let card = &session.summary;
    let mut shown = json!({
        "id": session.id, "tenantId": session.tenant, "agentName": session.agent, "agentVersion": session.version,
        "runtime": session.runtime, "sandboxId": session.workspace, "workspaceId": session.workspace, "workspace": session.slug,
        "status": card.status, "model": session.options.model, "config": session.options,
        "runnerId": null, "parentSessionId": session.parent, "title": card.title, "lastText": card.last_text,
        "turns": card.turns, "openTurns": card.open_turns, "error": card.problem,
        "checkpoint": { "local": card.checkpoint, "remote": session.remote_checkpoint },
        "createdAt": session.created_at, "lastActiveAt": session.last_active_at,
        "ageSeconds": (now.0 - session.created_at.0).max(0) / 1000,
        "owner": session.owner, "metadata": session.metadata,
    });
    if let Some(servers) = &session.options.mcp_servers {
        shown["config"]["mcpServers"] = secrets::mask_secrets(servers);
    }
    let ignored = ash_driver::driver(session.runtime).ignores(&session.options);
    if !ignored.is_empty() {
        shown["ignoredOptions"] = json!(ignored);
    }
    if let Some(expires) = expires_at(session) {
        shown["expiresAt"] = json!(expires);
    }
    shown
}

/// When the session's time to live ends if it is not used before.
fn expires_at(session: &SessionRow) -> Option<Timestamp> {
    let seconds = session.options.ttl.filter(|seconds| *seconds > 0)?;
    Some(Timestamp(session.last_active_at.0 + i64::try_from(seconds).ok()?.checked_mul(1000)?))
}

/// `current`: the checkpoint that the session is at.
pub(crate) fn checkpoint(current: Option<u64>, checkpoint: &Checkpoint) -> Value {
    let mut shown = json!({
        "number": checkpoint.number, "turn": checkpoint.turn, "seq": checkpoint.seq, "at": checkpoint.at,
        "files": checkpoint.files, "bytes": checkpoint.bytes, "consistency": checkpoint.consistency,
        "salvage": checkpoint.salvage, "midTurn": checkpoint.mid_turn,
        "current": current == Some(checkpoint.number), "remote": checkpoint.uploaded_at.is_some(),
    });
    if checkpoint.removed_at.is_some() {
        shown["removed"] = json!(true);
    }
    if !checkpoint.concurrent_turns.is_empty() {
        shown["beside"] = json!(checkpoint.concurrent_turns);
    }
    if let Some(to) = checkpoint.rewound_to {
        shown["back"] = json!(to);
    }
    shown
}

/// With all details.
pub(crate) fn checkpoint_detail(current: Option<u64>, row: &Checkpoint) -> Value {
    let mut shown = checkpoint(current, row);
    shown["skipped"] = json!(row.skipped);
    shown["unsettled"] = json!(row.unsettled);
    shown
}

/// The target of a rewind, the checkpoint that leads back, and the turn that was running at the target, which does not
/// continue.
pub(crate) fn rewound(rewound: &SessionRewind) -> Value {
    let SessionRewind { to, from, seq, conversation: then } = rewound;
    json!({
        "checkpoint": to, "from": from, "seq": seq, "turns": then.turns,
        "midTurn": then.under_way.is_some(), "turn": then.under_way,
    })
}

/// The usage as one sum.
pub(crate) fn usage(sum: &UsageReportRow) -> Value {
    let UsageTotal { usage, nano_usd, unpriced, rounds } = sum.spent;
    // The cost of a model without a price is unknown. A sum shows the cost of the models with a price.
    let cost = (!unpriced || nano_usd > 0).then(|| nano_to_usd(nano_usd));
    let mut shown = json!(usage);
    shown["tokens"] = json!(usage.tokens());
    shown["costUsd"] = json!(cost);
    shown["unpriced"] = json!(unpriced);
    shown["rounds"] = json!(rounds);
    shown["turns"] = json!(sum.turns);
    shown["firstAt"] = json!(sum.first);
    shown["lastAt"] = json!(sum.last);
    shown
}

pub(crate) fn limit_reached(reached: &LimitReached) -> Value {
    let mut shown = json!({
        "of": reached.scope, "which": reached.kind.as_str(), "limit": reached.display_value(reached.limit),
        "used": reached.display_value(reached.used), "turn": reached.turn,
    });
    if reached.kind == LimitKind::Price {
        shown["unpriced"] = json!(true);
        shown["limit"] = Value::Null;
    }
    shown
}

pub(crate) fn continued(
    turn: TurnId,
    attempt: u32,
    discard_after: EventSeq,
    calls: &[ToolCallRecord],
) -> Value {
    json!({ "turn": turn, "attempt": attempt, "discardAfter": discard_after, "calls": calls })
}

/// Omits the position in the sandbox's journal, which is internal.
pub(crate) fn adopted(adopted: &AdoptedHistory) -> Value {
    serde_json::to_value(AdoptedHistory { journal_position: None, ..adopted.clone() }).unwrap_or_default()
}

/// A permission request or a question.
pub(crate) fn permission(asked: &PermissionRequest) -> Value {
    json!({
        "id": asked.id, "turn": asked.turn, "tool": asked.tool, "input": asked.input,
        "toolUseId": asked.tool_use_id, "suggestions": asked.suggestions, "question": asked.question,
        "expiresAt": asked.expires_at, "onTimeout": asked.on_timeout,
    })
}

/// The new holder of a lock; `takenOver` tells the previous holder that it has lost the lock.
pub(crate) fn locked(how: LockAcquisition, lock: &SessionLock) -> Value {
    json!({
        "number": lock.number, "holder": lock.holder, "expiresAt": lock.until, "takenOver": how == LockAcquisition::Over,
    })
}

/// The decision on a permission request.
pub(crate) fn permission_answered(
    id: PermissionId,
    verdict: Option<&PermissionVerdict>,
    by: VerdictSource,
) -> Value {
    let said = verdict.and_then(|verdict| serde_json::to_value(verdict).ok());
    let mut shown = said.unwrap_or_else(|| json!({ "behavior": "cancelled" }));
    shown["id"] = json!(id);
    shown["by"] = json!(by);
    shown
}

/// Ids for rows that have none of their own. The same row always gets the same id, also on another machine.
fn id(session: &SessionRow, seq: u64, part: usize) -> Uuid {
    Uuid::new_v5(&session.workspace.0, format!("{}/{seq}/{part}", session.id).as_bytes())
}

/// A message: the user's, or the agent's answer. `ordinal`: its number among all messages of the session.
pub(crate) fn message(session: &SessionRow, event: &Event, ordinal: u64) -> Option<Value> {
    let (role, content) = match &event.fact {
        Fact::Queued { content, .. } => ("user", json!({ "type": "user", "content": content }).to_string()),
        Fact::Said { line } => ("assistant", line.clone()),
        _ => return None,
    };
    Some(json!({
        "id": id(session, event.seq, 0), "sessionId": session.id, "tenantId": session.tenant, "role": role,
        "content": content, "sequence": ordinal, "turn": event.turn, "createdAt": event.at,
    }))
}

/// An event as zero or more entries of the timeline, in the types that clients know.
pub(crate) fn timeline(session: &SessionRow, event: &Event) -> Vec<Value> {
    let entries = match &event.fact {
        Fact::Said { line } => agent_line_entries(line),
        other => lifecycle_entry(session, other).into_iter().collect(),
    };
    let shown = entries.into_iter().enumerate().map(|(part, (kind, data))| {
        json!({
            "id": id(session, event.seq, part), "sessionId": session.id, "tenantId": session.tenant, "type": kind,
            "data": data.to_string(), "sequence": event.seq, "turn": event.turn, "createdAt": event.at,
        })
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
        Some("system") => compaction(&message)
            .map(|(name, mut data)| {
                data["action"] = json!(name);
                ("lifecycle", data)
            })
            .into_iter()
            .collect(),
        _ => Vec::new(),
    }
}

/// The start or the end of a compaction, as an agent reports it. Fields that the agent leaves out are omitted.
pub(crate) fn compaction(line: &Value) -> Option<(&'static str, Value)> {
    let (name, fields) = match line["subtype"].as_str()? {
        "status" if line["status"] == "compacting" => ("compaction_start", vec![("tokens", &line["tokens"])]),
        "compact_boundary" => {
            let told = &line["compact_metadata"];
            let fields = vec![
                ("tokensBefore", &told["pre_tokens"]),
                ("tokensAfter", &told["post_tokens"]),
                ("summary", &line["summary"]),
                ("usage", &line["usage"]),
            ];
            ("compaction_complete", fields)
        }
        _ => return None,
    };
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    Some((name, fields.map(|(name, value)| (name.to_owned(), value.clone())).collect()))
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
            action("turn_continued", continued(*turn, *attempt, *discard_after, calls))
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
        Fact::Locked { acquisition: how, lock } => action("locked", locked(*how, lock)),
        Fact::Adopted(adopted) => action("adopted", self::adopted(adopted)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::ConversationPoint;

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
    fn what_was_used_and_what_may_be_is_sent_as_in_the_first_version() {
        let usage = ash_model::TokenUsage {
            input_tokens: 1,
            output_tokens: 2,
            cache_creation_tokens: 3,
            cache_read_tokens: 4,
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
