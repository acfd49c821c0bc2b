//! What the next server makes of a session, whatever died: exactly these facts, and no others.

use crate::given::{
    FIRST, INCARNATION, SECOND, THIRD, asleep, awake, checkpoint, failed, fold, queued, rested, started,
};
use ash_model::{
    BudgetLimits, BudgetScope, Death, Fact, Incarnation, InterruptedTurnPolicy, LimitKind, LimitReached,
    Problem, SessionStatus, TokenUsage, TurnId, TurnOutcome, UsageIncrement,
};
use ash_session::machine::{
    CommandRefusal, LogState, SandboxLiveness, SessionBudget, StateCommand, Turn, TurnPhase, WakePolicy,
};
use uuid::Uuid;

fn recovered(facts: &[Fact]) -> Vec<Fact> {
    fold(facts).recover(SandboxLiveness::Dead, InterruptedTurnPolicy::Continue)
}

fn cut(turn: TurnId) -> Fact {
    Fact::Cut { turn, death: Death::Machine }
}

fn interrupted(turn: TurnId) -> Fact {
    Fact::Finished { turn, outcome: TurnOutcome::Interrupted, checkpoint: None, problem: None }
}

fn running() -> Vec<Fact> {
    vec![awake(), queued(FIRST), started(FIRST, 2)]
}

fn with(mut facts: Vec<Fact>, more: &[Fact]) -> Vec<Fact> {
    facts.extend_from_slice(more);
    facts
}

fn continued(input: u64) -> Fact {
    Fact::Continued { turn: FIRST, attempt: 2, discard_after: 1, input, calls: Vec::new() }
}

fn given_up() -> Fact {
    let problem = Problem::new(
        "crashed_twice",
        "The turn's process died twice; the turn was given up. Send the message again.",
    );
    Fact::Finished { turn: FIRST, outcome: TurnOutcome::Failed, checkpoint: None, problem: Some(problem) }
}

#[test]
fn a_sandbox_that_lives_on_is_taken_over_as_it_is() {
    let state = fold(&running());
    let found = |found| state.recover(found, InterruptedTurnPolicy::Continue);
    assert_eq!(found(SandboxLiveness::Alive(INCARNATION)), []);
    let cut = vec![cut(FIRST), asleep(), Fact::Resuming];
    assert_eq!(found(SandboxLiveness::Alive(Incarnation(Uuid::from_u128(5)))), cut, "another one");
    assert_eq!(found(SandboxLiveness::Unresponsive), cut);
    assert_eq!(found(SandboxLiveness::Dead), cut);
}

#[test]
fn what_ran_or_waited_continues_and_what_rested_rests() {
    assert_eq!(recovered(&[awake()]), [asleep(), Fact::Paused]);
    assert_eq!(recovered(&[]), [Fact::Paused], "it never started");
    assert_eq!(recovered(&[awake(), queued(FIRST)]), [asleep(), Fact::Resuming]);
    assert_eq!(recovered(&[queued(FIRST)]), [Fact::Resuming]);
    assert_eq!(recovered(&with(running(), &[rested(FIRST)])), [asleep(), Fact::Paused], "it is saved first");
    assert_eq!(recovered(&with(running(), &[cut(FIRST), asleep(), failed()])), [Fact::Resuming]);
    assert_eq!(recovered(&[awake(), asleep(), failed()]), []);
    assert_eq!(recovered(&[awake(), queued(FIRST), asleep(), failed()]), [], "a client decides");
    for last in [Fact::Stopped, Fact::Ended] {
        assert_eq!(recovered(&[awake(), queued(FIRST), last]), [asleep()]);
    }
}

#[test]
fn a_session_that_a_client_paused_stays_paused_and_one_that_the_server_paused_does_not() {
    assert_eq!(recovered(&[awake(), queued(FIRST), Fact::Paused]), [asleep()]);
    assert_eq!(recovered(&[awake(), queued(FIRST), asleep(), Fact::Paused]), [Fact::Resuming]);
    assert_eq!(recovered(&[awake(), asleep(), Fact::Paused]), []);
}

#[test]
fn a_turn_that_was_asked_to_stop_has_stopped() {
    let stop = Fact::Interrupting { turn: FIRST, input: 3 };
    let facts = with(running(), &[stop]);
    assert_eq!(recovered(&facts), [interrupted(FIRST), asleep(), Fact::Paused]);
    let death = Death::Agent { how: "signal 9".into() };
    assert_eq!(fold(&facts).died(&death), [interrupted(FIRST), asleep()], "it is no failure");
    assert_eq!(fold(&facts).shut_down(), [interrupted(FIRST), asleep(), Fact::Paused]);
}

#[test]
fn a_turn_is_given_up_after_its_second_crash_and_shutdowns_are_none() {
    let twice = |death| with(running(), &[Fact::Cut { turn: FIRST, death }, asleep(), awake(), continued(2)]);
    for death in [Death::Machine, Death::OutOfMemory, Death::LineTooLong] {
        let facts = [cut(FIRST), given_up(), asleep(), Fact::Paused];
        assert_eq!(recovered(&twice(death)), facts, "nothing is left to do");
    }
    assert_eq!(recovered(&twice(Death::Shutdown)), [cut(FIRST), asleep(), Fact::Resuming]);
    let waits = with(twice(Death::Machine), &[queued(SECOND)]);
    assert_eq!(recovered(&waits), [cut(FIRST), given_up(), asleep(), Fact::Resuming], "the next one runs");
    let ask = fold(&twice(Death::Machine)).recover(SandboxLiveness::Dead, InterruptedTurnPolicy::Ask);
    assert_eq!(ask, [cut(FIRST), given_up(), asleep(), Fact::Paused]);
    assert_eq!(
        fold(&twice(Death::Machine)).shut_down()[0],
        Fact::Cut { turn: FIRST, death: Death::Shutdown }
    );
    assert_eq!(fold(&twice(Death::Machine)).shut_down().len(), 3, "a shutdown is no crash");
}

#[test]
fn a_death_is_shown_unless_the_session_was_to_end_anyway() {
    let death = Death::OutOfMemory;
    let failed = Fact::Failed { problem: death.problem() };
    assert_eq!(fold(&[awake()]).died(&death), [asleep(), failed.clone()]);
    assert_eq!(fold(&[awake(), Fact::Paused]).died(&death), [asleep(), failed.clone()]);
    assert_eq!(fold(&[awake(), Fact::Stopped]).died(&death), [asleep()]);
    assert_eq!(fold(&[]).died(&death), [], "there was no agent");
    let cut = Fact::Cut { turn: FIRST, death: death.clone() };
    assert_eq!(fold(&running()).died(&death), [cut, asleep(), failed]);
}

#[test]
fn a_shutdown_pauses_what_is_active() {
    assert_eq!(fold(&[awake()]).shut_down(), [asleep(), Fact::Paused]);
    assert_eq!(fold(&[]).shut_down(), [Fact::Paused]);
    for last in [Fact::Paused, Fact::Stopped, failed()] {
        assert_eq!(fold(&[awake(), last]).shut_down(), [asleep()]);
    }
}

#[test]
fn what_the_agent_began_by_itself_is_not_begun_again() {
    let own = [awake(), Fact::SelfStarted { turn: THIRD }, Fact::Saved(checkpoint(4))];
    let over =
        Fact::Finished { turn: THIRD, outcome: TurnOutcome::Interrupted, checkpoint: Some(4), problem: None };
    assert_eq!(recovered(&own), [over, asleep(), Fact::Paused]);
    let turn = Turn {
        id: THIRD,
        seq: 2,
        content: serde_json::Value::Null,
        options: Default::default(),
        lock: None,
        attempt: 1,
        deaths: 0,
        self_started: true,
        delivered: false,
        acknowledged: false,
        phase: TurnPhase::Running { inputs: Vec::new() },
    };
    assert_eq!(fold(&own).turns, [turn], "no message is behind it");
    let may = |facts: &[Fact]| fold(facts).may_self_start();
    assert!(may(&[awake(), queued(FIRST)]) && !may(&running()));
    assert!(!may(&[awake(), Fact::Paused]) && !may(&[awake(), asleep()]));
}

#[test]
fn a_turn_whose_message_is_missing_changes_no_other() {
    let facts = with(running(), &[queued(SECOND)]);
    let state = fold(&facts);
    let unknown = [
        started(THIRD, 3),
        Fact::Interrupting { turn: THIRD, input: 4 },
        Fact::Steering { turn: THIRD, into: FIRST, input: 5 },
        Fact::Steering { turn: SECOND, into: THIRD, input: 6 },
        Fact::Steered { turn: THIRD, into: FIRST },
        rested(THIRD),
        cut(THIRD),
        Fact::Finished { turn: THIRD, outcome: TurnOutcome::Done, checkpoint: None, problem: None },
    ];
    for fact in unknown {
        let mut after = state.after(std::slice::from_ref(&fact));
        // It was told, but not into this turn.
        after.turns.iter_mut().filter(|turn| turn.id == SECOND).for_each(|turn| turn.delivered = false);
        assert_eq!(after.turns, state.turns, "{fact:?}");
    }
    assert!(state.is_running(FIRST) && !state.is_running(SECOND));
    let joined = fold(&[queued(SECOND), Fact::Steered { turn: SECOND, into: THIRD }]);
    assert_eq!(joined.turns.len(), 1, "the turn that it joined is missing");
}

/// A session that used all of its ten tokens.
fn used_up(facts: &[Fact]) -> LogState {
    let used = UsageIncrement {
        turn: None,
        attempt: 1,
        message: None,
        helper: true,
        routed: false,
        first: false,
        end: None,
        nano_usd: None,
        model: "m".into(),
        usage: TokenUsage { input_tokens: 10, ..TokenUsage::default() },
        confirms: None,
    };
    let mut state = LogState::new(0);
    let session = BudgetLimits { max_tokens: Some(10), ..BudgetLimits::default() };
    state.budget = SessionBudget { session, ..SessionBudget::default() };
    state.after(&[Fact::Used(used)]).after(facts)
}

fn reached() -> Fact {
    let (scope, kind) = (BudgetScope::Session, LimitKind::MaxTokens);
    Fact::BudgetReached(LimitReached { turn: None, scope, kind, limit: 10, used: 10 })
}

#[test]
fn nothing_continues_without_a_budget_after_a_death() {
    let recovered =
        |facts: &[Fact]| used_up(facts).recover(SandboxLiveness::Dead, InterruptedTurnPolicy::Continue);
    assert_eq!(recovered(&running()), [cut(FIRST), asleep(), reached(), Fact::Paused]);
    assert_eq!(recovered(&[awake(), queued(FIRST)]), [asleep(), reached(), Fact::Paused]);
    assert_eq!(recovered(&[awake(), queued(FIRST), reached()]), [asleep(), Fact::Paused], "it is said once");
    assert_eq!(recovered(&[awake(), queued(FIRST), asleep(), Fact::Paused]), [reached()]);
    assert_eq!(recovered(&[awake(), queued(FIRST), asleep(), failed()]), [reached()]);
    assert_eq!(recovered(&[awake(), queued(FIRST), asleep(), Fact::Stopped]), []);
    assert_eq!(recovered(&[awake()]), [asleep(), Fact::Paused], "nothing waits for it");
}

#[test]
fn an_ended_session_says_that_it_has_ended_and_not_that_its_budget_is_used_up() {
    let prompt = StateCommand::Prompt {
        turn: FIRST,
        content: "hi".into(),
        ask: Default::default(),
        wake: WakePolicy::Allowed,
        on_busy: Default::default(),
        lock: None,
    };
    let refused = |facts: &[Fact]| used_up(facts).decide(&prompt).expect_err("nothing may be used");
    assert_eq!(refused(&[Fact::Ended]), CommandRefusal::WrongStatus(SessionStatus::Ended));
    assert!(matches!(refused(&[awake()]), CommandRefusal::Budget(_)));
}

#[test]
fn a_new_session_has_no_past() {
    let state = LogState::new(0);
    assert!(!state.agent_options_outdated && !state.resuming && !state.pause_requested);
    let counts =
        (state.locks, state.unsaved, state.rewound, state.last_checkpoint, state.last_workspace_rewind);
    assert_eq!(counts, (0, 0, 0, 0, 0));
    assert_eq!((state.turns_delivered, state.turns_total, state.last_options_change), (0, 0, 0));
}
