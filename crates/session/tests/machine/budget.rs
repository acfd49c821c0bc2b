//! A used-up budget: what runs is stopped, what waits keeps waiting, and everything continues when the budget is raised.

use super::{DONE, POWER_CUT, PROMPT, START, World, phase, stands};
use crate::world::Op;
use ash_model::{
    BudgetLimits, BudgetScope, Fact, LimitKind, LimitReached, ModelStopReason, SessionStatus, TurnOutcome,
};
use ash_session::machine::{CommandRefusal, LogStep, StateCommand, TurnPhase, WakePolicy};

const CALLS: Op = Op::Use(ModelStopReason::ToolCalls);
const SAYS: Op = Op::Use(ModelStopReason::Complete);

/// One answer uses ten tokens.
fn with(tokens: u64) -> World {
    World::awake().with_tokens(Some(tokens))
}

fn reached(world: &World) -> Vec<LimitReached> {
    let facts = world.log.iter().filter_map(|event| match &event.fact {
        Fact::BudgetReached(reached) => Some(*reached),
        _ => None,
    });
    facts.collect()
}

/// The code of the problem that the last turn ended with.
fn problem(world: &World) -> Option<String> {
    let ends = world.log.iter().rev().find_map(|event| match &event.fact {
        Fact::Finished { problem, .. } => Some(problem.as_ref().map(|problem| problem.code.clone())),
        _ => None,
    });
    ends.flatten()
}

#[test]
fn a_turn_that_goes_on_is_stopped_and_the_session_pauses_with_what_waits() {
    let mut world = with(20).after(&[PROMPT, PROMPT, CALLS]);
    assert!(reached(&world).is_empty());
    let before = world.log.len();
    world.act(CALLS);
    assert_eq!(world.kinds_since(before), ["used", "used", "budget_reached", "interrupting"]);
    let turn = world.state().turns[0].id;
    let expected = LimitReached {
        turn: Some(turn),
        scope: BudgetScope::Session,
        kind: LimitKind::MaxTokens,
        limit: 20,
        used: 20,
    };
    assert_eq!(reached(&world), [expected]);

    let before = world.log.len();
    let world = world.after(&[Op::Rest, DONE, DONE]);
    assert_eq!(world.kinds_since(before), ["rested", "saved", "finished", "paused", "asleep"]);
    assert_eq!(stands(&world), (SessionStatus::Paused, vec![Some(TurnOutcome::Interrupted), None]));
    assert_eq!(problem(&world).as_deref(), Some("budget_reached"));
    assert_eq!(phase(&world), Some(&TurnPhase::Queued));

    let prompt = StateCommand::Prompt {
        turn: turn.to_owned(),
        content: "more".into(),
        ask: Default::default(),
        wake: WakePolicy::Allowed,
        on_busy: Default::default(),
        lock: None,
    };
    for wish in [StateCommand::Resume, prompt] {
        let refused = world.state().decide(&wish);
        assert!(
            matches!(refused, Err(CommandRefusal::Budget(LimitReached { limit: 20, used: 20, .. }))),
            "{refused:?}"
        );
    }
    // What waits continues by itself.
    let world = world.after(&[Op::Raise, DONE, SAYS, Op::Rest, DONE]);
    assert_eq!(
        stands(&world),
        (SessionStatus::Active, vec![Some(TurnOutcome::Interrupted), Some(TurnOutcome::Done)])
    );
}

#[test]
fn an_answer_that_was_the_last_one_anyway_is_not_cut_off() {
    let world = with(20).after(&[PROMPT, CALLS, SAYS]);
    assert!(reached(&world).is_empty(), "nothing is to come");
    let world = world.after(&[Op::Rest, DONE, DONE]);
    assert_eq!(stands(&world), (SessionStatus::Paused, vec![Some(TurnOutcome::Done)]));
    assert_eq!((problem(&world), reached(&world).len()), (None, 1));
}

#[test]
fn whoever_dies_when_it_is_used_up_leaves_it_used_up() {
    let deaths: [&[Op]; 5] = [
        &[Op::Crash, START],
        &[Op::Crash, Op::Die, START],
        &POWER_CUT,
        &[Op::Die],
        &[Op::Shutdown, Op::Late, DONE, DONE, START],
    ];
    for death in deaths {
        // It says so while no server listens, or the server dies before it tells the agent.
        for way in [[Op::Crash, CALLS], [Op::CrashBeforeTelling, CALLS]] {
            let mut world = with(10).after(&[PROMPT, PROMPT]).after(&way).after(death);
            world.act(START);
            world.act(Op::Rest);
            for _ in 0..9 {
                world.act(DONE);
            }
            assert_eq!(world.state().meter.session.usage.tokens(), 10, "{way:?} {death:?}");
            assert!(
                matches!(world.state().status, SessionStatus::Paused | SessionStatus::Error),
                "{way:?} {death:?}"
            );
            assert_eq!(world.outcomes()[1], None, "it waits: {way:?} {death:?}");
            world.come_to_rest();
            assert_eq!(world.outcomes()[1], Some(TurnOutcome::Done), "{way:?} {death:?}");
        }
    }
}

#[test]
fn a_limit_of_turns_ends_turns_and_nothing_else() {
    let mut world = World::awake();
    world.budget.turn = BudgetLimits { max_turns: Some(2), ..BudgetLimits::default() };
    world.set_budget();
    let world = world.after(&[PROMPT, CALLS, SAYS, Op::Rest, DONE]);
    assert_eq!(
        (stands(&world), problem(&world)),
        ((SessionStatus::Active, vec![Some(TurnOutcome::Done)]), None)
    );
    let world = world.after(&[PROMPT, CALLS, CALLS, Op::Rest, DONE]);
    assert_eq!(
        stands(&world),
        (SessionStatus::Active, vec![Some(TurnOutcome::Done), Some(TurnOutcome::Interrupted)])
    );
    assert_eq!(problem(&world).as_deref(), Some("budget_reached"));
    assert!(matches!(
        reached(&world)[..],
        [LimitReached { scope: BudgetScope::Turn, limit: 2, used: 2, .. }]
    ));
    // A turn that was cut counts what it used before.
    let world = world.after(&[PROMPT, CALLS, Op::Die, DONE, Op::Resume, DONE, CALLS, Op::Rest, DONE]);
    assert_eq!(world.outcomes()[2], Some(TurnOutcome::Interrupted));
    let turn = world.log.iter().rev().find_map(|event| match &event.fact {
        Fact::Used(used) => Some(used.attempt),
        _ => None,
    });
    assert_eq!(turn, Some(2));
}

#[test]
fn a_fork_does_not_pay_for_its_parent_and_a_rewind_gives_nothing_back() {
    let world = with(1000).after(&[PROMPT, SAYS, Op::Rest, DONE, PROMPT, SAYS, Op::Rest, DONE]);
    let world = world.after(&[Op::Rewind(1), DONE, DONE, DONE]);
    assert_eq!(world.log.last().map(|event| event.fact.kind()), Some("rewound"));
    assert_eq!(world.state().meter.session.usage.tokens(), 20);
    assert_eq!(world.state().next_step(), LogStep::Wait);
}

#[test]
fn a_turn_that_took_too_long_is_asked_to_stop_once_and_says_why_it_ended() {
    let mut world = with(1000).after(&[PROMPT, PROMPT, CALLS]);
    let turn = world.state().turns[0].id;
    let facts = world.state().stop_turn_for_limit((LimitKind::TurnSeconds, 5, 6));
    let reached = LimitReached {
        turn: Some(turn),
        scope: BudgetScope::Turn,
        kind: LimitKind::TurnSeconds,
        limit: 5,
        used: 6,
    };
    assert!(matches!(facts.as_slice(),
        [Fact::BudgetReached(said), Fact::Interrupting { turn: stopped, .. }] if *said == reached && *stopped == turn));
    world.note(facts);
    assert!(world.state().stop_turn_for_limit((LimitKind::TurnSeconds, 5, 7)).is_empty());
    let (how, text, usage) = (TurnOutcome::Interrupted, String::new(), Default::default());
    world.note(vec![Fact::Rested { turn, outcome: how, text, usage, problem: None }]);
    let Some(TurnPhase::Saving { problem: Some(problem), .. }) = phase(&world) else {
        panic!("{:?}", phase(&world))
    };
    assert_eq!(problem.code, "turn_timeout");
    assert_eq!(world.state().status, SessionStatus::Active, "what waits goes on");
}

#[test]
fn a_turn_that_goes_on_while_its_session_is_paused_has_a_budget_too_and_the_pause_stays() {
    for ops in [[Op::Pause, CALLS, CALLS], [CALLS, CALLS, Op::Pause]] {
        let world = with(20).after(&[PROMPT, PROMPT]).after(&ops);
        assert_eq!(reached(&world).len(), 1, "{ops:?}");
        let world = world.after(&[Op::Rest, DONE, DONE]);
        assert_eq!(
            stands(&world),
            (SessionStatus::Paused, vec![Some(TurnOutcome::Interrupted), None]),
            "{ops:?}"
        );
        assert_eq!(problem(&world).as_deref(), Some("budget_reached"));
        // A client asked for the pause: raising the budget does not end it.
        let world = world.after(&[Op::Raise]);
        assert_eq!(
            (world.state().status, world.state().next_step()),
            (SessionStatus::Paused, LogStep::Wait),
            "{ops:?}"
        );
        let world = world.after(&[Op::Resume, DONE, SAYS, Op::Rest, DONE]);
        assert_eq!(world.outcomes()[1], Some(TurnOutcome::Done), "{ops:?}");
    }
}

#[test]
fn an_agent_that_is_stopped_for_its_budget_has_its_time_to_stop_also_when_a_client_pauses_the_session() {
    let world = with(20).after(&[PROMPT, CALLS, CALLS, Op::Pause]);
    assert!(matches!(phase(&world), Some(TurnPhase::Running { .. })));
    let before = world.log.len();
    let world = world.after(&[Op::Rest, DONE]);
    assert_eq!(world.kinds_since(before), ["rested", "saved", "finished"], "its answer is in the log");
}

#[test]
fn a_limit_in_dollars_stops_a_turn_whose_cost_is_unknown() {
    let limits = BudgetLimits { max_budget_usd: Some(100.0), ..BudgetLimits::default() };
    for of_turn in [true, false] {
        let mut world = World::awake().after(&[PROMPT]);
        let half = if of_turn { &mut world.budget.turn } else { &mut world.budget.session };
        *half = limits;
        world.set_budget();
        // Model `m` of these tests has no price.
        world.act(CALLS);
        let turn = Some(world.state().turns[0].id);
        let (scope, kind) = (BudgetScope::Turn, LimitKind::Price);
        assert_eq!(reached(&world), [LimitReached { turn, scope, kind, limit: 0, used: 0 }]);
    }
    assert_eq!(
        reached(&World::awake().after(&[PROMPT, CALLS])),
        [],
        "without such a limit no price is needed"
    );
}

#[test]
fn a_turn_that_was_cut_beyond_its_own_limit_does_not_continue_and_the_next_one_does() {
    let mut world = World::awake();
    world.budget.turn.max_tokens = Some(10);
    world.set_budget();
    let world = world.after(&[PROMPT, PROMPT, Op::Crash, CALLS, Op::Die, START, DONE]);
    let turn = world.state().turns[0].id;
    assert!(matches!(phase(&world), Some(TurnPhase::Running { .. })));
    assert_eq!(stands(&world), (SessionStatus::Active, vec![Some(TurnOutcome::Interrupted), None]));
    let over = LimitReached {
        turn: None,
        scope: BudgetScope::Turn,
        kind: LimitKind::MaxTokens,
        limit: 10,
        used: 10,
    };
    let said = reached(&world);
    assert_eq!(said.iter().map(|said| LimitReached { turn: None, ..*said }).collect::<Vec<_>>(), [over]);
    assert!(said[0].turn.is_some_and(|over| over != turn));
    assert_eq!(problem(&world).as_deref(), Some("budget_reached"));
}

#[test]
fn a_shim_is_told_what_is_left_of_the_session_and_of_the_turn_that_runs_with_the_prices() {
    use ash_model::{BudgetLimits, ModelPrices};
    use ash_session::machine::{LogState, RemainingBudget, SessionBudget};
    let limits = |usd: Option<f64>, tokens| BudgetLimits {
        max_budget_usd: usd,
        max_tokens: tokens,
        ..BudgetLimits::default()
    };
    let left = |state: &LogState, session, turn| {
        let mut state = state.clone();
        state.budget = SessionBudget { session, turn };
        state.remaining_budget()
    };
    let resting = World::awake();
    let (none, session) = (limits(None, None), limits(Some(2.0), Some(1000)));
    let turn = limits(Some(0.5), Some(100));
    assert_eq!(left(resting.state(), none, none), RemainingBudget { tokens: None, nano_usd: None });
    let whole = RemainingBudget { tokens: Some(1000), nano_usd: Some(2_000_000_000) };
    assert_eq!(left(resting.state(), session, turn), whole, "no turn runs");
    let running = World::awake().after(&[PROMPT, PROMPT]);
    let rest = RemainingBudget { tokens: Some(100), nano_usd: Some(500_000_000) };
    assert_eq!(left(running.state(), session, turn), rest, "the turn's limits are the smaller ones");
    assert_eq!(
        left(running.state(), limits(Some(0.25), Some(50)), turn),
        RemainingBudget { tokens: Some(50), nano_usd: Some(250_000_000) }
    );
    // Ten tokens of a model without a price: of the dollars nothing certain is left.
    let spent = running.after(&[CALLS]);
    let unknown = RemainingBudget { tokens: Some(90), nano_usd: Some(0) };
    assert_eq!(left(spent.state(), session, turn), unknown);

    let prices = ModelPrices::with_overrides(
        serde_json::from_str(r#"{"m": {"input": 3, "output": 15}}"#).expect("JSON"),
    )
    .expect("prices");
    let allowance = rest.allowance(&prices, 7);
    assert_eq!((allowance.position, allowance.tokens, allowance.nano_usd), (7, Some(100), Some(500_000_000)));
    assert_eq!(allowance.prices, Some(prices.clone()), "it counts dollars by them without a server");
    assert_eq!(RemainingBudget { tokens: Some(1), nano_usd: None }.allowance(&prices, 7).prices, None);
}

#[test]
fn a_cut_turn_that_ends_beyond_its_limit_leaves_no_agent_waiting() {
    // The agent has resumed the turn by itself, and asks before the session continues it.
    let mut world = World::awake();
    let begin = [PROMPT, CALLS, Op::Die, DONE, Op::Resume, Op::Write, Op::LoseTree, DONE, Op::AskLeave];
    world = world.after(&begin);
    assert_eq!((phase(&world), world.state().pending.len()), (Some(&TurnPhase::Cut), 1));
    world.budget.turn.max_tokens = Some(10);
    world.set_budget();
    let before = world.log.len();
    // The old files are safe now, and the writer gets a tree; then the session looks at the turn.
    let world = world.after(&[DONE, DONE]);
    let kinds = world.kinds_since(before);
    assert!(kinds.ends_with(&["budget_reached", "answered", "finished"]), "{kinds:?}");
    assert!(world.log[before..].iter().any(|event| matches!(
        &event.fact,
        Fact::Answered { verdict: Some(ash_model::PermissionVerdict::Deny { .. }), input: Some(_), .. }
    )));
}
