//! Renders items of the log as stream events. Messages of the agent are sent verbatim, after the granular events that
//! clients of the Ash API expect.

use crate::shapes;
use ash_model::{Fact, LockAcquisition, Problem, SessionId, TurnId, TurnOutcome};
use ash_session::RestoreProgress;
use ash_store::{LogItem, LogItemContent};
use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SseFrame {
    pub(crate) name: String,
    pub(crate) data: String,
}

impl SseFrame {
    fn new(name: &str, data: Value) -> SseFrame {
        SseFrame { name: name.to_owned(), data: data.to_string() }
    }
}

/// Which items a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamScope {
    /// One turn, with the events of the reference only.
    Turn(TurnId),
    /// Everything, including our own events.
    All,
}

pub(crate) fn sse_frames(session: &SessionId, view: StreamScope, item: &LogItem) -> Vec<SseFrame> {
    let ours = match view {
        StreamScope::Turn(turn) => item.turn == Some(turn),
        StreamScope::All => true,
    };
    match &item.content {
        LogItemContent::Delta(line) if ours => agent_message_frames(line),
        LogItemContent::Event(Fact::Said { line }) if ours => agent_message_frames(line),
        LogItemContent::Event(fact) if ours => fact_frames(session, view, fact),
        LogItemContent::Delta(_) | LogItemContent::Event(_) => Vec::new(),
    }
}

fn fact_frames(session: &SessionId, view: StreamScope, fact: &Fact) -> Vec<SseFrame> {
    let named = |name: &str, data: Value| {
        if view == StreamScope::All { vec![SseFrame::new(name, data)] } else { Vec::new() }
    };
    match fact {
        Fact::Queued { turn, .. } => {
            vec![SseFrame::new(
                "session_start",
                json!({ "sessionId": session, "version": crate::VERSION, "turn": turn }),
            )]
        }
        Fact::Continued { turn, attempt, discard_after, calls, .. } => {
            vec![SseFrame::new("turn_continued", shapes::continued(*turn, *attempt, *discard_after, calls))]
        }
        Fact::PermissionRequested(asked) => {
            vec![SseFrame::new("permission_request", shapes::permission(asked))]
        }
        Fact::Answered { id, turn, verdict, by, .. } => {
            let mut answered = shapes::permission_answered(*id, verdict.as_ref(), *by);
            answered["turn"] = json!(turn);
            vec![SseFrame::new("permission_answered", answered)]
        }
        Fact::Setting { setting, .. } => named("setting", serde_json::to_value(setting).unwrap_or_default()),
        Fact::SaveFailed { error, .. } => vec![error_frame(error, "checkpoint_failed")],
        Fact::Cut { death, .. } => {
            let problem = death.problem();
            vec![error_frame(&problem.error, &problem.code)]
        }
        Fact::Failed { problem } => vec![error_frame(&problem.error, &problem.code)],
        Fact::Finished { turn, outcome: how, checkpoint, problem } => {
            let error = problem.as_ref().map(|problem| error_frame(&problem.error, &problem.code));
            let status = match how {
                TurnOutcome::Done => "done",
                TurnOutcome::Failed => "failed",
                TurnOutcome::Interrupted => "interrupted",
                TurnOutcome::Cancelled => "cancelled",
            };
            let done =
                json!({ "sessionId": session, "turn": turn, "status": status, "checkpoint": checkpoint });
            error.into_iter().chain([SseFrame::new("done", done)]).collect()
        }
        Fact::Saved(saved) => named("checkpoint", serde_json::to_value(saved).unwrap_or_default()),
        Fact::Resumed { receipt, .. } => named("resumed", serde_json::to_value(receipt).unwrap_or_default()),
        Fact::ResumeFailed { tier, reason } => {
            named("resume_failed", json!({ "tier": tier, "reason": reason }))
        }
        Fact::Created { agent, version, .. } => {
            named("created", json!({ "agentName": agent, "agentVersion": version }))
        }
        Fact::Forked { parent, .. } => named("forked", json!({ "parentSessionId": parent })),
        Fact::Started { turn, .. } => named("turn_started", json!({ "turn": turn })),
        Fact::SelfStarted { turn } => named("turn_started", json!({ "turn": turn, "origin": "agent" })),
        Fact::Interrupting { turn, .. } => named("interrupting", json!({ "turn": turn })),
        Fact::Rewound(rewound) => named("rewound", shapes::rewound(rewound)),
        Fact::WorkspaceRewound(by) => {
            named("workspace_rewound", serde_json::to_value(by).unwrap_or_default())
        }
        Fact::Idle { ms, left_ms: Some(left), .. } => {
            named("timeout_warning", json!({ "idleDurationMs": ms, "remainingMs": left }))
        }
        Fact::Idle { ms, left_ms: None, evicted: false } => {
            named("session_idle", json!({ "idleDurationMs": ms }))
        }
        Fact::Idle { ms, left_ms: None, evicted: true } => {
            named("session_idle", json!({ "idleDurationMs": ms, "reason": "evicted" }))
        }
        Fact::Requeued { order, withdrawn } => {
            named("queue", json!({ "order": order, "withdrawn": withdrawn }))
        }
        Fact::Steering { .. } => Vec::new(),
        Fact::Steered { turn, into } => vec![SseFrame::new("steered", json!({ "turn": turn, "into": into }))],
        Fact::Locked { acquisition: LockAcquisition::Renewed, .. } => Vec::new(),
        Fact::Locked { acquisition: how, lock } => named("locked", shapes::locked(*how, lock)),
        Fact::Adopted(adopted) => named("adopted", shapes::adopted(adopted)),
        Fact::Missing => named("missing", json!({})),
        Fact::Unlocked { number } => named("unlocked", json!({ "number": number })),
        Fact::Configured { .. } => named("config", json!({})),
        Fact::BudgetReached(reached) => vec![SseFrame::new("budget_reached", shapes::limit_reached(reached))],
        Fact::Rested { turn, usage, .. } => {
            let mut used = json!(usage);
            used["turn"] = json!(turn);
            named("usage", used)
        }
        Fact::Labelled { metadata } => named("metadata", json!({ "metadata": metadata })),
        Fact::Paused => named("paused", json!({})),
        Fact::Stopped => named("stopped", json!({})),
        Fact::Ended => named("ended", json!({})),
        Fact::Said { .. } | Fact::Used(_) | Fact::Awake { .. } | Fact::Asleep { .. } | Fact::Resuming => {
            Vec::new()
        }
    }
}

pub(crate) fn error_frame(error: &str, code: &str) -> SseFrame {
    SseFrame::new("error", json!({ "error": error, "code": code }))
}

/// The answer to a message was cut off: the reason, and whether the message is still queued.
pub(crate) fn cut_frame(problem: &Problem, queued: Option<bool>) -> SseFrame {
    SseFrame::new("error", json!({ "error": problem.error, "code": problem.code, "queued": queued }))
}

/// Progress of a restore of files.
pub(crate) fn restore_progress_frame(restoring: &RestoreProgress) -> SseFrame {
    let RestoreProgress { fetched, to_fetch, files, bytes } = restoring;
    let phase = if fetched < to_fetch { "fetching" } else { "writing" };
    let data = json!({
        "phase": phase, "fetchedBytes": fetched, "totalBytes": to_fetch, "files": files, "bytes": bytes,
    });
    SseFrame::new("restore_progress", data)
}

/// An agent's message: first the granular events for it, then the message itself.
fn agent_message_frames(line: &str) -> Vec<SseFrame> {
    let parsed = serde_json::from_str::<Value>(line).unwrap_or_default();
    let mut frames = match parsed["type"].as_str() {
        Some("stream_event") => delta(&parsed["event"]),
        Some("assistant") => blocks(&parsed),
        Some("user") if parsed.get("tool_use_result").is_some() => tool_results(&parsed),
        Some("result") => {
            vec![SseFrame::new(
                "turn_complete",
                json!({ "numTurns": parsed["num_turns"], "result": parsed["result"] }),
            )]
        }
        Some("system") => {
            shapes::compaction(&parsed).map(|(name, data)| SseFrame::new(name, data)).into_iter().collect()
        }
        _ => Vec::new(),
    };
    frames.push(SseFrame { name: "message".to_owned(), data: line.to_owned() });
    frames
}

fn delta(event: &Value) -> Vec<SseFrame> {
    if event["type"] != "content_block_delta" {
        return Vec::new();
    }
    let delta = &event["delta"];
    match delta["type"].as_str() {
        Some("text_delta") => vec![SseFrame::new("text_delta", json!({ "delta": delta["text"] }))],
        Some("thinking_delta") => {
            vec![SseFrame::new("thinking_delta", json!({ "delta": delta["thinking"] }))]
        }
        Some(other) if is_event_name(other) => vec![SseFrame::new(other, delta.clone())],
        _ => Vec::new(),
    }
}

fn blocks(message: &Value) -> Vec<SseFrame> {
    let blocks = message["message"]["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let frames = blocks.iter().filter_map(|block| match block["type"].as_str()? {
        "text" => None,
        "tool_use" => Some(SseFrame::new(
            "tool_use",
            json!({ "id": block["id"], "name": shapes::tool_name(block), "input": block["input"] }),
        )),
        "thinking" => Some(SseFrame::new("thinking_delta", json!({ "delta": block["thinking"] }))),
        other if is_event_name(other) => Some(SseFrame::new(other, block.clone())),
        _ => None,
    });
    frames.collect()
}

fn tool_results(message: &Value) -> Vec<SseFrame> {
    let result = &message["tool_use_result"];
    let blocks = message["message"]["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let frames = blocks.iter().filter(|block| block["type"] == "tool_result").map(|block| {
        let content = result.get("stdout").unwrap_or(&block["content"]);
        let mut data = json!({ "tool_use_id": block["tool_use_id"], "content": content });
        if let Some(is_error) = block.get("is_error") {
            data["is_error"] = is_error.clone();
        }
        SseFrame::new("tool_result", data)
    });
    frames.collect()
}

/// The names of our own events, which no agent can use.
pub const EVENTS: [&str; 41] = [
    "steered",
    "session_start",
    "session_end",
    "message",
    "text_delta",
    "thinking_delta",
    "tool_use",
    "tool_result",
    "turn_complete",
    "error",
    "done",
    "turn_continued",
    "turn_started",
    "interrupting",
    "checkpoint",
    "created",
    "forked",
    "resumed",
    "rewound",
    "permission_request",
    "permission_answered",
    "setting",
    "queue",
    "locked",
    "unlocked",
    "budget_reached",
    "usage",
    "resume_failed",
    "workspace_rewound",
    "timeout_warning",
    "session_idle",
    "config",
    "metadata",
    "restore_progress",
    "compaction_start",
    "compaction_complete",
    "paused",
    "stopped",
    "ended",
    "adopted",
    "missing",
];

/// The name comes from the sandbox. A line break in it would let the agent write its own frames, and names of our own
/// events are reserved.
fn is_event_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && !EVENTS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash_model::{LogCursor, Timestamp};

    fn names(line: &str) -> Vec<String> {
        let item = LogItem {
            at: LogCursor::event(1),
            turn: None,
            time: Timestamp(0),
            content: LogItemContent::Event(Fact::Said { line: line.into() }),
        };
        let id = SessionId::parse("s").expect("an id");
        sse_frames(&id, StreamScope::All, &item).into_iter().map(|frame| frame.name).collect()
    }

    #[test]
    fn an_agents_message_is_followed_by_itself_verbatim() {
        assert_eq!(
            names(r#"{"type":"assistant","message":{"content":[{"type":"text","text":"x"}]}}"#),
            ["message"]
        );
        let tools = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"1","name":"run","input":{}}]}}"#;
        assert_eq!(names(tools), ["tool_use", "message"]);
        assert_eq!(names(r#"{"type":"result","num_turns":1,"result":"x"}"#), ["turn_complete", "message"]);
    }

    #[test]
    fn a_call_is_shown_without_what_its_tools_name_could_mislead_a_reader_with() {
        let shown = |name: Value| {
            let block = json!({ "type": "tool_use", "id": "1", "name": name, "input": {} });
            let line = json!({ "type": "assistant", "message": { "content": [block] } }).to_string();
            let frames = agent_message_frames(&line);
            assert_eq!(frames[1], SseFrame { name: "message".to_owned(), data: line }, "verbatim");
            serde_json::from_str::<Value>(&frames[0].data).expect("JSON")["name"].clone()
        };
        assert_eq!(shown(json!("mcp__git-hub__list_9")), "mcp__git-hub__list_9");
        assert_eq!(shown(json!("Read\n\u{202e}\u{1b}[2J")), "Read2J");
        assert_eq!([shown(json!("\n")), shown(json!({"a": 1}))], ["unnamed", "unnamed"]);
    }

    #[test]
    fn what_an_agent_says_of_a_compaction_is_an_event_too() {
        let status =
            |status: &str| names(&format!(r#"{{"type":"system","subtype":"status","status":{status}}}"#));
        assert_eq!(status(r#""compacting""#), ["compaction_start", "message"]);
        assert_eq!(status(r#""requesting""#), ["message"]);
        assert_eq!(status("null"), ["message"]);
        assert_eq!(
            names(r#"{"type":"system","subtype":"compact_boundary"}"#),
            ["compaction_complete", "message"]
        );
    }

    #[test]
    fn a_block_named_by_the_agent_cannot_forge_a_frame() {
        for forged in [
            "done",
            "error",
            "ended",
            "checkpoint",
            "permission_request",
            "compaction_complete",
            "text_delta",
            "x\\ndata: 1",
            "a b",
            "",
        ] {
            let line = format!(r#"{{"type":"assistant","message":{{"content":[{{"type":"{forged}"}}]}}}}"#);
            assert_eq!(names(&line), ["message"], "{forged}");
        }
    }
}
