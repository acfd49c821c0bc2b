//! The lifecycle of a session as promises: whatever happens in whatever order, every turn is told once, ends once and
//! in order, and no caller waits for ever.

mod activity;
mod budget;
mod capture;
mod closing;
mod deaths;
mod given;
mod limits;
mod lock;
mod log;
mod messages;
mod options;
mod permission;
mod reception;
mod rewind;
mod usage;
mod world;

use ash_model::{
    BusyPolicy, Death, Durability, Fact, Incarnation, InterruptedTurnPolicy, MessageOptions, ModelStopReason,
    SessionStatus, TurnId, TurnOutcome,
};
use ash_session::machine::{
    CommandRefusal, LogState, LogStep, SandboxLiveness, SessionProfile, StateCommand, TurnPhase, WakePolicy,
};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof};
use std::time::Duration;
use uuid::Uuid;
use world::{Luck, Op, USUAL, World};

const PROMPT: Op = Op::Prompt(WakePolicy::Allowed);
const DONE: Op = Op::Effect(Luck::Good);
const FAILS: Op = Op::Effect(Luck::Bad);
const START: Op = Op::Start(Luck::Good);
/// The server, the sandbox and the tree: everything on the machine.
const POWER_CUT: [Op; 3] = [Op::Crash, Op::Die, Op::Start(Luck::Bad)];

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let luck = || prop_oneof![4 => Just(Luck::Good), 1 => Just(Luck::Bad)];
    let op = prop_oneof![
        5 => Just(Op::Prompt(WakePolicy::Allowed)),
        1 => Just(Op::Prompt(WakePolicy::Forbidden)),
        2 => prop_oneof![Just(BusyPolicy::Reject), Just(BusyPolicy::Interrupt), Just(BusyPolicy::Steer)].prop_map(Op::Push),
        1 => (0..3u8).prop_map(Op::TakeBack),
        1 => (0..3u8).prop_map(Op::GoFirst),
        1 => Just(Op::Configure),
        2 => Just(Op::TakeUp),
        2 => Just(Op::Interrupt),
        2 => Just(Op::Pause),
        1 => Just(Op::Stop),
        1 => Just(Op::Release),
        2 => Just(Op::Resume),
        1 => prop_oneof![3 => Just(Op::Resume), 1 => Just(Op::End)],
        12 => luck().prop_map(Op::Effect),
        1 => Just(Op::Capture),
        1 => Just(Op::Midway),
        3 => (0..5u8).prop_map(Op::Rewind),
        5 => Just(Op::Rest),
        4 => Just(Op::AskLeave),
        1 => Just(Op::Withdraw),
        3 => luck().prop_map(Op::Answer),
        4 => Just(Op::CallTool),
        3 => Just(Op::AnswerTool),
        1 => Just(Op::TimePasses),
        4 => Just(Op::Timer),
        1 => Just(Op::Fork),
        1 => Just(Op::Write),
        1 => Just(Op::LoseTree),
        1 => Just(Op::Evict),
        1 => Just(Op::Claim),
        2 => Just(Op::Lock),
        1 => Just(Op::StartItself),
        1 => Just(Op::Set),
        4 => prop_oneof![Just(ModelStopReason::ToolCalls), Just(ModelStopReason::Complete), Just(ModelStopReason::CutOff)].prop_map(Op::Use),
        1 => Just(Op::Raise),
        3 => Just(Op::Die),
        2 => Just(Op::Late),
        2 => Just(Op::Crash),
        1 => Just(Op::CrashBeforeTelling),
        4 => luck().prop_map(Op::Start),
        1 => Just(Op::Shutdown),
    ];
    proptest::collection::vec(op, 1..80)
}

/// Sessions of all kinds.
fn profiles() -> impl Strategy<Value = SessionProfile> {
    let flags = (proptest::bool::weighted(0.1), proptest::bool::weighted(0.2), proptest::bool::weighted(0.1));
    let sometimes = |seconds| prop_oneof![Just(None), Just(Some(Duration::from_secs(seconds)))];
    let durability = prop_oneof![3 => Just(Durability::Local), 1 => Just(Durability::Remote)];
    (flags, sometimes(60), sometimes(30), durability, prop_oneof![Just(5), Just(600)]).prop_map(
        |((ephemeral, shared, client_key), idle_timeout, checkpoint_every, durability, grace)| {
            SessionProfile {
                ephemeral,
                shared,
                client_key,
                idle_timeout,
                checkpoint_every,
                durability,
                interrupt_grace: Duration::from_secs(grace),
                ..USUAL
            }
        },
    )
}

proptest::proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(5000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_every_turn_ends_once_and_nobody_waits_for_ever(
        ops in ops(),
        ask in prop_oneof![Just(InterruptedTurnPolicy::Continue), Just(InterruptedTurnPolicy::Ask)],
        tokens in prop_oneof![Just(None), (1..60u64).prop_map(Some)],
        profile in profiles(),
    ) {
        let mut world = World::with_profile(ask, profile).with_tokens(tokens).after(&ops);
        world.come_to_rest();
        assert!(world.outcomes().iter().all(Option::is_some), "{:?}", world.state().turns);
        assert_eq!((&world.state().pending, &world.state().tool_calls), (&vec![], &vec![]));
    }
}

#[test]
fn every_client_that_changes_an_option_during_a_start_gets_an_answer() {
    let mut world = World::new(InterruptedTurnPolicy::Continue).after(&[Op::Set, Op::Set]);
    world.come_to_rest();
}

/// The status, and the outcome of each turn so far.
fn stands(world: &World) -> (SessionStatus, Vec<Option<TurnOutcome>>) {
    (world.state().status, world.outcomes())
}

fn phase(world: &World) -> Option<&TurnPhase> {
    world.state().turns.front().map(|turn| &turn.phase)
}

// What a death means.

#[test]
fn when_only_the_server_dies_the_turn_goes_on() {
    let mut world = World::awake().after(&[PROMPT, Op::Crash]);
    let before = world.log.len();
    world.act(START);
    assert_eq!(world.kinds_since(before), [""; 0], "nothing happened to the session");
    assert!(matches!(phase(&world), Some(TurnPhase::Running { .. })));
    let world = world.after(&[Op::Rest, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Active, vec![Some(TurnOutcome::Done)]));
}

#[test]
fn a_turn_that_ended_while_nobody_listened_is_saved_and_not_told_again() {
    let ways: [&[Op]; 3] = [
        &[START, DONE],
        &[Op::Die, START, DONE],
        // Its files are gone with the machine, its answer is not.
        &[Op::Die, Op::Start(Luck::Bad)],
    ];
    for way in ways {
        let world = World::awake().after(&[PROMPT, Op::Crash, Op::Rest]).after(way);
        assert_eq!(world.outcomes(), [Some(TurnOutcome::Done)], "{way:?}");
        assert!(!world.log.iter().any(|event| event.fact.kind() == "continued"), "{way:?}");
    }
}

#[test]
fn a_dead_agent_cuts_its_turn_and_the_session_shows_it() {
    let mut world = World::awake().after(&[PROMPT]);
    let before = world.log.len();
    world.act(Op::Die);
    assert_eq!(world.kinds_since(before), ["cut", "asleep", "failed"]);
    assert_eq!(stands(&world), (SessionStatus::Error, vec![None]));
    assert_eq!(world.state().summary().problem.map(|problem| problem.code).as_deref(), Some("agent_died"));
}

#[test]
fn the_next_resume_or_message_continues_the_cut_turn_first() {
    for wish in [Op::Resume, PROMPT] {
        let world = World::awake().after(&[PROMPT, Op::Die, DONE, wish, DONE]);
        let first = world.state().turns.front().expect("under way");
        assert!(
            matches!(first.phase, TurnPhase::Running { .. }) && first.attempt == 2,
            "{wish:?}: {first:?}"
        );
        let world = world.after(&[Op::Rest, DONE]);
        assert_eq!(world.outcomes()[0], Some(TurnOutcome::Done), "{wish:?}");
    }
}

#[test]
fn a_power_cut_resumes_what_ran_and_pauses_what_rested() {
    let world = World::awake().after(&[PROMPT]).after(&POWER_CUT);
    assert_eq!((world.state().status, world.state().next_step()), (SessionStatus::Starting, LogStep::Wake));
    assert_eq!(phase(&world), Some(&TurnPhase::Cut));
    let world = World::awake().after(&POWER_CUT);
    assert_eq!((world.state().status, world.state().next_step()), (SessionStatus::Paused, LogStep::Wait));
}

#[test]
fn who_wants_to_be_asked_is_asked() {
    let world = World::new(InterruptedTurnPolicy::Ask).after(&[DONE, PROMPT]).after(&POWER_CUT);
    assert_eq!((world.state().status, phase(&world)), (SessionStatus::Error, Some(&TurnPhase::Cut)));
    let world = world.after(&[Op::Resume, DONE, Op::Rest, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Active, vec![Some(TurnOutcome::Done)]));
}

#[test]
fn a_turn_cut_twice_is_given_up_and_the_next_one_runs() {
    let world = World::awake().after(&[PROMPT, PROMPT, Op::Die, DONE, Op::Resume, DONE, Op::Die]);
    assert_eq!(stands(&world), (SessionStatus::Error, vec![Some(TurnOutcome::Failed), None]));
    let problem = world.log.iter().find_map(|event| match &event.fact {
        Fact::Finished { problem, .. } => problem.clone(),
        _ => None,
    });
    assert_eq!(problem.map(|problem| problem.code).as_deref(), Some("crashed_twice"));
    let world = world.after(&[DONE, Op::Resume, DONE, Op::Rest, DONE]);
    assert_eq!(world.outcomes(), [Some(TurnOutcome::Failed), Some(TurnOutcome::Done)]);
}

#[test]
fn a_turn_given_up_by_a_second_power_cut_leaves_the_session_at_rest() {
    let world = World::awake().after(&[PROMPT]).after(&POWER_CUT).after(&[DONE]).after(&POWER_CUT);
    assert_eq!(stands(&world), (SessionStatus::Paused, vec![Some(TurnOutcome::Failed)]));
}

#[test]
fn a_turn_that_was_asked_to_stop_is_never_begun_again() {
    let deaths: [&[Op]; 5] = [
        &[Op::Die],
        &POWER_CUT,
        &[Op::Crash, Op::Die, START],
        &[Op::Shutdown, Op::Late, DONE, DONE, START],
        // The stop failed because the files could not be saved.
        &[Op::Stop, Op::Late, DONE, FAILS],
    ];
    for death in deaths {
        let mut world = World::awake().after(&[PROMPT, Op::Interrupt]).after(death);
        world.come_to_rest();
        assert_eq!(world.outcomes(), [Some(TurnOutcome::Interrupted)], "{death:?}");
    }
}

#[test]
fn a_message_that_waited_through_a_power_cut_runs_after_it() {
    let world = World::new(InterruptedTurnPolicy::Continue).after(&[PROMPT]).after(&POWER_CUT);
    assert_eq!((world.state().status, phase(&world)), (SessionStatus::Starting, Some(&TurnPhase::Queued)));
    let world = world.after(&[DONE, Op::Rest, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Active, vec![Some(TurnOutcome::Done)]));
}

#[test]
fn a_stopped_or_ended_session_is_not_woken_by_a_death() {
    for (last, status) in [(Fact::Stopped, SessionStatus::Stopped), (Fact::Ended, SessionStatus::Ended)] {
        let mut state = LogState::new(0);
        let incarnation = Incarnation(Uuid::from_u128(1));
        for (seq, fact) in (1..)
            .zip([Fact::Awake { incarnation, resumed_after: None, outdated: false, more_inputs: 0 }, last])
        {
            state.apply(seq, &fact);
        }
        let asleep = vec![Fact::Asleep { incarnation: Some(incarnation) }];
        assert_eq!(state.died(&Death::OutOfMemory), asleep);
        assert_eq!(state.recover(SandboxLiveness::Dead, InterruptedTurnPolicy::Continue), asleep);
        state.apply(3, &asleep[0]);
        assert_eq!((state.status, state.next_step()), (status, LogStep::Wait));
    }
}

// Options.

#[test]
fn options_that_change_while_an_agent_starts_are_in_force_from_the_next_turn() {
    let changed = World::awake().after(&[Op::Stop, DONE, DONE, Op::Resume, Op::Configure, DONE]);
    assert!(changed.state().agent_options_outdated && changed.state().status == SessionStatus::Active);
    // Also for a server that starts later.
    let changed = changed.after(&[Op::Crash, START]);
    let before = changed.log.len();
    let changed = changed.after(&[PROMPT, DONE, DONE]);
    assert_eq!(changed.kinds_since(before), ["queued", "asleep", "awake", "started"]);
    assert!(!changed.state().agent_options_outdated);
}

// Stopping on purpose.

#[test]
fn a_shutdown_cuts_what_still_runs_and_it_goes_on_at_the_next_start() {
    let mut world = World::awake().after(&[PROMPT]);
    for _ in 0..5 {
        let before = world.log.len();
        world = world.after(&[Op::Shutdown, Op::Late, DONE, DONE]);
        assert_eq!(world.kinds_since(before), ["saved", "cut", "asleep", "paused"]);
        assert_eq!(world.replayed().status, SessionStatus::Paused);
        world = world.after(&[START, DONE]);
        assert!(matches!(phase(&world), Some(TurnPhase::Running { .. })), "a shutdown is not a crash");
    }
    let world = world.after(&[Op::Rest, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Active, vec![Some(TurnOutcome::Done)]));
}

#[test]
fn a_shutdown_waits_for_a_turn_that_comes_to_its_end() {
    let world = World::awake().after(&[PROMPT, Op::Shutdown, Op::Rest, DONE, DONE, DONE]);
    assert_eq!(world.outcomes(), [Some(TurnOutcome::Done)]);
    assert_eq!((world.replayed().status, world.replayed().awake), (SessionStatus::Paused, None));
}

#[test]
fn a_message_that_waited_through_a_shutdown_runs_after_it() {
    let world = World::awake().after(&[PROMPT, PROMPT, Op::Shutdown, Op::Rest, DONE, DONE, DONE]);
    assert_eq!(world.outcomes(), [Some(TurnOutcome::Done), None]);
    let world = world.after(&[START, DONE, Op::Rest, DONE]);
    assert_eq!(world.outcomes(), [Some(TurnOutcome::Done), Some(TurnOutcome::Done)]);
}

#[test]
fn who_was_paused_stays_paused_over_a_shutdown() {
    let world = World::awake().after(&[PROMPT, PROMPT, Op::Pause, Op::Rest, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Paused, vec![Some(TurnOutcome::Done), None]));
    let world = world.after(&[Op::Shutdown, DONE, DONE, START]);
    assert_eq!(stands(&world), (SessionStatus::Paused, vec![Some(TurnOutcome::Done), None]));
}

#[test]
fn a_stop_interrupts_the_turn_and_keeps_those_that_wait() {
    let world = World::awake().after(&[PROMPT, PROMPT, Op::Stop, Op::Rest, DONE, DONE, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Stopped, vec![Some(TurnOutcome::Interrupted), None]));
    let world = world.after(&[Op::Resume, DONE, Op::Rest, DONE]);
    assert_eq!(
        stands(&world),
        (SessionStatus::Active, vec![Some(TurnOutcome::Interrupted), Some(TurnOutcome::Done)])
    );
}

#[test]
fn a_pause_lets_the_turn_come_to_its_end_and_starts_no_other() {
    let world = World::awake().after(&[PROMPT, PROMPT, Op::Pause]);
    assert!(matches!(phase(&world), Some(TurnPhase::Running { .. })));
    let world = world.after(&[Op::Rest, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Paused, vec![Some(TurnOutcome::Done), None]));
}

#[test]
fn the_end_of_a_session_is_the_end_of_its_turns() {
    let world = World::awake().after(&[PROMPT, PROMPT, Op::End, Op::Rest, DONE, DONE, DONE]);
    let outcomes = vec![Some(TurnOutcome::Interrupted), Some(TurnOutcome::Cancelled)];
    assert_eq!(stands(&world), (SessionStatus::Ended, outcomes));
    let before = world.log.len();
    let world = world.after(&[Op::Interrupt, Op::End, Op::Crash, START, Op::Shutdown, START]);
    assert_eq!((world.kinds_since(before), world.state().status), (vec![], SessionStatus::Ended));
}

#[test]
fn a_turn_that_rested_keeps_its_outcome_when_the_session_ends() {
    let world = World::awake().after(&[PROMPT, Op::Rest]);
    let facts = world.state().decide(&StateCommand::End).expect("granted");
    assert!(matches!(facts[0], Fact::Finished { outcome: TurnOutcome::Done, .. }), "{facts:?}");
}

#[test]
fn a_sandbox_that_nobody_wants_any_more_is_ended() {
    for (status, next) in [
        (SessionStatus::Stopped, LogStep::Sleep),
        (SessionStatus::Ended, LogStep::Sleep),
        (SessionStatus::Error, LogStep::Sleep),
        (SessionStatus::Paused, LogStep::Wait),
        (SessionStatus::Active, LogStep::Wait),
    ] {
        let mut state = in_status(status);
        state.awake = in_status(SessionStatus::Active).awake;
        assert_eq!(state.next_step(), next, "{status}");
    }
}

#[test]
fn an_answer_stands_even_if_its_files_could_not_be_saved() {
    let mut world = World::awake().after(&[PROMPT, Op::Rest]);
    let before = world.log.len();
    world.act(FAILS);
    assert_eq!(world.kinds_since(before), ["save_failed", "finished"]);
    assert_eq!(stands(&world), (SessionStatus::Active, vec![Some(TurnOutcome::Done)]));
    assert_eq!(world.state().checkpoint, None);
}

// Going back.

#[test]
fn a_rewind_is_refused_while_a_turn_is_not_over() {
    let done = World::awake().after(&[PROMPT, Op::Rest, DONE]);
    let unfinished: [&[Op]; 4] =
        [&[PROMPT], &[PROMPT, Op::Rest], &[PROMPT, Op::Die], &[PROMPT, PROMPT, Op::Interrupt]];
    let mut world = done;
    for ops in unfinished {
        world = world.after(ops);
        let wish = world.rewind_to(0).expect("a checkpoint");
        assert_eq!(world.state().decide(&wish), Err(CommandRefusal::Busy), "{ops:?}");
        let before = world.log.len();
        world.act(Op::Rewind(0));
        assert_eq!(world.kinds_since(before), [""; 0], "{ops:?}");
        world.come_to_rest();
    }
}

#[test]
fn a_rewind_ends_the_sandbox_keeps_what_is_there_and_leaves_the_session_at_rest() {
    let world = World::awake().after(&[PROMPT, Op::Rest, DONE, PROMPT, Op::Rest, DONE]);
    let before = world.log.len();
    // Sleep, capture, write the other tree.
    let world = world.after(&[Op::Rewind(1), DONE, DONE, DONE]);
    assert_eq!(world.kinds_since(before), ["asleep", "saved", "rewound"]);
    let state = world.state();
    assert_eq!(
        (state.status, state.next_step(), state.awake.as_ref()),
        (SessionStatus::Paused, LogStep::Wait, None)
    );
    assert_eq!(
        (state.checkpoint, state.last_checkpoint, state.turns_delivered, state.turns_total),
        (Some(1), 3, 1, 1)
    );
    let world = world.after(&[PROMPT, DONE, Op::Rest, DONE]);
    assert_eq!(
        (world.state().checkpoint, world.state().turns_delivered),
        (Some(4), 2),
        "it goes on with higher numbers"
    );
    let world = world.after(&[Op::Rewind(1), DONE, DONE, DONE]);
    assert_eq!(
        (world.state().checkpoint, world.state().turns_delivered),
        (Some(3), 2),
        "redo is a rewind forward"
    );
}

#[test]
fn a_session_that_sleeps_is_rewound_without_waking() {
    for (rest, status) in [(Op::Stop, SessionStatus::Stopped), (Op::Shutdown, SessionStatus::Paused)] {
        let world = World::awake().after(&[PROMPT, Op::Rest, DONE, rest, DONE, DONE, START]);
        let before = world.log.len();
        let world = world.after(&[Op::Rewind(9), DONE, DONE, DONE]);
        assert!(!world.kinds_since(before).contains(&"awake"), "{rest:?}");
        assert_eq!(world.kinds_since(before).last(), Some(&"rewound"), "{rest:?}");
        assert_eq!(world.state().status, status);
    }
}

#[test]
fn a_message_that_comes_during_a_rewind_wins() {
    let world = World::awake().after(&[PROMPT, Op::Rest, DONE, Op::Rewind(0), PROMPT]);
    let mut world = world.after(&[DONE]);
    world.come_to_rest();
    assert_eq!(world.outcomes(), [Some(TurnOutcome::Done), Some(TurnOutcome::Done)]);
    assert!(!world.log.iter().any(|event| event.fact.kind() == "rewound"));
}

#[test]
fn a_turn_that_takes_long_is_captured_on_its_way_and_goes_on_from_there() {
    let world = World::awake().after(&[PROMPT, Op::Rest, DONE, PROMPT, Op::Midway, DONE]);
    let state = world.state();
    assert_eq!(
        (state.checkpoint, state.last_full_checkpoint),
        (Some(2), Some(1)),
        "a fork begins where a turn ended"
    );
    assert!(matches!(phase(&world), Some(TurnPhase::Running { .. })));
    let world = world.after(&POWER_CUT);
    assert_eq!((world.state().checkpoint, phase(&world)), (Some(2), Some(&TurnPhase::Cut)));
    let world = world.after(&[DONE, Op::Rest, DONE]);
    assert_eq!(
        stands(&world),
        (SessionStatus::Active, vec![Some(TurnOutcome::Done), Some(TurnOutcome::Done)])
    );
}

#[test]
fn at_a_checkpoint_in_a_turn_the_agent_remembers_the_turn_and_it_does_not_go_on() {
    let world = World::awake().after(&[PROMPT, PROMPT, Op::Midway, DONE]);
    let Some(StateCommand::Rewind { then, .. }) = world.rewind_to(0) else { panic!("a checkpoint") };
    let [first, second] = [1, 2].map(|n| world.state().turns[n - 1].id);
    assert_eq!((then.under_way, then.waiting.as_slice()), (Some(first), [second].as_slice()));
    assert_eq!((then.turns_delivered, then.turns), (1, 1));
    let mut world = world;
    world.come_to_rest();
    let world = world.after(&[Op::Rewind(2), DONE, DONE, DONE]);
    let state = world.state();
    assert_eq!((state.checkpoint, state.last_full_checkpoint, state.turns.len()), (Some(1), Some(1), 0));
    assert_eq!((state.turns_delivered, state.turns_total), (1, 1));
}

#[test]
fn a_turn_that_the_agent_began_by_itself_is_not_missed_in_its_memory_after_a_rewind() {
    let mut world = World::awake().after(&[Op::StartItself, Op::Midway, DONE]);
    let Some(StateCommand::Rewind { then, .. }) = world.rewind_to(0) else { panic!("a checkpoint") };
    assert_eq!((then.turns, then.turns_delivered, then.under_way.is_some()), (1, 0, true));
    world.come_to_rest();
    let world = world.after(&[Op::Rewind(1), DONE, DONE, DONE]);
    assert_eq!((world.state().turns_total, world.state().turns_delivered), (1, 0));
}

// Status codes.

fn in_status(status: SessionStatus) -> LogState {
    let mut state = LogState::new(0);
    let fact = match status {
        SessionStatus::Starting => Fact::Resuming,
        SessionStatus::Active => Fact::Awake {
            incarnation: Incarnation(Uuid::from_u128(1)),
            resumed_after: None,
            outdated: false,
            more_inputs: 0,
        },
        SessionStatus::Paused => Fact::Paused,
        SessionStatus::Stopped => Fact::Stopped,
        SessionStatus::Error => Fact::Failed { problem: Death::Machine.problem() },
        SessionStatus::Ended => Fact::Ended,
    };
    state.apply(1, &fact);
    assert_eq!(state.status, status);
    state
}

#[test]
fn each_wish_is_granted_or_refused_by_status() {
    let turn = TurnId(Uuid::from_u128(9));
    let prompt = |wake| StateCommand::Prompt {
        turn,
        content: serde_json::json!("hi"),
        ask: MessageOptions::default(),
        wake,
        on_busy: BusyPolicy::Queue,
        lock: None,
    };
    let kinds = |state: &LogState, wish: &StateCommand| {
        state.decide(wish).map(|facts| facts.iter().map(Fact::kind).collect::<Vec<_>>())
    };
    for status in SessionStatus::ALL {
        let state = in_status(status);
        let (awake, resting) = match status {
            SessionStatus::Starting | SessionStatus::Active => (true, false),
            SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Error => (false, true),
            SessionStatus::Ended => (false, false),
        };
        let waking = match (awake, resting) {
            (true, _) => Ok(vec!["queued"]),
            (false, true) => Ok(vec!["queued", "resuming"]),
            (false, false) => Err(CommandRefusal::WrongStatus(SessionStatus::Ended)),
        };
        assert_eq!(kinds(&state, &prompt(WakePolicy::Allowed)), waking, "{status}");
        let quiet = if awake { Ok(vec!["queued"]) } else { Err(CommandRefusal::WrongStatus(status)) };
        assert_eq!(kinds(&state, &prompt(WakePolicy::Forbidden)), quiet, "{status}");
        let resumed = match (awake, resting) {
            (true, _) => Ok(vec![]),
            (false, true) => Ok(vec!["resuming"]),
            (false, false) => Err(CommandRefusal::SessionEnded),
        };
        assert_eq!(kinds(&state, &StateCommand::Resume), resumed, "{status}");
        let paused = Err(CommandRefusal::NotPossible { command: "pause", status });
        let paused = if status == SessionStatus::Active { Ok(vec!["paused"]) } else { paused };
        assert_eq!(kinds(&state, &StateCommand::Pause), paused, "{status}");
        let stopped = Err(CommandRefusal::NotPossible { command: "stop", status });
        assert_eq!(
            kinds(&state, &StateCommand::Stop),
            if awake { Ok(vec!["stopped"]) } else { stopped },
            "{status}"
        );
        let released = if awake { vec!["paused"] } else { vec![] };
        for by_force in [true, false] {
            assert_eq!(kinds(&state, &StateCommand::Release { by_force }), Ok(released.clone()), "{status}");
        }
        let rewind = StateCommand::Rewind {
            to: 1,
            seq: 1,
            then: ash_model::ConversationPoint::default(),
            files: false,
        };
        let rewound = if status == SessionStatus::Ended {
            Err(CommandRefusal::WrongStatus(status))
        } else {
            Ok(vec!["rewound"])
        };
        assert_eq!(kinds(&state, &rewind), rewound, "{status}");
        let ended = if status == SessionStatus::Ended { vec![] } else { vec!["ended"] };
        assert_eq!(kinds(&state, &StateCommand::End), Ok(ended), "{status}");
        assert_eq!(kinds(&state, &StateCommand::Interrupt), Ok(vec![]), "{status}: nothing runs");
    }
}

#[test]
fn refusals_say_what_the_api_says() {
    assert_eq!(CommandRefusal::WrongStatus(SessionStatus::Ended).to_string(), "Session is ended");
    assert_eq!(CommandRefusal::WrongStatus(SessionStatus::Paused).to_string(), "Session is paused");
    let cannot = CommandRefusal::NotPossible { command: "pause", status: SessionStatus::Stopped };
    assert_eq!(cannot.to_string(), "Cannot pause session with status \"stopped\"");
}

#[test]
fn a_paused_session_that_is_still_awake_is_back_at_once() {
    let world = World::awake().after(&[Op::Pause, DONE]);
    assert_eq!(world.state().status, SessionStatus::Paused);
    let before = world.log.len();
    let world = world.after(&[Op::Resume]);
    assert_eq!((world.kinds_since(before), world.state().status), (vec!["resumed"], SessionStatus::Active));
}

#[test]
fn messages_that_come_while_a_turn_runs_wait_in_order() {
    let mut world = World::awake().after(&[PROMPT, PROMPT, PROMPT]);
    for done in 1..=3 {
        world = world.after(&[Op::Rest, DONE]);
        let over = world.outcomes().into_iter().take_while(Option::is_some).count();
        assert_eq!(over, done);
    }
}

#[test]
fn what_the_agent_was_told_in_the_middle_of_a_turn_is_not_taken_back() {
    let taken_back = |world: &World| {
        let turn = world.state().waiting().next().expect("it waits");
        world.state().decide(&StateCommand::Withdraw { turn })
    };
    let world = World::awake().after(&[PROMPT, Op::Push(BusyPolicy::Steer)]);
    assert_eq!(taken_back(&world), Err(CommandRefusal::NotWaiting));
    // Its turn is over before the message was acknowledged, but the agent may act on it anyway.
    let paused = World::awake().after(&[PROMPT, Op::Push(BusyPolicy::Steer), Op::Pause, Op::Rest, DONE]);
    assert_eq!(taken_back(&paused), Err(CommandRefusal::NotWaiting));
    // The agent acknowledged it and died, and will remember it.
    let heard = world.after(&[Op::TakeUp, Op::Die, DONE]);
    assert_eq!(taken_back(&heard), Err(CommandRefusal::NotWaiting));
    // An agent that did not acknowledge it is gone.
    let unheard = World::awake().after(&[PROMPT, Op::Push(BusyPolicy::Steer), Op::Die, DONE]);
    assert!(taken_back(&unheard).is_ok());
}

#[test]
fn a_prompt_that_was_written_down_but_not_sent_is_sent_by_the_next_server() {
    let world = World::awake().after(&[Op::CrashBeforeTelling, PROMPT, START, Op::Rest, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Active, vec![Some(TurnOutcome::Done)]));
    let continued = world.log.iter().any(|event| event.fact.kind() == "continued");
    assert!(!continued, "its first attempt is the only one");
}

#[test]
fn what_the_agent_begins_by_itself_comes_before_what_waits_and_dies_with_it() {
    let (own, asked) = (TurnId(Uuid::from_u128(5)), TurnId(Uuid::from_u128(6)));
    let incarnation = Incarnation(Uuid::from_u128(1));
    let queued = Fact::Queued { turn: asked, content: "hi".into(), options: Default::default(), lock: None };
    let mut state = LogState::new(0);
    let facts = [
        Fact::Awake { incarnation, resumed_after: None, outdated: false, more_inputs: 0 },
        queued,
        Fact::SelfStarted { turn: own },
    ];
    for (seq, fact) in (1..).zip(&facts) {
        state.apply(seq, fact);
    }
    assert_eq!(state.next_step(), LogStep::Wait, "never two at once");
    let died = state.died(&Death::Agent { how: "signal 9".into() });
    let [Fact::Finished { turn, outcome: TurnOutcome::Interrupted, .. }, ..] = &died[..] else {
        panic!("{died:?}")
    };
    assert_eq!(*turn, own);
    assert_eq!(state.turns_delivered, 0);
    died.iter().zip(4..).for_each(|(fact, seq)| state.apply(seq, fact));
    assert_eq!((state.turns_delivered, state.turns.len()), (0, 1), "the agent was told nothing");
}

#[test]
fn what_was_heard_in_a_turn_is_still_there_for_who_goes_back_to_its_end() {
    let steered = [PROMPT, Op::Push(BusyPolicy::Steer), Op::TakeUp, Op::Rest, DONE];
    let mut world = World::awake().after(&steered).after(&[Op::Rewind(0)]);
    world.come_to_rest();
    assert_eq!(world.state().summary().turns, 2);
}
