//! Renders items of the log as stream events. Messages of the agent are sent verbatim, after the granular events that
//! clients of the Ash API expect.

use crate::{
    shapes::{self, Compaction},
    wire::{
        permission::PermissionView,
        session::RewindView,
        stream::{
            self, AnsweredRequest, ChangedMetadata, DeltaText, EVENTS, FailedTier, IdleSession, IdleWarning,
            LockNumber, LockTaken, NoData, QueueOrder, ReachedLimit, RestoreStatus, SessionCreated,
            SessionForked, SessionStart, SteeredMessage, StreamError, StreamedAnswer, ToolResult, ToolUse,
            TurnComplete, TurnContinued, TurnDone, TurnRef, TurnStarted, TurnUsage,
        },
        tool::{AnsweredToolCall, ToolCallView},
    },
};
use ash_model::{Fact, LockAcquisition, Problem, SessionId, TurnId};
use ash_session::RestoreProgress;
use ash_store::{LogItem, LogItemContent};
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SseFrame {
    pub(crate) name: String,
    pub(crate) data: String,
}

impl SseFrame {
    /// The fields are in alphabetical order, as they have always been sent.
    pub(crate) fn of(name: &str, data: &impl Serialize) -> SseFrame {
        SseFrame { name: name.to_owned(), data: json!(data).to_string() }
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
    match fact {
        Fact::Queued { turn, .. } => {
            let session_id = session.clone();
            vec![stream::session_start(&SessionStart { session_id, version: crate::VERSION, turn: *turn })]
        }
        Fact::Continued { turn, attempt, discard_after, calls, .. } => {
            let (turn, attempt, discard_after) = (*turn, *attempt, *discard_after);
            let continued = TurnContinued { turn, attempt, discard_after, calls: calls.clone() };
            vec![stream::turn_continued(&continued)]
        }
        Fact::PermissionRequested(asked) => vec![stream::permission_request(&PermissionView::of(asked))],
        Fact::Answered { id, turn, verdict, by, .. } => {
            let answered = AnsweredRequest::of(*id, verdict.as_ref(), *by);
            vec![stream::permission_answered(&StreamedAnswer { answered, turn: *turn })]
        }
        Fact::ToolRequested(asked) => vec![stream::tool_requested(&ToolCallView::of(asked))],
        Fact::ToolAnswered(answer) => vec![stream::tool_answered(&AnsweredToolCall::of(answer))],
        Fact::SaveFailed { error, .. } => vec![error_frame(error, "checkpoint_failed")],
        Fact::Cut { death, .. } => {
            let problem = death.problem();
            vec![error_frame(&problem.error, &problem.code)]
        }
        Fact::Failed { problem } => vec![error_frame(&problem.error, &problem.code)],
        Fact::Finished { turn, outcome, checkpoint, problem } => {
            let error = problem.as_ref().map(|problem| error_frame(&problem.error, &problem.code));
            let (session_id, status) = (session.clone(), *outcome);
            let done = TurnDone { session_id, turn: *turn, status, checkpoint: *checkpoint };
            error.into_iter().chain([stream::done(&done)]).collect()
        }
        Fact::Steered { turn, into } => {
            vec![stream::steered(&SteeredMessage { turn: *turn, into: *into })]
        }
        Fact::BudgetReached(reached) => vec![stream::budget_reached(&ReachedLimit::of(reached))],
        other => match view {
            StreamScope::All => own_frame(other).into_iter().collect(),
            StreamScope::Turn(_) => Vec::new(),
        },
    }
}

/// The events that the reference does not have. A stream of one turn leaves them out.
fn own_frame(fact: &Fact) -> Option<SseFrame> {
    Some(match fact {
        Fact::Setting { setting, .. } => stream::setting(setting),
        Fact::Saved(saved) => stream::checkpoint(saved),
        Fact::Resumed { receipt, .. } => stream::resumed(receipt),
        Fact::ResumeFailed { tier, reason } => {
            stream::resume_failed(&FailedTier { tier: *tier, reason: reason.clone() })
        }
        Fact::Created { agent, version, .. } => {
            stream::created(&SessionCreated { agent_name: agent.clone(), agent_version: *version })
        }
        Fact::Forked { parent, .. } => stream::forked(&SessionForked { parent_session_id: parent.clone() }),
        Fact::Started { turn, .. } => stream::turn_started(&TurnStarted { turn: *turn, origin: None }),
        Fact::SelfStarted { turn } => {
            stream::turn_started(&TurnStarted { turn: *turn, origin: Some("agent") })
        }
        Fact::Interrupting { turn, .. } => stream::interrupting(&TurnRef { turn: *turn }),
        Fact::Rewound(rewound) => stream::rewound(&RewindView::of(rewound)),
        Fact::WorkspaceRewound(by) => stream::workspace_rewound(by),
        Fact::Idle { ms, left_ms: Some(left), .. } => {
            stream::timeout_warning(&IdleWarning { idle_duration_ms: *ms, remaining_ms: *left })
        }
        Fact::Idle { ms, left_ms: None, evicted } => {
            let reason = evicted.then_some("evicted");
            stream::session_idle(&IdleSession { idle_duration_ms: *ms, reason })
        }
        Fact::Requeued { order, withdrawn } => {
            stream::queue(&QueueOrder { order: order.clone(), withdrawn: withdrawn.clone() })
        }
        Fact::Locked { acquisition: LockAcquisition::Renewed, .. } => return None,
        Fact::Locked { acquisition: how, lock } => stream::locked(&LockTaken::of(*how, lock)),
        Fact::Adopted(adopted) => stream::adopted(&shapes::without_journal(adopted)),
        Fact::Missing => stream::missing(&NoData {}),
        Fact::Unlocked { number } => stream::unlocked(&LockNumber { number: *number }),
        Fact::Configured { .. } => stream::config(&NoData {}),
        Fact::Rested { turn, usage, .. } => stream::usage(&TurnUsage { usage: *usage, turn: *turn }),
        Fact::Labelled { metadata } => stream::metadata(&ChangedMetadata { metadata: metadata.clone() }),
        Fact::Paused => stream::paused(&NoData {}),
        Fact::Stopped => stream::stopped(&NoData {}),
        Fact::Ended => stream::ended(&NoData {}),
        Fact::Queued { .. }
        | Fact::Continued { .. }
        | Fact::PermissionRequested(_)
        | Fact::Answered { .. }
        | Fact::ToolRequested(_)
        | Fact::ToolAnswered(_)
        | Fact::ToolRepeated(_)
        | Fact::ToolServerAsked { .. }
        | Fact::SaveFailed { .. }
        | Fact::Cut { .. }
        | Fact::Failed { .. }
        | Fact::Finished { .. }
        | Fact::Steering { .. }
        | Fact::Steered { .. }
        | Fact::BudgetReached(_)
        | Fact::Said { .. }
        | Fact::Used(_)
        | Fact::Awake { .. }
        | Fact::Asleep { .. }
        | Fact::Resuming => return None,
    })
}

pub(crate) fn error_frame(error: &str, code: &str) -> SseFrame {
    stream::error(&StreamError { error: error.to_owned(), code: code.to_owned(), queued: None })
}

/// The answer to a message was cut off: the reason, and whether the message is still queued.
pub(crate) fn cut_frame(problem: &Problem, queued: Option<bool>) -> SseFrame {
    let Problem { error, code } = problem.clone();
    stream::error(&StreamError { error, code, queued: Some(queued.into()) })
}

/// Progress of a restore of files.
pub(crate) fn restore_progress_frame(restoring: &RestoreProgress) -> SseFrame {
    let RestoreProgress { fetched, to_fetch, files, bytes } = *restoring;
    let phase = if fetched < to_fetch { "fetching" } else { "writing" };
    stream::restore_progress(&RestoreStatus {
        phase,
        fetched_bytes: fetched,
        total_bytes: to_fetch,
        files,
        bytes,
    })
}

/// An agent's message: first the granular events for it, then the message itself.
fn agent_message_frames(line: &str) -> Vec<SseFrame> {
    let parsed = serde_json::from_str::<Value>(line).unwrap_or_default();
    let mut frames = match parsed["type"].as_str() {
        Some("stream_event") => delta(&parsed["event"]),
        Some("assistant") => blocks(&parsed),
        // Results of a subagent's calls are results of the stream only if the agent says so.
        Some("user") if parsed.get("tool_use_result").is_some() || parsed["parent_tool_use_id"].is_null() => {
            tool_results(&parsed)
        }
        Some("result") => {
            let (num_turns, result) = (parsed["num_turns"].clone(), parsed["result"].clone());
            vec![stream::turn_complete(&TurnComplete { num_turns, result })]
        }
        Some("system") => compaction_frame(&parsed).into_iter().collect(),
        _ => Vec::new(),
    };
    frames.push(SseFrame { name: "message".to_owned(), data: line.to_owned() });
    frames
}

fn compaction_frame(line: &Value) -> Option<SseFrame> {
    Some(match shapes::compaction(line)? {
        Compaction::Start(start) => stream::compaction_start(&start),
        Compaction::Complete(result) => stream::compaction_complete(&result),
    })
}

fn delta(event: &Value) -> Vec<SseFrame> {
    if event["type"] != "content_block_delta" {
        return Vec::new();
    }
    let delta = &event["delta"];
    match delta["type"].as_str() {
        Some("text_delta") => vec![stream::text_delta(&DeltaText { delta: delta["text"].clone() })],
        Some("thinking_delta") => {
            vec![stream::thinking_delta(&DeltaText { delta: delta["thinking"].clone() })]
        }
        Some(other) if is_event_name(other) => vec![SseFrame::of(other, delta)],
        _ => Vec::new(),
    }
}

fn blocks(message: &Value) -> Vec<SseFrame> {
    let blocks = message["message"]["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let frames = blocks.iter().filter_map(|block| match block["type"].as_str()? {
        "text" => None,
        "tool_use" => {
            let (id, input) = (block["id"].clone(), block["input"].clone());
            Some(stream::tool_use(&ToolUse { id, name: shapes::tool_name(block), input }))
        }
        "thinking" => Some(stream::thinking_delta(&DeltaText { delta: block["thinking"].clone() })),
        other if is_event_name(other) => Some(SseFrame::of(other, block)),
        _ => None,
    });
    frames.collect()
}

fn tool_results(message: &Value) -> Vec<SseFrame> {
    let result = &message["tool_use_result"];
    let blocks = message["message"]["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let frames = blocks.iter().filter(|block| block["type"] == "tool_result").map(|block| {
        stream::tool_result(&ToolResult {
            tool_use_id: block["tool_use_id"].clone(),
            content: result.get("stdout").unwrap_or(&block["content"]).clone(),
            is_error: block.get("is_error").cloned(),
        })
    });
    frames.collect()
}

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
    fn an_agents_report_of_a_compaction_is_an_event_too() {
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
