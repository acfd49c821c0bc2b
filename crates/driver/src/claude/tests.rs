//! What we send to Claude Code, and what its lines mean, line by line.

use super::*;
use crate::testing::launch;
use ash_model::{TurnId, TurnOutcome};

fn argv(memory: ConversationSource) -> String {
    ClaudeDriver.launch(&launch(memory)).argv.join(" ")
}

fn hear(ear: &mut TurnTracker, line: Value) -> Vec<AgentEvent> {
    ClaudeDriver.parse_line(ear, line.to_string().as_bytes())
}

#[test]
fn a_plan_is_in_the_call_that_asks_to_leave_plan_mode() {
    let input = json!({ "plan": "# Plan", "planFilePath": "/home/agent/.claude/plans/a-b-c.md" });
    assert_eq!(ClaudeDriver.plan("ExitPlanMode", &input), Some("# Plan"));
    assert_eq!(ClaudeDriver.plan("Write", &input), None);
    for none in [json!({}), json!({ "plan": 3 }), json!(["plan"]), json!(null)] {
        assert_eq!(ClaudeDriver.plan("ExitPlanMode", &none), None, "{none}");
    }
}

const TURN: TurnId = TurnId(Uuid::from_u128(7));

const NEXT: TurnId = TurnId(Uuid::from_u128(8));

fn taken_up(turn: TurnId) -> Value {
    json!({"type": "command_lifecycle", "command_uuid": turn, "state": "started"})
}

#[test]
fn a_message_that_came_too_late_for_its_turn_is_the_next_one() {
    let init = json!({"type": "system", "subtype": "init"});
    let aborted = json!({"type": "result", "subtype": "error_during_execution", "is_error": true,
        "terminal_reason": "aborted_tools", "user_message_uuids": [TURN]});
    let done = result(TURN, "first");
    // Either the turn was interrupted and the agent continues with the new message, or the agent was idle before we knew.
    for (end, then) in [(vec![aborted], TurnOutcome::Interrupted), (vec![done, idle()], TurnOutcome::Done)] {
        for told_first in [true, false] {
            let mut ear = told();
            let mut heard: Vec<AgentEvent> =
                end.iter().flat_map(|line| hear(&mut ear, line.clone())).collect();
            heard.extend(hear(&mut ear, taken_up(NEXT)));
            assert_eq!(rested(&heard).map(|(turn, how, _)| (turn, how)), Some((TURN, then)));
            assert!(!heard.iter().any(|heard| matches!(heard, AgentEvent::Steered { .. })));
            hear(&mut ear, init.clone());
            assert!(!ear.has_self_started(), "it was asked for");
            if told_first {
                ear.expect(NEXT);
            }
            hear(&mut ear, result(NEXT, "second"));
            // We may send another message before that one, and it has an answer of its own.
            if !told_first {
                ear.expect(TurnId(Uuid::from_u128(9)));
                assert_eq!(ear.answer, None);
                ear.expect(NEXT);
            }
            let over = rested(&hear(&mut ear, idle()));
            assert_eq!(over, Some((NEXT, TurnOutcome::Done, "second".to_owned())), "{then:?} {told_first}");
        }
    }
}

fn told() -> TurnTracker {
    let mut ear = TurnTracker::default();
    ear.expect(TURN);
    ear
}

fn lifecycle(state: &str) -> Value {
    json!({"type": "command_lifecycle", "command_uuid": TURN, "state": state})
}

fn result(of: TurnId, text: &str) -> Value {
    json!({"type": "result", "subtype": "success", "is_error": false, "result": text,
        "user_message_uuids": [of], "usage": {"input_tokens": 3}})
}

fn idle() -> Value {
    json!({"type": "system", "subtype": "session_state_changed", "state": "idle"})
}

fn rested(heard: &[AgentEvent]) -> Option<(TurnId, TurnOutcome, String)> {
    heard.iter().find_map(|heard| match heard {
        AgentEvent::TurnEnded { turn, how, text, .. } => Some((*turn, *how, text.clone())),
        AgentEvent::Ready { .. }
        | AgentEvent::Delta { .. }
        | AgentEvent::Message { .. }
        | AgentEvent::PermissionRequested { .. }
        | AgentEvent::RequestWithdrawn { .. }
        | AgentEvent::ToolRequested { .. }
        | AgentEvent::ToolServerAsked { .. }
        | AgentEvent::MemoryCompacted
        | AgentEvent::Steered { .. }
        | AgentEvent::SettingAnswered { .. } => None,
    })
}

#[test]
fn the_agent_starts_under_our_id_and_resumes_it() {
    let (from, id) = (Uuid::from_u128(1), Uuid::from_u128(2));
    assert!(argv(ConversationSource::Fresh { id }).contains(&format!("--session-id {id}")));
    assert!(!argv(ConversationSource::Fresh { id }).contains("--resume"));
    assert!(argv(ConversationSource::Resume { id }).contains(&format!("--resume {id}")));
    let fork = argv(ConversationSource::Fork { from, id });
    assert!(fork.contains(&format!("--resume {from} --session-id {id}")) && fork.contains("--fork-session"));
}

#[test]
fn no_key_is_inside() {
    let env = ClaudeDriver.launch(&launch(ConversationSource::Fresh { id: Uuid::nil() })).env;
    assert_eq!(env["ANTHROPIC_API_KEY"], PLACEHOLDER_KEY);
    assert_eq!(env["ANTHROPIC_UNIX_SOCKET"], "/run/ash/model.sock");
}

#[test]
fn a_turn_ends_when_the_agent_is_idle_after_our_answer() {
    let mut ear = TurnTracker::default();
    assert_eq!(rested(&hear(&mut ear, idle())), None, "no message was sent yet");
    ear.expect(TURN);
    hear(&mut ear, json!({"type": "system", "subtype": "session_state_changed", "state": "running"}));
    hear(&mut ear, lifecycle("queued"));
    hear(&mut ear, lifecycle("started"));
    assert_eq!(rested(&hear(&mut ear, result(TURN, "the answer"))), None, "there may be more");
    hear(&mut ear, lifecycle("completed"));
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "the answer".into())));
    assert_eq!(rested(&hear(&mut ear, idle())), None, "once");
}

#[test]
fn output_about_a_background_task_answers_no_turn() {
    let mut ear = told();
    hear(&mut ear, lifecycle("started"));
    let mut other = result(TurnId(Uuid::from_u128(8)), "a task is done");
    other["origin"] = json!({"kind": "task-notification"});
    hear(&mut ear, other);
    assert_eq!(rested(&hear(&mut ear, idle())), None);
    hear(&mut ear, result(TURN, "mine"));
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "mine".into())));
}

#[test]
fn a_compaction_is_reported_once_however_long_it_takes() {
    let mut ear = told();
    let compacting =
        json!({"type": "system", "subtype": "status", "status": "compacting", "compact_output_chars": 0});
    let over = [
        json!({"type": "system", "subtype": "status", "status": null, "compact_result": "failed"}),
        json!({"type": "system", "subtype": "compact_boundary"}),
    ];
    for over in over {
        let messages = |heard: Vec<AgentEvent>| {
            heard.iter().filter(|heard| matches!(heard, AgentEvent::Message { .. })).count()
        };
        let said =
            [&compacting, &compacting, &compacting, &over].map(|line| messages(hear(&mut ear, line.clone())));
        assert_eq!(said, [1, 0, 0, 1], "{over}");
    }
}

#[test]
fn self_started_work_is_a_turn_of_its_own() {
    let mut ear = TurnTracker::default();
    hear(&mut ear, json!({"type": "system", "subtype": "init"}));
    assert!(ear.has_self_started());
    ear.expect_self_started(TURN);
    let mut answer = result(TurnId(Uuid::from_u128(8)), "the build is done");
    answer["origin"] = json!({"kind": "task-notification"});
    hear(&mut ear, answer);
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "the build is done".into())));
    assert!(!ear.has_self_started(), "once");
    // This run produces no result.
    hear(&mut ear, json!({"type": "system", "subtype": "init"}));
    hear(&mut ear, idle());
    assert!(!ear.has_self_started());
}

#[test]
fn self_started_work_that_is_already_over_is_a_turn_too() {
    let mut ear = TurnTracker::default();
    let work = |ear: &mut TurnTracker, text: &str| {
        hear(ear, json!({"type": "system", "subtype": "init"}));
        hear(ear, result(TurnId(Uuid::from_u128(8)), text));
    };
    work(&mut ear, "the build is done");
    assert!(!ear.has_self_started(), "it has not said that it is idle, and may go on");
    hear(&mut ear, idle());
    assert!(ear.has_self_started());
    let end: Vec<_> = ear.begin_self_started(TURN).into_iter().collect();
    assert_eq!(rested(&end), Some((TURN, TurnOutcome::Done, "the build is done".into())));
    assert!(!ear.has_self_started(), "once");

    // It began something else before it got a turn: both are one turn, which is over when the agent is idle.
    work(&mut ear, "first");
    hear(&mut ear, idle());
    hear(&mut ear, json!({"type": "system", "subtype": "init"}));
    assert!(ear.has_self_started());
    let next = TurnId(Uuid::from_u128(9));
    assert_eq!(ear.begin_self_started(next), None);
    hear(&mut ear, result(TurnId(Uuid::from_u128(8)), "second"));
    assert_eq!(rested(&hear(&mut ear, idle())), Some((next, TurnOutcome::Done, "second".into())));

    // A message has come first: the work is not its answer.
    work(&mut ear, "third");
    hear(&mut ear, idle());
    ear.expect(TURN);
    assert_eq!(rested(&hear(&mut ear, idle())), None);
    assert!(!ear.has_self_started());
}

#[test]
fn an_agent_in_the_background_holds_the_turn_and_a_command_does_not() {
    let mut ear = told();
    hear(&mut ear, lifecycle("started"));
    let task = |id: &str, kind: &str| json!({"type": "system", "subtype": "task_started", "task_id": id, "task_type": kind});
    hear(&mut ear, task("a", "local_agent"));
    hear(&mut ear, task("b", "local_bash"));
    hear(&mut ear, result(TURN, "started both"));
    assert_eq!(rested(&hear(&mut ear, idle())), None);
    hear(&mut ear, json!({"type": "system", "subtype": "task_notification", "task_id": "a"}));
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "started both".into())));
}

#[test]
fn background_work_that_no_turn_waits_for_any_more_holds_none() {
    let mut ear = told();
    let init = || json!({"type": "system", "subtype": "init"});
    hear(&mut ear, init());
    hear(
        &mut ear,
        json!({"type": "system", "subtype": "task_started", "task_id": "a", "task_type": "local_agent"}),
    );
    assert!(!ear.is_waiting_for_background(), "it works itself");
    hear(&mut ear, result(TURN, "it was asked"));
    hear(&mut ear, lifecycle("completed"));
    let of_helper = json!({"type": "assistant", "parent_tool_use_id": "t", "message": {"content": []}});
    hear(&mut ear, of_helper);
    assert!(ear.is_waiting_for_background());
    assert_eq!(
        rested(&ear.stop_waiting_for_background().into_iter().collect::<Vec<_>>()),
        Some((TURN, TurnOutcome::Done, "it was asked".into()))
    );
    assert!(!ear.is_waiting_for_background(), "once");

    // Claude Code does not report idle while the other task runs.
    let next = TurnId(Uuid::from_u128(9));
    ear.expect(next);
    hear(&mut ear, init());
    assert_eq!(rested(&hear(&mut ear, result(next, "yes?"))), None);
    let mut completed = lifecycle("completed");
    completed["command_uuid"] = json!(next.0);
    assert_eq!(rested(&hear(&mut ear, completed)), Some((next, TurnOutcome::Done, "yes?".into())));

    hear(&mut ear, init());
    let own = TurnId(Uuid::from_u128(10));
    ear.expect_self_started(own);
    assert_eq!(
        rested(&hear(&mut ear, result(TurnId(Uuid::from_u128(8)), "by the way"))),
        Some((own, TurnOutcome::Done, "by the way".into()))
    );
    hear(&mut ear, json!({"type": "system", "subtype": "task_notification", "task_id": "a"}));
    hear(&mut ear, init());
    ear.expect_self_started(TURN);
    assert_eq!(rested(&hear(&mut ear, result(next, "it is back"))), None, "it will say so");
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "it is back".into())));
}

#[test]
fn a_message_that_the_agent_knows_ends_without_an_answer() {
    let mut ear = told();
    assert_eq!(
        rested(&hear(&mut ear, lifecycle("completed"))),
        Some((TURN, TurnOutcome::Done, String::new()))
    );
}

#[test]
fn an_interrupted_turn_is_over_as_interrupted() {
    let mut ear = told();
    hear(&mut ear, lifecycle("started"));
    hear(&mut ear, json!({"type": "system", "subtype": "init"}));
    hear(
        &mut ear,
        json!({"type": "result", "subtype": "error_during_execution", "is_error": true, "terminal_reason": "aborted_streaming"}),
    );
    hear(&mut ear, lifecycle("cancelled"));
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Interrupted, String::new())));
}

#[test]
fn a_turn_that_was_cut_off_continues_under_another_id() {
    let busy = json!({"type": "system", "subtype": "session_state_changed", "state": "running"});
    let continued = json!({"type": "result", "is_error": false, "result": "went on", "resume_reason": "interrupted_turn"});
    let mut ear = told();
    hear(&mut ear, busy.clone());
    hear(&mut ear, lifecycle("completed"));
    hear(&mut ear, continued.clone());
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "went on".into())));
    // The agent answers before we send the message again.
    let mut ear = TurnTracker::default();
    hear(&mut ear, busy);
    hear(&mut ear, continued);
    assert_eq!(rested(&hear(&mut ear, idle())), None);
    ear.expect(TURN);
    assert_eq!(
        rested(&hear(&mut ear, lifecycle("completed"))),
        Some((TURN, TurnOutcome::Done, "went on".into()))
    );
    assert_eq!(rested(&hear(&mut ear, lifecycle("completed"))), None, "once");
}

#[test]
fn an_interrupted_turn_leaves_no_task_to_wait_for() {
    let mut ear = told();
    hear(
        &mut ear,
        json!({"type": "system", "subtype": "task_started", "task_id": "a", "task_type": "local_agent"}),
    );
    hear(&mut ear, json!({"type": "result", "is_error": true, "terminal_reason": "aborted_tools"}));
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Interrupted, String::new())));
    let next = TurnId(Uuid::from_u128(8));
    ear.expect(next);
    hear(&mut ear, result(next, "the next"));
    assert_eq!(rested(&hear(&mut ear, idle())), Some((next, TurnOutcome::Done, "the next".into())));
}

#[test]
fn as_it_was_recorded_after_a_kill() {
    let mut ear = told();
    let lines = [
        json!({"type": "system", "subtype": "session_state_changed", "state": "running"}),
        json!({"type": "command_lifecycle", "command_uuid": Uuid::from_u128(9), "state": "started"}),
        json!({"type": "system", "subtype": "init", "user_message_uuids": [TURN]}),
        json!({"type": "system", "subtype": "status", "status": "requesting", "user_message_uuids": [TURN]}),
        lifecycle("completed"),
        json!({"type": "assistant", "user_message_uuid": TURN, "resume_reason": "interrupted_turn"}),
        json!({"type": "result", "subtype": "success", "is_error": false, "result": "went on",
            "user_message_uuid": TURN, "user_message_uuids": [TURN], "resume_reason": "interrupted_turn"}),
        json!({"type": "command_lifecycle", "command_uuid": Uuid::from_u128(9), "state": "completed"}),
    ];
    for line in lines {
        assert_eq!(rested(&hear(&mut ear, line.clone())), None, "{line}");
    }
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "went on".into())));
}

#[test]
fn a_successor_reaches_the_same_state_from_the_kept_lines() {
    let lines = [lifecycle("queued"), lifecycle("started"), result(TURN, "x"), lifecycle("completed")];
    for heard in 0..lines.len() {
        let mut first = told();
        let kept: Vec<String> = lines[..=heard]
            .iter()
            .flat_map(|line| hear(&mut first, line.clone()))
            .filter_map(|heard| match heard {
                AgentEvent::Message { line } => Some(line),
                AgentEvent::Ready { .. }
                | AgentEvent::Delta { .. }
                | AgentEvent::TurnEnded { .. }
                | AgentEvent::PermissionRequested { .. }
                | AgentEvent::RequestWithdrawn { .. }
                | AgentEvent::ToolRequested { .. }
                | AgentEvent::ToolServerAsked { .. }
                | AgentEvent::MemoryCompacted
                | AgentEvent::Steered { .. }
                | AgentEvent::SettingAnswered { .. } => None,
            })
            .collect();
        let mut second = told();
        kept.iter().for_each(|line| drop(ClaudeDriver.parse_line(&mut second, line.as_bytes())));
        assert_eq!(first, second);
    }
}

fn init(version: &str) -> Value {
    json!({"type": "system", "subtype": "init", "claude_code_version": version})
}

#[test]
fn a_turn_of_a_version_that_does_not_announce_idle_ends_at_its_result() {
    let mut ear = told();
    let unnamed = json!({"type": "result", "subtype": "success", "is_error": false, "result": "old"});
    hear(&mut ear, init("2.1.47"));
    assert_eq!(rested(&hear(&mut ear, unnamed)), Some((TURN, TurnOutcome::Done, "old".to_owned())));
}

#[test]
fn a_result_that_names_no_message_is_the_answer_if_its_version_never_names_one() {
    let unnamed = json!({"type": "result", "subtype": "success", "is_error": false, "result": "old"});
    let mut task = unnamed.clone();
    task["origin"] = json!({"kind": "task-notification"});
    let mut ear = told();
    hear(&mut ear, init("2.1.197"));
    assert_eq!(rested(&hear(&mut ear, task)), None);
    assert_eq!(rested(&hear(&mut ear, unnamed.clone())), None, "it will say that it is idle");
    assert_eq!(rested(&hear(&mut ear, idle())), Some((TURN, TurnOutcome::Done, "old".to_owned())));
    // From a version that names messages, this result answers another message.
    let mut ear = told();
    let mut naming = init("2.1.325");
    naming["user_message_uuids"] = json!([TURN]);
    hear(&mut ear, naming);
    hear(&mut ear, unnamed);
    assert_eq!(rested(&hear(&mut ear, idle())), None);
}

#[test]
fn credentials_and_shell_snapshots_are_in_no_checkpoint() {
    let out =
        [".claude/.credentials.json", ".claude/shell-snapshots/snapshot-bash-1.sh", ".claude/sessions/7.key"];
    assert!(out.iter().all(|path| is_never_captured(path.as_bytes())));
    let kept =
        [".claude/projects/-workspace/7.jsonl", ".claude/sessions/7.json", "x/.claude/.credentials.json"];
    assert!(!kept.iter().any(|path| is_never_captured(path.as_bytes())));
}
