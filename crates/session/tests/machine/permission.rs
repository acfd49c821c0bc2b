//! Permission requests of an agent: answered once, told once, and never left open.

use crate::{
    DONE, PROMPT, START,
    given::Given,
    phase,
    world::{Luck, Op, World},
};
use ash_driver::AgentInput;
use ash_model::{
    Fact, Incarnation, LiveSetting, PermissionId, PermissionRequest, PermissionTimeoutPolicy,
    PermissionVerdict, Timestamp, TurnId, VerdictSource,
};
use ash_session::machine::{
    CommandRefusal, Effect, LogState, NextStep, SandboxConnection, StateCommand, TurnPhase,
};
use serde_json::json;
use uuid::Uuid;

const TURN: TurnId = TurnId(Uuid::from_u128(1));
const ID: PermissionId = PermissionId(Uuid::from_u128(2));
const ALLOW: Op = Op::Answer(Luck::Good);

fn asked(on_timeout: PermissionTimeoutPolicy) -> PermissionRequest {
    PermissionRequest {
        id: ID,
        turn: Some(TURN),
        request: "r".into(),
        tool: "Bash".into(),
        input: json!({"command": "ls"}),
        tool_use_id: None,
        suggestions: Vec::new(),
        question: false,
        expires_at: Timestamp(100),
        on_timeout,
    }
}

/// A turn runs, and its agent waits.
fn waiting(asked: PermissionRequest) -> LogState {
    let incarnation = Incarnation(Uuid::from_u128(3));
    let facts = [
        Fact::Awake { incarnation, resumed_after: None, outdated: false, more_inputs: 0 },
        Fact::Queued { turn: TURN, content: json!("x"), options: Default::default(), lock: None },
        Fact::Started { turn: TURN, input: 2 },
        Fact::PermissionRequested(asked),
    ];
    let mut state = LogState::new(0);
    (1..).zip(&facts).for_each(|(seq, fact)| state.apply(seq, fact));
    state
}

fn answered(verdict: Option<PermissionVerdict>, by: VerdictSource, input: Option<u64>) -> Fact {
    Fact::Answered { id: ID, turn: Some(TURN), verdict, by, input }
}

fn answer(state: &LogState, verdict: PermissionVerdict) -> Result<Vec<Fact>, CommandRefusal> {
    state.decide(&StateCommand::Answer { id: ID, verdict })
}

#[test]
fn an_answer_is_told_under_the_next_number_and_only_once() {
    let mut state = waiting(asked(PermissionTimeoutPolicy::Deny));
    assert_eq!(state.summary().pending, [4]);
    let facts = answer(&state, PermissionVerdict::allow()).expect("it waits");
    assert_eq!(facts, [answered(Some(PermissionVerdict::allow()), VerdictSource::Client, Some(3))]);
    state.apply(5, &facts[0]);
    let say = AgentInput::Answer {
        request: "r".into(),
        input: json!({"command": "ls"}),
        verdict: PermissionVerdict::allow(),
    };
    assert_eq!(state.undelivered_inputs(2), [(3, say)]);
    assert_eq!(state.undelivered_inputs(3), []);
    assert_eq!(state.summary().pending, [0; 0]);
    assert_eq!(answer(&state, PermissionVerdict::deny("no")), Err(CommandRefusal::NoSuchPermission));
}

#[test]
fn a_question_wants_answers_and_nothing_else_does() {
    let chosen = || PermissionVerdict::Allow {
        updated_input: None,
        answers: [("Which?".to_owned(), "A".to_owned())].into(),
        updated_permissions: Vec::new(),
    };
    let question = waiting(PermissionRequest { question: true, ..asked(PermissionTimeoutPolicy::Deny) });
    assert_eq!(answer(&question, PermissionVerdict::allow()), Err(CommandRefusal::AnswersMissing));
    assert!(answer(&question, chosen()).is_ok() && answer(&question, PermissionVerdict::deny("no")).is_ok());
    assert_eq!(
        answer(&waiting(asked(PermissionTimeoutPolicy::Deny)), chosen()),
        Err(CommandRefusal::NotAQuestion)
    );
}

#[test]
fn when_nobody_answers_the_rule_does() {
    for (rule, question, expected) in [
        (PermissionTimeoutPolicy::Deny, false, "deny"),
        (PermissionTimeoutPolicy::Allow, false, "allow"),
        // A rule cannot know which answer a client would have chosen.
        (PermissionTimeoutPolicy::Allow, true, "deny"),
        (PermissionTimeoutPolicy::Interrupt, false, "interrupt"),
    ] {
        let mut state = waiting(PermissionRequest { question, ..asked(rule) });
        assert_eq!((state.overdue(Timestamp(99)), state.next_overdue()), (Vec::new(), Some(Timestamp(100))));
        let facts = state.overdue(Timestamp(100));
        let did = match facts.as_slice() {
            [Fact::Interrupting { turn: TURN, input: 3 }] => "interrupt",
            [
                Fact::Answered {
                    verdict: Some(PermissionVerdict::Allow { .. }),
                    by: VerdictSource::Policy,
                    input: Some(3),
                    ..
                },
            ] => "allow",
            [
                Fact::Answered {
                    verdict: Some(PermissionVerdict::Deny { message }),
                    by: VerdictSource::Policy,
                    ..
                },
            ] => {
                assert!(message.contains("in time"), "{message}");
                "deny"
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(did, expected, "{rule:?}");
        state.apply(5, &facts[0]);
        assert_eq!(
            (state.overdue(Timestamp(999)), state.next_overdue()),
            (Vec::new(), None),
            "{rule:?}: once"
        );
    }
}

#[test]
fn a_request_that_no_client_answers_is_handled_when_its_time_is_up() {
    let given = |facts: &[Fact]| {
        let asked = Fact::PermissionRequested(PermissionRequest {
            expires_at: Timestamp(90_000),
            ..asked(PermissionTimeoutPolicy::Interrupt)
        });
        let turn = Fact::Queued { turn: TURN, content: json!("x"), options: Default::default(), lock: None };
        let all = [turn, Fact::Started { turn: TURN, input: 2 }, asked];
        Given::live(&all.iter().chain(facts).cloned().collect::<Vec<_>>())
    };
    let interrupting = Fact::Interrupting { turn: TURN, input: 3 };
    let step = NextStep::CommitAndTell { facts: vec![interrupting.clone()] };
    assert_eq!(given(&[]).due(), Some((90, step)));
    let mut away = given(&[]);
    away.machine.runtime.sandbox = SandboxConnection::Departing;
    away.machine.runtime.effect = Some(Effect::MakeTree);
    assert_eq!((away.next(0), away.plan(99)), (None, NextStep::Wait), "no agent waits");
    // An agent that stops withdraws its requests itself.
    assert_eq!(given(&[interrupting]).due(), Some((7200, NextStep::CheckDisk)));
}

#[test]
fn a_request_lives_no_longer_than_its_sandbox_even_if_its_end_is_missing_in_the_log() {
    let mut state = waiting(asked(PermissionTimeoutPolicy::Deny));
    state.apply(5, &Fact::Asleep { incarnation: None });
    assert_eq!(state.pending, []);
}

#[test]
fn what_a_turn_that_is_over_still_waits_for_is_taken_back() {
    let mut state = waiting(asked(PermissionTimeoutPolicy::Allow));
    let usage = Default::default();
    let how = ash_model::TurnOutcome::Done;
    state.apply(5, &Fact::Rested { turn: TURN, outcome: how, text: String::new(), usage, problem: None });
    assert_eq!(state.overdue(Timestamp(0)), [answered(None, VerdictSource::Cancelled, None)]);
}

#[test]
fn what_is_told_beside_a_turn_comes_in_its_order() {
    let mut state = waiting(asked(PermissionTimeoutPolicy::Deny));
    let setting = LiveSetting::Model("m".into());
    state.apply(5, &Fact::Setting { setting: setting.clone(), input: 3 });
    state.apply(6, &Fact::Interrupting { turn: TURN, input: 4 });
    let facts = answer(&state, PermissionVerdict::deny("no")).expect("it waits");
    state.apply(7, &facts[0]);
    let told: Vec<u64> = state.undelivered_inputs(1).iter().map(|(input, _)| *input).collect();
    assert_eq!(told, [2, 3, 4, 5]);
    assert_eq!(state.undelivered_inputs(2)[0], (3, AgentInput::SetLiveSetting { setting, input: 3 }));
}

#[test]
fn a_server_that_dies_before_it_tells_the_answer_leaves_it_to_the_next() {
    let world = World::awake().after(&[PROMPT, Op::AskLeave, Op::CrashBeforeTelling, ALLOW, START]);
    assert_eq!(world.state().pending, []);
    let world = world.after(&[Op::Rest, DONE]);
    assert_eq!(world.outcomes(), [Some(ash_model::TurnOutcome::Done)]);
}

#[test]
fn a_server_that_dies_while_somebody_is_asked_is_not_missed() {
    let world = World::awake().after(&[PROMPT, Op::AskLeave, Op::Crash, START]);
    assert_eq!(world.state().pending.len(), 1);
    assert!(matches!(phase(&world), Some(TurnPhase::Running { .. })));
    let world = world.after(&[ALLOW, Op::Rest, DONE]);
    assert_eq!(world.outcomes(), [Some(ash_model::TurnOutcome::Done)]);
}

#[test]
fn who_asked_and_died_does_not_wait_any_more() {
    for death in [&[Op::Die][..], &[Op::Crash, Op::Die, START], &[Op::Crash, Op::Die, Op::Start(Luck::Bad)]] {
        let world = World::awake().after(&[PROMPT, Op::AskLeave]).after(death);
        assert_eq!(world.state().pending, [], "{death:?}");
        let kinds = world.kinds_since(0);
        let place = |kind: &str| kinds.iter().position(|other| *other == kind);
        assert!(place("answered") < place("cut") && place("answered").is_some(), "{death:?}: {kinds:?}");
    }
}

/// The agent has resumed its turn by itself, and waits for an answer before the session continues the turn.
fn waiting_in_a_cut_turn() -> World {
    let mut world = World::awake().after(&[PROMPT, Op::Die, DONE, Op::Resume, Op::Write, Op::LoseTree, DONE]);
    assert_eq!(phase(&world), Some(&TurnPhase::Cut));
    assert_eq!(world.machine().runtime.effect, Some(Effect::Salvage), "files are saved first");
    world.act(Op::AskLeave);
    assert_eq!(world.state().pending.len(), 1);
    world
}

#[test]
fn a_client_that_stops_a_cut_turn_leaves_no_agent_waiting() {
    let mut world = waiting_in_a_cut_turn();
    let before = world.log.len();
    world.act(Op::Interrupt);
    assert_eq!(world.kinds_since(before), ["answered", "finished"]);
    let Fact::Answered { verdict, by, .. } = &world.log[before].fact else { panic!("answered first") };
    assert!(matches!(verdict, Some(PermissionVerdict::Deny { .. })), "the agent is told");
    assert_eq!(*by, VerdictSource::Cancelled);
    world.come_to_rest();
}
