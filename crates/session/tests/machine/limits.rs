//! Limits that the machine watches itself: the time of turns and of background work, the disk, and agents that do not stop.

use crate::{
    given::{FIRST, Given, SECOND, asleep, awake, failed, queued, rested, started},
    world::USUAL,
};
use ash_model::{BudgetScope, Death, Fact, LimitKind, LimitReached};
use ash_session::machine::{
    Effect, NextStep, SandboxConnection, SessionClosing, SessionProfile, TurnAttempt, TurnTimeLimit, WaiterId,
};
use std::time::Duration;

fn running() -> Vec<Fact> {
    vec![queued(FIRST), started(FIRST, 2)]
}

fn full() -> LimitReached {
    LimitReached { turn: None, scope: BudgetScope::Turn, kind: LimitKind::DiskMb, limit: 10, used: 11 }
}

fn shutdown(given: &Given) -> SessionClosing {
    SessionClosing::shutdown(given.at(9000).instant, WaiterId(1))
}

#[test]
fn the_limits_in_force_are_read_when_a_sandbox_is_there() {
    let mut given = Given::live(&[]);
    given.machine.runtime.limits.bounds = TurnTimeLimit::Unknown;
    assert_eq!(given.plan(0), NextStep::ReadLimits);
    given.machine.runtime.closing = Some(shutdown(&given));
    assert_eq!(given.plan(0), NextStep::LeaveSandbox, "they do not matter any more");
    given.machine.runtime.closing = None;
    given.machine.log.apply(9, &Fact::Paused);
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    assert_eq!(given.plan(0), NextStep::Wait);
}

#[test]
fn a_turn_that_takes_too_long_is_interrupted_with_its_reason() {
    let mut given = Given::live(&running());
    given.machine.runtime.limits.bounds = TurnTimeLimit::Seconds(50);
    let started = given.at(5).instant;
    given.machine.observe(started);
    let attempt = TurnAttempt { turn: FIRST, attempt: 1 };
    assert_eq!(given.machine.runtime.limits.running, Some((attempt, started)));
    // Only another attempt counts anew.
    given.machine.observe(given.at(30).instant);
    given.machine.runtime.limits.next_disk_check = given.at(7200).instant;
    let reached = LimitReached {
        turn: Some(FIRST),
        scope: BudgetScope::Turn,
        kind: LimitKind::TurnSeconds,
        limit: 50,
        used: 50,
    };
    let interrupting = Fact::Interrupting { turn: FIRST, input: 3 };
    let facts = vec![Fact::BudgetReached(reached), interrupting.clone()];
    assert_eq!(given.due(), Some((55, NextStep::CommitAndTell { facts })));

    // The agent has its time to stop, once.
    given.machine.log.apply(9, &interrupting);
    given.machine.set_interrupt_deadline(given.at(55).instant);
    given.machine.set_interrupt_deadline(given.at(60).instant);
    assert_eq!(given.due(), Some((655, NextStep::KillAgent)));
    given.machine.begin(&NextStep::KillAgent, given.at(655).instant);
    assert_eq!((given.machine.runtime.agent.interrupt_deadline, given.plan(656)), (None, NextStep::Wait));
}

#[test]
fn a_turn_that_begins_again_has_its_whole_time() {
    let mut given = Given::live(&running());
    given.machine.observe(given.start);
    let again = [Fact::Cut { turn: FIRST, death: Death::Machine }, asleep(), awake()];
    again.iter().zip(9..).for_each(|(fact, seq)| given.machine.log.apply(seq, fact));
    given.machine.observe(given.at(10).instant);
    assert_eq!((given.machine.running_attempt(), given.machine.runtime.limits.running), (None, None));
    let calls = Vec::new();
    given
        .machine
        .log
        .apply(20, &Fact::Continued { turn: FIRST, attempt: 2, discard_after: 1, input: 2, calls });
    let now = given.at(20).instant;
    given.machine.observe(now);
    let attempt = TurnAttempt { turn: FIRST, attempt: 2 };
    assert_eq!(given.machine.runtime.limits.running, Some((attempt, now)));
}

#[test]
fn a_session_that_closes_stops_no_turn_for_its_time() {
    let mut given = Given::live(&running());
    given.machine.runtime.limits.bounds = TurnTimeLimit::Seconds(50);
    given.machine.observe(given.start);
    given.machine.runtime.closing = Some(shutdown(&given));
    assert_eq!(given.plan(60), NextStep::Wait);
    let mut given = Given::live(&[]);
    given.machine.runtime.limits.bounds = TurnTimeLimit::Seconds(50);
    given.machine.observe(given.start);
    assert_eq!(given.due(), Some((7200, NextStep::CheckDisk)), "nothing runs");
}

#[test]
fn an_agent_that_was_not_asked_to_stop_has_no_deadline() {
    let mut given = Given::live(&running());
    given.machine.set_interrupt_deadline(given.start);
    assert_eq!(given.machine.runtime.agent.interrupt_deadline, None);
}

#[test]
fn the_disk_is_checked_every_second_while_the_session_works() {
    let next = |given: &mut Given, seconds| {
        given.machine.observe(given.at(seconds).instant);
        given.due()
    };
    assert_eq!(next(&mut Given::live(&running()), 4), Some((5, NextStep::CheckDisk)));
    let mut command = Given::live(&[]);
    command.machine.runtime.agent.commands_running = true;
    assert_eq!(next(&mut command, 4), Some((5, NextStep::CheckDisk)));
    assert_eq!(next(&mut command, 0), Some((1, NextStep::CheckDisk)), "the earlier check counts");
    assert_eq!(next(&mut command, 8), Some((1, NextStep::CheckDisk)));
    let mut idle = Given::live(&[]);
    assert_eq!(next(&mut idle, 4), Some((7200, NextStep::CheckDisk)));
    // What is over is not checked.
    let mut full_disk = Given::live(&running());
    full_disk.machine.ended_for_limit(full());
    assert_eq!(next(&mut full_disk, 4), None);
    let mut closing = Given::live(&running());
    closing.machine.runtime.closing = Some(shutdown(&closing));
    assert!(!closing.machine.is_watched_at_work());
    assert_eq!(next(&mut closing, 4), Some((9000, NextStep::LeaveSandbox)));
    let mut away = Given::live(&running());
    away.machine.runtime.sandbox = SandboxConnection::Departing;
    assert!(!away.machine.is_watched_at_work());
}

#[test]
fn a_session_whose_files_exceed_their_limit_says_so_after_its_turn_and_its_sandbox() {
    let mut given = Given::live(&running());
    let problem = full().problem();
    given.machine.runtime.agent.interrupt_deadline = Some(given.start);
    given.machine.ended_for_limit(full());
    assert_eq!(given.machine.runtime.limits.full, Some(full()));
    assert_eq!(given.machine.runtime.agent.interrupt_deadline, None, "its sandbox ends anyway");
    assert_eq!(given.plan(0), NextStep::Wait);
    let say = |facts| NextStep::SayFull { facts };
    given.machine.log.apply(9, &rested(FIRST));
    given.machine.runtime.sandbox = SandboxConnection::Absent;
    assert_ne!(given.plan(0), say(vec![Fact::Failed { problem: problem.clone() }]), "it is saved first");
    given.machine.log.apply(10, &crate::given::finished(FIRST, None));
    given.machine.runtime.effect = Some(Effect::EndSandbox);
    assert_eq!(given.plan(0), NextStep::Wait);
    given.machine.finish_effect();
    assert_eq!(given.plan(0), say(vec![Fact::Failed { problem }]));
    for last in [Fact::Stopped, failed(), Fact::Ended] {
        given.machine.log.apply(11, &last);
        assert_eq!(given.plan(0), say(vec![]), "{last:?}");
    }
    given.machine.said_full();
    assert_eq!(given.machine.runtime.limits.full, None);
    // A new sandbox starts with a clean slate.
    given.machine.ended_for_limit(full());
    let now = given.at(7).instant;
    given.machine.runtime.connect(now);
    let run = &given.machine.runtime;
    assert_eq!(
        (run.sandbox, run.limits.full, run.limits.next_disk_check),
        (SandboxConnection::Connected, None, now)
    );
}

#[test]
fn background_work_holds_a_turn_only_for_a_while() {
    let mut given = Given::live(&running());
    given.machine.note_background_wait(true, given.start);
    given.machine.note_background_wait(true, given.at(5).instant);
    assert_eq!(given.due(), Some((600, NextStep::StopWaitingForBackground)), "since it began to wait");
    given.machine.note_background_wait(false, given.at(6).instant);
    assert_eq!(given.due(), Some((7200, NextStep::CheckDisk)));
    given.machine.note_background_wait(true, given.at(7).instant);
    given.machine.runtime.agent.interrupt_deadline = Some(given.start);
    given.machine.background_wait_ended();
    assert_eq!(given.machine.runtime.agent, Default::default());
    // Records that cannot be written come first.
    given.machine.note_background_wait(true, given.start);
    given.machine.runtime.write_retry = Some(given.at(1000).instant);
    assert_eq!(given.due(), Some((1000, NextStep::RetryWrite)));
    given.machine.begin(&NextStep::RetryWrite, given.start);
    assert_eq!(given.machine.runtime.write_retry, None);
}

#[test]
fn the_agents_own_work_gets_a_turn_at_most_once_a_second_and_before_what_waits() {
    let own = |facts: &[Fact]| {
        let mut given = Given::live(facts);
        given.machine.runtime.agent.self_started = true;
        given
    };
    let mut given = own(&[queued(SECOND)]);
    assert_eq!(given.plan(0), NextStep::BeginSelfStartedTurn);
    given.machine.begin(&NextStep::BeginSelfStartedTurn, given.start);
    assert_eq!(given.machine.runtime.agent.last_self_start, Some(given.start));
    assert_eq!(given.due(), Some((1, NextStep::BeginSelfStartedTurn)));
    for facts in [running(), vec![Fact::Paused], vec![asleep()]] {
        assert_ne!(own(&facts).plan(0), NextStep::BeginSelfStartedTurn, "{facts:?}");
    }
    let mut away = own(&[]);
    away.machine.runtime.sandbox = SandboxConnection::Departing;
    assert_eq!(away.plan(0), NextStep::EndSandbox);
    let mut none = Given::live(&[]);
    none.machine.runtime.agent.last_self_start = Some(none.start);
    assert_eq!(none.plan(5), NextStep::Wait);
}

#[test]
fn the_next_deadline_is_the_earliest() {
    let profile = SessionProfile { idle_timeout: Some(Duration::from_secs(60)), ..USUAL };
    let mut given = Given::live_with(profile, &[Fact::Paused]);
    assert_eq!(given.next(0), Some(60));
    given.machine.runtime.write_retry = Some(given.at(70).instant);
    assert_eq!(given.next(0), Some(60));
    given.machine.runtime.limits.next_disk_check = given.at(50).instant;
    assert_eq!(given.next(0), Some(50));
}
